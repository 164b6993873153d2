// SPDX-License-Identifier: Apache-2.0
// NOTE [Tiles of neighbourhoods]
// Queries that lie side by side see nearly the same keys. So the points are cut into tiles, of
// every dim those `dilation` apart; the keys that a tile sees are a slightly larger tile; and a
// tile attends to its keys under a mask. Where tiles lie is an index per dim, made from the
// geometry alone: gathering them, and putting the results back, are index_selects, whose gradients
// LibTorch knows.
#include <ATen/Dispatch.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <shard/neighborhood_attention.h>
#include <shard/ring_attention.h>

#include <algorithm>

namespace shard {
namespace {

using at::Tensor;

/// Tiles of one dim. All have the same size: what is too much is masked or not used.
struct Tiles {
  int64_t count = 0;
  int64_t queries = 0;  ///< of one tile
  int64_t keys = 0;
  std::vector<int64_t> query_index;  ///< (count, queries): local rows
  std::vector<int64_t> key_index;    ///< (count, keys): local rows
  std::vector<int64_t> place;        ///< of every local query in query_index
  Tensor seen;                       ///< (count, queries, keys)
};

/// Queries of one tile along a dim of so many: the more, the fewer keys are gathered twice; the
/// fewer, the less is computed in vain.
int64_t tile_size(const Neighborhood& window, size_t ndim) {
  return std::max<int64_t>(window.kernel, ndim == 1 ? 32 : 4);
}

class TileMaker {
 public:
  TileMaker(const NeighborhoodPart& part, size_t ndim)
      : part_(part), tiles_(), most_(tile_size(part.window, ndim)) {}

  Tiles make() {
    const int64_t step = part_.window.dilation;
    const int64_t queries = part_.queries.size();
    tiles_.place.resize(static_cast<size_t>(queries));
    for (int64_t residue = 0; residue < std::min(step, queries); ++residue) {
      for (int64_t first = residue; first < queries; first += most_ * step) cut(first);
    }
    fill();
    return std::move(tiles_);
  }

 private:
  /// The tile that begins with the local query `first`.
  void cut(int64_t first) {
    std::vector<int64_t> rows;
    const int64_t step = part_.window.dilation;
    for (int64_t i = first; i < part_.queries.size() && std::ssize(rows) < most_; i += step) {
      rows.push_back(i);
    }
    const int64_t begin = part_.window.seen_by(part_.queries.begin + rows.front()).begin;
    const int64_t end = part_.window.seen_by(part_.queries.begin + rows.back()).end;
    tiles_.queries = std::max(tiles_.queries, std::ssize(rows));
    tiles_.keys = std::max(tiles_.keys, (end - begin + step - 1) / step);
    found_.push_back({std::move(rows), begin});
  }

  void fill() {
    tiles_.count = std::ssize(found_);
    std::vector<uint8_t> seen;
    for (const auto& [rows, begin] : found_) {
      for (int64_t i = 0; i < tiles_.queries; ++i) {
        const int64_t row = rows[static_cast<size_t>(std::min(i, std::ssize(rows) - 1))];
        if (i < std::ssize(rows)) {
          tiles_.place[static_cast<size_t>(row)] = std::ssize(tiles_.query_index);
        }
        tiles_.query_index.push_back(row);
        const Rows neighbors = part_.window.seen_by(part_.queries.begin + row);
        for (int64_t j = 0; j < tiles_.keys; ++j) {
          const int64_t key = begin + j * part_.window.dilation;
          seen.push_back(key >= neighbors.begin && key < neighbors.end ? 1 : 0);
        }
      }
      for (int64_t j = 0; j < tiles_.keys; ++j) {
        const int64_t key = begin + j * part_.window.dilation;
        tiles_.key_index.push_back(std::min(key, part_.keys.end - 1) - part_.keys.begin);
      }
    }
    tiles_.seen = at::tensor(c10::ArrayRef<uint8_t>(seen), at::kByte)
                      .to(at::kBool)
                      .view({tiles_.count, tiles_.queries, tiles_.keys});
  }

