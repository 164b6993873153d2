// SPDX-License-Identifier: Apache-2.0
// Routed exchange: rows of a tensor cut over the ranks, named by their global numbers, are fetched
// from their owners or delivered to them. Unlike a halo's, the rows that a rank names are values,
// known to itself only: the ranks first tell each other how many rows of whom they name, and which.
#pragma once

#include <ATen/core/Tensor.h>
#include <shard/mesh.h>
#include <shard/spec.h>

#include <cstdint>
#include <string>
#include <vector>

namespace shard {

class RowRoute {
 public:
  /// What happens to a row that a rank names several times.
  enum class Repeats : uint8_t {
    Once,  ///< it travels once: fetched rows are copied here, delivered ones are summed here
    Each   ///< it travels each time, in the order named: for what is not a sum
  };

  /// `rows` (plain, 1-d, long): the global rows that this rank names, of `owned` over the ranks of
  /// `mesh`; any order, none allowed. Collective over `mesh`: two small messages. Errors:
  /// SpecMismatch on every rank when a rank names a row that does not exist.
  RowRoute(const std::string& op, const at::Tensor& rows, const Partition& owned,
           const DeviceMesh& mesh, Repeats repeats = Repeats::Once);

  /// The rows named, along `dim` of the tensor whose part this rank holds as `own`. Collective; not
  /// differentiable: for rules, below autograd.
  at::Tensor fetch(const at::Tensor& own, int64_t dim) const;

  /// The rows of its own that this rank is asked for, from all ranks in rank order.
  const at::Tensor& asked_rows() const { return served_rows_; }

  struct Delivery {
    at::Tensor rows;    ///< numbers among this rank's own rows, from all ranks in rank order
    at::Tensor values;  ///< what is for them
  };
  /// Brings `values` (one along `dim` per row named) to the owners of the rows. Collective; not
  /// differentiable.
  Delivery deliver(const at::Tensor& values, int64_t dim) const;

 private:
  void name_rows(const std::string& op, const at::Tensor& slots, const Partition& owned,
                 bool is_valid);

  DeviceMesh mesh_;
  Repeats repeats_;
  at::Tensor slot_of_;           ///< for every row named, its place among those that travel
  at::Tensor order_;             ///< Each: which named row travels in which place
  std::vector<int64_t> wanted_;  ///< how many rows of every rank this rank names
  std::vector<int64_t> served_;  ///< how many of its own every rank names
  at::Tensor served_rows_;       ///< which, as numbers among its own rows
};

/// An index has a dtype that LibTorch takes: Long or, of some ops, Int. Errors: SpecMismatch.
void check_index_dtype(const std::string& op, const at::Tensor& index, bool takes_int);

/// A tensor of numbers that all ranks of an inner level need whole: the plain tensor itself.
at::Tensor plain_numbers(const at::Tensor& numbers);

}  // namespace shard
