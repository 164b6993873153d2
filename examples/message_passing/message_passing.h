// SPDX-License-Identifier: Apache-2.0
// A message-passing network in plain torch::nn: encoder, blocks in which edges ask their two nodes
// and nodes sum their edges, decoder. Pfaff et al., Learning Mesh-Based Simulation with Graph
// Networks (2021).
#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

namespace message_passing {

inline torch::nn::Sequential mlp(int64_t in, int64_t width, int64_t out) {
  return torch::nn::Sequential(torch::nn::Linear(in, width), torch::nn::SiLU(),
                               torch::nn::Linear(width, out));
}

/// The ends of every edge: (E) numbers of nodes each.
struct Edges {
  torch::Tensor from, to;
};

/// One round of messages: nodes (N, C), edges (E, C).
class BlockImpl : public torch::nn::Module {
 public:
  explicit BlockImpl(int64_t channels)
      : edge_(mlp(3 * channels, channels, channels)),
        node_(mlp(2 * channels, channels, channels)),
        norm_(torch::nn::LayerNormOptions({channels})) {
    register_module("edge", edge_);
    register_module("node", node_);
    register_module("norm", norm_);
  }

  std::pair<torch::Tensor, torch::Tensor> forward(const torch::Tensor& nodes,
                                                  const torch::Tensor& edges, const Edges& ends) {
    const torch::Tensor from = nodes.index_select(0, ends.from);
    const torch::Tensor to = nodes.index_select(0, ends.to);
    const torch::Tensor messages = edges + edge_->forward(torch::cat({edges, from, to}, 1));
    const torch::Tensor sums = torch::zeros_like(nodes).index_add(0, ends.to, messages);
    return {nodes + norm_(node_->forward(torch::cat({nodes, sums}, 1))), messages};
  }

 private:
  torch::nn::Sequential edge_, node_;
  torch::nn::LayerNorm norm_;
};
TORCH_MODULE(Block);

/// nodes (N, in), edges (E, edge_in) -> (N, out).
class MessagePassingImpl : public torch::nn::Module {
 public:
  MessagePassingImpl(int64_t in, int64_t edge_in, int64_t out, int64_t channels, int64_t blocks)
      : encode_nodes_(mlp(in, channels, channels)),
        encode_edges_(mlp(edge_in, channels, channels)),
        decode_(mlp(channels, channels, out)) {
    register_module("encode_nodes", encode_nodes_);
    register_module("encode_edges", encode_edges_);
    for (int64_t i = 0; i < blocks; ++i) {
      blocks_.push_back(register_module("block" + std::to_string(i), Block(channels)));
    }
    register_module("decode", decode_);
  }

  torch::Tensor forward(const torch::Tensor& node_features, const torch::Tensor& edge_features,
                        const Edges& ends) {
    torch::Tensor nodes = encode_nodes_->forward(node_features);
    torch::Tensor edges = encode_edges_->forward(edge_features);
    for (auto& block : blocks_) std::tie(nodes, edges) = block(nodes, edges, ends);
    return decode_->forward(nodes);
  }

 private:
  torch::nn::Sequential encode_nodes_, encode_edges_, decode_;
  std::vector<Block> blocks_;
};
TORCH_MODULE(MessagePassing);

}  // namespace message_passing
