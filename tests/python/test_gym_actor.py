"""Gymnasium's environments in lanes, in this process: spaces, actions, ends and seeds against plain loops of Gymnasium; vector
environments, invalid numbers, refusals. test_actor_programs.py tests the program."""

import contextlib
import gc
import itertools
import json
import pathlib
import sys
import tempfile
import types
import unittest
from unittest import mock

import gymnasium
import numpy as np
from actorfarm import _farm, gym_actor, gym_spaces
from actorfarm.actor import BrokenContract
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

import lanes
from lanes import FIRST, GAME_END, LAST, TERMINATED, TRUNCATED

ENDS = LAST | TERMINATED | TRUNCATED | GAME_END
WIDE = gym_actor.VECTOR_WIDTH_LEAST


# ---- test environments ----


class Probe(gymnasium.Env):
    """Observations drawn from the space, rewards 0.5, 1.5, ...; `plan` gives the ends: {step: (terminated, truncated)}. `fault` makes
    steps invalid: "shape" and "reward", or "nan": each third observation, and those of the resets listed in `resets`, or "mask": masks
    without a choice there."""

    def __init__(self, observations=None, actions=None, plan=None, fault=None, resets=(), mode=None):
        self.observation_space = observations or spaces.Box(-1, 1, (3,), np.float64)
        self.action_space = actions or spaces.Discrete(4)
        self._plan, self._fault, self._bad_resets = plan or {7: (True, False), 12: (False, True)}, fault, resets
        self.received, self._steps, self._all, self._resets = [], 0, 0, 0

    def _observe(self, invalid, value):
        if self._fault == "nan":
            return np.full(3, np.nan if invalid else value)
        if self._fault == "mask":
            return {"action_mask": np.full(4, not invalid, np.int8), "x": np.zeros(3, np.float32)}
        if self._fault == "shape":
            return np.zeros(4)
        self.observation_space.seed(int(self.np_random.integers(1 << 30)))
        return self.observation_space.sample()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps, self._resets = 0, self._resets + 1
        return self._observe(self._resets in self._bad_resets, 1.0), {}

    def step(self, action):
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        self.received.append(action)
        self._steps, self._all = self._steps + 1, self._all + 1
        reward = None if self._fault == "reward" else self._steps - 0.5
        return self._observe(self._all % 3 == 0, 0.5), reward, *self._plan.get(self._all, (False, False)), {"left": "out"}


class Group(gymnasium.vector.VectorEnv):
    """Environment i observes its steps since the reset and ends after i + 2; each step, resets included, pays 7."""

    def __init__(self, num_envs=1, mode=AutoresetMode.NEXT_STEP, fault=None, **ignored):
        self.num_envs, self.metadata, self._fault = num_envs, {"autoreset_mode": mode}, fault
        self.single_observation_space = spaces.Box(-1, 1, (3,), np.float64)
        self.single_action_space = spaces.Discrete(4)

    def _observe(self):
        if self._fault == "shape":
            return np.zeros((self.num_envs, 4))
        return np.repeat(self._count[:, None], 3, axis=1).astype(np.float64)

    def reset(self, *, seed=None, options=None):
        self._count = np.zeros(self.num_envs, int)
        return self._observe(), {}

    def step(self, actions):
        limit, rewards = np.arange(self.num_envs) + 2, np.full(self.num_envs, 7.0)
        self._count = np.where(self._count == limit, 0, self._count + 1)
        if self._fault == "infinity":
            rewards[-1] = np.inf
        no = np.zeros(self.num_envs, bool)
        return self._observe(), rewards[1:] if self._fault == "reward" else rewards, self._count == limit, no, {}


CHOICES = spaces.Dict({"action_mask": spaces.MultiBinary(4), "x": spaces.Box(-1, 1, (3,))})
gymnasium.logger.min_level = gymnasium.logger.ERROR
for name, group, options in (
    ("Plain", None, {}),
    ("Limited", None, {"max_episode_steps": 5}),
    ("Nan", None, {"kwargs": {"fault": "nan", "plan": {1: (False, False)}}}),
    ("NoChoice", None, {"kwargs": {"fault": "mask", "observations": CHOICES, "plan": {3: (True, False)}}}),
    ("WrongShape", None, {"kwargs": {"fault": "shape"}}),
    ("NoReward", None, {"kwargs": {"fault": "reward"}}),
    ("NextStep", Group, {}),
    ("SameStep", Group, {"kwargs": {"mode": AutoresetMode.SAME_STEP}}),
    ("Disabled", Group, {"kwargs": {"mode": AutoresetMode.DISABLED}}),
    ("OtherSpaces", Group, {"kwargs": {"actions": spaces.Discrete(2)}}),
    ("WrongGroup", Group, {"kwargs": {"fault": "shape"}}),
    ("WrongRewards", Group, {"kwargs": {"fault": "reward"}}),
    ("InfiniteRewards", Group, {"kwargs": {"fault": "infinity"}}),
):
    gymnasium.register(id=f"Probe/{name}-v0", entry_point=Probe, vector_entry_point=group, **options)
gymnasium.register(id="Probe/OnlySameStep-v0", vector_entry_point=Group, kwargs={"mode": AutoresetMode.SAME_STEP})
gymnasium.register(id="Probe/AlwaysTen-v0", vector_entry_point=lambda num_envs, **kwargs: Group(10))


class Lane(lanes.Played):
    """A lane and the group of environments that plays it."""

    def __init__(self, name, width=2, seeds=None, bad_values="count", ring=None, **options):
        super().__init__(gym_actor.Maker(name, options, bad_values), width, seeds or [100 + i for i in range(width)], ring)


