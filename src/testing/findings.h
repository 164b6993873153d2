// SPDX-License-Identifier: Apache-2.0
// What every rank found about one case, and the report that they make together: equal, refused by
// the same typed error on all ranks, or a failure.
#pragma once

#include <shard/launch.h>
#include <shard/testing.h>

#include <functional>
#include <string>
#include <vector>

namespace shard::testing {

/// Both empty: nothing to complain of.
struct Finding {
  std::string failure;
  std::string refusal;  ///< the text of a MissingShardPatch or UndeterminedShardingError
};

/// Says what is wrong on this rank ("": nothing), or refuses. Collective.
using Judgement = std::function<std::string(const World&)>;

/// The findings of all ranks of thread ranks of their own.
std::vector<Finding> find_on_threads(int ranks, const Judgement& judgement);
/// The findings of all ranks of `world`, on every rank. Collective.
std::vector<Finding> find_on(const World& world, const Judgement& judgement);

/// `where` heads the text of a failure.
Report report_of(const std::vector<Finding>& findings, const std::string& where);

}  // namespace shard::testing
