// SPDX-License-Identifier: Apache-2.0
// The forms of attention over a cut sequence: each equals plain LibTorch, the work and the bytes of
// each, which is chosen, and sequences in zig-zag order.
#include <gtest/gtest.h>
#include <shard/attention.h>
#include <shard/patch.h>
#include <shard/ring_attention.h>
#include <shard/shard.h>
#include <torch/torch.h>

#include <map>

#include "support/rank_errors.h"
#include "support/sharded_check.h"

namespace shard::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

/// With dropout: of the same random numbers in every call.
Tensor attend(const Tensors& qkv, bool is_causal, const std::optional<Tensor>& mask = {},
              double dropout = 0) {
  if (dropout > 0) manual_seed(13);
  return at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], mask, dropout, is_causal, {},
                                          /*enable_gqa=*/qkv[0].size(1) != qkv[1].size(1));
}

struct Whole {
  Tensors qkv;
  Tensor y, weights;
  Tensors gradients;

  Whole(int64_t heads, int64_t queries, int64_t keys, bool is_causal,
        const std::optional<Tensor>& mask = {}, int64_t group = 1, double dropout = 0) {
    for (const int64_t rows : {queries, keys, keys}) {
      const int64_t count = qkv.empty() ? heads * group : heads;
      qkv.push_back(torch::randn({2, count, rows, 4}, at::dtype(at::kDouble).requires_grad(true)));
    }
    y = attend(qkv, is_causal, mask, dropout);
    weights = torch::randn_like(y);
    gradients = torch::autograd::grad({(y * weights).sum()}, qkv);
  }
};

/// Compares `y` and the gradients of `cut` with `whole`.
void expect_equal(const Whole& whole, const Tensor& y, const Tensors& cut, const Tensor& weights) {
  EXPECT_LE(relative_error(ShardTensor(y.detach()).full(), whole.y), 1e-12);
  const auto gradients = torch::autograd::grad({(y * weights).sum()}, cut);
  for (size_t i = 0; i < cut.size(); ++i) {
    EXPECT_LE(relative_error(ShardTensor(gradients[i]).full(), whole.gradients[i]), 1e-11) << i;
  }
}

// REPORTED_CASES 41 and 39: causal x balanced in all four combinations, 2 to 4 ranks; and whatever
// else a call may ask for, in every form.
enum class Extra : uint8_t { None, AddedMask, BoolMask, GroupedHeads, Dropout };
using Combination = std::tuple<AttentionForm, bool, Extra>;
class AttentionForms : public ::testing::TestWithParam<Combination> {};

std::optional<Tensor> mask_of(Extra extra, int64_t queries, int64_t keys) {
  if (extra == Extra::AddedMask) return torch::randn({queries, keys}, at::kDouble);
  if (extra != Extra::BoolMask) return std::nullopt;
  const Tensor i = torch::arange(queries).unsqueeze(1);
  const Tensor seen = (i - torch::arange(keys)).abs() <= 2;  // whole blocks are hidden
  return seen.logical_and_(i != 1);                          // and all keys from one query
}

