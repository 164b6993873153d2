# SPDX-License-Identifier: Apache-2.0
"""What test_interop.py runs on gloo processes: `interop.py NAME` in each of them."""
import copy
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed import tensor as dt
from torch.distributed.device_mesh import init_device_mesh

import shardtensor as st
import unet
from shardtensor.dtensor import from_dtensor, mesh_from_device_mesh, to_dtensor
from shardtensor.testing import relative_error


def assert_equal(got, expected, tolerance=1e-6):
    assert relative_error(got, expected) < tolerance, (got, expected)


def data_parallel(wrap):
    """A model wrapped over the ddp dim of 2 x 2 ranks, fed with samples that are cut over the domain dim."""
    device_mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("ddp", "domain"))
    domain = st.mesh_from_process_group(group=device_mesh["domain"].get_group())
    model, x, y = unet.model_and_data()
    expected = unet.train(copy.deepcopy(model), x, y)
    sample = device_mesh["ddp"].get_local_rank()
    x, y = (st.scatter_tensor(whole[sample:sample + 1], 0, domain, st.Shard(2)) for whole in (x, y))
    weights = unet.train(wrap(model, device_mesh["ddp"]), x, y)
    whole = {name: [w.full_tensor() if isinstance(w, dt.DTensor) else w for w in weights[name]] for name in weights}
    unet.assert_equal_weights(whole, expected)


def ddp():
    data_parallel(lambda model, mesh: torch.nn.parallel.DistributedDataParallel(model, process_group=mesh.get_group()))


def fsdp():
    from torch.distributed.fsdp import fully_shard

    def wrap(model, mesh):
        fully_shard(model.bottom, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    data_parallel(wrap)


def dtensor():
    """There and back, even and uneven, pending sums, gradients."""
    device_mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("domain",))
    mesh = mesh_from_device_mesh(device_mesh)
    whole = torch.arange(28.0).reshape(7, 4)
    for placement in (dt.Shard(0), dt.Shard(1), dt.Replicate()):
        source = dt.distribute_tensor(whole, device_mesh, [placement]).requires_grad_()
        x = from_dtensor(source, mesh)
        assert_equal(st.full(x), whole)
        back = to_dtensor(x * 2, device_mesh)
        assert back.placements == (placement,)
        assert_equal(back.full_tensor(), whole * 2)
        (back * back).sum().backward()
        assert_equal(source.grad.full_tensor(), 8 * whole)
    uneven = st.scatter_tensor(whole, 0, mesh, st.Shard(0), [5, 0, 2])
    assert_equal(to_dtensor(uneven, device_mesh).full_tensor(), whole)
    pending = from_dtensor(dt.DTensor.from_local(torch.ones(3), device_mesh, [dt.Partial()]), mesh)
    assert_equal(st.full(pending), torch.full((3,), 3.0))


def mixed():
    """A linear layer whose parameters are DTensors, whole and cut, on a cut input: as the plain layer."""
    device_mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    mesh = mesh_from_device_mesh(device_mesh)
    torch.manual_seed(1)
    plain, x = torch.nn.Linear(4, 6), torch.randn(7, 4)
    expected = plain(x)
    expected.square().sum().backward()
    for placement in (dt.Replicate(), dt.Shard(0)):
        weight, bias = (dt.distribute_tensor(p.detach(), device_mesh, [placement]).requires_grad_()
                        for p in (plain.weight, plain.bias))
        got = torch.nn.functional.linear(st.scatter_tensor(x, 0, mesh, st.Shard(0)), weight, bias) * 1
        assert_equal(st.full(got), expected)
        got.square().sum().backward()
        assert weight.grad.placements == (placement,)
        assert_equal(weight.grad.full_tensor(), plain.weight.grad)
        assert_equal(bias.grad.full_tensor(), plain.bias.grad)
        assert_equal((weight * 2).full_tensor(), plain.weight * 2)  # DTensors alone are as they were


