// SPDX-License-Identifier: Apache-2.0
#include <shard/comm_counter.h>
#include <shard/error.h>
#include <shard/launch.h>
#include <shard/tensor.h>
#include <support/samples.h>
#include <torch/torch.h>

#include <limits>

namespace shard::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor x() { return torch::randn({2, 8, 3}); }
at::Tensor positive() { return torch::rand({2, 8, 3}) + 0.5; }
const Check kFew{.ranks = {1, 3}};

/// Unary functions that torch::nn models use.
std::vector<Sample> unary_cases() {
  torch::manual_seed(50);
  using Unary = at::Tensor (*)(const at::Tensor&);
  const std::pair<std::string, Unary> functions[] = {
      {"relu", [](const at::Tensor& t) { return t.relu(); }},
      {"sigmoid", [](const at::Tensor& t) { return t.sigmoid(); }},
      {"tanh", [](const at::Tensor& t) { return t.tanh(); }},
      {"exp", [](const at::Tensor& t) { return t.exp(); }},
      {"sin", [](const at::Tensor& t) { return t.sin(); }},
      {"abs", [](const at::Tensor& t) { return t.abs(); }},
      {"square", [](const at::Tensor& t) { return t.square(); }},
      {"erf", [](const at::Tensor& t) { return t.erf(); }},
      {"silu", [](const at::Tensor& t) { return at::silu(t); }},
      {"mish", [](const at::Tensor& t) { return at::mish(t); }},
      {"gelu", [](const at::Tensor& t) { return at::gelu(t); }},
      {"gelu_tanh", [](const at::Tensor& t) { return at::gelu(t, "tanh"); }},
      {"elu", [](const at::Tensor& t) { return at::elu(t, 0.7); }},
      {"selu", [](const at::Tensor& t) { return at::selu(t); }},
      {"celu", [](const at::Tensor& t) { return at::celu(t, 0.7); }},
      {"leaky_relu", [](const at::Tensor& t) { return at::leaky_relu(t, 0.2); }},
      {"relu6", [](const at::Tensor& t) { return at::relu6(t); }},
      {"hardtanh", [](const at::Tensor& t) { return at::hardtanh(t, -0.5, 0.8); }},
      {"hardswish", [](const at::Tensor& t) { return at::hardswish(t); }},
      {"hardsigmoid", [](const at::Tensor& t) { return at::hardsigmoid(t); }},
      {"softplus", [](const at::Tensor& t) { return at::softplus(t); }},
      {"softshrink", [](const at::Tensor& t) { return at::softshrink(t, 0.3); }},
      {"hardshrink", [](const at::Tensor& t) { return at::hardshrink(t, 0.3); }},
      {"log_sigmoid", [](const at::Tensor& t) { return at::log_sigmoid(t); }},
      {"tanhshrink", [](const at::Tensor& t) { return t - t.tanh(); }},
      {"threshold", [](const at::Tensor& t) { return at::threshold(t, 0.1, -2); }},
      {"clamp", [](const at::Tensor& t) { return t.clamp(-0.5, 0.7); }},
      {"clamp_min", [](const at::Tensor& t) { return t.clamp_min(0.1); }},
      {"reciprocal", [](const at::Tensor& t) { return (t.abs() + 1).reciprocal(); }},
      {"rsqrt", [](const at::Tensor& t) { return (t.abs() + 1).rsqrt(); }},
      {"log1p", [](const at::Tensor& t) { return t.abs().log1p(); }},
      {"pow", [](const at::Tensor& t) { return t.pow(3); }},
      {"number_to_the_power", [](const at::Tensor& t) { return at::pow(2, t); }},
      {"negation", [](const at::Tensor& t) { return -t; }},
      {"floor", [](const at::Tensor& t) { return t.floor() + t; }},
      {"glu", [](const at::Tensor& t) { return at::glu(at::cat({t, t * 2}, 2), 2); }},
  };
  std::vector<Sample> cases;
  for (const auto& [name, function] : functions) {
    Check check = kFew;
    check.double_backward = name != "hardsigmoid";  // LibTorch has none
    cases.push_back({name,
                     {sharded(x(), 1)},
                     [function = function](const Tensors& t) { return function(t[0]); },
                     check});
  }
  return cases;
}

