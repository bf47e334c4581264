"""actorfarm.load() in PyTorch: outputs are those that `farm eval` stores in its lanes (in f32); it acts, learns, and is saved."""

import copy
import itertools
import pathlib
import sys
import unittest
import warnings

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tools"))
import actorfarm  # noqa: E402
import onnxruntime  # noqa: E402
import torch  # noqa: E402
from actorfarm import checkpoint  # noqa: E402
from lanes import FIRST, compare_exported, play_shaken  # noqa: E402
from running import SOURCE, InFolder  # noqa: E402

CASES = {
    "mlp": ("native/catch",),
    "separate": ("native/catch", "--net", "separate"),
    "normalised": ("native/cartpole", "--normalise-observations", "true", "--normalise-rewards", "true"),
    "lstm": ("native/catch", "--lstm", "16", "--lstm-layers", "2", "--last-inputs", "true"),
    "shallow": ("native/breakout", "--net", "shallow", "--stack", "4"),
    "nature": ("native/breakout", "--net", "nature", "--stack", "2", "--normalise-observations", "true"),
    "lite": ("native/breakout", "--net", "lite"),
    "deep": ("native/breakout", "--net", "deep", "--stack", "2", "--last-inputs", "true"),
    "fields": ("native/juggle", "--net", "deep", "--normalise-observations", "true", "--lstm", "8"),
    "masks": ("native/menu",),
    "colours": ("procgen/bigfish", "--net", "shallow", "--stack", "2"),
    "gaussian": ("mujoco/Pusher-v5", "--last-inputs", "true"),
    "squashed": ("mujoco/Swimmer-v5", "--squash", "true", "--sigma", "state"),
    "text": ("native/breakout", "--net", "conv 12@5x5/3 norm silu, 16@3x3/2 same elu, norm, residual tanh, pool 2x2/1, elu, dense 40 norm, 24 silu"),
    "q": ("native/breakout", "--net", "lite", "--algo", "dqn", "--replay", "2000", "--replay-start", "500"),
}
FAMILIES = {"ale": "ale/Pong", "gym": "gym/CartPole-v1", "mujoco": "mujoco/HalfCheetah-v5", "procgen": "procgen/bigfish", "native": "native/breakout"}
POOLS = {"": "CartPole-v1", "continuous": "Pendulum-v1", "MiniGrid": "MiniGrid-DoorKey-8x8-v0"}  # the others have frames
for recipe in (SOURCE / "recipes").glob("*.yaml"):
    family, name = f"{recipe.stem}_".split("_")[:2]
    env, keys = FAMILIES.get(family), []
    if recipe.stem in ("gym_continuous", "gym_Pendulum-v1"):
        env = "gym/Pendulum-v1"
    elif family == "native" and name[-2:] not in ("qn", "d2"):
        env = f"native/{name}"
    elif family == "envpool":
        env, keys = f"envpool/{POOLS.get(name, 'CarRacing-v3')}", ["--algo", "ppo"]  # of envpool.yaml, which the others lie over
    if "replay:" in recipe.read_text():
        keys += "--replay 20000 --replay-start 200".split()
    if env:
        CASES[f"recipe_{recipe.stem}"] = (env, "--recipe", recipe, *keys)


def finished(module, lane, outputs, value):
    """As farm_head_mask and farm_head_finish leave them in the lane."""
    if "action_mask" in lane:
        outputs = outputs.masked_fill(torch.from_numpy(lane["action_mask"]).bool().logical_not(), -torch.inf)
    if "_q " in module.head:
        outputs = outputs + (value[:, None] - outputs.mean(1, keepdim=True) if module.head.startswith("duelling") else 0)
        value = outputs.max(1).values
    return outputs, value


