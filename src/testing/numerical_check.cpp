// SPDX-License-Identifier: Apache-2.0
#include <shard/testing.h>

#include <algorithm>

#include "testing/outcome.h"

namespace shard::testing {
namespace {

using at::Tensor;

double tolerance_of(const std::vector<Tensor>& inputs, const NumericalCheckOptions& options) {
  const bool is_double = std::any_of(inputs.begin(), inputs.end(), [](const Tensor& input) {
    return input.scalar_type() == at::kDouble;
  });
  return is_double ? std::min(options.tolerance, 1e-10) : options.tolerance;
}

/// Arguments of one run; those that can be differentiated are leaves, as are the parameters.
Outcome run(const Function& forward, std::vector<Tensor> arguments,
            const std::vector<Tensor>& parameters, const NumericalCheckOptions& options) {
  std::vector<Tensor> leaves;
  for (auto& argument : arguments) {
    argument = argument.detach();
    if (!argument.is_floating_point() && !argument.is_complex()) continue;
    leaves.push_back(argument.set_requires_grad(true));
  }
  for (const auto& parameter : parameters) {
    if (parameter.requires_grad()) leaves.push_back(parameter);
  }
  return outcome_of(forward, arguments, leaves, {options.gradients, false});
}

}  // namespace

Report detail::numerical_check(const DeviceMesh& mesh, const Function& forward,
                               const std::vector<Tensor>& parameters,
                               const std::vector<Tensor>& inputs,
                               const NumericalCheckOptions& options) {
  std::vector<Tensor> wholes;
  for (const auto& input : inputs) wholes.push_back(whole_copy(input));
  const Outcome got = run(forward, inputs, parameters, options);
  const Outcome want = run(forward, wholes, parameters, options);
  const auto texts =
      mesh.comm().all_gather_bytes(difference(got, want, Allowance(tolerance_of(inputs, options))));
  Report report;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank].empty()) continue;
    report.failures.push_back("rank " + std::to_string(rank) + ":\n" + texts[rank]);
  }
  report.equal = report.ok() ? 1 : 0;
  return report;
}

}  // namespace shard::testing
