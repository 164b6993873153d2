// SPDX-License-Identifier: Apache-2.0
// The judge of ops and modules: the same function on plain tensors in one process and on
// ShardTensors, compared in value, all gradients and the gradients of a gradient penalty. For the
// library's own tests and for those of user-made patches (CMake target shard::testing; no test
// framework needed).
//
//   using namespace shard::testing;
//   Report report = conformance("mylib::blur", {{"rows", {sharded(torch::randn({7, 4}), 0)},
//   blur}}); ASSERT_TRUE(report.ok()) << report.text();
#pragma once

#include <ATen/core/Tensor.h>
#include <shard/mesh.h>
#include <shard/tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace shard {
class World;
}

namespace shard::testing {

/// One argument of a function under test: the whole tensor and how it is passed.
struct Input {
  at::Tensor whole;
  int64_t shard_dim = -1;      ///< -1: passed as a plain tensor (a weight)
  bool differentiable = true;  ///< ignored for integer tensors
};
inline Input sharded(at::Tensor whole, int64_t dim) { return {std::move(whole), dim, true}; }
inline Input weight(at::Tensor whole) { return {std::move(whole), -1, true}; }
inline Input constant(at::Tensor whole, int64_t dim = -1) { return {std::move(whole), dim, false}; }

using Function = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

/// What is compared, and where.
struct Check {
  std::vector<int> ranks{1, 2, 3, 4};
  bool gradients = true;
  bool double_backward = true;
  bool no_grad_and_inference = true;  ///< also under NoGradGuard and InferenceMode
  /// Also on a 2 x 2 mesh: only the dim of the input cut (by either mesh dim, or both), or another
  /// one too.
  enum class Grid : uint8_t { None, OneDim, TwoDims };
  Grid grid = Grid::TwoDims;
  double tolerance = 1e-5;  ///< relative to the largest value; float64 inputs: 1e-10
  /// Samples whose floating-point inputs are all float32, or all float64, are run in both. False
  /// where the function itself fixes the precision.
  bool both_precisions = true;
  /// How many times the cut tensors may travel (see judge_costs). 0: only halos, statistics,
  /// gradients of weights, and inputs that are cut differently do.
  double traffic = 0;
  /// Why a rank may hold a whole tensor; empty: it may not.
  std::string holds_whole = {};
};

/// One call of an op.
struct Sample {
  std::string name;  ///< the situation, as an identifier
  std::vector<Input> inputs;
  Function function;
  Check check = {};
};

/// What comparisons gave.
struct Report {
  int64_t equal = 0;                  ///< cases that equal plain LibTorch
  int64_t refused = 0;                ///< cases in which every rank raised the same typed error
  std::vector<std::string> failures;  ///< one text a case: where, and what differs
  std::vector<std::string> refusals;  ///< the errors' texts, each once
  bool ok() const { return failures.empty(); }
  void add(const Report& other);
  /// Counts, then the failures.
  std::string text() const;
};

/// Where a sample is run: on a 1-d mesh with a named split, or on a 2 x 2 mesh.
struct Setting {
  int ranks = 1;
  std::string split = "even";  ///< of splits()
  int grid = -1;               ///< 0..4: one of the ways to lie over a 2 x 2 mesh
  at::ScalarType dtype = at::ScalarType::Undefined;  ///< of floating-point inputs; as they are
  std::string text() const;
};

/// Named ways to cut n rows over `ranks`: "even", "uneven" (first gets about 3/4), "one-row" (all
/// but the last get one row), "empty-first", "empty-last", "chunks" (as torch::chunk cuts).
std::vector<std::pair<std::string, Partition>> splits(int64_t n, int ranks);

/// All settings that a check asks for, but "chunks"; with `precisions`, in float32 and float64.
std::vector<Setting> all_settings(const Sample& sample, bool precisions);

/// For every sample its settings, such that each pair of (sample, ranks), (sample, split), (sample,
/// way over the grid), (sample, dtype), (ranks, split), (ranks, dtype), (split, dtype) occurs.
std::vector<std::vector<Setting>> pairwise_settings(const std::vector<Sample>& samples);

/// Runs one sample in these settings, each on thread ranks of its own.
Report compare_with_plain(const Sample& sample, const std::vector<Setting>& settings);

/// The same on the ranks of `world`, thread ranks or processes; every setting is one of
/// `world.size()` ranks (ConfigError). Every rank passes the same sample and settings. Collective;
/// the same report on every rank.
Report compare_with_plain(const Sample& sample, const std::vector<Setting>& settings,
                          const World& world);

/// What the sample costs on 4 even ranks of a 1-d mesh, forward and backward. It is enlarged along
/// the dims that are cut, until halos and sums over a cut dim are small. It fails when
/// - a rank makes an allocation of at least 60 % of the largest one of plain LibTorch for the whole
///   or of the largest cut input, whichever is more (unless Check::holds_whole says why), or
/// - all ranks together send more than Check::traffic + 1/4 times the bytes of the cut inputs (of
///   the output, if that is larger). Besides, every weight's gradient may be summed over the ranks;
///   of inputs that are cut differently all but the largest may become whole and their gradients be
///   cut again.
/// The report holds nothing but failures. A sample whose function cannot take larger inputs (it
/// names sizes) or that is refused is not judged.
Report judge_costs(const Sample& sample);

enum class Cover : bool { Pairwise, Full };
/// Every sample in the settings of a cover, and its costs. `op` is for the report's text.
Report conformance(const std::string& op, const std::vector<Sample>& samples,
                   Cover cover = Cover::Full);

/// max|a-b| / max(max|b|, tiny); infinity when shapes differ or only one is defined.
double relative_error(const at::Tensor& a, const at::Tensor& b);

struct NumericalCheckOptions {
  bool gradients = true;
  double tolerance = 1e-5;  ///< float64 inputs: 1e-10
};

namespace detail {
Report numerical_check(const DeviceMesh& mesh, const Function& forward,
                       const std::vector<at::Tensor>& parameters,
                       const std::vector<at::Tensor>& inputs, const NumericalCheckOptions& options);

template <class Module, size_t... I>
at::Tensor forward(Module& module, const std::vector<at::Tensor>& inputs,
                   std::index_sequence<I...>) {
  return module->forward(inputs[I]...);
}
}  // namespace detail

/// Runs `module` (a torch::nn holder) on `inputs` (ShardTensors of `mesh`, or plain ones) and on
/// the gathered inputs without ShardTensors; compares output, input gradients and parameter
/// gradients. Leaves the parameters' own .grad alone. Collective over `mesh`; the same report on
/// every rank. Each rank holds the whole tensors meanwhile.
template <size_t N = 1, class Module>
Report numerical_shard_tensor_check(const DeviceMesh& mesh, Module& module,
                                    const std::vector<at::Tensor>& inputs,
                                    const NumericalCheckOptions& options = {}) {
  const Function forward = [&](const std::vector<at::Tensor>& arguments) {
    return detail::forward(module, arguments, std::make_index_sequence<N>());
  };
  return detail::numerical_check(mesh, forward, module->parameters(), inputs, options);
}

}  // namespace shard::testing