class Policies(InFolder):
    def trained(self, name, frames=3000):
        env, *keys = CASES[name]
        done = self.farm("train", "--env", env, *keys, "--frames", str(frames), "--run", name, "--quiet", timeout=600)
        self.assertEqual(done.returncode, 0, done.stderr)
        return actorfarm.load(self.folder / name)

    def compare(self, name):
        """The outputs of a module, and of an exported policy, and those in the lanes of a farm that plays it."""
        self.trained(name)
        file, spec, lane, obs = play_shaken(self, name)
        module = actorfarm.load(file)
        compare_exported(self, onnxruntime.InferenceSession(actorfarm.export(file, self.folder / "p.onnx")["file"]), spec, lane, obs, module.stack)
        self.assertEqual(module.spec["obs"], [{**field, "dims": list(field["dims"])} for field in spec["obs"]])
        known, hidden = np.zeros(4, bool), None
        for n, first in enumerate(lane["flags"] & FIRST > 0):
            # From an episode's start on, a stack, an LSTM's state and the last inputs are known.
            known |= first | (n >= module.stack and not module.lstm_layers)
            step = {field: array[n] for field, array in obs.items()}
            last = None if n == 0 else (lane["action"][n - 1], lane["reward"][n])
            with torch.no_grad():
                outputs, value, hidden = module(step if len(step) > 1 else step.popitem()[1], hidden, first, last)
            outputs, value = finished(module, {field: array[n] for field, array in lane.items()}, outputs, value)
            for ours, farms in (outputs, lane["policy"][n]), (value, lane["value"][n]):
                np.testing.assert_allclose(ours.numpy()[known], farms[known], rtol=5e-4, atol=5e-4, err_msg=f"{name} {n}")

    def test_actions_are_the_heads(self):
        for name in "masks", "gaussian", "squashed":
            module = self.trained(name, 500)
            kinds = {"f32": "f4", "i32": "i4", "u8": "u1"}
            obs = {field["name"]: np.zeros((4000, *field["dims"]), kinds[field["dtype"]]) for field in module.spec["obs"]}
            obs.get("action_mask", np.zeros((1, 5)))[:, 2:5] = 1
            outputs, drawn, best = module(obs)[0].detach(), module.act(obs)[0], module.act(obs, greedy=True)[0]
            self.assertEqual(drawn.dtype, torch.int32 if name == "masks" else torch.float32)
            if name == "masks":
                np.testing.assert_allclose(np.bincount(drawn, minlength=12)[2:5] / 4000, outputs[0, 2:5].softmax(0), atol=0.05)
                self.assertEqual(best[0].item(), 2 + outputs[0, 2:5].argmax().item())
            elif name == "gaussian":
                np.testing.assert_allclose(drawn.std(0), module.scale * outputs[0, 7:].exp().numpy(), rtol=0.1)
                np.testing.assert_allclose(best, module.offset + module.scale * outputs[:, :7].numpy(), rtol=1e-5, atol=1e-6)
            else:
                self.assertTrue((drawn.abs() <= 1).all() and drawn.std() > 0.1)

    def test_a_module_learns_and_keeps_its_zeros(self):
        module = self.trained("separate", 500)
        twin = copy.deepcopy(module)
        optimiser = torch.optim.Adam(module.parameters(), 0.01)
        board = np.random.default_rng(1).uniform(0, 1, (256, 50)).astype("f4")
        board.flags.writeable = False
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(30):
                outputs, value, _ = module(board)
                loss = torch.nn.functional.cross_entropy(outputs, torch.full((256,), 2)) + ((value - 5) ** 2).mean()
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
        self.assertEqual(module.act(board, greedy=True)[0].unique().tolist(), [2])
        self.assertFalse(module.layers.get_submodule("1").weight[:64, 64:].any())
        actorfarm.save(module, self.folder / "learned.safetensors")
        actorfarm.save(twin, self.folder / "twin.safetensors")
        for file, moments in ("learned", False), ("twin", True):
            tensors, about = checkpoint.read(self.folder / f"{file}.safetensors")
            self.assertEqual((any(name.startswith("optimiser.") for name in tensors), about), (moments, module.metadata))
        words = "train --env native/catch --net separate --frames 3000 --run next --quiet --init-from learned.safetensors".split()
        self.assertEqual(self.farm(*words).stderr, "")

    def test_other_tensors_and_spaces_are_refused(self):
        module = self.trained("mlp", 500)
        for change, message in (
            (lambda t, a: t.pop("layers.1.bias"), "bias"),
            (lambda t, a: t.update({"policy.weight": t["policy.weight"][:, :5]}), "shape|size"),
            (lambda t, a: a.pop("spaces"), "spec=env.consumer.spec"),
            (lambda t, a: a.update({"recipe.net": "wide"}), "wide"),
            (lambda t, a: a.update({"recipe.stack": "1000000000"}), "more than"),
            (lambda t, a: a.update(spaces=a["spaces"].replace("[50]", "[1000000000000]")), "more than"),
            (lambda t, a: a.update(spaces="[]"), "not those of its network"),
            (lambda t, a: a.update(spaces=a["spaces"].replace("[50]", "[51]")), "not those of its network"),
        ):
            changed = dict(module.tensors), dict(module.metadata)
            change(*changed)
            checkpoint.write(self.folder / "x.safetensors", *changed)
            with self.assertRaisesRegex(ValueError, message):
                actorfarm.load(self.folder / "x.safetensors")

    def test_a_module_answers_lanes_in_place_without_a_warning(self):
        class Module(torch.nn.Module):
            def forward(self, obs, first, state):
                return (obs[:, 0] > 0).long(), {"obs": obs}, state + first

        with actorfarm.make("native/cartpole", 6, 2, steps=12) as env, warnings.catch_warnings():
            warnings.simplefilter("error")
            for window in itertools.islice(env.collect(Module(), 4, max=1, state=np.float32(0)), 9):
                np.testing.assert_array_equal(window.extras["obs"], window.obs)


for each in CASES:
    setattr(Policies, f"test_outputs_of_{each}", lambda self, each=each: self.compare(each))


if __name__ == "__main__":
    unittest.main()
