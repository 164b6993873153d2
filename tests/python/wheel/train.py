# SPDX-License-Identifier: Apache-2.0
"""Run by test_wheel.py with an installed package: one training step on two thread ranks equals the plain one. Prints the
environment that the package lies in."""
from pathlib import Path

import torch

import shardtensor as st


def step(x, y):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.GELU(), torch.nn.Conv2d(4, 1, 3, padding=1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


torch.manual_seed(0)
x, y = torch.randn(2, 1, 1, 9, 6)
expected = step(x, y)


def sharded(world):
    return step(*(st.scatter_tensor(whole, 0, world.mesh(), st.Shard(2)) for whole in (x, y)))


for weights in st.run_ranks(2, sharded):
    torch.testing.assert_close(weights, expected)
print(Path(st.__file__).resolve().parents[4])
