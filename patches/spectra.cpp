// SPDX-License-Identifier: Apache-2.0
// Discrete Fourier transforms. They are separable: each rank transforms the dims that it holds
// whole, the shard moves from the dim that is left to one of those (a transposition between ranks),
// and then that dim is transformed too.
//
// NOTE [Where a spectrum lies]
// A transform over several dims moves the shard on to the next of them, its inverse back to the one
// before: together two transpositions, and the result lies as the input did. Over the sharded dim
// alone the shard goes to another dim and comes back. The half spectrum of a real input has its
// last dim transformed first, so an input cut there is moved there and back, too.
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/_fft_c2c.h>
#include <ATen/ops/_fft_c2r.h>
#include <ATen/ops/_fft_r2c.h>
#include <ATen/ops/real.h>
#include <shard/line_transform.h>
#include <shard/patch.h>
#include <shard/window_patch.h>

#include <algorithm>
#include <cmath>

namespace shard {
namespace {

using at::Tensor;
using c10::IValue;
using Dims = std::vector<int64_t>;
/// A transform of a tensor that holds these dims whole.
using Along = std::function<Tensor(const Tensor&, const Dims&)>;

Dims without(Dims dims, int64_t dim) {
  std::erase(dims, dim);
  return dims;
}

/// The dim after (`step` 1) or before (-1) `dim`, in a circle of those that can be cut; none when
/// there is no other. (On a mesh of several dims sizes of one are no hint: those of the levels
/// below the first differ between places.)
std::optional<int64_t> neighbour(const OpCall& call, Dims dims, int64_t dim, int64_t step) {
  if (call.mesh().root().ndim() == 1) {
    const auto sizes = call.tensor(0).sizes();
    std::erase_if(dims, [&](int64_t d) { return d != dim && sizes[static_cast<size_t>(d)] <= 1; });
  }
  const auto count = static_cast<int64_t>(dims.size());
  if (count == 1) return std::nullopt;
  const auto place = std::find(dims.begin(), dims.end(), dim) - dims.begin();
  return dims[static_cast<size_t>((place + step + count) % count)];
}

bool are_last(const Dims& dims, int64_t ndim) {
  const auto count = static_cast<int64_t>(dims.size());
  return std::all_of(dims.begin(), dims.end(), [&](int64_t dim) { return dim >= ndim - count; });
}

/// NOTE [Strided transforms]
/// oneMKL overwrites memory in some complex transforms over several dims that are not the last
/// ones (seen with 5 x 1024 points at a stride of 2). Such dims are made the last ones first.
Tensor with_dims_last(const Tensor& x, const Dims& dims, const Along& along) {
  if (dims.size() == 1 || are_last(dims, x.dim())) return along(x, dims);
  Dims order;
  for (int64_t d = 0; d < x.dim(); ++d) {
    if (std::find(dims.begin(), dims.end(), d) == dims.end()) order.push_back(d);
  }
  order.insert(order.end(), dims.begin(), dims.end());
  Dims back(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  }
  Dims last;
  for (size_t i = order.size() - dims.size(); i < order.size(); ++i) {
    last.push_back(static_cast<int64_t>(i));
  }
  return along(x.permute(order).contiguous(), last).permute(back).contiguous();
}

/// A transform on the way: where the tensor lies now, and what is still to be done to it.
class Steps {
 public:
  explicit Steps(const OpCall& call)
      : mesh_(call.mesh()), spec_(call.tensor(0).spec->with_shape(call.tensor(0).sizes())) {}

  int64_t shard_dim() const { return spec_->shard_dim(); }
  Layout layout() const { return Layout(*spec_); }
  c10::IntArrayRef sizes() const { return spec_->global_shape(); }

  /// One transposition, to even pieces.
  void move(int64_t dim) { move(spec_->with(Shard(dim), sizes())); }
  void move(const Layout& to) { move(spec_->with(to.placement, sizes(), to.partition)); }

