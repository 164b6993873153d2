// SPDX-License-Identifier: Apache-2.0
// Sums, means and maxima of bags of rows of a table. The numbers that name the rows are whole on
// every rank. Columns of the table: local. Rows: a sum is the sum of what every rank's rows make,
// a maximum moves the cut to the columns. Numbers that are cut: every rank makes some of the bags.
#include <ATen/ops/_embedding_bag.h>
#include <ATen/ops/_embedding_bag_forward_only.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <shard/bottom.h>
#include <shard/patch.h>
#include <shard/route.h>

#include <tuple>

namespace shard {
namespace {

using at::Tensor;
using Result = std::tuple<Tensor, Tensor, Tensor, Tensor>;
using OptionalTensor = std::optional<Tensor>;

constexpr const char* kOp = "aten::_embedding_bag";
enum Mode : uint8_t { kSum, kMean, kMax };

/// The arguments but the table; numbers and weights of samples are plain.
struct Bags {
  Tensor indices, offsets;
  Tensor weights;  ///< one a number, or undefined
  int64_t mode;
  bool has_last, is_forward_only;
  int64_t padding;

  int64_t count() const { return offsets.size(0) - (has_last ? 1 : 0); }
  /// Where every bag begins, and where the last ends.
  Tensor bounds() const {
    return has_last ? offsets
                    : at::cat({offsets, at::ones({1}, offsets.options()) * indices.size(0)});
  }
  Result run(const Tensor& table) const {
    const auto op = is_forward_only ? &at::_embedding_bag_forward_only : &at::_embedding_bag;
    return op(table, indices, offsets, /*scale_grad_by_freq=*/false, mode, /*sparse=*/false,
              weights.defined() ? OptionalTensor(weights) : std::nullopt, has_last, padding);
  }
};

/// LibTorch's lists of the bags: they tell numbers from padding only, so that a table of two rows
/// and one column gives them.
Result lists_of(const Bags& bags, const Tensor& like) {
  const at::NoGradGuard guard;
  Bags named = bags;
  named.indices = bags.indices.eq(bags.padding).to(bags.indices.scalar_type());
  named.padding = bags.padding < 0 ? -1 : 1;
  if (named.weights.defined()) named.weights = named.weights.detach();
  return named.run(at::zeros({2, 1}, innermost(like).options()));
}

/// `maxima` (undefined: LibTorch's list) lie like the values; which number is in which bag is known
/// everywhere.
Result wrapped(const Tensor& values, const Tensor& maxima, const Result& lists,
               const DeviceMesh& mesh, const SpecRef& spec) {
  const auto common = [&](const Tensor& t) {
    return from_local(t, mesh, spec->with(Replicate(), t.sizes()));
  };
  return {from_local(values, mesh, spec), common(std::get<1>(lists)), common(std::get<2>(lists)),
          maxima.defined() ? from_local(maxima, mesh, spec) : common(std::get<3>(lists))};
}

/// The columns that this rank has, or all of them.
Result by_columns(const Tensor& table, Bags bags) {
  const auto& spec = spec_of(table);
  const auto& mesh = mesh_of(table);
  const bool is_cut = spec->is_shard() && spec->shard_dim() == 1;
  if (bags.weights.defined() && is_cut) bags.weights = local_weight(mesh, bags.weights);
  const Shape shape{bags.count(), table.size(1)};
  const auto values =
      is_cut ? spec->with(Shard(1), shape, spec->partition()) : spec->with(Replicate(), shape);
  const Result local = bags.run(to_local(table));
  return wrapped(std::get<0>(local), bags.mode == kMax ? std::get<3>(local) : Tensor(),
                 lists_of(bags, table), mesh, values);
}

Tensor counted(const Tensor& flags) {  // how many are before every place, and all
  const Tensor sums = flags.to(at::kLong).cumsum(0);
  return at::cat({at::zeros({1}, sums.options()), sums});
}

/// What the rows of this rank make of every bag.
Tensor sum_of_own_rows(const Tensor& table, const Bags& bags) {
  const Rows rows{spec_of(table)->offset(mesh_of(table).rank()),
                  spec_of(table)->offset(mesh_of(table).rank()) +
                      spec_of(table)->local_size(mesh_of(table).rank())};
  const Tensor is_own = bags.indices.ge(rows.begin)
                            .logical_and_(bags.indices.lt(rows.end))
                            .logical_and_(bags.indices.ne(bags.padding));
  const Tensor own = is_own.nonzero().squeeze(1);
  const Tensor weights =
      bags.weights.defined() ? local_weight(mesh_of(table), bags.weights) : Tensor();
  Bags mine = bags;
  mine.indices = bags.indices.index_select(0, own) - rows.begin;
  mine.offsets = counted(is_own).index_select(0, bags.offsets).to(bags.offsets.scalar_type());
  mine.weights = weights.defined() ? weights.index_select(0, own) : Tensor();
  mine.mode = kSum;
  mine.padding = -1;
  return std::get<0>(mine.run(to_local(table)));
}

/// How many numbers every bag has without padding, at least one, as a column.
Tensor sizes_of(const Bags& bags, at::ScalarType dtype) {
  const Tensor before = counted(bags.indices.ne(bags.padding)).index_select(0, bags.bounds());
  return before.diff().clamp_min_(1).to(dtype).unsqueeze(1);
}

Result by_rows(const Tensor& table, const Bags& bags) {
  Tensor sum = sum_of_own_rows(table, bags);
  if (bags.mode == kMean) sum = sum / sizes_of(bags, table.scalar_type());
  return wrapped(sum, Tensor(), lists_of(bags, table), mesh_of(table),
                 spec_of(table)->with(Partial(), sum.sizes()));
}

/// `table` on all levels that `like` has.
Tensor on_levels_of(const Tensor& like, const Tensor& table) {
  if (!is_shard_tensor(like)) return table;
  const auto& mesh = mesh_of(like);
  const Tensor replicated = promote(table, mesh);
  return from_local(on_levels_of(raw_local(like), to_local(replicated)), mesh, spec_of(replicated));
}

/// Every rank makes an even part of the bags from the whole table. `like`: on whose levels.
Result by_bags(const Tensor& table, const Bags& bags, const Tensor& like) {
  const auto& mesh = mesh_of(table);
  const auto spec = spec_of(table)->with(Shard(0), {bags.count(), table.size(1)});
  const int64_t begin = spec->offset(mesh.rank());
  const int64_t count = spec->local_size(mesh.rank());
  const Tensor bounds = bags.bounds();
  const auto first = bounds[begin].item<int64_t>();
  const auto numbers = bounds[begin + count].item<int64_t>() - first;
  const auto weights = local_weights(mesh, {table, bags.weights});
  Bags mine = bags;
  mine.indices = bags.indices.narrow(0, first, numbers);
  // NOTE [Idle ranks]: without bags, an empty one.
  mine.offsets =
      count > 0 ? bounds.narrow(0, begin, count) - first : at::zeros({1}, bounds.options());
  mine.weights = weights[1].defined() ? weights[1].narrow(0, first, numbers) : Tensor();
  mine.has_last = false;
  const Result local = mine.run(on_levels_of(raw_local(like), weights[0]));
  const Tensor maxima = bags.mode == kMax ? std::get<3>(local).narrow(0, 0, count) : Tensor();
  return wrapped(std::get<0>(local).narrow(0, 0, count), maxima, lists_of(bags, table), mesh, spec);
}

bool is_cut(const Tensor& t) { return is_shard_tensor(t) && spec_of(t)->is_shard(); }

Result reduce_bags(const Tensor& weight, const Tensor& indices, const Tensor& offsets,
                   bool by_frequency, int64_t mode, bool sparse,
                   const OptionalTensor& sample_weights, bool has_last, int64_t padding,
                   bool is_forward_only) {
  // LibTorch's own gradient by frequency divides by how often other rows are named.
  if (sparse || by_frequency) {
    refuse_op(kOp, sparse ? "sparse gradients" : "scale_grad_by_freq", "plain dense gradients");
  }
  check<SpecMismatch>(weight.dim() == 2 && indices.dim() == 1 && offsets.dim() == 1 &&
                          offsets.size(0) >= (has_last ? 1 : 0),
                      kOp, "got a table of ", weight.sizes(), ", numbers of ", indices.sizes(),
                      " and offsets of ", offsets.sizes(),
                      "; expected (rows, columns), (numbers) and (bags). Correct the sizes.");
  const Tensor samples = sample_weights.value_or(Tensor());
  const Tensor* like = nullptr;
  for (const auto* t : {&weight, &indices, &offsets, &samples}) {
    if (!like && t->defined() && is_shard_tensor(*t)) like = t;
  }
  const bool has_cut_numbers = is_cut(indices) || is_cut(offsets);
  const auto& mesh = mesh_of(*like);
  const Bags bags{plain_numbers(indices),
                  plain_numbers(offsets),
                  whole(samples),
                  mode,
                  has_last,
                  is_forward_only,
                  padding};
  const Tensor promoted = promote(weight, mesh);
  Tensor table = redistribute(promoted, dual_spec(spec_of(promoted)));
  if (mode == kMax) table = with_whole_dim(table, 0);
  if (mesh.size() > 1 && is_cut(table) && spec_of(table)->shard_dim() == 0) {
    return by_rows(table, bags);
  }
  if (mesh.size() > 1 && !is_cut(table) && has_cut_numbers) return by_bags(table, bags, *like);
  return by_columns(table, bags);
}

template <bool is_forward_only>
Result embedding_bag(const Tensor& weight, const Tensor& indices, const Tensor& offsets,
                     bool by_frequency, int64_t mode, bool sparse,
                     const OptionalTensor& sample_weights, bool has_last, int64_t padding) {
  return reduce_bags(weight, indices, offsets, by_frequency, mode, sparse, sample_weights, has_last,
                     padding, is_forward_only);
}

}  // namespace

SHARD_PATCH(embedding_bag) {
  const auto add = [](PatchRegistrar::Listing listing) {
    listing.shards("the table's rows", "the table's columns", "the numbers or the bags")
        .notes(
            "scale_grad_by_freq and sparse are refused; maxima move a cut "
            "of the rows to the columns");
  };
  add(patch.function<at::_ops::_embedding_bag>(embedding_bag<false>));
  add(patch.function<at::_ops::_embedding_bag_forward_only>(embedding_bag<true>));
}

}  // namespace shard
