// SPDX-License-Identifier: Apache-2.0
// launch and run_ranks: Python functions as ranks, on threads of this process or under mpirun.
#include <ATen/CPUGeneratorImpl.h>
#include <shard/foreign_lock.h>
#include <shard/launch.h>
#include <torch/csrc/Generator.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bindings.h"

namespace shard::python {
namespace {

/// A Python object that threads without the interpreter lock may drop.
using Shared = std::shared_ptr<py::object>;
Shared share(py::object object) {
  return {new py::object(std::move(object)), [](py::object* pointer) {
            const py::gil_scoped_acquire lock;
            delete pointer;
          }};
}

/// torch.manual_seed and its kin hold the default generator as it was when torch was imported.
/// While ranks run it is another one, which hands them on to the calling rank's.
void show_default_generator_to_torch() {
  const py::object generator = py::module_::import("torch").attr("default_generator");
  reinterpret_cast<THPGenerator*>(generator.ptr())->cdata = at::detail::getDefaultCPUGenerator();
}

struct AfterRanks {
  AfterRanks() = default;
  ~AfterRanks() { show_default_generator_to_torch(); }
  AfterRanks(const AfterRanks&) = delete;
  AfterRanks& operator=(const AfterRanks&) = delete;
};

LaunchOptions options_of(const at::Device& device, uint64_t seed, std::optional<double> timeout,
                         std::optional<int> threads) {
  LaunchOptions options;
  options.device = device;
  options.seed = seed;
  options.threads = threads;
  if (timeout) {
    options.timeout = std::chrono::milliseconds(static_cast<int64_t>(*timeout * 1000));
  }
  return options;
}

py::list run(int ranks, const py::function& body, const at::Device& device, uint64_t seed,
             std::optional<double> timeout, std::optional<int> threads) {
  const AfterRanks after;
  const Shared function = share(body);
  const auto options = options_of(device, seed, timeout, threads);
  py::list results;
  for (int rank = 0; rank < ranks; ++rank) results.append(py::none());
  {
    const py::gil_scoped_release unlocked;
    run_ranks(
        ranks,
        [&](World& world) {
          const py::gil_scoped_acquire lock;
          show_default_generator_to_torch();
          results[static_cast<size_t>(world.rank())] = (*function)(world);
        },
        options);
  }
  return results;
}

int launch_function(const py::function& body, const std::vector<std::string>& arguments,
                    std::optional<int> ranks, int default_ranks, const at::Device& device,
                    uint64_t seed, std::optional<double> timeout, std::optional<int> threads) {
  const AfterRanks after;
  const Shared function = share(body);
  auto options = options_of(device, seed, timeout, threads);
  options.ranks = ranks;
  options.default_ranks = default_ranks;
  std::vector<std::string> copies = arguments;
  std::vector<char*> pointers;
  for (auto& argument : copies) pointers.push_back(argument.data());
  const py::gil_scoped_release unlocked;
  return launch(
      static_cast<int>(pointers.size()), pointers.data(),
      [&](World& world) {
        const py::gil_scoped_acquire lock;
        show_default_generator_to_torch();
        (*function)(world);
      },
      options);
}

DeviceMesh mesh_over(const World& world, const py::object& dims) {
  const auto converted = dims.is_none() ? std::vector<MeshDim>{{"domain", -1}} : to_mesh_dims(dims);
  const py::gil_scoped_release unlocked;
  return world.mesh(converted);
}

}  // namespace

void bind_ranks(py::module_& m) {
  set_foreign_lock({[]() -> void* { return PyGILState_Check() ? PyEval_SaveThread() : nullptr; },
                    [](void* held) { PyEval_RestoreThread(static_cast<PyThreadState*>(held)); }});
  py::class_<World>(m, "World", "What a rank knows about the job.")
      .def_property_readonly("rank", &World::rank)
      .def_property_readonly("size", &World::size)
      .def_property_readonly("is_root", &World::is_root)
      .def_property_readonly("device", &World::device)
      .def_property_readonly("comm", &World::comm)
      .def_property_readonly(
          "launcher",
          [](const World& world) { return world.launcher() == Launcher::Mpi ? "mpi" : "threads"; })
      .def("mesh", &mesh_over, py::arg("dims") = py::none(),
           "Collective. {'ddp': 2, 'domain': -1}; without argument a 1-d mesh named 'domain'.");
  m.def("run_ranks", &run, py::arg("ranks"), py::arg("body"),
        py::arg("device") = at::Device(at::kCPU), py::arg("seed") = 0,
        py::arg("timeout") = py::none(), py::arg("threads") = py::none(),
        "Runs body(world) on `ranks` threads of this process, as ranks; returns what they "
        "returned, or raises the first failing rank's exception after all have ended.");
  m.def("launch", &launch_function, py::arg("body"), py::arg("arguments"),
        py::arg("ranks") = py::none(), py::arg("default_ranks") = 1,
        py::arg("device") = at::Device(at::kCPU), py::arg("seed") = 0,
        py::arg("timeout") = py::none(), py::arg("threads") = py::none());
  m.def("manual_seed", &manual_seed, py::arg("seed"), "Seeds the calling rank's generators.");
}

}  // namespace shard::python
