// SPDX-License-Identifier: Apache-2.0
// Samples on thread ranks against their plain selves.
#include <c10/core/InferenceMode.h>
#include <shard/error.h>
#include <shard/launch.h>
#include <shard/testing.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "testing/grid_ways.h"
#include "testing/outcome.h"

namespace shard::testing {
namespace {

using at::Tensor;

/// Makes the argument of an input that is to be sharded. Collective.
using Scatter = std::function<Tensor(const Input&)>;

bool is_differentiable(const Input& input) {
  return input.differentiable && (input.whole.is_floating_point() || input.whole.is_complex());
}

Derivatives derivatives_of(const Check& check) {
  return {check.gradients, check.gradients && check.double_backward};
}

/// The sample with its floating-point inputs in another precision.
Sample in_dtype(Sample sample, at::ScalarType dtype) {
  if (dtype == at::ScalarType::Undefined) return sample;
  for (auto& input : sample.inputs) {
    if (input.whole.is_floating_point()) input.whole = input.whole.to(dtype);
  }
  return sample;
}

double tolerance_of(const Sample& sample) {
  for (const auto& input : sample.inputs) {
    if (input.whole.scalar_type() == at::kDouble) return std::min(sample.check.tolerance, 1e-10);
  }
  return sample.check.tolerance;
}

std::vector<Tensor> make_arguments(const Sample& sample, const Scatter& scatter) {
  std::vector<Tensor> arguments;
  for (const auto& input : sample.inputs) {
    arguments.push_back(input.shard_dim < 0 ? input.whole.detach().clone() : scatter(input));
  }
  return arguments;
}

Outcome run(const Sample& sample, const Scatter& scatter) {
  const auto arguments = make_arguments(sample, scatter);
  std::vector<Tensor> leaves;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!is_differentiable(sample.inputs[i])) continue;
    leaves.push_back(arguments[i].set_requires_grad(true));
  }
  return outcome_of(sample.function, arguments, leaves, derivatives_of(sample.check));
}

Outcome run_plain(const Sample& sample) {
  return run(sample, [](const Input& input) { return input.whole.detach().clone(); });
}

Tensor forward_without_graph(const Sample& sample, const Scatter& scatter, bool inference) {
  const c10::InferenceMode mode(inference);
  const at::NoGradGuard guard;
  return whole_copy(sample.function(make_arguments(sample, scatter)));
}

/// What plain LibTorch gives, and how far the same on shards may be from it.
struct Reference {
  Sample sample;
  Outcome want;
  Allowance allowance;
};

bool is_single_precision(const Sample& sample) {
  bool any = false;
  for (const auto& input : sample.inputs) {
    if (!input.whole.is_floating_point()) continue;
    if (input.whole.scalar_type() != at::kFloat) return false;
    any = true;
  }
  return any;
}

Reference make_reference(const Sample& original, at::ScalarType dtype) {
  Sample sample = in_dtype(original, dtype);
  Outcome want = run_plain(sample);
  const double tolerance = tolerance_of(sample);
  const Allowance allowance =
      sample.check.both_precisions && is_single_precision(sample)
          ? Allowance(tolerance, want, run_plain(in_dtype(sample, at::kDouble)))
          : Allowance(tolerance);
  return {std::move(sample), std::move(want), allowance};
}

/// What differs on one rank. Collective.
std::string judge(const Reference& reference, const Scatter& scatter) {
  const auto& [sample, want, allowance] = reference;
  std::string text = difference(run(sample, scatter), want, allowance);
  if (!sample.check.no_grad_and_inference) return text;
  for (const bool inference : {false, true}) {
    const Outcome got{forward_without_graph(sample, scatter, inference), {}, {}};
    const auto differs = difference(got, {want.output, {}, {}}, allowance);
    if (differs.empty()) continue;
    text += (inference ? "  under InferenceMode:\n" : "  under NoGradGuard:\n") + differs;
  }
  return text;
}

Partition pieces_of(int64_t n, int parts, const std::string& name) {
  for (auto& [split, partition] : splits(n, parts)) {
    if (split == name) return std::move(partition);
  }
  raise<ConfigError>("conformance", "split: got '", name,
                     "'; expected one of splits(). Correct the setting.");
}

