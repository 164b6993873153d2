# SPDX-License-Identifier: Apache-2.0
"""The attention modules of torch.nn and its wrappers that normalize weights, unmodified, on cut inputs."""
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import shardtensor as st
from shardtensor.testing import relative_error

PARTITIONS = {1: [[7]], 2: [[4, 3], [7, 0]], 3: [[5, 1, 1], [0, 3, 4]], 4: [[2, 2, 2, 1], [1, 0, 6, 0]]}
CUTS = [(ranks, partition) for ranks, partitions in PARTITIONS.items() for partition in partitions]
CAUSAL = torch.ones(7, 7).triu(1).bool()


def whole(tensor):
    return st.full(tensor.detach()) if st.is_shard_tensor(tensor) else tensor.detach()


def outcome(make, inputs, call):
    """Output, gradients of the inputs and of the weights."""
    torch.manual_seed(3)
    module = make().double()
    y = call(module, *inputs)
    outputs = y if isinstance(y, tuple) else (y,)
    loss = sum((output * output.detach().cos()).sum() for output in outputs if output is not None)
    differentiable = [*inputs, *module.parameters()]
    gradients = torch.autograd.grad(loss, differentiable)
    return [whole(t) for t in (*[output for output in outputs if output is not None], *gradients)]


def plain_inputs(count, *sizes):
    torch.manual_seed(4)
    return [torch.randn(*sizes, dtype=torch.float64, requires_grad=True) for _ in range(count)]


def expect_equal(on_ranks, ranks, partition, make, inputs, call, dim=1):
    want = outcome(make, inputs, call)

    def check(world):
        cut = [st.scatter_tensor(t.detach(), 0, world.mesh(), st.Shard(dim), partition).requires_grad_() for t in inputs]
        got = outcome(make, cut, call)
        assert max(relative_error(a, b) for a, b in zip(got, want, strict=True)) < 1e-9

    on_ranks(ranks, check)


@pytest.mark.parametrize("ranks, partition", CUTS)
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("mask", [None, CAUSAL])
def test_multihead_attention(on_ranks, ranks, partition, need_weights, mask):
    expect_equal(on_ranks, ranks, partition, lambda: nn.MultiheadAttention(8, 2, batch_first=True),
                 plain_inputs(1, 2, 7, 8),
                 lambda module, x: module(x, x, x, need_weights=need_weights, attn_mask=mask))


@pytest.mark.parametrize("ranks, partition", CUTS)
def test_multihead_attention_to_another_sequence(on_ranks, ranks, partition):
    hidden = torch.zeros(2, 7).bool()
    hidden[1, 5:] = True
    expect_equal(on_ranks, ranks, partition,
                 lambda: nn.MultiheadAttention(8, 2, batch_first=True, add_bias_kv=True, add_zero_attn=True),
                 plain_inputs(2, 2, 7, 8),
                 lambda module, x, memory: module(x, memory, memory, key_padding_mask=hidden, need_weights=False))


@pytest.mark.parametrize("ranks, partition", CUTS)
@pytest.mark.parametrize("norm_first", [True, False])
def test_transformer_encoder_layer(on_ranks, ranks, partition, norm_first):
    expect_equal(on_ranks, ranks, partition,
                 lambda: nn.TransformerEncoderLayer(8, 2, 12, dropout=0, batch_first=True, norm_first=norm_first),
                 plain_inputs(1, 2, 7, 8), lambda module, x: module(x, src_mask=CAUSAL))


@pytest.mark.parametrize("ranks, partition", CUTS)
def test_transformer_encoder_that_only_answers(on_ranks, ranks, partition):
    """Without gradients the module takes its fused kernels."""
    x = plain_inputs(1, 2, 7, 8)[0].detach()

    def answer(x):
        torch.manual_seed(3)
        layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
        model = nn.TransformerEncoder(layer, 2).double().eval()
        with torch.inference_mode():
            return whole(model(x))

    want = answer(x)

    def check(world):
        cut = st.scatter_tensor(x, 0, world.mesh(), st.Shard(1), partition)
        assert relative_error(answer(cut), want) < 1e-9

    on_ranks(ranks, check)


@pytest.mark.parametrize("ranks, partition", CUTS)
@pytest.mark.parametrize("wrapper", [parametrizations.weight_norm, parametrizations.spectral_norm,
                                     nn.utils.spectral_norm])
def test_normalized_weights(on_ranks, ranks, partition, wrapper):
    def make():
        return nn.Sequential(wrapper(nn.Conv2d(3, 4, 3, padding=1)), nn.Tanh(), wrapper(nn.Conv2d(4, 2, 1)))

    expect_equal(on_ranks, ranks, partition, make, plain_inputs(1, 2, 3, 7, 5), lambda module, x: module(x), dim=2)
