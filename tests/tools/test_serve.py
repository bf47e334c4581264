"""`farm serve`: what its consumers get, which processes it refuses, and what is left when one of them ends in any way."""

import os
import pathlib
import re
import socket
import struct
import subprocess
import unittest

from running import FARM, LIMIT_S, InFolder, children, wait_until

JOIN, LEAVE, OPEN, END = range(4)  # src/intake/admission.h
REPLY = 4 + 4 + 8 + 768  # struct farm_admission_reply


class Consumer:
    """The messages of a consumer, which answers no lane."""

    def __init__(self, end, takes=True):
        self.end, self.takes, self.rings = end, takes, {}
        end.settimeout(LIMIT_S)

    def message(self):
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
        if kind in (JOIN, LEAVE) and self.takes:
            self.end.send(struct.pack("I", ring).ljust(REPLY, b"\0"))
        return kind, ring, shard, more, names, data[16:].split(b"\0")[0].decode()

    def open(self):
        kind, _, version, joins, names, text = self.message()
        if kind == END:
            return text
        assert (kind, version, names) == (OPEN, 1, ["/memfd:farm-stats-0", "anon_inode:[eventfd]"]), (kind, version, names)
        self.rings = {}
        for _ in range(joins):
            self.message()
        return self

    def last_words(self):
        while message := self.message():
            if message[0] == END:
                return message[5]
        return None


class Serve(InFolder):
    def serve(self, *flags, **more):
        return self.start_logged("serve", "--env", "native/catch", "--actors", "2", "--json", *flags, **more)

    def inherit(self, *flags, **more):
        """(the farm, its consumer by a socket that it inherits)"""
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(ours.close)
        with its, open(self.folder / "said", "w") as log:
            process = subprocess.Popen(
                [FARM, "serve", "--env", "native/catch", "--actors", "2", "--json", "--socket-fd", str(its.fileno()), *flags], pass_fds=(its.fileno(),),
                cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True, **more,
            )
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process, Consumer(ours).open()

    def connect(self, path="s/farm"):
        """A consumer, or why it is refused."""
        end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(end.close)
        self.assertTrue(wait_until(lambda: (self.folder / path).exists()), self.said())
        end.connect(str(self.folder / path))
        return Consumer(end).open()

    def leaves_nothing(self, process):
        self.assertTrue(wait_until(lambda: not list(pathlib.Path("/proc").glob(f"{process.pid}/task"))))

    def test_a_consumer_with_an_inherited_socket_gets_all_lanes_and_ends_the_farm(self):
        process, consumer = self.inherit()
        self.assertEqual(consumer.rings, {a: [f"/memfd:farm-up-{a}", f"/memfd:farm-down-{a}"] for a in range(2)})
        consumer.end.close()
        document = self.end(process, by=None)
        self.assertEqual((document["consumers"], document["actors"], document["error"]), (1, 2, None))


if __name__ == "__main__":
    unittest.main()