/// One a mesh dim of a 2 x 2 mesh; where both cut one tensor dim, the first has all four pieces.
std::vector<Partition> grid_pieces(const Input& input, const Placements& placements,
                                   const std::string& split) {
  const bool cut_one_dim = placements[0] == placements[1];
  std::vector<Partition> pieces(2);
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (!placements[i].is_shard() || (cut_one_dim && i > 0)) continue;
    pieces[i] = pieces_of(input.whole.size(placements[i].dim()), cut_one_dim ? 4 : 2, split);
  }
  return pieces;
}

Scatter scatter_of(const World& world, const Setting& setting) {
  if (setting.grid >= 0) {
    return [mesh = world.mesh({{"a", 2}, {"b", 2}}), setting](const Input& input) {
      const auto placements = grid_way(setting.grid).placements(input);
      return scatter_tensor(input.whole.detach(), 0, mesh, placements,
                            grid_pieces(input, placements, setting.split));
    };
  }
  return [mesh = world.mesh(), setting](const Input& input) {
    return scatter_tensor(
        input.whole.detach(), 0, mesh, {Shard(input.shard_dim)},
        pieces_of(input.whole.size(input.shard_dim), setting.ranks, setting.split));
  };
}

/// All ranks' findings about one sample in one setting.
class Findings {
 public:
  void run(const Reference& reference, const Setting& setting) {
    try {
      run_ranks(setting.ranks, [&](World& world) {
        note(world.rank(), [&] { return judge(reference, scatter_of(world, setting)); });
      });
    } catch (const std::exception& error) {
      failures_.insert(std::string("  an error: ") + error.what());
    }
  }

  Report report(const std::string& where, int ranks) const {
    Report report;
    const bool all_refuse = refusals_.size() == static_cast<size_t>(ranks) &&
                            std::set(refusals_.begin(), refusals_.end()).size() == 1;
    if (failures_.empty() && refusals_.empty()) {
      report.equal = 1;
    } else if (failures_.empty() && all_refuse) {
      report.refused = 1;
      report.refusals.push_back(*refusals_.begin());
    } else {
      std::string text = where + ":\n";
      for (const auto& failure : failures_) text += failure;
      for (const auto& refusal : refusals_) text += "  some ranks refuse: " + refusal + "\n";
      report.failures.push_back(text);
    }
    return report;
  }

 private:
  void note(int rank, const std::function<std::string()>& judgement) {
    std::string failure;
    std::string refusal;
    try {
      failure = judgement();
    } catch (const MissingShardPatch& error) {
      refusal = error.what_without_backtrace();
    } catch (const UndeterminedShardingError& error) {
      refusal = error.what_without_backtrace();
    }
    const std::lock_guard lock(mutex_);
    if (!failure.empty()) failures_.insert("  rank " + std::to_string(rank) + ":\n" + failure);
    if (!refusal.empty()) refusals_.insert(refusal);
  }

  std::mutex mutex_;
  std::set<std::string> failures_;
  std::multiset<std::string> refusals_;
};

}  // namespace

Report compare_with_plain(const Sample& sample, const std::vector<Setting>& settings) {
  std::map<at::ScalarType, Reference> references;
  Report report;
  for (const auto& setting : settings) {
    auto found = references.find(setting.dtype);
    if (found == references.end()) {
      found = references.emplace(setting.dtype, make_reference(sample, setting.dtype)).first;
    }
    Findings findings;
    findings.run(found->second, setting);
    report.add(findings.report(sample.name + ", " + setting.text(), setting.ranks));
  }
  return report;
}

Report conformance(const std::string& op, const std::vector<Sample>& samples, Cover cover) {
  Report report;
  const auto pairwise =
      cover == Cover::Pairwise ? pairwise_settings(samples) : std::vector<std::vector<Setting>>();
  for (size_t i = 0; i < samples.size(); ++i) {
    auto sample = samples[i];
    sample.name = op + " " + sample.name;
    report.add(compare_with_plain(sample, cover == Cover::Pairwise
                                              ? pairwise[i]
                                              : all_settings(sample, /*precisions=*/true)));
  }
  return report;
}

}  // namespace shard::testing
