// SPDX-License-Identifier: Apache-2.0
// The matmul family: local products. A shard on a batch, row or column dim is carried to the
// output; shards on the contracted dim give a Partial output. Of all ways to line two operands up,
// the one that moves the fewest bytes is taken.
#include <ATen/ExpandUtils.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/sum.h>
#include <shard/patch.h>
#include <shard/reduced.h>

namespace shard {
namespace {

using at::Tensor;

/// Dims of a @ b by role. Operand dims map to output dims; -1: contracted.
struct Product {
  const Tensor& a;
  const Tensor& b;
  int64_t out_ndim;
  Shape out_shape;

  Product(const Tensor& a, const Tensor& b) : a(a), b(b) {
    const auto batch = at::infer_size(batch_of(a), batch_of(b));
    out_shape.assign(batch.begin(), batch.end());
    if (a.dim() >= 2) out_shape.push_back(a.size(-2));
    if (b.dim() >= 2) out_shape.push_back(b.size(-1));
    out_ndim = static_cast<int64_t>(out_shape.size());
  }
  static c10::IntArrayRef batch_of(const Tensor& t) {
    return t.sizes().slice(0, static_cast<size_t>(std::max<int64_t>(t.dim() - 2, 0)));
  }
  int64_t matrix_dims() const { return (a.dim() >= 2 ? 1 : 0) + (b.dim() >= 2 ? 1 : 0); }
  int64_t batch_dims() const { return out_ndim - matrix_dims(); }
  int64_t contracted_a() const { return a.dim() - 1; }
  int64_t contracted_b() const { return std::max<int64_t>(b.dim() - 2, 0); }

