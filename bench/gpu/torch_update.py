"""The whole update of `update` in PyTorch: torch_update.py UPDATE.json [--seconds S] [--device cpu] >RESULTS.json

The same 672 observations (32 unrolls of 20 steps and the one behind), networks and update as bench/peers/learner.py makes
it: forward, V-trace, losses, backward, clipping, RMSProp. PyTorch may do its best: bf16 by autocast or in all weights,
channels-last, cudnn.benchmark, eager or compiled, replayed from CUDA graphs that nobody waits for one by one; the fastest
counts. It gets its frames stacked already.

  train_NET        data on the device: the same batch over and over, which nothing copies
  train_NET_host   from host memory: batches of pinned memory, the next one copied by a stream of its own meanwhile, into
                   two buffers that take turns

Prints a document of our figures (of UPDATE.json; _host: the better of its two mirrors) beside PyTorch's. Compiling takes
half a minute and more: what no time was left for is named in `not_reached`, and what was measured is printed when the
time is over, or at SIGTERM. Exit status 77 where PyTorch or its GPU is missing.
"""

import argparse
import json
import os
import signal
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../bench/peers"))
try:
    import torch
    from common import spread_of
    from learner import UNROLLS, Batch, Update, random_batch
except ImportError as error:
    print(f"not run: {error}", file=sys.stderr)
    sys.exit(77)

NETS = ("shallow", "nature", "deep")
TARGETS = {"": 1.2, "_host": 1.5}
OURS = {"": ("full",), "_host": ("window", "off")}
PINNED, ROUNDS, ROUND_S, WARM_UP, COMPILE_S = 12, 10, 0.2, 4, 45.0


class Stopped(BaseException):
    """SIGTERM."""


def stop(*_):
    raise Stopped


class OnDevice:
    """Updates of one batch that lies on the device."""

    def __init__(self, update, replays):
        batch = on_device(random_batch(UNROLLS), update)
        self.launch = captured(update, batch) if replays else lambda: update.step(batch)

    def run(self, count):
        for _ in range(count):
            norm = self.launch()
        return norm


class FromHost:
    """Updates of batches in pinned host memory, each copied while the one before it is trained on."""

    def __init__(self, update, replays):
        host = [random_batch(UNROLLS, seed) for seed in range(PINNED if replays else 2)]
        host = [batch._replace(frames=batch.frames.contiguous(memory_format=update.layout)) for batch in host]
        self.buffers = [on_device(batch, update) for batch in host[:2]]
        self.launches = [captured(update, buffer) if replays else lambda b=buffer: update.step(b) for buffer in self.buffers]
        self.host = [Batch(*(tensor.pin_memory() for tensor in batch)) for batch in host] if replays else host
        self.side = torch.cuda.Stream() if replays else None
        self.copied = [torch.cuda.Event() for _ in range(2)] if replays else None
        self.trained = [torch.cuda.Event() for _ in range(2)] if replays else None
        self.made = 0

    def copy(self, turn):
        for to, source in zip(self.buffers[turn % 2], self.host[turn % len(self.host)]):
            to.copy_(source, non_blocking=True)

    def prefetch(self, turn):
        if self.side is None:
            self.copy(turn)
            return
        with torch.cuda.stream(self.side):
            self.side.wait_event(self.trained[turn % 2])  # what was in this buffer
            self.copy(turn)
            self.copied[turn % 2].record()

    def run(self, count):
        if self.made == 0:
            self.prefetch(0)
        for turn in range(self.made, self.made + count):
            self.prefetch(turn + 1)
            if self.side is not None:
                torch.cuda.current_stream().wait_event(self.copied[turn % 2])
            norm = self.launches[turn % 2]()
            if self.side is not None:
                self.trained[turn % 2].record()
        self.made += count
        return norm


SETTINGS = {"": OnDevice, "_host": FromHost}


def on_device(batch, update):
    frames = batch.frames.contiguous(memory_format=update.layout)
    return Batch(*(tensor.to(update.device) for tensor in batch._replace(frames=frames)))


