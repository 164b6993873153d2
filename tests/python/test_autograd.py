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


def test_gradients_of_a_given_cotangent(on_ranks):
    def idiom(x):
        y = x.sin() * x
        a, = torch.autograd.grad(y, x, grad_outputs=torch.ones_like(y) * 2, retain_graph=True)
        y.backward(WHOLE, retain_graph=True)  # a plain tensor is the whole
        torch.autograd.backward([y, y.sum()], [torch.ones_like(y), None])
        return a, x.grad

    both(on_ranks, idiom)


def test_unused_and_unreached_inputs(on_ranks):
    def idiom(x):
        other = torch.ones_like(x).requires_grad_()
        a, b = torch.autograd.grad((x * 3).sum(), (x, other), allow_unused=True)
        c, d = torch.autograd.grad((x * 3).sum(), (x, other), materialize_grads=True)
        with pytest.raises(RuntimeError, match="allow_unused"):
            torch.autograd.grad((x * 3).sum(), (x, other))
        return a, b, c, d

    both(on_ranks, idiom)


def test_functional_derivatives(on_ranks):
    from torch.autograd import functional

    def idiom(x):
        def cubes(t):
            return (t ** 3).sum(1)

        value, vjp = functional.vjp(cubes, x, torch.ones(6, dtype=torch.float64))
        hessian = functional.hvp(lambda t: cubes(t).sum(), x, torch.ones_like(x).detach())[1]
        return value, vjp, hessian

    both(on_ranks, idiom)


def test_hooks_on_nodes_gradients_and_several_tensors(on_ranks):
    def idiom(x):
        seen = []
        x.register_post_accumulate_grad_hook(lambda leaf: seen.append(("leaf", leaf.grad.shape)))
        y, z = x.exp(), x.cos()
        y.grad_fn.register_hook(lambda inputs, outputs: seen.append(("node", outputs[0].shape)))
        y.grad_fn.register_prehook(lambda outputs: (outputs[0] * 3,))
        torch.autograd.graph.register_multi_grad_hook((y, z), lambda gradients: seen.append([g.shape for g in gradients]))
        removed = z.register_hook(lambda g: g * 100)
        removed.remove()
        (y * z).sum().backward()
        return x.grad, len(seen), set(map(str, seen)) == {"('leaf', torch.Size([6, 5]))", "('node', torch.Size([6, 5]))",
                                                       str([torch.Size([6, 5])] * 2)}

    both(on_ranks, idiom)


def test_hooks_that_change_what_modules_see(on_ranks):
    layers = torch.nn.Sequential(torch.nn.Linear(5, 3).double(), torch.nn.Tanh())

    def idiom(x):
        model = copy.deepcopy(layers)
        model[0].register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,))
        model[1].register_forward_hook(lambda module, inputs, output: output + inputs[0])
        model[1].register_full_backward_pre_hook(lambda module, gradients: (gradients[0] * 2,))
        model(x).square().sum().backward()
        return x.grad, model[0].weight.grad, model[0].bias.grad

    both(on_ranks, idiom)


def test_modes_nest(on_ranks):
    def idiom(x):
        with torch.no_grad():
            with torch.enable_grad():
                y = x * 2
            z = x * 2
        with torch.set_grad_enabled(False):
            w = x * 2
        return y.requires_grad, z.requires_grad, w.requires_grad, torch.no_grad()(lambda: (x * 2).requires_grad)()

    both(on_ranks, idiom)


def test_leaves_and_their_parents(on_ranks):
    def idiom(x):
        y = (x * 2).detach_().requires_grad_()
        (y * x).sum().backward()
        with pytest.raises(RuntimeError, match="leaf"):
            x.mul_(2)
        z = x.clone()
        z.mul_(3)
        with torch.no_grad():
            x += 1
        return y.grad, x.grad, x.is_leaf, y.is_leaf, z.is_leaf, z, type(z.grad_fn).__name__ == "MulBackward0"

    both(on_ranks, idiom)


def test_changing_what_the_backward_needs_is_noticed(on_ranks):
    def idiom(x):
        y = x.exp()
        z = y * y
        y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.sum().backward()

    both(on_ranks, idiom)


def test_anomalies_are_found(on_ranks):
    def idiom(x):
        y = (x * 0).sqrt() * 0
        with pytest.raises(RuntimeError, match="nan"):
            y.sum().backward()

    with pytest.warns(UserWarning), torch.autograd.detect_anomaly(check_nan=True):
        both(on_ranks, idiom)


def test_functions_that_change_their_input_or_have_several_outputs(on_ranks):
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, gradient):
            return gradient * 2

    class SinCos(torch.autograd.Function):
        @staticmethod
        def forward(x, scale):
            return (x * scale).sin(), (x * scale).cos()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*output)
            ctx.scale = inputs[1]

        @staticmethod
        def backward(ctx, of_sin, of_cos):
            sin, cos = ctx.saved_tensors
            return (of_sin * cos - of_cos * sin) * ctx.scale, None

    def idiom(x):
        sin, cos = SinCos.apply(Doubled.apply(x * 1), 3)
        return torch.autograd.grad((sin * cos * cos).sum(), x)

    both(on_ranks, idiom)


def test_what_a_graph_keeps_goes_when_its_result_is_dropped(on_ranks):
    """No backward is run: halos, blocks of attention and pending sums were exchanged for nothing."""
    from torch.nn import functional as F

    def check(world):
        account = st.MemoryAccount()
        q = st.scatter_tensor(torch.randn(1, 2, 64, 16), 0, world.mesh(), st.Shard(2), [30, 34, 0]).requires_grad_()
        weight = torch.randn(2, 2, 3, 3, requires_grad=True)
        levels = []
        for _ in range(8):
            F.conv2d(F.scaled_dot_product_attention(q, q, q), weight, padding=1).mean()
            st.redistribute(q, st.Shard(1))
            levels.append(account.live)
        assert levels[-1] <= levels[1], levels

    on_ranks(3, check)
