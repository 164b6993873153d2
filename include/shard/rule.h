// SPDX-License-Identifier: Apache-2.0
// Dispatch-level rules: for an aten op below autograd, what the local tensors must be so that
// running the op on them gives the local parts of the global result. A rule reads metadata only, so
// every rank decides alike.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>
#include <shard/mesh.h>
#include <shard/spec.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace shard {

/// A placement with the piece sizes of a Shard; a spec without its shape.
struct Layout {
  Placement placement = Replicate();
  Partition partition;

  Layout() = default;
  Layout(Placement placement, Partition partition)  // NOLINT(bugprone-easily-swappable-parameters)
      : placement(placement), partition(std::move(partition)) {}
  explicit Layout(const ShardTensorSpec& spec)
      : placement(spec.placement()), partition(spec.partition()) {}

  bool is_shard() const { return placement.is_shard(); }
  bool is_replicate() const { return placement.is_replicate(); }
  bool is_partial() const { return placement.is_partial(); }
  int64_t dim() const { return placement.dim(); }
  /// The same pieces along another tensor dim.
  Layout moved_to(int64_t dim) const { return {Shard(dim), partition}; }
  bool operator==(const Layout&) const = default;
};

/// A tensor among an op's arguments (lists flattened), as a rule sees it. Plain tensors count as
/// Replicate.
struct TensorArgument {
  size_t argument = 0;                    ///< index in the schema
  at::Tensor tensor;                      ///< the ShardTensor or plain tensor itself
  const ShardTensorSpec* spec = nullptr;  ///< nullptr: plain
  bool is_written = false;

  c10::IntArrayRef sizes() const { return tensor.sizes(); }
  int64_t ndim() const { return tensor.dim(); }
  Layout layout() const { return spec ? Layout(*spec) : Layout(); }
  bool is_shard() const { return spec && spec->is_shard(); }
  bool is_partial() const { return spec && spec->is_partial(); }
  int64_t shard_dim() const { return spec ? spec->shard_dim() : -1; }
};

/// One call of an op: its name, arguments and the mesh.
class OpCall {
 public:
  OpCall(const std::string& name, c10::ArrayRef<c10::IValue> arguments,
         c10::SmallVector<TensorArgument, 4> tensors, const DeviceMesh& mesh)
      : name_(name), arguments_(arguments), tensors_(std::move(tensors)), mesh_(mesh) {}

  const std::string& name() const { return name_; }  ///< "aten::add.Tensor"
  const DeviceMesh& mesh() const { return mesh_; }
  size_t size() const { return arguments_.size(); }
  const c10::IValue& argument(size_t i) const { return arguments_[i]; }
  c10::ArrayRef<TensorArgument> tensors() const { return tensors_; }
  const TensorArgument& tensor(size_t i) const { return tensors_[i]; }

  int64_t integer(size_t i) const { return arguments_[i].toInt(); }
  /// Argument `i` as a tensor dim of a tensor with `ndim` dims, wrapped to be >= 0 (c10 error if
  /// out of range).
  int64_t dim(size_t i, int64_t ndim) const;
  std::vector<int64_t> integers(size_t i) const { return arguments_[i].toIntVector(); }
  std::optional<int64_t> optional_integer(size_t i) const;

 private:
  const std::string& name_;
  c10::ArrayRef<c10::IValue> arguments_;
  c10::SmallVector<TensorArgument, 4> tensors_;
  const DeviceMesh& mesh_;
};

/// What a rule decides.
struct Decision {
  /// Per tensor argument, how it must lie. A written argument is moved back after the op.
  c10::SmallVector<Layout, 4> inputs;
  /// Per returned tensor (lists flattened); a single entry serves all. Sizes come from the local
  /// results.
  c10::SmallVector<Layout, 2> outputs;
  /// Arguments to replace on this rank, e.g. a global size by the local one.
  c10::SmallVector<std::pair<size_t, c10::IValue>, 2> arguments;
  /// Replaces the op on the local tensors (given the local argument stack; returns the local
  /// results).
  std::function<std::vector<c10::IValue>(c10::ArrayRef<c10::IValue>)> local;
  /// Of a view op whose `local` communicates: NOTE [Marked copies]. (When inputs move the engine
  /// knows.)
  bool is_copy = false;
};

/// Returns nullopt when the op cannot be done for these placements: MissingShardPatch follows.
using Rule = std::function<std::optional<Decision>(const OpCall&)>;

// ---- The rule families.

/// How a pointwise op treats Partial(sum) and Partial(avg) inputs.
enum class Linearity : uint8_t {
  None,      ///< inputs are reduced first
  Unary,     ///< f(a + b) = f(a) + f(b): neg, clone, _to_copy
  Additive,  ///< linear in all tensor inputs together: add, sub
  Product,   ///< linear in each tensor input alone: mul
  Quotient,  ///< linear in the first: div
};
/// Elementwise with broadcasting; in-place and out= included (the written tensor keeps its layout).
Rule pointwise(Linearity linearity = Linearity::None);

/// Works on every index of all dims except those in integer (list) argument `dim_argument` alike;
/// all tensor arguments are aligned on the other dims. A shard along such a dim moves to the
/// largest other one first (to none, Replicate, when there is no other).
Rule along_dims(size_t dim_argument);
/// Where such a shard goes: the largest dim that is not in `dims` and not 1.
Layout cut_elsewhere(const OpCall& call, c10::IntArrayRef sizes, c10::IntArrayRef dims);

/// Output like the first tensor argument (Partial becomes Replicate); sizes arguments do not occur.
Rule like_input();

/// Fills argument 0 with random numbers: the parts of those that one device would draw, wherever
/// the tensor is cut (docs/random-numbers.md). Needs argument `generator`.
Rule draws();

/// `view` and its kin: the sizes are argument 1. See NOTE [Views across a sharded dim].
Rule view_as_sizes();
/// `_reshape_alias`, which has strides too.
Rule reshape_alias();
/// How a sharded tensor must lie so that the local views are the parts of the global one, and how
/// the result lies then. An input that lies otherwise moves first, and the view is a copy.
struct ViewPlan {
  Layout input;
  Layout output;
};
ViewPlan plan_view(const ShardTensorSpec& spec, c10::IntArrayRef sizes);

/// The tensor whose layout should be kept when a formula makes a tensor of these global sizes: the
/// input of the op whose backward runs on this thread. See NOTE [Remembered inputs].
std::optional<Layout> remembered_layout(const DeviceMesh& mesh, c10::IntArrayRef sizes);

/// The rank's piece of `sizes` under `layout`.
std::vector<int64_t> local_sizes(c10::IntArrayRef sizes, const Layout& layout, int64_t rank);

}  // namespace shard
