# SPDX-License-Identifier: Apache-2.0
"""Runs one unit on thread ranks and compares it with the plain op: outputs, then the gradients of all inputs.

A verdict is (stage, status, message): stage "forward" or "backward" is the last one reached, status one of
  pass      equal on every rank
  gathered  the same, but every rank received all of the cut tensor
  refused   every rank raised the same typed error
  wrong     another value, another shape, another error than a typed one, or not the same on every rank
  hang      a rank waited for another in vain
A call that plain LibTorch rejects passes at stage "error" when every rank raises the same type; where one rank has the
value that is not allowed, when it raises and the others fail at their next message.
"""
import json
import re
from collections import Counter
from typing import NamedTuple

import torch
from torch.utils import _pytree as pytree

import shardtensor as st
from units import arguments, first_tensor, partition, tensor_to_cut

TOLERANCE = 1e-5        # relative to the largest value
SMALLEST_SCALE = 1e-3   # what is smaller is judged as if it were this: rounding of values that cancelled
EXACT_TOLERANCE = 1e-9  # in float64
MOST_OF_FLOAT32 = 0.05  # a float32 result that is further off is wrong, whatever float64 says
WAIT_SECONDS = 20
REFUSALS = (st.MissingShardPatch, st.UndeterminedShardingError, st.SpecMismatch)
# Their values are whatever lay in memory.
UNINITIALISED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
# An index out of range is found by the rank that has it (docs/limits.md).
OF_VALUES = {"gather", "scatter", "scatter_add"}


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
    torch.default_generator.manual_seed(0)  # torch.manual_seed also notes every call for a GPU that may come
    first, args, kwargs = inputs
    return op(first, *args, **kwargs)


def place_like(whole, tensor):
    """A plain tensor that every rank has, placed like `tensor` (a pending sum's is whole). No communication."""
    if not st.is_shard_tensor(tensor):
        return whole
    spec = st.spec(tensor)
    placements = [st.Replicate() if p.is_partial() else p for p in spec.placements]
    partitions = [list(spec.partitions[p.dim]) if p.is_shard() else None for p in placements]
    replicated = st.from_local(whole, spec.mesh, [st.Replicate()] * spec.mesh.ndim, [])
    return st.redistribute(replicated, placements, partitions)


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
    """max|got - expected| / max|expected|, or / 1 if that is 0; infinite where one is not finite or integers differ."""
    if not (expected.is_floating_point() or expected.is_complex()):
        return 0.0 if torch.equal(got, expected) else float("inf")
    got, expected = got.detach(), expected.detach()
    same = (got == expected) | (got.isnan() & expected.isnan())
    if bool(same.all()):
        return 0.0
    difference = (got - expected).abs()[~same]
    finite = expected.abs()[expected.isfinite()]
    largest = float(finite.max()) if finite.numel() else 0.0
    scale = max(SMALLEST_SCALE, largest) if largest else 1.0
    worst = float(difference.max()) / scale
    return worst if worst == worst else float("inf")


class Verdict(NamedTuple):
    stage: str
    status: str
    message: str = ""
    error: float | None = None  # of values that are off
    raised: str = ""            # type and first line, without the numbers, which may be the rank's own
    in_float64: bool = False
    given: dict = {}            # bytes_gathered


def raised_text(error):
    first_line = str(error).split("\n")[0]
    return f"{type(error).__name__}: {re.sub('[0-9]+', '#', first_line)}"


def bytes_gathered(counter):
    """op -> what the calling rank gave to the others in all-gathers."""
    table = Counter()
    for row in json.loads(counter.json()):
        if row["kind"] == "all_gather_v":
            table[row["label"]] += row["bytes"]
    return table


def unexpected(stage, error):
    """Not a refusal: LibTorch's own error in a case that plain LibTorch accepts, or a rank that waits or has left."""
    status = "hang" if isinstance(error, st.CommTimeout) else "peer" if isinstance(error, st.PeerFailed) else "wrong"
    return Verdict(stage, status, f"{type(error).__name__}: {error}", raised=raised_text(error))


def agreed(verdicts):
    """What the ranks say together: they reach the same stage with the same status, and refuse with the same error."""
    for status in ("hang", "wrong"):
        found = [verdict for verdict in verdicts if verdict.status == status]
        if found:  # the one that is off most
            return max(found, key=lambda verdict: float("inf") if verdict.error is None else verdict.error)
    if len({(v.stage, v.status, v.raised) for v in verdicts}) > 1 or verdicts[0].status == "peer":
        texts = [f"{v.stage} {v.status} {v.raised}" for v in verdicts]
        return Verdict(verdicts[0].stage, "wrong", f"ranks disagree: {texts}")
    return verdicts[0]


