// SPDX-License-Identifier: Apache-2.0
// Which settings a sample is run in: all of them, or a cover of all pairs.
#include <shard/spec.h>
#include <shard/testing.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <sstream>
#include <tuple>

#include "testing/grid_ways.h"

namespace shard::testing {
namespace {

/// The precisions to run a sample in; Undefined: as it is.
std::vector<at::ScalarType> precisions_of(const Sample& sample) {
  std::set<at::ScalarType> types;
  for (const auto& input : sample.inputs) {
    if (input.whole.is_floating_point()) types.insert(input.whole.scalar_type());
  }
  const bool is_plain =
      types.size() == 1 && (*types.begin() == at::kFloat || *types.begin() == at::kDouble);
  if (!is_plain || !sample.check.both_precisions) return {at::ScalarType::Undefined};
  return {at::kFloat, at::kDouble};
}

int grid_ways(Check::Grid grid) {
  switch (grid) {
    case Check::Grid::None:
      return 0;
    case Check::Grid::OneDim:
      return kOneDimGridWays;
    case Check::Grid::TwoDims:
      return kGridWays;
  }
  return 0;
}

/// A pair of choices: (factor, value, factor, value).
using Pair = std::tuple<int, std::string, int, std::string>;

std::vector<Pair> pairs_of(size_t sample, const Setting& setting) {
  const std::string split = setting.grid < 0 ? setting.split : "grid " + setting.split;
  const std::vector<std::string> values{std::to_string(sample), std::to_string(setting.ranks),
                                        split, std::to_string(setting.grid),
                                        c10::toString(setting.dtype)};
  std::vector<Pair> pairs;
  for (size_t a = 0; a < values.size(); ++a) {
    for (size_t b = a + 1; b < values.size(); ++b) {
      pairs.emplace_back(static_cast<int>(a), values[a], static_cast<int>(b), values[b]);
    }
  }
  return pairs;
}

/// The number of pairs of the sample itself, and of all, that a setting would add.
std::pair<int, int> gain(const std::set<Pair>& covered, const std::vector<Pair>& pairs) {
  std::pair<int, int> result{0, 0};
  for (const auto& pair : pairs) {
    if (covered.contains(pair)) continue;
    ++result.second;
    if (std::get<0>(pair) == 0) ++result.first;
  }
  return result;
}

}  // namespace

std::string Setting::text() const {
  std::ostringstream text;
  if (grid >= 0) {
    text << grid_way(grid).name << ", " << split;
  } else {
    text << ranks << " ranks, " << split;
  }
  if (dtype != at::ScalarType::Undefined) text << ", " << dtype;
  return text.str();
}

std::vector<std::pair<std::string, Partition>> splits(int64_t n, int ranks) {
  std::vector<std::pair<std::string, Partition>> result{{"even", even_partition(n, ranks)}};
  if (ranks == 1) return result;
  const auto last = static_cast<size_t>(ranks - 1);
  const auto rest_over = [&](int64_t first, int64_t parts) {
    return even_partition(n - first, parts);
  };
  auto uneven = rest_over(n - n / 4, ranks - 1);
  uneven.insert(uneven.begin(), n - n / 4);
  result.emplace_back("uneven", uneven);
  Partition one_row(static_cast<size_t>(ranks), n >= ranks ? 1 : 0);
  one_row[last] = n - std::accumulate(one_row.begin(), one_row.end() - 1, int64_t{0});
  result.emplace_back("one-row", one_row);
  auto empty_first = rest_over(0, ranks - 1);
  empty_first.insert(empty_first.begin(), 0);
  result.emplace_back("empty-first", empty_first);
  auto empty_last = rest_over(0, ranks - 1);
  empty_last.push_back(0);
  result.emplace_back("empty-last", empty_last);
  result.emplace_back("chunks", chunk_partition(n, ranks));
  return result;
}

std::vector<Setting> all_settings(const Sample& sample, bool precisions) {
  std::vector<Setting> result;
  const std::vector<at::ScalarType> as_it_is{at::ScalarType::Undefined};
  for (const auto dtype : precisions ? precisions_of(sample) : as_it_is) {
    for (const int ranks : sample.check.ranks) {
      for (const auto& [split, partition] : splits(8, ranks)) {
        if (split != "chunks") result.push_back({ranks, split, -1, dtype});
      }
    }
    for (int way = 0; way < grid_ways(sample.check.grid); ++way) {
      for (const char* split : {"even", "uneven", "empty-first", "one-row"}) {
        result.push_back({4, split, way, dtype});
      }
    }
  }
  return result;
}

std::vector<std::vector<Setting>> pairwise_settings(const std::vector<Sample>& samples) {
  std::set<Pair> covered;
  std::vector<std::vector<Setting>> result;
  for (size_t i = 0; i < samples.size(); ++i) {
    const auto candidates = all_settings(samples[i], /*precisions=*/true);
    std::vector<Setting> chosen;
    for (;;) {  // greedily, until nothing of this sample is left
      std::pair<int, int> best{0, 0};
      const Setting* pick = nullptr;
      for (const auto& candidate : candidates) {
        const auto added = gain(covered, pairs_of(i, candidate));
        if (added > best) {
          best = added;
          pick = &candidate;
        }
      }
      if (!pick || best.first == 0) break;
      for (auto& pair : pairs_of(i, *pick)) covered.insert(std::move(pair));
      chosen.push_back(*pick);
    }
    result.push_back(std::move(chosen));
  }
  return result;
}

}  // namespace shard::testing
