// SPDX-License-Identifier: Apache-2.0
// NOTE [Four steps]
// A line of N = A * B points is a matrix of A rows. With n = a B + b and k = c + A d the transform
// is: columns transformed (a -> c), point (c, b) turned by c b / N of a circle, rows transformed
// (b -> d), and read column by column. Each rank transforms whole columns, then whole rows; the
// matrix is transposed between ranks in between (Bailey: FFTs in External or Hierarchical Memory).
// Where N has no factor A that gives each rank a row, the transform is a convolution with a chirp
// (Bluestein), in turn made of transforms of a power of two, in double precision.
#include <ATen/ops/_fft_c2c.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/polar.h>
#include <ATen/ops/real.h>
#include <ATen/ops/where.h>
#include <shard/count_rows.h>
#include <shard/exchange.h>
#include <shard/line_transform.h>
#include <shard/primitives.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace shard {
namespace {

using at::Tensor;

Partition times(Partition partition, int64_t factor) {
  for (auto& size : partition) size *= factor;
  return partition;
}

/// The rows of the first n points of a longer line.
Partition clipped(Partition partition, int64_t n) {
  for (auto& size : partition) {
    size = std::min(size, n);
    n -= size;
  }
  return partition;
}

/// exp(2 pi i * turns / n) for whole `turns`, which are made small first.
Tensor circle(const Tensor& turns, int64_t n, bool forward, at::ScalarType dtype) {
  const double unit = (forward ? -2 : 2) * std::numbers::pi / static_cast<double>(n);
  const Tensor angle = turns.remainder(n).to(at::kDouble).mul_(unit);
  return at::polar(at::ones_like(angle), angle).to(dtype);
}

/// The largest divisor up to the square root.
int64_t rows_of_matrix(int64_t n) {
  auto rows = static_cast<int64_t>(std::sqrt(static_cast<double>(n)));
  while (n % rows != 0) --rows;
  return rows;
}

/// The line on one mesh, as it moves.
class Line {
 public:
  Line(const DeviceMesh& mesh, bool forward) : mesh_(mesh), forward_(forward) {}

  /// From a cut along `from` to one along `to`.
  Tensor moved(const Tensor& local, const Shape& shape, int64_t from, const Partition& pieces,
               int64_t to, const Partition& wanted) const {
    const auto spec = ShardTensorSpec::make(mesh_.layout_ref(), Shard(from), shape, pieces);
    return raw_local(
        redistribute(from_local(local, mesh_, spec), spec->with(Shard(to), shape, wanted)));
  }
  Tensor recut(const Tensor& local, const Partition& from, const Partition& to) const {
    return moved(local, {total_of(from)}, 0, from, 0, to);
  }
  int64_t own(const Partition& partition) const {
    return partition[static_cast<size_t>(mesh_.rank())];
  }
  Tensor positions(const Partition& partition, const Tensor& like) const {
    const int64_t begin = offset_of(partition, mesh_.rank());
    return at::arange(begin, begin + own(partition), like.options().dtype(at::kLong));
  }

  Tensor transformed(const Tensor& local, const Partition& owned) const {
    const int64_t n = total_of(owned);
    const int64_t rows = n > 0 ? rows_of_matrix(n) : 0;
    if (rows >= mesh_.size()) return by_four_steps(local, owned, rows, n / rows);
    return n > 0 ? by_chirp(local, owned, n) : local;
  }

 private:
  /// Libraries refuse empty tensors.
  Tensor along(const Tensor& matrix, int64_t dim) const {
    return matrix.numel() == 0 ? matrix : at::_fft_c2c(matrix, dim, 0, forward_);
  }

  Tensor by_four_steps(const Tensor& local, const Partition& owned, int64_t rows,
                       int64_t columns) const {
    const Partition by_rows = even_partition(rows, mesh_.size());
    const Partition by_columns = even_partition(columns, mesh_.size());
    Tensor x = recut(local, owned, times(by_rows, columns)).reshape({own(by_rows), columns});
    x = along(moved(x, {rows, columns}, 0, by_rows, 1, by_columns), 0);
    const Tensor c = at::arange(rows, x.options().dtype(at::kLong));
    x = x * circle(c.unsqueeze(1) * positions(by_columns, x), rows * columns, forward_,
                   x.scalar_type());
    x = along(moved(x, {rows, columns}, 1, by_columns, 0, by_rows), 1);
    x = moved(x.t(), {columns, rows}, 1, by_rows, 0, by_columns);
    return recut(x.reshape({-1}), times(by_columns, rows), owned);
  }

  Tensor by_chirp(const Tensor& local, const Partition& owned, int64_t n) const {
    int64_t size = 1;
    while (size < 2 * n - 1 || rows_of_matrix(size) < mesh_.size()) size *= 2;
    const Partition longer = even_partition(size, mesh_.size());
    const Partition filled = clipped(longer, n);
    const auto chirp = [&](const Tensor& k, bool forward) {
      return circle(k * k, 2 * n, forward, at::kComplexDouble);
    };
    const auto padded = [&](const Tensor& x) {
      return at::cat({x, fill_rows(x, 0, own(longer) - own(filled))});
    };
    const Tensor k = positions(filled, local);
    const Tensor turned = recut(local.to(at::kComplexDouble), owned, filled) * chirp(k, forward_);
    // The other way round the circle: k and size - k alike, nothing between n and size - n.
    const Tensor m = positions(longer, local);
    const Tensor distance = at::minimum(m, size - m);
    const Tensor kernel = chirp(distance, !forward_) * (distance < n);
    const Tensor spectrum = transformed(padded(turned), longer) * transformed(kernel, longer);
    const Tensor folded =
        Line(mesh_, !forward_).transformed(spectrum, longer).div_(static_cast<double>(size));
    const Tensor result = folded.narrow(0, 0, own(filled)) * chirp(k, forward_);
    return recut(result.to(local.scalar_type()), filled, owned);
  }

  const DeviceMesh& mesh_;
  const bool forward_;
};

}  // namespace

Tensor transform_line(const Tensor& local, const DeviceMesh& mesh, const Partition& owned,
                      bool forward) {
  return Line(mesh, forward).transformed(local.resolve_conj(), owned);
}

Tensor transform_real_line(const Tensor& local, const DeviceMesh& mesh, const Partition& owned,
                           const Partition& kept) {
  const Line line(mesh, /*forward=*/true);
  const Tensor spectrum = line.transformed(local.to(at::toComplexType(local.scalar_type())), owned);
  const Partition first = clipped(owned, total_of(kept));
  return line.recut(spectrum.narrow(0, 0, line.own(first)), first, kept);
}

// The other half of the spectrum is the conjugate of this one: it adds the same real part. Only the
// first point, and the middle one of an even number, have no counterpart.
Tensor line_of_half_spectrum(const Tensor& local, const DeviceMesh& mesh, const Partition& owned,
                             const Partition& whole) {
  const Line line(mesh, /*forward=*/false);
  const int64_t points = total_of(whole);
  const Partition kept = clipped(owned, points / 2 + 1);
  const Partition filled = clipped(whole, total_of(kept));
  Tensor x = line.recut(local.resolve_conj().narrow(0, 0, line.own(kept)), kept, filled);
  const Tensor k = line.positions(filled, x);
  x = x * at::where((k == 0) | (k * 2 == points), 1, 2);
  x = at::cat({x, fill_rows(x, 0, line.own(whole) - line.own(filled))});
  return at::real(line.transformed(x, whole)).contiguous();
}

}  // namespace shard
