# SPDX-License-Identifier: Apache-2.0
"""Patches written in Python, at both levels, for LibTorch's ops and for one's own."""
import torch

import shardtensor as st
from shardtensor.testing import numerical_shard_tensor_check

aten = torch.ops.aten


def wrapped(x, local):
    spec = st.spec(x)
    return st.from_local(local, spec.mesh, spec.placements, list(spec.partitions[spec.placements[0].dim]))


def test_a_function_handler_takes_over_until_it_is_removed(on_ranks):
    def check(world):
        x = st.scatter_tensor(torch.rand(6), 0, world.mesh(), st.Shard(0)).requires_grad_()
        with st.register_function_handler("aten::erfinv", lambda t: wrapped(t, st.local(t) * 3)):
            y = torch.erfinv(x)
        y.sum().backward()
        assert torch.equal(st.full(y), st.full(x) * 3) and torch.equal(st.full(x.grad), torch.full((6,), 3.0))
        assert torch.equal(st.full(torch.erfinv(x)), torch.erfinv(st.full(x)))

    on_ranks(2, check)


def test_a_handler_covers_some_cases_and_passes_on_the_others(on_ranks):
    def exp(x):
        return wrapped(x, st.local(x) * 0) if x.dim() == 1 else st.next_handler(aten.exp.default, x)

    def check(world):
        line = st.scatter_tensor(torch.ones(4), 0, world.mesh(), st.Shard(0))
        with st.register_function_handler("aten::exp", exp):
            assert float(line.exp().sum()) == 0
            assert torch.equal(st.full(line.reshape(2, 2).exp()), torch.ones(2, 2).exp())

    on_ranks(2, check)


def test_a_dispatch_handler_leaves_the_gradient_to_libtorch(on_ranks):
    def check(world):
        x = st.scatter_tensor(torch.rand(6, dtype=torch.float64), 0, world.mesh(), st.Shard(0))
        calls = []

        def sin(t):
            calls.append(t.shape)
            return wrapped(t, st.local(t).sin())

        with st.register_dispatch_handler("aten::sin", sin):
            numerical_shard_tensor_check(torch.sin, [x])
        assert calls == [torch.Size([6])]

    on_ranks(2, check)


def test_an_op_of_ones_own(on_ranks):
    with torch.library._scoped_library("shardtensor_tests", "FRAGMENT") as library:
        library.define("double(Tensor x, *, int times=2) -> Tensor")
        library.impl("double", lambda x, times=2: x * times, "CompositeExplicitAutograd")
        seen = []

        def double(x, times=2):
            seen.append(times)
            return wrapped(x, st.local(x) * times)

        def check(world):
            x = st.scatter_tensor(torch.ones(5), 0, world.mesh(), st.Shard(0), [4, 1])
            return st.full(torch.ops.shardtensor_tests.double(x, times=3)).tolist()

        with st.register_function_handler("shardtensor_tests::double", double):
            assert on_ranks(2, check) == [[3.0] * 5] * 2
        assert seen == [3, 3]
