"""`farm report`: one document and one page of the parts' own figures, without what names this machine."""

import json
import pathlib
import re
import resource
import socket
import tempfile
import unittest

from running import plant_links, run_farm

KERNELS = ("/proc", "/sys", "/dev")


def strings(value):
    if isinstance(value, dict):
        for member in value.values():
            yield from strings(member)
    elif isinstance(value, list):
        for member in value:
            yield from strings(member)
    elif isinstance(value, str):
        yield value


class Report(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        timed = ("--env", f"native/catch,native/cacth,plugin:{cls.folder}/a.so,plugin:/proc/a.so", "--seconds", "0.5")
        cls.plain = cls.document("--no-fps", "--no-bw", "--host")
        cls.timed = cls.document("--no-bw", *timed, FARM_PYTHON="false")  # Python's environments take long
        cls.victim = plant_links(cls.folder, "report.md")
        cls.printed = cls.report("--out", "report.md", *timed[:1], "native/catch,native/cacth", *timed[2:])
        cls.page = (cls.folder / "report.md").read_text()
        cls.doctor = json.loads(run_farm("doctor", "--json", folder=cls.folder).stdout)

    @classmethod
    def report(cls, *arguments, **environment):
        result = run_farm("report", *arguments, folder=cls.folder, **environment)
        assert result.returncode == 0, result.stderr
        return result.stdout

    @classmethod
    def document(cls, *arguments, **environment):
        return json.loads(cls.report("--json", *arguments, **environment))

    def test_has_the_documents_of_its_parts(self):
        self.assertEqual((self.plain["schema_version"], self.plain["fps"], self.plain["failed"]), (1, [], []))
        plain = self.plain
        for _ in range(10):  # until no farm of another test claims or releases CPUs in between
            topo = json.loads(run_farm("topo", "--json", folder=self.folder).stdout)
            if plain["topo"]["plan"] == topo["plan"]:
                break
            plain = self.document("--no-fps", "--no-bw", "--host")
        self.assertEqual(plain["topo"]["plan"], topo["plan"])
        self.assertEqual(self.plain["topo"]["machine"]["cpus"], topo["machine"]["cpus"])
        self.assertEqual(self.plain["doctor"]["can_run"], self.doctor["can_run"])
        names, wanted = ([f["name"] for f in d["findings"]] for d in (self.plain["doctor"], self.doctor))
        self.assertEqual(names, wanted)

    def test_times_environments_and_names_those_that_fail(self):
        (fps,) = self.timed["fps"]
        self.assertEqual(fps["env"], "native/catch")
        self.assertGreater(fps["agent_steps_per_s"], 0)
        self.assertGreater(fps["bare_agent_steps_per_s"], 0)
        misspelt, plugin, kernels = self.timed["failed"]
        self.assertEqual(misspelt["part"], "fps native/cacth")
        self.assertIn("native/catch", misspelt["reason"], "farm fps's own message, with the nearest name")
        self.assertEqual(plugin["part"], "fps plugin:PATH")
        self.assertRegex(plugin["reason"], r"PATH: No such file")
        self.assertEqual(kernels["part"], "fps plugin:/proc/a.so", "the kernel's files are the same everywhere")

    def test_page_has_the_same_figures(self):
        self.assertEqual((self.printed, self.victim.read_text(), (self.folder / "report.md").is_symlink()), ("", "as it was", False))
        self.assertIn(run_farm("topo", folder=self.folder).stdout.splitlines()[1], self.page)
        self.assertRegex(self.page, r"\| native/catch \| \d+ \| \d+ \| \d+\.\d+ \|")
        self.assertRegex(self.page, r"## How fast memory is [^#]*\| memory.read.all_cores \| [\d.]+ \| GB/s \|\n")
        self.assertIsNone(self.plain["bw"])
        self.assertRegex(self.page, r"## What failed\n\n- fps native/cacth: ")
        for finding in self.doctor["findings"]:
            self.assertIn(f"| {finding['grade']} | {finding['name']} |", self.page)

    def test_a_report_stays_until_the_next_one_is_complete(self):
        old = self.folder / "old.md"
        old.write_text("old")
        result = run_farm("report", "--no-fps", "--no-bw", "--out", "old.md", folder=self.folder, child=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)))
        self.assertEqual((result.returncode, old.read_text()), (1, "old"), result.stderr)
        self.assertEqual(list(self.folder.glob("old.md.*")), [])

    def test_contains_neither_paths_nor_the_name_of_the_machine(self):
        for text in [self.page, *strings(self.plain), *strings(self.timed)]:
            self.assertNotIn(str(self.folder), text)
            for path in re.findall(r"(?:^|[\s'\"`(=:])(/[\w.][^\s'\"`),;|]*)", text):
                self.assertTrue(path.startswith(KERNELS), f"{path} names a place on this machine: {text}")
        self.assertNotIn("host", self.timed)
        self.assertEqual(self.plain["host"], socket.gethostname())


if __name__ == "__main__":
    unittest.main()
