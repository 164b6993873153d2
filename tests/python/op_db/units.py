# SPDX-License-Identifier: Apache-2.0
"""What is judged: every float32 sample of an entry of op_db, its first tensor cut along each dim in several ways."""
import hashlib
import random
from dataclasses import dataclass

import torch
from torch.utils import _pytree as pytree

SAMPLE_CAP = 40
SPLITS = ("uneven_3", "uneven_2", "empty_3")


@dataclass(frozen=True)
class Unit:
    entry: str
    sample: int
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


def samples(name, op, seed=0, cap=SAMPLE_CAP):
    """(index, SampleInput) of an entry; more than `cap` are thinned out by the seed. The same in every process."""
    torch.manual_seed(_seed(name, seed))
    random.seed(_seed(name, seed))
    every = list(enumerate(op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd)))
    if len(every) <= cap:
        return every
    return sorted(random.Random(_seed("cap", name, seed)).sample(every, cap), key=lambda pair: pair[0])


def arguments(sample):
    return sample.input, sample.args, sample.kwargs


def first_tensor(sample):
    """The tensor that is cut: its place among the flattened arguments, or None."""
    for place, leaf in enumerate(pytree.tree_leaves(arguments(sample))):
        if isinstance(leaf, torch.Tensor):
            return place if leaf.layout == torch.strided else None
    return None


def units_of(name, index, sample):
    place = first_tensor(sample)
    if place is None:
        return []
    tensor = pytree.tree_leaves(arguments(sample))[place]
    return [Unit(name, index, dim, split) for dim in range(tensor.dim()) for split in SPLITS
            if tensor.shape[dim] > 0 and partition(tensor.shape[dim], split)]
