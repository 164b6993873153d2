// SPDX-License-Identifier: Apache-2.0
#include "random/draw.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <shard/error.h>
#include <torch/types.h>

#include "random/runs.h"

namespace shard::testing {
namespace {

using at::Tensor;

at::Generator seeded() { return at::detail::createCPUGenerator(5); }

Sampler bernoulli() {
  return {"aten::bernoulli_.float", [](const Tensor& numbers, const at::Generator& generator) {
            numbers.bernoulli_(0.3, generator);
          }};
}
Sampler normal() {
  return {"aten::normal_", [](const Tensor& numbers, const at::Generator& generator) {
            numbers.normal_(1, 2, generator);
          }};
}
Sampler uniform() {
  return {"aten::uniform_", [](const Tensor& numbers, const at::Generator& generator) {
            numbers.uniform_(0, 1, generator);
          }};
}

/// Every rank's rows of a tensor cut along `dim` into uneven pieces, put together.
Tensor in_pieces(const WholeTensor& whole, const Sampler& sampler, int64_t dim,
                 const at::Generator& generator) {
  const RandomDraw draw(whole, sampler, generator);
  std::vector<Tensor> pieces;
  const int64_t rows = whole.sizes[static_cast<size_t>(dim)];
  for (const auto& [begin, end] : {std::pair{int64_t{0}, rows / 5},
                                   {rows / 5, rows / 5},
                                   {rows / 5, rows - 1},
                                   {rows - 1, rows}}) {
    Box box{Shape(whole.sizes.size(), 0), whole.sizes};
    box.begin[static_cast<size_t>(dim)] = begin;
    box.size[static_cast<size_t>(dim)] = end - begin;
    pieces.push_back(draw.part(box));
  }
  return torch::cat(pieces, dim);
}

WholeTensor geometry(const Tensor& x) {
  return {{x.sizes().begin(), x.sizes().end()},
          {x.strides().begin(), x.strides().end()},
          x.scalar_type()};
}

class Draw : public ::testing::TestWithParam<std::tuple<int, at::ScalarType>> {
 protected:
  static Sampler sampler() {
    const std::vector<Sampler> all{bernoulli(), normal(), uniform()};
    return all[static_cast<size_t>(std::get<0>(GetParam()))];
  }
};

TEST_P(Draw, InPiecesIsTheDrawOfTheWhole) {
  const auto dtype = std::get<1>(GetParam());
  // Sizes below, at and above a block, and no multiple of 16; wide, so that runs are long or short.
  for (const auto& sizes : std::vector<std::vector<int64_t>>{
           {13}, {16}, {5, 7, 3}, {70, 1201}, {3, 100, 333}, {70001}, {2, 40000}, {40000, 2}}) {
    for (size_t dim = 0; dim < sizes.size(); ++dim) {
      if (sizes[dim] < 2) continue;
      const auto one = seeded();
      const Tensor whole = torch::empty(sizes, dtype);
      sampler().fill(whole, one);
      const auto other = seeded();
      const Tensor parts = in_pieces(geometry(whole), sampler(), static_cast<int64_t>(dim), other);
      EXPECT_TRUE(at::equal(parts, whole)) << c10::IntArrayRef(sizes) << " along " << dim;
      EXPECT_TRUE(at::equal(one.get_state(), other.get_state())) << c10::IntArrayRef(sizes);
    }
  }
}

TEST_P(Draw, FollowsTheMemoryOfTensorsThatAreNotContiguous) {
  const auto dtype = std::get<1>(GetParam());
  const Tensor image = torch::empty({2, 3, 50, 60}, dtype);
  for (const Tensor& whole :
       {image.contiguous(at::MemoryFormat::ChannelsLast), image.transpose(0, 3),
        image.permute({1, 3, 0, 2}), image.slice(3, 0, 60, 2)}) {
    for (const int64_t dim : {2, 3}) {
      const auto one = seeded();
      sampler().fill(whole, one);
      const auto other = seeded();
      EXPECT_TRUE(at::equal(in_pieces(geometry(whole), sampler(), dim, other), whole))
          << whole.strides() << " along " << dim;
      EXPECT_TRUE(at::equal(one.get_state(), other.get_state()));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Samplers, Draw,
                         ::testing::Combine(::testing::Range(0, 3),
                                            ::testing::Values(at::kFloat, at::kDouble,
                                                              at::kBFloat16)));

TEST(RandomDraw, IsRefusedForASamplerThatIsNotSequential) {
  int calls = 0;
  const Sampler odd{"test::odd", [&](const Tensor& numbers, const at::Generator& generator) {
                      numbers.uniform_(0, 1, generator).add_(++calls);
                    }};
  EXPECT_THROW(RandomDraw({{40}, {1}, at::kFloat}, odd, seeded()), MissingShardPatch);
}

TEST(Runs, AreTheElementsOfABoxInOrder) {
  const Tensor places = torch::arange(4 * 5 * 6).view({4, 5, 6});
  const std::vector<int64_t> sizes{4, 5, 6};
  for (const auto& [begin, size] :
       std::vector<std::pair<std::vector<int64_t>, std::vector<int64_t>>>{{{0, 0, 0}, {4, 5, 6}},
                                                                          {{1, 0, 0}, {2, 5, 6}},
                                                                          {{0, 2, 0}, {4, 3, 6}},
                                                                          {{0, 0, 4}, {4, 5, 2}},
                                                                          {{1, 1, 1}, {2, 3, 4}},
                                                                          {{3, 4, 5}, {1, 1, 1}}}) {
    Tensor box = places;
    for (size_t i = 0; i < 3; ++i) box = box.narrow(static_cast<int64_t>(i), begin[i], size[i]);
    const Runs runs(sizes, begin, size);
    std::vector<int64_t> found;
    for (int64_t run = 0; run < runs.count(); ++run) {
      for (int64_t i = 0; i < runs.length(); ++i) found.push_back(runs.begin(run) + i);
    }
    EXPECT_TRUE(at::equal(torch::tensor(found), box.flatten()));
    EXPECT_EQ(runs.first_behind(runs.begin(runs.count() - 1)), runs.count() - 1);
    EXPECT_EQ(runs.first_behind(-1), 0);
  }
}

}  // namespace
}  // namespace shard::testing