def plain(name, seed, actions, **options):
    """The steps of one environment in a plain loop: (observation, reward, flags). An end ignores its action."""
    env, ended, first = gymnasium.make(name, **options), True, True
    for action in actions:
        if ended:
            observation, _ = env.reset(seed=seed if first else None)
            yield observation, 0, FIRST
            ended = first = False
        else:
            observation, reward, terminated, truncated, _ = env.step(action)
            ended = terminated or truncated
            end = LAST | GAME_END | (TERMINATED if terminated else TRUNCATED)
            yield observation, reward, end if ended else 0


class Packed(lanes.Lane):
    """A lane, and a group for the values of a space."""

    def __init__(self, observations, width, resets=None, step=None):
        super().__init__(width, observations.fields, 4)
        singles = resets and [(step, reset, None) for reset in resets]
        self.group = _farm.Group(self.actor, 0, observations.parts, observations.convert, singles, None, False)

    @classmethod
    def single(cls, observations, *values):
        """The fields of values that single environments return."""
        lane = cls(observations, len(values), [lambda seed, value=value: (value, {}) for value in values])
        lane.group.step(None)
        return lane.read()[0]

    @classmethod
    def batch(cls, observations, values, width):
        lane, none = cls(observations, width), np.zeros(width, bool)
        lane.group.write(values, none.astype(np.float32), none, none)
        return lane.read()[0]


IMAGE = spaces.Box(0, 255, (8, 6), np.uint8)
NUMBER = spaces.Box(-9, 9, (), np.int32)
FLAT = spaces.Dict({"b": spaces.Box(-1, 1, (2, 2)), "a": spaces.Discrete(3, start=-1), "c": spaces.Tuple([NUMBER])})
MASKED = spaces.Dict({"action_mask": spaces.Box(0, 1, (4,), np.int8), "x": spaces.Box(-1, 1, (2,)), "y": spaces.Discrete(3)})
PICTURE = spaces.Dict({"picture": IMAGE, "more": spaces.Dict({"speed": spaces.Box(-1, 1, (2,))})})
OBSERVATIONS = [  # a space, and the fields of an observation
    (spaces.Box(-1, 1, (3,), np.float32), lambda space, x: [x]),
    (spaces.Box(-1, 1, (2, 3, 4), np.float64), lambda space, x: [x.astype(np.float32)]),
    (spaces.Box(-1, 1, (), np.float16), lambda space, x: [x.astype(np.float32).reshape(1)]),
    (spaces.Box(0, 255, (8, 6), np.uint8), lambda space, x: [x]),
    (spaces.Box(0, 255, (5,), np.uint8), lambda space, x: [x]),
    (spaces.Box(-5, 500, (2, 2), np.int64), lambda space, x: [x.astype(np.int32)]),
    (spaces.Box(0, 1, (2, 2, 2, 2), np.float32), lambda space, x: [x]),
    (spaces.Discrete(7), lambda space, x: [[x]]),
    (spaces.Discrete(7, start=3), lambda space, x: [[x - 3]]),
    (spaces.MultiDiscrete([3, 2, 4]), lambda space, x: [x]),
    (spaces.MultiDiscrete([3, 2], start=[-1, 4]), lambda space, x: [x - space.start]),
    (spaces.MultiDiscrete([[3, 2], [4, 5]]), lambda space, x: [x]),
    (spaces.MultiBinary([2, 3]), lambda space, x: [x]),
    (spaces.Tuple([spaces.Discrete(3), spaces.Discrete(2)]), lambda space, x: [[x[0]], [x[1]]]),
    (spaces.Box(0, 1, (5,), bool), lambda space, x: [x]),
    (spaces.Box(-1, 1, (2, 2, 2, 2, 3)), lambda space, x: [x.reshape(4, 2, 2, 3)]),
    (spaces.Box(-(2**34), 2**34, (3,), np.int64), lambda space, x: [np.clip(x.astype(np.float32), -1e9, 1e9)]),
    (FLAT, lambda space, x: [[x["a"] + 1], x["b"], x["c"][0].reshape(1)]),
    (MASKED, lambda space, x: [x["action_mask"], x["x"], [x["y"]]]),
    (PICTURE, lambda space, x: [x["more"]["speed"], x["picture"]]),
]


