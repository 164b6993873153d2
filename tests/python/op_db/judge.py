# SPDX-License-Identifier: Apache-2.0
"""Runs one unit on thread ranks and compares it with the plain op: outputs, then the gradients of all inputs.

A verdict is (stage, status, message): stage "forward" or "backward" is the last one reached, status one of
  pass      equal on every rank
  refused   every rank raised the same typed error
  wrong     another value, another shape, another error than a typed one, or not the same on every rank
  hang      a rank waited for another in vain
"""
from typing import NamedTuple

import torch
from torch.utils import _pytree as pytree

import shardtensor as st
from units import arguments, first_tensor, partition

TOLERANCE = 1e-5        # relative to the largest value
EXACT_TOLERANCE = 1e-9  # in float64
MOST_OF_FLOAT32 = 0.05  # a float32 result that is further off is wrong, whatever float64 says
WAIT_SECONDS = 20
REFUSALS = (st.MissingShardPatch, st.UndeterminedShardingError, st.SpecMismatch)
# Their values are whatever lay in memory.
UNINITIALISED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}


def _leaf(tensor, dtype=None):
    copy = tensor.detach().clone()
    if dtype and copy.dtype in (torch.float32, torch.complex64):
        copy = copy.to(dtype if copy.dtype == torch.float32 else torch.complex128)
    return copy.requires_grad_(tensor.requires_grad)


def _map_tensors(function, tree):
    return pytree.tree_map(lambda leaf: function(leaf) if isinstance(leaf, torch.Tensor) else leaf, tree)


def _tensors(tree):
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _is_differentiable(tensor):
    return tensor.requires_grad and (tensor.is_floating_point() or tensor.is_complex())


class Reference:
    """The plain op on one sample: outputs, cotangents, gradients."""

    def __init__(self, op, sample, dtype=None):
        self.inputs = _map_tensors(lambda tensor: _leaf(tensor, dtype), arguments(sample))
        self.result = call(op, self.inputs)
        self.outputs = _tensors(self.result)
        self.cotangents, self.gradients = None, None
        processed = [out for out in _tensors(sample.output_process_fn_grad(self.result)) if _is_differentiable(out)]
        leaves = [leaf for leaf in _tensors(self.inputs) if leaf.requires_grad]
        if op.supports_autograd and processed and leaves:
            generator = torch.Generator().manual_seed(1)
            self.cotangents = [torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype)
                               for out in processed]
            self.gradients = torch.autograd.grad(processed, leaves, self.cotangents, allow_unused=True)


def call(op, inputs):
    torch.manual_seed(0)
    first, args, kwargs = inputs
    return op(first, *args, **kwargs)


def place_like(whole, tensor):
    """A plain tensor that every rank has, placed like `tensor` (a pending sum's is whole). No communication."""
    if not st.is_shard_tensor(tensor):
        return whole
    spec = st.spec(tensor)
    placements = [st.Replicate() if p.is_partial() else p for p in spec.placements]
    partitions = [list(spec.partitions[p.dim]) if p.is_shard() else None for p in placements]
    return st.redistribute(st.from_local(whole, spec.mesh, [st.Replicate()] * spec.mesh.ndim, []), placements, partitions)


def whole(tensor):
    return st.full(tensor) if st.is_shard_tensor(tensor) else tensor


def cut(sample, unit, mesh, dtype=None):
    """The sample's arguments as new leaves, the first tensor as a ShardTensor."""
    leaves, structure = pytree.tree_flatten(arguments(sample))
    place = first_tensor(sample)
    for i, leaf in enumerate(leaves):
        if not isinstance(leaf, torch.Tensor):
            continue
        if i != place:
            leaves[i] = _leaf(leaf, dtype)
            continue
        sizes = partition(leaf.shape[unit.dim], unit.split)
        piece = _leaf(leaf, dtype).detach().narrow(unit.dim, sum(sizes[:mesh.rank]), sizes[mesh.rank]).clone()
        leaves[i] = st.from_local(piece, mesh, st.Shard(unit.dim), sizes).requires_grad_(leaf.requires_grad)
    return pytree.tree_unflatten(leaves, structure)


def difference(op, got, expected, tolerance):
    """A text and how far off (None where that is no number), or None."""
    if got is None or expected is None:
        return None if got is expected else (f"got {'no' if got is None else 'a'} gradient", None)
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return f"got {got.dtype} {list(got.shape)}; expected {expected.dtype} {list(expected.shape)}", None
    if op.name in UNINITIALISED:
        return None
    error = relative_error(got, expected)
    return None if error <= tolerance else (f"off by {error:.2g}", error)


