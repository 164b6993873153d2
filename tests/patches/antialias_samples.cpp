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

/// With both filters.
void add(std::vector<Sample>& all, const std::string& name, const Options& options,
         bool align_corners = false, const Tensor& x = torch::randn({2, 2, 9, 5}),
         int64_t dim = 2) {
  const auto with = [&](const auto& mode) -> Function {
    return [=](const Tensors& t) {
      const Tensor y = F::interpolate(
          t[0], Options(options).mode(mode).align_corners(align_corners).antialias(true));
      return y * (y + 1);  // its double backward shows behind something that is not linear
    };
  };
  all.push_back({name + "_bilinear", {sharded(x, dim)}, with(torch::kBilinear)});
  all.push_back({name + "_bicubic", {sharded(x, dim)}, with(torch::kBicubic)});
}

std::vector<Sample> cases() {
  torch::manual_seed(43);
  const auto field = [](const std::vector<int64_t>& sizes) { return torch::randn(sizes); };
  std::vector<Sample> all;
  add(all, "times_2", by_factor({2, 2}));
  add(all, "times_1_5", by_factor({1.5, 1.5}));
  add(all, "times_0_5", by_factor({0.5, 0.5}));
  add(all, "times_0_3", by_factor({0.3, 0.5}), false, field({1, 2, 16, 5}));
  add(all, "different_factors", by_factor({1.7, 0.6}));
  add(all, "different_factors_shrinking", by_factor({0.6, 1.7}));
  add(all, "to_a_smaller_size", to_size({4, 3}));
  add(all, "to_a_smaller_size_aligned_corners", to_size({4, 3}), true);
  add(all, "to_an_odd_size_aligned_corners", to_size({14, 7}), true);
  add(all, "to_its_own_size", to_size({9, 5}));
  add(all, "to_one_row", to_size({1, 5}));
  add(all, "only_columns_of_row_shards", by_factor({1, 0.5}));
  add(all, "from_one_row", to_size({4, 6}), false, field({1, 2, 1, 5}));
  add(all, "sharded_by_columns", by_factor({1.5, 0.4}), false, field({1, 2, 4, 9}), 3);
  add(all, "batch_shard", by_factor({0.5, 2}), false, field({5, 2, 4, 4}), 0);
  add(all, "channel_shard", by_factor({0.5, 2}), false, field({1, 5, 4, 4}), 1);
  add(all, "non_contiguous", by_factor({0.5, 2}), false, field({1, 2, 5, 9}).transpose(2, 3));
  add(all, "channels_last", to_size({5, 8}), false,
      field({2, 4, 9, 6}).contiguous(torch::MemoryFormat::ChannelsLast));
  for (auto& sample : all) {
    if (sample.name.find("_size") == std::string::npos && sample.name.rfind("from", 0) != 0 &&
        sample.name.rfind("channels_last", 0) != 0 && sample.name.rfind("to_one", 0) != 0)
      continue;
    sample.check.traffic = 8;
    sample.check.holds_whole = "a few rows are made of all rows of a large image";
  }
  return all;
}
SHARD_SAMPLES(Antialias, cases());

Sample random_sample(Random& r) {
  auto sizes = r.sizes(2, 1, 12);
  // Of one column LibTorch's own kernel is wrong: ToOneColumnIsRight.
  const std::vector<int64_t> to{r.integer(1, 12), r.integer(2, 12)};
  sizes.insert(sizes.begin(), {r.integer(1, 2), 2});
  const bool corners = r.coin();
  const bool is_cubic = r.coin();
  const Function function = [=](const Tensors& t) {
    return is_cubic ? at::_upsample_bicubic2d_aa(t[0], to, corners)
                    : at::_upsample_bilinear2d_aa(t[0], to, corners);
  };
  return with_costs({"random", {sharded(r.tensor(sizes), r.integer(0, 3))}, function}, 8,
                    "a few rows are made of all rows of a large image");
}
SHARD_RANDOM_SAMPLES(RandomAntialias, random_sample);

}  // namespace
}  // namespace shard::testing
