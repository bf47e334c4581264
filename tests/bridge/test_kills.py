"""kill -9 of every kind of process on either side of a bridge, on loopback: both nodes continue every time, and the final figures are
complete. Eight kills as a test; `test_kills.py --kills 1000 --record FILE` adds a line to FILE."""

import argparse
import collections
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools"))
from running import FARM, children, wait_until  # noqa: E402

KILLS_A_FARM = 60  # then a new farm, so that no worker's short lives count as a crash loop
NODES = ("a", "b")
STOPPED = ("hub", "node's bridge", "learner", "actor", "train")


class Farm:
    """A learner without local actors, and two nodes of two actors each, which infer in every second farm, by chance: then node b gets the
    parameters from node a's cache."""

    def __init__(self, folder, chance):
        self.folder, self.chance, self.killed = pathlib.Path(folder), chance, collections.Counter()
        self.inference = chance.choice(("central", "local"))
        self.key, self.run = self.folder / "key", self.folder / "run"
        subprocess.run([FARM, "bridge", "keygen", self.key], check=True, stdout=subprocess.DEVNULL)
        with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
            self.port, self.cache = (probe.getsockname()[1] for probe in (one, other))
        self.train, self.nodes = self.start_train(), {name: self.start_node(name) for name in NODES}

    def start(self, name, *command):
        out, err = (open(self.folder / f"{name}.{kind}", "ab") for kind in ("out", "err"))
        return subprocess.Popen([FARM, *command], stdin=subprocess.DEVNULL, stdout=out, stderr=err)

    def start_train(self, *more):
        return self.start(
            "train", "train", "--env", "native/catch", "--inference", self.inference, "--fan-out", "1", "--actors", "0", "--expect-actors", "4", "--listen", f"127.0.0.1:{self.port}",
            "--key", self.key, "--run", self.run, "--checkpoint-every", "1", "--metrics-every", "0.2", "--frames", "0", "--seconds", "0", "--json", *more,
        )

    def start_node(self, name):
        cache = ("--cache", f"127.0.0.1:{self.cache}") if name == NODES[0] else ()
        return self.start(f"node-{name}", "bridge", "--connect", f"127.0.0.1:{self.port}", "--key", f"{self.key}.node", "--actors", "2", "--json", *cache)

    def rates(self, since=0):
        """Steps a second of the connected nodes, as written after `since`."""
        path = self.run / "bridge.json"
        try:
            nodes = json.loads(path.read_text())["nodes"] if path.stat().st_mtime > since else []
        except (OSError, ValueError):
            return []
        return [node["env_steps_per_s"] for node in nodes if node["state"] == "connected" and node["env_steps_per_s"] > 0]

    def continues(self):
        """Whether both nodes send steps and the learner trains on them."""
        before, now = self.metric("updates"), time.time()
        return wait_until(lambda: len(self.rates(now)) == len(NODES) and self.metric("updates") != before)

    def metric(self, key):
        """As in the last line of metrics; None before the first."""
        try:
            return json.loads((self.run / "metrics.jsonl").read_bytes().splitlines()[-1])[key]
        except (OSError, IndexError, ValueError):
            return None

    def pid_of(self, kind, name):
        of_train, of_node = children(self.train.pid), children(self.nodes[name].pid)
        actors = [pid for worker, pid in of_node.items() if worker.startswith("actor")]
        return {
            "learner": of_train.get("learner"), "hub": of_train.get("bridge"), "node's bridge": of_node.get("bridge"),
            "actor": self.chance.choice(actors) if actors else None, "node": self.nodes[name].pid, "train": self.train.pid,
        }[kind]

    def stop_one(self, kind, seconds):
        """A stopped process of a node stops that node only."""
        pid = self.pid_of(kind, NODES[0])
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        if kind in ("node's bridge", "actor"):
            assert self.rates(), f"the other node stands still while {kind} is stopped"
        os.kill(pid, signal.SIGCONT)
        assert self.continues(), f"the nodes stand still after {kind} was stopped for {seconds} s"

    def kill_one(self):
        kind = self.chance.choice(["learner", "hub", "node's bridge", "actor", "actor", "node"] + ["train"] * (self.chance.random() < 0.2))
        name = self.chance.choice(NODES)
        pid = self.pid_of(kind, name)
        try:
            os.kill(pid, signal.SIGKILL)
        except (TypeError, ProcessLookupError):  # no such process, or it just died with its parent
            return
        self.killed[kind] += 1
        if kind == "node":
            self.nodes[name].wait()
            self.nodes[name] = self.start_node(name)
        if kind == "train":
            self.train.wait()
            (self.run / "bridge.json").unlink(missing_ok=True)  # it says that both nodes are connected
            self.train = self.start_train("--resume")

    def end(self):
        """The final document of the last `farm train`."""
        self.train.send_signal(signal.SIGTERM)
        statuses = [process.wait(timeout=30) for process in (self.train, *self.nodes.values())]
        assert statuses == [0] * len(statuses), statuses
        text = (self.folder / "train.out").read_text()
        return json.JSONDecoder().raw_decode(text[text.rindex("{\n  \"schema") :])[0]

    def kill_all(self):
        for process in (self.train, *self.nodes.values()):
            process.kill()
            process.wait()


