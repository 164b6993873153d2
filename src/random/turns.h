// SPDX-License-Identifier: Apache-2.0
// NOTE [Turns]
// On GPUs thread t of a kernel has the t-th sequence of a Philox generator. In one turn the threads
// make some hundred thousand numbers, a few each, at the generator's offset; in the next turn the
// following ones, at a larger offset. So a later turn is the first one of a generator that is moved
// on, and any turn can be drawn alone, by the same kernel. How many numbers a turn has depends on
// the GPU, the kernel and whether the tensor suits its vectors. No interface tells it: a trial of
// a few turns finds out, and that the above holds. Ranks have GPUs of one kind (check_one_kind).
#pragma once

#include <vector>

#include "random/runs.h"
#include "random/sampler.h"

namespace shard {

struct Turns {
  int64_t size = 0;    ///< numbers of a turn; 0: the sampler does not work in turns
  uint64_t apart = 0;  ///< from the offset of a turn to that of the next
  // A draw moves the generator on by steps, not always to where its next turn would begin.
  int64_t numbers_a_step = 1;
  uint64_t words_a_step = 0;

  /// By what a draw of `count` numbers moves the generator on.
  uint64_t taken(int64_t count) const;
};

/// Found by a trial with a copy of `generator`, once for op, dtype, device and place.
/// `is_permuted`: tensors whose dims do not lie in their order.
Turns turns_of(const Sampler& sampler, const Numbers& numbers, bool is_permuted,
               const at::Generator& generator);

struct DrawInTurns : Draw {
  Turns turns;

  /// The numbers in the runs, contiguous.
  at::Tensor part(const Runs& runs) const;
};

}  // namespace shard
