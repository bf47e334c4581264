"""Uses the installed package as a stranger would: reads nothing outside its environment and the current folder."""

import subprocess
import sys

import actorfarm
import numpy


def farm(*words):
    return subprocess.run(["farm", *words], check=True, stdout=subprocess.PIPE, text=True, timeout=120).stdout


def train(env, *words):
    farm("train", "--env", env, "--run", env.replace("/", "-"), "--quiet", *words)
    print("  USE  ", farm("--version").strip(), "by", sys.version.split()[0] + ":", env)


def loop():
    """Random actions for CartPole: steps are counted, and views outlive the pool."""
    with actorfarm.make("native/cartpole", num_envs=32, batch_size=16, seed=1) as env:
        env.async_reset()
        kept, ends = [], 0
        for _ in range(500):
            obs, reward, terminated, truncated, info = env.recv()
            kept, ends = [*kept[-3:], obs], ends + int((terminated | truncated).sum())
            env.send(numpy.random.randint(2, size=len(reward)), info["env_id"])
    assert ends > 100 and all(obs.shape == (16, 4) and abs(obs).max() > 0 for obs in kept), ends
    print("  USE   a loop of", actorfarm.make.__module__)


if "extras" in sys.argv:
    train("ale/Pong", "--frames", "10k", "--actors", "1")
    train("mujoco/HalfCheetah-v5", "--frames", "10k", "--actors", "1")
else:
    assert "native/cartpole" in farm("envs")
    loop()
    train("native/catch", "--seconds", "1")
    train("gym/CartPole-v1", "--frames", "20k", "--actors", "1")
