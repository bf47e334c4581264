#!/usr/bin/env python3
"""PPO by windows (examples/python/ppo_torch.py) against the usual loop, which copies observations into a buffer of f32: obs[t] = next_obs.

usage: bench/python_windows.py BUILD [--env E] [--iterations N]    with a Python that has PyTorch

Both play and train alternately in this process, an iteration each, with equal environments, networks, sizes and optimiser steps. Appends a
line to bench/results/python.jsonl: medians of an iteration's wall time and of this process's CPU time (the actors have processes of
their own), and the bytes that hold observations: the lanes' rings, and the buffer.
"""

import argparse
import datetime
import json
import os
import statistics
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "examples", "python")]


def copying(env, agent, optimiser, options, rng, ppo, np, torch):
    """An iteration as CleanRL writes it; yields after each."""
    T, envs = options["T"], options["envs"]
    shape = (T, envs)
    obs = torch.zeros(*shape, *env.observation_space.shape)
    action, log_prob, reward, done, value = (torch.zeros(shape) for _ in range(5))
    next_obs, next_done = torch.as_tensor(env.reset()[0]).float(), torch.zeros(envs)
    while True:
        for t in range(T):
            obs[t], done[t] = next_obs, next_done
            with torch.no_grad():
                action[t], found = agent(next_obs, None, None)
            log_prob[t], value[t] = found["log_prob"], found["value"]
            seen, earned, terminated, truncated, _ = env.step(action[t].int().numpy())
            next_obs, next_done, reward[t] = torch.as_tensor(seen).float(), torch.as_tensor(terminated | truncated).float(), torch.as_tensor(earned)
        with torch.no_grad():
            next_value, advantage, last = agent.evaluate(next_obs)[1], torch.zeros(shape), 0
            for t in reversed(range(T)):
                alive = 1 - (next_done if t == T - 1 else done[t + 1])
                after = next_value if t == T - 1 else value[t + 1]
                last = reward[t].clip(-1, 1) + ppo.DISCOUNT * alive * after - value[t] + ppo.DISCOUNT * ppo.LAMBDA * alive * last
                advantage[t] = last
        rows = {"action": action, "log_prob": log_prob, "advantage": advantage, "target": advantage + value}
        rows = {name: values.flatten() for name, values in rows.items()}
        flat = obs.flatten(0, 1)
        ppo.learn(agent, optimiser, rows, np.arange(T * envs), lambda part: flat[part], options, 1.0, rng)
        yield obs.nbytes


def windows_of(env, agent, optimiser, options, rng, ppo):
    """An iteration of the example; yields after each."""
    windows = []
    for window in env.collect(agent, steps=options["T"], sync=True):
        windows.append(window)
        if len(windows) == options["envs"] // options["width"]:
            ppo.train(agent, optimiser, windows, options, 1.0, rng)
            windows.clear()
            del window
            yield 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--env", default="ale/Pong")
    parser.add_argument("--iterations", type=int, default=6)
    arguments = parser.parse_args()
    build = os.path.abspath(arguments.build)
    os.environ.update(FARM_PROGRAM=os.path.join(build, "farm"), FARM_PYTHON=os.path.join(build, "venv", "bin", "python"))
    sys.path[:0] = [os.path.join(build, "python")]
    import actorfarm
    import numpy as np
    import ppo_torch as ppo
    import torch
    from peers.common import commit
    from training import machine

    torch.set_num_threads(1)
    options, sides, bytes_of, rings = ppo.FRAMES, {}, {}, {}
    for name, width, steps in (("windows", options["width"], 3 * options["T"]), ("copies", None, None)):
        env = actorfarm.make(arguments.env, options["envs"], width, stack=options["stack"], steps=steps, seed=1, actors=2)
        agent = ppo.Agent(env.observation_space.shape[1:], options["stack"], int(env.action_space.n))
        common = env, agent, torch.optim.Adam(agent.parameters(), eps=1e-5, fused=True), options, np.random.default_rng(1), ppo
        sides[name] = windows_of(*common) if width else copying(*common, np, torch)
        rings[name] = env.config["steps"] * options["envs"] * int(np.prod(env.observation_space.shape[1:]))
    times = {name: [] for name in sides}
    for iteration in range(arguments.iterations + 1):
        for name, side in sides.items():
            wall, cpu = time.monotonic(), time.process_time()
            bytes_of[name] = rings[name] + next(side)
            if iteration:  # the first one warms up
                times[name].append((time.monotonic() - wall, time.process_time() - cpu))
    median = {name: [round(statistics.median(part), 3) for part in zip(*values, strict=True)] for name, values in times.items()}
    line = {
        "date": datetime.date.today().isoformat(), "machine": machine(), "commit": commit(build), "benchmark": "python_windows",
        "env": arguments.env, "iterations": arguments.iterations, "load": round(os.getloadavg()[0], 1),
        **{f"{name}_{what}": value for name in sides for what, value in zip(("wall_s", "cpu_s"), median[name], strict=True)},
        **{f"{name}_bytes": bytes_of[name] for name in sides},
        "memory_ratio": round(bytes_of["windows"] / bytes_of["copies"], 3),
        **{f"{what}_ratio": round(statistics.median(a[i] / b[i] for a, b in zip(times["windows"], times["copies"], strict=True)), 3)
           for i, what in enumerate(("wall", "cpu"))},
    }  # fmt: skip
    print(json.dumps(line))
    with open(os.path.join(HERE, "results", "python.jsonl"), "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
