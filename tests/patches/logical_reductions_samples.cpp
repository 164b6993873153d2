// SPDX-License-Identifier: Apache-2.0
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

std::vector<Sample> samples() {
  torch::manual_seed(5);
  const auto rare = [] { return torch::rand({2, 8, 3}) > 0.9; };
  return {
      {"any_of_everything", {constant(rare(), 1)}, [](const Tensors& t) { return t[0].any(); }},
      {"any_over_the_sharded_dim",
       {constant(rare(), 1)},
       [](const Tensors& t) { return t[0].any(1); }},
      {"any_over_two_dims",
       {constant(rare(), 1)},
       [](const Tensors& t) {
         return at::any(t[0], at::IntArrayRef{0, 1});
       }},
      {"any_over_an_unsharded_dim",
       {constant(rare(), 1)},
       [](const Tensors& t) { return t[0].any(2); }},
      {"all_of_everything", {constant(~rare(), 1)}, [](const Tensors& t) { return t[0].all(); }},
      {"all_over_the_sharded_dim",
       {constant(~rare(), 1)},
       [](const Tensors& t) { return t[0].all(1, true); }},
      {"all_of_bytes",
       {constant((~rare()).to(at::kByte), 1)},
       [](const Tensors& t) { return t[0].all(1); }},
  };
}

SHARD_SAMPLES(LogicalReductions, samples());

/// any and all over any dim.
Sample random_sample(Random& r) {
  const auto sizes = r.sizes(r.integer(1, 4), 1, 8);
  const auto last = static_cast<int64_t>(sizes.size()) - 1;
  const int64_t over = r.integer(0, last);
  const int64_t kind = r.integer(0, 3);
  const bool keeps = r.coin();
  const at::Tensor flags = r.tensor(sizes) > r.integer(-1, 1);
  return {"random", {constant(flags, r.integer(0, last))}, [=](const Tensors& t) {
            if (kind == 0) return t[0].any(over, keeps);
            if (kind == 1) return t[0].all(over, keeps);
            return kind == 2 ? t[0].any() : t[0].all();
          }};
}
SHARD_RANDOM_SAMPLES(RandomLogicalReductions, random_sample);

std::vector<Sample> hashes() {
  torch::manual_seed(74);
  const Check forward{.gradients = false, .double_backward = false, .both_precisions = false};
  const auto of = [&](const std::string& name, std::vector<int64_t> dims) {
    return Sample{name,
                  {constant(torch::randint(-9, 9, {2, 8, 3}, at::kLong), 1)},
                  [dims](const std::vector<at::Tensor>& t) {
                    return at::hash_tensor(t[0], dims).view(at::kLong);
                  },
                  forward};
  };
  return {of("hash_of_all", {}), of("hash_over_the_cut_dim", {1}), of("hash_over_another", {2})};
}
SHARD_SAMPLES(HashedReductions, hashes());

}  // namespace
}  // namespace shard::testing
