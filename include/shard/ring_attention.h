// SPDX-License-Identifier: Apache-2.0
// Attention of local queries to keys and values that lie on several ranks. What a rank knows of the
// rows by metadata alone is an AttentionPlan, so every rank issues the same exchanges.
#pragma once

#include <ATen/core/Tensor.h>
#include <shard/mesh.h>
#include <shard/spec.h>

#include <memory>
#include <vector>

namespace shard {

/// Which weights are dropped: those that one device drops whose generator has the same state.
class AttentionDropout {
 public:
  virtual ~AttentionDropout() = default;
  /// Zero where dropped, else 1 / (1 - p): (sizes of `leading`..., queries, keys).
  virtual at::Tensor factors(const std::vector<Rows>& leading, const Rows& queries,
                             const Rows& keys) const = 0;
};
/// Takes from the calling rank's generator what the draw for scores of these sizes (..., queries,
/// keys) takes, so all ranks make it. CPU only: MissingShardPatch.
std::shared_ptr<const AttentionDropout> draw_attention_dropout(double p, const Shape& scores,
                                                               at::ScalarType dtype);

/// Where the rows of one attention call lie.
struct AttentionPlan {
  /// How keys that other ranks have are reached.
  enum class Reach : uint8_t {
    Own,    ///< every rank has all keys
    Ring,   ///< each rank has its own queries: keys and values travel around
    Merge,  ///< all ranks have the same queries: what each finds in its own keys is merged
  };
  Reach reach = Reach::Own;
  DeviceMesh mesh;                      ///< over whose ranks the keys are cut; undefined for Own
  std::vector<Rows> queries;            ///< positions in the sequence of the local queries
  std::vector<std::vector<Rows>> keys;  ///< of the keys of every rank; of all keys for Own
  bool is_causal = false;               ///< a query sees the keys up to its own position
  double scale = 1;
  std::shared_ptr<const AttentionDropout> dropout;  ///< null: none
  std::vector<Rows> leading;  ///< of dropout: what this rank has of the dims before the queries

  int64_t own_queries() const;
  Partition key_sizes() const;
  int64_t all_keys() const;
};

/// Keys and values of one rank that are smaller than this do not travel while others are used:
/// waking the thread that moves them costs as much as the copy.
constexpr int64_t kBytesWorthOverlapping = int64_t{1} << 18;

/// softmax(q k^T * scale + mask) v. Local tensors: q (batch, heads, queries, e), k (batch, key
/// heads, own keys, e), v (batch, key heads, own keys, f), key heads dividing heads; mask
/// (undefined, or floating-point to be added, or bool: true is seen) broadcasts to (batch, heads,
/// queries, all keys). Rows that see no key are zero. Half precisions accumulate in float.
///
/// Neither the scores nor all keys are ever held, only those of two blocks of keys, of which one
/// travels while the other is used. Ring: size - 1 exchanges forward, size backward (keys and
/// values in one message, their gradients in another). Merge: two all-reduces forward, none
/// backward. Differentiable twice; with a graph of the backward (create_graph) it gathers the keys
/// and holds the scores of the local queries. The gradients are those of this rank's queries
/// (Merge: of this rank's keys). Collective over plan.mesh.
at::Tensor ring_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const at::Tensor& mask, const AttentionPlan& plan);

/// Pairs of a query and a key that it sees, of one head: what a rank has to compute.
int64_t visible_pairs(const AttentionPlan& plan);

}  // namespace shard
