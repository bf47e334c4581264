"""farm bw: its document and tables, two documents compared, invalid documents, signals, wrong usage, pictures."""

import json
import math
import os
import re
import signal
import subprocess
import time
import unittest
import unittest.mock
import xml.etree.ElementTree as ElementTree

from running import InFolder, plant_links, run_farm, wait_until

TINY = ("--size", "small", "--samples", "1")
RESULT = {"name": str, "value": float, "unit": str, "better": str, "spread": float, "cv": float, "samples": int,
          "reference": type(None), "reference_value": type(None), "ratio": type(None), "target": type(None)}
PARTS = ["memory", "latency", "matrix", "mix", "loaded", "cores", "handoff", "pages", "tlb", "ring", "gpu", "network"]


class Bw(InFolder):
    def bw(self, *arguments, status=0):
        result = self.farm("bw", *arguments)
        self.assertEqual(result.returncode, status, result.stderr + result.stdout)
        return result

    def document(self, *arguments):
        return json.loads(self.bw("--json", "--quiet", *arguments).stdout)

    def set_topology(self, topology):
        """Makes hwloc report that machine to farm bw instead of this one."""
        patch = unittest.mock.patch.dict(os.environ, HWLOC_SYNTHETIC=topology, HWLOC_THISSYSTEM="1")
        patch.start()
        self.addCleanup(patch.stop)

    def write(self, name, document):
        path = self.folder / name
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return str(path)


