// SPDX-License-Identifier: Apache-2.0
// NOTE [Turns] on a simulated GPU. That it draws as LibTorch's kernels do is judged by numbers that
// torch.rand and torch.randn are known to give on GPUs.
#include "random/turns.h"

#include <gtest/gtest.h>
#include <shard/error.h>
#include <shard/fill.h>
#include <shard/tensor.h>
#include <torch/types.h>

#include "random/draw.h"
#include "random/philox_device.h"
#include "support/rank_errors.h"

namespace shard::testing {
namespace {

using at::Tensor;

constexpr PhiloxDevice kDevice{1024};

/// Writes `values`, made in the order of memory.
void write_in_memory_order(const Tensor& numbers, const Tensor& values) {
  std::vector<int64_t> order(static_cast<size_t>(numbers.dim()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return numbers.stride(a) > numbers.stride(b); });
  const Tensor in_order = numbers.permute(order);
  in_order.copy_(values.view(in_order.sizes()));
}

Sampler uniform() {
  return {"uniform", [](const Tensor& numbers, const at::Generator& generator) {
            const Tensor values = torch::empty({numbers.numel()}, torch::kDouble);
            auto* to = values.mutable_data_ptr<double>();
            const int64_t per_turn = numbers.scalar_type() == at::kDouble ? 2 : 4;
            kDevice.strided(numbers.numel(), per_turn, generator,
                            [&](int64_t place, const auto& words, int64_t i) {
                              const float u = uniform_of(words[static_cast<size_t>(i)]);
                              to[place] = u == 1 ? 0 : u;
                            });
            write_in_memory_order(numbers, values);
          }};
}

Sampler normal() {
  return {"normal", [](const Tensor& numbers, const at::Generator& generator) {
            const Tensor values = torch::empty({numbers.numel()}, torch::kDouble);
            auto* to = values.mutable_data_ptr<double>();
            kDevice.strided(numbers.numel(), 4, generator,
                            [&](int64_t place, const auto& words, int64_t i) {
                              const auto pair = static_cast<size_t>(i / 2 * 2);
                              const double r = std::sqrt(-2 * std::log(uniform_of(words[pair])));
                              const double angle = uniform_of(words[pair + 1]) * 2 * M_PI;
                              to[place] = r * (i % 2 == 0 ? std::sin(angle) : std::cos(angle));
                            });
            write_in_memory_order(numbers, values);
          }};
}

/// As many numbers side by side as 16 bytes have, the count is a multiple of, and memory suits.
int64_t vector_for(const Tensor& numbers) {
  const auto bytes = static_cast<int64_t>(numbers.element_size());
  const auto address = reinterpret_cast<int64_t>(numbers.const_data_ptr());
  int64_t vector = numbers.is_non_overlapping_and_dense() ? 16 / bytes : 1;
  while (numbers.numel() % vector != 0 || address % (vector * bytes) != 0) vector /= 2;
  return vector;
}

Sampler dropout() {
  return {"dropout", [](const Tensor& numbers, const at::Generator& generator) {
            const Tensor values = torch::empty({numbers.numel()}, torch::kDouble);
            auto* to = values.mutable_data_ptr<double>();
            const auto write = [&](int64_t place, const auto& words, int64_t i) {
              to[place] = uniform_of(words[static_cast<size_t>(i)]) < 0.7F ? 1 : 0;
            };
            const int64_t vector = vector_for(numbers);
            if (vector == 1) {
              kDevice.strided(numbers.numel(), 4, generator, write);
            } else {
              kDevice.side_by_side(numbers.numel(), vector, generator, write);
            }
            write_in_memory_order(numbers, values);
          }};
}

WholeTensor geometry(const Tensor& x) {
  return {{x.sizes().begin(), x.sizes().end()},
          {x.strides().begin(), x.strides().end()},
          x.scalar_type()};
}

/// Four uneven pieces along `dim`, one of them empty, put together.
Tensor in_pieces(const Tensor& like, const Sampler& sampler, int64_t dim,
                 const at::Generator& generator) {
  const RandomDraw draw(geometry(like), sampler, generator);
  const int64_t rows = like.size(dim);
  std::vector<Tensor> pieces;
  for (const auto& [begin, end] : {std::pair{int64_t{0}, rows / 5},
                                   {rows / 5, rows / 5},
                                   {rows / 5, rows - 1},
                                   {rows - 1, rows}}) {
    Box box{Shape(static_cast<size_t>(like.dim()), 0), Shape(like.sizes())};
    box.begin[static_cast<size_t>(dim)] = begin;
    box.size[static_cast<size_t>(dim)] = end - begin;
    pieces.push_back(draw.part(box));
  }
  return torch::cat(pieces, dim);
}

void expect_the_whole(const Tensor& whole, const Sampler& sampler, int64_t dim) {
  const auto one = PhiloxGenerator::make(7);
  auto other = PhiloxGenerator::make(7);
  for (int draw = 0; draw < 2; ++draw) {  // the second begins where the first has left off
    sampler.fill(whole, one);
    EXPECT_TRUE(at::equal(in_pieces(whole, sampler, dim, other), whole))
        << sampler.op << " of " << whole.sizes() << whole.strides() << " along " << dim;
    EXPECT_EQ(one.get_offset(), other.get_offset()) << sampler.op << " of " << whole.sizes();
  }
}

TEST(PhiloxDevice, DrawsWhatGpusDo) {  // torch.manual_seed(0), device="cuda"
  const Tensor rand = torch::empty({12});
  uniform().fill(rand, PhiloxGenerator::make(0));
  EXPECT_TRUE(at::allclose(rand,
                           torch::tensor({0.3990, 0.5167, 0.0249, 0.9401, 0.9459, 0.7967, 0.4150,
                                          0.8203, 0.2290, 0.9096, 0.1183, 0.0752})
                               .to(torch::kFloat),
                           0, 6e-5))
      << rand;
  const Tensor randn = torch::empty({16});
  normal().fill(randn, PhiloxGenerator::make(0));
  EXPECT_TRUE(at::allclose(
      randn,
      torch::tensor({-0.9247, -0.4253, -2.6438, 0.1452, -0.1209, -0.5797, -0.6229, -0.3284, -1.0745,
                     -0.3631, -1.6711, 2.2655, 0.3117, -0.1842, 1.2866, 1.1820})
          .to(torch::kFloat),
      0, 6e-5))
      << randn;
}

class Turns : public ::testing::TestWithParam<std::tuple<int, at::ScalarType>> {
 protected:
  static Sampler sampler() {
    const std::vector<Sampler> all{uniform(), normal(), dropout()};
    return all[static_cast<size_t>(std::get<0>(GetParam()))];
  }
  static at::ScalarType dtype() { return std::get<1>(GetParam()); }
};

TEST_P(Turns, InPiecesAreTheDrawOfTheWhole) {
  // A turn has 2048 to 8192 numbers. Sizes below, at and above one, odd ones and multiples of the
  // vectors; wide, so that runs are long or short.
  for (const auto& sizes : std::vector<std::vector<int64_t>>{{13},
                                                             {5, 7, 3},
                                                             {4096},
                                                             {4097},
                                                             {70, 1201},
                                                             {70, 1202},
                                                             {3, 100, 36},
                                                             {9002, 2},
                                                             {9001, 2},
                                                             {5, 9001},
                                                             {20003}}) {
    for (size_t dim = 0; dim < sizes.size(); ++dim) {
      if (sizes[dim] < 2) continue;
      expect_the_whole(torch::empty(sizes, dtype()), sampler(), static_cast<int64_t>(dim));
    }
  }
}

TEST_P(Turns, FollowTheMemoryOfTensorsThatAreNotContiguous) {
  const Tensor image = torch::empty({2, 3, 50, 60}, dtype());
  for (const Tensor& whole : {image.contiguous(at::MemoryFormat::ChannelsLast),
                              image.transpose(0, 3), image.permute({1, 3, 0, 2})}) {
    for (const int64_t dim : {2, 3}) expect_the_whole(whole, sampler(), dim);
  }
}

INSTANTIATE_TEST_SUITE_P(Samplers, Turns,
                         ::testing::Combine(::testing::Range(0, 3),
                                            ::testing::Values(at::kFloat, at::kDouble, at::kHalf)));

TEST(Turns, OfTensorsWithGaps) {
  const Tensor image = torch::empty({2, 3, 50, 120});
  expect_the_whole(image.slice(3, 0, 120, 2), uniform(), 2);
  expect_the_whole(image.slice(3, 0, 120, 2), dropout(), 3);
}

TEST(Turns, MayBeginElsewhereThanTheGeneratorMovesTo) {
  const auto generator = PhiloxGenerator::make(1);
  const auto turns = [&](at::ScalarType dtype) {
    return turns_of(dropout(), {dtype}, false, generator);
  };
  EXPECT_EQ(turns(at::kFloat).size, 4096);
  EXPECT_EQ(turns(at::kFloat).apart, 4U);
  EXPECT_EQ(turns(at::kHalf).size, 8192);
  EXPECT_EQ(turns(at::kHalf).apart, 8U);
  EXPECT_EQ(turns(at::kHalf).taken(5000), 8U);
  EXPECT_EQ(turns(at::kDouble).size, 4096);
  EXPECT_EQ(turns(at::kDouble).apart, 8U);
  EXPECT_EQ(turns(at::kDouble).taken(5000), 8U);
  EXPECT_EQ(turns(at::kDouble).taken(4000), 4U);
  EXPECT_EQ(generator.get_offset(), 0U) << "a trial leaves the generator as it is";
}

TEST(Turns, AreRefusedForASamplerThatDoesNotWorkSo) {
  // Every number depends on how many there are.
  const Sampler odd{"odd", [](const Tensor& numbers, const at::Generator& generator) {
                      uniform().fill(numbers, generator);
                      numbers.add_(numbers.numel());
                    }};
  EXPECT_THROW(RandomDraw({{40}, {1}}, odd, PhiloxGenerator::make(1)), MissingShardPatch);
  // Takes nothing from the generator.
  const Sampler constant{"constant",
                         [](const Tensor& numbers, const at::Generator&) { numbers.fill_(1); }};
  EXPECT_THROW(RandomDraw({{40}, {1}}, constant, PhiloxGenerator::make(1)), MissingShardPatch);
  // In the order of indices, whatever the memory.
  const Sampler indexed{"indexed", [](const Tensor& numbers, const at::Generator& generator) {
                          const Tensor values = torch::empty(numbers.sizes());
                          uniform().fill(values, generator);
                          numbers.copy_(values);
                        }};
  EXPECT_THROW(RandomDraw({{8, 5}, {1, 8}}, indexed, PhiloxGenerator::make(1)), MissingShardPatch);
  EXPECT_NO_THROW(RandomDraw({{8, 5}, {5, 1}}, indexed, PhiloxGenerator::make(1)));
}

TEST(Turns, OfWrongParametersAreRefusedOnEveryRank) {
  const Sampler wrong{"uniform", [](const Tensor& /*numbers*/, const at::Generator& /*generator*/) {
                        TORCH_CHECK(false, "from > to");
                      }};
  expect_same_error<c10::Error>(3, "from > to", [&](const DeviceMesh& mesh) {
    const Tensor x = zeros({7}, mesh, {Shard(0)}, {}, {0, 7, 0});
    const auto generator = PhiloxGenerator::make(1);
    fill_as_one_device(x, uniform(), generator);  // its kernel is known from here on
    return [=] { fill_as_one_device(x, wrong, generator); };
  });
}

TEST(Turns, AreRefusedWhereAGpuNeedsSeveralLaunches) {
  const int64_t rows = int64_t{1} << 20;
  EXPECT_THROW(RandomDraw({{rows, 1024}, {1024, 1}}, uniform(), PhiloxGenerator::make(1)),
               MissingShardPatch);
}

}  // namespace
}  // namespace shard::testing