class Judge:
    """Of one sample. Float32 results that are a little off are judged again in float64: where that agrees, float32
    itself is the reason (a cancellation, an ill-conditioned matrix)."""

    def __init__(self, op, sample, dtype=None):
        self.op, self.sample, self.dtype = op, sample, dtype
        self.tolerance = TOLERANCE if dtype is None else EXACT_TOLERANCE
        self.reference = Reference(op, sample, dtype)
        self._exact = None

    @property
    def has_gradient(self):
        return self.reference.gradients is not None

    def __call__(self, unit):
        verdict = self._judge(unit)
        if self.dtype is None and verdict.error is not None and verdict.error <= MOST_OF_FLOAT32:
            exact = self._in_float64(unit)
            if exact is not None and exact.status in ("pass", "gathered"):
                return exact._replace(in_float64=True)
        return verdict

    def _in_float64(self, unit):
        try:
            self._exact = self._exact or Judge(self.op, self.sample, torch.float64)
        except Exception:  # plain LibTorch has no kernel
            return None
        return self._exact(unit)

    def _judge(self, unit):
        verdicts = st.run_ranks(unit.ranks, lambda world: self._run_rank(unit, world), timeout=WAIT_SECONDS)
        verdict = agreed(verdicts)
        if verdict.status != "pass":
            return verdict
        by = self._gathered_by(unit, [v.given for v in verdicts])
        return verdict._replace(status="gathered", message=by) if by else verdict

    def _gathered_by(self, unit, given):
        """The ops by which every rank received as much as the cut tensor has; "" where they moved less.

        Numbers that every rank gives alike (a mean, a count, a bound) are no pieces of a tensor that is cut unevenly.
        With fewer than two rows a rank, a neighbour's rows are nearly everything: not looked at.
        """
        tensor = _leaf(tensor_to_cut(self.sample), self.dtype)
        if tensor.shape[unit.dim] < 2 * unit.ranks:
            return ""
        ops = sorted({op for table in given for op in table if len({t.get(op, 0) for t in given}) > 1})
        received = sum(table[op] for op in ops for table in given) / (unit.ranks - 1)
        return ", ".join(ops) if received >= tensor.numel() * tensor.element_size() > 0 else ""

    def _run_rank(self, unit, world):
        stage = ["forward"]
        try:
            return self._compare(unit, world.mesh(), stage)
        except REFUSALS as error:
            return Verdict(stage[0], "refused", str(error), raised=raised_text(error))
        except Exception as error:
            return unexpected(stage[0], error)

    def _compare(self, unit, mesh, stage):
        inputs = cut(self.sample, unit, mesh, self.dtype)
        counter = st.CommCounter()
        result = call(self.op, inputs)
        given = bytes_gathered(counter)
        reference = self.reference
        verdict = self._differences("forward", [whole(out) for out in _tensors(result)], reference.outputs)
        if not reference.outputs and result != reference.result:
            return Verdict("forward", "wrong", f"got {result}; expected {reference.result}")
        if verdict.status != "pass" or reference.gradients is None:
            return verdict._replace(given=given)
        stage[0] = "backward"
        outputs = [out for out in _tensors(self.sample.output_process_fn_grad(result)) if _is_differentiable(out)]
        if len(outputs) != len(reference.cotangents):
            return Verdict("backward", "wrong",
                           f"{len(outputs)} outputs require grad; expected {len(reference.cotangents)}")
        leaves = [leaf for leaf in _tensors(inputs) if leaf.requires_grad]
        cotangents = [place_like(cotangent, out) for cotangent, out in zip(reference.cotangents, outputs)]
        gradients = torch.autograd.grad(outputs, leaves, cotangents, allow_unused=True)
        verdict = self._differences("backward", [None if g is None else whole(g) for g in gradients],
                                    reference.gradients)
        return verdict._replace(given=given)

    def _differences(self, stage, got, expected):
        if len(got) != len(expected):
            return Verdict(stage, "wrong", f"got {len(got)} tensors; expected {len(expected)}")
        for i, (a, b) in enumerate(zip(got, expected)):
            found = difference(self.op, a, b, self.tolerance)
            if found:
                text, error = found
                return Verdict(stage, "wrong", f"{'output' if stage == 'forward' else 'gradient'} {i}: {text}", error)
        return Verdict(stage, "pass")


def plain_error(op, sample):
    """What the plain op raises, or None."""
    try:
        result = call(op, _map_tensors(_leaf, arguments(sample)))
    except Exception as error:
        return error
    return TypeError("NotImplemented") if result is NotImplemented else None


def others_hear_of_it(op, sample, unit, others):
    """Whether the ranks where a call returns though it raises elsewhere fail at their next message."""
    heard = []

    def run_rank(world):
        try:  # all of it: a rank may fail before the others have left the scattering
            inputs = cut(sample, unit, world.mesh())
            call(op, inputs)
            st.full(_tensors(inputs)[0])
        except st.PeerFailed:
            heard.append(world.rank)
            raise

    try:
        st.run_ranks(unit.ranks, run_rank, timeout=WAIT_SECONDS)
    except st.CommTimeout:
        return False
    except Exception:
        return sorted(heard) == others
    return False


def judge_error(op, sample, unit):
    """Of a call that plain LibTorch rejects."""
    def run_rank(world):
        try:
            result = call(op, cut(sample, unit, world.mesh()))
        except (st.CommTimeout, st.PeerFailed) as error:
            return unexpected("error", error)
        except Exception as error:
            return Verdict("error", "pass", raised=type(error).__name__)
        return Verdict("error", "pass", raised="TypeError") if result is NotImplemented else Verdict("error", "returns")

    verdicts = st.run_ranks(unit.ranks, run_rank, timeout=WAIT_SECONDS)
    verdict = agreed(verdicts)
    others = [rank for rank, verdict in enumerate(verdicts) if verdict.status == "returns"]
    if 0 < len(others) < unit.ranks and unit.entry in OF_VALUES and others_hear_of_it(op, sample, unit, others):
        return Verdict("error", "pass")
    return verdict._replace(status="wrong", message="no error") if verdict.status == "returns" else verdict


def describe(sample):
    """Its arguments, tensors by dtype and shape."""
    first, args, kwargs = _map_tensors(lambda t: f"{str(t.dtype)[6:]}{list(t.shape)}", arguments(sample))
    texts = [str(argument) for argument in (first, *args)] + [f"{key}={value}" for key, value in kwargs.items()]
    return f"({', '.join(texts)})"