class Document(Bw):
    def check_results(self, document):
        self.assertEqual((document["schema_version"], document["benchmark"]), (1, "bw"))
        for key in ("cpu", "cores", "nodes", "kernel", "gpu"):
            self.assertIn(key, document["machine"])
        names = [result["name"] for result in document["results"]]
        self.assertEqual(len(names), len(set(names)), "a name stands for one figure")
        for result in document["results"]:
            self.assertEqual(list(result), list(RESULT))
            for key, kind in RESULT.items():
                self.assertIsInstance(result[key], kind, f"{result['name']}: {key}")
            self.assertGreater(result["value"], 0)
            self.assertEqual(result["better"], "lower" if result["unit"] == "ns" else "higher")
        self.assertEqual((document["interrupted"], document["error"]), (False, None))

    def test_quick_run(self):
        document = self.document("--quick", "--seconds", "2")
        self.check_results(document)
        self.check_main_table(document)
        self.assertIn("not_measured", document["sections"]["network"])
        for finding in document["fit"]["findings"]:
            self.assertIsInstance(finding["serious"], bool)
            self.assertTrue(finding["text"])

    def check_main_table(self, document):
        """Read, copy and triad, each on one core and on all; what fits into the last-level cache is marked."""
        values = {result["name"]: result["value"] for result in document["results"]}
        memory, cache = document["sections"]["memory"], document["machine"]["l3_bytes"]
        for row, kernel, arrays in zip(memory["rows"], ("read", "copy", "triad"), (1, 2, 3)):
            self.assertEqual(row["kernel"], kernel)
            name = f"memory.{kernel}{'_nt' if row['nontemporal'] else ''}"
            for column, size in (("one_core", "one_core_array_bytes"), ("all_cores", "array_bytes")):
                figure = row[f"{column}_bytes_per_s"]
                self.assertAlmostEqual(values[f"{name}.{column}"], figure["median"] * 1e-9)
                if document["machine"]["l3_groups"] == 1:
                    self.assertEqual(figure["in_cache"], arrays * memory[size] <= cache, (row, memory))

    def test_figures_of_caches_are_marked(self):
        self.set_topology(f"pack:1 [numa] l3:1(size={1 << 30}) core:{max(os.sched_getaffinity(0)) + 1} pu:1")
        self.assertRegex(self.bw("--quick", "--seconds", "0.1").stdout,
                         r"\n  read +sequential +[\d.]+\* +[\d.]+\* +[\d.]+\*\n(.|\n)*\*: the memory used fits into the last-level caches")

    def test_every_part(self):
        document = self.document("--only", ",".join(PARTS), *TINY)
        self.check_results(document)
        sections = document["sections"]
        self.assertEqual(list(sections), PARTS)
        nodes = document["machine"]["nodes"]
        for kind, key in (("latency", "ns"), ("bandwidth", "bytes_per_s")):
            matrix = sections["matrix"][kind]
            self.assertEqual(len(matrix[key]), len(matrix["cpu_nodes"]))
            self.assertTrue(all(len(row) == len(matrix["memory_nodes"]) <= nodes for row in matrix[key]))
            self.assertIn(matrix["conditions"]["placed"], (True, False))
        self.assertEqual([row["mix"] for row in sections["mix"]["rows"]],
                         ["all reads", "3:1", "2:1", "1:1", "triad-like"])
        self.assertEqual([row["pages"] for row in sections["pages"]["rows"]],
                         ["4 KiB", "transparent 2 MiB", "2 MiB", "1 GiB"])
        for row in sections["pages"]["rows"]:
            self.assertNotEqual(row["available"], bool(row["reason"]), row)
        for row in sections["memory"]["rows"]:
            self.assertGreaterEqual(row["bus_bytes_per_program_byte"], 1)
            self.assertGreater(row["all_cores_bytes_per_s"]["median"], 0)
        rungs = sections["latency"]["ladder"]
        self.assertEqual([rung["bytes"] for rung in rungs], sorted(rung["bytes"] for rung in rungs))
        if len(sections["handoff"]["cpus"]) > 1:
            self.assertIn(28224, [row["payload_bytes"] for row in sections["ring"]["rates"]])

    def test_tables_and_progress(self):
        result = self.bw("--only", "memory,handoff,gpu", *TINY)
        self.assertRegex(result.stdout, r"one core +all cores +on the bus\n +read +sequential +[\d.]+\*? +[\d.]+\*? +[\d.]+\*?\n")
        self.assertRegex(result.stdout, r"GPU(: (none here|not measured)| \d+): ")
        self.assertNotIn("\x1b", result.stdout + result.stderr, "no terminal: no colours, no redrawn line")
        self.assertRegex(result.stderr, r"1 of 3: memory: (.|\n)*2 of 3: handoff: (.|\n)*3 of 3: gpu: ")
        self.assertEqual(self.bw("--only", "gpu", "--quiet").stderr, "")

    def test_warns_of_other_load_first(self):
        burners = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(2)]
        for burner in burners:
            self.addCleanup(burner.communicate)
            self.addCleanup(burner.kill)
        time.sleep(0.2)
        self.assertRegex(self.bw("--only", "gpu").stdout, r"\AWARNING: Others took [\d.]+ CPUs")
        findings = self.document("--only", "gpu")["fit"]["findings"]
        self.assertIn(("load", True), [(finding["name"], finding["serious"]) for finding in findings])

    def pictures(self, folder, *arguments):
        """The document's "pictures", after they are compared with the folder and with stderr."""
        result = self.farm("bw", *TINY, "--seconds", "3", "--svg", folder, "--json", *arguments)
        if result.returncode:
            self.assertEqual((result.returncode, result.stdout), (2, ""), "refused before it measures")
            self.assertRegex(result.stderr, r"--svg: No module named .matplotlib.*: run `make deps`, or \S+ -m pip install matplotlib\n")
            self.skipTest("pictures are NOT tested: no matplotlib")
        pictures = json.loads(result.stdout)["pictures"]
        self.assertEqual(sorted(pictures["files"]), sorted(f"{folder}/{path.name}" for path in (self.folder / folder).iterdir()))
        self.assertEqual(re.findall("written: (.+)\n", result.stderr), pictures["files"])
        reasons = {name: skipped["reason"] for skipped in pictures["skipped"] for name in skipped["pictures"]}
        for name, reason in reasons.items():
            self.assertRegex(result.stderr, rf"no picture of [\w, ]*{name}[\w, ]*: {re.escape(reason)}\n")
        return pictures["files"], reasons

    def test_pictures(self):
        (self.folder / "a/b").mkdir(parents=True)
        victim = plant_links(self.folder, "a/b/bw.json", "a/b/ladder.svg")
        files, reasons = self.pictures("a/b", "--only", "latency,matrix,loaded,cores", "--cpus", "0")
        self.assertEqual((files[:2], victim.read_text()), (["a/b/bw.json", "a/b/ladder.svg"], "as it was"))
        self.assertEqual(ElementTree.parse(self.folder / files[1]).getroot().tag, "{http://www.w3.org/2000/svg}svg")
        self.assertIn("needs two cores", reasons["loaded"])
        self.assertEqual(reasons["cores"], "there is one figure only", "no empty picture")
        self.assertIn("not measured", reasons["ring"])

    def test_pictures_of_a_quick_run(self):
        files, reasons = self.pictures("q", "--quick", "--cpus", "0")
        self.assertEqual((files, "--quick" in reasons["loaded"]), (["q/bw.json"], True))


