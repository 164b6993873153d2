// SPDX-License-Identifier: Apache-2.0
// Distinct values, and distinct slices along a dim. Every rank finds its own ones; they are sorted
// over the ranks by samples: each rank gets the ones between two common values, finds the distinct
// ones among them and answers where in the result each of them stands. So a rank holds its share of
// the distinct values (and sends its own once), but what is equal to one value meets on one rank.
//
// Consecutive ones: a rank's first run may continue the last one of a rank before.
#include <ATen/ops/_unique2.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/take.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/unique_consecutive.h>
#include <ATen/ops/unique_dim.h>
#include <ATen/ops/zeros.h>
#include <shard/counted_patch.h>
#include <shard/pieces.h>
#include <shard/reduction_patch.h>
#include <shard/route.h>
#include <shard/runs_patch.h>

#include <algorithm>
#include <tuple>
#include <vector>

namespace shard {
namespace {

using at::Tensor;
using c10::IValue;

/// In ascending order.
Distinct distinct(const Tensor& rows) {
  Distinct result;
  std::tie(result.values, result.inverse, result.counts) =
      rows.dim() == 1 ? at::_unique2(rows, true, true, true)
                      : at::unique_dim(rows, 0, true, true, true);
  return result;
}

Tensor empty_rows(const Tensor& like, int64_t rows) {
  auto sizes = like.sizes().vec();
  sizes[0] = rows;
  return at::empty(sizes, like.options());
}

/// Rows brought to other ranks, and as many answers brought back.
class Letters {
 public:
  /// This rank has `sent[r]` rows for rank r. Collective.
  Letters(Partition sent, const DeviceMesh& mesh)
      : mesh_(mesh), sent_(std::move(sent)), received_(sent_.size()) {
    const auto options = at::TensorOptions(at::kLong).device(mesh.device());
    const Tensor all = gathered_over_ranks(at::tensor(sent_, options), mesh).cpu();
    for (size_t peer = 0; peer < received_.size(); ++peer) {
      received_[peer] = all[static_cast<int64_t>(peer)][mesh.rank()].item<int64_t>();
    }
  }
  Tensor bring(const Tensor& rows) const { return move(rows, sent_, received_); }
  Tensor answer(const Tensor& rows) const { return move(rows, received_, sent_); }

