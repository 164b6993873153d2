// SPDX-License-Identifier: Apache-2.0
// take and put: elements of a tensor named by their numbers in row-major order. They are read as
// rows of the flattened tensor; of those that are written every rank picks the ones in its part.
#include <ATen/ops/where.h>
#include <shard/patch.h>
#include <shard/reduced.h>
#include <shard/route.h>

namespace shard {
namespace {

using at::Tensor;
using c10::IValue;

bool is_cut(const Tensor& t) { return is_shard_tensor(t) && spec_of(t)->is_shard(); }

/// From a whole tensor every rank takes what its part of the index says.
Tensor take_from_whole(const Tensor& self, const Tensor& index, const DeviceMesh& mesh) {
  const Tensor places = promote(index, mesh);
  const auto& spec = spec_of(places);
  const Tensor whole =
      spec->is_shard() ? local_weight(mesh, self) : local_copies(mesh, {self}).front();
  return from_local(at::take(whole, to_local(places)), mesh, spec);
}

/// The elements of the flattened tensor, as its rows.
Tensor take(const Tensor& x, const Tensor& by) {
  check_index_dtype("aten::take", by, /*takes_int=*/false);
  TORCH_CHECK_INDEX(x.numel() > 0 || by.numel() == 0, "take: got ", by.numel(),
                    " indices of a tensor without elements; expected none.");
  const Tensor self = reduced(x);
  const Tensor index = reduced(by);
  if (!is_cut(self)) {
    return take_from_whole(self, index, mesh_of(is_shard_tensor(index) ? index : self));
  }
  const Tensor places = at::where(index.lt(0), index + self.numel(), index);
  return self.reshape({-1}).index_select(0, places.reshape({-1})).reshape(index.sizes());
}

void check_put(const OpCall& call) {
  const Tensor& self = call.tensor(0).tensor;
  const Tensor& index = call.tensor(1).tensor;
  const Tensor& source = call.tensor(2).tensor;
  check_index_dtype(call.name(), index, /*takes_int=*/false);
  check<SpecMismatch>(index.numel() == source.numel() && source.scalar_type() == self.scalar_type(),
                      call.name(), "got ", source.numel(), " values of ", source.scalar_type(),
                      "; expected ", index.numel(), " of ", self.scalar_type(), ", one an index.");
}

/// Every rank has the whole index.
void check_elements(const Tensor& index, int64_t numel) {
  if (index.numel() == 0) return;
  const auto least = index.min().item<int64_t>();
  const auto largest = index.max().item<int64_t>();
  TORCH_CHECK_INDEX(least >= -numel && largest < numel, "put: got indices from ", least, " to ",
                    largest, "; expected ", -numel, " to ", numel - 1, ", as self has ", numel,
                    " elements.");
}

/// put(self, index, source, accumulate): flat indices, of which every rank writes those in its
/// part.
std::optional<Decision> put(const OpCall& call) {
  const auto& self = call.tensor(0);
  check_put(call);
  const Layout layout = self.is_partial() ? Layout() : self.layout();
  Decision decision;
  decision.inputs.resize(3);
  decision.inputs[0] = layout;
  decision.outputs.push_back(layout);
  if (!layout.is_shard()) return decision;
  const auto sizes = self.sizes();
  const auto dim = static_cast<size_t>(layout.dim());
  const int64_t inner = c10::multiply_integers(sizes.slice(dim + 1));
  const int64_t n = sizes[dim];
  const int64_t rank = call.mesh().rank();
  const int64_t offset = offset_of(layout.partition, rank);
  const int64_t rows = layout.partition[static_cast<size_t>(rank)];
  decision.local = [=, numel = self.tensor.numel(),
                    writes = self.is_written](c10::ArrayRef<IValue> arguments) {
    Tensor local = arguments[0].toTensor();
    if (!writes) local = local.clone();
    check_elements(arguments[1].toTensor(), numel);
    if (rows == 0) return std::vector<IValue>{local};
    Tensor index = arguments[1].toTensor().reshape(-1);
    index = at::where(index.lt(0), index + numel, index);
    const Tensor row = index.div(inner, "floor").remainder(n) - offset;
    const Tensor is_mine = row.ge(0).logical_and(row.lt(rows));
    const Tensor own =
        (index.div(n * inner, "floor") * rows + row) * inner + index.remainder(inner);
    local.put_(own.masked_select(is_mine),
               arguments[2].toTensor().reshape(-1).masked_select(is_mine), arguments[3].toBool());
    return std::vector<IValue>{local};
  };
  return decision;
}

}  // namespace

SHARD_PATCH(flat_indexing) {
  patch.function<at::_ops::take>(take).shards("any dim of self", "the index");
  for (const char* op : {"aten::put", "aten::put_"}) patch.rule(op, put).shards("any dim of self");
}

}  // namespace shard
