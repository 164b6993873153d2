// SPDX-License-Identifier: Apache-2.0
// Nothing: the precompiled header <support/pch_torch.h> needs a source to belong to.
