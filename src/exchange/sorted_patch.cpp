// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/where.h>
#include <shard/counted_patch.h>
#include <shard/outermost.h>
#include <shard/reduction_patch.h>
#include <shard/sorted_patch.h>

#include <algorithm>
#include <limits>

namespace shard {
namespace {

using at::Tensor;

at::ScalarType integers_as_wide_as(const Tensor& values) {
  switch (values.element_size()) {
    case 2:
      return at::kShort;
    case 4:
      return at::kInt;
    default:
      return at::kLong;
  }
}

/// The bits of a floating-point number are in its order when it is positive, and in the opposite
/// one when it is negative.
Tensor ordered_bits(const Tensor& values) {
  const Tensor one_zero = values + 0;  // -0.0 + 0 = 0.0
  const Tensor one_nan =
      one_zero.masked_fill_(at::isnan(values), std::numeric_limits<double>::quiet_NaN());
  const Tensor bits = one_nan.view(integers_as_wide_as(values)).to(at::kLong);
  const int64_t all_but_sign =
      std::numeric_limits<int64_t>::max() >> (64 - 8 * values.element_size());
  return at::where(bits.lt(0), bits.bitwise_xor(all_but_sign), bits);
}

Tensor keys_of(const Tensor& values, bool descending) {
  const Tensor keys = values.is_floating_point() ? ordered_bits(values) : values.to(at::kLong);
  return descending ? keys.bitwise_not() : keys;
}

/// The keys between which all keys of all ranks lie.
struct Bounds {
  int64_t least, largest;
};

Bounds bounds_over_ranks(const Tensor& keys, const DeviceMesh& mesh) {
  const int64_t n = keys.size(0);
  const auto lowest = std::numeric_limits<int64_t>::min();
  const Tensor ends =
      n > 0 ? at::stack({keys[0].bitwise_not(), keys[n - 1]})  // ~ turns the order round
            : at::tensor({lowest, lowest}, keys.options());
  const Tensor all = reduced_over_ranks(ends, mesh, ReduceOp::Max).cpu();
  return {~all[0].item<int64_t>(), all[1].item<int64_t>()};
}

/// The search for a number with at most `target` keys below it, and at least so many that are not
/// larger.
class KeySearch {
 public:
  static constexpr int64_t kProbes = 16;

  KeySearch(int64_t target, const Bounds& bounds)
      : target_(target), least_(bounds.least), largest_(bounds.largest) {}

  /// Whether the least number that is left is one.
  bool is_done() const { return below_ == target_ || least_ == largest_; }
  int64_t key() const { return least_; }

  /// What is asked next, for i in [1, kProbes]: evenly spaced, the last is the largest key left. (A
  /// range may have more than 2^63 keys.)
  int64_t probe(int64_t i) const {
    const uint64_t width = static_cast<uint64_t>(largest_) - static_cast<uint64_t>(least_);
    const uint64_t step = width / kProbes * static_cast<uint64_t>(i);
    const uint64_t rest = width % kProbes * static_cast<uint64_t>(i) / kProbes;
    return static_cast<int64_t>(static_cast<uint64_t>(least_) + step + rest);
  }
  /// `below[i - 1]`: how many keys of all ranks are below probe(i).
  void narrow(const int64_t* below) {
    const int64_t fitting = std::upper_bound(below, below + kProbes, target_) - below;
    const int64_t largest = fitting < kProbes ? probe(fitting + 1) - 1 : largest_;
    if (fitting > 0) {
      least_ = probe(fitting);
      below_ = below[fitting - 1];
    }
    largest_ = largest;
  }

