# SPDX-License-Identifier: Apache-2.0
"""Beside torch.distributed's own parallel modules, and torch.compile."""
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import shardtensor as st

PROGRAM = Path(__file__).with_name("interop.py")


def run_processes(name, ranks):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(ranks))
    processes = [subprocess.Popen([sys.executable, PROGRAM, name], env=dict(environment, RANK=str(rank)))
                 for rank in range(ranks)]
    assert [process.wait(timeout=400) for process in processes] == [0] * ranks


@pytest.mark.parametrize("name", ["ddp", "fsdp", "device_meshes"])
def test_on_two_by_two_processes(name):
    run_processes(name, 4)


@pytest.mark.parametrize("name", ["dtensor", "mixed"])
def test_dtensors_on_three_processes(name):
    run_processes(name, 3)


def test_a_compiled_function_runs_as_it_is_on_shard_tensors(on_ranks):
    whole = torch.randn(7, 4)
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
    compiled = torch.compile(net, backend="aot_eager")
    expected = net(whole)
    torch.testing.assert_close(compiled(whole), expected)

    def check(world):
        x = st.scatter_tensor(whole, 0, world.mesh(), st.Shard(0), [2, 4, 1])
        torch.testing.assert_close(st.full(compiled(x)), expected)

    on_ranks(3, check)


def test_a_full_graph_is_refused_by_torch_compile(on_ranks):
    from torch._dynamo.exc import Unsupported
    compiled = torch.compile(lambda x: x * 2, backend="eager", fullgraph=True)

    def check(world):
        with pytest.raises(Unsupported, match="ShardTensor"):
            compiled(st.scatter_tensor(torch.ones(4), 0, world.mesh(), st.Shard(0)))

    on_ranks(2, check)
