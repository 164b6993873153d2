# SPDX-License-Identifier: Apache-2.0
"""To and from torch.distributed's DTensor, without communication where the pieces are alike.

A DTensor is cut as torch.chunk cuts: ceil(n / ranks) rows each. ShardTensors of other pieces are moved first. Once this
module is imported, DTensors and ShardTensors may meet in an op.
"""
import torch
from torch.distributed import tensor as dt
from torch.utils import _pytree as pytree

from shardtensor import _C
from shardtensor.process_groups import mesh_from_process_group
from shardtensor.spec import spec


def mesh_from_device_mesh(device_mesh, timeout=None):
    """The mesh over the same ranks, with the same names (dim0, dim1, ... where there are none). Collective over them."""
    names = device_mesh.mesh_dim_names or [f"dim{i}" for i in range(device_mesh.ndim)]
    flat = device_mesh if device_mesh.ndim == 1 else device_mesh._flatten()
    sizes = [(name, device_mesh.size(i)) for i, name in enumerate(names)]
    return mesh_from_process_group(sizes, flat.get_group(), timeout=timeout)


def _chunks(placements, shape, mesh):
    """The pieces that DTensor makes, one list (or None) a mesh dim."""
    cut = [p.dim for p in placements if p.is_shard()]
    if len(set(cut)) < len(cut):
        raise _C.SpecMismatch(f"[dtensor] got placements {list(placements)}; expected at most one mesh dim that cuts a "
                              "tensor dim. Redistribute one of them.")
    return [_C.chunk_partition(shape[p.dim], mesh.size(i)) if p.is_shard() else None for i, p in enumerate(placements)]


def _from_placement(placement):
    if placement.is_partial():
        return _C.Partial(placement.reduce_op)
    return _C.Shard(placement.dim) if placement.is_shard() else _C.Replicate()


def _to_placement(placement):
    if placement.is_partial():
        return dt.Partial(placement.reduce_op)
    return dt.Shard(placement.dim) if placement.is_shard() else dt.Replicate()


def from_dtensor(tensor, mesh):
    """The same tensor as a ShardTensor on `mesh` (see mesh_from_device_mesh), differentiable. No communication."""
    placements = [_from_placement(p) for p in tensor.placements]
    partitions = _chunks(placements, tensor.shape, mesh)
    gradients = [dt.Replicate() if p.is_partial() else p for p in tensor.placements]
    local = tensor.to_local(grad_placements=gradients)
    return _C.from_local(local, mesh, placements, partitions)


def to_dtensor(tensor, device_mesh):
    """The same tensor as a DTensor on `device_mesh`, which has the ranks of the tensor's mesh; differentiable. Moves only
    pieces that are not those of torch.chunk."""
    where = spec(tensor)
    partitions = _chunks(where.placements, tensor.shape, where.mesh)
    moved = _C.redistribute(tensor, list(where.placements), partitions)
    stride = torch.empty(tensor.shape, device="meta").stride()
    return dt.DTensor.from_local(_C.local(moved), device_mesh, [_to_placement(p) for p in where.placements],
                                 run_check=False, shape=tensor.shape, stride=stride)


def _mixed(cls, function, types, args=(), kwargs=None):
    """Ops of DTensors (parameters, say) and ShardTensors: the DTensors count as the whole tensors that they are, as plain
    ones do; their gradients are cut again. Collective over the DTensors' mesh."""
    kwargs = kwargs or {}
    with torch._C.DisableTorchFunctionSubclass():
        leaves, structure = pytree.tree_flatten((args, kwargs))
        if any(isinstance(leaf, torch.Tensor) and _C.is_shard_tensor(leaf) for leaf in leaves):
            leaves = [leaf.full_tensor() if isinstance(leaf, dt.DTensor) else leaf for leaf in leaves]
            args, kwargs = pytree.tree_unflatten(leaves, structure)
        return function(*args, **kwargs)


dt.DTensor.__torch_function__ = classmethod(_mixed)