std::vector<Sample> broadcasting_cases() {
  torch::manual_seed(51);
  const auto sum = [](const Tensors& t) { return t[0] + t[1]; };
  const auto product = [](const Tensors& t) { return t[0] * t[1]; };
  return {
      {"same_shards", {sharded(x(), 1), sharded(x(), 1)}, product},
      {"shards_of_different_dims",
       {sharded(torch::randn({8, 8}), 1), sharded(torch::randn({8, 8}), 0)},
       sum},
      {"plain_bias", {sharded(x(), 1), weight(torch::randn({3}))}, sum},
      {"plain_bias_on_the_left", {weight(torch::randn({3})), sharded(x(), 1)}, product},
      {"plain_full_tensor", {sharded(x(), 1), weight(torch::randn({1, 8, 3}))}, product},
      {"plain_tensor_with_more_dims",
       {sharded(torch::randn({8, 3}), 0), weight(torch::randn({2, 8, 3}))},
       product},
      {"plain_0d_tensor", {sharded(x(), 1), weight(torch::randn({}))}, product},
      {"plain_column", {sharded(x(), 1), weight(torch::randn({8, 1}))}, sum},
      {"sharded_with_fewer_dims", {sharded(x(), 1), sharded(torch::randn({8, 1}), 0)}, product},
      {"sharded_broadcast_over_a_new_leading_dim",
       {sharded(torch::randn({8, 3}), 0), sharded(torch::randn({2, 8, 1}), 1)},
       product},
      {"sharded_dim_broadcast_from_size_one",
       {sharded(x(), 1), sharded(torch::randn({2, 1, 3}), 1)},
       product},
      {"both_expand", {sharded(torch::randn({8, 1}), 0), weight(torch::randn({1, 5}))}, product},
      {"sharded_along_what_the_other_lacks",
       {sharded(torch::randn({1, 8}), 1), sharded(torch::randn({8, 1}), 0)},
       product},
      {"pending_0d_sum",
       {sharded(x(), 1), sharded(x(), 1)},
       [](const Tensors& t) { return t[0] * t[1].mean(); }},
      {"numbers",
       {sharded(x(), 1)},
       [](const Tensors& t) { return (2 * t[0] + 1) / 3 - (1 - t[0]); }},
      {"number_over_tensor", {sharded(positive(), 1)}, [](const Tensors& t) { return 3 / t[0]; }},
      {"twice_the_same_tensor",
       {sharded(x(), 1)},
       [](const Tensors& t) { return t[0] * 2 + t[0]; }},
      {"division",
       {sharded(x(), 1), sharded(positive(), 1)},
       [](const Tensors& t) { return t[0] / t[1]; }},
      {"powers",
       {sharded(positive(), 1), sharded(x(), 1)},
       [](const Tensors& t) { return t[0].pow(t[1]); }},
      {"maximum",
       {sharded(x(), 1), sharded(x(), 1)},
       [](const Tensors& t) { return at::maximum(t[0], t[1]); }},
      {"atan2",
       {sharded(x(), 1), sharded(positive(), 1)},
       [](const Tensors& t) { return at::atan2(t[0], t[1]); }},
      {"lerp",
       {sharded(x(), 1), sharded(x(), 1)},
       [](const Tensors& t) { return at::lerp(t[0], t[1], 0.3); }},
      {"addcmul",
       {sharded(x(), 1), sharded(x(), 1), weight(torch::randn({3}))},
       [](const Tensors& t) { return at::addcmul(t[0], t[1], t[2], 0.5); }},
      {"addcdiv",
       {sharded(x(), 1), sharded(x(), 1), sharded(positive(), 1)},
       [](const Tensors& t) { return at::addcdiv(t[0], t[1], t[2], 0.5); }},
      {"where_with_zero",
       {sharded(x(), 1)},
       [](const Tensors& t) { return at::where(t[0] > 0, t[0], 0); }},
      {"where_of_two",
       {sharded(x(), 1), weight(x())},
       [](const Tensors& t) { return at::where(t[0] > t[1], t[0], t[1]); }},
      {"where_with_a_plain_condition",
       {constant(x() > 0), sharded(x(), 1), sharded(x(), 1)},
       [](const Tensors& t) { return at::where(t[0], t[1], t[2]); }},
      {"masked_fill",
       {sharded(x(), 1), constant(torch::rand({8, 1}) > 0.5, 0)},
       [](const Tensors& t) { return t[0].masked_fill(t[1], -3); }},
      {"masked_fill_with_a_plain_mask",
       {sharded(x(), 1), constant(torch::rand({2, 8, 3}) > 0.5)},
       [](const Tensors& t) { return t[0].masked_fill(t[1], -3); }},
      {"comparisons",
       {constant(x(), 1), constant(x(), 1)},
       [](const Tensors& t) {
         return (t[0] > t[1]).logical_and(t[0].le(0.5)).logical_or(t[1].ne(t[0]));
       }},
      {"prelu",
       {sharded(torch::randn({2, 3, 8}), 2), weight(torch::rand({3}))},
       [](const Tensors& t) { return at::prelu(t[0], t[1]); }},
      {"bfloat16_and_float_promote",
       {sharded(x(), 1), sharded(x(), 1)},
       [](const Tensors& t) { return t[0].to(at::kDouble) * t[1]; },
       Check{.tolerance = 1e-5}},
      {"integers_and_floats_promote",
       {constant(torch::randint(0, 9, {2, 8, 3}), 1), sharded(x(), 1)},
       [](const Tensors& t) { return t[0] * t[1] + 1.5; }},
      {"to_double",
       {sharded(x(), 1)},
       [](const Tensors& t) { return t[0].to(at::kDouble).sin(); },
       Check{.tolerance = 1e-5}},
      {"casts_between_types",
       {constant(x() * 10, 1)},
       [](const Tensors& t) { return t[0].to(at::kLong).to(at::kFloat) / 2; }},
      {"complex_numbers",
       {sharded(x(), 1), sharded(x(), 1)},
       [](const Tensors& t) {
         const auto z = at::complex(t[0], t[1]);
         return at::real(z * z.conj());
       }},
      {"clamp_with_tensors",
       {sharded(x(), 1), weight(torch::full({3}, -0.5))},
       [](const Tensors& t) { return at::clamp(t[0], t[1], t[1] + 1); }},
      {"remainder_and_floor_division",
       {constant(x() * 10, 1)},
       [](const Tensors& t) { return t[0].remainder(3) + at::floor_divide(t[0], 2); }},
  };
}

