"""envpool/ID against EnvPool 1.2.5 itself, at its best of all settings: the same engines and options in farm fps and in EnvPool's recv and send.

# peer: envpool
Without --only: MiniGrid, HalfCheetah, dm_control, 10 s each. --only envpool_lane takes all, with --seconds 60 for figures to keep; --verify
plays 2,000 steps of each beside a plain loop instead, with the same seeds and actions, and fails if an observation, reward or end differs.
"""

import os
import sys
import unittest

import common
import envpool_farm
import numpy as np

# name: (id, options, environments a core that a batch may have, loads quickly)
TASKS = {
    "minigrid": ("MiniGrid-DoorKey-8x8-v0", {}, (32, 128, 512), True),
    "halfcheetah": ("HalfCheetah-v4", {}, (8, 32, 128), True),
    "cheetah_run": ("CheetahRun-v1", {}, (8, 32, 128), True),
    "pong": ("Pong-v5", {}, (1, 4, 8), False),
    "d1_basic": ("D1Basic-v1", {"use_combined_action": True}, (1, 4, 8), False),
    "football": ("gfootball/academy_empty_goal_close-v1", {}, (1, 4), False),
}
TARGET = 0.97


class Direct(envpool_farm.Loop):
    """EnvPool's own send and recv, without its conversions to Gymnasium's form."""

    def __init__(self, task, options, setting):
        import envpool

        pool = envpool.make_gymnasium(task, seed=1, **options, **setting)
        self.keys, self.dtype = list(pool._state_keys), pool._spec._action_spec[-1][0]
        self.places = [self.keys.index(key) for key in ("reward", "done", "trunc", "info:env_id")]
        self.seen = next(place for place, key in enumerate(self.keys) if key.startswith("obs"))
        self.pool, batch = pool, setting["batch_size"]
        space = pool.action_space
        if hasattr(space, "n"):
            actions = envpool_farm.vector_env.discrete_actions(space.n, batch).astype(self.dtype)
        else:
            actions = np.random.default_rng(1).uniform(space.low, space.high, (envpool_farm.vector_env.ACTION_ROWS, batch, *space.shape)).astype(self.dtype)
        observation = pool.spec.state_array_spec[self.keys[self.seen]]
        envpool_farm.vector_env.Loop.__init__(self, actions, [size for size in observation.shape if size != -1], observation.dtype)
        pool._reset(np.arange(setting["num_envs"], dtype=np.int32))
        self.start(setting["num_envs"])

    def receive(self):
        state = self.pool._recv()
        rewards, done, truncated, env = (state[place] for place in self.places)
        return state[self.seen], rewards, done, truncated, env

    def send(self, actions, token):
        self.pool._send([token, token, actions])

    def close(self):
        self.pool = None


def settings_of(batches):
    """Synchronous and asynchronous, with as many threads as cores and one more, unbound and bound."""
    cores = common.cpus()
    found = envpool_farm.vector_env.asynchronous_settings(cores, [batch * cores for batch in batches])
    found += [{**setting, "num_threads": cores + 1} for setting in found[-4:]]
    return found + [{**setting, "thread_affinity_offset": 0} for setting in found[-6:-2]]


def comparisons(build):
    os.environ["FARM_PYTHON"] = sys.executable  # whose EnvPool has all its files
    for name, (task, options, batches, quick) in TASKS.items():
        if not quick and not any(word.startswith("--only") for word in sys.argv):
            continue
        flags = [word for key, value in options.items() for word in (f"--env.{key}", str(value).lower())]
        yield common.Comparison(
            name=f"envpool_lane_{name}", reference="EnvPool 1.2.5, recv and send", ours=common.farm_fps(build, f"envpool/{task}", *flags),
            open=lambda setting, task=task, options=options: Direct(task, options, setting), settings=settings_of(batches),
            delivers="NumPy arrays to Python", target=TARGET, alike="the same EnvPool, id and options",
        )  # fmt: skip


def verify(build):
    tests = os.path.join(os.path.dirname(__file__), "..", "..", "tests")
    sys.path[:0] = [os.path.join(build, "python"), os.path.join(tests, "python"), os.path.join(tests, "tools")]
    import envpool_loop

    for task, *_ in TASKS.values():
        seen = envpool_loop.compare(unittest.TestCase(), task)
        common.log(f"  {task}: 2,000 steps equal (flags {seen})")
    return 0


if __name__ == "__main__":
    if "--verify" in sys.argv:
        sys.exit(verify(os.path.abspath(next(word for word in sys.argv[1:] if not word.startswith("-")))))
    sys.exit(common.run(comparisons, __doc__, seconds=10.0, rounds=3))
