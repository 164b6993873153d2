# SPDX-License-Identifier: Apache-2.0
"""Run by test_failures.py in every process: rank 1 gives up amid its training, and the others hear of it.

`failing.py gloo` ends by itself with the name and text of what reached the rank; `failing.py mpi` leaves that to launch.
"""
import os
import sys

import torch

import shardtensor as st


def train(mesh):
    x = st.scatter_tensor(torch.ones(6, 4), 0, mesh, st.Shard(0))
    for step in range(3):
        if step == 1 and mesh.rank == 1:
            raise ValueError("rank 1 has had enough")
        float(torch.nn.functional.mse_loss(x, x * 2))


def tell(error):
    """One write of one line: the ranks share their output."""
    first_line = str(error).splitlines()[0]
    os.write(1, f"{type(error).__name__} {first_line}\n".encode())


def as_gloo_process():
    import torch.distributed as dist
    dist.init_process_group("gloo")
    try:
        train(st.mesh_from_process_group(timeout=60))
    except Exception as error:
        tell(error)
        os._exit(3)  # as a program that is done for: without telling the group


def as_launched_rank():
    def main(world):
        try:
            train(world.mesh())
        except Exception as error:
            tell(error)
            raise

    return st.launch(main, timeout=60)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit({"gloo": as_gloo_process, "mpi": as_launched_rank}[sys.argv[1]]())
