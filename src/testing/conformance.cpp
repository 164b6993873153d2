// SPDX-License-Identifier: Apache-2.0
// Samples on ranks against their plain selves.
#include <c10/core/InferenceMode.h>
#include <shard/error.h>
#include <shard/testing.h>

#include <algorithm>
#include <map>

#include "testing/arguments.h"
#include "testing/findings.h"
#include "testing/outcome.h"

namespace shard::testing {
namespace {

using at::Tensor;

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

Outcome run(const Sample& sample, const Scatter& scatter) {
  const auto arguments = make_arguments(sample, scatter);
  const auto leaves = make_leaves(sample, arguments);
  return outcome_of(sample.function, arguments, leaves, derivatives_of(sample.check));
}

Outcome run_plain(const Sample& sample) { return run(sample, whole_argument); }

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

/// Judges a sample in one setting after the other, with one plain run a precision.
Report compare(const Sample& sample, const std::vector<Setting>& settings,
               const std::function<std::vector<Finding>(const Setting&, const Judgement&)>& find) {
  std::map<at::ScalarType, Reference> references;
  Report report;
  for (const auto& setting : settings) {
    auto found = references.find(setting.dtype);
    if (found == references.end()) {
      found = references.emplace(setting.dtype, make_reference(sample, setting.dtype)).first;
    }
    const auto findings = find(setting, [&](const World& world) {
      return judge(found->second, scatter_of(world, setting));
    });
    report.add(report_of(findings, sample.name + ", " + setting.text()));
  }
  return report;
}

}  // namespace

Report compare_with_plain(const Sample& sample, const std::vector<Setting>& settings) {
  return compare(sample, settings, [](const Setting& setting, const Judgement& judgement) {
    return find_on_threads(setting.ranks, judgement);
  });
}

Report compare_with_plain(const Sample& sample, const std::vector<Setting>& settings,
                          const World& world) {
  for (const auto& setting : settings) {
    check<ConfigError>(setting.ranks == world.size(), "conformance", "setting: got ",
                       setting.text(), "; expected one of ", world.size(),
                       " ranks. Leave the others out.");
  }
  Sample here = sample;
  for (auto& input : here.inputs) input.whole = input.whole.to(world.device());
  return compare(here, settings, [&](const Setting&, const Judgement& judgement) {
    return find_on(world, judgement);
  });
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
    report.add(judge_costs(sample));
  }
  return report;
}

}  // namespace shard::testing
