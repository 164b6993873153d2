// SPDX-License-Identifier: Apache-2.0
// JSON files with errors of one line.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace shard::io {

/// The whole text of a file. Errors: FileError.
std::string read_text_file(const std::string& path);

/// Parses a file; `//` comments are allowed. Errors: FileError (missing), ConfigError (not JSON:
/// line and column).
nlohmann::json read_json_file(const std::string& path);

/// Refuses a value that is no object, and keys outside `known`: ConfigError naming the key and the
/// nearest known one.
void require_known_keys(const nlohmann::json& object, const std::vector<std::string>& known,
                        const std::string& where);

/// The entry of `known` that differs from `word` in the fewest letters; empty when none is near.
std::string nearest_word(const std::string& word, const std::vector<std::string>& known);

}  // namespace shard::io
