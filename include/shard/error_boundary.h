// SPDX-License-Identifier: Apache-2.0
// Where an error leaves the outermost op of a thread. A language that has exceptions of its own
// (the Python module) turns errors into those here: LibTorch's bindings would make them all
// RuntimeErrors.
#pragma once

#include <shard/error.h>

namespace shard {

/// Throws the other language's exception, or returns to leave the error as it is.
using ErrorTranslator = void (*)(const Error&);
/// Process-wide; null: none.
void set_error_translator(ErrorTranslator translator);

namespace detail {

/// How many calls of ops are open on this thread. Only the outermost translates: those inside may
/// be caught (a MissingShardPatch, by the gather fallback).
class OpDepth {
 public:
  OpDepth() { ++depth; }
  ~OpDepth() { --depth; }
  OpDepth(const OpDepth&) = delete;
  OpDepth& operator=(const OpDepth&) = delete;
  static constinit thread_local int depth;
};

/// Does nothing in an inner call.
void translate_outermost(const Error& error);

template <class Call>
decltype(auto) at_boundary(const Call& call) {
  const OpDepth depth;
  try {
    return call();
  } catch (const Error& error) {
    translate_outermost(error);
    throw;
  }
}

}  // namespace detail

}  // namespace shard
