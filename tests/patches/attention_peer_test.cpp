// SPDX-License-Identifier: Apache-2.0
// What users of the Python peer run or report about scaled_dot_product_attention, case by case: its
// own test table, the situations that break there (rows 171 to 184), and the reports 39 and 41.
#include <gtest/gtest.h>
#include <shard/attention.h>
#include <torch/torch.h>

#include <array>

#include "attention_call.h"
#include "support/sharded_check.h"

namespace shard::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

/// LibTorch's flash kernel has no second derivative.
Check once(std::vector<int> ranks = {2, 4}) {
  Check check;
  check.ranks = std::move(ranks);
  check.double_backward = false;
  return check;
}

Tensor rows(int64_t batch, int64_t heads, int64_t n, int64_t width) {
  return torch::randn({batch, heads, n, width});
}

/// Plain tensors have no form.
Function in_form(AttentionForm form, const Function& f) {
  return [=](const Tensors& t) {
    const AttentionFormGuard guard(form);
    return f(t);
  };
}
/// Four heads go by heads over two and four ranks, if nobody asks for the ring.
constexpr std::array kForms{AttentionForm::Auto, AttentionForm::Ring};

// ---- its test table

struct Size {
  int64_t batch, rows, width;
};
class PeersTable : public ::testing::TestWithParam<Size> {};

TEST_P(PeersTable, OfCutAndWholeQueriesAndKeys) {
  torch::manual_seed(1);
  const auto [batch, n, width] = GetParam();
  const auto whole = [batch = batch, n = n, width = width] { return rows(batch, 4, n, width); };
  Check check = once();
  check.grid = Check::Grid::None;
  const Function f = attention();
  for (const auto form : kForms) {
    expect_sharded_equals_plain(
        in_form(form, f), {sharded(whole(), 2), sharded(whole(), 2), sharded(whole(), 2)}, check);
  }
  expect_sharded_equals_plain(f, {weight(whole()), sharded(whole(), 2), sharded(whole(), 2)},
                              check);
  expect_sharded_equals_plain(f, {sharded(whole(), 2), weight(whole()), weight(whole())}, check);
}
INSTANTIATE_TEST_SUITE_P(Sizes, PeersTable,
                         ::testing::Values(Size{1, 256, 32}, Size{4, 256, 64}, Size{1, 512, 64},
                                           Size{4, 512, 32}),
                         [](const auto& info) {
                           return c10::str("B", info.param.batch, "_S", info.param.rows, "_D",
                                           info.param.width);
                         });

// ---- rows 171 to 184

struct Row {
  int number;
  std::string name;
  std::vector<Input> inputs;
  AttentionOptions options = {};
};
std::ostream& operator<<(std::ostream& out, const Row& row) { return out << row.name; }

std::vector<Input> cut(const Tensor& q, const Tensor& k, const Tensor& v, int64_t dim = 2) {
  return {sharded(q, dim), sharded(k, dim), sharded(v, dim)};
}

Tensor with_zero_column(Tensor v) {
  v.select(-1, 1).zero_();
  return v;
}

std::vector<Row> rows_of_the_peer() {
  torch::manual_seed(2);
  const auto t = [](int64_t n = 16, int64_t batch = 1) { return rows(batch, 4, n, 8); };
  std::vector<Row> all{
      {171, "even", cut(t(), t(), t())},
      {172, "batch_of_two", cut(t(16, 2), t(16, 2), t(16, 2))},
      {175, "causal", cut(t(), t(), t()), {.is_causal = true}},
      {176, "scale", cut(t(), t(), t()), {.scale = 0.3}},
      {177, "v_has_a_zero_column", cut(t(), t(), with_zero_column(t()))},
      {179,
       "grouped_heads",
       cut(t(), rows(1, 2, 16, 8), rows(1, 2, 16, 8)),
       {.has_grouped_heads = true}},
      {180, "cross_attention_of_other_lengths", cut(t(12), t(20), t(20))},
      {181, "values_wider_than_keys", cut(t(), t(), rows(1, 4, 16, 12))},
      {182, "cut_along_the_heads", cut(t(), t(), t(), 1)},
      {184, "uneven_queries_whole_keys", {sharded(t(13), 2), weight(t()), weight(t())}},
  };
  Row mask{174, "mask_cut_along_the_queries", cut(t(), t(), t())};
  mask.inputs.push_back(constant(torch::randn({1, 4, 16, 16}), 2));
  all.push_back(std::move(mask));
  return all;
}

class PeersRow : public ::testing::TestWithParam<Row> {};
TEST_P(PeersRow, EqualsPlainLibTorch) {
  for (const auto form : kForms) {
    expect_sharded_equals_plain(in_form(form, attention(GetParam().options)), GetParam().inputs,
                                once());
  }
}
INSTANTIATE_TEST_SUITE_P(Rows, PeersRow, ::testing::ValuesIn(rows_of_the_peer()),
                         [](const auto& info) {
                           return c10::str(info.param.number, "_", info.param.name);
                         });

// ---- reports

// 39: a ring whose backward uses the first block in every step has right values and wrong
// gradients.
TEST(PeersReports, GradientsOverRingsOfTwoToFour) {
  torch::manual_seed(3);
  for (const bool is_causal : {false, true}) {
    const Tensor q = rows(1, 2, 23, 8);
    const auto by_ring = in_form(AttentionForm::Ring, attention({.is_causal = is_causal}));
    expect_sharded_equals_plain(by_ring, cut(q, torch::randn_like(q), torch::randn_like(q)),
                                once({2, 3, 4}));
  }
}

}  // namespace
}  // namespace shard::testing
