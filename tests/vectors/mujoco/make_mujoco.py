"""Writes tests/vectors/mujoco/tasks.bin: what Gymnasium's MuJoCo tasks answer from a given state to given actions.

Usage: python make_mujoco.py tasks.bin      (needs gymnasium and mujoco; made with 1.4.0 and 3.17.0, on x86-64)

Little-endian, no padding: u32 number of cases, then a case each: name[40], options[160] ("key=value key=value"), u32 nq,
nv, nu, numbers observed, steps, stride; f64 qpos[nq], qvel[nv]; f32 observation there; then for each step f32
action[nu], f32 reward, u32 terminated, and f32 observation where the step's number from 1 on is a multiple of stride.
The case goes on after the task has ended.
"""

import os
import struct
import sys
import tempfile

import gymnasium
import mujoco
import numpy as np

STEPS = 40
CASES = [
    *[(f"{robot}-v{version}", {})
      for robot in ("HalfCheetah", "Hopper", "Walker2d", "Ant", "Humanoid", "HumanoidStandup", "Swimmer", "Reacher", "Pusher",
                    "InvertedPendulum", "InvertedDoublePendulum")
      for version in (4, 5) if (robot, version) != ("Pusher", 4)],
    ("Ant-v4", {"use_contact_forces": True, "contact_force_range": (-5.0, 20.0), "exclude_current_positions_from_observation": False}),
    ("Ant-v5", {"include_cfrc_ext_in_observation": False, "main_body": 3, "frame_skip": 3, "healthy_z_range": (0.5, 0.6)}),
    ("Hopper-v4", {"terminate_when_unhealthy": False, "healthy_reward": 2.5, "exclude_current_positions_from_observation": False}),
    ("Hopper-v5", {"terminate_when_unhealthy": False, "healthy_state_range": (-1.5, 1.5), "ctrl_cost_weight": 0.5}),
]


def as_text(value):
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def case(name, options, rng):
    env = gymnasium.make(name, **options).unwrapped
    env.reset(seed=int(rng.integers(1 << 30)))
    model, data = env.model, env.data
    qpos, qvel = data.qpos.copy(), data.qvel + rng.normal(0, 3.0, model.nv)  # some velocities beyond where they are clipped
    if name.startswith("Inverted"):
        qvel *= 0.1
    mujoco.mj_resetData(model, data)
    env.set_state(qpos, qvel)
    obs = env._get_obs()
    stride = 1 if len(obs) <= 50 else 10
    text = " ".join(f"{key}={as_text(value)}" for key, value in options.items())
    out = [struct.pack("<40s160s6I", f"mujoco/{name}".encode(), text.encode(), model.nq, model.nv, model.nu, len(obs), STEPS, stride),
           qpos.astype("<f8").tobytes(), qvel.astype("<f8").tobytes(), obs.astype("<f4").tobytes()]
    for step in range(1, STEPS + 1):
        action = rng.uniform(env.action_space.low, env.action_space.high).astype(np.float32)
        obs, reward, terminated, _, _ = env.step(action)
        out += [action.astype("<f4").tobytes(), struct.pack("<fI", reward, bool(terminated))]
        if step % stride == 0:
            out.append(obs.astype("<f4").tobytes())
    env.close()
    return b"".join(out)


path = os.path.abspath(sys.argv[1])
os.chdir(tempfile.mkdtemp())  # MuJoCo leaves a log file
random = np.random.default_rng(5)
with open(path, "wb") as file:
    file.write(struct.pack("<I", len(CASES)) + b"".join(case(name, options, random) for name, options in CASES))
