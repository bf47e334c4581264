"""docs/TRAINING.md's lines for PyTorch and examples/pytorch.py use each tensor of a checkpoint of `farm train`, and compute the
same. NumPy takes PyTorch's place, which build/venv does not have."""

import json
import pathlib
import re
import sys
import types
import unittest

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tools"))
from running import SOURCE, InFolder  # noqa: E402


class Tensor(np.ndarray):
    def float(self):
        return self.astype(np.float32)

    def relu(self):
        return np.maximum(self, 0)

    def tanh(self):
        return np.tanh(self)

    def sqrt(self):
        return np.sqrt(self)

    def sigmoid(self):
        return 1 / (1 + np.exp(-self))

    def clamp(self, low, high):
        return self.clip(low, high)

    def flatten(self, start):
        return self.reshape(*self.shape[:start], -1)


def conv2d(x, weight, bias, stride):
    windows = sliding_window_view(x, weight.shape[2:], axis=(2, 3))[:, :, ::stride, ::stride]
    return (np.einsum("bchwij,ocij->bohw", windows, weight) + bias[:, None, None]).view(Tensor)


class File(dict):
    """A safetensors file: tensors by name. `used`: the names that were read."""

    def __init__(self, path, framework="pt"):
        data, self.used = pathlib.Path(path).read_bytes(), set()
        begin = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:begin])
        self.about = header.pop("__metadata__")
        for name, entry in header.items():
            of_tensor = slice(*(begin + offset for offset in entry["data_offsets"]))
            self[name] = np.frombuffer(data[of_tensor], np.float32).reshape(entry["shape"]).view(Tensor)

    def __getitem__(self, name):
        self.used.add(name)
        return super().__getitem__(name)


MODULES = {
    "torch": {"cat": np.concatenate}, "torch.nn": {}, "torch.nn.functional": {"linear": lambda x, w, b: x @ w.T + b, "conv2d": conv2d},
    "safetensors": {"safe_open": None}, "safetensors.torch": {"load_file": File},
}


class PyTorch(InFolder):
    def setUp(self):
        super().setUp()
        for name, members in MODULES.items():
            sys.modules[name] = types.ModuleType(name)
            vars(sys.modules[name]).update(members)
            self.addCleanup(sys.modules.pop, name)

    def test_the_documented_lines_and_the_example_fit_a_checkpoint(self):
        sys.path.insert(0, str(SOURCE / "examples"))
        import pytorch

        for env, net, shape in ("native/catch", "mlp", (3, 50)), ("native/breakout", "shallow", (3, 2, 84, 84)), ("native/breakout", "nature", (3, 2, 84, 84)):
            run = self.folder / net
            more = ("--normalise-observations", "true", "--lstm", "8", "--lstm-layers", "2") if net == "nature" else ()
            self.farm("train", "--env", env, "--net", net, "--frames", "700", "--run", run, "--quiet", "--normalise-observations", "false", *more)
            (path,) = (run / "checkpoints").glob("0*")
            file, observations = File(path), np.random.default_rng(1).uniform(0, 255, shape).astype(np.float32).view(Tensor)
            inputs, state = (np.ones((3, 5)).view(Tensor), [(np.zeros((3, 8)).view(Tensor),) * 2] * 2) if more else (None, ())
            logits, value = pytorch.forward(file, file.about["recipe.net"], observations, inputs, state)
            self.assertTrue(all(part.any() for layer in state for part in layer))
            self.assertEqual((len(logits), value.shape), (3, (3, 1)))
            self.assertEqual(file.used, {name for name in file if not name.startswith("optimiser.") and name != "normalise.count"})
            if net == "mlp":
                text = (SOURCE / "docs/TRAINING.md").read_text()
                code = re.search(r"```python\n(.*?)```", text, re.S)[1].replace("RUN/checkpoints/best.safetensors", str(path))
                names = {"x": observations}
                exec(code, names)
                self.assertTrue(np.array_equal(names["logits"], logits) and np.array_equal(names["value"], value))


if __name__ == "__main__":
    unittest.main()
