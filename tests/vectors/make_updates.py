#!/usr/bin/env python3
"""Writes updates.bin: 50 updates of small networks by V-trace, PPO, R2D2 and DQN, computed by PyTorch in f64 with its own
optimisers, distributions, gradient clipping and automatic differentiation.

Run in this folder after `pip install torch numpy`; with names of new cases it adds these only. Observations, rewards, episode ends, answers and initial parameters are draws
(tests/support/updates.h makes the same), so the file holds settings and results only. A case, little-endian: name (16 bytes), i32
settings and the numbers of a change, f32 settings, as in struct update_case; then f32: the algorithm's terms [50][8] and the
gradient's norm [50] (of the last pass, before clipping) of each update; after 1, 5 and 50 updates the change of the parameters: of
each tensor of n entries those at 0, s, 2s, ..., s = 1 for n <= 256, else n / 128 rounded down, if even to the next odd number;
of R2D2 and DQN the columns' priorities [50][8].
A case's draws are those of the first seed with which rounding decides no gradient: no row comes near an edge of a clip, and noise in
the layers' outputs, as of rounding, moves no ReLU across its edge at a place where the tests would see it. The search takes half an hour.
"""
import copy
import struct
import sys

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical, Independent, Normal, kl_divergence
from torch.nn import functional as F
from torch.nn.utils import parametrize

LANES, WIDTH, UNROLL, UPDATES, SIDE, STACK, FLAT, ACTIONS, CHOICES = 2, 4, 6, 50, 12, 2, 5, 4, 3  # the same in tests/support/updates.h
BURN_IN_MOST = 6
COLUMNS, STEPS, ROWS = LANES * WIDTH, UPDATES * UNROLL + BURN_IN_MOST + 1, LANES * WIDTH * UNROLL
SIZES = [ACTIONS, 3]  # of the first and the second action
SNAPSHOTS = (1, 5, UPDATES)
FIRST, LAST, TERMINATED, TRUNCATED = 1, 2, 4, 8
TERMS = 8
VTRACE, PPO, R2D2, DQN = range(4)  # the same there


def f32(x):
    return np.asarray(x, np.float32)


