#!/usr/bin/env python3
"""Writes heads.bin: log-probability, entropy, KL divergence and loss gradients of policies by PyTorch's distributions (f64,
inputs rounded to f32). tests/kernels/test_heads.c reads it. Run in this folder after `pip install torch==2.13.0 numpy`."""
import math
import struct

import numpy as np
import torch
from torch.distributions import (AffineTransform, Categorical, Independent, Normal, TanhTransform,
                                 TransformedDistribution, kl_divergence)

ADVANTAGE, ENTROPY_COST, WEIGHT, ROWS = 1.7, 0.03, 0.6, 16  # the same in test_heads.c


def f32(x):
    return torch.as_tensor(np.asarray(x, np.float32), dtype=torch.float64)


def categorical(policy, sizes):
    return [Categorical(logits=part) for part in torch.split(policy, sizes, dim=-1)]


def gaussian(policy, dims):
    return [Independent(Normal(policy[..., :dims], policy[..., dims:].exp()), 1)]


class Scaled(Independent):
    """Of the draw; actions are the draw through the bounds [-1 - i, 2 + 3 i] of dimension i."""

    def __init__(self, policy, dims):
        low, high = -1.0 - torch.arange(dims), 2.0 + 3 * torch.arange(dims)
        self.offset, self.scale = (low + high) / 2, (high - low) / 2
        super().__init__(Normal(policy[..., :dims], policy[..., dims:].exp()), 1)

    def log_prob(self, action):
        return super().log_prob((action - self.offset) / self.scale)


class Squashed:
    """Normal numbers through tanh to [-1 - i, 2 + 3 i] of dimension i; the entropy by numeric integration."""

    def __init__(self, policy, dims):
        low, high = -1.0 - torch.arange(dims), 2.0 + 3 * torch.arange(dims)
        self.normal = Normal(policy[..., :dims], policy[..., dims:].exp())
        self.steps = [TanhTransform(cache_size=1), AffineTransform((low + high) / 2, (high - low) / 2, cache_size=1)]
        self.squashed = TransformedDistribution(self.normal, self.steps)

    def log_prob(self, sample):
        return self.squashed.log_prob(self.steps[1](self.steps[0](sample))).sum(-1)

    def entropy(self):
        z = torch.linspace(-10, 10, 4001, dtype=torch.float64)
        weight = torch.exp(-z * z / 2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
        sample = self.normal.loc + self.normal.scale * z[:, None, None]
        return -(weight[:, None] * self.log_prob(sample)).sum(0)

    def kl(self, other):
        return kl_divergence(self.normal, other.normal).sum(-1)


def permitted(rng, sizes):
    """A mask [ROWS, outputs] with at least one permitted choice of each action, and a permitted choice of each."""
    mask, action = [], []
    for size in sizes:
        mask.append(rng.random((ROWS, size)) < 0.5)
        mask[-1][np.arange(ROWS), rng.integers(size, size=ROWS)] = True
        action.append(torch.tensor([rng.choice(np.flatnonzero(row)) for row in mask[-1]]))
    return torch.tensor(np.concatenate(mask, 1)), action


def case(rng, sizes, dims, masked=False, squashed=False, scaled=False):
    """sizes: of discrete actions; dims: of continuous ones; masked: the behaviour's forbidden logits are -inf."""
    outputs = sum(sizes) if sizes else 2 * dims
    policy, behaviour = (f32(rng.normal(size=(ROWS, outputs)) * (1.5 if sizes else 0.5)) for _ in range(2))
    if squashed:
        policy[:, dims:], behaviour[:, dims:] = f32(policy[:, dims:] / 2 - 0.5), f32(behaviour[:, dims:] / 2 - 0.5)
    mask, chosen = permitted(rng, sizes) if masked else (None, None)
    if masked:
        behaviour = behaviour.masked_fill(~mask, -torch.inf)
    policy.requires_grad_()
    if squashed:
        make = lambda p: [Squashed(p, dims)]
    elif scaled:
        make = lambda p: [Scaled(p, dims)]
    else:
        make = (lambda p: categorical(p, sizes)) if sizes else (lambda p: gaussian(p, dims))
    pi, mu = make(policy.masked_fill(~mask, -torch.inf) if masked else policy), make(behaviour)
    action = chosen or [torch.tensor(rng.integers(s, size=ROWS)) for s in sizes] if sizes else [f32(rng.normal(size=(ROWS, dims)))]
    log_prob = sum(d.log_prob(a) for d, a in zip(pi, action))
    entropy = sum(d.entropy() for d in pi)
    kl = sum(m.kl(p) if squashed else kl_divergence(m, p) for m, p in zip(mu, pi))
    loss = WEIGHT * (-ADVANTAGE * log_prob - ENTROPY_COST * entropy).sum()
    (gradient,) = torch.autograd.grad(loss, policy)
    actions = np.stack([a.numpy() for a in action], 1).astype("<i4") if sizes else action[0].numpy().astype("<f4")
    out = struct.pack("<2i8i", 2 if scaled else squashed, dims, *(list(sizes) + [0] * (8 - len(sizes)))) + actions.tobytes()
    for array in (policy, behaviour, log_prob, entropy, kl, gradient):
        out += array.detach().numpy().astype("<f4").tobytes()
    return out


rng = np.random.default_rng(7)
with open("heads.bin", "wb") as out:
    for sizes, dims in (([6], 0), ([3, 2, 9], 0), ([], 1), ([], 6)):
        out.write(case(rng, sizes, dims))
    for sizes in ([6], [3, 2, 9]):
        out.write(case(rng, sizes, 0, masked=True))
    for dims in (1, 4):
        out.write(case(rng, [], dims, squashed=True))
    out.write(case(rng, [], 3, scaled=True))
