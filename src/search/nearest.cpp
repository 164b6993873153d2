// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <shard/nearest.h>

#include <algorithm>
#include <limits>

#include "search/kd_tree.h"

namespace shard {
namespace {

using at::Tensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Tensor coordinates(const Tensor& points) {
  const Tensor exact = points.detach().to(at::kDouble);
  return at::nan_to_num(exact, kInfinity, kInfinity, -kInfinity).contiguous();
}

/// One set of points, (N, D) and (Q, D); `found` is overwritten.
void search_tree(const Nearest& found, const Tensor& points, const Tensor& queries, int64_t first) {
  const int64_t dims = points.size(1);
  const int64_t k = found.indices.size(1);
  const KdTree tree(points.const_data_ptr<double>(), points.size(0), dims);
  const auto* places = queries.const_data_ptr<double>();
  auto* squared = found.squared.mutable_data_ptr<double>();
  auto* indices = found.indices.mutable_data_ptr<int64_t>();
  constexpr int64_t kGrain = 64;
  at::parallel_for(0, queries.size(0), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t q = begin; q < end; ++q) {
      tree.find(places + q * dims, first, {squared + q * k, indices + q * k, k});
    }
  });
}

/// (Q, N)
Tensor squared_distances(const Tensor& points, const Tensor& queries) {
  Tensor sum = at::zeros({queries.size(0), points.size(0)}, queries.options());
  for (int64_t d = 0; d < points.size(1); ++d) {
    sum = sum + (queries.select(1, d).unsqueeze(1) - points.select(1, d)).square();
  }
  return at::nan_to_num(sum, kInfinity, kInfinity);
}

/// The best `k` of several candidates, by distance and index.
Nearest best_of(const Tensor& squared, const Tensor& indices, int64_t k) {
  const Tensor by_index = at::argsort(indices, /*stable=*/true, 1);
  const auto [sorted, order] = at::sort(squared.gather(1, by_index), std::optional<bool>(true), 1);
  return {sorted.narrow(1, 0, k), indices.gather(1, by_index).gather(1, order).narrow(1, 0, k)};
}

void sort_all(const Nearest& found, const Tensor& points, const Tensor& queries, int64_t first) {
  constexpr int64_t kPairs = 1 << 22;  // at once
  const int64_t n = points.size(0);
  const int64_t k = found.indices.size(1);
  const Tensor numbers = at::arange(first, first + n, found.indices.options());
  const int64_t rows = std::max<int64_t>(1, kPairs / std::max<int64_t>(n, 1));
  for (int64_t q = 0; q < queries.size(0); q += rows) {
    const int64_t count = std::min(rows, queries.size(0) - q);
    const Tensor squared = found.squared.narrow(0, q, count);
    const Tensor indices = found.indices.narrow(0, q, count);
    const auto best =
        best_of(at::cat({squared, squared_distances(points, queries.narrow(0, q, count))}, 1),
                at::cat({indices, numbers.expand({count, n})}, 1), k);
    squared.copy_(best.squared);
    indices.copy_(best.indices);
  }
}

template <class SearchSet>
Nearest with_sets(const Nearest& found, const Tensor& points, const Tensor& queries, int64_t first,
                  const SearchSet& search) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const auto copy = [](const Tensor& t) { return t.clone(at::MemoryFormat::Contiguous); };
  const Nearest result{copy(found.squared), copy(found.indices)};
  const Tensor p = coordinates(points);
  const Tensor q = coordinates(queries);
  if (p.dim() == 2) {
    search(result, p, q, first);
  } else {
    for (int64_t b = 0; b < p.size(0); ++b) {
      search({result.squared[b], result.indices[b]}, p[b], q[b], first);
    }
  }
  return result;
}

}  // namespace

Nearest Nearest::none(c10::IntArrayRef sizes, double radius, const at::TensorOptions& options) {
  return {at::full(sizes, radius * radius, options.dtype(at::kDouble)),
          at::full(sizes, kNoPoint, options.dtype(at::kLong))};
}

Nearest with_points(const Nearest& found, const Tensor& points, const Tensor& queries,
                    int64_t first) {
  if (!points.is_cpu()) return with_points_by_sorting(found, points, queries, first);
  return with_sets(found, points, queries, first, search_tree);
}

Nearest with_points_by_sorting(const Nearest& found, const Tensor& points, const Tensor& queries,
                               int64_t first) {
  return with_sets(found, points, queries, first, sort_all);
}

Tensor are_points(const Tensor& indices) { return indices.ne(kNoPoint); }

}  // namespace shard
