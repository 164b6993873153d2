// SPDX-License-Identifier: Apache-2.0
// Making, moving and describing ShardTensors. In Python a ShardTensor is a torch.Tensor like any
// other; these are functions of it.
#include <shard/describe.h>
#include <shard/parameters.h>
#include <shard/primitives.h>
#include <shard/random.h>
#include <shard/tensor.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <sstream>
#include <vector>

#include "bindings.h"

namespace shard::python {
namespace {

using at::Tensor;

/// What Python passes as `partition`: nothing, the piece sizes of the one cut, or one list (or
/// None) a mesh dim.
struct Cuts {
  std::optional<Partition> one;
  std::vector<Partition> many;
};

Cuts to_cuts(const py::object& value) {
  if (value.is_none()) return {};
  const py::sequence list = value;
  const bool is_nested = py::len(list) > 0 && !py::isinstance<py::int_>(list[0]);
  if (!is_nested) return {list.cast<Partition>(), {}};
  Cuts cuts;
  for (const auto& entry : list) {
    cuts.many.push_back(entry.is_none() ? Partition() : entry.cast<Partition>());
  }
  return cuts;
}

Tensor scatter(const std::optional<Tensor>& tensor, int source, const DeviceMesh& mesh,
               const py::object& placements, const py::object& partition) {
  const auto where = to_placements(placements);
  const auto cuts = to_cuts(partition);
  const py::gil_scoped_release unlocked;
  const Tensor whole = tensor.value_or(Tensor());
  if (!cuts.many.empty()) return scatter_tensor(whole, source, mesh, where, cuts.many);
  return scatter_tensor(whole, source, mesh, where, cuts.one.value_or(Partition()));
}

Tensor join(const Tensor& local, const DeviceMesh& mesh, const py::object& placements,
            const py::object& partition) {
  const auto where = to_placements(placements);
  const auto cuts = to_cuts(partition);
  const py::gil_scoped_release unlocked;
  if (!cuts.many.empty()) return from_local(local, mesh, where, cuts.many);
  return from_local(local, mesh, where, cuts.one);
}

Tensor move(const Tensor& tensor, const py::object& placements, const py::object& partition) {
  const auto where = to_placements(placements);
  const auto cuts = to_cuts(partition);
  const py::gil_scoped_release unlocked;
  const ShardTensor handle(tensor);
  if (!cuts.many.empty()) return handle.redistribute(where, cuts.many);
  return handle.redistribute(where, cuts.one.value_or(Partition()));
}

using Maker = Tensor (*)(c10::IntArrayRef, const DeviceMesh&, const Placements&, at::TensorOptions,
                         Partition);
void bind_maker(py::module_& m, const char* name, Maker make) {
  m.def(
      name,
      [make](const std::vector<int64_t>& shape, const DeviceMesh& mesh,
             const py::object& placements, std::optional<at::ScalarType> dtype,
             std::optional<Partition> partition) {
        at::TensorOptions options;
        if (dtype) options = options.dtype(*dtype);
        const Placements lie = to_placements(placements);
        const py::gil_scoped_release unlocked;
        return make(shape, mesh, lie, options, partition.value_or(Partition()));
      },
      py::arg("shape"), py::arg("mesh"), py::arg("placements"), py::arg("dtype") = py::none(),
      py::arg("partition") = py::none(), "Every rank allocates its own part. No communication.");
}

std::string text_of(const Tensor& tensor) {
  std::ostringstream out;
  out << ShardTensor(tensor);
  return out.str();
}

}  // namespace

void bind_tensor(py::module_& m) {
  m.def("is_shard_tensor", &is_shard_tensor, py::arg("tensor"));
  m.def("scatter_tensor", &scatter, py::arg("tensor"), py::arg("source"), py::arg("mesh"),
        py::arg("placements"), py::arg("partition") = py::none(),
        "Cuts the tensor of rank `source`; other ranks may pass None. Collective over `mesh`.");
  m.def("from_local", &join, py::arg("local"), py::arg("mesh"), py::arg("placements"),
        py::arg("partition") = py::none(),
        "A ShardTensor of which every rank passes its own part; differentiable. Without "
        "`partition` the ranks agree on the sizes (collective over `mesh`).");
  m.def(
      "local",
      [](const Tensor& tensor, std::optional<Placement> gradient) {
        return ShardTensor(tensor).local(gradient);
      },
      py::arg("tensor"), py::arg("gradient") = py::none(), WithoutLock(),
      "This rank's part, differentiable. No communication. See ShardTensor::local.");
  m.def(
      "full", [](const Tensor& tensor) { return ShardTensor(tensor).full(); }, py::arg("tensor"),
      WithoutLock(), "The whole as a plain tensor on every rank, differentiable. Collective.");
  m.def(
      "redistribute", &move, py::arg("tensor"), py::arg("placements"),
      py::arg("partition") = py::none(),
      "The same global values placed otherwise, differentiable. Collective unless nothing moves.");
  bind_maker(m, "empty", &empty);
  bind_maker(m, "zeros", &zeros);
  bind_maker(m, "rand", &rand);
  bind_maker(m, "randn", &randn);
  m.def("mesh_of", [](const Tensor& tensor) { return ShardTensor(tensor).mesh(); });
  m.def("placements_of", [](const Tensor& tensor) { return ShardTensor(tensor).placements(); });
  m.def("partition_of",
        [](const Tensor& tensor, int64_t dim) { return ShardTensor(tensor).partition(dim); });
  m.def("describe", &describe, py::arg("tensor"),
        "How a tensor lies over its mesh, one line a rank. No communication.");
  m.def("text_of", &text_of);
  m.def("raw_local", &raw_local, "The local part of the first level, without autograd.");
  m.def("broadcast_tensors", &broadcast_tensors, py::arg("tensors"), py::arg("mesh"),
        py::arg("source") = 0, WithoutLock());
  m.def("local_weights", &local_weights, py::arg("mesh"), py::arg("weights"), WithoutLock(),
        "Plain weights for rank-dependent local work: the backward sums their gradients over the "
        "mesh in one message.");
  m.def("common_sum", &common_sum, py::arg("local"), py::arg("mesh"), WithoutLock(),
        "Local contributions -> their sum on every rank, for use alike on every rank.");
  m.def("all_reduce", &all_reduce, py::arg("local"), py::arg("mesh"), WithoutLock(),
        "Local contributions -> their sum on every rank, for use differently on every rank.");
}

}  // namespace shard::python
