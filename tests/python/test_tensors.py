# SPDX-License-Identifier: Apache-2.0
"""Making, asking and moving ShardTensors from Python, and what Python code does with any tensor."""
import copy
import io
import pickle
import resource

import pytest
import torch

import shardtensor as st

WHOLE = torch.arange(28.0).reshape(7, 4)


def test_every_rank_has_its_piece_and_the_global_shape(on_ranks):
    def check(world):
        x = st.scatter_tensor(WHOLE if world.is_root else None, 0, world.mesh(), st.Shard(0), [4, 0, 3])
        assert x.shape == (7, 4) and st.spec(x).partitions == {0: (4, 0, 3)}
        assert torch.equal(st.full(x), WHOLE)
        return st.local(x)

    pieces = on_ranks(3, check)
    assert [len(piece) for piece in pieces] == [4, 0, 3]
    assert torch.equal(torch.cat(pieces), WHOLE)


def test_parts_of_their_own_sizes_are_agreed_upon(on_ranks):
    def check(world):
        x = st.from_local(torch.full((world.rank, 2), float(world.rank)), world.mesh(), st.Shard(0))
        return st.spec(x).partitions[0]

    assert on_ranks(3, check) == [(0, 1, 2)] * 3


def test_redistribute_keeps_the_values_and_the_gradient(on_ranks):
    def check(world):
        x = st.scatter_tensor(WHOLE, 0, world.mesh(), st.Shard(0)).requires_grad_()
        y = st.redistribute(x, st.Shard(1), [1, 0, 3])
        assert torch.equal(st.full(y), WHOLE) and st.spec(y).partitions == {1: (1, 0, 3)}
        (y * WHOLE).sum().backward()
        assert torch.equal(st.full(x.grad), WHOLE)

    on_ranks(3, check)


def test_the_handle_asks_and_moves(on_ranks):
    def check(world):
        x = st.scatter_tensor(WHOLE, 0, world.mesh(), st.Shard(0), [4, 0, 3]).requires_grad_()
        handle = st.ShardTensor(x)
        assert handle.tensor is x and handle.spec() == st.spec(x)
        assert torch.equal(handle.local(), st.local(x)) and torch.equal(handle.full(), WHOLE)
        moved = handle.redistribute(st.Shard(1), [1, 0, 3])
        assert isinstance(moved, st.ShardTensor) and moved.spec().partitions == {1: (1, 0, 3)}
        assert torch.equal(moved.full(), WHOLE) and moved.local().shape == (7, [1, 0, 3][world.rank])
        assert handle.redistribute([st.Replicate()]).spec().placements == (st.Replicate(),)
        (moved.full() * WHOLE).sum().backward()
        assert torch.equal(st.full(x.grad), WHOLE)
        whole = st.ShardTensor(st.redistribute(x, st.Replicate()))
        pending, = torch.autograd.grad(whole.local(st.Partial()).sum(), [x])  # every rank's own use of the whole
        assert torch.equal(st.full(pending), torch.full_like(WHOLE, 3))
        assert "Shard(0)" in repr(handle)
        with pytest.raises(st.SpecMismatch, match="plain tensor"):
            st.ShardTensor(WHOLE)

    on_ranks(3, check)


def test_two_mesh_dims(on_ranks):
    def check(world):
        mesh = world.mesh({"ddp": 2, "domain": -1})
        assert (mesh.ndim, mesh.names, mesh.size("domain")) == (2, ["ddp", "domain"], 2)
        x = st.scatter_tensor(WHOLE, 0, mesh, [st.Shard(1), st.Shard(0)], [None, [5, 2]])
        assert st.spec(x).placements == (st.Shard(1), st.Shard(0)) and st.spec(x).partitions[0] == (5, 2)
        assert torch.equal(st.full(x @ x.T), WHOLE @ WHOLE.T)

    on_ranks(4, check)


def test_pending_sums(on_ranks):
    def check(world):
        x = st.from_local(torch.ones(2) * (world.rank + 1), world.mesh(), st.Partial("sum"), [])
        assert st.spec(x).placements[0].reduce_op == "sum"
        return st.full(x).tolist()

    assert on_ranks(3, check) == [[6.0, 6.0]] * 3


