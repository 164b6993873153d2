// SPDX-License-Identifier: Apache-2.0
// The ways in which a sample's inputs lie over a 2 x 2 mesh.
#pragma once

#include <shard/testing.h>

namespace shard::testing {

struct GridWay {
  const char* name;
  Placements (*placements)(const Input& input);
};
inline constexpr int kOneDimGridWays = 3;  ///< the first ones cut the input's own dim only
inline constexpr int kGridWays = 5;
const GridWay& grid_way(int index);

}  // namespace shard::testing
