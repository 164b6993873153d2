// SPDX-License-Identifier: Apache-2.0
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

Tensor d(std::vector<int64_t> sizes) { return torch::randn(sizes, at::kDouble); }
/// `count` numbers below `rows`, some more than once, in no order.
Input numbers(int64_t rows, int64_t count, int64_t dim = -1) {
  return constant(torch::randint(0, rows, {count}), dim);
}

// ---- reading rows

std::vector<Sample> reads() {
  torch::manual_seed(180);
  const auto select = [](int64_t dim) {
    return [dim](const Tensors& t) { return t[0].index_select(dim, t[1]).square(); };
  };
  return {
      {"of_the_cut_dim_by_a_whole_list", {sharded(d({2, 8, 6}), 1), numbers(8, 5)}, select(1)},
      {"of_the_cut_dim_by_a_cut_list", {sharded(d({13, 3}), 0), numbers(13, 29, 0)}, select(0)},
      {"of_one_dim_only", {sharded(d({11}), 0), numbers(11, 17, 0)}, select(0)},
      {"of_the_last_dim", {sharded(d({3, 7}).t(), 0), numbers(7, 4)}, select(0)},
      {"of_another_dim", {sharded(d({2, 8, 1}), 1), constant(torch::tensor({1, 1, 0}))}, select(0)},
      {"of_a_whole_tensor_by_a_cut_list", {weight(d({6, 4})), numbers(6, 19, 0)}, select(0)},
      {"of_no_rows", {sharded(d({5, 4}), 0), constant(torch::zeros({0}, at::kLong))}, select(0)},
      {"by_32_bit_numbers",
       {sharded(d({5, 4}), 0), constant(torch::tensor({4, 0, 4}, at::kInt))},
       select(0)},
      {"of_numbers",
       {constant(torch::arange(14).view({7, 2}), 0), numbers(7, 9, 0)},
       [](const Tensors& t) { return t[0].index_select(0, t[1]); },
       Check{.gradients = false}},
  };
}
// Every row named travels at most once to each rank that names it, and its gradient back; the lists
// are longer than the tensors.
SHARD_SAMPLES(RowsRead, with_traffic(reads(), {{"of_the_cut_dim_by_a_whole_list", 2},
                                               {"of_the_cut_dim_by_a_cut_list", 6},
                                               {"of_one_dim_only", 6},
                                               {"of_the_last_dim", 2}}));

// ---- writing rows

using Write = std::function<Tensor(const Tensors&)>;

Sample write(const std::string& name, const Write& f, std::vector<Input> inputs = {}) {
  if (inputs.empty()) {
    inputs = {sharded(d({9, 3}), 0), numbers(9, 23, 0), sharded(d({23, 3}), 0)};
  }
  return {name, std::move(inputs), f, Check{.traffic = 6}};
}
/// Enlarged, the list names the first few rows over and over.
Sample write_each(const std::string& name, const Write& f, std::vector<Input> inputs = {}) {
  Sample sample = write(name, f, std::move(inputs));
  sample.check.holds_whole = "values for one row meet at its owner, and all are for a few rows";
  return sample;
}
Sample reduce(const std::string& name, const std::string& how, bool include_self) {
  return write_each(name, [=](const Tensors& t) {
    return t[0].index_reduce(0, t[1], t[2], how, include_self).square();
  });
}
/// Each row once, so that the order does not matter.
std::vector<Input> permuted() {
  return {sharded(d({9, 3}), 0), constant(torch::randperm(9).narrow(0, 0, 7), 0),
          sharded(d({7, 3}), 0)};
}

