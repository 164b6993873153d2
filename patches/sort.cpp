// SPDX-License-Identifier: Apache-2.0
// Orders along a dim. Cut along that dim, the shard moves to another one first, as in
// along_dim.cpp. Where there is no other one, the tensor is a line that no rank may hold whole: see
// NOTE [Lines sorted over the ranks]. Sorted, each rank gets as many elements as it had (of the
// largest ones an equal share), in one all-to-all of values and positions; they come as one sorted
// run from every rank. A single element is only looked up.
#include <ATen/ops/empty.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/unique_consecutive.h>
#include <ATen/ops/zeros.h>
#include <shard/count_rows.h>
#include <shard/outermost.h>
#include <shard/pieces.h>
#include <shard/reduction_patch.h>
#include <shard/route.h>
#include <shard/runs_patch.h>
#include <shard/sorted_patch.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace shard {
namespace {

using at::Tensor;
using c10::IValue;

Partition row_of(const Tensor& counts, int64_t dim, int64_t index) {
  const Tensor row = counts.select(dim, index).contiguous();
  const auto* first = row.const_data_ptr<int64_t>();
  return {first, first + row.numel()};
}

/// Where the pieces begin, and where the last one ends.
std::vector<int64_t> boundaries_of(const Partition& cut) {
  std::vector<int64_t> boundaries{0};
  for (const int64_t rows : cut) boundaries.push_back(boundaries.back() + rows);
  return boundaries;
}

/// Which pieces of a rank's sorted part go to whom, and come from whom, so that `result` are those
/// of all ranks in order.
struct SortedPieces {
  Partition sent, received;

