// SPDX-License-Identifier: Apache-2.0
#include "random/draw.h"

#include <shard/error.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <numeric>
#include <vector>

#include "random/runs.h"

namespace shard {
namespace {

using at::Generator;
using at::Tensor;

/// Without gaps, dims in this order.
bool is_dense(const WholeTensor& whole, const std::vector<int64_t>& order) {
  int64_t expected = 1;
  for (size_t i = order.size(); i-- > 0;) {
    const auto dim = static_cast<size_t>(order[i]);
    if (whole.sizes[dim] != 1 && whole.strides[dim] != expected) return false;
    expected *= whole.sizes[dim];
  }
  return true;
}

std::vector<int64_t> index_order(const WholeTensor& whole) {
  std::vector<int64_t> order(whole.sizes.size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

bool is_contiguous(const WholeTensor& whole) { return is_dense(whole, index_order(whole)); }

/// Dims by falling strides, as LibTorch walks through a tensor's memory.
std::vector<int64_t> memory_order(const WholeTensor& whole) {
  auto order = index_order(whole);
  std::erase_if(order, [&](int64_t dim) { return whole.sizes[static_cast<size_t>(dim)] == 1; });
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return whole.strides[static_cast<size_t>(a)] > whole.strides[static_cast<size_t>(b)];
  });
  for (size_t dim = 0; dim < whole.sizes.size(); ++dim) {  // where these stand makes no difference
    if (whole.sizes[dim] == 1) order.push_back(static_cast<int64_t>(dim));
  }
  return order;
}

std::vector<int64_t> permuted(const Shape& values, const std::vector<int64_t>& order) {
  std::vector<int64_t> result;
  for (const int64_t dim : order) result.push_back(values[static_cast<size_t>(dim)]);
  return result;
}

int64_t product(const Shape& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

using Stream = RandomDraw::Stream;

void check_has_parts(bool has_parts, const WholeTensor& whole, const Sampler& sampler) {
  check<MissingShardPatch>(has_parts, sampler.op, "got a sharded tensor of ",
                           c10::IntArrayRef(whole.sizes), " on ", whole.device,
                           "; expected a sampler of which a part can be drawn alone, as a trial "
                           "found this one is not. Draw on the whole tensor and scatter it.");
}

DrawInTurns begin_turns(const WholeTensor& whole, const Sampler& sampler,
                        const Generator& generator) {
  constexpr int64_t kVector = 16;  // elements that a kernel may treat at once, at most
  constexpr int64_t kBytesOfALaunch = std::numeric_limits<int32_t>::max();
  const int64_t total = product(whole.sizes);
  const auto bytes = total * static_cast<int64_t>(c10::elementSize(whole.dtype));
  check<MissingShardPatch>(bytes <= kBytesOfALaunch, sampler.op, "got a sharded tensor of ",
                           c10::IntArrayRef(whole.sizes), ", ", bytes, " bytes on ", whole.device,
                           "; expected at most ", kBytesOfALaunch,
                           ": LibTorch fills larger ones in several launches. Draw parts.");
  const Numbers numbers{whole.dtype, is_dense(whole, memory_order(whole)), whole.device,
                        total % kVector};
  const Turns turns = turns_of(sampler, numbers, !is_contiguous(whole), generator);
  check_has_parts(turns.size > 0, whole, sampler);
  const DrawInTurns draw{{sampler, numbers, total, generator.clone()}, turns};
  auto moved = generator;
  const std::lock_guard lock(moved.mutex());
  moved.set_offset(moved.get_offset() + turns.taken(total));
  return draw;
}

/// A sequential draw will draw from `generator` itself; one in turns has moved it on.
Stream begin(const WholeTensor& whole, const Sampler& sampler, const Generator& generator) {
  if (!generator.device().is_cpu()) return begin_turns(whole, sampler, generator);
  const Numbers numbers{whole.dtype, is_contiguous(whole)};
  check_has_parts(is_sequential(sampler, numbers), whole, sampler);
  return SequentialDraw{{sampler, numbers, product(whole.sizes), generator}};
}

Tensor part_of(const Stream& stream, const WholeTensor& whole, const Box& box) {
  const auto order = memory_order(whole);
  const auto size = permuted(box.size, order);
  const Runs runs(permuted(whole.sizes, order), permuted(box.begin, order), size);
  const Tensor part = std::visit([&](const auto& draw) { return draw.part(runs); }, stream);
  std::vector<int64_t> back(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  }
  return part.view(size).permute(back);
}

}  // namespace

RandomDraw::RandomDraw(WholeTensor whole, const Sampler& sampler, const Generator& generator)
    : whole_(std::move(whole)), stream_(begin(whole_, sampler, generator)) {
  if (auto* sequential = std::get_if<SequentialDraw>(&stream_)) {
    Generator start = generator.clone();
    sequential->part({});
    sequential->generator = std::move(start);
  }
}

Tensor RandomDraw::part(const Box& box) const {
  Stream stream = stream_;
  if (auto* sequential = std::get_if<SequentialDraw>(&stream)) {
    sequential->generator = sequential->generator.clone();
  }
  return part_of(stream, whole_, box);
}

Tensor draw_part(const WholeTensor& whole, const Sampler& sampler, const Generator& generator,
                 const Box& box) {
  return part_of(begin(whole, sampler, generator), whole, box);
}

}  // namespace shard
