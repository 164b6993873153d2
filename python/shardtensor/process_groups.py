# SPDX-License-Identifier: Apache-2.0
"""Ranks that torch.distributed has started (torchrun, with gloo or NCCL)."""
import torch

from shardtensor import _C


def mesh_from_process_group(dims=None, group=None, device=None, timeout=None):
    """A mesh over a group of torch.distributed (default: all ranks). Collective over the group.

    Messages travel by the group's CPU backend; a group for GPUs is made with "cpu:gloo,cuda:nccl".
    """
    group = torch.distributed.group.WORLD if group is None else group
    communicator = _C.from_process_group(group, timeout)
    return _C.DeviceMesh(communicator, {"domain": -1} if dims is None else dims, torch.device(device or "cpu"))
