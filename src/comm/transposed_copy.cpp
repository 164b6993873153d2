// SPDX-License-Identifier: Apache-2.0
// NOTE [Tiles]
// Element by element one of the two tensors would be read or written a row apart: a cache line for
// each element, and rows a power of two apart share few places in the cache. So small tiles are
// copied, of which a line on either side is used whole while it is there.
#include "comm/transposed_copy.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace shard {
namespace {

using at::Tensor;

constexpr int64_t kTile = 8;
constexpr int64_t kElementsWorthTiling = 4096;

struct Wide {
  uint64_t a, b;
};

struct Dim {
  int64_t size, to, from;  ///< strides in elements
};

/// A copy as tiles of two dims and a loop over the others.
struct Transposition {
  Dim i;  ///< along which `to` is contiguous
  Dim j;  ///< along which `from` is
  std::vector<Dim> others;
};

/// The dim of stride one that is long enough for tiles; -1: none.
int64_t contiguous_dim(const Tensor& tensor) {
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.stride(d) == 1 && tensor.size(d) >= kTile) return d;
  }
  return -1;
}

template <class E>
void copy_tile(E* __restrict to, const E* __restrict from, int64_t to_j, int64_t from_i, int64_t ni,
               int64_t nj) {
  for (int64_t i = 0; i < ni; ++i) {
    for (int64_t j = 0; j < nj; ++j) to[j * to_j + i] = from[i * from_i + j];
  }
}

/// A row of tiles.
template <class E>
void copy_tiles(E* to, const E* from, const Dim& i, const Dim& j, int64_t nj) {
  for (int64_t at = 0; at < i.size; at += kTile) {
    const int64_t ni = std::min(kTile, i.size - at);
    if (ni == kTile && nj == kTile) {
      copy_tile(to + at, from + at * i.from, j.to, i.from, kTile, kTile);
    } else {
      copy_tile(to + at, from + at * i.from, j.to, i.from, ni, nj);
    }
  }
}

template <class E>
void copy_all(const Tensor& to, const Tensor& from, const Transposition& t) {
  E* const target = static_cast<E*>(to.mutable_data_ptr());
  const E* const source = static_cast<const E*>(from.const_data_ptr());
  const int64_t tiles = (t.j.size + kTile - 1) / kTile;
  int64_t rows = tiles;
  for (const Dim& dim : t.others) rows *= dim.size;
  const int64_t grain = std::max<int64_t>(1, kElementsWorthTiling * 8 / (kTile * t.i.size));
  at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t at_j = row % tiles * kTile;
      int64_t rest = row / tiles;
      int64_t to_offset = at_j * t.j.to;
      int64_t from_offset = at_j;
      for (const Dim& dim : t.others) {
        to_offset += rest % dim.size * dim.to;
        from_offset += rest % dim.size * dim.from;
        rest /= dim.size;
      }
      copy_tiles(target + to_offset, source + from_offset, t.i, t.j,
                 std::min(kTile, t.j.size - at_j));
    }
  });
}

}  // namespace

bool copy_transposed(const Tensor& to, const Tensor& from) {
  if (to.numel() < kElementsWorthTiling || from.is_conj() != to.is_conj() ||
      from.is_neg() != to.is_neg()) {
    return false;
  }
  const int64_t i = contiguous_dim(to);
  const int64_t j = contiguous_dim(from);
  if (i < 0 || j < 0 || i == j || from.stride(i) == 1 || to.stride(j) == 1) return false;
  const auto dim = [&](int64_t d) { return Dim{to.size(d), to.stride(d), from.stride(d)}; };
  Transposition t{dim(i), dim(j), {}};
  for (int64_t d = 0; d < to.dim(); ++d) {
    if (d != i && d != j) t.others.push_back(dim(d));
  }
  switch (to.element_size()) {
    case 2:
      copy_all<uint16_t>(to, from, t);
      return true;
    case 4:
      copy_all<uint32_t>(to, from, t);
      return true;
    case 8:
      copy_all<uint64_t>(to, from, t);
      return true;
    case 16:
      copy_all<Wide>(to, from, t);
      return true;
    default:
      return false;
  }
}

}  // namespace shard
