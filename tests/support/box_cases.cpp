// SPDX-License-Identifier: Apache-2.0
#include "support/box_cases.h"

#include <gtest/gtest.h>
#include <shard/comm_counter.h>
#include <shard/exchange.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include <algorithm>

#include "support/random.h"

namespace shard::testing {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

/// Who owns rows of one dim, and who wants which.
HaloPlan random_plan(Random& random, int64_t dim, int64_t places) {
  Partition owned(static_cast<size_t>(places));
  for (auto& size : owned) size = random.integer(0, 4);
  owned[static_cast<size_t>(random.integer(0, places - 1))] += 1;
  const int64_t n = offset_of(owned, places);
  std::vector<std::vector<Rows>> wanted;
  for (int64_t place = 0; place < places; ++place) {
    auto& ranges = wanted.emplace_back();
    for (auto count = random.integer(0, 2); count > 0; --count) {
      const auto a = random.integer(0, n);
      const auto b = random.integer(0, n);
      ranges.push_back({std::min(a, b), std::max(a, b)});
    }
  }
  return make_halo_plan(dim, owned, wanted);
}

BoxPlan random_box(Random& random, const DeviceMesh& mesh) {
  BoxPlan plan;
  int64_t inner = mesh.size();  // ranks behind one place along dim d
  for (int64_t d = 0; d < mesh.ndim(); ++d) {
    inner /= mesh.size(d);
    plan.dims.push_back(random_plan(random, d + 1, mesh.size(d)));
    auto& places = plan.places.emplace_back();
    for (int64_t rank = 0; rank < mesh.size(); ++rank)
      places.push_back(rank / inner % mesh.size(d));
  }
  return plan;
}

struct BoxCase {
  BoxPlan plan;
  DeviceMesh mesh;

  int64_t place(size_t d) const { return plan.place(d, mesh.rank()); }
  Tensor whole() const {
    std::vector<int64_t> sizes{2};
    for (const auto& dim : plan.dims)
      sizes.push_back(offset_of(dim.owned, static_cast<int64_t>(dim.owned.size())));
    return torch::arange(c10::multiply_integers(sizes), torch::kDouble).reshape(sizes);
  }
  Tensor own(Tensor x) const {
    for (size_t d = 0; d < plan.dims.size(); ++d) {
      const auto& dim = plan.dims[d];
      x = x.narrow(dim.dim, offset_of(dim.owned, place(d)),
                   dim.owned[static_cast<size_t>(place(d))]);
    }
    return x.clone();
  }
  Tensor wanted(Tensor x) const {
    for (size_t d = 0; d < plan.dims.size(); ++d) {
      const auto& dim = plan.dims[d];
      Tensors pieces{x.narrow(dim.dim, 0, 0)};
      for (const auto& rows : dim.segments[static_cast<size_t>(place(d))])
        pieces.push_back(x.narrow(dim.dim, rows.begin, rows.size()));
      x = torch::cat(pieces, dim.dim);
    }
    return x;
  }
  Tensor assembled(const BoxHalo& halo) const {
    const auto arrange = [&](size_t d, Tensors pieces, const Tensor& like) {
      pieces.push_back(like.narrow(plan.dims[d].dim, 0, 0));
      return torch::cat(pieces, plan.dims[d].dim);
    };
    return assemble_box(halo, plan, mesh.rank(), arrange);
  }
};

double dot(const Tensors& a, const Tensors& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (b[i].defined()) sum += (a[i] * b[i]).sum().item<double>();
  }
  return sum;
}

Tensors parts_of(const BoxHalo& halo) {
  Tensors parts{halo.own};
  parts.insert(parts.end(), halo.shells.begin(), halo.shells.end());
  return parts;
}

void expect_exact_adjoint(const BoxCase& box, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed + static_cast<uint64_t>(box.mesh.rank()));
  const auto draw = [&](const Tensor& like) {
    return torch::randn(like.sizes(), generator, torch::kDouble).requires_grad_();
  };
  const int64_t exchanges = box.plan.communicates() ? 1 : 0;
  const Tensor x = draw(box.own(box.whole()));
  const CommCounter forward;
  const Tensors got = parts_of(exchange_box(x, box.plan, box.mesh));
  EXPECT_EQ(forward.calls("exchange"), exchanges);
  Tensors y;
  for (const Tensor& part : got) y.push_back(draw(part));
  const CommCounter backward;
  const Tensor adjoint = torch::autograd::grad(got, {x}, y, true, true)[0];
  EXPECT_EQ(backward.calls("exchange"), exchanges);
  const CommCounter again;
  const auto twice = torch::autograd::grad({adjoint}, y, {x.detach()}, false, false, true);
  EXPECT_EQ(again.calls("exchange"), exchanges);
  Tensor sums = torch::tensor(
      {dot(got, y), dot({x}, {adjoint}), dot(y, twice), dot({x}, {x}) + dot(y, y)}, torch::kDouble);
  box.mesh.comm().all_reduce(sums);
  const auto* sum = sums.const_data_ptr<double>();
  EXPECT_NEAR(sum[0], sum[1], 1e-12 * sum[3]);
  EXPECT_NEAR(sum[2], sum[1], 1e-12 * sum[3]);
}

}  // namespace

void expect_boxes(const DeviceMesh& mesh, uint64_t seed, int cases) {
  Random random(seed);
  for (int trial = 0; trial < cases; ++trial) {
    SCOPED_TRACE(c10::str("case ", trial, " of seed ", seed));
    const BoxCase box{random_box(random, mesh), mesh};
    const Tensor x = box.own(box.whole());
    const auto halo = exchange_box(x, box.plan, mesh);
    EXPECT_TRUE(torch::equal(box.assembled(halo), box.wanted(box.whole())));
    expect_exact_adjoint(box, seed);
  }
}

}  // namespace shard::testing
