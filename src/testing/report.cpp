// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <shard/testing.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

namespace shard::testing {

void Report::add(const Report& other) {
  equal += other.equal;
  refused += other.refused;
  failures.insert(failures.end(), other.failures.begin(), other.failures.end());
  for (const auto& refusal : other.refusals) {
    if (std::find(refusals.begin(), refusals.end(), refusal) == refusals.end()) {
      refusals.push_back(refusal);
    }
  }
}

std::string Report::text() const {
  std::ostringstream text;
  text << equal << " equal, " << refused << " refused, " << failures.size() << " failed\n";
  for (const auto& refusal : refusals) text << "refused: " << refusal << "\n";
  for (const auto& failure : failures) text << failure << "\n";
  return text.str();
}

double relative_error(const at::Tensor& a, const at::Tensor& b) {
  // An undefined gradient is a zero one.
  if (!a.defined()) return !b.defined() ? 0 : relative_error(at::zeros_like(b), b);
  if (!b.defined()) return relative_error(a, at::zeros_like(a));
  const double infinity = std::numeric_limits<double>::infinity();
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) {
    return infinity;
  }
  if (a.numel() == 0) return 0;
  const at::NoGradGuard guard;
  const bool complex = a.is_complex();
  const at::Tensor x = a.detach().to(complex ? at::kComplexDouble : at::kDouble);
  const at::Tensor y = b.detach().to(complex ? at::kComplexDouble : at::kDouble);
  // inf - inf: equal infinities count as equal, any other non-finite difference as infinite.
  const at::Tensor difference = at::where(x == y, at::zeros({}, at::kDouble), (x - y).abs());
  const double error = difference.max().item<double>();
  const at::Tensor finite = y.abs().nan_to_num(0, 0, 0);
  return std::isfinite(error) ? error / std::max(finite.max().item<double>(), 1e-3) : infinity;
}

}  // namespace shard::testing