std::vector<Sample> in_place_cases() {
  torch::manual_seed(52);
  return {
      {"mul_of_a_derived_tensor",
       {sharded(x(), 1)},
       [](const Tensors& t) {
         auto y = t[0] * 1;
         y.mul_(3);
         return y * y;
       }},
      {"add_of_a_plain_bias",
       {sharded(x(), 1), weight(torch::randn({3}))},
       [](const Tensors& t) {
         auto y = t[0].clone();
         return y.add_(t[1], 2);
       }},
      {"add_of_another_layout",
       {sharded(torch::randn({8, 8}), 0), sharded(torch::randn({8, 8}), 1)},
       [](const Tensors& t) {
         auto y = t[0] * 2;
         return y.add_(t[1]);
       }},
      {"relu",
       {sharded(x(), 1)},
       [](const Tensors& t) {
         auto y = t[0] * 2;
         return y.relu_();
       }},
      {"masked_fill",
       {sharded(x(), 1)},
       [](const Tensors& t) {
         auto y = t[0] * 2;
         return y.masked_fill_(t[0] > 0, 1.5);
       }},
      {"copy",
       {sharded(x(), 1), weight(x())},
       [](const Tensors& t) {
         auto y = t[0] * 2;
         y.copy_(t[1]);
         return y + t[0];
       }},
      {"zero",
       {sharded(x(), 1)},
       [](const Tensors& t) {
         auto y = t[0] * 2;
         y.zero_();
         return y + t[0];
       }},
      {"fill",
       {sharded(x(), 1)},
       [](const Tensors& t) {
         auto y = t[0] * 2;
         y.fill_(3);
         return y * t[0];
       }},
      {"through_a_slice_of_the_sharded_dim",
       {sharded(x(), 1)},
       [](const Tensors& t) {
         auto y = t[0] * 2;
         y.slice(1, 2, 6).mul_(3);
         return y;
       }},
      {"through_a_strided_slice",
       {sharded(x(), 1)},
       [](const Tensors& t) {
         auto y = t[0] * 2;
         y.slice(1, 1, 8, 3).add_(1);
         return y * y;
       }},
      {"through_a_select",
       {sharded(x(), 1)},
       [](const Tensors& t) {
         auto y = t[0] * 2;
         y.select(2, 1).mul_(t[0].select(2, 0));
         return y;
       },
       Check{.grid = Check::Grid::OneDim}},
      {"through_a_transpose",
       {sharded(x(), 1)},
       [](const Tensors& t) {
         auto y = t[0] * 2;
         y.transpose(1, 2).mul_(t[0].transpose(1, 2));
         return y;
       }},
      {"through_a_view",
       {sharded(x(), 1)},
       [](const Tensors& t) {
         auto y = t[0] * 2;
         y.view({2, 8, 3, 1}).mul_(2);
         return y;
       }},
      {"through_a_view_of_a_view",
       {sharded(x(), 1)},
       [](const Tensors& t) {
         auto y = t[0] * 2;
         y.select(0, 1).slice(0, 3, 7).fill_(1);
         return y * t[0];
       }},
      {"sub_then_use_of_the_old_value",
       {sharded(x(), 1)},
       [](const Tensors& t) {
         auto y = t[0].exp();
         auto z = y * 2;
         z.sub_(y);
         return z * z;
       }},
  };
}

