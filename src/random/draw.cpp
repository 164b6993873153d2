// SPDX-License-Identifier: Apache-2.0
#include "random/draw.h"

#include <ATen/ops/empty.h>
#include <shard/error.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <numeric>

#include "random/runs.h"
#include "random/words.h"

namespace shard {
namespace {

using at::Generator;
using at::Tensor;

/// How many numbers are drawn at once: few against the whole, for memory, and not too few, for
/// time. LibTorch's normal_ makes 16 numbers at a time and the last 16 of a tensor anew when they
/// are not: blocks are multiples of 16, and the last one is not smaller than that.
int64_t block_size(int64_t whole) {
  return std::clamp(whole / 16, int64_t{64}, int64_t{1} << 15) / 16 * 16;
}

/// Calls `visit(begin, count)` for blocks that together are [begin, end).
template <class Visit>
void for_each_block(int64_t begin, int64_t end, int64_t block, const Visit& visit) {
  for (; end - begin >= 2 * block; begin += block) visit(begin, block);
  if (begin < end) visit(begin, end - begin);
}

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

/// Copies what the numbers [begin, begin + block) of the stream have of the runs to `part`.
void keep(const Tensor& block, int64_t begin, const Runs& runs, const Tensor& part) {
  const auto bytes = static_cast<int64_t>(block.element_size());
  const int64_t end = begin + block.numel();
  const auto* from = static_cast<const char*>(block.const_data_ptr());
  auto* to = static_cast<char*>(part.mutable_data_ptr());
  for (int64_t run = runs.first_behind(begin); run < runs.count(); ++run) {
    const int64_t place = runs.begin(run);
    if (place >= end) break;
    const int64_t first = std::max(place, begin);
    const int64_t count = std::min(place + runs.length(), end) - first;
    std::copy_n(from + (first - begin) * bytes, count * bytes,
                to + (run * runs.length() + first - place) * bytes);
  }
}

/// Calls `visit(begin, end)` for parts of the stream that together have all runs: the runs, where
/// far apart, else all between the first and the last.
template <class Visit>
void for_each_stretch(const Runs& runs, const Visit& visit) {
  constexpr int64_t kShort = 4096;  // drawn in the time that it takes to enter a stream
  const int64_t apart = runs.count() > 1 ? runs.begin(1) - runs.begin(0) : 0;
  if (apart <= std::max(4 * runs.length(), kShort)) return visit(runs.begin(0), runs.end());
  for (int64_t run = 0; run < runs.count(); ++run) {
    visit(runs.begin(run), runs.begin(run) + runs.length());
  }
}

}  // namespace

RandomDraw::RandomDraw(WholeTensor whole, Sampler sampler, bool is_in_turns)
    : whole_(std::move(whole)),
      sampler_(std::move(sampler)),
      total_(product(whole_.sizes)),
      numbers_{whole_.dtype, is_contiguous(whole_)},
      kind_(is_in_turns ? StreamKind::Turns : kind_of(sampler_, numbers_)),
      order_(kind_ == StreamKind::Seeded ? index_order(whole_) : memory_order(whole_)) {
  check<MissingShardPatch>(kind_ != StreamKind::Unknown, sampler_.op, "got a sharded tensor of ",
                           c10::IntArrayRef(whole_.sizes),
                           "; expected a sampler of which a part can be drawn alone. Draw on the "
                           "whole tensor and scatter it.");
}

RandomDraw::RandomDraw(WholeTensor whole, Sampler sampler, const Generator& generator)
    : RandomDraw(std::move(whole), std::move(sampler), !generator.device().is_cpu()) {
  if (kind_ != StreamKind::Sequential) {
    begin(generator);
    return;
  }
  start_ = generator.clone();
  for_each_block(0, total_, block_size(total_),
                 [&](int64_t, int64_t count) { numbers_.draw(sampler_, count, generator); });
}

void RandomDraw::begin(const Generator& generator) {
  if (kind_ == StreamKind::Turns) return begin_turns(generator);
  seed_ = next_word(generator);
}

void RandomDraw::begin_turns(const Generator& generator) {
  constexpr int64_t kVector = 16;  // elements that a kernel may treat at once, at most
  constexpr int64_t kBytesOfALaunch = std::numeric_limits<int32_t>::max();
  const auto bytes = total_ * static_cast<int64_t>(c10::elementSize(whole_.dtype));
  check<MissingShardPatch>(bytes <= kBytesOfALaunch, sampler_.op, "got a sharded tensor of ",
                           c10::IntArrayRef(whole_.sizes), ", ", bytes, " bytes on ", whole_.device,
                           "; expected at most ", kBytesOfALaunch,
                           ": LibTorch fills larger ones in several launches. Draw parts.");
  numbers_ = {whole_.dtype, is_dense(whole_, order_), whole_.device, total_ % kVector};
  const Turns turns = turns_of(sampler_, numbers_, !is_contiguous(whole_), generator);
  check<MissingShardPatch>(turns.size > 0, sampler_.op, "got a sharded tensor of ",
                           c10::IntArrayRef(whole_.sizes), " on ", whole_.device,
                           "; expected a sampler of which a part can be drawn alone, as a trial "
                           "found this one is not. Draw on the whole tensor and scatter it.");
  turns_ = DrawInTurns{sampler_, numbers_, turns, total_, generator.clone()};
  auto moved = generator;
  const std::lock_guard lock(moved.mutex());
  moved.set_offset(moved.get_offset() + turns.taken(total_));
}

Tensor RandomDraw::part(const Box& box) const {
  return collect(box, start_.defined() ? start_.clone() : Generator());
}

Tensor RandomDraw::collect(const Box& box, const Generator& sequential) const {
  const auto size = permuted(box.size, order_);
  Tensor part = at::empty(size, at::TensorOptions(whole_.device).dtype(whole_.dtype));
  std::optional<Runs> runs;
  if (part.numel() > 0) {
    runs.emplace(permuted(whole_.sizes, order_), permuted(box.begin, order_), size);
  }
  if (turns_) {
    if (runs) part = turns_->part(*runs).view(size);
  } else if (sequential.defined()) {
    for_each_block(0, total_, block_size(total_), [&](int64_t begin, int64_t count) {
      const Tensor block = numbers_.draw(sampler_, count, sequential);
      if (runs) keep(block, begin, *runs, part);
    });
  } else if (runs) {
    for_each_stretch(*runs, [&](int64_t from, int64_t to) {
      for_each_block(from, to, block_size(total_), [&](int64_t begin, int64_t count) {
        const auto seeded = generator_giving(seed_after(seed_, begin));
        keep(numbers_.draw(sampler_, count, seeded), begin, *runs, part);
      });
    });
  }
  std::vector<int64_t> back(order_.size());
  for (size_t i = 0; i < order_.size(); ++i) {
    back[static_cast<size_t>(order_[i])] = static_cast<int64_t>(i);
  }
  return part.permute(back);
}

Tensor draw_part(WholeTensor whole, Sampler sampler, const Generator& generator, const Box& box) {
  RandomDraw draw(std::move(whole), std::move(sampler), !generator.device().is_cpu());
  if (draw.kind_ == StreamKind::Sequential) return draw.collect(box, generator);
  draw.begin(generator);
  return draw.part(box);
}

}  // namespace shard