class Compare(Bw):
    @classmethod
    def setUpClass(cls):
        cls.measured = run_farm("bw", "--json", "--quick", "--only", "memory", *TINY).stdout

    def setUp(self):
        super().setUp()
        self.then = json.loads(self.measured)
        self.file = self.write("then.json", self.then)

    def compare(self, now):
        printed = self.bw("--compare", self.file, self.write("now.json", now)).stdout
        return printed, json.loads(self.bw("--json", "--compare", self.file, "now.json").stdout)["compare"]

    def test_a_document_with_itself(self):
        printed, compare = self.compare(self.then)
        self.assertEqual([figure["name"] for figure in compare["figures"]],
                         [result["name"] for result in self.then["results"]])
        for figure in compare["figures"]:
            self.assertEqual((figure["ratio"], figure["change"]), (1, "same"))
        self.assertRegex(printed, r"memory.read.one_core +[\d.]+ +[\d.]+ GB/s +1\.000")

    def test_marks_what_changed_beyond_both_spreads(self):
        del self.then["results"][4:]
        now = json.loads(json.dumps(self.then))
        self.then["results"].append({**now["results"][0], "name": "gone"})
        for result, factor, spread, before in zip(now["results"], (2, 0.5, 1.05, 1.05), (0.01, 0.01, 0.2, 0.01), self.then["results"]):
            before["spread"] = 0.01
            result["value"], result["spread"] = before["value"] * factor, spread
        now["results"][3]["better"] = "lower"
        now["results"].append({**now["results"][0], "name": "new"})
        self.write("then.json", self.then)
        printed, compare = self.compare(now)
        self.assertEqual([figure["change"] for figure in compare["figures"]], ["better", "worse", "same", "worse"])
        self.assertAlmostEqual(compare["figures"][0]["ratio"], 2)
        self.assertEqual((compare["only_then"], compare["only_now"]), (["gone"], ["new"]))
        self.assertRegex(printed, r"2\.000  better\n.* 0\.500  worse\n.* 1\.050  \n.* 1\.050  worse\n")

    def test_a_measurement_with_a_document(self):
        document = self.document("--quick", "--only", "memory", *TINY, "--compare", self.file)
        self.assertEqual(len(document["compare"]["figures"]), len(document["results"]))
        for figure, now, then in zip(document["compare"]["figures"], document["results"], self.then["results"]):
            ratio = now["value"] / then["value"]
            self.assertAlmostEqual(figure["ratio"], ratio, delta=1e-7 * ratio)  # documents have nine digits

    def test_refuses_invalid_documents(self):
        text = json.dumps(self.then)
        first = dict(self.then["results"][0])
        broken = {
            "cut": text[: len(text) // 2], "empty": "", "null": "null", "list": "[]", "another": '{"benchmark": "ring"}',
            "version": {**self.then, "schema_version": "1"}, "newer": {**self.then, "schema_version": 2},
            "no results": {**self.then, "results": []}, "results": {**self.then, "results": {"a": 1}},
            "many": {**self.then, "results": [first] * 50001},
            "deep": "[" * 100000, "bytes": "\x00\x01{}", "huge": " " * (17 << 20),
        }
        wrong = {"value": ("1", None, 0, -1, True), "name": ("", 3, "a\x1b[31m", "x" * 1000, "a\x00b"), "unit": (None, "\n"),
                 "spread": ("0", -1, []), "better": ("more", None)}
        for key, values in wrong.items():
            for value in values:
                broken[f"{key} {str(value)[:8]!r}"] = {**self.then, "results": [{**first, key: value}]}
        for what, document in broken.items():
            with self.subTest(what):
                result = self.bw("--compare", self.write("broken.json", document), self.file, status=2)
                self.assertRegex(result.stderr, r"\Afarm bw: .*broken\.json.*\n\Z")
                self.assertNotIn("\x1b", result.stderr)
        for missing in ("nowhere.json", "."):
            self.assertIn(missing, self.bw("--compare", missing, status=2).stderr)

    def test_refuses_before_it_measures(self):
        result = self.bw("--full", "--compare", self.write("broken.json", "{"), status=2)
        self.assertEqual(result.stdout, "")
        self.assertNotRegex(result.stderr, r"\d+ of \d+: ", "a part was begun")


class Signals(Bw):
    def stop(self, number, part, *arguments):
        """What it prints if the signal comes in that part."""
        log = self.folder / "log"
        with open(log, "w") as stream:
            process = self.start_farm("bw", "--size", "small", "--seconds", "300", "--samples", "32", *arguments, stderr=stream)
        self.assertTrue(wait_until(lambda: f": {part}: " in log.read_text()), log.read_text())
        time.sleep(0.3)
        process.send_signal(number)
        out, _ = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 0, log.read_text())
        return out

    def test_print_the_figures_so_far(self):
        alone = len(os.sched_getaffinity(0)) == 1  # then there is no ring to measure
        for number, part in ((signal.SIGINT, "pages"), (signal.SIGTERM, "pages" if alone else "ring")):
            document = json.loads(self.stop(number, part, "--json", "--only", f"handoff,{part},network"))
            self.assertTrue(document["interrupted"])
            self.assertIsNone(document["error"])
            self.assertEqual(list(document["sections"]), ["handoff", part])
            self.assertLessEqual({result["name"].split(".")[0] for result in document["results"]}, {"handoff", part})
            if len(document["sections"]["handoff"]["cpus"]) > 1:
                self.assertEqual(document["results"][0]["name"].split(".")[0], "handoff")
        printed = self.stop(signal.SIGINT, "latency", "--only", "latency,network")
        self.assertRegex(printed, r"Idle latency of memory: (.|\n)*\nStopped by a signal")


