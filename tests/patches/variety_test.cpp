// SPDX-License-Identifier: Apache-2.0
// The samples themselves: every patch file has some, they call every op that it lists, and they are
// not all of the easy kind: strides, dilations, paddings that do not keep sizes, even kernels,
// groups, no bias, several samples in a batch, channels last, non-contiguous inputs, sizes of one
// and primes, where the ops have such things.
#include <gtest/gtest.h>
#include <shard/patch.h>
#include <support/op_watch.h>
#include <support/samples.h>

#include <algorithm>
#include <map>
#include <set>

namespace shard::testing {
namespace {

std::string base_name(const std::string& op) { return op.substr(0, op.find('.')); }

std::map<std::string, std::set<std::string>> ops_by_family() {
  std::map<std::string, std::set<std::string>> result;
  for (const auto& listing : list_ops()) result[listing.family].insert(base_name(listing.op));
  return result;
}

bool any_above(const c10::IValue& value, int64_t least) {
  if (value.isInt()) return value.toInt() > least;
  if (!value.isIntList()) return false;
  const auto list = value.toIntVector();
  return std::any_of(list.begin(), list.end(), [least](int64_t i) { return i > least; });
}

bool is_prime(int64_t n) {
  for (int64_t i = 2; i * i <= n; ++i) {
    if (n % i == 0) return false;
  }
  return n > 3;
}

/// Sizes of the window of a convolution or pooling call.
std::vector<int64_t> window_of(const OpRecord& call) {
  if (const auto* kernel = call.argument("kernel_size")) return kernel->toIntVector();
  const auto* weight = call.argument("weight");
  if (!weight || !weight->isTensor() || !call.argument("dilation")) return {};
  return weight->toTensor().sizes().slice(2).vec();
}

bool changes_size(const OpRecord& call, const std::vector<int64_t>& window) {
  const auto* padding = call.argument("padding");
  if (!padding || !padding->isIntList()) return false;
  const auto list = padding->toIntVector();
  for (size_t i = 0; i < std::min(list.size(), window.size()); ++i) {
    if (list[i] != window[i] / 2) return true;
  }
  return false;
}

const at::Tensor* first_tensor(const OpRecord& call) {
  for (const auto& argument : call.arguments) {
    if (argument.isTensor() && argument.toTensor().defined()) return &argument.toTensor();
  }
  return nullptr;
}

/// The kinds of difficulty that one call has, and all that its op could have.
struct Difficulties {
  std::set<std::string> had, possible;

  void see(const OpRecord& call) {
    const auto argument = [&](const char* name, const char* kind, const auto& has) {
      const auto* value = call.argument(name);
      if (value) note(kind, has(*value));
    };
    argument("stride", "stride > 1", [](const auto& v) { return any_above(v, 1); });
    argument("dilation", "dilation > 1", [](const auto& v) { return any_above(v, 1); });
    argument("groups", "groups > 1", [](const auto& v) { return any_above(v, 1); });
    argument("bias", "no bias",
             [](const auto& v) { return v.isNone() || (v.isTensor() && !v.toTensor().defined()); });
    if (const auto window = window_of(call); !window.empty()) {
      note("even kernel",
           std::any_of(window.begin(), window.end(), [](int64_t k) { return k % 2 == 0; }));
      if (call.argument("padding"))
        note("padding that is not half the kernel", changes_size(call, window));
      see_image(call);
    }
    if (const auto* tensor = first_tensor(call)) see_sizes(*tensor);
  }

 private:
  void note(const std::string& kind, bool has) {
    possible.insert(kind);
    if (has) had.insert(kind);
  }
  void see_image(const OpRecord& call) {
    const auto* x = first_tensor(call);
    if (!x) return;
    note("batch > 1", x->size(0) > 1);
    if (x->dim() != 4) return;
    note("channels last", x->is_contiguous(at::MemoryFormat::ChannelsLast) && !x->is_contiguous());
  }
  void see_sizes(const at::Tensor& x) {
    if (x.dim() == 0) return;
    const auto sizes = x.sizes();
    note("a size of 1", std::find(sizes.begin(), sizes.end(), 1) != sizes.end());
    note("a prime size", std::any_of(sizes.begin(), sizes.end(), is_prime));
    if (x.dim() > 1) note("a non-contiguous input", !x.is_contiguous());
  }
};

class Variety : public ::testing::TestWithParam<std::string> {};

TEST_P(Variety, OfSamplesIsWhatTheOpsAllow) {
  const auto& family = GetParam();
  const auto found = samples_by_file().find(family + "_samples");
  ASSERT_NE(found, samples_by_file().end())
      << "patches/" << family << ".cpp has no tests/patches/" << family << "_samples.cpp";
  const auto ops = ops_by_family().at(family);
  Difficulties difficulties;
  std::set<std::string> called;
  for (const auto& sample : found->second) {
    for (const auto& call : calls_of([&] { call_plain(sample); })) {
      if (!ops.contains(call.schema.name())) continue;
      called.insert(call.schema.name());
      difficulties.see(call);
    }
  }
  EXPECT_FALSE(called.empty());
  for (const auto& kind : difficulties.possible) {
    EXPECT_TRUE(difficulties.had.contains(kind)) << "no sample of " << family << " has " << kind;
  }
}

INSTANTIATE_TEST_SUITE_P(Of, Variety, ::testing::ValuesIn(patch_families()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace shard::testing