def captured(update, batch):
    """A function that replays the update of what lies in the batch."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):  # compiles, chooses algorithms
            update.step(batch)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        norm = update.step(batch)

    def launch():
        graph.replay()
        return norm

    return launch


def rates(work, device):
    """Observations per second of several rounds."""

    def timed(count):
        start = time.perf_counter()
        norm = work.run(count)
        if device == "cuda":
            torch.cuda.synchronize()
        assert torch.isfinite(norm)
        return time.perf_counter() - start

    if device == "cpu":
        return [672 / timed(1)]
    timed(WARM_UP)
    count = max(int(ROUND_S / (timed(WARM_UP) / WARM_UP)), 2)
    return [count * 672 / timed(count) for _ in range(ROUNDS)]


class Comparison:
    """What was measured of PyTorch so far."""

    def __init__(self, device, seconds):
        self.device, self.end = device, time.monotonic() + seconds
        self.found = {}  # name: what: observations/s of each round
        self.not_reached = {}  # name: [what]
        self.compile_s = COMPILE_S

    def label(self, weights_bf16, compiled):
        how = f"{'bf16 weights' if weights_bf16 else 'autocast'} {'compiled' if compiled else 'eager'}"
        return f"PyTorch {torch.__version__.split('+')[0]} {how}"

    def measure(self, net, weights_bf16, compiled):
        what = self.label(weights_bf16, compiled)
        needed = self.compile_s if compiled else 1
        if time.monotonic() + needed > self.end:
            for setting in SETTINGS:
                self.not_reached.setdefault(f"train_{net}{setting}", []).append(what)
            return
        start = time.monotonic()
        try:
            update = Update(net, bf16=True, device=self.device, weights_bf16=weights_bf16, lr=1e-6)  # thousands of one batch
            if compiled:
                update.loss = torch.compile(update.loss)
            for setting, kind in SETTINGS.items():
                found = rates(kind(update, self.device == "cuda"), self.device)
                self.found.setdefault(f"train_{net}{setting}", {})[what] = found
                print(f"train_{net}{setting}: {what}: {statistics.median(found):.0f} observations/s", file=sys.stderr)
        except Exception as error:  # a way that does not work here is no reference
            print(f"{net}: {what}: {type(error).__name__}: {error}", file=sys.stderr)
        if compiled:
            self.compile_s = max(self.compile_s, 1.2 * (time.monotonic() - start))
            torch.compiler.reset()

    def faster_in_bf16(self, net):
        """Whether the weights are better in bf16, as far as eager runs tell."""
        tried = self.found.get(f"train_{net}", {})
        median = [statistics.median(tried.get(self.label(weights, False), [0])) for weights in (False, True)]
        return median[1] > median[0]

    def run(self, nets):
        for net in nets:
            for weights_bf16 in (False, True):
                self.measure(net, weights_bf16, False)
        for net in nets if self.device == "cuda" else ():
            self.measure(net, self.faster_in_bf16(net), True)


def row(name, setting, ours, comparison):
    """One result of the document, with PyTorch's best; no reference where PyTorch was not measured."""
    tried = {what: statistics.median(found) for what, found in comparison.found.get(name, {}).items()}
    best = max(tried, key=tried.get, default=None)
    return {
        **{key: ours[key] for key in ("value", "unit", "better", "spread")}, "name": name, "ours": ours["name"],
        "reference": best, "reference_value": round(tried[best], 1) if best else None,
        "reference_spread": round(spread_of(comparison.found[name][best]), 4) if best else None,
        "ratio": round(ours["value"] / tried[best], 4) if best else None, "target": TARGETS[setting],
        "tried": {what: round(value, 1) for what, value in tried.items()},
        "not_reached": comparison.not_reached.get(name, []),
    }  # fmt: skip


def compare(ours, comparison):
    rows = []
    for net in NETS:
        for setting, mirrors in OURS.items():
            mine = [ours[f"update_{net}_{mirror}"] for mirror in mirrors if f"update_{net}_{mirror}" in ours]
            if mine:
                rows.append(row(f"train_{net}{setting}", setting, max(mine, key=lambda result: result["value"]), comparison))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("update", help="the document of `update`")
    parser.add_argument("--seconds", type=float, default=220.0, help="the most that it takes")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--only", default="", help="networks whose names contain this")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("not run: PyTorch sees no GPU", file=sys.stderr)
        return 77
    with open(arguments.update, encoding="utf-8") as file:
        document = json.load(file)
    torch.backends.cudnn.benchmark = True
    comparison = Comparison(arguments.device, arguments.seconds)
    signal.signal(signal.SIGTERM, stop)
    try:
        comparison.run([net for net in NETS if arguments.only in net])
    except Stopped:
        print("stopped: what follows is not all", file=sys.stderr)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ours = {result["name"]: result for result in document["results"]}
    document.update(benchmark="cuda_torch", results=compare(ours, comparison))
    json.dump(document, sys.stdout, indent=1)
    print()
    return 0 if all(result["reference"] for result in document["results"]) else 1


if __name__ == "__main__":
    sys.exit(main())
