"""docs/TRAINING.md's lines for PyTorch and examples/pytorch.py compute the same from a checkpoint of `farm train`."""

import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tools"))
from running import SOURCE, InFolder  # noqa: E402

try:
    import safetensors  # noqa: F401
    import torch
except ImportError:
    torch = None


@unittest.skipUnless(torch, "checkpoints in PyTorch are NOT tested: no torch or no safetensors in build/venv")
class PyTorch(InFolder):
    def test_the_documented_lines_compute_what_the_example_does(self):
        sys.path.insert(0, str(SOURCE / "examples"))
        import pytorch

        for env, net, shape, lines in ("native/catch", "mlp", (3, 50), True), ("native/breakout", "shallow", (3, 2, 84, 84), False):
            run = self.folder / net
            self.farm("train", "--env", env, "--frames", "2k", "--run", run, "--quiet")
            (path,) = (run / "checkpoints").glob("0*")
            weights, about = pytorch.load(path)
            observations = torch.rand(shape) * (1 if lines else 255)
            logits, value = pytorch.forward(weights, about["recipe.net"], observations)
            self.assertEqual((len(logits), value.shape), (3, (3, 1)))
            if lines:
                text = (SOURCE / "docs/TRAINING.md").read_text()
                code = re.search(r"```python\n(.*?)```", text, re.S)[1].replace("RUN/checkpoints/best.safetensors", str(path))
                names = {"x": observations}
                exec(code, names)
                self.assertTrue(torch.equal(names["logits"], logits) and torch.equal(names["value"], value))


if __name__ == "__main__":
    unittest.main()