std::vector<Sample> writes() {
  torch::manual_seed(181);
  const auto add = [](const Tensors& t) { return t[0].index_add(0, t[1], t[2]).square(); };
  return {
      write("add", add),
      write("add_by_a_whole_list", add,
            {sharded(d({9, 3}), 0), numbers(9, 23), sharded(d({23, 3}), 0)}),
      write("add_whole_values", add, {sharded(d({9, 3}), 0), numbers(9, 5), weight(d({5, 3}))}),
      write("add_to_a_whole_tensor", add,
            {weight(d({9, 3})), numbers(9, 23, 0), sharded(d({23, 3}), 0)}),
      write("add_scaled_along_dim_1",
            [](const Tensors& t) { return t[0].index_add(1, t[1], t[2], -0.5).square(); },
            {sharded(d({2, 9, 3}), 1), numbers(9, 11, 0), sharded(d({2, 11, 3}), 1)}),
      write("add_along_another_dim",
            [](const Tensors& t) { return t[0].index_add(1, t[1], t[2]).square(); },
            {sharded(d({7, 4}), 0), numbers(4, 5), sharded(d({7, 5}), 0)}),
      write("add_in_place",
            [](const Tensors& t) {
              const Tensor sums = t[0] * 1;
              sums.index_add_(0, t[1], t[2]);
              return sums.square();
            }),
      write("sum_of_messages",
            [](const Tensors& t) {
              return torch::zeros_like(t[0]).index_add(0, t[1], t[2]).square() + t[0];
            }),
      write_each(
          "copy", [](const Tensors& t) { return t[0].index_copy(0, t[1], t[2]).square(); },
          permuted()),
      write_each(
          "copy_in_place",
          [](const Tensors& t) {
            const Tensor rows = t[0] * 1;
            rows.index_copy_(0, t[1], t[2]);
            return rows.square();
          },
          permuted()),
      reduce("largest", "amax", true),
      reduce("smallest_of_values_only", "amin", false),
      reduce("mean", "mean", false),
      reduce("mean_with_self", "mean", true),
      reduce("product", "prod", true),
      write("fill",
            [](const Tensors& t) {
              return t[0].index_fill(0, t[1], 2.5).square() + t[0].index_fill(0, t[1], t[2]);
            },
            {sharded(d({9, 3}), 0), numbers(9, 4, 0), constant(d({}))}),
      write("fill_rows_counted_from_the_end",
            [](const Tensors& t) { return t[0].index_fill(0, t[1] - 9, 2.5).square(); },
            {sharded(d({9, 3}), 0), numbers(9, 4, 0)}),
      write("fill_in_place_along_another_dim",
            [](const Tensors& t) {
              const Tensor rows = t[0] * 1;
              rows.index_fill_(1, t[1], -1);
              return rows.square();
            },
            {sharded(d({9, 4}), 0), numbers(4, 2)}),
      write_each("largest_in_place",
                 [](const Tensors& t) {
                   const Tensor rows = t[0] * 1;
                   rows.index_reduce_(0, t[1], t[2], "amax");
                   return rows.square();
                 }),
  };
}
SHARD_SAMPLES(RowsWritten, writes());

// ---- a layer of a graph network

Sample message_passing() {
  torch::manual_seed(182);
  const int64_t nodes = 11;
  const int64_t edges = 31;
  return {
      "message_passing",
      {sharded(d({nodes, 4}), 0), numbers(nodes, edges, 0), numbers(nodes, edges, 0),
       weight(d({8, 5}) * 0.4), weight(d({5, 4}) * 0.4)},
      [](const Tensors& t) {
        const Tensor ends = at::cat({t[0].index_select(0, t[1]), t[0].index_select(0, t[2])}, 1);
        const Tensor messages = ends.matmul(t[3]).tanh().matmul(t[4]);
        return t[0] + torch::zeros_like(t[0]).index_add(0, t[2], messages);
      },
      Check{.traffic = 20}};
}
SHARD_SAMPLES(GraphLayer, std::vector<Sample>{message_passing()});

/// Any rows of any dim of any tensor, in any order.
Sample random_sample(Random& r) {
  const auto sizes = r.sizes(r.integer(1, 3), 1, 7);
  const auto last = static_cast<int64_t>(sizes.size()) - 1;
  const int64_t along = r.integer(0, last);
  auto values = sizes;
  values[static_cast<size_t>(along)] = r.integer(0, 9);
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < values[static_cast<size_t>(along)]; ++i) {
    rows.push_back(r.integer(0, sizes[static_cast<size_t>(along)] - 1));
  }
  const Tensor list = at::tensor(rows, at::kLong);
  Check check{.traffic = 20};
  check.holds_whole = "some of the lists name one row many times";
  return {"random",
          {sharded(r.tensor(sizes), r.integer(0, last)), constant(list, r.integer(-1, 0)),
           sharded(r.tensor(values), r.integer(0, last))},
          [along](const Tensors& t) {
            return t[0].index_add(along, t[1], t[2]).square().index_select(along, t[1]);
          },
          check};
}
SHARD_RANDOM_SAMPLES(RandomRows, random_sample);

}  // namespace
}  // namespace shard::testing
