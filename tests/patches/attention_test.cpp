// SPDX-License-Identifier: Apache-2.0
// Attention over a cut sequence: what travels, what is allocated, what is refused, half precisions,
// and the modules of torch::nn, unmodified.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <shard/attention.h>
#include <shard/patch.h>
#include <shard/shard.h>
#include <torch/torch.h>

#include "support/rank_errors.h"
#include "support/sharded_check.h"

namespace shard::testing {
namespace {

namespace nn = torch::nn;
using at::Tensor;
using Tensors = std::vector<Tensor>;

Tensor attend(const Tensors& qkv, bool is_causal = false, const std::optional<Tensor>& mask = {}) {
  return at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], mask, 0, is_causal);
}

/// Leaves (1, 2, rows, width) cut along the rows.
Tensors cut_rows(World& world, int64_t rows, int64_t width = 8) {
  Tensors result;
  for (int i = 0; i < 3; ++i) {
    const Tensor whole = torch::randn({1, 2, rows, width});
    result.push_back(scatter_tensor(whole, 0, world.mesh(), {Shard(2)}).set_requires_grad(true));
  }
  return result;
}

class AttentionTravel : public ::testing::TestWithParam<bool> {};

TEST_P(AttentionTravel, IsKeysAndValuesOfAllOthersForwardAndTheirGradientsToo) {
  for (const int ranks : {2, 3, 4}) {
    run_ranks(ranks, [&](World& world) {
      const int64_t rows = 24;
      const auto qkv = cut_rows(world, rows);
      const int64_t block = 2 * 2 * 8 * rows / ranks * int64_t{sizeof(float)};
      const AttentionFormGuard guard(AttentionForm::Ring);
      const CommCounter forward;
      const Tensor y = attend(qkv, GetParam());
      EXPECT_EQ(forward.calls("exchange"), ranks - 1);
      EXPECT_EQ(forward.bytes(), (ranks - 1) * block);
      const CommCounter backward;
      torch::autograd::grad({y}, qkv, {torch::ones_like(y)});
      EXPECT_EQ(backward.calls("exchange"), ranks);
      EXPECT_EQ(backward.bytes(), 2 * (ranks - 1) * block);
    });
  }
}
INSTANTIATE_TEST_SUITE_P(Causal, AttentionTravel, ::testing::Bool());

TEST(Attention, OfABatchOrHeadsThatAreCutSendsNothing) {
  run_ranks(2, [](World& world) {
    for (const int64_t dim : {0, 1}) {
      const Tensor x = scatter_tensor(torch::randn({4, 2, 6, 8}), 0, world.mesh(), {Shard(dim)});
      const CommCounter counter;
      attend({x, x, x});
      EXPECT_EQ(counter.calls(), 0);
    }
  });
}

TEST(Attention, HoldsNeitherScoresNorAllKeys) {
  run_ranks(4, [](World& world) {
    const int64_t rows = 4096;
    const int64_t piece = 2 * rows / 4 * 64 * int64_t{sizeof(float)};  // of one of q, k and v
    const auto qkv = cut_rows(world, rows, 64);
    auto& account = MemoryAccount::current();
    account.reset_peak();
    const int64_t before = account.live();
    const Tensor y = attend(qkv);
    torch::autograd::grad({y}, qkv, {torch::ones_like(y)});
    EXPECT_LT(account.largest(), 4 * piece);  // all keys; LibTorch's kernel takes 2 for itself
    EXPECT_LT(account.peak() - before, 24 * piece);  // all scores: 64
  });
}

