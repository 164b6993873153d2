// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <shard/resample_patch.h>

#include <algorithm>

namespace shard {
namespace {

using at::IntArrayRef;
using at::Tensor;

/// As LibTorch does, half types are weighted in float.
at::ScalarType weighted_type(const Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// Interpolation along one cut dim.
struct Axis {
  const Resampling& call;
  size_t entry;  ///< among the spatial dims
  int64_t in, out;

  Axis(const Resampling& call, const BoxInput& input, const Cut& cut)
      : call(call), entry(input.entry(cut)), in(input.size(cut)), out(call.size[entry]) {}

  Taps taps(int64_t o, at::ScalarType type) const { return call.taps(entry, in, o, type); }
  /// The input rows of some output rows.
  Rows rows_of(const Rows& rows, at::ScalarType type) const {
    if (rows.size() == 0) return {0, 0};
    return {taps(rows.begin, type).rows.front(), taps(rows.end - 1, type).rows.back() + 1};
  }
};

/// Output rows `out` from `rows`, which begin at input row `first`.
Tensor weighted_rows(const Tensor& rows, int64_t dim, const Axis& axis, const Rows& out,
                     int64_t first) {
  const auto type = weighted_type(rows);
  std::vector<Taps> taps;
  size_t most = 0;
  for (int64_t o = out.begin; o < out.end; ++o) {
    taps.push_back(axis.taps(o, type));
    most = std::max(most, taps.back().rows.size());
  }
  Shape shape(static_cast<size_t>(rows.dim()), 1);
  shape[static_cast<size_t>(dim)] = out.size();
  Tensor sum;
  for (size_t tap = 0; tap < most; ++tap) {
    std::vector<int64_t> sources;
    std::vector<double> weights;
    for (const auto& own : taps) {  // those that have fewer take a row of theirs 0 times
      const bool has_tap = tap < own.rows.size();
      sources.push_back(own.rows[has_tap ? tap : 0] - first);
      weights.push_back(has_tap ? own.weights[tap] : 0);
    }
    const Tensor index = at::tensor(sources, rows.options().dtype(at::kLong));
    const Tensor weight = at::tensor(weights, rows.options().dtype(type)).view(shape);
    const Tensor term = rows.index_select(dim, index).to(type) * weight;
    sum = sum.defined() ? sum + term : term;
  }
  return sum.to(rows.scalar_type());
}

void check_call(const Resampling& call, const Tensor& x) {
  const auto positive = [](IntArrayRef sizes) {
    return std::all_of(sizes.begin(), sizes.end(), [](int64_t n) { return n > 0; });
  };
  check<SpecMismatch>(
      call.size.size() == 2 && x.dim() == 4 && positive(call.size) && positive(x.sizes().slice(2)),
      call.op, "got an input of ", x.sizes(), " to resize to ", call.size,
      "; expected two positive spatial sizes after batch and channels. Correct the sizes.");
  check<SpecMismatch>(!call.weighs_only_floating || x.is_floating_point(), call.op, "got ",
                      x.scalar_type(), " images cut in ",
                      "space; expected floating-point ones. Convert them, or cut the batch.");
}

/// What every place along a cut makes of which rows.
CutParts make_parts(const Axis& axis, const Cut& cut, at::ScalarType type) {
  const auto output = partition_outputs(cut.owned, axis.out, [&](int64_t row) {
    return (row * axis.out + axis.in - 1) / axis.in;  // the first o with floor(o / scale) >= row
  });
  CutParts result;
  int64_t begin = 0;
  for (const int64_t size : output) {
    const Rows out{begin, begin + size};
    result.parts.push_back({out, axis.rows_of(out, type)});
    begin += size;
  }
  return result;
}

Tensor resample_box(const Resampling& call, const Tensor& x, const BoxInput& input) {
  std::vector<CutParts> cuts;
  bool grows = false;
  for (const Cut& cut : input.cuts()) {
    const Axis axis(call, input, cut);
    cuts.push_back(make_parts(axis, cut, weighted_type(x)));
    grows |= axis.out > axis.in;
  }
  const auto box = input.fetch(cuts);
  const auto select = [&](Tensor t) {
    for (size_t i = 0; i < cuts.size(); ++i) {
      const auto& part = box.parts[i];
      if (part.out.size() == 0) continue;
      const Cut& cut = input.cuts()[i];
      t = weighted_rows(t, cut.dim, Axis(call, input, cut), part.out, part.in.begin);
    }
    return t;
  };
  const Tensor y =
      grows ? select(call.uncut_dims(box.rows, input)) : call.uncut_dims(select(box.rows), input);
  return input.wrapped(y.contiguous(x.suggest_memory_format()), box);
}

}  // namespace

Tensor resample(const Resampling& call, const Tensor& x) {
  const auto input = window_input(call.op, x, 2, /*channels_are_local=*/true);
  if (input.is_cut()) {
    check_call(call, x);
    return resample_box(call, x, BoxInput(input));
  }
  const auto rows = own_rows(input);
  return from_rows(call.whole(rows.rows), input, rows);
}

}  // namespace shard
