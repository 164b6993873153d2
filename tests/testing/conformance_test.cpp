// SPDX-License-Identifier: Apache-2.0
// The judge judged: patches that are wrong on purpose, each in a way in which patches go wrong,
// must be caught. (They are handlers, registered for the time of the test.)
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <shard/handlers.h>
#include <shard/launch.h>
#include <shard/primitives.h>
#include <shard/rule.h>
#include <shard/testing.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using at::Tensor;
using ::testing::HasSubstr;
using ::testing::Not;
using Tensors = std::vector<Tensor>;
using Dtype = std::optional<at::ScalarType>;

const Check kOnALine{.grid = Check::Grid::None, .traffic = 1.5};  // cumsum moves

std::vector<Sample> samples(const std::function<Tensor(const Tensor&)>& op) {
  torch::manual_seed(7);
  const Function function = [op](const Tensors& t) { return op(t[0]); };
  return {{"rows", {sharded(torch::randn({8, 3}), 0)}, function, kOnALine},
          {"columns", {sharded(torch::randn({3, 8}), 1)}, function, kOnALine}};
}

Tensor as(const Tensor& x, const Tensor& local) {
  return from_local(local, mesh_of(x), spec_of(x));
}

void expect_caught(const std::vector<Sample>& samples, HandlerRegistration broken) {
  EXPECT_FALSE(conformance("broken", samples).ok());
  EXPECT_FALSE(conformance("broken", samples, Cover::Pairwise).ok());
  broken.remove();
  const auto report = conformance("right", samples);
  EXPECT_TRUE(report.ok() && report.refused == 0) << report.text();
  EXPECT_GT(report.equal, 0);
}

TEST(BrokenPatch, WithTheWrongDimIsCaught) {
  expect_caught(
      samples([](const Tensor& t) { return t.cumsum(0).square(); }),
      register_function_handler<at::_ops::cumsum>(+[](const Tensor& x, int64_t dim, Dtype dtype) {
        return as(x, at::cumsum(to_local(x), 1 - dim, dtype));
      }));
}

TEST(BrokenPatch, WithoutTheReductionIsCaught) {
  expect_caught(samples([](const Tensor& t) { return t.softmax(0); }),
                register_function_handler<at::_ops::softmax_int>(
                    +[](const Tensor& x, int64_t dim, Dtype dtype) {
                      return as(x, at::softmax(to_local(x), dim, dtype));
                    }));
}

TEST(BrokenPatch, OffByOneIsCaught) {
  expect_caught(samples([](const Tensor& t) { return t.roll(2, 0).square(); }),
                register_function_handler<at::_ops::roll>(
                    +[](const Tensor& x, at::IntArrayRef shifts, at::IntArrayRef dims) {
                      return next_handler<at::_ops::roll>(
                          x, c10::fromIntArrayRefSlow({shifts[0] + 1}), dims);
                    }));
}

TEST(BrokenPatch, WithAStaleCacheIsCaught) {
  expect_caught(samples([](const Tensor& t) { return t.erf(); }),
                register_function_handler<at::_ops::erf>(+[](const Tensor& x) {
                  static thread_local std::map<std::vector<int64_t>, Tensor> cache;
                  const Tensor local = to_local(x);
                  auto& cached = cache[local.sizes().vec()];
                  if (!cached.defined()) cached = local.detach().erf();
                  return as(x, cached + (local - local.detach()));
                }));
}

TEST(BrokenPatch, WithAWrongGradientIsCaught) {
  expect_caught(samples([](const Tensor& t) { return t.tanh(); }),
                register_function_handler<at::_ops::tanh>(+[](const Tensor& x) {
                  const Tensor local = to_local(x);
                  return as(x, local.detach().tanh() + (local - local.detach()));
                }));
}

TEST(BrokenPatch, WithAWrongDtypeIsCaught) {
  expect_caught(samples([](const Tensor& t) { return t.exp(); }),
                register_function_handler<at::_ops::exp>(
                    +[](const Tensor& x) { return as(x, to_local(x).exp().to(at::kDouble)); }));
}

TEST(BrokenPatch, WithAWrongPlacementIsCaught) {
  expect_caught(samples([](const Tensor& t) { return t.sum(); }),
                register_function_handler<at::_ops::sum>(+[](const Tensor& x, Dtype dtype) {
                  const Tensor total = all_reduce(at::sum(to_local(x), dtype), mesh_of(x));
                  return from_local(total, mesh_of(x), spec_of(x)->with(Partial(), {}));
                }));
}

TEST(BrokenPatch, WithAnExtraScaleIsCaught) {
  expect_caught(samples([](const Tensor& t) { return t.mean(); }),
                register_function_handler<at::_ops::mean>(+[](const Tensor& x, Dtype dtype) {
                  const Tensor mean = at::mean(to_local(x), dtype);  // of unequal parts
                  return from_local(mean, mesh_of(x), spec_of(x)->with(Partial(ReduceOp::Avg), {}));
                }));
}

TEST(Conformance, FailsGradientsThatLieOtherwiseThanTheirInputs) {
  const auto report = conformance("moved", samples([](const Tensor& t) {
                                    if (is_shard_tensor(t) && t.requires_grad()) {
                                      t.register_hook([](const Tensor& g) {
                                        return ShardTensor(g).redistribute({Replicate()}).tensor();
                                      });
                                    }
                                    return t.exp();
                                  }));
  EXPECT_THAT(report.text(), HasSubstr("gradient of differentiable input 0 lies otherwise"));
}

