// SPDX-License-Identifier: Apache-2.0
#include "verify.h"

#include <shard/error.h>
#include <shard/tensor.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "model.h"
#include "plain_op_watch.h"

namespace global_field {
namespace {

using torch::Tensor;
using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

constexpr double kDoubleLimit = 1e-10;
constexpr double kFloatFactor = 2;
/// Sixteen units in the last place: below it, errors of a chain of some sixty float32 ops are noise
/// on either side.
constexpr double kFloatFloor = 2e-6;
const int64_t kMonth = kTrainingMonths.front();

/// The same weights in another precision, and kernels in another memory format.
UNet copy_model(UNet& model, const Options& options, torch::Dtype dtype,
                at::MemoryFormat format = at::MemoryFormat::Contiguous) {
  const torch::NoGradGuard no_grad;
  UNet copy = make_model(options);
  copy->to(dtype);
  const auto from = model->parameters();
  const auto to = copy->parameters();
  for (size_t i = 0; i < from.size(); ++i) {
    if (to[i].dim() == 4) to[i].set_data(to[i].contiguous(format));
    to[i].copy_(from[i]);
  }
  return copy;
}

/// Forward and backward on one sample. `collect` makes plain CPU tensors of the results. `backward`
/// takes output and target and returns the loss.
template <class Collect, class Backward>
NamedTensors one_step(UNet model, const Sample& sample, torch::Dtype dtype, Collect collect,
                      Backward backward) {
  const Tensor input = sample.input.to(dtype).detach().requires_grad_();
  const Tensor output = model->forward(input);
  const Tensor loss = backward(output, sample.target.to(dtype));
  NamedTensors results = {{"input", collect(input.detach())},
                          {"loss", torch::tensor(loss.item<double>(), torch::kFloat64)},
                          {"output", collect(output.detach())},
                          {"grad input", collect(input.grad())}};
  for (const auto& weight : model->named_parameters()) {
    results.emplace_back("grad " + weight.key(),
                         weight.value().grad().to(torch::kCPU, torch::kFloat64));
  }
  return results;
}

Tensor backward_at_once(const Tensor& output, const Tensor& target) {
  Tensor loss = torch::mse_loss(output, target);
  loss.backward();
  return loss;
}

NamedTensors sharded_step(const Options& options, UNet& model, const Sample& sample,
                          torch::Dtype dtype) {
  const auto collect = [](const Tensor& tensor) {
    return shard::ShardTensor(tensor).full().to(torch::kCPU, torch::kFloat64);
  };
  return one_step(copy_model(model, options, dtype), sample, dtype, collect, backward_at_once);
}

/// NOTE [Plain float32's own error]
/// The gradient of a weight is a sum over all points with heavy cancellation; its float32 error
/// depends on the order of summation and on the kernel that LibTorch chooses for a shape and a
/// memory format, by a factor of ten. What plain float32 may be off by is the largest error over a
/// few ways, all by plain LibTorch and all the same sum: as it is; in the other memory format; the
/// loss differentiated band by band of rows; the globe turned by half (the longitudes are a circle;
/// by a multiple of the coarsest level's cells).
struct Order {
  at::MemoryFormat format = at::MemoryFormat::Contiguous;
  std::vector<int64_t> bands = {};  ///< rows of each band; empty: all at once
  int64_t turn = 0;  ///< points by which the globe is turned before the step, and back after it
};

std::vector<Order> orders(int64_t width, const std::vector<int64_t>& rows) {
  constexpr int64_t kCell = 8;
  std::vector<Order> result;
  for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
    result.push_back({format});
    result.push_back({format, rows});
  }
  const int64_t half = width / (2 * kCell) * kCell;
  if (width % kCell == 0 && half > 0) result.push_back({at::MemoryFormat::Contiguous, {}, half});
  return result;
}

/// The mean square error and its gradients, one band after the other.
Tensor backward_in_bands(const Tensor& output, const Tensor& target,
                         const std::vector<int64_t>& bands) {
  Tensor loss = torch::zeros({}, output.options());
  int64_t begin = 0;
  for (const int64_t rows : bands) {
    const Tensor error = output.narrow(2, begin, rows) - target.narrow(2, begin, rows);
    const Tensor part = error.square().sum() / output.numel();
    part.backward({}, /*retain_graph=*/true);
    loss += part.detach();
    begin += rows;
  }
  return loss;
}

NamedTensors plain_step(const Options& options, UNet& model, const Sample& sample,
                        torch::Dtype dtype, const Order& order = {}) {
  const PlainOpWatch watch;
  const Sample turned{sample.input.roll(order.turn, 3).contiguous(order.format),
                      sample.target.roll(order.turn, 3)};
  const auto collect = [&](const Tensor& tensor) {
    return tensor.to(torch::kCPU, torch::kFloat64).roll(-order.turn, 3);
  };
  const auto backward = [&](const Tensor& output, const Tensor& target) {
    return order.bands.empty() ? backward_at_once(output, target)
                               : backward_in_bands(output, target, order.bands);
  };
  NamedTensors results =
      one_step(copy_model(model, options, dtype, order.format), turned, dtype, collect, backward);
  watch.require_plain();
  return results;
}

/// max|a - b| / max|b|; zero when both are zero.
double relative_error(const Tensor& a, const Tensor& b) {
  const double difference = (a - b).abs().max().item<double>();
  if (difference == 0) return 0;
  return difference / b.abs().max().item<double>();
}

struct Row {
  std::string name;
  double in_double = 0;
  double in_float = 0;
  double plain_float = 0;
  bool has_float = false;

