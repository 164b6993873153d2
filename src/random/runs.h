// SPDX-License-Identifier: Apache-2.0
// Runs: the elements of a box in a contiguous tensor, as intervals of equal length at rising
// places.
#pragma once

#include <c10/util/ArrayRef.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace shard {

class Runs {
 public:
  Runs() = default;  ///< none
  Runs(c10::IntArrayRef sizes, c10::IntArrayRef begin, c10::IntArrayRef size);

  int64_t count() const { return count_; }
  int64_t length() const { return length_; }
  int64_t begin(int64_t run) const;
  /// The first run that ends behind `place`; count() if none does.
  int64_t first_behind(int64_t place) const;

  /// What a run has of a block of the tensor: `count` elements, from these places on in the block
  /// and in all runs one after the other.
  struct Overlap {
    int64_t in_block, in_runs, count;
  };
  /// Calls f(overlap) for every run that has something of the elements [from, to).
  template <class F>
  void for_each_in(int64_t from, int64_t to, const F& f) const {
    for (int64_t run = first_behind(from); run < count_; ++run) {
      const int64_t place = begin(run);
      if (place >= to) return;
      const int64_t first = std::max(place, from);
      f(Overlap{first - from, run * length_ + first - place,
                std::min(place + length_, to) - first});
    }
  }

 private:
  struct Dim {
    int64_t begin, size, stride;
  };
  int64_t length_ = 0;
  int64_t count_ = 0;
  int64_t offset_ = 0;     ///< of the run's first element along the last dim that is cut
  std::vector<Dim> dims_;  ///< outside that dim, innermost first
};

}  // namespace shard
