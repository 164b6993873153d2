// SPDX-License-Identifier: Apache-2.0
// Levels of a mesh of two dims of which the inner one sees other sizes at each place along the
// outer one: several rows, one, or none. NOTE [Calls of inner levels]
#include <gtest/gtest.h>
#include <shard/attention.h>
#include <shard/error.h>
#include <shard/launch.h>
#include <shard/tensor.h>
#include <shard/testing.h>
#include <torch/torch.h>

#include <atomic>

#include "patches/edge_cases.h"

namespace shard::testing {
namespace {

using at::Tensor;
using edge_cases::Tensors;

using Op = std::function<Tensor(const Tensors&)>;

/// A tensor, how the two mesh dims cut it, and into which pieces.
struct Cut {
  Tensor whole;
  Placements placements;
  std::vector<Partition> partitions;
};

Tensors inputs_of(const std::vector<Cut>& cuts, const std::function<Tensor(const Cut&)>& make) {
  Tensors inputs;
  for (const auto& cut : cuts) {
    inputs.push_back(make(cut).detach());
    if (cut.whole.is_floating_point()) inputs.back().requires_grad_();
  }
  return inputs;
}

/// The value, its sums along each dim (for which the places must have it alike), and the gradients
/// of a loss of all.
Tensors run(const Op& op, const Tensors& inputs) {
  const Tensor y = op(inputs);
  Tensors results{y};
  const Tensor weights = torch::arange(y.numel(), at::kDouble).sin().add(2).view(y.sizes());
  Tensor loss = (y * y * weights).sum();
  for (int64_t dim = 0; dim < y.dim(); ++dim) {
    results.push_back(y.sum(dim));
    loss = loss + results.back().square().sum();
  }
  if (!y.requires_grad()) return results;
  loss.backward();
  for (const auto& x : inputs) {
    if (x.requires_grad()) results.push_back(x.grad());
  }
  return results;
}

Tensor whole_of(const Tensor& t) { return is_shard_tensor(t) ? ShardTensor(t).full() : t; }

/// `op` on 2 x 2 ranks gives the values and gradients of plain tensors.
void expect_equal_at_all_places(const std::vector<Cut>& cuts, const Op& op) {
  const Tensors plain = run(op, inputs_of(cuts, [](const Cut& cut) { return cut.whole.clone(); }));
  run_ranks(4, [&](World& world) {
    const auto mesh = world.mesh({{"outer", 2}, {"inner", 2}});
    const Tensors sharded =
        run(op, inputs_of(cuts, [&](const Cut& cut) {
              return scatter_tensor(cut.whole, 0, mesh, cut.placements, cut.partitions);
            }));
    ASSERT_EQ(plain.size(), sharded.size());
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_TRUE(at::allclose(whole_of(sharded[i]).detach(), plain[i].detach())) << "result " << i;
    }
  });
}

Tensor d(const std::vector<int64_t>& sizes) { return torch::randn(sizes, at::kDouble); }

/// Along the outer mesh dim: several rows and one, several and none, all on the second.
const std::vector<Partition>& outer_pieces_of_four() {
  static const std::vector<Partition> all{{3, 1}, {1, 3}, {4, 0}, {0, 4}, {2, 2}};
  return all;
}

/// One number a row, spread over the columns: with stride 0.
Tensor spread(const Tensor& list, const Tensor& like) {
  return list.unsqueeze(1).expand({list.size(0), like.size(1)});
}

// ---- gather and scatter_add by one number a row

TEST(Places, GatherByOneNumberARow) {
  const Tensor list = torch::tensor({4, 0, 0, 2, 3, 1, 4});
  for (const auto& columns : outer_pieces_of_four()) {
    const std::vector<Cut> cuts{{d({5, 4}), {Shard(1), Shard(0)}, {columns, {4, 1}}},
                                {list, {Replicate(), Shard(0)}, {{}, {2, 5}}}};
    expect_equal_at_all_places(cuts, [](const Tensors& t) {
      return at::gather(t[0], 0, spread(t[1], t[0]).slice(0, 0, 7)) * 2;
    });
  }
}

TEST(Places, GatherByANumberAnElement) {
  const Tensor index = torch::randint(5, {7, 4}, at::kLong);
  for (const auto& columns : outer_pieces_of_four()) {
    const std::vector<Cut> cuts{{d({5, 4}), {Shard(1), Shard(0)}, {columns, {4, 1}}},
                                {index, {Shard(1), Shard(0)}, {columns, {2, 5}}}};
    expect_equal_at_all_places(cuts,
                               [](const Tensors& t) { return at::gather(t[0], 0, t[1]) * 2; });
    expect_equal_at_all_places({cuts[0]},
                               [&](const Tensors& t) { return at::gather(t[0], 0, index).sin(); });
  }
}

TEST(Places, ScatterByOneNumberARow) {
  const Tensor list = torch::tensor({4, 0, 0, 2, 3, 1, 4});
  for (const auto& columns : outer_pieces_of_four()) {
    const std::vector<Cut> cuts{{d({5, 4}), {Shard(1), Shard(0)}, {columns, {4, 1}}},
                                {list, {Replicate(), Shard(0)}, {{}, {2, 5}}},
                                {d({7, 4}), {Shard(1), Shard(0)}, {columns, {2, 5}}}};
    expect_equal_at_all_places(cuts, [](const Tensors& t) {
      return at::scatter_add(t[0], 0, spread(t[1], t[2]), t[2]) * 2;
    });
    expect_equal_at_all_places(cuts, [](const Tensors& t) {
      return at::scatter_add(t[0] * 1, 0, spread(t[1], t[2]), t[2] * 1).mean(0);
    });
    expect_equal_at_all_places(cuts, [](const Tensors& t) {
      return at::scatter_reduce(t[0].detach(), 0, spread(t[1], t[2]), t[2].detach(), "amax") * 2;
    });
  }
}

TEST(Places, ScatterByANumberAnElement) {
  const Tensor index = torch::randint(5, {7, 4}, at::kLong);
  for (const auto& columns : outer_pieces_of_four()) {
    const std::vector<Cut> cuts{{d({5, 4}), {Shard(1), Shard(0)}, {columns, {4, 1}}},
                                {index, {Shard(1), Shard(0)}, {columns, {2, 5}}},
                                {d({7, 4}), {Shard(1), Shard(0)}, {columns, {2, 5}}}};
    expect_equal_at_all_places(
        cuts, [](const Tensors& t) { return at::scatter_add(t[0], 0, t[1], t[2]) * 2; });
  }
}

// ---- orders along lines

/// The other dim of the line is cut too: one place has it, the other has nothing.
TEST(Places, OrderOfALineThatAnotherCutMakesEmpty) {
  for (const Partition& one : {Partition{1, 0}, Partition{0, 1}}) {
    const std::vector<Cut> lines{{d({1, 7}), {Shard(0), Shard(1)}, {one, {3, 4}}},
                                 {d({1, 7}), {Shard(1), Shard(0)}, {{0, 7}, one}},
                                 {d({1, 7}), {Replicate(), Shard(1)}, {{}, {5, 2}}}};
    for (const auto& line : lines) {
      const auto expect_equal = [&](const std::function<std::tuple<Tensor, Tensor>(Tensor)>& op) {
        expect_equal_at_all_places({line}, [&](const Tensors& t) {
          const auto [values, indices] = op(t[0]);
          return values * (indices + 1);
        });
      };
      expect_equal([](const Tensor& t) { return t.sort(1, /*descending=*/true); });
      expect_equal([](const Tensor& t) { return t.topk(3, 1); });
      expect_equal([](const Tensor& t) { return t.kthvalue(5, 1); });
      expect_equal([](const Tensor& t) { return t.median(1, /*keepdim=*/true); });
      expect_equal([](const Tensor& t) { return t.mode(1); });
    }
  }
}

// ---- views

TEST(Places, ViewsThatMergeACutDimOfSizeOne) {
  for (const auto& rows : outer_pieces_of_four()) {
    for (const Partition& one : {Partition{1, 0}, Partition{0, 1}}) {
      const Cut cut{d({4, 1, 3}), {Shard(0), Shard(1)}, {rows, one}};
      expect_equal_at_all_places({cut}, [](const Tensors& t) { return t[0].view({4, 3}) * 2; });
      expect_equal_at_all_places({cut}, [](const Tensors& t) { return t[0].view({4, -1}).sum(1); });
      expect_equal_at_all_places({cut}, [](const Tensors& t) { return t[0].view({12}) * 2; });
      expect_equal_at_all_places({cut}, [](const Tensors& t) {
        return t[0].reshape({4, 3, 1}) * 2;
      });
      expect_equal_at_all_places(
          {cut}, [](const Tensors& t) { return at::norm_except_dim(t[0], 2, 0) * 2; });
      const Cut last{d({3, 1, 4}), {Shard(2), Shard(1)}, {rows, one}};
      expect_equal_at_all_places({last}, [](const Tensors& t) { return t[0].view({3, 4}) * 2; });
      expect_equal_at_all_places({last}, [](const Tensors& t) {
        return t[0].transpose(0, 2).reshape({4, 3}) * 2;
      });
      const Cut first{d({1, 4, 3}), {Shard(1), Shard(0)}, {rows, one}};
      expect_equal_at_all_places({first}, [](const Tensors& t) { return t[0].view({4, 3}) * 2; });
    }
  }
}

/// The second place has one row of the result, whose columns are no outermost dim elsewhere.
TEST(Places, ViewsIntoLargerRows) {
  for (const auto& rows : {Partition{4, 2}, Partition{2, 4}, Partition{6, 0}, Partition{3, 3}}) {
    const Cut cut{d({6, 6}), {Shard(0), Shard(1)}, {rows, {2, 4}}};
    expect_equal_at_all_places({cut}, [](const Tensors& t) { return t[0].view({3, 12}) * 2; });
    expect_equal_at_all_places({cut}, [](const Tensors& t) { return t[0].view({3, 12}).sum(1); });
    expect_equal_at_all_places({cut}, [](const Tensors& t) { return t[0].view({12, 3}).sum(1); });
    expect_equal_at_all_places({cut}, [](const Tensors& t) { return t[0].view({3, 2, 2, 3}) * 2; });
    expect_equal_at_all_places({cut}, [](const Tensors& t) {
      return t[0].t().reshape({3, 12}) * 2;
    });
  }
}

// ---- elementwise

/// One place has as many rows as what is spread over the rows of the others.
TEST(Places, BroadcastOfOneRowThatTheInnerDimCuts) {
  for (const auto& rows : outer_pieces_of_four()) {
    for (const Partition& one : {Partition{1, 0}, Partition{0, 1}}) {
      const Cut field{d({4, 5}), {Shard(0), Shard(1)}, {rows, {2, 3}}};
      const Cut line{d({1, 5}), {Replicate(), Shard(0)}, {{}, one}};
      expect_equal_at_all_places({line, field}, [](const Tensors& t) { return t[0] * t[1]; });
      expect_equal_at_all_places({field, line},
                                 [](const Tensors& t) { return at::where(t[0] > 0, t[1], t[0]); });
    }
  }
}

TEST(Places, TiesOfExtremaOverTheOuterCut) {
  for (const auto& rows : outer_pieces_of_four()) {
    for (const Partition& one : {Partition{1, 0}, Partition{0, 1}}) {
      const Cut cut{d({4, 1}), {Shard(0), Shard(1)}, {rows, one}};
      expect_equal_at_all_places({cut}, [](const Tensors& t) { return t[0].amax({0}); });
      expect_equal_at_all_places({cut}, [](const Tensors& t) { return t[0].amin({0}, true); });
    }
  }
}

// ---- losses

TEST(Places, CtcLossOfSequencesThatSomePlacesHaveNoneOf) {
  const Tensor targets = torch::randint(1, 5, {4, 2}, at::kLong);
  const std::vector<int64_t> times{6, 6, 5, 6};
  const std::vector<int64_t> lengths{2, 1, 2, 2};
  for (const auto& sequences : outer_pieces_of_four()) {
    for (const int64_t inner : {0, 2}) {
      const Cut cut{d({6, 4, 5}), {Shard(1), Shard(inner)}, {sequences, {}}};
      expect_equal_at_all_places({cut}, [&](const Tensors& t) {
        return at::ctc_loss(t[0].log_softmax(2), targets, times, lengths, 0, at::Reduction::None);
      });
    }
  }
}

// ---- attention by heads

/// Two ranks cannot share an odd number of heads: told on all ranks alike.
TEST(Places, AttentionByHeadsThatAPlaceCannotDivide) {
  for (const auto& heads : outer_pieces_of_four()) {
    const bool divides = heads[0] % 2 == 0 && heads[0] * heads[1] > 0;
    const Tensor x = d({1, 4, 6, 8});
    const Tensor plain = at::scaled_dot_product_attention(x, x * 2, x * 3);
    std::atomic<int> refused{0};
    run_ranks(4, [&](World& world) {
      const AttentionFormGuard guard(AttentionForm::Heads);
      const auto mesh = world.mesh({{"heads", 2}, {"rows", 2}});
      const Tensor part =
          scatter_tensor(x, 0, mesh, {Shard(1), Shard(2)}, std::vector<Partition>{heads, {4, 2}});
      try {
        const Tensor y = at::scaled_dot_product_attention(part, part * 2, part * 3);
        EXPECT_TRUE(at::allclose(ShardTensor(y).full(), plain));
      } catch (const SpecMismatch&) {
        ++refused;
      }
    });
    EXPECT_EQ(refused, divides ? 0 : 4) << heads[0];
  }
}

}  // namespace
}  // namespace shard::testing
