// SPDX-License-Identifier: Apache-2.0
#include "testing/enlarged.h"

#include <ATen/ops/cat.h>

#include <algorithm>
#include <functional>
#include <set>

#include "testing/arguments.h"

namespace shard::testing {
namespace {

// Halos of a few rows and sums over the cut dim are small when the largest cut input has this many
// bytes, and this many rows or bytes.
constexpr int64_t kLeastBytes = 1 << 16;
constexpr int64_t kManyRows = 512;
constexpr int64_t kManyBytes = 1 << 20;
constexpr int64_t kMostBytes = 1 << 24;  // of any input

/// Whether a dim of an input becomes longer.
using Grows = std::function<bool(const Input& input, int64_t dim)>;

bool cut_dims(const Input& input, int64_t dim) { return dim == input.shard_dim; }

Grows dims_of_cut_sizes(const Sample& sample) {
  std::set<int64_t> sizes;
  for (const auto& input : sample.inputs) {
    if (input.shard_dim >= 0) sizes.insert(input.whole.size(input.shard_dim));
  }
  return [sizes](const Input& input, int64_t dim) { return sizes.contains(input.whole.size(dim)); };
}

int64_t bytes_of(const Input& input, const Grows& grows, int64_t times) {
  auto bytes = static_cast<int64_t>(input.whole.nbytes());
  for (int64_t d = 0; d < input.whole.dim(); ++d) {
    if (grows(input, d)) bytes *= times;
  }
  return bytes;
}

bool is_large(const Sample& sample, const Grows& grows, int64_t times) {
  int64_t bytes = 0;
  int64_t rows = 0;
  for (const auto& input : sample.inputs) {
    if (input.shard_dim < 0 || bytes_of(input, grows, times) <= bytes) continue;
    bytes = bytes_of(input, grows, times);
    rows = times * input.whole.size(input.shard_dim);
  }
  return bytes >= kLeastBytes && (rows >= kManyRows || bytes >= kManyBytes);
}

bool is_too_large(const Sample& sample, const Grows& grows, int64_t times) {
  return std::any_of(sample.inputs.begin(), sample.inputs.end(), [&](const Input& input) {
    return bytes_of(input, grows, times) > kMostBytes;
  });
}

/// The least number of times, a multiple of four; 0: there is none.
int64_t times_for(const Sample& sample, const Grows& grows) {
  constexpr int64_t kMost = 1 << 20;
  for (int64_t times = 4; times <= kMost && !is_too_large(sample, grows, times); times *= 2) {
    if (is_large(sample, grows, times)) return times;
  }
  return 0;
}

Sample repeated(Sample sample, const Grows& grows, int64_t times) {
  for (auto& input : sample.inputs) {
    const Input small = input;
    for (int64_t d = 0; d < small.whole.dim(); ++d) {
      if (!grows(small, d)) continue;
      const std::vector<at::Tensor> copies(static_cast<size_t>(times), input.whole);
      input.whole = at::cat(copies, d);
    }
  }
  return sample;
}

bool runs_plainly(const Sample& sample) {
  try {
    const at::NoGradGuard guard;
    sample.function(make_arguments(sample, whole_argument));
    return true;
  } catch (const std::exception&) {  // sizes that do not fit
    return false;
  }
}

}  // namespace

std::optional<Sample> enlarged(const Sample& sample) {
  for (const Grows& grows : {Grows(cut_dims), dims_of_cut_sizes(sample)}) {
    const int64_t times = times_for(sample, grows);
    if (times == 0) continue;
    auto large = repeated(sample, grows, times);
    if (runs_plainly(large)) return large;
  }
  return std::nullopt;
}

}  // namespace shard::testing
