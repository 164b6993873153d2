// SPDX-License-Identifier: Apache-2.0
// NOTE [Rounding in row kernels]
// Values are shifted by the mean before anything else (the mean may be 1e4 times the deviation),
// sums run in the tensor's dtype over short chunks and in double over chunks, and what rounding the
// mean to the tensor's dtype leaves out is put back into the constant term.
#include "exchange/row_kernels.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>

namespace shard {
namespace {

using at::Tensor;

constexpr int64_t kChunk = 2048;  // elements summed in the tensor's dtype
constexpr int64_t kElementsPerTask = 32768;

bool is_direct(const Tensor& x) {
  return x.is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble);
}

Tensor per_row(const Tensor& x) { return at::empty({x.size(0)}, x.options().dtype(at::kDouble)); }

/// Calls `row(i)` for all rows, in parallel when they are many.
template <class Row>
void for_rows(const Tensor& x, const Row& row) {
  const int64_t grain = std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(x.size(1), 1));
  at::parallel_for(0, x.size(0), grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) row(i);
  });
}

/// Four registers of a row, in GCC's and Clang's vector type: every x86-64 and AArch64 has 16-byte
/// ones. Four independent sums hide the latency of an addition.
template <class T>
struct Lanes {
  using Register [[gnu::vector_size(16)]] = T;
  static constexpr int64_t width = 16 / sizeof(T);
  static constexpr int64_t count = 4 * width;

  Register v[4];
  Lanes() : v{} {}
  explicit Lanes(const T* from) {
    unrolled([&](int k) __attribute__((always_inline)) {
      std::memcpy(&v[k], from + k * width, sizeof(Register));
    });
  }
  void store(T* to) const {
    unrolled([&](int k) __attribute__((always_inline)) {
      std::memcpy(to + k * width, &v[k], sizeof(Register));
    });
  }
  /// Calls `each(k)` for the four registers.
  template <class Each>
  [[gnu::always_inline]] static void unrolled(const Each& each) {
    each(0), each(1), each(2), each(3);
  }
  double sum() const {
    double total = 0;
    for (const auto& part : v) {
      for (int64_t l = 0; l < width; ++l) total += static_cast<double>(part[l]);
    }
    return total;
  }
};

struct Moments {
  double count = 0;
  double mean = 0;
  double squares = 0;

  void merge(const Moments& other) {
    const double total = count + other.count;
    const double delta = other.mean - mean;
    squares += other.squares + delta * delta * count * other.count / total;
    mean += delta * other.count / total;
    count = total;
  }
};

/// Roughly the mean: where to shift the first chunk to.
template <class T>
T middle_of(const T* x, int64_t n) {
  using L = Lanes<T>;
  L shifted;
  int64_t i = 0;
  for (; i + L::count <= n; i += L::count) {
    const L row(x + i);
    L::unrolled([&](int k) __attribute__((always_inline)) { shifted.v[k] += row.v[k] - x[0]; });
  }
  double sum = shifted.sum();
  for (; i < n; ++i) sum += static_cast<double>(x[i] - x[0]);
  return x[0] + static_cast<T>(sum / static_cast<double>(n));
}

template <class T>
Moments chunk_moments(const T* x, int64_t n, T pivot) {
  using L = Lanes<T>;
  L first;
  L second;
  int64_t i = 0;
  for (; i + L::count <= n; i += L::count) {
    const L row(x + i);
    L::unrolled([&](int k) __attribute__((always_inline)) {
      const auto d = row.v[k] - pivot;
      first.v[k] += d;
      second.v[k] += d * d;
    });
  }
  double sum = first.sum();
  double squares = second.sum();
  for (; i < n; ++i) {
    const auto d = static_cast<double>(x[i] - pivot);
    sum += d;
    squares += d * d;
  }
  const auto count = static_cast<double>(n);
  return {count, static_cast<double>(pivot) + sum / count, squares - sum * sum / count};
}

