"""`farm train --device cuda` through the CUDA backend as a library, over a stand-in for the GPU: that the library is found,
opened, trains, writes checkpoints that a CPU reads and goes on from, and what it says when there is no GPU, or none any
more."""

import json
import os
import pathlib
import subprocess
import unittest

from running import FARM, InFolder

STANDIN = pathlib.Path(FARM).parent / "tests" / "tools" / "libfarm_cuda_standin.so"


@unittest.skipUnless(STANDIN.exists(), f"{STANDIN} is not built: CUDA's headers are missing (make deps)")
class Cuda(InFolder):
    def train(self, *arguments, standin="", library=STANDIN):
        environment = {**os.environ, "FARM_CUDA_BACKEND": str(library), "FARM_CUDA_STANDIN": standin}
        return subprocess.run(
            [FARM, "train", "--env", "native/catch", "--run", "r", "--actors", "1", "--json", "--precision", "f32", *arguments],
            cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
        )

    def trained(self, *arguments, **keywords):
        result = self.train(*arguments, **keywords)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout), result.stderr

    def failed(self, *arguments, **keywords):
        result = self.train(*arguments, **keywords)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertNotIn("What to try next", result.stderr)
        return result.stderr

    def checkpoints(self):
        return sorted((self.folder / "r" / "checkpoints").glob("*.safetensors"))

    def test_trains_and_goes_on_with_and_without_a_gpu(self):
        account, said = self.trained("--device", "cuda", "--frames", "20k")
        self.assertIn("CUDA stand-in (a CPU, for tests)", said)
        self.assertIn("registered 2 pieces of memory", said)
        self.assertIn("1.00 times each of the", said)
        self.assertGreater(account["updates"], 10)
        metrics = [json.loads(line) for line in (self.folder / "r" / "metrics.jsonl").read_text().splitlines()]
        self.assertGreater(metrics[-1]["bus_bytes_per_observation"], 0)
        for device in ("cuda", "cpu"):
            before = len(self.checkpoints())
            account, said = self.trained("--device", device, "--resume", "--frames", "40k" if device == "cuda" else "50k")
            self.assertIn("going on from", said)
            self.assertEqual("stand-in" in said, device == "cuda")
            self.assertGreater(len(self.checkpoints()), before)

    def test_learns_catch(self):
        account, _ = self.trained("--device", "cuda", "--frames", "150k", "--mirror", "window")
        self.assertGreater(account["return_mean"], 0)

    def test_says_that_there_is_no_gpu(self):
        self.assertIn("--device cpu", self.failed("--device", "cuda", "--frames", "1k", standin="devices=0"))
        self.assertIn("older than this build", self.failed("--device", "cuda", "--frames", "1k", standin="driver=11080"))

    def test_says_that_the_library_is_missing_or_none(self):
        self.assertIn("libfarm_cuda.so", self.failed("--device", "cuda", "--frames", "1k", library="/nowhere/lib.so"))
        self.assertIn("FARM_CUDA_BACKEND", self.failed("--device", "cuda", "--frames", "1k", library="/nowhere/lib.so"))
        nothing = self.folder / "nothing.so"
        nothing.write_text("no library")
        self.assertIn("does not load", self.failed("--device", "cuda", "--frames", "1k", library=nothing))

    def test_says_what_needs_how_much_memory(self):
        said = self.failed("--device", "cuda", "--frames", "1k", standin="memory=10000000")
        self.assertIn("--infer-batch-max", said)
        self.assertIn("--micro-batch", said)

    def test_goes_on_by_copies_where_registration_is_refused(self):
        account, said = self.trained("--device", "cuda", "--frames", "10k", standin="refuse_registration=1")
        self.assertIn("ulimit -l", said)
        self.assertGreater(account["updates"], 5)

    def test_a_gpu_that_is_lost_ends_the_run_with_a_checkpoint_to_go_on_from(self):
        said = self.failed("--device", "cuda", "--frames", "10M", standin="fall_off_after=6000")
        self.assertIn("the GPU is lost", said)
        self.assertEqual(len(self.checkpoints()), 1, said)
        account, said = self.trained("--device", "cpu", "--resume", "--seconds", "1")
        self.assertIn("going on from", said)


if __name__ == "__main__":
    unittest.main()
