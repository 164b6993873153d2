# SPDX-License-Identifier: Apache-2.0
"""torch.compile and ShardTensors. Dynamo captures a function that is given one as it captures any other, tracing with a tensor of
the same sizes and strides that holds nothing; the captured graph is then run op by op, each with its patch or rule, since
no backend can fuse what communicates. Graphs of plain tensors alone go to the backend as before, and the guards of either kind
do not fit the other: they compare the dispatch keys. Of this package's own functions those in _captured.py stand in the graph.

What Dynamo cannot capture (values that decide, calls of other functions of this package) breaks the graph and runs as it is.
"""
import dataclasses
import functools
import importlib.abc
import importlib.machinery
import sys
import threading

import torch

from shardtensor import _C, _captured


def _is_shard_tensor(value):
    return isinstance(value, torch.Tensor) and _C.is_shard_tensor(value)


def _stand_in(tensor):
    """On the meta device, where nothing is allocated and item() has no value to look up: it would communicate, on the one
    rank that happens to compile."""
    from torch.utils._python_dispatch import _disable_current_modes
    with _disable_current_modes():
        stand_in = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta",
                                       requires_grad=tensor.requires_grad)
        if isinstance(tensor, torch.nn.Parameter):
            stand_in = torch.nn.Parameter(stand_in.detach(), tensor.requires_grad)
    stand_in._stands_for = {"device": tensor.device, "is_leaf": tensor.is_leaf, "is_inference": tensor.is_inference()}
    return stand_in


def _make_fake(converter, plain, fake_mode, tensor, *args, **kwargs):
    """Dynamo's image of a real tensor; always the same one for the same tensor."""
    if _is_shard_tensor(tensor):
        from torch.utils.weak import WeakTensorKeyDictionary
        known = converter.__dict__.setdefault("_shard_stand_ins", WeakTensorKeyDictionary())
        if tensor not in known:
            known[tensor] = _stand_in(tensor)
        tensor = known[tensor]
    return plain(converter, fake_mode, tensor, *args, **kwargs)


def _describe(describer, plain, tensor, *args, **kwargs):
    description = plain(describer, tensor, *args, **kwargs)
    return dataclasses.replace(description, **getattr(tensor, "_stands_for", {}))


def _constants(graph_module):
    for node in graph_module.graph.find_nodes(op="get_attr"):
        yield functools.reduce(getattr, node.target.split("."), graph_module)


def _is_of_shard_tensors(graph_module, example_inputs):
    return (any(map(_is_shard_tensor, (*example_inputs, *_constants(graph_module)))) or
            any(node.target in _captured.IN_GRAPH for node in graph_module.graph.nodes))


def _call_compiler(output, plain, graph_module, example_inputs):
    if not _is_of_shard_tensors(graph_module, example_inputs):
        return plain(output, graph_module, example_inputs)
    backend, output.compiler_fn = output.compiler_fn, lambda module, inputs: module.forward
    try:
        return plain(output, graph_module, example_inputs)
    finally:
        output.compiler_fn = backend


def _wrap(owner, name, function):
    plain = getattr(owner, name)
    if not hasattr(plain, "_shardtensor"):
        wrapper = functools.wraps(plain)(lambda first, *args, **kwargs: function(first, plain, *args, **kwargs))
        wrapper._shardtensor = True
        setattr(owner, name, wrapper)


def _keep_device_guard():
    """Tracing on a machine without GPU makes LibTorch 2.11 register a device guard that belongs to the calling thread, and use it
    after that thread has ended. Here it is of a thread that never ends; rank threads do."""
    ready = threading.Event()

    def hold():
        torch._C._ensureCUDADeviceGuardSet()
        ready.set()
        threading.Event().wait()

    threading.Thread(target=hold, name="device guard", daemon=True).start()
    ready.wait()


def _teach_dynamo():
    from torch._dynamo.output_graph import OutputGraph
    from torch._subclasses.fake_tensor import FakeTensorConverter
    from torch._subclasses.meta_utils import MetaTensorDescriber
    if hasattr(OutputGraph._call_user_compiler, "_shardtensor"):
        return
    _wrap(FakeTensorConverter, "from_real_tensor", _make_fake)
    _wrap(MetaTensorDescriber, "describe_tensor", _describe)
    if hasattr(torch._C, "_ensureCUDADeviceGuardSet"):
        _keep_device_guard()
    _wrap(OutputGraph, "_call_user_compiler", _call_compiler)
    _captured.install()


class _WhenLoaded(importlib.abc.MetaPathFinder):
    """Teaches Dynamo as soon as it has been loaded, whoever asks for it. Importing it takes seconds: only when something is
    compiled."""

    def find_spec(self, name, path, target=None):
        if name != "torch._dynamo":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            _teach_dynamo()

        spec.loader.exec_module = exec_module
        return spec


def install():
    """Once a process, when the package is imported."""
    if "torch._dynamo" in sys.modules:
        _teach_dynamo()
    else:
        sys.meta_path.insert(0, _WhenLoaded())
