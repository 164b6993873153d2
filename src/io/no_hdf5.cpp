// SPDX-License-Identifier: Apache-2.0
// Stands in for hdf5.cpp in builds without HDF5.
#include <shard/error.h>
#include <shard/hdf5.h>

namespace shard::io {
namespace {
[[noreturn]] void refuse() {
  raise<FileError>("hdf5",
                   "this build has no HDF5. Install libhdf5-dev and configure with "
                   "-DSHARD_WITH_HDF5=ON.");
}
}  // namespace

Hdf5Dataset::Hdf5Dataset(const std::string&, const std::string&) { refuse(); }
c10::IntArrayRef Hdf5Dataset::sizes() const { refuse(); }
at::ScalarType Hdf5Dataset::dtype() const { refuse(); }
const std::string& Hdf5Dataset::path() const { refuse(); }
at::Tensor Hdf5Dataset::read(const std::vector<Range>&) const { refuse(); }
void Hdf5Dataset::require_sizes(c10::IntArrayRef) const { refuse(); }
bool has_hdf5() { return false; }

}  // namespace shard::io
