// SPDX-License-Identifier: Apache-2.0
#include <shard/comm_counter.h>
#include <shard/error.h>
#include <shard/launch.h>
#include <shard/tensor.h>
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor x() { return torch::randn({2, 8, 6}); }
/// Makes the result depend non-linearly on what was viewed.
at::Tensor use(const at::Tensor& t) { return t * t; }

using View = std::function<at::Tensor(const at::Tensor&)>;
Sample viewed(const std::string& name, const at::Tensor& whole, int64_t dim, const View& view,
              Check check = {.ranks = {1, 2, 3}}) {
  return {name,
          {sharded(whole, dim)},
          [view](const Tensors& t) { return use(view(t[0])); },
          std::move(check)};
}

std::vector<Sample> cases() {
  torch::manual_seed(60);
  const auto last = [](std::vector<at::Tensor> parts) { return parts.back(); };
  return {
      viewed("permute", x(), 1,
             [](const at::Tensor& t) {
               return t.permute({2, 0, 1});
             }),
      viewed("permute_contiguous_view", torch::randn({2, 3, 8, 2}), 2,
             [](const at::Tensor& t) {
               return t.permute({0, 2, 3, 1}).contiguous().view({2, 8, 6});
             },
             {}),
      viewed("transpose", x(), 1, [](const at::Tensor& t) { return t.transpose(1, 2); }),
      viewed("transpose_with_negative_dims", x(), 2,
             [](const at::Tensor& t) { return t.transpose(-1, -3); }),
      viewed("matrix_transpose", torch::randn({8, 3}), 0,
             [](const at::Tensor& t) { return t.t(); }),
      viewed("movedim", x(), 1, [](const at::Tensor& t) { return t.movedim(1, 0); }),
      viewed("flatten_behind_the_shard", torch::randn({1, 2, 8, 3}), 2,
             [](const at::Tensor& t) { return t.flatten(2); }, {}),
      viewed("flatten_of_one_sample", torch::randn({1, 8, 3}), 1,
             [](const at::Tensor& t) { return t.flatten(); }),
      viewed("view_as_tokens", torch::randn({2, 4, 8, 3}), 2,
             [](const at::Tensor& t) {
               return t.view({2, 4, -1}).transpose(1, 2);
             }),
      viewed("split_heads", x(), 1,
             [](const at::Tensor& t) {
               return t.view({2, 8, 3, 2}).transpose(1, 2);
             }),
      viewed("merge_heads", torch::randn({2, 3, 8, 2}), 2,
             [](const at::Tensor& t) {
               return t.transpose(1, 2).reshape({2, 8, 6});
             }),
      viewed("unflatten_an_unsharded_dim", x(), 1,
             [](const at::Tensor& t) {
               return t.unflatten(2, {2, 3});
             }),
      viewed("reshape_before_the_shard", torch::randn({2, 3, 8}), 2,
             [](const at::Tensor& t) {
               return t.reshape({6, 8});
             }),
      viewed("view_with_extra_ones", x(), 1,
             [](const at::Tensor& t) {
               return t.view({1, 2, 1, 8, 6, 1});
             }),
      viewed("view_of_the_same_shape", x(), 1,
             [](const at::Tensor& t) {
               return t.view({2, 8, 6});
             }),
      viewed("squeeze", torch::randn({1, 8, 1}), 1,
             [](const at::Tensor& t) { return t.squeeze(); }),
      viewed("squeeze_of_a_dim", torch::randn({1, 8, 1}), 1,
             [](const at::Tensor& t) { return t.squeeze(0).squeeze(-1); }),
      viewed("squeeze_of_a_large_dim_does_nothing", torch::randn({1, 8, 1}), 1,
             [](const at::Tensor& t) { return t.squeeze(1); }),
      viewed("unsqueeze", x(), 1, [](const at::Tensor& t) { return t.unsqueeze(1).unsqueeze(-1); }),
      viewed("expand", torch::randn({1, 8, 1}), 1,
             [](const at::Tensor& t) {
               return t.expand({4, 2, 8, 3});
             }),
      viewed("expand_as", torch::randn({8, 1}), 0,
             [](const at::Tensor& t) {
               return t.expand({-1, 3});
             }),
      viewed("select_an_unsharded_index", x(), 1,
             [](const at::Tensor& t) { return t.select(2, -1); }),
      viewed("select_before_the_shard", x(), 1, [](const at::Tensor& t) { return t.select(0, 1); }),
      viewed("slice_of_the_sharded_dim", x(), 1,
             [](const at::Tensor& t) { return t.slice(1, 1, -1); }, {}),
      viewed("slice_of_few_rows", x(), 1, [](const at::Tensor& t) { return t.slice(1, 3, 4); }),
      viewed("slice_with_a_step", x(), 1, [](const at::Tensor& t) { return t.slice(1, 1, 8, 3); },
             {}),
      viewed("slice_with_a_step_of_the_unsharded_dim", x(), 1,
             [](const at::Tensor& t) { return t.slice(2, 0, 6, 2); }),
      viewed("slice_with_negative_ends", x(), 1,
             [](const at::Tensor& t) { return t.slice(1, -6, -2); }),
      viewed("slice_past_the_end", x(), 1, [](const at::Tensor& t) { return t.slice(1, 5, 100); }),
      viewed("slice_of_nothing", x(), 1, [](const at::Tensor& t) { return t.slice(1, 4, 4); }),
      viewed("narrow", x(), 1, [](const at::Tensor& t) { return t.narrow(1, 2, 4); }),
      viewed("indexing_with_slices", x(), 1,
             [](const at::Tensor& t) {
               using namespace torch::indexing;
               return t.index({Ellipsis, Slice(1, -1), Slice(None, 3)});
             }),
      viewed("slice_of_a_slice", x(), 1,
             [](const at::Tensor& t) { return t.slice(1, 1, 8).slice(1, 0, 7, 2); }),
      viewed("split_of_an_unsharded_dim", x(), 1,
             [=](const at::Tensor& t) { return last(t.split(4, 2)); }),
      viewed("chunk_of_an_unsharded_dim", x(), 1,
             [=](const at::Tensor& t) {
               const auto parts = t.chunk(3, 2);
               return parts[0] * parts[1] + parts[2];
             }),
      viewed("split_of_the_sharded_dim", x(), 1,
             [=](const at::Tensor& t) { return t.split(3, 1)[1]; }),
      viewed("chunk_of_the_sharded_dim", x(), 1,
             [=](const at::Tensor& t) { return t.chunk(2, 1)[1]; }),
      viewed("split_with_sizes_of_the_sharded_dim", x(), 1,
             [=](const at::Tensor& t) {
               return t.split_with_sizes({5, 1, 2}, 1)[0];
             }),
      viewed("split_with_sizes_of_another_dim", x(), 1,
             [=](const at::Tensor& t) {
               return t.split_with_sizes({t.size(2) - 1, 1}, 2)[0];
             }),
      viewed("all_parts_of_the_sharded_dim", x(), 1,
             [=](const at::Tensor& t) {
               const auto parts = t.split(4, 1);
               return parts[0] - 2 * parts[1];
             }),
      viewed("unbind_of_an_unsharded_dim", x(), 1,
             [=](const at::Tensor& t) { return t.unbind(2)[3]; }),
      viewed("unbind_before_the_shard", x(), 1,
             [=](const at::Tensor& t) { return last(t.unbind(0)); }),
      viewed("contiguous_of_a_transpose", x(), 1,
             [](const at::Tensor& t) { return t.transpose(0, 2).contiguous(); }),
      viewed("channels_last", torch::randn({2, 3, 8, 2}), 2,
             [](const at::Tensor& t) { return t.contiguous(c10::MemoryFormat::ChannelsLast); }),
      viewed("reshape_of_a_transpose", torch::randn({2, 8, 6}), 1,
             [](const at::Tensor& t) {
               return t.transpose(1, 2).reshape({12, 8});
             }),
      viewed("clone_and_detach", x(), 1,
             [](const at::Tensor& t) { return t.clone() + t.detach(); }),
      viewed("view_of_a_pending_sum", x(), 1,
             [](const at::Tensor& t) {
               return t.sum(1).view({3, 4}).transpose(0, 1);
             }),
      viewed("slice_of_a_pending_sum", x(), 1,
             [](const at::Tensor& t) { return t.sum(1).slice(1, 1, 4); }),
      viewed("diagonal_pieces_by_selects", x(), 1,
             [](const at::Tensor& t) { return t.select(2, 0) - t.select(2, 5).roll(0, 0); }),
  };
}

