// SPDX-License-Identifier: Apache-2.0
// custom_patch: an op of one's own, what it is on shards, and a test of it on every kind of shard.
//   Run: build/bin/custom_patch
#include <shard/handlers.h>
#include <shard/shard.h>
#include <shard/testing.h>
#include <shard/window_patch.h>
#include <torch/library.h>
#include <torch/types.h>

#include <cstdio>

namespace {

using at::Tensor;

// ---- The op: every value becomes the mean of itself and its neighbours, zeros beyond the ends.

Tensor mean_of_three(const Tensor& padded, int64_t dim) {
  const int64_t n = padded.size(dim) - 2;
  return (padded.narrow(dim, 0, n) + padded.narrow(dim, 1, n) + padded.narrow(dim, 2, n)) / 3;
}

Tensor smooth(const Tensor& x, int64_t dim) {
  const Tensor zeros = at::zeros_like(x.narrow(dim, 0, 1));
  return mean_of_three(at::cat({zeros, x, zeros}, dim), dim);
}

TORCH_LIBRARY(mylib, m) { m.def("smooth(Tensor x, int dim) -> Tensor", smooth); }

Tensor call_smooth(const Tensor& x, int64_t dim) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("mylib::smooth", "")
                             .typed<Tensor(const Tensor&, int64_t)>();
  return op.call(x, dim);
}

// ---- The patch: along the cut dim, fetch one row from either neighbour. No backward needed.

Tensor smooth_shards(const Tensor& x, int64_t dim) {
  const shard::ShardedInput input = shard::sharded_input(x);
  if (input.dim != dim) {
    return shard::from_local(call_smooth(shard::to_local(input.tensor), dim), input.mesh,
                             input.spec);
  }
  const shard::Window window{.kernel = 3, .padding = 1};
  const shard::LocalRows rows = shard::window_rows(input, window, /*fill=*/0);
  return shard::from_rows(mean_of_three(rows.rows, dim), input, rows);
}

}  // namespace

int main() {
  const auto registration = shard::register_named_function_handler("mylib::smooth", smooth_shards);

  // ---- The test: 1 to 4 ranks, even, uneven, one-row and empty shards, grids; values and
  // gradients.
  using namespace shard::testing;
  const auto rows = [](const std::vector<Tensor>& t) { return call_smooth(t[0], 0); };
  const Report report = conformance(
      "mylib::smooth", {{"cut along the dim", {sharded(torch::randn({7, 4}), 0)}, rows},
                        {"cut along another", {sharded(torch::randn({7, 4}), 1)}, rows}});
  std::printf("mylib::smooth: %s", report.text().c_str());
  return report.ok() ? 0 : 1;
}
