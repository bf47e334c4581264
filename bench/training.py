#!/usr/bin/env python3
"""Trains environments by their shipped recipes and compares the returns with what they have to reach.

usage: bench/training.py BUILD [NAME[:SEED]...]     rows of the table below whose names contain a NAME, all seeds or one; without names all (hours)
       bench/training.py summary [GROUP...]         of groups of rows (atari-10, mujoco-5): what is on record beside published figures

Each seed is one `farm train`, one after another, and appends a line to bench/results/training.jsonl; its `curve` is a list of
[seconds, mean return of the last 100 games, frames], and `first` the first moment at which that mean has reached the threshold. Seconds
count from the first answered step; `outside_s` are those of the process before it and after the last one. Some rows play the trained
policy too (farm eval). Prints a table; exit status 1 if a row misses its threshold, in training or evaluation. Rows without a threshold are
recorded only.
"""

import datetime
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import typing

from peers.common import commit

RESULTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "results", "training.jsonl")
CURVE_POINTS = 40


def lower_quartile(returns):
    return statistics.quantiles(returns, n=4, method="inclusive")[0]


def recorded():
    with open(RESULTS, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def of_scale_1(algo):
    """The median over seeds of the scale's first row, as recorded on this machine."""
    returns = [line["return_mean"] for line in recorded() if f"{BREAKOUT} --algo {algo} --frames 300k {ONE}" in line["command"]]
    return statistics.median(returns) if returns else sys.exit(f"training.py: run scale1-{algo} first")


def of_peer():
    """The mean over seeds of bench/peers/ppo_procgen.py, as recorded."""
    returns = [line["return_mean"] for line in recorded() if "ppo_procgen" in line.get("peer", "")]
    return statistics.fmean(returns) if returns else sys.exit("training.py: run bench/peers/ppo_procgen.py first")


def of_envpool():
    """The mean over seeds of bench/peers/ppo_procgen.py with EnvPool's D1Basic, less its standard error; None before it has run."""
    returns = [line["return_mean"] for line in recorded() if "peer" in line and line["env"] == "envpool/D1Basic-v1"]
    return statistics.fmean(returns) - statistics.stdev(returns) / len(returns) ** 0.5 if len(returns) > 1 else None


class Row(typing.NamedTuple):
    name: str
    flags: str  # of farm train
    seeds: int
    threshold: object  # a number, or a function that returns it, or None
    of_seeds: object = min  # what has to reach it
    episodes: int = 0  # of farm eval afterwards
    explores: bool = False  # training acts at random at times, so the evaluation alone decides
    duel: int = 0  # frames: the games of farm eval are against the run's own checkpoint at this number


COINRUN = "--env procgen/coinrun --env.distribution_mode easy --algo ppo --net lite --stack 1 --frames 500k"
BREAKOUT = "--env native/breakout"
HALF = "--frames 1M --eval-every 500k --eval-episodes 1 --checkpoints-keep 0"  # keeps the checkpoint that a duel is against
ONE = "--train-threads 1"  # the return does not depend on it, and runs beside other work do not wait for a second one


class Published(typing.NamedTuple):
    """The mean over seeds of returns of training games."""

    system: str
    returns: dict  # by environment
    source: str


class Group(typing.NamedTuple):
    """Rows GROUP-NAME, and what others have published."""

    environments: list
    published: list
    is_normalised: bool = False  # human-normalised scores, whose median counts


MUJOCO_5 = Published(
    "CleanRL",
    {"HalfCheetah-v4": 1442.64, "Walker2d-v4": 2287.95, "Hopper-v4": 2382.86, "InvertedPendulum-v4": 963.09, "Humanoid-v4": 716.11},
    "ppo_continuous_action, 3 seeds, 1 M steps as ours; docs/benchmark/ppo_continuous_action.md in github.com/vwxyzjn/cleanrl",
)
ATARI_10_GAMES = ["Alien", "Asterix", "BeamRider", "Breakout", "Freeway", "MsPacman", "Pong", "Qbert", "Seaquest", "SpaceInvaders"]
AT_10M = "10 M frames as ours, 5 runs, sticky actions; iteration 9 (the last of ten) of baselines/atari/data/*.json in github.com/google/dopamine"
ATARI_10 = [
    Published("Rainbow", dict(zip(ATARI_10_GAMES, [1220.4, 2699.2, 5982.6, 41.9, 32.17, 2347.5, 15.2, 5353.9, 1641.1, 743.7])), AT_10M),
    Published("DQN", dict(zip(ATARI_10_GAMES, [925.6, 2381.7, 869.3, 21.48, 8.28, 2187.2, -4.93, 1658.4, 299.6, 663.3])), AT_10M),
    Published(
        "CleanRL at 40 M", dict(zip(ATARI_10_GAMES, [1736.4, 4820.3, 2478.4, 430.1, 33.1, 2345.7, 20.39, 17246.3, 1240.3, 1188.8])),
        "four times our frames, 3 seeds; ppo_atari_envpool_xla_jax in docs/benchmark/ppo_atari_envpool_xla_jax.md in github.com/vwxyzjn/cleanrl",
    ),
]  # fmt: skip
GROUPS = {"mujoco-5": Group(list(MUJOCO_5.returns), [MUJOCO_5]), "atari-10": Group(ATARI_10_GAMES, ATARI_10, True)}
ATARI_RECIPE = "--algo ppo --frames 10M --recipe recipes/ale.yaml"  # the family's recipe, for Pong too
TABLE = [
    Row("catch-vtrace", "--env native/catch --algo vtrace --frames 500k", 3, 0.95),
    Row("catch-ppo", "--env native/catch --algo ppo --frames 500k", 3, 0.95),
    Row("cartpole-vtrace", "--env native/cartpole --algo vtrace --frames 3M", 3, 450),
    Row("cartpole-ppo", "--env native/cartpole --algo ppo --frames 3M", 3, 450),
    Row("menu-vtrace", "--env native/menu --algo vtrace", 3, 0.95),  # masked actions
    Row("menu-ppo", "--env native/menu --algo ppo", 3, 0.95),
    Row("menu-drinks-ppo", "--env native/menu --env.drinks true --algo ppo", 3, 0.95),  # several masked actions a step
    Row("juggle-vtrace", "--env native/juggle --algo vtrace", 3, 0.95),  # several fields of observations
    Row("juggle-ppo", "--env native/juggle --algo ppo", 3, 0.95),
    Row("recall-vtrace", "--env native/recall --algo vtrace", 3, 0.95),  # a memory
    Row("recall-ppo", "--env native/recall --algo ppo", 3, 0.95),
    Row("catch-dqn", "--env native/catch --algo dqn", 3, 0.95),
    Row("cartpole-dqn", "--env native/cartpole --algo dqn", 3, 450),
    Row("breakout-dqn", "--env native/breakout --algo dqn", 3, 60),
    Row("recall-r2d2", "--env native/recall --algo r2d2", 3, 0.95),
    Row("catch-pqn", "--env native/catch --algo pqn", 3, 0.95),
    Row("cartpole-pqn", "--env native/cartpole --algo pqn", 3, 450),
    Row("recall-chance", "--env native/recall --algo dqn", 3, 0),  # without a memory: 0.25 by chance
    Row("cartpole-memory", "--env native/cartpole --env.velocity false --algo ppo --lstm 32 --epochs 4", 3, 400),
    Row("pendulum", "--env gym/Pendulum-v1 --algo ppo --frames 500k", 3, -200),
    Row("lunarlander", "--env gym/LunarLander-v3 --algo ppo --frames 1500k", 3, 200),
    Row("acrobot", "--env gym/Acrobot-v1 --algo ppo --frames 500k", 3, -100),
    Row("halfcheetah", "--env mujoco/HalfCheetah-v4 --algo ppo --frames 1M", 3, 1500, statistics.median),
    Row("bipedalwalker", "--env gym/BipedalWalker-v3 --algo ppo --frames 2M", 1, 200),
    Row("coinrun", COINRUN, 2, of_peer, statistics.fmean),
    Row("breakout", "--env native/breakout --frames 300k", 5, 60, lower_quartile),
    Row("atari-breakout-ppo", "--env ale/Breakout --algo ppo --frames 20M", 3, 260),
    Row("atari-breakout-vtrace", "--env ale/Breakout --algo vtrace --frames 20M", 3, 260),
    Row("pong-ppo", "--env ale/Pong --algo ppo", 3, 18, min, 100),
    Row("pong-shallow", "--env ale/Pong --algo ppo --net shallow", 3, 17),
    Row("pong-lstm", "--env ale/Pong --algo ppo --net shallow --lstm 256", 3, 17),
    Row("pong-vtrace", "--env ale/Pong --algo vtrace", 3, 18, min, 100),
    Row("pong-dqn", "--env ale/Pong --algo dqn", 3, 18, min, 100, True),
    Row("pong-pqn", "--env ale/Pong --algo pqn", 1, -21),  # recorded, no target
    Row("pong-r2d2", "--env ale/Pong --algo r2d2", 1, -21),  # recorded, no target
    Row("scale1-ppo", f"{BREAKOUT} --algo ppo --frames 300k {ONE}", 5, 0),
    Row("scale1-vtrace", f"{BREAKOUT} --algo vtrace --frames 300k {ONE}", 5, 0),
    Row("scale16-ppo", f"{BREAKOUT} --algo ppo --frames 1200k --scale 16 {ONE}", 5, lambda: of_scale_1("ppo"), statistics.median),
    Row("scale16-vtrace", f"{BREAKOUT} --algo vtrace --frames 1200k --scale 16 {ONE}", 5, lambda: of_scale_1("vtrace"), statistics.median),
    Row("scale4-pong", f"--env ale/Pong --algo ppo --scale 4 {ONE}", 2, 18),
    *[
        Row(f"mujoco-5-{env.partition('-')[0].lower()}", f"--env mujoco/{env} --algo ppo --frames 1M {ONE}", 3, mean, statistics.fmean)
        for env, mean in MUJOCO_5.returns.items()
    ],
    *[Row(f"atari-10-{game.lower()}", f"--env ale/{game} {ATARI_RECIPE} {ONE}", 1, None) for game in ATARI_10_GAMES],
    Row("doorkey-lstm", f"--env envpool/MiniGrid-DoorKey-8x8-v0 --algo ppo {ONE}", 3, 0.9),
    Row("vizdoom-d1basic", f"--env envpool/D1Basic-v1 --algo ppo --frames 400k {ONE}", 3, of_envpool, statistics.fmean),
    Row("football-empty-goal", f"--env envpool/gfootball/academy_empty_goal_close-v1 --algo ppo --frames 500k {ONE}", 1, None),
    Row("pursuit", f"--env native/pursuit --algo ppo {HALF} {ONE}", 3, 0.6, min, 400, True, 500_000),  # 8 of 10 games
    Row("pursuit-8", f"--env native/pursuit --env.agents 8 --algo ppo {HALF} {ONE}", 1, None, min, 400, True, 500_000),
    Row("breakout-60s", "--env native/breakout --algo vtrace --seconds 60", 3, 100, statistics.median),  # the README's picture
]


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        info = dict(line.split(":", 1) for line in file.read().replace("\t", "").splitlines() if ":" in line)
    sets = [name for name in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16") if name in info["flags"].split()]
    return {"cpu": info["model name"].strip(), "cores": os.cpu_count(), "instruction_sets": sets}


def point(sample):
    return [round(sample["wall_s"], 1), round(sample["return_mean"], 2), sample["frames"]]


def score_of(row, trained, played):
    """Of both returns, if there are both, the less."""
    return trained if played is None else played if row.explores else min(trained, played)


def games_of(played):
    """Wins and losses of games that pay 1, 0 or -1."""
    count, mean = played["episodes"], played["return_mean"]
    decided = played["return_std"] ** 2 + mean**2  # the mean square
    return {"wins": round(count * (decided + mean) / 2), "losses": round(count * (decided - mean) / 2)}


def train(farm, row, seed, threshold):
    """What to record of a run."""
    with tempfile.TemporaryDirectory() as folder:
        run = os.path.join(folder, "run")
        command = [farm, "train", *row.flags.split(), "--seed", str(seed)]
        started = time.monotonic()
        result = subprocess.run([*command, "--run", run, "--json"], stdout=subprocess.PIPE, check=True)
        process_s = time.monotonic() - started
        with open(os.path.join(run, "metrics.jsonl"), encoding="utf-8") as file:
            samples = [json.loads(line) for line in file]
        with open(os.path.join(run, "recipe.yaml"), encoding="utf-8") as file:
            algo = next(line.split()[1] for line in file if line.startswith("algo: "))
        play = [farm, "eval", run, "--episodes", str(row.episodes), "--json"]
        if row.duel:
            checkpoints = os.path.join(run, "checkpoints")
            kept = [name for name in os.listdir(checkpoints) if name[0].isdigit()]
            half = min(kept, key=lambda name: abs(int(name.partition(".")[0]) - row.duel))
            play += ["--opponent", os.path.join(checkpoints, half)]
        played = row.episodes and json.loads(subprocess.run(play, stdout=subprocess.PIPE, check=True).stdout)
    samples = [sample for sample in samples if sample["return_mean"] is not None]
    every = max(len(samples) // CURVE_POINTS, 1)
    document = json.loads(result.stdout)
    score = score_of(row, document["return_mean"], played["return_mean"] if played else None)
    aim = {} if threshold is None else {
        "threshold": threshold, "reached": score >= threshold,
        "first": next((point(sample) for sample in samples if sample["return_mean"] >= threshold), None),
    }  # fmt: skip
    scores = {key: document[key] for key in ("human_normalised", "normalised_to") if document["human_normalised"] is not None}
    return {
        "command": " ".join([os.path.basename(farm), *command[1:]]), "env": document["env"], "algo": algo, "seed": seed,
        "frames": document["frames"], "agent_steps": document["agent_steps"], "wall_s": round(document["wall_s"], 2),
        "outside_s": round(process_s - document["wall_s"], 2),
        "return_mean": document["return_mean"], **scores, **aim,
        **({"eval_return_mean": played["return_mean"], "eval_episodes": played["episodes"]} if played else {}),
        **(games_of(played) if row.duel else {}),
        "curve": [point(sample) for sample in samples[:-1:every] + samples[-1:]],
    }  # fmt: skip


def record(farm, row, seeds, threshold, version):
    """Trains the seeds; returns their scores."""
    returns = []
    for seed in seeds:
        result = train(farm, row, seed, threshold)
        returns.append(score_of(row, result["return_mean"], result.get("eval_return_mean")))
        line = {"date": datetime.date.today().isoformat(), "machine": machine(), "commit": version, **result}
        with open(RESULTS, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    return returns


def group_table(name):
    """Rows of texts, the first one the head; of each seed the newest line counts. What is missing has no figure, and no share in the median."""
    group, lines = GROUPS[name], recorded()
    systems = [published.system for published in group.published]
    scores, table = {system: [] for system in ("actorfarm", *systems)}, []
    for row, env in zip((row for row in TABLE if row.name.startswith(f"{name}-")), group.environments):
        found = {line["seed"]: line for line in lines if line["command"].startswith(f"farm train {row.flags} --seed")}
        returns = [found[seed]["return_mean"] for seed in sorted(found)]
        texts = [] if returns else ["missing"]
        for system, value in zip(scores, [*([statistics.fmean(returns)] if returns else [None]), *(published.returns[env] for published in group.published)]):
            if value is None:
                continue
            texts.append(f"{value:.5g}")
            if group.is_normalised and returns:
                low, high = map(float, re.findall(r", (-?[\d.]+)", found[min(found)]["normalised_to"]))
                scores[system].append((value - low) / (high - low))
                texts[-1] += f" ({scores[system][-1]:.3f})"
        table.append([env, *texts, ", ".join(f"{seed}: {found[seed]['return_mean']:.5g}" for seed in sorted(found))])
    if scores["actorfarm"]:
        table.append([f"median of {len(scores['actorfarm'])}", *(f"({statistics.median(values):.3f})" for values in scores.values()), ""])
    return [[name, *scores, "seeds of actorfarm"], *table]


def summarise(name):
    for row in group_table(name):
        print("  ".join([f"{row[0]:20}", *(f"{text:>18}" for text in row[1:-1]), row[-1]]).rstrip())
    for published in GROUPS[name].published:
        print(f"{published.system}: {published.source}")


def main():
    if sys.argv[1:2] == ["summary"]:
        for name in sys.argv[2:] or GROUPS:
            summarise(name)
        return 0
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # which ends the training too
    farm, names = os.path.join(sys.argv[1], "farm"), sys.argv[2:]
    chosen = {row: {seed for name, _, seed in (name.partition(":") for name in names or [""]) if name in row.name} for row in TABLE}
    rows = [row for row in TABLE if chosen[row]]
    table = []
    for row in rows:
        threshold = row.threshold() if callable(row.threshold) else row.threshold
        seeds = range(1, row.seeds + 1) if "" in chosen[row] else sorted(map(int, chosen[row]))
        returns = record(farm, row, seeds, threshold, commit(sys.argv[1]))
        table.append((row, threshold, row.of_seeds(returns), returns))
    for row, threshold, value, returns in table:
        verdict = f"{'recorded':20}" if threshold is None else f"of {threshold:<9.4g}{'reached' if value >= threshold else 'MISSED':8}"
        print(f"{row.name:28}{row.of_seeds.__name__:>14}{value:>10.4g} {verdict} seeds {' '.join(f'{value:.4g}' for value in returns)}")
    for name in GROUPS:
        if any(row.name.startswith(f"{name}-") for row in rows):
            summarise(name)
    return 0 if rows and all(threshold is None or value >= threshold for _, threshold, value, _ in table) else 1


if __name__ == "__main__":
    sys.exit(main())
