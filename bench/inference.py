#!/usr/bin/env python3
"""Actors that infer (local) against the learner's inference (central), on this machine and over a relay that adds 5 ms; what `--inference
auto` chooses; and, on request (--only score), the time to a score. Both sides take turns at going first; a ratio is the median over the
pairs. Standard library only. Prints a table, or with --json a benchmark's document of one line.
"""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from peers.common import commit, log, machine, spread_of

BUILD = os.path.dirname(os.path.dirname(os.path.abspath(sys.argv[0])))  # build/bench/inference links to this file
FARM = os.path.join(BUILD, "farm")
DELAY = pathlib.Path(__file__).resolve().parent.parent / "tests/bridge/delay.py"
ONE_WAY_MS = 2.5
WAYS = ("central", "local")
CARTPOLE, BREAKOUT, CHEETAH = "--env native/cartpole", "--env native/breakout --net lite", "--env mujoco/HalfCheetah-v4"
SAMPLED = {"cartpole": (CARTPOLE, 2), "breakout_lite": (BREAKOUT, 1.3), "halfcheetah": (CHEETAH, 1.1)}
TRAINED = {"train_local": (f"{CARTPOLE} --algo vtrace", 1.15), "train_local_ppo": (f"{CARTPOLE} --algo ppo", None),
           "train_local_breakout": (f"{BREAKOUT} --algo vtrace", None)}  # fmt: skip
ONE_NODE = "--envs-total 0 --envs-per-actor 32"
FAR = {"far_vtrace": (f"{CARTPOLE} --algo vtrace {ONE_NODE}", 10), "far_ppo": (f"{CARTPOLE} --algo ppo {ONE_NODE}", 3.5)}
SCORES = {"cartpole": (f"{CARTPOLE} --algo vtrace --frames 3M", 450), "cartpole_ppo": (f"{CARTPOLE} --algo ppo --frames 500k", 450),
          "breakout": ("--env native/breakout --algo ppo --frames 400k", 60), "breakout_vtrace": ("--env native/breakout --algo vtrace --frames 400k", 60),
          "cartpole_ppo_far": (f"{CARTPOLE} --algo ppo {ONE_NODE} --frames 500k", 450)}  # fmt: skip
SEEDS = (1, 2, 3)
SCORE_LIMIT_S = 150


def run(*arguments, seconds=60, **environment):
    result = subprocess.run([FARM, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=90 + 4 * seconds,
                            env={**os.environ, **environment}, check=False)  # fmt: skip
    if result.returncode:
        raise RuntimeError(f"farm {' '.join(arguments)}: {(result.stderr.strip().splitlines() or ['no reason given'])[-1]}")
    return json.loads(result.stdout)


# ---- training, here or with the actors behind a relay ----


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def stop(process):
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def train(flags, way, folder, seconds, far=False, until=lambda run: False):
    """The document of `farm train`. far: one actor on a node, 5 ms away, and none here. until(run): ends it."""
    ours, theirs = free_port(), free_port()
    where = ["--actors", "0", "--expect-actors", "1", "--insecure", "--listen", f"127.0.0.1:{ours}"] if far else []
    command = [FARM, "train", *flags.split(), "--inference", way, "--seconds", str(seconds), "--run", folder, "--json", "--quiet",
               "--metrics-every", "0.5", *where]  # fmt: skip
    node = [FARM, "bridge", "--connect", f"127.0.0.1:{theirs}", "--insecure", "--actors", "1", "--quiet"]
    with contextlib.ExitStack() as stack, open(f"{folder}.said", "w+", encoding="utf-8") as said:
        def start(command):
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE if command[1] == "train" else said, stderr=said, text=True)
            stack.callback(stop, process)
            return process

        if far:
            start([sys.executable, str(DELAY), f"127.0.0.1:{theirs}", f"127.0.0.1:{ours}", str(ONE_WAY_MS)])
        learner = start(command)
        if far:
            start(node)
        deadline = time.monotonic() + 60 + 2 * seconds
        while learner.poll() is None and time.monotonic() < deadline and not until(folder):
            time.sleep(0.2)
        if learner.poll() is None:
            learner.send_signal(signal.SIGINT)
        output = learner.communicate(timeout=60)[0]
        if learner.returncode:
            said.seek(0)
            raise RuntimeError(f"{' '.join(command)}: {said.read()[-500:]}")
        document = json.loads(output)
        if not document["agent_steps"]:
            said.seek(0)
            raise RuntimeError(f"{' '.join(command)}: no step: {said.read()[-500:]}")
        return document


def samples(folder):
    with contextlib.suppress(OSError), open(f"{folder}/metrics.jsonl", encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.endswith("\n")]
    return []


# ---- rows ----


def result_of(name, pairs, target, unit="agent steps/s", **more):
    central, local = zip(*pairs)
    return {"name": name, "value": statistics.median(local), "unit": unit, "better": "higher", "spread": spread_of(local),
            "reference": "central", "reference_value": statistics.median(central), "reference_spread": spread_of(central),
            "ratio": statistics.median(l / c for c, l in pairs), "ratios": [l / c for c, l in pairs], "target": target, **more}  # fmt: skip


