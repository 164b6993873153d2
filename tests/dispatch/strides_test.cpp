// SPDX-License-Identifier: Apache-2.0
// contiguous(), reshape() and flatten() return an alias or a copy, as strides decide: on every rank
// as on one device, whatever part of a slice or a transpose a rank holds.
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

/// Calls `body` with a (2, 8, 6) tensor cut along each dim in every way, and the whole of it.
void for_each_cut(
    const std::function<void(const Tensor&, const Tensor&, const std::string&)>& body) {
  torch::manual_seed(11);
  const Tensor whole = torch::randn({2, 8, 6}, at::kDouble);
  for (const int ranks : {1, 2, 3}) {
    run_ranks(ranks, [&](World& world) {
      const auto mesh = world.mesh();
      for (const int64_t dim : {0, 1, 2}) {
        for (const auto& [split, partition] : splits(whole.size(dim), ranks)) {
          body(scatter_tensor(whole, 0, mesh, {Shard(dim)}, partition), whole.clone(),
               c10::str(ranks, " ranks, dim ", dim, ", ", split));
        }
      }
    });
  }
}

struct Case {
  const char* name;
  std::function<Tensor(const Tensor&)> function;
};

const std::vector<Case>& views() {
  static const std::vector<Case> all{
      {"slice without the last row", [](const Tensor& x) { return x.slice(1, 0, 7); }},
      {"slice without the first row", [](const Tensor& x) { return x.slice(1, 1); }},
      {"slice of columns", [](const Tensor& x) { return x.slice(2, 1, 5); }},
      {"slice with a step", [](const Tensor& x) { return x.slice(1, 0, 8, 2); }},
      {"transpose", [](const Tensor& x) { return x.transpose(1, 2); }},
      {"transpose of the first dim", [](const Tensor& x) { return x.transpose(0, 1); }},
      {"permute",
       [](const Tensor& x) {
         return x.permute({2, 0, 1});
       }},
      {"part of a split", [](const Tensor& x) { return x.split(3, 1)[0]; }},
      {"unsqueezed transpose", [](const Tensor& x) { return x.transpose(1, 2).unsqueeze(1); }},
      {"slice of a slice", [](const Tensor& x) { return x.slice(1, 0, 7).slice(1, 0, 5); }},
  };
  return all;
}

TEST(Strides, OfViewsAreThoseOfOneDevice) {
  for_each_cut([](const Tensor& x, const Tensor& whole, const std::string& where) {
    for (const auto& view : views()) {
      EXPECT_EQ(view.function(x).strides(), view.function(whole).strides())
          << view.name << ", " << where;
      EXPECT_EQ(view.function(x).detach().strides(), view.function(whole).strides())
          << "detached " << view.name << ", " << where;
    }
  });
}

/// Writes what was made of a view. A view that had to move refuses that, on every rank alike.
bool write(const Tensor& made) {
  bool is_written = true;
  try {
    made.mul_(3);
  } catch (const SpecMismatch&) {
    is_written = false;
  }
  const auto all = mesh_of(made).comm().all_gather_bytes(is_written ? "written" : "refused");
  EXPECT_EQ(std::set(all.begin(), all.end()).size(), 1U);
  return is_written;
}

/// Makes something of a view, writes it, and looks at what it was made of.
void expect_same_after_a_write(const Case& made) {
  for_each_cut([&](const Tensor& x, const Tensor& whole, const std::string& where) {
    for (const auto& view : views()) {
      const Tensor base = x * 1;
      if (write(made.function(view.function(base)))) made.function(view.function(whole)).mul_(3);
      EXPECT_LE(relative_error(ShardTensor(base).full(), whole), 0)
          << made.name << " of " << view.name << ", " << where;
      whole.copy_(ShardTensor(x).full());
    }
  });
}

TEST(Strides, ContiguousIsACopyOnEveryRankOrOnNone) {
  expect_same_after_a_write({"contiguous", [](const Tensor& x) { return x.contiguous(); }});
}

TEST(Strides, ReshapeIsACopyOnEveryRankOrOnNone) {
  expect_same_after_a_write({"reshape", [](const Tensor& x) {
                               return x.reshape({x.size(0), -1});
                             }});
  expect_same_after_a_write({"flatten", [](const Tensor& x) { return x.flatten(0, 1); }});
}

TEST(Strides, OfInPlaceViewsAreThoseOfOneDevice) {
  for_each_cut([](const Tensor& x, const Tensor& whole, const std::string& where) {
    EXPECT_EQ((x * 1).transpose_(1, 2).strides(), (whole * 1).transpose_(1, 2).strides()) << where;
    EXPECT_EQ((x * 1).unsqueeze_(0).transpose_(2, 3).strides(),
              (whole * 1).unsqueeze_(0).transpose_(2, 3).strides())
        << where;
  });
}

TEST(Strides, OfResultsAreAlikeOnEveryRank) {
  for_each_cut([](const Tensor& x, const Tensor&, const std::string& where) {
    for (const auto& view : views()) {
      const Tensor y = view.function(x).sin();
      const Tensor before = ShardTensor(y).full().clone();
      const Tensor z = y.contiguous();
      z.mul_(3);
      const Tensor after = ShardTensor(y).full();
      EXPECT_TRUE(after.equal(before) || after.equal(before * 3)) << view.name << ", " << where;
    }
  });
}

}  // namespace
}  // namespace shard::testing
