"""EnvPool 1.2.5: Atari, Procgen and MuJoCo through its Gymnasium interface, synchronous and asynchronous.

# peer: envpool
One frame per observation (stack_num=1): ours stacks frames where it reads them, so EnvPool need not stack.
"""

import ctypes
import os
import sys
import sysconfig

import common
import numpy as np
import vector_env

ATARI = "both: 4 frames per action, maximum of 2, 84x84 grey, one frame per observation, minimal actions, 30 no-ops, FIRE, life ends"


def load_qt():
    """Loads the system libraries of EnvPool's Procgen from the package PyQt5-Qt5."""
    folder = os.path.join(sysconfig.get_path("purelib"), "PyQt5", "Qt5", "lib")
    for name in ("libQt5Core.so.5", "libQt5Gui.so.5"):
        ctypes.CDLL(os.path.join(folder, name), ctypes.RTLD_GLOBAL)


class Loop(vector_env.Loop):
    """Of a pool with EnvPool's interface."""

    def __init__(self, pool, batch, num_envs):
        self.pool, space = pool, pool.action_space
        if hasattr(space, "n"):
            actions = vector_env.discrete_actions(space.n, batch)
        else:
            shape = (vector_env.ACTION_ROWS, batch, *space.shape)
            actions = np.random.default_rng(1).uniform(space.low, space.high, shape).astype(space.dtype)
        super().__init__(actions, pool.observation_space.shape, pool.observation_space.dtype)
        pool.async_reset()
        self.start(num_envs)

    def receive(self):
        observations, rewards, terminated, truncated, info = self.pool.recv()
        return observations, rewards, terminated, truncated, info["env_id"]

    def send(self, actions, token):
        self.pool.send(actions, token)

    def close(self):
        self.pool.close()


class Pool(Loop):
    def __init__(self, task, options, setting):
        import envpool  # after load_qt

        super().__init__(envpool.make_gymnasium(task, seed=1, **options, **setting), setting["batch_size"], setting["num_envs"])


def comparison(build, name, env, task, options, batches, target, delivers, alike, ours=()):
    def open_pool(setting):
        return Pool(task, options, setting)

    cores = common.cpus()
    settings = vector_env.asynchronous_settings(cores, [batch * cores for batch in batches])
    settings += [{**settings[-1], "thread_affinity_offset": 0}]
    return common.Comparison(
        name=name, reference="EnvPool 1.2.5", ours=common.farm_fps(build, env, *ours), open=open_pool,
        settings=settings, delivers=f"NumPy arrays to Python ({delivers})", target=target, alike=alike,
    )


def comparisons(build):
    load_qt()
    grey = "1x84x84 bytes"
    atari = {"stack_num": 1, "episodic_life": True}
    batches = (1, 4, 8)
    yield comparison(build, "envpool_pong", "ale/Pong", "Pong-v5", atari, batches, 1.25, grey, ATARI)
    yield comparison(build, "envpool_breakout", "ale/Breakout", "Breakout-v5", atari, batches, 1.25, grey, ATARI)
    procgen = {"channel_first": False, "num_levels": 0}
    yield comparison(
        build, "envpool_bigfish", "procgen/bigfish", "BigfishHard-v0", procgen, (4, 16, 32), 1.5, "64x64x3 bytes",
        "both: hard, all levels", ("--env.distribution_mode", "hard", "--env.num_levels", "0"),
    )
    yield comparison(
        build, "envpool_halfcheetah", "mujoco/HalfCheetah-v4", "HalfCheetah-v4", {}, (4, 16, 64), 1.7, "17 doubles",
        "both: 5 simulator steps per action, 1000 steps per episode",
    )


if __name__ == "__main__":
    sys.exit(common.run(comparisons, __doc__))
