// SPDX-License-Identifier: Apache-2.0
// Recurrent networks. A step needs the one before it, so a cut batch is local and anything else is
// cut along the batch first; LibTorch's own formulas would gather at every step.
#include <ATen/ops/gru.h>
#include <ATen/ops/lstm.h>
#include <ATen/ops/rnn_relu.h>
#include <ATen/ops/rnn_tanh.h>
#include <shard/exchange.h>
#include <shard/patch.h>

namespace shard {
namespace {

using at::Tensor;
using at::TensorList;

constexpr int64_t kStateBatch = 1;  // (layers * directions, batch, hidden)

/// A batch of sequences cut along the batch, as local tensors. A rank without sequences runs a made
/// up one and drops the result: the same nodes as on the others.
class Sequences {
 public:
  Sequences(const Tensor& input, bool batch_first, const DeviceMesh& mesh)
      : mesh_(mesh), dim_(batch_first ? 0 : 1) {
    const Tensor x = promote(input, mesh);
    const auto& spec = spec_of(x);
    const bool is_batch = x.dim() == 3 && !spec->is_replicate();
    if (!spec->placement().is_shard(dim_) || !is_batch) {
      cut_ = redistribute(x, is_batch ? spec->with(Shard(dim_), x.sizes()) : spec->replicated());
    } else {
      cut_ = x;
    }
    is_dummy_ = is_cut() && spec_of(cut_)->local_size(mesh.rank()) == 0;
  }

  bool is_cut() const { return spec_of(cut_)->is_shard() && mesh_.size() > 1; }
  Tensor input() const { return filled(to_local(cut_), dim_); }
  std::vector<Tensor> weights(TensorList parameters) const {
    return is_cut() ? local_weights(mesh_, parameters.vec())
                    : local_copies(mesh_, parameters.vec());
  }
  Tensor state(const Tensor& state) const {
    const Tensor whole = promote(state, mesh_);
    return filled(to_local(redistribute(whole, spec_for(whole.sizes(), kStateBatch))), kStateBatch);
  }
  Tensor output(const Tensor& local) const { return wrapped(local, dim_); }
  Tensor final_state(const Tensor& local) const { return wrapped(local, kStateBatch); }

 private:
  SpecRef spec_for(c10::IntArrayRef sizes, int64_t dim) const {
    const auto& spec = spec_of(cut_);
    if (!spec->is_shard()) return spec->with(Replicate(), sizes);
    return spec->with(Shard(dim), sizes, spec->partition());
  }
  Tensor filled(const Tensor& local, int64_t dim) const {
    return is_dummy_ ? join({local, fill_rows(local, dim, 1)}, dim) : local;
  }
  Tensor wrapped(const Tensor& local, int64_t dim) const {
    const Tensor own = is_dummy_ ? local.narrow(dim, 0, 0) : local;
    Shape sizes(own.sizes());
    if (spec_of(cut_)->is_shard()) sizes[static_cast<size_t>(dim)] = cut_.size(dim_);
    return from_local(own, mesh_, spec_for(sizes, dim));
  }

  DeviceMesh mesh_;
  int64_t dim_;
  Tensor cut_;
  bool is_dummy_ = false;
};

const DeviceMesh& mesh_of_any(const Tensor& input, TensorList others, TensorList parameters) {
  if (is_shard_tensor(input)) return mesh_of(input);
  for (const auto& list : {others, parameters}) {
    for (const Tensor& tensor : list) {
      if (is_shard_tensor(tensor)) return mesh_of(tensor);
    }
  }
  TORCH_INTERNAL_ASSERT(false, "a patch was called without a ShardTensor");
}

void refuse_dropout(const char* op, double dropout, bool train, int64_t layers) {
  if (train && dropout > 0 && layers > 1) {
    refuse_op(op, "dropout between layers in training", "no dropout, or eval()");
  }
}

std::tuple<Tensor, Tensor, Tensor> lstm(const Tensor& input, TensorList states,
                                        TensorList parameters, bool has_biases, int64_t layers,
                                        double dropout, bool train, bool bidirectional,
                                        bool batch_first) {
  refuse_dropout("aten::lstm.input", dropout, train, layers);
  const Sequences sequences(input, batch_first, mesh_of_any(input, states, parameters));
  const std::vector<Tensor> own{sequences.state(states[0]), sequences.state(states[1])};
  const auto [y, h, c] = at::lstm(sequences.input(), own, sequences.weights(parameters), has_biases,
                                  layers, dropout, train, bidirectional, batch_first);
  return {sequences.output(y), sequences.final_state(h), sequences.final_state(c)};
}

template <class Op>
std::tuple<Tensor, Tensor> recurrent(const Tensor& input, const Tensor& state,
                                     TensorList parameters, bool has_biases, int64_t layers,
                                     double dropout, bool train, bool bidirectional,
                                     bool batch_first) {
  refuse_dropout(Op::name, dropout, train, layers);
  const Sequences sequences(input, batch_first, mesh_of_any(input, state, parameters));
  const auto [y, h] =
      Op::call(sequences.input(), sequences.state(state), sequences.weights(parameters), has_biases,
               layers, dropout, train, bidirectional, batch_first);
  return {sequences.output(y), sequences.final_state(h)};
}

}  // namespace

SHARD_PATCH(recurrent) {
  const auto add = [](PatchRegistrar::Listing listing) {
    listing.shards("batch", "others (moved to the batch)").notes("dropout in training: refused");
  };
  namespace ops = at::_ops;
  add(patch.function<ops::lstm_input>(lstm));
  add(patch.function<ops::gru_input>(recurrent<ops::gru_input>));
  add(patch.function<ops::rnn_tanh_input>(recurrent<ops::rnn_tanh_input>));
  add(patch.function<ops::rnn_relu_input>(recurrent<ops::rnn_relu_input>));
}

}  // namespace shard
