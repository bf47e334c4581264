"""The comparisons with other people's systems (bench/peers), without those systems: turns, choices, counts, failures."""

import contextlib
import io
import json
import os
import pathlib
import re
import stat
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

SOURCE = pathlib.Path(os.environ.get("FARM_SOURCE", "."))
PEERS = SOURCE / "bench/peers"
REQUIREMENTS = SOURCE / "tools/build/peers"
sys.path.insert(0, str(PEERS))

import common  # noqa: E402
import numpy as np  # noqa: E402
import table  # noqa: E402
import transport  # noqa: E402
import vector_env  # noqa: E402

KEYS = {"name", "value", "unit", "better", "spread", "reference", "reference_value", "ratio", "target"}


class Side:
    """Keeps what happens in `events`; a rate of 0 is refused."""

    def __init__(self, name, rate, events):
        self.name, self.value, self.events = name, rate, events
        self.command, self.open = ["farm", "fps"], True

    def rate(self, seconds):
        if self.value == 0:
            raise ValueError("no such setting")
        self.events.append(self.name)
        return self.value

    def median_of(self, key):
        return None

    def close(self):
        assert self.open, "closed once"
        self.open = False


def comparison(rates, ours=100.0, name="peer", **more):
    """Of a peer with one setting for each rate; also the events and the peers opened."""
    events, opened = [], []

    def open_peer(setting):
        opened.append(Side(f"theirs {setting['n']}", rates[setting["n"]], events))
        return opened[-1]

    made = common.Comparison(
        name=name, reference="Peer 1.0", ours=Side("ours", ours, events), open=open_peer,
        settings=[{"n": n} for n in range(len(rates))], delivers="arrays", **more,
    )
    return made, events, opened


def quiet(function, *arguments):
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        return function(*arguments), said.getvalue()


class Turns(unittest.TestCase):
    def test_meets_the_peer_at_its_best(self):
        made, _, opened = comparison([10, 0, 50, 40, 20, 30], target=1.5)
        result, said = quiet(common.compare, made, 1, 5)
        self.assertLessEqual(KEYS, set(result))
        self.assertEqual((result["setting"], result["value"], result["reference_value"]), ("n=2", 100, 50))
        self.assertEqual((result["ratio"], result["target"], result["rounds"]), (2.0, 1.5, 5))
        self.assertEqual([tried["rate"] for tried in result["settings_tried"]], [10, None, 50, 40, 20, 30])
        self.assertIn("n=1: ValueError: no such setting", said)
        self.assertFalse([peer.name for peer in opened if peer.open], "all are closed")
        self.assertEqual(len(opened), 6, "each setting is started once")

    def test_interleaves_and_changes_who_begins(self):
        made, events, _ = comparison([10])
        quiet(common.compare, made, 1, 4)
        turns = events[-12:]  # theirs warms up before each turn
        self.assertEqual(turns, ["ours", "theirs 0", "theirs 0", "theirs 0", "theirs 0", "ours"] * 2)

    def test_spread_is_relative_and_between_quartiles(self):
        self.assertEqual(common.spread_of([100.0]), 0)
        self.assertAlmostEqual(common.spread_of([90.0, 95.0, 100.0, 105.0, 1000.0]), 0.1)

    def test_one_failure_does_not_stop_the_others(self):
        def make(build):
            yield comparison([0, 0], name="refuses")[0]
            yield comparison([10], name="runs")[0]

        with tempfile.TemporaryDirectory() as folder:
            make_stub(folder, "print('farm abc123')")
            out = pathlib.Path(folder, "peers.json")
            status, said = quiet(common.run, make, "about", [folder, "--json", str(out), "--seconds", "1"])
            document = json.loads(out.read_text())
        self.assertEqual(status, 1)
        self.assertIn("FAILED refuses: theirs ran with none of the settings", said)
        self.assertEqual([result["name"] for result in document["results"]], ["runs"])
        self.assertEqual((document["benchmark"], document["commit"]), ("peers", "abc123"))
        self.assertEqual(document["machine"]["cores"], len(os.sched_getaffinity(0)))


