// SPDX-License-Identifier: Apache-2.0
// Attention and recurrent modules of torch::nn, unmodified, whose input is cut along the batch:
// forward and weight gradients equal plain LibTorch's, also without gradients.
#include <gtest/gtest.h>
#include <shard/primitives.h>
#include <shard/shard.h>
#include <torch/torch.h>

#include "support/sharded_check.h"

namespace shard::testing {
namespace {

namespace nn = torch::nn;
using at::Tensor;
using Tensors = std::vector<Tensor>;

struct Model {
  const char* name;
  std::vector<int64_t> input;
  int64_t batch_dim;
  std::function<Tensors(const Tensor&)> forward;
  std::shared_ptr<nn::Module> module;
  bool stays_cut = true;  ///< else outputs may be gathered
};

Model attention(const char* name, const nn::MultiheadAttentionOptions& options,
                const std::function<Tensor(const Tensor&)>& key_padding_mask = {},
                const Tensor& mask = {}, bool need_weights = true) {
  nn::MultiheadAttention module(options);
  return {name,
          {3, 7, 8},
          1,
          [=](const Tensor& x) mutable {
            const Tensor padding = key_padding_mask ? key_padding_mask(x) : Tensor();
            const auto [y, weights] = module->forward(x, x, x, padding, need_weights, mask);
            return need_weights ? Tensors{y, weights} : Tensors{y};
          },
          module.ptr()};
}

/// Masks one key of every sample.
Tensor largest_key(const Tensor& x) {
  const Tensor key = x.detach().select(2, 0).t();
  return key == key.amax(1, true);
}

/// With an initial state that is cut as the input is, or LibTorch's own: plain zeros.
enum class State : bool { Given, Default };

Model lstm(const char* name, const nn::LSTMOptions& options, State state = State::Given) {
  nn::LSTM module(options);
  const int64_t batch_dim = options.batch_first() ? 0 : 1;
  const int64_t states = options.num_layers() * (options.bidirectional() ? 2 : 1);
  const auto forward = [=](const Tensor& x) mutable {
    std::optional<std::tuple<Tensor, Tensor>> start;
    if (state == State::Given) {
      const Tensor mean = x.mean({1 - batch_dim, 2});
      const Tensor h = mean.unsqueeze(0).unsqueeze(2).expand({states, 7, options.hidden_size()});
      start.emplace(h.contiguous(), h.sin());
    }
    const auto [y, end] = module->forward(x, start);
    return Tensors{y, std::get<0>(end), std::get<1>(end)};
  };
  const std::vector<int64_t> input =
      batch_dim == 0 ? std::vector<int64_t>{7, 3, 4} : std::vector<int64_t>{3, 7, 4};
  return {name, input, batch_dim, forward, module.ptr(), state == State::Given};
}

std::vector<Model> attentions() {
  using Options = nn::MultiheadAttentionOptions;
  const Tensor causal = torch::ones({3, 3}, at::kBool).triu(1);
  return {attention("attention", Options(8, 2)),
          attention("attention without biases", Options(8, 2).bias(false)),
          attention("attention with key and value biases",
                    Options(8, 2).add_bias_kv(true).add_zero_attn(true)),
          attention("attention with a padding mask", Options(8, 2), largest_key),
          attention("causal attention", Options(8, 2), {}, causal),
          attention("attention that returns no weights", Options(8, 2), {}, {}, false)};
}

std::vector<Model> lstms() {
  using Options = nn::LSTMOptions;
  return {lstm("lstm", Options(4, 5)),
          lstm("lstm with the default state", Options(4, 5), State::Default),
          lstm("lstm, batch first", Options(4, 5).batch_first(true)),
          lstm("lstm of two layers both ways", Options(4, 5).num_layers(2).bidirectional(true))};
}

Tensor full(const Tensor& t) {
  const at::NoGradGuard guard;
  return t.defined() && is_shard_tensor(t) ? ShardTensor(t.detach()).full() : t.detach();
}
Tensors full(Tensors tensors) {
  for (auto& t : tensors) t = full(t);
  return tensors;
}

struct Outcome {
  Tensors outputs, without_grad, in_inference, gradients;
};

/// The outputs; those of a cut input must have stayed where the samples are.
Tensors run(const Model& model, const Tensor& input, const std::string& where) {
  const bool is_cut = is_shard_tensor(input) && mesh_of(input).size() > 1;
  const Tensors outputs = model.forward(input);
  for (size_t i = 0; is_cut && model.stays_cut && i < outputs.size(); ++i) {
    const bool stayed = is_shard_tensor(outputs[i]) && spec_of(outputs[i])->is_shard();
    EXPECT_TRUE(stayed) << where << ", output " << i;
  }
  return outputs;
}

/// `x` makes the input: in inference mode the input is an inference tensor too.
Outcome outcome_of(const Model& model, const std::string& where, const std::function<Tensor()>& x) {
  Outcome result;
  {
    const at::NoGradGuard guard;
    result.without_grad = full(run(model, x(), where + ", without gradients"));
  }
  {
    const c10::InferenceMode guard;
    result.in_inference = full(run(model, x(), where + ", in inference mode"));
  }
  const Tensor input = x().requires_grad_();
  const Tensors outputs = run(model, input, where);
  result.outputs = full(outputs);
  Tensor loss = outputs[0].sin().sum();
  for (size_t i = 1; i < outputs.size(); ++i) loss = loss + outputs[i].cos().sum();
  Tensors leaves = model.module->parameters();
  leaves.push_back(input);
  result.gradients = full(torch::autograd::grad({loss}, leaves));
  return result;
}

void expect_equal(const Tensors& got, const Tensors& want, const std::string& what) {
  const double tolerance = want[0].scalar_type() == at::kDouble ? 1e-10 : 1e-5;
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i].sizes(), want[i].sizes()) << what << " " << i;
    EXPECT_LE(relative_error(got[i], want[i]), tolerance) << what << " " << i;
  }
}

