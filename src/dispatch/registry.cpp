// SPDX-License-Identifier: Apache-2.0
#include "dispatch/registry.h"

#include <shard/error.h>

#include <atomic>
#include <deque>
#include <map>
#include <mutex>

#include "dispatch/op_info.h"
#include "dispatch/self_test.h"
#include "tensor/keys.h"

namespace shard {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::string, RuleEntry> rules;
  std::deque<OpListing> listings;
  std::deque<torch::Library> libraries;  // own the registrations
  std::atomic<uint64_t> generation{1};
};
Registry& registry() {
  static Registry instance;
  return instance;
}

std::pair<std::string, std::string> split_namespace(const std::string& op) {
  const auto at = op.find("::");
  return {op.substr(0, at), op.substr(at + 2)};
}

void add_kernel(const std::string& op, c10::DispatchKey key, torch::CppFunction kernel) {
  const auto [space, name] = split_namespace(op);
  auto& library =
      registry().libraries.emplace_back(torch::Library::IMPL, space, key, __FILE__, __LINE__);
  library.impl(name.c_str(), std::move(kernel));
  ++registry().generation;
}

}  // namespace

const RuleEntry* find_rule(const std::string& op_name) {
  auto& r = registry();
  const std::lock_guard lock(r.mutex);
  const auto found = r.rules.find(op_name);
  return found == r.rules.end() ? nullptr : &found->second;
}

uint64_t registry_generation() { return registry().generation.load(std::memory_order_acquire); }

std::vector<OpListing> list_ops() {
  auto& r = registry();
  const std::lock_guard lock(r.mutex);
  return {r.listings.begin(), r.listings.end()};
}

void refuse_op(const std::string& op, const std::string& got, const std::string& expected) {
  raise<MissingShardPatch>(op, "got ", got, "; expected ", expected,
                           ". Redistribute the input, or cover the case with a function patch "
                           "(SHARD_PATCH), a rule, or an op composed of covered ones.");
}

PatchRegistrar::Listing PatchRegistrar::list(const std::string& op, HandlerLevel level) {
  auto& r = registry();
  const std::lock_guard lock(r.mutex);
  r.listings.push_back(
      {op, level == HandlerLevel::Function ? "function" : "dispatch", family_, "", ""});
  return Listing(*this, r.listings.size() - 1);
}

OpListing& PatchRegistrar::entry(size_t index) { return registry().listings[index]; }

PatchRegistrar::Listing PatchRegistrar::rule(const std::string& op, Rule rule) {
  {
    auto& r = registry();
    const std::lock_guard lock(r.mutex);
    r.rules[op] = {.rule = std::move(rule)};
    ++r.generation;
  }
  return list(op, HandlerLevel::Dispatch);
}

PatchRegistrar::Listing PatchRegistrar::sized_rule(const std::string& op, Rule rule) {
  auto listing = this->rule(op, std::move(rule));
  registry().rules[op].reads_sizes = true;
  return listing;
}

PatchRegistrar::Listing PatchRegistrar::remembering_rule(const std::string& op, Rule rule) {
  auto listing = this->rule(op, std::move(rule));
  registry().rules[op].remembers_input = true;
  return listing;
}

PatchRegistrar::Listing PatchRegistrar::decomposes(const std::string& op) {
  auto listing = rule(op, {});
  registry().rules[op].decomposes = true;
  return listing.notes("by LibTorch's own kernel");
}

PatchRegistrar::Listing& PatchRegistrar::Listing::needs_values() {
  registry().rules[registrar_.entry(index_).op].needs_values = true;
  return *this;
}

void PatchRegistrar::register_kernel(HandlerLevel level, const c10::OperatorHandle& op,
                                     torch::CppFunction kernel) {
  const auto& info = op_info(op);
  const bool is_function = level == HandlerLevel::Function;
  check<ConfigError>(!is_function || !info.is_view, "register",
                     "got a function patch for the view op ", info.name,
                     "; expected a rule: autograd must see the alias. Use patch.rule.");
  const auto key = is_function ? kFunctionKey : kDispatchKey;
  check<ConfigError>(!op.hasKernelForDispatchKey(key), "register", "got a second patch for ",
                     info.name,
                     "; expected one. Replace it by register_function_handler "
                     "(<shard/handlers.h>).");
  add_kernel(info.name, key, std::move(kernel));
}

namespace detail {

c10::DispatchKeySet below_function(c10::DispatchKeySet keys) { return below_function_level(keys); }

bool autocast_goes_first(const c10::OperatorHandle& op, c10::DispatchKeySet keys) {
  for (const auto key : {c10::DispatchKey::AutocastCPU, c10::DispatchKey::AutocastCUDA}) {
    if (keys.has(key) && op.hasKernelForDispatchKey(key)) return true;
  }
  return false;
}

bool register_patches(const char* family, void (*body)(PatchRegistrar&)) {
  check_libtorch();
  PatchRegistrar registrar(family);
  body(registrar);
  return true;
}

}  // namespace detail
}  // namespace shard
