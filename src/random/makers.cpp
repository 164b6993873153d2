// SPDX-License-Identifier: Apache-2.0
// The makers go through the dispatcher: filling a ShardTensor is an op like any other.
#include <shard/random.h>
#include <shard/tensor.h>

namespace shard {
namespace {

using at::Tensor;

template <class Fill>
Tensor filled(c10::IntArrayRef shape, const DeviceMesh& mesh, const Placements& placements,
              at::TensorOptions options, Partition partition, const Fill& fill) {
  Tensor result =
      empty(shape, mesh, placements, options.requires_grad(false), std::move(partition));
  fill(result);
  return result.set_requires_grad(options.requires_grad());
}

}  // namespace

Tensor rand(c10::IntArrayRef shape, const DeviceMesh& mesh, const Placements& placements,
            at::TensorOptions options, Partition partition) {
  return filled(shape, mesh, placements, options, std::move(partition),
                [](const Tensor& x) { x.uniform_(); });
}

Tensor randn(c10::IntArrayRef shape, const DeviceMesh& mesh, const Placements& placements,
             at::TensorOptions options, Partition partition) {
  return filled(shape, mesh, placements, options, std::move(partition),
                [](const Tensor& x) { x.normal_(); });
}

}  // namespace shard
