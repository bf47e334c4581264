"""`farm serve`: what its consumers get, which processes it refuses, and what is left when one of them ends in any way."""

import ast
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import time
import unittest

try:
    from actorfarm import _consumer
except ImportError:
    _consumer = None
from running import FARM, LIMIT_S, InFolder, children, wait_until

JOIN, LEAVE, OPEN, END = range(4)  # src/intake/admission.h
REPLY = 4 + 4 + 8 + 768  # struct farm_admission_reply


class Consumer:
    """The messages of a consumer, which answers no lane."""

    def __init__(self, end):
        self.end, self.rings = end, {}
        end.settimeout(LIMIT_S)

    def message(self, replies=True):
        """(kind, ring, shard, more, names of the descriptors, text); None: the farm is gone."""
        data, fds, _, _ = socket.recv_fds(self.end, 4096, 4)
        if not data:
            return None
        names = [os.readlink(f"/proc/self/fd/{fd}").removesuffix(" (deleted)") for fd in fds]
        for fd in fds:
            os.close(fd)
        kind, ring, shard, more = struct.unpack("4I", data[:16])
        if kind == JOIN:
            self.rings[ring] = names
        elif kind == LEAVE:
            del self.rings[ring]
        if kind in (JOIN, LEAVE) and replies:
            self.end.send(struct.pack("I", ring).ljust(REPLY, b"\0"))
        return kind, ring, shard, more, names, data[16:].split(b"\0")[0].decode()

    def open(self):
        kind, _, version, joins, names, text = self.message()
        if kind == END:
            return text
        assert (kind, version, names) == (OPEN, 1, ["/memfd:farm-stats-0", "anon_inode:[eventfd]"]), (kind, version, names)
        self.rings = {}
        for _ in range(joins):
            self.message(replies=False)
        return self

    def last_words(self):
        while message := self.message():
            if message[0] == END:
                return message[5]
        return None