/// One pass: a chunk is shifted by the mean of those before it. When that is far from the chunk's
/// own mean, what cancels in its squares is as large as what the distance of the means adds to the
/// row's.
template <class T>
Moments moments_of_row(const T* x, int64_t n) {
  Moments moments;
  moments.mean = static_cast<double>(middle_of(x, std::min(kChunk, n)));
  for (int64_t at = 0; at < n; at += kChunk) {
    moments.merge(chunk_moments(x + at, std::min(kChunk, n - at), static_cast<T>(moments.mean)));
  }
  return moments;
}

template <class T>
void affine_row(const T* x, T* y, int64_t n, double mean, double scale, double shift) {
  using L = Lanes<T>;
  const auto m = static_cast<T>(mean);
  const auto a = static_cast<T>(scale);
  const auto b = static_cast<T>(shift + (static_cast<double>(m) - mean) * scale);
  int64_t i = 0;
  for (; i + L::count <= n; i += L::count) {
    L out(x + i);
    L::unrolled([&](int k) __attribute__((always_inline)) { out.v[k] = (out.v[k] - m) * a + b; });
    out.store(y + i);
  }
  for (; i < n; ++i) y[i] = (x[i] - m) * a + b;
}

template <class T>
std::pair<double, double> products_of_chunk(const T* g, const T* x, int64_t n, T m) {
  using L = Lanes<T>;
  L sums;
  L products;
  int64_t i = 0;
  for (; i + L::count <= n; i += L::count) {
    const L gradient(g + i);
    const L row(x + i);
    L::unrolled([&](int k) __attribute__((always_inline)) {
      sums.v[k] += gradient.v[k];
      products.v[k] += gradient.v[k] * (row.v[k] - m);
    });
  }
  double sum = sums.sum();
  double product = products.sum();
  for (; i < n; ++i) {
    sum += static_cast<double>(g[i]);
    product += static_cast<double>(g[i] * (x[i] - m));
  }
  return {sum, product};
}

template <class T>
std::pair<double, double> products_of_row(const T* g, const T* x, int64_t n, double mean) {
  const auto m = static_cast<T>(mean);
  double sum = 0;
  double product = 0;
  for (int64_t at = 0; at < n; at += kChunk) {
    const auto [s, p] = products_of_chunk(g + at, x + at, std::min(kChunk, n - at), m);
    sum += s;
    product += p;
  }
  return {sum, product + (static_cast<double>(m) - mean) * sum};
}

struct Combination {
  double mean, a, b, c;
};

template <class T>
void combine_row(const T* g, const T* x, T* y, int64_t n, const Combination& row) {
  using L = Lanes<T>;
  const auto m = static_cast<T>(row.mean);
  const auto a = static_cast<T>(row.a);
  const auto b = static_cast<T>(row.b);
  const auto c = static_cast<T>(row.c + (static_cast<double>(m) - row.mean) * row.b);
  int64_t i = 0;
  for (; i + L::count <= n; i += L::count) {
    L out(g + i);
    const L row(x + i);
    L::unrolled([&](int k) __attribute__((always_inline)) {
      out.v[k] = out.v[k] * a + ((row.v[k] - m) * b + c);
    });
    out.store(y + i);
  }
  for (; i < n; ++i) y[i] = g[i] * a + ((x[i] - m) * b + c);
}

// ---- by LibTorch's ops: other devices and dtypes

/// In float for the low-precision dtypes.
Tensor widened(const Tensor& x) {
  return x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16 ? x.to(at::kFloat) : x;
}
Tensor as_column(const Tensor& per_row, const Tensor& x) {
  return per_row.to(x.scalar_type()).unsqueeze(1);
}

std::pair<Tensor, Tensor> composed_moments(const Tensor& x) {
  const auto count = std::max<double>(static_cast<double>(x.size(1)), 1);
  const Tensor wide = widened(x);
  const Tensor mean = wide.sum(1, false, at::kDouble).div_(count);
  const Tensor centred = wide - as_column(mean, wide);
  const Tensor rest = centred.sum(1, false, at::kDouble);
  const Tensor squares = centred.square().sum(1, false, at::kDouble);
  return {as_column(mean, wide).squeeze(1).to(at::kDouble) + rest / count,
          squares - rest.square() / count};
}

}  // namespace

