// SPDX-License-Identifier: Apache-2.0
#include <shard/neighborhood_attention.h>
#include <support/samples.h>
#include <torch/torch.h>

namespace shard::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

struct Options {
  std::vector<int64_t> kernel;
  std::vector<int64_t> dilation = {1};
  std::vector<bool> is_causal = {false};
  std::optional<double> scale = std::nullopt;
};

Function neighbors(Options options) {
  return [=](const Tensors& t) {
    return neighborhood_attention(t[0], t[1], t[2], options.kernel, options.dilation,
                                  options.is_causal, options.scale);
  };
}

/// Query, key and value of (batch, points..., 2 heads, 3 features) cut along a dim.
std::vector<Input> qkv(const std::vector<int64_t>& points, int64_t cut, int64_t width = 3) {
  std::vector<int64_t> sizes{2};
  sizes.insert(sizes.end(), points.begin(), points.end());
  sizes.insert(sizes.end(), {2, 3});
  std::vector<int64_t> of_value(sizes);
  of_value.back() = width;
  return {sharded(torch::randn(sizes), cut), sharded(torch::randn(sizes), cut),
          sharded(torch::randn(of_value), cut)};
}

std::vector<Sample> samples() {
  torch::manual_seed(6);
  return {
      {"line", qkv({11}, 1), neighbors({{3}})},
      {"line_of_a_prime_length_dilated", qkv({13}, 1), neighbors({{3}, {2}})},
      {"line_causal", qkv({11}, 1), neighbors({{4}, {1}, {true}})},
      {"line_causal_dilated", qkv({11}, 1), neighbors({{3}, {3}, {true}})},
      {"line_even_kernel", qkv({11}, 1), neighbors({{4}, {2}})},
      {"line_kernel_of_all_points", qkv({7}, 1), neighbors({{7}})},
      // The weight of a single neighbour is one: gradients of query and key are rounding.
      {"line_kernel_of_one",
       {constant(torch::randn({2, 7, 2, 3}), 1), constant(torch::randn({2, 7, 2, 3}), 1),
        sharded(torch::randn({2, 7, 2, 3}), 1)},
       neighbors({{1}, {3}})},
      {"line_channels_last",
       {sharded(torch::randn({2, 7, 2, 3}).contiguous(at::MemoryFormat::ChannelsLast), 1),
        sharded(torch::randn({2, 7, 2, 3}).contiguous(at::MemoryFormat::ChannelsLast), 1),
        sharded(torch::randn({2, 7, 2, 3}).contiguous(at::MemoryFormat::ChannelsLast), 1)},
       neighbors({{3}})},
      {"line_values_wider_than_keys", qkv({9}, 1, 5), neighbors({{5}})},
      {"line_longer_than_a_tile", qkv({83}, 1), neighbors({{5}, {2}})},
      {"plane_cut_along_rows", qkv({9, 6}, 1), neighbors({{3}})},
      {"plane_cut_along_columns", qkv({6, 9}, 2), neighbors({{5, 3}, {1, 2}})},
      {"plane_even_kernel_causal_along_rows", qkv({8, 6}, 1),
       neighbors({{4, 2}, {2, 1}, {true, false}, 0.7})},
      {"plane_cut_along_the_batch", qkv({5, 6}, 0), neighbors({{3}})},
      {"plane_cut_along_the_heads", qkv({5, 6}, 3), neighbors({{3}, {1}, {false, true}})},
      {"plane_cut_along_the_features", qkv({5, 6}, 4), neighbors({{3}})},
      {"volume_cut_along_levels", qkv({7, 4, 3}, 1), neighbors({{3, 3, 2}})},
      {"volume_cut_along_the_last_dim", qkv({3, 4, 7}, 3),
       neighbors({{2, 3, 3}, {1, 1, 2}, {true, false, true}})},
      {"whole_keys",
       {sharded(torch::randn({2, 9, 2, 3}), 1), weight(torch::randn({2, 9, 2, 3})),
        weight(torch::randn({2, 9, 2, 3}))},
       neighbors({{3}})},
      {"queries_and_keys_cut_otherwise",
       {sharded(torch::randn({2, 9, 5, 2, 3}), 1), sharded(torch::randn({2, 9, 5, 2, 3}), 2),
        sharded(torch::randn({2, 9, 5, 2, 3}), 0)},
       neighbors({{3}})},
      {"one_point_of_a_dim", qkv({1, 7}, 2), neighbors({{1, 3}})},
      {"rows_that_are_not_contiguous",
       {sharded(torch::randn({2, 2, 9, 3}).transpose(1, 2), 1),
        sharded(torch::randn({2, 2, 9, 3}).transpose(1, 2), 1),
        sharded(torch::randn({2, 2, 9, 3}).transpose(1, 2), 1)},
       neighbors({{3}})},
  };
}
SHARD_SAMPLES(NeighborhoodAttention,
              with_traffic(with_costs(samples(), 1.5), {{"whole_keys", 9},
                                                        {"queries_and_keys_cut_otherwise", 9},
                                                        {"plane_cut_along_the_features", 9}}));

Sample random_sample(Random& r) {
  const int64_t ndim = r.integer(1, 3);
  Options options{{}, {}, {}};
  std::vector<int64_t> sizes{r.integer(1, 2)};
  for (int64_t d = 0; d < ndim; ++d) {
    options.kernel.push_back(r.integer(d == 0 ? 2 : 1, 4));  // one neighbour: as above
    options.dilation.push_back(r.integer(1, 2));
    options.is_causal.push_back(r.coin());
    sizes.push_back(options.kernel.back() * options.dilation.back() + r.integer(0, 5));
  }
  sizes.insert(sizes.end(), {r.integer(1, 2), r.integer(1, 4)});
  const int64_t cut = r.integer(0, ndim + 2);
  return with_costs({"random",
                     {sharded(r.tensor(sizes), cut), sharded(r.tensor(sizes), cut),
                      sharded(r.tensor(sizes), cut)},
                     neighbors(options)},
                    kCountedElsewhere, "few points");
}
SHARD_RANDOM_SAMPLES(RandomNeighborhoodAttention, random_sample);

}  // namespace
}  // namespace shard::testing
