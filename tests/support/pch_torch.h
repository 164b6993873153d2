// SPDX-License-Identifier: Apache-2.0
// The precompiled header of tests that include <torch/torch.h>: the whole C++ front end too.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
