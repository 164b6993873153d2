# SPDX-License-Identifier: Apache-2.0
"""The judge judged: eight rules that are wrong on purpose, each in a way in which rules go wrong, are found out."""
import pytest
import torch
from torch.testing._internal.opinfo.core import SampleInput

import shardtensor as st
from judge import Judge, judge_error, plain_error, place_like
from units import Unit, entries, only_without_gradients, samples, units_of

aten = torch.ops.aten


def like(x, local):
    """A result that claims to lie like `x`."""
    spec = st.spec(x)
    partitions = [list(spec.partitions[p.dim]) if p.is_shard() else None for p in spec.placements]
    return st.from_local(local, spec.mesh, spec.placements, partitions if any(partitions) else [])


def without_the_other_ranks(op):
    """The local result, as if the cut dim were another one."""
    return lambda x, *args, **kwargs: like(x, op(st.local(x), *args, **kwargs))


def sum_that_forgets_ranks(x, **kwargs):
    return st.from_local(st.local(x).sum(**kwargs), st.spec(x).mesh, st.Replicate(), [])


def mean_of_means(x, **kwargs):
    local = st.local(x)
    return st.from_local(local.mean(**kwargs), st.spec(x).mesh, st.Partial("avg"), [])


def flip_of_the_pieces(x, dims):
    return like(x, st.local(x).flip(dims))


def gradient_doubled(x):
    return like(x, 2 * st.local(x).sin() - st.local(x).detach().sin())


def only_the_first_rank(x):
    return like(x, st.local(x).exp() if st.spec(x).mesh.rank == 0 else st.local(x) * 1)


def other_dtype(x):
    return like(x, st.local(x).tanh().double())


BROKEN = {
    "cumsum": ("aten::cumsum", without_the_other_ranks(aten.cumsum.default)),
    "softmax": ("aten::softmax.int", without_the_other_ranks(aten.softmax.int)),
    "sum": ("aten::sum", sum_that_forgets_ranks),
    "mean": ("aten::mean", mean_of_means),
    "flip": ("aten::flip", flip_of_the_pieces),
    "sin": ("aten::sin", gradient_doubled),
    "exp": ("aten::exp", only_the_first_rank),
    "tanh": ("aten::tanh", other_dtype),
}


@pytest.fixture(scope="module")
def ops():
    return entries()


def statuses(name, op):
    found = set()
    for index, sample in samples(name, op, cap=12):
        judge = Judge(op, sample)
        found |= {judge(unit).status for unit in units_of(name, index, sample)}
    return found


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_found_out_and_the_right_one_passes(ops, name):
    entry = next(key for key in (name, f"{name}_", f"nn_functional_{name}") if key in ops)
    with st.register_function_handler(*BROKEN[name]):
        assert "wrong" in statuses(entry, ops[entry])
    assert statuses(entry, ops[entry]) <= {"pass"}


def exp_of_everything(x):
    return place_like(st.local(st.redistribute(x, [st.Replicate()])).exp(), x)


def refused_in_two_ways(x):
    raise (st.SpecMismatch if st.spec(x).mesh.rank == 0 else st.MissingShardPatch)("no")


@pytest.mark.parametrize("rule, status", [(exp_of_everything, "gathered"), (refused_in_two_ways, "wrong")])
def test_what_a_rule_does_beside_its_result(ops, rule, status):
    with st.register_function_handler("aten::exp", rule):
        assert status in statuses("exp", ops["exp"])


def refusing(where):
    """An op that plain tensors may not have; ShardTensors neither on the ranks `where`."""
    def op(x):
        if not st.is_shard_tensor(x) or st.spec(x).mesh.rank in where:
            raise ValueError("no")
        return x
    return op


@pytest.mark.parametrize("where, status", [([0, 1], "pass"), ([0], "wrong"), ([], "wrong")])
def test_every_rank_rejects_what_the_plain_op_rejects(where, status):
    op, sample = refusing(where), SampleInput(torch.ones(3))
    assert isinstance(plain_error(op, sample), ValueError)
    assert judge_error(op, sample, Unit("x", "error 0", 0, "uneven_2")).status == status


def test_samples_that_exist_only_without_gradients():
    first, second = SampleInput(torch.ones(3), args=(1,)), SampleInput(torch.zeros(3), args=(2,))
    assert only_without_gradients([first], [second, first]) == [second]
    assert only_without_gradients([first, second], [first, second]) == []
