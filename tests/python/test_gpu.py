# SPDX-License-Identifier: Apache-2.0
"""Processes whose tensors are on GPUs, which they may share: groups of NCCL, and training in such a group and under mpirun."""
from pathlib import Path

import pytest
import torch

import shardtensor as st
import unet
from processes import run_group, run_under_mpirun

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
PROGRAMS = Path(__file__).parent
RANKS = 2


@pytest.fixture(scope="module")
def expected():
    return unet.train(*unet.model_and_data("cuda"))


def test_groups():
    assert run_group(RANKS, PROGRAMS / "interop.py", "groups_of_gpus")[0] == [0] * RANKS


def test_training_in_a_group(tmp_path, expected):
    assert run_group(RANKS, PROGRAMS / "unet.py", "group", tmp_path / "w", "cuda")[0] == [0] * RANKS
    for weights in unet.weights_of(tmp_path / "w", RANKS):
        unet.assert_equal_weights(weights, expected)


@pytest.mark.skipif("MPI ON" not in st.describe_build(), reason="built without MPI")
def test_training_under_mpirun(tmp_path, expected):
    assert run_under_mpirun(RANKS, PROGRAMS / "unet.py", "mpi", tmp_path / "w", "cuda")[0] == 0
    for weights in unet.weights_of(tmp_path / "w", RANKS):
        unet.assert_equal_weights(weights, expected)
