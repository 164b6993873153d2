// SPDX-License-Identifier: Apache-2.0
// The messages of a box exchange: from a plan, the same on every rank, to what one rank sends and
// receives.
#pragma once

#include <ATen/core/Tensor.h>
#include <shard/exchange.h>

#include <vector>

namespace shard {

/// Part of a dim: `size` rows from `begin` on.
struct Extent {
  int64_t begin = 0;
  int64_t size = 0;
};

/// A box that one rank owns and another one wants. Extents: one a dim of the plan.
struct Transfer {
  int64_t peer = 0;
  size_t shell = 0;            ///< of the wanting rank's BoxHalo
  std::vector<Extent> owned;   ///< in the owner's local tensor
  std::vector<Extent> wanted;  ///< in the wanting rank's shell
};

/// What `rank` needs from others, shell by shell.
std::vector<Transfer> incoming(const BoxPlan& plan, int64_t rank);
/// What others need from `rank`, per wanting rank in the order in which that rank lists it.
std::vector<Transfer> outgoing(const BoxPlan& plan, int64_t rank);

/// The part of a tensor.
at::Tensor part_of(at::Tensor tensor, const BoxPlan& plan, const std::vector<Extent>& extents);
/// A new tensor like `like` with `sizes` along the dims of the plan.
at::Tensor empty_box(const at::Tensor& like, const BoxPlan& plan,
                     const std::vector<int64_t>& sizes);
/// The sizes of a rank's shell along the dims of the plan.
std::vector<int64_t> shell_sizes(const BoxPlan& plan, int64_t rank, size_t shell);

}  // namespace shard
