// SPDX-License-Identifier: Apache-2.0
// Factorisations and solvers of matrices: local where a batch dim is cut. A cut matrix moves to the
// largest batch dim; one without batch dims is refused, since no rank could hold it whole.
#include <ATen/ExpandUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/linalg_householder_product.h>
#include <ATen/ops/ormqr.h>
#include <shard/outermost.h>
#include <shard/patch.h>

#include <algorithm>
#include <string>
#include <vector>

namespace shard {
namespace {

using at::Tensor;

/// How many of an argument's last dims are the matrix or the vector.
using Cores = std::vector<int64_t>;

/// Where a cut of the matrices goes: the largest batch dim. The same everywhere if the sizes are.
int64_t largest_of(c10::IntArrayRef batch) {
  return std::max_element(batch.begin(), batch.end()) - batch.begin();
}

/// The batch dims of all arguments, broadcast.
class Batch {
 public:
  Batch(const OpCall& call, const Cores& cores) : call_(call), cores_(cores) {
    for (size_t i = 0; i < call.tensors().size(); ++i) {
      const auto merged = at::infer_size(
          sizes_, call.tensor(i).sizes().slice(0, static_cast<size_t>(batch_ndim(i))));
      sizes_.assign(merged.begin(), merged.end());
    }
  }
  int64_t ndim() const { return static_cast<int64_t>(sizes_.size()); }
  int64_t batch_ndim(size_t i) const {
    const auto& argument = call_.tensor(i);
    return argument.ndim() - cores_[argument.argument];
  }
  /// The dim of argument `i` along batch dim `dim`; -1 where it is broadcast.
  int64_t dim_of(size_t i, int64_t dim) const {
    const int64_t own = dim - (ndim() - batch_ndim(i));
    const bool varies = own >= 0 && call_.tensor(i).sizes()[static_cast<size_t>(own)] ==
                                        sizes_[static_cast<size_t>(dim)];
    return varies ? own : -1;
  }
  /// The cut that the results get: of the first argument with a cut batch dim; else the matrices'
  /// moves to a batch dim. nullopt: there is none.
  std::optional<Layout> cut() const {
    bool is_cut = false;
    for (size_t i = 0; i < call_.tensors().size(); ++i) {
      const auto& argument = call_.tensor(i);
      if (!argument.is_shard()) continue;
      is_cut = true;
      const int64_t dim = argument.shard_dim() + ndim() - batch_ndim(i);
      if (argument.shard_dim() < batch_ndim(i) && dim_of(i, dim) == argument.shard_dim()) {
        return argument.layout().moved_to(dim);
      }
    }
    if (!is_cut) return Layout();
    if (sizes_.empty()) return std::nullopt;
    // Also of one matrix, which one rank then has.
    const OpCall& outermost = outermost_call(call_);
    const int64_t dim = largest_of(Batch(outermost, cores_).sizes_);
    return Layout(Shard(dim),
                  even_partition(sizes_[static_cast<size_t>(dim)], call_.mesh().size()));
  }
  Layout layout_of(size_t i, const Layout& cut) const {
    if (!cut.is_shard()) return cut;
    const int64_t dim = dim_of(i, cut.dim());
    return dim < 0 ? Layout() : cut.moved_to(dim);
  }

