// SPDX-License-Identifier: Apache-2.0
#include "base/parse.h"

#include <charconv>
#include <cmath>

namespace shard {
namespace {

template <class T>
bool parse_whole(const std::string& text, T& value) {
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  return result.ec == std::errc{} && result.ptr == end;
}

}  // namespace

int parse_count(const std::string& where, const std::string& text) {
  int value = 0;
  check<ConfigError>(parse_whole(text, value) && value >= 1, where, "got '", text,
                     "'; expected a whole number of at least 1. Set it or leave it out.");
  return value;
}

std::chrono::milliseconds parse_seconds(const std::string& where, const std::string& text) {
  constexpr double kLongest = 1e9;
  double seconds = 0;
  check<ConfigError>(parse_whole(text, seconds) && seconds >= 1e-3 && seconds <= kLongest, where,
                     "got '", text,
                     "'; expected seconds between 0.001 and 1e9. Set it or leave it out.");
  return std::chrono::milliseconds(std::llround(seconds * 1e3));
}

}  // namespace shard
