"""Prints tests/vectors/cartpole_vectors.h: episodes of Gymnasium's CartPole-v1, every state in full.

Usage: python make_cartpole.py > cartpole_vectors.h      (needs gymnasium; made with 1.2.0)

Each episode starts where Gymnasium's own reset puts it (or near a limit) and ends when Gymnasium says terminated. A
state is four f64 as hexadecimal floats, so that nothing is lost in print.
"""

import gymnasium
import numpy as np

env = gymnasium.make("CartPole-v1").unwrapped
rng = np.random.default_rng(7)
# Position, velocity, angle, angular velocity; None: Gymnasium's reset. Random pushes, or always to one side.
STARTS = [(None, "random"), (None, "right"), (None, "left"), ((2.3, 0.9, 0.02, -0.3), "random"), ((-2.35, -0.4, -0.1, 0.8), "left")]


def row(state, action, terminated):
    numbers = ", ".join(float(x).hex() for x in state)
    return f"    {{{{{numbers}}}, {action}, {int(terminated)}}},"


print("// Made by make_cartpole.py from Gymnasium's CartPole-v1: each row is the state after `right` was pushed (or not),")
print("// and whether Gymnasium ended the episode there. A row with right = -1 starts an episode.")
print("static const struct {\n    double state[4];\n    int right, terminated;\n} cartpole_rows[] = {")
for seed, (start, pushes) in enumerate(STARTS):
    env.reset(seed=seed)
    if start is not None:
        env.state = np.array(start, dtype=np.float64)
    print(row(env.state, -1, False))
    for _ in range(40):
        right = {"random": int(rng.integers(2)), "right": 1, "left": 0}[pushes]
        _, reward, terminated, _, _ = env.step(right)
        assert reward == 1.0
        print(row(env.state, right, terminated))
        if terminated:
            break
print("};")
