// SPDX-License-Identifier: Apache-2.0
// Connectionist temporal classification. Every sequence of the batch is by itself, and the
// recursion along time needs all of its classes: a cut of time or classes moves to the batch.
// Targets and lengths are whole on every rank.
#include <ATen/ops/_ctc_loss.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <shard/patch.h>
#include <shard/route.h>

#include <algorithm>
#include <numeric>
#include <tuple>

namespace shard {
namespace {

using at::IntArrayRef;
using at::Tensor;
using Result = std::tuple<Tensor, Tensor>;

constexpr const char* kOp = "aten::_ctc_loss";

/// The targets of the sequences `own`: rows of a table, or parts of one list.
Tensor targets_of(const Tensor& targets, IntArrayRef lengths, const Rows& own) {
  if (targets.dim() > 1) return targets.narrow(0, own.begin, own.size());
  const auto sum = [&](int64_t begin, int64_t end) {
    return std::accumulate(lengths.begin() + begin, lengths.begin() + end, int64_t{0});
  };
  return targets.narrow(0, sum(0, own.begin), sum(own.begin, own.end));
}

/// The sequences of this rank, `log_probs` (time, sequences, classes); `longest` is that of all
/// targets, which LibTorch makes the second result for.
Result own_sequences(const Tensor& log_probs, const Tensor& targets, IntArrayRef input_lengths,
                     IntArrayRef target_lengths, int64_t longest, int64_t blank,
                     bool zero_infinity) {
  const int64_t width = 2 * longest + 1;
  if (log_probs.size(1) == 0 && !is_shard_tensor(log_probs)) {  // levels below lie as elsewhere
    return {log_probs.sum(IntArrayRef{0, 2}), log_probs.new_empty({0, log_probs.size(0), width})};
  }
  const auto [loss, alpha] =
      at::_ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity);
  return {loss, at::constant_pad_nd(alpha, {0, width - alpha.size(2)}, 0)};
}

Result ctc_loss(const Tensor& log_probs, const Tensor& all_targets, IntArrayRef input_lengths,
                IntArrayRef target_lengths, int64_t blank, bool zero_infinity) {
  const auto& mesh = mesh_of(is_shard_tensor(log_probs) ? log_probs : all_targets);
  const Tensor promoted = promote(log_probs, mesh);
  const Tensor targets = plain_numbers(all_targets);
  const int64_t batch = log_probs.dim() == 3 ? log_probs.size(1) : -1;
  const auto has_all = [&](IntArrayRef lengths) {
    return static_cast<int64_t>(lengths.size()) == batch;
  };
  const int64_t total = std::accumulate(target_lengths.begin(), target_lengths.end(), int64_t{0});
  check<SpecMismatch>(
      has_all(input_lengths) && has_all(target_lengths) &&
          (targets.dim() == 1 ? targets.size(0) == total
                              : targets.dim() == 2 && targets.size(0) == batch),
      kOp, "got log-probabilities of ", log_probs.sizes(), ", targets of ", targets.sizes(), ", ",
      input_lengths.size(), " and ", target_lengths.size(),
      " lengths; expected (time, batch, classes), (batch, length) or one list, and a length a "
      "sequence. Correct the sizes.");
  SpecRef spec = dual_spec(spec_of(promoted));
  if (spec->is_shard() && spec->shard_dim() != 1) spec = spec->with(Shard(1), log_probs.sizes());
  const Tensor local = to_local(redistribute(promoted, spec));
  const int64_t longest =
      batch > 0 ? *std::max_element(target_lengths.begin(), target_lengths.end()) : 0;
  const int64_t begin = spec->is_shard() ? spec->offset(mesh.rank()) : 0;
  const Rows own{begin, begin + local.size(1)};
  const auto part = [&](IntArrayRef lengths) {
    return lengths.slice(static_cast<size_t>(own.begin), static_cast<size_t>(own.size()));
  };
  const auto [loss, alpha] =
      own_sequences(local, targets_of(targets, target_lengths, own), part(input_lengths),
                    part(target_lengths), longest, blank, zero_infinity);
  const auto wrapped = [&](const Tensor& t) {
    Shape shape(t.sizes());
    shape[0] = batch;
    return from_local(
        t, mesh, spec->with(spec->is_shard() ? Shard(0) : Replicate(), shape, spec->partition()));
  };
  return {wrapped(loss), wrapped(alpha)};
}

std::vector<int64_t> numbers(const Tensor& lengths) {
  const Tensor plain = plain_numbers(lengths).to(at::kCPU, at::kLong).contiguous();
  return {plain.const_data_ptr<int64_t>(), plain.const_data_ptr<int64_t>() + plain.numel()};
}

Result ctc_loss_of_tensors(const Tensor& log_probs, const Tensor& targets,
                           const Tensor& input_lengths, const Tensor& target_lengths, int64_t blank,
                           bool zero_infinity) {
  const auto inputs = numbers(input_lengths);
  const auto outputs = numbers(target_lengths);
  if (!is_shard_tensor(log_probs) && !is_shard_tensor(targets)) {  // only the lengths are
    const auto& mesh = mesh_of(is_shard_tensor(input_lengths) ? input_lengths : target_lengths);
    return shard::ctc_loss(promote(log_probs, mesh), targets, inputs, outputs, blank,
                           zero_infinity);
  }
  return shard::ctc_loss(log_probs, targets, inputs, outputs, blank, zero_infinity);
}

}  // namespace

SHARD_PATCH(ctc_loss) {
  const char* const note = "a cut of time or classes moves to the batch";
  patch.function<at::_ops::_ctc_loss>(ctc_loss).shards("any dim").notes(note);
  patch.function<at::_ops::_ctc_loss_Tensor>(ctc_loss_of_tensors).shards("any dim").notes(note);
}

}  // namespace shard
