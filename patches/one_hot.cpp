// SPDX-License-Identifier: Apache-2.0
// one_hot: every rank compares its own numbers with the classes. LibTorch writes ones into plain
// zeros of the global sizes instead.
#include <ATen/ops/arange.h>
#include <shard/patch.h>

namespace shard {
namespace {

using at::Tensor;

constexpr const char* kName = "one_hot";

/// Of all ranks' numbers, as LibTorch finds and checks it.
int64_t number_of_classes(const Tensor& index, int64_t given) {
  if (index.numel() == 0) {
    check<SpecMismatch>(given > 0, kName, "got num_classes ", given, " for ", index.sizes(),
                        " numbers; expected how many classes there are.");
    return given;
  }
  const auto least = index.min().item<int64_t>();
  const auto most = index.max().item<int64_t>();
  check<SpecMismatch>(least >= 0 && (given == -1 || most < given), kName, "got numbers from ",
                      least, " to ", most, "; expected classes from 0",
                      given == -1 ? c10::str(" on.") : c10::str(" to ", given - 1, "."));
  return given == -1 ? most + 1 : given;
}

Tensor one_hot(const Tensor& index, int64_t num_classes) {
  check<SpecMismatch>(index.scalar_type() == at::kLong, kName, "got numbers of ",
                      index.scalar_type(), "; expected Long.");
  const int64_t classes = number_of_classes(index, num_classes);
  return index.unsqueeze(-1).eq(at::arange(classes, index.options())).to(at::kLong);
}

}  // namespace

SHARD_PATCH(one_hot) { patch.function<at::_ops::one_hot>(one_hot).shards("any dim"); }

}  // namespace shard
