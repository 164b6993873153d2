// SPDX-License-Identifier: Apache-2.0
// What the patches of window ops (convolution, pooling, pad, interpolate) share: they run
// LibTorch's own op on the rows this rank's output needs.
#pragma once

#include <shard/exchange.h>
#include <shard/patch.h>

#include <functional>
#include <string>

namespace shard {

/// The input of an op, and where it is sharded.
struct ShardedInput {
  at::Tensor tensor;  ///< Shard or Replicate
  DeviceMesh mesh;
  SpecRef spec;
  int64_t dim = -1;      ///< sharded dim, -1: none
  int64_t spatial = -1;  ///< its index among the spatial dims, -1: not spatial

  /// Whether the op's windows reach over shard boundaries. Not on one rank, which holds everything.
  bool is_cut() const { return spatial >= 0 && mesh.size() > 1; }
};
/// Reduces Partial inputs.
ShardedInput sharded_input(const at::Tensor& x);
/// The input of a window op over the last `spatial_dims` dims: (batch, channel, spatial...) or
/// without batch (SpecMismatch otherwise). A cut of the channel dim, at whatever level, moves to
/// the largest other dim when `channels_are_local` is false.
ShardedInput window_input(const std::string& op, const at::Tensor& x, int64_t spatial_dims,
                          bool channels_are_local);

/// `list` with one value per spatial dim; it may hold one value for all dims or none (`fallback`).
/// SpecMismatch otherwise.
std::vector<int64_t> expanded(const std::string& op, c10::IntArrayRef list, int64_t spatial_dims,
                              int64_t fallback);
std::vector<int64_t> with_entry(std::vector<int64_t> list, int64_t index, int64_t value);

/// SpecMismatch, on every rank alike, unless the window is valid and fits into the `n` rows of a
/// cut dim. (LibTorch's own checks see local sizes: they would fail on some ranks only.)
void check_window(const std::string& op, int64_t dim, int64_t n, const Window& window);

/// NOTE [Idle ranks]
/// A rank without rows (of the input, or of the output) runs the op too, on a dummy row or window,
/// and drops the result: its graph then has the same communicating nodes, and LibTorch's refusals
/// of empty tensors do not matter.
struct LocalRows {
  at::Tensor rows;    ///< what the local op runs on
  Partition output;   ///< of the results' sharded dim
  Rows out;           ///< this rank's output rows
  int64_t first = 0;  ///< global row that rows[0] is; negative in the padding
  bool is_dummy = false;
};
/// The local tensor, for an op that treats the sharded dim (if any) index by index.
LocalRows own_rows(const ShardedInput& input);
/// The input rows of this rank's outputs with `fill` around them, for a local op without padding
/// along the sharded dim: it then gives exactly this rank's output rows. Collective when a window
/// crosses a boundary.
LocalRows window_rows(const ShardedInput& input, const Window& window, const at::Scalar& fill);
/// Runs `op` on `rows`, or on one dummy row along `dim` (dropped from the result) when there are
/// none.
at::Tensor on_rows(const at::Tensor& rows, int64_t dim,
                   const std::function<at::Tensor(const at::Tensor&)>& op);

/// Wraps the result of a local op on `rows.rows`.
at::Tensor from_rows(const at::Tensor& y, const ShardedInput& input, const LocalRows& rows);
/// Wraps a local result whose sharded dim (if any) has `partition`.
at::Tensor from_window(const at::Tensor& local, const ShardedInput& input,
                       const Partition& partition);

/// Maxima and where they are. LibTorch numbers the elements of the spatial dims as one.
struct Maxima {
  at::Tensor values, indices;
};
/// Of two maxima over parts of the same windows: the larger value, of equal ones the first; but of
/// NaNs, which win, the last, as in LibTorch.
Maxima larger(const Maxima& a, const Maxima& b);
/// `indices` count in a tensor that has `rows` rows along `dim` and the sizes of `whole` along the
/// dims after it; the result counts in one that has as many rows along `dim` as `whole`, where they
/// are those that `global_row` gives.
at::Tensor global_indices(const at::Tensor& indices, const at::Tensor& whole, int64_t dim,
                          int64_t rows,
                          const std::function<at::Tensor(const at::Tensor&)>& global_row);

/// The size in bytes of the largest shard up to which convolution concatenates the halo
/// (patches/convolution.cpp); tests set it to run both ways on small inputs. Every rank must see
/// the same value.
int64_t concatenation_limit();
void set_concatenation_limit(int64_t bytes);

}  // namespace shard