def mix(x):
    """farm_random_mix of u64 arrays."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)


def draw(seed, column, n, what):
    """Uniform in [0, 1)."""
    column, n, what = (np.atleast_1d(np.asarray(x, np.uint64)) for x in (column, n, what))
    return (mix(what ^ mix(n ^ mix(column ^ np.uint64(seed << 32)))) >> np.uint64(11)).astype(np.float64) / 2.0**53


def make_steps(case):
    """All steps [STEPS][COLUMNS] of all environments and the answers to them."""
    seed, dims = case["seed"], case["dims"]
    column, n = np.arange(COLUMNS)[None, :], np.arange(STEPS)[:, None]
    boundary = draw(seed, column, n, 1) < 0.15  # between n and n + 1
    kind = draw(seed, column, n, 2)
    end = np.where(kind < 0.4, LAST | TERMINATED, np.where(kind < 0.7, LAST | TRUNCATED, 0))  # 0: abandoned
    first = np.concatenate([np.ones((1, COLUMNS), bool), boundary[:-1]])
    flags = np.where(first, FIRST, 0) | np.where(boundary, end, 0)
    column, n = column[..., None], n[..., None]
    channels = 3 if case["joined"] else 1
    frame = (256 * draw(seed, column, n, 100 + np.arange(SIDE * SIDE * channels))).astype(np.uint8)
    frame = np.moveaxis(frame.reshape(STEPS, COLUMNS, SIDE, SIDE, channels), -1, 2)
    before = np.concatenate([np.zeros_like(frame[:1]), frame[:-1]])
    before[first] = 0
    feature = np.arange(FLAT)
    spread = 4.0 ** (feature - 2) if case["normalise"] else np.ones(FLAT)
    numbers = f32(spread * (2 * draw(seed, column, n, 1000 + feature) - 1) + (feature if case["normalise"] else 0))
    choices = (CHOICES * draw(seed, column, n, 2000 + np.arange(2))).astype(np.int64)
    sizes = SIZES[: case["actions"]]
    policy = f32(draw(seed, column, n, 10 + np.arange(2 * dims or sum(sizes))) - 0.5)
    number = draw(seed, column, n, 50 + np.arange(dims or len(sizes)))
    action = f32(policy[..., :dims] + 2 * number - 1) if dims else (np.array(sizes) * number).astype(np.int64)
    if case["masked"]:  # the chosen action and others, nothing at an episode's last step
        permitted = np.concatenate([action[..., [d]] == np.arange(size) for d, size in enumerate(sizes)], -1)
        permitted |= draw(seed, column, n, 60 + np.arange(sum(sizes))) < 0.5
        policy[~permitted & (flags & LAST == 0)[..., None]] = -np.inf
    reward, value = f32(3 * draw(seed, column, n, 3) - 1.5)[..., 0], f32(2 * draw(seed, column, n, 4) - 1)[..., 0]
    extra = np.zeros((STEPS, COLUMNS, 0))  # choices one-hot; the last action and clipped reward, 0 at an episode's start
    if case["joined"]:
        last = np.concatenate([np.zeros((1, COLUMNS, ACTIONS)), np.eye(ACTIONS)[action[:-1, :, 0]]])
        last = np.concatenate([last, reward[..., None].clip(-1, 1)], -1) * ~first[..., None]
        extra = np.concatenate([np.eye(CHOICES)[choices].reshape(STEPS, COLUMNS, -1), last], -1)
    return dict(flags=flags, reward=reward, value=value, policy=policy, action=action, numbers=numbers, extra=extra,
                frames=np.concatenate([before, frame], 2), seen=np.stack([first, np.zeros_like(first)], -1) == 0)  # fmt: skip


class Masked(nn.Module):
    """Weights that stay 0."""

    def __init__(self, mask):
        super().__init__()
        self.mask = mask

    def forward(self, weight):
        return weight * self.mask


def weight_of(layer):
    return layer.parametrizations.weight.original if parametrize.is_parametrized(layer) else layer.weight


class Net(nn.Module):
    """Over rows of frames [channels of the stack][height][width], then numbers; either may be absent."""

    def __init__(self, case):
        super().__init__()
        self.frames, self.dims, self.joined, self.state_sigma = (case[k] for k in ("frames", "dims", "joined", "state_sigma"))
        self.channels, width = STACK * (3 if self.joined else 1), 16 if self.frames else 128 if case["separate"] else 64
        if self.frames:
            self.layers = nn.ModuleList([nn.Conv2d(self.channels, 8, 4, 2), nn.Conv2d(8, 8, 3), nn.Linear(8 * 3 * 3, 16)])
        else:
            self.layers = nn.ModuleList([nn.Linear(FLAT, width), nn.Linear(width, width)])
        join = [nn.Linear(FLAT + 2 * CHOICES + ACTIONS + 1, 64), nn.Linear(width + 64, width)]
        self.join = nn.ModuleList(join[: 1 if case["lstm"] else 2] if self.joined else [])
        self.lstm = nn.LSTM(width + 64 * self.joined, case["lstm"], case["lstm_layers"]) if case["lstm"] else None
        width = case["lstm"] or width
        self.policy, self.value = nn.Linear(width, 2 * self.dims or sum(SIZES[: case["actions"]])), nn.Linear(width, 1)

        if case["separate"]:  # the first halves lead to the policy, the second ones to the value
            half = torch.arange(width) < width // 2
            for module, mask in ((self.layers[1], half[:, None] == half), (self.policy, half), (self.value, ~half)):
                parametrize.register_parametrization(module, "weight", Masked(mask))

    def forward(self, x, state=None):
        """With a memory, rows are one step of all environments; `state` (h and c) changes in place."""
        pixels = self.frames * self.channels * SIDE * SIDE
        x, flat = (x[:, :pixels].reshape(len(x), -1, SIDE, SIDE), x[:, pixels:]) if pixels else (x, None)
        for layer in self.layers:
            x = F.relu(layer(x.flatten(1) if isinstance(layer, nn.Linear) else x)) if self.frames else torch.tanh(layer(x))
        if self.joined:
            x = torch.cat([x, F.relu(self.join[0](flat))], 1)
            x = x if self.lstm else F.relu(self.join[1](x))
        if self.lstm:
            x, after = self.lstm(x[None], tuple(state))
            x, state[:] = x[0], after
        policy = self.policy(x)
        if self.dims and not self.state_sigma:  # logarithms of standard deviations do not depend on the observation
            policy = torch.cat([policy[:, : self.dims], self.policy.bias[self.dims :].expand(len(x), -1)], 1)
        return policy, self.value(x)[:, 0]

    def along(self, obs, flags, state):
        """Policies and values of steps [T][columns]: the state, which changes, is 0 at an episode's start."""
        if not self.lstm:
            return [x.reshape(*flags.shape, *x.shape[1:]) for x in self(obs.flatten(0, 1))]
        rows = []
        for x, first in zip(obs, flags & FIRST):
            state[:] = [s * torch.from_numpy(first == 0)[:, None] for s in state]
            rows.append(self(x, state))
        return [torch.stack(x) for x in zip(*rows)]

    def in_order(self):
        """Parameters in the order of farm_net_make."""
        layers = [p for layer in [*self.layers, *self.join] for p in (weight_of(layer), layer.bias)]
        if self.lstm:
            layers += [w for layer in self.lstm.all_weights for w in (layer[0], layer[2], layer[1], layer[3])]
        return layers + [weight_of(self.policy), weight_of(self.value), self.policy.bias, self.value.bias]


