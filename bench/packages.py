#!/usr/bin/env python3
"""Installs third-party packages of Gymnasium environments and tries what plays: the table of docs/ENVIRONMENTS.md.

usage: bench/packages.py BUILD FOLDER [PACKAGE...]     the named PACKAGES below; without names all (some 1.5 GB from PyPI)

Each gets a Python of its own in FOLDER, made once, which sees BUILD/venv below its own packages. An id is tried by `farm envs`, `farm
train` for TRAIN_S seconds and `farm eval` of a game, without keys, then with each set of keys of its row until one plays; the first of a
package by `farm doctor` too.
After each command the processes and /dev/shm entries that it left are counted, and removed. bench/results/packages.json keeps the rows.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time

from peers.common import commit

HERE = os.path.dirname(os.path.abspath(__file__))
RESULTS = os.path.join(HERE, "results", "packages.json")
TABLE = os.path.join(HERE, "..", "docs", "ENVIRONMENTS.md")
MARK = f"FARM_PACKAGES_MARK={os.getpid()}"
TRAIN_S, START_S, LIMIT_S = 10, 240, 300

# name: (what pip installs, module to import, {id: [keys to try after none, ...]})
FLAT, SCALAR = "--env.flatten true", "--wrap mo_gymnasium.wrappers:LinearReward"
PACKAGES = {
    "minigrid": ("minigrid", "minigrid", {"MiniGrid-Empty-5x5-v0": [], "MiniGrid-DoorKey-6x6-v0": [], "MiniGrid-MemoryS7-v0": []}),
    "BabyAI": ("minigrid", "minigrid", {"BabyAI-GoToRedBall-v0": [], "BabyAI-BossLevel-v0": []}),
    "vizdoom": ("vizdoom", "vizdoom.gymnasium_wrapper", {
        "VizdoomBasic-v1": [], "VizdoomBasic-MultiBinary-v1": [], "VizdoomBasicAudio-v1": [], "VizdoomBasicNotifications-v1": [],
        "VizdoomDeathmatch-v1": ["--env.max_buttons_pressed 1"]}),
    "highway-env": ("highway-env", "highway_env", {
        "highway-v0": [], "intersection-v1": [], "parking-v0": [], "racetrack-v0": [], "roundabout-v0": []}),
    "metaworld": ("metaworld", "metaworld", {
        "Meta-World/MT1": ["--env.env_name reach-v3"], "Meta-World/goal_hidden": ["--env.env_name push-v3 --env.seed 1"],
        "Meta-World/MT10": ["--env.autoreset_mode NextStep --lanes 1 --envs-per-actor 10"]}),
    "gymnasium-robotics": ("gymnasium-robotics mujoco==3.3.0", "gymnasium_robotics", {
        "FetchReach-v4": [], "HandReach-v3": [], "PointMaze_UMaze-v3": [], "AdroitHandDoor-v1": [], "FrankaKitchen-v1": [FLAT]}),
    "dm_control": ("shimmy[dm-control]", "shimmy", {
        "dm_control/cartpole-balance-v0": [], "dm_control/cheetah-run-v0": [], "dm_control/humanoid-stand-v0": [],
        "dm_control/reach_site_features-v0": [FLAT]}),
    "flappy-bird-gymnasium": ("flappy-bird-gymnasium", "flappy_bird_gymnasium", {"FlappyBird-v0": []}),
    "mo-gymnasium": ("mo-gymnasium", "mo_gymnasium", {
        "mo-mountaincar-v0": [SCALAR], "deep-sea-treasure-v0": [SCALAR], "mo-reacher-v5": [SCALAR], "minecart-v0": [SCALAR]}),
}  # fmt: skip


def install(build, folder, pip):
    """A Python with the packages and with BUILD/venv's below them. -> its interpreter, the first package's version"""
    own = os.path.join(folder, "bin", "python")

    def python(interpreter, *arguments):
        return subprocess.run([interpreter, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()

    if not os.path.exists(os.path.join(folder, "done")):
        python(os.path.join(build, "venv", "bin", "python"), "-m", "venv", folder)
        below, above = (python(at, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))") for at in (os.path.join(build, "venv", "bin", "python"), own))
        with open(os.path.join(above, "below.pth"), "w") as path:
            print(below, file=path)
        python(own, "-m", "pip", "install", "-q", "--disable-pip-version-check", *pip.split())
        open(os.path.join(folder, "done"), "w").close()
    return own, python(own, "-c", f"import importlib.metadata; print(importlib.metadata.version('{re.match('[^ []*', pip)[0]}'))")


def marked():
    """Live processes of a command, also those with another parent by now: its mark is in their environment."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as environment, open(f"/proc/{pid}/stat") as stat:
                if MARK.encode() in environment.read().split(b"\0") and stat.read().rpartition(")")[2].split()[0] != "Z":
                    found.append(int(pid))
        except OSError:
            pass
    return found


