"""ALE's vector environment (AtariVectorEnv of ale-py), synchronous and asynchronous.

# peer: ale
One frame per observation (stack_num=1): ours stacks frames where it reads them.
"""

import sys

import ale_py
import common
import vector_env
from ale_py.vector_env import AtariVectorEnv


class Vector(vector_env.Loop):
    def __init__(self, setting):
        options = {"stack_num": 1, "noop_max": 30, "use_fire_reset": True, "episodic_life": True}
        self.env = AtariVectorEnv("pong", **options, **setting)
        actions = vector_env.discrete_actions(self.env.single_action_space.n, setting["batch_size"])
        super().__init__(actions, self.env.single_observation_space.shape, "uint8")
        self.env.reset(seed=1)  # delivers the first batch
        self.env.send(actions[0])
        self.start(setting["num_envs"])

    def receive(self):
        observations, rewards, terminated, truncated, _ = self.env.recv()
        return observations, rewards, terminated, truncated, None

    def send(self, actions, token):
        self.env.send(actions)  # to the environments of the last recv, in its order

    def close(self):
        self.env.close()


def comparisons(build):
    cores = common.cpus()
    settings = vector_env.asynchronous_settings(cores, [cores, 4 * cores, 8 * cores])
    settings += [{**settings[-1], "thread_affinity_offset": 0}]
    yield common.Comparison(
        name="ale_vector_pong", reference=f"AtariVectorEnv (ale-py {ale_py.__version__})",
        ours=common.farm_fps(build, "ale/Pong"), open=Vector, settings=settings,
        delivers="NumPy arrays to Python (1x84x84 bytes)",
        alike="both: 4 frames per action, maximum of 2, 84x84 grey, one frame per observation, 30 no-ops, FIRE; the same emulator",
    )


if __name__ == "__main__":
    sys.exit(common.run(comparisons, __doc__))
