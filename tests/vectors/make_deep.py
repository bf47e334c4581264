#!/usr/bin/env python3
"""Writes nn_deep.bin: a small network of the kind of "deep" computed and differentiated by PyTorch in f64.

Run in this folder after `pip install torch numpy` (PyTorch 2.13 was used). The file is laid out as make_nn.py says, whose
bf16 is meant here too. The module's state_dict has the names that farm_net_make gives; its convolutions, pools and blocks
are what src/nn/net.h says in PyTorch's words. Frame 0 of row 0 and the first two frames of row 1 are zeros.
"""
import copy

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

# The same table stands in tests/nn/test_executor.c. Sizes on the way: 21x14, 11x7, 6x4, 3x2.
LAYERS = [("conv", 8), ("pool",), ("residual", 8, False), ("residual", 8, False),
          ("conv", 16), ("pool",), ("residual", 16, False),
          ("conv", 8), ("pool",), ("residual", 8, True), ("dense", 24)]
BATCH, STACK, HEIGHT, WIDTH, ACTIONS = 4, 3, 21, 14, 5


def bf16(x):
    return x.float().bfloat16().double()


class Store(torch.autograd.Function):
    """ReLU or nothing; output and gradient are bf16 where `rough`."""

    rough = False

    @staticmethod
    def forward(ctx, x, relu):
        y = F.relu(x) if relu else x.clone()
        y = bf16(y) if Store.rough else y
        ctx.mask = y > 0 if relu else 1
        return y

    @staticmethod
    def backward(ctx, diff):
        return (bf16(diff) if Store.rough else diff) * ctx.mask, None


class Pool(nn.Module):
    def forward(self, x):
        if not Store.rough:  # f32 must find the same maxima
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
        inner = Store.apply(self.conv0(Store.apply(x, True)), True)
        return Store.apply(x + self.conv1(inner), self.relu)


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
            x = Store.apply(layer(x), False) if isinstance(layer, nn.Conv2d) else layer(x)
        x = Store.apply(self.layers[-1](x.flatten(1)), True)
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
diffs = [torch.from_numpy(dlogits).double(), torch.from_numpy(dvalue).double()]
exact = solve(net, pixels, *diffs)

Store.rough = True
rough_net = copy.deepcopy(net)
with torch.no_grad():
    for name, parameter in in_order(rough_net):
        scale = np.float32(1 / 255 if name == "layers.0.weight" else 1)
        if parameter.dim() > 1:
            parameter.copy_(bf16(parameter.float() * scale) / float(scale))
rough = solve(rough_net, pixels, *map(bf16, diffs))
errors = [float((a - b).norm() / b.norm()) for a, b in zip(rough, exact)]

with open("nn_deep.bin", "wb") as file:
    for _, parameter in in_order(net):
        file.write(parameter.detach().numpy().astype(np.float32).tobytes())
    for array in [frames, dlogits, dvalue]:
        file.write(array.tobytes())
    for array in [*exact, np.array(errors)]:
        file.write(np.asarray(array, np.float32).tobytes())
