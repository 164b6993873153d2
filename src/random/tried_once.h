// SPDX-License-Identifier: Apache-2.0
// What trials have found out, each done once for its key.
#pragma once

#include <map>
#include <mutex>

namespace shard {

template <class Key, class Found>
class TriedOnce {
 public:
  /// What `trial()` gives for the key. One that throws is done again the next time.
  template <class Trial>
  Found find(const Key& key, const Trial& trial) {
    {
      const std::lock_guard lock(mutex_);
      if (const auto known = found_.find(key); known != found_.end()) return known->second;
    }
    const Found found = trial();  // threads that do it at once find the same
    const std::lock_guard lock(mutex_);
    return found_.emplace(key, found).first->second;
  }

 private:
  std::mutex mutex_;
  std::map<Key, Found> found_;
};

}  // namespace shard
