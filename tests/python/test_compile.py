# SPDX-License-Identifier: Apache-2.0
"""torch.compile on functions of ShardTensors: captured without a graph break, run op by op, values and gradients as without it;
what cannot be captured breaks the graph and runs as it is."""
import copy
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import shardtensor as st
from shardtensor.testing import relative_error

SPLITS = {"even": [4, 4, 4], "uneven": [7, 0, 5]}


def whole(tensor):
    return st.full(tensor) if isinstance(tensor, torch.Tensor) and st.is_shard_tensor(tensor) else tensor


def data(*sizes):
    return torch.randn(sizes, dtype=torch.float64, generator=torch.Generator().manual_seed(4))


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


LAYERS = {"linear": nn.Linear(6, 4), "conv1d": nn.Conv1d(3, 4, 5, padding=2), "conv2d": nn.Conv2d(3, 4, 3, padding=1, stride=2),
          "norm": nn.GroupNorm(3, 3), "batch_norm": nn.BatchNorm1d(3)}
# name (of a layer, perhaps), sizes, dim that is cut, function of the tensor and of the layer
CASES = [
    ("mean", (12, 4), 0, lambda x, m: x.mean()), ("mean of a cut dim", (2, 12, 4), 1, lambda x, m: x.mean(1)),
    ("mean of another dim", (2, 12, 4), 1, lambda x, m: x.mean(0, keepdim=True)), ("sum", (2, 12), 1, lambda x, m: x.sum((0, 1))),
    ("view", (12, 4), 0, lambda x, m: x.view(12, 2, 2) * 2), ("merging view", (2, 12, 4), 1, lambda x, m: x.reshape(2, 48) * 2),
    ("flatten", (1, 12, 4), 1, lambda x, m: x.flatten(1).exp()), ("unbind", (12, 3), 0, lambda x, m: sum(x.unbind(1))),
    ("index_select of the cut dim", (12, 4), 0, lambda x, m: x.index_select(0, torch.tensor([9, 0, 5])) * 2),
    ("index_select of another dim", (12, 4), 0, lambda x, m: x.index_select(1, torch.tensor([3, 1, 3])) * 2),
    ("shapes", (12, 4), 0, lambda x, m: x.permute(1, 0).contiguous().unsqueeze(0) if x.shape[0] > x.shape[1] else x),
    ("linear", (2, 12, 6), 1, lambda x, m: F.gelu(m(x))), ("conv1d", (2, 3, 12), 2, lambda x, m: m(x).tanh()),
    ("conv2d", (2, 3, 12, 8), 2, lambda x, m: m(x).relu()), ("norm", (2, 3, 12), 2, lambda x, m: m(x)),
    ("batch_norm", (2, 3, 12), 2, lambda x, m: m(x)), ("softmax", (3, 12), 1, lambda x, m: x.softmax(1)),
    ("attention", (1, 2, 12, 4), 2, lambda x, m: F.scaled_dot_product_attention(x, x.sin(), x * 2)),
    ("loss", (12, 4), 0, lambda x, m: F.mse_loss(x.sin(), x))]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name, sizes, dim, function", CASES, ids=[case[0] for case in CASES])
def test_a_full_graph(on_ranks, name, sizes, dim, function, split):
    """The default backend, and fullgraph=True: nothing may break the graph."""
    x = data(*sizes)

    def outcome(x, function):
        module = copy.deepcopy(LAYERS[name]).double() if name in LAYERS else None
        y = function(x.requires_grad_(), module)
        weights = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).reshape(y.shape)
        parameters = list(module.parameters()) if module else []
        return [whole(t) for t in (y, *torch.autograd.grad((y * weights).sum(), [x, *parameters]))]

    expected = outcome(x.clone(), function)

    def check(world):
        compiled = torch.compile(function, fullgraph=True)
        for _ in range(2):  # the second call takes what the first has compiled
            got = outcome(st.scatter_tensor(x, 0, world.mesh(), st.Shard(dim), SPLITS[split]), compiled)
            assert max(map(relative_error, got, expected)) < 1e-10, (got, expected)

    on_ranks(3, check)


