// SPDX-License-Identifier: Apache-2.0
// Halo exchange: each rank gets the rows of a sharded dim that its output needs and others own.
// Plans are made from metadata, the same on every rank; any shard may be empty and a halo may reach
// over several ranks.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>
#include <shard/mesh.h>
#include <shard/spec.h>

#include <functional>
#include <vector>

namespace shard {

/// Wanted rows that lie on one rank.
struct Segment : Rows {
  int64_t owner = 0;
};

/// Who needs which rows of a tensor cut along `dim`.
struct HaloPlan {
  int64_t dim = 0;
  Partition owned;
  std::vector<std::vector<Segment>> segments;  ///< per rank, in the order wanted

  /// Whether any rank needs a row that it does not own. If not, nothing is exchanged.
  bool communicates() const;
  int64_t wanted_rows(int64_t rank) const;
  int64_t halo_rows(int64_t rank) const;
};
/// `wanted[rank]`: ranges in any order; they may overlap, repeat and wrap around.
HaloPlan make_halo_plan(int64_t dim, const Partition& owned,
                        const std::vector<std::vector<Rows>>& wanted);

struct Halo {
  at::Tensor own;   ///< the local tensor itself (an alias)
  at::Tensor rows;  ///< the rows fetched from other ranks, in the order of the plan's segments
};
/// One exchange (none when the plan does not communicate). Differentiable: the backward sends the
/// gradients of the rows back and adds them to their owners' in one exchange. Collective.
Halo exchange_halo(const at::Tensor& local, const HaloPlan& plan, const DeviceMesh& mesh);

/// Who needs which box of a tensor cut along several dims: the product of what the place along each
/// of them wants, corners included.
struct BoxPlan {
  std::vector<HaloPlan> dims;
  /// Per dim the place along it of every rank of the mesh. Empty: one dim, rank r at place r.
  std::vector<std::vector<int64_t>> places;

  int64_t ranks() const;
  int64_t place(size_t dim, int64_t rank) const;
  bool communicates() const;
};
/// NOTE [Shells]
/// What is missing of a box, without copying what is there: shells[i] has the rows of dims[i] that
/// other places own, between the own rows of the dims before it and all wanted rows of those after
/// it. So the own tensor and the shells cover the box, each element once, and putting them together
/// dim by dim, the last first, gives it. For one dim that is a Halo.
struct BoxHalo {
  at::Tensor own;
  std::vector<at::Tensor> shells;
};
/// The same as exchange_halo for all dims at once: one exchange, and one in the backward.
BoxHalo exchange_box(const at::Tensor& local, const BoxPlan& plan, const DeviceMesh& mesh);

/// The wanted rows of `rank` (the caller), one view per segment of the plan.
std::vector<at::Tensor> wanted_pieces(const Halo& halo, const HaloPlan& plan, int64_t rank);

/// `pieces` (not empty) side by side along `dim`; a single one is returned as it is, without a
/// copy.
at::Tensor join(const std::vector<at::Tensor>& pieces, int64_t dim);

/// All wanted rows of this rank as one tensor, with `before` and `after` rows of `fill` around
/// them. A view of the local tensor where nothing has to be added.
at::Tensor assemble(const Halo& halo, const HaloPlan& plan, int64_t rank, int64_t before = 0,
                    int64_t after = 0, const at::Scalar& fill = 0);

/// Makes a rank's rows along dims[dim] of a plan out of the wanted pieces, which come in the plan's
/// order; there may be none. `like` has the sizes along the other dims.
using Arrange =
    std::function<at::Tensor(size_t dim, std::vector<at::Tensor> pieces, const at::Tensor& like)>;
/// The box of this rank, arranged along every dim.
at::Tensor assemble_box(const BoxHalo& halo, const BoxPlan& plan, int64_t rank,
                        const Arrange& arrange);
/// The same along dims[dim] alone, of a shell of an earlier dim.
at::Tensor arrange_shell(const at::Tensor& shell, size_t dim, const BoxPlan& plan, int64_t rank,
                         const Arrange& arrange);

/// A tensor like `like` (sizes, dtype, device, memory format) with `rows` rows of `fill` along
/// `dim`.
at::Tensor fill_rows(const at::Tensor& like, int64_t dim, int64_t rows, const at::Scalar& fill = 0);

/// `y` (overwritten) with `low` added to its first and `high` to its last rows along `dim`;
/// undefined strips are skipped. Differentiable without a copy of the gradient.
at::Tensor add_strips(at::Tensor y, const at::Tensor& low, const at::Tensor& high, int64_t dim);

/// Geometry of a sliding window along one dim.
struct Window {
  int64_t kernel = 1;
  int64_t stride = 1;
  int64_t padding = 0;
  int64_t dilation = 1;
  bool ceil_mode =
      false;  ///< pooling: also a last window that begins inside but ends beyond the padded input

  int64_t reach() const { return dilation * (kernel - 1) + 1; }
  int64_t output_size(int64_t n) const;
  /// NOTE [Where output rows live]
  /// Output row o belongs to the owner of the input row at the centre of its window, o * stride +
  /// (reach - 1) / 2 - padding (the last or first row where the centre lies outside). So boundaries
  /// follow from metadata, a "same" window keeps them, halos are as wide on both sides, and a pad
  /// followed by a window without padding (what padding_mode = circular does) gives the input's
  /// boundaries back instead of drifting by a row a layer.
  Partition output_partition(const Partition& input) const;
};
/// `total` output rows over the owners of `input`'s rows: `first_output(row)` is the first output
/// row that belongs to input row `row` or a later one (it need not be clamped). The first and last
/// owner that have rows also get what lies outside.
Partition partition_outputs(const Partition& input, int64_t total,
                            const std::function<int64_t(int64_t)>& first_output);
/// The nearest boundaries at multiples of `unit`, which divides the whole.
Partition rounded_partition(const Partition& partition, int64_t unit);

/// What one rank computes of a window op: output rows `out` from input rows `in` with
/// `before`/`after` rows of padding around them.
struct WindowPart {
  Rows out;
  Rows in;
  int64_t before = 0;
  int64_t after = 0;
};
std::vector<WindowPart> window_parts(const Window& window, const Partition& input);
HaloPlan plan_halo(int64_t dim, const Partition& owned, const std::vector<WindowPart>& parts);

}  // namespace shard
