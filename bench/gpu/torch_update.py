"""The complete update of `update` in PyTorch: torch_update.py UPDATE.json [--seconds S] >RESULTS.json

The same 672 observations (32 unrolls of 20 steps and one more), networks and update as bench/peers/learner.py has them:
forward, V-trace, losses, backward, clipping, RMSProp. PyTorch gets its frames stacked already and may use bf16 by autocast
or in all weights, channels-last, cudnn.benchmark, eager or compiled code, and CUDA graphs, none of which waits for the one
before; the fastest way counts.

  train_NET        data on the device: the same batch over and over, without copies
  train_NET_host   from host memory: batches in pinned memory, the next one copied meanwhile by another stream, into two
                   buffers in turn

Prints a document of our figures (of UPDATE.json; _host: the better of its two mirrors) beside PyTorch's. Compiling takes
half a minute and more: `not_reached` names the ways that had no time left. Exit status 77 without PyTorch or a GPU.
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
OBSERVATIONS, PINNED, ROUNDS, ROUND_S, WARM_UP, COMPILE_S = 672, 12, 10, 0.2, 4, 45.0


class OnDevice:
    """Updates of one batch in device memory."""

    def __init__(self, update):
        self.batch = on_device(random_batch(UNROLLS), update)  # the graph reads it, but does not keep it
        self.launch = captured(update, self.batch)

    def run(self, count):
        for _ in range(count):
            norm = self.launch()
        return norm


class FromHost:
    """Updates of batches in pinned host memory, each copied during the update before it."""

    def __init__(self, update):
        self.host = [pinned(random_batch(UNROLLS, seed), update) for seed in range(PINNED)]
        self.buffers = [on_device(batch, update) for batch in self.host[:2]]
        self.launches = [captured(update, buffer) for buffer in self.buffers]
        self.stream = torch.cuda.Stream()
        self.copied = [torch.cuda.Event() for _ in range(2)]
        self.trained = [torch.cuda.Event() for _ in range(2)]
        self.made = 0

    def prefetch(self, turn):
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(self.trained[turn % 2])  # of this buffer's earlier batch
            for to, source in zip(self.buffers[turn % 2], self.host[turn % PINNED]):
                to.copy_(source, non_blocking=True)
            self.copied[turn % 2].record()

    def run(self, count):
        if self.made == 0:
            self.prefetch(0)
        for turn in range(self.made, self.made + count):
            self.prefetch(turn + 1)
            torch.cuda.current_stream().wait_event(self.copied[turn % 2])
            norm = self.launches[turn % 2]()
            self.trained[turn % 2].record()
        self.made += count
        return norm


# Name of a result, behind train_NET: how it runs, our target, our mirrors.
SETTINGS = {"": (OnDevice, 1.2, ("full",)), "_host": (FromHost, 1.5, ("window", "off"))}


def on_device(batch, update):
    frames = batch.frames.contiguous(memory_format=update.layout)
    return Batch(*(tensor.to(update.device) for tensor in batch._replace(frames=frames)))


def pinned(batch, update):
    frames = batch.frames.contiguous(memory_format=update.layout)
    return Batch(*(tensor.pin_memory() for tensor in batch._replace(frames=frames)))


def captured(update, batch):
    """A function that replays the update of the batch's present content."""
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


def rates(work):
    """Observations per second of several rounds."""

    def timed(count):
        start = time.perf_counter()
        norm = work.run(count)
        torch.cuda.synchronize()
        assert torch.isfinite(norm)
        return time.perf_counter() - start

    timed(WARM_UP)
    count = max(int(ROUND_S / (timed(WARM_UP) / WARM_UP)), 2)
    return [count * OBSERVATIONS / timed(count) for _ in range(ROUNDS)]


def measure(net, weights_bf16, compiled):
    """Rates by setting; a way that does not work here has none."""
    found = {}
    try:
        update = Update(net, bf16=True, device="cuda", weights_bf16=weights_bf16, lr=1e-6)  # thousands of one batch
        if compiled:
            update.loss = torch.compile(update.loss)
        for setting, (kind, _, _) in SETTINGS.items():
            found[setting] = rates(kind(update))
    except Exception as error:
        print(f"{net}: {type(error).__name__}: {error}", file=sys.stderr)
    if compiled:
        torch.compiler.reset()
    return found


def measure_all(seconds, found, not_reached):
    """Fills found, {(net, setting): {way: rates}}, and not_reached, {net: [ways]}. Eager first; compiled with the better
    weights."""
    end, compile_s = time.monotonic() + seconds, COMPILE_S
    for compiled in (False, True):
        for net in NETS:
            eager = found[net, ""]
            best = max(eager, key=lambda way: statistics.median(eager[way]), default="bf16 weights")
            for weights in ("autocast", "bf16 weights"):
                way = f"PyTorch {torch.__version__.split('+')[0]} {weights} {'compiled' if compiled else 'eager'}"
                if compiled and weights not in best:
                    continue
                start = time.monotonic()
                if start + (compile_s if compiled else 1) > end:
                    not_reached[net].append(way)
                    continue
                for setting, measured in measure(net, weights == "bf16 weights", compiled).items():
                    found[net, setting][way] = measured
                    print(f"train_{net}{setting}: {way}: {statistics.median(measured):.0f} observations/s", file=sys.stderr)
                if compiled:
                    compile_s = max(compile_s, 1.2 * (time.monotonic() - start))


def row(name, ours, found, not_reached, target):
    """One result, with PyTorch's fastest way; without a reference if PyTorch was not measured."""
    tried = {way: statistics.median(measured) for way, measured in found.items()}
    best = max(tried, key=tried.get, default=None)
    return {
        **{key: ours[key] for key in ("value", "unit", "better", "spread")}, "name": name, "ours": ours["name"],
        "reference": best, "reference_value": round(tried[best], 1) if best else None,
        "reference_spread": round(spread_of(found[best]), 4) if best else None,
        "ratio": round(ours["value"] / tried[best], 4) if best else None, "target": target,
        "tried": {way: round(value, 1) for way, value in tried.items()}, "not_reached": not_reached,
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("update", help="the document of `update`")
    parser.add_argument("--seconds", type=float, default=220.0, help="at most")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("not run: PyTorch finds no GPU", file=sys.stderr)
        return 77
    with open(arguments.update, encoding="utf-8") as file:
        document = json.load(file)
    torch.backends.cudnn.benchmark = True
    found, not_reached = {(net, setting): {} for net in NETS for setting in SETTINGS}, {net: [] for net in NETS}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        measure_all(arguments.seconds, found, not_reached)
    except KeyboardInterrupt:
        print("stopped: some ways are not measured", file=sys.stderr)
    ours, results = {result["name"]: result for result in document["results"]}, []
    for (net, setting), tried in found.items():
        _, target, mirrors = SETTINGS[setting]
        mine = [ours[f"update_{net}_{mirror}"] for mirror in mirrors if f"update_{net}_{mirror}" in ours]
        if mine:
            best = max(mine, key=lambda result: result["value"])
            results.append(row(f"train_{net}{setting}", best, tried, not_reached[net], target))
    json.dump({**document, "benchmark": "cuda_torch", "results": results}, sys.stdout, indent=1)
    print()
    return 0 if all(result["reference"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
