#!/usr/bin/env python3
"""The farm against the bare simulator: rounds of `farm fps` with the environments that have a target, and the cost of a
CartPole step among a thousand in one process. Each run of `farm fps` alternates both sides; the ratio is the median of its
`efficiency`: the farm's rate / (rate of the bare loop on one core x cores). On request (--only train_pong), `farm train` on Pong
against what its emulator, inference and training take alone. Standard library only. Prints a table, or with --json a benchmark's document.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile

from peers.common import Farm, Program, Unavailable, commit, farm_fps, machine, spread_of

BUILD = os.path.dirname(os.path.dirname(os.path.abspath(sys.argv[0])))  # build/bench/fps links to this file
UNEVEN = f"plugin:{BUILD}/bench/plugins/uneven.so"  # one step in 100 takes 100 times as long, a reset 1,000 times
TARGETS = {
    "ale/Pong": 0.93,
    "ale/Breakout": 0.93,
    "procgen/bigfish": 0.93,
    "procgen/starpilot": 0.93,
    "procgen/coinrun": 0.93,
    "mujoco/HalfCheetah-v4": 0.93,
    "native/breakout": 0.85,
    "native/cartpole": 0.85,
    "gym/Blackjack-v1": 0.7,  # a tuple of three whole numbers
    "gym/CliffWalking-v1": 0.7,
    "gym/Pendulum-v1": 0.85,
    UNEVEN: 0.93,
}
MANY, FEW = 1000, 16  # environments per process
# V-trace, asynchronous, one pass of the shallow net over each step: the work of bench/learner's rows, whose windows are 20 steps and an end.
WHOLE = "--env ale/Pong --algo vtrace --regime async --envs-total 0 --envs-per-actor 16 --unroll 20 --batch 0 --minibatch 0 --epochs 1"
NET = "--net shallow --stack 4 --normalise-observations false --ratio-clip 0 --lambda 1"
WINDOW_ROWS = 21 / 20
WHOLE_S, PARTS_S = 20, 10  # of a run of farm train, and of all rows of bench/learner


def fps(env, seconds, *options):
    return farm_fps(BUILD, env, *options).run(seconds)


def name_of(env):
    return "fps_uneven" if env == UNEVEN else "fps_" + env.lower().replace("/", "_").replace("-", "_")


def result_of(env, runs):
    def all_of(key):
        return [run[key] for run in runs]

    return {
        "name": name_of(env),
        "value": statistics.median(all_of("agent_steps_per_s")),
        "unit": "agent steps/s",
        "better": "higher",
        "spread": spread_of(all_of("agent_steps_per_s")),
        "reference": "bare loop on one core x cores",
        "reference_value": statistics.median(run["bare_agent_steps_per_s"] * run["cores"] for run in runs),
        "ratio": statistics.median(all_of("efficiency")),
        "target": TARGETS[env],
        "ratios": all_of("efficiency"),
        "ratio_to_all_cores_at_once": statistics.median(all_of("efficiency_all_cores")),
        "envs_per_actor": runs[0]["envs_per_actor"],
        "lanes": runs[0]["lanes"],
        "ring_bytes": runs[0]["ring_bytes"],
    }


def cost_of_many(seconds):
    """CPU time of a CartPole step in the bare loop, alternating between many and few environments in one process."""
    costs = {MANY: [], FEW: []}
    for turn in range(4):
        for envs in (MANY, FEW) if turn % 2 else (FEW, MANY):
            run = fps("native/cartpole", seconds / 8, "--actors", "1", "--envs-per-actor", str(envs))
            costs[envs].append(run["bare_cpu_ns_per_agent_step"])
    value, reference = statistics.median(costs[MANY]), statistics.median(costs[FEW])
    return {
        "name": "fps_cost_of_1000_cartpoles",
        "value": value,
        "unit": "ns/step",
        "better": "lower",
        "spread": spread_of(costs[MANY]),
        "reference": f"{FEW} of them",
        "reference_value": reference,
        "ratio": value / reference,
        "target": 1.1,
    }


def train_and_parts(rounds):
    """`farm train` against the steps a second of all cores if each step took its parts' times alone, measured alternately."""
    train = Farm(BUILD, "train", *WHOLE.split(), *NET.split(), "--device", "cpu", "--quiet")
    values, references = [], []
    for _ in range(rounds):
        rows = {row["name"]: row["value"] for row in Program([f"{BUILD}/bench/learner", "--json"]).run(PARTS_S)["results"]}
        bare = fps("ale/Pong", 4)
        cost_s = 1 / bare["bare_agent_steps_per_s"] + 1 / rows["infer_shallow_16"] + WINDOW_ROWS / rows["train_shallow"]
        references.append(bare["cores"] / cost_s)
        with tempfile.TemporaryDirectory() as folder:
            train.command[train.command.index("--json") :] = ["--json", "--run", f"{folder}/run"]
            values.append(train.rate(WHOLE_S))
    return {
        "name": "train_pong",
        "value": statistics.median(values),
        "unit": "agent steps/s",
        "better": "higher",
        "spread": spread_of(values),
        "reference": "emulator, inference and training alone, summed",
        "reference_value": statistics.median(references),
        "ratio": statistics.median(value / reference for value, reference in zip(values, references)),
        "target": 0.9,
    }


def print_table(results):
    print(f"{'fps':36}{'median':>10} {'unit':<14}{'spread':>7}{'reference':>12}{'ratio':>8}{'target':>8}")
    for result in results:
        print(f"{result['name']:36}{result['value']:10.4g} {result['unit']:<14}{100 * result['spread']:6.1f}%"
              f"{result['reference_value']:12.4g}{result['ratio']:8.3f}{result['target']:8.3g}  {result['reference']}")


def measure(envs, seconds, rounds):
    runs, failed = {env: [] for env in envs}, {}
    for number in range(rounds):
        for env in envs:
            if env in failed:
                continue
            print(f"  round {number + 1} of {rounds}: {env}", file=sys.stderr, flush=True)
            try:
                runs[env].append(fps(env, seconds))
            except (Unavailable, ValueError) as error:
                failed[env] = error
    for env, error in failed.items():
        print(f"fps: {env}: {error}", file=sys.stderr)
    return [result_of(env, runs[env]) for env in envs if env not in failed], len(failed)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one document on stdout")
    parser.add_argument("--seconds", type=float, default=2, help="per run of farm fps (2)")
    parser.add_argument("--rounds", type=int, default=1, help="runs per environment (1)")
    parser.add_argument("--only", default="", help="environments whose names contain one of these words, which commas divide")
    arguments = parser.parse_args()
    if arguments.seconds < 1 or arguments.rounds < 1:
        parser.error("--seconds and --rounds are 1 or more")
    words = arguments.only.split(",")
    envs = [env for env in TARGETS if any(word in env for word in words)]
    whole = arguments.only != "" and any(word in "train_pong" for word in words)  # a minute a round
    if not envs and not whole:
        parser.error(f"no environment with '{arguments.only}' in its name; choose from: {', '.join(TARGETS)}, train_pong")
    results, failures = measure(envs, arguments.seconds, arguments.rounds)
    if "native/cartpole" in envs:
        results.append(cost_of_many(4))
    if whole:
        results.append(train_and_parts(arguments.rounds))
    if arguments.json:
        print(json.dumps({"schema_version": 1, "benchmark": "fps", "commit": commit(BUILD),
                          "machine": machine(), "command": " ".join(["build/bench/fps", *sys.argv[1:]]), "results": results}, indent=1))
    else:
        print_table(results)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
