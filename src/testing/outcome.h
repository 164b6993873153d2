// SPDX-License-Identifier: Apache-2.0
// What a function gives: its output and derivatives, as plain whole tensors.
#pragma once

#include <shard/testing.h>

#include <string>
#include <vector>

namespace shard::testing {

struct Outcome {
  at::Tensor output;
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> penalty_gradients;  ///< of the squares of all gradients
  std::string misplaced = {};                 ///< what lies otherwise than it should
};

/// A plain copy of the whole; undefined ones pass. Collective for ShardTensors.
at::Tensor whole_copy(const at::Tensor& tensor);

struct Derivatives {
  bool first = true;
  bool second = true;
};
/// Calls the function and differentiates it with respect to `leaves`.
Outcome outcome_of(const Function& function, const std::vector<at::Tensor>& arguments,
                   const std::vector<at::Tensor>& leaves, Derivatives derivatives);

/// How far outcomes may differ: a tolerance, and for float32 four times what plain LibTorch's own
/// rounding does (`exact`: the same in float64), for every tensor.
class Allowance {
 public:
  explicit Allowance(double tolerance) : tolerance_(tolerance) {}
  Allowance(double tolerance, const Outcome& plain, const Outcome& exact);
  double output() const { return tolerance_ + output_; }
  double gradient(size_t i) const { return tolerance_ + extra(gradients_, i); }
  double penalty(size_t i) const { return 10 * tolerance_ + extra(penalty_gradients_, i); }

 private:
  static double extra(const std::vector<double>& list, size_t i) {
    return i < list.size() ? list[i] : 0;
  }
  double tolerance_;
  double output_ = 0;
  std::vector<double> gradients_, penalty_gradients_;
};

/// What differs by more than allowed, one line each; empty: nothing.
std::string difference(const Outcome& got, const Outcome& want, const Allowance& allowance);

}  // namespace shard::testing