def make_stub(folder, body):
    path = pathlib.Path(folder, "farm")
    path.write_text(f"#!{sys.executable}\nimport sys\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


class OurSide(unittest.TestCase):
    def test_reads_what_the_farm_prints(self):
        with tempfile.TemporaryDirectory() as folder:
            make_stub(folder, "import json; print(json.dumps({'agent_steps_per_s': 7, 'asked': sys.argv}))")
            farm = common.farm_fps(folder, "ale/Pong")
            self.assertEqual(farm.rate(0.5), 7.0)
        asked = farm.said[0]["asked"]
        self.assertEqual(asked[1:4], ["fps", "--env", "ale/Pong"])
        self.assertAlmostEqual(float(asked[asked.index("--seconds") + 1]), 0.5)

    def test_says_why_the_farm_ended(self):
        with tempfile.TemporaryDirectory() as folder:
            make_stub(folder, "print('progress', file=sys.stderr); sys.exit('no such environment')")
            with self.assertRaisesRegex(common.Unavailable, "ended with 1: no such environment"):
                common.farm_fps(folder, "ale/Pong").rate(0.5)
        with self.assertRaises(common.Unavailable):
            common.farm_fps("nowhere", "ale/Pong").rate(0.5)


class FakeVector(vector_env.Loop):
    """Every `period`-th batch ends an episode of its first environment; the batch after it begins the next."""

    def __init__(self, period, changes=True):
        super().__init__(np.zeros((vector_env.ACTION_ROWS, 2)), (3,), np.uint8)
        self.batches, self.period, self.changes = 0, period, changes

    def receive(self):
        self.batches += 1
        ended = np.array([self.batches % self.period == 0, False])
        observations = np.array([[0, self.batches % 251 if self.changes else 1, 2]] * 2, np.uint8)
        return observations, np.zeros(2), ended, np.zeros(2, bool), None

    def send(self, actions, token):
        pass


class Counting(unittest.TestCase):
    def test_resets_are_no_steps(self):
        fake = FakeVector(period=4)
        times = iter(range(10**6))
        with unittest.mock.patch("vector_env.time.perf_counter", lambda: next(times)):
            rate = fake.rate(400)  # a batch a second
        self.assertAlmostEqual(rate, 2 - 1 / 4, places=2)

    def test_observations_must_change(self):
        with self.assertRaisesRegex(RuntimeError, "do not change"):
            FakeVector(period=4, changes=False).rate(0.01)

    def test_all_environments_start_before_the_clock(self):
        fake = FakeVector(period=4)
        fake.start(50)
        self.assertGreaterEqual(2 * fake.batches, 50)


class Table(unittest.TestCase):
    def test_joins_documents_and_says_what_each_delivers(self):
        machine = {"cpu": "C", "cores": 2, "nodes": 1, "kernel": "6", "gpu": None}
        document = {"schema_version": 1, "benchmark": "peers", "commit": "abc", "machine": machine}
        results = [quiet(common.compare, comparison([rate], name=name, target=1.5)[0], 1, 1)[0]
                   for name, rate in (("slow", 50), ("fast", 80))]
        printed = io.StringIO()
        with tempfile.TemporaryDirectory() as folder:
            paths = [pathlib.Path(folder, str(i)) for i in range(2)]
            for path, result in zip(paths, results):
                path.write_text(json.dumps({**document, "results": [result]}))
            kept = pathlib.Path(folder, "kept.json")
            with contextlib.redirect_stdout(printed):
                table.main(["--results", str(kept), *map(str, paths)])
            (joined,) = json.loads(kept.read_text())
        self.assertEqual([result["name"] for result in joined["results"]], ["slow", "fast"])
        self.assertRegex(printed.getvalue(), r"slow +100 agent steps/s +0\.0% +50 +0\.0% +2\.00 +≥ 1\.5 +met +Peer 1\.0 +n=0")
        self.assertRegex(printed.getvalue(), r"fast .* 1\.25 +≥ 1\.5 +MISSED")
        self.assertIn("slow, fast: Peer 1.0 delivers arrays; ours lanes", printed.getvalue())


class Transport(unittest.TestCase):
    def test_sides_get_two_cores(self):
        pairs = [{0, 1}, {2, 3}]
        of = lambda cpu: next(pair for pair in pairs if cpu in pair)  # noqa: E731
        self.assertEqual(transport.two_cpus({0, 1, 2, 3}, of), (0, 2))
        self.assertEqual(transport.two_cpus({2, 3}, of), (2, 3), "two threads of one core, where there is no other")
        with self.assertRaisesRegex(common.Unavailable, "two CPUs"):
            transport.two_cpus({5}, of)

    def test_a_step_is_round_trips_a_second_and_a_throughput_is_steps(self):
        line = {"round_trip_p50_ns": 2000, "round_trip_p99_ns": 3000, "steps_per_s": 7.0, "cpu_s_per_million_steps": 1.5}
        with tempfile.TemporaryDirectory() as folder:
            make_stub(folder, f"print({json.dumps(line)!r}); print(sys.argv, file=sys.stderr)")
            step = transport.Program(folder, "farm", "step_sleeping_summed", (0, 1))
            throughput = transport.Program(folder, "farm", "throughput", (0, 1), ["--free-threads"])
            self.assertEqual((step.rate(0.5), throughput.rate(0.5)), (500000.0, 7.0))
            make_stub(folder, "sys.exit('an observation: wrong')")
            with self.assertRaisesRegex(common.Unavailable, "farm ended with 1: an observation: wrong"):
                step.rate(0.5)
        self.assertEqual(step.command[1:], ["--sleep", "--sum", "--cpus", "0,1"])
        self.assertEqual(throughput.command[1:], ["--in-flight", "16", "--cpus", "0,1", "--free-threads"])
        further = transport.more(step, throughput)
        self.assertEqual((further["cpu_s_per_million_steps"], further["reference_round_trip_p50_ns"]), (1.5, 2000))

    def test_every_transport_has_every_mode_and_its_program(self):
        made = list(transport.comparisons("folder", (0, 1)))
        names = [comparison.name for comparison in made]
        self.assertEqual(len(names), len(transport.PEERS) * len(transport.MODES))
        self.assertLessEqual(set(transport.TARGETS), set(names))
        sources = {path.stem for path in (PEERS / "transport").glob("*.c*")}
        self.assertEqual(sources, set(transport.PEERS) | {"lane"})
        alone = next(comparison for comparison in made if comparison.name == "pipe_step")
        self.assertEqual(len(alone.settings), 1, "a pipe has nothing to set")
        self.assertEqual(transport.in_words(["--free-threads", "--stream"]), "library's threads anywhere, stores past the caches")

    def test_ours_takes_what_has_served_a_mode_best(self):
        history = {"throughput": [[1.0], [1.5], [1.7, 0.1]]}  # of each setting; medians 1.0, 1.5, 0.9
        with tempfile.TemporaryDirectory() as folder:
            make_stub(folder, "print('{\"steps_per_s\": %d, \"round_trip_p50_ns\": 1}' % (2 if '64' in sys.argv and '--stream' not in sys.argv else 1))")
            pathlib.Path(folder, "farm").rename(pathlib.Path(folder, "lane"))
            first, second = (transport.Lane(folder, "throughput", (0, 1), history) for _ in range(2))
            self.assertEqual((first.rate(0.1), second.rate(0.1)), (2.0, 2.0))
        self.assertEqual([len(rates) for rates in history["throughput"]], [3, 3, 4], "each turn tries all")
        self.assertEqual((len(first.said), transport.in_words(second.command)), (1, "rings of 64 steps"))

    def test_programs_that_need_no_package_move_steps(self):
        names = ["lane", "pipe", "unix_socket"]
        with tempfile.TemporaryDirectory() as folder:
            targets = [str(pathlib.Path(folder, name)) for name in names]
            build = pathlib.Path(os.environ.get("FARM_BUILD", "build")).resolve()
            subprocess.run(
                ["make", "-s", "-C", str(PEERS / "transport"), f"BUILD={build}", f"OUT={folder}", *targets], check=True
            )
            try:
                cpus = transport.two_cpus(os.sched_getaffinity(0))
            except common.Unavailable as error:
                self.skipTest(str(error))
            for name in names:
                for mode in ("step_summed", "step_sleeping", "throughput_summed", "throughput_sleeping_summed"):
                    program = transport.Program(folder, name, mode, cpus)
                    self.assertGreater(program.rate(0.02), 0, f"{name} {mode}")
                    self.assertGreater(program.median_of("cpu_s_per_million_steps"), 0)

    def test_the_table_says_what_the_steps_cost(self):
        result = {"name": "pipe_step", "cpu_s_per_million_steps": 2.0, "reference_cpu_s_per_million_steps": 30.0}
        self.assertEqual(
            table.processor_time([result, {"name": "other"}]), ["pipe_step: 2 CPU s a million steps, theirs 30"]
        )


class Packages(unittest.TestCase):
    def test_every_comparison_names_a_peer_with_pinned_packages(self):
        named = {}
        for script in PEERS.glob("*.py"):
            for peer in re.findall(r"^# peer: (.+)$", script.read_text(), re.M):
                named[peer] = script.name
        self.assertEqual(set(named), {path.name.removesuffix("-requirements.txt") for path in REQUIREMENTS.iterdir()})
        for path in REQUIREMENTS.iterdir():
            text = path.read_text()
            self.assertRegex(text, r"(?m)^# size: ")
            for line in text.splitlines():
                if line and not line.startswith("#"):
                    self.assertRegex(line, r"^[\w.-]+==[\w.]+( *;.*)?$", path.name)
            for below in re.findall(r"^# on top of: (.+)$", text, re.M):
                self.assertTrue((REQUIREMENTS / f"{below}-requirements.txt").exists())

    def test_ale_is_the_same_on_both_sides(self):
        ours = re.search(r"^ale-py==.*$", (SOURCE / "python/requirements.txt").read_text(), re.M).group()
        for peer in ("ale", "gymnasium", "sample-factory"):
            self.assertIn(ours, (REQUIREMENTS / f"{peer}-requirements.txt").read_text().splitlines())

    def test_an_unknown_name_is_refused_with_those_there_are(self):
        with tempfile.TemporaryDirectory() as folder:
            result = subprocess.run(
                ["tools/build/peers.sh", "envpol"], cwd=SOURCE, env={**os.environ, "BUILD": folder}, capture_output=True,
                text=True, timeout=60,
            )
            self.assertEqual(list(pathlib.Path(folder).iterdir()), [], "nothing is installed")
        self.assertEqual(result.returncode, 2)
        self.assertRegex(result.stderr, r"envpool_farm +envpool")


if __name__ == "__main__":
    unittest.main()
