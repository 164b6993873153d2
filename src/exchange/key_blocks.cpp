// SPDX-License-Identifier: Apache-2.0
#include "exchange/key_blocks.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace shard {
namespace {

using at::Tensor;

Shape with_rows(const Tensor& like, int64_t rows) {
  Shape shape(like.sizes());
  shape[2] = rows;
  return shape;
}

Pair pair_in(const Tensor& buffer, const Tensor& k, const Tensor& v, int64_t rows) {
  const auto k_shape = with_rows(k, rows);
  const auto v_shape = with_rows(v, rows);
  const int64_t of_k = c10::multiply_integers(k_shape);
  const int64_t of_v = c10::multiply_integers(v_shape);
  return {buffer, buffer.narrow(0, 0, of_k).view(k_shape),
          buffer.narrow(0, of_k, of_v).view(v_shape)};
}

Rows shifted(const Rows& rows, int64_t by) { return {rows.begin + by, rows.end + by}; }

}  // namespace

KeyBlocks::KeyBlocks(const AttentionPlan& plan, const Tensor& k, const Tensor& v)
    : plan_(plan), sizes_(plan.key_sizes()), k_(k), v_(v) {}

size_t KeyBlocks::owner(int64_t step) const {
  if (travel()) return static_cast<size_t>(Ring(plan_.mesh).owner(step));
  return plan_.reach == AttentionPlan::Reach::Merge ? static_cast<size_t>(plan_.mesh.rank()) : 0;
}

Rows KeyBlocks::rows(int64_t step) const {
  const int64_t begin = offset_of(sizes_, static_cast<int64_t>(owner(step)));
  return {begin, begin + sizes_[owner(step)]};
}

Pair KeyBlocks::own() const {
  if (!overlap()) return {Tensor(), k_, v_};
  Pair pair = empty(0, k_.scalar_type());
  pair.k.copy_(k_);
  pair.v.copy_(v_);
  return pair;
}

Pair KeyBlocks::empty(int64_t step, at::ScalarType dtype) const {
  const int64_t rows = sizes_[owner(step)];
  const int64_t elements = (k_.size(3) + v_.size(3)) * k_.size(0) * k_.size(1) * rows;
  return pair_in(at::empty({elements}, k_.options().dtype(dtype)), k_, v_, rows);
}

bool KeyBlocks::overlap() const {
  const int64_t rows = *std::max_element(sizes_.begin(), sizes_.end());
  const int64_t elements = (k_.size(3) + v_.size(3)) * k_.size(0) * k_.size(1) * rows;
  return travel() && elements * static_cast<int64_t>(k_.element_size()) >= kBytesWorthOverlapping;
}

Pair KeyBlocks::zeros(int64_t step, at::ScalarType dtype) const {
  Pair pair = empty(step, dtype);
  pair.buffer.zero_();
  return pair;
}

std::vector<SeenPart> seen_parts(const AttentionPlan& plan, const KeyBlocks& blocks, int64_t step,
                                 const Rows& seeing) {
  std::vector<SeenPart> parts;
  int64_t query = 0;
  for (const Rows& range : plan.queries) {
    const Rows own{std::max(seeing.begin, query), std::min(seeing.end, query + range.size())};
    const Rows queries = shifted(own, range.begin - query);
    query += range.size();
    if (own.size() <= 0) continue;
    int64_t key = 0;
    for (const Rows& keys : blocks.positions(step)) {
      for (const auto& part : visible_parts(queries, keys, plan.is_causal)) {
        const Rows of_block = shifted(part.keys, key);
        parts.push_back(
            {shifted(part.queries, own.begin), of_block, shifted(of_block, blocks.rows(step).begin),
             shifted(part.queries, queries.begin), shifted(part.keys, keys.begin), part.is_causal});
      }
      key += keys.size();
    }
  }
  return parts;
}

Block block_of(const SeenPart& part, const Tensor& q, const Pair& keys, const Tensor& mask,
               const AttentionPlan& plan) {
  const auto narrowed = [](const Tensor& t, const Rows& rows) {
    return rows.size() == t.size(2) ? t : t.narrow(2, rows.begin, rows.size());
  };
  Block block{narrowed(q, part.queries),
              narrowed(keys.k, part.keys),
              narrowed(keys.v, part.keys),
              Tensor(),
              kept_weights(plan, part.query_positions, part.key_positions),
              part.is_causal,
              plan.scale};
  if (mask.defined()) block.mask = mask_rows(mask_rows(mask, -1, part.columns), -2, part.queries);
  return block;
}

Tensor kept_weights(const AttentionPlan& plan, const Rows& queries, const Rows& keys) {
  if (!plan.dropout) return {};
  Tensor kept = plan.dropout->factors(plan.leading, queries, keys);
  while (kept.dim() < 4) kept = kept.unsqueeze(0);
  return kept.dim() == 4 ? kept : kept.flatten(0, kept.dim() - 4);
}

BlockResult rows_of(const BlockResult& result, const Rows& rows) {
  return {result.out.narrow(2, rows.begin, rows.size()),
          result.lse.narrow(2, rows.begin, rows.size())};
}

void pass_on(Cargo& cargo, const Pair& held, const Pair& next, const DeviceMesh& mesh) {
  const Ring ring(mesh);
  if (held.buffer.defined()) {
    cargo.send(ring.holder(1), held.buffer);
    cargo.receive(ring.owner(1), next.buffer);
    return;
  }
  cargo.send(ring.holder(1), held.k);
  cargo.send(ring.holder(1), held.v);
  cargo.receive(ring.owner(1), next.k);
  cargo.receive(ring.owner(1), next.v);
}

Tensor mask_rows(const Tensor& mask, int64_t dim, const Rows& rows) {
  return mask.size(dim) == 1 ? mask : mask.narrow(dim, rows.begin, rows.size());
}

}  // namespace shard