 private:
  int64_t target_;
  int64_t least_, largest_;  // the largest such number is one of [least_, largest_]
  int64_t below_ = 0;        // how many keys are below least_
};

std::vector<KeySearch*> unfinished(std::vector<KeySearch>& searches) {
  std::vector<KeySearch*> result;
  for (auto& search : searches) {
    if (!search.is_done()) result.push_back(&search);
  }
  return result;
}

/// For every target a key with at most so many keys below it, and these plus the equal ones are at
/// least so many.
Tensor keys_at(const std::vector<int64_t>& targets, const Tensor& keys, const DeviceMesh& mesh) {
  const Bounds bounds = bounds_over_ranks(keys, mesh);
  std::vector<KeySearch> searches;
  for (const int64_t target : targets) searches.emplace_back(target, bounds);
  for (auto open = unfinished(searches); !open.empty(); open = unfinished(searches)) {
    std::vector<int64_t> probes;
    for (const auto* search : open) {
      for (int64_t i = 1; i <= KeySearch::kProbes; ++i) probes.push_back(search->probe(i));
    }
    const Tensor own = at::searchsorted(keys, at::tensor(probes, keys.options()));
    const Tensor below = reduced_over_ranks(own, mesh, ReduceOp::Sum).cpu();
    const auto* first = below.const_data_ptr<int64_t>();
    for (size_t i = 0; i < open.size(); ++i) open[i]->narrow(first + i * KeySearch::kProbes);
  }
  std::vector<int64_t> found;
  for (const auto& search : searches) found.push_back(search.key());
  return at::tensor(found, keys.options());
}

}  // namespace

bool is_cut_line(const OpCall& level, int64_t dim) {
  const OpCall& call = outermost_call(level);
  if (!level.tensor(0).is_shard() || level.tensor(0).shard_dim() != dim ||
      !sees_global_sizes(call.mesh())) {
    return false;
  }
  const Tensor& whole = call.tensor(0).tensor;
  const bool has_keys = whole.scalar_type() != at::kUInt64;  // they are signed
  return has_keys && whole.numel() > 0 && whole.numel() == whole.size(dim);
}

SortedPart sorted_part(const Tensor& part, bool descending) {
  const auto [values, places] = part.sort(/*stable=*/true, 0, descending);
  return {values, places, keys_of(values, descending)};
}

SortedPart first_of_part(const Tensor& part, int64_t k, bool descending) {
  const auto [values, places] = part.topk(std::min(k, part.size(0)), 0, descending);
  return {values, places, keys_of(values, descending)};
}

Tensor counts_among_first(const std::vector<int64_t>& targets, const Tensor& keys,
                          const DeviceMesh& mesh) {
  const Tensor found = keys_at(targets, keys, mesh);
  const Tensor below = at::searchsorted(keys, found);
  const Tensor equal = at::searchsorted(keys, found, /*out_int32=*/false, /*right=*/true) - below;
  const Tensor all = gathered_over_ranks(at::stack({below, equal}), mesh).cpu();
  const Tensor all_below = all.select(1, 0);
  const Tensor all_equal = all.select(1, 1);
  const Tensor before = all_equal.cumsum(0) - all_equal;  // equal ones of the ranks before
  const Tensor wanted = at::tensor(targets, all.options()) - all_below.sum(0);
  return all_below + at::minimum((wanted - before).clamp_min(0), all_equal);
}

LineElement element_of_rank(int64_t owner, int64_t index, const Tensor& values,
                            const Tensor& positions, const DeviceMesh& mesh) {
  const auto broadcast = [&](const Tensor& own) {
    Tensor element =
        mesh.rank() == owner ? own.narrow(0, index, 1).clone() : at::empty({1}, own.options());
    mesh.comm().broadcast(element, static_cast<int>(owner));
    return element;
  };
  const Tensor value = broadcast(values);
  return {value, broadcast(positions)};
}

LineElement element_in_order(int64_t k, const SortedPart& own, int64_t offset,
                             const DeviceMesh& mesh) {
  const Tensor counts = counts_among_first({k, k + 1}, own.keys, mesh);
  const int64_t owner = counts.diff(1, 1).argmax().item<int64_t>();
  const int64_t index = counts[owner][0].item<int64_t>();
  return element_of_rank(owner, index, own.values, own.places + offset, mesh);
}

LineElement median_of_line(const SortedPart& own, bool ignores_nan, int64_t offset,
                           const DeviceMesh& mesh) {
  const Tensor counts =
      at::tensor({own.values.size(0), count_set(at::isnan(own.values))}, own.keys.options());
  const Tensor all = reduced_over_ranks(counts, mesh, ReduceOp::Sum).cpu();
  const int64_t numbers = all[0].item<int64_t>() - all[1].item<int64_t>();
  const bool is_nan = all[1].item<int64_t>() > 0 && !ignores_nan;
  return element_in_order(is_nan ? numbers : std::max<int64_t>(numbers - 1, 0) / 2, own, offset,
                          mesh);
}

}  // namespace shard
