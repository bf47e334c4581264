"""Writes cartpole.bin: episodes of Gymnasium's CartPole-v1, every state in full.

Run in this folder; needs gymnasium (made with 1.2.0). Each episode starts where Gymnasium's own reset puts it (or near
a limit) and ends when Gymnasium says terminated. A row: the state, four f64, after `right` was pushed (or not), int32
(-1: it starts an episode), and whether Gymnasium ended the episode there, int32.
"""

import struct

import gymnasium
import numpy as np

env = gymnasium.make("CartPole-v1").unwrapped
rng = np.random.default_rng(7)
# Position, velocity, angle, angular velocity; None: Gymnasium's reset. Random pushes, or always to one side.
STARTS = [(None, "random"), (None, "right"), (None, "left"), ((2.3, 0.9, 0.02, -0.3), "random"), ((-2.35, -0.4, -0.1, 0.8), "left")]

with open("cartpole.bin", "wb") as out:
    for seed, (start, pushes) in enumerate(STARTS):
        env.reset(seed=seed)
        if start is not None:
            env.state = np.array(start, dtype=np.float64)
        out.write(struct.pack("<4d2i", *env.state, -1, False))
        for _ in range(40):
            right = {"random": int(rng.integers(2)), "right": 1, "left": 0}[pushes]
            _, reward, terminated, _, _ = env.step(right)
            assert reward == 1.0
            out.write(struct.pack("<4d2i", *env.state, right, terminated))
            if terminated:
                break
