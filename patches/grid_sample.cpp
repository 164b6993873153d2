// SPDX-License-Identifier: Apache-2.0
// Sampling at places given by a grid, and affine grids. Cut along batch, channels or the grid's
// own dims, every rank samples what it has. Cut in space, the output lies like the grid.
//
// NOTE [Rows that values ask for]
// Which rows of an input cut in space a rank needs is in the grid's values. Each rank finds the
// first and the last of them; one message of two numbers a rank makes them known to all, and one
// halo exchange brings the rows between. So a grid that bends its image a little costs a small
// halo, one that turns it upside down brings every rank the other half, and one whose every part
// reaches everywhere gathers the input along that dim.
//
// NOTE [Sampling rows]
// LibTorch's op counts coordinates from the input's ends and rounds them, so on some of the rows
// its places would not be the same to the last bit. Along the sharded dim places, rows and weights
// are computed here, in global rows by LibTorch's formulas; its op then samples whole rows, of
// which there are a power of two: their coordinates are exact.
#include <ATen/native/GridSamplerUtils.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/affine_grid_generator.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/floor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/grid_sampler.h>
#include <ATen/ops/grid_sampler_2d.h>
#include <ATen/ops/grid_sampler_3d.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/round.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <shard/count_rows.h>
#include <shard/window_patch.h>

#include <algorithm>
#include <bit>

namespace shard {
namespace {

using at::Tensor;
using at::native::GridSamplerInterpolation;
using at::native::GridSamplerPadding;

/// How a call of the op samples.
struct Sampling {
  GridSamplerInterpolation mode;
  GridSamplerPadding padding;
  bool align_corners;
};

// ---- along the sharded dim

/// A row that counts in the outputs: whether it exists, where, and how much.
struct Tap {
  Tensor exists, row, weight;  ///< (N, output...)
};

/// The sharded dim of the input.
struct SampledDim {
  Sampling sampling;
  int64_t n;
  bool is_vectorized;  ///< LibTorch's kernel on CPUs for two dims rounds otherwise

  Tensor place(const Tensor& coordinate) const {
    const auto size = static_cast<double>(n);
    if (sampling.align_corners) {
      return is_vectorized ? (coordinate + 1) * ((size - 1) / 2)
                           : (coordinate + 1) / 2 * (size - 1);
    }
    return is_vectorized ? (coordinate + 1) * (size / 2) - 0.5 : ((coordinate + 1) * size - 1) / 2;
  }
  Tensor clipped(const Tensor& x) const {  // no gradient at the ends, unlike clamp
    const Tensor last = at::full({}, static_cast<double>(n - 1), x.options());
    const Tensor below = at::where(x <= 0, at::full({}, 0, x.options()), x);
    return at::where(x >= last, last, below);
  }
  Tensor reflected(const Tensor& x) const {
    const double low = sampling.align_corners ? 0 : -0.5;
    const auto span = static_cast<double>(sampling.align_corners ? n - 1 : n);
    if (span == 0) return x * 0;
    const Tensor value = x.detach();
    const Tensor distance = at::abs(value - low);
    const Tensor flips = at::floor(distance / span);
    const Tensor extra = distance - flips * span;
    const Tensor is_even = flips.remainder(2) == 0;
    const Tensor sign = at::where(is_even == (value >= low), at::full({}, 1, x.options()),
                                  at::full({}, -1, x.options()));
    return at::where(is_even, extra, span - extra) + low + (x - value) * sign;
  }
  Tensor padded(const Tensor& x) const {
    if (sampling.padding == GridSamplerPadding::Zeros) return x;
    return clipped(sampling.padding == GridSamplerPadding::Reflection ? reflected(x) : x);
  }
  Tap tap(const Tensor& row, const Tensor& weight) const {
    const Tensor exists = (row >= 0) & (row <= static_cast<double>(n - 1));
    return {exists, at::where(exists, row, at::full({}, 0, row.options())),
            at::where(exists, weight, at::full({}, 0, weight.options()))};
  }

  std::vector<Tap> taps(const Tensor& coordinate) const {
    const Tensor x = place(coordinate);
    if (sampling.mode == GridSamplerInterpolation::Bicubic) return cubic_taps(x);
    const Tensor inside = padded(x);
    if (sampling.mode == GridSamplerInterpolation::Nearest) {
      const Tensor row = at::round(inside.detach());
      return {tap(row, at::full({}, 1, row.options()).expand_as(row))};
    }
    const Tensor row = at::floor(inside.detach());
    const Tensor weight = inside - row;
    return {tap(row, 1 - weight), tap(row + 1, weight)};
  }

