// SPDX-License-Identifier: Apache-2.0
// Counting values into bins: every rank counts its own, the counts are added. And where values
// would stand in a sorted row: as far behind as all ranks' pieces of the row together say.
#include <ATen/ops/_histogramdd_bin_edges.h>
#include <ATen/ops/_histogramdd_from_bin_tensors.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/histc.h>
#include <ATen/ops/histogram.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/max.h>
#include <ATen/ops/min.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <shard/reduction_patch.h>
#include <shard/route.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>
#include <vector>

namespace shard {
namespace {

using at::Tensor;
using c10::IValue;

struct Range {
  double low = 0, high = 0;
};

/// Of the values of all ranks; LibTorch takes [0, 1] of nothing and widens a single value.
Range range_of(const Tensor& local, const DeviceMesh& mesh) {
  const auto extremum = [&](bool max) {
    const auto nothing = extremum_of_nothing(local.scalar_type(), max);
    const Tensor own = local.numel() == 0 ? at::full({}, nothing, local.options())
                       : max              ? local.max()
                                          : local.min();
    return reduced_over_ranks(own, mesh, max ? ReduceOp::Max : ReduceOp::Min).item<double>();
  };
  const Range range{extremum(false), extremum(true)};
  return range.low > range.high ? Range{} : range;
}

/// histc(self, bins, min, max): equal bounds mean the values' own.
std::optional<Decision> histc(const OpCall& call) {
  const auto& input = call.tensor(0);
  Decision decision;
  decision.inputs.push_back(input.is_shard() ? input.layout() : Layout());
  decision.outputs.emplace_back(input.is_shard() ? Partial() : Replicate(), Partition());
  if (!input.is_shard()) return decision;
  decision.local = [mesh = call.mesh()](c10::ArrayRef<IValue> arguments) {
    const Tensor local = arguments[0].toTensor();
    Range range{arguments[2].toScalar().toDouble(), arguments[3].toScalar().toDouble()};
    if (range.low == range.high) range = range_of(local, mesh);
    if (range.low == range.high) range = {range.low - 1, range.high + 1};
    return std::vector<IValue>{at::histc(local, arguments[1].toInt(), range.low, range.high)};
  };
  return decision;
}

/// bincount(self, weights, minlength)
std::optional<Decision> bincount(const OpCall& call) {
  const auto& input = call.tensor(0);
  const bool has_weights = call.tensors().size() > 1;
  const auto& first = has_weights && !input.is_shard() ? call.tensor(1) : input;
  check<SpecMismatch>(!has_weights || call.tensor(1).sizes() == input.sizes(), call.name(),
                      "got weights of ", call.tensors().back().sizes(), " for ", input.sizes(),
                      " numbers; expected one each.");
  check<SpecMismatch>(input.ndim() == 1 && call.integer(2) >= 0, call.name(), "got ", input.sizes(),
                      " numbers and minlength ", call.integer(2),
                      "; expected one dim, and a length that is not below 0.");
  Decision decision;
  decision.inputs.assign(call.tensors().size(), first.is_shard() ? first.layout() : Layout());
  decision.outputs.emplace_back(first.is_shard() ? Partial() : Replicate(), Partition());
  if (!first.is_shard() || call.mesh().size() == 1 || input.tensor.numel() == 0) return decision;
  decision.local = [name = call.name(), mesh = call.mesh()](c10::ArrayRef<IValue> arguments) {
    const Tensor numbers = arguments[0].toTensor();
    const auto weights = arguments[1].toOptional<Tensor>();
    const Range range = range_of(numbers, mesh);
    check<SpecMismatch>(range.low >= 0, name, "got the number ", range.low,
                        "; expected none below 0.");
    const int64_t bins = std::max(arguments[2].toInt(), static_cast<int64_t>(range.high) + 1);
    if (numbers.numel() > 0) return std::vector<IValue>{at::bincount(numbers, weights, bins)};
    const auto type = !weights || !weights->defined()        ? at::kLong
                      : weights->scalar_type() == at::kFloat ? at::kFloat
                                                             : at::kDouble;
    return std::vector<IValue>{at::zeros({bins}, numbers.options().dtype(type))};
  };
  return decision;
}

// ---- histogram(self, bins, *, range, weight, density) -> (hist, edges); bins: a number, or edges

Tensor as_density(const Tensor& counts, const Tensor& edges) {
  return counts / counts.sum() / edges.diff();
}

std::optional<Decision> histogram(const OpCall& call) {
  const auto& input = call.tensor(0);
  const bool has_edges = call.name() == "aten::histogram.bins_tensor";
  const size_t weight = has_edges ? 2 : 3;
  Decision decision;
  decision.inputs.resize(call.tensors().size());
  decision.outputs.resize(1);
  if (!input.is_shard()) return decision;
  decision.inputs[0] = input.layout();
  if (!call.argument(weight).isNone()) decision.inputs.back() = input.layout();
  decision.local = [=, mesh = call.mesh(), input_is_not_empty = input.tensor.numel() > 0](
                       c10::ArrayRef<IValue> arguments) {
    const Tensor local = arguments[0].toTensor();
    const auto weights = arguments[weight].toOptional<Tensor>();
    Tensor counts;
    Tensor edges;
    if (has_edges) {
      std::tie(counts, edges) = at::histogram(local, arguments[1].toTensor(), weights, false);
    } else {
      Range range{0, 1};
      if (!arguments[2].isNone()) {
        const auto given = arguments[2].toDoubleVector();
        range = {given[0], given[1]};
      } else if (input_is_not_empty) {
        range = range_of(local, mesh);
      }
      if (range.low == range.high) range = {range.low - 0.5, range.high + 0.5};
      const std::vector<double> bounds{range.low, range.high};
      std::tie(counts, edges) = at::histogram(local, arguments[1].toInt(), bounds, weights, false);
    }
    const Tensor total = reduced_over_ranks(counts, mesh, ReduceOp::Sum);
    const bool density = arguments[weight + 1].toBool();
    return std::vector<IValue>{density ? as_density(total, edges) : total, edges};
  };
  return decision;
}

// ---- histogramdd: points (..., D) counted into D-dimensional boxes

/// Points whole on a rank: cut along one of their dims, another is.
Layout whole_points(const OpCall& call) {
  const auto& points = call.tensor(0);
  const bool is_cut_apart = points.is_shard() && points.shard_dim() == points.ndim() - 1;
  return is_cut_apart ? cut_elsewhere(call, points.sizes(), {points.ndim() - 1}) : points.layout();
}

/// [low, high] of every coordinate over all ranks, as histogramdd takes it; none of no points.
std::vector<double> ranges_of(const Tensor& local, const DeviceMesh& mesh) {
  const Tensor points = local.reshape({-1, local.size(-1)});
  std::vector<double> ranges;
  for (int64_t d = 0; d < points.size(1); ++d) {
    Range range = range_of(points.select(1, d), mesh);
    if (range.low == range.high) range = {range.low - 0.5, range.high + 0.5};
    ranges.push_back(range.low);
    ranges.push_back(range.high);
  }
  return ranges;
}

/// _histogramdd_bin_edges(self, bins, *, range, weight, density)
std::optional<Decision> bin_edges(const OpCall& call) {
  Decision decision;
  decision.inputs.resize(call.tensors().size());
  decision.inputs[0] = whole_points(call);
  decision.outputs.resize(1);
  const bool has_points = call.tensor(0).tensor.numel() > 0;
  if (!decision.inputs[0].is_shard() || !call.argument(2).isNone() || !has_points) return decision;
  decision.local = [mesh = call.mesh()](c10::ArrayRef<IValue> arguments) {
    const Tensor local = arguments[0].toTensor();
    c10::List<Tensor> edges;
    for (const Tensor& each : at::_histogramdd_bin_edges(local, arguments[1].toIntVector(),
                                                         ranges_of(local, mesh), {}, false)) {
      edges.push_back(each);
    }
    return std::vector<IValue>{edges};
  };
  return decision;
}

/// _histogramdd_from_bin_tensors(self, bins, *, weight, density)
std::optional<Decision> count_in_boxes(const OpCall& call) {
  const Layout cut = whole_points(call);
  Decision decision;
  decision.inputs.resize(call.tensors().size());
  decision.inputs[0] = cut;
  decision.outputs.resize(1);
  if (!cut.is_shard()) return decision;
  if (!call.argument(2).isNone()) decision.inputs.back() = cut;
  decision.local = [mesh = call.mesh()](c10::ArrayRef<IValue> arguments) {
    const auto edges = arguments[1].toTensorVector();
    Tensor counts = reduced_over_ranks(
        at::_histogramdd_from_bin_tensors(arguments[0].toTensor(), edges,
                                          arguments[2].toOptional<Tensor>(), false),
        mesh, ReduceOp::Sum);
    if (!arguments[3].toBool()) return std::vector<IValue>{counts};
    counts = counts / counts.sum();
    for (size_t d = 0; d < edges.size(); ++d) {
      std::vector<int64_t> sizes(edges.size(), 1);
      sizes[d] = -1;
      counts = counts / edges[d].diff().view(sizes);
    }
    return std::vector<IValue>{counts};
  };
  return decision;
}

/// _histogramdd_from_bin_cts(self, bins, *, range, weight, density)
Tensor count_in_bins(const Tensor& points, c10::IntArrayRef bins,
                     std::optional<c10::ArrayRef<double>> range,
                     const std::optional<Tensor>& weight, bool density) {
  const auto edges = at::_histogramdd_bin_edges(points, bins, range, weight, density);
  std::vector<Tensor> whole;
  for (const Tensor& each : edges) whole.push_back(ShardTensor(each).full());
  return at::_histogramdd_from_bin_tensors(points, whole, weight, density);
}

/// How many elements of a row that `sorter` puts in order come before the values, with the other
/// arguments of searchsorted.
Tensor count_before(const Tensor& row, c10::ArrayRef<IValue> arguments) {
  const bool out_int32 = arguments[2].toBool();
  const bool right = arguments[3].toBool();
  std::optional<c10::string_view> side;
  if (!arguments[4].isNone()) side = arguments[4].toStringView();
  if (arguments[1].isTensor()) {
    return at::searchsorted(row, arguments[1].toTensor(), out_int32, right, side);
  }
  return at::searchsorted(row, arguments[1].toScalar(), out_int32, right, side);
}

/// Where LibTorch's search ends in a row of `size` elements of which the first `below` are too
/// small for the value and those from `numbers` on are NaNs, which its comparisons take for too
/// small.
Tensor found_between(const Tensor& below, const Tensor& numbers, int64_t size) {
  Tensor begin = at::zeros_like(below);
  Tensor end = at::full_like(below, size);
  for (int64_t left = size; left > 0; left /= 2) {
    const Tensor middle = (begin + end).div(2, "floor");
    const Tensor goes_left = below.le(middle).logical_and(middle.lt(numbers));
    const Tensor is_open = begin.lt(end);
    begin = at::where(is_open.logical_and(goes_left.logical_not()), middle + 1, begin);
    end = at::where(is_open.logical_and(goes_left), middle, end);
  }
  return begin;
}

/// As count_before for rows of `size` elements of which this rank has a `part`; NaNs are last.
/// Collective; the same on every rank.
Tensor count_before_with_nans(const Tensor& part, int64_t size, c10::ArrayRef<IValue> arguments,
                              const DeviceMesh& mesh) {
  const Tensor is_nan = at::isnan(part);
  const Tensor numbers = is_nan.logical_not().sum(-1, /*keepdim=*/part.dim() > 1);
  const Tensor infinite = part.masked_fill(is_nan, std::numeric_limits<double>::infinity());
  const Tensor below = at::minimum(count_before(infinite, arguments), numbers);
  const Tensor found = found_between(reduced_over_ranks(below.to(at::kLong), mesh, ReduceOp::Sum),
                                     reduced_over_ranks(numbers, mesh, ReduceOp::Sum), size);
  return found.to(arguments[2].toBool() ? at::kInt : at::kLong);
}

/// Whether the sorter, which is the last tensor, is for one row, which is cut.
bool has_sorter_of_cut_row(const OpCall& call, size_t tensors_without) {
  const auto& row = call.tensor(0);
  return call.tensors().size() > tensors_without && row.is_shard() && row.ndim() == 1 &&
         call.tensor(tensors_without).sizes() == row.sizes();
}

/// Every rank fetches its part of the row in order, and counts there.
Decision counted_in_order(const OpCall& call) {
  const Layout cut = call.tensor(0).layout();
  Decision decision;
  decision.inputs.resize(call.tensors().size());
  decision.inputs.front() = decision.inputs.back() = cut;
  const auto sorter = call.tensors().back().tensor.scalar_type();
  check<SpecMismatch>(sorter == at::kLong, call.name(), "got a sorter of ", sorter,
                      "; expected Long. Convert it.");
  const bool may_have_nans = call.tensor(0).tensor.is_floating_point();
  decision.outputs.push_back(may_have_nans ? Layout() : Layout(Partial(), {}));
  if (call.mesh().size() == 1) return decision;
  decision.local = [=, size = call.tensor(0).sizes().front(), name = call.name(),
                    mesh = call.mesh()](c10::ArrayRef<IValue> arguments) {
    const RowRoute route(name, plain_numbers(arguments[5].toTensor()), cut.partition, mesh);
    const Tensor row = route.fetch(plain_numbers(arguments[0].toTensor()), 0);
    return std::vector<IValue>{may_have_nans ? count_before_with_nans(row, size, arguments, mesh)
                                             : count_before(row, arguments)};
  };
  return decision;
}

/// Of rows without sorter that are cut: every rank counts in its part.
Decision counted_by_parts(const OpCall& call) {
  const auto& row = call.tensor(0);
  Decision decision;
  decision.inputs.resize(call.tensors().size());
  decision.inputs[0] = row.layout();
  decision.outputs.push_back({Partial(), {}});
  if (!row.tensor.is_floating_point() || call.mesh().size() == 1) return decision;
  decision.outputs[0] = Layout();
  decision.local = [size = row.sizes().back(),
                    mesh = call.mesh()](c10::ArrayRef<IValue> arguments) {
    return std::vector<IValue>{
        count_before_with_nans(arguments[0].toTensor(), size, arguments, mesh)};
  };
  return decision;
}

/// searchsorted(sorted_sequence, self, *, out_int32, right, side, sorter): 1-d, or row by row.
std::optional<Decision> searchsorted(const OpCall& call) {
  const auto& row = call.tensor(0);
  const auto& values = call.tensor(1);
  const int64_t last = row.ndim() - 1;
  if (has_sorter_of_cut_row(call, 2)) return counted_in_order(call);
  const bool has_sorter = call.tensors().size() > 2;
  Decision decision;
  decision.inputs.resize(call.tensors().size());
  decision.outputs.resize(1);
  if (row.shard_dim() == last && row.is_shard() && !has_sorter) return counted_by_parts(call);
  Layout layout = row.is_shard() ? row.layout() : values.is_shard() ? values.layout() : Layout();
  if (last == 0) {  // one row for all values
    if (!row.is_shard() && values.is_shard()) {
      decision.inputs[1] = decision.outputs[0] = values.layout();
    }
    return decision;
  }
  if (layout.is_shard() && layout.dim() == last) layout = cut_elsewhere(call, row.sizes(), {last});
  decision.inputs.assign(call.tensors().size(), layout);
  decision.outputs[0] = layout;
  return decision;
}

/// searchsorted.Scalar, whose second argument is a number.
std::optional<Decision> searchsorted_number(const OpCall& call) {
  const auto& row = call.tensor(0);
  if (has_sorter_of_cut_row(call, 1)) return counted_in_order(call);
  if (row.is_shard() && call.tensors().size() == 1) return counted_by_parts(call);
  Decision decision;
  decision.inputs.resize(call.tensors().size());
  decision.outputs.resize(1);
  return decision;
}

/// bucketize(self, boundaries)
std::optional<Decision> bucketize(const OpCall& call) {
  const auto& values = call.tensor(0);
  const Layout layout = values.is_partial() ? Layout() : values.layout();
  Decision decision;
  decision.inputs.push_back(layout);
  decision.inputs.emplace_back();
  decision.outputs.push_back(layout);
  return decision;
}

}  // namespace

SHARD_PATCH(histograms) {
  patch.rule("aten::histc", histc).shards("any dim").needs_values();
  patch.rule("aten::bincount", bincount).shards("any dim").needs_values();
  for (const char* op : {"aten::histogram.bin_ct", "aten::histogram.bins_tensor"}) {
    patch.rule(op, histogram).shards("any dim").needs_values();
  }
  patch.rule("aten::_histogramdd_bin_edges", bin_edges).shards("any dim").needs_values();
  patch.rule("aten::_histogramdd_from_bin_tensors", count_in_boxes)
      .shards("any dim")
      .needs_values();
  patch.function<at::_ops::_histogramdd_from_bin_cts>(count_in_bins).shards("any dim");
  patch.rule("aten::searchsorted.Tensor", searchsorted).shards("any dim").needs_values();
  patch.rule("aten::searchsorted.Scalar", searchsorted_number).shards("the row").needs_values();
  patch.rule("aten::bucketize.Tensor", bucketize).shards("any dim of the values").needs_values();
}

}  // namespace shard
