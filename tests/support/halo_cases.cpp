// SPDX-License-Identifier: Apache-2.0
#include "support/halo_cases.h"

#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <numeric>

#include "support/random.h"

namespace shard::testing {
namespace {

using torch::Tensor;

int64_t total(const Partition& partition) {
  return std::accumulate(partition.begin(), partition.end(), int64_t{0});
}

Partition random_partition(Random& random, int ranks) {
  Partition owned(static_cast<size_t>(ranks));
  for (auto& size : owned) size = random.integer(0, 5);
  owned.back() += 1;
  return owned;
}

RowLists random_ranges(const Partition& owned, Random& random) {
  const int64_t n = total(owned);
  RowLists wanted;
  for (size_t rank = 0; rank < owned.size(); ++rank) {
    auto& ranges = wanted.emplace_back();
    for (auto count = random.integer(0, 3); count > 0; --count) {
      const auto a = random.integer(0, n);
      const auto b = random.integer(0, n);
      ranges.push_back({std::min(a, b), std::max(a, b)});
    }
  }
  return wanted;
}

/// Every rank wants all rows, the last half of them first and the first row once more.
RowLists wrapped(const Partition& owned) {
  const int64_t n = total(owned);
  return RowLists(owned.size(), {{n / 2, n}, {0, n / 2}, {0, 1}});
}

/// Three rows a rank and some more; all but the first rank empty; every second rank empty.
std::vector<Partition> some_partitions(int ranks) {
  const auto count = static_cast<size_t>(ranks);
  Partition even(count, 3);
  Partition uneven(count, 1);
  uneven[0] = 6;
  Partition first_only(count, 0);
  first_only[0] = 5;
  Partition gaps(count, 0);
  for (size_t rank = 1; rank < count; rank += 2) gaps[rank] = 4;
  gaps.back() += 1;
  return {even, uneven, first_only, gaps};
}

}  // namespace

Tensor halo_whole(int64_t rows) {
  return torch::arange(2 * rows * 3, torch::kDouble).reshape({2, rows, 3});
}

Tensor local_rows(const Tensor& whole, const Partition& owned, int64_t rank) {
  return whole.narrow(1, offset_of(owned, rank), owned[static_cast<size_t>(rank)]).clone();
}

RowLists around(const Partition& owned, int64_t before, int64_t after) {
  const int64_t n = total(owned);
  RowLists wanted;
  int64_t begin = 0;
  for (const int64_t size : owned) {
    wanted.push_back({{std::max<int64_t>(begin - before, 0), std::min(begin + size + after, n)}});
    if (size == 0) wanted.back() = {};
    begin += size;
  }
  return wanted;
}

std::vector<HaloCase> halo_cases(int ranks) {
  std::vector<HaloCase> cases;
  for (const auto& owned : some_partitions(ranks)) {
    for (const auto& [before, after] :
         {std::pair<int64_t, int64_t>{1, 1}, {0, 5}, {5, 0}, {2, 3}}) {
      cases.push_back({c10::str(before, " before and ", after, " after ", owned), owned,
                       around(owned, before, after)});
    }
    cases.push_back({c10::str("wrapped around ", owned), owned, wrapped(owned)});
  }
  Random random(5);
  for (int trial = 0; trial < 20; ++trial) {
    const auto owned = random_partition(random, ranks);
    cases.push_back({c10::str("random ", trial), owned, random_ranges(owned, random)});
  }
  return cases;
}

void expect_wanted_rows(const HaloCase& halo, const DeviceMesh& mesh) {
  const Tensor whole = halo_whole(total(halo.owned));
  const auto plan = make_halo_plan(1, halo.owned, halo.wanted);
  const auto got = exchange_halo(local_rows(whole, halo.owned, mesh.rank()), plan, mesh);
  std::vector<Tensor> want{whole.narrow(1, 0, 0)};
  for (const auto& rows : halo.wanted[static_cast<size_t>(mesh.rank())]) {
    want.push_back(whole.narrow(1, rows.begin, rows.size()));
  }
  EXPECT_TRUE(torch::equal(assemble(got, plan, mesh.rank()), torch::cat(want, 1))) << halo.name;
}

void expect_exact_adjoint(const HaloCase& halo, const DeviceMesh& mesh) {
  const auto plan = make_halo_plan(1, halo.owned, halo.wanted);
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(17 + mesh.rank()));
  const auto draw = [&](at::IntArrayRef sizes) {
    return torch::randn(sizes, generator, torch::kDouble).requires_grad_();
  };
  const Tensor x = draw({2, halo.owned[static_cast<size_t>(mesh.rank())], 3});
  const auto got = exchange_halo(x, plan, mesh);
  const Tensor y_own = draw(got.own.sizes());
  const Tensor y_rows = draw(got.rows.sizes());
  const Tensor adjoint =
      torch::autograd::grad({got.own, got.rows}, {x}, {y_own, y_rows}, true, true)[0];
  const auto twice =
      torch::autograd::grad({adjoint}, {y_own, y_rows}, {x.detach()}, false, false, true);
  const auto dot = [](const Tensor& a, const Tensor& b) {
    return b.defined() ? (a * b).sum().item<double>() : 0.;
  };
  Tensor sums = torch::tensor({dot(got.own, y_own) + dot(got.rows, y_rows), dot(x, adjoint),
                               dot(y_own, twice[0]) + dot(y_rows, twice[1]),
                               dot(x, x) + dot(y_own, y_own) + dot(y_rows, y_rows)},
                              torch::kDouble);
  mesh.comm().all_reduce(sums);
  const auto* sum = sums.const_data_ptr<double>();
  EXPECT_NEAR(sum[0], sum[1], 1e-12 * sum[3]) << halo.name;
  EXPECT_NEAR(sum[2], sum[1], 1e-12 * sum[3]) << halo.name;
}

}  // namespace shard::testing
