# SPDX-License-Identifier: Apache-2.0
"""torch.compile and ShardTensors: a function that is given one is left to run as it is (a graph break), since what it
communicates is not in a compiled graph. With fullgraph=True that is torch.compile's own error. What has plain tensors
only is compiled; a later call with a ShardTensor does not use that code (its guards look at the dispatch keys)."""
import functools

import torch

from shardtensor import _C


def _break_at_shard_tensors():
    from torch._dynamo.exc import unimplemented
    from torch._dynamo.variables.builder import VariableBuilder
    plain = VariableBuilder.wrap_tensor
    if hasattr(plain, "_shardtensor"):
        return

    @functools.wraps(plain)
    def wrap_tensor(builder, value):
        if _C.is_shard_tensor(value):
            unimplemented(gb_type="ShardTensor", context=f"{list(value.shape)}", skip_frame=True,
                          explanation="The values of a ShardTensor lie on several ranks; its ops communicate.",
                          hints=["Call the function outside torch.compile, or compile parts that see plain tensors."])
        return plain(builder, value)

    wrap_tensor._shardtensor = True
    VariableBuilder.wrap_tensor = wrap_tensor


def install():
    """Once a process. torch._dynamo takes seconds to import: only when something is compiled."""
    plain = torch.compile
    if hasattr(plain, "_shardtensor"):
        return

    @functools.wraps(plain)
    def compile(*args, **kwargs):
        _break_at_shard_tensors()
        return plain(*args, **kwargs)

    compile._shardtensor = True
    torch.compile = compile