  SortedPieces(const SortedPart& own, const Partition& result, const DeviceMesh& mesh) {
    const Tensor counts = counts_among_first(boundaries_of(result), own.keys, mesh).diff(1, 1);
    sent = row_of(counts, 0, mesh.rank());
    received = row_of(counts, 1, mesh.rank());
  }
  Tensor exchange(const Tensor& values, const DeviceMesh& mesh) const {
    const Tensor result = at::empty({total_of(received)}, values.options());
    const Tensor first = values.narrow(0, 0, total_of(sent));
    mesh.comm().all_to_all_v(pieces_of(first, 0, sent), pieces_of(result, 0, received));
    return result;
  }
};

/// The values of a line and their positions in it, in order; `offset` elements lie before this
/// rank's part. A `result` shorter than the line has the first ones.
std::pair<Tensor, Tensor> sort_line(const SortedPart& own, bool descending, int64_t offset,
                                    const Partition& result, const DeviceMesh& mesh) {
  const SortedPieces pieces(own, result, mesh);
  const Tensor values = pieces.exchange(own.values, mesh);
  const Tensor positions = pieces.exchange(own.places + offset, mesh);
  const auto [sorted, order] = values.sort(/*stable=*/true, 0, descending);
  return {sorted, positions.index_select(0, order)};
}

/// Sorts what a rank contributes to a result.
using SortPart = std::function<SortedPart(const Tensor& part)>;

/// The first elements of the line along `dim` that argument 0 is, as many as `result` has.
Decision first_of_line(const OpCall& call, int64_t dim, bool descending, const Partition& result,
                       const SortPart& sort_part) {
  const Layout cut = call.tensor(0).layout();
  Decision decision;
  decision.inputs.push_back(cut);
  decision.outputs.push_back({Shard(dim), result});
  if (call.mesh().size() == 1) return decision;
  decision.local = [=, mesh = call.mesh()](c10::ArrayRef<IValue> arguments) {
    const Tensor part = plain_numbers(arguments[0].toTensor());
    auto sizes = part.sizes().vec();
    sizes[static_cast<size_t>(dim)] = result[static_cast<size_t>(mesh.rank())];
    if (has_empty_rows(part, dim)) {
      return std::vector<IValue>{at::empty(sizes, part.options()),
                                 at::empty(sizes, part.options().dtype(at::kLong))};
    }
    const int64_t offset = offset_of(cut.partition, mesh.rank());
    const auto [values, positions] =
        sort_line(sort_part(part.reshape({-1})), descending, offset, result, mesh);
    return std::vector<IValue>{values.view(sizes), positions.view(sizes)};
  };
  return decision;
}

/// sort(self, dim, descending), sort.stable with `stable` before them
Rule sort(size_t dim_argument) {
  return [dim_argument](const OpCall& call) -> std::optional<Decision> {
    const int64_t dim = call.dim(dim_argument, call.tensor(0).ndim());
    if (!is_cut_line(call, dim)) return along_dims(dim_argument)(call);
    const bool descending = call.argument(dim_argument + 1).toBool();
    return first_of_line(
        call, dim, descending, call.tensor(0).layout().partition,
        [descending](const Tensor& part) { return sorted_part(part, descending); });
  };
}

/// topk(self, k, dim, largest, sorted)
std::optional<Decision> topk(const OpCall& call) {
  const int64_t dim = call.dim(2, call.tensor(0).ndim());
  if (!is_cut_line(call, dim)) return along_dims(2)(call);
  const int64_t k = call.integer(1);
  const int64_t n = total_of(call.tensor(0).layout().partition);
  const auto dtype = call.tensor(0).tensor.scalar_type();
  check<SpecMismatch>(dtype != at::kBool, call.name(), "got ", dtype,
                      "; expected numbers, as LibTorch does. Convert the tensor.");
  check<SpecMismatch>(k >= 0 && k <= n, call.name(), "got k = ", k, "; expected 0 <= k <= ", n,
                      ", the size of the dim.");
  const bool descending = call.argument(3).toBool();
  return first_of_line(
      call, dim, descending, even_partition(k, call.mesh().size()),
      [k, descending](const Tensor& part) { return first_of_part(part, k, descending); });
}

// ---- one element of every line

/// As along_dims; the dim is taken away unless the argument after it, keepdim, is true.
std::optional<Decision> by_lines(const OpCall& call, size_t dim_argument) {
  auto decision = along_dims(dim_argument)(call);
  const int64_t dim = call.dim(dim_argument, call.tensor(0).ndim());
  if (decision && !call.argument(dim_argument + 1).toBool()) {
    auto& output = decision->outputs[0];
    if (output.is_shard() && output.dim() > dim) output = output.moved_to(output.dim() - 1);
  }
  return decision;
}

/// Finds the element of a line that is cut so; this rank has `part` of it. Collective.
using Find =
    std::function<LineElement(const Tensor& part, const Partition& cut, const DeviceMesh& mesh)>;

std::optional<Decision> one_of_a_line(const OpCall& call, size_t dim_argument, const Find& find) {
  const int64_t dim = call.dim(dim_argument, call.tensor(0).ndim());
  if (!is_cut_line(call, dim)) return by_lines(call, dim_argument);
  const auto reduced = reduced_dims(call, dim_argument, call.argument(dim_argument + 1).toBool());
  const auto across_ranks = [=, cut = call.tensor(0).layout().partition,
                             mesh = call.mesh()](const Tensor& local) {
    const Tensor part = plain_numbers(local);
    const auto sizes = reduced.result_sizes(part);
    if (has_empty_rows(part, dim)) {
      return std::vector<Tensor>{at::empty(sizes, part.options()),
                                 at::empty(sizes, part.options().dtype(at::kLong))};
    }
    const LineElement element = find(part.reshape({-1}), cut, mesh);
    return std::vector<Tensor>{element.value.view(sizes), element.position.view(sizes)};
  };
  return reduction_rule(call, reduced, across_ranks);
}

/// kthvalue(self, k, dim, keepdim)
std::optional<Decision> kthvalue(const OpCall& call) {
  const int64_t k = call.integer(1);
  const auto sizes = call.tensor(0).sizes();
  const int64_t n =
      sizes.empty() ? 1 : sizes[static_cast<size_t>(call.dim(2, call.tensor(0).ndim()))];
  check<SpecMismatch>(k >= 1 && k <= n, call.name(), "got k = ", k, "; expected 1 <= k <= ", n,
                      ", the size of the dim.");
  return one_of_a_line(
      call, 2, [k](const Tensor& part, const Partition& cut, const DeviceMesh& mesh) {
        return element_in_order(k - 1, sorted_part(part), offset_of(cut, mesh.rank()), mesh);
      });
}

/// median(self, dim, keepdim)
Rule median(bool ignores_nan) {
  return [ignores_nan](const OpCall& call) {
    return one_of_a_line(
        call, 1, [ignores_nan](const Tensor& part, const Partition& cut, const DeviceMesh& mesh) {
          return median_of_line(sorted_part(part), ignores_nan, offset_of(cut, mesh.rank()), mesh);
        });
  };
}

/// Where in a sorted line the longest run ends, of several the first; `values` are those from
/// `offset` on.
int64_t end_of_longest_run(const Tensor& values, int64_t offset, const DeviceMesh& mesh) {
  Distinct own;
  std::tie(own.values, own.inverse, own.counts) = at::unique_consecutive(values, true, true);
  const Tensor counts = joined_over_ranks(own, mesh).counts;
  const int64_t skipped = own.counts.size(0) - counts.size(0);
  const Tensor begins = (own.counts.cumsum(0) - own.counts).slice(0, skipped) + offset;
  const Tensor runs = at::stack({counts, begins + counts}, 1);
  const Tensor longest =
      runs.size(0) > 0 ? runs[counts.argmax().item<int64_t>()] : at::zeros({2}, runs.options());
  const Tensor all = gathered_over_ranks(longest, mesh).cpu();
  return all[all.select(1, 0).argmax().item<int64_t>()][1].item<int64_t>();
}

/// Of equal elements the last one is meant, as on one device where the line is short.
LineElement mode_of_line(const Tensor& part, const Partition& cut, const DeviceMesh& mesh) {
  const int64_t offset = offset_of(cut, mesh.rank());
  const auto [values, positions] =
      sort_line(sorted_part(part), /*descending=*/false, offset, cut, mesh);
  const int64_t last = end_of_longest_run(values, offset, mesh) - 1;
  const auto boundaries = boundaries_of(cut);
  const auto after = std::upper_bound(boundaries.begin(), boundaries.end(), last);
  return element_of_rank(after - boundaries.begin() - 1, last - *(after - 1), values, positions,
                         mesh);
}

/// mode(self, dim, keepdim)
std::optional<Decision> mode(const OpCall& call) { return one_of_a_line(call, 1, mode_of_line); }

}  // namespace

SHARD_PATCH(sort) {
  const char* const sorts =
      "along the dim itself: one all-to-all to another dim; a line is sorted over the ranks";
  const char* const selects =
      "along the dim itself: one all-to-all to another dim; in a line the ranks search together";
  patch.rule("aten::sort", sort(1)).shards("any dim").notes(sorts).needs_values();
  patch.rule("aten::sort.stable", sort(2)).shards("any dim").notes(sorts).needs_values();
  patch.remembering_rule("aten::topk", topk).shards("any dim").notes(sorts).needs_values();
  const auto add_selection = [&](const char* op, const Rule& rule) {
    patch.remembering_rule(op, rule).shards("any dim").notes(selects).needs_values();
  };
  add_selection("aten::kthvalue", kthvalue);
  add_selection("aten::median.dim", median(false));
  add_selection("aten::nanmedian.dim", median(true));
  add_selection("aten::mode", mode);
}

}  // namespace shard
