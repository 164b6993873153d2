// SPDX-License-Identifier: Apache-2.0
// Rows each repeated as often as a tensor says. Where the rows are cut, so are the numbers of
// repeats, and with them the list of rows that the result is selected by.
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/repeat_interleave.h>
#include <shard/counted_patch.h>
#include <shard/reduction_patch.h>

namespace shard {
namespace {

using at::Tensor;
using c10::IValue;

/// repeat_interleave.Tensor(repeats, *, output_size): row numbers, each repeated.
std::optional<Decision> row_numbers(const OpCall& call) {
  const auto& repeats = call.tensor(0);
  Decision decision;
  decision.inputs.push_back(repeats.is_shard() ? repeats.layout() : Layout());
  decision.outputs.push_back(repeats.is_shard() ? counted_along(0) : Layout());
  if (!repeats.is_shard() || call.mesh().size() == 1) return decision;
  decision.local = [offset = offset_of(repeats.layout().partition, call.mesh().rank()),
                    size = call.optional_integer(1), name = call.name(),
                    mesh = call.mesh()](c10::ArrayRef<IValue> arguments) {
    const Tensor own = arguments[0].toTensor();
    const bool is_negative = count_set(own.lt(0)) > 0;
    const int64_t rows = is_negative ? -1 : own.sum().item<int64_t>();
    const Partition counts = count_rows(rows, mesh);
    for (const int64_t count : counts) {
      check<SpecMismatch>(count >= 0, name,
                          "got a negative number of repeats; expected none below 0.");
    }
    check<SpecMismatch>(!size || *size == total_of(counts), name, "got output_size ",
                        size.value_or(0), " for ", total_of(counts),
                        " repeats in all; expected their sum.");
    return std::vector<IValue>{at::repeat_interleave(own) + offset};
  };
  return decision;
}

/// One number of repeats a row, cut like the rows.
Tensor repeats_of_rows(const Tensor& repeats, const Tensor& x, int64_t dim) {
  const bool is_one = repeats.dim() == 0 || (repeats.dim() == 1 && repeats.size(0) == 1);
  check<SpecMismatch>(is_one || (repeats.dim() == 1 && repeats.size(0) == x.size(dim)),
                      "repeat_interleave", "got repeats of ", repeats.sizes(), " for ", x.size(dim),
                      " rows; expected one for each, or one for all.");
  const Tensor rows = is_one ? repeats.reshape({1}).expand({x.size(dim)}) : repeats;
  if (!is_shard_tensor(x) || !spec_of(x)->placement().is_shard(dim)) return rows;
  const Tensor known = promote(rows, mesh_of(x));
  return redistribute(known,
                      spec_of(known)->with(Shard(0), known.sizes(), spec_of(x)->partition()));
}

/// repeat_interleave.self_Tensor(self, repeats, dim, *, output_size)
Tensor repeat_rows(const Tensor& self, const Tensor& repeats, std::optional<int64_t> dim,
                   std::optional<int64_t> size) {
  const Tensor x = dim ? self : self.flatten();
  const int64_t along = at::maybe_wrap_dim(dim.value_or(0), x.dim());
  check<SpecMismatch>(x.dim() > 0, "repeat_interleave",
                      "got a tensor without dims to repeat along; "
                      "expected one. Use reshape({1}).");
  return x.index_select(along, at::repeat_interleave(repeats_of_rows(repeats, x, along), size));
}

}  // namespace

SHARD_PATCH(repeat_interleave) {
  patch.rule("aten::repeat_interleave.Tensor", row_numbers).shards("the repeats");
  patch.function<at::_ops::repeat_interleave_self_Tensor>(repeat_rows)
      .shards("any dim")
      .notes("along the dim itself the repeats are cut too");
}

}  // namespace shard
