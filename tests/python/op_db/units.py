# SPDX-License-Identifier: Apache-2.0
"""What is judged: every float32 sample of an entry of op_db, its first tensor cut along each dim in several ways.

The calls that op_db lists as errors are cut along each dim in one way.
"""
import hashlib
import random
import re
from collections import Counter
from dataclasses import dataclass

import torch
from torch.utils import _pytree as pytree

SAMPLE_CAP = 40
SPLITS = ("uneven_3", "uneven_2", "empty_3")


@dataclass(frozen=True)
class Unit:
    entry: str
    sample: int | str
    dim: int
    split: str

    @property
    def ranks(self):
        return int(self.split[-1])


def partition(rows, split):
    """The piece sizes of a split; None where there are too few rows for it."""
    if split == "empty_3":  # the middle rank has nothing
        return [rows - rows // 2, 0, rows // 2] if rows > 1 else [0, rows, 0]
    if rows < 2:
        return None
    if split == "uneven_2":
        return [rows - max(1, rows // 4), max(1, rows // 4)]
    first = max(1, rows // 2)
    second = max(0, (rows - first) * 2 // 3)
    return [first, second, rows - first - second]


def entries():
    """name -> OpInfo, of all that have float32."""
    from torch.testing._internal.common_methods_invocations import op_db
    return {op.formatted_name: op for op in op_db if torch.float32 in op.dtypes}


def _seed(*parts):
    return int.from_bytes(hashlib.sha256("/".join(map(str, parts)).encode()).digest()[:4], "little")


def _make_deterministic(name, seed):
    torch.manual_seed(_seed(name, seed))
    random.seed(_seed(name, seed))


def structure(sample):
    """A text that two samples share which differ only in the values of their tensors, or in requires_grad."""
    leaves, tree = pytree.tree_flatten(arguments(sample))
    texts = [f"{leaf.dtype}{list(leaf.shape)}" if isinstance(leaf, torch.Tensor) else repr(leaf) for leaf in leaves]
    return re.sub(r" at 0x[0-9a-f]+", "", f"{tree} {texts}")


def only_without_gradients(listed, without):
    """The samples of `without` that `listed` does not have."""
    if len(without) <= len(listed):
        return []
    left = Counter(map(structure, listed))
    left.subtract(map(structure, without))
    extra = []
    for sample in reversed(without):
        if left[structure(sample)] < 0:
            left[structure(sample)] += 1
            extra.append(sample)
    return extra[::-1]


def every_sample(name, op, seed):
    """Those with gradients (where the op has any) come first, then those that op_db yields only without."""
    _make_deterministic(name, seed)
    listed = list(op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd))
    if op.supports_autograd:
        _make_deterministic(name, seed)
        listed += only_without_gradients(listed, list(op.sample_inputs("cpu", torch.float32, requires_grad=False)))
    return listed


def samples(name, op, seed=0, cap=SAMPLE_CAP):
    """(index, SampleInput) of an entry; more than `cap` are thinned out by the seed. The same in every process."""
    every = list(enumerate(every_sample(name, op, seed)))
    if len(every) <= cap:
        return every
    return sorted(random.Random(_seed("cap", name, seed)).sample(every, cap), key=lambda pair: pair[0])


def error_inputs(name, op, seed=0):
    """(name, SampleInput) of the calls that op_db lists as errors."""
    if op.error_inputs_func is None:
        return []
    _make_deterministic(name, seed)
    return [(f"error {i}", error.sample_input) for i, error in enumerate(op.error_inputs("cpu"))]


def arguments(sample):
    return sample.input, sample.args, sample.kwargs


def first_tensor(sample):
    """The tensor that is cut: its place among the flattened arguments, or None."""
    for place, leaf in enumerate(pytree.tree_leaves(arguments(sample))):
        if isinstance(leaf, torch.Tensor):
            return place if leaf.layout == torch.strided else None
    return None


def tensor_to_cut(sample):
    place = first_tensor(sample)
    return None if place is None else pytree.tree_leaves(arguments(sample))[place]


def units_of_error(name, index, sample):
    """One split a dim: uneven over two ranks where there are rows for it."""
    units = units_of(name, index, sample)
    return [unit for unit in units if unit.split == "uneven_2"] or [unit for unit in units if unit.split == "empty_3"]


def units_of(name, index, sample):
    tensor = tensor_to_cut(sample)
    if tensor is None:
        return []
    return [Unit(name, index, dim, split) for dim in range(tensor.dim()) for split in SPLITS
            if tensor.shape[dim] > 0 and partition(tensor.shape[dim], split)]