def farm(build, python, *arguments):
    """-> exit status, stdout, last line of stderr, what is left: [processes, /dev/shm entries]"""
    before, environment = set(os.listdir("/dev/shm")), {**os.environ, "FARM_PYTHON": python, **dict([MARK.split("=")])}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen([os.path.join(build, "farm"), *arguments], stdout=out, stderr=err, env=environment)
        try:
            status = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
            print(f"farm {arguments[0]} did not end in {LIMIT_S} s", file=err)
        time.sleep(0.5)
        left, entries = marked(), set(os.listdir("/dev/shm")) - before
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        for entry in entries:
            os.unlink(os.path.join("/dev/shm", entry))
        out.seek(0), err.seek(0)
        return status, out.read(), err.read().strip().split("\n")[-1], [len(left), len(entries)]


def attempt(build, python, env, keys, checked):
    """-> a result of a row: what played or was refused, by which command, and the most that a command left. checked: by doctor too"""
    flags, left = shlex.split(keys), [0, 0]
    shape = flags.index("--lanes") if "--lanes" in flags else len(flags)  # last in its row: train and eval take it
    flags, small = flags[:shape], ["--actors", "1", *(flags[shape:] or ["--envs-per-actor", "4"]), "--quiet"]
    patient = ["--start-seconds", str(START_S)]  # also on a loaded machine
    options = [(key, value) for key, value in zip(flags[::2], flags[1::2]) if key.startswith("--env.")]
    with tempfile.TemporaryDirectory() as folder:
        run = os.path.join(folder, "run")
        for command in (
            ["envs", env, *flags, *patient],
            ["train", "--env", env, *flags, "--seconds", str(TRAIN_S), "--unroll", "5", "--run", run, "--json", *small, *patient],
            ["eval", run, "--episodes", "1", *small, *patient],
            ["doctor", env, *(word for key, value in options for word in ("--option", f"{key[6:]}={value}")), "--steps", "20", "--check", "runs"],
        ):
            if command[0] == "doctor" and not checked:
                break
            status, out, said, still = farm(build, python, *command)
            left = [max(pair) for pair in zip(left, still)]
            if command[0] == "train" and status == 0 and not json.loads(out)["frames"]:
                said = f"no step in {TRAIN_S} s"
            elif status == 0 or command[0] == "doctor":
                continue
            return {"keys": keys, "plays": False, "command": command[0], "said": said.partition(env)[2].lstrip(": ") or said, "left": left}
    return {"keys": keys, "plays": True, "left": left}


def trials(build, folder, name):
    pip, module, ids = PACKAGES[name]
    python, version = install(build, os.path.join(folder, pip.split()[0]), pip)
    rows = []
    for id, more in ids.items():
        for keys in ["", *more]:
            result = {"env": f"gym/{module}:{id}", "commit": commit(build), **attempt(build, python, f"gym/{module}:{id}", keys, not rows)}
            print(json.dumps(result), flush=True)
            if result["plays"]:
                break
        rows.append(result)
    return {"pip": pip, "version": version, "environments": rows}


def table(results):
    lines = ["| Package | `--env` | Keys | Plays | Version of farm |", "| --- | --- | --- | --- | --- |"]
    for name, found in results.items():
        for i, row in enumerate(found["environments"]):
            package = "" if i else f"{name} {found['version']} (`{found['pip']}`)"
            said = "yes" if row["plays"] else f"`farm {row['command']}`: {re.sub('[|]', '/', row['said'])}"
            left = ". Left {} processes, {} segments".format(*row["left"]) if any(row["left"]) else ""
            lines.append(f"| {package} | `{row['env']}` | {row['keys'] and '`' + row['keys'] + '`'} | {said}{left} | {row['commit'][:12]} |")
    return lines


def main(build, folder, *names):
    results = {}
    if os.path.exists(RESULTS):
        with open(RESULTS, encoding="utf-8") as file:
            results = json.load(file)
    for name in names or PACKAGES:
        results[name] = trials(build, folder, name)
        with open(RESULTS, "w", encoding="utf-8") as file:
            print(json.dumps({name: results[name] for name in PACKAGES if name in results}, indent=1), file=file)
    with open(TABLE, encoding="utf-8") as file:
        text = file.read()
    with open(TABLE, "w", encoding="utf-8") as file:
        file.write(re.sub(r"(<!-- packages: .*?-->\n).*?(<!-- end -->)", lambda mark: mark[1] + "\n".join(table(results)) + "\n" + mark[2], text, flags=re.S))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