  struct Tile {
    std::vector<int64_t> rows;
    int64_t begin = 0;  ///< first key
  };
  const NeighborhoodPart& part_;
  Tiles tiles_;
  const int64_t most_;
  std::vector<Tile> found_;
};

Tensor index_of(const std::vector<int64_t>& rows, const Tensor& like) {
  return at::tensor(c10::ArrayRef<int64_t>(rows), at::kLong).to(like.device());
}

std::vector<Tiles> make_tiles(const std::vector<NeighborhoodPart>& parts) {
  std::vector<Tiles> tiles;
  for (const auto& part : parts) tiles.push_back(TileMaker(part, parts.size()).make());
  return tiles;
}

/// (batch, points..., heads, e) -> (batch * tiles, heads, rows of a tile, e).
Tensor in_tiles(Tensor x, const std::vector<Tiles>& tiles, bool are_keys) {
  const auto ndim = static_cast<int64_t>(tiles.size());
  std::vector<int64_t> sizes{x.size(0)};
  std::vector<int64_t> order{0};
  for (int64_t d = 0; d < ndim; ++d) {
    const Tiles& of_dim = tiles[static_cast<size_t>(d)];
    x = x.index_select(d + 1, index_of(are_keys ? of_dim.key_index : of_dim.query_index, x));
    sizes.insert(sizes.end(), {of_dim.count, are_keys ? of_dim.keys : of_dim.queries});
    order.push_back(1 + 2 * d);
  }
  sizes.insert(sizes.end(), {x.size(-2), x.size(-1)});
  order.push_back(1 + 2 * ndim);
  for (int64_t d = 0; d < ndim; ++d) order.push_back(2 + 2 * d);
  order.push_back(2 + 2 * ndim);
  const Tensor tiled = x.view(sizes).permute(order);
  return tiled.flatten(0, ndim).flatten(2, -2);
}

/// (tiles, 1, queries of a tile, keys of a tile).
Tensor seen_in_tiles(const std::vector<Tiles>& tiles) {
  Tensor seen = tiles[0].seen;
  for (size_t d = 1; d < tiles.size(); ++d) {
    const Tensor& other = tiles[d].seen;
    const Tensor both = seen.unsqueeze(1).unsqueeze(3).unsqueeze(5).logical_and(
        other.unsqueeze(0).unsqueeze(2).unsqueeze(4));
    seen = both.flatten(4, 5).flatten(2, 3).flatten(0, 1);
  }
  return seen.unsqueeze(1);
}

/// The way back of queries.
Tensor from_tiles(const Tensor& y, const std::vector<Tiles>& tiles, int64_t batch) {
  const auto ndim = static_cast<int64_t>(tiles.size());
  std::vector<int64_t> sizes{batch};
  for (const auto& of_dim : tiles) sizes.push_back(of_dim.count);
  sizes.push_back(y.size(1));
  for (const auto& of_dim : tiles) sizes.push_back(of_dim.queries);
  sizes.push_back(y.size(-1));
  std::vector<int64_t> order{0};
  for (int64_t d = 0; d < ndim; ++d) order.insert(order.end(), {1 + d, 2 + ndim + d});
  order.insert(order.end(), {1 + ndim, 2 + 2 * ndim});
  Tensor x = y.reshape(sizes).permute(order);
  for (int64_t d = 0; d < ndim; ++d) {
    const Tiles& of_dim = tiles[static_cast<size_t>(d)];
    x = x.flatten(d + 1, d + 2).index_select(d + 1, index_of(of_dim.place, x));
  }
  return x;
}

}  // namespace

Rows Neighborhood::seen_by(int64_t query) const {
  const int64_t residue = query % dilation;
  const int64_t place = query / dilation;
  const int64_t count = (length - residue + dilation - 1) / dilation;
  int64_t first = std::max<int64_t>(place - kernel + 1, 0);
  if (!is_causal) first = std::clamp<int64_t>(place - kernel / 2, 0, count - kernel);
  const int64_t last = is_causal ? place : first + kernel - 1;
  return {first * dilation + residue, last * dilation + residue + 1};
}

// The first neighbour of a later query with the same remainder is never an earlier one.
Rows Neighborhood::seen_by(const Rows& queries) const {
  if (queries.size() == 0) return {queries.begin, queries.begin};
  Rows all = seen_by(queries.begin);
  for (int64_t i = 0; i < std::min(dilation, queries.size()); ++i) {
    all.begin = std::min(all.begin, seen_by(queries.begin + i).begin);
    all.end = std::max(all.end, seen_by(queries.end - 1 - i).end);
  }
  return all;
}

Tensor attend_to_neighbors(const Tensor& query, const Tensor& key, const Tensor& value,
                           const std::vector<NeighborhoodPart>& parts, double scale) {
  const auto tiles = make_tiles(parts);
  const Tensor q = in_tiles(query, tiles, false);
  const Tensor k = in_tiles(key, tiles, true);
  const Tensor v = in_tiles(value, tiles, true);
  const Tensor seen = seen_in_tiles(tiles).to(q.device());
  const int64_t batch = query.size(0);
  const Tensor mask =
      seen.unsqueeze(0).expand({batch, seen.size(0), 1, seen.size(2), seen.size(3)}).flatten(0, 1);
  AttentionPlan plan;
  plan.queries = {{0, q.size(2)}};
  plan.keys = {{{0, k.size(2)}}};
  plan.scale = scale;
  return from_tiles(ring_attention(q, k, v, mask, plan), tiles, batch).contiguous();
}

}  // namespace shard
