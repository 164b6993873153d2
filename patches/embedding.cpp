// SPDX-License-Identifier: Apache-2.0
// Rows of a table by numbers. Table and numbers may each be cut: rows of a cut table travel to
// those that name them (patches/indexing.cpp).
#include <ATen/ops/index.h>
#include <ATen/ops/where.h>
#include <shard/patch.h>

namespace shard {
namespace {

using at::Tensor;

Tensor embedding(const Tensor& weight, const Tensor& indices, int64_t padding_index,
                 bool scale_by_frequency, bool sparse) {
  if (scale_by_frequency || sparse) {
    refuse_op("aten::embedding", scale_by_frequency ? "scale_grad_by_freq" : "sparse gradients",
              "plain dense gradients");
  }
  check<SpecMismatch>(weight.dim() == 2, "aten::embedding", "got a table of ", weight.sizes(),
                      "; expected (rows, columns). Correct the sizes.");
  const Tensor rows = at::index(weight, {indices});
  if (padding_index < 0) return rows;
  return at::where(indices.ne(padding_index).unsqueeze(-1), rows, rows.detach());
}

}  // namespace

SHARD_PATCH(embedding) {
  patch.function<at::_ops::embedding>(embedding)
      .shards("the table's rows", "the table's columns", "the indices")
      .notes("scale_grad_by_freq and sparse are refused");
}

}  // namespace shard
