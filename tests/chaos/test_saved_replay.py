"""kill -9 of a farm that saves its replay: the learner, an actor, the supervisor or all at once, at random moments. --resume then goes on
from the newest pair. A few kills as a test; `test_saved_replay.py --kills 1000` prints a line of JSON."""

import argparse
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools"))
from running import FARM, blocks, children, state, wait_until  # noqa: E402

KINDS = ("learner", "actor 0", "train", "all")


def start(run):
    command = ["train", "--algo", "dqn", "--env", "native/catch", "--run", run, "--resume", "auto", "--actors", "2", "--replay", "20k", "--replay-start", "1k"]
    more = ["--frames", "100G", "--checkpoint-every", "1", "--checkpoints-keep", "3"]
    with open(run.with_name("said"), "a", encoding="utf-8") as said:
        return subprocess.Popen([FARM, *command, *more], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said)


def kill(process, kind):
    """Kills this process, or all; the others end with the supervisor. False: it does not run at the moment."""
    workers = children(process.pid)
    if kind in ("learner", "actor 0") and kind not in workers:
        return False
    for pid in workers.values() if kind == "all" else [workers[kind]] if kind in workers else []:
        os.kill(pid, signal.SIGKILL)
    if kind in ("train", "all"):
        process.kill()
        process.wait()
        assert wait_until(lambda: all(state(pid) == "Z" for pid in workers.values()))
    return True


def kill_farms(kills, chance):
    """What was killed how often, and how many pairs were resumed from."""
    killed, resumed = dict.fromkeys(KINDS, 0), []
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder, "run")
        process = start(run)
        try:
            while sum(killed.values()) < kills:
                kind = chance.choice(KINDS)
                time.sleep(chance.random() * (2 if kind in ("train", "all") else 0.5))
                if blocks(process.pid, signal.SIGUSR1):
                    process.send_signal(signal.SIGUSR1)  # a save begins
                    time.sleep(chance.random() * 0.1)
                assert process.poll() is None, run.with_name("said").read_text()
                if not kill(process, kind):
                    continue
                killed[kind] += 1
                if process.poll() is not None:
                    process = start(run)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)
        said = run.with_name("said").read_text()
        assert "skipped" not in said and "corrupt" not in said and "not saved" not in said, said
        resumed = [int(frames) for frames in re.findall(r"going on from \S+/(\d+)\.safetensors", said)]
        assert resumed == sorted(resumed), resumed
        return killed, len(resumed)


class SavedReplay(unittest.TestCase):
    def test_the_newest_pair_loads_after_any_kill(self):
        killed, resumed = kill_farms(8, random.Random(5))
        self.assertGreater(resumed, 0)
        print(f"covered: {sum(killed.values())} kills in a farm that saves its replay, {resumed} times resumed")


def main():
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--kills", type=int, default=1000)
    flags.add_argument("--seed", type=int, default=time.time_ns())
    options = flags.parse_args()
    begin = time.monotonic()
    killed, resumed = kill_farms(options.kills, random.Random(options.seed))
    commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    line = {"schema_version": 1, "benchmark": "saved_replay_kills", "commit": commit, "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "command": "tests/chaos/test_saved_replay.py " + " ".join(sys.argv[1:]), "seed": options.seed,
            "wall_s": time.monotonic() - begin, "kills": killed, "resumed": resumed, "violations": 0}  # fmt: skip
    print(json.dumps(line))


if __name__ == "__main__":
    main() if {"--kills", "--help"} & {*sys.argv} else unittest.main()
