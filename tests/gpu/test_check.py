"""check.py over stub programs: a part that fails does not stop the next ones and shows in the exit status; the end of the time
stops them all; every document that was printed reaches the files; the benchmark `cuda` holds what was measured, in this run
and an earlier one, and names what is missing. A farm that copies observations, a return that is too low and programs of
two builds fail."""

import json
import os
import pathlib
import subprocess
import tarfile
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("FARM_SOURCE", ".")).resolve()
RESULT_KEYS = {"name", "value", "unit", "better", "spread", "reference", "reference_value", "ratio", "target"}
# `farm`: bw, and a training whose return is in a file.
FARM = """here=$(dirname "$0")
if [ "$1" = bw ]; then cat "$here/bw"; [ ! -f "$here/slow" ] || exec sleep 30; exit; fi
while [ $# -gt 0 ]; do [ "$1" = --run ] && run=$2; shift; done
echo 'farm: learner: device cuda: a stub' >&2
[ ! -f "$here/copies" ] || echo "farm: learner: warning: CUDA refuses to register the actors' up segments" >&2
mkdir -p "$run"
for second in 2 4 6; do
    echo "{\\"wall_s\\": $second, \\"actor_wait_share\\": 0.5, \\"learner_wait_share\\": 0.0$second, \\"return_mean\\": ${second}0}"
done >"$run/metrics.jsonl"
printf '{"wall_s": 6, "frames_per_s": 1000, "frames": 100, "updates": 3, "return_mean": %s,' "$(cat "$here/return")"
echo '"environments": 4, "actors": 1, "net": "shallow"}'"""


def document(benchmark, **values):
    rows = [{"name": name, "value": value, "unit": "us", "better": "lower"} for name, value in values.items()]
    return json.dumps({"benchmark": benchmark, "commit": "aaaabbbbcccc", "results": rows})


