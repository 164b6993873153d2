# SPDX-License-Identifier: Apache-2.0
"""Starting ranks, and giving them equal models."""
import sys

from shardtensor import _C


def launch(body, ranks=None, **options):
    """Runs body(world) on every rank and returns the program's exit code: sys.exit(launch(main)).

    Ranks are threads (`ranks`, --ranks N on the command line or SHARD_RANKS), or the processes that mpirun or srun has
    started. The first failing rank's error is printed once. Options: default_ranks, device, seed, timeout, threads.
    """
    return _C.launch(body, sys.argv, ranks=ranks, **options)


def broadcast_parameters(module, mesh, source=0):
    """Rank `source`'s parameters and buffers become every rank's, in place. Collective over `mesh`."""
    _C.broadcast_tensors([*module.parameters(), *module.buffers()], mesh, source)
