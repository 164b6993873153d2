# SPDX-License-Identifier: Apache-2.0
"""Domain-parallel tensors for unmodified torch.nn models.

A ShardTensor is a torch.Tensor with the global sizes of which every rank holds its own part. It is made by
scatter_tensor or from_local, goes through any torch.nn module, and is asked by the functions here.

    import shardtensor as st

    def train(world):
        mesh = world.mesh()
        x = st.scatter_tensor(field, 0, mesh, st.Shard(2))
        model(x).square().mean().backward()             # plain, complete gradients of plain weights

    st.run_ranks(3, train)                              # three threads; or st.launch(train) under mpirun
"""
import torch  # loads LibTorch, which libshard needs

from shardtensor._C import (
    CommCounter, CommError, CommMismatch, CommTimeout, Communicator, ConfigError, DeviceMesh, Error, FileError,
    HandlerRegistration, MemoryAccount, MissingShardPatch, Partial, PeerFailed, Placement, Replicate, Shard,
    SpecMismatch, UndeterminedShardingError, World, all_reduce, broadcast_tensors, chunk_partition, common_sum,
    describe, describe_build, empty, even_partition, fallback_mode, from_local, from_process_group, full,
    is_shard_tensor, local, local_weights, manual_seed, rand, randn, redistribute, register_dispatch_handler,
    register_function_handler, run_ranks, scatter_tensor, set_check_replicated, set_explain, set_fallback_mode,
    set_tensor_promotion_mode, zeros)
from shardtensor import _compile, _tensor_methods
from shardtensor.handlers import next_handler
from shardtensor.process_groups import mesh_from_process_group
from shardtensor.ranks import broadcast_parameters, launch
from shardtensor.spec import ShardTensor, Spec, spec

_tensor_methods.install()
_compile.install()

__version__ = "0.1.0"
__all__ = [name for name, value in list(globals().items()) if not name.startswith("_") and name != "torch"]
