// SPDX-License-Identifier: Apache-2.0
#include "support/redistribute_cases.h"

#include <gtest/gtest.h>
#include <shard/primitives.h>
#include <shard/tensor.h>
#include <shard/testing.h>
#include <torch/autograd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <array>

#include "support/random.h"

namespace shard::testing {
namespace {

using at::Tensor;

Tensor whole_values() { return torch::arange(7. * 6, torch::kDouble).view({7, 6}).sin(); }

/// A ShardTensor with the global value `whole`, placed as asked (Partial: every rank another part
/// of it).
Tensor placed(const Tensor& whole, const DeviceMesh& mesh, const Placement& placement,
              Partition partition) {
  if (!placement.is_partial())
    return scatter_tensor(whole, 0, mesh, {placement}, std::move(partition));
  const auto n = static_cast<double>(mesh.size());
  const double share = (static_cast<double>(mesh.rank()) + 1) * 2 / (n * (n + 1));
  return from_local(whole * share, mesh, {Partial()});
}

/// All placements and splits of a matrix.
std::vector<std::pair<Placement, Partition>> placements(const Tensor& whole,
                                                        const DeviceMesh& mesh) {
  const auto ranks = static_cast<int>(mesh.size());
  std::vector<std::pair<Placement, Partition>> result{{Replicate(), {}}, {Partial(), {}}};
  for (int64_t dim = 0; dim < 2; ++dim) {
    for (const auto& [name, partition] : splits(whole.size(dim), ranks)) {
      result.emplace_back(Shard(dim), partition);
    }
  }
  return result;
}

// ---- any placements to any placements

struct Lie {
  Placements placements;
  std::vector<Partition> partitions;
};

Partition random_partition(Random& random, int64_t n, int64_t parts) {
  Partition result(static_cast<size_t>(parts), 0);
  for (int64_t row = 0; row < n; ++row) ++result[static_cast<size_t>(random.integer(0, parts - 1))];
  return result;
}

Placement random_placement(Random& random, int64_t ndim, bool pending) {
  constexpr std::array kOps{ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Max, ReduceOp::Min};
  const int64_t kind = random.integer(0, pending ? 5 : 4);
  if (kind == 5) return Partial(kOps[static_cast<size_t>(random.integer(0, 3))]);
  if (kind == 0 || ndim == 0) return Replicate();
  return Shard(random.integer(0, ndim - 1));
}

/// The first of the mesh dims that cut a tensor dim has the partition over all of them.
Lie random_lie(Random& random, const std::vector<int64_t>& shape, const DeviceMesh& mesh,
               bool pending) {
  Lie lie;
  const auto ndim = static_cast<size_t>(mesh.ndim());
  for (size_t k = 0; k < ndim; ++k) {
    lie.placements.push_back(random_placement(random, static_cast<int64_t>(shape.size()), pending));
  }
  lie.partitions.resize(ndim);
  for (size_t k = 0; k < ndim; ++k) {
    if (!lie.placements[k].is_shard()) continue;
    int64_t parts = 1;
    bool is_first = true;
    for (size_t j = 0; j < ndim; ++j) {
      if (!(lie.placements[j] == lie.placements[k])) continue;
      parts *= mesh.size(static_cast<int64_t>(j));
      is_first &= j >= k;
    }
    if (!is_first) continue;
    const int64_t n = shape[static_cast<size_t>(lie.placements[k].dim())];
    lie.partitions[k] = random_partition(random, n, parts);
  }
  return lie;
}

void expect_walk_keeps_the_value(const DeviceMesh& mesh, Random& random, int number) {
  std::vector<int64_t> shape;
  for (int64_t d = random.integer(0, 3); d > 0; --d) shape.push_back(random.integer(0, 6));
  const int64_t numel = c10::multiply_integers(shape);
  const Tensor whole = torch::arange(static_cast<double>(numel), torch::kDouble).view(shape);
  const Lie first = random_lie(random, shape, mesh, false);
  Tensor x = scatter_tensor(whole, 0, mesh, first.placements, first.partitions);
  const bool differentiate = number % 7 == 0;
  if (differentiate) x.requires_grad_();
  ShardTensor y(x);
  for (int step = 0; step < 3; ++step) {
    const Lie lie = random_lie(random, shape, mesh, true);
    y = y.redistribute(lie.placements, lie.partitions);
    EXPECT_EQ(y.placements(), lie.placements) << "walk " << number;
  }
  const Tensor full = y.full();
  EXPECT_TRUE(torch::equal(full.detach(), whole)) << "walk " << number << " " << y.placements();
  if (!differentiate) return;
  const Tensor cotangent = torch::sin(whole);
  (full * cotangent).sum().backward();
  EXPECT_EQ(ShardTensor(x.grad()).placements(), first.placements) << "walk " << number;
  EXPECT_LE(relative_error(ShardTensor(x.grad()).full(), cotangent), 1e-14) << "walk " << number;
}

}  // namespace

void expect_moves_keep_the_value(const DeviceMesh& mesh) {
  const Tensor whole = whole_values();
  for (const auto& [from, from_pieces] : placements(whole, mesh)) {
    for (const auto& [to, to_pieces] : placements(whole, mesh)) {
      if (from.is_partial() && to.is_partial()) continue;
      const Tensor x = placed(whole, mesh, from, from_pieces);
      const auto y = ShardTensor(x).redistribute({to}, to_pieces);
      EXPECT_EQ(y.spec().placement(), to);
      EXPECT_EQ(raw_local(y).sizes(), c10::IntArrayRef(y.spec().local_shape(mesh.rank())));
      EXPECT_LE(relative_error(y.full(), whole), 1e-12) << from << " -> " << to;
    }
  }
}

void expect_backward_moves_are_adjoint(const DeviceMesh& mesh) {
  const Tensor whole = whole_values();
  const Tensor cotangent = whole.cos();
  for (const auto& [from, from_pieces] : placements(whole, mesh)) {
    if (from.is_partial()) continue;
    for (const auto& [to, to_pieces] : placements(whole, mesh)) {
      if (to.is_partial()) continue;
      Tensor x = placed(whole, mesh, from, from_pieces).requires_grad_();
      const auto y = ShardTensor(x).redistribute({to}, to_pieces);
      const Tensor v = placed(cotangent, mesh, to, to_pieces);
      const auto g = torch::autograd::grad({y.tensor()}, {x}, {v})[0];
      EXPECT_EQ(ShardTensor(g).spec(), ShardTensor(x).spec());
      EXPECT_LE(relative_error(ShardTensor(g).full(), cotangent), 1e-14) << from << " -> " << to;
    }
  }
}

void expect_short_dims_move(const DeviceMesh& mesh) {
  const Tensor whole = whole_values().narrow(0, 0, 3).narrow(1, 0, 2);
  for (const auto& [from, from_pieces] : placements(whole, mesh)) {
    if (from.is_partial()) continue;
    for (const auto& [to, to_pieces] : placements(whole, mesh)) {
      if (to.is_partial()) continue;
      Tensor x = placed(whole, mesh, from, from_pieces).requires_grad_();
      const auto y = ShardTensor(x).redistribute({to}, to_pieces);
      EXPECT_TRUE(y.full().equal(whole)) << from << " -> " << to;
      (y.tensor() * y.tensor()).sum().backward();
      EXPECT_TRUE(ShardTensor(x.grad()).full().equal(2 * whole)) << from << " -> " << to;
    }
  }
}

void expect_walks_keep_the_value(const DeviceMesh& mesh, int walks) {
  Random random(20 + static_cast<uint64_t>(mesh.ndim()));
  for (int i = 0; i < walks; ++i) expect_walk_keeps_the_value(mesh, random, i);
}

}  // namespace shard::testing
