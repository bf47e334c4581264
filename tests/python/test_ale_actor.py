"""The ALE actor program as the supervisor starts it: its command line, the rules of FIRST and LAST, dying and being replaced."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
import unittest
from unittest import mock

import numpy as np
from actorfarm import _farm, actor, ale_actor

FIRST, LAST = _farm.FIRST, _farm.LAST
LIMIT_S = 30


def ask(*arguments):
    command = [sys.executable, "-m", "actorfarm.ale_actor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)


class CommandLine(unittest.TestCase):
    def test_spec_is_one_line_of_json(self):
        answer = ask("--spec", "--env", "Pong")
        self.assertEqual(answer.returncode, 0, answer.stderr)
        self.assertEqual(answer.stdout.count("\n"), 1)
        spec = json.loads(answer.stdout)
        self.assertEqual(spec["obs"], [{"name": "frame", "dtype": "u8", "dims": [84, 84]}])
        self.assertEqual(spec["action"], {"kind": "discrete", "dims": 1, "sizes": [6]})
        self.assertEqual(spec["frames_per_step"], 4)
        self.assertEqual(spec["action_meanings"][:2], ["NOOP", "FIRE"])

    def test_options_change_the_spec(self):
        answer = ask("--spec", "--env", "ms_pacman", "--option", "full_action_space=true", "--option", "frame_skip=2")
        spec = json.loads(answer.stdout)
        self.assertEqual((spec["action"]["sizes"], spec["frames_per_step"]), ([18], 2))

    def test_an_unknown_game_ends_with_status_2(self):
        answer = ask("--spec", "--env", "Pnog")
        self.assertEqual((answer.returncode, answer.stdout), (2, ""))
        self.assertIn('did you mean "ale/Pong"', answer.stderr)

    def test_list_names_games_that_it_then_knows(self):
        names = ask("--list").stdout.split()
        self.assertGreater(len(names), 100)
        self.assertIn("MsPacman", names)
        self.assertEqual(ask("--spec", "--env", names[-1]).returncode, 0)

    def test_mistakes_are_named_with_what_was_meant(self):
        for arguments, said in (
            (("--env", "Pnog"), 'did you mean "ale/Pong"'),
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
            ):
                with self.assertRaises(SystemExit) as end:
                    ale_actor.main()
            self.assertEqual(end.exception.code, 2, arguments)
            self.assertIn(said, errors.getvalue().splitlines()[-1])

    def test_missing_packages_are_named_with_the_step_that_brings_them(self):
        command = [sys.executable, "-S", "-m", "actorfarm.ale_actor", "--list"]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
        self.assertEqual(answer.returncode, 1)
        self.assertIn("make deps", answer.stderr)

    def test_descriptors_that_are_no_lanes_are_refused(self):
        with open(os.devnull) as nothing:
            os.set_inheritable(nothing.fileno(), True)
            fd = str(nothing.fileno())
            command = [sys.executable, "-m", "actorfarm.ale_actor", "--env", "Pong", "--up-fd", fd, "--down-fd", fd]
            answer = subprocess.run(command, capture_output=True, text=True, close_fds=False, timeout=LIMIT_S)
        self.assertEqual(answer.returncode, 1)
        self.assertNotIn("Traceback", answer.stderr)


class Farm:
    """Two lanes of two environments, an actor process, and this process in the learner's place."""

    lanes, width = 2, 2

    def __init__(self, actions=4, fields=(("frame", "u8", (84, 84)),)):
        self.creator = _farm.create(self.lanes, self.width, 8, list(fields), actions, 4)
        (self.up, self.down), learner_fds = self.creator.fds()
        self.learner = _farm.open_learner(*learner_fds)
        self.bell = os.eventfd(0, os.EFD_NONBLOCK) if hasattr(os, "eventfd") else -1
        self.rng = np.random.default_rng(0)
        self.steps = [[] for _ in range(self.lanes)]  # flags of every step

    def start(self, *more):
        fds = [self.up, self.down] + ([self.bell] if self.bell >= 0 else [])
        command = [sys.executable, "-m", "actorfarm.ale_actor", "--env", "Breakout", "--actor", "3", "--seed", "5"]
        command += ["--up-fd", str(self.up), "--down-fd", str(self.down), "--event-fd", str(self.bell), *more]
        self.actor = subprocess.Popen(command, pass_fds=fds, stderr=subprocess.PIPE)

    def play(self, steps):
        """Answers with random actions until each lane has that many steps."""
        deadline = time.monotonic() + LIMIT_S
        while min(map(len, self.steps)) < steps:
            for lane in range(self.lanes):
                produced, acted, _ = self.learner.counters(lane)
                if produced == acted or len(self.steps[lane]) == steps:
                    continue
                assert produced == acted + 1
                self.steps[lane].append(self.learner.flags(lane, acted).tolist())
                self.learner.answer(lane, self.rng.integers(0, 4, self.width).astype(np.int32))
                self.learner.release(lane, acted)
            assert time.monotonic() < deadline, "the actor does not step"
            assert self.actor.poll() is None, self.actor.stderr.read().decode()
            os.sched_yield()

    def close(self):
        if self.actor.poll() is None:
            self.actor.kill()
        self.actor.wait()
        self.actor.stderr.close()
        for fd in (self.up, self.down, self.bell):
            if fd >= 0:
                os.close(fd)


