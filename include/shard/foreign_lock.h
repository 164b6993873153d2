// SPDX-License-Identifier: Apache-2.0
// A lock of another language that a thread may hold when it calls in (Python's interpreter lock).
// It is given back while the thread waits for other ranks: on thread ranks they may need it to get
// there. LibTorch's bindings release it around most ops, but not around all (x[0] does not).
#pragma once

namespace shard {

struct ForeignLock {
  void* (*release)() = nullptr;  ///< what acquire() needs; null when the thread does not hold it
  void (*acquire)(void*) = nullptr;
};
/// Process-wide; before the first rank starts.
void set_foreign_lock(ForeignLock lock);

namespace detail {

class WithoutForeignLock {
 public:
  WithoutForeignLock();
  ~WithoutForeignLock();
  WithoutForeignLock(const WithoutForeignLock&) = delete;
  WithoutForeignLock& operator=(const WithoutForeignLock&) = delete;

 private:
  void* held_ = nullptr;
};

}  // namespace detail

}  // namespace shard
