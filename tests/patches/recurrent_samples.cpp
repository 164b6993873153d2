// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/gru.h>
#include <ATen/ops/lstm.h>
#include <ATen/ops/rnn_relu.h>
#include <ATen/ops/rnn_tanh.h>
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

/// Gates of an op with `gates` of them, one layer and direction after the other.
std::vector<Input> weights(int64_t gates, int64_t in, int64_t hidden, int64_t layers,
                           int64_t directions) {
  std::vector<Input> result;
  for (int64_t layer = 0; layer < layers; ++layer) {
    for (int64_t direction = 0; direction < directions; ++direction) {
      const int64_t width = layer == 0 ? in : hidden * directions;
      result.push_back(weight(torch::randn({gates * hidden, width}, at::kDouble) * 0.4));
      result.push_back(weight(torch::randn({gates * hidden, hidden}, at::kDouble) * 0.4));
      result.push_back(weight(torch::randn({gates * hidden}, at::kDouble) * 0.4));
      result.push_back(weight(torch::randn({gates * hidden}, at::kDouble) * 0.4));
    }
  }
  return result;
}

enum class Kind : uint8_t { Lstm, Gru, Tanh, Relu };

struct Options {
  Kind kind = Kind::Lstm;
  int64_t dim = 0;  ///< cut
  int64_t layers = 1;
  bool bidirectional = false;
  bool batch_first = true;
  bool state_is_cut = false;
};

Sample sample(const std::string& name, const Options& o, at::Tensor x) {
  constexpr int64_t kHidden = 3;
  const int64_t directions = o.bidirectional ? 2 : 1;
  const int64_t batch = x.size(o.batch_first ? 0 : 1);
  const int64_t gates = o.kind == Kind::Lstm ? 4 : o.kind == Kind::Gru ? 3 : 1;
  const at::Tensor state = torch::randn({o.layers * directions, batch, kHidden}, at::kDouble);
  std::vector<Input> inputs{sharded(std::move(x), o.dim)};
  for (int i = 0; i < 2; ++i) {
    inputs.push_back(o.state_is_cut ? sharded(state.clone(), 1) : weight(state.clone()));
  }
  for (auto& input : weights(gates, inputs[0].whole.size(2), kHidden, o.layers, directions)) {
    inputs.push_back(std::move(input));
  }
  const Function function = [o](const Tensors& t) {
    const Tensors parameters(t.begin() + 3, t.end());
    if (o.kind == Kind::Lstm) {
      const auto [y, h, c] = at::lstm(t[0], {t[1], t[2]}, parameters, true, o.layers, 0., false,
                                      o.bidirectional, o.batch_first);
      return y.sum() + (h * c).sum() + y.square().sum();
    }
    const auto run = o.kind == Kind::Gru    ? &at::_ops::gru_input::call
                     : o.kind == Kind::Tanh ? &at::_ops::rnn_tanh_input::call
                                            : &at::_ops::rnn_relu_input::call;
    const auto [y, h] = run(t[0], t[1] + t[2], parameters, true, o.layers, 0., false,
                            o.bidirectional, o.batch_first);
    return y.square().sum() + h.sum();
  };
  Check check;
  check.double_backward = false;  // LibTorch's fused cells have none
  check.tolerance = 3e-5;         // of a number whose terms cancel, which scales all gradients
  if (o.dim != (o.batch_first ? 0 : 1)) check.traffic = 2.5;
  if (batch == 1) check.holds_whole = "there is no other dim to cut";
  return {name, inputs, function, check};
}

at::Tensor x() { return torch::randn({8, 5, 2}, at::kDouble); }

std::vector<Sample> samples() {
  torch::manual_seed(96);
  return {
      sample("lstm", {}, x()),
      sample("lstm_with_cut_states", {.state_is_cut = true}, x()),
      sample("lstm_of_two_layers_both_ways", {.layers = 2, .bidirectional = true}, x()),
      sample("lstm_with_the_batch_second", {.dim = 1, .batch_first = false}, x()),
      sample("lstm_cut_along_time", {.dim = 1}, x()),
      sample("gru", {.kind = Kind::Gru}, x()),
      sample("gru_of_a_column_major_input", {.kind = Kind::Gru},
             torch::randn({2, 5, 8}, at::kDouble).permute({2, 1, 0})),
      sample("rnn_with_tanh", {.kind = Kind::Tanh, .layers = 2}, x()),
      sample("rnn_with_relu", {.kind = Kind::Relu}, x()),
      sample("one_feature", {.kind = Kind::Relu}, torch::randn({7, 3, 1}, at::kDouble)),
  };
}
SHARD_SAMPLES(Recurrent, samples());

/// Any kind, any cut.
Sample random_sample(Random& r) {
  const Options options{.kind = static_cast<Kind>(r.integer(0, 3)),
                        .dim = r.integer(0, 2),
                        .layers = r.integer(1, 2),
                        .bidirectional = r.coin(),
                        .batch_first = r.coin(),
                        .state_is_cut = r.coin()};
  return sample("random", options, r.tensor(r.sizes(3, 1, 6)));
}
SHARD_RANDOM_SAMPLES(RandomRecurrent, random_sample);

}  // namespace
}  // namespace shard::testing
