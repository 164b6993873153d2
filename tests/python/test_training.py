# SPDX-License-Identifier: Apache-2.0
"""Unmodified torch.nn models train on ShardTensors: on Python threads, on gloo processes and under mpirun."""
from pathlib import Path

import pytest
import torch

import shardtensor as st
import unet
from processes import run_group, run_under_mpirun
from shardtensor.testing import numerical_shard_tensor_check

PROGRAM = Path(__file__).with_name("unet.py")


@pytest.fixture(scope="module")
def expected():
    return unet.train(*unet.model_and_data())


def test_on_three_python_threads(on_ranks, expected):
    for weights in on_ranks(3, lambda world: unet.train_sharded(world.mesh())):
        unet.assert_equal_weights(weights, expected)


def test_a_gradient_of_another_size_is_noticed(expected):
    """As one that is summed twice: gradient descent alone shows it plainly."""
    model, x, y = unet.model_and_data()
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient * 2)
    with pytest.raises(AssertionError, match="sgd"):
        unet.assert_equal_weights(unet.train(model, x, y), expected)


def test_all_ranks_have_the_same_bits(on_ranks):
    first, *others = on_ranks(3, lambda world: unet.train_sharded(world.mesh()))
    assert all(torch.equal(a, b) for other in others for name in first for a, b in zip(first[name], other[name]))


def test_one_step_in_float64_is_exact(on_ranks):
    def check(world):
        model, x, _ = unet.model_and_data()
        numerical_shard_tensor_check(model.double(), [st.scatter_tensor(x.double(), 0, world.mesh(), st.Shard(2))])

    on_ranks(3, check)


def test_on_gloo_processes(tmp_path, expected):
    assert run_group(3, PROGRAM, "group", tmp_path / "w")[0] == [0, 0, 0]
    for weights in unet.weights_of(tmp_path / "w", 3):
        unet.assert_equal_weights(weights, expected)


@pytest.mark.skipif("MPI ON" not in st.describe_build(), reason="built without MPI")
def test_under_mpirun(tmp_path, expected):
    assert run_under_mpirun(2, PROGRAM, "mpi", tmp_path / "w")[0] == 0
    for weights in unet.weights_of(tmp_path / "w", 2):
        unet.assert_equal_weights(weights, expected)


def test_the_check_finds_a_wrong_gradient(on_ranks):
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            return gradient * (2 if st.is_shard_tensor(gradient) else 1)

    def check(world):
        x = st.scatter_tensor(torch.randn(6, 3), 0, world.mesh(), st.Shard(0))
        numerical_shard_tensor_check(Wrong.apply, [x], check_grads=False)
        with pytest.raises(AssertionError, match="gradient 0"):
            numerical_shard_tensor_check(Wrong.apply, [x])

    on_ranks(2, check)


def test_the_check_looks_at_every_output(on_ranks):
    class Several(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 2)

        def forward(self, x):
            y = self.layer(x)
            return {"y": y, "parts": (y.exp(), [y.argmax(1)]), "name": "no tensor"}

    def check(world):
        x = st.scatter_tensor(torch.randn(6, 3), 0, world.mesh(), st.Shard(0), [4, 2])
        numerical_shard_tensor_check(Several(), [x])
        with pytest.raises(AssertionError, match="output 1"):
            numerical_shard_tensor_check(lambda x: (x, x * (2 if st.is_shard_tensor(x) else 1)), [x], check_grads=False)

    on_ranks(2, check)
