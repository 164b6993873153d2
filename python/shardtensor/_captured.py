# SPDX-License-Identifier: Apache-2.0
"""The functions of this package that torch.compile captures: each stands as one call in the graph and is run as it is. While
Dynamo traces, with tensors that hold nothing, the call gives a tensor of the sizes that it will have.

Placements are constants in a captured function, and stand in its graph by their names.
"""
from shardtensor import _C
from shardtensor.spec import checked

_named = {}


def _write(placements):
    if placements is None:
        return None
    if isinstance(placements, _C.Placement):
        _named[repr(placements)] = placements
        return repr(placements)
    return tuple(map(_write, placements))


def _read(names):
    return _named[names] if isinstance(names, str) else names and list(map(_read, names))


def _is_traced(tensor):
    from torch._subclasses.fake_tensor import FakeTensor
    return isinstance(tensor, FakeTensor)


def _local_image(tensor):
    """The sizes differ from rank to rank and from cut to cut, and one graph serves them all: they are read when it runs."""
    import torch
    from torch.fx.experimental.symbolic_shapes import _constrain_range_for_size
    sizes = [tensor.fake_mode.shape_env.create_unbacked_symint() for _ in tensor.shape]
    for size in sizes:
        _constrain_range_for_size(size)
    image = tensor.new_empty(sizes)
    return image.requires_grad_(tensor.requires_grad and torch.is_grad_enabled()).view_as(image)


def _moved(tensor, names, partition):
    return tensor.clone() if _is_traced(tensor) else _C.redistribute(tensor, _read(names), partition)


def _part(tensor, name):
    return _local_image(tensor) if _is_traced(tensor) else _C.local(tensor, _read(name))


def _whole(tensor):
    return tensor.clone() if _is_traced(tensor) else _C.full(tensor)


def _same(tensor):
    return tensor.view_as(tensor) if _is_traced(tensor) else checked(tensor)


IN_GRAPH = (_moved, _part, _whole, _same)


def _redistribute(tensor, placements, partition=None):
    return _moved(tensor, _write(placements), partition)


def _local(tensor, gradient=None):
    return _part(tensor, _write(gradient))


def _refuse(*_args, **_kwargs):
    raise TypeError("[torch.compile] got a placement that is computed in the function; expected constants")


def install():
    """Once a process, when torch._dynamo has been loaded."""
    from torch._dynamo.decorators import allow_in_graph, substitute_in_graph
    from torch._dynamo.utils import common_constant_types
    from torch._dynamo.variables.builder import VariableBuilder
    common_constant_types.add(_C.Placement)
    vars(VariableBuilder)["_type_dispatch_impl"].__func__.cache_clear()  # has read the types, if anything was compiled
    allow_in_graph(IN_GRAPH)
    for original, traced in ((_C.redistribute, _redistribute), (_C.local, _local), (_C.full, _whole), (checked, _same)):
        substitute_in_graph(original, skip_signature_check=True)(traced)
    for constant in (_write, _C.Shard, _C.Replicate, _C.Partial):
        substitute_in_graph(constant, can_constant_fold_through=True, skip_signature_check=True)(_refuse)