SHARD_SAMPLES(Unary, unary_cases());
SHARD_SAMPLES(Broadcasting, broadcasting_cases());
SHARD_SAMPLES(InPlace, in_place_cases());

/// Two tensors that broadcast, anyhow cut, in any arithmetic.
Sample random_sample(Random& r) {
  const auto sizes = r.sizes(r.integer(1, 4), 1, 7);
  auto other = sizes;
  for (auto& size : other) size = r.integer(0, 3) == 0 ? 1 : size;
  if (r.integer(0, 3) == 0) other.erase(other.begin());
  const auto any_dim = [&r](const std::vector<int64_t>& s) {
    return r.integer(0, static_cast<int64_t>(s.size()) - 1);
  };
  const int64_t kind = r.integer(0, 6);
  const Input right = other.empty() || r.coin() ? weight(r.tensor(other))
                                                : sharded(r.tensor(other), any_dim(other));
  return {"random", {sharded(r.tensor(sizes), any_dim(sizes)), right}, [=](const Tensors& t) {
            if (kind == 0) return t[0] + t[1];
            if (kind == 1) return t[0].tanh() * t[1];
            if (kind == 2) return t[1] - 2 * t[0];
            if (kind == 3) return t[0] / (t[1].abs() + 1);
            if (kind == 4) return at::where(t[0] > t[1], t[0], t[1] * 2);
            if (kind == 5) return at::maximum(t[0], t[1]);
            return at::addcmul(t[0], t[1], t[0].sigmoid(), 0.5);
          }};
}
SHARD_RANDOM_SAMPLES(RandomPointwise, random_sample);