 private:
  const OpCall& call_;
  const Cores& cores_;
  Shape sizes_;
};

/// Which argument's batch dims a result has, or:
constexpr int kAll = -1;      ///< those of all, broadcast
constexpr int kNothing = -2;  ///< none: it is left empty

using Results = std::function<std::vector<int>(const OpCall&)>;
Results results(std::vector<int> kinds) {
  return [kinds = std::move(kinds)](const OpCall&) { return kinds; };
}

Rule batched(const std::function<Cores(const OpCall&)>& cores_of, const Results& results) {
  return [=](const OpCall& call) -> std::optional<Decision> {
    const Cores cores = cores_of(call);
    const Batch batch(call, cores);
    const auto cut = batch.cut();
    if (!cut) return std::nullopt;
    Decision decision;
    for (size_t i = 0; i < call.tensors().size(); ++i) {
      decision.inputs.push_back(batch.layout_of(i, *cut));
    }
    for (const int kind : results(call)) {
      decision.outputs.push_back(kind == kAll       ? *cut
                                 : kind == kNothing ? Layout()
                                                    : decision.inputs[static_cast<size_t>(kind)]);
    }
    return decision;
  };
}
Rule batched(const Cores& cores, const Results& results) {
  return batched([cores](const OpCall&) { return cores; }, results);
}

/// These kernels factorise the transposed matrix where the matrix is contiguous, and LibTorch's
/// formulas of their gradients look at the whole one to know which: the local one must lie alike.
Rule factorising(Rule rule) {
  return [rule = std::move(rule)](const OpCall& call) -> std::optional<Decision> {
    auto decision = rule(call);
    if (!decision) return std::nullopt;
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(call.name().c_str(), "");
    decision->local = [op, by_rows = call.tensor(0).tensor.is_contiguous()](
                          c10::ArrayRef<c10::IValue> arguments) {
      torch::jit::Stack stack = arguments.vec();
      const Tensor matrix = stack[0].toTensor();
      stack[0] = by_rows ? matrix.contiguous() : matrix.mT().contiguous().mT();
      op.callBoxed(&stack);
      return stack;
    };
    return decision;
  };
}

/// B of A X = B may be a batch of vectors.
Cores of_system(const OpCall& call) {
  const auto a = call.tensor(0).sizes();
  const auto b = call.tensor(1).sizes();
  const bool is_vector = b.size() == 1 || (b.size() + 1 == a.size() && b == a.slice(0, b.size()));
  return {2, is_vector ? 1 : 2};
}

/// Without vectors (argument `flag` false) the results around the values are empty.
Results with_vectors(size_t flag, const std::vector<int>& with, const std::vector<int>& without) {
  return [=](const OpCall& call) { return call.argument(flag).toBool() ? with : without; };
}

std::vector<int> of_qr(const OpCall& call) {
  return {call.argument(1).toStringRef() == "r" ? kNothing : 0, 0};
}

std::vector<int> of_lu_unpack(const OpCall& call) {
  const int data = call.argument(2).toBool() ? 0 : kNothing;
  return {call.argument(3).toBool() ? 0 : kNothing, data, data};
}

/// linalg_lstsq(self, b, rcond, *, driver) -> (solution, residuals, rank, singular values): which
/// are empty follows from driver and sizes, but for gelsd and gelss, where the ranks decide.
std::optional<Decision> least_squares(const OpCall& call) {
  const std::string driver = call.argument(3).isNone() ? "gelsy" : call.argument(3).toStringRef();
  if (driver != "gelsy" && driver != "gels") return std::nullopt;
  const auto a = call.tensor(0).sizes();
  const bool has_residuals = driver == "gels" && a[a.size() - 2] > a[a.size() - 1];
  return batched(of_system, results({kAll, has_residuals ? kAll : kNothing,
                                     driver == "gelsy" ? 0 : kNothing, kNothing}))(call);
}

/// _linalg_check_errors(info, api_name, is_matrix): all ranks look at the codes of all matrices, so
/// that all raise alike.
std::optional<Decision> check_errors(const OpCall&) {
  Decision decision;
  decision.inputs.emplace_back();
  decision.outputs.emplace_back();
  return decision;
}

// ---- products with reflectors, above autograd: LibTorch's formulas of their gradients write into
// columns of the matrices they see, which must be local ones

/// Tensors with equal batch dims, `batch_ndim` of them, cut alike along one of these.
std::vector<Tensor> cut_by_batch(const char* op, std::vector<Tensor> tensors, int64_t batch_ndim) {
  const auto first = std::find_if(tensors.begin(), tensors.end(), is_shard_tensor);
  const DeviceMesh mesh = mesh_of(*first);
  const auto batch = first->sizes().slice(0, static_cast<size_t>(batch_ndim));
  Layout cut;
  for (auto& tensor : tensors) {
    tensor = promote(tensor, mesh);
    const auto& spec = *spec_of(tensor);
    if (!spec.is_shard() || (cut.is_shard() && cut.dim() < batch_ndim)) continue;
    cut = Layout(spec);
  }
  if (cut.is_shard() && cut.dim() >= batch_ndim) {
    if (batch.empty()) {
      refuse_op(op, "a matrix cut along its own dims", "a batch dim to move the cut to");
    }
    // Where places see other sizes there is none that all would choose.
    const int64_t dim = largest_of(batch);
    cut = sees_global_sizes(mesh)
              ? Layout(Shard(dim), even_partition(batch[static_cast<size_t>(dim)], mesh.size()))
              : Layout();
  }
  for (auto& tensor : tensors) {
    const auto& spec = spec_of(tensor);
    tensor = redistribute(tensor, spec->with(cut.placement, tensor.sizes(), cut.partition));
  }
  return tensors;
}

/// The result of the op, given local tensors; it lies like the last of them. Where a rank has no
/// matrix LibTorch's gradients are undefined, but the ranks that have some wait for this one's; of
/// tensors that are empty as a whole they are undefined on every rank.
template <class Op>
Tensor by_batch(const std::vector<Tensor>& cut, Op op) {
  std::vector<Tensor> own;
  for (const Tensor& tensor : cut) own.push_back(to_local(tensor));
  const bool others_have_some =
      !sees_global_sizes(mesh_of(cut.back())) ||
      std::all_of(cut.begin(), cut.end(), [](const Tensor& t) { return t.numel() > 0; });
  const bool has_none = others_have_some && own.back().numel() == 0 && !is_shard_tensor(own.back());
  Tensor y = has_none ? own.back() : op(own);
  for (size_t i = 0; has_none && i < own.size(); ++i) y = y * own[i].sum();
  return from_local(y, mesh_of(cut.back()), spec_of(cut.back()));
}

Tensor householder_product(const Tensor& reflectors, const Tensor& tau) {
  const auto cut =
      cut_by_batch("aten::linalg_householder_product", {tau, reflectors}, reflectors.dim() - 2);
  return by_batch(cut, [](const std::vector<Tensor>& own) {
    return at::linalg_householder_product(own[1], own[0]);
  });
}

Tensor ormqr(const Tensor& reflectors, const Tensor& tau, const Tensor& other, bool left,
             bool transpose) {
  const auto cut = cut_by_batch("aten::ormqr", {reflectors, tau, other}, other.dim() - 2);
  return by_batch(cut, [=](const std::vector<Tensor>& own) {
    return at::ormqr(own[0], own[1], own[2], left, transpose);
  });
}

}  // namespace

SHARD_PATCH(linalg) {
  const char* const note = "a cut matrix moves to a batch dim; refused without one";
  const auto add = [&](const std::string& op, Rule rule) {
    patch.rule("aten::" + op, std::move(rule)).shards("batch dims").notes(note).needs_values();
  };
  for (const char* op :
       {"linalg_eigvals", "_linalg_eigvals", "cholesky", "cholesky_inverse", "linalg_matrix_exp"}) {
    add(op, batched({2}, results({0})));
  }
  for (const char* op : {"linalg_inv_ex", "linalg_cholesky_ex", "linalg_eig", "geqrf"}) {
    add(op, batched({2}, results({0, 0})));
  }
  for (const char* op : {"linalg_lu_factor_ex", "linalg_ldl_factor_ex"}) {
    add(op, batched({2}, results({0, 0, 0})));
  }
  add("_linalg_det", factorising(batched({2}, results({0, 0, 0}))));
  add("_linalg_slogdet", factorising(batched({2}, results({0, 0, 0, 0}))));
  add("_linalg_svd", batched({2}, with_vectors(2, {0, 0, 0}, {kNothing, 0, kNothing})));
  add("_linalg_eigh", batched({2}, with_vectors(2, {0, 0}, {0, kNothing})));
  add("linalg_lu", batched({2}, with_vectors(1, {0, 0, 0}, {kNothing, 0, 0})));
  add("linalg_qr", batched({2}, of_qr));
  add("lu_unpack", batched({2, 1}, of_lu_unpack));
  add("linalg_pinv.atol_rtol_tensor", batched({2, 0, 0}, results({kAll})));
  add("_linalg_solve_ex", factorising(batched(of_system, results({kAll, 0, 0, 0}))));
  add("linalg_lstsq", least_squares);
  add("linalg_solve_triangular", batched({2, 2}, results({kAll})));
  add("triangular_solve", batched({2, 2}, results({kAll, kAll})));
  add("cholesky_solve", batched({2, 2}, results({kAll})));
  add("linalg_lu_solve", batched({2, 1, 2}, results({kAll})));
  add("linalg_ldl_solve", batched({2, 1, 2}, results({kAll})));
  patch.function<at::_ops::linalg_householder_product>(householder_product)
      .shards("batch dims")
      .notes(note);
  patch.function<at::_ops::ormqr>(ormqr).shards("batch dims").notes(note);
  patch.rule("aten::_linalg_check_errors", check_errors).shards("batch dims");
}

}  // namespace shard