class Check(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = pathlib.Path(folder.name)
        self.stub("gpu/test_kernels", 'if [ "$1" = --device ]; then echo \'{"gpu": "g", "multiprocessors": 132}\'; exit; fi\n'
                  "echo 'FAIL one'; echo '3 passed, 1 failed'; exit 1")  # fmt: skip
        self.prints("gpu/test_executor", document("cuda_executor", forward_backward_shallow_672=500))
        self.stub("gpu/litmus", "echo no forbidden outcome")
        self.stub("gpu/round_trip", "echo no library >&2; exit 77")
        rows = document("cuda_update", update_deep_full=7, update_deep_window=5, update_deep_off=6)
        self.prints("gpu/update", rows, "echo 'farm: learner: registered 8 pieces of memory, 1.0 MB, in 0.1 s' >&2")
        self.stub("farm", FARM)
        self.stub("libfarm_cuda.so", "")
        self.write(bw='{"results": [{"name": "gpu.h2d.pinned', **{"return": 41})

    def write(self, **files):
        for name, content in files.items():
            (self.build / name).write_text(str(content))

    def stub(self, name, script, commit="aaaabbbbcccc"):
        path = self.build / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/bash\n{script}\nexit\n\0{commit}\0")  # the commit is in it as in a program
        path.chmod(0o755)

    def prints(self, name, content, more=""):
        self.stub(name, f"{more}\necho '{content}'")

    def check(self, status, *parts, seconds=100):
        """Runs parts; their outcomes."""
        out = self.build / "out"
        environment = {**os.environ, "BUILD": str(self.build), "OUT": str(out), "SECONDS_MAX": str(seconds)}
        ran = subprocess.run([SOURCE / "tests/gpu/check.sh", "5", *parts], env=environment, capture_output=True, text=True, timeout=100)
        self.printed = ran.stdout + ran.stderr
        self.assertEqual(ran.returncode, status, self.printed)
        if not (out / "summary.json").exists():
            return {}
        self.summary, self.documents, cuda = (json.loads((out / f"{name}.json").read_text()) for name in ("summary", "gpu", "cuda"))
        self.missing, self.results = cuda["missing"], {result["name"]: result for result in cuda["results"]}
        self.assertEqual(len(self.results) + len(self.missing), 13)
        self.assertTrue(all(RESULT_KEYS <= set(result) for result in cuda["results"]))
        return self.summary["parts"]

    def starts(self, parts, **words):
        for name, word in words.items():
            self.assertEqual(parts[name][: len(word)], word)

    def test_every_part_runs_and_leaves_what_it_printed(self):
        parts = self.check(1, "kernels", "bw", "networks", "round_trip", "litmus")
        self.starts(parts, kernels="failed: status 1", bw_document="failed", networks="passed", litmus="passed", round_trip="not run: no library")
        self.assertNotIn("same_build", parts)
        self.assertEqual([self.summary[key] for key in ("passed", "failed", "unreadable")], [3, 1, ["bw", "round_trip"]])
        [document] = self.documents
        self.assertEqual((document["benchmark"], document["commit"], document["machine"]["gpu"]), ("cuda_executor", "aaaabbbbcccc", "g"))
        self.assertTrue(document["machine"]["cpu"] and document["command"].endswith("test_executor --bench"))
        self.starts(self.missing, gather_28k="part bw has left no")
        self.assertEqual({path.name for path in (self.build / "out").iterdir()}, {"cuda.json", "gpu.json", "logs.tar.gz", "summary.json"})
        with tarfile.open(self.build / "out/logs.tar.gz") as logs:
            self.assertIn(b'{"results": [', logs.extractfile("./bw.json").read())

    def test_the_benchmark_is_of_several_parts_and_of_the_run_before(self):
        self.check(0, "networks")
        # A kernel of 8 blocks takes more than 5 % of 132 multiprocessors.
        rates = {"h2d.pinned": 56, "pull.loads_4": 50, "pull.loads_8": 54, "gather.28224B.one_copy": 50, "gather.28224B.loads": 49, "gather.28224B.batch": 48}
        self.write(bw=document("bw", **{f"gpu.{name}.node0.gpu0": rate for name, rate in rates.items()}))
        trips = {f"actor_round_trip_{name}": len(name) for name in ("smallest", "shallow", "shallow_training")}
        self.prints("gpu/round_trip", document("cuda_round_trip", **trips))
        parts = self.check(1, "update", "bw", "score", "breakout", "resume", "round_trip")
        self.starts(parts, resume="failed: frames is 100, and not 101", score="passed")
        results = self.results
        self.assertEqual([results["gather_28k"][key] for key in ("by", "ratio")], ["gpu.gather.28224B.batch.node0.gpu0", 0.96])
        self.assertEqual((results["train_deep"]["value"], results["train_deep_host"]["value"], results["train_deep_host"]["ratio"]), (7, 6, None))
        self.assertEqual(self.missing["train_shallow"], "part update has left no update_shallow_full")
        self.assertIn("gather_4k", self.missing)
        self.assertEqual([results["breakout_frames_per_s"][key] for key in ("value", "learner_wait_share")], [1000, 0.05])
        self.assertEqual((results["actor_round_trip"]["value"], results["actor_round_trip_smallest"]["target"]), (7, 12))
        score = {row["name"]: row["value"] for document in self.documents if document["part"] == "score" for row in document["results"]}
        self.assertEqual(score["return_reached_s"], 4)
        self.assertAlmostEqual(results["actor_round_trip_training"]["ratio"], 16 / 507)
        self.assertEqual(list(self.summary["registered"]), ["update"])

    def test_a_low_return_a_copy_and_two_builds_fail(self):
        self.write(copies="", **{"return": 39.5})
        self.stub("libfarm_cuda.so", "", "aaaabbbbdddd")
        parts = self.check(1, "score", "breakout")
        refused = "failed: farm: learner: warning: CUDA refuses to register"
        self.starts(parts, score="failed: return_mean is 39.5, and not 40", breakout=refused, same_build="failed: programs and library are of different builds (aaaabbbbcccc aaaabbbbdddd)")
        self.starts(self.missing, breakout_frames_per_s="part breakout failed: farm: learner")

    def test_the_end_of_the_time_stops_all_parts(self):
        self.write(slow="", bw=document("t", **{"gpu.h2d.pinned": 1}).rstrip("]}") + "},")
        parts = self.check(0, "bw", "litmus", seconds=4)
        self.starts(parts, bw="not run: the time was over before its end", litmus="not run: the time is over")
        self.assertEqual([(len(document["results"]), document["cut_short"]) for document in self.documents], [(1, True)])

    def test_unpacks_if_nothing_is_built_or_the_file_is_another_one(self):
        with tarfile.open(self.build / "carry.tar.xz", "w:xz") as tar:
            for name in ("gpu", "farm", "libfarm_cuda.so"):
                tar.add(self.build / name, name)
        for path in (self.build / "gpu").iterdir():
            path.unlink()
        self.check(0, "litmus")
        self.stub("gpu/litmus", "echo older")
        self.check(0, "litmus")
        self.assertIn("\nolder", self.printed)
        with open(self.build / "carry.tar.xz", "ab") as file:
            file.write(bytes(4))
        self.check(0, "litmus")
        self.assertIn("no forbidden outcome", self.printed)

    def test_without_a_gpu_only_the_parts_of_the_cpu_run(self):
        self.check(1, "bw", "nonsense")
        self.stub("gpu/test_kernels", "echo no GPU here; exit 77")
        self.write(bw=document("bw"))
        self.check(77, "bw", "bw_cpu")
        self.starts(self.check(0, "bw_cpu"), bw_cpu="passed")


if __name__ == "__main__":
    unittest.main()
