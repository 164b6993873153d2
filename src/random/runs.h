// SPDX-License-Identifier: Apache-2.0
// Runs: the elements of a box in a contiguous tensor, as intervals of equal length at rising
// places.
#pragma once

#include <c10/util/ArrayRef.h>

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
