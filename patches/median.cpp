// SPDX-License-Identifier: Apache-2.0
// The median of all elements, without moving them: every rank sorts its own, then all narrow down
// together where the one in the middle stands (NOTE [Lines sorted over the ranks]).
#include <shard/reduction_patch.h>
#include <shard/route.h>
#include <shard/sorted_patch.h>

namespace shard {
namespace {

using at::Tensor;

Tensor over_ranks(const Tensor& local, bool ignores_nan, const DeviceMesh& mesh) {
  const SortedPart own = sorted_part(plain_numbers(local).reshape({-1}));
  return median_of_line(own, ignores_nan, /*offset=*/0, mesh).value.squeeze(0);
}

Rule median(bool ignores_nan) {
  return [ignores_nan](const OpCall& call) {
    return reduction_rule(call, all_dims_reduced(call),
                          [ignores_nan, mesh = call.mesh()](const Tensor& local) {
                            return std::vector<Tensor>{over_ranks(local, ignores_nan, mesh)};
                          });
  };
}

}  // namespace

SHARD_PATCH(median) {
  const char* const note = "every rank sorts its own part; a few small messages";
  patch.remembering_rule("aten::median", median(false))
      .shards("any dim")
      .notes(note)
      .needs_values();
  patch.remembering_rule("aten::nanmedian", median(true))
      .shards("any dim")
      .notes(note)
      .needs_values();
}

}  // namespace shard