def test_on_a_mesh_of_two_dims(on_ranks):
    x, layer = data(2, 3, 8, 8), nn.Conv2d(3, 4, 3, padding=1).double()
    expected = layer(x).mean((2, 3))
    compiled = torch.compile(lambda x: layer(x).mean((2, 3)), fullgraph=True)

    def check(world):
        mesh = world.mesh({"rows": 2, "columns": 2})
        got = compiled(st.scatter_tensor(x, 0, mesh, [st.Shard(2), st.Shard(3)]))
        torch.testing.assert_close(whole(got), expected)

    on_ranks(4, check)


# ranks, mesh, and how a tensor of 12 x 6 lies on it: unevenly
MESHES = {"one mesh dim": (3, {"domain": 3}, [st.Shard(0)], [[7, 0, 5]]),
          "two mesh dims": (4, {"rows": 2, "columns": 2}, [st.Shard(0), st.Shard(1)], [[7, 5], [1, 5]])}
on_meshes = pytest.mark.parametrize("layout", MESHES.values(), ids=MESHES)
# of a tensor and the number of mesh dims
MOVES = {"to the whole": lambda x, n: st.redistribute(x, [st.Replicate()] * n),
         "to other pieces": lambda x, n: st.redistribute(x, [st.Shard(0), st.Shard(1)][:n],
                                                         [[1, 2, 9]] if n == 1 else [[3, 9], [6, 0]]),
         "to other dims": lambda x, n: st.redistribute(x, placements=[st.Shard(1), st.Shard(dim=0)][:n], partition=None),
         "there and back": lambda x, n: st.redistribute(st.redistribute(x, [st.Replicate()] * n).exp().log(), [st.Shard(1)] * n),
         "full": lambda x, n: st.full(x),
         "of the handle": lambda x, n: st.ShardTensor(x).redistribute([st.Replicate()] * n).full()}


@on_meshes
@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_moves_in_a_full_graph(on_ranks, move, layout):
    ranks, dims, placements, pieces = layout
    x = data(12, 6)

    def function(x):
        return move(x * 2, len(dims)) ** 2

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")

    def check(world):
        cut = st.scatter_tensor(x, 0, world.mesh(dims), placements, pieces)
        for _ in range(2):
            cut = cut.detach().requires_grad_()
            got, plainly = compiled(cut), function(cut)
            assert st.is_shard_tensor(got) == st.is_shard_tensor(plainly)
            assert not st.is_shard_tensor(got) or st.spec(got) == st.spec(plainly)
            torch.testing.assert_close(whole(got), (x * 2) ** 2)
            got.sum().backward()
            assert st.spec(cut.grad) == st.spec(cut)
            torch.testing.assert_close(whole(cut.grad), 8 * x)

    on_ranks(ranks, check)


# of a tensor, and what it is of its part
PARTS = {"of a leaf": (lambda x: st.local(x) ** 2, lambda x: x ** 2),
         "twice": (lambda x: st.local(x) * st.local(x), lambda x: x * x),
         "of a result": (lambda x: st.local(x * 2 + x) ** 2, lambda x: (x * 2 + x) ** 2),
         "of the handle": (lambda x: st.ShardTensor(x).local().exp(), lambda x: x.exp()),
         "its sizes": (lambda x: st.local(x).reshape(*st.local(x).shape, 1) * st.local(x).shape[0],
                       lambda x: x[..., None] * len(x))}


@on_meshes
@pytest.mark.parametrize("function, of_the_part", PARTS.values(), ids=PARTS)
def test_parts_in_a_full_graph(on_ranks, function, of_the_part, layout):
    """The ranks share the graph, and their parts differ in size."""
    ranks, dims, placements, pieces = layout
    x = data(12, 6)
    compiled = torch.compile(function, fullgraph=True)

    def check(world):
        for cuts in (pieces, [None] * len(dims)):
            cut = st.scatter_tensor(x, 0, world.mesh(dims), placements, cuts).requires_grad_()
            part = st.local(cut.detach()).requires_grad_()
            if part.numel() == 0:
                compiled(cut).sum().backward()
                continue
            got, expected = compiled(cut), of_the_part(part)
            torch.testing.assert_close(got, expected)
            got.sum().backward()
            torch.testing.assert_close(st.local(cut.grad), torch.autograd.grad(expected.sum(), part)[0])

    on_ranks(ranks, check)


