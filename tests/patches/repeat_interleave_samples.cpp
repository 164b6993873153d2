// SPDX-License-Identifier: Apache-2.0
#include <shard/error.h>
#include <shard/launch.h>
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

Tensor d(std::vector<int64_t> sizes) { return torch::randn(sizes, at::kDouble); }
Tensor repeats(int64_t n) { return torch::randint(0, 4, {n}); }

std::vector<Sample> samples() {
  torch::manual_seed(430);
  const auto along = [](int64_t dim) {
    return [dim](const Tensors& t) { return t[0].repeat_interleave(t[1], dim).square(); };
  };
  const Check moves{.traffic = 4};
  const Check numbers{.gradients = false, .both_precisions = false, .traffic = 4};
  return {
      {"rows", {sharded(d({9, 4}), 0), constant(repeats(9), 0)}, along(0), moves},
      {"rows_of_a_transpose",
       {sharded(d({4, 9}).t(), 0), constant(repeats(9), 0)},
       along(0),
       moves},
      {"rows_of_one_column", {sharded(d({9, 1}), 0), constant(repeats(9), 0)}, along(0), moves},
      {"rows_by_whole_numbers", {sharded(d({9, 4}), 0), constant(repeats(9))}, along(0), moves},
      {"rows_all_alike", {sharded(d({9, 4}), 0), constant(repeats(1) + 1)}, along(0), moves},
      {"columns", {sharded(d({4, 9}), 1), constant(repeats(9), 0)}, along(1), moves},
      {"along_a_dim_that_is_not_cut",
       {sharded(d({8, 5}), 0), constant(repeats(5))},
       along(-1),
       moves},
      {"of_a_whole_tensor", {weight(d({9, 4})), constant(repeats(9), 0)}, along(0), moves},
      {"of_all_elements",
       {sharded(d({9, 4}), 0)},
       [](const Tensors& t) {
         const Tensor times = torch::arange(t[0].numel()).remainder(3);
         return t[0].repeat_interleave(times).square();
       },
       Check{.traffic = 8, .holds_whole = "the plain numbers of repeats are"}},
      {"row_numbers",
       {constant(repeats(13), 0)},
       [](const Tensors& t) { return at::repeat_interleave(t[0]).to(at::kDouble); },
       numbers},
      {"of_known_size",
       {sharded(d({9, 4}), 0), constant(repeats(9), 0)},
       [](const Tensors& t) {
         return t[0].repeat_interleave(t[1], 0, t[1].sum().item<int64_t>()).square();
       },
       moves},
  };
}
SHARD_SAMPLES(RepeatInterleave, samples());

TEST(RepeatInterleaveErrors, AreTheSameOnAllRanks) {
  run_ranks(3, [](World& world) {
    const Tensor numbers = scatter_tensor(torch::arange(8, -1, -1), 0, world.mesh(), {Shard(0)});
    EXPECT_THROW(at::repeat_interleave(numbers - 1), SpecMismatch);  // the last one is negative
    EXPECT_THROW(at::repeat_interleave(numbers, std::optional<int64_t>(4)), SpecMismatch);  // 36
  });
}

}  // namespace
}  // namespace shard::testing
