# SPDX-License-Identifier: Apache-2.0
"""Autograd idioms of Python code on ShardTensors: the same as on plain tensors."""
import copy

import pytest
import torch

import shardtensor as st

WHOLE = torch.linspace(-2, 2, 30, dtype=torch.float64).reshape(6, 5)


def both(on_ranks, idiom):
    """What `idiom(x)` gives on a plain leaf and on a sharded one, all whole."""
    def whole(value):
        if isinstance(value, (list, tuple)):
            return [whole(part) for part in value]
        return st.full(value) if isinstance(value, torch.Tensor) and st.is_shard_tensor(value) else value

    expected = whole(idiom(WHOLE.clone().requires_grad_()))

    def check(world):
        got = whole(idiom(st.scatter_tensor(WHOLE, 0, world.mesh(), st.Shard(0), [3, 0, 3]).requires_grad_()))
        torch.testing.assert_close(got, expected)

    on_ranks(3, check)


def test_backward_twice_accumulates(on_ranks):
    def idiom(x):
        loss = (x * x).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        return x.grad

    both(on_ranks, idiom)


def test_gradient_penalty(on_ranks):
    def idiom(x):
        y = (x.softmax(0) * x).sum()
        gradient, = torch.autograd.grad(y, x, create_graph=True)
        (gradient.square().sum() + y).backward()
        return x.grad

    both(on_ranks, idiom)


def test_hooks(on_ranks):
    def idiom(x):
        seen = []
        x.register_hook(lambda g: g * 2)
        y = x.exp()
        y.retain_grad()
        y.register_hook(lambda g: seen.append(g.shape))
        y.sum().backward()
        return x.grad, y.grad, seen

    both(on_ranks, idiom)


def test_module_hooks_see_sharded_activations(on_ranks):
    layers = torch.nn.Sequential(torch.nn.Linear(5, 3).double(), torch.nn.ReLU())

    def idiom(x):
        model, seen = copy.deepcopy(layers), []
        handles = [model[0].register_forward_hook(lambda module, inputs, output: seen.append(output.shape)),
                   model[0].register_full_backward_hook(lambda module, gi, go: seen.append(go[0].shape))]
        model(x).sum().backward()
        for handle in handles:
            handle.remove()
        return seen, x.grad

    both(on_ranks, idiom)


def test_custom_function(on_ranks):
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x ** 3

        @staticmethod
        def backward(ctx, gradient):
            x, = ctx.saved_tensors
            return gradient * 3 * x ** 2

    both(on_ranks, lambda x: torch.autograd.grad((Cube.apply(x) * x).sum(), x))


def test_checkpoint(on_ranks):
    from torch.utils.checkpoint import checkpoint
    layer = torch.nn.Linear(5, 5).double()
    both(on_ranks, lambda x: torch.autograd.grad(checkpoint(lambda t: layer(t).tanh(), x, use_reentrant=False).sum(), x))


def test_no_grad_inference_mode_and_detach(on_ranks):
    def idiom(x):
        with torch.no_grad():
            a = x.mul(2)
        with torch.inference_mode():
            b = x.mul(2).sum()
        return a, a.requires_grad, float(b), x.detach().requires_grad

    both(on_ranks, idiom)


def test_saved_tensors_hooks(on_ranks):
    def idiom(x):
        packed = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t.shape) or t, lambda t: t):
            y = (x * x.exp()).sum()
        return torch.autograd.grad(y, x), len(packed) > 0

    both(on_ranks, idiom)


def test_clipping_and_optimizers_of_sharded_parameters(on_ranks):
    def idiom(x):
        optimizer = torch.optim.Adam([x], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            (x ** 4).mean().backward()
            norm = torch.nn.utils.clip_grad_norm_([x], 0.5)
            optimizer.step()
        return x.detach(), norm

    both(on_ranks, idiom)


def test_autocast(on_ranks):
    layer = torch.nn.Linear(5, 4)

    def idiom(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = layer(x.float())
        assert y.dtype == torch.bfloat16
        return torch.autograd.grad(y.float().square().sum(), x)

    both(on_ranks, idiom)


def test_the_graph_is_freed_once_used(on_ranks):
    def check(world):
        x = st.scatter_tensor(WHOLE, 0, world.mesh(), st.Shard(0)).requires_grad_()
        loss = (x * x).sum()
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()

    on_ranks(2, check)
