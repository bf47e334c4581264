"""One actor of `farm train` does what it must not: the run goes on, says so, and gives its lanes to another actor."""

import ctypes
import json
import mmap
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import unittest

FARM = str(pathlib.Path(os.environ.get("FARM_BUILD", "build")).resolve() / "farm")
PATIENCE_S = 30
PIDFD_GETFD = 438
HEADER_BYTES, PRODUCED = 4096, 4096 + 384  # docs/shm-layout.md: up, and lane 0's counter


def wait_until(condition):
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    return None


def children(pid):
    """Process ids by name: {"actor 0": 123, ...}."""
    found = {}
    for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            found[pathlib.Path(f"/proc/{child}/comm").read_text().strip()] = int(child)
        except (FileNotFoundError, ProcessLookupError):
            pass  # it has just died
    return found


def take_descriptor(pid, fd):
    """The very descriptor that another process holds, with what it may do."""
    pidfd = os.pidfd_open(pid)
    taken = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, pidfd, fd, 0)
    error = ctypes.get_errno()
    os.close(pidfd)
    if taken < 0:
        raise unittest.SkipTest(f"descriptors of other processes cannot be had here: {os.strerror(error)}")
    return taken


class Hostile(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        command = [FARM, "train", "--env", "native/catch", "--run", "r", "--frames", "100G", "--json", "--quiet"]
        with open(self.folder / "said", "w") as said:
            self.farm = subprocess.Popen(
                [*command, "--actors", "2", "--metrics-every", "0.1"], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said, text=True
            )
        self.addCleanup(self.farm.communicate)
        self.addCleanup(self.farm.kill)
        self.assertTrue(wait_until(lambda: self.updates() > 0), self.said())

    def said(self):
        return (self.folder / "said").read_text(errors="replace")

    def await_line(self, pattern):
        self.assertTrue(wait_until(lambda: re.search(pattern, self.said())), f"nobody said '{pattern}': {self.said()[-4000:]}")

    def updates(self):
        path = self.folder / "r/metrics.jsonl"
        lines = [line for line in (path.read_text() if path.exists() else "").splitlines() if line.endswith("}")]
        return json.loads(lines[-1])["updates"] if lines else 0

    def learns_on(self):
        before = self.updates()
        self.assertTrue(wait_until(lambda: self.updates() >= before + 10), f"training stands still: {self.said()[-4000:]}")

    def segment(self, actor):
        """The segment that this actor writes, writable."""
        pid = children(self.farm.pid)[f"actor {actor}"]
        for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            if os.readlink(entry).startswith(f"/memfd:farm-up-{actor}"):
                fd = take_descriptor(pid, int(entry.name))
                self.addCleanup(os.close, fd)
                return mmap.mmap(fd, os.fstat(fd).st_size)
        self.fail("it holds no segment of its own")

    def end(self):
        self.farm.send_signal(signal.SIGINT)
        out, _ = self.farm.communicate(timeout=PATIENCE_S)
        self.assertEqual(self.farm.returncode, 0, self.said()[-4000:])
        return json.loads(out)

    def test_an_actor_whose_counters_cannot_be_is_named_killed_and_replaced(self):
        up = self.segment(0)
        for life in range(2):
            pid = wait_until(lambda: children(self.farm.pid).get("actor 0"))
            end = time.monotonic() + PATIENCE_S
            while children(self.farm.pid).get("actor 0") == pid and time.monotonic() < end:  # its own stores undo ours
                up[PRODUCED : PRODUCED + 8] = b"\xff" * 8
            self.assertTrue(wait_until(lambda: children(self.farm.pid).get("actor 0") not in (None, pid)), self.said())
            self.learns_on()
        self.await_line(r"actor 0 says that it has published \d+ steps of its lane 0, of which \d+ are answered: killed")
        self.await_line("actor 0 was killed by signal 9")
        self.await_line("actor 0 left its header or its counters overwritten: put right")
        acted_on = int.from_bytes(up[PRODUCED : PRODUCED + 8], "little")
        self.assertTrue(wait_until(lambda: int.from_bytes(up[PRODUCED : PRODUCED + 8], "little") > acted_on), "its lane goes on")
        result = self.end()
        self.assertGreaterEqual(result["actor_restarts"], 2)
        self.assertEqual(result["learner_restarts"], 0)

    def test_a_header_written_over_keeps_neither_actor_nor_learner_from_coming_back(self):
        up = self.segment(1)
        up[:HEADER_BYTES] = b"\xa5" * HEADER_BYTES
        workers = children(self.farm.pid)
        os.kill(workers["learner"], signal.SIGKILL)
        self.await_line("actor 1 has written over its segment's header: the shape of its lanes")
        self.learns_on()
        os.kill(workers["actor 1"], signal.SIGKILL)
        self.await_line("actor 1 left its header or its counters overwritten: put right")
        self.learns_on()
        self.assertEqual(up[:8], b"AGFARM01")
        result = self.end()
        self.assertEqual((result["actor_restarts"], result["learner_restarts"]), (1, 1))

    def test_a_flood_of_junk_from_an_actor_is_held_back(self):
        stderr = take_descriptor(children(self.farm.pid)["actor 0"], 2)
        self.addCleanup(os.close, stderr)
        start = time.monotonic()
        flood = subprocess.Popen(["cat", "/dev/urandom"], stdin=subprocess.DEVNULL, stdout=stderr)
        self.addCleanup(flood.wait)
        self.addCleanup(flood.kill)
        self.learns_on()
        spent = time.monotonic() - start
        flood.kill()
        text = (self.folder / "said").read_bytes()
        self.assertLess(len(text), 2e6 * (spent + 1))
        self.assertFalse(set(text) & (set(range(32)) - {9, 10}), "control characters reach the terminal")
        self.end()


if __name__ == "__main__":
    unittest.main()
