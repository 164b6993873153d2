# SPDX-License-Identifier: Apache-2.0
"""Runs one unit on thread ranks and compares it with the plain op: outputs, then the gradients of all inputs.

A verdict is (stage, status, message): stage "forward" or "backward" is the last one reached, status one of
  pass      equal on every rank
  refused   every rank raised the same typed error
  wrong     another value, another shape, another error than a typed one, or not the same on every rank
  hang      a rank waited for another in vain
"""
import torch
from torch.utils import _pytree as pytree

import shardtensor as st
from units import arguments, first_tensor, partition

TOLERANCE = 1e-5
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
        self.has_tensors = bool(self.outputs)
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


def cut(sample, unit, mesh):
    """The sample's arguments as new leaves, the first tensor as a ShardTensor."""
    leaves, structure = pytree.tree_flatten(arguments(sample))
    place = first_tensor(sample)
    for i, leaf in enumerate(leaves):
        if not isinstance(leaf, torch.Tensor):
            continue
        if i != place:
            leaves[i] = _leaf(leaf)
            continue
        sizes = partition(leaf.shape[unit.dim], unit.split)
        piece = leaf.detach().narrow(unit.dim, sum(sizes[:mesh.rank]), sizes[mesh.rank]).clone()
        leaves[i] = st.from_local(piece, mesh, st.Shard(unit.dim), sizes).requires_grad_(leaf.requires_grad)
    return pytree.tree_unflatten(leaves, structure)


def values_differ(op, sample, kind, got, expected):
    """A text, or None. Where float32 itself is inexact, its error against float64 counts as tolerance too."""
    if got is None or expected is None:
        return None if got is expected else f"got {'no' if got is None else 'a'} gradient"
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return f"got {got.dtype} {list(got.shape)}; expected {expected.dtype} {list(expected.shape)}"
    if expected.is_quantized or op.name in UNINITIALISED:
        return None
    error = relative_error(got, expected)
    if error <= TOLERANCE:
        return None
    return f"off by {error:.2g}"


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


def compare(op, sample, reference, exact, stage, got):
    """`exact`: a function that gives the float64 reference."""
    expected = reference.outputs if stage == "forward" else reference.gradients
    if len(got) != len(expected):
        return f"got {len(got)} tensors; expected {len(expected)}"
    for i, (a, b) in enumerate(zip(got, expected)):
        difference = values_differ(op, sample, stage, a, b)
        if difference and difference.startswith("off"):
            try:
                truth = (exact().outputs if stage == "forward" else exact().gradients)[i]
                noise = relative_error(b, truth.to(b.dtype))
                if relative_error(a, truth.to(b.dtype)) <= 3 * noise + TOLERANCE:
                    continue
                difference += f" (float32 itself by {noise:.2g})"
            except Exception:  # no float64 kernel
                pass
        if difference:
            return f"{'output' if stage == 'forward' else 'gradient'} {i}: {difference}"
    return None


class Judge:
    """Of one sample."""

    def __init__(self, op, sample):
        self.op, self.sample = op, sample
        self.reference = Reference(op, sample)
        self._exact = None

    def exact(self):
        if self._exact is None:
            self._exact = Reference(self.op, self.sample, torch.float64)
            if self._exact.cotangents is not None and self.reference.cotangents is None:
                self._exact.gradients = None
        return self._exact

    def _run_rank(self, unit, world):
        stage, got = "forward", None
        try:
            mesh = world.mesh()
            inputs = cut(self.sample, unit, mesh)
            result = call(self.op, inputs)
            got = [whole(out) for out in _tensors(result)]
            message = compare(self.op, self.sample, self.reference, self.exact, stage, got)
            if message is None and not self.reference.has_tensors and result != self.reference.result:
                message = f"got {result}; expected {self.reference.result}"
            if message is None and self.reference.gradients is not None:
                stage = "backward"
                message = self._judge_gradients(inputs, result)
            return stage, "wrong" if message else "pass", message or ""
        except st.CommTimeout as error:
            return stage, "hang", str(error)
        except st.PeerFailed as error:
            return stage, "peer", str(error)
        except REFUSALS as error:
            return stage, "refused", str(error)
        except Exception as error:  # LibTorch's own: a case that plain LibTorch accepts
            return stage, "wrong", f"{type(error).__name__}: {error}"

    def _judge_gradients(self, inputs, result):
        processed = _tensors(self.sample.output_process_fn_grad(result))
        outputs = [out for out in processed if _is_differentiable(out)]
        if len(outputs) != len(self.reference.cotangents):
            return f"{len(outputs)} outputs require grad; expected {len(self.reference.cotangents)}"
        leaves = [leaf for leaf in _tensors(inputs) if leaf.requires_grad]
        cotangents = [place_like(whole, out) for whole, out in zip(self.reference.cotangents, outputs)]
        gradients = torch.autograd.grad(outputs, leaves, cotangents, allow_unused=True)
        got = [None if gradient is None else whole(gradient) for gradient in gradients]
        return compare(self.op, self.sample, self.reference, self.exact, "backward", got)

    def __call__(self, unit):
        verdicts = st.run_ranks(unit.ranks, lambda world: self._run_rank(unit, world), timeout=WAIT_SECONDS)
        for status in ("hang", "wrong"):
            for stage, found, message in verdicts:
                if found == status:
                    return stage, status, message
        if len({verdict[:2] for verdict in verdicts}) > 1 or verdicts[0][1] == "peer":
            return verdicts[0][0], "wrong", f"ranks disagree: {verdicts}"
        return verdicts[0]
