#!/usr/bin/env python3
"""Writes nn_grey.bin, nn_rgb.bin, nn_flat.bin, nn_deep.bin, nn_norm.bin and nn_joined.bin: small networks computed and differentiated by PyTorch in f64.

Run in this folder after `pip install torch numpy`. Each file is one array after another, little-endian, in this order: parameters f32
(tensor by tensor in the order of farm_net_make, PyTorch's layouts), input (u8 frames [batch][stack][channels][height][width],
or f32 [batch][flat]), dlogits f32 [batch][actions], dvalue f32 [batch], logits f32 [batch][actions], value f32 [batch],
gradients f32 like the parameters; then the error of bf16, f32: relative Euclidean norms for logits, values and each
tensor's gradient. Frame 0 of row 0 and the first two frames of row 1 are zeros.

nn_joined.bin: frames [batch][2 images][height][width][3 channels] beside a flat input of 14 numbers. After the parameters,
normalise.mean f32 [14] and normalise.variance f32 [14]; after the frames, f32 [batch][4] (three that are normalised, one that is
clipped to +-1), i32 [batch][2] in [0, 4) and u8 [batch][2] of 0 and 1; no errors of bf16.

In bf16, PyTorch rounds what the executor stores in bf16: packed weights (for frames, divided by 255), outputs of layers after
the activation, gradients by those outputs, these once more after the activation, and dlogits and dvalue.
"""
import copy

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

# The same tables are in tests/nn/test_executor.c. conv: channels, kernel, stride, then relu unless it is given; same: 3x3, padded, no activation.
NETS = {
    "grey": dict(layers=[("conv", 8, 4, 2), ("conv", 16, 3, 1), ("dense", 8, "relu")], frames=(3, 1, 20, 18), actions=5, batch=5),
    "rgb": dict(layers=[("conv", 8, 4, 2), ("dense", 16, "relu")], frames=(2, 3, 14, 16), actions=3, batch=3),
    "flat": dict(layers=[("dense", 32, "tanh"), ("dense", 24, "tanh")], flat=7, actions=4, batch=6),
    # Sizes on the way: 21x14, 11x7, 6x4, 3x2.
    "deep": dict(layers=[("same", 8), ("pool",), ("residual", None), ("residual", None), ("same", 16), ("pool",), ("residual", None),
                         ("same", 8), ("pool",), ("residual", "relu"), ("dense", 24, "relu")], frames=(3, 1, 21, 14), actions=5, batch=4),
    "norm": dict(layers=[("conv", 16, 3, 2, None), ("norm", None), ("residual", "silu"), ("conv", 16, 2, 1, "elu"), ("conv", 16, 3, 2, "tanh"),
                         ("norm", "relu"), ("dense", 24, "elu"), ("norm", "tanh"), ("dense", 19, None), ("norm", "silu")],
                 frames=(2, 1, 27, 13), actions=5, batch=4),
}  # fmt: skip
ACTIVATIONS = {"relu": F.relu, "tanh": torch.tanh, "elu": F.elu, "silu": F.silu, None: torch.clone}


def bf16(x):
    return x.float().bfloat16().double()


class Store(torch.autograd.Function):
    """ReLU, tanh or nothing; output and gradient are bf16 where `rough`."""

    rough = False

    @staticmethod
    def forward(ctx, x, activation):
        y = ACTIVATIONS[activation](x)
        y = bf16(y) if Store.rough else y
        ctx.slope = {"relu": y > 0, "tanh": 1 - y * y, None: 1}[activation]
        return y

    @staticmethod
    def backward(ctx, diff):
        return (bf16(bf16(diff) * ctx.slope) if Store.rough else diff * ctx.slope), None


def store(x, activation, fused=("relu", None)):
    """What an op stores; an activation that it does not have by itself reads that and stores its own."""
    return Store.apply(x, activation) if activation in fused else Store.apply(ACTIVATIONS[activation](Store.apply(x, None)), None)


class Norm(nn.LayerNorm):
    """Of a pixel's channels, or of a vector, then an activation."""

    def forward(self, x, activation):
        return Store.apply(ACTIVATIONS[activation](super().forward(x.movedim(1, -1)).movedim(-1, 1)), None)