  bool ok() const {
    const bool float_ok = !has_float || in_float <= kFloatFactor * plain_float + kFloatFloor;
    return in_double <= kDoubleLimit && float_ok;  // false for NaN, too
  }
};

void print(const std::vector<Row>& rows, const std::string& title) {
  std::printf("%s\n%-28s %12s %12s %12s\n", title.c_str(), "max|a-b|/max|b|", "float64", "float32",
              "plain f32");
  for (const Row& row : rows) {
    std::printf("%-28s %12.2e", row.name.c_str(), row.in_double);
    if (row.has_float) std::printf(" %12.2e %12.2e", row.in_float, row.plain_float);
    std::printf("%s\n", row.ok() ? "" : "  DIFFERS");
  }
}

/// Rank 0's verdict, the same on every rank: how many tensors differ.
int64_t agree_on(int64_t differing, const shard::Communicator& comm) {
  Tensor count = torch::tensor(differing, torch::kLong);
  comm.broadcast(count, 0);
  return count.item<int64_t>();
}

/// Largest errors of plain float32 over several orders of summation, one a tensor.
std::vector<double> plain_float_errors(const Options& options, UNet& model, const Sample& sample,
                                       const std::vector<int64_t>& rows,
                                       const NamedTensors& truth) {
  std::vector<double> errors(truth.size(), 0.0);
  for (const Order& order : orders(sample.input.size(3), rows)) {
    const NamedTensors plain = plain_step(options, model, sample, torch::kFloat32, order);
    for (size_t i = 0; i < truth.size(); ++i) {
      errors[i] = std::max(errors[i], relative_error(plain[i].second, truth[i].second));
    }
  }
  return errors;
}

/// Rank 0 reads the whole field and compares. `in_float` is empty when the job ran in float64.
std::vector<Row> compare(const Options& options, UNet& model, const std::vector<int64_t>& cut,
                         const NamedTensors& in_double, const NamedTensors& in_float) {
  const FieldOptions whole = field_options(options);
  const Sample sample = GlobalField(whole).sample(kMonth);
  const NamedTensors truth = plain_step(options, model, sample, torch::kFloat64);
  std::vector<Row> rows;
  for (size_t i = 0; i < truth.size(); ++i) {
    rows.push_back({truth[i].first, relative_error(in_double[i].second, truth[i].second)});
  }
  if (in_float.empty()) return rows;
  const auto plain = plain_float_errors(options, model, sample, cut, truth);
  for (size_t i = 0; i < truth.size(); ++i) {
    rows[i].has_float = true;
    rows[i].in_float = relative_error(in_float[i].second, truth[i].second);
    rows[i].plain_float = plain[i];
  }
  return rows;
}

}  // namespace

void verify(const Options& options, UNet& model, const ShardedField& field) {
  const Sample sample = field.sample(kMonth);
  const NamedTensors in_double = sharded_step(options, model, sample, torch::kFloat64);
  NamedTensors in_float;
  if (options.dtype() == torch::kFloat32) {
    in_float = sharded_step(options, model, sample, torch::kFloat32);
  }
  const shard::Communicator& comm = field.domain().comm();
  int64_t differing = 0;
  if (comm.rank() == 0) {
    const std::vector<Row> rows = compare(options, model, field.rows(), in_double, in_float);
    differing = std::count_if(rows.begin(), rows.end(), [](const Row& row) { return !row.ok(); });
    print(rows, c10::str("verify: one step, rows ", field.rows(),
                         field.columns().size() > 1 ? c10::str(" x columns ", field.columns()) : "",
                         ", against plain LibTorch"));
  }
  differing = agree_on(differing, comm);
  shard::check<shard::Error>(
      differing == 0, "verify", differing,
      " tensors differ from plain LibTorch; expected none. See the table above.");
  if (comm.rank() == 0) std::printf("verify: %zu tensors equal\n", in_double.size());
}

}  // namespace global_field
