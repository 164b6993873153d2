// SPDX-License-Identifier: Apache-2.0
// Reading and writing whole rows by a list of indices. Where the indexed dim is cut, the list is
// cut too (as it comes, or evenly): every rank fetches the rows that its part names from their
// owners, or brings them theirs. Nobody holds more than its share, whatever the indices.
#include <ATen/ops/index_select.h>
#include <ATen/ops/where.h>
#include <shard/count_rows.h>
#include <shard/patch.h>
#include <shard/route.h>

namespace shard {
namespace {

using at::Tensor;
using c10::IValue;

/// Where an op cuts the rows of its first tensor and the list that names them.
struct RowCut {
  int64_t dim;
  Layout rows, list;
};

Layout even_layout(int64_t dim, int64_t size, const DeviceMesh& mesh) {
  return {Shard(dim), even_partition(size, mesh.size())};
}

/// The list's own pieces, else those of `values` along the indexed dim, else even ones.
Layout list_layout(const OpCall& call, int64_t dim, const TensorArgument* values) {
  const auto& list = call.tensor(1);
  if (list.is_shard()) return list.layout();
  if (values && values->shard_dim() == dim) return values->layout().moved_to(0);
  return even_layout(0, list.sizes()[0], call.mesh());
}

Tensor long_numbers(const IValue& list) { return plain_numbers(list.toTensor()).to(at::kLong); }

/// Ops (self, dim, index, ...) where no rows have to travel: `index` is whole on every rank, the
/// other tensors lie alike.
std::optional<Decision> by_whole_list(const OpCall& call) {
  auto decision = along_dims(1)(call);
  if (decision) decision->inputs[1] = Layout();
  return decision;
}

std::optional<Decision> index_select(const OpCall& call) {
  const auto& self = call.tensor(0);
  const auto& list = call.tensor(1);
  const int64_t dim = call.dim(1, self.ndim());
  check_index_dtype(call.name(), list.tensor, /*takes_int=*/true);
  const bool takes_rows = self.is_shard() ? self.shard_dim() == dim : list.is_shard();
  if (list.ndim() != 1 || !takes_rows) return by_whole_list(call);
  Decision decision;
  const Layout cut = list_layout(call, dim, nullptr);
  decision.inputs = {self.is_shard() ? self.layout() : Layout(), cut};
  decision.outputs.push_back(cut.moved_to(dim));
  if (!self.is_shard() || call.mesh().size() == 1) return decision;
  decision.local = [dim, owned = self.layout().partition, name = call.name(),
                    mesh = call.mesh()](c10::ArrayRef<IValue> arguments) {
    const RowRoute route(name, long_numbers(arguments[2]), owned, mesh);
    return std::vector<IValue>{route.fetch(arguments[0].toTensor(), dim)};
  };
  return decision;
}

/// How an op (self, dim, index, source, ...) writes the values delivered for `rows` of `self`.
using Write = void (*)(Tensor& self, int64_t dim, const RowRoute::Delivery& delivery,
                       c10::ArrayRef<IValue> arguments);

void add(Tensor& self, int64_t dim, const RowRoute::Delivery& delivery,
         c10::ArrayRef<IValue> arguments) {
  self.index_add_(dim, delivery.rows, delivery.values, arguments[4].toScalar());
}
void copy(Tensor& self, int64_t dim, const RowRoute::Delivery& delivery, c10::ArrayRef<IValue>) {
  self.index_copy_(dim, delivery.rows, delivery.values);
}
void reduce(Tensor& self, int64_t dim, const RowRoute::Delivery& delivery,
            c10::ArrayRef<IValue> arguments) {
  self.index_reduce_(dim, delivery.rows, delivery.values, arguments[4].toStringView(),
                     arguments[5].toBool());
}

Rule writing_rows(Write write, RowRoute::Repeats repeats, bool is_in_place) {
  return [=](const OpCall& call) -> std::optional<Decision> {
    const auto& self = call.tensor(0);
    const auto& source = call.tensor(2);
    const int64_t dim = call.dim(1, self.ndim());
    check_index_dtype(call.name(), call.tensor(1).tensor, write != copy);
    const bool rows_travel = self.is_shard()
                                 ? self.shard_dim() == dim
                                 : call.tensor(1).is_shard() || source.shard_dim() == dim;
    if (call.tensor(1).ndim() != 1 || source.ndim() != self.ndim() || !rows_travel) {
      return by_whole_list(call);
    }
    const int64_t size = self.sizes()[static_cast<size_t>(dim)];
    const Layout rows = self.is_shard() ? self.layout() : even_layout(dim, size, call.mesh());
    const Layout cut = list_layout(call, dim, &source);
    Decision decision;
    decision.inputs = {rows, cut, cut.moved_to(dim)};
    decision.outputs.push_back(rows);
    if (call.mesh().size() == 1) return decision;
    decision.local = [=, name = call.name(), mesh = call.mesh()](c10::ArrayRef<IValue> arguments) {
      const RowRoute route(name, long_numbers(arguments[2]), rows.partition, mesh, repeats);
      const auto delivery = route.deliver(arguments[3].toTensor(), dim);
      Tensor written = arguments[0].toTensor();
      if (!is_in_place) written = written.clone();
      write(written, dim, delivery, arguments);
      return std::vector<IValue>{written};
    };
    return decision;
  };
}

/// (self, dim, index, value): the owners are told which rows to fill. Negative ones count from the
/// end.
Rule filling_rows(bool is_in_place) {
  return [=](const OpCall& call) -> std::optional<Decision> {
    const auto& self = call.tensor(0);
    const int64_t dim = call.dim(1, self.ndim());
    check_index_dtype(call.name(), call.tensor(1).tensor, /*takes_int=*/false);
    if (call.tensor(1).ndim() != 1 || self.shard_dim() != dim) {
      Decision decision;
      const Layout layout = self.is_partial() ? Layout() : self.layout();
      decision.inputs.resize(call.tensors().size());  // the list and the value: whole
      decision.inputs[0] = layout;
      decision.outputs.push_back(layout);
      return decision;
    }
    Decision decision;
    decision.inputs.resize(call.tensors().size());
    decision.inputs[0] = self.layout();
    decision.inputs[1] = list_layout(call, dim, nullptr);
    decision.outputs.push_back(self.layout());
    if (call.mesh().size() == 1) return decision;
    decision.local = [=, owned = self.layout().partition, name = call.name(),
                      mesh = call.mesh()](c10::ArrayRef<IValue> arguments) {
      const Tensor rows = long_numbers(arguments[2]);
      const RowRoute route(name, at::where(rows < 0, rows + total_of(owned), rows), owned, mesh);
      Tensor written = arguments[0].toTensor();
      if (!is_in_place) written = written.clone();
      const auto& value = arguments[3];
      if (value.isTensor()) {
        written.index_fill_(dim, route.asked_rows(), value.toTensor());
      } else {
        written.index_fill_(dim, route.asked_rows(), value.toScalar());
      }
      return std::vector<IValue>{written};
    };
    return decision;
  };
}

}  // namespace

SHARD_PATCH(row_indexing) {
  patch.remembering_rule("aten::index_select", index_select)
      .shards("any dim", "the index")
      .notes("along the dim itself: the rows named travel, each once a rank");
  const auto add_writing = [&](const std::string& op, Write write, RowRoute::Repeats repeats) {
    for (const bool is_in_place : {false, true}) {
      patch.rule(is_in_place ? op + "_" : op, writing_rows(write, repeats, is_in_place))
          .shards("any dim", "the index and the source")
          .notes("along the dim itself: values travel to the owners of their rows");
    }
  };
  add_writing("aten::index_add", add, RowRoute::Repeats::Once);
  add_writing("aten::index_copy", copy, RowRoute::Repeats::Each);
  add_writing("aten::index_reduce", reduce, RowRoute::Repeats::Each);
  for (const char* op : {"aten::index_fill.int_Scalar", "aten::index_fill.int_Tensor"}) {
    patch.rule(op, filling_rows(false)).shards("any dim", "the index");
  }
  for (const char* op : {"aten::index_fill_.int_Scalar", "aten::index_fill_.int_Tensor"}) {
    patch.rule(op, filling_rows(true)).shards("any dim", "the index");
  }
}

}  // namespace shard
