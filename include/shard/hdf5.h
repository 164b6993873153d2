// SPDX-License-Identifier: Apache-2.0
// Reading parts of HDF5 datasets into tensors. Calls into HDF5 are serialised by one process-wide
// lock (Debian's library is not thread-safe), so several rank threads may read at once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace shard::io {

/// Indices begin, begin + step, ... below end.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t step = 1;
};

/// A dataset of integers or floats in a file. Move-only by sharing: copies read the same open file.
class Hdf5Dataset {
 public:
  /// Errors: FileError (missing, truncated, no HDF5, no such dataset, other element type; built
  /// without HDF5).
  Hdf5Dataset(const std::string& path, const std::string& name);

  c10::IntArrayRef sizes() const;
  at::ScalarType dtype() const;
  const std::string& path() const;

  /// Reads one range a dim; dims without a range are read whole. Only these elements are stored,
  /// and only the chunks that hold them are read. Empty ranges give empty tensors. Errors:
  /// SpecMismatch (range outside the dataset), FileError (damaged data).
  at::Tensor read(const std::vector<Range>& ranges = {}) const;
  /// Rows [begin, end) of dim 0.
  at::Tensor read_rows(int64_t begin, int64_t end) const { return read({{begin, end, 1}}); }

  /// FileError naming the file unless the dataset has this shape.
  void require_sizes(c10::IntArrayRef expected) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

/// Whether the library was built with HDF5.
bool has_hdf5();

}  // namespace shard::io
