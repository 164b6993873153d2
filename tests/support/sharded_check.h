// SPDX-License-Identifier: Apache-2.0
// The judge of <shard/testing.h> as GoogleTest expectations.
#pragma once

#include <shard/testing.h>

#include <vector>

namespace shard::testing {

/// Runs the function on plain tensors and in all settings of `check`; fails the current test with
/// the setting and what differs.
void expect_sharded_equals_plain(const Function& function, const std::vector<Input>& inputs,
                                 const Check& check = {});

/// The part of it on a 2 x 2 mesh.
void expect_equal_on_a_grid(const Function& function, const std::vector<Input>& inputs,
                            Check check = {});

}  // namespace shard::testing
