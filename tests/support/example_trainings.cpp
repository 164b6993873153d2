// SPDX-License-Identifier: Apache-2.0
// Small ones of the models in examples/, with something to learn.
#include <fno/fno.h>
#include <message_passing/message_passing.h>
#include <point_transformer/point_transformer.h>
#include <swin/swin.h>
#include <torch/torch.h>
#include <vit/vit.h>

#include "support/training_check.h"

namespace shard::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

Tensor d(std::vector<int64_t> sizes) { return torch::randn(sizes, at::kDouble); }

/// A model and its loss, a function of the model and the inputs.
template <class Holder, class Loss>
Trainee trainee(Holder model, const Loss& loss) {
  model->to(at::kDouble);
  return {model->parameters(), [model, loss](const Tensors& t) mutable { return loss(model, t); }};
}

Training point_cloud() {
  const Tensor points = d({41, 3});
  const auto make = [] {
    return trainee(point_transformer::PointTransformer(2, 1, 6, 5, 11), [](auto& net, auto& t) {
      return torch::mse_loss(net->forward(t[0], t[1]), t[2]);
    });
  };
  return {"point_transformer",
          make,
          {sharded(points, 0), sharded(d({41, 2}), 0), sharded(points.square().sum(1, true), 0)},
          0.02};
}

Training graph() {
  const int64_t nodes = 23;
  const auto ends = [&] { return constant(torch::randint(0, nodes, {71}), 0); };
  const auto make = [] {
    return trainee(message_passing::MessagePassing(2, 1, 1, 6, 2), [](auto& net, auto& t) {
      return torch::mse_loss(net->forward(t[0], t[1], {t[2], t[3]}), t[4]);
    });
  };
  const Tensor features = d({nodes, 2});
  return {"message_passing",
          make,
          {sharded(features, 0), sharded(d({71, 1}), 0), ends(), ends(),
           sharded(features.sum(1, true) + 1, 0)},
          0.05};
}

Training operator_of_waves() {
  const auto make = [] {
    return trainee(fno::Fno(2, 1, 4, 3, 4, 2),
                   [](auto& net, auto& t) { return torch::mse_loss(net->forward(t[0]), t[1]); });
  };
  const Tensor x = d({1, 2, 14, 17});
  return {"fno", make, {sharded(x, 2), sharded(x.narrow(1, 0, 1).roll({2}, {2}) + 1, 2)}, 0.2};
}

Training vision_transformer() {
  const auto make = [] {
    const vit::Options options{.height = 24,
                               .width = 16,
                               .patch = 4,
                               .in = 2,
                               .out = 3,
                               .channels = 8,
                               .heads = 2,
                               .layers = 2};
    return trainee(vit::Vit(options), [](auto& net, auto& t) {
      return torch::nn::functional::cross_entropy(net->forward(t[0]), t[1]);
    });
  };
  return {"vit", make, {sharded(d({3, 2, 24, 16}), 2), constant(torch::tensor({2, 0, 1}))}, 0.2};
}

Training windows() {
  const auto make = [] {
    return trainee(swin::Swin(2, 1, 8, 2, 4, 1),
                   [](auto& net, auto& t) { return torch::mse_loss(net->forward(t[0]), t[1]); });
  };
  const Tensor x = d({2, 2, 16, 12});
  return {"swin", make, {sharded(x, 2), sharded(x.narrow(1, 0, 1) + 1, 2)}, 0.1};
}

std::vector<Training> all_trainings() {
  torch::manual_seed(21);
  return {point_cloud(), graph(), operator_of_waves(), vision_transformer(), windows()};
}

}  // namespace

const std::vector<Training>& example_trainings() {
  static const std::vector<Training> trainings = all_trainings();
  return trainings;
}

}  // namespace shard::testing