def kill_in_one_farm(kills, chance, stop_s=0):
    with tempfile.TemporaryDirectory() as folder:
        farm = Farm(folder, chance)
        try:
            assert farm.continues(), "the farm does not start"
            assert wait_until(lambda: any(farm.run.glob("checkpoints/*.safetensors"))), "no checkpoint"  # else --resume finds none
            for kind in STOPPED if stop_s else ():
                farm.stop_one(kind, stop_s)
            while farm.killed.total() < kills:
                for _ in range(chance.choice((1, 1, 2, 3))):  # also several at once
                    farm.kill_one()
                time.sleep(chance.random() * 0.3)
                if chance.random() < 0.3:
                    assert farm.continues(), f"the nodes stand still after {dict(farm.killed)}"
            assert farm.continues(), f"the nodes stand still after {dict(farm.killed)}"
            assert wait_until(lambda: (farm.metric("return_mean") or -1) > 0.5), "the farm does not learn"
            account = farm.end()
            assert account["error"] is None and account["bad_values"] == 0, account
            return collections.Counter({f"{kind}, {farm.inference}": count for kind, count in farm.killed.items()}), account["agent_steps"]
        except BaseException:
            print(f"---- inference {farm.inference}")
            for log in sorted(pathlib.Path(folder).glob("*.err")):
                print(f"---- {log.name}", *log.read_text(errors="replace").splitlines()[-12:], sep="\n")
            raise
        finally:
            farm.kill_all()


class Kills(unittest.TestCase):
    def test_both_nodes_continue_after_any_kill(self):
        killed, steps = kill_in_one_farm(8, random.Random(time.time_ns()))
        print(f"covered: {killed.total()} kills around a bridge, {steps} steps")


def main():
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--kills", type=int, default=1000)
    flags.add_argument("--seed", type=int, default=time.time_ns())
    flags.add_argument("--stop-s", type=float, default=0, help="first stop each kind of process (SIGSTOP) for S seconds")
    flags.add_argument("--record", help="add a line of JSON to this file")
    options = flags.parse_args()
    chance, killed, steps, start = random.Random(options.seed), collections.Counter(), 0, time.monotonic()
    while killed.total() < options.kills:
        stop_s = 0 if killed else options.stop_s
        more, played = kill_in_one_farm(min(KILLS_A_FARM, options.kills - killed.total()), chance, stop_s)
        killed, steps = killed + more, steps + played
        print(f"{killed.total()} kills, {dict(killed)}, {steps} steps", flush=True)
    if options.record:
        commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True).stdout.strip()
        line = {
            "schema_version": 1, "benchmark": "bridge_kills", "commit": commit, "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "command": "tests/bridge/test_kills.py " + " ".join(sys.argv[1:]), "seed": options.seed, "wall_s": time.monotonic() - start,
            "stopped_for_s": {kind: options.stop_s for kind in STOPPED if options.stop_s}, "kills": dict(killed), "agent_steps": steps, "violations": 0,
        }
        with open(options.record, "a", encoding="utf-8") as out:
            out.write(json.dumps(line) + "\n")


if __name__ == "__main__" and any(flag in sys.argv for flag in ("--kills", "--record", "--help")):
    main()
