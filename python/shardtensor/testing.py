# SPDX-License-Identifier: Apache-2.0
"""Comparing what a module gives on ShardTensors with what it gives on plain tensors."""
import copy

import torch
from torch.utils import _pytree as pytree

from shardtensor import _C
from shardtensor.spec import spec


def relative_error(got, expected):
    """max|got - expected| / max|expected|; infinity where shapes differ or only one is there."""
    if got is None or expected is None:
        return 0.0 if got is expected else float("inf")
    if got.shape != expected.shape:
        return float("inf")
    if expected.numel() == 0:
        return 0.0
    scale = max(float(expected.detach().abs().max()), torch.finfo(torch.float32).tiny)
    error = float((got.detach() - expected.detach()).abs().max()) / scale
    return error if error == error else float("inf")


def _whole(tensor):
    return _C.full(tensor) if tensor is not None and _C.is_shard_tensor(tensor) else tensor


def _is_inexact(tensor):
    return isinstance(tensor, torch.Tensor) and (tensor.is_floating_point() or tensor.is_complex())


def _weighted_sum(output):
    """A number whose gradient differs from element to element."""
    weights = torch.linspace(-1, 2, output.numel(), dtype=output.real.dtype).reshape(output.shape)
    total = (output * weights).sum()
    return total.real if total.is_complex() else total


def _run(module, inputs, check_grads):
    """Outputs (the tensors of any structure of tuples, lists and dicts) and gradients (of inputs, then of parameters), whole."""
    leaves = [x.detach().requires_grad_(check_grads) if _is_inexact(x) else x for x in inputs]
    outputs = [y for y in pytree.tree_leaves(module(*leaves)) if isinstance(y, torch.Tensor)]
    whole = [_whole(y.detach()) for y in outputs]
    differentiable = [y for y in outputs if y.requires_grad]
    if not check_grads or not differentiable:
        return whole, []
    parameters = [p for p in module.parameters() if p.requires_grad] if hasattr(module, "parameters") else []
    wanted = [x for x in leaves if _is_inexact(x)] + parameters
    gradients = torch.autograd.grad(sum(map(_weighted_sum, differentiable)), wanted, allow_unused=True)
    return whole, [_whole(g) for g in gradients]


def _findings(kind, got, expected, tolerance):
    if len(got) != len(expected):
        return [f"there are {len(got)} {kind}s instead of {len(expected)}"]
    errors = [relative_error(a, b) for a, b in zip(got, expected)]
    return [f"{kind} {i} is off by {error:.3g}" for i, error in enumerate(errors) if error > tolerance]


def numerical_shard_tensor_check(module, inputs, *, check_grads=True, tolerance=None):
    """Raises AssertionError unless `module` (a module or a function of tensors) gives the same on `inputs`, ShardTensors
    among them, as on the gathered ones: outputs and, with `check_grads`, the gradients of inputs and parameters. What it returns
    may be a tensor or tuples, lists and dicts of tensors.

    Collective over the mesh. `tolerance` is relative (default 1e-5; float64 inputs 1e-10). Each rank holds the whole
    tensors meanwhile. A module with state (batch norm) is run on copies, the parameters' .grad are left alone.
    """
    if tolerance is None:
        tolerance = 1e-10 if any(_is_inexact(x) and x.dtype == torch.float64 for x in inputs) else 1e-5
    twins = [copy.deepcopy(module) if isinstance(module, torch.nn.Module) else module for _ in range(2)]
    got, got_gradients = _run(twins[0], inputs, check_grads)
    expected, expected_gradients = _run(twins[1], [_whole(x) for x in inputs], check_grads)
    findings = (_findings("output", got, expected, tolerance) +
                _findings("gradient", got_gradients, expected_gradients, tolerance))
    layouts = [spec(x).placements for x in inputs if isinstance(x, torch.Tensor) and _C.is_shard_tensor(x)]
    assert not findings, f"{', '.join(findings)} (tolerance {tolerance:g}, inputs placed {layouts})"
