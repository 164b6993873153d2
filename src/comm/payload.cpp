// SPDX-License-Identifier: Apache-2.0
#include "comm/payload.h"

#include <algorithm>

namespace shard {
namespace {

const at::Tensor& itself(const at::Tensor& tensor) { return tensor; }
Unwrap unwrap_function = &itself;

bool is_lazy(const at::Tensor& tensor) {
  using Key = c10::DispatchKey;
  return tensor.key_set().has_any(
      c10::DispatchKeySet({Key::Conjugate, Key::Negative, Key::ZeroTensor}));
}

}  // namespace

void set_unwrap(Unwrap unwrap) { unwrap_function = unwrap; }

bool is_wrapper(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.has_storage() &&
         !tensor.key_set().has(c10::DispatchKey::ZeroTensor);
}

bool is_special(const at::Tensor& tensor) {
  return is_wrapper(tensor) || (tensor.defined() && is_lazy(tensor));
}

bool any_wrapper(const std::vector<at::Tensor>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), is_wrapper);
}

bool any_special(const std::vector<at::Tensor>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), is_special);
}

at::Tensor writable(const at::Tensor& tensor) {
  return tensor.defined() ? unwrap_function(tensor) : tensor;
}

at::Tensor readable(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  const at::Tensor& values = unwrap_function(tensor);
  return is_lazy(values) ? values.clone() : values;
}

std::vector<at::Tensor> writable(std::vector<at::Tensor> tensors) {
  for (auto& tensor : tensors) tensor = writable(tensor);
  return tensors;
}

std::vector<at::Tensor> readable(std::vector<at::Tensor> tensors) {
  for (auto& tensor : tensors) tensor = readable(tensor);
  return tensors;
}

}  // namespace shard