class Environment(Bw):
    def test_ceilings_and_the_share_of_farm_fps(self):
        fps = {"env": "native/breakout", "frames_per_s": 1e6, "ring_bytes": 1e6}
        document = self.document("--env", "native/breakout", "--fps-json", self.write("fps.json", fps), *TINY)
        section = document["sections"]["env"]
        self.assertEqual((section["obs_bytes"], section["frames_per_step"]), (84 * 84, 1))
        written, read, trained = section["ceilings"]
        self.assertEqual([ceiling["host_reads"] for ceiling in (written, read, trained)], [0, 1, 2])
        self.assertGreater(read["frames_per_s"], trained["frames_per_s"])
        bandwidth = section["all_cores_bytes_per_s"]["half_reads_half_writes"]["median"]
        self.assertTrue(math.isclose(read["agent_steps_per_s"], bandwidth / (2 * 84 * 84), rel_tol=0.02))
        self.assertAlmostEqual(written["farm_fps_share"], 1e6 / written["frames_per_s"], places=6)
        self.assertIsNone(read["farm_fps_share"], "farm fps reads no observation")

    def test_runs_farm_fps(self):
        section = self.document("--env", "native/catch", "--seconds", "1", *TINY)["sections"]["env"]
        self.assertGreater(section["farm_fps_frames_per_s"], 0)

    def test_refuses_another_environments_run(self):
        fps = self.write("fps.json", {"env": "native/catch", "frames_per_s": 1})
        self.assertIn("native/catch", self.bw("--env", "native/breakout", "--fps-json", fps, *TINY, status=2).stderr)
        for text in ("{}", "[", '{"env": 3}', '{"env": "native/catch", "frames_per_s": "1"}'):
            self.bw("--env", "native/catch", "--fps-json", self.write("fps.json", text), *TINY, status=2)
        self.assertIn("native/catch", self.bw("--env", "native/cacth", *TINY, status=2).stderr)


class Usage(Bw):
    def test_help(self):
        text = self.bw("--help").stdout
        for word in ("--compare", "farm bw --env ale/Pong", "docs/BANDWIDTH.md", "1e9 bytes", *PARTS):
            self.assertIn(word, text)

    def test_uses_only_the_given_cpus(self):
        document = self.document("--cpus", "0", "--only", "memory,handoff", *TINY)
        self.assertEqual((document["machine"]["cpus"], document["sections"]["memory"]["cores"]), ("0", 1))
        self.assertEqual(document["sections"]["handoff"]["ns"], [[None]])
        self.assertTrue(re.search("CPU", document["sections"]["handoff"]["conditions"]["note"]))


if __name__ == "__main__":
    unittest.main()