std::pair<Tensor, Tensor> row_moments(const Tensor& x) {
  if (x.numel() == 0) {
    const auto options = x.options().dtype(at::kDouble);
    return {at::zeros({x.size(0)}, options), at::zeros({x.size(0)}, options)};
  }
  if (!is_direct(x)) return composed_moments(x);
  const Tensor mean = per_row(x);
  const Tensor squares = per_row(x);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "row_moments", [&] {
    const auto* data = x.const_data_ptr<scalar_t>();
    auto* means = mean.mutable_data_ptr<double>();
    auto* sums = squares.mutable_data_ptr<double>();
    for_rows(x, [&](int64_t i) {
      const auto moments = moments_of_row(data + i * x.size(1), x.size(1));
      means[i] = moments.mean;
      sums[i] = moments.squares;
    });
  });
  return {mean, squares};
}

Tensor row_affine(const Tensor& x, const Tensor& mean, const Tensor& scale, const Tensor& shift) {
  if (!is_direct(x)) {
    const Tensor wide = widened(x);
    return ((wide - as_column(mean, wide)) * as_column(scale, wide) + as_column(shift, wide))
        .to(x.scalar_type());
  }
  Tensor y = at::empty_like(x);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "row_affine", [&] {
    const auto* from = x.const_data_ptr<scalar_t>();
    auto* to = y.mutable_data_ptr<scalar_t>();
    const auto* means = mean.const_data_ptr<double>();
    const auto* scales = scale.const_data_ptr<double>();
    const auto* shifts = shift.const_data_ptr<double>();
    const int64_t n = x.size(1);
    for_rows(x, [&](int64_t i) {
      affine_row(from + i * n, to + i * n, n, means[i], scales[i], shifts[i]);
    });
  });
  return y;
}

std::pair<Tensor, Tensor> row_products(const Tensor& g, const Tensor& x, const Tensor& mean) {
  if (!is_direct(x) || g.scalar_type() != x.scalar_type()) {
    const Tensor wide = widened(x);
    const Tensor product = g * (wide - as_column(mean, wide));
    return {g.sum(1, false, at::kDouble), product.sum(1, false, at::kDouble)};
  }
  const Tensor sum = per_row(x);
  const Tensor product = per_row(x);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "row_products", [&] {
    const auto* gs = g.const_data_ptr<scalar_t>();
    const auto* xs = x.const_data_ptr<scalar_t>();
    const auto* means = mean.const_data_ptr<double>();
    auto* sums = sum.mutable_data_ptr<double>();
    auto* products = product.mutable_data_ptr<double>();
    const int64_t n = x.size(1);
    for_rows(x, [&](int64_t i) {
      std::tie(sums[i], products[i]) = products_of_row(gs + i * n, xs + i * n, n, means[i]);
    });
  });
  return {sum, product};
}

Tensor row_combination(const Tensor& g, const Tensor& x, const Tensor& mean, const Tensor& a,
                       const Tensor& b, const Tensor& c) {
  if (!is_direct(x) || g.scalar_type() != x.scalar_type()) {
    const Tensor wide = widened(x);
    const Tensor own = (wide - as_column(mean, wide)) * as_column(b, wide) + as_column(c, wide);
    return (g * as_column(a, wide) + own).to(x.scalar_type());
  }
  Tensor y = at::empty_like(x);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "row_combination", [&] {
    const auto* gs = g.const_data_ptr<scalar_t>();
    const auto* xs = x.const_data_ptr<scalar_t>();
    auto* ys = y.mutable_data_ptr<scalar_t>();
    const auto* means = mean.const_data_ptr<double>();
    const auto* as = a.const_data_ptr<double>();
    const auto* bs = b.const_data_ptr<double>();
    const auto* cs = c.const_data_ptr<double>();
    const int64_t n = x.size(1);
    for_rows(x, [&](int64_t i) {
      combine_row(gs + i * n, xs + i * n, ys + i * n, n,
                  Combination{means[i], as[i], bs[i], cs[i]});
    });
  });
  return y;
}

}  // namespace shard
