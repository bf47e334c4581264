"""The work of bench/learner.c in PyTorch, on one thread of the same core, alternating with it.

# peer: torch
usage: learner.py BUILD [--json FILE] [--rounds N] [--seconds S] [--only NAME]

PyTorch runs uncompiled, in the fastest of f32 and (if the CPU has it) bf16 autocast, contiguous and channels-last, for each
piece of work. It gets stacked frames in one tensor of bytes; the work includes conversion to floats, sampling in inference and,
in training, IMPALA's whole update: V-trace, losses, backward, clipping, RMSProp.
"""

import json
import os
import statistics
import subprocess
import sys
import time
import typing

import common
import torch
from torch import nn

ACTIONS, STACK, SIDE, UNROLL, UNROLLS, UNROLLS_DEEP, GAMMA = 6, 4, 84, 20, 32, 4, 0.99
WORK = {  # result: net, rows of an inference (None: training)
    "train_shallow": ("shallow", None),
    "train_nature": ("nature", None),
    "train_deep": ("deep", None),
    "train_shallow_lstm": ("shallow_lstm", None),
    "infer_shallow_lstm_16": ("shallow_lstm", 16),
    "infer_shallow_16": ("shallow", 16),
    "infer_shallow_64": ("shallow", 64),
    "infer_nature_16": ("nature", 16),
    "infer_nature_64": ("nature", 64),
}


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv0 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return x + self.conv1(nn.functional.relu(self.conv0(nn.functional.relu(x))))


def section(inputs, channels, side):
    """A section of IMPALA's deep network, on side x side pixels."""
    pool = nn.MaxPool2d(3, 2, padding=side % 2, ceil_mode=True)
    return [nn.Conv2d(inputs, channels, 3, padding=1), pool, Residual(channels), Residual(channels)]