SHARD_SAMPLES(Views, with_traffic(cases(), {{"split_of_the_sharded_dim", 1.25},
                                            {"chunk_of_the_sharded_dim", 0.75},
                                            {"all_parts_of_the_sharded_dim", 0.75}}));

/// Chains of two views, cut or not where they look.
Sample random_sample(Random& r) {
  auto sizes = r.sizes(3, 1, 4);
  sizes[static_cast<size_t>(r.integer(0, 2))] *= 2;
  const int64_t dim = r.integer(0, 2);
  const int64_t first = r.integer(0, 4), second = r.integer(0, 4);
  const int64_t step = r.integer(1, 3);
  const auto view = [step](const at::Tensor& t, int64_t kind) {
    if (kind == 0) return t.reshape({t.size(0) * t.size(1), t.size(-1)});
    if (kind == 1) return t.transpose(0, -1);
    if (kind == 2) return t.slice(0, 0, t.size(0), step);
    if (kind == 3) return t.unsqueeze(1).expand({t.size(0), 3, t.size(1), t.size(-1)}).flatten(2);
    return t.select(1, t.size(1) / 2).unsqueeze(-1);
  };
  const std::string name = c10::str("views_", first, "_and_", second, "_of_", sizes[0], "x",
                                    sizes[1], "x", sizes[2], "_cut_along_", dim);
  const Function function = [=](const Tensors& t) {
    const at::Tensor y = view(t[0], first);
    return (y.dim() == 3 ? view(y, second) : y.t()).square();
  };
  const auto merges = [](int64_t kind) { return kind == 0 || kind == 3; };
  return {name,
          {sharded(r.tensor(sizes), dim)},
          function,
          Check{.traffic = merges(first) || merges(second) ? 3. : 0.}};
}
SHARD_RANDOM_SAMPLES(RandomViews, random_sample);

