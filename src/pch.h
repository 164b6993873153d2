// SPDX-License-Identifier: Apache-2.0
// The precompiled header of libshard, the patches and the programs: LibTorch's tensor library, none
// of ours. (Not torch::nn: GCC instantiates its pending templates anew in every file, ten seconds
// each.)
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/TensorImpl.h>
#include <torch/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>
