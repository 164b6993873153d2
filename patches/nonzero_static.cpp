// SPDX-License-Identifier: Apache-2.0
// nonzero with a size given: the first places of non-zero elements. Cut along the first dim, the
// ranks' places stand in order; the result is small and whole on every rank.
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/nonzero_static.h>
#include <shard/reduction_patch.h>

#include <algorithm>
#include <vector>

namespace shard {
namespace {

using at::Tensor;
using c10::IValue;

/// The first `size` of all ranks' places, of which `counts[rank]` are none made up.
Tensor first_places(const Tensor& places, const Tensor& counts, int64_t size, int64_t fill) {
  std::vector<Tensor> parts;
  for (int64_t rank = 0; rank < counts.numel(); ++rank) {
    parts.push_back(places.select(0, rank).narrow(0, 0, counts[rank].item<int64_t>()));
  }
  parts.push_back(at::full({size, places.size(2)}, fill, places.options()));
  return at::cat(parts, 0).narrow(0, 0, size);
}

/// nonzero_static(self, *, size, fill_value)
std::optional<Decision> nonzero_static(const OpCall& call) {
  const auto& input = call.tensor(0);
  Decision decision;
  decision.outputs.resize(1);
  if (!input.is_shard()) {
    decision.inputs.emplace_back();
    return decision;
  }
  const Layout rows = input.shard_dim() == 0
                          ? input.layout()
                          : Layout(Shard(0), even_partition(input.sizes()[0], call.mesh().size()));
  decision.inputs.push_back(rows);
  decision.local = [offset = offset_of(rows.partition, call.mesh().rank()),
                    mesh = call.mesh()](c10::ArrayRef<IValue> arguments) {
    const Tensor local = arguments[0].toTensor();
    const int64_t size = arguments[1].toInt();
    const int64_t fill = arguments[2].toInt();
    const int64_t count = std::min(at::nonzero(local).size(0), size);
    Tensor places = at::nonzero_static(local, size, 0);
    places.select(1, 0).add_(offset);
    const Tensor counts = gathered_over_ranks(at::full({1}, count, places.options()), mesh);
    const Tensor all = gathered_over_ranks(places, mesh);
    return std::vector<IValue>{first_places(all, counts, size, fill)};
  };
  return decision;
}

}  // namespace

SHARD_PATCH(nonzero_static) {
  patch.rule("aten::nonzero_static", nonzero_static)
      .shards("any dim")
      .notes("moves to the first dim; the result is whole on every rank")
      .needs_values();
}

}  // namespace shard
