// SPDX-License-Identifier: Apache-2.0
// Ctrl-C (and SIGTERM) as a request that the training loop answers between two steps. A second
// signal ends the process at once.
#pragma once

namespace global_field {

inline constexpr int kInterruptedExitCode = 130;  ///< what shells expect after Ctrl-C

void catch_interrupts();
bool is_interrupted();

}  // namespace global_field