 private:
  std::vector<Tap> cubic_taps(const Tensor& x) const {
    constexpr double a = -0.75;
    const Tensor row = at::floor(x.detach());
    const Tensor t = x - row;
    const auto near = [](const Tensor& d) { return ((a + 2) * d - (a + 3)) * d * d + 1; };
    const auto far = [](const Tensor& d) { return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a; };
    return {tap(padded(row - 1), far(t + 1)), tap(padded(row), near(t)),
            tap(padded(row + 1), near(1 - t)), tap(padded(row + 2), far(2 - t))};
  }
};

/// The rows from the first to the last that exist.
Rows rows_of(const std::vector<Tap>& taps) {
  Rows rows{0, 0};
  for (const Tap& tap : taps) {
    if (tap.row.numel() == 0 || !tap.exists.any().item<bool>()) continue;
    const auto number = [](const Tensor& t) { return static_cast<int64_t>(t.item<double>()); };
    // Rows that do not exist stand as 0: for the first one they count as a row that does.
    const Tensor last = tap.row.max();
    const Rows found{number(at::where(tap.exists, tap.row, last).min()), number(last) + 1};
    rows = rows.size() == 0
               ? found
               : Rows{std::min(rows.begin, found.begin), std::max(rows.end, found.end)};
  }
  return rows;
}

/// What every rank needs.
std::vector<std::vector<Rows>> rows_of_all(const Rows& rows, const DeviceMesh& mesh,
                                           const Tensor& like) {
  const Tensor own = at::tensor({rows.begin, rows.end}, innermost(like).options().dtype(at::kLong));
  const Tensor all = all_gather_stack(own, mesh).cpu();
  std::vector<std::vector<Rows>> wanted;
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    wanted.push_back({{all[rank][0].item<int64_t>(), all[rank][1].item<int64_t>()}});
  }
  return wanted;
}

/// `grid` with other coordinates along one dim.
Tensor with_coordinate(const Tensor& grid, int64_t index, const Tensor& coordinate) {
  std::vector<Tensor> coordinates;
  for (int64_t i = 0; i < grid.size(-1); ++i)
    coordinates.push_back(i == index ? coordinate.to(grid.scalar_type()) : grid.select(-1, i));
  return at::stack(coordinates, -1);
}

template <class Op>
Tensor call(const Tensor& x, const Tensor& grid, const Sampling& sampling) {
  return Op::call(x, grid, static_cast<int64_t>(sampling.mode),
                  static_cast<int64_t>(sampling.padding), sampling.align_corners);
}

template <class Op>
Tensor sample_rows(const ShardedInput& input, const Tensor& grid, const Sampling& sampling,
                   bool is_dummy) {
  const int64_t spatial_dims = input.tensor.dim() - 2;
  const int64_t index = spatial_dims - 1 - input.spatial;  // grids name the last dim first
  const SampledDim dim{sampling, input.tensor.size(input.dim),
                       input.tensor.is_cpu() && spatial_dims == 2};
  const Tensor coordinate = grid.select(-1, index);
  const auto type = grid.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto taps = dim.taps(coordinate.to(type));

  const auto wanted = rows_of_all(is_dummy ? Rows{0, 0} : rows_of(taps), input.mesh, grid);
  const auto plan = make_halo_plan(input.dim, input.spec->partition(), wanted);
  const auto halo = exchange_halo(to_local(input.tensor), plan, input.mesh);
  const Rows rows = wanted[static_cast<size_t>(input.mesh.rank())][0];
  const int64_t ends = sampling.align_corners ? 1 : 0;
  const auto intervals =
      static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(rows.size(), 2))));
  const Tensor local = assemble(halo, plan, input.mesh.rank(), 0, intervals + ends - rows.size());

  Tensor sum;
  for (const Tap& tap : taps) {
    const Tensor row = (tap.row - rows.begin).clamp(0, intervals - 1);
    const Tensor exact = (2 * row + (1 - ends)) / static_cast<double>(intervals) - 1;
    const Tensor y = call<Op>(local, with_coordinate(grid, index, exact), sampling);
    const Tensor term = y * tap.weight.unsqueeze(1);
    sum = sum.defined() ? sum + term : term;
  }
  return sum.to(input.tensor.scalar_type());
}

// ---- where everything lies

Tensor moved(const Tensor& x, Placement placement, const Partition& partition = {}) {
  return redistribute(x, spec_of(x)->with(placement, x.sizes(), partition));
}

/// One more index of `dim`, of zeros, where there are none: NOTE [Idle ranks].
Tensor or_dummy(const Tensor& x, int64_t dim) {
  return x.size(dim) > 0 ? x : join({x, fill_rows(x, dim, 1)}, dim);
}

