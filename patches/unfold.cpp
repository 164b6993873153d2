// SPDX-License-Identifier: Apache-2.0
// Unfold (im2col) and fold (col2im) over a tensor sharded in space, channels or batch. The blocks
// of one row of windows stand together in the column dim, so a tensor cut along its rows gives
// columns cut between rows of windows, and the reverse.
#include <ATen/ops/col2im.h>
#include <ATen/ops/im2col.h>
#include <shard/count_rows.h>
#include <shard/transposed_window.h>
#include <shard/window_patch.h>

#include <algorithm>

namespace shard {
namespace {

using at::IntArrayRef;
using at::Tensor;

/// The windows' geometry.
struct Blocks {
  std::vector<int64_t> kernel, dilation, padding, stride;

  Blocks(const char* op, IntArrayRef kernel, IntArrayRef dilation, IntArrayRef padding,
         IntArrayRef stride)
      : kernel(expanded(op, kernel, 2, 1)),
        dilation(expanded(op, dilation, 2, 1)),
        padding(expanded(op, padding, 2, 0)),
        stride(expanded(op, stride, 2, 1)) {}

  Window window(size_t i) const { return {kernel[i], stride[i], padding[i], dilation[i]}; }
  int64_t elements() const { return kernel[0] * kernel[1]; }
  /// In the image: LibTorch's own checks see local sizes.
  void check_fit(const char* op, IntArrayRef image) const {
    for (size_t i = 0; i < 2; ++i) {
      const Window w = window(i);
      check<SpecMismatch>(w.kernel > 0 && w.stride > 0 && w.dilation > 0 && w.padding >= 0 &&
                              w.output_size(image[i]) > 0,
                          op, "got kernel ", w.kernel, ", stride ", w.stride, ", dilation ",
                          w.dilation, ", padding ", w.padding, " for ", image[i],
                          " rows or columns; expected positive values and a window that fits. "
                          "Correct the arguments.");
    }
  }

