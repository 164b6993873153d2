// SPDX-License-Identifier: Apache-2.0
#include "testing/outcome.h"

#include <shard/describe.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <limits>
#include <sstream>

namespace shard::testing {
namespace {

using at::Tensor;

std::vector<Tensor> whole_copies(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> result;
  result.reserve(tensors.size());
  for (const auto& tensor : tensors) result.push_back(whole_copy(tensor));
  return result;
}

/// Scalar that every element of y influences differently; the cotangent lies like y itself. Smooth,
/// so that rounding of a large y stays rounding.
Tensor weighted_sum(const Tensor& y) {
  const Tensor value = y.detach();
  return (y * (value / (value.abs() + 1) + 0.5)).sum();
}

Tensor sum_of_squares(const std::vector<Tensor>& gradients) {
  Tensor sum;
  for (const auto& gradient : gradients) {
    if (!gradient.defined() || !gradient.requires_grad()) continue;
    const Tensor term = (gradient * gradient).sum();
    sum = sum.defined() ? sum + term : term;
  }
  return sum;
}

void compare(std::ostringstream& text, const std::string& what, const Tensor& got,
             const Tensor& want, double tolerance) {
  const double error = relative_error(got, want);
  if (error <= tolerance) return;
  text << "  " << what << " differs by " << error << " (allowed " << tolerance << ")";
  if (got.defined() && want.defined() && got.sizes() != want.sizes()) {
    text << ": got sizes " << got.sizes() << ", expected " << want.sizes();
  }
  text << "\n";
}

/// Whether the gradient of a ShardTensor lies like it, piece for piece, and that of a plain tensor
/// is plain.
bool lies_like(const Tensor& gradient, const Tensor& leaf) {
  if (!is_shard_tensor(leaf)) return !is_shard_tensor(gradient);
  if (!is_shard_tensor(gradient)) return false;
  const ShardTensor a(gradient);
  const ShardTensor b(leaf);
  Placements placements = b.placements();  // the gradient of a pending sum is whole
  for (auto& placement : placements) {
    if (placement.is_partial()) placement = Replicate();
  }
  if (a.placements() != placements) return false;
  for (int64_t dim = 0; dim < leaf.dim(); ++dim) {
    if (a.partition(dim) != b.partition(dim)) return false;
  }
  return true;
}

std::string misplaced_of(const std::vector<Tensor>& gradients, const std::vector<Tensor>& leaves) {
  std::ostringstream text;
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (!gradients[i].defined() || lies_like(gradients[i], leaves[i])) continue;
    text << "  gradient of differentiable input " << i << " lies otherwise than the input: got "
         << describe(gradients[i]) << "; expected it to lie as " << describe(leaves[i]) << "\n";
  }
  return text.str();
}

/// Whether every rank knows the output to lie alike, in memory too. Collective.
std::string disagreement_about(const Tensor& output) {
  if (!is_shard_tensor(output)) return {};
  const std::string own = c10::str(describe(output), "strides ", output.strides(), "\n");
  for (const auto& other : ShardTensor(output).mesh().comm().all_gather_bytes(own)) {
    if (other != own) return c10::str("  ranks disagree how the output lies: got\n", own, other);
  }
  return {};
}

/// What float32 arithmetic does to a tensor, times four; at most one percent. Infinity where plain
/// LibTorch's own float32 kernel is wrong: there is nothing to compare with (docs/limits.md).
double rounding(const Tensor& plain, const Tensor& exact) {
  constexpr double kWrong = 0.5;
  if (!plain.defined() || !exact.defined() || !plain.is_floating_point()) return 0;
  const double error = relative_error(plain.to(exact.scalar_type()), exact);
  return error > kWrong ? std::numeric_limits<double>::infinity() : std::min(4 * error, 1e-2);
}

std::vector<double> roundings(const std::vector<Tensor>& plain, const std::vector<Tensor>& exact) {
  std::vector<double> result;
  for (size_t i = 0; i < std::min(plain.size(), exact.size()); ++i) {
    result.push_back(rounding(plain[i], exact[i]));
  }
  return result;
}

}  // namespace

Allowance::Allowance(double tolerance, const Outcome& plain, const Outcome& exact)
    : tolerance_(tolerance),
      output_(rounding(plain.output, exact.output)),
      gradients_(roundings(plain.gradients, exact.gradients)),
      penalty_gradients_(roundings(plain.penalty_gradients, exact.penalty_gradients)) {}

Tensor whole_copy(const Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  const at::NoGradGuard guard;
  const Tensor whole = is_shard_tensor(tensor) ? ShardTensor(tensor).full() : tensor;
  return whole.detach().clone();
}

Outcome outcome_of(const Function& function, const std::vector<Tensor>& arguments,
                   const std::vector<Tensor>& leaves, Derivatives derivatives) {
  Outcome outcome;
  const Tensor y = function(arguments);
  outcome.misplaced = disagreement_about(y);
  outcome.output = whole_copy(y);
  if (!derivatives.first || leaves.empty() || !y.requires_grad()) return outcome;
  const auto gradients = torch::autograd::grad({weighted_sum(y)}, leaves, {}, true,
                                               derivatives.second, /*allow_unused=*/true);
  outcome.gradients = whole_copies(gradients);
  outcome.misplaced += misplaced_of(gradients, leaves);
  if (!derivatives.second) return outcome;
  const Tensor penalty = sum_of_squares(gradients);
  if (penalty.defined()) {
    outcome.penalty_gradients =
        whole_copies(torch::autograd::grad({penalty}, leaves, {}, false, false, true));
  } else {  // none depends on a leaf: all zero
    outcome.penalty_gradients.resize(leaves.size());
  }
  return outcome;
}

std::string difference(const Outcome& got, const Outcome& want, const Allowance& allowance) {
  std::ostringstream text;
  text << got.misplaced;
  compare(text, "output", got.output, want.output, allowance.output());
  if (got.gradients.size() != want.gradients.size() ||
      got.penalty_gradients.size() != want.penalty_gradients.size()) {
    text << "  got " << got.gradients.size() << " gradients, expected " << want.gradients.size()
         << "\n";
    return text.str();
  }
  for (size_t i = 0; i < want.gradients.size(); ++i) {
    compare(text, "gradient of differentiable input " + std::to_string(i), got.gradients[i],
            want.gradients[i], allowance.gradient(i));
  }
  for (size_t i = 0; i < want.penalty_gradients.size(); ++i) {
    compare(text, "gradient penalty's gradient of differentiable input " + std::to_string(i),
            got.penalty_gradients[i], want.penalty_gradients[i], allowance.penalty(i));
  }
  return text.str();
}

}  // namespace shard::testing
