"""`farm train --listen` as its user sees it: what is refused, where it says that it listens, how it waits and ends."""

import json
import signal
import unittest

from running import PATIENCE_S, InFolder, wait_until


class Listen(InFolder):
    def refused(self, words, *arguments):
        done = self.farm("train", *arguments)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn(words, done.stderr)

    def test_wrong_usage_says_what_to_do(self):
        self.refused("farm bridge keygen FILE", "--listen", "127.0.0.1:0")
        self.refused("farm bridge keygen none", "--listen", "127.0.0.1:0", "--key", "none")
        self.refused("--listen ADDR:PORT", "--expect-actors", "3")
        self.refused("HOST:PORT", "--listen", "7000", "--insecure")
        self.refused("HOST:PORT", "--listen", "::1:7000", "--insecure")
        self.refused("neither a loopback nor a private address", "--listen", "0.0.0.0:0", "--insecure")
        self.refused("auto, uring, poll", "--listen", "127.0.0.1:0", "--insecure", "--bridge-engine", "tcp")

    def start(self, *arguments):
        flags = ["train", "--env", "native/catch", "--run", "r", "--frames", "100G", "--json", "--actors", "0", "--insecure"]
        with open(self.folder / "said", "w") as said:
            process = self.start_farm(*flags, *arguments, stderr=said)
        self.assertTrue(wait_until((self.folder / "r/bridge.addr").exists), (self.folder / "said").read_text())
        return process

    def end(self, process):
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=PATIENCE_S)
        self.assertEqual(process.returncode, 0, (self.folder / "said").read_text())
        return json.loads(out)

    def test_waits_for_the_first_actor_and_ends_without_one(self):
        process = self.start("--listen", "127.0.0.1:0")
        address = (self.folder / "r/bridge.addr").read_text()
        self.assertRegex(address, r"^127\.0\.0\.1:[1-9]\d*\n$")
        self.assertTrue(wait_until(lambda: "waiting for the first actor" in (self.folder / "said").read_text()))
        status = self.folder / "r/bridge.json"
        self.assertTrue(wait_until(status.exists))
        self.assertEqual(json.loads(status.read_text()), {"schema_version": 1, "address": address.strip(), "nodes": []})
        account = self.end(process)
        self.assertEqual((account["actors"], account["agent_steps"], account["nodes"]), (0, 0, []))
        self.assertFalse((self.folder / "r/bridge.addr").exists() or status.exists(), "they go with the run")

    def test_a_port_that_is_taken_is_named(self):
        process = self.start("--listen", "[::1]:0")
        address = (self.folder / "r/bridge.addr").read_text().strip()
        again = self.farm("train", "--listen", address, "--insecure")
        self.assertNotEqual(again.returncode, 0)
        self.assertIn(address, again.stderr)
        self.end(process)


if __name__ == "__main__":
    unittest.main()
