// SPDX-License-Identifier: Apache-2.0
// _foreach_ ops, which optimizers call: the i-th tensors of all lists meet element by element, each
// i lies as it likes.
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <shard/patch.h>

#include <map>

namespace shard {
namespace {

using at::Tensor;

/// The tensors of a call by argument: lists, and single ones.
std::map<size_t, std::vector<size_t>> by_argument(const OpCall& call) {
  std::map<size_t, std::vector<size_t>> lists;
  for (size_t k = 0; k < call.tensors().size(); ++k) {
    if (call.argument(call.tensor(k).argument).isTensorList()) {
      lists[call.tensor(k).argument].push_back(k);
    }
  }
  return lists;
}

/// Where the i-th tensors meet: a tensor that is written stays, else the first sharded one does.
Layout meeting_place(const OpCall& call, const std::map<size_t, std::vector<size_t>>& lists,
                     size_t i) {
  Layout place;
  for (const auto& [argument, list] : lists) {
    const auto& tensor = call.tensor(list[i]);
    if (tensor.is_written) return tensor.is_partial() ? Layout() : tensor.layout();
    if (tensor.is_shard() && !place.is_shard()) place = tensor.layout();
  }
  return place;
}

std::optional<Decision> element_by_element(const OpCall& call) {
  const auto lists = by_argument(call);
  const size_t count = lists.begin()->second.size();
  Decision decision;
  decision.inputs.resize(call.tensors().size());  // single tensors are numbers
  for (size_t i = 0; i < count; ++i) {
    const Layout place = meeting_place(call, lists, i);
    for (const auto& [argument, list] : lists) {
      if (list.size() != count) return std::nullopt;
      if (call.tensor(list[i]).sizes() != call.tensor(lists.begin()->second[i]).sizes()) {
        return std::nullopt;
      }
      decision.inputs[list[i]] = place;
    }
    decision.outputs.push_back(place);
  }
  return decision;
}

/// One norm a tensor, each over all ranks.
std::vector<Tensor> norms(at::TensorList tensors, const at::Scalar& order,
                          std::optional<at::ScalarType> dtype) {
  std::vector<Tensor> result;
  for (const Tensor& tensor : tensors) {
    result.push_back(
        at::linalg_vector_norm(tensor, order, at::OptionalIntArrayRef(), false, dtype));
  }
  return result;
}

bool is_elementwise(const std::string& name) {
  return name.rfind("aten::_foreach_", 0) == 0 && name.find("norm") == std::string::npos &&
         name.find("powsum") == std::string::npos && name != "aten::_foreach_max";
}

}  // namespace

SHARD_PATCH(foreach) {
  for (const auto& op : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!is_elementwise(op.name)) continue;
    const std::string name = op.name + (op.overload_name.empty() ? "" : "." + op.overload_name);
    if (name.find("out") != std::string::npos) continue;
    patch.rule(name, element_by_element).shards("any dim").notes("lists of equal sizes");
  }
  patch.function<at::_ops::_foreach_norm_Scalar>(norms).shards("any dim");
}

}  // namespace shard