  /// NOTE [Columns that travel]
  /// The shard moves to `target` and the dim that it leaves is transformed. What travels is written
  /// with that dim innermost, and stays so: reading columns where they lie, a row apart, would cost
  /// more than the transform.
  void move_and_transform(int64_t target, const Along& along) {
    const int64_t cut = shard_dim();
    const int64_t last = static_cast<int64_t>(sizes().size()) - 1;
    swap_dims(cut, last);
    move(target == last ? cut : target);
    transform(along, {last});
    swap_dims(cut, last);
  }

  /// `last_size`: of the last of `dims` afterwards; -1: unchanged.
  void transform(const Along& along, const Dims& dims, int64_t last_size = -1) {
    if (dims.empty()) return;
    Shape shape(sizes().begin(), sizes().end());
    if (last_size >= 0) shape[static_cast<size_t>(dims.back())] = last_size;
    const bool is_resized = last_size >= 0 && shard_dim() == dims.back();  // on one rank
    spec_ = is_resized ? spec_->with(spec_->placement(), shape) : spec_->with_shape(shape);
    // A rank without rows transforms one of zeros: libraries refuse empty tensors.
    steps_.emplace_back([along, dims, dim = shard_dim()](const Tensor& x) {
      return on_rows(x, dim, [&](const Tensor& rows) { return with_dims_last(rows, dims, along); });
    });
  }

  Decision decision(const Layout& input) const {
    Decision decision;
    decision.inputs.push_back(input);
    decision.outputs.push_back(layout());
    decision.local = [steps = steps_](c10::ArrayRef<IValue> arguments) {
      Tensor x = arguments[0].toTensor();
      for (const auto& step : steps) x = step(x);
      return std::vector<IValue>{x};
    };
    return decision;
  }

 private:
  void swap_dims(int64_t a, int64_t b) {
    if (a == b) return;
    Shape shape(sizes().begin(), sizes().end());
    std::swap(shape[static_cast<size_t>(a)], shape[static_cast<size_t>(b)]);
    const int64_t dim = shard_dim() == a ? b : shard_dim() == b ? a : shard_dim();
    spec_ = spec_->with(Shard(dim), shape, spec_->partition());
    steps_.emplace_back([a, b](const Tensor& x) { return x.transpose(a, b); });
  }
  void move(const SpecRef& target) {
    steps_.emplace_back([from = spec_, target, mesh = mesh_](const Tensor& x) {
      return raw_local(redistribute(from_local(x, mesh, from), target));
    });
    spec_ = target;
  }

