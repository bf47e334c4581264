#!/usr/bin/env python3
"""Writes heads.bin: log-probability, entropy, KL divergence and loss gradients of policies by PyTorch's distributions (f64,
inputs rounded to f32). tests/kernels/test_heads.c reads it. Run in this folder after `pip install torch==2.13.0 numpy`."""
import struct

import numpy as np
import torch
from torch.distributions import Categorical, Independent, Normal, kl_divergence

ADVANTAGE, ENTROPY_COST, WEIGHT, ROWS = 1.7, 0.03, 0.6, 16  # the same in test_heads.c


def f32(x):
    return torch.as_tensor(np.asarray(x, np.float32), dtype=torch.float64)


def categorical(policy, sizes):
    return [Categorical(logits=part) for part in torch.split(policy, sizes, dim=-1)]


def gaussian(policy, dims):
    return [Independent(Normal(policy[..., :dims], policy[..., dims:].exp()), 1)]


def permitted(rng, sizes):
    """A mask [ROWS, outputs] with at least one permitted choice of each action, and a permitted choice of each."""
    mask, action = [], []
    for size in sizes:
        mask.append(rng.random((ROWS, size)) < 0.5)
        mask[-1][np.arange(ROWS), rng.integers(size, size=ROWS)] = True
        action.append(torch.tensor([rng.choice(np.flatnonzero(row)) for row in mask[-1]]))
    return torch.tensor(np.concatenate(mask, 1)), action


def case(rng, sizes, dims, masked=False):
    """sizes: of discrete actions; dims: of continuous ones; masked: the behaviour's forbidden logits are -inf."""
    outputs = sum(sizes) if sizes else 2 * dims
    policy, behaviour = (f32(rng.normal(size=(ROWS, outputs)) * (1.5 if sizes else 0.5)) for _ in range(2))
    mask, chosen = permitted(rng, sizes) if masked else (None, None)
    if masked:
        behaviour = behaviour.masked_fill(~mask, -torch.inf)
    policy.requires_grad_()
    make = (lambda p: categorical(p, sizes)) if sizes else (lambda p: gaussian(p, dims))
    pi, mu = make(policy.masked_fill(~mask, -torch.inf) if masked else policy), make(behaviour)
    action = chosen or [torch.tensor(rng.integers(s, size=ROWS)) for s in sizes] if sizes else [f32(rng.normal(size=(ROWS, dims)))]
    log_prob = sum(d.log_prob(a) for d, a in zip(pi, action))
    entropy, kl = sum(d.entropy() for d in pi), sum(kl_divergence(m, p) for m, p in zip(mu, pi))
    loss = WEIGHT * (-ADVANTAGE * log_prob - ENTROPY_COST * entropy).sum()
    (gradient,) = torch.autograd.grad(loss, policy)
    actions = np.stack([a.numpy() for a in action], 1).astype("<i4") if sizes else action[0].numpy().astype("<f4")
    out = struct.pack("<i8i", dims, *(list(sizes) + [0] * (8 - len(sizes)))) + actions.tobytes()
    for array in (policy, behaviour, log_prob, entropy, kl, gradient):
        out += array.detach().numpy().astype("<f4").tobytes()
    return out


rng = np.random.default_rng(7)
with open("heads.bin", "wb") as out:
    for sizes, dims in (([6], 0), ([3, 2, 9], 0), ([], 1), ([], 6)):
        out.write(case(rng, sizes, dims))
    for sizes in ([6], [3, 2, 9]):
        out.write(case(rng, sizes, 0, masked=True))
