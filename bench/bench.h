// SPDX-License-Identifier: Apache-2.0
// Measuring: interleaved blocks of the case and its reference, medians, one JSON object a line.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace bench {

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// CPU time of the calling thread in microseconds: what an op costs its rank, whatever else the
/// machine does.
inline double thread_us() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}
inline double wall_us() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

struct Pair {
  double us = 0;   ///< of the case, per call
  double ref = 0;  ///< of the reference, per call
};

using Clock = double (*)();

/// The reference's median over `blocks` blocks of `calls` calls, and what the subject takes more by
/// the median of the differences between neighbours: short blocks side by side see the same
/// machine.
inline Pair measure(const std::function<void()>& subject, const std::function<void()>& reference,
                    int blocks = 101, int calls = 1000, Clock clock = &thread_us) {
  const auto block = [&](const std::function<void()>& f) {
    const double begin = clock();
    for (int i = 0; i < calls; ++i) f();
    return (clock() - begin) / calls;
  };
  block(subject);
  block(reference);
  std::vector<double> references;
  std::vector<double> differences;
  for (int i = 0; i < blocks; ++i) {
    const double us = block(subject);
    references.push_back(block(reference));
    differences.push_back(us - references.back());
  }
  const double us = median(references);
  return {us + median(differences), us};
}

/// `limit`: the largest `us` that is acceptable.
inline bool report(const std::string& bench, const std::string& name, int ranks, const Pair& pair,
                   const std::string& reference, double limit) {
  const bool ok = pair.us <= limit;
  std::printf(
      "{\"bench\": \"%s\", \"case\": \"%s\", \"ranks\": %d, \"us\": %.3f, \"vs\": %.3f, \"ref\": "
      "\"%s\", "
      "\"limit\": %.3f, \"ok\": %s}\n",
      bench.c_str(), name.c_str(), ranks, pair.us, pair.ref, reference.c_str(), limit,
      ok ? "true" : "false");
  std::fflush(stdout);
  return ok;
}

}  // namespace bench
