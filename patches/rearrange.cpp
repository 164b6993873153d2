// SPDX-License-Identifier: Apache-2.0
// Ops that put the rows of a dim into another order: every rank computes where its rows go, and one
// exchange brings them there. The result lies like the input.
#include <ATen/WrapDimUtils.h>
#include <shard/patch.h>

#include <algorithm>

namespace shard {
namespace {

using at::Tensor;
using c10::IValue;

/// Partial stays Partial: the ops are linear.
Decision keep(const OpCall& call) {
  Decision decision;
  decision.inputs.push_back(call.tensor(0).layout());
  decision.outputs.push_back(call.tensor(0).layout());
  return decision;
}

std::vector<int64_t> dims_of(const OpCall& call, size_t argument) {
  auto dims = call.integers(argument);
  for (auto& dim : dims) dim = c10::maybe_wrap_dim(dim, call.tensor(0).ndim());
  return dims;
}

/// After the local op, which gives the rows of rank r in the order `held[r]`.
Decision then_move(Decision decision, const OpCall& call, std::vector<std::vector<Rows>> held,
                   std::function<Tensor(const Tensor&)> local) {
  const Layout layout = call.tensor(0).layout();
  decision.local = [=, held = std::move(held), local = std::move(local),
                    mesh = call.mesh()](c10::ArrayRef<IValue> arguments) {
    const Tensor own = local(arguments[0].toTensor());
    return std::vector<IValue>{move_rows(own, layout.dim(), held, layout.partition, mesh)};
  };
  return decision;
}

std::vector<Rows> pieces_of(const Partition& partition) {
  std::vector<Rows> pieces;
  int64_t begin = 0;
  for (const int64_t size : partition) {
    pieces.push_back({begin, begin + size});
    begin += size;
  }
  return pieces;
}

std::optional<Decision> flip(const OpCall& call) {
  const auto& input = call.tensor(0);
  const auto dims = dims_of(call, 1);
  if (!input.is_shard() || call.mesh().size() == 1 ||
      std::find(dims.begin(), dims.end(), input.shard_dim()) == dims.end()) {
    return keep(call);
  }
  const int64_t n = input.sizes()[static_cast<size_t>(input.shard_dim())];
  std::vector<std::vector<Rows>> held;
  for (const Rows& rows : pieces_of(input.spec->partition())) {
    held.push_back({{n - rows.end, n - rows.begin}});
  }
  return then_move(keep(call), call, std::move(held),
                   [dims](const Tensor& local) { return local.flip(dims); });
}

/// Where the rows of a piece go when all are shifted by `shift` around the end.
std::vector<Rows> shifted(const Rows& rows, int64_t shift, int64_t n) {
  const int64_t begin = rows.begin + shift;
  const int64_t end = rows.end + shift;
  if (begin >= n) return {{begin - n, end - n}};
  if (end <= n) return {{begin, end}};
  return {{begin, n}, {0, end - n}};
}

/// Every number is a row. Cut along the first dim, a piece of the tensor is one of the flattened.
Decision roll_flattened(const OpCall& call, int64_t shift) {
  const auto& input = call.tensor(0);
  const auto sizes = input.sizes();
  const int64_t n = c10::multiply_integers(sizes);
  if (n == 0) return keep(call);
  Decision decision;
  decision.inputs.resize(1);
  decision.outputs.resize(1);
  if (is_shard_tensor(raw_local(input.tensor))) return decision;  // a piece is not one of a line
  const int64_t ranks = call.mesh().size();
  const auto first = std::find_if(sizes.begin(), sizes.end(), [](int64_t s) { return s > 1; });
  const int64_t dim = first == sizes.end() ? 0 : first - sizes.begin();
  const int64_t rows = sizes[static_cast<size_t>(dim)];
  const Layout layout =
      input.shard_dim() == dim ? input.layout() : Layout(Shard(dim), even_partition(rows, ranks));
  decision.inputs[0] = decision.outputs[0] = layout;
  Partition numbers = layout.partition;
  for (int64_t& of_rank : numbers) of_rank *= n / rows;
  std::vector<std::vector<Rows>> held;
  for (const Rows& piece : pieces_of(numbers)) {
    held.push_back(shifted(piece, (shift % n + n) % n, n));
  }
  decision.local = [=, held = std::move(held),
                    mesh = call.mesh()](c10::ArrayRef<IValue> arguments) {
    const Tensor local = arguments[0].toTensor();
    const Tensor moved = move_rows(local.reshape({-1}), 0, held, numbers, mesh);
    return std::vector<IValue>{moved.view(local.sizes())};
  };
  return decision;
}

std::optional<Decision> roll(const OpCall& call) {  // (self, shifts, dims)
  const auto& input = call.tensor(0);
  const auto shifts = call.integers(1);
  const auto dims = dims_of(call, 2);
  if (!input.is_shard() || call.mesh().size() == 1) return keep(call);
  check<SpecMismatch>(dims.empty() ? shifts.size() == 1 : shifts.size() == dims.size(), "roll",
                      "got ", shifts.size(), " shifts and ", dims.size(),
                      " dims; expected one shift a dim.");
  if (dims.empty()) return roll_flattened(call, shifts[0]);
  const int64_t dim = input.shard_dim();
  const int64_t n = input.sizes()[static_cast<size_t>(dim)];
  int64_t shift = 0;
  std::vector<int64_t> other_shifts;
  std::vector<int64_t> other_dims;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] == dim) {
      shift += shifts[i];
    } else {
      other_shifts.push_back(shifts[i]);
      other_dims.push_back(dims[i]);
    }
  }
  if (other_dims.size() == dims.size() || n == 0) return keep(call);
  shift = (shift % n + n) % n;
  std::vector<std::vector<Rows>> held;
  for (const Rows& rows : pieces_of(input.spec->partition())) {
    held.push_back(shifted(rows, shift, n));
  }
  return then_move(keep(call), call, std::move(held), [=](const Tensor& local) {
    return other_dims.empty() ? local : local.roll(other_shifts, other_dims);
  });
}

/// Flips and transposes, each of which moves rows at most once.
Tensor rot90(const Tensor& x, int64_t k, c10::IntArrayRef dims) {
  check<SpecMismatch>(dims.size() == 2, "rot90", "got dims ", dims,
                      "; expected two different ones. Pass the plane to turn.");
  const int64_t a = c10::maybe_wrap_dim(dims[0], x.dim());
  const int64_t b = c10::maybe_wrap_dim(dims[1], x.dim());
  check<SpecMismatch>(a != b, "rot90", "got dims ", dims,
                      "; expected two different ones. Pass the plane to turn.");
  switch ((k % 4 + 4) % 4) {
    case 1:
      return x.flip({b}).transpose(a, b).clone();
    case 2:
      return x.flip({a, b});
    case 3:
      return x.flip({a}).transpose(a, b).clone();
    default:
      return x.clone();
  }
}

}  // namespace

SHARD_PATCH(rearrange) {
  patch.function<at::_ops::rot90>(rot90).shards("any dim");
  patch.rule("aten::flip", flip).shards("any dim");
  patch.rule("aten::roll", roll).shards("any dim").notes("without dims: gathers");
}

}  // namespace shard
