# SPDX-License-Identifier: Apache-2.0
"""Starting Python programs as the processes of torch.distributed, as torchrun does, and under mpirun."""
import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_group(ranks, *command):
    """The exit codes and outputs of `command` on every rank of a group."""
    environment = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), WORLD_SIZE=str(ranks))
    processes = [subprocess.Popen([sys.executable, *map(str, command)], text=True, stdout=subprocess.PIPE,
                                  env=dict(environment, RANK=str(rank), LOCAL_RANK=str(rank))) for rank in range(ranks)]
    outputs = [process.communicate(timeout=400)[0] for process in processes]
    return [process.returncode for process in processes], outputs


def run_under_mpirun(ranks, *command):
    """The exit code and the output of all ranks together."""
    outcome = subprocess.run([ROOT / "scripts/mpirun.sh", str(ranks), sys.executable, *map(str, command)], text=True,
                             stdout=subprocess.PIPE, timeout=400)
    return outcome.returncode, outcome.stdout