// ---- rules whose results are right, at too high a price

/// Every input whole on every rank.
std::optional<Decision> gathering(const OpCall& call) {
  Decision decision;
  decision.inputs.resize(call.tensors().size());
  decision.outputs.resize(1);
  return decision;
}

/// Every input cut along its other dim.
std::optional<Decision> transposing(const OpCall& call) {
  const auto& x = call.tensor(0);
  if (!x.is_shard()) return gathering(call);
  const int64_t dim = 1 - x.shard_dim();
  const Layout layout(Shard(dim),
                      even_partition(x.sizes()[static_cast<size_t>(dim)], call.mesh().size()));
  Decision decision;
  decision.inputs = {layout};
  decision.outputs = {layout};
  return decision;
}

std::vector<Sample> erf_samples(const Check& check) {
  auto result = samples([](const Tensor& t) { return t.erf(); });
  for (auto& sample : result) sample.check = check;
  return result;
}

/// Right in every setting, but each sample costs too much, and for that reason only.
void expect_too_costly(const Check& check, Rule rule, const std::string& reason,
                       const std::string& other_reason) {
  const auto registration = register_dispatch_handler("aten::erf", std::move(rule));
  const auto list = erf_samples(check);
  const auto report = conformance("costly", list);
  EXPECT_EQ(report.failures.size(), list.size()) << report.text();
  for (const auto& failure : report.failures) {
    EXPECT_THAT(failure, HasSubstr(reason));
    EXPECT_THAT(failure, Not(HasSubstr(other_reason)));
  }
}

constexpr const char* kAllocates = "bytes at once";
constexpr const char* kSends = "the ranks send";

TEST(CostlyRule, ThatGathersIsCaught) {
  expect_too_costly({.grid = Check::Grid::None, .traffic = 10}, gathering, kAllocates, kSends);
}

TEST(CostlyRule, ThatSendsMoreThanDeclaredIsCaught) {
  expect_too_costly({.grid = Check::Grid::None}, transposing, kSends, kAllocates);
  expect_too_costly({.grid = Check::Grid::None, .traffic = 0.5}, transposing, kSends, kAllocates);
}

TEST(CostlyRule, PassesWhenItsCostsAreDeclared) {
  const Check moves{.grid = Check::Grid::None, .traffic = 2};
  const Check gathers{
      .grid = Check::Grid::None, .traffic = 10, .holds_whole = "this test gathers on purpose"};
  {
    const auto registration = register_dispatch_handler("aten::erf", transposing);
    EXPECT_TRUE(conformance("moves", erf_samples(moves)).ok());
  }
  const auto registration = register_dispatch_handler("aten::erf", gathering);
  EXPECT_TRUE(conformance("gathers", erf_samples(gathers)).ok());
}

TEST(Costs, OfAnOpThatNamesItsSizesAreNotJudged) {
  const auto registration = register_dispatch_handler("aten::erf", gathering);
  const Sample sample{"names sizes", {sharded(torch::randn({8, 3}), 0)}, [](const Tensors& t) {
                        return t[0].erf().view({4, 6});
                      }};
  EXPECT_TRUE(judge_costs(sample).ok());
}

/// A kernel of LibTorch that is wrong in float32 is no reference; float64 is compared all the same.
TEST(Conformance, ComparesNothingWithAPlainResultThatIsWrongItself) {
  const auto times_five_if = [](bool (*is_wrong)(const Tensor&)) {
    return samples([is_wrong](const Tensor& t) { return t * (is_wrong(t) ? 5 : 1); });
  };
  const auto in_single = times_five_if(
      [](const Tensor& t) { return !is_shard_tensor(t) && t.scalar_type() == at::kFloat; });
  const auto in_both = times_five_if([](const Tensor& t) { return !is_shard_tensor(t); });
  EXPECT_TRUE(conformance("wrong in float32", in_single).ok());
  EXPECT_FALSE(conformance("wrong in both", in_both).ok());
}

TEST(Conformance, CountsRefusalsApart) {
  const auto report = conformance("aten::as_strided",
                                  samples([](const Tensor& t) { return t.as_strided({2}, {1}); }));
  EXPECT_TRUE(report.ok());
  EXPECT_GT(report.refused, 0);
  EXPECT_THAT(report.text(), HasSubstr("aten::as_strided"));
}

TEST(Conformance, APairwiseCoverIsSmallerAndHasEveryChoiceForEverySample) {
  const auto all = samples([](const Tensor& t) { return t.exp(); });
  const auto cover = pairwise_settings(all);
  ASSERT_EQ(cover.size(), all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    std::set<int> ranks;
    std::set<std::string> splits;
    std::set<at::ScalarType> dtypes;
    for (const auto& setting : cover[i]) {
      ranks.insert(setting.ranks);
      splits.insert(setting.split);
      dtypes.insert(setting.dtype);
    }
    EXPECT_EQ(ranks.size(), 4U);
    EXPECT_EQ(splits.size(), 5U);
    EXPECT_EQ(dtypes.size(), 2U);
    EXPECT_LT(cover[i].size(), all_settings(all[i], true).size());
  }
}

}  // namespace
}  // namespace shard::testing
