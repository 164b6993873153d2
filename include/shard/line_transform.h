// SPDX-License-Identifier: Apache-2.0
// The Fourier transform of one line that is cut over ranks, where no other dim could be cut
// instead.
#pragma once

#include <ATen/core/Tensor.h>
#include <shard/mesh.h>
#include <shard/spec.h>

namespace shard {

// `local` (1-d) has this rank's rows of the line that `owned` cuts. No rank holds the line, but
// about a P-th of it (a prime number of points: of four times as many). Three transpositions
// between ranks, nine for such a prime. Nothing is normalised. Not differentiable: for rules, below
// autograd. Collective over the mesh.

/// Of a complex line, cut as it is.
at::Tensor transform_line(const at::Tensor& local, const DeviceMesh& mesh, const Partition& owned,
                          bool forward);
/// The points of the spectrum of a real line that `kept` cuts: all, or the first ones.
at::Tensor transform_real_line(const at::Tensor& local, const DeviceMesh& mesh,
                               const Partition& owned, const Partition& kept);
/// The real line, cut by `whole`, that has this half spectrum.
at::Tensor line_of_half_spectrum(const at::Tensor& local, const DeviceMesh& mesh,
                                 const Partition& owned, const Partition& whole);

}  // namespace shard
