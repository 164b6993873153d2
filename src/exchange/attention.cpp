// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <shard/attention.h>
#include <shard/environment.h>

#include <utility>

namespace shard {
namespace {

// NOTE [Modes of a scope]: rank threads open them, and only the forward reads them.
thread_local AttentionForm form_here = AttentionForm::Auto;
thread_local bool is_zigzag_here = false;

AttentionForm form_of_environment() {
  const std::string& name = environment().attention;
  if (name == "ring") return AttentionForm::Ring;
  if (name == "balanced") return AttentionForm::Balanced;
  return name == "heads" ? AttentionForm::Heads : AttentionForm::Auto;
}

}  // namespace

AttentionFormGuard::AttentionFormGuard(AttentionForm form)
    : outer_(std::exchange(form_here, form)) {}
AttentionFormGuard::~AttentionFormGuard() { form_here = outer_; }

AttentionForm attention_form() {
  return form_here == AttentionForm::Auto ? form_of_environment() : form_here;
}

ZigzagSequences::ZigzagSequences() : outer_(std::exchange(is_zigzag_here, true)) {}
ZigzagSequences::~ZigzagSequences() { is_zigzag_here = outer_; }
bool are_sequences_zigzag() { return is_zigzag_here; }

std::vector<std::vector<Rows>> zigzag_rows(int64_t n, int64_t ranks) {
  const Partition chunks = even_partition(n, 2 * ranks);
  const auto chunk = [&](int64_t i) {
    const int64_t begin = offset_of(chunks, i);
    return Rows{begin, begin + chunks[static_cast<size_t>(i)]};
  };
  std::vector<std::vector<Rows>> rows;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    rows.push_back({chunk(rank), chunk(2 * ranks - 1 - rank)});
  }
  return rows;
}

Partition zigzag_partition(int64_t n, int64_t ranks) {
  Partition sizes;
  for (const auto& pieces : zigzag_rows(n, ranks)) {
    sizes.push_back(pieces[0].size() + pieces[1].size());
  }
  return sizes;
}

at::Tensor zigzag_order(int64_t n, int64_t ranks) {
  std::vector<at::Tensor> pieces;
  for (const auto& rows : zigzag_rows(n, ranks)) {
    for (const Rows& piece : rows) pieces.push_back(at::arange(piece.begin, piece.end, at::kLong));
  }
  return at::cat(pieces);
}

}  // namespace shard
