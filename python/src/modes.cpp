// SPDX-License-Identifier: Apache-2.0
// What a program communicates and allocates, and the switches that explain it.
#include <shard/comm_counter.h>
#include <shard/error.h>
#include <shard/memory.h>
#include <shard/modes.h>
#include <shard/tensor.h>

#include <string>

#include "bindings.h"

namespace shard::python {
namespace {

FallbackMode to_fallback_mode(const std::string& name) {
  check<ConfigError>(name == "refuse" || name == "gather", "fallback", "got '", name,
                     "'; expected refuse or gather. Correct the name.");
  return name == "gather" ? FallbackMode::Gather : FallbackMode::Refuse;
}

TensorPromotionMode to_promotion_mode(const std::string& name) {
  if (name == "silent") return TensorPromotionMode::Silent;
  if (name == "warn") return TensorPromotionMode::Warn;
  check<ConfigError>(name == "disabled", "promotion", "got '", name,
                     "'; expected silent, warn or disabled. Correct the name.");
  return TensorPromotionMode::Disabled;
}

}  // namespace

void bind_modes(py::module_& m) {
  py::class_<CommCounter>(m, "CommCounter", "Counts of the calling rank since it was made.")
      .def(py::init<>())
      .def("calls", [](const CommCounter& counter) { return counter.calls(); })
      .def("calls", py::overload_cast<const std::string&>(&CommCounter::calls, py::const_))
      .def("bytes", [](const CommCounter& counter) { return counter.bytes(); })
      .def("bytes", py::overload_cast<const std::string&>(&CommCounter::bytes, py::const_))
      .def("json", &CommCounter::json)
      .def("__repr__", &CommCounter::table);
  m.def("set_explain", &set_explain, py::arg("on"), "One line an op on rank 0 (SHARD_EXPLAIN).");
  m.def(
      "set_fallback_mode",
      [](const std::string& mode) { set_fallback_mode(to_fallback_mode(mode)); }, py::arg("mode"),
      "What an op without patch or rule does: 'refuse' or 'gather'.");
  m.def("fallback_mode",
        [] { return fallback_mode() == FallbackMode::Gather ? "gather" : "refuse"; });
  m.def("set_check_replicated", &set_check_replicated, py::arg("on"));
  m.def(
      "set_tensor_promotion_mode",
      [](const std::string& mode) { set_tensor_promotion_mode(to_promotion_mode(mode)); },
      py::arg("mode"), "Plain tensors next to ShardTensors: 'silent', 'warn' or 'disabled'.");
  py::class_<MemoryAccount>(m, "MemoryAccount", "CPU tensor bytes of the calling rank.")
      .def(py::init([] { return MemoryAccount::current(); }))
      .def_property_readonly("live", &MemoryAccount::live)
      .def_property_readonly("peak", &MemoryAccount::peak)
      .def_property_readonly("largest", &MemoryAccount::largest)
      .def("reset_peak", &MemoryAccount::reset_peak);
}

}  // namespace shard::python
