# SPDX-License-Identifier: Apache-2.0
"""Beside torch.distributed's own parallel modules and tensors."""
from pathlib import Path

import pytest

from processes import run_group

PROGRAM = Path(__file__).with_name("interop.py")


def run_processes(name, ranks):
    assert run_group(ranks, PROGRAM, name)[0] == [0] * ranks


@pytest.mark.parametrize("name", ["ddp", "fsdp", "device_meshes"])
def test_on_two_by_two_processes(name):
    run_processes(name, 4)


@pytest.mark.parametrize("name", ["dtensor", "mixed", "groups", "compiled"])
def test_on_three_processes(name):
    run_processes(name, 3)