def initialise(net, seed):
    with torch.no_grad():
        for t, p in enumerate(net.in_order()):
            bound = np.sqrt(3.0 / (p[0].numel())) if p.dim() > 1 else 0.1
            p.copy_(torch.from_numpy(f32(bound * (2 * draw(seed, 1000 + t, np.arange(p.numel()), 0) - 1))).reshape(p.shape))


class Acting:
    """The states before all steps so far, by the parameters that answered each."""

    def __init__(self, case, net, obs, flags):
        self.case, self.net, self.obs, self.flags, self.n = case, net, obs, flags, 0
        self.state, self.before = [torch.zeros(case["lstm_layers"], COLUMNS, case["lstm"], dtype=torch.float64) for _ in "hc"], {}

    def until(self, last):
        """Answers steps before `last`."""
        for n in range(self.n, last):
            self.before[n] = list(self.state)
            with torch.no_grad():
                self.net.along(self.obs[[n]], self.flags[[n]], self.state)
        self.n, self.before[last] = last, list(self.state)


def warmed_up(case, net, w, state, columns):
    """The windows' columns after the burn-in, and the state there."""
    burn_in, state = case["burn_in"], state and [s[:, columns] for s in state]
    w = {k: v[:, columns] for k, v in w.items()}
    if burn_in:
        with torch.no_grad():
            net.along(w["obs"][:burn_in], w["flags"][:burn_in], state)
    return {k: v[burn_in:] for k, v in w.items()}, state


class TensorFlowRMSprop(torch.optim.Optimizer):
    """TensorFlow's: epsilon inside of the root, the moment starts at 1."""

    def __init__(self, params, lr, alpha, eps):
        super().__init__(params, dict(lr=lr, alpha=alpha, eps=eps))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                square = self.state[p].setdefault("square", torch.ones_like(p))
                square.mul_(group["alpha"]).addcmul_(p.grad, p.grad, value=1 - group["alpha"])
                p.sub_(group["lr"] * p.grad / (square + group["eps"]).sqrt())


class Statistics:
    """What normalisation knows of all steps so far, by NumPy."""

    def __init__(self, case, steps):
        self.case, self.steps = case, steps
        pixels = case["frames"] * steps["frames"].shape[2] // STACK * SIDE * SIDE
        self.pixels = [np.zeros(pixels), np.ones(pixels)]
        self.set(np.zeros(FLAT), np.ones(FLAT), 0, [0, 1, 0])

    def set(self, mean, variance, count, returns):
        others = self.steps["extra"].shape[-1]  # are not normalised
        mean, variance = np.append(self.pixels[0], mean), np.append(self.pixels[1], variance)
        self.tensors = [np.append(mean, np.zeros(others)), np.append(variance, np.ones(others)), np.array([count]), np.array(returns)]

    def windows(self, at):
        """Those of the windows `at`, with the statistics that acted; their rewards are scaled with the newest ones."""
        case, w = self.case, {k: v[at] for k, v in self.steps.items()}
        w["reward"] = w["reward"].astype(np.float64)
        if case["reward_clip"]:
            w["reward"] = w["reward"].clip(-case["reward_clip"], case["reward_clip"])
        w["reward"] *= case["reward_scale"]
        numbers, frames = w["numbers"].astype(np.float64), w["frames"] / 255
        if case["normalise"]:
            pixels = len(self.pixels[0])
            frames = self.frames(w) if pixels else frames
            mean, variance = (f32(x[pixels : pixels + FLAT]).astype(np.float64) for x in self.tensors[:2])
            numbers = ((numbers - mean) / np.sqrt(variance + 1e-8)).clip(-10, 10)
            self.count(at)
            w["reward"] = (w["reward"] / np.sqrt(self.tensors[3][1] + 1e-8)).clip(-10, 10)
        obs = np.concatenate([frames.reshape(*numbers.shape[:2], -1)] * case["frames"] +
                             [numbers, w["extra"]] * (case["joined"] or not case["frames"]), -1)  # fmt: skip
        w |= dict(obs=obs, policy=w["policy"].astype(np.float64), value=w["value"].astype(np.float64))
        return {k: v if k == "flags" else torch.from_numpy(v) for k, v in w.items()}

    def frames(self, w):
        """kernels/pixels.h, from its description: steps of 1/25.4, 0 without a frame and without statistics."""
        mean, variance = (f32(x).reshape(-1, SIDE, SIDE) for x in self.pixels)
        gain = np.rint(512 * f32(25.4) / np.sqrt(variance + f32(0.65))) * (self.tensors[2] > 0)
        frames = w["frames"].astype(np.int64).reshape(*w["frames"].shape[:2], STACK, -1, SIDE, SIDE)
        steps = np.floor(((64 * frames - np.rint(64 * mean)) * gain + 2**14) / 2**15).clip(-128, 127)
        return steps * w["seen"][..., None, None, None] / 25.4

    def count(self, at):
        if len(self.pixels[0]):
            frames = self.steps["frames"].reshape(*self.steps["frames"].shape[:2], STACK, -1)[: at.stop - 1, :, 1].astype(np.float64)
            self.pixels = [frames.mean((0, 1)), frames.var((0, 1))]
        numbers, discounted, returns = self.steps["numbers"][: at.stop - 1].reshape(-1, FLAT).astype(np.float64), np.zeros(COLUMNS), []
        for n in range(1, at.stop):
            flags = self.steps["flags"][n]
            discounted = np.where(flags & FIRST, 0, self.case["discount"] * discounted + self.case["reward_scale"] * self.steps["reward"][n])
            returns.extend(discounted[flags & FIRST == 0])
            discounted = np.where(flags & LAST, 0, discounted)
        self.set(numbers.mean(0), numbers.var(0), len(numbers), [np.mean(returns), np.var(returns), len(returns)])