void expect_equal(const Outcome& got, const Outcome& want, const std::string& where) {
  expect_equal(got.outputs, want.outputs, where + ", outputs");
  expect_equal(got.without_grad, want.without_grad, where + ", outputs without gradients");
  expect_equal(got.in_inference, want.in_inference, where + ", outputs in inference mode");
  expect_equal(got.gradients, want.gradients, where + ", gradients");
}

void expect_equal_plain(const std::function<std::vector<Model>()>& make, at::ScalarType dtype) {
  for (const Partition& partition : {Partition{7}, {4, 3}, {6, 1}, {7, 0}, {2, 0, 5}}) {
    run_ranks(static_cast<int>(partition.size()), [&](World& world) {
      manual_seed(5);
      const auto mesh = world.mesh();
      for (const auto& model : make()) {
        model.module->to(dtype);
        const Tensor whole = torch::randn(model.input, dtype);
        const auto where = c10::str(model.name, " in pieces ", c10::IntArrayRef(partition));
        const auto want = outcome_of(model, "plain", [&] { return whole.clone(); });
        const auto got = outcome_of(model, where, [&] {
          return scatter_tensor(whole, 0, mesh, {Shard(model.batch_dim)}, partition);
        });
        expect_equal(got, want, where);
      }
    });
  }
}

class BatchModules : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(BatchModules, OfAttentionEqualPlainLibTorchWithAndWithoutGradients) {
  expect_equal_plain(attentions, GetParam());
}

TEST_P(BatchModules, OfLstmsEqualPlainLibTorchWithAndWithoutGradients) {
  expect_equal_plain(lstms, GetParam());
}
INSTANTIATE_TEST_SUITE_P(Precisions, BatchModules, ::testing::Values(at::kDouble, at::kFloat));

}  // namespace
}  // namespace shard::testing
