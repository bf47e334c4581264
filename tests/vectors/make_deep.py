#!/usr/bin/env python3
"""Writes nn_deep.bin: a small network of the kind of "deep" computed and differentiated by PyTorch in f64.

Run in this folder after `pip install torch numpy` (PyTorch 2.13 was used). The file is laid out as make_nn.py says. The module's
state_dict has the names that farm_net_make gives; its convolutions, pools and blocks are what src/nn/net.h says in
PyTorch's words. Frame 0 of row 0 and the first two frames of row 1 are zeros.

PyTorch's own bf16 stands beside: how far it is off f64 is printed, tensor by tensor, for the bounds of the tests.
"""
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

# The same table stands in tests/nn/test_executor.c. Sizes on the way: 21x14, 11x7, 6x4, 3x2.
LAYERS = [("conv", 8), ("pool",), ("residual", 8, False), ("residual", 8, False),
          ("conv", 16), ("pool",), ("residual", 16, False),
          ("conv", 8), ("pool",), ("residual", 8, True), ("dense", 24)]
BATCH, STACK, HEIGHT, WIDTH, ACTIONS = 4, 3, 21, 14, 5


class Pool(nn.Module):
    def forward(self, x):
        if x.dtype == torch.float64:  # f32 must find the same maxima
            padded = F.pad(x, (x.shape[3] % 2, 1, x.shape[2] % 2, 1), value=-torch.inf)
            windows = padded.unfold(2, 3, 2).unfold(3, 3, 2).flatten(4)
            largest = windows.topk(2).values
            assert (largest[..., 0] - largest[..., 1]).min() > 1e-5
        return F.max_pool2d(x, 3, 2, padding=(x.shape[2] % 2, x.shape[3] % 2), ceil_mode=True)


class Residual(nn.Module):
    def __init__(self, channels, relu):
        super().__init__()
        self.conv0 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.relu = relu

    def forward(self, x):
        x = x + self.conv1(F.relu(self.conv0(F.relu(x))))
        return F.relu(x) if self.relu else x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, channels, height, width = nn.ModuleList(), STACK, HEIGHT, WIDTH
        for layer in LAYERS:
            if layer[0] == "conv":
                self.layers.append(nn.Conv2d(channels, layer[1], 3, padding=1))
                channels = layer[1]
            elif layer[0] == "pool":
                self.layers.append(Pool())
                height, width = -(-height // 2), -(-width // 2)
            elif layer[0] == "residual":
                self.layers.append(Residual(channels, layer[2]))
            else:
                self.layers.append(nn.Linear(channels * height * width, layer[1]))
        self.policy, self.value = nn.Linear(layer[1], ACTIONS), nn.Linear(layer[1], 1)

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = layer(x)
        x = F.relu(self.layers[-1](x.flatten(1)))
        return self.policy(x), self.value(x)[:, 0]


def in_order(net):
    """Parameters in the order of farm_net_make."""
    named = dict(net.named_parameters())
    heads = ["policy.weight", "value.weight", "policy.bias", "value.bias"]
    return [(name, named[name]) for name in [n for n in named if n not in heads] + heads]


def solve(net, frames, dlogits, dvalue):
    net.zero_grad()
    logits, value = net(frames)
    (torch.sum(dlogits * logits) + torch.sum(dvalue * value)).backward()
    return [logits.detach(), value.detach()] + [p.grad.clone() for _, p in in_order(net)]


rng = np.random.default_rng(7)
net = Net().double()
with torch.no_grad():
    for _, parameter in in_order(net):
        shape = tuple(parameter.shape)
        bound = 1 / np.sqrt(np.prod(shape[1:])) if len(shape) > 1 else 0.1
        parameter.copy_(torch.from_numpy(rng.uniform(-bound, bound, shape).astype(np.float32)))
frames = rng.integers(0, 256, (BATCH, STACK, HEIGHT, WIDTH), dtype=np.uint8)
frames[0, 0] = 0
frames[1, :2] = 0
dlogits = rng.normal(size=(BATCH, ACTIONS)).astype(np.float32)
dvalue = rng.normal(size=BATCH).astype(np.float32)
pixels = torch.from_numpy(frames).double() / 255
exact = solve(net, pixels, torch.from_numpy(dlogits).double(), torch.from_numpy(dvalue).double())
with open("nn_deep.bin", "wb") as file:
    for _, parameter in in_order(net):
        file.write(parameter.detach().numpy().astype(np.float32).tobytes())
    for array in [frames, dlogits, dvalue]:
        file.write(array.tobytes())
    for tensor in exact:
        file.write(tensor.numpy().astype(np.float32).tobytes())

with torch.autocast("cpu", dtype=torch.bfloat16):
    rough = solve(net.float(), pixels.float(), torch.from_numpy(dlogits), torch.from_numpy(dvalue))
for name, off, right in zip(["logits", "value"] + [n for n, _ in in_order(net)], rough, exact):
    print(f"{name:24} bf16 off by {float((off.double() - right).norm() / right.norm()):.3f}")