  /// Output dim of a dim of `a`; -1: contracted.
  int64_t out_dim_of_a(int64_t dim) const {
    if (dim == contracted_a()) return -1;
    return dim == a.dim() - 2 ? batch_dims() : dim + batch_dims() - (a.dim() - 2);
  }
  int64_t out_dim_of_b(int64_t dim) const {
    if (dim == contracted_b()) return -1;
    return dim == b.dim() - 1 ? out_ndim - 1 : dim + batch_dims() - (b.dim() - 2);
  }
  /// Dim of an operand that follows output dim `out`, -1 when it does not vary along it.
  int64_t dim_of_a(int64_t out) const {
    if (out < batch_dims()) return batch_dim(a, out);
    return a.dim() >= 2 && out == batch_dims() ? a.dim() - 2 : -1;
  }
  int64_t dim_of_b(int64_t out) const {
    if (out < batch_dims()) return batch_dim(b, out);
    return b.dim() >= 2 && out == out_ndim - 1 ? b.dim() - 1 : -1;
  }
  int64_t batch_dim(const Tensor& t, int64_t out) const {
    const int64_t dim = out - (batch_dims() - (t.dim() - 2));
    return t.dim() > 2 && dim >= 0 && t.size(dim) == out_shape[static_cast<size_t>(out)] ? dim : -1;
  }
};

/// One way to run the product: how each operand and the output must lie.
struct Way {
  Layout a, b, out;
  bool valid = false;
};

Layout shard_or_replicate(int64_t dim, const Partition& pieces) {
  return dim < 0 ? Layout() : Layout(Shard(dim), pieces);
}

/// The way in which one operand keeps its shard, which is on output dim `out_dim` (-1: contracted).
Way way_along(const Product& p, int64_t out_dim, const Partition& pieces) {
  if (out_dim < 0) {
    return {Layout(Shard(p.contracted_a()), pieces), Layout(Shard(p.contracted_b()), pieces),
            Layout(Partial(), {}), true};
  }
  return {shard_or_replicate(p.dim_of_a(out_dim), pieces),
          shard_or_replicate(p.dim_of_b(out_dim), pieces), Layout(Shard(out_dim), pieces), true};
}

const ShardTensorSpec* shard_of(const Tensor& t) {
  return is_shard_tensor(t) && spec_of(t)->is_shard() ? spec_of(t).get() : nullptr;
}

int64_t bytes_moved(const Tensor& t, const Layout& wanted) {
  const auto* spec = shard_of(t);
  if (!spec || Layout(*spec) == wanted) return 0;
  const auto bytes = t.numel() * static_cast<int64_t>(t.element_size());
  return wanted.is_shard() ? bytes / spec->ranks() : bytes;
}

/// On a mesh of several dims the first way: see NOTE [Choices on several mesh dims].
Way cheapest_way(const Product& p, bool first) {
  Way best;
  int64_t least = 0;
  const auto consider = [&](Way way) {
    if (best.valid && first) return;
    const int64_t bytes = bytes_moved(p.a, way.a) + bytes_moved(p.b, way.b);
    if (best.valid && bytes >= least) return;
    least = bytes;
    best = std::move(way);
  };
  if (const auto* spec = shard_of(p.a)) {
    // A broadcast batch dim of size 1 cannot carry the output's shard: it stays a candidate through
    // b only.
    const int64_t out = p.out_dim_of_a(spec->shard_dim());
    if (out < 0 || p.dim_of_a(out) == spec->shard_dim())
      consider(way_along(p, out, spec->partition()));
  }
  if (const auto* spec = shard_of(p.b)) {
    const int64_t out = p.out_dim_of_b(spec->shard_dim());
    if (out < 0 || p.dim_of_b(out) == spec->shard_dim())
      consider(way_along(p, out, spec->partition()));
  }
  return best;
}

/// The operand's local tensor; of a whole operand next to a sharded output every rank has a
/// contribution to the gradient only.
Tensor operand(const Tensor& t, const Layout& wanted, const DeviceMesh& mesh) {
  if (!is_shard_tensor(t) && wanted.is_replicate()) return local_weight(mesh, t);
  const Tensor whole = promote(t, mesh);
  const Tensor moved =
      redistribute(whole, spec_of(whole)->with(wanted.placement, t.sizes(), wanted.partition));
  return wanted.is_replicate() ? to_local(moved, Partial()) : to_local(moved);
}

Tensor matmul(const Tensor& left, const Tensor& right) {
  const Tensor a = reduced(left);
  const Tensor b = reduced(right);
  const auto& mesh = mesh_of(is_shard_tensor(a) ? a : b);
  check<SpecMismatch>(a.dim() > 0 && b.dim() > 0 && a.size(-1) == b.size(b.dim() >= 2 ? -2 : 0),
                      "matmul", "got ", a.sizes(), " @ ", b.sizes(),
                      "; expected equal contracted sizes.");
  const Product p(a, b);
  const Way way = cheapest_way(p, mesh.root().ndim() > 1);
  if (!way.valid) {  // nothing sharded: every rank does the same
    const auto whole = local_copies(mesh, {a, b});
    const Tensor y = at::matmul(whole[0], whole[1]);
    return from_local(y, mesh, ShardTensorSpec::make(mesh.layout_ref(), Replicate(), y.sizes()));
  }
  const Tensor y = at::matmul(operand(a, way.a, mesh), operand(b, way.b, mesh));
  return from_local(
      y, mesh,
      ShardTensorSpec::make(mesh.layout_ref(), way.out.placement, p.out_shape, way.out.partition));
}

// ---- activations times weights: weight and bias gradients travel in one message

bool rows_are_sharded(const Tensor& x) {
  const auto* spec = shard_of(x);
  return spec && spec->shard_dim() < x.dim() - 1;
}
bool is_whole(const Tensor& t) {
  return !t.defined() || !is_shard_tensor(t) || spec_of(t)->is_replicate();
}

Tensor from_rows(const Tensor& local, const Tensor& x) {
  const auto& spec = spec_of(x);
  Shape shape(local.sizes().begin(), local.sizes().end());
  shape[static_cast<size_t>(spec->shard_dim())] = x.size(spec->shard_dim());
  return from_local(local, mesh_of(x), spec->with(spec->placement(), shape, spec->partition()));
}

Tensor linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  const Tensor b = bias.value_or(Tensor());
  if (rows_are_sharded(x) && is_whole(weight) && is_whole(b)) {
    const auto local = local_weights(mesh_of(x), {weight, b});
    return from_rows(at::linear(to_local(x), local[0], local[1]), x);
  }
  const Tensor y = at::matmul(x, weight.t());
  return b.defined() ? at::add(y, b) : y;
}

/// What of matmul is also mm, bmm, mv or dot: nothing is broadcast.
template <int64_t a_dims, int64_t b_dims>
Tensor product(const Tensor& a, const Tensor& b) {
  const bool is_batch = a_dims == 3;
  check<SpecMismatch>(
      a.dim() == a_dims && b.dim() == b_dims && (!is_batch || a.size(0) == b.size(0)), "matmul",
      "got ", a.sizes(), " times ", b.sizes(), "; expected tensors of ", a_dims, " and ", b_dims,
      " dims", is_batch ? " and as many matrices." : ".");
  return at::matmul(a, b);
}

Tensor weighted_sum(const Tensor& addend, const Tensor& product, const at::Scalar& beta,
                    const at::Scalar& alpha) {
  check<SpecMismatch>(at::infer_size(addend.sizes(), product.sizes()) == product.sizes(), "add",
                      "got an addend of ", addend.sizes(), " to a product of ", product.sizes(),
                      "; expected one that expands to it.");
  const Tensor scaled = at::mul(product, alpha);
  return beta.equal(0) ? scaled : at::add(at::mul(addend, beta), scaled);  // 0 * NaN counts as 0
}

/// baddbmm, addmv
template <int64_t a_dims, int64_t b_dims>
Tensor add_product(const Tensor& addend, const Tensor& a, const Tensor& b, const at::Scalar& beta,
                   const at::Scalar& alpha) {
  return weighted_sum(addend, product<a_dims, b_dims>(a, b), beta, alpha);
}

Tensor addbmm(const Tensor& addend, const Tensor& a, const Tensor& b, const at::Scalar& beta,
              const at::Scalar& alpha) {
  return weighted_sum(addend, at::sum(at::bmm(a, b), {0}), beta, alpha);
}

Tensor addr(const Tensor& addend, const Tensor& a, const Tensor& b, const at::Scalar& beta,
            const at::Scalar& alpha) {
  return weighted_sum(addend, at::outer(a, b), beta, alpha);
}

Tensor addmm(const Tensor& bias, const Tensor& x, const Tensor& weight, const at::Scalar& beta,
             const at::Scalar& alpha) {
  if (x.dim() == 2 && rows_are_sharded(x) && is_whole(weight) && is_whole(bias) &&
      bias.dim() == 1) {
    const auto local = local_weights(mesh_of(x), {weight, bias});
    return from_rows(at::addmm(local[1], to_local(x), local[0], beta, alpha), x);
  }
  return add_product<2, 2>(bias, x, weight, beta, alpha);
}

}  // namespace

SHARD_PATCH(matmul) {
  patch.function<at::_ops::linear>(linear).shards("any dim");
  patch.function<at::_ops::matmul>(matmul).shards("any dim");
  patch.function<at::_ops::mm>(product<2, 2>).shards("any dim");
  patch.function<at::_ops::bmm>(product<3, 3>).shards("any dim");
  patch.function<at::_ops::mv>(product<2, 1>).shards("any dim");
  patch.function<at::_ops::dot>(product<1, 1>).shards("any dim");
  patch.function<at::_ops::addmm>(addmm).shards("any dim");
  patch.function<at::_ops::addmv>(add_product<2, 1>).shards("any dim");
  patch.function<at::_ops::baddbmm>(add_product<3, 3>).shards("any dim");
  patch.function<at::_ops::addbmm>(addbmm).shards("any dim");
  patch.function<at::_ops::addr>(addr).shards("any dim");
}

}  // namespace shard