at::Tensor scattered(const at::Tensor& whole, World& world, int64_t dim, Partition partition = {}) {
  return scatter_tensor(whole, 0, world.mesh(), {Shard(dim)}, std::move(partition));
}

TEST(Broadcasting, LinesUpDifferentUnevenShards) {
  torch::manual_seed(53);
  const auto a = x();
  const auto b = x();
  run_ranks(3, [&](World& world) {
    auto s = scattered(a, world, 1, {5, 0, 3}).set_requires_grad(true);
    auto t = scattered(b, world, 1, {1, 1, 6}).set_requires_grad(true);
    const auto y = s * t;
    EXPECT_LE(relative_error(ShardTensor(y).full(), a * b), 0);
    y.sum().backward();
    EXPECT_EQ(ShardTensor(t.grad()).spec().partition(), (Partition{1, 1, 6}));
    EXPECT_LE(relative_error(ShardTensor(t.grad()).full(), a), 0);
  });
}

TEST(Broadcasting, OfLikeShardsSendsNothing) {
  run_ranks(3, [](World& world) {
    const auto a = scattered(x(), world, 1);
    const CommCounter counter;
    (void)((a + a) * torch::ones({3}) - torch::ones({2, 8, 3}) / 2).relu();
    EXPECT_EQ(counter.calls(), 0) << counter.table();
  });
}

TEST(OutArguments, AreWrittenWhereTheyLie) {
  run_ranks(3, [](World& world) {
    const auto whole = x();
    const auto a = scattered(whole, world, 1, {5, 0, 3});
    auto out = scattered(torch::zeros({2, 8, 3}), world, 1, {1, 1, 6});
    at::add_out(out, a, a);
    EXPECT_EQ(ShardTensor(out).spec().partition(), (Partition{1, 1, 6}));
    EXPECT_LE(relative_error(ShardTensor(out).full(), ShardTensor(a).full() * 2), 0);
  });
}

TEST(OutArguments, OfAnotherSizeAreRefused) {
  run_ranks(2, [](World& world) {
    const auto a = scattered(x(), world, 1);
    auto out = scattered(torch::zeros({8, 3}), world, 0);
    EXPECT_THROW(at::add_out(out, a, a), c10::Error);
  });
}

TEST(Broadcasting, OfALocalShapedPlainTensorExplainsItself) {
  run_ranks(2, [](World& world) {
    const auto a = scattered(x(), world, 1, {6, 2});
    const auto local = torch::zeros({2, world.rank() == 0 ? 6 : 2, 3});
    try {
      (void)(a + local);
      FAIL() << "expected SpecMismatch";
    } catch (const SpecMismatch& error) {
      EXPECT_THAT(std::string(error.what()), ::testing::HasSubstr("shard::from_local"));
    }
  });
}

TEST(InPlace, OnAPlainTensorGathersTheShardedOne) {
  torch::manual_seed(54);
  const auto whole = x();
  run_ranks(2, [&](World& world) {
    const auto a = scattered(whole, world, 1).set_requires_grad(true);
    auto plain = torch::ones({2, 8, 3});
    plain.add_(a, 2);
    EXPECT_FALSE(is_shard_tensor(plain));
    plain.pow(2).sum().backward();
    EXPECT_LE(relative_error(ShardTensor(a.grad()).full(), 4 * (1 + 2 * whole)), 1e-6);
  });
}

