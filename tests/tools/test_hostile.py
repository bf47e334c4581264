"""One actor of `farm train` misbehaves: the run goes on, reports it, and gives its lanes to another actor."""

import ctypes
import mmap
import os
import pathlib
import signal
import time
import unittest

from running import LIMIT_S, Watched, children, wait_until

PIDFD_GETFD = 438
HEADER_BYTES, PRODUCED = 4096, 4096 + 512  # docs/shm-layout.md: up, and lane 0's counter


def take_descriptor(pid, fd):
    """A duplicate of another process's descriptor, with the same rights."""
    pidfd = os.pidfd_open(pid)
    taken = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, pidfd, fd, 0)
    error = ctypes.get_errno()
    os.close(pidfd)
    if taken < 0:
        raise unittest.SkipTest(f"descriptors of other processes cannot be duplicated here: {os.strerror(error)}")
    return taken


class Hostile(Watched):
    def setUp(self):
        super().setUp()
        self.farm = self.start("--env", "native/catch")

    def segment(self, actor):
        """The segment that this actor writes, writable."""
        pid = children(self.farm.pid)[f"actor {actor}"]
        for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            if os.readlink(entry).startswith(f"/memfd:farm-up-{actor}"):
                fd = take_descriptor(pid, int(entry.name))
                self.addCleanup(os.close, fd)
                return mmap.mmap(fd, os.fstat(fd).st_size)
        self.fail("it holds no segment")

    def test_an_actor_with_impossible_counters_is_reported_killed_and_replaced(self):
        up = self.segment(0)
        for life in range(2):
            pid = wait_until(lambda: children(self.farm.pid).get("actor 0"))
            end = time.monotonic() + LIMIT_S
            while children(self.farm.pid).get("actor 0") == pid and time.monotonic() < end:  # its stores overwrite ours
                up[PRODUCED : PRODUCED + 8] = b"\xff" * 8
            self.assertTrue(wait_until(lambda: children(self.farm.pid).get("actor 0") not in (None, pid)), self.said())
            self.learns_on()
        self.await_line(r"actor 0 claims \d+ published steps in its lane 0, of which \d+ are answered: killed")
        self.await_line("actor 0 was killed by signal 9")
        self.await_line("actor 0 left its header or its counters overwritten: repaired")
        published = set()  # our last store may have met the new actor, which is then replaced too
        self.assertTrue(wait_until(lambda: published.add(up[PRODUCED : PRODUCED + 8]) or len(published - {b"\xff" * 8}) > 1), "its lane goes on")
        result = self.end(self.farm)
        self.assertGreaterEqual(result["actor_restarts"], 2)
        self.assertEqual(result["learner_restarts"], 0)

    def test_actor_and_learner_restart_after_a_header_was_overwritten(self):
        up = self.segment(1)
        up[:HEADER_BYTES] = b"\xa5" * HEADER_BYTES
        workers = children(self.farm.pid)
        os.kill(workers["learner"], signal.SIGKILL)
        self.await_line("actor 1 has written over its segment's header: the shape of its lanes")
        self.learns_on()
        os.kill(workers["actor 1"], signal.SIGKILL)
        self.await_line("actor 1 left its header or its counters overwritten: repaired")
        self.learns_on()
        self.assertEqual(up[:8], b"AGFARM01")
        result = self.end(self.farm)
        self.assertEqual((result["actor_restarts"], result["learner_restarts"]), (1, 1))


if __name__ == "__main__":
    unittest.main()
