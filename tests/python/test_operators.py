# SPDX-License-Identifier: Apache-2.0
"""Operators and indexing of Python on ShardTensors give the values that they give on plain tensors."""
import operator

import pytest
import torch

import shardtensor as st

A = torch.linspace(0.5, 4, 28, dtype=torch.float64).reshape(7, 4)
B = torch.linspace(3, 1, 28, dtype=torch.float64).reshape(7, 4)
N = torch.arange(28).reshape(7, 4)
SPLIT = [2, 0, 5]


def whole(value):
    if isinstance(value, (list, tuple)):
        return [whole(part) for part in value]
    return st.full(value) if isinstance(value, torch.Tensor) and st.is_shard_tensor(value) else value


def same(on_ranks, function, *plain):
    """function(*tensors) on plain tensors and on cut ones."""
    expected = whole(function(*(tensor.clone() for tensor in plain)))

    def check(world):
        cut = (st.scatter_tensor(tensor, 0, world.mesh(), st.Shard(0), SPLIT) for tensor in plain)
        torch.testing.assert_close(whole(function(*cut)), expected)

    on_ranks(3, check)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "eq", "ne", "lt", "le", "gt", "ge"])
def test_binary(on_ranks, name):
    op = getattr(operator, name)
    same(on_ranks, lambda a, b: (op(a, b), op(a, 2), op(2, a), op(a, A[0])), A, B)
    if name not in ("eq", "ne", "lt", "le", "gt", "ge"):
        inplace = getattr(operator, f"i{name}")
        same(on_ranks, lambda a, b: (inplace(a, b), inplace(a, 2), a), A, B)


@pytest.mark.parametrize("name", ["and_", "or_", "xor", "lshift", "rshift"])
def test_bits(on_ranks, name):
    op = getattr(operator, name)
    same(on_ranks, lambda n: (op(n, n % 5), op(n, 3)), N)


def test_unary_and_matrix_products(on_ranks):
    same(on_ranks, lambda a, n: (-a, +a, abs(-a), ~n, ~(a > 1), a.round(), a @ a.T, a.T @ a, a @ A[0], a.T @ A), A, N)


def test_sizes_that_depend_on_values_of_a_transposed_tensor(on_ranks):
    mask = torch.tensor([True, False, True, True])
    same(on_ranks, lambda a: ((a.T > 2).nonzero(), a.T[mask, torch.tensor([1, 0, 6])], a[:, ::3][a[:, 0] > 2, 1]), A)


def test_numbers_and_truth(on_ranks):
    same(on_ranks, lambda a: (float(a.sum()), int(a.sum()), bool((a > 0).all()), len(a), a.numel(), a.dim(), a.sum().item(),
                              a.shape, a.T.shape, a.size(1), a.nelement(), str(a.dtype) == "torch.float64", a.is_cpu, a.is_floating_point()), A)
    same(on_ranks, lambda a: (3.0 in a, -1.0 in a), A)


def test_a_whole_tensor_has_no_truth(on_ranks):
    def check(world):
        with pytest.raises(RuntimeError, match="ambiguous"):
            bool(st.scatter_tensor(A, 0, world.mesh(), st.Shard(0)))

    on_ranks(2, check)


def test_iterating_and_unpacking(on_ranks):
    def iterate(a):
        first, *_, last = a.unbind(1)
        return first, last, [row.sum() for row in a], [*a.split([3, 4])], [*a.chunk(2, 1)], list(reversed(a)), sum(a)

    same(on_ranks, iterate, A)


@pytest.mark.parametrize("name, index", [
    ("integer", (3,)), ("negative", (-1,)), ("two integers", (4, 2)), ("slice", (slice(1, 6),)), ("step", (slice(None, None, 3),)),
    ("of the other dim", (slice(None), slice(1, 3))), ("negative slice", (slice(-4, -1), -1)), ("none", (None, ..., None)),
    ("ellipsis", (..., 2)), ("list", ([5, 0, 5],)), ("list of the other dim", (slice(None), [3, 1])),
    ("tensor", (torch.tensor([6, 2]),)), ("table", (torch.tensor([[6, 2], [0, 0]]),)), ("nothing", (slice(3, 3),)),
    ("true", (True,))])
def test_reading_an_index(on_ranks, name, index):
    same(on_ranks, lambda a: a[index], A)


@pytest.mark.parametrize("name, index", [
    ("row", (slice(3, 4),)), ("slice", (slice(1, 6),)), ("step", (slice(None, None, 3),)), ("column", (slice(None), 1)),
    ("ellipsis", (..., slice(1, 3))), ("list", ([5, 0],)), ("element", (slice(4, 5), 2))])
def test_writing_an_index(on_ranks, name, index):
    def write(a, b):
        a[index] = 7
        a[index] += 1
        b[index] = a[index] * 2
        return a, b

    same(on_ranks, write, A, B)


def test_writing_one_cut_row_by_its_number_is_refused(on_ranks):
    """x[3] of the cut dim is a copy on the other ranks; x[3:4] is a view."""
    def check(world):
        x = st.scatter_tensor(A, 0, world.mesh(), st.Shard(0), SPLIT)
        with pytest.raises(st.SpecMismatch, match="view that is a copy"):
            x[3] = 7
        assert torch.equal(st.full(x), A)

    on_ranks(3, check)


def test_a_mask_picks_what_it_picks_on_one_device(on_ranks):
    same(on_ranks, lambda a, b: (a[a > 1], b[b[:, 0] > 2], a[a > 100]), A, B)


def test_a_mask_that_writes_one_value(on_ranks):
    def write(a, b):
        a[a > 2] = 0
        b[b[:, 0] > 2] = 5
        return a, b

    same(on_ranks, write, A, B)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "eq", "lt"])
def test_an_error_in_an_operator_keeps_its_class_and_text(on_ranks, name):
    """Not the TypeError that an operator raises whose implementation gave up."""
    op = getattr(operator, name)

    def broken(*_, **__):
        raise st.UndeterminedShardingError("[mine] my own text")

    overload = {"truediv": "div.Tensor", "mod": "remainder.Tensor", "floordiv": "floor_divide", "pow": "pow.Tensor_Tensor",
                "matmul": "matmul"}.get(name, name + ".Tensor")

    def check(world):
        x = st.scatter_tensor(torch.ones(4, 4), 0, world.mesh(), st.Shard(0))
        y = st.scatter_tensor(torch.ones(4, 4), 0, world.mesh(), st.Shard(1))
        with st.register_function_handler(f"aten::{overload}", broken):
            with pytest.raises(st.UndeterminedShardingError, match="my own text"):
                op(x, y)
        with st.register_function_handler(f"aten::{overload}", lambda: None):  # a TypeError when it is called
            with pytest.raises(st.Error, match="in the handler: TypeError"):
                op(x, y)
        with pytest.raises(RuntimeError, match="must match|equal contracted sizes"):
            op(x, st.scatter_tensor(torch.ones(3, 3), 0, world.mesh(), st.Shard(0)))

    on_ranks(2, check)


def test_hash_and_identity(on_ranks):
    def check(world):
        x = st.scatter_tensor(A, 0, world.mesh(), st.Shard(0))
        y = x.clone()
        assert len({x, y, x}) == 2 and {x: 1}[x] == 1 and isinstance(x, torch.Tensor) and type(x) is torch.Tensor
        assert x.is_same_size(y) and x.contiguous() is x

    on_ranks(2, check)
