"""EnvPool's environments in lanes, in this process, beside plain loops of EnvPool. Families whose files are in packages of their own
are in bench/peers/envpool_lanes.py --verify: EnvPool's wheel alone has none of them."""

import importlib.util
import sys
import types
import unittest
from unittest import mock

import numpy as np
from actorfarm import bare, envpool_actor
from actorfarm.actor import BrokenContract

import envpool_loop
import lanes
from lanes import FIRST, GAME_END, LAST, TERMINATED, TRUNCATED

ENDS = LAST | TERMINATED | TRUNCATED | GAME_END
ASSETS = importlib.util.find_spec("envpool_assets")
HERE = unittest.skipUnless(importlib.util.find_spec("envpool"), "EnvPool is not installed: it needs Python 3.11")


@HERE
class Steps(unittest.TestCase):
    def test_each_step_is_that_of_a_plain_loop(self):
        for name, width, options in (
            ("CartPole-v1", 4, {"max_episode_steps": 30}),
            ("MiniGrid-DoorKey-8x8-v0", 2, {}),
            ("LunarLander-v3", 4, {}),
            ("Pendulum-v1", 4, {}),
            ("FrozenLake-v1", 4, {}),
            ("Parking-v0", 4, {}),
            ("Snake-v1", 4, {}),
            ("Play2048-v1", 4, {}),
        ):
            with self.subTest(name=name):
                seen = envpool_loop.compare(self, name, width=width, **options)
                self.assertEqual(seen & (FIRST | LAST), FIRST | LAST)
                if name == "CartPole-v1":
                    self.assertEqual(seen, FIRST | ENDS)

    def test_masks_and_parts_are_fields(self):
        for name, options, fields in (
            ("Play2048-v1", {}, {"action_mask": ("u8", [4], 2), "obs": ("u8", [4, 4, 31], 2)}),
            ("Snake-v1", {"obs_drop": "grid"}, {"action_mask": ("u8", [4], 2), "step_count": ("i32", [1], 4000)}),
            ("MiniGrid-Empty-5x5-v0", {"obs_keep": "image,direction"}, {"direction": ("i32", [1], 4), "image": ("u8", [7, 7, 3], 0)}),
            ("BinPack-v2", {"obs_keep": "joint_mask"}, {"joint_mask": ("u8", [40, 20], 2)}),
        ):
            with self.subTest(name=name):
                pairs = [f"{key}={value}" for key, value in options.items()]
                spec = envpool_actor.EnvPool.prepare(name, pairs, "count").spec()
                found = {field["name"]: (field["dtype"], field["dims"], field["choices"]) for field in spec["obs"]}
                self.assertEqual(found, fields)

    def test_the_bare_loop_counts_transitions(self):
        loop = bare.make("envpool/CartPole-v1", 4, 1, ["max_episode_steps=2"])
        with mock.patch.object(bare, "time", types.SimpleNamespace(monotonic_ns=iter(range(7)).__next__)):
            self.assertEqual(loop.steps(6), 6 * 4 - 2 * 4)


@HERE
class Resets(unittest.TestCase):
    def test_requests_reset_a_pool_as_a_whole_with_or_without_a_seed(self):
        made = envpool_loop.lane("CartPole-v1", 2, ring={"numbers": ""})
        (first, *_), _, _ = made.step()
        (obs, *_), _, flags = made.after()
        self.assertEqual(flags.tolist(), [0, 0])
        (obs, *_), rewards, flags = made.after(resets={0: (None,), 1: (None,)})
        self.assertEqual((flags.tolist(), rewards.tolist()), ([FIRST] * 2, [0] * 2))
        self.assertNotEqual(obs.tolist(), first.tolist())
        (obs, *_), _, flags = made.after(resets={0: (7,), 1: (7,)})
        self.assertEqual((flags.tolist(), obs.tolist()), ([FIRST] * 2, first.tolist()))
        with self.assertRaisesRegex(BrokenContract, "its 2 are reset together, not 1 of them"):
            made.after(resets={0: (7,)})

    def test_resets_in_the_same_step_and_numbers_are_refused(self):
        with self.assertRaisesRegex(BrokenContract, "--autoreset next_step"):
            envpool_loop.lane("CartPole-v1", 2, ring={"same_step": True})
        made = envpool_loop.lane("CartPole-v1", 1, ring={"numbers": "low"})
        made.step()
        with self.assertRaisesRegex(BrokenContract, "a reset with low: EnvPool's take no numbers"):
            made.after(resets={0: (None, 0.5)})


@HERE
class Refusals(unittest.TestCase):
    def test_names_and_options(self):
        for name, options, said, *bad_values in (
            ("cartpole-V1", [], 'EnvPool has no id cartpole-V1 here; did you mean "envpool/CartPole-v1"?'),
            ("Chess-v1", [], "a game of 2 players"),
            ("IntersectionMultiAgent-v0", [], "a game of 2 players"),
            ("CartPole-v1", ["foo=3"], 'option "foo": it has from_pixels, max_episode_steps, '),
            ("CartPole-v1", ["num_envs=3"], 'option "num_envs": the farm sets it'),
            ("CartPole-v1", ["max_episode_steps=long"], r"must be of the type of 500 \(got 'long'\)"),
            ("CartPole-v1", ["obs_drop=x"], "the observation has no part 'x'; it has obs"),
            ("CartPole-v1", [], "--bad-values reset: .*count and fail are possible", "reset"),
            *(() if ASSETS else [("Ant-v4", [], "the files of mujoco.gym are missing: .* -m pip install envpool-assets$")]),
        ):
            with self.subTest(name=name, options=options), self.assertRaisesRegex(ValueError, f"^envpool/{name}: .*{said}"):
                envpool_actor.EnvPool.prepare(name, options, *bad_values or ["count"])

    def test_ids_that_are_in_files_are_named_with_their_package(self):
        library = envpool_actor.Library()
        if library.absent:
            with self.assertRaisesRegex(ValueError, r"no id Pong-v5 here; the files of atari.* are missing: .* install envpool-assets( envpool-[\w-]+)*$"):
                library.check("Pong-v5")

    def test_without_envpool_pip_is_named(self):
        with mock.patch.dict(sys.modules, {"envpool.python.data": None}), self.assertRaisesRegex(ValueError, "is missing .*: .* -m pip install envpool$"):
            envpool_actor.Library.__wrapped__()

    def test_a_pool_that_raises_or_changes_its_shapes(self):
        made = envpool_loop.lane("CartPole-v1", 2)
        made.step()
        made.answer()
        env, pool = made.group._env, made.group._env._pool
        narrow = types.SimpleNamespace(_send=pool._send, _recv=lambda: [array[:, :3] if array.ndim == 2 else array for array in pool._recv()])
        broken = types.SimpleNamespace(_send=mock.Mock(side_effect=RuntimeError("the engine stopped")))
        for replaced, error, said in (
            (narrow, BrokenContract, r"an observation of shape \(2, 3\) instead of \(2, 4\).*: lane 0"),
            (broken, RuntimeError, "the engine stopped"),
        ):
            with mock.patch.object(env, "_pool", replaced), self.assertRaisesRegex(error, said):
                made.step()


if __name__ == "__main__":
    unittest.main()
