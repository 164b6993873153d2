# SPDX-License-Identifier: Apache-2.0
"""Fixtures for tests of models and patches on ShardTensors.

    def test_my_model(on_ranks, scattered):
        def check(world):
            x = scattered(world, torch.randn(2, 9, 4), dim=1)
            numerical_shard_tensor_check(MyModel(), [x])
        on_ranks(3, check)
"""
import pytest

import shardtensor as st


@pytest.fixture
def on_ranks():
    """on_ranks(n, body): body(world) on n thread ranks; what they returned. A wait lasts at most 60 seconds."""
    return lambda ranks, body: st.run_ranks(ranks, body, timeout=60)


@pytest.fixture
def scattered():
    """scattered(world, whole, dim=0, partition=None): rank 0's tensor cut along `dim` over a 1-d mesh."""
    return lambda world, whole, dim=0, partition=None: st.scatter_tensor(whole, 0, world.mesh(), st.Shard(dim), partition)
