// SPDX-License-Identifier: Apache-2.0
// The halo exchange as a linear map, on the ranks of a mesh. Threads run the cases of every number
// of ranks (tests/exchange), MPI those of the ranks there are (tests/launch).
#pragma once

#include <shard/exchange.h>

#include <string>
#include <vector>

namespace shard::testing {

using RowLists = std::vector<std::vector<Rows>>;

/// Who owns rows of a dim, and who wants which.
struct HaloCase {
  std::string name;
  Partition owned;
  RowLists wanted;
};
/// Even, uneven and empty shards, halos that reach over several ranks, wrap around and repeat rows,
/// and random ones. Of `ranks` ranks.
std::vector<HaloCase> halo_cases(int ranks);

/// A tensor of `rows` rows (dim 1), of which every rank has its part.
at::Tensor halo_whole(int64_t rows);
at::Tensor local_rows(const at::Tensor& whole, const Partition& owned, int64_t rank);
/// `before` and `after` rows around every rank's own (none around an empty one).
RowLists around(const Partition& owned, int64_t before, int64_t after);

/// Every rank gets the rows it wants, in the order in which it lists them. Collective.
void expect_wanted_rows(const HaloCase& halo, const DeviceMesh& mesh);
/// <Hx, y> = <x, H'y>, and the same for the adjoint's own backward. Collective.
void expect_exact_adjoint(const HaloCase& halo, const DeviceMesh& mesh);

}  // namespace shard::testing