Tensor wrapped(const Tensor& y, const SpecRef& spec, const DeviceMesh& mesh, int64_t dim,
               const Partition& partition) {
  const Tensor own = partition[static_cast<size_t>(mesh.rank())] == 0 ? y.narrow(dim, 0, 0) : y;
  Shape shape(own.sizes().begin(), own.sizes().end());
  shape[static_cast<size_t>(dim)] = total_of(partition);
  return from_local(own, mesh, spec->with(Shard(dim), shape, partition));
}

template <class Op>
class GridSample {
 public:
  GridSample(const Tensor& x, const Tensor& grid, const Sampling& sampling)
      : mesh_(mesh_of(is_shard_tensor(x) ? x : grid)),
        x_(sharded_input(promote(x, mesh_)).tensor),
        grid_(sharded_input(promote(grid, mesh_)).tensor),
        sampling_(sampling) {
    at::native::check_grid_sampler_common(x, grid);  // of global sizes
    check<SpecMismatch>(x.dim() == grid.dim() && (x.dim() == 4 || x.dim() == 5), Op::name,
                        "got an input of ", x.sizes(), " and a grid of ", grid.sizes(),
                        "; expected both with 4 or both with 5 dims.");
  }

  Tensor operator()() {
    if (mesh_.size() == 1) return on_one_rank();
    const int64_t last = grid_.dim() - 1;
    if (dim(grid_) == last) grid_ = moved(grid_, Shard(1));
    if (dim(x_) == 1 && dim(grid_) > 0) x_ = moved(x_, Shard(dim(grid_) + 1));
    if (dim(x_) >= 2) return of_space();
    if (dim(x_) == 0 || dim(grid_) == 0) return of_batch();
    if (dim(x_) == 1) return of_channels();
    if (dim(grid_) > 0) return of_grid();
    const Tensor y = call<Op>(to_local(x_), to_local(grid_), sampling_);
    return from_local(y, mesh_, spec_of(x_)->with(Replicate(), y.sizes()));
  }

 private:
  static int64_t dim(const Tensor& t) { return spec_of(t)->shard_dim(); }

  Tensor on_one_rank() {
    const Tensor y = call<Op>(to_local(x_), to_local(grid_), sampling_);
    const int64_t cut = dim(x_) >= 0 ? dim(x_) : dim(grid_) > 0 ? dim(grid_) + 1 : dim(grid_);
    if (cut < 0 || cut >= y.dim())
      return from_local(y, mesh_, spec_of(x_)->with(Replicate(), y.sizes()));
    return wrapped(y, spec_of(x_), mesh_, cut, {y.size(cut)});
  }
  Tensor of_batch() {
    const Partition partition = spec_of(dim(x_) == 0 ? x_ : grid_)->partition();
    const Tensor x = or_dummy(to_local(moved(x_, Shard(0), partition)), 0);
    const Tensor grid = or_dummy(to_local(moved(grid_, Shard(0), partition)), 0);
    return wrapped(call<Op>(x, grid, sampling_), spec_of(x_), mesh_, 0, partition);
  }
  Tensor of_channels() {
    const Tensor grid = to_local(grid_, Partial());
    return wrapped(call<Op>(or_dummy(to_local(x_), 1), grid, sampling_), spec_of(x_), mesh_, 1,
                   spec_of(x_)->partition());
  }
  Tensor of_grid() {
    const Tensor grid = or_dummy(to_local(grid_), dim(grid_));
    return wrapped(call<Op>(to_local(x_, Partial()), grid, sampling_), spec_of(x_), mesh_,
                   dim(grid_) + 1, spec_of(grid_)->partition());
  }
  Tensor of_space() {
    const auto input = window_input(Op::name, x_, x_.dim() - 2, true);
    if (dim(grid_) <= 0) {  // each rank takes the outputs whose place would be its own in an image
      const int64_t rows = grid_.size(1 + input.spatial);
      const int64_t n = x_.size(input.dim);
      const auto output = partition_outputs(input.spec->partition(), rows,
                                            [&](int64_t row) { return (row * rows + n - 1) / n; });
      grid_ = moved(grid_, Shard(1 + input.spatial), output);
    }
    const Tensor grid = or_dummy(to_local(grid_), dim(grid_));
    return wrapped(sample_rows<Op>(input, grid, sampling_, to_local(grid_).size(dim(grid_)) == 0),
                   input.spec, mesh_, dim(grid_) + 1, spec_of(grid_)->partition());
  }

  DeviceMesh mesh_;
  Tensor x_, grid_;  // Shard or Replicate
  Sampling sampling_;
};

