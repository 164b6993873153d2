# SPDX-License-Identifier: Apache-2.0
"""How a tensor lies over its mesh, and the handle that asks it."""
from dataclasses import dataclass

import torch

from shardtensor import _C


@dataclass(frozen=True)
class Spec:
    """The same on every rank: one placement a mesh dim, and the sizes of the pieces of every cut tensor dim."""
    mesh: _C.DeviceMesh
    placements: tuple
    shape: torch.Size
    partitions: dict

    def __hash__(self):
        return hash((self.mesh, self.placements, self.shape))


def spec(tensor):
    """The Spec of a ShardTensor. SpecMismatch for plain tensors. No communication."""
    placements = tuple(_C.placements_of(tensor))
    cut = sorted({placement.dim for placement in placements if placement.is_shard()})
    return Spec(_C.mesh_of(tensor), placements, tensor.shape, {dim: tuple(_C.partition_of(tensor, dim)) for dim in cut})


def checked(tensor):
    """The tensor. SpecMismatch for plain ones."""
    spec(tensor)
    return tensor


class ShardTensor:
    """A checked handle on a tensor that is a ShardTensor (SpecMismatch otherwise); the tensor itself is `.tensor`."""

    __slots__ = ("tensor",)

    def __init__(self, tensor):
        self.tensor = checked(tensor)

    def spec(self):
        return spec(self.tensor)

    def local(self, gradient=None):
        return _C.local(self.tensor, gradient)

    def full(self):
        return _C.full(self.tensor)

    def redistribute(self, placements, partition=None):
        return ShardTensor(_C.redistribute(self.tensor, placements, partition))

    def __repr__(self):
        return _C.text_of(self.tensor)