TEST(Attention, OfHalfPrecisionsAccumulatesInFloat) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    run_ranks(3, [&](World& world) {
      manual_seed(4);
      Tensors whole;
      Tensors cut;
      for (int i = 0; i < 3; ++i) {
        whole.push_back(torch::randn({2, 2, 13, 8}, dtype));
        cut.push_back(scatter_tensor(whole.back(), 0, world.mesh(), {Shard(2)}, {7, 1, 5}));
        cut.back().set_requires_grad(true);
        whole.back() = whole.back().to(at::kDouble).set_requires_grad(true);
      }
      const Tensor mask = torch::randn({13, 13});
      const Tensor want = attend(whole, false, mask.to(at::kDouble));
      const Tensor got = attend(cut, false, mask);
      EXPECT_EQ(got.scalar_type(), dtype);
      EXPECT_LE(relative_error(ShardTensor(got.detach()).full().to(at::kDouble), want), 2e-2);
      const auto want_gradients = torch::autograd::grad({want.sum()}, whole);
      const auto got_gradients = torch::autograd::grad({got.sum()}, cut);
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(got_gradients[i].scalar_type(), dtype);
        const Tensor gradient = ShardTensor(got_gradients[i]).full().to(at::kDouble);
        EXPECT_LE(relative_error(gradient, want_gradients[i]), 4e-2) << dtype << " " << i;
      }
    });
  }
}

TEST(Attention, UnderAutocastIsThatOfHalfPrecision) {
  run_ranks(2, [](World& world) {
    const auto qkv = cut_rows(world, 6);
    const bool was_enabled = at::autocast::is_autocast_enabled(at::kCPU);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const Tensor y = attend(qkv);
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, was_enabled);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(spec_of(y)->placement().is_shard(2));
  });
}

// The numbers of plain LibTorch with the same generator, whatever is cut, in both directions.
TEST(Attention, DropsWhatOneDeviceDrops) {
  struct Call {
    std::vector<int64_t> q, k;
    int64_t q_cut, k_cut;
    bool is_causal = false;
    double p = 0.4;
  };
  const std::vector<Call> calls{
      {{2, 4, 9, 4}, {2, 4, 7, 4}, 2, 2},           {{2, 4, 9, 4}, {2, 4, 9, 4}, 2, 2, true},
      {{2, 4, 9, 4}, {2, 4, 7, 4}, 1, 1},           {{5, 9, 4}, {5, 7, 4}, 0, 0},
      {{5, 9, 4}, {5, 7, 4}, 1, -1, true},          {{5, 9, 4}, {5, 7, 4}, -1, 1},
      {{2, 4, 9, 4}, {2, 4, 7, 4}, 2, 2, false, 1}, {{2, 1, 3, 5, 4}, {2, 1, 3, 5, 4}, 3, 3, true},
  };
  for (const int ranks : {1, 2, 3, 4}) {
    for (const auto form : {AttentionForm::Ring, AttentionForm::Auto}) {
      run_ranks(ranks, [&](World& world) {
        const AttentionFormGuard guard(form);
        for (const auto& call : calls) {
          SCOPED_TRACE(c10::str(ranks, " ranks, query ", call.q, " cut along ", call.q_cut));
          manual_seed(12);
          Tensors whole;
          for (const auto& sizes : {call.q, call.k, call.k}) {
            whole.push_back(torch::randn(sizes, at::dtype(at::kDouble).requires_grad(true)));
          }
          Tensors cut;
          for (size_t i = 0; i < 3; ++i) {
            const int64_t dim = i == 0 ? call.q_cut : call.k_cut;
            const Placement placement = dim < 0 ? Placement(Replicate()) : Placement(Shard(dim));
            cut.push_back(scatter_tensor(whole[i].detach(), 0, world.mesh(), {placement}));
            cut.back().set_requires_grad(true);
          }
          const auto run = [&](const Tensors& qkv) {
            manual_seed(13);
            const Tensor y = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, call.p,
                                                              call.is_causal);
            return std::pair{y, torch::rand({3})};  // where the generator stands afterwards
          };
          const auto [want, want_next] = run(whole);
          const auto [got, got_next] = run(cut);
          EXPECT_TRUE(torch::equal(got_next, want_next));
          EXPECT_LE(relative_error(ShardTensor(got.detach()).full(), want), 1e-12);
          const auto want_gradients = torch::autograd::grad({want.pow(2).sum()}, whole);
          const auto got_gradients = torch::autograd::grad({got.pow(2).sum()}, cut);
          for (size_t i = 0; i < 3; ++i) {
            const Tensor gradient = ShardTensor(got_gradients[i]).full();
            EXPECT_LE((gradient - want_gradients[i]).abs().max().item<double>(), 1e-11) << i;
          }
        }
      });
    }
  }
}