template <class Op>
Tensor grid_sample(const Tensor& x, const Tensor& grid, int64_t mode, int64_t padding,
                   bool align_corners) {
  return GridSample<Op>(x, grid,
                        {static_cast<GridSamplerInterpolation>(mode),
                         static_cast<GridSamplerPadding>(padding), align_corners})();
}

// ---- affine grids

/// Coordinates of `rows` among n.
Tensor coordinates(const Tensor& like, int64_t n, const Rows& rows, bool align_corners) {
  if (n <= 1) return at::full({rows.size()}, 0, like.options());
  const Tensor all = at::linspace(-1, 1, n, like.options());
  const Tensor own = all.narrow(0, rows.begin, rows.size());
  return align_corners ? own : own * (static_cast<double>(n - 1) / static_cast<double>(n));
}

/// The grid of `size` without affine map, its first spatial dim from `rows` only: (1, points, k+1).
Tensor base_grid(const Tensor& like, at::IntArrayRef size, const Rows& rows, bool align_corners) {
  const auto dims = static_cast<int64_t>(size.size()) - 2;
  std::vector<int64_t> shape{rows.size()};
  for (int64_t d = 1; d < dims; ++d) shape.push_back(size[static_cast<size_t>(d + 2)]);
  std::vector<Tensor> columns;
  for (int64_t d = dims - 1; d >= 0; --d) {
    const int64_t n = size[static_cast<size_t>(d + 2)];
    std::vector<int64_t> along(static_cast<size_t>(dims), 1);
    along[static_cast<size_t>(d)] = -1;
    columns.push_back(
        coordinates(like, n, d == 0 ? rows : Rows{0, n}, align_corners).view(along).expand(shape));
  }
  columns.push_back(at::ones(shape, like.options()));
  return at::stack(columns, -1).flatten(0, -2).unsqueeze(0);
}

/// Cut along the batch, or else along the first spatial dim of the grid.
Tensor affine_grid(const Tensor& theta, at::IntArrayRef size, bool align_corners) {
  constexpr const char* kOp = "aten::affine_grid_generator";
  const auto dims = static_cast<int64_t>(size.size()) - 2;
  check<SpecMismatch>((dims == 2 || dims == 3) && theta.dim() == 3 && theta.size(0) == size[0] &&
                          theta.size(1) == dims && theta.size(2) == dims + 1,
                      kOp, "got theta of ", theta.sizes(), " for the size ", size,
                      "; expected (N, k, k+1) for N and k spatial sizes. Correct the sizes.");
  auto input = sharded_input(theta);
  if (input.dim == 0) {
    const auto rows = own_rows(input);
    auto local_size = size.vec();
    local_size[0] = rows.rows.size(0);
    return from_rows(at::affine_grid_generator(rows.rows, local_size, align_corners), input, rows);
  }
  const Tensor whole =
      local_weight(input.mesh, redistribute(input.tensor, input.spec->replicated()));
  const auto partition = even_partition(size[2], input.mesh.size());
  const int64_t begin = offset_of(partition, input.mesh.rank());
  const Rows rows{begin, begin + partition[static_cast<size_t>(input.mesh.rank())]};
  const Tensor base = base_grid(innermost(whole), size, rows, align_corners);
  std::vector<int64_t> shape{whole.size(0), rows.size()};
  for (int64_t d = 1; d < dims; ++d) shape.push_back(size[static_cast<size_t>(d + 2)]);
  shape.push_back(dims);
  const Tensor y = at::matmul(base.detach(), whole.transpose(1, 2)).view(shape);
  return from_local(
      y, input.mesh,
      input.spec->with(Shard(1),
                       size.size() == 4 ? Shape{size[0], size[2], size[3], dims}
                                        : Shape{size[0], size[2], size[3], size[4], dims},
                       partition));
}

}  // namespace

SHARD_PATCH(grid_sample) {
  namespace ops = at::_ops;
  const auto add = [](PatchRegistrar::Listing listing) {
    listing.shards("batch", "channels", "spatial", "any dim of the grid")
        .notes(
            "spatial: each rank gets the rows that its part of the grid reaches, from the first "
            "to the last; all of them where the grid reaches everywhere");
  };
  add(patch.function<ops::grid_sampler>(grid_sample<ops::grid_sampler>));
  add(patch.function<ops::grid_sampler_2d>(grid_sample<ops::grid_sampler_2d>));
  add(patch.function<ops::grid_sampler_3d>(grid_sample<ops::grid_sampler_3d>));
  patch.function<ops::affine_grid_generator>(affine_grid)
      .shards("batch")
      .notes("else the grid is cut along its first spatial dim");
}

}  // namespace shard
