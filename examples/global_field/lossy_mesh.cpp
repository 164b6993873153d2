// SPDX-License-Identifier: Apache-2.0
#include "lossy_mesh.h"

#include <ATen/core/Tensor.h>
#include <shard/communicator.h>

#include <memory>

namespace global_field {
namespace {

using at::Tensor;
using shard::Communicator;

/// Forwards everything to another communicator; what arrives by exchange() is replaced by zeros.
class LossyBackend : public shard::CommunicatorBackend {
 public:
  explicit LossyBackend(Communicator inner) : inner_(std::move(inner)) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  const char* backend_name() const override { return inner_.backend_name(); }
  void barrier() override { inner_.barrier(); }
  void all_reduce(Tensor& tensor, shard::ReduceOp op) override { inner_.all_reduce(tensor, op); }
  void all_gather_v(const Tensor& piece, const std::vector<Tensor>& outputs) override {
    inner_.all_gather_v(piece, outputs);
  }
  void reduce_scatter_v(const std::vector<Tensor>& pieces, Tensor& output,
                        shard::ReduceOp op) override {
    inner_.reduce_scatter_v(pieces, output, op);
  }
  void all_to_all_v(const std::vector<Tensor>& sends,
                    const std::vector<Tensor>& receives) override {
    inner_.all_to_all_v(sends, receives);
  }
  void broadcast(Tensor& tensor, int root) override { inner_.broadcast(tensor, root); }
  void scatter_v(const std::vector<Tensor>& pieces, Tensor& output, int root) override {
    inner_.scatter_v(pieces, output, root);
  }
  void exchange(const std::vector<shard::Message>& sends,
                const std::vector<shard::Message>& receives) override {
    inner_.exchange(sends, receives);
    for (const shard::Message& message : receives) message.tensor.zero_();
  }
  std::vector<std::string> all_gather_bytes(const std::string& bytes) override {
    return inner_.all_gather_bytes(bytes);
  }
  std::shared_ptr<CommunicatorBackend> split(int color, int key) override {
    return std::make_shared<LossyBackend>(inner_.split(color, key, inner_.name()));
  }
  int64_t bytes_sent() const override { return inner_.bytes_sent(); }
  void poison(const std::string& why) noexcept override { inner_.poison(why); }

 private:
  Communicator inner_;
};

}  // namespace

shard::DeviceMesh lossy_mesh(const shard::DeviceMesh& domain) {
  const Communicator lossy(std::make_shared<LossyBackend>(domain.comm()), domain.comm().name());
  return {lossy, domain.layout().dims, domain.device()};
}

}  // namespace global_field
