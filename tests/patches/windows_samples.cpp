// SPDX-License-Identifier: Apache-2.0
#include <shard/comm_counter.h>
#include <shard/error.h>
#include <shard/launch.h>
#include <shard/tensor.h>
#include <support/rank_errors.h>
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

Tensor d(const std::vector<int64_t>& sizes) { return torch::randn(sizes, at::kDouble); }

Sample unfolded(const std::string& name, const Tensor& x, int64_t cut, int64_t dim, int64_t size,
                int64_t step, Check check = {}) {
  return {name,
          {sharded(x, cut)},
          [=](const Tensors& t) { return t[0].unfold(dim, size, step).square(); },
          std::move(check)};
}

std::vector<Sample> samples() {
  torch::manual_seed(260);
  Check moves{.traffic = 2.25};
  Check one_window{.traffic = 2};
  one_window.holds_whole = "the window is the whole tensor";
  return {
      unfolded("along_another_dim", d({2, 8, 6}), 1, 2, 3, 2),
      unfolded("along_the_cut_dim", d({2, 8, 6}), 1, 1, 3, 2),
      unfolded("one_dim", d({13}), 0, 0, 3, 1),
      unfolded("next_to_each_other", d({16}), 0, 0, 4, 4),
      unfolded("with_gaps", d({17, 2}), 0, 0, 2, 5),
      unfolded("a_step_beyond_the_end", d({11}), 0, 0, 3, 40),
      unfolded("one_row_each", d({11}), 0, -1, 1, 1),
      unfolded("no_rows_each", d({7}), 0, 0, 0, 2, Check{.double_backward = false}),
      unfolded("over_several_ranks", d({19}), 0, 0, 11, 2, one_window),
      unfolded("the_whole", d({11}), 0, 0, 11, 1, one_window),
      unfolded("one_row_in_all", d({1}), 0, 0, 1, 1, one_window),
      unfolded("most_rows_of_many_lines", d({9, 8}), 0, 0, 7, 1, moves),
      unfolded("most_rows_of_one_line", d({1, 12}), 1, 1, 7, 1, one_window),
      unfolded("the_middle_dim", d({3, 14, 4}).transpose(0, 2), 1, 1, 4, 3),
      unfolded("not_contiguous", d({3, 13}).t(), 0, 0, 3, 2),
      {"twice",
       {sharded(d({12, 10}), 0)},
       [](const Tensors& t) { return t[0].unfold(0, 3, 2).unfold(1, 2, 1).square(); }},
      {"windows_of_windows",
       {sharded(d({23}), 0)},
       [](const Tensors& t) { return t[0].unfold(0, 5, 2).unfold(0, 2, 1).square(); }},
      {"copied",
       {sharded(d({2, 8, 6}), 1)},
       [](const Tensors& t) { return at::unfold_copy(t[0], 2, 2, 1).square(); }},
      {"copied_along_the_cut_dim",
       {sharded(d({14, 2}), 0)},
       [](const Tensors& t) { return at::unfold_copy(t[0], 0, 3, 2).square(); }},
      {"sums_of_windows",
       {sharded(d({6, 3}), 0)},
       [](const Tensors& t) {
         const int64_t n = 2 * t[0].size(0) + 1;
         return at::unfold_backward(t[0], {n}, 0, 3, 2).square();
       }},
  };
}
SHARD_SAMPLES(Windows, samples());

Sample random_sample(Random& r) {
  const auto sizes = r.sizes(r.integer(1, 3), 1, 13);
  const auto last = static_cast<int64_t>(sizes.size()) - 1;
  const int64_t dim = r.integer(0, last);
  Check check{.traffic = 4};
  check.holds_whole = "some windows are as long as the tensor";
  return unfolded("random", r.tensor(sizes), r.coin() ? dim : r.integer(0, last), dim,
                  r.integer(1, sizes[static_cast<size_t>(dim)]), r.integer(1, 5), check);
}
SHARD_RANDOM_SAMPLES(RandomWindows, random_sample);

TEST(Windows, OnlyRowsBeyondTheBoundariesTravel) {
  run_ranks(4, [](World& world) {
    const Tensor x = scatter_tensor(d({400}), 0, world.mesh(), {Shard(0)});
    const CommCounter counter;
    const Tensor y = x.unfold(0, 6, 2);
    EXPECT_EQ(ShardTensor(y).spec().placement(), Shard(0)) << ShardTensor(y).spec();
    const int64_t bytes = counter.bytes();
    EXPECT_LE(bytes, 2 * 4 * int64_t{sizeof(double)}) << counter.table();
  });
}

TEST(Windows, ThatNoBoundaryCutsAreViews) {
  run_ranks(3, [](World& world) {
    const Tensor x = scatter_tensor(d({12}), 0, world.mesh(), {Shard(0)}, {4, 0, 8});
    const CommCounter counter;
    x.unfold(0, 4, 4).fill_(7);
    EXPECT_EQ(counter.bytes(), 0) << counter.table();
    EXPECT_TRUE(x.eq(7).all().item<bool>());
  });
}

TEST(Windows, ThatCrossABoundaryAreCopiesWhichCannotBeWritten) {
  expect_same_error<SpecMismatch>(2, "copy", [](const DeviceMesh& mesh) {
    const Tensor x = scatter_tensor(d({12}), 0, mesh, {Shard(0)});
    return [y = x.unfold(0, 3, 1)] { y.fill_(7); };
  });
}

TEST(Windows, LargerThanTheTensorAreRefusedAlikeOnEveryRank) {
  expect_same_error<SpecMismatch>(2, "0 <= size <= 12", [](const DeviceMesh& mesh) {
    const Tensor x = scatter_tensor(d({12}), 0, mesh, {Shard(0)});
    return [x] { at::unfold_copy(x, 0, 13, 1); };
  });
}

}  // namespace
}  // namespace shard::testing
