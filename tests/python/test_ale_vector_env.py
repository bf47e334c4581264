"""Our Atari games against ALE's vector environment: observations byte for byte, rewards and ends step by step, with equal seeds and
actions. Ours go from the emulator through the kernel into a lane; the test reads the learner's side. FARM_LONG=1 plays all games.

No pixel may differ: src/kernels/atari.h keeps OpenCV's order of operations. (OpenCV built with fused multiply-add rounds some sums
differently; ALE's wheels are not.) Other observations are compared with ALE's Gymnasium environment.
"""

import functools
import os
import pathlib
import re
import subprocess
import sys
import unittest

import numpy as np
from actorfarm import ale_actor, ale_game, gym_spaces
from actorfarm.actor import BrokenContract
from ale_py import _ale_py
from ale_py.env import AtariEnv
from lanes import FIRST, GAME_END, GREY, LAST, TERMINATED, TRUNCATED, Lane

GAMES = (
    "asteroids", "boxing", "breakout", "freeway", "montezuma_revenge", "ms_pacman", "pong", "qbert", "seaquest", "space_invaders",
)
STEPS, STEPS_ENDLESS = 600, 100
ENDLESS = ("asteroids", "boxing", "freeway", "pong")  # a game is longer than STEPS


def vector_env(rom, options):
    return _ale_py.ALEVectorInterface(
        rom_path=ale_game.ale_py.roms.get_rom_path(rom),
        num_envs=1,
        stack_num=1,
        reward_clipping=False,
        frame_skip=options.frame_skip,
        maxpool=options.maxpool,
        noop_max=options.noop_max,
        use_fire_reset=options.fire_reset,
        episodic_life=options.episodic_life,
        max_episode_steps=options.max_frames,
        repeat_action_probability=options.repeat_action_probability,
        full_action_space=options.full_action_space,
    )


