// SPDX-License-Identifier: Apache-2.0
// Every function seeds its rank's generator: plain LibTorch then draws the same numbers.
#include <ATen/ops/normal.h>
#include <support/samples.h>
#include <torch/nn/functional/dropout.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

namespace F = torch::nn::functional;
using Tensors = std::vector<at::Tensor>;

at::Tensor image() { return torch::randn({2, 3, 13, 7}, at::kDouble); }

/// What `draw` makes of the tensor, weighted by it so that the gradient depends on the numbers.
Sample drawn(const std::string& name, Input input,
             std::function<at::Tensor(const at::Tensor&)> draw) {
  return {name, {std::move(input)}, [draw = std::move(draw)](const Tensors& t) {
            torch::manual_seed(7);
            return draw(t[0]) * t[0];
          }};
}

std::vector<Sample> samples() {
  torch::manual_seed(90);
  using at::Tensor;
  std::vector<Sample> all;
  for (const int64_t dim : {0, 2, 3}) {
    const auto suffix = "_cut_along_" + std::to_string(dim);
    const auto add = [&](const std::string& name, std::function<Tensor(const Tensor&)> draw) {
      all.push_back(drawn(name + suffix, sharded(image(), dim), std::move(draw)));
    };
    add("dropout", [](const Tensor& x) { return torch::dropout(x, 0.3, true); });
    add("feature_dropout", [](const Tensor& x) { return torch::feature_dropout(x, 0.5, true); });
    add("alpha_dropout", [](const Tensor& x) { return torch::alpha_dropout(x, 0.2, true); });
    add("native_dropout",
        [](const Tensor& x) { return std::get<0>(torch::native_dropout(x, 0.3, true)); });
    add("uniform", [](const Tensor& x) { return torch::empty_like(x).uniform_(-1, 2); });
    add("normal", [](const Tensor& x) { return torch::empty_like(x).normal_(1, 3); });
    add("bernoulli_of_tensor",
        [](const Tensor& x) { return torch::bernoulli(x.detach().sigmoid()); });
  }
  const auto add = [&](const std::string& name, std::function<Tensor(const Tensor&)> draw) {
    all.push_back(drawn(name, sharded(image(), 2), std::move(draw)));
  };
  add("rand_like", [](const Tensor& x) { return torch::rand_like(x); });
  add("randn_like", [](const Tensor& x) { return torch::randn_like(x); });
  add("randint_like", [](const Tensor& x) { return torch::randint_like(x, 3, 90); });
  add("randint_like_from_zero", [](const Tensor& x) { return torch::randint_like(x, 50); });
  add("exponential", [](const Tensor& x) { return torch::empty_like(x).exponential_(2); });
  add("cauchy", [](const Tensor& x) { return torch::empty_like(x).cauchy_(); });
  add("log_normal", [](const Tensor& x) { return torch::empty_like(x).log_normal_(); });
  add("geometric", [](const Tensor& x) { return torch::empty_like(x).geometric_(0.3); });
  add("random", [](const Tensor& x) { return torch::empty_like(x).random_(); });
  add("random_to", [](const Tensor& x) { return torch::empty_like(x).random_(40); });
  add("random_from", [](const Tensor& x) { return torch::empty_like(x).random_(-40, 40); });
  add("bernoulli", [](const Tensor& x) { return torch::bernoulli(x.detach(), 0.4); });
  add("normal_around", [](const Tensor& x) { return at::normal(x.detach(), 0.5); });
  add("normal_of_width", [](const Tensor& x) { return at::normal(2.0, x.detach().abs()); });
  add("normal_of_broadcast_widths",
      [](const Tensor& x) { return at::normal(x.detach(), x.detach().abs().narrow(0, 0, 1)); });
  add("normal_of_both", [](const Tensor& x) { return at::normal(x.detach(), x.detach().abs()); });
  add("one_draw_after_another", [](const Tensor& x) {
    const auto kept = torch::dropout(x, 0.5, true);
    return kept + torch::randn_like(x) + torch::rand_like(x) + torch::dropout(x, 0.1, true);
  });
  add("gumbel_softmax_over_the_cut_dim",
      [](const Tensor& x) { return (x - torch::empty_like(x).exponential_().log()).softmax(2); });
  all.push_back(drawn("channels_last",
                      sharded(image().contiguous(at::MemoryFormat::ChannelsLast), 2),
                      [](const Tensor& x) {
                        const auto numbers = torch::rand_like(x) + torch::randn_like(x);
                        return numbers * torch::dropout(x, 0.4, true);
                      }));
  all.push_back(drawn("transposed", sharded(image().transpose(1, 3), 2), [](const Tensor& x) {
    return torch::randn_like(x) * torch::dropout(x, 0.4, true);
  }));
  all.push_back(drawn("fewer_than_16", sharded(torch::randn({13}, at::kDouble), 0),
                      [](const Tensor& x) { return torch::randn_like(x); }));
  all.push_back({"dropout_of_a_sum", {sharded(image(), 2)}, [](const Tensors& t) {
                   torch::manual_seed(7);
                   return F::dropout(t[0].sum(2), F::DropoutFuncOptions().p(0.5));
                 }});
  return all;
}
SHARD_SAMPLES(RandomNumbers, samples());

Sample random_sample(Random& r) {
  const auto sizes = r.sizes(r.integer(1, 4), 1, 9);
  const auto last = static_cast<int64_t>(sizes.size()) - 1;
  const auto which = r.integer(0, 4);
  return drawn("random", sharded(r.tensor(sizes), r.integer(0, last)), [=](const at::Tensor& x) {
    switch (which) {
      case 0:
        return torch::dropout(x, 0.3, true);
      case 1:
        return torch::randn_like(x);
      case 2:
        return torch::bernoulli(x.detach().sigmoid());
      case 3:
        return torch::empty_like(x).random_(-9, 9);
      default:
        return torch::empty_like(x).exponential_();
    }
  });
}
SHARD_RANDOM_SAMPLES(RandomRandomNumbers, random_sample);

}  // namespace
}  // namespace shard::testing