def transitions(flags):
    """Rows [T][columns] that lead to the next step within one episode."""
    return ((flags[:-1] & LAST) == 0) & ((flags[1:] & FIRST) == 0)


def discounts(case, flags):
    return torch.from_numpy(np.where(flags[1:] & TERMINATED, 0.0, float(f32(case["discount"]))))


def along(exists, decay, delta):
    """Sum over k of delta[t + k] times the product of decay[t], ..., decay[t + k - 1], in one episode: [T][columns]."""
    decay, delta, out = decay.numpy(), delta.numpy(), np.zeros(exists.shape)
    for t in range(exists.shape[0]):
        for c in range(exists.shape[1]):
            factor, k = 1.0, t
            while k < exists.shape[0] and exists[k, c]:
                out[t, c] += factor * delta[k, c]
                factor, k = factor * decay[k, c], k + 1
    return torch.from_numpy(out)


class Discrete:
    """Independent actions of several sizes; mu forbids choices by -inf."""

    def __init__(self, policy, mu, sizes):
        policy = policy.masked_fill(mu == -torch.inf, -torch.inf)
        self.parts = [Categorical(logits=part) for part in policy.split(sizes, -1)]

    def log_prob(self, action):
        return sum(part.log_prob(action[..., d]) for d, part in enumerate(self.parts))

    def entropy(self):
        return sum(part.entropy() for part in self.parts)

    def kl_to(self, other):
        return sum(kl_divergence(p, q) for p, q in zip(self.parts, other.parts))


class Gaussian(Independent):
    def __init__(self, policy):
        self.mean_of, log_sigma = policy.chunk(2, -1)
        self.sigma_of = log_sigma.exp()
        super().__init__(Normal(self.mean_of, self.sigma_of), 1)

    def kl_to(self, other):
        return kl_divergence(self, other)


class Squashed(Gaussian):
    """Of low + (tanh(x) + 1) / 2 * (high - low) at the draw x; the entropy by the trapezoidal rule."""

    HALF = torch.tensor([1, 2.5], dtype=torch.float64)  # (high - low) / 2

    @staticmethod
    def log_slope(x):
        return (1 / torch.cosh(x) ** 2).log()

    def log_prob(self, x):
        return super().log_prob(x) - (self.log_slope(x) + self.HALF.log()).sum(-1)

    def entropy(self):
        z = torch.linspace(-9, 9, 1801, dtype=torch.float64)
        weight = torch.exp(-z * z / 2) / np.sqrt(2 * np.pi) * (z[1] - z[0])
        spread = (weight * self.log_slope(self.mean_of[..., None] + self.sigma_of[..., None] * z)).sum(-1)
        return super().entropy() + (spread + self.HALF.log()).sum(-1)