class Pool(nn.Module):
    def forward(self, x):
        if not Store.rough:  # f32 must find the same maxima
            padded = F.pad(x, (x.shape[3] % 2, 1, x.shape[2] % 2, 1), value=-torch.inf)
            windows = padded.unfold(2, 3, 2).unfold(3, 3, 2).flatten(4)
            largest = windows.topk(2).values
            assert (largest[..., 0] - largest[..., 1]).min() > 1e-5
        return F.max_pool2d(x, 3, 2, padding=(x.shape[2] % 2, x.shape[3] % 2), ceil_mode=True)


class Residual(nn.Module):
    def __init__(self, channels, activation):
        super().__init__()
        self.conv0 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.activation = activation

    def forward(self, x):
        inner = Store.apply(self.conv0(Store.apply(x, "relu")), "relu")
        return store(x + self.conv1(inner), self.activation)


class Net(nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.spec, self.layers = spec["layers"], nn.ModuleList()
        shape = input_shape(spec)
        for kind, *how in self.spec:
            self.layers.append({
                "conv": lambda: nn.Conv2d(shape[0], *how[:3]), "norm": lambda: Norm(shape[0]), "same": lambda: nn.Conv2d(shape[0], how[0], 3, padding=1),
                "pool": Pool, "residual": lambda: Residual(shape[0], *how), "dense": lambda: nn.Linear(int(np.prod(shape)), how[0]),
            }[kind]())  # fmt: skip
            with torch.no_grad():
                shape = self.run(self.layers[-1], kind, how, torch.rand(1, *shape))[0].shape
        self.policy, self.value = nn.Linear(shape[0], spec["actions"]), nn.Linear(shape[0], 1)

    @staticmethod
    def run(layer, kind, how, x):
        if kind in ("pool", "residual"):
            return layer(x)
        if kind == "norm":
            return layer(x, *how)
        if kind == "dense":
            return store(layer(x.flatten(1)), how[-1], ("relu", "tanh", None))
        return store(layer(x), None if kind == "same" else how[3] if len(how) > 3 else "relu")

    def forward(self, x):
        for layer, (kind, *how) in zip(self.layers, self.spec):
            x = self.run(layer, kind, how, x)
        return self.policy(x), self.value(x)[:, 0]


def input_shape(spec):
    return (spec["flat"],) if "flat" in spec else (spec["frames"][0] * spec["frames"][1], *spec["frames"][2:])


def in_order(net):
    """Parameters in the order of farm_net_make."""
    named = dict(net.named_parameters())
    heads = ["policy.weight", "value.weight", "policy.bias", "value.bias"]
    return [(name, named[name]) for name in [n for n in named if n not in heads] + heads]


def solve(net, x, dlogits, dvalue):
    """Logits, values and gradients."""
    net.zero_grad()
    logits, value = net(x)
    (torch.sum(dlogits * logits) + torch.sum(dvalue * value)).backward()
    return [logits.detach(), value.detach()] + [p.grad.clone() for _, p in in_order(net)]


def solve_roughly(net, of_frames, x, *diffs):
    net = copy.deepcopy(net)
    with torch.no_grad():
        for name, parameter in in_order(net):
            scale = np.float32(1 / 255 if of_frames and name == "layers.0.weight" else 1)
            if parameter.dim() > 1:
                parameter.copy_(bf16(parameter.float() * scale) / float(scale))
    Store.rough = True
    results = solve(net, x if of_frames else bf16(x), *map(bf16, diffs))
    Store.rough = False
    return results


def write(name, spec, rng):
    net, batch, of_frames = Net(spec).double(), spec["batch"], "frames" in spec
    with torch.no_grad():
        for _, parameter in in_order(net):
            shape = tuple(parameter.shape)
            bound = 1 / np.sqrt(np.prod(shape[1:])) if len(shape) > 1 else 0.1
            parameter.copy_(torch.from_numpy(rng.uniform(-bound, bound, shape).astype(np.float32)))
    if of_frames:
        raw = rng.integers(0, 256, (batch, *spec["frames"]), dtype=np.uint8)
        raw[0, 0] = 0
        raw[1, :2] = 0
    else:
        raw = rng.normal(size=(batch, spec["flat"])).astype(np.float32)
    dlogits = rng.normal(size=(batch, spec["actions"])).astype(np.float32)
    dvalue = rng.normal(size=batch).astype(np.float32)
    x = torch.from_numpy(raw).double().reshape(batch, *input_shape(spec)) / (255 if of_frames else 1)
    diffs = [torch.from_numpy(dlogits).double(), torch.from_numpy(dvalue).double()]
    exact = solve(net, x, *diffs)
    errors = [float((a - b).norm() / b.norm()) for a, b in zip(solve_roughly(net, of_frames, x, *diffs), exact)]
    with open(f"nn_{name}.bin", "wb") as file:
        for _, parameter in in_order(net):
            file.write(parameter.detach().numpy().astype(np.float32).tobytes())
        file.write(raw.tobytes())
        for array in [dlogits, dvalue, *exact, np.array(errors)]:
            file.write(np.asarray(array, np.float32).tobytes())


class Joined(Net):
    """The features, then relu of a layer over the flat input; a layer over both, before the heads."""

    def __init__(self, spec, flat):
        super().__init__(spec)
        features = self.policy.in_features
        self.inputs = nn.Linear(flat, 64)
        self.joined = nn.Linear(features + 64, features)

    def forward(self, x):
        frames, flat = x
        for layer, (kind, *how) in zip(self.layers, self.spec):
            frames = self.run(layer, kind, how, frames)
        x = F.relu(self.joined(torch.cat([frames, F.relu(self.inputs(flat))], 1)))
        return self.policy(x), self.value(x)[:, 0]


def write_joined(rng, batch=4):
    spec = dict(layers=[("conv", 8, 4, 2), ("dense", 16, "relu")], frames=(2, 3, 14, 16), actions=3)
    net = Joined(spec, 14).double()
    with torch.no_grad():
        for _, parameter in in_order(net):
            parameter.copy_(torch.from_numpy(rng.uniform(-0.3, 0.3, tuple(parameter.shape)).astype(np.float32)))
    frames = rng.integers(0, 256, (batch, 2, 14, 16, 3), dtype=np.uint8)
    numbers = (10 * rng.normal(size=(batch, 4))).astype(np.float32)
    numbers[0, 0] = 1e4  # clipped after normalisation
    choices = rng.integers(0, 4, (batch, 2), dtype=np.int32)
    binary = rng.integers(0, 2, (batch, 2), dtype=np.uint8)
    mean, variance = np.zeros(14, np.float32), np.ones(14, np.float32)
    mean[:3], variance[:3] = rng.normal(size=3), rng.uniform(0.5, 30, 3)
    scaled = np.clip((numbers[:, :3] - mean[:3].astype(float)) / np.sqrt(variance[:3].astype(float) + 1e-8), -10, 10)
    one_hot = np.eye(4)[choices].reshape(batch, 8)
    flat = np.concatenate([scaled, np.clip(numbers[:, 3:], -1, 1), one_hot, binary], 1)
    dlogits, dvalue = (rng.normal(size=shape).astype(np.float32) for shape in [(batch, 3), (batch,)])
    planes = frames.transpose(0, 1, 4, 2, 3).reshape(batch, 6, 14, 16) / 255
    exact = solve(net, (torch.from_numpy(planes), torch.from_numpy(flat)),
                  torch.from_numpy(dlogits).double(), torch.from_numpy(dvalue).double())  # fmt: skip
    with open("nn_joined.bin", "wb") as file:
        for _, parameter in in_order(net):
            file.write(parameter.detach().numpy().astype(np.float32).tobytes())
        for array in [mean, variance, frames, numbers, choices, binary, dlogits, dvalue]:
            file.write(array.tobytes())
        for array in exact:
            file.write(np.asarray(array, np.float32).tobytes())


write_joined(np.random.default_rng(11))
for each, net_spec in NETS.items():
    write(each, net_spec, np.random.default_rng(7))
