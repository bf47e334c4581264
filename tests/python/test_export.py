"""farm export: onnxruntime computes what a farm that plays the policy stores in its lanes; bad input; the example of docs/PYTHON.md."""

import contextlib
import io
import json
import os
import pathlib
import re
import resource
import shlex
import subprocess
import sys
import unittest

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tools"))
import actorfarm  # noqa: E402
from actorfarm import checkpoint  # noqa: E402
from lanes import compare_exported, play_shaken  # noqa: E402
from running import SOURCE, InFolder  # noqa: E402

try:
    import onnx
    import onnxruntime
except ImportError as missing:
    raise unittest.SkipTest(f"exported policies are NOT tested: {missing}") from None
NET = "conv 8@3x3/2 norm silu, 12@2x2/1 same elu, pool, residual, norm, residual tanh, dense 32 silu"
OPERATORS = set("Add ArgMax Cast Clip Concat Conv Div Elu Equal Flatten Gemm LayerNormalization MaxPool Relu Sigmoid Split Tanh Transpose Where".split())
CASES = (
    f"native/juggle --net '{NET}' --lstm 8 --lstm-layers 2 --normalise-observations true --stack 2",
    "native/menu --net 'dense 32 norm elu, none, 16'",
    "mujoco/Swimmer-v5 --net separate --squash true --sigma state --normalise-observations true",
    "mujoco/Pusher-v5 --last-inputs true",
    "native/catch --algo dqn --replay 2000 --replay-start 100",
)


class Exports(InFolder):
    def test_outputs_are_a_farms(self):
        operators = set()
        for i, case in enumerate(CASES):
            with self.subTest(case):
                done = self.farm("train", "--env", *shlex.split(case), *f"--actors 1 --frames 100 --run r{i} --quiet".split())
                self.assertEqual(done.returncode, 0, done.stderr)
                file, *played = play_shaken(self, f"r{i}")
                made = actorfarm.export(file, self.folder / "p.onnx")
                compare_exported(self, onnxruntime.InferenceSession(made["file"]), *played, 2 if "--stack" in case else 1)
                operators |= {node.op_type for node in onnx.load(made["file"]).graph.node}
        self.assertEqual(OPERATORS - operators, set())

    def test_the_example_of_the_documents_plays_what_the_command_writes(self):
        self.farm(*"train --env native/cartpole --actors 1 --frames 100 --run r --quiet".split())
        tensors, about = checkpoint.read(self.folder / "r")
        checkpoint.write(self.folder / "c.safetensors", tensors, {**about, "spaces": about["spaces"].replace('"state"', '"obs"')})  # gym/CartPole-v1's
        (self.folder / "policy.onnx").write_text("another")
        made = self.farm("export", "c.safetensors", "-o", "policy.onnx", "--json")
        self.assertEqual((made.returncode, made.stderr), (0, ""))
        document, kept = json.loads(made.stdout), {entry.key: entry.value for entry in onnx.load(self.folder / "policy.onnx").metadata_props}
        self.assertEqual((document["bytes"], document["inputs"]), ((self.folder / "policy.onnx").stat().st_size, {"obs": ["float32", 4]}))
        self.assertEqual((kept["env"], kept["frames"]), ("native/cartpole", about["frames"]))
        (example,) = re.findall(r"```python\n(import gymnasium.*?policy\.onnx.*?)```", (SOURCE / "docs/PYTHON.md").read_text(), re.S)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(example, {})
        self.assertGreaterEqual(float(printed.getvalue()), 8)

    def test_what_cannot_be_exported_or_written_leaves_nothing(self):
        (self.folder / "text").write_text("no checkpoint")
        (self.folder / "folder").mkdir()
        spaces = '{"obs":[{"name":"x","dtype":"f32","dims":[5],"choices":0}],"action":{"kind":"discrete","sizes":[3]}}'
        checkpoint.write(self.folder / "c", {"policy.weight": np.zeros((3, 64), "f4")}, {"spaces": spaces, "recipe.net": "mlp"})
        before = sorted(self.folder.iterdir())
        for line, words in ("", "which run"), ("text", "which file"), ("text -o p", "no safetensors file"):
            done = self.farm("export", *line.split())
            self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
            self.assertRegex(done.stderr, f"^farm export: .*{words}")
        without = subprocess.run([sys.executable, "-S", "-m", "actorfarm.exporting", *"r p 0 0 remedy".split()], capture_output=True, text=True)
        self.assertRegex(without.stderr, r"^farm export: No module named 'numpy' \(remedy, or \S+ -m pip install numpy onnx\)\n$")
        for run, words in ("gone", "gone is not a file"), ("folder", "first checkpoint"), ("c", "not those of its network"):
            with self.assertRaisesRegex((ValueError, OSError), words):
                actorfarm.export(self.folder / run, self.folder / "p")
        self.addCleanup(resource.setrlimit, resource.RLIMIT_FSIZE, limits := resource.getrlimit(resource.RLIMIT_FSIZE))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        for path, words in ("folder", "folder"), ("gone/p", "gone/p"), ("/proc/p", "/proc/p"), ("/dev/null", "/dev/null"), ("text", "too large"):
            with self.subTest(path), self.assertRaisesRegex(OSError, words):
                checkpoint.replace(self.folder / path, [b"x" * 2000])
        self.assertEqual((sorted(self.folder.iterdir()), (self.folder / "text").read_text()), (before, "no checkpoint"))


if __name__ == "__main__":
    unittest.main()
