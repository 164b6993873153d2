// SPDX-License-Identifier: Apache-2.0
// The parts of the module shardtensor._C. Functions that may wait for other ranks release the
// interpreter lock: on thread ranks the others need it to get there.
#pragma once

#include <Python.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <shard/spec.h>
#include <torch/csrc/utils/pybind.h>

#include <vector>

namespace shard::python {

namespace py = pybind11;
using WithoutLock = py::call_guard<py::gil_scoped_release>;

void bind_errors(py::module_& m);
void bind_mesh(py::module_& m);
void bind_tensor(py::module_& m);
void bind_ranks(py::module_& m);
void bind_handlers(py::module_& m);
void bind_modes(py::module_& m);

/// A single placement, or one a mesh dim.
Placements to_placements(const py::object& value);
/// {"ddp": 2, "domain": -1}, or pairs.
std::vector<MeshDim> to_mesh_dims(const py::object& value);

}  // namespace shard::python
