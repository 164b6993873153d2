// SPDX-License-Identifier: Apache-2.0
#include "base/exception_text.h"

#include <c10/util/Exception.h>

namespace shard {

std::string exception_text(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

}  // namespace shard
