"""Runs of older versions (tests/vectors/runs, one archive a version) are played and resumed by this one."""

import json
import tarfile
import unittest

from running import SOURCE, InFolder

LEAST = {"": 450, "_lstm": 0.85}  # mean return: native/cartpole, native/recall


class OldRuns(InFolder):
    def newest(self, run):
        return max((self.folder / run / "checkpoints").glob("0*"))

    def test_play_and_go_on(self):
        archives = sorted((SOURCE / "tests/vectors/runs").glob("*.tar.xz"))
        self.assertTrue(archives)
        for archive in archives:
            with tarfile.open(archive) as file:
                file.extractall(self.folder / archive.name)
            for run in sorted((self.folder / archive.name).iterdir()):
                with self.subTest(version=archive.name, run=run.name):
                    self.check(run, LEAST["_lstm" if run.name.endswith("_lstm") else ""])

    def check(self, run, least):
        played = self.farm("eval", str(run), "--episodes", "20", "--greedy", "--json", "--quiet")
        self.assertEqual(played.returncode, 0, played.stderr)
        self.assertGreaterEqual(json.loads(played.stdout)["return_mean"], least)
        before, lines = self.newest(run), (run / "metrics.jsonl").read_text().splitlines()
        frames = int(before.stem) + 4000
        resumed = self.farm("train", "--run", str(run), "--resume", "--frames", str(frames), "--json", "--quiet")
        self.assertEqual(resumed.returncode, 0, resumed.stderr)
        document = json.loads(resumed.stdout)
        self.assertGreaterEqual(document["frames"], frames)
        self.assertGreater(self.newest(run), before)
        self.assertNotIn("afresh", resumed.stderr)  # parameters and optimiser were read
        after = (run / "metrics.jsonl").read_text().splitlines()
        self.assertEqual(after[: len(lines)], lines)
        self.assertGreater(json.loads(after[-1])["updates"], json.loads(lines[-1])["updates"])


if __name__ == "__main__":
    unittest.main()
