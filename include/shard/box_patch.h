// SPDX-License-Identifier: Apache-2.0
// What the patches of ops over several cut dims share.
//
// NOTE [All cuts at once]
// The windows of a tensor that is cut along several spatial dims, each over mesh dims of its own,
// reach into a box of it. All levels are taken at once: one exchange brings what this rank's box
// lacks, corners included; LibTorch's op runs on the box, a plain tensor without padding along the
// cut dims; the result gets the input's levels again. On a 1-d mesh a box is a range of rows.
#pragma once

#include <shard/bottom.h>
#include <shard/window_patch.h>

#include <map>
#include <vector>

namespace shard {

/// What every place along a cut computes: one part a place.
struct CutParts {
  std::vector<WindowPart> parts;
  int64_t dummy_rows = 1;  ///< what a place without outputs runs the op on: NOTE [Idle ranks]

  Partition output() const;
};
CutParts window_cut(const Window& window, const Cut& cut);

/// What this rank's op runs on.
struct LocalBox {
  at::Tensor rows;
  std::vector<WindowPart> parts;        ///< this rank's, one a cut
  std::map<int64_t, Partition> output;  ///< of the result's cut dims
  std::vector<int64_t> made_up;         ///< dims of which one index is a dummy

  bool is_dummy() const;
};

/// The input of an op whose windows reach over shard boundaries, below all levels.
class BoxInput {
 public:
  /// The windows slide along `dims`, of which at least one is cut over several ranks.
  BoxInput(const at::Tensor& x, const std::vector<int64_t>& dims);
  /// They slide along the spatial dims of an input that is_cut().
  explicit BoxInput(const ShardedInput& input);

  const at::Tensor& local() const { return bottom_.local; }
  /// Outermost level first.
  const std::vector<Cut>& cuts() const { return cuts_; }
  /// Of a cut dim: its index among `dims`, and its global rows.
  size_t entry(const Cut& cut) const;
  int64_t size(const Cut& cut) const;
  /// This rank's place along a cut, and its rows.
  int64_t place(const Cut& cut) const;
  Rows own(const Cut& cut) const;
  /// `list`, one value for each of `dims`, with `value` at the cut ones.
  std::vector<int64_t> with_entries(std::vector<int64_t> list, int64_t value) const;

  /// local_weights over all ranks that have another part of the input.
  std::vector<at::Tensor> weights(const std::vector<at::Tensor>& weights) const;
  /// `wanted`: per cut, per place.
  BoxPlan plan(const std::vector<std::vector<std::vector<Rows>>>& wanted) const;
  BoxPlan plan(const std::vector<CutParts>& cuts) const;
  BoxHalo exchange(const BoxPlan& plan) const { return exchange_box(local(), plan, mesh_); }
  at::Tensor assemble(const BoxHalo& halo, const BoxPlan& plan, const Arrange& arrange) const;
  at::Tensor arrange(const at::Tensor& shell, size_t dim, const BoxPlan& plan,
                     const Arrange& arrange) const;
  /// This rank's part of every cut with `fill` around it.
  LocalBox assemble(const BoxHalo& halo, const BoxPlan& plan, const std::vector<CutParts>& cuts,
                    const at::Scalar& fill = 0) const;
  /// The three steps. Collective over all ranks that the cuts connect, when any window crosses a
  /// boundary.
  LocalBox fetch(const std::vector<CutParts>& cuts, const at::Scalar& fill = 0) const;

  /// Wraps what a local op made of a box, and a local result without dummies.
  at::Tensor wrapped(const at::Tensor& y, const LocalBox& box) const;
  at::Tensor wrapped(const at::Tensor& y, const std::vector<CutParts>& cuts) const;
  at::Tensor wrapped(const at::Tensor& y, const std::map<int64_t, Partition>& output) const;

  /// Dims that are cut elsewhere than in cuts() and empty on this rank, but not everywhere.
  std::vector<int64_t> empty_dims() const;

 private:
  std::map<int64_t, Partition> outputs(const std::vector<CutParts>& cuts) const;

  Bottom bottom_;
  std::vector<int64_t> dims_;
  Shape shape_;  // global
  std::vector<Cut> cuts_;
  DeviceMesh mesh_;  // of all ranks that the cuts connect
};

/// Puts the rows that a part pads before and after the wanted pieces. The arguments must outlive
/// it.
Arrange padded_by(const BoxPlan& plan, const std::vector<WindowPart>& parts,
                  const at::Scalar& fill);

/// Runs `op` on `x` with one index of zeros added along each of `dims`, and drops it from the
/// result.
at::Tensor with_made_up(const at::Tensor& x, const std::vector<int64_t>& dims,
                        const std::function<at::Tensor(const at::Tensor&)>& op);

}  // namespace shard
