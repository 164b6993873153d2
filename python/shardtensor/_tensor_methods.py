# SPDX-License-Identifier: Apache-2.0
"""What torch.Tensor does in Python code that reads storage: a ShardTensor has none of its own.

repr shows the spec and this rank's values, copy shares the shard and deepcopy copies it, pickle says what to do instead.
"""
import functools

import torch

from shardtensor import _C
from shardtensor.spec import spec


def _text(tensor, plain, *args, **kwargs):
    if not _C.is_shard_tensor(tensor):
        return plain(tensor, *args, **kwargs)
    where = spec(tensor)
    with torch.no_grad():
        values = _innermost(tensor)
    grad = f", grad_fn=<{tensor.grad_fn.name()}>" if tensor.grad_fn else ", requires_grad=True" * tensor.requires_grad
    return (f"ShardTensor(shape={list(tensor.shape)}, placements={list(where.placements)}, "
            f"partitions={where.partitions}, mesh={where.mesh}{grad}, local={plain(values)})")


def _innermost(tensor):
    values = tensor.detach()
    while _C.is_shard_tensor(values):
        values = _C.raw_local(values)
    return values


def _deepcopy(tensor, plain, memo):
    if not _C.is_shard_tensor(tensor):
        return plain(tensor, memo)
    if not tensor.is_leaf:
        raise RuntimeError("Only leaves can be deep-copied: got a ShardTensor with a graph. Use detach() first.")
    copy = tensor.detach().clone().requires_grad_(tensor.requires_grad)
    if tensor.grad is not None:
        copy.grad = tensor.grad.detach().clone()
    memo[id(tensor)] = copy
    return copy


class _Described:
    """A ShardTensor where Python describes it: copy.copy takes it from here, pickle asks for its contents."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __reduce_ex__(self, protocol):
        raise _C.SpecMismatch(
            "[pickle] got a ShardTensor, whose values lie on several ranks; expected a plain tensor. Save "
            "shardtensor.full(x) on one rank, or shardtensor.local(x) on each together with its placements.")


def _shallow_copy(described):
    tensor = described.tensor
    copy = tensor.detach().requires_grad_(tensor.requires_grad)
    vars(copy).update(vars(tensor))
    return copy


def _reduce(tensor, plain, protocol):
    return (_shallow_copy, (_Described(tensor),)) if _C.is_shard_tensor(tensor) else plain(tensor, protocol)


def _wrap(owner, name, function):
    plain = getattr(owner, name)
    if not hasattr(plain, "_shardtensor"):
        wrapper = functools.wraps(plain)(lambda tensor, *args, **kwargs: function(tensor, plain, *args, **kwargs))
        wrapper._shardtensor = True
        setattr(owner, name, wrapper)


def install():
    """Once a process, when the package is imported."""
    _wrap(torch._tensor_str, "_str", _text)
    _wrap(torch.Tensor, "__deepcopy__", _deepcopy)
    _wrap(torch.Tensor, "__reduce_ex__", _reduce)
