// SPDX-License-Identifier: Apache-2.0
// The table of convolutions that the Python peer tests, whole: of its 208 cases it expects 153 to
// fail (even kernels, padding or kernels that do not fit the stride, transposed ones, backward on a
// mesh of two dims). Each equals the plain op here, with all gradients, twice.
#include <ATen/ops/convolution.h>
#include <torch/types.h>

#include "patches/edge_cases.h"

namespace shard::testing::edge_cases {
namespace {

using at::Tensor;

struct Convolution {
  int64_t ndim, kernel, padding, stride;
  bool is_transposed;
};

Sample sample_of(const Convolution& c) {
  const std::array<int64_t, 3> image{9, 8, 5};
  Sizes x{2, 4};
  Sizes w{c.is_transposed ? 4 : 2, c.is_transposed ? 2 : 4};
  for (int64_t i = 0; i < c.ndim; ++i) {
    x.push_back(image[static_cast<size_t>(i)]);
    w.push_back(c.kernel);
  }
  const auto all = [n = static_cast<size_t>(c.ndim)](int64_t value) { return Sizes(n, value); };
  return {c10::str(c.is_transposed ? "conv_transpose" : "conv", c.ndim, "d_k", c.kernel, "_p",
                   c.padding, "_s", c.stride),
          {sharded(d(x), 2), weight(d(w)), weight(d({2}))},
          [=](const Tensors& t) {
            return at::convolution(t[0], t[1], t[2], all(c.stride), all(c.padding), all(1),
                                   c.is_transposed, all(0), 1);
          }};
}

/// Along the first spatial dim, and over the first two on a mesh of two dims.
std::vector<CoveredSample> table() {
  torch::manual_seed(80);
  std::vector<CoveredSample> result;
  for (const bool is_transposed : {false, true}) {
    for (const int64_t ndim : {1, 2, 3}) {
      for (const int64_t kernel : {2, 3}) {
        for (const int64_t padding : {0, 1}) {
          for (const int64_t stride : {1, 2}) {
            const auto sample = sample_of({ndim, kernel, padding, stride, is_transposed});
            std::vector<Setting> settings;
            for (const int ranks : {2, 4}) {
              for (const char* split : {"even", "uneven"}) settings.push_back({ranks, split});
            }
            constexpr int kBothCut = 3;
            for (const char* split : {"even", "uneven"}) settings.push_back({4, split, kBothCut});
            result.push_back({sample, settings});
          }
        }
      }
    }
  }
  return result;
}

class PeersConvolutions : public SampleTest {};
TEST_P(PeersConvolutions, EqualThePlainOp) {
  const auto report = compare_with_plain(GetParam().sample, GetParam().settings);
  EXPECT_TRUE(report.ok() && report.refused == 0) << report.text();
}
INSTANTIATE_TEST_SUITE_P(Table, PeersConvolutions, ::testing::ValuesIn(table()), name_of_sample);

}  // namespace
}  // namespace shard::testing::edge_cases