def test_the_size_of_a_part_that_decides_breaks_the_graph(on_ranks):
    def function(x):
        part = st.local(x * 2)
        return part.sum() if part.shape[0] > 4 else part.numel()

    compiled = torch.compile(function)

    def check(world):
        cut = st.scatter_tensor(data(12, 2), 0, world.mesh(), st.Shard(0), [7, 0, 5])
        assert compiled(cut) == function(cut)

    on_ranks(3, check)


def test_moves_of_plain_tensors_are_refused(on_ranks):
    """As without torch.compile, and whatever the backend would have made of them."""
    functions = [lambda x: st.redistribute(x.exp(), st.Replicate()), lambda x: st.full(x * 2), lambda x: st.local(x),
                 lambda x: st.ShardTensor(x)]
    for function in functions:
        with pytest.raises(st.SpecMismatch, match="plain tensor"):
            torch.compile(function, fullgraph=True)(data(3))


def test_placements_and_pieces_are_guarded(on_ranks):
    compiled = torch.compile(lambda x, where, pieces: st.redistribute(x * 2, where, pieces), fullgraph=True)

    def check(world):
        cut = st.scatter_tensor(data(12, 6), 0, world.mesh(), st.Shard(0), [12, 0])
        for where, pieces in ((st.Replicate(), None), (st.Shard(0), [2, 10]), (st.Shard(0), [7, 5]), (st.Shard(0), [9, 3]),
                              (st.Replicate(), None)):
            got = compiled(cut, where, pieces)
            assert st.spec(got) == st.spec(st.redistribute(cut * 2, where, pieces))
            torch.testing.assert_close(whole(got), data(12, 6) * 2)

    on_ranks(2, check)


def test_an_index_that_is_whole_on_every_rank(on_ranks):
    x, rows = data(12, 6), torch.tensor([9, 0, 5, 9])
    compiled = torch.compile(lambda x, rows: torch.index_select(x, 1, rows.flatten() % 6).exp(), fullgraph=True)

    def check(world):
        cut = st.scatter_tensor(x, 0, world.mesh(), st.Shard(0), [7, 0, 5])
        got = compiled(cut, st.scatter_tensor(rows, 0, world.mesh(), st.Replicate()))
        torch.testing.assert_close(whole(got), x.index_select(1, rows % 6).exp())

    on_ranks(3, check)


@on_meshes
@pytest.mark.parametrize("reduce", [torch.sum, torch.mean])
def test_gradients_of_reductions(on_ranks, reduce, layout):
    ranks, dims, placements, pieces = layout
    x = data(12, 6).requires_grad_()
    expected, = torch.autograd.grad(reduce(x ** 2), x)
    compiled = torch.compile(lambda x: reduce(x ** 2), fullgraph=True, backend="aot_eager")

    def check(world):
        cut = st.scatter_tensor(x.detach(), 0, world.mesh(dims), placements, pieces).requires_grad_()
        compiled(cut).backward()
        assert st.spec(cut.grad) == st.spec(cut)
        torch.testing.assert_close(whole(cut.grad), expected)

    on_ranks(ranks, check)


