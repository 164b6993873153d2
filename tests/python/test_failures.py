# SPDX-License-Identifier: Apache-2.0
"""An error in one process is an exception in every other one: nobody waits for a rank that is gone."""
from pathlib import Path

import pytest

import shardtensor as st
from processes import run_group, run_under_mpirun

PROGRAM = Path(__file__).with_name("failing.py")


def test_on_gloo_processes():
    codes, outputs = run_group(3, PROGRAM, "gloo")
    assert codes == [3, 3, 3]
    assert outputs[1].startswith("ValueError rank 1 has had enough")
    for output in (outputs[0], outputs[2]):
        assert output.startswith("PeerFailed"), outputs


@pytest.mark.skipif("MPI ON" not in st.describe_build(), reason="built without MPI")
def test_under_mpirun():
    code, output = run_under_mpirun(3, PROGRAM, "mpi")
    assert code != 0
    lines = output.splitlines()
    assert sum(line.startswith("ValueError rank 1 has had enough") for line in lines) == 1, output
    told = [line for line in lines if line.startswith("PeerFailed")]
    assert len(told) == 2 and all("rank 1 has had enough" in line for line in told), output


def test_on_threads(on_ranks):
    """The backward of one rank fails: the others are in the middle of theirs."""
    import torch
    told = []

    def check(world):
        def hook(gradient):
            if world.rank == 2:
                raise KeyError("of rank 2")

        try:  # all of it: the failure may come before the others have left the scattering
            x = st.scatter_tensor(torch.ones(6, 4), 0, world.mesh(), st.Shard(0)).requires_grad_()
            y = x.exp()
            y.register_hook(hook)
            y.mean().backward()
            float(x.grad.sum())
        except st.PeerFailed as error:
            told.append(str(error))
            raise

    with pytest.raises(KeyError, match="of rank 2"):
        on_ranks(3, check)
    assert len(told) == 2 and all("of rank 2" in text for text in told)
