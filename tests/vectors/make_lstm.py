#!/usr/bin/env python3
"""Writes lstm.bin: two LSTM layers behind `mlp` over a sequence with episodes that begin inside, forward and backward, by PyTorch in f64.

Run in this folder after `pip install torch numpy`. Little-endian f32, in this order (sizes in tests/nn/test_lstm.c): parameters as
farm_net_make orders them, observations [T][C][FLAT], FIRST [T][C], the state before [C][layers][h, c][UNITS], gradients by logits [T][C][ACTIONS]
and by values [T][C]; then the results: logits, values, the state after, the gradient by the parameters.
"""
import numpy as np
import torch
from torch import nn

T, C, FLAT, UNITS, LAYERS, ACTIONS, HIDDEN = 9, 3, 5, 7, 2, 4, 64
FIRST = [(0, 1), (3, 0), (3, 2), (8, 1)]  # (step, column)


def f64(*shape):
    return torch.randn(*shape).float().double()  # exact in f32


def main():
    torch.manual_seed(0)
    layers = nn.ModuleList([nn.Linear(FLAT, HIDDEN), nn.Linear(HIDDEN, HIDDEN)]).double()
    lstm, policy, value = nn.LSTM(HIDDEN, UNITS, LAYERS).double(), nn.Linear(UNITS, ACTIONS).double(), nn.Linear(UNITS, 1).double()
    order = [p for layer in layers for p in (layer.weight, layer.bias)]
    order += [w for layer in lstm.all_weights for w in (layer[0], layer[2], layer[1], layer[3])]
    order += [policy.weight, value.weight, policy.bias, value.bias]
    with torch.no_grad():
        for p in order:
            p.copy_((2 * p).float())  # large enough to reach the gates' bends
    x, before, dlogits, dvalue = f64(T, C, FLAT), f64(C, LAYERS, 2, UNITS), f64(T, C, ACTIONS), f64(T, C)
    first = torch.zeros(T, C, dtype=torch.float64)
    for at in FIRST:
        first[at] = 1
    h, c = (before[:, :, k].transpose(0, 1).contiguous() for k in range(2))
    features = torch.tanh(layers[1](torch.tanh(layers[0](x))))
    out = []
    for t in range(T):
        keep = (1 - first[t])[None, :, None]
        y, (h, c) = lstm(features[t : t + 1], (h * keep, c * keep))
        out.append(y[0])
    out = torch.stack(out)
    logits, values = policy(out), value(out)[..., 0]
    ((logits * dlogits).sum() + (values * dvalue).sum()).backward()
    after = torch.stack([h, c], 2).transpose(0, 1)
    parts = [*order, x, first, before, dlogits, dvalue, logits, values, after, *(p.grad for p in order)]
    with open("lstm.bin", "wb") as file:
        file.write(b"".join(p.detach().numpy().astype("<f4").tobytes() for p in parts))
    print(f"{sum(p.numel() for p in order)} parameters")


main()
