// SPDX-License-Identifier: Apache-2.0
// Whether a result can be viewed, and whether contiguous() copies it, is the same on every rank,
// also where a rank has no row or one, of which strides tell nothing.
#include <gtest/gtest.h>
#include <shard/launch.h>
#include <shard/primitives.h>
#include <shard/testing.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <set>

namespace shard::testing {
namespace {

using at::Tensor;

struct Made {
  const char* name;
  std::function<Tensor(const Tensor&)> function;
};

/// Of a (2, 3, 8, 6) tensor.
const std::vector<Made>& results() {
  static const Tensor w = torch::randn({3, 3, 3, 3}, at::kDouble);
  static const std::vector<Made> all{
      {"relu", [](const Tensor& x) { return x.relu(); }},
      {"sum with another", [](const Tensor& x) { return x + x.contiguous(); }},
      {"conv2d", [](const Tensor& x) { return torch::conv2d(x, w, {}, 1, 1); }},
      {"conv2d of channels last weights",
       [](const Tensor& x) {
         return torch::conv2d(x, w.contiguous(at::MemoryFormat::ChannelsLast), {}, 1, 1);
       }},
      {"max_pool2d", [](const Tensor& x) { return torch::max_pool2d(x, 3, 1, 1); }},
      {"softmax", [](const Tensor& x) { return x.softmax(1); }},
      {"group_norm", [](const Tensor& x) { return torch::group_norm(x, 3); }},
      {"batch_norm",
       [](const Tensor& x) {
         return torch::batch_norm(x, {}, {}, {}, {}, true, 0.1, 1e-5, false);
       }},
      {"interpolation",
       [](const Tensor& x) {
         return torch::upsample_nearest2d(x, {16, 12});
       }},
      {"pad",
       [](const Tensor& x) {
         return torch::constant_pad_nd(x, {1, 1, 1, 1});
       }},
      {"mean over rows", [](const Tensor& x) { return x.mean(2, true); }},
      {"clone", [](const Tensor& x) { return x.clone(); }},
      {"cat",
       [](const Tensor& x) {
         return torch::cat({x, x}, 1);
       }},
  };
  return all;
}

const std::vector<Made>& inputs() {
  static const std::vector<Made> all{
      {"channels last",
       [](const Tensor& x) { return x.contiguous(at::MemoryFormat::ChannelsLast); }},
      {"transpose", [](const Tensor& x) { return x.transpose(2, 3).contiguous().transpose(2, 3); }},
      {"contiguous", [](const Tensor& x) { return x; }},
  };
  return all;
}

std::set<std::string> seen_by_ranks(const Tensor& y) {
  std::string text =
      c10::str(y.strides(), y.is_contiguous(), y.is_contiguous(at::MemoryFormat::ChannelsLast));
  for (const auto& sizes : std::vector<std::vector<int64_t>>{
           {y.size(0), -1}, {y.size(0), y.size(1), -1}, {-1, y.size(3)}, {-1}}) {
    try {
      (void)y.view(sizes);
      text += " viewed";
    } catch (const std::exception&) {
      text += " refused";
    }
  }
  const auto all = mesh_of(y).comm().all_gather_bytes(text);
  return {all.begin(), all.end()};
}

TEST(ResultStrides, AreTheSameOnEveryRank) {
  torch::manual_seed(3);
  const Tensor whole = torch::randn({2, 3, 8, 6}, at::kDouble);
  for (const Partition& partition : {Partition{8, 0}, {7, 1}, {0, 8}, {4, 4}}) {
    run_ranks(2, [&](World& world) {
      const auto x = scatter_tensor(whole, 0, world.mesh(), {Shard(2)}, partition);
      for (const auto& input : inputs()) {
        const Tensor given = input.function(x);
        for (const auto& result : results()) {
          const auto seen = seen_by_ranks(result.function(given));
          EXPECT_EQ(seen.size(), 1U)
              << result.name << " of " << input.name << " in pieces " << c10::IntArrayRef(partition)
              << ": " << c10::Join(" | ", std::vector(seen.begin(), seen.end()));
        }
      }
    });
  }
}

}  // namespace
}  // namespace shard::testing