at::Tensor scattered(const at::Tensor& whole, World& world, int64_t dim, Partition partition = {}) {
  return scatter_tensor(whole, 0, world.mesh(), {Shard(dim)}, std::move(partition));
}

template <class Refused>
std::string text_of(const Refused& refused) {
  try {
    refused();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Views, ThatCutTheShardedDimMoveItsBoundariesToWholeRows) {
  run_ranks(2, [](World& world) {
    const auto whole = torch::randn({12, 2});
    const auto even = scattered(whole, world, 0, {6, 6});
    const CommCounter counter;
    EXPECT_EQ(ShardTensor(even.view({4, 3, 2})).spec().partition(), (Partition{2, 2}));
    EXPECT_EQ(counter.calls(), 0) << "no boundary moves";
    const auto uneven = scattered(whole, world, 0, {7, 5});
    const CommCounter moves;
    const auto y = uneven.view({4, 3, 2});
    EXPECT_EQ(moves.calls("exchange"), 1) << moves.table();
    EXPECT_EQ(ShardTensor(y).spec().partition(), (Partition{2, 2}));
    EXPECT_TRUE(torch::equal(ShardTensor(y).full(), whole.view({4, 3, 2})));
  });
}

TEST(Views, ThatMergeTheBatchIntoTheShardMoveItToTheBatch) {
  run_ranks(2, [](World& world) {
    const auto whole = torch::randn({2, 16, 4});
    const auto y = scattered(whole, world, 1).view({32, 4});
    EXPECT_EQ(ShardTensor(y).spec().partition(), (Partition{16, 16}));
    EXPECT_TRUE(torch::equal(ShardTensor(y).full(), whole.view({32, 4})));
  });
}

TEST(Views, ThatHadToMoveAreCopiesThatRefuseWritesOnEveryRank) {
  run_ranks(2, [](World& world) {
    auto t = scattered(torch::randn({2, 16}), world, 1);
    EXPECT_THROW(t.view({32}).add_(1), SpecMismatch);
    EXPECT_THROW(t.select(1, 3).add_(1), SpecMismatch);
    const auto row = t.select(1, 3);
    t.add_(1);
    EXPECT_THROW(row * 2, SpecMismatch) << "its base was modified";
  });
}

TEST(Views, OfTheShardedDimAreAliasesWithoutMessages) {
  run_ranks(3, [](World& world) {
    auto t = scattered(torch::zeros({2, 8, 6}), world, 1, {5, 0, 3});
    const CommCounter counter;
    t.slice(1, 1, 7).fill_(1);
    t.transpose(1, 2).select(1, 0).fill_(2);
    t.view({2, 8, 2, 3}).select(2, 1).fill_(3);
    EXPECT_EQ(counter.calls(), 0) << counter.table();
    auto want = torch::zeros({2, 8, 6});
    want.slice(1, 1, 7).fill_(1);
    want.select(2, 0).fill_(2);
    want.slice(2, 3, 6).fill_(3);
    EXPECT_TRUE(torch::equal(ShardTensor(t).full(), want));
  });
}

TEST(Views, InPlaceOnesUpdateTheSpec) {
  run_ranks(2, [](World& world) {
    auto t = scattered(torch::randn({8, 3}), world, 0);
    t.unsqueeze_(0);
    EXPECT_TRUE(ShardTensor(t).spec().placement().is_shard(1));
    t.squeeze_(0).t_();
    EXPECT_TRUE(ShardTensor(t).spec().placement().is_shard(1));
    EXPECT_EQ(t.sizes(), (at::IntArrayRef{3, 8}));
    t.transpose_(0, 1);
    EXPECT_EQ(ShardTensor(t).local().sizes(), (at::IntArrayRef{4, 3}));
  });
}

TEST(Views, OfOneIndexOfTheShardedDimSendThatRowOnly) {
  run_ranks(2, [](World& world) {
    const auto whole = torch::randn({2, 8});
    const auto t = scattered(whole, world, 1);
    const CommCounter counter;
    const auto row = t.select(1, 5);
    EXPECT_EQ(counter.calls("broadcast"), 1) << counter.table();
    EXPECT_EQ(counter.calls(), 1) << counter.table();
    EXPECT_TRUE(torch::equal(ShardTensor(row).full(), whole.select(1, 5)));
    EXPECT_THROW((void)t.select(1, 8), c10::Error);
  });
}

TEST(Views, WithoutRulesAreRefused) {
  run_ranks(2, [](World& world) {
    auto t = scattered(torch::randn({2, 8}), world, 1);
    EXPECT_THROW((void)t.as_strided({4}, {1}), Error);
    EXPECT_THROW((void)t.resize_({16}), Error);
  });
}

TEST(Views, ViewsOfAViewThatWasWrittenSeeTheWrite) {
  run_ranks(2, [](World& world) {
    auto t = scattered(torch::zeros({8, 2}), world, 0);
    const auto row = t.slice(0, 2, 6).select(1, 0);
    t.fill_(7);
    EXPECT_TRUE(ShardTensor(row).full().eq(7).all().item<bool>());
  });
}

/// The ops that copy what a view shows.
std::vector<Sample> copies() {
  torch::manual_seed(190);
  std::vector<Sample> cases;
  const auto add = [&](const std::string& name, int64_t dim, const Function& f) {
    cases.push_back({name, {sharded(torch::randn({2, 8, 6}, at::kDouble), dim)}, f});
  };
  add("view_copy", 1, [](const Tensors& t) { return at::view_copy(t[0], {2, -1}).square(); });
  add("expand_copy", 1, [](const Tensors& t) {
    return at::expand_copy(t[0].unsqueeze(0), {3, -1, -1, -1}).square();
  });
  add("permute_copy", 1, [](const Tensors& t) {
    return at::permute_copy(t[0], {2, 1, 0}).square();
  });
  add("transpose_copy", 1,
      [](const Tensors& t) { return at::transpose_copy(t[0], 1, 2).square(); });
  add("t_copy", 1, [](const Tensors& t) { return at::t_copy(t[0].select(0, 1)).square(); });
  add("squeeze_copy", 1, [](const Tensors& t) {
    return at::squeeze_copy(t[0].unsqueeze(1)).square() + at::squeeze_copy(t[0].unsqueeze(2), 2);
  });
  add("squeeze_copy_of_dims", 1, [](const Tensors& t) {
    return at::squeeze_copy(t[0].unsqueeze(1), at::IntArrayRef{1, 2}).square();
  });
  add("unsqueeze_copy", 1, [](const Tensors& t) { return at::unsqueeze_copy(t[0], 1).square(); });
  add("alias_copy", 1, [](const Tensors& t) {
    return at::alias_copy(t[0]).square() + at::detach_copy(t[0].detach());
  });
  add("split_with_sizes_copy", 1, [](const Tensors& t) {
    const int64_t n = t[0].size(1);
    return at::split_with_sizes_copy(t[0], {n - 3, 3}, 1)[1].square();
  });
  add("split_copy", 1, [](const Tensors& t) { return at::split_copy(t[0], 3, 1)[1].square(); });
  add("unbind_copy", 1, [](const Tensors& t) { return at::unbind_copy(t[0], 2)[1].square(); });
  add("slice_copy", 1, [](const Tensors& t) { return at::slice_copy(t[0], 1, 1, 7, 2).square(); });
  add("select_copy", 1, [](const Tensors& t) { return at::select_copy(t[0], 2, 1).square(); });
  add("narrow_copy", 1, [](const Tensors& t) { return at::narrow_copy(t[0], 1, 2, 3) * 2; });
  cases.push_back({"view_as_another_dtype",
                   {constant(torch::randn({6, 8, 4}, at::kDouble), 1)},
                   [](const Tensors& t) { return t[0].view(at::kLong).bitwise_and(255); },
                   {.both_precisions = false}});
  cases.push_back({"view_as_smaller_elements_along_the_cut_dim",
                   {constant(torch::randint(0, 99, {6, 8}, at::kLong), 1)},
                   [](const Tensors& t) { return t[0].view(at::kInt) + 1; },
                   {.both_precisions = false}});
  cases.push_back(
      {"view_as_complex_and_back",
       {sharded(torch::randn({6, 8, 2}, at::kDouble), 1)},
       [](const Tensors& t) { return at::view_as_real(at::view_as_complex(t[0]).square()); }});
  cases.push_back({"view_as_complex_of_cut_parts",
                   {sharded(torch::randn({4, 8, 2}, at::kDouble), 2)},
                   [](const Tensors& t) { return at::view_as_complex(t[0]).abs(); },
                   Check{.traffic = 2}});
  for (auto& sample : cases) {
    const bool has_gradient = sample.inputs[0].differentiable && sample.name != "narrow_copy";
    sample.check.gradients = sample.check.double_backward = has_gradient;  // LibTorch has none
    if (sample.name.starts_with("split")) sample.check.traffic = 4;
  }
  return cases;
}
SHARD_SAMPLES(ViewCopies, copies());

}  // namespace
}  // namespace shard::testing
