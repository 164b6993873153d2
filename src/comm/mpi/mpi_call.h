// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <shard/error.h>

#include <array>
#include <string>

#include "comm/mpi/mpi_header.h"

namespace shard {

inline std::string mpi_error_text(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return {text.data(), static_cast<size_t>(length)};
}

/// Raises CommError when an MPI function has failed.
inline void check_mpi(int code, const char* function) {
  check<CommError>(code == MPI_SUCCESS, "mpi", function, ": got error ", code, " (",
                   code == MPI_SUCCESS ? "" : mpi_error_text(code),
                   "); expected success. Look at the messages of the MPI library above.");
}

}  // namespace shard
