// SPDX-License-Identifier: Apache-2.0
// Local tensors put together of rows: own ones, fetched ones and filling.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <shard/exchange.h>
#include <shard/primitives.h>
#include <torch/csrc/autograd/custom_function.h>

namespace shard {
namespace {

using at::Tensor;
using torch::autograd::variable_list;

struct AddStrips : torch::autograd::Function<AddStrips> {
  static Tensor forward(torch::autograd::AutogradContext* context, Tensor y, const Tensor& low,
                        const Tensor& high, int64_t dim) {
    const int64_t low_rows = low.numel() ? low.size(dim) : 0;
    const int64_t high_rows = high.numel() ? high.size(dim) : 0;
    if (low_rows) y.narrow(dim, 0, low_rows).add_(low);
    if (high_rows) y.narrow(dim, y.size(dim) - high_rows, high_rows).add_(high);
    context->mark_dirty({y});
    context->saved_data["dim"] = dim;
    context->saved_data["low"] = low_rows;
    context->saved_data["high"] = high_rows;
    return y;
  }
  static variable_list backward(torch::autograd::AutogradContext* context,
                                const variable_list& gradients) {
    const auto& g = gradients[0];
    const int64_t dim = context->saved_data["dim"].toInt();
    const int64_t low = context->saved_data["low"].toInt();
    const int64_t high = context->saved_data["high"].toInt();
    return {g, low ? g.narrow(dim, 0, low) : Tensor(),
            high ? g.narrow(dim, g.size(dim) - high, high) : Tensor(), Tensor()};
  }
};

/// The wanted pieces at one place along a dim, of its own and of fetched rows.
std::vector<Tensor> pieces_of(const Tensor& own, const Tensor& fetched, const HaloPlan& plan,
                              int64_t place) {
  const int64_t offset = offset_of(plan.owned, place);
  std::vector<Tensor> pieces;
  int64_t row = 0;
  for (const auto& segment : plan.segments[static_cast<size_t>(place)]) {
    if (segment.owner == place) {
      const bool is_whole = segment.size() == own.size(plan.dim);
      pieces.push_back(is_whole ? own
                                : own.narrow(plan.dim, segment.begin - offset, segment.size()));
    } else {
      pieces.push_back(fetched.narrow(plan.dim, row, segment.size()));
      row += segment.size();
    }
  }
  return pieces;
}

}  // namespace

Tensor fill_rows(const Tensor& like, int64_t dim, int64_t rows, const at::Scalar& fill) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  Shape shape(like.sizes().begin(), like.sizes().end());
  shape[static_cast<size_t>(dim)] = rows;
  return empty_of_shape(like, shape).fill_(fill);
}

std::vector<Tensor> wanted_pieces(const Halo& halo, const HaloPlan& plan, int64_t rank) {
  return pieces_of(halo.own, halo.rows, plan, rank);
}

Tensor join(const std::vector<Tensor>& pieces, int64_t dim) {
  return pieces.size() == 1 ? pieces[0] : at::cat(pieces, dim);
}

Tensor assemble(const Halo& halo, const HaloPlan& plan, int64_t rank, int64_t before, int64_t after,
                const at::Scalar& fill) {
  auto pieces = wanted_pieces(halo, plan, rank);
  // Rows of the exchange always take part, so that every rank's graph contains it. (Not otherwise:
  // an empty piece would cost a channels-last result its memory format.)
  if (pieces.empty()) pieces.push_back(halo.own.narrow(plan.dim, 0, 0));
  if (before) pieces.insert(pieces.begin(), fill_rows(halo.own, plan.dim, before, fill));
  if (after) pieces.push_back(fill_rows(halo.own, plan.dim, after, fill));
  return join(pieces, plan.dim);
}

Tensor arrange_shell(const Tensor& shell, size_t dim, const BoxPlan& plan, int64_t rank,
                     const Arrange& arrange) {
  const auto& along = plan.dims[dim];
  std::vector<Tensor> pieces;
  int64_t row = 0;
  for (const auto& segment : along.segments[static_cast<size_t>(plan.place(dim, rank))]) {
    pieces.push_back(shell.narrow(along.dim, row, segment.size()));
    row += segment.size();
  }
  return arrange(dim, std::move(pieces), shell);
}

Tensor assemble_box(const BoxHalo& halo, const BoxPlan& plan, int64_t rank,
                    const Arrange& arrange) {
  Tensor box = halo.own;
  for (size_t dim = plan.dims.size(); dim-- > 0;) {
    const auto& along = plan.dims[dim];
    const int64_t place = plan.place(dim, rank);
    Tensor shell = halo.shells[dim];
    for (size_t later = dim + 1; along.halo_rows(place) > 0 && later < plan.dims.size(); ++later) {
      shell = arrange_shell(shell, later, plan, rank, arrange);
    }
    box = arrange(dim, pieces_of(box, shell, along, place), box);
  }
  return box;
}

Tensor add_strips(Tensor y, const Tensor& low, const Tensor& high, int64_t dim) {
  if (!low.defined() && !high.defined()) return y;
  // autograd::Function takes no undefined inputs.
  const auto or_nothing = [&](const Tensor& strip) {
    return strip.defined() ? strip : at::empty({0}, y.options());
  };
  return AddStrips::apply(y, or_nothing(low), or_nothing(high), dim);
}

}  // namespace shard