def relative_error(got, expected):
    """max|got - expected| / max(1, max|expected|); infinite where only one is finite, or integers differ."""
    if not (expected.is_floating_point() or expected.is_complex()):
        return 0.0 if torch.equal(got, expected) else float("inf")
    got, expected = got.detach(), expected.detach()
    same = (got == expected) | (got.isnan() & expected.isnan())
    if bool(same.all()):
        return 0.0
    difference = (got - expected).abs()[~same]
    finite = expected.abs()[expected.isfinite()]
    scale = max(1.0, float(finite.max()) if finite.numel() else 1.0)
    worst = float(difference.max()) / scale
    return worst if worst == worst else float("inf")


class Verdict(NamedTuple):
    stage: str
    status: str
    message: str = ""
    error: float | None = None  # of values that are off


class Judge:
    """Of one sample. Float32 results that are a little off are judged again in float64: where that agrees, float32
    itself is the reason (a cancellation, an ill-conditioned matrix)."""

    def __init__(self, op, sample, dtype=None):
        self.op, self.sample, self.dtype = op, sample, dtype
        self.tolerance = TOLERANCE if dtype is None else EXACT_TOLERANCE
        self.reference = Reference(op, sample, dtype)
        self._exact = None

    def __call__(self, unit):
        verdict = self._judge(unit)
        if self.dtype is None and verdict.error is not None and verdict.error <= MOST_OF_FLOAT32:
            exact = self._in_float64(unit)
            if exact is not None and exact.status == "pass":
                return exact
        return verdict

    def _in_float64(self, unit):
        try:
            self._exact = self._exact or Judge(self.op, self.sample, torch.float64)
        except Exception:  # plain LibTorch has no kernel
            return None
        return self._exact(unit)

    def _judge(self, unit):
        verdicts = st.run_ranks(unit.ranks, lambda world: self._run_rank(unit, world), timeout=WAIT_SECONDS)
        for status in ("hang", "wrong"):
            for verdict in verdicts:
                if verdict.status == status:
                    return verdict
        if len({(verdict.stage, verdict.status) for verdict in verdicts}) > 1 or verdicts[0].status == "peer":
            return Verdict(verdicts[0].stage, "wrong", f"ranks disagree: {verdicts}")
        return verdicts[0]

    def _run_rank(self, unit, world):
        stage = ["forward"]
        try:
            return self._compare(unit, world.mesh(), stage)
        except st.CommTimeout as error:
            return Verdict(stage[0], "hang", str(error))
        except st.PeerFailed as error:
            return Verdict(stage[0], "peer", str(error))
        except REFUSALS as error:
            return Verdict(stage[0], "refused", str(error))
        except Exception as error:  # LibTorch's own: a case that plain LibTorch accepts
            return Verdict(stage[0], "wrong", f"{type(error).__name__}: {error}")

    def _compare(self, unit, mesh, stage):
        inputs = cut(self.sample, unit, mesh, self.dtype)
        result = call(self.op, inputs)
        reference = self.reference
        verdict = self._differences("forward", [whole(out) for out in _tensors(result)], reference.outputs)
        if not reference.outputs and result != reference.result:
            return Verdict("forward", "wrong", f"got {result}; expected {reference.result}")
        if verdict.status != "pass" or reference.gradients is None:
            return verdict
        stage[0] = "backward"
        outputs = [out for out in _tensors(self.sample.output_process_fn_grad(result)) if _is_differentiable(out)]
        if len(outputs) != len(reference.cotangents):
            return Verdict("backward", "wrong",
                           f"{len(outputs)} outputs require grad; expected {len(reference.cotangents)}")
        leaves = [leaf for leaf in _tensors(inputs) if leaf.requires_grad]
        cotangents = [place_like(cotangent, out) for cotangent, out in zip(reference.cotangents, outputs)]
        gradients = torch.autograd.grad(outputs, leaves, cotangents, allow_unused=True)
        return self._differences("backward", [None if g is None else whole(g) for g in gradients], reference.gradients)

    def _differences(self, stage, got, expected):
        if len(got) != len(expected):
            return Verdict(stage, "wrong", f"got {len(got)} tensors; expected {len(expected)}")
        for i, (a, b) in enumerate(zip(got, expected)):
            found = difference(self.op, a, b, self.tolerance)
            if found:
                text, error = found
                return Verdict(stage, "wrong", f"{'output' if stage == 'forward' else 'gradient'} {i}: {text}", error)
        return Verdict(stage, "pass")
