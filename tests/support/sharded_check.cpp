// SPDX-License-Identifier: Apache-2.0
#include "support/sharded_check.h"

#include <gtest/gtest.h>

namespace shard::testing {

void expect_sharded_equals_plain(const Function& function, const std::vector<Input>& inputs,
                                 const Check& check) {
  const Sample sample{"", inputs, function, check};
  const auto report = compare_with_plain(sample, all_settings(sample, /*precisions=*/false));
  EXPECT_TRUE(report.ok() && report.refused == 0) << report.text();
}

void expect_equal_on_a_grid(const Function& function, const std::vector<Input>& inputs,
                            Check check) {
  check.ranks.clear();
  expect_sharded_equals_plain(function, inputs, check);
}

}  // namespace shard::testing
