// SPDX-License-Identifier: Apache-2.0
// The classes of shard::Error in Python. LibTorch's own bindings know c10::Error only, so an error
// that leaves the outermost op is thrown as LibTorch's python_error, which they hand on as it is.
#include <shard/error_boundary.h>
#include <torch/csrc/Exceptions.h>

#include <array>
#include <string>
#include <string_view>
#include <type_traits>

#include "bindings.h"

namespace shard::python {
namespace {

struct ErrorClass {
  const char* name;
  const char* base;
  bool (*is)(const Error&);
  PyObject* type = nullptr;  // lives as long as the process
};

template <class E>
bool is(const Error& error) {
  if constexpr (std::is_same_v<E, Error>) {
    return true;
  } else {
    return dynamic_cast<const E*>(&error) != nullptr;
  }
}

// Derived classes after their bases: the last that fits is the class of an error.
std::array classes{
    ErrorClass{"Error", nullptr, &is<Error>},
    ErrorClass{"MissingShardPatch", "Error", &is<MissingShardPatch>},
    ErrorClass{"UndeterminedShardingError", "Error", &is<UndeterminedShardingError>},
    ErrorClass{"SpecMismatch", "Error", &is<SpecMismatch>},
    ErrorClass{"CommError", "Error", &is<CommError>},
    ErrorClass{"CommTimeout", "CommError", &is<CommTimeout>},
    ErrorClass{"CommMismatch", "CommError", &is<CommMismatch>},
    ErrorClass{"PeerFailed", "CommError", &is<PeerFailed>},
    ErrorClass{"ConfigError", "Error", &is<ConfigError>},
    ErrorClass{"FileError", "Error", &is<FileError>},
};

PyObject* class_named(const char* name) {
  if (name == nullptr) return PyExc_RuntimeError;
  for (const auto& entry : classes) {
    if (std::string_view(entry.name) == name) return entry.type;
  }
  return PyExc_RuntimeError;
}

void set_python_error(const Error& error) {
  PyObject* type = PyExc_RuntimeError;
  for (const auto& entry : classes) {
    if (entry.is(error)) type = entry.type;
  }
  PyErr_SetString(type, error.what_without_backtrace());
}

void throw_python_error(const Error& error) {
  if (!Py_IsInitialized()) return;
  python_error thrown;
  {
    const py::gil_scoped_acquire lock;
    set_python_error(error);
    thrown.persist();
  }
  throw thrown;
}

/// For this module's own functions.
void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (python_error& error) {
    error.restore();
  } catch (const Error& error) {
    set_python_error(error);
  } catch (const c10::IndexError& error) {
    PyErr_SetString(PyExc_IndexError, error.what_without_backtrace());
  } catch (const c10::ValueError& error) {
    PyErr_SetString(PyExc_ValueError, error.what_without_backtrace());
  } catch (const c10::TypeError& error) {
    PyErr_SetString(PyExc_TypeError, error.what_without_backtrace());
  } catch (const c10::Error& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what_without_backtrace());
  }
}

}  // namespace

void bind_errors(py::module_& m) {
  for (auto& entry : classes) {
    const std::string name = std::string("shardtensor.") + entry.name;
    entry.type = PyErr_NewException(name.c_str(), class_named(entry.base), nullptr);
    m.attr(entry.name) = py::handle(entry.type);
  }
  py::register_local_exception_translator(&translate);
  set_error_translator(&throw_python_error);
}

}  // namespace shard::python
