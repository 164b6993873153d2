// SPDX-License-Identifier: Apache-2.0
#include <support/samples.h>
#include <torch/torch.h>

namespace shard::testing {
namespace {

namespace F = torch::nn::functional;
using torch::Tensor;
using Tensors = std::vector<Tensor>;
using Options = F::InterpolateFuncOptions;

Options by_factor(std::vector<double> factor) { return Options().scale_factor(factor); }
Options to_size(std::vector<int64_t> size) { return Options().size(size); }

Sample bicubic_case(std::string name, const Options& options, bool align_corners = false,
                    Tensor x = torch::randn({2, 2, 9, 5}), int64_t dim = 2) {
  return {std::move(name), {sharded(std::move(x), dim)}, [=](const Tensors& t) {
            // Linear: its double backward shows behind something that is not.
            const Tensor y = F::interpolate(
                t[0], Options(options).mode(torch::kBicubic).align_corners(align_corners));
            return y * (y + 1);
          }};
}

std::vector<Sample> cases() {
  torch::manual_seed(41);
  const auto field = [](const std::vector<int64_t>& sizes) { return torch::randn(sizes); };
  return {
      bicubic_case("times_2", by_factor({2, 2})),
      bicubic_case("times_2_aligned_corners", by_factor({2, 2}), true),
      bicubic_case("times_1_5", by_factor({1.5, 1.5})),
      bicubic_case("times_0_5", by_factor({0.5, 0.5})),
      bicubic_case("different_factors", by_factor({1.7, 0.6})),
      bicubic_case("to_an_odd_size", to_size({19, 7})),
      bicubic_case("to_an_odd_size_aligned_corners", to_size({14, 7}), true),
      bicubic_case("to_its_own_size", to_size({9, 5})),
      bicubic_case("to_a_smaller_size", to_size({4, 3})),
      bicubic_case("to_one_row", to_size({1, 5})),
      bicubic_case("only_columns_of_row_shards", by_factor({1, 2})),
      bicubic_case("from_one_row", to_size({4, 6}), false, field({1, 2, 1, 5})),
      bicubic_case("sharded_by_columns", by_factor({1.5, 2}), false, field({1, 2, 4, 9}), 3),
      bicubic_case("batch_shard", by_factor({2, 2}), false, field({5, 2, 4, 4}), 0),
      bicubic_case("channel_shard", by_factor({2, 2}), false, field({1, 5, 4, 4}), 1),
      bicubic_case("non_contiguous", by_factor({2, 2}), false, field({1, 2, 5, 9}).transpose(2, 3)),
      bicubic_case("channels_last", to_size({13, 8}), false,
                   field({2, 4, 9, 6}).contiguous(torch::MemoryFormat::ChannelsLast)),
  };
}
SHARD_SAMPLES(Bicubic, cases());

Sample random_sample(Random& r) {
  auto sizes = r.sizes(2, 1, 8);
  const auto to = r.sizes(2, 1, 12);
  sizes.insert(sizes.begin(), {r.integer(1, 2), 2});
  const bool corners = r.coin();
  return {"random", {sharded(r.tensor(sizes), r.integer(0, 3))}, [=](const Tensors& t) {
            return at::upsample_bicubic2d(t[0], to, corners);
          }};
}
SHARD_RANDOM_SAMPLES(RandomBicubic, random_sample);

}  // namespace
}  // namespace shard::testing
