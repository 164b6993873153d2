// SPDX-License-Identifier: Apache-2.0
// What backends of devices share: ranks, order and everything that is no tensor are those of a
// communicator of the host.
#pragma once

#include <shard/communicator.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace shard {

class HostBackend : public CommunicatorBackend {
 public:
  explicit HostBackend(std::shared_ptr<CommunicatorBackend> host) : host_(std::move(host)) {}

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  void barrier() override { host_->barrier(); }
  std::vector<std::string> all_gather_bytes(const std::string& bytes) override {
    return host_->all_gather_bytes(bytes);
  }
  void poison(const std::string& why) noexcept override { host_->poison(why); }

 protected:
  CommunicatorBackend& host() const { return *host_; }

 private:
  std::shared_ptr<CommunicatorBackend> host_;
};

}  // namespace shard