// REPORTED_CASES 42: merging blocks at logits of +-200 stays finite, and the error of bf16 does not
// grow with the ring.
TEST(Attention, OfEightBlocksIsAsExactAsOfOne) {
  const auto error_over = [](int ranks) {
    double error = 0;
    run_ranks(ranks, [&](World& world) {
      manual_seed(4);
      const AttentionFormGuard guard(AttentionForm::Ring);
      Tensors whole;
      Tensors cut;
      for (int i = 0; i < 3; ++i) {
        whole.push_back(torch::randn({1, 2, 256, 16}).to(at::kBFloat16));
        cut.push_back(scatter_tensor(whole.back(), 0, world.mesh(), {Shard(2)}));
        whole.back() = whole.back().to(at::kDouble);
      }
      const Tensor y = ShardTensor(attend(cut)).full().to(at::kDouble);
      if (world.is_root()) error = (y - attend(whole)).pow(2).mean().sqrt().item<double>();
    });
    return error;
  };
  EXPECT_LE(error_over(8), 2 * error_over(1));
}

TEST(Attention, OfLogitsUpToTwoHundredIsFiniteOverEightBlocks) {
  run_ranks(8, [](World& world) {
    manual_seed(4);
    const AttentionFormGuard guard(AttentionForm::Ring);
    Tensors whole;
    Tensors cut;
    for (int i = 0; i < 3; ++i) {
      const Tensor signs = torch::randn({1, 2, 40, 4}).sign();
      whole.push_back(i < 2 ? signs * 10 : torch::randn({1, 2, 40, 4}));  // 4 * 100 / 2 = 200
      cut.push_back(scatter_tensor(whole.back(), 0, world.mesh(), {Shard(2)}));
      cut.back().set_requires_grad(true);
      whole.back() = whole.back().to(at::kDouble).set_requires_grad(true);
    }
    for (const bool is_causal : {false, true}) {
      const Tensor want = attend(whole, is_causal);
      const Tensor got = attend(cut, is_causal);
      EXPECT_LE(relative_error(ShardTensor(got.detach()).full().to(at::kDouble), want), 1e-5);
      for (const Tensor& g : torch::autograd::grad({got.sum()}, cut)) {
        EXPECT_TRUE(ShardTensor(g).full().isfinite().all().item<bool>());
      }
    }
  });
}

// On a mesh of two dims some ranks may have no heads of the queries, but some of the keys.
TEST(Attention, OfGroupedHeadsOfWhichSomeRanksHaveNone) {
  struct Cut {
    int64_t heads_of_keys;
    Placements q, k;
    std::vector<Partition> of_q, of_k;
  };
  const Placements whole{Replicate(), Replicate()};
  const std::vector<Cut> cuts{
      {1, {Shard(1), Shard(0)}, whole, {{6, 0}, {1, 2}}, {}},
      {1, {Shard(1), Replicate()}, {Replicate(), Shard(1)}, {{0, 6}, {}}, {{}, {1, 0}}},
      {1, {Shard(1), Shard(1)}, {Replicate(), Shard(2)}, {{0, 0, 1, 5}, {}}, {{}, {3, 4}}},
      {2, {Shard(1), Shard(0)}, whole, {{0, 6}, {3, 0}}, {}},
      {2, {Shard(1), Shard(2)}, {Replicate(), Shard(1)}, {{6, 0}, {1, 4}}, {{}, {0, 2}}},
  };
  run_ranks(4, [&](World& world) {
    const auto mesh = world.mesh({{"a", 2}, {"b", 2}});
    const auto attend_grouped = [](const Tensors& t) {
      return at::scaled_dot_product_attention(t[0], t[1], t[2], {}, 0, true, {}, true);
    };
    for (size_t i = 0; i < cuts.size(); ++i) {
      SCOPED_TRACE(i);
      manual_seed(7);
      const auto& c = cuts[i];
      Tensors all, cut;
      for (int t = 0; t < 3; ++t) {
        const bool is_q = t == 0;
        all.push_back(torch::randn({3, is_q ? 6 : c.heads_of_keys, is_q ? 5 : 7, 4},
                                   at::dtype(at::kDouble).requires_grad(true)));
        cut.push_back(
            scatter_tensor(all.back().detach(), 0, mesh, is_q ? c.q : c.k, is_q ? c.of_q : c.of_k)
                .set_requires_grad(true));
      }
      const Tensor want = attend_grouped(all);
      const Tensor got = attend_grouped(cut);
      EXPECT_LE(relative_error(ShardTensor(got.detach()).full(), want), 1e-12);
      const auto want_gradients = torch::autograd::grad({want.pow(2).sum()}, all);
      const auto got_gradients = torch::autograd::grad({got.pow(2).sum()}, cut);
      for (size_t t = 0; t < 3; ++t) {
        EXPECT_LE(relative_error(ShardTensor(got_gradients[t]).full(), want_gradients[t]), 1e-11);
      }
    }
  });
}

