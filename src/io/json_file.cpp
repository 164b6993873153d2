// SPDX-License-Identifier: Apache-2.0
#include <shard/error.h>
#include <shard/json_file.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

namespace shard::io {
namespace {

/// Number of single-letter edits between two words.
size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, replaced}));
    }
  }
  return row.back();
}

/// "line 3, column 7" of a byte position (counted from 1).
std::string position_in(const std::string& text, size_t byte) {
  const auto end = text.begin() + static_cast<std::ptrdiff_t>(std::min(byte, text.size()));
  const auto line = std::count(text.begin(), end, '\n') + 1;
  const auto line_start = std::find(std::make_reverse_iterator(end), text.rend(), '\n').base();
  return c10::str("line ", line, ", column ", end - line_start);
}

}  // namespace

std::string read_text_file(const std::string& path) {
  check<FileError>(!std::filesystem::is_directory(path), "file", "cannot read '", path,
                   "': got a folder; expected a file. Check the path.");
  std::ifstream file(path, std::ios::binary);
  check<FileError>(file.good(), "file", "cannot read '", path, "': got ", std::strerror(errno),
                   ". Check the path.");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

nlohmann::json read_json_file(const std::string& path) {
  const std::string text = read_text_file(path);
  try {
    return nlohmann::json::parse(text, nullptr, true, /*ignore_comments=*/true);
  } catch (const nlohmann::json::parse_error& error) {
    raise<ConfigError>("json", "'", path, "' is not JSON: got a syntax error at ",
                       position_in(text, error.byte), ". Correct the file.");
  }
}

void require_known_keys(const nlohmann::json& object, const std::vector<std::string>& known,
                        const std::string& where) {
  check<ConfigError>(object.is_object(), where, "got a JSON ", object.type_name(),
                     "; expected an object of options. Write {\"option\": value}.");
  for (const auto& item : object.items()) {
    const std::string& key = item.key();
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const std::string guess = nearest_word(key, known);
    raise<ConfigError>(where, "unknown key '", key, "'. ",
                       guess.empty() ? "Remove it." : "Did you mean '" + guess + "'?");
  }
}

std::string nearest_word(const std::string& word, const std::vector<std::string>& known) {
  std::string best;
  size_t best_distance = std::max<size_t>(1, (word.size() + 1) / 3) + 1;
  for (const std::string& candidate : known) {
    const size_t distance = edit_distance(word, candidate);
    if (distance >= best_distance) continue;
    best = candidate;
    best_distance = distance;
  }
  return best;
}

}  // namespace shard::io