class Observations(unittest.TestCase):
    def compare(self, space, expected, **options):
        """25 steps of two environments with two ends each, against two plain loops."""
        lane, rng = Lane("Probe/Plain-v0", observations=space, **options), np.random.default_rng(1)
        actions = [rng.integers(0, 4, 2).astype(np.int32) for _ in range(25)]
        ours = []
        for n in range(25):
            ours.append(lane.step())
            lane.answer(actions[n])
        for env in range(2):
            taken = [0] + [int(step[env]) for step in actions[:-1]]  # step n follows from the answer to step n - 1
            for n, (x, reward, flags) in enumerate(plain("Probe/Plain-v0", 100 + env, taken, observations=space)):
                obs, rewards, all_flags = ours[n]
                self.assertEqual((rewards[env], all_flags[env]), (np.float32(reward), flags), f"step {n}")
                for mine, theirs in zip(obs, expected(space, x), strict=True):
                    self.assertTrue(np.array_equal(mine[env], theirs), f"step {n} of {space}: {mine[env]}, not {theirs}")
        self.assertEqual(sum(bool(f[0] & LAST) for _, _, f in ours), 2)

    def test_each_space_arrives_as_in_a_plain_loop(self):
        for space, expected in OBSERVATIONS:
            with self.subTest(space=space):
                self.compare(space, expected)

    def test_flatten_makes_one_vector_in_gymnasiums_order(self):
        for space, _ in OBSERVATIONS:
            with self.subTest(space=space):
                if space is not MASKED:
                    self.compare(space, lambda s, x: [np.clip(spaces.flatten(s, x).astype(np.float32), -1e9, 1e9)], flatten=True)
        self.compare(MASKED, lambda s, x: [[*x["x"], *np.eye(3)[x["y"]]], x["action_mask"]], flatten=True)

    def test_fields_have_the_names_types_and_choices_of_their_parts(self):
        long = "a_rather_long_name_of_a_part"
        for space, fields in (
            (FLAT, [("a", "i32", (1,), 3), ("b", "f32", (2, 2), 0), ("c.0", "i32", (1,), 0)]),
            (PICTURE, [("more.speed", "f32", (2,), 0), ("picture", "u8", (8, 6), 0)]),
            (MASKED, [("action_mask", "u8", (4,), 2), ("x", "f32", (2,), 0), ("y", "i32", (1,), 3)]),
            (spaces.MultiDiscrete([[3, 2], [4, 5]]), [("obs", "i32", (2, 2), 5)]),
            (spaces.MultiBinary([2, 3]), [("obs", "u8", (2, 3), 2)]),
            (spaces.Box(0, 9, (5,), np.uint8), [("obs", "u8", (5,), 10)]),
            (
                spaces.Dict({long: spaces.Discrete(2), long + "_too": spaces.Discrete(4), "\u00fc": NUMBER}),
                [(long[:23], "i32", (1,), 2), (long[:21] + "~2", "i32", (1,), 4), ("?", "i32", (1,), 0)],
            ),
        ):
            self.assertEqual(gym_spaces.Observations(space).fields, fields)

    def test_images_of_several_shapes_get_the_largest_one(self):
        small = np.arange(12, dtype=np.uint8).reshape(2, 6)
        large = np.arange(4 * 4 * 3, dtype=np.uint8).reshape(4, 4, 3)
        for planes in False, True:
            image = np.moveaxis(np.tile(large, (1, 2, 1)), -1, 0) if planes else large
            spaces_of = {"large": spaces.Box(0, 255, image.shape, np.uint8), "small": spaces.Box(0, 255, (2, 6), np.uint8)}
            observations = gym_spaces.Observations(spaces.Dict(spaces_of))
            shape = "3x4x8" if planes else "4x6x3"
            self.assertEqual(observations.notes, [f"images of other shapes become {shape}: {'small' if planes else 'large, small'}"])
            width = 8 if planes else 6
            wanted = np.repeat(np.repeat(small, 2, 0)[:, np.arange(width) * 6 // width, None], 3, 2)
            other = image if planes else large[:, np.arange(6) * 4 // 6]
            got = Packed.single(observations, {"large": image, "small": small})
            both = Packed.batch(observations, {"large": np.stack([image] * 2), "small": np.stack([small, small])}, 2)
            for found in (got[0][0], both[0][1]):
                self.assertTrue(np.array_equal(found, other))
            for found in (got[1][0], both[1][1]):
                self.assertTrue(np.array_equal(found, np.moveaxis(wanted, -1, 0) if planes else wanted))

    def test_parts_are_chosen_left_out_and_joined(self):
        text, graph = spaces.Text(9), spaces.Graph(spaces.Box(-1, 1, (2,)), None)
        world = spaces.Dict({"image": IMAGE, "mission": text, "arm": spaces.Dict({"at": NUMBER, "map": graph}), "action_mask": spaces.MultiBinary(4)})

        def fields(*chosen, space=world):
            observations = gym_spaces.Observations(space, None, *chosen)
            return [name for name, *_ in observations.fields], observations.notes

        names, notes = fields()
        self.assertEqual(names, ["action_mask", "arm.at", "image"])
        self.assertRegex(" ".join(notes), r"part arm.map, Graph\(.*part mission, Text\(")
        self.assertEqual(fields(["im*"]), (["action_mask", "image"], []))
        self.assertEqual(fields(["arm"], ["arm.map"]), (["action_mask", "arm.at"], []))
        self.assertEqual(fields([], ["mission", "arm.m?p", "action_mask"]), (["arm.at", "image"], []))
        many = spaces.Dict({**{f"k{i}": spaces.Discrete(3) for i in range(9)}, "mask": text, "image": IMAGE})
        names, notes = fields(space=many)
        self.assertEqual((names, len(notes)), (["obs", "image"], 2))
        wide = spaces.Dict({"a": NUMBER, "b": spaces.Box(0, 2**40, (1,), np.int64)})
        self.assertEqual(fields(space=wide), (["a", "b"], ["integers of more than 32 bits become f32, limited to +-1e9: b"]))
        with self.assertRaisesRegex(ValueError, "10 fields"):
            gym_spaces.Observations(many, False)

    def test_groups_are_written_like_single_environments(self):
        for space, _ in OBSERVATIONS:
            for flatten in (None, True):
                observations = gym_spaces.Observations(space, flatten)
                space.seed(5)
                values = [space.sample() for _ in range(3)]
                joined = gymnasium.vector.utils.concatenate(space, values, gymnasium.vector.utils.create_empty_array(space, 3))
                single, whole = Packed.single(observations, *values), Packed.batch(observations, joined, 3)
                for a, b in zip(single, whole, strict=True):
                    self.assertTrue(np.array_equal(a, b) and a.any(), space)

    def test_numbers_of_each_type_and_layout_are_cast_like_numpys_same_kind(self):
        kinds = ["?", "b", "B", "h", "H", "i", "I", "l", "L", "q", "Q", "e", "f", "d", "g", ">i4", ">f8", "O", "F"]
        layouts = [np.copy, np.asfortranarray, lambda x: np.repeat(x, 2, axis=1)[:, ::2], np.ndarray.tolist, memoryview]
        numbers, kept = np.array([[0, 1, 200], [3, 70, 5]]), 0
        for field, kind, layout in itertools.product((np.uint8, np.int32, np.float32), kinds, layouts):
            observations = gym_spaces.Observations(spaces.Box(0, 255, numbers.shape, field))
            value, expected = layout(numbers.astype(kind)), np.empty(numbers.shape, field)
            with self.subTest(field=field, kind=kind, layout=layout):
                try:
                    np.copyto(expected, np.asarray(value), casting="same_kind")
                except TypeError:
                    with self.assertRaisesRegex(BrokenContract, "not in its space"):
                        Packed.single(observations, value)
                    continue
                for got in (*Packed.single(observations, value, value)[0], *Packed.batch(observations, np.array([value] * 2), 2)[0]):
                    self.assertTrue(np.array_equal(got, expected), got)
                kept += 1
        self.assertGreater(kept, 100)

    def test_whole_numbers_of_each_type_are_written_from_0_or_one_hot(self):
        for flatten, expected in ((False, [1]), (True, [0, 1, 0])):
            for value in (4, True + 3, np.int64(4), np.uint8(4), np.array(4), np.array(4, np.int16), np.float32(4)):
                observations = gym_spaces.Observations(spaces.Discrete(3, start=3), flatten)
                self.assertEqual(Packed.single(observations, value)[0].tolist(), [expected])
        for flatten, expected in ((False, [1, 2]), (True, [0, 1, 0, 0, 1])):
            several = gym_spaces.Observations(spaces.MultiDiscrete([2, 3]), flatten)
            for value in ([1, 2], (1, 2), np.array([1, 2]), np.array([1, 2], np.uint8), np.array([2, 1])[::-1], np.array([1, 2], "b")):
                self.assertEqual(Packed.single(several, value)[0].tolist(), [expected])

    def test_steps_and_errors_keep_no_object(self):
        """A reference that a step or an error keeps leaves a block."""

        def play(steps):
            for n in range(steps):
                reward[0] = float(n) if n % 7 else None
                with contextlib.suppress(BrokenContract, KeyError):
                    lane.group.step([n + 1000, n + 2000])
                    lane.answer()

        def step(action):
            values = {"b": np.full(2, action), "a": [0, 1] if action % 5 else 7, "c": (np.int64(action % 2),)}
            if action % 11 == 0:
                raise KeyError(action)
            return (values, reward[0], action % 3 == 0, False, {"x": action})[: 4 if action % 13 == 0 else 5]

        space = spaces.Dict({"b": spaces.Box(0, 9, (2,)), "a": spaces.MultiDiscrete([2, 2]), "c": spaces.Tuple([spaces.Discrete(2)])})
        start, reward = ({"b": [0.5, 1], "a": [1, 0], "c": [0]}, {}), [0.0]
        lane = Packed(gym_spaces.Observations(space), 2, [lambda seed: start] * 2, step)
        play(300)
        gc.collect()
        before = sys.getallocatedblocks()
        play(3000)
        gc.collect()
        self.assertLess(sys.getallocatedblocks() - before, 300)

    def test_an_observation_outside_its_space_is_an_error(self):
        with self.assertRaisesRegex(BrokenContract, r"shape \(4,\) instead of \(3,\): lane 0, number 0"):
            Lane("Probe/WrongShape-v0").step()
        with self.assertRaisesRegex(BrokenContract, r"shape .* instead of .*: lane 0$"):
            Lane("Probe/WrongGroup-v0", WIDE).step()
        for space, value in (
            (spaces.Discrete(3, start=1), 0), (spaces.Discrete(3), 3), (spaces.MultiDiscrete([2, 2]), [0, -1]),
            (spaces.MultiBinary(2), np.array([0, 2], np.int8)), (spaces.MultiBinary(2), np.array([-1, 0], np.int8)),
        ):
            with self.assertRaisesRegex(BrokenContract, "not in its space"):
                Packed.single(gym_spaces.Observations(space), value)
        whole = spaces.Box(0, 9, (2,), np.uint8)
        for space, value in ((whole, [0.5, 1]), (whole, [[1], 2]), (spaces.Dict({"x": whole}), {"y": np.zeros(2, np.uint8)})):
            with self.assertRaisesRegex(BrokenContract, "not in its space"):
                Packed.single(gym_spaces.Observations(space, flatten=False), value)

    def test_numbers_beyond_a_boxs_bounds_pass_as_they_are(self):
        for kind in np.uint8, np.int32, np.float32:
            value = np.array([11, 0, 200], kind)
            (field,) = Packed.single(gym_spaces.Observations(spaces.Box(0, 9, (3,), kind)), value)
            self.assertEqual(field.tolist(), [value.tolist()])

    def test_a_reward_that_is_not_a_number_is_an_error(self):
        lane = Lane("Probe/NoReward-v0")
        lane.step()
        lane.answer()
        with self.assertRaisesRegex(BrokenContract, "a reward that is not a number but NoneType: lane 0, number 0"):
            lane.step()

    def test_results_of_another_form_are_errors(self):
        for result, message in (((0, 0, False, {}), r"step\(\) .*, info\) but has 4 values"), (None, r"step\(\) .* but NoneType")):
            lane = Packed(gym_spaces.Observations(spaces.Discrete(2)), 1, [lambda seed: [0, {}]], lambda action: result)
            lane.group.step([0])
            with self.assertRaisesRegex(RuntimeError, "wait for the lane"):
                lane.group.step([0])
            lane.answer()
            with self.assertRaisesRegex(BrokenContract, message):
                lane.group.step([0])

    def test_invalid_rewards_of_a_group_are_an_error(self):
        for name, bad_values, message in (("WrongRewards", "count", "fit no group of 12"), ("InfiniteRewards", "fail", "bad-values fail")):
            lane = Lane(f"Probe/{name}-v0", WIDE, bad_values=bad_values)
            lane.step()
            lane.answer()
            with self.assertRaisesRegex(BrokenContract, rf"{message}.*: lane 0$"):
                lane.step()


class Actions(unittest.TestCase):
    def received(self, space, answers):
        """The actions that the environments receive."""
        lane = Lane("Probe/Plain-v0", actions=space, plan={99: (True, False)})
        lane.step()
        for answer in answers:
            lane.answer(answer)
            lane.step()
        return [env.unwrapped.received for env in lane.group._envs]

    def test_discrete_actions_count_from_their_start(self):
        got = self.received(spaces.Discrete(3, start=5), [np.array([0, 2], np.int32), np.array([1, 1], np.int32)])
        self.assertEqual(got, [[5, 6], [7, 6]])

    def test_multi_discrete_actions(self):
        space = spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [0, -1]])
        got = self.received(space, [np.array([[1, 2, 3, 4], [0, 0, 0, 0]], np.int32)])
        self.assertEqual(got[0][0].tolist(), [[1, 3], [3, 3]])
        self.assertEqual(got[1][0].tolist(), [[0, 1], [0, -1]])

    def test_each_action_is_in_its_space_and_every_choice_can_be_taken(self):
        pair = spaces.Tuple([spaces.Discrete(3, start=-1), spaces.MultiBinary(2)])
        many = spaces.Dict({"pair": pair, "box": spaces.Box(-2, 1, (2, 1), np.int8)})
        for space, sizes in (
            (spaces.MultiBinary(3), [2] * 3), (spaces.MultiBinary([2, 2]), [2] * 4), (spaces.Box(0, 1, (2,), bool), [2, 2]),
            (spaces.Box(0, 255, (3,), np.uint8), [256] * 3), (spaces.Box(-128, 127, (), np.int8), [256]),
            (spaces.Box(2**63, 2**63 + 4, (2,), np.uint64), [5, 5]), (pair, [3, 2, 2]), (many, [4, 4, 3, 2, 2]),
        ):
            actions = gym_spaces.Actions(space)
            self.assertEqual((actions.spec["kind"], actions.spec["sizes"]), ("multi_discrete", sizes))
            seen = actions.split(np.array([[n % size for size in sizes] for n in range(max(sizes))], np.int32))
            self.assertEqual(len({repr(action) for action in seen}), max(sizes))
            for action in seen:
                self.assertTrue(space.contains(action), f"{action} is not in {space}")
        batch = gym_spaces.Actions(many).decode(np.array([[3, 0, 2, 1, 0]] * 2, np.int32))
        self.assertEqual((batch["box"][1].tolist(), batch["pair"][0].tolist(), batch["pair"][1].shape), ([[1], [-2]], [1, 1], (2, 2)))

    def test_continuous_actions_lie_in_their_bounds_in_the_spaces_own_type(self):
        answers = np.array([[-9], [0.2], [9], [np.nan], [np.inf], [0.1], [0.3], [np.nextafter(np.float32(0.3), 1)]], np.float32)
        for dtype in np.float16, np.float32, np.float64:
            for low, high in (0.1, 0.3), (-0.3, -0.1), (1e-7, np.inf), (-np.inf, np.inf), (1 / 3, 1 / 3):
                space = spaces.Box(low, high, (1,), dtype)
                with np.errstate(all="raise"):
                    actions = gym_spaces.Actions(space).split(answers)
                for answer, action in zip(answers, actions, strict=True):
                    self.assertTrue(space.contains(action), f"{answer} becomes {action!r}, outside {space}")
                self.assertEqual(actions[3], max(actions.min(), space.low[0]))

    def test_continuous_actions_are_clipped_copies(self):
        space = spaces.Box(np.array([[-1, 0, -np.inf]]), np.array([[1, 2, np.inf]]), dtype=np.float64)
        spec = gym_spaces.Actions(space).spec
        self.assertEqual((spec["kind"], spec["dims"], spec["low"][:2]), ("continuous", 3, [-1, 0]))
        json.dumps(spec, allow_nan=False)
        answers = [np.array([[-3, 0.5, -7], [np.nan, 5, 8]], np.float32), np.zeros((2, 3), np.float32)]
        got = self.received(space, answers)
        self.assertEqual(got[0][0].tolist(), [[-1, 0.5, -7]])
        self.assertEqual(got[1][0].tolist(), [[-1, 2, 8]])  # kept over a step: no view of the lane
        self.assertEqual(got[0][0].dtype, np.float64)


class Ends(unittest.TestCase):
    def flags(self, name, steps=9, **options):
        lane, seen = Lane(name, width=1, **options), []
        for _ in range(steps):
            seen.append(int(lane.step()[2][0]))
            lane.answer()
        return seen

    def test_terminated_and_truncated_differ(self):
        died, cut = LAST | TERMINATED | GAME_END, LAST | TRUNCATED | GAME_END
        both = self.flags("Probe/Plain-v0", plan={2: (True, False), 4: (False, True)}, steps=7)
        self.assertEqual(both, [FIRST, 0, died, FIRST, 0, cut, FIRST])
        self.assertEqual(self.flags("Probe/Plain-v0", plan={1: (True, True)}, steps=2), [FIRST, died])

    def test_limits_of_steps_truncate(self):
        cut = LAST | TRUNCATED | GAME_END
        self.assertEqual(self.flags("Probe/Limited-v0", plan={99: (True, False)}), [FIRST, 0, 0, 0, 0, cut, FIRST, 0, 0])
        self.assertEqual(self.flags("Probe/Limited-v0", max_episode_steps=2, steps=4), [FIRST, 0, cut, FIRST])


class Seeds(unittest.TestCase):
    def play(self, seeds, name="Acrobot-v1"):
        lane, rng = Lane(name, len(seeds), seeds, max_episode_steps=20), np.random.default_rng(0)
        out = []
        for _ in range(50):
            out.append(lane.step()[0][0])
            lane.answer(lane.draw_actions(rng))
        return np.array(out)

    def test_equal_seeds_play_equally_and_others_do_not(self):
        for name in ("Acrobot-v1", "CartPole-v1"):
            again, other = self.play(range(WIDE), name), self.play(range(WIDE, 2 * WIDE), name)
            self.assertTrue(np.array_equal(self.play(range(WIDE), name), again))
            self.assertFalse(np.array_equal(again, other))
            self.assertFalse(np.array_equal(again[:, 0], again[:, 1]))


class Resets(unittest.TestCase):
    """In the same step, and on request."""

    def test_in_the_same_step_they_leave_out_a_step(self):
        for name, ends in (("Probe/Plain-v0", 2), ("CartPole-v1", 3)):
            played, same = (Lane(name, ring={"same_step": same}).play_joined(100, lambda env, n: (n * 7 + env) // 3 % 2) for same in (False, True))
            self.assertEqual(played, same)
            self.assertGreaterEqual(sum(flags & (FIRST | LAST) == FIRST | LAST for _, _, flags, _ in played[0]), ends)

    def test_a_reset_in_the_same_step_is_checked(self):
        for bad_values in ("fail", "reset"):
            lane = Lane("Probe/Nan-v0", 2, None, bad_values, {"same_step": True}, plan={1: (True, False)}, resets=(2,))
            lane.step()
            with self.assertRaisesRegex(BrokenContract, "NaN.* lane 0, number 0"):
                lane.after()

    def test_a_request_resets_one_environment_with_its_seed_and_numbers(self):
        lane = Lane("CartPole-v1", WIDE, ring={"numbers": "low,high"})
        self.assertIsInstance(lane.group, gym_actor.Singles)
        (start,), _, _ = lane.step()
        (seeded,), _, flags = lane.after(resets={1: (101, None, None)})
        self.assertTrue(np.array_equal(seeded[1], start[1]) and flags.tolist() == [0, FIRST] + [0] * (WIDE - 2), "its seed was 101")
        self.assertFalse(np.array_equal(lane.after(resets={1: (None, None, None)})[0][0][1], start[1]), "its generator continues")
        (raised,), _, flags = lane.after(resets={0: (7, 0.1, 0.12), 2: (None, None, 0.02)})
        self.assertEqual(flags[:4].tolist(), [FIRST, 0, FIRST, 0])
        self.assertTrue(((raised[0] >= 0.1) & (raised[0] <= 0.12)).all() and (raised[2] <= 0.02).all(), raised)
        later = [obs[0] for (obs,), _, flags in (lane.after() for _ in range(60)) if flags[0] & FIRST]
        self.assertTrue(later and all((obs >= 0.1).all() for obs in later), "numbers stay for the resets that follow")
        self.assertTrue(np.array_equal(lane.after(resets={3: (7, 0.1, 0.12)})[0][0][3], raised[0]))

    def test_a_vector_environment_without_single_ones_is_reset_as_a_whole(self):
        gymnasium.register(id="Probe/Alone-v0", vector_entry_point=Group)
        lane = Lane("Probe/Alone-v0", 3, ring={"numbers": ""})
        lane.step()
        for resets in ({}, dict.fromkeys(range(3), (1,)), {}):
            (obs,), _, flags = lane.after(resets=resets)
            self.assertEqual((flags.tolist(), obs.any()), ([FIRST if resets else 0] * 3, not resets))
        with self.assertRaisesRegex(BrokenContract, "its 3 are reset together, not 1 of them: lane 0"):
            lane.after(resets={0: (1,)})
        with self.assertRaisesRegex(BrokenContract, "vector environment only.* --autoreset next_step"):
            Lane("Probe/Alone-v0", 3, ring={"same_step": True})


class VectorEnvironments(unittest.TestCase):
    def test_the_vector_environment_of_the_id_plays_a_group(self):
        """Each step and end equals that of CartPole's vector environment."""
        width, rng = WIDE, np.random.default_rng(3)
        lane = Lane("CartPole-v1", width, max_episode_steps=25)
        self.assertIsInstance(lane.group, gym_actor.Vector)
        theirs = gymnasium.make_vec("CartPole-v1", width, vectorization_mode="vector_entry_point", max_episode_steps=25)
        x, _ = theirs.reset(seed=100)
        rewards, expected, kinds = np.zeros(width), np.full(width, FIRST), 0
        for n in range(120):
            obs, got, flags = lane.step()
            self.assertTrue(np.array_equal(obs[0], x), f"step {n}")
            self.assertEqual((got.tolist(), flags.tolist()), (rewards.tolist(), expected.tolist()), f"step {n}")
            actions = rng.integers(0, 2, width) if n % 40 < 20 else np.full(width, n % 2)  # falls, and lasts
            lane.answer(actions.astype(np.int32))
            ended = expected & LAST
            x, rewards, died, cut, _ = theirs.step(actions)
            expected = np.where(died, LAST | TERMINATED | GAME_END, np.where(cut, LAST | TRUNCATED | GAME_END, 0))
            expected = np.where(ended, FIRST, expected)
            kinds |= int(np.bitwise_or.reduce(expected))
        self.assertEqual(kinds, FIRST | ENDS)

    def test_each_environment_ends_and_starts_in_its_own_steps(self):
        lane, seen = Lane("Probe/NextStep-v0", WIDE), []
        for _ in range(8):
            obs, rewards, flags = lane.step()
            seen.append([(int(obs[0][env][0]), int(rewards[env]), int(flags[env])) for env in range(2)])
            lane.answer()
        end, on, first = LAST | TERMINATED | GAME_END, [(1, 7, 0), (2, 7, 0)], (0, 0, FIRST)
        self.assertEqual([step[0] for step in seen], [first, on[0], (2, 7, end), first, on[0], (2, 7, end), first, on[0]])
        self.assertEqual([step[1] for step in seen], [first, *on, (3, 7, end), first, *on, (3, 7, end)])

    def test_only_an_equal_vector_environment_with_next_step_resets_is_used(self):
        for name, used in (("NextStep", True), ("SameStep", False), ("Disabled", False), ("OtherSpaces", False), ("Plain", False)):
            maker = gym_actor.Maker(f"Probe/{name}-v0", {}, "count")
            self.assertEqual(maker.plays_as_vector(WIDE), used, name)
            self.assertFalse(maker.plays_as_vector(WIDE - 1), name)  # slower than single ones
        for bad_values, options in (("count", {"vector": False}), ("reset", {})):
            self.assertFalse(gym_actor.Maker("Probe/NextStep-v0", options, bad_values).plays_as_vector(WIDE))

    def test_single_environments_replace_one_with_other_resets(self):
        lane, flags = Lane("Probe/SameStep-v0", width=1, plan={2: (True, False)}), []
        for _ in range(4):
            flags.append(int(lane.step()[2][0]))
            lane.answer()
        self.assertEqual(flags, [FIRST, 0, LAST | TERMINATED | GAME_END, FIRST])

    def test_one_with_other_resets_and_no_single_environment_is_refused(self):
        with self.assertRaisesRegex(ValueError, "NEXT_STEP is needed"):
            gym_actor.Maker("Probe/OnlySameStep-v0", {}, "count")  # before a lane is made

    def test_one_of_a_fixed_width_names_what_fits_it(self):
        with self.assertRaisesRegex(BrokenContract, "--envs-per-actor 10"):
            Lane("Probe/AlwaysTen-v0")
        Lane("Probe/AlwaysTen-v0", width=10).step()


class BadValues(unittest.TestCase):
    def play(self, bad_values, **options):
        lane, seen = Lane("Probe/Nan-v0", width=1, bad_values=bad_values, **options), []
        for _ in range(6):
            obs, rewards, flags = lane.step()
            seen.append((float(obs[0][0, 0]), float(rewards[0]), int(flags[0])))
            lane.answer()
        return seen

    def test_count_leaves_them_to_the_learner(self):
        self.assertEqual([np.isnan(obs) for obs, _, _ in self.play("count")], [False] * 3 + [True] + [False] * 2)

    def test_fail_names_the_environment(self):
        with self.assertRaisesRegex(BrokenContract, r"beyond 1e9 \(--bad-values fail\): lane 0, number 0"):
            self.play("fail")

    def test_a_mask_permits_a_choice_before_an_end(self):
        lane = Lane("Probe/NoChoice-v0", width=1, bad_values="fail")
        for flags in (FIRST, 0, 0, LAST | TERMINATED | GAME_END, FIRST, 0, 0):  # at the end the mask permits nothing
            self.assertEqual(lane.step()[2][0], flags)
            lane.answer()
        with self.assertRaisesRegex(BrokenContract, r"action_mask that permits no choice \(--bad-values fail\): lane 0, number 0"):
            lane.step()

    def test_reset_starts_a_new_episode_instead(self):
        self.assertEqual(self.play("reset")[2:5], [(0.5, 1.5, 0), (1, 0, FIRST), (0.5, 0.5, 0)])
        with self.assertRaisesRegex(BrokenContract, "bad-values reset"):
            self.play("reset", resets=(2,))  # the reset that replaces the invalid step

    def test_reset_does_not_replace_an_invalid_reset(self):
        with self.assertRaisesRegex(BrokenContract, "bad-values reset"):
            self.play("reset", resets=(2,), plan={1: (True, False)})


class Refusals(unittest.TestCase):
    def check_refused(self, name, message, *pairs):
        with mock.patch.dict(gymnasium.registry), self.assertRaises((LookupError, ValueError)) as refused:  # ale_py registers its own
            gym_actor.Gym.prepare(name, list(pairs), "count")
        self.assertRegex(refused.exception.args[0], message)
        self.assertNotIn("\n", refused.exception.args[0])

    def test_names(self):
        self.check_refused("CartPoole-v1", "CartPole")
        self.check_refused("CartPole-v99", "v99")
        self.check_refused("Nowhere/Thing-v5", "gym/PACKAGE:ID")
        self.check_refused("no_such_package:Thing-v0", "no_such_package")
        self.check_refused("", "^gym/: ")
        for name, message in (
            ("cartpole-v0", 'did you mean "gym/CartPole-v1"?'),
            ("Pendulum", 'did you mean "gym/Pendulum-v1"?'),
            ("HalfCheetah-v2", 'did you mean "gym/HalfCheetah-v5"?'),
            ("ALE/SpaceInvaders-ram-v5", '"ale/SpaceInvaders"?.* --env.obs ram --env.repeat_action_probability 0.25$'),
            ("mujoco/Ant-v4", 'did you mean "gym/Ant-v5"?'),
            ("no_such_package:procgen-maze-v0", 'did you mean "procgen/maze"?'),
            ("no_such_package:atari/Pong-v4", 'did you mean "ale/Pong"?'),
            ("PongNoFrameskip-v4", '"ale/Pong"?.* --env.frame_skip 1$'),
        ):
            self.check_refused(name, message)

    def test_an_error_has_its_place_in_the_package(self):
        """The innermost that is not numpy's or Gymnasium's; of an assertion without text, its line too."""
        def bare(size=3):
            assert size > 5

        def within():
            np.zeros(3).reshape(2)

        gymnasium.register("Test/Bare-v0", bare)
        gymnasium.register("Test/Within-v0", within)
        gymnasium.register("Test/Needs-v0", lambda size, colour: None)
        self.check_refused("Test/Bare-v0", r"AssertionError: assert size > 5 \(.*test_gym_actor.py:\d+, bare\)")
        self.check_refused("Test/Within-v0", r"ValueError: cannot reshape.* \(.*test_gym_actor.py:\d+, within\)")
        self.check_refused("Test/Needs-v0", r"\(its arguments are options: --env.size VALUE --env.colour VALUE\)")

    def test_environments_of_the_old_gym_are_named(self):
        old, space = "made for the old gym package", type("Box", (), {"__module__": "gym.spaces"})()
        with mock.patch.dict(sys.modules, {"gym": None}), tempfile.TemporaryDirectory() as folder, mock.patch.object(sys, "path", [folder, *sys.path]):
            (pathlib.Path(folder) / "old_package.py").write_text("import gym.spaces")
            self.check_refused("old_package:Thing-v0", rf"{old}: it imports gym.* \(old_package.py:1, <module>\)")
        gym = types.SimpleNamespace(envs=types.SimpleNamespace(registry={"Old-v0": None}))
        gymnasium.register("Test/OldClass-v0", type("Old", (), {}))
        gymnasium.register("Test/OldSpace-v0", lambda: Probe(observations=space))
        with mock.patch.dict(sys.modules, {"gym": gym}):
            self.check_refused("Old-v0", f"{old}: it registers")
            self.check_refused("Test/OldClass-v0", f"{old}: its class")
            self.check_refused("Test/OldSpace-v0", f"{old}: its space .* gym.spaces.Box")

    def test_options(self):
        self.check_refused("Acrobot-v1", "unexpected keyword argument", "colour=red")
        self.check_refused("CartPole-v1", "true or false", "flatten=perhaps")

    def test_a_space_is_described_in_printable_text(self):
        self.assertTrue(gym_spaces.describe(spaces.Text(5, charset="a\0\n\x1b")).isprintable())

    def test_unsupported_spaces_are_named(self):
        mask = spaces.Dict({"action_mask": spaces.Box(0, 1, (3,))})
        others = spaces.Text(5), spaces.Sequence(spaces.Discrete(2)), spaces.Dict({"a": spaces.Text(3)}), mask
        for space in others:
            with self.assertRaisesRegex(ValueError, "Text|Sequence|part action_mask, .*must be MultiBinary"):
                gym_spaces.Observations(space)
        mixed = spaces.Dict({"aim": spaces.Box(-1, 1, (2,)), "move": spaces.Discrete(3)})
        for space, message in (
            (spaces.Dict({}), "0 dims"), (spaces.Text(3), "actions are Discrete"), (mixed, "one of both kinds"),
            (spaces.Tuple([mixed["move"], spaces.Text(3)]), "part 1, Text"),
            (spaces.Box(0, 2**63 - 1, (2,), np.int64), "at most 65536"), (spaces.Box(-1, 1, (129,)), "129 dims, 1 to 128"),
        ):
            with self.assertRaisesRegex(ValueError, f"action space.*{message}.*--wrap PACKAGE:WRAPPER"):
                gym_spaces.Actions(space)

    def test_spaces_beyond_the_limits_are_named_with_a_remedy(self):
        for space, message in (
            (spaces.Dict({str(i): spaces.Box(0, 255, (2, 2), np.uint8) for i in range(9)}), "9 fields.*env.flatten=true.*obs_keep"),
            (spaces.Discrete(1 << 32), "2.31 choices"),
            (spaces.Box(-1, 1, (0,)), "empty"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                gym_spaces.Observations(space)

    def test_parts_and_wrappers_are_named(self):
        for pairs, message in (
            (["obs_keep=image"], "obs_keep: the observation has no part 'image'; it has no parts: it is no Dict or Tuple"),
            (["obs_drop=1e3"], "obs_drop: the observation has no part '1e3'"),
            (["wrap=TimeLimit"], "wrap 'TimeLimit': must be PACKAGE:WRAPPER"),
            (["wrap=no_such_package:Thing"], "no_such_package"), (["wrap=gymnasium.wrappers:Thing"], "no attribute 'Thing'"),
            (["wrap=gymnasium.wrappers:TimeLimit(5)"], "arguments need names"), (["wrap=builtins:id"], "returns int"),
            (["wrap=gymnasium.wrappers:TimeLimit("], "must be PACKAGE:WRAPPER"), (["wrap=gymnasium:wrappers"], "a module is not callable"),
            (["wrap=gymnasium.wrappers:TimeLimit(a=((1, (2,)),), b='x,(')"], "wrap 'gymnasium.wrappers:TimeLimit': TypeError"),
        ):
            self.check_refused("CartPole-v1", message, *pairs)
        with self.assertRaisesRegex(ValueError, "obs_drop: the observation has no part 'pictures'; it has more.speed, picture"):
            gym_spaces.Observations(PICTURE, None, (), ["pictures"])
        with self.assertRaisesRegex(ValueError, "obs_keep and obs_drop leave no part; --wrap"):
            gym_spaces.Observations(PICTURE, None, ["more"], ["*.speed"])


class Options(unittest.TestCase):
    def test_values_have_the_type_of_their_python_text(self):
        for text, value in {
            **{"3": 3, "0.5": 0.5, "-1e3": -1000.0, "true": True, "False": False, "none": None, "(1, 2)": (1, 2), "[1]": [1]},
            **{"'7'": "7", "a b": "a b", "4x4": "4x4", "": ""},
        }.items():
            self.assertEqual((gym_actor.literal(text), type(gym_actor.literal(text))), (value, type(value)))

    def test_they_reach_the_environment(self):
        maker = gym_actor.Gym.prepare("FrozenLake-v1", ["map_name=8x8", "is_slippery=false"], "count")
        self.assertEqual(maker.spec()["obs"][0]["choices"], 64)


if __name__ == "__main__":
    unittest.main()