// LibTorch takes another kernel for rows that are not dense, which can be differentiated twice; the
// parts of ranks may be dense where the whole is not.
TEST(Attention, OfRowsThatAreNotDenseIsDifferentiatedTwice) {
  run_ranks(3, [](World& world) {
    manual_seed(8);
    Tensors whole, cut;
    for (const auto& [dim, partition] :
         std::vector<std::pair<int64_t, Partition>>{{1, {0, 0, 1}}, {2, {3, 2, 2}}, {-1, {}}}) {
      Tensor t = torch::randn({1, 1, 7, 2}, at::kDouble);
      if (dim == 2) t = t.transpose(1, 3).contiguous().transpose(1, 3);
      whole.push_back(t.clone().set_requires_grad(true));
      cut.push_back(dim < 0 ? t.clone()
                            : scatter_tensor(t, 0, world.mesh(), {Shard(dim)}, partition));
      cut.back().set_requires_grad(true);
    }
    const auto penalty = [](const Tensors& qkv) {
      Tensor sum = torch::zeros({}, at::kDouble);
      for (const Tensor& g :
           torch::autograd::grad({attend(qkv, true).pow(2).sum()}, qkv, {}, true, true)) {
        sum = sum + g.pow(2).sum();
      }
      return torch::autograd::grad({sum}, qkv);
    };
    const auto want = penalty(whole);
    const auto got = penalty(cut);
    for (size_t i = 0; i < 3; ++i) {
      const Tensor gradient = is_shard_tensor(got[i]) ? ShardTensor(got[i]).full() : got[i];
      EXPECT_LE(relative_error(gradient, want[i]), 1e-10) << i;
    }
  });
}

// ---- refusals

struct Refused {
  Tensor k;
  std::optional<Tensor> mask = std::nullopt;
  bool is_causal = false;
  bool has_grouped_heads = false;
};

template <class E>
void expect_refused(const char* text, const Refused& r) {
  expect_same_error<E>(2, text, [r](const DeviceMesh& mesh) {
    const Tensor q = scatter_tensor(torch::randn({1, 2, 5, 8}), 0, mesh, {Shard(2)});
    return [=] {
      at::scaled_dot_product_attention(q, r.k, r.k, r.mask, 0, r.is_causal, {},
                                       r.has_grouped_heads);
    };
  });
}

TEST(Attention, RefusesWhatItCannotDoOnAllRanksAlike) {
  const Tensor k = torch::randn({1, 2, 5, 8});
  expect_refused<SpecMismatch>("one dtype", {.k = k.to(at::kDouble)});
  expect_refused<SpecMismatch>("(..., S, E)", {.k = torch::ones({5, 3})});
  expect_refused<SpecMismatch>("as many heads",
                               {.k = torch::ones({1, 3, 5, 8}), .has_grouped_heads = true});
  expect_refused<SpecMismatch>("is_causal and a mask",
                               {.k = k, .mask = torch::ones({5, 5}), .is_causal = true});
  expect_refused<SpecMismatch>("expands to [1, 2, 5, 5]", {.k = k, .mask = torch::ones({4, 5})});
  expect_refused<SpecMismatch>("a mask of Long", {.k = k, .mask = torch::ones({5, 5}, at::kLong)});
}

// ---- modules

