"""actorfarm.make against EnvPool 1.2.5, both in this process, in turns: recv and send, step, a busy program beside, CPU time of a step.

# peer: envpool
Both at the best of their settings, found here; in sync mode both have the same number of environments. One frame per observation.
"""

import json
import os
import subprocess
import sys

import common
import envpool_farm
import python_turns
import vector_env

REFERENCE = "EnvPool 1.2.5"
ATARI = {"stack_num": 1, "episodic_life": True}
PROCGEN = {"channel_first": False, "num_levels": 0}
HARD = {"distribution_mode": "hard", "num_levels": 0}
# name: (ours, its options, EnvPool's, its options, environments a core that a batch may have,
#        targets: async, async CPU, sync, sync CPU, beside a busy program)
TASKS = {
    "pong": ("ale/Pong", {}, "Pong-v5", ATARI, (1, 4, 8), (1.4, 0.75, 1.25, None, 1)),
    "bigfish": ("procgen/bigfish", HARD, "BigfishHard-v0", PROCGEN, (4, 16, 32), (1.7, 0.6, 1.5, None, 1)),
    "halfcheetah": ("mujoco/HalfCheetah-v4", {}, "HalfCheetah-v4", {}, (4, 16, 64), (1.5, 0.75, 1.25, None, 1)),
    "cartpole": ("native/cartpole", {}, "CartPole-v1", {}, (), (8, None, 8, None, None)),
}


class Farm(envpool_farm.Loop):
    """Our pool."""

    def __init__(self, env, options, setting):
        import actorfarm

        pool = actorfarm.make(env, seed=1, options=options, **setting)
        super().__init__(pool, pool.batch_size, pool.num_envs)


class Consumer:
    """Our C consumer over the same lanes (bench/consumer.c): a program for each turn."""

    def __init__(self, build, env):
        self.command = [os.path.join(build, "bench", "consumer"), "--json", "--only", env]

    def rate(self, seconds):
        output = subprocess.run([*self.command, "--seconds", f"{seconds:g}"], stdout=subprocess.PIPE, check=True).stdout
        return next(row["value"] for row in json.loads(output)["results"] if not row["name"].endswith("_cpu"))


def settings_of(batches, num_envs=None):
    """EnvPool's of a mode: threads unbound, bound to cores, and one more or less."""
    cores = common.cpus()
    if num_envs:
        base = [{"num_envs": num_envs, "batch_size": num_envs}]
        threads = [{"num_threads": n} for n in sorted({cores, cores + 1, max(1, cores - 1)})] + [{"num_threads": cores, "thread_affinity_offset": 0}]
        return [{**one, **more} for one in base for more in threads]
    found = [s for s in vector_env.asynchronous_settings(cores, [batch * cores for batch in batches]) if s["num_envs"] > s["batch_size"]]
    found += [{**s, "num_envs": 4 * s["batch_size"]} for s in found]
    return found + [{**s, "thread_affinity_offset": 0} for s in found]


def cartpole_settings(cores, sync):
    batches = [1024] if sync else [64, 128, 256, 512]
    return [{"num_envs": 1024, "batch_size": b, "num_threads": cores, **more} for b in batches for more in ({}, {"thread_affinity_offset": 0})]


def compare(stack, name, sync, options):
    """Results of a task in a mode."""
    env, farm_options, task, peer_options, batches, targets = TASKS[name]
    cores = common.cpus()
    if name == "cartpole":
        theirs = cartpole_settings(cores, sync)
        ours = [{"num_envs": 1024, **({} if sync else {"batch_size": b})} for b in ((1024,) if sync else (64, 128, 256, 512))]
    elif sync:
        theirs = settings_of((), batches[-1] * cores)
        ours = [{"num_envs": batches[-1] * cores}]
    else:
        theirs = settings_of(batches)
        ours = [{"num_envs": ahead * b * cores, "batch_size": b * cores} for b in batches for ahead in (2, 4)]
    peer, setting, tried = python_turns.choose(lambda s: envpool_farm.Pool(task, peer_options, s), theirs, options.tune)
    stack.callback(peer.close)
    farm, our_setting, our_tried = python_turns.choose(lambda s: Farm(env, farm_options, s), ours, options.tune)
    stack.callback(farm.close)
    loops, mode = {"ours": farm, "theirs": peer}, "sync" if sync else "async"
    more = {"turn_s": options.turn, "setting": common.describe(setting), "our_setting": common.describe(our_setting),
            "settings_tried": tried, "our_settings_tried": our_tried}  # fmt: skip
    wall, cpu = targets[2:4] if sync else targets[:2]
    taken = python_turns.take_turns(loops, options.rounds, options.turn)
    found = python_turns.results(f"python_{name}_{mode}", taken, REFERENCE, wall, cpu, **more)
    if sync and targets[4]:
        taken = python_turns.take_turns(loops, options.rounds, options.turn, busy=True)
        found += python_turns.results(f"python_{name}_sync_busy", taken, f"{REFERENCE}, a busy program beside both", targets[4], None, **more)
    return found


def compare_one(stack, options):
    """recv and send of one environment: CPU time of both together."""
    loops = {"ours": Farm("native/cartpole", {}, {"num_envs": 1}),
             "theirs": envpool_farm.Pool("CartPole-v1", {}, {"num_envs": 1, "batch_size": 1, "num_threads": 1})}  # fmt: skip
    for loop in loops.values():
        stack.callback(loop.close)
    taken = python_turns.take_turns(loops, options.rounds, options.turn)
    return python_turns.results("python_one_environment", taken, REFERENCE, None, 0.25)


def compare_consumer(stack, build, name, width, target, options):
    """Views of a pool against our C consumer, which has the same lanes: two of an actor."""
    env = TASKS[name][0].replace("-v4", "-v5")
    farm = Farm(env, {}, {"num_envs": 2 * width * common.cpus(), "batch_size": width})
    stack.callback(farm.close)
    consumer, ours, theirs = Consumer(build, env), [], []
    for _ in range(options.rounds):
        ours.append(python_turns.turn(farm, options.turn)[0])
        theirs.append(consumer.rate(1))
    return [python_turns.result(f"python_{name}_over_c", "steps/s", "higher", ours, theirs, "our C consumer", target)]


def parts(build, options):
    for name in TASKS:
        for sync in (False, True):
            yield f"{name}_{'sync' if sync else 'async'}", lambda stack, name=name, sync=sync: compare(stack, name, sync, options)
    yield "one_environment", lambda stack: compare_one(stack, options)
    yield "pong_over_c", lambda stack: compare_consumer(stack, build, "pong", 8, 0.97, options)
    yield "halfcheetah_over_c", lambda stack: compare_consumer(stack, build, "halfcheetah", 32, 0.9, options)


def main():
    options = common.parse_arguments(__doc__, 20.0, 7)
    build = os.path.abspath(options.build)
    options.turn = max(0.7 * options.seconds / (2 * options.rounds), common.LEAST_TURN_S)
    options.tune = max(0.3 * options.seconds / 12, 0.3)
    python_turns.add_farm(build)
    envpool_farm.load_qt()
    return python_turns.run(options, build, parts(build, options))


if __name__ == "__main__":
    sys.exit(main())
