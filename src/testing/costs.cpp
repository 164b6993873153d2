// SPDX-License-Identifier: Apache-2.0
// What a sample allocates and sends on four ranks, against what plain LibTorch allocates.
#include <ATen/Context.h>
#include <shard/comm_counter.h>
#include <shard/error.h>
#include <shard/memory.h>
#include <shard/testing.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <sstream>

#include "testing/arguments.h"
#include "testing/enlarged.h"
#include "testing/findings.h"

namespace shard::testing {
namespace {

using at::Tensor;

constexpr int kRanks = 4;
constexpr double kShare = 0.6;  // of the largest whole allocation: more is no share of four
constexpr double kFree = 0.25;  // of the tensors: halos, statistics

/// Of one run, forward and backward; scattering is not in it.
struct Costs {
  int64_t largest = 0;  ///< single allocation
  int64_t sent = 0;     ///< bytes
  int64_t output = 0;   ///< bytes of the whole one
};

Costs costs_of(const Sample& sample, const Scatter& scatter) {
  const auto arguments = make_arguments(sample, scatter);
  const auto leaves = make_leaves(sample, arguments);
  auto& account = MemoryAccount::current();
  account.reset_peak();
  const CommCounter counter;
  const Tensor y = sample.function(arguments);
  if (sample.check.gradients && !leaves.empty() && y.requires_grad()) {
    torch::autograd::grad({y.sum()}, leaves, {}, false, false, /*allow_unused=*/true);
  }
  return {account.largest(), counter.bytes(), y.numel() * static_cast<int64_t>(y.element_size())};
}

/// Whether two inputs lie alike along their last dims, so that they can meet without a message.
bool lie_alike(const Input& a, const Input& b) {
  return a.shard_dim - a.whole.dim() == b.shard_dim - b.whole.dim() &&
         a.whole.size(a.shard_dim) == b.whole.size(b.shard_dim);
}

/// What a sample may cost, by the sizes of its inputs and its output.
class Budget {
 public:
  explicit Budget(const Sample& sample) : check_(sample.check) {
    std::vector<const Input*> cut;
    int64_t largest = 0;
    for (const auto& input : sample.inputs) {
      const auto bytes = static_cast<int64_t>(input.whole.nbytes());
      (input.shard_dim < 0 ? weights_ : tensors_) += bytes;
      if (input.shard_dim < 0) continue;
      cut.push_back(&input);
      largest = std::max(largest, bytes);
    }
    const bool all_alike =
        std::all_of(cut.begin(), cut.end(), [&](const Input* i) { return lie_alike(*i, *cut[0]); });
    if (!all_alike) meeting_ = 2 * (kRanks - 1) * (tensors_ - largest);
    const MemoryAccountScope scope;
    const Costs plain = costs_of(sample, whole_argument);
    plain_ = std::max(plain.largest, largest);
    tensors_ = std::max(tensors_, plain.output);
  }

  /// An allocation of this size is too large. Gradients of weights are whole on every rank.
  int64_t memory() const {
    return std::max(static_cast<int64_t>(kShare * static_cast<double>(plain_)), weights_ + 1);
  }

  /// Bytes that all ranks together may send. Every gradient of a weight is summed over the ranks;
  /// of inputs that are cut differently all but the largest may become whole, and their gradients
  /// cut again.
  int64_t traffic() const {
    const int64_t gradients = kRanks * (kRanks - 1) * weights_;
    constexpr double kNoLimit = 1e15;
    const double moved =
        std::min((check_.traffic + kFree) * static_cast<double>(tensors_), kNoLimit);
    return static_cast<int64_t>(moved) + gradients + meeting_;
  }

  /// What is beyond it, one line each.
  std::string complaints(const std::vector<std::optional<Costs>>& costs) const {
    std::ostringstream text;
    for (size_t rank = 0; rank < costs.size(); ++rank) {
      if (!check_.holds_whole.empty() || costs[rank]->largest < memory()) continue;
      text << "  rank " << rank << " allocates " << costs[rank]->largest
           << " bytes at once (allowed: less than " << memory()
           << "; plain LibTorch for the whole: " << plain_ << ")\n";
    }
    const auto sent = std::accumulate(costs.begin(), costs.end(), int64_t{0},
                                      [](auto sum, auto& cost) { return sum + cost->sent; });
    if (sent > traffic()) {
      text << "  the ranks send " << sent << " bytes (allowed: " << traffic()
           << "; the tensors: " << tensors_ << ", Check::traffic: " << check_.traffic << ")\n";
    }
    return text.str();
  }

 private:
  const Check& check_;
  int64_t plain_ = 0;    ///< largest allocation
  int64_t tensors_ = 0;  ///< the cut inputs, or the output if that is larger
  int64_t weights_ = 0;
  int64_t meeting_ = 0;
};

/// Sizes of the inputs that are cut.
std::string sizes_of(const Sample& sample) {
  std::ostringstream text;
  for (const auto& input : sample.inputs) {
    if (input.shard_dim < 0) continue;
    text << ", " << input.whole.sizes() << " cut along " << input.shard_dim;
  }
  return text.str();
}

/// Without oneDNN, whose scratch memory depends on the processor: LibTorch's own kernels allocate
/// the same everywhere.
class OwnKernels {
 public:
  OwnKernels() { at::globalContext().setUserEnabledMkldnn(false); }
  ~OwnKernels() { at::globalContext().setUserEnabledMkldnn(was_enabled_); }
  OwnKernels(const OwnKernels&) = delete;
  OwnKernels& operator=(const OwnKernels&) = delete;

 private:
  const bool was_enabled_ = at::globalContext().userEnabledMkldnn();
};

}  // namespace

Report judge_costs(const Sample& sample) {
  const OwnKernels guard;
  const auto large = enlarged(sample);
  if (!large) return {};
  const Budget budget(*large);
  const Setting setting{.ranks = kRanks};
  const auto where = sample.name + sizes_of(*large) + ", " + setting.text();
  std::vector<std::optional<Costs>> costs(kRanks);
  const auto measure = [&](const World& world) {
    try {
      costs[static_cast<size_t>(world.rank())] = costs_of(*large, scatter_of(world, setting));
    } catch (const SpecMismatch&) {  // plain LibTorch broadcasts what no caller would
    }
    return std::string();
  };
  Report report = report_of(find_on_threads(kRanks, measure), where);
  report.equal = 0;
  report.refused = 0;
  if (!std::all_of(costs.begin(), costs.end(), [](auto& cost) { return cost.has_value(); })) {
    return report;
  }
  const auto complaints = budget.complaints(costs);
  if (!complaints.empty()) report.failures.push_back(where + ":\n" + complaints);
  return report;
}

}  // namespace shard::testing
