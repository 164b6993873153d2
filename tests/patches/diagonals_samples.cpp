// SPDX-License-Identifier: Apache-2.0
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor x() { return torch::randn({2, 8, 6}, at::kDouble); }

/// Cut along both of its dims, by different mesh dims, a diagonal is a copy, which may not be
/// written.
const Check kOneCut{.grid = Check::Grid::OneDim};

std::vector<Sample> samples() {
  torch::manual_seed(320);
  return {
      {"tril_of_cut_rows",
       {sharded(x(), 1)},
       [](const Tensors& t) { return t[0].tril(1).square(); }},
      {"tril_of_cut_columns",
       {sharded(x(), 2)},
       [](const Tensors& t) { return t[0].tril(-2).square(); }},
      {"triu_of_cut_rows",
       {sharded(x(), 1)},
       [](const Tensors& t) { return t[0].triu(-1).square(); }},
      {"triu_of_cut_columns",
       {sharded(x(), 2)},
       [](const Tensors& t) { return t[0].triu(2).square(); }},
      {"triu_in_place", {sharded(x(), 1)}, [](const Tensors& t) { return (t[0] * t[0]).triu_(1); }},
      {"tril_in_place", {sharded(x(), 2)}, [](const Tensors& t) { return (t[0] * t[0]).tril_(); }},
      {"diagonal_of_cut_rows",
       {sharded(x(), 1)},
       [](const Tensors& t) { return t[0].diagonal(1, 1, 2).square(); }},
      {"diagonal_of_cut_columns",
       {sharded(x(), 2)},
       [](const Tensors& t) { return t[0].diagonal(-3, 1, 2).square(); }},
      {"diagonal_of_other_dims",
       {sharded(x(), 1)},
       [](const Tensors& t) { return t[0].diagonal(0, 2, 0).square(); }},
      {"diagonal_written",
       {sharded(x(), 1)},
       [](const Tensors& t) {
         const at::Tensor y = t[0] * t[0];
         y.diagonal(-1, 1, 2).mul_(3);
         return y.square();
       },
       kOneCut},
      {"diagonal_copy",
       {sharded(x(), 1)},
       [](const Tensors& t) { return at::diagonal_copy(t[0], 2, 1, 2).square(); }},
      {"diagonal_scatter",
       {sharded(x(), 1), weight(torch::randn({2, 6}, at::kDouble))},
       [](const Tensors& t) { return at::diagonal_scatter(t[0], t[1], 0, 1, 2).square(); },
       kOneCut},
      {"diag_embed",
       {sharded(x(), 1)},
       [](const Tensors& t) { return at::diag_embed(t[0], 1, 0, 2).square(); }},
      {"diag_embed_of_a_cut_diagonal",
       {sharded(x(), 2)},
       [](const Tensors& t) { return at::diag_embed(t[0], -2, 3, 1).square(); }},
      {"diag_of_a_vector",
       {sharded(torch::randn({7}, at::kDouble), 0)},
       [](const Tensors& t) { return at::diag(t[0], 1).square(); }},
      {"diagflat",
       {sharded(torch::randn({7}, at::kDouble), 0)},
       [](const Tensors& t) { return at::diagflat(t[0], -3).square(); }},
      {"trace",
       {sharded(torch::randn({8, 8}, at::kDouble), 0)},
       [](const Tensors& t) { return at::trace(t[0]).square(); }},
      {"trace_of_more_columns",
       {sharded(torch::randn({6, 9}, at::kDouble), 1)},
       [](const Tensors& t) { return at::trace(t[0]).square(); }},
  };
}
SHARD_SAMPLES(Diagonals, samples());

/// A matrix cut anywhere, any diagonal.
Sample random_sample(Random& r) {
  const auto sizes = r.sizes(r.integer(2, 4), 1, 8);
  const auto last = static_cast<int64_t>(sizes.size()) - 1;
  const int64_t diagonal = r.integer(-4, 4);
  const int64_t kind = r.integer(0, 2);
  const Input input = sharded(r.tensor(sizes), r.integer(0, last));
  const Function function = [=](const Tensors& t) {
    if (kind == 0) return t[0].tril(diagonal).square();
    if (kind == 1) return t[0].triu(diagonal).square();
    const int64_t rows = t[0].size(-2);
    const int64_t columns = t[0].size(-1);
    return t[0].diagonal(std::clamp(diagonal, 1 - rows, columns - 1), -2, -1).square();
  };
  return {"random", {input}, function};
}
SHARD_RANDOM_SAMPLES(RandomDiagonals, random_sample);

}  // namespace
}  // namespace shard::testing
