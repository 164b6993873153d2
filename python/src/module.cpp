// SPDX-License-Identifier: Apache-2.0
// shardtensor._C: libshard for Python. Everything here is a thin copy of the C++ interface; what
// Python adds is in the package's .py files.
#include <shard/build_info.h>

#include "bindings.h"

PYBIND11_MODULE(_C, m) {
  using namespace shard::python;
  bind_errors(m);
  bind_mesh(m);
  bind_tensor(m);
  bind_ranks(m);
  bind_handlers(m);
  bind_modes(m);
  m.def("describe_build", &shard::describe_build, "What libshard was built with and finds here.");
}
