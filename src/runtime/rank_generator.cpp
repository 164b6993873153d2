// SPDX-License-Identifier: Apache-2.0
#include "runtime/rank_generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <shard/launch.h>

#include <mutex>

#include "base/rank_context.h"

namespace shard {
namespace {

at::Generator* rank_generator() {
  RankContext* context = rank_context();
  return context != nullptr && context->generator.defined() ? &context->generator : nullptr;
}

void copy_state(at::CPUGeneratorImpl& from, at::CPUGeneratorImpl& to) {
  to.set_engine(from.engine());
  to.set_next_float_normal_sample(from.next_float_normal_sample());
  to.set_next_double_normal_sample(from.next_double_normal_sample());
}

/// Stands in for the process's default generator: itself outside ranks, the rank's generator
/// inside.
class RoutingGenerator final : public at::CPUGeneratorImpl {
 public:
  void set_current_seed(uint64_t seed) override {
    if (auto* rank = locked_rank()) return rank->set_current_seed(seed);
    at::CPUGeneratorImpl::set_current_seed(seed);
  }
  uint64_t current_seed() const override {
    const auto* rank = locked_rank();
    return rank != nullptr ? rank->current_seed() : at::CPUGeneratorImpl::current_seed();
  }
  uint64_t seed() override {
    auto* rank = locked_rank();
    return rank != nullptr ? rank->seed() : at::CPUGeneratorImpl::seed();
  }
  void set_state(const c10::TensorImpl& state) override {
    if (auto* rank = locked_rank()) return rank->set_state(state);
    at::CPUGeneratorImpl::set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    const auto* rank = locked_rank();
    return rank != nullptr ? rank->get_state() : at::CPUGeneratorImpl::get_state();
  }

 private:
  // A rank's generator is used by one thread at a time (its own, or one that its backward waits
  // for), so the mutex that callers hold on *this is all the locking there is to do.
  static c10::GeneratorImpl* locked_rank() {
    at::Generator* generator = rank_generator();
    return generator != nullptr ? generator->unsafeGetGeneratorImpl() : nullptr;
  }
  at::CPUGeneratorImpl* clone_impl() const override {
    auto* copy = new at::CPUGeneratorImpl;
    auto* source = locked_rank();
    copy_state(*static_cast<at::CPUGeneratorImpl*>(
                   source != nullptr ? source : const_cast<RoutingGenerator*>(this)),
               *copy);
    return copy;
  }
};

/// The process's default generator, which LibTorch keeps in a static variable and hands out as
/// const.
at::Generator& default_slot() {
  return const_cast<at::Generator&>(at::detail::getDefaultCPUGenerator());
}

at::CPUGeneratorImpl& impl_of(const at::Generator& generator) {
  return *static_cast<at::CPUGeneratorImpl*>(generator.unsafeGetGeneratorImpl());
}

struct Routing {
  std::mutex mutex;
  int users = 0;
  at::Generator original;
};

Routing& routing() {
  static auto* state = new Routing;
  return *state;
}

}  // namespace

at::Generator make_rank_generator(uint64_t seed) { return at::detail::createCPUGenerator(seed); }

RankGeneratorMode::RankGeneratorMode() : mode_(c10::DispatchKey::TESTING_ONLY_GenericMode) {}

DefaultGeneratorRouting::DefaultGeneratorRouting() {
  Routing& state = routing();
  const std::lock_guard lock(state.mutex);
  if (state.users++ > 0) return;
  state.original = default_slot();
  auto stand_in = at::make_generator<RoutingGenerator>();
  copy_state(impl_of(state.original), impl_of(stand_in));
  default_slot() = std::move(stand_in);
}

DefaultGeneratorRouting::~DefaultGeneratorRouting() {
  Routing& state = routing();
  const std::lock_guard lock(state.mutex);
  if (--state.users > 0) return;
  copy_state(impl_of(default_slot()), impl_of(state.original));
  default_slot() = std::move(state.original);
}

at::Generator default_generator() {
  const at::Generator* rank = rank_generator();
  return rank != nullptr ? *rank : at::detail::getDefaultCPUGenerator();
}

void manual_seed(uint64_t seed) {
  at::Generator generator = default_generator();
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(seed);
}

}  // namespace shard
