// SPDX-License-Identifier: Apache-2.0
// Rows of the table of situations in which the Python peer refuses, aborts or is silently wrong.
// Each is run as it stands there and on every other cut: 1 to 4 ranks, even, uneven, one row and
// none.
#pragma once

#include "patches/edge_cases.h"

namespace shard::testing::edge_cases {

/// `number`: in the peer's table.
struct PeersRow {
  int number;
  Sample sample;
};

/// The samples as row_<number>_<name>, in these splits. What they send is limited where the samples
/// of their families are.
inline std::vector<CoveredSample> of_rows(const std::vector<PeersRow>& rows,
                                          const std::vector<std::string>& splits = {
                                              "even", "uneven", "one-row", "empty-first",
                                              "empty-last"}) {
  std::vector<CoveredSample> result;
  for (auto [number, sample] : rows) {
    sample.name = c10::str("row_", number, "_", sample.name);
    sample.check.traffic = kCountedElsewhere;
    std::vector<Setting> settings{{1, "even"}};
    for (const int ranks : {2, 3, 4}) {
      for (const auto& split : splits) settings.push_back({ranks, split});
    }
    result.push_back({sample, settings});
  }
  return result;
}

/// As torch::chunk cuts, with 17 = 2 W + 1 rows in the place of 8 W + 1.
inline std::vector<CoveredSample> of_rows_in_chunks(const std::vector<PeersRow>& rows) {
  return of_rows(rows, {"chunks"});
}

/// The square of `f`, so that the gradient depends on the values.
inline Sample square_of(const std::string& name, const at::Tensor& x, int64_t dim, const Unary& f) {
  return of(name, x, dim, [f](const at::Tensor& t) { return f(t).square(); });
}

}  // namespace shard::testing::edge_cases
