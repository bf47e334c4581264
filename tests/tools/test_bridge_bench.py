"""`farm bridge bench` and `farm bw --network` over the loopback interface: both sides as processes."""

import json
import re
import signal
import unittest

from running import InFolder, blocks, wait_until

PAIRS = ("round_trip_us", "bytes_per_s", "cpu_s_per_gb")


class Bench(InFolder):
    def setUp(self):
        super().setUp()
        for name in "k", "other":
            self.assertEqual(self.farm("bridge", "keygen", name).returncode, 0)
        for how in "--node", "--withdraw":
            self.assertEqual(self.farm("bridge", "keygen", how, "gone", "k").returncode, 0)

    def listen(self, *how):
        process = self.start_farm("bridge", "bench", "--listen", "127.0.0.1:0", *how)
        line = process.stdout.readline()
        return process, re.match(r"listening at (127\.0\.0\.1:\d+), 127\.0\.0\.1:\d+ and 127\.0\.0\.1:\d+;", line)[1]

    def measure(self, address, *arguments):
        done = self.farm("bridge", "bench", address, "--retry-s", "1", *arguments)
        self.assertIn(done.returncode, (0, 1, 2), done.stderr)
        return done

    def refused(self, status, words, *arguments):
        done = self.measure(*arguments)
        self.assertEqual((done.returncode, done.stdout), (status, ""), done.stderr)
        self.assertIn(words, done.stderr)

    def check(self, document, encrypted):
        for key in PAIRS:
            self.assertGreater(document[key], 0)
            self.assertGreater(document[f"reference_{key}"], 0)
        self.assertAlmostEqual(document["round_trip_ratio"], document["round_trip_us"] / document["reference_round_trip_us"], places=6)
        self.assertEqual((document["round_trip_payload_bytes"], document["step_payload_bytes"]), (7056 + 5, 8 * (28224 + 5)))
        self.assertEqual((document["encrypted"], document["rounds"], document["interrupted"]), (encrypted, 5, False))

    def test_both_sides_and_farm_bw(self):
        far, address = self.listen("--key", "k")
        for engine in "auto", "poll":
            done = self.measure(address, "--key", "k.node", "--seconds", "1", "--bridge-engine", engine, "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            document = json.loads(done.stdout)
            self.assertEqual(document["schema_version"], 1)
            self.check(document, True)
        self.assertEqual(document["engine"], "poll")
        self.refused(1, "keys", address, "--key", "other.node")
        self.refused(1, "it is withdrawn there", address, "--key", "k.gone")
        bw = json.loads(self.farm("bw", "--quick", "--only", "network", "--network", address, "--key", "k.node", "--json").stdout)
        self.check(bw["sections"]["network"], True)
        names = [f"network.{way}.{what}" for way in ("bridge", "sockets") for what in ("round_trip", "rate")]
        self.assertEqual([(result["name"], result["unit"]) for result in bw["results"]], list(zip(names, ["ns", "GB/s"] * 2)))
        far.send_signal(signal.SIGINT)
        self.assertEqual(far.wait(timeout=20), 0)

    def test_prints_a_table_without_a_key(self):
        _, address = self.listen("--insecure")
        done = self.measure(address, "--insecure", "--seconds", "0.5")
        self.assertRegex(done.stdout, r"in the clear, 5 rounds(.|\n)*round trip of a step of 7\.1 KB, us(.|\n)*225\.8 KB, GB/s")

    def test_only_one_measurement_runs_and_a_killed_one_makes_room(self):
        _, address = self.listen("--insecure")
        long = ("bridge", "bench", address, "--insecure", "--seconds", "60")
        first = self.start_farm(*long)

        def busy():
            nonlocal first
            if first.poll() is not None:  # a short one came before it
                first = self.start_farm(*long)
            return "another measurement" in self.measure(address, "--insecure", "--seconds", "0.2").stderr

        self.assertTrue(wait_until(lambda: busy() and first.poll() is None))
        first.kill()
        first.wait()
        done = self.measure(address, "--insecure", "--seconds", "0.2")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_signal_ends_it_with_one_document(self):
        process = self.start_farm("bridge", "bench", "127.0.0.1:1", "--insecure", "--json", "--retry-s", "60")
        self.assertTrue(wait_until(lambda: blocks(process.pid, signal.SIGINT)))
        process.send_signal(signal.SIGINT)
        document = json.loads(process.communicate(timeout=20)[0])
        self.assertEqual((process.returncode, document["rounds"], document["interrupted"]), (0, 0, True))

    def test_a_far_side_that_does_not_measure_is_reported(self):
        self.refused(1, "no `farm bridge bench --listen` at 127.0.0.1:1 within 1 s (--retry-s): Connection refused", "127.0.0.1:1", "--key", "k.node")
        learner = self.start_farm("train", "--env", "native/catch", "--actors", "1", "--listen", "127.0.0.1:0", "--key", "k", "--run", "r", "--quiet")
        found = self.folder / "r/bridge.addr"
        self.assertTrue(wait_until(lambda: found.exists() and found.read_text()))
        self.refused(2, "is a learner that plays native/catch", "@r/bridge.addr", "--key", "k.node", "--retry-s", "20")
        learner.kill()


if __name__ == "__main__":
    unittest.main()
