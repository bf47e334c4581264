"""The command line of `farm bridge` without a learner: keys, status, waiting. Wrong usage: test_usage.py."""

import json
import os
import time
import unittest

from running import InFolder

NODE = {
    "name": "node7", "key": "a-long-name-of-a-key", "state": "connected", "actors": 4, "lanes": 8, "env_steps_per_s": 12345.6, "bytes_in_per_s": 2e5, "bytes_out_per_s": 3.1e6,
    "round_trip_ms": 0.31, "reconnects": 2, "away_s": 0,
}
AWAY = {**NODE, "name": "node8", "key": "", "state": "away", "round_trip_ms": None, "away_s": 12.4}


class Bridge(InFolder):
    def bridge(self, *arguments):
        return self.farm("bridge", *arguments)

    def refused(self, words, *arguments):
        done = self.bridge(*arguments)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn(words, done.stderr)
        self.assertEqual(done.stdout, "")
        return done.stderr


class Waiting(Bridge):
    """Nothing listens on port 1 of the loopback interface."""

    def test_it_gives_up_in_the_end(self):
        self.assertEqual(self.bridge("keygen", "k").returncode, 0)
        self.assertRegex((self.folder / "k").read_text(), r"\Aactorfarm-key-2 learner [0-9A-F]{64}\n\Z")
        said = self.refused_later("--connect", "127.0.0.1:1", "--key", "k.node")
        self.assertIn("waiting for the learner at 127.0.0.1:1", said)
        self.assertIn("no learner at 127.0.0.1:1 within 1.5 s (--retry-s)", said)
        self.assertIn("is not there yet", self.refused_later("--connect", "@addr", "--key", "k.node"))

    def refused_later(self, *arguments):
        begun = time.monotonic()
        done = self.bridge(*arguments, "--retry-s", "1.5")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertGreaterEqual(time.monotonic() - begun, 1.5)
        return done.stderr

    def test_a_signal_ends_it_with_one_document(self):
        for address in "127.0.0.1:1", "@addr":
            process = self.start_logged("bridge", "--connect", address, "--insecure", "--json")
            self.await_line("waiting")
            document = self.end(process)
            self.assertEqual((document["schema_version"], document["env_steps"], document["interrupted"]), (1, 0, True))
            self.assertIsNone(document["error"])


class Status(Bridge):
    def write(self, *nodes):
        (self.folder / "r").mkdir(exist_ok=True)
        document = {"schema_version": 1, "address": "10.0.0.5:7700", "nodes": list(nodes)}
        (self.folder / "r/bridge.json").write_text(json.dumps(document))
        return document

    def test_a_folder_without_a_bridge_is_refused(self):
        (self.folder / "r").mkdir()
        self.refused("bridge.json does not exist", "status", "r")

    def test_it_draws_a_table(self):
        self.write(NODE, AWAY)
        done = self.bridge("status", "r")
        self.assertEqual(done.returncode, 0, done.stderr)
        first, heads, *rows = done.stdout.splitlines()
        self.assertEqual(first, "learner at 10.0.0.5:7700, 2 nodes")
        self.assertEqual(len(rows), 2)
        self.assertEqual(rows[0].split(), "node7 a-long-name- connected 4 8 12.3k 200k 3.1M 0.31 2".split())
        self.assertEqual(rows[1].split(), "node8 - away 12 s 4 8 12.3k 200k 3.1M - 2".split())
        self.assertEqual({len(line) for line in (heads, *rows)}, {len(heads)})

    def test_a_run_without_nodes_says_so(self):
        self.write()
        self.assertEqual(self.bridge("status", "r").stdout, "learner at 10.0.0.5:7700, 0 nodes\n")

    def test_it_reports_the_age_of_an_old_file(self):
        self.write(NODE)
        then = time.time() - 60
        os.utime(self.folder / "r/bridge.json", (then, then))
        self.assertRegex(self.bridge("status", "r").stdout, r"as of 6\d s ago")

    def test_its_document_is_that_of_the_run(self):
        written = self.write(NODE)
        document = json.loads(self.bridge("status", "r", "--json").stdout)
        self.assertLess(document.pop("age_s"), 30)
        self.assertEqual(document, written)

    def test_a_damaged_file_is_refused(self):
        self.write()
        for text in "{", "[]", '{"nodes": 3':
            (self.folder / "r/bridge.json").write_text(text)
            self.refused("bridge.json", "status", "r")


if __name__ == "__main__":
    unittest.main()
