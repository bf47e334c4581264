#!/usr/bin/env python3
"""Trains with the programs of examples/python until their returns have reached what they have to, and records them.

usage: bench/python_training.py BUILD PYTHON [NAME[:SEED]...]    rows of the table below whose names contain a NAME; without names all

PYTHON has PyTorch and JAX. Each seed appends a line to bench/results/python.jsonl, like those of bench/training.py, which `farm plot` draws:
`curve` is a list of [seconds, mean return of the last 100 games, frames]; seconds count from the first windows' begin. Exit status 1: one
was not reached.
"""

import datetime
import json
import os
import subprocess
import sys

from peers.common import commit
from training import machine

HERE = os.path.dirname(os.path.abspath(__file__))
RESULTS = os.path.join(HERE, "results", "python.jsonl")
TABLE = {  # flags, seeds, threshold
    "cartpole-ppo-torch": ("ppo_torch.py --env native/cartpole --target 475", 3, 475),
    "cartpole-ppo-jax": ("ppo_jax.py --env native/cartpole --target 475", 3, 475),
    "cartpole-impala-torch": ("impala_torch.py --env native/cartpole --target 475", 3, 475),
    "pong-ppo-torch": ("ppo_torch.py --env ale/Pong --target 18.5", 1, 18),
}


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    build, python, names = os.path.abspath(sys.argv[1]), sys.argv[2], sys.argv[3:] or [""]
    environment = {**os.environ, "PYTHONPATH": os.path.join(build, "python"), "FARM_PROGRAM": os.path.join(build, "farm"), "OMP_NUM_THREADS": "1"}
    reached = []
    for name, (flags, seeds, threshold) in TABLE.items():
        chosen = {seed for wanted, _, seed in (each.partition(":") for each in names) if wanted in name}
        for seed in range(1, seeds + 1) if "" in chosen else sorted(map(int, chosen)):
            words = [*flags.split(), "--seed", str(seed)]
            command = [python, os.path.join(HERE, "..", "examples", "python", words[0]), *words[1:], "--json"]
            result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            document = json.loads(result.stdout.splitlines()[-1])
            reached.append(document["return_mean"] >= threshold)
            skip = 4 if "ale/" in flags else 1  # frames of an agent step
            document.update(frames=document["agent_steps"] * skip, curve=[[x, y, steps * skip] for x, y, steps in document["curve"]])
            first = next((point for point in document["curve"] if point[1] >= threshold), None)
            line = {
                "date": datetime.date.today().isoformat(), "machine": machine(), "commit": commit(build), "command": " ".join(words),
                **document, "threshold": threshold, "reached": reached[-1], "first": first,
            }  # fmt: skip
            with open(RESULTS, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            print(f"{name:24} seed {seed}  {document['return_mean']:7.2f} of {threshold}  {document['agent_steps']:,} steps, {document['wall_s']:.0f} s")
    return 0 if reached and all(reached) else 1


if __name__ == "__main__":
    sys.exit(main())
