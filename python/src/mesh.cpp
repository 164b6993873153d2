// SPDX-License-Identifier: Apache-2.0
// Placements, communicators, meshes, and the groups of torch.distributed.
#include <c10/util/hash.h>
#include <shard/error.h>
#include <shard/mesh.h>
#include <shard/process_group.h>

#include <chrono>
#include <optional>
#include <sstream>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "bindings.h"

namespace shard::python {
namespace {

template <class T>
std::string text(const T& value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

std::string repr(const Placement& placement) {
  return placement.is_replicate() ? "Replicate()" : text(placement);
}

ReduceOp to_reduce_op(const std::string& name) {
  for (const auto op : {ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Max, ReduceOp::Min}) {
    if (name == name_of(op)) return op;
  }
  raise<ConfigError>("Partial", "got the reduction '", name,
                     "'; expected sum, avg, max or min. Correct the name.");
}

void bind_placements(py::module_& m) {
  py::class_<Placement>(m, "Placement", "How a tensor lies along one mesh dim.")
      .def("is_replicate", &Placement::is_replicate)
      .def("is_partial", &Placement::is_partial)
      .def(
          "is_shard",
          [](const Placement& p, std::optional<int64_t> dim) {
            return dim ? p.is_shard(*dim) : p.is_shard();
          },
          py::arg("dim") = py::none())
      .def_property_readonly(
          "dim",
          [](const Placement& p) { return p.is_shard() ? std::optional(p.dim()) : std::nullopt; })
      .def_property_readonly("reduce_op",
                             [](const Placement& p) -> std::optional<std::string> {
                               if (!p.is_partial()) return std::nullopt;
                               return name_of(p.op());
                             })
      .def("__eq__", [](const Placement& a, const Placement& b) { return a == b; })
      .def("__eq__", [](const Placement&, const py::object&) { return false; })
      .def("__hash__",
           [](const Placement& p) {
             return c10::get_hash(static_cast<int>(p.kind()), p.dim(), static_cast<int>(p.op()));
           })
      .def("__repr__", &repr);
  m.def("Shard", &Shard, py::arg("dim"), "Cut along a tensor dim (negative: from the end).");
  m.def("Replicate", &Replicate, "Equal on every rank.");
  m.def(
      "Partial", [](const std::string& op) { return Partial(to_reduce_op(op)); },
      py::arg("op") = "sum", "A pending reduction of the ranks' contributions.");
  m.def("even_partition", &even_partition, py::arg("n"), py::arg("parts"));
  m.def("chunk_partition", &chunk_partition, py::arg("n"), py::arg("parts"));
}

void bind_communicator(py::module_& m) {
  py::class_<Communicator>(m, "Communicator", "The ranks along one mesh dim, or all of them.")
      .def_property_readonly("rank", &Communicator::rank)
      .def_property_readonly("size", &Communicator::size)
      .def_property_readonly("backend", &Communicator::backend_name)
      .def("barrier", &Communicator::barrier, WithoutLock())
      .def(
          "all_reduce",
          [](const Communicator& comm, at::Tensor& tensor, const std::string& op) {
            comm.all_reduce(tensor, to_reduce_op(op));
          },
          py::arg("tensor"), py::arg("op") = "sum", WithoutLock(),
          "In place, summed in rank order.")
      .def(
          "broadcast",
          [](const Communicator& comm, at::Tensor& tensor, int root) {
            comm.broadcast(tensor, root);
          },
          py::arg("tensor"), py::arg("root") = 0, WithoutLock(), "In place.");
}

std::string repr(const DeviceMesh& mesh) {
  return c10::str("DeviceMesh(", mesh.layout(), ", rank ", mesh.rank(), " on ", mesh.device(), ")");
}

py::list names_of_dims(const DeviceMesh& mesh) {
  py::list names;
  for (const auto& dim : mesh.layout().dims) names.append(dim.name);
  return names;
}

void bind_device_mesh(py::module_& m) {
  py::class_<DeviceMesh>(m, "DeviceMesh", "An n-d grid of ranks with named dims.")
      .def(
          py::init([](const Communicator& world, const py::object& dims, const at::Device& device) {
            auto converted = to_mesh_dims(dims);
            const py::gil_scoped_release unlocked;
            return DeviceMesh(world, std::move(converted), device);
          }),
          py::arg("world"), py::arg("dims"), py::arg("device") = at::Device(at::kCPU),
          "Collective over `world`; one size may be -1, whatever is left.")
      .def_property_readonly("ndim", &DeviceMesh::ndim)
      .def_property_readonly("names", &names_of_dims)
      .def_property_readonly("rank", &DeviceMesh::rank)
      .def_property_readonly("device", &DeviceMesh::device)
      .def_property_readonly("world_ranks",
                             [](const DeviceMesh& mesh) { return mesh.layout().world_ranks; })
      .def("size", [](const DeviceMesh& mesh) { return mesh.size(); })
      .def("size", py::overload_cast<const std::string&>(&DeviceMesh::size, py::const_))
      .def("size", py::overload_cast<int64_t>(&DeviceMesh::size, py::const_))
      .def("coordinate", py::overload_cast<const std::string&>(&DeviceMesh::coordinate, py::const_))
      .def("coordinate", py::overload_cast<int64_t>(&DeviceMesh::coordinate, py::const_))
      .def("comm", [](const DeviceMesh& mesh) { return mesh.comm(); })
      .def("comm", [](const DeviceMesh& mesh, const std::string& dim) { return mesh.comm(dim); })
      .def("__getitem__", &DeviceMesh::operator[], "The 1-d mesh along a dim.")
      .def("__eq__",
           [](const DeviceMesh& a, const DeviceMesh& b) { return a.layout() == b.layout(); })
      .def("__eq__", [](const DeviceMesh&, const py::object&) { return false; })
      .def("__hash__",
           [](const DeviceMesh& mesh) { return c10::get_hash(mesh.layout().world_ranks); })
      .def("__repr__", py::overload_cast<const DeviceMesh&>(&repr));
}

Communicator adapt(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                   std::optional<double> seconds, const at::Device& device) {
  std::optional<std::chrono::milliseconds> timeout;
  if (seconds) timeout = std::chrono::milliseconds(static_cast<int64_t>(*seconds * 1000));
  return from_process_group(group, timeout, device);
}

}  // namespace

Placements to_placements(const py::object& value) {
  if (py::isinstance<Placement>(value)) return {value.cast<Placement>()};
  return value.cast<Placements>();
}

std::vector<MeshDim> to_mesh_dims(const py::object& value) {
  const py::object pairs = py::isinstance<py::dict>(value) ? value.attr("items")() : value;
  std::vector<MeshDim> dims;
  for (const auto& pair : pairs) {
    auto [name, size] = pair.cast<std::pair<std::string, int64_t>>();
    dims.push_back({std::move(name), size});
  }
  return dims;
}

void bind_mesh(py::module_& m) {
  bind_placements(m);
  bind_communicator(m);
  bind_device_mesh(m);
  m.def("from_process_group", &adapt, py::arg("group"), py::arg("timeout") = py::none(),
        py::arg("device") = at::Device(at::kCPU), WithoutLock(),
        "A communicator over the CPU backend of a group of torch.distributed, for tensors on "
        "`device` (collective when that is a GPU).");
}

}  // namespace shard::python
