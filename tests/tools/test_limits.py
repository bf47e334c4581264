"""`farm train` within resource limits: refused at the start with the figures and the setting, or it works."""

import ctypes
import json
import os
import pathlib
import re
import resource
import unittest

from running import FARM, InFolder

SANITIZED = "/asan" in FARM or "/tsan" in FARM
SMALL = ("train", "--env", "native/catch", "--net", "mlp", "--frames", "3000", "--run", "run")
ROOM = ("unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size="$0" none . && cd . && exec "$@"')


def limit(name, most):
    """For `child`: sets the soft and the hard limit."""
    return lambda: resource.setrlimit(name, (most, most))


def soft_limit(name, most):
    return lambda: resource.setrlimit(name, (most, resource.getrlimit(name)[1]))


def refuse_large_pages():
    PR_SET_THP_DISABLE = 41
    ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)


class Limits(InFolder):
    def test_names_the_file_that_exceeds_a_limit(self):
        """A ring is refused with its own size, a checkpoint before the run; a limit above both is not noticed."""
        for most, more, text in (
            (100 << 10, (), r"a ring of 32 steps .*: (\d+) bytes wanted in one file, RLIMIT_FSIZE allows 102400 "),
            (4 << 20, ("--env", "native/breakout", "--algo", "vtrace", "--net", "nature"), r"a checkpoint of net nature: (\d+) bytes wanted in one file"),
        ):
            result = self.farm(*SMALL, *more, child=limit(resource.RLIMIT_FSIZE, most))
            self.assertEqual(result.returncode, 1)
            self.assertRegex(result.stderr, text)
            self.assertGreater(int(re.search(text, result.stderr)[1]), most)
        result = self.farm(*SMALL, child=limit(resource.RLIMIT_FSIZE, 300 << 10))
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(self.folder / "run/metrics.jsonl", "a") as metrics:
            metrics.write("{}\n" * 102400)  # as after days
        result = self.farm(*SMALL, "--frames", "1M", "--seconds", "1", "--resume", child=limit(resource.RLIMIT_FSIZE, 300 << 10))
        self.assertEqual(result.returncode, 0, "SIGXFSZ does not end it")
        self.assertIn("run/metrics.jsonl: File too large: its records are lost from now on", result.stderr)
        self.assertRegex(result.stdout, r"\nmetrics.jsonl lacks \d+ of \d+ records of this session: it could not be written \(File too large\)")

    @unittest.skipIf(SANITIZED, "sanitizers map terabytes")
    def test_a_small_address_space_is_an_error_and_no_crash(self):
        """Whatever allocation fails first; the plan has warned before. How much a run needs depends on the CPU's instructions."""
        errors = ""
        for megabytes in 70, 90, 120, 150, 180:
            result = self.farm(*SMALL, "--run", str(megabytes), child=limit(resource.RLIMIT_AS, megabytes << 20))
            if result.returncode == 0 and megabytes > 120:
                continue
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertNotRegex(result.stderr, "killed by signal|cannot be kept alive")
            self.assertRegex(result.stderr, r"warning: this run may not fit its limits \(estimated: .*RLIMIT_AS allows|ulimit -v")
            errors += result.stderr
        self.assertRegex(errors, r"for the code that oneDNN generates: RLIMIT_AS allows \d+ KiB; raise it")

    @unittest.skipIf(SANITIZED, "sanitizers enlarge frames")
    def test_works_with_small_stacks_or_refuses_them(self):
        result = self.farm(*SMALL, child=limit(resource.RLIMIT_STACK, 256 << 10))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("warning: stacks may have 256 KiB (RLIMIT_STACK): environments", result.stderr)
        result = self.farm(*SMALL, child=limit(resource.RLIMIT_STACK, 128 << 10))
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("stacks may have 128 KiB (RLIMIT_STACK), at least 256 are needed: raise it with `ulimit -s 8192`", result.stderr)
        if resource.getrlimit(resource.RLIMIT_STACK)[1] in (resource.RLIM_INFINITY, 8 << 20):
            result = self.farm("topo", child=soft_limit(resource.RLIMIT_STACK, 128 << 10))
            self.assertEqual((result.returncode, result.stderr), (0, ""), "the soft limit is raised")

    def test_warns_of_more_actors_than_cpus_with_the_lag_that_follows(self):
        """Three windows of ten transitions fit 32 steps, a fourth fills: 768 in six actors' 192 environments, an update takes 32."""
        text = "6 actors on 1 CPU, 6 a CPU: they take turns, and policy lag may reach 24 updates (768 windows wait or fill"
        for more, count in (("--actors", "6"), 1), ((), 0):
            settings = ("--unroll", "10", "--batch", "32", "--ring-steps", "32", "--envs-per-actor", "32", "--lanes", "2")
            cpu = min(os.sched_getaffinity(0))
            result = self.farm(*SMALL, *settings, *more, "--run", str(count), child=lambda: os.sched_setaffinity(0, {cpu}))
            self.assertEqual((result.returncode, result.stderr.count(text), "take turns" in result.stderr), (0, count, count), result.stderr)

    def test_warns_if_the_checkpoints_will_not_fit_the_disk(self):
        for size, warned in ("200k", True), ("20m", False):
            result = self.farm(*SMALL, before=(*ROOM, size))
            if "unshare" in result.stderr or "mount" in result.stderr:
                self.skipTest(f"cannot mount: {result.stderr.strip()}")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual("the file system has 0.2 MB left, this run needs" in result.stderr, warned, result.stderr)

    def test_mentions_base_pages_where_they_cost_and_the_doctor_agrees(self):
        finding = self.pages_in_doctor()
        if int(pathlib.Path("/proc/sys/vm/nr_hugepages").read_text()) or "transparent" not in finding["found"]:
            self.skipTest(f"2 MiB pages are not transparent ones here: {finding}")
        self.assertEqual(finding["grade"], "good")
        finding = self.pages_in_doctor(child=refuse_large_pages)
        self.assertEqual(finding["grade"], "slow")
        result = self.farm(*SMALL, "--ring-steps", "40000", child=refuse_large_pages)
        self.assertEqual(result.returncode, 0, result.stderr)
        said = re.findall(r"warning: (\d+) (MiB of shared memory are in base pages.*measures this machine\))", result.stderr)
        self.assertEqual(len(said), 1, result.stderr)
        self.assertGreater(int(said[0][0]), 64)
        self.assertIn(said[0][1], finding["found"])
        result = self.farm("train", "--env", "native/breakout", "--frames", "100", child=refuse_large_pages)
        self.assertNotIn("2 MiB pages", result.stderr)

    def pages_in_doctor(self, **how):
        findings = json.loads(self.farm("doctor", "--json", FARM_PYTHON="/bin/false", **how).stdout)["findings"]
        return next(finding for finding in findings if finding["name"] == "huge pages")


if __name__ == "__main__":
    unittest.main()
