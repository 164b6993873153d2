// SPDX-License-Identifier: Apache-2.0
// Random numbers on shards of tensors so large that a GPU draws them in several turns
// (src/random/turns.h): those of one device, and so is the generator's state. With
// SHARD_TEST_DEVICE=cuda on GPUs.
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_dropout.h>
#include <ATen/ops/rand_like.h>
#include <gtest/gtest.h>
#include <shard/launch.h>
#include <shard/shard.h>
#include <torch/types.h>

#include <functional>
#include <limits>

#include "mpi_world.h"

namespace shard::testing {
namespace {

using at::Tensor;

struct Draw {
  const char* name;
  std::function<Tensor(const Tensor&)> draw;
};

constexpr std::optional<int64_t> kNoEnd;

const std::vector<Draw>& draws() {
  static const auto* all = new std::vector<Draw>{
      {"rand_like", [](const Tensor& x) { return at::rand_like(x); }},
      {"normal_", [](const Tensor& x) { return at::empty_like(x).normal_(1, 2); }},
      {"exponential_", [](const Tensor& x) { return at::empty_like(x).exponential_(3); }},
      {"bernoulli_ of zeros", [](const Tensor& x) { return at::empty_like(x).bernoulli_(0); }},
      {"bernoulli_(p)", [](const Tensor& x) { return at::empty_like(x).bernoulli_(0.3); }},
      {"bernoulli_(tensor)", [](const Tensor& x) { return at::bernoulli(x); }},
      {"random_", [](const Tensor& x) { return at::empty_like(x).random_(0, 1000); }},
      {"random_ of longs",
       [](const Tensor& x) { return at::empty_like(x, at::kLong).random_(0, 1000); }},
      {"random_ of a wide range",
       [](const Tensor& x) { return at::empty_like(x, at::kLong).random_(-5, int64_t{1} << 40); }},
      {"random_ of the last longs",
       [](const Tensor& x) {
         return at::empty_like(x, at::kLong)
             .random_(std::numeric_limits<int64_t>::max() - 9, kNoEnd);
       }},
      {"random_ of longs that are not negative",
       [](const Tensor& x) { return at::empty_like(x, at::kLong).random_(0, kNoEnd); }},
      {"native_dropout of nothing",
       [](const Tensor& x) { return std::get<0>(at::native_dropout(x, 0, true)); }},
      {"dropout", [](const Tensor& x) { return at::dropout(x, 0.4, true); }}};
  return *all;
}

TEST(RandomNumbersOnMpiRanks, OfLargeTensorsAreThoseOfOneDevice) {
  const World& world = mpi_job();
  manual_seed(4);
  const at::TensorOptions options(world.device());
  const int64_t rows = world.device().is_cpu() ? 50 : 1700;  // millions of numbers take CPUs long
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf}) {
    for (const std::vector<int64_t>& sizes :
         std::vector<std::vector<int64_t>>{{rows, 1601}, {rows, 1602}, {3, rows / 2, 1111}}) {
      const Tensor x = torch::rand(sizes, options).to(dtype);
      for (const auto& [name, draw] : draws()) {
        manual_seed(5);
        const Tensor whole = draw(x);
        const Tensor next = torch::rand({7}, options);
        for (int64_t dim = 0; dim < x.dim(); ++dim) {
          const Tensor cut = scatter_tensor(x, 0, world.mesh(), {Shard(dim)});
          manual_seed(5);
          const Tensor drawn = draw(cut);
          EXPECT_TRUE(at::equal(ShardTensor(drawn).full(), whole))
              << name << ' ' << dtype << ' ' << x.sizes() << " along " << dim;
          EXPECT_TRUE(at::equal(torch::rand({7}, options), next)) << name << ": another state";
        }
      }
    }
  }
}

}  // namespace
}  // namespace shard::testing