@pytest.mark.parametrize("is_pending", [False, True])
def test_the_gradient_that_leaves_a_graph_is_cut_too(on_ranks, is_pending):
    """From a compiled layer into an op that is not: of a cut tensor, and of one that is a pending sum."""
    x, layer = data(1, 12, 6), nn.Linear(6, 4).double()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")

    def gradient(x, weight, layer, seen):
        hidden = F.linear(x, weight)
        hidden = hidden.mean(1) if is_pending else hidden
        hidden.register_hook(lambda g: seen.append(st.is_shard_tensor(g)))
        return torch.autograd.grad(layer(hidden).sum(), weight)[0]

    expected = gradient(x, torch.eye(6, dtype=x.dtype, requires_grad=True), layer, [])

    def check(world):
        cut, seen = st.scatter_tensor(x, 0, world.mesh(), st.Shard(1), [7, 0, 5]), []
        for _ in range(2):
            torch.testing.assert_close(gradient(cut, torch.eye(6, dtype=x.dtype, requires_grad=True), compiled, seen), expected)
        assert seen == [True, True]

    on_ranks(3, check)


PRODUCTS = {"pointwise": ((6,), lambda x, weight: x * weight), "linear": ((4, 6), F.linear)}


@on_meshes
@pytest.mark.parametrize("sizes, product", PRODUCTS.values(), ids=PRODUCTS)
def test_a_pending_gradient_enters_a_graph(on_ranks, sizes, product, layout):
    """Weights that are whole on every rank, made by a compiled function: each rank's part of the batch has its own gradient."""
    ranks, dims, _, _ = layout
    x, weight = data(8, 5, 6), data(*sizes)
    plain = weight.clone().requires_grad_()
    product(x, plain.sin() * 2).sum().backward()
    compiled = torch.compile(lambda w: w.sin() * 2, fullgraph=True, backend="aot_eager")

    def check(world):
        mesh, others = world.mesh(dims), [st.Replicate()] * (len(dims) - 1)
        cut = st.scatter_tensor(x, 0, mesh, [st.Shard(0)] + others)
        for _ in range(2):
            own = weight.clone().requires_grad_()
            made = compiled(st.from_local(own, mesh, [st.Replicate()] + others))
            st.full(product(cut, made)).sum().backward()
            torch.testing.assert_close(own.grad, plain.grad)

    on_ranks(ranks, check)


@on_meshes
def test_a_gradient_that_is_a_pending_sum(on_ranks, layout):
    ranks, dims, _, _ = layout
    compiled = torch.compile(lambda x: x.sin(), fullgraph=True)
    x = data(8, 4)

    def check(world):
        mesh = world.mesh(dims)
        cut = st.scatter_tensor(x, 0, mesh, [st.Replicate()] * len(dims)).requires_grad_()
        pending = st.from_local(torch.full_like(x, world.rank + 1), mesh, [st.Partial()] * len(dims), [None] * len(dims))
        compiled(cut).backward(pending)
        torch.testing.assert_close(whole(cut.grad), x.cos() * sum(range(1, ranks + 1)))

    on_ranks(ranks, check)


def test_tensors_made_inside(on_ranks):
    """Making one breaks the graph: what comes before and after it is compiled."""
    def check(world):
        mesh = world.mesh()

        def function(part):
            cut = st.from_local(part * 2, mesh, st.Shard(0), [7, 0, 5])
            return st.local(cut) + 1

        compiled = torch.compile(function, backend="aot_eager")
        for _ in range(2):
            part = st.local(st.scatter_tensor(data(12, 2), 0, mesh, st.Shard(0), [7, 0, 5]))
            torch.testing.assert_close(compiled(part), part * 2 + 1)

    on_ranks(3, check)


