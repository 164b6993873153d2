// SPDX-License-Identifier: Apache-2.0
#include <shard/error_boundary.h>

#include <atomic>

namespace shard {
namespace {

std::atomic<ErrorTranslator> translator{nullptr};

}  // namespace

void set_error_translator(ErrorTranslator other) { translator = other; }

namespace detail {

constinit thread_local int OpDepth::depth = 0;

void translate_outermost(const Error& error) {
  if (OpDepth::depth > 1) return;
  if (const auto translate = translator.load()) translate(error);
}

}  // namespace detail
}  // namespace shard