class Process(unittest.TestCase):
    def setUp(self):
        self.farm = Farm()
        self.addCleanup(self.farm.close)

    def check_rules(self, steps, restarts=()):
        for env in range(self.farm.width):
            for n, flags in enumerate(step[env] for step in steps):
                first = n == 0 or n in restarts or steps[n - 1][env] & LAST
                self.assertEqual(bool(flags & FIRST), bool(first), f"step {n}")
                ends = flags & (_farm.TERMINATED | _farm.TRUNCATED | _farm.GAME_END)
                self.assertEqual(bool(flags & LAST), bool(ends), f"step {n}")

    def test_plays_by_the_rules_and_stops_when_told(self):
        self.farm.start()
        self.farm.play(150)
        for steps in self.farm.steps:
            self.check_rules(steps)
            self.assertGreater(sum(bool(flags & LAST) for step in steps for flags in step), 2)
        self.farm.creator.stop()
        self.assertEqual(self.farm.actor.wait(LIMIT_S), 0)

    def test_a_new_one_goes_on_where_a_killed_one_stopped(self):
        self.farm.start()
        self.farm.play(40)
        self.farm.actor.kill()
        self.farm.actor.wait()
        self.farm.actor.stderr.close()
        begun = []
        for lane in range(2):  # what it had published still counts
            produced, acted, _ = self.farm.learner.counters(lane)
            if produced > acted:
                self.farm.steps[lane].append(self.farm.learner.flags(lane, acted).tolist())
                self.farm.learner.answer(lane, np.zeros(2, np.int32))
            begun.append(len(self.farm.steps[lane]))
        self.farm.start()
        self.farm.play(80)
        for steps, restart in zip(self.farm.steps, begun):
            self.check_rules(steps, restarts=(restart,))

    def test_sigterm_ends_it_and_sigint_does_not(self):
        self.farm.start()
        self.farm.play(5)
        self.farm.actor.send_signal(signal.SIGINT)
        self.farm.play(15)
        self.farm.actor.send_signal(signal.SIGTERM)
        self.assertEqual(self.farm.actor.wait(LIMIT_S), 0)

    def test_lanes_of_another_environment_are_refused(self):
        other = Farm(actions=7)
        self.farm.start()
        self.addCleanup(other.close)
        other.start()
        self.assertEqual(other.actor.wait(LIMIT_S), 1)
        self.assertIn("another environment", other.actor.stderr.read().decode())


if __name__ == "__main__":
    unittest.main()