  Tensor unfold(const Tensor& x, int64_t row_padding) const {
    return at::im2col(x, kernel, dilation, {row_padding, padding[1]}, stride);
  }
  Tensor fold(const Tensor& columns, int64_t rows, int64_t width, int64_t row_padding) const {
    return at::col2im(columns, {rows, width}, kernel, dilation, {row_padding, padding[1]}, stride);
  }
};

Partition times(Partition partition, int64_t factor) {
  for (auto& size : partition) size *= factor;
  return partition;
}
Partition divided(Partition partition, int64_t factor) {
  for (auto& size : partition) size /= factor;
  return partition;
}
/// `input` cut along `dim` into `partition`.
void recut(ShardedInput& input, int64_t dim, const Partition& partition) {
  const auto& spec = input.spec;
  input.tensor =
      redistribute(input.tensor, spec->with(Shard(dim), spec->global_shape(), partition));
  input.spec = spec_of(input.tensor);
  input.dim = dim;
}

/// Wraps a local result that is cut along `dim`.
Tensor cut_along(const Tensor& local, const ShardedInput& input, int64_t dim,
                 const Partition& partition) {
  Shape shape(local.sizes().begin(), local.sizes().end());
  shape[static_cast<size_t>(dim)] = total_of(partition);
  return from_local(local, input.mesh, input.spec->with(Shard(dim), shape, partition));
}

/// Wraps the result of an op whose channels alone count otherwise than the input's.
Tensor from_own_rows(const Tensor& y, const ShardedInput& input, const LocalRows& rows,
                     const Partition& partition) {
  return from_window(rows.is_dummy ? y.narrow(input.dim, 0, 0) : y, input, partition);
}

// ---- unfold

Tensor unfold(const Tensor& x, IntArrayRef kernel, IntArrayRef dilation, IntArrayRef padding,
              IntArrayRef stride) {
  constexpr const char* kOp = "aten::im2col";
  const Blocks blocks(kOp, kernel, dilation, padding, stride);
  auto input = window_input(kOp, x, 2, /*channels_are_local=*/true);
  const int64_t first_spatial = x.dim() - 2;
  if (input.spatial < 0) {
    const auto rows = own_rows(input);
    const bool cuts_channels = input.dim == first_spatial - 1;
    return from_own_rows(blocks.unfold(rows.rows, blocks.padding[0]), input, rows,
                         times(rows.output, cuts_channels ? blocks.elements() : 1));
  }
  if (input.mesh.size() == 1) {
    const Tensor y = blocks.unfold(to_local(input.tensor), blocks.padding[0]);
    return cut_along(y, input, first_spatial, {y.size(first_spatial)});
  }
  blocks.check_fit(kOp, x.sizes().slice(static_cast<size_t>(first_spatial)));
  if (input.spatial == 1) recut(input, first_spatial, {});
  const auto rows = window_rows(input, blocks.window(0), 0);
  const Tensor y = blocks.unfold(rows.rows, 0);
  const int64_t width = blocks.window(1).output_size(x.size(-1));
  return cut_along(rows.is_dummy ? y.narrow(first_spatial, 0, 0) : y, input, first_spatial,
                   times(rows.output, width));
}

// ---- fold

void check_columns(const char* op, const Tensor& x, IntArrayRef size, const Blocks& blocks) {
  check<SpecMismatch>(
      size.size() == 2 && (x.dim() == 2 || x.dim() == 3), op, "got an input of ", x.sizes(),
      " to fold to ", size,
      "; expected 2 or 3 dims (batch, channels, blocks) and two sizes. Correct them.");
  blocks.check_fit(op, size);
  const int64_t expected =
      blocks.window(0).output_size(size[0]) * blocks.window(1).output_size(size[1]);
  check<SpecMismatch>(x.size(-1) == expected && x.size(-2) % blocks.elements() == 0, op,
                      "got an input of ", x.sizes(), "; expected ", expected,
                      " blocks and a multiple of ", blocks.elements(),
                      " channels. Correct the sizes.");
}

Tensor fold_rows(const ShardedInput& input, IntArrayRef size, const Blocks& blocks) {
  const int64_t width = blocks.window(1).output_size(size[1]);  // blocks in a row of windows
  const auto rows_of_blocks = divided(input.spec->partition(), width);
  const int64_t n = blocks.window(0).output_size(size[0]);
  TransposedWindow window{blocks.kernel[0], blocks.stride[0], blocks.padding[0],
                          blocks.dilation[0]};
  window.output_padding = size[0] - window.output_size(n);
  const auto parts = transposed_parts(window, rows_of_blocks);
  std::vector<std::vector<Rows>> wanted;
  for (const auto& part : parts) wanted.push_back({{part.in.begin * width, part.in.end * width}});
  const auto plan = make_halo_plan(input.dim, input.spec->partition(), wanted);
  const auto halo = exchange_halo(to_local(input.tensor), plan, input.mesh);
  const int64_t rank = input.mesh.rank();
  const auto& part = parts[static_cast<size_t>(rank)];
  const bool is_dummy = part.out.size() == 0;
  const Tensor columns =
      assemble(halo, plan, rank, part.before * width, (is_dummy ? 1 : part.after) * width);
  const Tensor y =
      blocks.fold(columns, is_dummy ? window.reach() : part.out.size(), size[1], part.padding);
  return cut_along(is_dummy ? y.narrow(input.dim, 0, 0) : y, input, input.dim,
                   window.output_partition(rows_of_blocks));
}

/// Cut between the groups of channels that become one channel. NOTE [Idle ranks]: the dummy is a
/// group.
Tensor fold_groups(const ShardedInput& input, IntArrayRef size, const Blocks& blocks) {
  const int64_t group = blocks.elements();
  Tensor own = to_local(input.tensor);
  const bool is_dummy = own.size(input.dim) == 0;
  if (is_dummy) own = join({own, fill_rows(own, input.dim, group)}, input.dim);
  const Tensor y = blocks.fold(own, size[0], size[1], blocks.padding[0]);
  return cut_along(is_dummy ? y.narrow(input.dim, 0, 0) : y, input, input.dim,
                   divided(input.spec->partition(), group));
}

Tensor fold(const Tensor& x, IntArrayRef size, IntArrayRef kernel, IntArrayRef dilation,
            IntArrayRef padding, IntArrayRef stride) {
  constexpr const char* kOp = "aten::col2im";
  const Blocks blocks(kOp, kernel, dilation, padding, stride);
  auto input = sharded_input(x);
  check_columns(kOp, x, size, blocks);
  const bool cuts_channels = input.dim >= 0 && input.dim == x.dim() - 2;
  if (cuts_channels)
    recut(input, input.dim, rounded_partition(input.spec->partition(), blocks.elements()));
  if (input.dim == x.dim() - 1 && input.mesh.size() > 1) {
    const int64_t width = blocks.window(1).output_size(size[1]);
    recut(input, input.dim, rounded_partition(input.spec->partition(), width));
    return fold_rows(input, size, blocks);
  }
  if (input.dim == x.dim() - 1) {
    const Tensor y = blocks.fold(to_local(input.tensor), size[0], size[1], blocks.padding[0]);
    return cut_along(y, input, input.dim, {size[0]});
  }
  if (cuts_channels) return fold_groups(input, size, blocks);
  const auto rows = own_rows(input);
  return from_rows(blocks.fold(rows.rows, size[0], size[1], blocks.padding[0]), input, rows);
}

}  // namespace

SHARD_PATCH(unfold) {
  patch.function<at::_ops::im2col>(unfold).shards("batch", "channels", "rows",
                                                  "columns (moved to the rows)");
  patch.function<at::_ops::col2im>(fold).shards("batch", "channels", "blocks");
}

}  // namespace shard
