// SPDX-License-Identifier: Apache-2.0
#include "comm/reduce.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <c10/util/complex.h>
#include <shard/error.h>

#include <type_traits>

namespace shard {
namespace {

// Elements that are worked on at a time: few enough for registers. A trip count known to the
// compiler is what makes it vectorise the loops below.
constexpr int64_t kChunk = 64;

template <class T>
using Accumulator =
    std::conditional_t<std::is_same_v<T, c10::Half> || std::is_same_v<T, c10::BFloat16>, float, T>;

template <class T>
bool is_nan(T x) {
  return x != x;
}

template <ReduceOp op, class A>
A combine(A a, A b) {
  if constexpr (op == ReduceOp::Max) return (b > a || is_nan(b)) ? b : a;
  if constexpr (op == ReduceOp::Min) return (b < a || is_nan(b)) ? b : a;
  if constexpr (std::is_same_v<A, bool>) return a || b;
  return static_cast<A>(a + b);
}

template <ReduceOp op, class T, class A = Accumulator<T>>
void reduce_chunk(c10::ArrayRef<const void*> sources, c10::ArrayRef<void*> outputs, int64_t at,
                  int64_t n, A scale) {
  A sum[kChunk];
  const T* first = static_cast<const T*>(sources[0]) + at;
  for (int64_t i = 0; i < n; ++i) sum[i] = static_cast<A>(first[i]);
  for (const void* source : sources.slice(1)) {
    const T* next = static_cast<const T*>(source) + at;
    for (int64_t i = 0; i < n; ++i) sum[i] = combine<op>(sum[i], static_cast<A>(next[i]));
  }
  if constexpr (op == ReduceOp::Avg) {
    for (int64_t i = 0; i < n; ++i) sum[i] /= scale;
  }
  for (void* output : outputs) {
    T* to = static_cast<T*>(output) + at;
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(sum[i]);
  }
}

template <ReduceOp op, class T>
void reduce_range(c10::ArrayRef<const void*> sources, c10::ArrayRef<void*> outputs, int64_t begin,
                  int64_t end) {
  const auto scale = static_cast<Accumulator<T>>(static_cast<float>(sources.size()));
  int64_t at = begin;
  for (; at + kChunk <= end; at += kChunk) {
    reduce_chunk<op, T>(sources, outputs, at, kChunk, scale);
  }
  if (at < end) reduce_chunk<op, T>(sources, outputs, at, end - at, scale);
}

using Kernel = void (*)(c10::ArrayRef<const void*>, c10::ArrayRef<void*>, int64_t, int64_t);

template <class T>
constexpr bool is_complex =
    std::is_same_v<T, c10::complex<float>> || std::is_same_v<T, c10::complex<double>>;

template <class T>
Kernel kernel_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::Sum:
      return reduce_range<ReduceOp::Sum, T>;
    case ReduceOp::Avg:
      if constexpr (!std::is_integral_v<T>) return reduce_range<ReduceOp::Avg, T>;
      return nullptr;
    case ReduceOp::Max:
      if constexpr (!is_complex<T>) return reduce_range<ReduceOp::Max, T>;
      return nullptr;
    case ReduceOp::Min:
      if constexpr (!is_complex<T>) return reduce_range<ReduceOp::Min, T>;
      return nullptr;
  }
  return nullptr;
}

Kernel kernel_of(c10::ScalarType dtype, ReduceOp op) {
  switch (dtype) {
    case c10::kFloat:
      return kernel_of<float>(op);
    case c10::kDouble:
      return kernel_of<double>(op);
    case c10::kBFloat16:
      return kernel_of<c10::BFloat16>(op);
    case c10::kHalf:
      return kernel_of<c10::Half>(op);
    case c10::kComplexFloat:
      return kernel_of<c10::complex<float>>(op);
    case c10::kComplexDouble:
      return kernel_of<c10::complex<double>>(op);
    case c10::kLong:
      return kernel_of<int64_t>(op);
    case c10::kInt:
      return kernel_of<int32_t>(op);
    case c10::kShort:
      return kernel_of<int16_t>(op);
    case c10::kChar:
      return kernel_of<int8_t>(op);
    case c10::kByte:
      return kernel_of<uint8_t>(op);
    case c10::kBool:
      return kernel_of<bool>(op);
    default:
      return nullptr;
  }
}

}  // namespace

void check_reducible(const char* where, c10::ScalarType dtype, ReduceOp op) {
  check<CommError>(kernel_of(dtype, op) != nullptr, where, "cannot reduce: got ",
                   c10::toString(dtype), " with ", name_of(op),
                   "; expected a floating or complex dtype for avg, a real one for max and min. "
                   "Convert the tensor first.");
}

void reduce_in_order(c10::ScalarType dtype, ReduceOp op, c10::ArrayRef<const void*> sources,
                     c10::ArrayRef<void*> outputs, int64_t begin, int64_t end) {
  kernel_of(dtype, op)(sources, outputs, begin, end);
}

}  // namespace shard
