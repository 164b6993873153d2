// SPDX-License-Identifier: Apache-2.0
#include "tensor/replicated_check.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <shard/error.h>

#include <cstring>
#include <string_view>

#include "comm/comm_log.h"
#include "tensor/impl.h"

namespace shard {
namespace {

/// Sizes, dtype and a hash of the bits.
std::string fingerprint(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.detach().cpu().contiguous();
  const std::string_view bits(static_cast<const char*>(dense.const_data_ptr()), dense.nbytes());
  return c10::str(tensor.scalar_type(), " of ", tensor.sizes(), " with the hash ",
                  std::hash<std::string_view>()(bits));
}

}  // namespace

void compare_replicated(const at::Tensor& plain, const DeviceMesh& mesh) {
  if (impl_of(plain)) return compare_replicated(impl_of(plain)->local(), mesh);
  const at::AutoDispatchBelowADInplaceOrView guard;
  const auto all = mesh.comm().all_gather_bytes(fingerprint(plain));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    check<SpecMismatch>(all[rank] == all[0], current_label(), "got a plain tensor (", all[0],
                        ") next to ShardTensors that differs on rank ", rank, " of ", mesh.layout(),
                        " (", all[rank],
                        "); expected the same bits on every rank. broadcast_parameters() makes "
                        "them so; shard::from_local is for parts of a whole.");
  }
}

}  // namespace shard
