# SPDX-License-Identifier: Apache-2.0
"""Modules whose own parameters or buffers are ShardTensors: what torch.nn does with any parameter."""
import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import shardtensor as st

POSITION = torch.linspace(-1, 1, 28, dtype=torch.float64).reshape(7, 4)
INPUT = torch.linspace(-2, 2, 56, dtype=torch.float64).reshape(2, 7, 4)


class Embedded(nn.Module):
    """A position embedding as large as the sample, cut as the sample is; the other weights are plain."""

    def __init__(self, position, seen):
        super().__init__()
        self.position = nn.Parameter(position)
        self.register_buffer("seen", seen)
        self.layer = nn.Linear(4, 3).double()

    def forward(self, x):
        self.seen += 1
        return self.layer(x + self.position)


def plain_model():
    torch.manual_seed(2)
    return Embedded(POSITION.clone(), torch.zeros(7, 1))


def cut(world, tensor, dim):
    return st.scatter_tensor(tensor, 0, world.mesh(), st.Shard(dim), [3, 0, 4])


def sharded_model(world):
    torch.manual_seed(2)
    return Embedded(cut(world, POSITION, 0), cut(world, torch.zeros(7, 1), 0))


def whole(tensor):
    return st.full(tensor.detach()) if st.is_shard_tensor(tensor) else tensor


def train(model, x, steps=3):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    return {name: whole(value) for name, value in model.state_dict().items()}


def test_it_trains_as_the_plain_one(on_ranks):
    expected = train(plain_model(), INPUT)

    def check(world):
        torch.testing.assert_close(train(sharded_model(world), cut(world, INPUT, 1)), expected)

    on_ranks(3, check)


def test_a_copy_is_a_model_of_its_own(on_ranks):
    def check(world):
        model = sharded_model(world)
        x = cut(world, INPUT, 1)
        model(x).sum().backward()
        twin = copy.deepcopy(model)
        assert isinstance(twin.position, nn.Parameter) and st.spec(twin.position) == st.spec(model.position)
        assert twin.position.grad is None  # as of any copied parameter
        before = whole(twin.position)
        expected = train(model, x)
        assert torch.equal(whole(twin.position), before)
        twin.seen.zero_()
        model.seen.zero_()
        trained = train(twin, x)
        torch.testing.assert_close(trained["position"], expected["position"])

    on_ranks(3, check)


def test_tied_parameters_stay_tied_in_a_copy(on_ranks):
    def check(world):
        model = nn.ModuleDict({"a": sharded_model(world), "b": sharded_model(world)})
        model["b"].position = model["a"].position
        twin = copy.deepcopy(model)
        assert twin["b"].position is twin["a"].position and twin["a"].position is not model["a"].position

    on_ranks(3, check)


def test_state_dict_there_and_back(on_ranks):
    def check(world):
        model, other = sharded_model(world), sharded_model(world)
        train(model, cut(world, INPUT, 1))
        assert list(model.state_dict()) == ["position", "seen", "layer.weight", "layer.bias"]
        other.load_state_dict(model.state_dict())
        for a, b in zip(model.state_dict().values(), other.state_dict().values()):
            assert torch.equal(whole(a), whole(b))
        with pytest.raises(RuntimeError, match="size mismatch"):
            other.load_state_dict({**model.state_dict(), "position": torch.ones(2, 2)})

    on_ranks(3, check)


def test_a_plain_state_dict_loads_into_cut_parameters(on_ranks):
    """Every rank has the whole file and keeps its own rows."""
    source = plain_model()
    train(source, INPUT)

    def check(world):
        model = sharded_model(world)
        model.load_state_dict(source.state_dict())
        assert st.is_shard_tensor(model.position) and torch.equal(whole(model.position), source.position)

    on_ranks(3, check)


def test_saving_says_what_to_do_and_the_way_it_names_works(on_ranks, tmp_path):
    def check(world):
        model = sharded_model(world)
        for write in (pickle.dumps, lambda m: torch.save(m, io.BytesIO()), lambda m: torch.save(m.state_dict(), io.BytesIO()),
                      lambda m: pickle.dumps(m.position)):
            with pytest.raises(st.SpecMismatch, match=r"shardtensor\.full\(x\)"):
                write(model)
        state = {name: whole(value) for name, value in model.state_dict().items()}  # collective
        if world.is_root:
            torch.save(state, tmp_path / "whole.pt")
        world.comm.barrier()
        torch.save(st.local(model.position.detach()), tmp_path / f"part{world.rank}.pt")
        sharded_model(world).load_state_dict(torch.load(tmp_path / "whole.pt"))
        part = torch.load(tmp_path / f"part{world.rank}.pt")
        assert torch.equal(st.full(st.from_local(part, world.mesh(), st.Shard(0))), whole(model.position))

    on_ranks(3, check)


def test_conversions(on_ranks):
    def check(world):
        model = sharded_model(world).float()
        assert model.position.dtype == torch.float32 and st.is_shard_tensor(model.position)
        assert isinstance(model.position, nn.Parameter) and model.position.requires_grad
        torch.testing.assert_close(whole(model.position), POSITION.float())
        model.to(torch.float64).to("cpu").requires_grad_(False).eval()
        assert not model.position.requires_grad and model.position.dtype == torch.float64
        assert sum(p.numel() for p in model.parameters()) == 28 + 12 + 3
        model.requires_grad_().zero_grad()
        model(cut(world, INPUT, 1)).sum().backward()
        model.zero_grad(set_to_none=False)
        assert torch.equal(whole(model.position.grad), torch.zeros(7, 4, dtype=torch.float64))

    on_ranks(3, check)


def test_initialisers_draw_what_one_device_draws(on_ranks):
    torch.manual_seed(5)
    expected = nn.init.normal_(torch.empty(7, 4)), nn.init.uniform_(torch.empty(7, 4)), nn.init.ones_(torch.empty(7, 4))

    def check(world):
        torch.manual_seed(5)
        weight = nn.Parameter(st.empty([7, 4], world.mesh(), st.Shard(0), partition=[3, 0, 4]))
        for fill, want in zip((nn.init.normal_, nn.init.uniform_, nn.init.ones_), expected):
            torch.testing.assert_close(whole(fill(weight)).detach(), want)

    on_ranks(3, check)


def test_the_state_of_an_optimizer_is_cut_as_its_parameter_and_can_be_loaded(on_ranks):
    def check(world):
        x = cut(world, INPUT, 1)
        model = sharded_model(world)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        F.mse_loss(model(x), torch.zeros_like(model(x))).backward()
        optimizer.step()
        state = optimizer.state[model.position]["exp_avg"]
        assert st.spec(state).placements == (st.Shard(0),) and st.spec(state).partitions == {0: (3, 0, 4)}
        twin = copy.deepcopy(model)
        other = torch.optim.AdamW(twin.parameters(), lr=0.1)
        other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        for stepped, parameters in ((optimizer, model), (other, twin)):
            stepped.zero_grad()
            parameters(x).square().mean().backward()
            stepped.step()
        assert torch.equal(whole(twin.position), whole(model.position))

    on_ranks(3, check)
