"""The actor programs as the supervisor starts them: command line, the rules of FIRST and LAST, errors, death and successors."""

import contextlib
import io
import json
import os
import signal
import sys
import unittest
from unittest import mock

import gymnasium
import numpy as np
from actorfarm import actor, ale_actor, ale_game, gym_actor
from gymnasium import spaces
from lanes import FIRST, GAME_END, GREY, LAST, LIMIT_S, TERMINATED, TRUNCATED, ActorProcess, run_actor

VECTOR = [("obs", "f32", (3,))]


class Probe(gymnasium.Env):
    """Fails in the chosen way after the first step."""

    observation_space, action_space = spaces.Box(-1, 1, (3,), np.float64), spaces.Discrete(4)

    def __init__(self, prints=None, error=None, observation=(0.5, 0.5, 0.5), reward=0.0):
        self._error, self._observation, self._reward = error, np.array(observation), reward
        if prints:
            print(prints)

    def reset(self, *, seed=None, options=None):
        return np.zeros(3), {}

    def step(self, action):
        if self._error == "abort":
            os.abort()
        if isinstance(self._error, int):
            sys.exit(self._error)
        if self._error:
            raise KeyError(self._error)
        return self._observation, self._reward, False, False, {}


gymnasium.register(id="Probe/Plain-v0", entry_point=Probe)
gymnasium.register(id="Probe/Broken-v0", entry_point=Probe, kwargs={"error": "the wheel came off"})
gymnasium.register(id="Probe/Crashing-v0", entry_point=Probe, kwargs={"error": "abort"})
gymnasium.register(id="Probe/Leaving-v0", entry_point=Probe, kwargs={"error": 3})
gymnasium.register(id="Probe/Nan-v0", entry_point=Probe, kwargs={"observation": (0.5, np.nan, 0.5)})
gymnasium.register(id="Probe/WrongShape-v0", entry_point=Probe, kwargs={"observation": (0, 0, 0, 0)})
gymnasium.register(id="Probe/NoReward-v0", entry_point=Probe, kwargs={"reward": None})