class AleVectorEnv(unittest.TestCase):
    def compare(self, rom, steps, seed, **chosen):
        """Plays both with the same random actions; returns the number of episodes that ended."""
        options = ale_game.Options(**{"episodic_life": False, **chosen})
        game, theirs = ale_game.Game(rom, seed, options), vector_env(rom, options)
        lane = Lane(1, GREY, len(game.actions))
        lane.actor.atari(game.height)
        rng = np.random.default_rng(seed)
        obs, _ = theirs.reset([0], [seed])
        starts, ends, action = True, 0, 0
        for step in range(steps):
            reward, flags = 0, FIRST
            if starts:
                game.continues = False  # theirs starts a new game even after a lost life
                game.reset()
            else:
                reward, flags = game.step(action)
                flags |= LAST if flags else 0
            self.assertEqual(lane.actor.wait(), 0)
            lane.actor.commit(0, 0, game.frame_a, game.frame_b, reward, flags)
            lane.actor.publish(0)
            ((mine,),), (reward,), (flags,) = lane.read()
            self.assertTrue(np.array_equal(mine, obs[0, 0]), f"{rom}, seed {seed}, step {step}: other pixels")
            if not starts:
                self.assertEqual(reward, rewards[0], f"step {step}")
                self.assertEqual(bool(flags & TERMINATED), terminated[0], f"step {step}")
                self.assertEqual(bool(flags & TRUNCATED), truncated[0], f"step {step}")
            starts = bool(flags & LAST)
            ends += starts
            action = int(rng.integers(len(game.actions)))
            lane.answer(np.array([action], np.int32))
            theirs.send([action], [1.0])
            obs, rewards, terminated, truncated, _ = theirs.recv()
        return ends

    def test_hundreds_of_steps_of_each_game(self):
        games = ale_game.games().values() if os.environ.get("FARM_LONG") else GAMES
        ends = {rom: self.compare(rom, STEPS_ENDLESS if rom in ENDLESS else STEPS, seed) for seed, rom in enumerate(games)}
        self.assertGreater(ends["breakout"], 2)
        self.assertGreater(sum(count > 0 for count in ends.values()), len(ends) // 3, ends)

    def test_screens_of_other_heights(self):
        for rom, height in {"king_kong": 250, "journey_escape": 230, "pooyan": 220, "carnival": 214}.items():
            self.assertEqual(ale_game.Game(rom, 0, ale_game.Options()).height, height)
            self.compare(rom, 40, seed=0)

    def test_episodes_end_within_a_step(self):
        # A life ends at each of the four frames of a step, which leaves different frames for the observation.
        self.assertGreater(self.compare("breakout", 300, seed=5, episodic_life=True), 8)

    def test_the_frame_limit_at_each_frame_of_a_step(self):
        for limit in (53, 54, 55, 56):
            self.assertGreater(self.compare("pong", 40, seed=limit, max_frames=limit), 1)

    def test_other_settings(self):
        self.compare("boxing", 60, seed=4, frame_skip=1, noop_max=0)
        self.compare("pong", 60, seed=4, full_action_space=True, fire_reset=False, frame_skip=3)
        self.compare("pong", 60, seed=4, repeat_action_probability=0.25)
        self.assertGreater(self.compare("breakout", 200, seed=5, episodic_life=True, maxpool=False), 4)


class Direct(unittest.TestCase):
    """Observations without DeepMind's preprocessing, against ALE's Gymnasium environment."""

    def compare(self, obs, theirs, expected, rom="breakout", **more):
        options = ale_game.Options(obs=obs, noop_max=0, fire_reset=False, episodic_life=False, **more)
        game = ale_game.Game(rom, 0, options)
        _, dtype, dims = game.field
        env = AtariEnv(rom, obs_type=theirs, repeat_action_probability=0.0, **({"mode": options.mode} if more else {}))
        into, rng, ends = np.zeros(dims, gym_spaces.NUMPY[dtype]), np.random.default_rng(1), 0
        ended = True
        for step in range(220):
            if ended:
                game.reset()
                observation, _ = env.reset()
                ended = False
            else:
                action = int(rng.integers(len(game.actions)))
                reward, flags = game.step(action)
                observation, points, ended, cut, _ = env.step(action)
                self.assertEqual((reward, bool(flags & TERMINATED)), (points, ended))
                ends += ended
            game.write_observation(into)
            self.assertTrue(np.array_equal(into, expected(observation)), f"{obs}, step {step}")
        return ends

    def test_grey_and_coloured_screens(self):
        self.assertGreater(self.compare("raw", "grayscale", lambda x: x), 0)
        self.compare("rgb", "rgb", lambda x: x)
        self.assertEqual(ale_game.Game("king_kong", 0, ale_game.Options(obs="rgb")).field, ("frame", "u8", (250, 160, 3)))

    def test_the_memory_of_the_console_is_scaled_to_1(self):
        self.compare("ram", "ram", lambda x: x * np.float32(1 / 255))

    def test_modes_of_the_console(self):
        self.compare("ram", "ram", lambda x: x * np.float32(1 / 255), mode=12)
        with self.assertRaisesRegex(ValueError, "mode is one of 0, 4, 8"):
            ale_game.Game("breakout", 0, ale_game.Options(mode=1))
        with self.assertRaisesRegex(ValueError, "difficulty is one of 0, 1"):
            ale_game.Game("breakout", 0, ale_game.Options(difficulty=7))


class Loading(unittest.TestCase):
    def test_no_palette_is_averaged(self):
        """The dynamic linker gives the emulator our function, which does nothing, and the emulator does not need its own."""
        command = [sys.executable, "-c", "from actorfarm import ale_game"]
        said = subprocess.run(command, env={**os.environ, "LD_DEBUG": "bindings"}, stderr=subprocess.PIPE, text=True, check=True).stderr
        bound = [line for line in said.splitlines() if "makeAveragePalette" in line]
        self.assertRegex("\n".join(bound), r"binding file \S*/_ale_py\S* .* to \S*/_farm\S* ")
        self.assertFalse(ale_game.Game("pong", 0, ale_game.Options())._ale.getBool("color_averaging"))


class NoopCount(unittest.TestCase):
    def test_is_uniform_over_the_range(self):
        counts = np.bincount([ale_game.NoopCount(seed, 30).draw() for seed in range(3000)], minlength=30)
        self.assertEqual(len(counts), 30)
        self.assertTrue(60 < counts.min() and counts.max() < 145, counts)


class EpisodicLife(unittest.TestCase):
    """Ours only: after a lost life the same game continues."""

    @staticmethod
    @functools.cache
    def play(episodic, steps=1200):
        """Flags and rewards of random play."""
        game = ale_game.Game("breakout", 3, ale_game.Options(episodic_life=episodic))
        rng, out, starts = np.random.default_rng(3), [], True
        for _ in range(steps):
            if starts:
                frames_before = game._frames_played
                game.reset()
                out.append((FIRST, 0, game._frames_played - frames_before))
                starts = False
            else:
                reward, flags = game.step(int(rng.integers(len(game.actions))))
                out.append((flags, reward, game._lives))
                starts = flags != 0
        return out

    def test_lives_end_episodes_and_the_last_one_the_game(self):
        ends = [flags for flags, _, _ in self.play(True) if flags & (TERMINATED | TRUNCATED)]
        self.assertGreater(len(ends), 10)
        life, game = TERMINATED, TERMINATED | GAME_END
        self.assertEqual(ends[:10], [life] * 4 + [game] + [life] * 4 + [game])

    def test_thecontinues_with_one_step(self):
        steps = self.play(True)
        for before, first in zip(steps, steps[1:]):
            if first[0] == FIRST and before[0] == TERMINATED:
                self.assertEqual(first[2], 4)

    def test_without_it_only_the_game_ends_episodes(self):
        ends = {flags for flags, _, _ in self.play(False)} - {0, FIRST}
        self.assertEqual(ends, {TERMINATED | GAME_END})

    def test_points_and_end_of_the_step_between_lives_count(self):
        game = ale_game.Game("breakout", 3, ale_game.Options())
        game.reset()
        script = Script(game._ale, lives=[5, 5, 4, 4, 0], reward=1)  # a life ends at the third frame, the game at the fifth
        game._methods = script.act, script.game_over, script.lives, script.getScreen
        self.assertEqual(game.step(0), (3, TERMINATED))
        game.reset()
        self.assertEqual(game.step(0), (2, TERMINATED | GAME_END))


class Games(Lane):
    """Two games of Breakout."""

    def __init__(self, *pairs, **ring):
        maker = ale_actor.Maker("breakout", ale_game.Options.parse(pairs))
        ((name, dtype, dims),) = (field.values() for field in maker.spec()["obs"])
        super().__init__(2, [(name, dtype, tuple(dims))], 4, **ring)
        self.group = maker.group(self.actor, 0, (3, 4))

    def step(self):
        self.group.step(self.actor)
        return self.read()


class Resets(unittest.TestCase):
    """In the same step, and on request."""

    def test_in_the_same_step_they_leave_out_a_step(self):
        for pairs in ([], ["obs=ram"]):
            lanes = Games(*pairs), Games(*pairs, same_step=True)
            played, same = (lane.play_joined(150, lambda env, n: (n * 7 + env) // 5 % 4) for lane in lanes)
            self.assertEqual(played, same)
            ends = [flags & GAME_END for _, _, flags, _ in played[0] if flags & LAST]
            self.assertTrue(any(ends) and not all(ends), "lives and games have ended")

    def test_a_request_begins_a_new_game_with_its_seed_and_numbers(self):
        lane = Games("obs=ram", numbers="noop_max,mode")

        def play(*reset):
            steps = [lane.after(resets={1: reset})] + [lane.after() for _ in range(40)]
            self.assertEqual(steps[0][2].tolist(), [0, FIRST])
            return [(obs[1].tobytes(), rewards[1], flags[1]) for (obs,), rewards, flags in steps]

        lane.step()
        seeded = play(9, None, None)
        self.assertNotEqual(play(None, None, None), seeded)
        self.assertEqual(play(9, None, None), seeded)
        self.assertNotEqual(play(9, None, 4), seeded, "another mode")
        self.assertNotEqual(play(9, None, None), seeded, "which stays")
        self.assertEqual(play(9, 30, 0), seeded, "until it changes")
        with self.assertRaisesRegex(BrokenContract, r"cannot be reset with {'mode': 3.0}: mode is one of 0, 4"):
            play(None, None, 3)
        with self.assertRaisesRegex(BrokenContract, 'has no number "frame_skip" that a reset can change; it has noop_max, fire_reset'):
            Games(numbers="frame_skip")

    def test_a_request_after_a_lost_life_begins_a_new_game(self):
        for resets, lives in (({}, 4), ({0: (None,)}, 5)):
            lane = Games(numbers="")
            step = lane.step()
            while not step[2][0] & LAST:
                step = lane.after()
            lane.after(resets=resets)
            self.assertEqual(lane.group.games[0]._lives, lives)


class Names(unittest.TestCase):
    def test_each_game_has_its_one_name_in_the_program(self):
        text = (pathlib.Path(os.environ.get("FARM_SOURCE", ".")) / "src/config/env_name.c").read_text()
        table = re.findall(r'"(\w+)"', text.partition("games[] = {")[2].partition("};")[0])
        self.assertEqual(table, list(ale_game.games()))


class Script:
    """An emulator with a list of lives, one entry per frame. The game is over at 0; later acts do nothing."""

    def __init__(self, ale, lives, reward):
        self.getScreen, self._lives, self._reward, self._now = ale.getScreen, iter(lives), reward, 1

    def act(self, action):
        if self._now == 0:
            return 0
        self._now = next(self._lives)
        return self._reward

    def game_over(self):
        return self._now == 0

    def lives(self):
        return self._now


if __name__ == "__main__":
    unittest.main()