def distributions(case, policy, behaviour):
    """pi, mu."""
    if case["dims"]:
        kind = Squashed if case["squash"] else Gaussian
        return kind(policy), kind(behaviour)
    return Discrete(policy, behaviour, SIZES[: case["actions"]]), Discrete(behaviour, behaviour, SIZES[: case["actions"]])


margin = np.inf
noise = 0.0  # standard deviation, in the outputs of layers
NOISE, NOISY_RUNS = 5e-7, 20  # f32 shows about 1.5e-7, by what it changes


def keep_off(distance):
    """Results are of use only if no row lies where rounding decides the gradient."""
    global margin
    margin = min(margin, float(distance.detach().abs().min()))


def orders(case, units):
    """The units of each pass."""
    passes = max(case["passes"], 1)
    for epoch in range(case["epochs"]):
        order = (7 * np.arange(units) + 5 * epoch) % units
        for m in range(passes):
            yield order[units * m // passes : units * (m + 1) // passes] if case["passes"] else np.arange(units)


def vtrace(case, net, optimiser, w, states, terms):
    """IMPALA's equation 1 as a sum over the steps of an episode, and its loss, over units (columns)."""
    for part in orders(case, COLUMNS):
        norm = vtrace_pass(case, net, optimiser, *warmed_up(case, net, w, states and states[0], part), terms)
    return norm


def vtrace_pass(case, net, optimiser, w, state, terms):
    columns = w["flags"].shape[1]
    exists, weight = transitions(w["flags"]), torch.from_numpy(transitions(w["flags"]).astype(np.float64))
    policy, value = net.along(w["obs"], w["flags"], state)
    policy, v = policy[:-1], value.detach()
    action = w["action"][:-1]
    pi, mu = distributions(case, policy, w["policy"][:-1])
    log_pi = pi.log_prob(action)
    ratio = (log_pi.detach() - mu.log_prob(action)).exp()
    rho, c = ratio.clamp(max=case["rho_clip"]), case["lambda"] * ratio.clamp(max=case["c_clip"])
    gamma, r = discounts(case, w["flags"]), w["reward"][1:]
    vs = v[:-1] + along(exists, gamma * c, rho * (r + gamma * v[1:] - v[:-1]))
    next_vs = torch.cat([vs[1:], v[-1:]])
    advantage = ratio.clamp(max=case["pg_rho_clip"]) * (r + gamma * next_vs - v[:-1])
    if case["clip"]:
        side = torch.where(advantage > 0, ratio - 1, 1 - ratio)
        keep_off((side - case["clip"])[weight > 0])
        advantage = advantage * (side <= case["clip"])
    parts = [weight, weight * -advantage * log_pi, weight * 0.5 * (vs - value[:-1]) ** 2, weight * pi.entropy(),
             weight * mu.kl_to(pi), weight * (ratio > case["rho_clip"]), weight * vs, weight * vs**2]  # fmt: skip
    keep_off((ratio - case["rho_clip"])[weight > 0])
    return step(case, net, optimiser, parts, terms, columns * UNROLL)


def ppo(case, net, optimiser, whole, states, terms):
    """CleanRL's ppo.py (with a memory ppo_atari_lstm.py) over units (row = t * columns + c; with a memory c)."""
    w = {k: v[case["burn_in"] :] for k, v in whole.items()}
    exists = transitions(w["flags"])
    weight = torch.from_numpy(exists.astype(np.float64))
    with torch.no_grad():
        old = torch.cat([w["value"][:-1], net.along(w["obs"][-1:], w["flags"][-1:], states and list(states[1]))[1]])
    gamma = discounts(case, w["flags"])
    gae = along(exists, gamma * case["lambda"], w["reward"][1:] + gamma * old[1:] - old[:-1])
    flat = {k: v.flatten(0, 1) for k, v in dict(weight=weight, gae=gae, old=old[:-1], ret=gae + old[:-1], obs=w["obs"][:-1],
                                                policy=w["policy"][:-1], action=w["action"][:-1]).items()}  # fmt: skip
    valid = flat["weight"] > 0
    explained = 1 - flat["gae"][valid].var() / flat["ret"][valid].var()
    for part in orders(case, COLUMNS if states else ROWS):
        if states:
            units, state = warmed_up(case, net, whole, states[0], part)
            policy, value = (x.flatten(0, 1) for x in net.along(units["obs"][:-1], units["flags"][:-1], state))
            part = (COLUMNS * np.arange(UNROLL)[:, None] + part).ravel()
        b = {k: v[part] for k, v in flat.items()}
        over = b["gae"][b["weight"] > 0] if case["advantages"] == 1 else flat["gae"][valid]
        advantage = (b["gae"] - over.mean()) / (over.std() + 1e-8) if case["advantages"] else b["gae"]
        policy, value = (policy, value) if states else net(b["obs"])
        pi, mu = distributions(case, policy, b["policy"])
        ratio = (pi.log_prob(b["action"]) - mu.log_prob(b["action"])).exp()
        loss = torch.max(-advantage * ratio, -advantage * ratio.clamp(1 - case["clip"], 1 + case["clip"]))
        error = (value - b["ret"]) ** 2
        moved, v = value - b["old"], case["value_clip"]
        if v:
            bounded = (b["old"] + moved.clamp(-v, v) - b["ret"]) ** 2
            error = torch.max(error, bounded)
            keep_off((moved.abs() - v)[b["weight"] > 0])
        keep_off(((ratio - 1).abs() - case["clip"])[b["weight"] > 0])
        parts = [b["weight"] * x for x in (torch.ones(len(part)), loss, 0.5 * error, pi.entropy(), mu.kl_to(pi),
                                           (ratio - 1).abs() > case["clip"], explained.expand(len(part)))]  # fmt: skip
        norm = step(case, net, optimiser, parts, terms, len(part))
    return norm


def action_values(case, outputs, mu):
    """Of a network's outputs: duelling (Wang et al. 2016, equation 9), -inf if mu forbids."""
    (policy, value), permitted = outputs, mu > -torch.inf
    mean = (policy * permitted).sum(-1) / permitted.sum(-1)
    return (policy + ((value - mean) * case["duelling"])[..., None]).masked_fill(~permitted, -torch.inf)


def rescaled(case, x):
    return x.sign() * ((x.abs() + 1).sqrt() - 1) + 1e-3 * x if case["rescale"] else x


def unscaled(case, x):
    return x.sign() * ((((1 + 4e-3 * (x.abs() + 1 + 1e-3)).sqrt() - 1) / 2e-3) ** 2 - 1) if case["rescale"] else x


def replay(case, nets, optimiser, w, state, weight, terms):
    """R2D2's loss (DQN's: of one transition), row by row, on windows with these weights; the gradient's norm and priorities."""
    (w, state), (_, target_state) = (warmed_up(case, net, w, state, slice(None)) for net in nets)
    q = action_values(case, nets[0].along(w["obs"], w["flags"], state), w["policy"])
    with torch.no_grad():
        target_q = action_values(case, nets[1].along(w["obs"], w["flags"], target_state), w["policy"])
    exists, n = transitions(w["flags"]), int(case["n_step"])
    rows = len(w["flags"]) - n
    parts, sizes = [], [[] for _ in range(COLUMNS)]
    for t in range(rows):
        for c in range(COLUMNS):
            k = 0
            while k < n and exists[t + k, c]:
                k += 1
            if not k:
                continue
            target = sum(case["discount"] ** j * w["reward"][t + 1 + j, c] for j in range(k))
            if not w["flags"][t + k, c] & TERMINATED:
                chooses = (q.detach() if case["double"] else target_q)[t + k, c]
                if torch.isfinite(chooses).sum() > 1:
                    keep_off(chooses.topk(2).values.diff())
                target = target + case["discount"] ** k * unscaled(case, target_q[t + k, c, chooses.argmax()])
            target, chosen = rescaled(case, target), q[t, c, w["action"][t, c, 0]]
            loss = F.mse_loss(chosen, target) / 2 if case["loss"] else F.smooth_l1_loss(chosen, target)
            sizes[c].append(abs(float((target - chosen).detach())))
            one = torch.ones(())
            parts.append(torch.stack([one, weight[c] * loss, chosen, target, (target - chosen).abs(), weight[c] * one]))
    eta = case["priority_max"]
    priority = [eta * max(x) + (1 - eta) * np.mean(x) if x else 0 for x in sizes]
    parts = torch.stack(parts).T
    return step(case, nets[0], optimiser, parts, terms, COLUMNS * rows, parts[1].sum()), priority


def step(case, net, optimiser, parts, terms, rows, loss=None):
    """One step along the gradient of the loss; adds its terms; the gradient's norm."""
    for k, part in enumerate(parts):
        terms[k] += float(part.detach().sum())
    if loss is None:
        loss = (parts[1] + case["baseline_cost"] * parts[2] - case["entropy_cost"] * parts[3]).sum()
    optimiser.zero_grad()
    (loss if case["loss_sum"] else loss / rows).backward()
    norm = nn.utils.clip_grad_norm_(net.parameters(), case["grad_norm_clip"] or np.inf)
    optimiser.step()
    return float(norm)


def selected(now, initial):
    """The changes of tensors; of a large one, some."""
    changes = [f32(np.asarray(x) - np.asarray(y)).ravel() for x, y in zip(now, initial)]
    return [x[:: 1 if len(x) <= 256 else len(x) // 128 | 1] for x in changes]


# Keys in the order of the file; the algorithm's options in the order of vtrace.h, ppo.h or r2d2.h.
WHOLE = ["seed", "frames", "joined", "separate", "actions", "dims", "squash", "state_sigma", "masked", "normalise", "algo", "adam",
         "loss_sum", "epochs", "passes", "lstm", "lstm_layers", "burn_in"]  # fmt: skip
REAL = ["lr", "first_decay", "second_decay", "epsilon", "grad_norm_clip", "reward_clip", "reward_scale"]
OPTIONS = [
    ["discount", "entropy_cost", "baseline_cost", "rho_clip", "c_clip", "pg_rho_clip", "lambda", "epochs", "minibatch", "clip"],
    ["discount", "lambda", "clip", "value_clip", "entropy_cost", "baseline_cost", "epochs", "minibatch", "advantages", "kl_stop"],
    *2 * [["discount", "n_step", "target_every", "double", "duelling", "rescale", "loss", "priority_max"]],
]
ADAM = dict(adam=1, first_decay=0.9, second_decay=0.999, epsilon=1e-5)
RMSPROP = dict(adam=0, first_decay=0, second_decay=0.99, epsilon=0.01)
USUAL = dict.fromkeys(WHOLE, 0) | dict(actions=1, epochs=1, entropy_cost=0.01, baseline_cost=0.5, reward_clip=0, reward_scale=1)
OF_VTRACE = USUAL | dict(discount=0.97, rho_clip=1, c_clip=1, pg_rho_clip=1, minibatch=0, clip=0) | {"lambda": 1}
OF_PPO = USUAL | dict(algo=PPO, discount=0.95, clip=0.2, value_clip=0, minibatch=ROWS, kl_stop=0) | {"lambda": 0.9}
OF_Q = USUAL | dict(discount=0.97, double=1, priority_max=0.9)
CASES = {
    "vtrace frames": OF_VTRACE | RMSPROP | dict(frames=1, loss_sum=1, lr=2e-3, grad_norm_clip=10, reward_clip=0.6),
    "vtrace masked": OF_VTRACE | ADAM | dict(actions=2, masked=1, epochs=2, passes=2, lr=1e-3, grad_norm_clip=0, reward_scale=0.7, rho_clip=1.3,
                                          c_clip=0.9, pg_rho_clip=1.1) | {"lambda": 0.9},
    "vtrace squashed": OF_VTRACE | ADAM | dict(clip=0.2, dims=2, squash=1, state_sigma=1, lr=1e-3, grad_norm_clip=1, entropy_cost=0.05),
    "ppo frames": OF_PPO | ADAM | dict(frames=1, epochs=2, passes=2, lr=1e-3, grad_norm_clip=0.5, reward_clip=0.6, value_clip=0.25,
                                    advantages=1),
    "ppo masked": OF_PPO | ADAM | dict(masked=1, loss_sum=1, epochs=2, passes=3, lr=1e-3, grad_norm_clip=8, clip=0.25, advantages=2),
    "ppo joined": OF_PPO | ADAM | dict(frames=1, joined=1, normalise=1, passes=3, lr=1e-3, grad_norm_clip=0.5, advantages=1),
    "vtrace lstm": OF_VTRACE | ADAM | dict(frames=1, joined=1, epochs=2, passes=2, lr=1e-3, grad_norm_clip=1, lstm=8, lstm_layers=1),
    "ppo lstm": OF_PPO | ADAM | dict(passes=2, epochs=2, lr=1e-3, grad_norm_clip=0.5, advantages=1, lstm=6, lstm_layers=2, burn_in=3),
    "ppo separate": OF_PPO | ADAM | dict(separate=1, dims=2, normalise=1, passes=3, lr=1e-3, grad_norm_clip=0.5, reward_scale=0.1,
                                      advantages=1),
    "r2d2 lstm": OF_Q | ADAM | dict(algo=R2D2, masked=1, n_step=2, target_every=3, duelling=1, rescale=1, loss=1, lr=1e-3, grad_norm_clip=1,
                                    reward_scale=3, lstm=8, lstm_layers=1, burn_in=3),
    "dqn frames": OF_Q | ADAM | dict(algo=DQN, frames=1, masked=1, n_step=3, target_every=4, duelling=1, rescale=0, loss=0, lr=1e-3, grad_norm_clip=0.5),
}  # fmt: skip


def make_updates(case, seed):
    """Terms and norms of all updates, the changes of the snapshots; sets margin."""
    global margin
    margin = np.inf
    steps, net = make_steps(case), Net(case).double()
    initialise(net, seed)
    for layer in net.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            layer.register_forward_hook(lambda layer, x, out: out + noise * torch.randn_like(out))
    initial = [p.detach().clone() for p in net.in_order()]
    if case["adam"]:
        optimiser = torch.optim.Adam(net.parameters(), case["lr"], (case["first_decay"], case["second_decay"]), case["epsilon"])
    else:
        optimiser = TensorFlowRMSprop(net.parameters(), case["lr"], case["second_decay"], case["epsilon"])
    statistics = Statistics(case, steps)
    first = statistics.tensors
    all_terms, norms, changes = np.zeros((UPDATES, TERMS)), np.zeros(UPDATES), []
    acting = case["lstm"] and Acting(case, net, statistics.windows(slice(0, STEPS))["obs"], steps["flags"])
    target, priorities = copy.deepcopy(net), []
    for k in range(UPDATES):
        start, many = k * UNROLL, 1 if case["algo"] == DQN else UNROLL
        last = start + case["burn_in"] + many + (int(case["n_step"]) if case["algo"] >= R2D2 else 1) - 1
        if acting:  # PPO trains before the last step is answered
            acting.until(last if case["algo"] == PPO else last + 1)
        w = statistics.windows(slice(start, last + 1))
        if case["algo"] >= R2D2:
            weight = 1 / (1 + (np.arange(COLUMNS) // WIDTH * 3 + np.arange(COLUMNS) % WIDTH + start) % 4)
            norms[k], priority = replay(case, (net, target), optimiser, w, acting and acting.before[start], weight, all_terms[k])
            priorities.extend(priority)
            if (k + 1) % int(case["target_every"]) == 0:
                target.load_state_dict(net.state_dict())
        else:
            states = acting and (acting.before[start], acting.before[last])
            norms[k] = (ppo if case["algo"] == PPO else vtrace)(case, net, optimiser, w, states, all_terms[k])
        if k + 1 in SNAPSHOTS:
            changes.extend(selected([p.detach() for p in net.in_order()], initial))
            if case["normalise"]:
                changes.extend(selected(statistics.tensors, first))
    return all_terms, norms, changes, f32(priorities)


def run(name, case, seed):
    """The case's bytes, or None if rounding could decide a gradient."""
    global noise
    case = case | dict(seed=seed)
    options = [case[k] for k in OPTIONS[case["algo"]]]
    real = f32([case[k] for k in REAL] + options + [0] * (16 - len(options)))
    whole = [case[k] for k in WHOLE]
    case |= {k: float(f32(v)) for k, v in case.items() if k not in WHOLE}
    noise = 0.0
    terms, norms, changes, priorities = make_updates(case, seed)
    numbers = sum(map(len, changes)) // len(SNAPSHOTS)
    print(f"{name}, seed {seed}: {numbers} numbers; nearest edge {margin:.1g}; norms {norms.min():.3g} to {norms.max():.3g}; "
          f"shares of terms at the end {np.round(terms[-1] / terms[-1][0], 3)}", flush=True)  # fmt: skip
    if margin < 2e-5:
        return None
    noise = NOISE
    torch.manual_seed(seed)
    for _ in range(NOISY_RUNS):
        noisy = make_updates(case, seed)
        shares = [np.linalg.norm(x - y) / np.linalg.norm(y) for x, y in zip(noisy[2], changes) if y.any()]
        off = max(*shares, (abs(noisy[0] - terms) / (1 + abs(terms))).max(), (abs(noisy[1] - norms) / norms).max(),
                  *abs(noisy[3] - priorities))
        print(f"  with noise: off by {off:.2g}", flush=True)
        if off > 5e-5:  # the test allows 1e-4
            return None
    head = struct.pack("<16s19i", name.encode(), *whole, numbers)
    return head + b"".join(f32(x).tobytes() for x in [real, terms, norms, *changes, priorities])


def main():
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    with open("updates.bin", "ab" if sys.argv[1:] else "wb") as out:
        for name in sys.argv[1:] or CASES:
            out.write(next(filter(None, (run(name, CASES[name], seed) for seed in range(100)))))


main()
