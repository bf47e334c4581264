"""What a bridge and, by --confine, an environment may do, as the kernel reports it."""

import json
import os
import pathlib
import re
import shutil
import unittest

from running import FARM, SOURCE, InFolder, build_plugin, children, state, wait_until
from test_bridge_node import Node

SANITIZED = "/asan" in FARM or "/tsan" in FARM


def status(pid):
    return dict(re.findall(r"^(\w+):\s*(.*)$", pathlib.Path(f"/proc/{pid}/status").read_text(), re.M))


@unittest.skipIf(SANITIZED, "sanitizers need files, so bridges are not confined")
class Bridge(Node):
    def is_confined(self, process, log):
        pid = children(process.pid)["bridge"]
        keys = status(pid)
        self.assertEqual((keys["Seccomp"], keys["NoNewPrivs"], int(keys["CapEff"], 16), keys["Threads"]), ("2", "1", 0, "1"), self.said(log))

    def plays_and_starts_again(self, engines, address, killed):
        """Learner and node; the bridge of one is killed. The node's resolves names by a process that ends with it."""
        learner = self.learner("native/catch", "--bridge-engine", engines[0])
        port = (self.folder / "r/bridge.addr").read_text().rpartition(":")[2].strip()
        node = self.start("node", "bridge", "--connect", address.format(port), "--actors", "2", "--bridge-engine", engines[1])
        self.until_more()
        resolver = children(children(node.pid)["bridge"])["resolver"]
        self.assertEqual(sorted(os.listdir(f"/proc/{resolver}/fd")), ["0", "1", "2"])
        self.kill_and_await({"learner": learner, "node": node}[killed], "bridge")
        self.until_more(doing="its bridge is killed")
        self.is_confined(learner, "learner")
        self.is_confined(node, "node")
        self.end(learner, "learner")
        account = self.end(node, "node", by=None)
        self.assertEqual((account["sessions"], account["bridge_restarts"]), (1, int(killed == "node")))
        self.assertTrue(wait_until(lambda: state(resolver) == "Z"))

    def test_uring_and_poll(self):
        self.plays_and_starts_again(("uring", "poll"), "@r/bridge.addr", "learner")

    def test_poll_and_uring_by_name(self):
        self.plays_and_starts_again(("poll", "uring"), "localhost:{}", "node")


class Environment(InFolder):
    def test_by_confine_reaches_nothing_and_trains_on(self):
        build_plugin(SOURCE / "tests/tools/plugins/rogue.c", self.folder / "rogue.so", "-w")
        (self.folder / "home").mkdir()
        (self.folder / "r").mkdir()
        run = ["train", "--env", "plugin:./rogue.so", "--env.fault", "escapes", "--frames", "4k", "--actors", "2", "--json", "--quiet", "--run", "r"]
        for more, escapes in ((), "home run memory network kill program"), (("--confine",), ""):
            done = self.farm(*run, *more, HOME=str(self.folder / "home"))
            self.assertEqual(done.returncode, 0, done.stderr)
            if "warning: --confine: " in done.stderr:
                self.skipTest(done.stderr)
            self.assertEqual(set(re.findall(r"escapes: ?(.*)\.", done.stderr)), {escapes}, done.stderr)
            account = json.loads(done.stdout)
            self.assertEqual((account["actor_restarts"], account["updates"] > 0), (0, True))
            self.assertEqual([(self.folder / place / "escaped").exists() for place in ("home", "r")], [not more] * 2)
            played = self.farm("eval", "r", "--episodes", "2", "--actors", "1", "--env.fault", "escapes", HOME=str(self.folder / "home"))
            self.assertIn(f"escapes:{escapes and ' '}{escapes}.", played.stderr)  # as the run did
            for place in "home", "r":
                shutil.rmtree(self.folder / place)
                (self.folder / place).mkdir()
        early = self.farm("train", "--env", "plugin:./rogue.so", "--env.fault", "spec_escapes", "--confine", HOME=str(self.folder / "home"))
        self.assertIn("it said 'escapes:.'", early.stderr)

    def test_in_python_plays_confined(self):
        farm = self.start_logged("train", "--env", "gym/CartPole-v1", "--confine", "--frames", "100G", "--actors", "1", "--json", "--quiet", "--run", "r", "--metrics-every", "0.1")
        self.assertTrue(wait_until(lambda: self.lines() and self.lines()[-1]["updates"]), self.said())
        actor = next(pid for name, pid in children(farm.pid).items() if name.startswith("python"))
        self.assertEqual(status(actor)["Seccomp"], "2")
        self.assertEqual(self.end(farm)["actor_restarts"], 0)


if __name__ == "__main__":
    unittest.main()
