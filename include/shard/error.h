// SPDX-License-Identifier: Apache-2.0
// The error types of shardtensor. Every refusal is a typed exception whose text reads
// `[where] what: got values; expected values. Next step.` and is the same on every rank.
#pragma once

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <string>
#include <string_view>

namespace shard {

/// Base of all errors raised by shardtensor. `what()` is the message alone (no backtrace).
class Error : public c10::Error {
 public:
  explicit Error(std::string message) : c10::Error(std::move(message), nullptr) {}
};

/// No rule or patch covers this op for the placements it was called with.
class MissingShardPatch : public Error {
 public:
  using Error::Error;
};

/// The output's global shape or placement cannot be derived from metadata alone.
class UndeterminedShardingError : public Error {
 public:
  using Error::Error;
};

/// Shapes, placements or meshes of the arguments do not fit together.
class SpecMismatch : public Error {
 public:
  using Error::Error;
};

/// A collective failed. The subclasses say how.
class CommError : public Error {
 public:
  using Error::Error;
};

/// Not every rank arrived in time; the message lists who did.
class CommTimeout : public CommError {
 public:
  using CommError::CommError;
};

/// Ranks called different collectives, or with different sizes, dtypes or roots.
class CommMismatch : public CommError {
 public:
  using CommError::CommError;
};

/// Another rank failed; the message carries its rank and its error.
class PeerFailed : public CommError {
 public:
  using CommError::CommError;
};

/// A bad flag, option, environment variable or mesh shape.
class ConfigError : public Error {
 public:
  using Error::Error;
};

/// A file is missing, truncated, not of the expected format, or cannot be written.
class FileError : public Error {
 public:
  using Error::Error;
};

/// Throws `E` with the text `[where] ` followed by the streamed parts.
template <class E, class... Parts>
[[noreturn]] void raise(std::string_view where, const Parts&... parts) {
  throw E(c10::str("[", where, "] ", parts...));
}

/// Throws `E` (see `raise`) unless `ok`.
template <class E, class... Parts>
void check(bool ok, std::string_view where, const Parts&... parts) {
  if (!ok) raise<E>(where, parts...);
}

}  // namespace shard
