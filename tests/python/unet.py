# SPDX-License-Identifier: Apache-2.0
"""A small U-Net in plain torch.nn, its data, and some training steps: run as it is, on thread ranks, and by the processes
of test_training.py and test_gpu.py (`unet.py group OUT [DEVICE]`, `unet.py mpi OUT [DEVICE]`)."""
import os
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


def model_and_data(device="cpu"):
    torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(3)
    return [made.to(device) for made in (UNet(), torch.randn(2, 2, ROWS, 8), torch.randn(2, 1, ROWS, 8))]


# Plain gradient descent moves the weights by what their gradients are, so that gradients of the wrong size are seen. AdamW and
# clipping, as models are trained, divide by their size, and by small numbers.
TOLERANCES = {"sgd": 1e-5, "adamw": 2e-4}


def train(model, x, y, steps=3):
    """The model's weights after `steps` steps of gradient descent, and after as many of AdamW that follow."""
    weights = {}
    for name, optimizer in (("sgd", torch.optim.SGD(model.parameters(), lr=0.5)),
                            ("adamw", torch.optim.AdamW(model.parameters(), lr=0.01))):
        for _ in range(steps):
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            if name == "adamw":
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        weights[name] = [parameter.detach().clone().cpu() for parameter in model.parameters()]
    return weights


def assert_equal_weights(got, expected):
    from shardtensor.testing import relative_error
    for name, tolerance in TOLERANCES.items():
        errors = [relative_error(a, b) for a, b in zip(got[name], expected[name], strict=True)]
        assert max(errors) < tolerance, (name, errors)


def train_sharded(mesh):
    import shardtensor as st
    model, x, y = model_and_data(mesh.device)
    return train(model, st.scatter_tensor(x, 0, mesh, st.Shard(2)), st.scatter_tensor(y, 0, mesh, st.Shard(2)))


def weights_of(out, ranks):
    """What the ranks of such processes have saved."""
    return [torch.load(f"{out}.{rank}") for rank in range(ranks)]


def as_process_of_a_group(out, device):
    import torch.distributed as dist

    import shardtensor as st
    dist.init_process_group("gloo")
    group = None
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        group = dist.new_group(backend="nccl")
    weights = train_sharded(st.mesh_from_process_group(group=group))
    torch.save(weights, f"{out}.{dist.get_rank()}")
    dist.barrier()
    dist.destroy_process_group()


def as_launched_rank(out, device):
    import shardtensor as st

    def main(world):
        torch.save(train_sharded(world.mesh()), f"{out}.{world.rank}")

    return st.launch(main, device=torch.device(device))


if __name__ == "__main__":
    torch.set_num_threads(1)
    run = {"group": as_process_of_a_group, "mpi": as_launched_rank}[sys.argv[1]]
    sys.exit(run(sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else "cpu"))