std::vector<Sample> rarer_cases() {
  torch::manual_seed(59);
  const Check forward{.ranks = {1, 3}, .gradients = false, .double_backward = false};
  const at::Tensor wanted = torch::tensor({-1.0, 0.0, 1.0}, at::kDouble);
  const auto whole = [] { return torch::randn({2, 8, 3}, at::kDouble) * 2; };
  return {
      {"isin",
       {sharded(whole().round(), 1), constant(wanted)},
       [](const Tensors& t) { return at::isin(t[0], t[1]); },
       forward},
      {"isin_of_a_number",
       {sharded(whole().round(), 1)},
       [](const Tensors& t) { return at::isin(t[0], 1); },
       forward},
      {"frexp",
       {sharded(whole(), 1)},
       [](const Tensors& t) { return std::get<0>(at::frexp(t[0])); },
       kFew},
      {"angle",
       {sharded(whole(), 1)},
       [](const Tensors& t) { return at::angle(at::complex(t[0], t[0] * t[0])); },
       kFew},
      {"conj_physical",
       {sharded(whole(), 1)},
       [](const Tensors& t) {
         return at::imag(at::_conj_physical(at::complex(t[0], t[0] * t[0])));
       },
       forward},
      {"round_to_decimals",
       {sharded(whole(), 1)},
       [](const Tensors& t) { return at::round(t[0], 1) * t[0]; },
       kFew},
      {"round_to_decimals_in_place",
       {sharded(whole(), 1)},
       [](const Tensors& t) { return (t[0] * 3).round_(2); },
       forward},
      {"copysign_of_a_number",
       {sharded(whole(), 1)},
       [](const Tensors& t) { return at::copysign(t[0], -2); },
       kFew},
      {"floor_divide",
       {sharded(whole(), 1), sharded(whole(), 1)},
       [](const Tensors& t) { return at::floor_divide(t[0], t[1]); },
       forward},
  };
}
/// What only the sum may go through, not every contribution to it.
std::vector<Sample> pending_cases() {
  torch::manual_seed(45);
  std::vector<Sample> cases;
  const auto add = [&](const std::string& name, const std::function<at::Tensor(at::Tensor)>& f) {
    cases.push_back({name,
                     {sharded(torch::rand({7, 4}, at::kDouble) - 0.3, 0)},
                     [f](const Tensors& t) { return f(t[0]); },
                     {.gradients = false, .double_backward = false, .both_precisions = false}});
  };
  add("to_integers", [](const at::Tensor& x) { return (x * 3).sum(0).to(at::kLong); });
  add("to_a_mask", [](const at::Tensor& x) { return x.sign().sum(0).to(at::kBool); });
  add("to_half_of_large_contributions", [](const at::Tensor& x) {
    const at::Tensor sign = at::arange(7, x.options()).remainder(2).mul(2).sub(1).unsqueeze(1);
    return (x + 1000 * sign).sum(0).to(at::kHalf).to(at::kDouble);
  });
  add("of_small_integers_that_wrap", [](const at::Tensor& x) {
    return (x.abs() * 100 + 50)
        .to(at::kByte)
        .sum(at::IntArrayRef{0}, false, at::kByte)
        .to(at::kInt);
  });
  add("copied_into_integers", [](const at::Tensor& x) {
    at::Tensor y = (x * 10).to(at::kLong).sum(0);
    y.copy_((x * 3).sum(0));
    return y;
  });
  add("divided_by_zero", [](const at::Tensor& x) { return x.sum(0) / 0.0; });
  add("times_infinity",
      [](const at::Tensor& x) { return x.sum(0) * std::numeric_limits<double>::infinity(); });
  add("divided_by_a_tensor_with_zeros",
      [](const at::Tensor& x) { return x.sum(0) / at::arange(4, x.options()); });
  add("times_a_tensor_of_infinities", [](const at::Tensor& x) {
    return at::full({4}, std::numeric_limits<double>::infinity(), x.options()) * x.sum(0);
  });
  return cases;
}
SHARD_SAMPLES(PendingSums, pending_cases());

SHARD_SAMPLES(RarerPointwise, rarer_cases());

}  // namespace
}  // namespace shard::testing
