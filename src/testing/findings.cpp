// SPDX-License-Identifier: Apache-2.0
#include "testing/findings.h"

#include <shard/error.h>

#include <algorithm>
#include <set>

namespace shard::testing {
namespace {

std::string as_text(const std::exception& error) {
  return std::string("  an error: ") + error.what() + "\n";
}

/// Errors other than refusals pass.
Finding find(const World& world, const Judgement& judgement) {
  Finding finding;
  try {
    const auto failure = judgement(world);
    if (failure.empty()) return finding;
    finding.failure = "  rank " + std::to_string(world.rank()) + ":\n" + failure;
  } catch (const MissingShardPatch& error) {
    finding.refusal = error.what_without_backtrace();
  } catch (const UndeterminedShardingError& error) {
    finding.refusal = error.what_without_backtrace();
  }
  return finding;
}

}  // namespace

std::vector<Finding> find_on_threads(int ranks, const Judgement& judgement) {
  std::vector<Finding> findings(static_cast<size_t>(ranks));
  try {
    run_ranks(ranks, [&](World& world) {
      findings[static_cast<size_t>(world.rank())] = find(world, judgement);
    });
  } catch (const std::exception& error) {
    findings.push_back({as_text(error), {}});
  }
  return findings;
}

std::vector<Finding> find_on(const World& world, const Judgement& judgement) {
  Finding own;
  try {
    own = find(world, judgement);
  } catch (const std::exception& error) {
    own.failure = as_text(error);
  }
  const auto failures = world.comm().all_gather_bytes(own.failure);
  const auto refusals = world.comm().all_gather_bytes(own.refusal);
  std::vector<Finding> findings;
  for (size_t rank = 0; rank < failures.size(); ++rank) {
    findings.push_back({failures[rank], refusals[rank]});
  }
  return findings;
}

Report report_of(const std::vector<Finding>& findings, const std::string& where) {
  Report report;
  std::set<std::string> failures;
  std::multiset<std::string> refusals;
  for (const auto& finding : findings) {
    if (!finding.failure.empty()) failures.insert(finding.failure);
    if (!finding.refusal.empty()) refusals.insert(finding.refusal);
  }
  const bool all_refuse =
      refusals.size() == findings.size() && refusals.count(*refusals.begin()) == refusals.size();
  if (failures.empty() && refusals.empty()) {
    report.equal = 1;
  } else if (failures.empty() && all_refuse) {
    report.refused = 1;
    report.refusals.push_back(*refusals.begin());
  } else {
    std::string text = where + ":\n";
    for (const auto& failure : failures) text += failure;
    for (const auto& refusal : refusals) text += "  some ranks refuse: " + refusal + "\n";
    report.failures.push_back(text);
  }
  return report;
}

}  // namespace shard::testing
