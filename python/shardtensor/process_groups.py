# SPDX-License-Identifier: Apache-2.0
"""Ranks that torch.distributed has started (torchrun, with gloo or NCCL)."""
import torch

from shardtensor import _C


def _with_cpu_backend(group):
    """What the ranks say to each other besides tensors goes over a CPU backend: a group that has none gets a companion."""
    if any(device.type == "cpu" for device in group._device_types):
        return group
    ranks = torch.distributed.get_process_group_ranks(group)
    return torch.distributed.new_group(ranks, backend="gloo", use_local_synchronization=True)


def _device(device, group):
    if device is None:
        device = "cpu" if any(d.type == "cpu" for d in group._device_types) else "cuda"
    device = torch.device(device)
    if device.type == "cuda" and device.index is None and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return device


def mesh_from_process_group(dims=None, group=None, device=None, timeout=None):
    """A mesh over a group of torch.distributed (default: all ranks). Collective over the group.

    `device`: where this rank's tensors are; "cuda" is its current one. Default: the CPU, of a group for GPUs alone the GPU.
    CPU tensors travel by the group's CPU backend. GPU tensors travel by NCCL communicators of libshard's own, or over the host
    where ranks share a GPU. ConfigError where there is no such device.
    """
    group = torch.distributed.group.WORLD if group is None else group
    device = _device(device, group)
    communicator = _C.from_process_group(_with_cpu_backend(group), timeout, device)
    return _C.DeviceMesh(communicator, {"domain": -1} if dims is None else dims, device)
