// SPDX-License-Identifier: Apache-2.0
#include <shard/comm_counter.h>
#include <shard/launch.h>
#include <shard/memory.h>
#include <shard/tensor.h>
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <limits>

namespace shard::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

const Check kNumbers{.gradients = false, .double_backward = false, .traffic = 3};

Tensor d(const std::vector<int64_t>& sizes) { return torch::randn(sizes, at::kDouble); }
Tensor few(const std::vector<int64_t>& sizes) {
  return torch::randint(-2, 3, sizes).to(at::kDouble);
}
/// NaNs, infinities, and zeros of both signs.
Tensor special(const Tensor& x) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  return at::where(x > 0.8, nan, at::where(x.abs() < 0.3, x * 0, 1 / (x * (x > 0)))).to(x.dtype());
}

Function values_of(int64_t dim, bool descending = false) {
  return [=](const Tensors& t) {
    const Tensor sorted = std::get<0>(t[0].sort(/*stable=*/true, dim, descending));
    return sorted.square() * at::cumsum(at::ones_like(sorted), dim);
  };
}
Function indices_of(int64_t dim, bool descending = false) {
  return [=](const Tensors& t) {
    return std::get<1>(t[0].sort(/*stable=*/true, dim, descending)).to(at::kDouble);
  };
}

// ---- where there is another dim

std::vector<Sample> cut_elsewhere_samples() {
  torch::manual_seed(810);
  const auto of = [](const std::string& name, int64_t dim,
                     const std::function<Tensor(const Tensor&)>& f) {
    return Sample{name, {sharded(d({2, 8, 6}), dim)}, [f](const Tensors& t) { return f(t[0]); }};
  };
  const auto samples = std::vector<Sample>{
      of("sort", 1, [](const Tensor& t) { return std::get<0>(t.sort(1)).cumsum(1).square(); }),
      of("sort_of_a_view", 1,
         [](const Tensor& t) { return std::get<0>(t.transpose(0, 2).sort(1)).square(); }),
      of("sort_indices", 1, [](const Tensor& t) { return std::get<1>(t.sort(1, true)); }),
      of("argsort", 1, [](const Tensor& t) { return at::argsort(t, int64_t{1}, false); }),
      of("topk", 1, [](const Tensor& t) { return std::get<0>(t.topk(3, 1)).square(); }),
      of("topk_of_another_dim", 1, [](const Tensor& t) { return std::get<0>(t.topk(3, 2)); }),
      of("median", 1, [](const Tensor& t) { return std::get<0>(t.median(1)).square(); }),
      of("median_keepdim", 1, [](const Tensor& t) { return std::get<0>(t.median(1, true)); }),
      of("mode_of_integers", 1,
         [](const Tensor& t) { return std::get<0>((t * 2).round().to(at::kLong).mode(1)); }),
      of("kthvalue_of_another_dim", 2,
         [](const Tensor& t) { return std::get<0>(t.kthvalue(3, 1)).square(); }),
      of("kthvalue", 1, [](const Tensor& t) { return std::get<0>(t.kthvalue(3, 1)).square(); }),
  };
  return with_traffic(samples, {{"sort", 1.5},
                                {"sort_of_a_view", 1.5},
                                {"sort_indices", 0.75},
                                {"argsort", 0.75},
                                {"topk", 1.5},
                                {"median", 1.5},
                                {"median_keepdim", 1.5},
                                {"mode_of_integers", 0.75},
                                {"kthvalue", 1.5}});
}
SHARD_SAMPLES(Sort, cut_elsewhere_samples());

// ---- lines

