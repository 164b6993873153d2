// SPDX-License-Identifier: Apache-2.0
#include "random/turns.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <string>
#include <tuple>

#include "random/trial_sampler.h"
#include "random/tried_once.h"

namespace shard {
namespace {

using at::Generator;
using at::Tensor;

/// No GPU has so many threads that a turn has more numbers.
constexpr int64_t kLargestTurn = int64_t{1} << 26;

/// Draws from the beginning of a sequence of its own.
class Trial {
 public:
  Trial(const Sampler& sampler, Numbers numbers, const Generator& generator)
      : sampler_(sampler), numbers_(numbers), generator_(generator.clone()) {}

  Tensor draw(int64_t count, uint64_t offset) {
    generator_.set_offset(offset);
    return numbers_.draw(sampler_, count, generator_);
  }
  uint64_t taken(int64_t count) {
    draw(count, 0);
    return generator_.get_offset();
  }
  /// Whether a tensor is filled in the order of its memory.
  bool follows_memory() {
    const Tensor in_order = draw(48 * 64, 0);
    const Tensor rows = at::empty({48, 64, 2}, in_order.options());
    const Tensor permuted =
        (numbers_.in_contiguous_tensors ? rows.flatten().narrow(0, 0, 48 * 64).view({48, 64})
                                        : rows.select(2, 0))
            .t();
    generator_.set_offset(0);
    sampler_.fill(permuted, generator_);
    return at::equal(permuted.t().flatten(), in_order);
  }
  /// Whether turns drawn alone are those of one draw of several, the last of them not full.
  bool is_made_of(const Turns& turns) {
    const int64_t total = 3 * turns.size + numbers_.misalignment;
    const Tensor all = draw(total, 0);
    for (int64_t turn = 0; turn * turns.size < total; ++turn) {
      const int64_t begin = turn * turns.size;
      const int64_t count = std::min(turns.size, total - begin);
      const Tensor alone = draw(turns.size, static_cast<uint64_t>(turn) * turns.apart);
      if (!at::equal(alone.narrow(0, 0, count), all.narrow(0, begin, count))) return false;
    }
    return taken(total) == turns.taken(total);
  }

 private:
  const Sampler& sampler_;
  Numbers numbers_;
  Generator generator_;
};

/// The most numbers that move the generator on by no more than one number does; 0: not found.
int64_t numbers_of_a_step(Trial& trial, uint64_t step) {
  int64_t most = 1;
  while (trial.taken(2 * most) == step) {
    most *= 2;
    if (most > kLargestTurn) return 0;
  }
  for (int64_t more = most / 2; more > 0; more /= 2) {
    if (trial.taken(most + more) == step) most += more;
  }
  return most;
}

Turns try_out(const Sampler& sampler, const Numbers& numbers, bool is_permuted,
              const Generator& generator) {
  Trial trial(sampler, numbers, generator);
  const uint64_t words = trial.taken(1);
  if (words == 0 || (is_permuted && !trial.follows_memory())) return {};
  const int64_t count = numbers_of_a_step(trial, words);
  if (count == 0) return {};
  // How many steps' numbers a turn has, and how many steps' words it is from one to the next.
  // Dropout has 1 and 2 with vectors of two, 1 and 1 of four, 2 and 2 of eight.
  for (const auto& [numbers_of, words_of] : {std::pair{1, 1}, {2, 2}, {4, 4}, {1, 2}}) {
    const Turns turns{numbers_of * count, static_cast<uint64_t>(words_of) * words, count, words};
    if (trial.is_made_of(turns)) return turns;
  }
  return {};
}

/// Copies what the numbers [begin, begin + block) have of the runs to `part`, which has all runs.
void keep(const Tensor& block, int64_t begin, const Runs& runs, const Tensor& part) {
  std::vector<int64_t> places;  // of runs that lie in the block as a whole
  int64_t first = 0;            // of them in the part
  runs.for_each_in(begin, begin + block.numel(), [&](const Runs::Overlap& own) {
    if (own.count == runs.length()) {
      if (places.empty()) first = own.in_runs;
      places.push_back(own.in_block);
    } else {
      part.narrow(0, own.in_runs, own.count).copy_(block.narrow(0, own.in_block, own.count));
    }
  });
  if (places.empty()) return;
  const auto count = static_cast<int64_t>(places.size());
  const Tensor kept = part.narrow(0, first, count * runs.length());
  if (count == 1) {
    kept.copy_(block.narrow(0, places[0], runs.length()));
    return;
  }
  const Tensor within = at::arange(runs.length(), block.options().dtype(at::kLong));
  const Tensor index = at::tensor(places, at::kLong).to(block.device()).unsqueeze(1) + within;
  kept.copy_(block.index_select(0, index.flatten()));
}

}  // namespace

uint64_t Turns::taken(int64_t count) const {
  return static_cast<uint64_t>((count + numbers_a_step - 1) / numbers_a_step) * words_a_step;
}

Turns turns_of(const Sampler& sampler, const Numbers& numbers, bool is_permuted,
               const Generator& generator) {
  using Key = std::tuple<std::string, at::ScalarType, bool, std::string, int64_t, bool>;
  static auto* turns = new TriedOnce<Key, Turns>;
  return turns->find(
      {sampler.op, numbers.dtype, numbers.in_contiguous_tensors, numbers.device.str(),
       numbers.misalignment, is_permuted},
      [&] { return try_out(trial_sampler(sampler), numbers, is_permuted, generator); });
}

Tensor DrawInTurns::part(const Runs& runs) const {
  const Tensor part = at::empty({runs.count() * runs.length()},
                                at::TensorOptions(numbers.device).dtype(numbers.dtype));
  Generator moved = generator.clone();
  const bool is_one_turn = total <= turns.size;  // then the whole, as it lies
  Numbers of_a_turn = numbers;
  if (is_one_turn) of_a_turn.misalignment = 0;
  for (int64_t begin = 0; begin < total; begin += turns.size) {
    const int64_t run = runs.first_behind(begin);
    if (run == runs.count() || runs.begin(run) >= begin + turns.size) continue;
    moved.set_offset(generator.get_offset() +
                     static_cast<uint64_t>(begin / turns.size) * turns.apart);
    keep(of_a_turn.draw(sampler, is_one_turn ? total : turns.size, moved), begin, runs, part);
  }
  return part;
}

}  // namespace shard
