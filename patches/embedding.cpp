// SPDX-License-Identifier: Apache-2.0
// Rows of a table by index. A table cut along its rows: every rank looks up those it has, the rest
// is zero, and the sum over ranks is pending.
#include <ATen/ops/embedding.h>
#include <ATen/ops/zeros.h>
#include <shard/patch.h>

namespace shard {
namespace {

using at::Tensor;
using c10::IValue;

/// embedding(weight, indices, padding_idx, scale_grad_by_freq, sparse)
std::optional<Decision> embedding(const OpCall& call) {
  const auto& weight = call.tensor(0);
  const auto& indices = call.tensor(1);
  Decision decision;
  decision.inputs.resize(2);
  decision.outputs.resize(1);
  if (indices.is_shard()) {
    decision.inputs[1] = decision.outputs[0] = indices.layout();
    return decision;
  }
  if (!weight.is_shard()) return decision;
  decision.inputs[0] = weight.layout();
  if (weight.shard_dim() == 1) {
    decision.outputs[0] = weight.layout().moved_to(indices.ndim());
    return decision;
  }
  decision.outputs[0] = Layout(Partial(), {});
  decision.local =
      [offset = weight.spec->offset(call.mesh().rank()),
       rows = weight.spec->local_size(call.mesh().rank())](c10::ArrayRef<IValue> arguments) {
        const Tensor table = arguments[0].toTensor();
        const Tensor row = arguments[1].toTensor() - offset;
        if (rows == 0) {
          auto sizes = row.sizes().vec();
          sizes.push_back(table.size(1));
          return std::vector<IValue>{at::zeros(sizes, table.options())};
        }
        const Tensor is_mine = row.ge(0).logical_and_(row.lt(rows));
        return std::vector<IValue>{at::embedding(table, row.clamp(0, rows - 1)) *
                                   is_mine.unsqueeze(-1)};
      };
  return decision;
}

/// embedding_dense_backward(gradient, indices, rows, padding_idx, scale_grad_by_freq)
std::optional<Decision> embedding_backward(const OpCall& call) {
  const auto& gradient = call.tensor(0);
  const auto& indices = call.tensor(1);
  const bool counts = call.argument(4).toBool();  // how often an index occurs, among all
  Decision decision;
  decision.inputs.resize(2);
  decision.outputs.resize(1);
  const bool along_features = gradient.is_shard() && gradient.shard_dim() == indices.ndim();
  if (along_features) {
    decision.inputs[0] = gradient.layout();
    decision.outputs[0] = gradient.layout().moved_to(1);
    return decision;
  }
  const Layout cut = indices.is_shard()    ? indices.layout()
                     : gradient.is_shard() ? gradient.layout()
                                           : Layout();
  if (!cut.is_shard() || counts) return decision;
  decision.inputs.assign(2, cut);
  decision.outputs[0] = Layout(Partial(), {});
  return decision;
}

}  // namespace

SHARD_PATCH(embedding) {
  patch.rule("aten::embedding", embedding).shards("any dim of the table or of the indices");
  patch.rule("aten::embedding_dense_backward", embedding_backward).shards("any dim");
}

}  // namespace shard
