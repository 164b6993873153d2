// SPDX-License-Identifier: Apache-2.0
#include "runtime/rank_scope.h"

#include <ATen/Parallel.h>
#include <shard/log.h>

#include "comm/comm_log.h"
#include "runtime/signal_report.h"

namespace shard {
namespace {

std::shared_ptr<RankContext> make_context(const RankSettings& settings) {
  auto context = std::make_shared<RankContext>();
  context->world_rank = settings.world_rank;
  context->account = MemoryAccount::current().state();
  context->comm_log = std::make_shared<CommLog>();
  SignalReport::add(settings.world_rank, context->comm_log);
  if (settings.seed) context->generator = make_rank_generator(*settings.seed);
  return context;
}

}  // namespace

RankScope::RankScope(const RankSettings& settings)
    : outer_log_rank_(log_rank()), context_(kRankContextKind, make_context(settings)) {
  set_log_rank(settings.world_rank);
  if (settings.seed) generator_mode_.emplace();
  at::get_num_threads();  // initialises the thread's setting, which would otherwise undo ours later
  if (settings.intra_op_threads) at::set_num_threads(*settings.intra_op_threads);
}

RankScope::~RankScope() { set_log_rank(outer_log_rank_); }

}  // namespace shard