class Serve(InFolder):
    def serve(self, *flags, path="s/farm"):
        process = self.start_logged("serve", "--env", "native/catch", "--actors", "2", "--json", "--socket", path, *flags)
        self.await_line("consumers connect to ")
        return process

    def inherit(self, *flags):
        """(the farm, its consumer by a socket that it inherits)"""
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(ours.close)
        command = [FARM, "serve", "--env", "native/catch", "--actors", "2", "--json", "--socket-fd", str(its.fileno()), *flags]
        with its, open(self.folder / "said", "w") as log:
            process = subprocess.Popen(command, pass_fds=[its.fileno()], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process, Consumer(ours).open()

    def connect(self, path="s/farm"):
        """A consumer, or why it is refused."""
        end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(end.close)
        end.connect(str(self.folder / path))
        return Consumer(end).open()

    def becomes(self, change, wanted):
        self.assertEqual(self.farm("actors", "s", change).stdout, f"{wanted} actors\n", self.said())

    def leaves_nothing(self, pids):
        self.assertTrue(wait_until(lambda: not any(pathlib.Path(f"/proc/{pid}").exists() for pid in pids)), pids)

    def test_a_consumer_with_an_inherited_socket_gets_all_lanes_and_ends_the_farm(self):
        process, consumer = self.inherit()
        self.assertEqual(consumer.rings, {a: [f"/memfd:farm-up-{a}", f"/memfd:farm-down-{a}"] for a in range(2)})
        consumer.end.close()
        document = self.end(process, by=None)
        self.assertEqual((document["consumers"], document["actors"], document["error"]), (1, 2, None))

    def test_consumers_come_and_go_and_so_do_actors(self):
        process = self.serve()
        self.assertEqual((self.folder / "s").stat().st_mode & 0o777, 0o700)
        self.becomes("+1", 3)
        first = self.connect()
        self.assertEqual(set(first.rings), {0, 1, 2})
        self.assertRegex(self.connect(), r"another consumer is connected \(process \d+\): one at a time")
        for change, wanted in (("+1", 4), ("-2", 2)):
            request = self.start_farm("actors", "s", change)
            while set(first.rings) != set(range(wanted)):
                first.message()
            self.assertEqual(request.communicate(timeout=LIMIT_S)[0], f"{wanted} actors\n")
        request = self.start_farm("actors", "s", "+1")
        first.message(replies=False)
        first.end.close()
        self.assertEqual(request.communicate(timeout=LIMIT_S)[0], "3 actors\n", "it joins without the reply of a consumer that has ended")
        self.await_line(r"consumer \d+ has ended")
        second = self.connect()
        self.assertEqual(set(second.rings), {0, 1, 2})
        process.terminate()
        self.assertEqual(second.last_words(), "a signal has ended the farm")
        document = self.end(process, by=None)
        self.assertEqual((document["consumers"], document["actors"], document["interrupted"]), (2, 3, True))
        self.assertEqual(list((self.folder / "s").iterdir()), [])

    def test_processes_of_its_environments_are_no_consumers(self):
        process = self.serve()
        variables = pathlib.Path(f"/proc/{process.pid}/environ").read_text().split("\0")
        script = "import socket; end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); end.connect('s/farm'); print(end.recv(4096)[16:])"
        mark = dict(v.split("=", 1) for v in variables if v.startswith("FARM_RUN="))
        said = subprocess.run([sys.executable, "-c", script], env={**os.environ, **mark}, cwd=self.folder, capture_output=True, text=True, timeout=LIMIT_S)
        self.assertIn("processes of its own environments", said.stdout, said.stderr)
        self.end(process)

    def test_a_folder_has_one_farm_of_one_user(self):
        (self.folder / "open").mkdir(0o755)
        for folder, words in (("open", "this user alone"), ("none/s", "No such file")):
            refused = self.farm("serve", "--env", "native/catch", "--socket", f"{folder}/farm")
            self.assertEqual(refused.returncode, 2)
            self.assertIn(words, refused.stderr)
        process = self.serve()
        self.assertIn("another farm serves in s", self.farm("serve", "--env", "native/catch", "--socket", "s/other").stderr)
        process.kill()
        process.wait()
        self.assertTrue((self.folder / "s/farm").exists(), "the dead farm's")
        second = self.serve()
        self.assertEqual(set(self.connect().rings), {0, 1})
        self.end(second)

    @unittest.skipIf(_consumer is None, "actorfarm._consumer is not built")
    def test_the_next_consumer_continues_where_a_killed_one_was(self):
        path = "s" * 150 + "/farm"  # too long for a socket's address
        process = self.serve("--seed", "5", path=path)
        script = f"""if True:
            import numpy, time
            from actorfarm import _consumer
            consumer = _consumer.Consumer(socket={path!r})
            for _ in range(100):
                lanes, steps = consumer.recv(least=4)
                consumer.send(lanes, numpy.zeros(len(lanes) * consumer.spec["width"], numpy.int32))
            lanes, steps = consumer.recv(least=4)
            print({{lane: (step, bytes(consumer.copy(lane, step, _consumer.OBS))) for lane, step in zip(lanes.tolist(), steps.tolist())}}, flush=True)
            time.sleep(60)
        """
        first = subprocess.Popen([sys.executable, "-c", script], cwd=self.folder, stdout=subprocess.PIPE, text=True)
        self.addCleanup(first.communicate)
        waiting = ast.literal_eval(first.stdout.readline())
        self.assertEqual({step for step, _ in waiting.values()}, {100})
        first.kill()
        self.await_line(r"consumer \d+ has ended")
        second = _consumer.Consumer(socket=str(self.folder / path))
        lanes, steps = second.recv(least=4)
        found = {lane: (step, bytes(second.copy(lane, step, _consumer.OBS))) for lane, step in zip(lanes.tolist(), steps.tolist())}
        self.assertEqual(found, waiting)
        second.close()
        self.assertEqual(self.end(process)["consumers"], 2)

    def test_actors_of_other_machines_join_and_leave(self):
        process = self.serve("--actors", "0", "--listen", "127.0.0.1:0", "--insecure", "--node-grace-s", "1")  # a node may end before it is connected
        consumer = self.connect()
        self.assertEqual(consumer.rings, {})
        node = self.start_logged("bridge", "--connect", "@s/bridge.addr", "--insecure", "--actors", "1", "--json", log="node")
        self.assertEqual(consumer.message(), (JOIN, 0, 0, 2, ["/memfd:farm-up-0", "/memfd:farm-down-0", "anon_inode:[eventfd]"], ""))
        self.await_line("joined the run", log="node")
        node.send_signal(signal.SIGINT)
        self.assertEqual(consumer.message()[:2], (LEAVE, 0))
        self.end(node, log="node", by=None)
        self.assertEqual(self.end(process)["consumers"], 1)

    def test_nothing_outlives_a_killed_consumer_even_if_its_child_does(self):
        script = f"""if True:
            import os, socket, subprocess, time
            ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            command = [{FARM!r}, "serve", "--env", "native/catch", "--quiet", "--socket-fd", str(its.fileno())]
            farm = subprocess.Popen(command, pass_fds=[its.fileno()])
            its.close()
            ours.recv(4096)
            child = os.fork()
            if child: print(farm.pid, child, flush=True)
            time.sleep({LIMIT_S})
        """
        consumer = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        self.addCleanup(consumer.communicate)
        farm, child = map(int, consumer.stdout.readline().split())
        self.addCleanup(os.kill, child, signal.SIGKILL)
        pids = [farm, *children(farm).values()]
        self.assertGreater(len(pids), 1)
        consumer.kill()
        self.leaves_nothing(pids)

    def test_a_farm_that_fails_says_why(self):
        process, consumer = self.inherit("--restarts-max", "1")
        for _ in range(2):
            os.kill(wait_until(lambda: children(process.pid).get("actor 0")), signal.SIGKILL)
            wait_until(lambda: "killed by signal 9" in self.said())
            time.sleep(0.3)
        words = consumer.last_words()
        self.assertIn("actor 0", words)
        self.assertIsNone(consumer.message())
        self.assertEqual(process.wait(LIMIT_S), 1)


if __name__ == "__main__":
    unittest.main()