def environment():
    """Lets an actor import this file as a package that registers environments."""
    paths = [os.path.dirname(os.path.abspath(__file__)), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


class Recorded:
    """A film (film.py) that keeps its pictures."""

    def __init__(self):
        self.pictures, self.ends = [], 0

    def picture(self, rgb, rate):
        self.pictures.append((np.array(rgb), rate))

    def end_game(self):
        self.ends += 1


class Films(unittest.TestCase):
    def test_atari_shows_every_frame_of_the_emulator(self):
        film, options = Recorded(), ale_game.Options(noop_max=1)
        game = ale_game.Game(ale_game.find_rom("Pong"), 5, options, film)
        alone = ale_game.ale_py.ALEInterface()
        alone.setFloat("repeat_action_probability", 0)
        alone.setInt("random_seed", 5)
        alone.loadROM(ale_game.ale_py.roms.get_rom_path(ale_game.find_rom("Pong")))
        game.reset()
        alone.reset_game()
        screens = [alone.getScreenRGB()]
        for action, frames in ((1, 1), (2, 4), (3, 4), (2, 4)):  # FIRE, then steps
            if frames == 4:
                game.step(action)
            for _ in range(frames):
                alone.act(game.actions[action])
                screens.append(alone.getScreenRGB())
        self.assertEqual({rate for _, rate in film.pictures}, {60})
        np.testing.assert_array_equal([rgb for rgb, _ in film.pictures], screens)

    def test_gymnasium_draws_after_each_step(self):
        env, film = mock.Mock(metadata={"render_fps": 50}), Recorded()
        env.render.return_value = np.zeros((4, 6, 3), np.uint8)
        env.step.side_effect = [(0, 0, False, False, {}), (0, 0, False, True, {})]
        step, reset = gym_actor.filmed(env, film)
        reset(seed=3)
        step(0)
        self.assertEqual((len(film.pictures), film.ends), (2, 0))
        step(1)
        self.assertEqual((len(film.pictures), film.ends, film.pictures[0][1]), (3, 1, 50))
        env.render.side_effect = RuntimeError("no GL")
        with self.assertRaisesRegex(actor.BrokenContract, "cannot be filmed: RuntimeError: no GL.*MUJOCO_GL"):
            reset()


class CommandLine(unittest.TestCase):
    def read_spec(self, program, env, *arguments):
        result = run_actor(program, "--spec", "--env", env, *arguments, environment=environment())
        self.assertEqual((result.returncode, result.stdout.count("\n")), (0, 1), result.stderr)
        return json.loads(result.stdout), result.stderr

    def test_spec_is_one_line_of_json(self):
        spec, _ = self.read_spec("ale_actor", "Pong")
        self.assertEqual(spec["obs"], [{"name": "frame", "dtype": "u8", "dims": [84, 84]}])
        self.assertEqual(spec["action"], {"kind": "discrete", "dims": 1, "sizes": [6]})
        self.assertEqual((spec["frames_per_step"], spec["action_meanings"][:2]), (4, ["NOOP", "FIRE"]))
        spec, _ = self.read_spec("ale_actor", "ms_pacman", "--option", "full_action_space=true", "--option", "frame_skip=2")
        self.assertEqual((spec["action"]["sizes"], spec["frames_per_step"]), ([18], 2))
        spec, printed = self.read_spec("gym_actor", "test_actor_programs:Probe/Plain-v0", "--option", "prints=hello")
        self.assertEqual(spec["obs"], [{"name": "obs", "dtype": "f32", "dims": [3], "choices": 0}])
        self.assertIn("hello", printed)  # not on stdout

    def test_an_unknown_environment_ends_with_status_2_and_one_line(self):
        result = run_actor("gym_actor", "--spec", "--env", "CartPoole-v1")
        self.assertEqual((result.returncode, result.stdout, result.stderr.count("\n")), (2, "", 1))

    def test_list_names_existing_environments(self):
        games, ids = run_actor("ale_actor", "--list").stdout.split(), run_actor("gym_actor", "--list").stdout.split()
        self.assertGreater(len(games), 100)
        self.assertIn("MsPacman", games)
        self.assertTrue({"CartPole-v1", "Acrobot-v1"} <= set(ids))
        self.assertLess(len(ids), 60)
        self.read_spec("ale_actor", games[-1])
        self.read_spec("gym_actor", ids[0])

    def test_messages_name_what_was_meant(self):
        for arguments, message in (
            (("--env", "Pnog"), 'did you mean "ale/Pong"'),
            (("--env", "PongNoFrameskip-v4"), 'did you mean "ale/Pong"? It has'),
            (("--env", "xyzzy"), 'no Atari game "xyzzy"'),
            (("--env", "Joust"), 'no Atari game "Joust"'),
            (("--env", "Pong", "--option", "frameskip=4"), 'did you mean "frame_skip"'),
            (("--env", "Pong", "--option", "frame_skip=0"), "at least 1"),
            (("--env", "Pong", "--option", "noop_max=many"), "whole number"),
            (("--env", "Pong", "--option", "fire_reset=perhaps"), "true or false"),
            (("--env", "Pong", "--option", "repeat_action_probability=1"), "below 1"),
            (("--env", "Pong", "--option", "repeat_action_probability=nan"), "below 1"),
            ((), "give --list"),
        ):
            errors = io.StringIO()
            with (
                mock.patch.object(sys, "argv", ["ale_actor", "--spec", *arguments]),
                mock.patch.object(actor, "keep_stdout", lambda: contextlib.nullcontext(sys.stdout)),
                contextlib.redirect_stderr(errors),
                self.assertRaises(SystemExit) as end,
            ):
                ale_actor.main()
            self.assertEqual(end.exception.code, 2, arguments)
            self.assertIn(message, errors.getvalue().splitlines()[-1])

    def test_a_missing_package_is_named_with_its_place(self):
        result = run_actor("ale_actor", "--list", python=(sys.executable, "-S"))
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, r"package \w+ is missing in /")

    def test_descriptors_that_are_not_lanes_are_refused(self):
        with open(os.devnull) as file:
            os.set_inheritable(file.fileno(), True)
            result = run_actor("ale_actor", "--env", "Pong", "--up-fd", str(file.fileno()), "--down-fd", str(file.fileno()))
        self.assertEqual(result.returncode, 1)
        self.assertNotIn("Traceback", result.stderr)


