// SPDX-License-Identifier: Apache-2.0
// The precompiled header of most tests: LibTorch's tensor library and GoogleTest, none of ours.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>
#include <torch/utils.h>
