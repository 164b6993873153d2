// SPDX-License-Identifier: Apache-2.0
#include <shard/foreign_lock.h>

namespace shard {
namespace {

ForeignLock foreign;

}  // namespace

void set_foreign_lock(ForeignLock lock) { foreign = lock; }

namespace detail {

WithoutForeignLock::WithoutForeignLock() {
  if (foreign.release) held_ = foreign.release();
}
WithoutForeignLock::~WithoutForeignLock() {
  if (held_) foreign.acquire(held_);
}

}  // namespace detail
}  // namespace shard
