// SPDX-License-Identifier: Apache-2.0
// NOTE [View replay]
// After an in-place op on a view, autograd rebuilds the view of the base with as_strided on the
// wrapper's fictitious strides: silently wrong gradients. With replay, switched on while the view
// is made, it calls the view op again instead.
#pragma once

#include <c10/core/AutogradState.h>

namespace shard {

class ViewReplayGuard {
 public:
  explicit ViewReplayGuard(bool enable) : before_(state().get_view_replay_enabled()) {
    if (enable) state().set_view_replay_enabled(true);
  }
  ~ViewReplayGuard() { state().set_view_replay_enabled(before_); }
  ViewReplayGuard(const ViewReplayGuard&) = delete;
  ViewReplayGuard& operator=(const ViewReplayGuard&) = delete;

 private:
  static c10::AutogradState& state() { return c10::AutogradState::get_tls_state(); }
  bool before_;
};

}  // namespace shard
