// SPDX-License-Identifier: Apache-2.0
// The one header of a patch file. A function patch is a typed function over ShardTensors,
// registered for an op above autograd; a rule is a table entry for an op below autograd.
// docs/add-a-patch.md walks through one.
//
//   SHARD_PATCH(relu6) {
//     patch.function<at::_ops::relu6>(relu6).shards("any dim");   // Tensor relu6(const Tensor&)
//     patch.rule("aten::hardtanh", shard::pointwise());
//   }
#pragma once

#include <shard/patch_kernel.h>
#include <shard/primitives.h>
#include <shard/rule.h>
#include <torch/library.h>

#include <string>
#include <vector>

namespace shard {

/// A line of the op table (docs, `shard ops`).
struct OpListing {
  std::string op;
  std::string level;   ///< "function" or "dispatch"
  std::string family;  ///< the patch file
  std::string shards;  ///< what may be sharded
  std::string notes;   ///< conditions and refusals
};
std::vector<OpListing> list_ops();

/// Raises MissingShardPatch with the ways out.
[[noreturn]] void refuse_op(const std::string& op, const std::string& got,
                            const std::string& expected);

/// What SHARD_PATCH hands to its body.
class PatchRegistrar {
 public:
  explicit PatchRegistrar(std::string family) : family_(std::move(family)) {}

  class Listing {
   public:
    Listing(PatchRegistrar& registrar, size_t index) : registrar_(registrar), index_(index) {}
    template <class... Dims>
    Listing& shards(const Dims&... dims) {
      ((registrar_.entry(index_).shards +=
        (registrar_.entry(index_).shards.empty() ? "" : ", ") + std::string(dims)),
       ...);
      return *this;
    }
    /// For rules of ops that are not linear: pending sums are reduced above autograd, so that
    /// LibTorch's formula sees the value too (and the ranks communicate once).
    Listing& needs_values();
    Listing& notes(const std::string& text) {
      registrar_.entry(index_).notes = text;
      return *this;
    }

   private:
    PatchRegistrar& registrar_;
    size_t index_;
  };

  /// Registers `function` for `Op` (an at::_ops struct) above autograd. Its parameters are those of
  /// the op with plain integers for symbolic ones; at least one tensor is a ShardTensor. View ops
  /// are refused (ConfigError): an alias made in a patch is one that autograd does not know.
  template <class Op, class Function>
  Listing function(Function* function) {
    return kernel<HandlerLevel::Function, Op>(function);
  }
  /// The same below autograd, for ops whose result is not a tensor; others are better a rule.
  template <class Op, class Function>
  Listing dispatch(Function* function) {
    return kernel<HandlerLevel::Dispatch, Op>(function);
  }

  /// Registers a rule for an op by its qualified name ("aten::add.Tensor").
  Listing rule(const std::string& op, Rule rule);
  /// The rule of an op that is given sizes or strides of a tensor: they are global ones, so the
  /// rule also runs when all inputs are replicated.
  Listing sized_rule(const std::string& op, Rule rule);
  /// NOTE [Remembered inputs]
  /// LibTorch's backward formulas of these ops make a zero tensor of the *global* input size. The
  /// function level leaves the input's layout on the op's autograd node; when the formula asks for
  /// a tensor of that size, remembered_layout() finds it there and only the local part is
  /// allocated.
  Listing remembering_rule(const std::string& op, Rule rule);
  /// Runs LibTorch's own kernel of an op on the ShardTensors: one that is written for every backend
  /// and calls nothing but ops which are covered.
  Listing decomposes(const std::string& op);

  OpListing& entry(size_t index);

 private:
  template <HandlerLevel level, class Op, class Function>
  Listing kernel(Function* function) {
    using Kernel = detail::PatchKernel<level, Op, Function>;
    Kernel::patch = function;
    register_kernel(level, detail::handle<Op>(), torch::CppFunction(&Kernel::call));
    return list(detail::op_name<Op>(), level);
  }
  void register_kernel(HandlerLevel level, const c10::OperatorHandle& op,
                       torch::CppFunction kernel);
  Listing list(const std::string& op, HandlerLevel level);
  std::string family_;
};

namespace detail {
bool register_patches(const char* family, void (*body)(PatchRegistrar&));
}  // namespace detail

}  // namespace shard

/// Defines and registers the patches of one family when the library (or the user's program) is
/// loaded.
#define SHARD_PATCH(family)                                              \
  static void shard_patch_##family(::shard::PatchRegistrar& patch);      \
  [[maybe_unused]] static const bool shard_patch_registered_##family =   \
      ::shard::detail::register_patches(#family, &shard_patch_##family); \
  static void shard_patch_##family([[maybe_unused]] ::shard::PatchRegistrar& patch)