def compiled():
    """Each process compiles by itself."""
    mesh = st.mesh_from_process_group()
    whole = torch.randn(7, 4, generator=torch.Generator().manual_seed(1))

    def function(x):
        return st.full(st.redistribute(x.sin(), st.Shard(1)).softmax(0)).square()

    plain = whole.clone().requires_grad_()
    expected = plain.sin().softmax(0).square()
    expected.sum().backward()
    x = st.scatter_tensor(whole, 0, mesh, st.Shard(0), [5, 0, 2]).requires_grad_()
    got = torch.compile(function, fullgraph=True)(x)
    got.sum().backward()
    assert_equal(got, expected)
    assert_equal(st.full(x.grad), plain.grad)


def device_meshes():
    """A mesh of several dims has the names and the places of its device mesh."""
    device_mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("ddp", "domain"))
    mesh = mesh_from_device_mesh(device_mesh)
    assert mesh.names == ["ddp", "domain"]
    assert [mesh.coordinate(name) for name in mesh.names] == list(device_mesh.get_coordinate())
    whole = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
    x = st.scatter_tensor(whole, 0, mesh, [st.Shard(0), st.Shard(1)])
    assert_equal(to_dtensor(x, device_mesh).full_tensor(), whole)


def check(mesh):
    """A computation that communicates, forward and backward, on the mesh's device."""
    whole = torch.randn(7, 4, generator=torch.Generator().manual_seed(1)).to(mesh.device)
    x = st.scatter_tensor(whole if mesh.rank == 0 else None, 0, mesh, st.Shard(0)).requires_grad_()
    x.softmax(0).square().sum().backward()
    plain = whole.clone().requires_grad_()
    plain.softmax(0).square().sum().backward()
    assert x.device == mesh.device
    assert_equal(st.full(x.grad), plain.grad)


def groups():
    """Groups without CPU backend (as of NCCL alone), groups of some of the ranks, and GPUs that are not there."""
    from torch.testing._internal.distributed import fake_pg  # noqa: F401 (registers the backend "fake")
    of_gpus = dist.new_group(backend="cuda:fake")
    check(st.mesh_from_process_group(group=of_gpus, device="cpu"))
    check(st.mesh_from_process_group(group=of_gpus, device="cpu"))  # another companion
    if not torch.cuda.is_available():
        for group, device in ((of_gpus, None), (None, "cuda"), (None, "cuda:7"), (None, "meta")):
            try:
                st.mesh_from_process_group(group=group, device=device)
            except st.ConfigError as error:
                assert "GPUs" in str(error), error
            else:
                raise AssertionError(device)
    ends = dist.new_group([0, 2])
    if dist.get_rank() != 1:
        mesh = st.mesh_from_process_group({"ends": -1}, ends)
        assert (mesh.size("ends"), mesh.rank) == (2, dist.get_rank() // 2)
        check(mesh)
    try:
        st.mesh_from_process_group({"domain": 5})
    except st.ConfigError:
        check(st.mesh_from_process_group())
    else:
        raise AssertionError("5 of 3 ranks")


def groups_of_gpus():
    """Of NCCL alone, and beside gloo; the ranks may share a GPU."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    here = torch.device("cuda", torch.cuda.current_device())
    for mesh in (st.mesh_from_process_group(group=dist.new_group(backend="nccl")),
                 st.mesh_from_process_group(group=dist.new_group(backend="cpu:gloo,cuda:nccl"), device="cuda"),
                 st.mesh_from_process_group(device="cuda")):
        assert mesh.device == here
        check(mesh)
    check(st.mesh_from_process_group(group=dist.new_group(backend="cpu:gloo,cuda:nccl")))  # on the CPU


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    {"ddp": ddp, "fsdp": fsdp, "dtensor": dtensor, "mixed": mixed, "device_meshes": device_meshes,
     "groups": groups, "groups_of_gpus": groups_of_gpus, "compiled": compiled}[sys.argv[1]]()
    dist.barrier()
    dist.destroy_process_group()
