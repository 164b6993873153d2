// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>

namespace shard {

/// The message of an exception, without LibTorch's backtrace.
std::string exception_text(const std::exception_ptr& error);

}  // namespace shard