def test_compile_imported_before_the_package():
    """Dynamo is loaded when something is compiled, and taught then, whoever asks for it."""
    program = """
import sys
from torch import compile
assert "torch._dynamo" not in sys.modules
import torch, shardtensor as st
assert "torch._dynamo" not in sys.modules

def check(world):
    x = torch.arange(6.0)
    cut = st.scatter_tensor(x, 0, world.mesh(), st.Shard(0))
    whole = compile(lambda x: st.full(x * 2) + 1, fullgraph=True)(cut)
    assert torch.equal(whole, x * 2 + 1)

st.run_ranks(2, check, timeout=60)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


def test_a_model_trains_as_without_it(on_ranks):
    import unet
    expected = unet.train(*unet.model_and_data())

    def check(world):
        model, x, y = unet.model_and_data()
        model.compile(fullgraph=True)
        x, y = (st.scatter_tensor(t, 0, world.mesh(), st.Shard(2)) for t in (x, y))
        return unet.train(model, x, y)

    for weights in on_ranks(3, check):
        unet.assert_equal_weights(weights, expected)


def test_parts_of_a_model(on_ranks):
    """As Python code compiles the blocks of a network one by one."""
    x = data(2, 3, 12)
    blocks = nn.Sequential(nn.Conv1d(3, 3, 3, padding=1), nn.GELU(), nn.GroupNorm(1, 3)).double()
    expected = blocks(x)

    def check(world):
        model = copy.deepcopy(blocks)
        for block in model:
            block.compile()
        torch.testing.assert_close(whole(model(st.scatter_tensor(x, 0, world.mesh(), st.Shard(2), [7, 0, 5]))), expected)

    on_ranks(3, check)


def test_gradients_that_lie_otherwise(on_ranks):
    """Where the graph's result was cut, its gradient may be whole, cut along another dim, or in other pieces."""
    x, cotangent = data(12, 6), data(12, 6)
    compiled = torch.compile(lambda x: x.sin() * x, fullgraph=True)
    plain = x.clone().requires_grad_()
    (plain.sin() * plain).backward(cotangent)

    def check(world):
        mesh = world.mesh()
        for where, pieces in ((st.Shard(0), [7, 0, 5]), (st.Shard(0), [4, 4, 4]), (st.Shard(1), [2, 2, 2]), (None, None)):
            cut = st.scatter_tensor(x, 0, mesh, st.Shard(0), [7, 0, 5]).requires_grad_()
            gradient = cotangent if where is None else st.scatter_tensor(cotangent, 0, mesh, where, pieces)
            compiled(cut).backward(gradient)
            torch.testing.assert_close(whole(cut.grad), plain.grad)

    on_ranks(3, check)


def test_other_pieces_and_sizes_and_plain_tensors_in_turn(on_ranks):
    compiled = torch.compile(lambda x: (x * 2).sum(0), backend="aot_eager")

    def check(world):
        for sizes, pieces in (((12, 4), [4, 4, 4]), ((12, 4), [12, 0, 0]), ((9, 4), [1, 3, 5]), ((7, 2), [0, 7, 0])):
            x = data(*sizes)
            torch.testing.assert_close(compiled(x), (x * 2).sum(0))
            torch.testing.assert_close(whole(compiled(st.scatter_tensor(x, 0, world.mesh(), st.Shard(0), pieces))), (x * 2).sum(0))

    on_ranks(3, check)


def test_plain_tensors_go_to_the_backend_and_cut_ones_do_not(on_ranks):
    seen = []

    def backend(graph, inputs):
        seen.append([st.is_shard_tensor(x) for x in inputs if isinstance(x, torch.Tensor)])
        return graph.forward

    compiled = torch.compile(lambda x: x.cos() + 1, backend=backend)

    def check(world):
        x = data(6, 2)
        torch.testing.assert_close(whole(compiled(st.scatter_tensor(x, 0, world.mesh(), st.Shard(0)))), x.cos() + 1)
        torch.testing.assert_close(compiled(x), x.cos() + 1)

    on_ranks(2, check)
    assert seen and not any(map(any, seen))


def test_what_decides_by_a_value_breaks_the_graph(on_ranks):
    """The number is summed over the ranks: each takes the same branch."""
    def function(x):
        y = x * 2
        if y.sum() > 0:
            return y.exp()
        return st.redistribute(y, st.Replicate())

    compiled = torch.compile(function)

    def check(world):
        for sign in (1, -1):
            x = data(12, 2).abs() * sign
            got = compiled(st.scatter_tensor(x, 0, world.mesh(), st.Shard(0), [7, 0, 5]))
            torch.testing.assert_close(whole(got), (x * 2).exp() if sign > 0 else x * 2)
            assert st.spec(got).placements == ((st.Shard(0),) if sign > 0 else (st.Replicate(),))

    on_ranks(3, check)


