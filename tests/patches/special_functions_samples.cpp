// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/dispatch/Dispatcher.h>
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor call(const std::string& op, torch::jit::Stack stack) {
  c10::Dispatcher::singleton().findSchemaOrThrow(("aten::" + op).c_str(), "").callBoxed(stack);
  return stack.back().toTensor();
}

at::Tensor positive() { return torch::rand({2, 8, 3}, at::kDouble) * 2 + 0.1; }
at::Tensor fraction() { return torch::rand({2, 8, 3}, at::kDouble) * 0.8 + 0.1; }
const Check kWithGradient{.ranks = {1, 3}};
const Check kWithoutGradient{.ranks = {1, 3}, .gradients = false, .double_backward = false};
const Check kOneGradient{.ranks = {1, 3}, .double_backward = false};

std::vector<Sample> unary_cases() {
  torch::manual_seed(310);
  std::vector<Sample> cases;
  const auto add = [&](const std::string& op, const at::Tensor& x, const Check& check) {
    cases.push_back(
        {op, {sharded(x, 1)}, [op](const Tensors& t) { return call(op, {t[0]}); }, check});
  };
  for (const char* op : {"special_entr", "special_erfcx", "special_log_ndtr", "special_i0e"}) {
    add(op, positive(), kWithGradient);
  }
  for (const char* op : {"special_i1", "special_i1e"}) add(op, positive(), kOneGradient);
  add("special_ndtri", fraction(), kWithGradient);
  for (const std::string op :
       {"airy_ai", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "modified_bessel_i0",
        "modified_bessel_i1", "modified_bessel_k0", "modified_bessel_k1",
        "scaled_modified_bessel_k0", "scaled_modified_bessel_k1", "spherical_bessel_j0"}) {
    add("special_" + op, positive(), kWithoutGradient);
  }
  return cases;
}
SHARD_SAMPLES(SpecialFunctions, unary_cases());

std::vector<Sample> binary_cases() {
  torch::manual_seed(311);
  std::vector<Sample> cases;
  const auto add = [&](const std::string& op, const at::Tensor& x, const at::Tensor& y,
                       const Check& check) {
    cases.push_back({op,
                     {sharded(x, 1), constant(y)},
                     [op](const Tensors& t) {
                       return call(op, {t[0], t[1]});
                     },
                     check});
  };
  const at::Tensor degree = torch::randint(0, 5, {8, 1}).to(at::kDouble);
  for (const char* kind : {"t", "u", "v", "w"}) {
    for (const std::string family : {"chebyshev_polynomial_", "shifted_chebyshev_polynomial_"}) {
      add("special_" + family + kind, fraction(), degree, kWithoutGradient);
    }
  }
  for (const std::string op : {"hermite_polynomial_h", "hermite_polynomial_he",
                               "laguerre_polynomial_l", "legendre_polynomial_p"}) {
    add("special_" + op, fraction(), degree, kWithoutGradient);
  }
  add("special_xlog1py", fraction(), positive(), kWithGradient);
  add("special_zeta", positive() + 1.5, positive(), kWithoutGradient);
  add("igamma", positive(), positive(), kWithoutGradient);
  add("igammac", positive(), positive(), kWithoutGradient);
  return cases;
}
SHARD_SAMPLES(SpecialFunctionsOfTwo, binary_cases());

std::vector<Sample> gamma_cases() {
  torch::manual_seed(312);
  return {{"mvlgamma",
           {sharded(positive() + 2, 1)},
           [](const Tensors& t) { return at::mvlgamma(t[0], 3); },
           Check{.ranks = {1, 3}, .double_backward = false}},
          {"igamma_with_gradient_of_the_second",
           {constant(positive(), 1), sharded(positive(), 1)},
           [](const Tensors& t) { return at::igamma(t[0], t[1]); },
           Check{.ranks = {1, 3}, .double_backward = false}}};
}
SHARD_SAMPLES(GammaFunctions, gamma_cases());

Sample random_sample(Random& r) {
  const auto sizes = r.sizes(r.integer(1, 4), 1, 7);
  const bool of_two = r.coin();
  const Input input =
      sharded(r.tensor(sizes).abs() + 0.2, r.integer(0, static_cast<int64_t>(sizes.size()) - 1));
  const Function function = [of_two](const Tensors& t) {
    return of_two ? at::special_xlog1py(t[0], t[0].mean()) : at::special_erfcx(t[0]);
  };
  return {"random", {input}, function};
}
SHARD_RANDOM_SAMPLES(RandomSpecialFunctions, random_sample);

}  // namespace
}  // namespace shard::testing
