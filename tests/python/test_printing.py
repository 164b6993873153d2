# SPDX-License-Identifier: Apache-2.0
"""Printing is for one rank alone: it shows what that rank knows and holds, and sends nothing."""
import pytest
import torch

import shardtensor as st

WHOLE = torch.arange(28.0).reshape(7, 4)


def test_one_rank_prints_while_the_others_go_on(on_ranks, capsys):
    def check(world):
        x = st.scatter_tensor(WHOLE, 0, world.mesh(), st.Shard(0), [3, 0, 4])
        counter = st.CommCounter()
        if world.rank == 2:
            print(x, [x], {"x": x * 2}, f"{x}")
        return counter.calls()

    assert on_ranks(3, check) == [0] * 3
    printed = capsys.readouterr().out
    assert printed.count("ShardTensor(shape=[7, 4]") == 4 and "27." in printed and "54." in printed


@pytest.mark.parametrize("placement, shows", [(st.Shard(0), "partitions={0: (3, 0, 4)}"), (st.Replicate(), "Replicate()"),
                                              (st.Partial("sum"), "Partial")])
def test_every_placement_has_a_text(on_ranks, placement, shows):
    def check(world):
        pieces = WHOLE.split([3, 0, 4])
        local = pieces[world.rank] if placement.is_shard() else WHOLE
        x = st.from_local(local, world.mesh(), placement, [3, 0, 4] if placement.is_shard() else [])
        counter = st.CommCounter()
        texts = repr(x), str(x.detach()), repr(st.ShardTensor(x)), st.describe(x), repr(st.spec(x))
        assert counter.calls() == 0
        return texts

    for texts in on_ranks(3, check):
        assert shows in texts[0] and shows in texts[1], texts
        assert all(placement.__repr__().split("(")[0] in text for text in texts), texts


def test_an_empty_shard_and_a_scalar(on_ranks):
    def check(world):
        x = st.scatter_tensor(WHOLE, 0, world.mesh(), st.Shard(0), [7, 0])
        mean = x.mean()
        return repr(x), f"{float(mean):.1f}", repr(mean)

    (full, mean, scalar), (empty, _, _) = on_ranks(2, check)
    assert "27." in full and "27." not in empty and "size=(0, 4)" in empty
    assert mean == "13.5" and "shape=[]" in scalar


def test_all_dtypes(on_ranks):
    def check(world):
        for dtype in (torch.float64, torch.bfloat16, torch.complex64, torch.int32, torch.bool):
            x = st.scatter_tensor(WHOLE.to(dtype), 0, world.mesh(), st.Shard(0))
            assert "shape=[7, 4]" in repr(x)
            assert (str(dtype) in repr(x)) == (str(dtype) in repr(WHOLE.to(dtype)))

    on_ranks(2, check)


def test_modules_and_parameters(on_ranks):
    def check(world):
        model = torch.nn.Linear(4, 7)
        model.weight = torch.nn.Parameter(st.scatter_tensor(WHOLE, 0, world.mesh(), st.Shard(0)))
        assert "in_features=4" in repr(model)
        text = repr(model.weight)
        assert "Parameter" in text and "ShardTensor(shape=[7, 4]" in text and "requires_grad=True" in text, text
        return "27." in text

    assert on_ranks(2, check) == [False, True]


def test_a_mesh_and_its_parts(on_ranks):
    def check(world):
        mesh = world.mesh({"ddp": 2, "domain": -1})
        return repr(mesh), repr(mesh["domain"]), repr(st.Shard(1)), repr(st.Partial("max"))

    for rank, (mesh, domain, shard, partial) in enumerate(on_ranks(2, check)):
        assert "ddp" in mesh and "domain" in mesh and f"rank {rank}" in mesh
        assert "domain" in domain and "ddp" not in domain
        assert shard == "Shard(1)" and "max" in partial
