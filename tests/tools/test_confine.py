"""What a bridge and, by --confine, an environment may do, as the kernel reports it."""

import os
import pathlib
import re
import unittest

from running import FARM, children, state, wait_until
from test_bridge_node import Node

SANITIZED = "/asan" in FARM or "/tsan" in FARM


@unittest.skipIf(SANITIZED, "sanitizers need files, so bridges are not confined")
class Bridge(Node):
    def is_confined(self, process, log):
        pid = children(process.pid)["bridge"]
        status = dict(re.findall(r"^(\w+):\s*(.*)$", pathlib.Path(f"/proc/{pid}/status").read_text(), re.M))
        self.assertEqual((status["Seccomp"], status["NoNewPrivs"], int(status["CapEff"], 16), status["Threads"]), ("2", "1", 0, "1"), self.said(log))
        self.assertNotIn("confined", self.said(log))

    def plays_and_starts_again(self, engines, address):
        """Learner and node, whose bridges are killed; the node's resolves names by a process that ends with it."""
        learner = self.learner("native/catch", "--bridge-engine", engines[0])
        port = (self.folder / "r/bridge.addr").read_text().rpartition(":")[2].strip()
        node = self.start("node", "bridge", "--connect", address.format(port), "--actors", "2", "--bridge-engine", engines[1])
        self.until_more()
        for process, log in ((learner, "learner"), (node, "node")):
            self.is_confined(process, log)
            bridge = children(node.pid)["bridge"]
            resolver = children(bridge)["resolver"]
            self.kill_and_await(process, "bridge")  # the learner's: the node dials again
            self.until_more(doing="its bridge is killed")
            self.is_confined(process, log)
        self.assertEqual(wait_until(lambda: state(resolver) == "Z"), True)
        resolver = children(children(node.pid)["bridge"])["resolver"]
        self.assertEqual(os.listdir(f"/proc/{resolver}/fd"), ["0", "1", "2"])
        self.end(learner, "learner")
        account = self.end(node, "node", by=None)
        self.assertEqual((account["sessions"], account["bridge_restarts"]), (1, 1))
        self.assertEqual(wait_until(lambda: state(resolver) == "Z"), True)

    def test_uring_and_poll(self):
        self.plays_and_starts_again(("uring", "poll"), "@r/bridge.addr")

    def test_poll_and_uring_by_name(self):
        self.plays_and_starts_again(("poll", "uring"), "localhost:{}")


if __name__ == "__main__":
    unittest.main()