std::vector<Sample> line_samples() {
  torch::manual_seed(811);
  const Check moved{.traffic = 4};
  const auto strided = [](const Tensors& t) {
    return std::get<0>(t[0].slice(0, 1, 1000, 3).sort()).square();
  };
  return {
      {"values", {sharded(d({37}), 0)}, values_of(0), moved},
      {"values_descending", {sharded(d({37}), 0)}, values_of(-1, true), moved},
      {"values_of_a_column", {sharded(d({23, 1}), 0)}, values_of(0), moved},
      {"values_between_ones", {sharded(d({1, 23, 1}), 1)}, values_of(1), moved},
      {"ties", {sharded(few({41}), 0)}, values_of(0), moved},
      {"equal_values", {sharded(torch::ones({19}, at::kDouble), 0)}, values_of(0, true), moved},
      {"one_value", {sharded(d({1}), 0)}, values_of(0), moved},
      {"ordered_values", {sharded(torch::arange(40, at::kDouble), 0)}, values_of(0, true), moved},
      {"strided", {sharded(d({67}), 0)}, strided, moved},
      {"indices", {sharded(d({37}), 0)}, indices_of(0), kNumbers},
      {"indices_of_ties", {sharded(few({41}), 0)}, indices_of(0), kNumbers},
      {"indices_of_ties_descending", {sharded(few({41, 1}), 0)}, indices_of(0, true), kNumbers},
      {"indices_of_special_values", {sharded(special(d({53})), 0)}, indices_of(0), kNumbers},
      {"indices_of_special_values_descending",
       {sharded(special(d({53})), 0)},
       indices_of(0, true),
       kNumbers},
      {"special_values",
       {sharded(special(d({53})), 0)},
       [](const Tensors& t) {
         const Tensor sorted = std::get<0>(t[0].sort(/*stable=*/true, 0, false));
         return at::stack({sorted.nan_to_num(1e6, 1e5, -1e5), sorted.signbit().to(at::kDouble)});
       },
       kNumbers},
      {"msort",
       {sharded(d({31}), 0)},
       [](const Tensors& t) { return at::msort(t[0]).square().cumsum(0); },
       moved},
      {"argsort",
       {sharded(few({31}), 0)},
       [](const Tensors& t) { return at::argsort(t[0], true, 0, false).to(at::kDouble); },
       kNumbers},
  };
}
SHARD_SAMPLES(SortOfLine, line_samples());