class Process(unittest.TestCase):
    def make_actor(self, fields, actions=4):
        made = ActorProcess(fields, actions)
        self.addCleanup(made.close)
        return made

    def start_breakout(self):
        playing = self.make_actor(GREY)
        playing.start("ale_actor", "Breakout", "--seed", "5")
        return playing

    def check_rules(self, steps, restarts=()):
        for env in range(2):
            for n, flags in enumerate(step[env] for step in steps):
                first = n == 0 or n in restarts or steps[n - 1][env] & LAST
                self.assertEqual(bool(flags & FIRST), bool(first), f"step {n}")
                self.assertEqual(bool(flags & LAST), bool(flags & (TERMINATED | TRUNCATED | GAME_END)), f"step {n}")

    def test_plays_by_the_rules_and_stops_on_request(self):
        playing = self.start_breakout()
        playing.play(150)
        for steps in playing.steps:
            self.check_rules(steps)
            self.assertGreater(sum(bool(flags & LAST) for step in steps for flags in step), 2)
        playing.creator.stop()
        self.assertEqual(playing.process.wait(LIMIT_S), 0)

    def test_a_new_actor_continues_where_a_killed_one_stopped(self):
        playing = self.start_breakout()
        playing.play(40)
        playing.kill()
        for lane in (0, 1):  # what it had published still counts
            playing.answer(lane)
        begun = [len(steps) for steps in playing.steps]
        playing.start("ale_actor", "Breakout", "--seed", "5")
        playing.play(80)
        for steps, restart in zip(playing.steps, begun):
            self.check_rules(steps, restarts=(restart,))

    def test_sigterm_ends_it_and_sigint_does_not(self):
        playing = self.start_breakout()
        playing.play(5)
        playing.process.send_signal(signal.SIGINT)
        playing.play(15)
        playing.process.send_signal(signal.SIGTERM)
        self.assertEqual(playing.process.wait(LIMIT_S), 0)

    def test_lanes_of_another_environment_are_refused(self):
        for program, env, fields in (("ale_actor", "Breakout", GREY), ("gym_actor", "Acrobot-v1", VECTOR)):
            playing = self.make_actor(fields, actions=7)
            playing.start(program, env)
            status, errors = playing.play_to_the_end()
            self.assertEqual(status, 1)
            self.assertIn("another environment", errors)

    def play_probe(self, name, *flags):
        """(exit status, last line) of an actor that fails."""
        playing = self.make_actor(VECTOR)
        playing.start("gym_actor", f"test_actor_programs:Probe/{name}-v0", *flags, environment=environment())
        status, errors = playing.play_to_the_end()
        self.assertEqual([steps[:1] for steps in playing.steps], [[[FIRST, FIRST]]] * 2)
        self.errors = errors
        return status, errors.splitlines()[-1]

    def test_an_exception_of_the_environment_ends_the_actor_with_one_line(self):
        status, last = self.play_probe("Broken")
        self.assertEqual(status, 1)
        self.assertIn("KeyError: 'the wheel came off' (test_actor_programs.py:", last)
        self.assertIn("Probe/Broken-v0", last)

    def test_sys_exit_of_the_environment_is_no_end_of_its_own(self):
        status, last = self.play_probe("Leaving")
        self.assertEqual(status, 1)
        self.assertIn("Probe/Leaving-v0 called sys.exit(3) (test_actor_programs.py:", last)

    def test_a_crash_prints_the_lines_that_led_to_it(self):
        status, _ = self.play_probe("Crashing")
        self.assertEqual(status, -signal.SIGABRT)
        self.assertRegex(self.errors, r"Fatal Python error: Aborted\n[^$]*test_actor_programs.py\", line \d+ in step")

    def test_a_broken_contract_has_its_own_signal(self):
        for name, message, *flags in (
            ("Nan", "NaN", "--bad-values", "fail"), ("WrongShape", "shape"), ("NoReward", "a reward that is not a number")
        ):
            status, last = self.play_probe(name, *flags)
            self.assertEqual(status, -signal.SIGRTMAX, last)
            self.assertRegex(last, rf"^gym_actor: test_actor_programs:Probe/{name}-v0 answers with .*{message}.*: lane 0, number 0$")


if __name__ == "__main__":
    unittest.main()
