"""PyTorch on the work that `test_executor --bench` timed: bench_torch.py EXECUTOR.json [--device cpu] >RESULTS.json

Forward, and forward with backward, of the same networks over the same numbers of rows of 84x84x4 bytes that lie on the
device already; turning them into bf16 is part of it. PyTorch may do its best: autocast or weights in bf16, eager or (with
backward: compiling takes a quarter of a minute each time) compiled, all channels-last and replayed from a CUDA graph; the
fastest counts. Prints the document it was given with
reference, reference_value and ratio filled in. Exit status 77 where PyTorch or its GPU is missing.
"""

import argparse
import itertools
import json
import os
import re
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../bench/peers"))
try:
    import torch
    from learner import ACTIONS, SIDE, STACK, Net
except ImportError as error:
    print(f"not run: {error}", file=sys.stderr)
    sys.exit(77)

REPLAYS = 50


class Work:
    """One network on some rows, in one of PyTorch's ways."""

    def __init__(self, net, rows, training, device, weights_bf16, compiled):
        torch.manual_seed(1)
        self.training, self.device, self.autocast = training, device, not weights_bf16
        self.module = Net(net).to(device, memory_format=torch.channels_last)
        if weights_bf16:
            self.module = self.module.bfloat16()
        self.call = torch.compile(self.module) if compiled else self.module
        self.frames = torch.randint(0, 256, (rows, STACK, SIDE, SIDE), dtype=torch.uint8, device=device)
        self.dlogits = torch.rand(rows, ACTIONS, device=device) - 0.5
        self.dvalue = torch.rand(rows, device=device) - 0.5

    def step(self):
        pixels = self.frames.to(torch.bfloat16, memory_format=torch.channels_last) / 255
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.autocast), torch.set_grad_enabled(self.training):
            logits, value = self.call(pixels)
        if not self.training:
            return logits
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
        torch.autograd.backward([logits, value], [self.dlogits, self.dvalue])
        return logits

    def times(self):
        """Microseconds of each replay."""
        if self.device == "cpu":
            return [self.timed_on_the_cpu() for _ in range(3)]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = self.step()
        found = []
        for _ in range(REPLAYS):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            found.append(start.elapsed_time(end) * 1e3)
        assert torch.isfinite(logits).all()
        return found[REPLAYS // 6 :]

    def timed_on_the_cpu(self):
        start = time.perf_counter()
        assert torch.isfinite(self.step()).all()
        return (time.perf_counter() - start) * 1e6


def best(net, rows, training, device):
    """(median in us, what it was) of the fastest way; None where none works."""
    found = []
    compiling = (False, True) if training and device == "cuda" else (False,)
    for weights_bf16, compiled in itertools.product((False, True), compiling):
        what = f"PyTorch {torch.__version__} {'bf16 weights' if weights_bf16 else 'autocast'} {'compiled' if compiled else 'eager'}"
        try:
            found.append((statistics.median(Work(net, rows, training, device, weights_bf16, compiled).times()), what))
        except Exception as error:  # a way that does not work here is no reference
            print(f"{net}, {rows} rows: {what}: {error}", file=sys.stderr)
        if compiled:
            torch.compiler.reset()
    return min(found) if found else None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("executor")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("not run: PyTorch sees no GPU", file=sys.stderr)
        return 77
    with open(arguments.executor, encoding="utf-8") as file:
        document = json.load(file)
    for result in document["results"]:
        kind, net, rows = re.fullmatch(r"(forward|forward_backward)_([a-z]+)_(\d+)", result["name"]).groups()
        reference = best(net, int(rows), kind == "forward_backward", arguments.device)
        if reference is None:
            continue
        result["reference_value"], result["reference"] = round(reference[0], 2), reference[1]
        result["ratio"] = round(result["value"] / reference[0], 4)
        print(
            f"{result['name']:28} {result['value']:10.1f} us   PyTorch {reference[0]:10.1f}   ratio {result['ratio']:.3f}   ({reference[1]})",
            file=sys.stderr,
        )
    json.dump(document, sys.stdout, indent=1)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