TEST_P(AttentionForms, EqualPlainLibTorchForAnyShards) {
  const auto [form, is_causal, extra] = GetParam();
  if (is_causal && (extra == Extra::AddedMask || extra == Extra::BoolMask)) return;  // refused
  const int64_t group = extra == Extra::GroupedHeads ? 2 : 1;
  const double dropout = extra == Extra::Dropout ? 0.3 : 0;
  for (const int ranks : {2, 3, 4}) {
    for (const int64_t queries : {13, 3}) {
      for (const auto& [name, partition] : splits(queries, ranks)) {
        SCOPED_TRACE(c10::str(ranks, " ranks, ", queries, " queries, ", name));
        run_ranks(ranks, [&, form = form, is_causal = is_causal, extra = extra,
                          partition = partition](World& world) {
          manual_seed(5);
          const auto mask = mask_of(extra, queries, 11);
          const Whole whole(12, queries, 11, is_causal, mask, group, dropout);
          Tensors cut;
          for (const auto& t : whole.qkv) {
            cut.push_back(scatter_tensor(t.detach(), 0, world.mesh(), {Shard(2)},
                                         t.size(2) == queries ? partition : Partition{}));
            cut.back().set_requires_grad(true);
          }
          const AttentionFormGuard guard(form);
          const Tensor y = attend(cut, is_causal, mask, dropout);
          EXPECT_EQ(*spec_of(y), *spec_of(cut[0]));
          EXPECT_EQ(y.strides(), whole.y.strides());
          expect_equal(whole, y, cut,
                       scatter_tensor(whole.weights, 0, world.mesh(), {Shard(2)}, partition));
        });
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(
    CausalTimesBalanced, AttentionForms,
    ::testing::Combine(::testing::Values(AttentionForm::Ring, AttentionForm::Balanced,
                                         AttentionForm::Heads),
                       ::testing::Bool(),
                       ::testing::Values(Extra::None, Extra::AddedMask, Extra::BoolMask,
                                         Extra::GroupedHeads, Extra::Dropout)));

TEST(AttentionForms, OfZigzagSequencesEqualThePlainOrder) {
  for (const int ranks : {2, 3, 4}) {
    for (const int64_t n : {24, 13, 5}) {
      SCOPED_TRACE(c10::str(ranks, " ranks, ", n, " rows"));
      run_ranks(ranks, [&](World& world) {
        manual_seed(5);
        const Whole whole(2, n, n, true);
        const Tensor order = zigzag_order(n, ranks);
        const Partition partition = zigzag_partition(n, ranks);
        const auto in_zigzag = [&](const Tensor& t) {
          return scatter_tensor(t.detach().index_select(2, order), 0, world.mesh(), {Shard(2)},
                                partition);
        };
        Tensors cut;
        for (const auto& t : whole.qkv) cut.push_back(in_zigzag(t).set_requires_grad(true));
        const ZigzagSequences scope;
        const Tensor y = attend(cut, true);
        const Tensor back = order.argsort();
        const auto in_order = [&](const Tensor& t) {
          return ShardTensor(t.detach()).full().index_select(2, back);
        };
        EXPECT_LE(relative_error(in_order(y), whole.y), 1e-12);
        const auto gradients =
            torch::autograd::grad({(y * in_zigzag(whole.weights)).sum()}, cut, {}, false, true);
        for (size_t i = 0; i < 3; ++i) {
          EXPECT_LE(relative_error(in_order(gradients[i]), whole.gradients[i]), 1e-11);
        }
      });
    }
  }
}

TEST(AttentionForms, OfZigzagSequencesRefuseOtherPartitions) {
  expect_same_error<SpecMismatch>(2, "zigzag_partition", [](const DeviceMesh& mesh) {
    const Tensor q = scatter_tensor(torch::randn({1, 2, 9, 4}), 0, mesh, {Shard(2)}, {2, 7});
    return [=] {
      const ZigzagSequences scope;
      attend({q, q, q}, true);
    };
  });
}

TEST(AttentionForms, OfZigzagQueriesNextToWholeKeysAreRefused) {
  expect_same_error<SpecMismatch>(2, "zigzag_partition", [](const DeviceMesh& mesh) {
    const Tensor whole = torch::randn({1, 2, 8, 4});
    const Tensor q = scatter_tensor(whole, 0, mesh, {Shard(2)});
    return [=] {
      const ZigzagSequences scope;
      attend({q, whole, whole}, true);
    };
  });
}

// One mesh dim cuts the queries, next to whole keys; the other one the keys: positions count from
// the first query of all.
TEST(AttentionForms, OfQueriesThatAnotherMeshDimCutsToo) {
  for (const auto form :
       {AttentionForm::Auto, AttentionForm::Ring, AttentionForm::Balanced, AttentionForm::Heads}) {
    for (const bool is_causal : {false, true}) {
      for (const double dropout : {0.0, 0.4}) {
        SCOPED_TRACE(c10::str(static_cast<int>(form), is_causal ? " causal " : " ", dropout));
        run_ranks(4, [&](World& world) {
          manual_seed(6);
          const auto mesh = world.mesh({{"a", 2}, {"b", 2}});
          const Whole whole(2, 13, 11, is_causal, {}, 1, dropout);
          const Placements of_q{Shard(2), Shard(3)};  // features: their ranks share the queries
          const std::vector<Partition> pieces{{5, 8}, {1, 3}};
          Tensors cut;
          for (size_t i = 0; i < 3; ++i) {
            cut.push_back(
                i == 0 ? scatter_tensor(whole.qkv[i].detach(), 0, mesh, of_q, pieces)
                       : scatter_tensor(whole.qkv[i].detach(), 0, mesh, {Replicate(), Shard(2)}));
            cut.back().set_requires_grad(true);
          }
          const AttentionFormGuard guard(form);
          const Tensor y = attend(cut, is_causal, {}, dropout);
          expect_equal(whole, y, cut, scatter_tensor(whole.weights, 0, mesh, of_q, pieces));
        });
      }
    }
  }
}

// Pairs of a query and a key that see each other: what a rank computes.
TEST(AttentionForms, BalancedWorkIsEqual) {
  for (const int64_t ranks : {2, 3, 4, 8}) {
    const int64_t n = 64 * ranks;
    std::vector<std::vector<Rows>> contiguous;
    for (int64_t r = 0; r < ranks; ++r) contiguous.push_back({{64 * r, 64 * (r + 1)}});
    const auto pairs = [&](const std::vector<Rows>& queries) {
      AttentionPlan plan;
      plan.queries = queries;
      plan.keys = contiguous;
      plan.is_causal = true;
      return visible_pairs(plan);
    };
    const auto balanced = zigzag_rows(n, ranks);
    int64_t sum = 0;
    for (int64_t r = 0; r < ranks; ++r) {
      EXPECT_EQ(pairs(balanced[static_cast<size_t>(r)]), n * (n + 1) / 2 / ranks);
      sum += pairs(contiguous[static_cast<size_t>(r)]);
    }
    EXPECT_EQ(sum, n * (n + 1) / 2);
    EXPECT_GT(pairs(contiguous.back()), (2 * ranks - 1) * n * n / 2 / ranks / ranks);
  }
}

struct Sent {
  int64_t bytes, calls;
};
Sent sent_by_forward(World& world, const AttentionForm form, int64_t heads, int64_t rows,
                     int64_t width = 8, bool is_causal = true) {
  const Tensor whole = torch::randn({1, heads, rows, width});
  const Tensor x = scatter_tensor(whole, 0, world.mesh(), {Shard(2)});
  const AttentionFormGuard guard(form);
  const CommCounter counter;
  attend({x, x, x}, is_causal);
  return {counter.bytes(), counter.calls()};
}

TEST(AttentionForms, ByHeadsMoveFewerBytesAndAreChosenThen) {
  for (const int ranks : {2, 4}) {
    run_ranks(ranks, [&](World& world) {
      const int64_t rows = 16;
      const int64_t piece = 4 * rows * 8 * int64_t{sizeof(float)} / ranks;  // of q, k, v or y
      const auto [ring, by_ring] = sent_by_forward(world, AttentionForm::Ring, 4, rows);
      const auto [heads, by_heads] = sent_by_forward(world, AttentionForm::Heads, 4, rows);
      EXPECT_EQ(ring, 2 * (ranks - 1) * piece);
      EXPECT_EQ(heads, 4 * piece * (ranks - 1) / ranks);
      EXPECT_EQ(sent_by_forward(world, AttentionForm::Auto, 4, rows).bytes, heads);
      // Heads that do not divide.
      EXPECT_EQ(sent_by_forward(world, AttentionForm::Auto, 3, rows).bytes, ring / 4 * 3);
    });
  }
}

// Over two ranks both move equally much: small blocks go by heads, large ones by the ring, which
// overlaps.
TEST(AttentionForms, ThatMoveEquallyMuchAreChosenByTheSizeOfABlock) {
  run_ranks(2, [](World& world) {
    for (const auto& [rows, want] : std::vector<std::pair<int64_t, AttentionForm>>{
             {16, AttentionForm::Heads}, {2048, AttentionForm::Ring}}) {
      const auto calls = [&, rows = rows](AttentionForm form) {
        return sent_by_forward(world, form, 2, rows, 16, /*is_causal=*/false).calls;
      };
      EXPECT_NE(calls(AttentionForm::Ring), calls(AttentionForm::Heads));
      EXPECT_EQ(calls(AttentionForm::Auto), calls(want)) << rows << " rows";
    }
  });
}

TEST(AttentionForms, ByHeadsAreRefusedWhereHeadsDoNotDivide) {
  expect_same_error<SpecMismatch>(
      2, "multiples of the number of ranks", [](const DeviceMesh& mesh) {
        const Tensor q = scatter_tensor(torch::randn({1, 3, 8, 4}), 0, mesh, {Shard(2)});
        return [=] {
          const AttentionFormGuard guard(AttentionForm::Heads);
          attend({q, q, q}, false);
        };
      });
}

TEST(AttentionForms, BalanceALongCausalSequenceByThemselves) {
  run_ranks(2, [](World& world) {
    const auto bytes = [&](AttentionForm form, int64_t rows) {
      return sent_by_forward(world, form, 1, rows).bytes;
    };
    EXPECT_GT(bytes(AttentionForm::Auto, 512), bytes(AttentionForm::Ring, 512));
    EXPECT_EQ(bytes(AttentionForm::Auto, 128), bytes(AttentionForm::Ring, 128));
  });
}

// REPORTED_CASES 43: modules with 12 and then 8 heads in one process, in either order.
TEST(AttentionForms, OfTwoModulesWithOtherHeadsDoNotTouchEachOther) {
  for (const bool is_reversed : {false, true}) {
    run_ranks(4, [&](World& world) {
      manual_seed(5);
      std::vector<int64_t> counts{12, 8, 12};
      if (is_reversed) counts = {8, 12, 8};
      for (const int64_t heads : counts) {
        const Whole whole(heads, 10, 10, true);
        Tensors cut;
        for (const auto& t : whole.qkv) {
          cut.push_back(scatter_tensor(t.detach(), 0, world.mesh(), {Shard(2)}));
          cut.back().set_requires_grad(true);
        }
        const Tensor y = attend(cut, true);
        expect_equal(whole, y, cut, scatter_tensor(whole.weights, 0, world.mesh(), {Shard(2)}));
      }
    });
  }
}

// ---- views of the result

TEST(AttentionLayout, OfTheResultIsThatOfThePlainOp) {
  struct Call {
    std::vector<int64_t> sizes;
    bool is_causal = false;
    std::optional<Tensor> mask = std::nullopt;
    at::ScalarType dtype = at::kFloat;
    bool is_transposed = false;
  };
  const std::vector<Call> calls{
      {{2, 2, 9, 4}},
      {{2, 2, 9, 4}, true},
      {{2, 2, 9, 4}, false, torch::randn({9, 9})},
      {{2, 2, 9, 4}, false, torch::randn({1, 2, 9, 9}) > 0},
      {{2, 2, 9, 4}, false, torch::randn({2, 9, 9})},
      {{2, 9, 4}},
      {{2, 2, 9, 4}, true, std::nullopt, at::kDouble},
      {{2, 2, 9, 4}, true, std::nullopt, at::kBFloat16},
      {{2, 6, 9, 4}, false, std::nullopt, at::kFloat, true},
      {{2, 6, 9, 4}, true, std::nullopt, at::kDouble, true},
  };
  for (const int64_t dim : {-2, -3}) {
    run_ranks(3, [&](World& world) {
      for (const auto& call : calls) {
        Tensor whole = torch::randn(call.sizes).to(call.dtype);
        if (call.is_transposed) whole = whole.transpose(1, 2).contiguous().transpose(1, 2);
        const Tensor plain = attend({whole, whole, whole}, call.is_causal, call.mask);
        for (const auto form :
             {AttentionForm::Ring, AttentionForm::Balanced, AttentionForm::Auto}) {
          const AttentionFormGuard guard(form);
          const auto cut_along = [&](const Tensor& t, int64_t cut) {
            return scatter_tensor(t, 0, world.mesh(), {Shard(cut)});
          };
          const Tensor x = call.is_transposed
                               ? cut_along(whole.transpose(1, 2), -dim - 1).transpose(1, 2)
                               : cut_along(whole, dim + whole.dim());
          const Tensor y = attend({x, x, x}, call.is_causal, call.mask);
          EXPECT_EQ(y.strides(), plain.strides()) << whole.sizes() << " " << call.is_causal;
        }
      }
      // As modules make heads of features, and features of heads, by views alone.
      const Tensor rows = scatter_tensor(torch::randn({2, 9, 8}), 0, world.mesh(), {Shard(1)});
      const Tensor x = rows.view({2, 9, 2, 4}).transpose(1, 2);
      for (const auto form : {AttentionForm::Ring, AttentionForm::Balanced}) {
        const AttentionFormGuard guard(form);
        EXPECT_EQ(attend({x, x, x}, false).transpose(1, 2).view({2, 9, 8}).size(1), 9);
      }
    });
  }
}

}  // namespace
}  // namespace shard::testing