def take_pairs(rounds, measure):
    """[(central, local), ...], measured alternately; the sides take turns at going first."""
    pairs = []
    for turn in range(rounds):
        rates = {way: measure(way) for way in (WAYS if turn % 2 == 0 else WAYS[::-1])}
        log(f"    central {rates['central']:.0f}, local {rates['local']:.0f}: {rates['local'] / rates['central']:.2f}")
        pairs.append((rates["central"], rates["local"]))
    return pairs


def sample_row(name, flags, target, rounds, seconds):
    """With what `auto` chooses on this machine, measured afresh, against the better of the two."""
    documents = []

    def measure(way):
        documents.append(run("fps", *flags.split(), "--inference", way, "--seconds", str(seconds), "--json", "--quiet", seconds=seconds))
        return documents[-1]["ladder"][0]["agent_steps_per_s"]

    pairs = take_pairs(rounds, measure)
    rungs = {way: [d["ladder"][0] for d in documents if d["ladder"][0]["rung"] == way] for way in WAYS}
    more = {way: {"cpu_us_per_step": statistics.median(1e6 * (r["actor_cpus"] + r["learner_cpus"]) / r["agent_steps_per_s"] for r in rungs[way]), **rungs[way][-1]}
            for way in WAYS}  # fmt: skip
    chosen = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            run("train", *flags.split(), "--inference", "auto", "--seconds", "0.3", "--run", f"{folder}/run", "--json", "--quiet", XDG_CACHE_HOME=folder)
            chosen.append(next(line.split()[1] for line in open(f"{folder}/run/recipe.yaml", encoding="utf-8") if line.startswith("inference:")))
    central, local = (statistics.median(rates) for rates in zip(*pairs))
    kept = [{"central": central, "local": local}[way] / max(central, local) for way in chosen]
    auto = {"name": f"auto_{name}", "value": statistics.median(kept), "unit": "of the better rate", "better": "higher", "spread": spread_of(kept),
            "reference": "the better of central and local", "reference_value": 1, "ratio": statistics.median(kept), "target": 0.95,
            "chosen": chosen}  # fmt: skip
    return [result_of(f"sample_local_{name}", pairs, target, **more), auto]


def train_row(name, flags, target, rounds, seconds, far):
    def measure(way):
        with tempfile.TemporaryDirectory() as folder:
            return train(flags, way, f"{folder}/run", seconds, far)["agent_steps_per_s"]

    return [result_of(name, take_pairs(rounds, measure), target)]


def score_row(name, flags, threshold, far):
    """Seconds, from the first answered step, until the mean return of the last 100 games has reached the threshold."""
    reached = {way: [] for way in WAYS}
    for seed in SEEDS:
        for way in WAYS if seed % 2 else WAYS[::-1]:
            def first(folder):
                return next((s for s in samples(folder) if s["return_mean"] is not None and s["return_mean"] >= threshold), None)

            with tempfile.TemporaryDirectory() as folder:
                train(f"{flags} --seed {seed}", way, f"{folder}/run", SCORE_LIMIT_S, far, first)
                found = first(f"{folder}/run")
            reached[way].append(found and round(found["wall_s"], 1))
            log(f"    seed {seed}, {way}: {reached[way][-1]} s, {found and found['frames']} frames")
    middle = {way: statistics.median(s or SCORE_LIMIT_S for s in seconds) for way, seconds in reached.items()}
    return [{"name": f"score_{name}", "value": middle["local"], "unit": "s", "better": "lower", "spread": 0, "reference": "central",
             "reference_value": middle["central"], "ratio": middle["local"] / middle["central"], "target": None, "threshold": threshold,
             "seconds": reached}]  # fmt: skip


def all_rows(rounds, seconds):
    """(name, function) of each row."""
    for name, (flags, target) in SAMPLED.items():
        yield f"sample_local_{name}", lambda n=name, f=flags, t=target: sample_row(n, f, t, rounds, seconds)
    for name, (flags, target) in {**TRAINED, **FAR}.items():
        yield name, lambda n=name, f=flags, t=target: train_row(n, f, t, rounds, seconds, n in FAR)
    for name, (flags, threshold) in SCORES.items():
        yield f"score_{name}", lambda n=name, f=flags, t=threshold: score_row(n, f, t, n.endswith("_far"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one document on stdout")
    parser.add_argument("--seconds", type=float, default=6, help="of each measurement (6)")
    parser.add_argument("--rounds", type=int, default=3, help="pairs (3)")
    parser.add_argument("--only", default="", help="rows whose names contain one of these words, which commas divide; without it all but score")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # which ends the farms too
    results, failures = [], 0
    for name, measure in all_rows(arguments.rounds, arguments.seconds):
        if name.startswith("score_") if not arguments.only else not any(word in name for word in arguments.only.split(",")):
            continue
        log(f"  {name}")
        try:
            results += measure()
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            log(f"FAILED {name}: {error}")
            failures += 1
    if arguments.json:
        print(json.dumps({"schema_version": 1, "benchmark": "inference", "commit": commit(BUILD), "machine": machine(),
                          "command": " ".join(["build/bench/inference", *sys.argv[1:]]), "results": results}))  # fmt: skip
        return 1 if failures else 0
    for result in results:
        print(f"{result['name']:28}{result['value']:10.4g} {result['unit']:<20}{100 * result['spread']:6.1f}%{result['reference_value']:12.4g}"
              f"{result['ratio']:8.3f}{result['target'] or 0:8.3g}  {result['reference']}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