std::vector<Sample> types() {
  torch::manual_seed(812);
  std::vector<Sample> all;
  Check once = kNumbers;
  once.both_precisions = false;
  for (const auto type : {at::kBool, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong,
                          at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    const Tensor x = type == at::kBool ? d({43}) > 0 : (d({43}) * 20).abs().to(type);
    const Tensor mixed = type == at::kByte || type == at::kBool ? x : x - 15;
    for (const bool descending : {false, true}) {
      const std::string name = std::string(c10::toString(type)) + (descending ? "_descending" : "");
      all.push_back({name, {constant(mixed, 0)}, indices_of(0, descending), once});
    }
  }
  const auto largest = std::numeric_limits<int64_t>::max();
  all.push_back({"extreme_integers",
                 {constant(torch::tensor({largest, -largest - 1, int64_t{3}, largest, -largest,
                                          largest - 1, int64_t{-1}}),
                           0)},
                 indices_of(0),
                 once});
  return all;
}
SHARD_SAMPLES(SortTypes, types());

std::vector<Sample> largest() {
  torch::manual_seed(814);
  const auto topk = [](int64_t k, bool largest) {
    return [=](const Tensors& t) {
      const auto [values, indices] = t[0].topk(k, 0, largest);
      return values.square() + indices;
    };
  };
  const Check some{.traffic = 4};
  return {
      {"two", {sharded(d({31}), 0)}, topk(2, true), some},
      {"many", {sharded(d({31}), 0)}, topk(19, true), some},
      {"smallest", {sharded(d({31, 1}), 0)}, topk(5, false), some},
      {"half",
       {sharded(d({31}), 0)},
       [](const Tensors& t) { return std::get<0>(t[0].topk(t[0].size(0) / 2)).square(); },
       some},
      {"of_ties",
       {sharded(few({31}), 0)},
       [](const Tensors& t) { return std::get<0>(t[0].topk(9)); },
       kNumbers},
      {"of_special_values",
       {sharded(special(d({53})), 0)},
       [](const Tensors& t) {
         const Tensor values = std::get<0>(t[0].topk(t[0].size(0) * 2 / 3));
         return values.nan_to_num(3e6, 2e6, -1e6).clamp(-1e6, 3e6);
       },
       kNumbers},
      {"none", {sharded(d({31}), 0)}, topk(0, true), some},
      {"quantile",
       {sharded(d({31}), 0)},
       [](const Tensors& t) { return t[0].quantile(0.3).square(); },
       some},
      {"nanquantile",
       {sharded(d({31}), 0)},
       [](const Tensors& t) {
         return t[0].nanquantile(torch::tensor({0.1, 0.5, 0.9}, t[0].options())).square();
       },
       some},
  };
}
SHARD_SAMPLES(FirstOfLine, largest());

// ---- one element of a line

std::vector<Sample> selections() {
  torch::manual_seed(813);
  const auto kthvalue = [](int64_t k, bool keepdim) {
    return [=](const Tensors& t) {
      const auto [value, index] = t[0].kthvalue(k, 0, keepdim);
      return value.square() + index;
    };
  };
  const auto median = [](const Tensors& t) {
    const auto [value, index] = t[0].median(0);
    return value.square() + index;
  };
  const auto nanmedian = [](const Tensors& t) { return std::get<0>(t[0].nanmedian(0)).square(); };
  const Check searched{.traffic = 0.5};  // which does not grow with the line
  const Tensor nans = at::where(d({29}) > 1, std::numeric_limits<double>::quiet_NaN(), d({29}));
  return {
      {"kthvalue", {sharded(d({29}), 0)}, kthvalue(11, false), searched},
      {"smallest", {sharded(d({29}), 0)}, kthvalue(1, true), searched},
      {"kthvalue_of_a_column", {sharded(d({29, 1}), 0)}, kthvalue(17, false), searched},
      {"kthvalue_of_a_kept_column", {sharded(d({29, 1}), 0)}, kthvalue(17, true), searched},
      {"median", {sharded(d({29}), 0)}, median, searched},
      {"median_of_an_even_number", {sharded(d({24}), 0)}, median, searched},
      {"nanmedian", {sharded(d({29}), 0)}, nanmedian, searched},
      {"nanmedian_among_nans", {sharded(nans, 0)}, nanmedian, kNumbers},
      {"first_of_nans",
       {sharded(nans, 0)},
       [](const Tensors& t) { return std::get<1>(t[0].median(0)).to(at::kDouble); },
       kNumbers},
      {"median_of_ties",
       {sharded(few({24}), 0)},
       [](const Tensors& t) { return std::get<0>(t[0].median(0)); },
       kNumbers},
      {"mode",
       {sharded(few({31}), 0)},
       [](const Tensors& t) {
         const auto [value, index] = t[0].slice(0, 0, 15).mode(0);
         return value.square() + index;
       },
       Check{.traffic = 4}},
      {"mode_of_different_values",
       {sharded(d({13}), 0)},
       [](const Tensors& t) { return std::get<0>(t[0].mode(0, true)).square(); },
       Check{.traffic = 4}},
      {"mode_of_equal_values",
       {sharded(torch::ones({29, 1}, at::kDouble), 0)},
       [](const Tensors& t) { return std::get<0>(t[0].mode(0)); },
       kNumbers},
      {"mode_of_integers",
       {constant(torch::randint(0, 5, {43}), 0)},
       [](const Tensors& t) { return std::get<0>(t[0].mode()).to(at::kDouble); },
       kNumbers},
      {"kthvalue_of_integers",
       {constant(torch::randint(-9, 9, {43}), 0)},
       [](const Tensors& t) { return std::get<0>(t[0].kthvalue(20)).to(at::kDouble); },
       kNumbers},
  };
}
SHARD_SAMPLES(SelectionFromLine, selections());

// ---- any

Sample random_sample(Random& r) {
  const bool is_line = r.integer(0, 1) == 0;
  auto sizes = r.sizes(r.integer(1, 4), 1, 9);
  const auto last = static_cast<int64_t>(sizes.size()) - 1;
  const int64_t along = r.integer(0, last);
  if (is_line) {
    const int64_t length = r.integer(1, 40);
    sizes.assign(sizes.size(), 1);
    sizes[static_cast<size_t>(along)] = length;
  }
  const bool is_coarse = r.integer(0, 1) == 0;
  const bool descending = r.integer(0, 1) == 0;
  const Tensor x = r.tensor(sizes);
  const int64_t cut = r.integer(0, 2) > 0 ? along : r.integer(0, last);
  Check check;
  check.traffic = 100;
  check.holds_whole = "they are a few values";
  const bool indices = r.integer(0, 1) == 0;
  return {"random",
          {sharded(is_coarse ? x.round() : x, cut)},
          indices ? indices_of(along, descending) : values_of(along, descending),
          check};
}
SHARD_RANDOM_SAMPLES(RandomSort, random_sample);

// ---- costs

TEST(Sort, TheShardMovesToAnotherDimInOneAllToAll) {
  run_ranks(2, [](World& world) {
    const auto t = scatter_tensor(torch::randn({8, 6}), 0, world.mesh(), {Shard(0)});
    const CommCounter counter;
    EXPECT_TRUE(ShardTensor(std::get<0>(t.sort(0))).spec().placement().is_shard(1));
    EXPECT_EQ(counter.calls("all_to_all_v"), 1) << counter.table();
    EXPECT_EQ(counter.calls(), 1) << counter.table();
  });
}

Tensor over_four(const Tensor& whole, World& world) {
  return scatter_tensor(whole, 0, world.mesh(), {Shard(0)});
}
Tensor over_the_inner_two(const Tensor& whole, World& world) {
  const auto mesh = world.mesh({{"outer", 2}, {"inner", 2}});
  return scatter_tensor(whole, 0, mesh, {Replicate(), Shard(0)});
}

/// On four ranks no allocation and no message is as large as a line of `n` elements.
void expect_shares(const Tensor& whole, const std::function<void(const Tensor&)>& use,
                   Tensor (*cut)(const Tensor&, World&) = over_four) {
  const int64_t n = whole.numel();
  run_ranks(4, [&](World& world) {
    const Tensor line = cut(whole, world);
    auto& account = MemoryAccount::current();
    account.reset_peak();
    const CommCounter counter;
    use(line);
    EXPECT_LE(account.largest(), n * 8 / 2);
    EXPECT_LT(counter.bytes("all_gather_v"), n) << counter.table();
    EXPECT_LT(counter.bytes("all_reduce"), 4 * n) << counter.table();
  });
}

TEST(SortOfLine, IsCutLikeTheLineAndHeldByNobody) {
  constexpr int64_t n = 10000;
  for (const Tensor& whole : {torch::randn({n}), torch::ones({n}), torch::arange(n, at::kLong)}) {
    expect_shares(whole, [](const Tensor& line) {
      const auto [values, indices] = line.sort(0, /*descending=*/true);
      EXPECT_EQ(ShardTensor(values).spec(), ShardTensor(line).spec());
      EXPECT_EQ(ShardTensor(indices).local().numel(), n / 4);
    });
  }
}

TEST(SortOfLine, FindsItsPiecesInAFewSmallSums) {
  for (const Tensor& whole : {torch::randn({10000}, at::kDouble), torch::ones({10000})}) {
    expect_shares(whole, [](const Tensor& line) {
      const CommCounter counter;
      line.sort();
      EXPECT_LE(counter.calls("all_reduce"), 17) << counter.table();
      EXPECT_EQ(counter.calls("all_gather_v"), 1) << counter.table();
      EXPECT_EQ(counter.calls("all_to_all_v"), 2) << counter.table();
    });
  }
}

TEST(SortOfLine, HasGradientsThatNobodyHolds) {
  for (const auto& cut : {over_four, over_the_inner_two}) {
    expect_shares(
        torch::randn({10000}),
        [](const Tensor& line) {
          const Tensor x = line.detach().requires_grad_();
          const Tensor y = std::get<0>(x.sort()) * std::get<0>(x.sort(0, /*descending=*/true));
          const Tensor loss = (y * y).sum() + std::get<0>(x.topk(100)).square().sum();
          const Tensor gradient = torch::autograd::grad({loss}, {x}, {}, true, true)[0];
          gradient.square().sum().backward();
          EXPECT_EQ(ShardTensor(x.grad()).spec(), ShardTensor(line).spec());
        },
        cut);
  }
}

TEST(FirstOfLine, AreAllThatMoves) {
  expect_shares(torch::randn({10000}), [](const Tensor& line) {
    const CommCounter counter;
    EXPECT_EQ(ShardTensor(std::get<0>(line.topk(100))).local().numel(), 25);
    EXPECT_LE(counter.bytes("all_to_all_v"), 100 * 12) << counter.table();
  });
}

TEST(SelectionFromLine, MovesNoElements) {
  expect_shares(torch::randn({10000}), [](const Tensor& line) {
    const CommCounter counter;
    line.kthvalue(77);
    line.median(0);
    EXPECT_EQ(counter.calls("all_to_all_v"), 0) << counter.table();
  });
}

}  // namespace
}  // namespace shard::testing
