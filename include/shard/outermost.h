// SPDX-License-Identifier: Apache-2.0
// NOTE [Calls of inner levels]
// On a mesh of several dims an inner level sees sizes (and with them strides) that differ from
// place to place along the outer mesh dims: several rows here, one or none there. A rule that
// decides by them would let the tensor lie otherwise at each place. So it asks the call of the
// outermost level, whose sizes are the same on all ranks.
#pragma once

#include <shard/rule.h>

namespace shard {

/// The call above all levels of which `call` is one; `call` itself where it is the outermost, or
/// was made by a patch or by another op.
const OpCall& outermost_call(const OpCall& call);

/// Whether a level over `mesh` sees the same sizes on all ranks of the whole mesh.
bool sees_global_sizes(const DeviceMesh& mesh);

/// Whether the rows along `dim` of a level's tensor have no elements at this place, since a level
/// above has cut the other dims: on all ranks of the level then.
bool has_empty_rows(const at::Tensor& part, int64_t dim);

}  // namespace shard
