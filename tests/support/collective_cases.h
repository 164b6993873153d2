// SPDX-License-Identifier: Apache-2.0
// What every backend must do, written once: each case is run by all ranks of a communicator.
// Threads run them on 1 to 4 ranks (tests/comm), MPI under mpirun (tests/launch).
#pragma once

#include <shard/communicator.h>

#include <ostream>
#include <string>
#include <vector>

namespace shard::testing {

struct CollectiveCase {
  std::string name;
  void (*run)(const Communicator& comm);
};
inline std::ostream& operator<<(std::ostream& out, const CollectiveCase& collective) {
  return out << collective.name;
}

const std::vector<CollectiveCase>& collective_cases();

}  // namespace shard::testing