def test_operators_and_indexing_give_plain_values(on_ranks):
    def check(world):
        x = st.scatter_tensor(WHOLE, 0, world.mesh(), st.Shard(0), [2, 4, 1])
        for got, expected in ((x[1:6:2], WHOLE[1:6:2]), (x[-1], WHOLE[-1]), (x[..., None, 2], WHOLE[..., None, 2]),
                              (2 - x / 3, 2 - WHOLE / 3), (x.T @ x, WHOLE.T @ WHOLE), (x > 5, WHOLE > 5),
                              (x[[5, 0]], WHOLE[[5, 0]]), (x.mean(0), WHOLE.mean(0)), (-x ** 2, -WHOLE ** 2)):
            torch.testing.assert_close(st.full(got), expected)
        y = x.clone()
        y[2:4] += 10
        y[:, 1] = 0
        expected = WHOLE.clone()
        expected[2:4] += 10
        expected[:, 1] = 0
        assert torch.equal(st.full(y), expected)
        assert float(x.sum()) == float(WHOLE.sum()) and len(x) == 7 and bool((x >= 0).all())
        assert [tuple(part.shape) for part in x.split(3)] == [(3, 4), (3, 4), (1, 4)]

    on_ranks(3, check)


def test_repr_shows_the_spec_and_this_ranks_values(on_ranks):
    def check(world):
        x = st.scatter_tensor(WHOLE, 0, world.mesh(), st.Shard(0)).requires_grad_()
        return repr(x), str(x * 2)

    for rank, (leaf, result) in enumerate(on_ranks(2, check)):
        assert "shape=[7, 4]" in leaf and "Shard(0)" in leaf and "requires_grad=True" in leaf and "MulBackward0" in result
        assert ("27." in leaf) == (rank == 1)
    assert repr(torch.ones(1)) == "tensor([1.])"


def test_what_needs_storage_says_what_to_do_instead(on_ranks):
    def check(world):
        x = st.scatter_tensor(WHOLE, 0, world.mesh(), st.Shard(0))
        for write in (pickle.dumps, lambda t: torch.save(t, io.BytesIO()), lambda t: torch.save({"x": t}, io.BytesIO())):
            with pytest.raises(st.SpecMismatch, match="shardtensor.full"):
                write(x)
        for read in (lambda t: t.numpy(), lambda t: t.tolist(), lambda t: t.data_ptr()):
            with pytest.raises(RuntimeError, match="storage"):
                read(x)

    on_ranks(2, check)


def test_deepcopy_copies_the_shard(on_ranks):
    def check(world):
        x = st.scatter_tensor(WHOLE, 0, world.mesh(), st.Shard(0)).requires_grad_()
        x.sum().backward()
        twin = copy.deepcopy({"x": x})["x"]
        with torch.no_grad():
            x.add_(1)
        assert torch.equal(st.full(twin), WHOLE) and twin.requires_grad and torch.equal(st.full(twin.grad), WHOLE * 0 + 1)
        with pytest.raises(RuntimeError, match="leaves"):
            copy.deepcopy(x * 2)

    on_ranks(2, check)


def test_copy_shares_the_shard(on_ranks):
    """As copy.copy of a plain tensor: a leaf of the same memory, with what Python code has hung on it."""
    def check(tensor):
        tensor.label = "field"
        twin = copy.copy(tensor)
        assert twin is not tensor and twin.is_leaf and twin.requires_grad and twin.label == "field"
        (twin * 2).sum().backward()
        assert twin.grad is not None and tensor.grad is None
        with torch.no_grad():
            twin.add_(1)
        parameter = torch.nn.Parameter(tensor.detach())
        assert isinstance(copy.copy(parameter), torch.nn.Parameter)
        assert copy.copy(tensor > 3).dtype == torch.bool
        assert copy.copy(tensor * 2).is_leaf
        return tensor

    def check_cut(world):
        x = check(st.scatter_tensor(WHOLE, 0, world.mesh(), st.Shard(0), [5, 2]).requires_grad_())
        assert torch.equal(st.full(x), WHOLE + 1) and st.spec(copy.copy(x)) == st.spec(x)

    assert torch.equal(check(WHOLE.clone().requires_grad_()), WHOLE + 1)
    on_ranks(2, check_cut)