  DeviceMesh mesh_;
  SpecRef spec_;
  std::vector<std::function<Tensor(const Tensor&)>> steps_;
};

Dims dims_of(const OpCall& call) {
  Dims dims = call.integers(1);
  for (auto& dim : dims) dim = c10::maybe_wrap_dim(dim, call.tensor(0).ndim());
  return dims;
}

/// The transform is linear: pending sums stay pending.
Layout summed(const TensorArgument& input) {
  const Layout layout = input.layout();
  const bool keeps = !layout.is_partial() || layout.placement.op() == ReduceOp::Sum ||
                     layout.placement.op() == ReduceOp::Avg;
  return keeps ? layout : Layout();
}

/// Whether the local transforms are the parts of the global one.
bool is_local(const OpCall& call, const Dims& dims) {
  const auto& input = call.tensor(0);
  return !input.is_shard() || call.mesh().size() == 1 ||
         std::find(dims.begin(), dims.end(), input.shard_dim()) == dims.end();
}

Decision locally(const OpCall& call, const Dims& dims, const Along& along, int64_t last_size = -1) {
  if (call.tensor(0).is_shard()) {
    Steps steps(call);
    steps.transform(along, dims, last_size);
    return steps.decision(call.tensor(0).layout());
  }
  Decision decision;
  decision.inputs.push_back(summed(call.tensor(0)));
  decision.outputs.push_back(decision.inputs[0]);
  return decision;
}

/// Everything at another place, where all `dims` are whole, and back.
Decision elsewhere(const OpCall& call, const Dims& dims, const Along& along, int64_t last_size) {
  Steps steps(call);
  const Layout home = steps.layout();
  steps.move(cut_elsewhere(call, call.tensor(0).sizes(), dims));
  steps.transform(along, dims, last_size);
  if (home.dim() == dims.back() && last_size >= 0) {
    steps.move(home.dim());
  } else {
    steps.move(home);
  }
  return steps.decision(home);
}

bool has_other_dim(const OpCall& call, const Dims& dims) {
  return cut_elsewhere(call, call.tensor(0).sizes(), dims).is_shard();
}

// ---- a line: there is nothing else to cut

/// On a mesh of several dims only one dim tells all places the same.
bool is_line(const OpCall& call) {
  const auto& x = call.tensor(0);
  if (call.mesh().root().ndim() > 1) return x.ndim() == 1;
  return x.tensor.numel() > 0 && x.tensor.numel() == x.tensor.size(x.shard_dim());
}

/// `f`: this rank's rows of the line to those of the one that `output` cuts.
Decision of_line(const OpCall& call, const Partition& output,
                 const std::function<Tensor(const Tensor&)>& f) {
  const auto& x = call.tensor(0);
  Shape sizes(x.sizes());
  sizes[static_cast<size_t>(x.shard_dim())] = output[static_cast<size_t>(call.mesh().rank())];
  Decision decision;
  decision.inputs.push_back(x.layout());
  decision.outputs.emplace_back(Shard(x.shard_dim()), output);
  decision.local = [f, sizes](c10::ArrayRef<IValue> arguments) {
    return std::vector<IValue>{f(arguments[0].toTensor().reshape({-1})).reshape(sizes)};
  };
  return decision;
}

/// Of LibTorch's forms: none, by the root of the number of points, by this number.
double scale_of(int64_t normalization, int64_t points) {
  const auto n = static_cast<double>(points);
  return normalization == 0 ? 1 : normalization == 1 ? 1 / std::sqrt(n) : 1 / n;
}

Along complex_along(int64_t normalization, bool forward) {
  return [=](const Tensor& x, const Dims& dims) {
    return at::_fft_c2c(x, dims, normalization, forward);
  };
}

// _fft_c2c(self, dim, normalization, forward)
std::optional<Decision> complex_to_complex(const OpCall& call) {
  const Dims dims = dims_of(call);
  const bool forward = call.argument(3).toBool();
  const Along along = complex_along(call.integer(2), forward);
  if (is_local(call, dims)) return locally(call, dims, along);
  if (is_line(call)) {
    const auto& owned = call.tensor(0).spec->partition();
    const double scale = scale_of(call.integer(2), call.tensor(0).tensor.numel());
    return of_line(call, owned, [=, mesh = call.mesh()](const Tensor& rows) {
      return transform_line(rows, mesh, owned, forward) * scale;
    });
  }
  Steps steps(call);
  const int64_t cut = steps.shard_dim();
  const auto target = neighbour(call, dims, cut, forward ? 1 : -1);
  if (!target) return elsewhere(call, dims, along, -1);
  steps.transform(along, without(dims, cut));
  steps.move_and_transform(*target, along);
  return steps.decision(call.tensor(0).layout());
}

// _fft_r2c(self, dim, normalization, onesided): the last dim first, then the others as complex.
std::optional<Decision> real_to_complex(const OpCall& call) {
  const Dims dims = dims_of(call);
  const int64_t last = dims.back();
  const int64_t n = call.tensor(0).sizes()[static_cast<size_t>(last)];
  const bool onesided = call.argument(3).toBool();
  const int64_t half = onesided ? n / 2 + 1 : n;
  const int64_t normalization = call.integer(2);
  const Along whole = [=](const Tensor& x, const Dims& these) {
    return at::_fft_r2c(x, these, normalization, onesided);
  };
  if (is_local(call, dims)) return locally(call, dims, whole, half);
  if (is_line(call)) {
    const auto& owned = call.tensor(0).spec->partition();
    const int64_t line = call.tensor(0).tensor.numel();
    const double scale = scale_of(normalization, line);
    const Partition kept = call.tensor(0).shard_dim() == last && onesided
                               ? even_partition(half, call.mesh().size())
                               : owned;
    return of_line(call, kept, [=, mesh = call.mesh()](const Tensor& rows) {
      return transform_real_line(rows, mesh, owned, kept) * scale;
    });
  }
  const Along along = complex_along(normalization, true);
  Steps steps(call);
  const int64_t cut = steps.shard_dim();
  if (const auto target = neighbour(call, dims, cut, 1); target && cut != last) {
    steps.transform(whole, without(dims, cut), half);
    steps.move_and_transform(*target, along);
    return steps.decision(call.tensor(0).layout());
  }
  if (cut != last || dims.size() == 1 || has_other_dim(call, dims)) {
    return elsewhere(call, dims, whole, half);
  }
  const int64_t other = neighbour(call, dims, cut, 1).value_or(dims.front());
  steps.move(other);
  steps.transform(whole, without(dims, other), half);
  steps.move(last);
  steps.transform(along, {other});
  return steps.decision(call.tensor(0).layout());
}

// _fft_c2r(self, dim, normalization, last_dim_size): the others as complex, then the last dim.
std::optional<Decision> complex_to_real(const OpCall& call) {
  const Dims dims = dims_of(call);
  const int64_t last = dims.back();
  const int64_t size = call.integer(3);
  const int64_t normalization = call.integer(2);
  const Along whole = [=](const Tensor& x, const Dims& these) {
    return at::_fft_c2r(x, these, normalization, size);
  };
  if (is_local(call, dims)) return locally(call, dims, whole, size);
  if (is_line(call) && (call.tensor(0).shard_dim() == last || size == 1)) {
    const auto& owned = call.tensor(0).spec->partition();
    const bool is_half = call.tensor(0).shard_dim() == last;
    const double scale = scale_of(normalization, is_half ? size : call.tensor(0).tensor.numel());
    const Partition whole = is_half ? even_partition(size, call.mesh().size()) : owned;
    return of_line(call, whole, [=, mesh = call.mesh()](const Tensor& rows) {
      const Tensor y = is_half ? line_of_half_spectrum(rows, mesh, owned, whole)
                               : at::real(transform_line(rows, mesh, owned, /*forward=*/false));
      return y * scale;
    });
  }
  const Along along = complex_along(normalization, false);
  Steps steps(call);
  const int64_t cut = steps.shard_dim();
  if (const auto target = neighbour(call, dims, last, -1); target && cut == last) {
    steps.transform(along, without(dims, last));
    steps.move(*target);
    steps.transform(whole, {last}, size);
    return steps.decision(call.tensor(0).layout());
  }
  if (cut == last) return elsewhere(call, dims, whole, size);
  const auto target = neighbour(call, without(dims, last), cut, -1);
  if (!target && has_other_dim(call, dims)) return elsewhere(call, dims, whole, size);
  if (!target) {
    const Layout home = steps.layout();
    steps.transform(along, without(without(dims, cut), last));
    steps.move(last);
    steps.transform(along, {cut});
    steps.move(home);
    steps.transform(whole, {last}, size);
    return steps.decision(home);
  }
  steps.transform(along, without(without(dims, cut), last));
  steps.move_and_transform(*target, along);
  steps.transform(whole, {last}, size);
  return steps.decision(call.tensor(0).layout());
}

}  // namespace

SHARD_PATCH(spectra) {
  const char* note =
      "over the sharded dim and others: one transposition, to the next of them (inverse: back); "
      "over it alone: two; a line is cut while it is transformed";
  patch.rule("aten::_fft_c2c", complex_to_complex).shards("any dim").notes(note);
  patch.remembering_rule("aten::_fft_r2c", real_to_complex).shards("any dim").notes(note);
  patch.rule("aten::_fft_c2r", complex_to_real).shards("any dim").notes(note);
}

}  // namespace shard
