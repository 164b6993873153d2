# SPDX-License-Identifier: Apache-2.0
"""A small U-Net in plain torch.nn, its data, and three training steps: run as it is, on thread ranks, and by the processes
of test_training.py (`unet.py gloo OUT`, `unet.py mpi OUT`)."""
import sys

import torch
from torch import nn
from torch.nn import functional as F

ROWS = 19  # over 3 ranks: uneven


class Block(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(2, outputs), nn.GELU(),
                                    nn.Conv2d(outputs, outputs, 3, padding=1, padding_mode="circular"), nn.SiLU())

    def forward(self, x):
        return self.layers(x)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = Block(2, 4)
        self.bottom = Block(4, 8)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.out = Block(8, 4)
        self.head = nn.Conv2d(4, 1, 1)
        self.position = nn.Parameter(torch.randn(4, 1, 8) * 0.1)

    def forward(self, x):
        fine = self.down(x) + self.position
        coarse = self.up(self.bottom(F.max_pool2d(fine, 2)))
        coarse = F.interpolate(coarse, size=fine.shape[-2:], mode="bilinear", align_corners=False)
        return self.head(self.out(torch.cat([fine, coarse], 1)))


def model_and_data():
    torch.manual_seed(3)
    return UNet(), torch.randn(2, 2, ROWS, 8), torch.randn(2, 1, ROWS, 8)


def train(model, x, y, steps=3):
    """The model's weights afterwards."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def train_sharded(mesh):
    import shardtensor as st
    model, x, y = model_and_data()
    return train(model, st.scatter_tensor(x, 0, mesh, st.Shard(2)), st.scatter_tensor(y, 0, mesh, st.Shard(2)))


def as_gloo_process(out):
    import torch.distributed as dist

    import shardtensor as st
    dist.init_process_group("gloo")
    weights = train_sharded(st.mesh_from_process_group())
    torch.save(weights, f"{out}.{dist.get_rank()}")
    dist.barrier()
    dist.destroy_process_group()


def as_launched_rank(out):
    import shardtensor as st

    def main(world):
        torch.save(train_sharded(world.mesh()), f"{out}.{world.rank}")

    return st.launch(main)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit({"gloo": as_gloo_process, "mpi": as_launched_rank}[sys.argv[1]](sys.argv[2]))