def test_a_full_graph_of_what_cannot_be_captured_is_refused(on_ranks):
    from torch._dynamo.exc import Unsupported
    compiled = torch.compile(lambda x: x * 2 if x.sum() > 0 else x, fullgraph=True)

    def check(world):
        with pytest.raises(Unsupported):
            compiled(st.scatter_tensor(data(4), 0, world.mesh(), st.Shard(0)))

    on_ranks(2, check)


def test_a_number_in_a_full_graph(on_ranks):
    compiled = torch.compile(lambda x: x * float(x.sum()), fullgraph=True)

    def check(world):
        got = compiled(st.scatter_tensor(data(12), 0, world.mesh(), st.Shard(0), [7, 0, 5]))
        torch.testing.assert_close(whole(got), data(12) * float(data(12).sum()))

    on_ranks(3, check)


def test_scalars_are_not_read_while_compiling(on_ranks):
    """A pending sum of one number: reading it communicates, and only one thread compiles."""
    compiled = torch.compile(lambda x, s: x * s, fullgraph=True)

    def check(world):
        x = st.scatter_tensor(data(12), 0, world.mesh(), st.Shard(0))
        total = x.sum()
        torch.testing.assert_close(whole(compiled(x, total)), data(12) * data(12).sum())
        count = st.from_local(torch.tensor(world.rank), world.mesh(), st.Partial("sum"), [])
        torch.testing.assert_close(whole(compiled(x, count)), data(12) * 3)

    on_ranks(3, check)


def test_writing_into_an_argument(on_ranks):
    def function(x):
        x.mul_(2)
        x[1:5] += 1
        return x.sum()

    x = data(12, 2)
    expected = function(x.clone()), x.clone()
    function(expected[1])
    compiled = torch.compile(function, fullgraph=True)

    def check(world):
        cut = st.scatter_tensor(x, 0, world.mesh(), st.Shard(0), [7, 0, 5])
        torch.testing.assert_close(whole(compiled(cut)), expected[0])
        torch.testing.assert_close(whole(cut), expected[1])

    on_ranks(3, check)


def test_modes_inside(on_ranks):
    layer = nn.Linear(4, 3)

    def function(x):
        with torch.no_grad():
            scale = x.abs().amax()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = layer(x / scale)
        return y, scale

    x = data(12, 4).float()
    compiled = torch.compile(function, fullgraph=True)
    want, want_scale = function(x)

    def check(world):
        got, scale = compiled(st.scatter_tensor(x, 0, world.mesh(), st.Shard(0)).requires_grad_())
        assert got.dtype == torch.bfloat16 and not scale.requires_grad
        torch.testing.assert_close(whole(got), want)
        torch.testing.assert_close(whole(scale), want_scale)

    on_ranks(2, check)


def test_an_optimizer_of_cut_parameters(on_ranks):
    x = data(12, 4)

    def train(x, compiled):
        optimizer = torch.optim.Adam([x], lr=0.1)
        step = torch.compile(optimizer.step) if compiled else optimizer.step
        for _ in range(3):
            optimizer.zero_grad()
            (x ** 4).mean().backward()
            step()
        return whole(x.detach())

    expected = train(x.clone().requires_grad_(), False)

    def check(world):
        got = train(st.scatter_tensor(x, 0, world.mesh(), st.Shard(0), [7, 5]).requires_grad_(), True)
        torch.testing.assert_close(got, expected)

    on_ranks(2, check)


def test_equal_specs_have_equal_hashes(on_ranks):
    def check(world):
        a, b = (st.scatter_tensor(data(12, 2), 0, world.mesh(), st.Shard(0), [7, 0, 5]) for _ in range(2))
        other = st.redistribute(a, st.Shard(0), [4, 4, 4])
        assert st.spec(a) == st.spec(b) == st.spec(a * 2) and hash(st.spec(a)) == hash(st.spec(b))
        assert st.spec(a) != st.spec(other) and len({st.spec(a), st.spec(b), st.spec(other)}) == 2
        return hash(st.spec(a))

    assert len(set(on_ranks(3, check))) == 1