def test_a_model_with_a_sharded_buffer_is_copied(on_ranks):
    def check(world):
        model = torch.nn.Linear(4, 2)
        model.register_buffer("field", st.scatter_tensor(WHOLE, 0, world.mesh(), st.Shard(0)))
        twin = copy.deepcopy(model)
        assert st.is_shard_tensor(twin.field) and torch.equal(twin.weight, model.weight)
        assert twin.weight.data_ptr() != model.weight.data_ptr()

    on_ranks(2, check)


def test_messages_are_counted(on_ranks):
    def check(world):
        x = st.scatter_tensor(WHOLE, 0, world.mesh(), st.Shard(0))
        counter = st.CommCounter()
        x.relu()
        assert counter.calls() == 0
        float(x.sum())
        assert counter.calls("all_reduce") == 1 and "all_reduce" in repr(counter)

    on_ranks(2, check)


def test_random_makers_give_the_numbers_of_one_device(on_ranks):
    torch.manual_seed(8)
    expected = torch.rand(7, 3), torch.randn(7, 3, dtype=torch.float64)

    def check(world):
        st.manual_seed(8)
        uniform = st.rand([7, 3], world.mesh(), st.Shard(0), partition=[4, 0, 3])
        normal = st.randn([7, 3], world.mesh(), st.Shard(1), dtype=torch.float64)
        assert torch.equal(st.full(uniform), expected[0]) and torch.equal(st.full(normal), expected[1])
        assert list(st.local(uniform).shape) == [[4, 0, 3][world.rank], 3]

    on_ranks(3, check)


def test_a_program_that_draws_gives_the_numbers_of_one_device(on_ranks):
    """A plain op among them (randperm, and all that makes whole tensors) takes from the same stream, on every rank alike."""
    def program(x):
        torch.manual_seed(8)
        drawn = [torch.nn.functional.dropout(x, 0.3), torch.randperm(7), torch.rand_like(x), x[torch.randperm(len(x))],
                 x.clone().normal_(), torch.randperm(1000, dtype=torch.int32), torch.randn(3),
                 torch.multinomial(x + 1, 3), torch.randperm(40000), torch.randint_like(x, 9), torch.randperm(0)]
        return drawn, torch.get_rng_state()

    expected, state = program(WHOLE)

    def check(world):
        for placement, pieces in ((st.Shard(0), [5, 0, 2]), (st.Shard(1), [1, 2, 1]), (st.Replicate(), None)):
            drawn, own_state = program(st.scatter_tensor(WHOLE, 0, world.mesh(), placement, pieces))
            for i, (got, want) in enumerate(zip(drawn, expected, strict=True)):
                assert torch.equal(st.full(got) if st.is_shard_tensor(got) else got, want), (i, placement)
            assert torch.equal(own_state, state)

    on_ranks(3, check)


def test_dropped_tensors_give_their_memory_back(on_ranks):
    def check(world):
        account = st.MemoryAccount()
        x = st.scatter_tensor(torch.zeros(1000, 64), 0, world.mesh(), st.Shard(0)).requires_grad_()
        levels = []
        for _ in range(6):
            y = torch.nn.functional.conv1d(x.unsqueeze(0).transpose(1, 2), torch.ones(4, 64, 3, requires_grad=True))
            y.sum().backward()
            st.redistribute(x, st.Shard(1))  # dropped
            x.grad = None
            del y
            levels.append(account.live)
        assert levels[-1] <= levels[1], levels

    on_ranks(3, check)


def test_thousands_of_calls_leave_nothing_behind(on_ranks):
    """Neither ops nor redistributions keep anything a call: plans and decisions are cached, and bounded."""
    def resident():
        with open("/proc/self/statm") as numbers:
            return int(numbers.read().split()[1]) * resource.getpagesize()

    def check(world):
        x = st.scatter_tensor(torch.randn(16, 16), 0, world.mesh(), st.Shard(0))
        levels = []
        for _ in range(3):
            for step in range(2000):
                y = st.redistribute(x.mul(step).relu(), st.Shard(1))  # another number every time
                st.redistribute(y, st.Shard(0))
            world.comm.barrier()
            levels.append(resident())
        assert levels[-1] - levels[0] < 4000 * 500, levels  # less than 500 bytes a call

    on_ranks(2, check)