class Net(nn.Module):
    def __init__(self, name):
        super().__init__()
        if name == "deep":
            convolutions = [*section(STACK, 16, 84), *section(16, 32, 42), *section(32, 32, 21), nn.ReLU()]
            width, inputs = 256, 32 * 11 * 11
        elif name.startswith("shallow"):
            convolutions = [nn.Conv2d(STACK, 16, 8, 4), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU()]
            width, inputs = 256, 32 * 9 * 9
        else:
            convolutions = [nn.Conv2d(STACK, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU()]
            convolutions += [nn.Conv2d(64, 64, 3, 1), nn.ReLU()]
            width, inputs = 512, 64 * 7 * 7
        self.body = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(inputs, width), nn.ReLU())
        self.lstm = nn.LSTM(width, 256) if name.endswith("lstm") else None
        self.heads = nn.Linear(width, ACTIONS + 1)

    def forward(self, pixels, steps=1):
        """With an LSTM from a state of zeros and without resets, so that its steps are one call."""
        x = self.body(pixels)
        if self.lstm:
            x = self.lstm(x.view(steps, len(x) // steps, -1))[0].flatten(0, 1)
        heads = self.heads(x).float()
        return heads[:, :ACTIONS], heads[:, ACTIONS]


class Batch(typing.NamedTuple):
    """The input of an update: T = UNROLL, B unrolls; the frames of step t of unroll b are at t * B + b."""

    frames: torch.Tensor  # [(T + 1) * B, STACK, SIDE, SIDE] u8
    actions: torch.Tensor  # [T, B]
    behaviour: torch.Tensor  # [T, B, ACTIONS] logits that acted
    rewards: torch.Tensor  # [T, B]
    discounts: torch.Tensor  # [T, B]


def random_batch(unrolls, seed=1):
    generator = torch.Generator().manual_seed(seed)
    rows = (UNROLL + 1) * unrolls
    return Batch(
        frames=torch.randint(0, 256, (rows, STACK, SIDE, SIDE), dtype=torch.uint8, generator=generator),
        actions=torch.randint(0, ACTIONS, (UNROLL, unrolls), generator=generator),
        behaviour=torch.randn(UNROLL, unrolls, ACTIONS, generator=generator) * 0.1,
        rewards=torch.rand(UNROLL, unrolls, generator=generator) - 0.5,
        discounts=GAMMA * (torch.rand(UNROLL, unrolls, generator=generator) > 0.003).float(),
    )


class Update:
    """A network, its optimiser and IMPALA's update; bench/gpu/torch_update.py runs it on a GPU. bf16: autocast, or (on GPUs) all
    weights and the optimiser's state."""

    def __init__(self, net, bf16=False, channels_last=True, device="cpu", weights_bf16=False, lr=1e-4):
        self.layout = torch.channels_last if channels_last else torch.contiguous_format
        self.device, self.autocast = device, bf16 and not weights_bf16
        self.pixels = torch.bfloat16 if weights_bf16 or (bf16 and device != "cpu") else torch.float32
        self.net = Net(net).to(device, memory_format=self.layout)
        if weights_bf16:
            self.net = self.net.bfloat16()
        options = {"capturable": True} if device == "cuda" else {}
        self.optimiser = torch.optim.RMSprop(self.net.parameters(), lr=lr, alpha=0.99, eps=0.01, **options)

    def forward(self, frames, steps=1):
        pixels = frames.contiguous(memory_format=self.layout).to(self.pixels) / 255
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.autocast):
            return self.net(pixels, steps)

    @staticmethod
    def targets(batch, log_ratios, values):
        """V-trace (Espeholt et al. 2018, equation 1): value targets and advantages."""
        with torch.no_grad():
            rhos = torch.exp(log_ratios).clamp(max=1)
            deltas = rhos * (batch.rewards + batch.discounts * values[1:] - values[:-1])
            correction, corrections = torch.zeros_like(values[0]), []
            for t in reversed(range(UNROLL)):
                correction = deltas[t] + batch.discounts[t] * rhos[t] * correction
                corrections.append(correction)
            targets = torch.stack(corrections[::-1]) + values[:-1]
            following = torch.cat([targets[1:], values[-1:]])
            return targets, rhos * (batch.rewards + batch.discounts * following - values[:-1])

    def loss(self, batch):
        logits, values = self.forward(batch.frames, UNROLL + 1)
        unrolls = batch.actions.shape[1]
        logits, values = logits.view(UNROLL + 1, unrolls, ACTIONS)[:-1], values.view(UNROLL + 1, unrolls)
        log_policy = torch.log_softmax(logits, -1)
        chosen = batch.actions.unsqueeze(-1)
        log_taken = log_policy.gather(-1, chosen).squeeze(-1)
        behaviour_taken = torch.log_softmax(batch.behaviour, -1).gather(-1, chosen).squeeze(-1)
        targets, advantages = self.targets(batch, log_taken.detach() - behaviour_taken, values.detach())
        entropy = -(log_policy.exp() * log_policy).sum()
        return -(advantages * log_taken).sum() + 0.25 * ((targets - values[:-1]) ** 2).sum() - 0.01 * entropy

    def step(self, batch):
        """The update; returns the gradient's norm before clipping."""
        self.optimiser.zero_grad(set_to_none=True)
        self.loss(batch).backward()
        norm = nn.utils.clip_grad_norm_(self.net.parameters(), 40.0)
        self.optimiser.step()
        return norm


class Subject:
    """One network in one precision and one layout, on the CPU."""

    def __init__(self, net, bf16, channels_last):
        self.update = Update(net, bf16, channels_last)
        self.label = f"PyTorch {torch.__version__.split('+')[0]} {'bf16' if bf16 else 'f32'}"
        self.label += " channels-last" if channels_last else ""
        self.batch = random_batch(UNROLLS_DEEP if net == "deep" else UNROLLS)
        self.start = 0

    def infer(self, rows):
        self.start = (self.start + rows) % (self.batch.frames.shape[0] - rows)
        with torch.no_grad():
            logits, value = self.update.forward(self.batch.frames[self.start : self.start + rows])
            action = torch.multinomial(torch.softmax(logits, 1), 1)
        assert action.shape[0] == value.shape[0] == rows
        return rows

    def train(self):
        assert torch.isfinite(self.update.step(self.batch))
        return self.batch.frames.shape[0]


def rate(subject, rows, seconds):
    start, observations = time.perf_counter(), 0
    while True:
        observations += subject.infer(rows) if rows else subject.train()
        spent = time.perf_counter() - start
        if spent >= seconds:
            return observations / spent


def has_bf16():
    try:
        with open("/proc/cpuinfo", encoding="ascii") as file:
            flags = file.read().split()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def fastest(net, rows, seconds):
    """The fastest subject for this work."""
    subjects = [Subject(net, bf16, last) for bf16 in ((False, True) if has_bf16() else (False,)) for last in (True, False)]
    for subject in subjects:
        rate(subject, rows, 0)  # creates primitives
    return max(subjects, key=lambda subject: rate(subject, rows, seconds))


def ours(program, seconds):
    return json.loads(subprocess.run([program, "--json", "--seconds", str(seconds)], check=True, capture_output=True).stdout)


def compare(program, work, rounds, seconds):
    """The document of bench/learner.c with PyTorch's figures as references."""
    subjects = {name: fastest(net, rows, seconds) for name, (net, rows) in work.items()}
    samples, theirs = {name: [] for name in work}, {name: [] for name in work}
    for turn in range(rounds):
        document = ours(program, 2 * seconds * len(WORK))  # it measures everything in each precision
        document["results"] = [result for result in document["results"] if result["name"] in work]
        for result in document["results"]:
            samples[result["name"]].append(result["value"])
        for name, (_, rows) in work.items():
            theirs[name].append(rate(subjects[name], rows, seconds))
        print(f"    round {turn + 1} of {rounds}", file=sys.stderr)
    for result in document["results"]:
        name = result["name"]
        result["value"], result["spread"] = statistics.median(samples[name]), common.spread_of(samples[name])
        result["reference"], result["reference_value"] = subjects[name].label, statistics.median(theirs[name])
        result["reference_spread"] = common.spread_of(theirs[name])
        result["ratio"] = result["value"] / result["reference_value"]
    return document


def main():
    arguments = common.parse_arguments(__doc__, 10.0, 5)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # the benchmark uses the same core
    torch.set_num_threads(1)
    work = {name: what for name, what in WORK.items() if arguments.only in name}
    program = os.path.join(arguments.build, "bench", "learner")
    if work:
        common.write(arguments.json, compare(program, work, arguments.rounds, arguments.seconds / (2 * arguments.rounds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
