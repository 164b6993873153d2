# SPDX-License-Identifier: Apache-2.0
"""Errors of libshard are Python exceptions of their own classes, with their own text, on every rank."""
import pytest
import torch

import shardtensor as st


def sharded(world, dim=0):
    return st.scatter_tensor(torch.randn(6, 4), 0, world.mesh(), st.Shard(dim))


def test_the_classes_are_runtime_errors():
    assert issubclass(st.MissingShardPatch, st.Error) and issubclass(st.Error, RuntimeError)
    assert issubclass(st.CommTimeout, st.CommError)


def test_an_op_without_rule_is_refused_by_name_on_every_rank(on_ranks):
    def check(world):
        with pytest.raises(st.MissingShardPatch, match="aten::poisson"):
            torch.poisson(sharded(world).abs())
        return float(sharded(world).sum()) is not None  # the ranks go on

    assert on_ranks(3, check) == [True] * 3


def test_an_error_inside_an_operator_shows_its_own_text(on_ranks):
    def check(world):
        st.set_tensor_promotion_mode("disabled")
        x = sharded(world)
        with pytest.raises(st.SpecMismatch, match="promotion"):
            x + torch.ones(4)
        with pytest.raises(st.SpecMismatch, match="promotion"):
            torch.ones(4) - x

    try:
        on_ranks(2, check)
    finally:
        st.set_tensor_promotion_mode("silent")


def test_libtorchs_own_errors_stay_what_they_are(on_ranks):
    def check(world):
        with pytest.raises(IndexError):
            sharded(world)[9]
        with pytest.raises(TypeError):
            sharded(world) + object()

    on_ranks(2, check)


def test_an_error_in_the_backward_has_its_class(on_ranks):
    def broken(gradient):
        raise st.UndeterminedShardingError("[mine] not known")

    def check(world):
        x = sharded(world).requires_grad_()
        y = x.exp()
        y.register_hook(broken)
        with pytest.raises(st.UndeterminedShardingError, match="mine"):
            y.sum().backward()

    on_ranks(2, check)


def test_the_first_failing_ranks_exception_is_raised_and_the_others_are_told(on_ranks):
    told = []

    def check(world):
        if world.rank == 1:
            raise ValueError("rank 1 has had enough")
        try:
            float(sharded(world).sum())
        except st.PeerFailed as error:
            told.append(str(error))
            raise

    with pytest.raises(ValueError, match="had enough"):
        on_ranks(3, check)
    assert len(told) == 2 and all("rank 1 has had enough" in text for text in told)


def test_a_rank_that_never_comes_is_named():
    def check(world):
        if world.rank == 0:
            world.comm.barrier()

    with pytest.raises((st.CommError, st.PeerFailed)):
        st.run_ranks(2, check, timeout=5)


def test_different_calls_are_told_apart(on_ranks):
    def check(world):
        tensor = torch.zeros(2 + world.rank)
        world.comm.all_reduce(tensor)

    with pytest.raises(st.CommMismatch):
        on_ranks(2, check)


def test_bad_arguments_are_config_errors(on_ranks):
    with pytest.raises(st.ConfigError, match="sum, avg, max or min"):
        st.Partial("product")
    with pytest.raises(st.ConfigError):
        on_ranks(2, lambda world: world.mesh({"a": 3}))
    with pytest.raises(st.ConfigError):
        st.run_ranks(0, lambda world: None)


def test_a_plain_tensor_has_no_spec():
    with pytest.raises(st.SpecMismatch, match="scatter_tensor"):
        st.spec(torch.ones(2))
