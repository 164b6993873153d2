// SPDX-License-Identifier: Apache-2.0
// Walking over the tensors in a boxed argument.
#pragma once

#include <ATen/core/ivalue.h>

namespace shard {

/// Calls `visit(tensor)` for every defined tensor in `value`, also in lists.
template <class Visit>
void for_each_tensor(const c10::IValue& value, Visit&& visit) {
  if (value.isTensor()) {
    if (const auto& tensor = value.toTensor(); tensor.defined()) visit(tensor);
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      if (tensor.defined()) visit(tensor);
    }
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList().vec()) {
      if (tensor && tensor->defined()) visit(*tensor);
    }
  }
}

/// Replaces every defined tensor in `value` by `map(tensor)`.
template <class Map>
void map_tensors(c10::IValue& value, Map&& map) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) value = map(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      list.push_back(tensor.defined() ? map(tensor) : tensor);
    }
    value = std::move(list);
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList().vec()) {
      list.push_back(tensor && tensor->defined() ? std::optional<at::Tensor>(map(*tensor))
                                                 : tensor);
    }
    value = std::move(list);
  }
}

}  // namespace shard
