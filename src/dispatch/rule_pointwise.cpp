// SPDX-License-Identifier: Apache-2.0
// Elementwise ops with broadcasting. The result lies like one of the inputs, the anchor: the
// written tensor, else the sharded input that makes the others move the least.
#include <ATen/ExpandUtils.h>
#include <c10/core/WrapDimMinimal.h>
#include <shard/error.h>
#include <shard/outermost.h>
#include <shard/rule.h>

#include <cmath>

namespace shard {
namespace {

Shape broadcast_sizes(const OpCall& call) {
  Shape sizes;
  for (const auto& argument : call.tensors()) {
    const auto merged = at::infer_size(sizes, argument.sizes());
    sizes.assign(merged.begin(), merged.end());
  }
  return sizes;
}

// Which dims of `argument` are broadcast is told by its sizes above all levels, `own`, and those of
// the result, `sizes`: NOTE [Calls of inner levels].

/// The layout of a result when `argument` keeps its own; Replicate when its sharded dim is
/// broadcast (size 1 where the result is larger).
Layout aligned_to_result(const TensorArgument& argument, c10::IntArrayRef own, const Shape& sizes) {
  if (!argument.is_shard()) return {};
  const int64_t dim = argument.shard_dim() + static_cast<int64_t>(sizes.size()) - argument.ndim();
  const bool broadcast =
      own[static_cast<size_t>(argument.shard_dim())] != sizes[static_cast<size_t>(dim)];
  return broadcast ? Layout() : argument.layout().moved_to(dim);
}

/// The layout an argument needs so that its local part broadcasts with a result that lies like
/// `result`.
Layout aligned_to_argument(const Layout& result, c10::IntArrayRef own, const Shape& sizes) {
  if (!result.is_shard()) return result;
  const int64_t dim = result.dim() - static_cast<int64_t>(sizes.size() - own.size());
  if (dim < 0 || own[static_cast<size_t>(dim)] != sizes[static_cast<size_t>(result.dim())]) {
    return {};
  }
  return result.moved_to(dim);
}

bool is_on_several_dims(const DeviceMesh& mesh) { return mesh.root().ndim() > 1; }

int64_t elements_moved(const Layout& result, const OpCall& call, const Shape& sizes) {
  int64_t moved = 0;
  for (const auto& argument : call.tensors()) {
    const bool moves = argument.spec && !argument.spec->is_replicate() &&
                       argument.layout() != aligned_to_argument(result, argument.sizes(), sizes);
    if (moves) moved += argument.tensor.numel();
  }
  return moved;
}

/// NOTE [Choices on several mesh dims]
/// An inner level sees sizes that differ from place to place along the outer mesh dims. What it
/// chooses by size would lie differently there, so on a mesh of several dims the first candidate is
/// taken.
Layout choose_anchor(const OpCall& call, const OpCall& whole, const Shape& sizes) {
  for (const auto& argument : call.tensors()) {
    if (argument.is_written) return argument.is_partial() ? Layout() : argument.layout();
  }
  Layout best;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (size_t i = 0; i < call.tensors().size(); ++i) {
    const Layout layout = aligned_to_result(call.tensor(i), whole.tensor(i).sizes(), sizes);
    if (!layout.is_shard()) continue;
    if (is_on_several_dims(call.mesh())) return layout;
    if (const int64_t moved = elements_moved(layout, call, sizes); moved < least) {
      least = moved;
      best = layout;
    }
  }
  return best;
}

bool is_sum_or_avg(const TensorArgument& argument) {
  return argument.is_partial() && (argument.spec->placement().op() == ReduceOp::Sum ||
                                   argument.spec->placement().op() == ReduceOp::Avg);
}

/// The number that an op takes (as a number, or as the tensor that C++ operators make of it).
std::optional<at::Scalar> number_of(const OpCall& call) {
  if (call.tensors().size() == 1) {
    if (call.size() > 1 && call.argument(1).isScalar()) return call.argument(1).toScalar();
    return std::nullopt;
  }
  for (const auto& argument : call.tensors()) {
    const auto& tensor = argument.tensor;
    if (!argument.spec && tensor.dim() == 0 && tensor.device().is_cpu()) return tensor.item();
  }
  return std::nullopt;
}

/// Contributions of both signs, or none, times infinity would be infinities of both signs, or NaN:
/// only a factor that is known to be finite goes to them, so no tensor does.
bool has_finite_factor(const OpCall& call, bool divides) {
  const auto number = number_of(call);
  if (!number) return false;
  const auto value = number->toComplexDouble();
  return std::isfinite(value.real()) && std::isfinite(value.imag()) &&
         !(divides && value == c10::complex<double>(0));
}

/// Whether the op may run on the contributions of Partial inputs.
bool keeps_partial(const OpCall& call, Linearity linearity) {
  const auto tensors = call.tensors();
  const auto& first = tensors[0];
  switch (linearity) {
    case Linearity::None:
      return false;
    case Linearity::Unary:
      return tensors.size() == 1 && is_sum_or_avg(first);
    case Linearity::Additive:
      return std::all_of(tensors.begin(), tensors.end(), [&](const TensorArgument& argument) {
        return is_sum_or_avg(argument) && argument.spec->placement() == first.spec->placement();
      });
    case Linearity::Product:
      return has_finite_factor(call, false) &&
             (is_sum_or_avg(first) || (!first.is_written && is_sum_or_avg(tensors.back())));
    case Linearity::Quotient:
      return is_sum_or_avg(first) && has_finite_factor(call, true);
  }
  return false;
}

Decision keep_partial(const OpCall& call) {
  Decision decision;
  for (const auto& argument : call.tensors()) {
    decision.inputs.push_back(argument.layout());
    if (argument.is_partial()) decision.outputs.assign(1, argument.layout());
  }
  return decision;
}

/// A pending sum that is written by an op that adds: what is added becomes pending too.
bool adds_to_pending(const OpCall& call, Linearity linearity) {
  return linearity == Linearity::Additive &&
         std::any_of(call.tensors().begin(), call.tensors().end(), [](const auto& argument) {
           return argument.is_written && is_sum_or_avg(argument);
         });
}

Decision add_to_pending(const OpCall& call) {
  Layout pending;
  for (const auto& argument : call.tensors()) {
    if (argument.is_written) pending = argument.layout();
  }
  Decision decision;
  decision.inputs.assign(call.tensors().size(), pending);
  decision.outputs.push_back(pending);
  return decision;
}

Decision run_pointwise(const OpCall& call, Linearity linearity) {
  if (keeps_partial(call, linearity)) return keep_partial(call);
  if (adds_to_pending(call, linearity)) return add_to_pending(call);
  const OpCall& whole = outermost_call(call);
  const Shape sizes = broadcast_sizes(whole);
  const Layout anchor = choose_anchor(call, whole, sizes);
  Decision decision;
  for (const auto& argument : whole.tensors()) {
    decision.inputs.push_back(aligned_to_argument(anchor, argument.sizes(), sizes));
  }
  decision.outputs.push_back(anchor);
  return decision;
}

/// Whether `plain` has the sizes that some rank's part of `sharded` has, and not those of the
/// whole.
bool is_like_a_piece(const TensorArgument& plain, const TensorArgument& sharded) {
  if (!sharded.is_shard() || plain.sizes() == sharded.sizes()) return false;
  for (size_t rank = 0; rank < sharded.spec->partition().size(); ++rank) {
    const auto local = sharded.spec->local_shape(static_cast<int64_t>(rank));
    if (plain.sizes() == c10::IntArrayRef(local)) return true;
  }
  return false;
}

/// A plain tensor that has the size of a local part rather than the global one is most likely a
/// shard.
std::string hint_of_local_shapes(const OpCall& call) {
  for (const auto& sharded : call.tensors()) {
    for (const auto& plain : call.tensors()) {
      if (plain.spec || !is_like_a_piece(plain, sharded)) continue;
      return c10::str(" A plain tensor has the local shape of ", *sharded.spec,
                      ": if it is a rank's part, wrap it with shard::from_local.");
    }
  }
  return "";
}

}  // namespace

Rule pointwise(Linearity linearity) {
  return [linearity](const OpCall& call) -> std::optional<Decision> {
    try {
      return run_pointwise(call, linearity);
    } catch (const Error&) {
      throw;
    } catch (const c10::Error& error) {
      raise<SpecMismatch>(call.name(), error.what_without_backtrace(), ".",
                          hint_of_local_shapes(call));
    }
  };
}

Rule like_input() {
  return [](const OpCall& call) -> std::optional<Decision> {
    Decision decision;
    const Layout layout = call.tensor(0).is_partial() ? Layout() : call.tensor(0).layout();
    decision.inputs.push_back(call.tensor(0).layout());  // values are not read
    decision.outputs.push_back(layout);
    return decision;
  };
}

Layout cut_elsewhere(const OpCall& call, c10::IntArrayRef sizes, c10::IntArrayRef dims) {
  const bool by_size = !is_on_several_dims(call.mesh());
  int64_t best = -1;
  for (int64_t d = 0; d < static_cast<int64_t>(sizes.size()); ++d) {
    const int64_t size = sizes[static_cast<size_t>(d)];
    if (std::find(dims.begin(), dims.end(), d) != dims.end()) continue;
    const bool is_better =
        by_size && size > 1 && (best < 0 || size > sizes[static_cast<size_t>(best)]);
    if (is_better || (!by_size && best < 0)) best = d;
  }
  if (best < 0) return {};
  return {Shard(best), even_partition(sizes[static_cast<size_t>(best)], call.mesh().size())};
}

namespace {

std::vector<int64_t> wrapped_dims(const OpCall& call, size_t argument, int64_t ndim) {
  const auto& value = call.argument(argument);
  auto dims = value.isIntList() ? value.toIntVector() : std::vector<int64_t>{value.toInt()};
  for (auto& dim : dims) dim = c10::maybe_wrap_dim(dim, ndim);
  return dims;
}

Layout first_shard(const OpCall& call, int64_t ndim) {
  for (const auto& argument : call.tensors()) {
    if (argument.is_shard() && argument.ndim() == ndim) return argument.layout();
  }
  return {};
}

}  // namespace

Rule along_dims(size_t dim_argument) {
  return [dim_argument](const OpCall& call) -> std::optional<Decision> {
    const auto sizes = call.tensor(0).sizes();
    const int64_t ndim = call.tensor(0).ndim();
    const auto dims = wrapped_dims(call, dim_argument, ndim);
    Layout layout = first_shard(call, ndim);
    if (layout.is_shard() && std::find(dims.begin(), dims.end(), layout.dim()) != dims.end()) {
      layout = cut_elsewhere(call, sizes, dims);
    }
    Decision decision;
    for (const auto& argument : call.tensors()) {
      const bool is_aligned = argument.ndim() == ndim;
      if (layout.is_shard() && is_aligned &&
          argument.sizes()[static_cast<size_t>(layout.dim())] !=
              sizes[static_cast<size_t>(layout.dim())]) {
        return std::nullopt;
      }
      decision.inputs.push_back(is_aligned ? layout : Layout());
    }
    decision.outputs.push_back(layout);
    return decision;
  };
}

}  // namespace shard
