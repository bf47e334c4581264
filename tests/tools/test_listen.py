"""`farm train --listen` as its user sees it: the address that it writes, how it waits and ends."""

import json
import os
import signal
import subprocess
import sys
import unittest

from running import FARM, InFolder, children, wait_until

# Executes its arguments under a seccomp filter that kills a process that uses io_uring, as some containers do.
WITHOUT_URING = """
import ctypes, os, sys
class Filter(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint)]
class Program(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("filter", ctypes.POINTER(Filter))]
kill, allow, io_uring_setup = 0x80000000, 0x7FFF0000, 425
filters = (Filter * 4)((0x20, 0, 0, 0), (0x15, 0, 1, io_uring_setup), (0x06, 0, 0, kill), (0x06, 0, 0, allow))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.byref(Program(4, filters)), 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""


class Listen(InFolder):
    def start(self, *arguments, program=FARM, security=("--insecure",)):
        flags = ["train", "--env", "native/catch", "--run", "r", "--frames", "100G", "--json", "--actors", "0", *security]
        process = self.start_logged(*flags, *arguments, program=program)
        self.assertTrue(wait_until((self.folder / "r/bridge.addr").exists), self.said())
        return process

    def test_waits_for_the_first_actor_and_ends_without_one(self):
        process = self.start("--listen", "127.0.0.1:0")
        address = (self.folder / "r/bridge.addr").read_text()
        self.assertRegex(address, r"^127\.0\.0\.1:[1-9]\d*\n$")
        self.await_line(f"waiting for the first actor: run `farm bridge --connect {address.strip()} --insecure`")
        status = self.folder / "r/bridge.json"
        self.assertTrue(wait_until(status.exists))
        self.assertEqual(json.loads(status.read_text()), {"schema_version": 1, "address": address.strip(), "nodes": []})
        account = self.end(process)
        self.assertEqual((account["actors"], account["agent_steps"], account["nodes"]), (0, 0, []))
        self.assertFalse((self.folder / "r/bridge.addr").exists() or status.exists(), "they go with the run")
        self.assertEqual((self.folder / "r/metrics.jsonl").read_text(), "", "a session without a step has no line")

    def test_a_bridge_that_may_not_use_io_uring_uses_poll(self):
        (self.folder / "without_uring.py").write_text(WITHOUT_URING)
        wrapper = self.folder / "farm"
        wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} {self.folder}/without_uring.py {FARM} "$@"\n')
        wrapper.chmod(0o755)
        process = self.start("--listen", "127.0.0.1:0", program=str(wrapper))
        self.await_line(r"uses poll\(2\) from now on")
        self.assertTrue(wait_until(lambda: children(process.pid).get("bridge")), self.said())
        self.end(process)
        self.assertEqual(self.said().count("was killed by signal"), 1, self.said())

    def test_training_outlives_a_bridge_that_cannot_be_kept_alive(self):
        process = self.start("--listen", "127.0.0.1:0", "--actors", "1", "--device", "cpu", "--metrics-every", "0.1")

        def lost():
            pid = children(process.pid).get("bridge")
            if pid:
                os.kill(pid, signal.SIGKILL)
            return "training goes on without other machines" in self.said()

        self.assertTrue(wait_until(lost), self.said())
        self.assertFalse((self.folder / "r/bridge.addr").exists())
        metrics = self.folder / "r/metrics.jsonl"
        self.assertTrue(wait_until(lambda: metrics.read_text().count("\n") > 2), self.said())
        self.assertGreater(self.end(process)["agent_steps"], 0)

    def in_a_network(self, commands, *arguments):
        """Runs farm in a new network namespace that these commands set up; returns bridge.addr and farm's messages."""
        (self.folder / "hosts").write_text("127.0.1.1 learner\n")
        wrapper = self.folder / "farm"
        mount = f"mount --bind {self.folder}/hosts /etc/hosts"
        wrapper.write_text(f"#!/bin/sh\nexec unshare -Urnm sh -ec '{commands}; {mount}; exec \"$@\"' sh {FARM} \"$@\"\n")
        wrapper.chmod(0o755)
        self.farm("bridge", "keygen", "k")
        process = self.start(*arguments, program=str(wrapper), security=("--key", "k"))
        address = (self.folder / "r/bridge.addr").read_text()
        self.end(process)
        return address, self.said()

    def test_the_written_address_is_that_of_the_default_route(self):
        if subprocess.run(["unshare", "-Urnm", "ip", "link", "add", "probe", "type", "veth"], capture_output=True).returncode:
            self.skipTest("no network namespaces here")
        cards = "ip link set lo up; " + "; ".join(
            f"ip link add {name} type veth peer {name}p; ip link set {name}p up; ip addr add {address} dev {name}; ip link set {name} up"
            for name, address in (("docker0", "172.17.0.1/16"), ("eth0", "10.1.2.3/24"))
        )
        address, _ = self.in_a_network(f"{cards}; ip route add default via 10.1.2.1", "--listen", "[::]:7000")
        self.assertEqual(address, "10.1.2.3:7000\n")
        (self.folder / "r").rename(self.folder / "before")
        address, said = self.in_a_network("ip link set lo up", "--listen", "learner:7000")
        self.assertEqual(address, "127.0.1.1:7000\n")
        self.assertIn("nodes on other machines cannot reach 127.0.1.1: --listen 0.0.0.0:7000", said)

    def test_a_port_that_is_taken_is_named(self):
        process = self.start("--listen", "[::1]:0")
        address = (self.folder / "r/bridge.addr").read_text().strip()
        again = self.farm("train", "--listen", address, "--insecure")
        self.assertNotEqual(again.returncode, 0)
        self.assertIn(address, again.stderr)
        self.end(process)


if __name__ == "__main__":
    unittest.main()
