// SPDX-License-Identifier: Apache-2.0
// The median of all elements, without moving them: every rank sorts its own, then all narrow down
// the same way where the value in the middle stands. In each round the ranks propose the middle of
// what they have left, and count how much lies below one of these values; at least a quarter of
// what is left is out then.
#include <ATen/ops/full.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <shard/counted_patch.h>
#include <shard/reduction_patch.h>
#include <shard/route.h>

#include <algorithm>
#include <array>
#include <limits>

namespace shard {
namespace {

using at::Tensor;

struct Counts {
  int64_t a = 0, b = 0;
};

Counts sum_over_ranks(const Counts& own, const DeviceMesh& mesh) {
  const auto options = at::TensorOptions(at::kLong).device(mesh.device());
  const Tensor sum =
      reduced_over_ranks(at::tensor({own.a, own.b}, options), mesh, ReduceOp::Sum).cpu();
  return {sum[0].item<int64_t>(), sum[1].item<int64_t>()};
}

/// Of the candidates of all ranks the one in the middle, when each counts as many times as its rank
/// has elements left.
Tensor pivot_of(const Tensor& own, int64_t left, const DeviceMesh& mesh) {
  const auto [candidates, rank] = gathered_over_ranks(own, mesh).sort();
  const Partition weights = count_rows(left, mesh);
  int64_t below = 0;
  for (int64_t i = 0; i < mesh.size(); ++i) {
    const int64_t weight = weights[static_cast<size_t>(rank[i].item<int64_t>())];
    below += weight;
    if (weight > 0 && 2 * below >= total_of(weights)) return candidates[i];
  }
  TORCH_INTERNAL_ASSERT(false, "no elements are left");
}

/// Number `k` of the elements of all ranks in ascending order; `own` are sorted.
Tensor element_at(int64_t k, const Tensor& own, const DeviceMesh& mesh) {
  int64_t begin = 0;
  int64_t end = own.size(0);
  for (;;) {
    const int64_t left = end - begin;
    const Tensor candidate = left > 0 ? own[begin + left / 2] : at::zeros({}, own.options());
    const Tensor pivot = pivot_of(candidate, left, mesh);
    const auto below = [&](bool or_equal) {
      return at::searchsorted(own, pivot, /*out_int32=*/false, or_equal).item<int64_t>();
    };
    const Counts counts{below(false), below(true)};
    const Counts all = sum_over_ranks(counts, mesh);
    if (k >= all.a && k < all.b) return pivot;
    if (k < all.a) {
      end = std::min(end, counts.a);
    } else {
      begin = std::max(begin, counts.b);
    }
  }
}

Tensor over_ranks(const Tensor& local, bool ignores_nan, const DeviceMesh& mesh) {
  const Tensor sorted = std::get<0>(plain_numbers(local).reshape({-1}).sort());
  const int64_t nans = count_set(at::isnan(sorted));  // they are last
  const Counts all = sum_over_ranks({sorted.size(0), nans}, mesh);
  if (all.b == all.a || (all.b > 0 && !ignores_nan)) {
    return at::full({}, std::numeric_limits<double>::quiet_NaN(), sorted.options());
  }
  return element_at((all.a - all.b - 1) / 2, sorted.narrow(0, 0, sorted.size(0) - nans), mesh);
}

Rule median(bool ignores_nan) {
  return [ignores_nan](const OpCall& call) {
    return reduction_rule(call, all_dims_reduced(call),
                          [ignores_nan, mesh = call.mesh()](const Tensor& local) {
                            return std::vector<Tensor>{over_ranks(local, ignores_nan, mesh)};
                          });
  };
}

}  // namespace

SHARD_PATCH(median) {
  const char* const note = "every rank sorts its own part; a few small messages";
  patch.remembering_rule("aten::median", median(false))
      .shards("any dim")
      .notes(note)
      .needs_values();
  patch.remembering_rule("aten::nanmedian", median(true))
      .shards("any dim")
      .notes(note)
      .needs_values();
}

}  // namespace shard