struct AttentionOfItself : nn::Module {
  AttentionOfItself(const nn::MultiheadAttentionOptions& options, Tensor mask, bool has_weights)
      : mask(std::move(mask)), has_weights(has_weights) {
    attention = register_module("attention", nn::MultiheadAttention(options));
  }
  Tensor forward(const Tensor& x) {
    const auto [y, weights] = attention->forward(x, x, x, {}, has_weights, mask);
    return has_weights ? at::cat({y.transpose(0, 1), weights}, 2) : y;
  }
  nn::MultiheadAttention attention{nullptr};
  Tensor mask;
  bool has_weights;
};

struct AttentionOfAnother : nn::Module {
  explicit AttentionOfAnother(const nn::MultiheadAttentionOptions& options) {
    attention = register_module("attention", nn::MultiheadAttention(options));
  }
  Tensor forward(const Tensor& x, const Tensor& memory) {
    return std::get<0>(attention->forward(x, memory, memory));
  }
  nn::MultiheadAttention attention{nullptr};
};

/// `check(world, splits)` on 1 to 4 ranks, even, uneven, one-row and empty shards of `n` rows.
void with_all_splits(int64_t n, const std::function<void(World&, const Partition&)>& check) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const auto& [name, partition] : splits(n, ranks)) {
      SCOPED_TRACE(c10::str(ranks, " ranks, ", name));
      run_ranks(ranks, [&, partition = partition](World& world) {
        manual_seed(5);
        check(world, partition);
      });
    }
  }
}

Tensor cut(World& world, const Tensor& whole, const Partition& partition) {
  return scatter_tensor(whole, 0, world.mesh(), {Shard(0)}, partition).set_requires_grad(true);
}

TEST(AttentionModules, OfACutSequenceEqualPlainLibTorch) {
  using Options = nn::MultiheadAttentionOptions;
  const Tensor causal = torch::ones({7, 7}, at::kBool).triu(1);
  const Tensor added = torch::randn({7, 7}, at::kDouble);
  with_all_splits(7, [&](World& world, const Partition& partition) {
    for (const auto& mask : {Tensor(), causal, added}) {
      for (const bool has_weights : {true, false}) {
        auto module = std::make_shared<AttentionOfItself>(Options(8, 2), mask, has_weights);
        module->to(at::kDouble);
        const Tensor x = cut(world, torch::randn({7, 3, 8}, at::kDouble), partition);
        const auto report = numerical_shard_tensor_check(world.mesh(), module, {x});
        EXPECT_TRUE(report.ok()) << report.text();
      }
    }
  });
}

TEST(AttentionModules, OfTwoCutSequencesEqualPlainLibTorch) {
  with_all_splits(7, [&](World& world, const Partition& partition) {
    auto module = std::make_shared<AttentionOfAnother>(
        nn::MultiheadAttentionOptions(8, 2).add_bias_kv(true).add_zero_attn(true));
    module->to(at::kDouble);
    const Tensor x = cut(world, torch::randn({7, 3, 8}, at::kDouble), partition);
    const Tensor memory = cut(world, torch::randn({5, 3, 8}, at::kDouble), {});
    const auto report = numerical_shard_tensor_check<2>(world.mesh(), module, {x, memory});
    EXPECT_TRUE(report.ok()) << report.text();
  });
}

TEST(AttentionModules, TransformerLayersOfACutSequenceEqualPlainLibTorch) {
  with_all_splits(7, [&](World& world, const Partition& partition) {
    nn::TransformerEncoderLayer encoder(
        nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(12).dropout(0));
    nn::TransformerDecoderLayer decoder(
        nn::TransformerDecoderLayerOptions(8, 2).dim_feedforward(12).dropout(0));
    encoder->to(at::kDouble);
    decoder->to(at::kDouble);
    const Tensor x = cut(world, torch::randn({7, 3, 8}, at::kDouble), partition);
    const Tensor memory = cut(world, torch::randn({5, 3, 8}, at::kDouble), {});
    auto report = numerical_shard_tensor_check(world.mesh(), encoder, {x});
    report.add(numerical_shard_tensor_check<2>(world.mesh(), decoder, {x, memory}));
    EXPECT_TRUE(report.ok()) << report.text();
  });
}

}  // namespace
}  // namespace shard::testing
