"""Gymnasium's AsyncVectorEnv (a process per environment) around ALE with Gymnasium's AtariPreprocessing.

# peer: gymnasium
"""

import sys

import ale_py
import common
import gymnasium
import vector_env
from gymnasium.wrappers import AtariPreprocessing


def make_pong():
    import cv2

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    cv2.setNumThreads(1)  # there is a process per environment
    gymnasium.register_envs(ale_py)
    env = gymnasium.make("ale_py:ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0)
    return AtariPreprocessing(env, noop_max=30, frame_skip=4, screen_size=84)


class Vector(vector_env.Loop):
    def __init__(self, setting):
        makers = [make_pong] * setting["num_envs"]
        self.env = gymnasium.vector.AsyncVectorEnv(makers, shared_memory=True, copy=setting["copy"])
        actions = vector_env.discrete_actions(self.env.single_action_space.n, setting["num_envs"])
        super().__init__(actions, self.env.single_observation_space.shape, "uint8")
        self.env.reset(seed=1)
        self.env.step_async(actions[0])
        self.start(setting["num_envs"])

    def receive(self):
        observations, rewards, terminated, truncated, _ = self.env.step_wait()
        return observations, rewards, terminated, truncated, None

    def send(self, actions, token):
        self.env.step_async(actions)

    def close(self):
        self.env.step_wait()
        self.env.close()


def comparisons(build):
    cores = common.cpus()
    yield common.Comparison(
        name="gymnasium_async_pong", reference=f"Gymnasium {gymnasium.__version__} AsyncVectorEnv",
        ours=common.farm_fps(build, "ale/Pong"), open=Vector,
        settings=[{"num_envs": envs * cores, "copy": False} for envs in (1, 2, 4, 8)],
        delivers="NumPy arrays in shared memory to Python (84x84 bytes)",
        alike="both: 4 frames per action, maximum of 2, 84x84 grey, one frame per observation, 30 no-ops; the same emulator",
    )


if __name__ == "__main__":
    sys.exit(common.run(comparisons, __doc__))
