# SPDX-License-Identifier: Apache-2.0
"""Patches written in Python: see register_function_handler and register_dispatch_handler."""
from shardtensor import _C


def next_handler(op, *args, **kwargs):
    """Inside a handler of `op` (torch.ops.namespace.name.overload): what the call would do without it."""
    with _C.NextHandler():
        return op(*args, **kwargs)
