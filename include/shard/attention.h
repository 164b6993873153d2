// SPDX-License-Identifier: Apache-2.0
// How attention over a cut sequence is computed: chosen by the library, by SHARD_ATTENTION, or in a
// scope of the program.
//
// NOTE [Zig-zag]
// Under a causal mask the queries at the end of a sequence see most keys. A rank that has chunk r
// and chunk 2 P - 1 - r of 2 P equal chunks has as much to compute as every other of the P ranks.
// AttentionForm::Balanced moves the queries so and their results back; the keys stay. A program
// may also keep its whole sequence in that order (ZigzagSequences): then nothing moves.
#pragma once

#include <ATen/core/Tensor.h>
#include <shard/spec.h>

#include <string>
#include <vector>

namespace shard {

/// What scaled_dot_product_attention does when one mesh dim cuts the sequence of the queries and
/// that of the keys.
enum class AttentionForm : uint8_t {
  /// Heads where that moves fewer bytes, or equally many in blocks too small to travel while others
  /// are used; else Balanced under a causal mask that leaves enough to gain (128 queries a rank);
  /// else Ring.
  Auto,
  Ring,      ///< keys and values travel around the ranks
  Balanced,  ///< the same with equally many scores on every rank: NOTE [Zig-zag]
  /// Every rank gets the whole sequence of some heads and gives its result back (Jacobs et al.:
  /// DeepSpeed Ulysses). The numbers of heads, of the keys too, must be multiples of the ranks:
  /// SpecMismatch.
  Heads,
};

/// In its scope the calling rank thread uses this form. All ranks open it alike.
class AttentionFormGuard {
 public:
  explicit AttentionFormGuard(AttentionForm form);
  ~AttentionFormGuard();
  AttentionFormGuard(const AttentionFormGuard&) = delete;
  AttentionFormGuard& operator=(const AttentionFormGuard&) = delete;

 private:
  AttentionForm outer_;
};
/// Of the innermost guard, else SHARD_ATTENTION, else Auto.
AttentionForm attention_form();

/// Positions in a sequence of `n` rows of what each of `ranks` ranks has in zig-zag order: two
/// chunks, of which some may be empty.
std::vector<std::vector<Rows>> zigzag_rows(int64_t n, int64_t ranks);
/// How many rows these are: the partition of a sequence that is kept in zig-zag order.
Partition zigzag_partition(int64_t n, int64_t ranks);
/// The rows of a whole sequence in zig-zag order: `x.index_select(dim, zigzag_order(n, ranks))`,
/// cut by zigzag_partition, lies so; `argsort()` of it is the way back.
at::Tensor zigzag_order(int64_t n, int64_t ranks);

/// In its scope sequences that are cut for attention count as kept in zig-zag order: `is_causal`
/// refers to the positions before. Partitions of queries or keys that are not zigzag_partition:
/// SpecMismatch. All ranks open it alike.
class ZigzagSequences {
 public:
  ZigzagSequences();
  ~ZigzagSequences();
  ZigzagSequences(const ZigzagSequences&) = delete;
  ZigzagSequences& operator=(const ZigzagSequences&) = delete;

 private:
  bool outer_;
};
bool are_sequences_zigzag();

}  // namespace shard