 private:
  Tensor move(const Tensor& rows, const Partition& from, const Partition& to) const {
    const Tensor moved = empty_rows(rows, total_of(to));
    mesh_.comm().all_to_all_v(pieces_of(rows.contiguous(), 0, from), pieces_of(moved, 0, to));
    return moved;
  }
  DeviceMesh mesh_;
  Partition sent_, received_;
};

/// A few rows for every one of `ranks`, evenly spaced; of few rows a part only, so that those of
/// all ranks together are fewer than one rank's share.
Tensor samples_of(const Tensor& rows, int64_t ranks) {
  const int64_t n = rows.size(0);
  const int64_t most = std::min(4 * ranks, (n + ranks - 1) / ranks);
  const Tensor places = at::arange(most, rows.options().dtype(at::kLong));
  return rows.index_select(0, places.mul(n).floor_divide(most));
}

/// Rows between which the ranks share all values, the same on every rank, ascending: one fewer than
/// ranks, or none at all.
Tensor common_splitters(const Tensor& own, const DeviceMesh& mesh) {
  const Tensor samples = samples_of(own, mesh.size());
  const Partition counts = count_rows(samples.size(0), mesh);
  auto sizes = samples.sizes().vec();
  sizes[0] = total_of(counts);
  const Tensor all = at::empty(sizes, samples.options());
  mesh.comm().all_gather_v(samples.contiguous(), pieces_of(all, 0, counts));
  const Tensor values = distinct(all).values;
  if (values.size(0) == 0) return values;
  const Tensor places = at::arange(1, mesh.size(), values.options().dtype(at::kLong));
  return values.index_select(0, places.mul(values.size(0)).floor_divide(mesh.size()));
}

/// The rank that every one of these ascending rows goes to. Numbers stand for rows, so that any
/// type and any number of columns compare.
Tensor owners_of(const Tensor& rows, const Tensor& splitters) {
  const Tensor numbers = distinct(at::cat({splitters, rows})).inverse;
  const Tensor bounds = std::get<0>(numbers.narrow(0, 0, splitters.size(0)).sort());
  const Tensor own = numbers.narrow(0, splitters.size(0), rows.size(0));
  const Tensor owners = at::searchsorted(bounds, own.contiguous(), /*out_int32=*/false, true);
  return owners.size(0) == 0 ? owners : std::get<0>(owners.cummax(0));  // of NaNs no order is known
}

/// This rank's share of the distinct rows of all ranks, and for each of its own ones which of all
/// it is (Distinct::inverse).
Distinct over_ranks(const Distinct& own, const DeviceMesh& mesh) {
  const Tensor owners = owners_of(own.values, common_splitters(own.values, mesh));
  const Tensor sent = at::bincount(owners, {}, mesh.size()).cpu();
  const auto* first = sent.const_data_ptr<int64_t>();
  const Letters letters({first, first + mesh.size()}, mesh);
  const Distinct share = distinct(letters.bring(own.values));
  const int64_t n = share.values.size(0);
  const int64_t before = offset_of(count_rows(n, mesh), mesh.rank());
  const Tensor counts =
      at::zeros({n}, own.counts.options()).index_add_(0, share.inverse, letters.bring(own.counts));
  return {share.values, letters.answer(share.inverse + before), counts};
}

Distinct plain(const Distinct& own) {
  return {plain_numbers(own.values), own.inverse, plain_numbers(own.counts)};
}

/// What was not asked for is empty, as LibTorch has it.
Tensor if_asked(bool is_asked, const Tensor& result) {
  return is_asked ? result : at::empty({0}, innermost(result).options());
}

/// Of values, inverse and counts, of which the last two may not have been asked for.
struct Asked {
  bool inverse = false, counts = false;
};

Decision three_results(const Layout& input, int64_t values_dim, const Layout& inverse,
                       const Asked& asked) {
  Decision decision;
  decision.inputs.push_back(input);
  decision.outputs = {counted_along(values_dim), asked.inverse ? inverse : Layout(),
                      asked.counts ? counted_along(0) : Layout()};
  return decision;
}

/// The op on whole tensors: of nothing.
Decision of_replicated() {
  Decision decision;
  decision.inputs.emplace_back();
  decision.outputs.emplace_back();
  return decision;
}

/// _unique2(self, sorted, return_inverse, return_counts), _unique without counts
std::optional<Decision> unique(const OpCall& call) {
  const auto& input = call.tensor(0);
  if (!input.is_shard()) return of_replicated();
  const bool has_counts = call.size() > 3;
  const Asked asked{call.argument(2).toBool(), has_counts && call.argument(3).toBool()};
  auto decision = three_results(input.layout(), 0, input.layout(), asked);
  if (call.mesh().size() == 1) return decision;
  decision.local = [=, mesh = call.mesh()](c10::ArrayRef<IValue> arguments) {
    Distinct own;
    std::tie(own.values, own.inverse, own.counts) =
        at::_unique2(arguments[0].toTensor(), true, asked.inverse, true);
    own = plain(own);
    const Distinct share = over_ranks(own, mesh);
    const Tensor inverse = asked.inverse ? at::take(share.inverse, own.inverse) : own.inverse;
    std::vector<IValue> results{share.values, inverse};
    if (has_counts) results.emplace_back(if_asked(asked.counts, share.counts));
    return results;
  };
  return decision;
}

/// Cut along `dim`, in the tensor's own pieces if it has such.
Layout cut_along(const TensorArgument& tensor, int64_t dim, const DeviceMesh& mesh) {
  if (tensor.shard_dim() == dim) return tensor.layout();
  return {Shard(dim), even_partition(tensor.sizes()[static_cast<size_t>(dim)], mesh.size())};
}

/// Slices along `dim` as rows, and back.
Tensor as_rows(const Tensor& slices, int64_t dim) {
  if (slices.dim() == 1) return slices;
  return slices.movedim(dim, 0).flatten(1).contiguous();
}
Tensor as_slices(const Tensor& rows, c10::IntArrayRef sizes, int64_t dim) {
  auto moved = sizes.vec();
  moved.erase(moved.begin() + dim);
  moved.insert(moved.begin(), rows.size(0));
  return rows.view(moved).movedim(0, dim).contiguous();
}

/// unique_dim(self, dim, sorted, return_inverse, return_counts)
std::optional<Decision> unique_dim(const OpCall& call) {
  const auto& input = call.tensor(0);
  if (!input.is_shard() || input.tensor.numel() == 0) return of_replicated();
  const int64_t dim = call.dim(1, input.ndim());
  const Asked asked{call.argument(3).toBool(), call.argument(4).toBool()};
  const Layout cut = cut_along(input, dim, call.mesh());
  auto decision = three_results(cut, dim, cut.moved_to(0), asked);
  if (call.mesh().size() == 1) return decision;
  decision.local = [=, mesh = call.mesh()](c10::ArrayRef<IValue> arguments) {
    const Tensor slices = plain_numbers(arguments[0].toTensor());
    const Distinct own = distinct(as_rows(slices, dim));
    const Distinct share = over_ranks(own, mesh);
    return std::vector<IValue>{as_slices(share.values, slices.sizes(), dim),
                               if_asked(asked.inverse, at::take(share.inverse, own.inverse)),
                               if_asked(asked.counts, share.counts)};
  };
  return decision;
}

// ---- consecutive ones

Decision consecutive_elements(const OpCall& call, const Asked& asked) {
  const Layout cut = outermost_cut(call.tensor(0), call.mesh());
  auto decision = three_results(cut, 0, cut, asked);
  if (call.mesh().size() == 1) return decision;
  decision.local = [=, mesh = call.mesh()](c10::ArrayRef<IValue> arguments) {
    Distinct own;
    std::tie(own.values, own.inverse, own.counts) =
        at::unique_consecutive(arguments[0].toTensor(), true, true);
    own = plain(own);
    own.inverse = plain_numbers(own.inverse);  // inner levels may be cut otherwise on other ranks
    const Distinct joined = joined_over_ranks(own, mesh);
    return std::vector<IValue>{joined.values, if_asked(asked.inverse, joined.inverse),
                               if_asked(asked.counts, joined.counts)};
  };
  return decision;
}

Decision consecutive_slices(const OpCall& call, int64_t dim, const Asked& asked) {
  const Layout cut = cut_along(call.tensor(0), dim, call.mesh());
  auto decision = three_results(cut, dim, cut.moved_to(0), asked);
  if (call.mesh().size() == 1) return decision;
  decision.local = [=, mesh = call.mesh()](c10::ArrayRef<IValue> arguments) {
    const Tensor slices = plain_numbers(arguments[0].toTensor());
    Distinct own;
    std::tie(own.values, own.inverse, own.counts) =
        at::unique_consecutive(as_rows(slices, dim), true, true, 0);
    const Distinct joined = joined_over_ranks(own, mesh);
    return std::vector<IValue>{as_slices(joined.values, slices.sizes(), dim),
                               if_asked(asked.inverse, joined.inverse),
                               if_asked(asked.counts, joined.counts)};
  };
  return decision;
}

/// unique_consecutive(self, return_inverse, return_counts, dim)
std::optional<Decision> unique_consecutive(const OpCall& call) {
  const auto& input = call.tensor(0);
  if (!input.is_shard() || input.tensor.numel() == 0) return of_replicated();
  const Asked asked{call.argument(1).toBool(), call.argument(2).toBool()};
  if (call.argument(3).isNone()) return consecutive_elements(call, asked);
  return consecutive_slices(call, call.dim(3, input.ndim()), asked);
}

/// unique_dim_consecutive(self, dim, return_inverse, return_counts)
std::optional<Decision> unique_dim_consecutive(const OpCall& call) {
  const auto& input = call.tensor(0);
  if (!input.is_shard() || input.tensor.numel() == 0) return of_replicated();
  return consecutive_slices(call, call.dim(1, input.ndim()),
                            {call.argument(2).toBool(), call.argument(3).toBool()});
}

}  // namespace

SHARD_PATCH(unique) {
  const char* const sorts = "the distinct values are sorted over the ranks";
  const char* const joins = "runs are joined with those of the next rank";
  for (const char* op : {"aten::_unique", "aten::_unique2"}) {
    patch.rule(op, unique).shards("any dim").notes(sorts).needs_values();
  }
  patch.rule("aten::unique_dim", unique_dim).shards("any dim").notes(sorts).needs_values();
  patch.rule("aten::unique_consecutive", unique_consecutive)
      .shards("any dim")
      .notes(joins)
      .needs_values();
  patch.rule("aten::unique_dim_consecutive", unique_dim_consecutive)
      .shards("any dim")
      .notes(joins)
      .needs_values();
}

}  // namespace shard
