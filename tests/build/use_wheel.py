"""Uses the installed package as a stranger would: reads nothing outside its environment and the current folder."""

import subprocess
import sys

import actorfarm._farm  # noqa: F401


def farm(*words):
    return subprocess.run(["farm", *words], check=True, stdout=subprocess.PIPE, text=True, timeout=120).stdout


def train(env, *words):
    farm("train", "--env", env, "--run", env.replace("/", "-"), "--quiet", *words)
    print("  USE  ", farm("--version").strip(), "by", sys.version.split()[0] + ":", env)


if "extras" in sys.argv:
    train("ale/Pong", "--frames", "10k", "--actors", "1")
    train("mujoco/HalfCheetah-v5", "--frames", "10k", "--actors", "1")
else:
    assert "native/cartpole" in farm("envs")
    train("native/catch", "--seconds", "1")
    train("gym/CartPole-v1", "--frames", "20k", "--actors", "1")
