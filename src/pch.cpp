// SPDX-License-Identifier: Apache-2.0
// Carries the precompiled headers, which all other files reuse: src/pch.h for libshard and the
// patches, torch/torch.h for tests and programs.
