// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <shard/reduction_patch.h>
#include <shard/runs_patch.h>

#include <cstdint>
#include <vector>

namespace shard {
namespace {

using at::Tensor;

/// How the runs of all ranks meet.
struct Runs {
  std::vector<int64_t> own;     ///< how many every rank has
  std::vector<int64_t> first;   ///< how long the first one is
  std::vector<bool> continues;  ///< whether it goes on from a rank before
};

Runs runs_of_ranks(const Distinct& own, const DeviceMesh& mesh) {
  const int64_t n = own.values.size(0);
  auto sizes = own.values.sizes().vec();
  sizes[0] = 2;
  const Tensor ends = n == 0 ? at::zeros(sizes, own.values.options())
                             : at::stack({own.values.select(0, 0), own.values.select(0, n - 1)});
  const Tensor numbers =
      at::tensor({n, n == 0 ? 0 : own.counts[0].item<int64_t>()}, own.counts.options());
  const Tensor all_ends = gathered_over_ranks(ends, mesh);
  const Tensor all_numbers = gathered_over_ranks(numbers, mesh).cpu();
  Runs runs;
  int64_t before = -1;
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    runs.own.push_back(all_numbers[rank][0].item<int64_t>());
    runs.first.push_back(all_numbers[rank][1].item<int64_t>());
    const bool meets = runs.own.back() > 0 && before >= 0;
    runs.continues.push_back(meets && all_ends[rank][0].eq(all_ends[before][1]).all().item<bool>());
    if (runs.own.back() > 0) before = rank;
  }
  return runs;
}

/// What the ranks after `rank` have of its last run.
int64_t continued_after(const Runs& runs, size_t rank) {
  int64_t count = 0;
  for (size_t next = rank + 1; next < runs.own.size(); ++next) {
    if (runs.own[next] == 0) continue;
    if (!runs.continues[next]) break;
    count += runs.first[next];
    if (runs.own[next] > 1) break;
  }
  return count;
}

}  // namespace

Distinct joined_over_ranks(const Distinct& own, const DeviceMesh& mesh) {
  const Runs runs = runs_of_ranks(own, mesh);
  const auto rank = static_cast<size_t>(mesh.rank());
  int64_t before = 0;
  for (size_t r = 0; r < rank; ++r) before += runs.own[r] - (runs.continues[r] ? 1 : 0);
  const int64_t skipped = runs.continues[rank] ? 1 : 0;
  const int64_t n = runs.own[rank] - skipped;
  const Tensor counts = own.counts.narrow(0, skipped, n).clone();
  if (n > 0) counts.select(0, n - 1).add_(continued_after(runs, rank));
  return {own.values.narrow(0, skipped, n), own.inverse + (before - skipped), counts};
}

}  // namespace shard
