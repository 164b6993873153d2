// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/tensor.h>
#include <shard/error.h>
#include <shard/pieces.h>
#include <shard/primitives.h>
#include <shard/route.h>

#include <algorithm>
#include <numeric>

#include "tensor/impl.h"

namespace shard {
namespace {

using at::Tensor;

std::vector<int64_t> values_of(const Tensor& numbers) {
  const Tensor on_host = numbers.cpu();
  const auto* first = on_host.const_data_ptr<int64_t>();
  return {first, first + on_host.numel()};
}

int64_t sum_of(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

Tensor empty_rows(const Tensor& like, int64_t dim, int64_t rows) {
  Shape shape(like.sizes().begin(), like.sizes().end());
  shape[static_cast<size_t>(dim)] = rows;
  return empty_of_shape(like, shape);
}

/// The first row of every rank, or with `shift` 1 the first row after it.
Tensor boundaries(const Partition& owned, size_t shift, const Tensor& like) {
  std::vector<int64_t> offsets(owned.size() + 1, 0);
  std::partial_sum(owned.begin(), owned.end(), offsets.begin() + 1);
  const auto first = offsets.begin() + static_cast<std::ptrdiff_t>(shift);
  return at::tensor(c10::ArrayRef<int64_t>(&*first, owned.size()), like.options());
}

bool are_rows(const Tensor& rows, int64_t total) {
  return rows.numel() == 0 ||
         (rows.min().item<int64_t>() >= 0 && rows.max().item<int64_t>() < total);
}

}  // namespace

RowRoute::RowRoute(const std::string& op, const Tensor& rows, const Partition& owned,
                   const DeviceMesh& mesh, Repeats repeats)
    : mesh_(mesh), repeats_(repeats) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const bool is_valid = are_rows(rows, sum_of(owned));
  const Tensor named = is_valid ? rows : rows.narrow(0, 0, 0);
  Tensor slots;
  if (repeats == Repeats::Once) {
    std::tie(slots, slot_of_, std::ignore) = at::_unique2(named, /*sorted=*/true, true);
  } else {
    const Tensor owner = at::searchsorted(boundaries(owned, 1, named), named, false, true);
    order_ = at::argsort(owner, /*stable=*/true, 0);
    slot_of_ = at::argsort(order_, /*stable=*/true, 0);
    slots = named.index_select(0, order_);
  }
  name_rows(op, slots, owned, is_valid);
}

void RowRoute::name_rows(const std::string& op, const Tensor& slots, const Partition& owned,
                         bool is_valid) {
  const auto ranks = static_cast<int64_t>(owned.size());
  const Tensor owner = at::searchsorted(boundaries(owned, 1, slots), slots, false, true);
  // A rank whose rows do not exist says so to all: every rank then raises the same error.
  const Tensor wanted =
      is_valid ? at::bincount(owner, {}, ranks) : at::full({ranks}, -1, slots.options());
  const Tensor served = at::empty({ranks}, slots.options());
  const std::vector<int64_t> ones(owned.size(), 1);
  mesh_.comm().all_to_all_v(pieces_of(wanted, 0, ones), pieces_of(served, 0, ones));
  wanted_ = values_of(wanted);
  served_ = values_of(served);
  check<SpecMismatch>(std::all_of(served_.begin(), served_.end(), [](int64_t n) { return n >= 0; }),
                      op, "got an index that is out of range; expected 0 <= index < ",
                      sum_of(owned), " along the sharded dim. Correct the index.");
  const Tensor numbers = slots - boundaries(owned, 0, slots).index_select(0, owner);
  served_rows_ = at::empty({sum_of(served_)}, slots.options());
  mesh_.comm().all_to_all_v(pieces_of(numbers, 0, wanted_), pieces_of(served_rows_, 0, served_));
}

Tensor RowRoute::fetch(const Tensor& own, int64_t dim) const {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const Tensor sent = own.index_select(dim, served_rows_);
  // Like what is sent: an inner level's pending sum was summed by the selection.
  const Tensor slots = empty_rows(sent, dim, sum_of(wanted_));
  mesh_.comm().all_to_all_v(pieces_of(sent, dim, served_), pieces_of(slots, dim, wanted_));
  return slots.index_select(dim, slot_of_);
}

RowRoute::Delivery RowRoute::deliver(const Tensor& values, int64_t dim) const {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const Tensor whole = is_cut_along(values, dim) ? uncut(values, dim) : values;
  const Tensor slots =
      repeats_ == Repeats::Each
          ? whole.index_select(dim, order_)
          : empty_rows(whole, dim, sum_of(wanted_)).zero_().index_add_(dim, slot_of_, whole);
  const Tensor delivered = empty_rows(slots, dim, sum_of(served_));
  mesh_.comm().all_to_all_v(pieces_of(slots, dim, wanted_), pieces_of(delivered, dim, served_));
  return {served_rows_, delivered};
}

void check_index_dtype(const std::string& op, const Tensor& index, bool takes_int) {
  const auto dtype = index.scalar_type();
  check<SpecMismatch>(dtype == at::kLong || (takes_int && dtype == at::kInt), op,
                      "got an index of ", dtype, "; expected Long", takes_int ? " or Int" : "",
                      ". Convert it with to(at::kLong).");
}

Tensor plain_numbers(const Tensor& numbers) {
  Tensor whole = numbers;
  while (is_shard_tensor(whole)) {
    whole = raw_local(redistribute(whole, spec_of(whole)->replicated()));
  }
  return whole;
}

}  // namespace shard
