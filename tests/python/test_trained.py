"""What `farm train` leaves and shows, in Python: checkpoints as arrays, lanes copied from outside, trainings as child processes."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import unittest

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tools"))
import actorfarm  # noqa: E402
from actorfarm import checkpoint  # noqa: E402
from running import FARM, InFolder, children, state, wait_until  # noqa: E402

os.environ.setdefault("FARM_PROGRAM", FARM)


class Checkpoints(InFolder):
    def train(self):
        done = self.farm(*"train --env native/catch --run r --quiet --frames 2000 --actors 1 --envs-per-actor 4 --batch 4".split())
        self.assertEqual(done.returncode, 0, done.stderr)

    def score(self, file):
        words = "--greedy --actors 1 --envs-per-actor 1 --lanes 1 --episodes 20 --seed 5 --quiet --json".split()
        done = self.farm("eval", file, *words)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)["return_mean"]

    def test_a_copy_has_every_byte_of_sense_and_plays_the_same_score(self):
        self.train()
        file = checkpoint.find(self.folder / "r")
        tensors, about = checkpoint.read(file)
        self.assertEqual((about["recipe.env"], about["head"], tensors["policy.weight"].shape), ("native/catch", "categorical 3", (3, 64)))
        self.assertEqual(json.loads(about["spaces"])["obs"], [{"name": "board", "dtype": "f32", "dims": [50], "choices": 0}])
        checkpoint.write(self.folder / "copy.safetensors", {**tensors, "mine.more": np.ones((2, 3), "f4")}, {**about, "mine": "kept"})
        again, kept = checkpoint.read(self.folder / "copy.safetensors")
        self.assertEqual((list(again), kept), ([*tensors, "mine.more"], {**about, "mine": "kept"}))
        self.assertTrue(all(np.array_equal(again[name], tensor) for name, tensor in tensors.items()))
        self.assertEqual(self.score("copy.safetensors"), self.score(file))
        tensors["policy.bias"] = np.array([0, 0, 50], "f4")  # always to the right
        checkpoint.write(self.folder / "right.safetensors", tensors, about)
        self.assertNotEqual(self.score("right.safetensors"), 1)
        self.assertEqual(sorted(self.folder.glob("*.tmp*")), [])
        tensors["policy.bias"][0] = np.nan
        with self.assertRaisesRegex(ValueError, "policy.bias is not of finite f32"):
            checkpoint.write(self.folder / "copy.safetensors", tensors, about)
        self.assertEqual(checkpoint.read(self.folder / "copy.safetensors")[1], kept)

    def test_damaged_and_hostile_files_are_refused(self):
        self.train()
        file = checkpoint.find(self.folder / "r")
        whole = file.read_bytes()
        length = int.from_bytes(whole[:8], "little")
        header = json.loads(whole[8 : 8 + length])

        def changed(change):
            other = json.loads(json.dumps(header))
            del other["__metadata__"]["crc32c"]  # else that is what is noticed
            change(other)
            text = json.dumps(other).encode()
            return len(text).to_bytes(8, "little") + text + whole[8 + length :]

        def entry(**values):
            return lambda other: other["policy.bias"].update(values)

        for data, message in (
            (b"", "no safetensors file"), (whole[:7], "no safetensors file"), (whole[:300], "within its header"), (whole[:-4], "cut off"),
            (whole + b"more", "corrupt"), (whole.replace(b"native/catch", b"native/batch", 1), "header does not match its checksum"),
            (whole[:-1] + bytes([whole[-1] ^ 1]), "value.bias does not match its checksum"),
            ((1 << 62).to_bytes(8, "little") + whole[8:], "cut off within its header"), ((5 << 20).to_bytes(8, "little") + b" " * (6 << 20), "no safetensors file"),
            (b"\x02\0\0\0\0\0\0\0[]", "its header"), (b"\xff\xff\0\0\0\0\0\0" + b"[" * 65535, "its header"), (b"\x01\0\0\0\0\0\0\0\xff", "its header"),
            (changed(lambda other: other.pop("__metadata__")), "__metadata__"), (changed(lambda other: other["__metadata__"].update(format="x")), "actorfarm-1"),
            (changed(lambda other: other["__metadata__"].update(frames=3)), "actorfarm-1"), (changed(lambda other: other.update(more=[])), "its header"),
            (changed(entry(dtype="F64")), "is not a tensor of f32"), (changed(entry(shape=[-3])), "is not a tensor of f32"), (changed(entry(shape=[1 << 39, 1 << 39])), "is not a tensor of f32"),
            (changed(entry(shape=[3.0])), "is not a tensor of f32"), (changed(entry(shape=3)), "its header"), (changed(entry(shape=[4])), "is not a tensor of f32"),
            (changed(entry(data_offsets=[0, 12])), "corrupt"), (changed(entry(data_offsets=[1 << 41, (1 << 41) + 12])), "is not a tensor of f32"),
            (changed(lambda other: other.pop("policy.bias")), "corrupt"),
        ):  # fmt: skip
            bad = self.folder / "bad.safetensors"
            bad.write_bytes(data)
            with self.subTest(message), self.assertRaisesRegex(ValueError, f"bad.safetensors: .*{message}"):
                checkpoint.read(bad)
        with self.assertRaisesRegex(FileNotFoundError, "is not a file"):
            checkpoint.read("/dev/zero")
        with self.assertRaisesRegex(FileNotFoundError, "first checkpoint"):
            checkpoint.find(self.folder)

    def test_the_newest_or_the_best_checkpoint_is_found(self):
        folder = self.folder / "checkpoints"
        folder.mkdir()
        for name in ("best", "000000000900", "000000001000", "best-000000002000"):
            (folder / f"{name}.safetensors").touch()
        self.assertEqual([checkpoint.find(self.folder, best).stem for best in (False, True)], ["000000001000", "best"])


class Lanes(InFolder):
    def test_a_view_copies_what_a_farm_publishes(self):
        words = "--env native/juggle --frames 100G --run r --quiet --actors 2 --lanes 1 --envs-per-actor 3 --batch 2".split()
        process = self.start_farm("train", *words)
        wait_until(lambda: os.path.exists(self.folder / "r/checkpoints") and len(children(process.pid)) == 3)
        view = wait_until(lambda: self.attached(process.pid))
        wait_until(lambda: view.newest(1) > 100)
        self.assertEqual((view.lanes, [field["name"] for field in view.spec["obs"]]), (2, ["picture", "paddle", "wanted"]))
        actor = children(process.pid)["actor 1"]
        os.kill(actor, signal.SIGSTOP)
        wait_until(lambda: state(actor) == "T")
        held = view.state(1)
        self.assertEqual((held["actor"], held["lane"], held["width"]), (1, 0, 3))
        n = view.newest(1) - 1
        self.assertEqual(view.copy(1, n, "picture").shape, (3, 20, 20))
        self.assertTrue(np.array_equal(view.copy(1, n, 0), view.copy(1, n, "picture")))
        self.assertEqual((view.copy(1, n, "reward").dtype, view.copy(1, n, "flags").dtype), (np.float32, np.uint8))
        action, policy, value = (view.copy(1, n, field) for field in ("action", "policy", "value"))
        self.assertTrue(((action >= 0) & (action < 3)).all() and np.isfinite(policy).all() and policy.any() and value.any())
        self.assertEqual((action.shape, policy.shape, value.shape), ((3,), (3, 3), (3,)))
        for step, field in ((n + 1, "policy"), (n + 2, "reward"), (n + 2 - held["steps"], "flags"), (-1, "flags")):
            with self.assertRaises(LookupError):
                view.copy(1, step, field)
        for bad in (lambda: view.copy(2, n, "flags"), lambda: view.copy(1, n, "colour")):
            with self.assertRaises((LookupError, ValueError)):
                bad()
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other, self.assertRaisesRegex(LookupError, "has no lanes"):
            actorfarm.attach(other.pid)

    def attached(self, pid):
        try:
            return actorfarm.attach(pid)
        except (LookupError, ValueError, OSError):  # its rings are being made
            return None


class Trainings(InFolder):
    def train(self, **keys):
        return actorfarm.train("native/catch", run=self.folder / "r", actors=1, metrics_every=0.1, **keys)

    def test_figures_come_while_it_runs_and_a_document_at_the_end(self):
        training = self.train(frames="100G", tensorboard=False)
        lines = [line for line, _ in zip(training, range(3))]
        self.assertNotEqual(os.getsid(training.pid), os.getsid(0))  # Ctrl-C is Python's alone
        self.assertTrue(training.stop()["interrupted"])
        self.assertEqual((len(list(training)) > 2, [*training][:3]), (True, lines))
        with self.train(resume=True, frames="100G") as again:
            self.assertGreater(next(iter(again))["frames"], lines[-1]["frames"])
        self.assertIsNotNone(again.poll())
        for wrong, message in ({"colour": 3}, "colour"), ({"options": {"colour": True}}, "colour"), ({"resume": True, "lstm": 3}, "lstm"):
            with self.assertRaisesRegex(ValueError, message):
                list(self.train(**wrong))

    def test_it_ends_with_a_killed_python(self):
        program = f"import actorfarm; training = actorfarm.train('native/catch', run={str(self.folder / 'r')!r}, frames='1G'); print(training.pid, flush=True); [*training]"
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as python:
            pid = int(python.stdout.readline())
            python.kill()
        self.assertTrue(wait_until(lambda: state(pid) == "Z"))


if __name__ == "__main__":
    unittest.main()
