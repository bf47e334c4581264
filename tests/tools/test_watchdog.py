"""Hanging and stopped workers of `farm train`: they are named, the others continue, and none is killed."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import unittest

from running import FARM, LIMIT_S, Watched, children, state, wait_until

# Replaces the Python that runs actors: actor 0's emulator does not return while the file FOLDER/hang exists.
HANGING_PYTHON = """#!{python}
import os, runpy, sys, time
sys.argv = sys.argv[2:]  # what -m gets
if "--actor" in sys.argv and sys.argv[sys.argv.index("--actor") + 1] == "0":
    from actorfarm import ale_game
    play = ale_game.Game.step
    def step(self, action):
        while os.path.exists("{folder}/hang"):
            time.sleep(0.005)
        return play(self, action)
    ale_game.Game.step = step
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


# Each environment has a process outside its actor's group; close() ends it, except where the option says so.
OWNERS = """import gymnasium, mmap, numpy, os, signal, subprocess, time

class Owner(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, close="good"):
        self.how = close
        unmarked = {{}} if close == "good" else None
        self.helper = subprocess.Popen(["/bin/sleep", "1000"], start_new_session=True, env=unmarked)
        with open(f"/dev/shm/farm_test_{{self.helper.pid}}", "w+b") as file:
            file.write(bytes(8))
            file.flush()
            self.segment = mmap.mmap(file.fileno(), 8)
        self.log("made")

    def log(self, word):
        with open("{folder}/owners", "a") as file:
            file.write(f"{{word}} {{self.helper.pid}}\\n")

    def reset(self, *, seed=None, options=None):
        return numpy.zeros(3, numpy.float32), {{}}

    def step(self, action):
        return numpy.zeros(3, numpy.float32), 1.0, self.np_random.random() < 0.1, False, {{}}

    def close(self):
        self.log("closed")
        if self.how == "raises":
            left = "/bin/sleep 1000 >/dev/null 2>&1 & echo left $! >>{folder}/owners"
            subprocess.run(["/bin/sh", "-c", left], start_new_session=True, env={{}})
            raise RuntimeError("no such server")
        self.helper.kill()

gymnasium.register("Test/Owner-v0", Owner)
"""


class Ends(Watched):
    """What a command leaves: nothing."""

    def setUp(self):
        super().setUp()
        (self.folder / "owners.py").write_text(OWNERS.format(folder=self.folder))
        self.addCleanup(lambda: [pathlib.Path(f"/dev/shm/farm_test_{pid}").unlink() for pid in self.owners("made")])
        self.words = {"env": "gym/owners:Test/Owner-v0", "PYTHONPATH": str(self.folder)}

    def owners(self, word):
        path = self.folder / "owners"
        return [line.split()[1] for line in path.read_text().splitlines() if line.startswith(word)] if path.exists() else []

    def test_environments_are_closed_once_and_the_processes_that_they_leave_end(self):
        found = self.farm("train", "--env", self.words["env"], "--env.close", "raises", "--actors", "1", "--envs-per-actor", "2",
                          "--frames", "100", "--unroll", "4", "--batch", "2", "--run", "r", "--quiet", PYTHONPATH=self.words["PYTHONPATH"])
        self.assertEqual(found.returncode, 0, found.stderr)
        self.assertEqual(sorted(self.owners("made")), sorted(self.owners("closed")))
        self.assertEqual({state(pid) for pid in self.owners("made") + self.owners("left")}, {"Z"})
        self.assertRegex(found.stderr, r"close\(\) of .*Owner.*: RuntimeError: no such server \(owners.py:\d+, close\)")
        self.assertRegex(found.stderr, r"ended \d process(es)? that environments left .*: sleep \(\d+\)")

    def test_a_command_ends_although_sigquit_is_ignored(self):
        for _ in range(8):  # SIGQUIT ends its guardian, milliseconds after its fork
            command = [FARM, "fps", "--no-such-flag"]
            ended = subprocess.run(command, capture_output=True, timeout=20, preexec_fn=lambda: signal.signal(signal.SIGQUIT, signal.SIG_IGN))
            self.assertEqual(ended.returncode, 2, ended.stderr)

    def test_ctrl_z_stops_all_and_kill_9_leaves_nothing(self):
        begun = time.monotonic()
        process = self.start("--env", self.words["env"], "--envs-per-actor", "2", PYTHONPATH=self.words["PYTHONPATH"])
        all = [process.pid, *children(process.pid).values(), *map(int, self.owners("made")[-1:])]
        process.send_signal(signal.SIGTSTP)
        self.assertTrue(wait_until(lambda: {state(pid) for pid in all} == {"T"}), [state(pid) for pid in all])
        stopped = time.monotonic()
        time.sleep(1)
        stopped -= time.monotonic()
        process.send_signal(signal.SIGCONT)
        self.learns_on()
        self.assertLessEqual(self.lines()[-1]["wall_s"], time.monotonic() - begun + stopped)
        process.kill()
        self.assertTrue(wait_until(lambda: {state(pid) for pid in [*all, *self.owners("made")]} == {"Z"}))
        self.await_line(rf"segments of environments stay in /dev/shm .*/farm_test_{self.owners('made')[-1]}\b")


class Watchdog(Watched):
    def named(self):
        return len(re.findall(r"actor \d hangs: ", self.said()))

    def counts_those_named(self):
        self.assertTrue(wait_until(lambda: self.lines()[-1]["actors_hung"] == self.named()), self.said())

    def test_names_a_hanging_environment_while_the_others_continue(self):
        python = self.folder / "python"
        python.write_text(HANGING_PYTHON.format(python=sys.executable, folder=self.folder))
        python.chmod(0o755)
        small = ("--envs-per-actor", "2", "--batch", "4", "--unroll", "5", "--hang-seconds", "1")
        process = self.start("--env", "ale/Pong", *small, python=python)
        self.assertNotIn("has not returned", self.said())  # it may report that Python is slow to start

        (self.folder / "hang").touch()
        hung = self.await_line(r"actor (\d) hangs: (\S+), (?:lane|one of lanes)[ 01]+, has not returned .* \(pid (\d+)\).*py-spy")
        self.assertEqual((hung[1], hung[2]), ("0", "ale/Pong"))
        self.assertNotIn("goes on", self.said()[hung.start():])
        os.kill(int(hung[3]), 0)  # it still exists
        self.learns_on()
        (self.folder / "hang").unlink()
        self.assertTrue(wait_until(lambda: "actor 0 goes on after " in self.said()[hung.start():]), self.said())
        self.assertEqual(self.said().count("has not returned"), 1, "once per hang")
        self.counts_those_named()

        (self.folder / "hang").touch()
        self.assertTrue(wait_until(lambda: self.said().count("has not returned") == 2), self.said())
        os.kill(int(hung[3]), signal.SIGKILL)  # as the warning suggests
        (self.folder / "hang").unlink()
        self.await_line("actor 0 was killed by signal 9")
        self.learns_on()
        result = self.end(process)
        self.assertEqual(result["actors_hung"], self.named())
        self.assertEqual((result["actor_restarts"], result["learner_restarts"], result["bad_values"]), (1, 0, 0))

    def test_calls_a_stopped_actor_stopped_not_hung(self):
        process = self.start("--env", "native/catch", "--hang-seconds", "0.5")
        pid = children(process.pid)["actor 1"]
        os.kill(pid, signal.SIGSTOP)
        writable = re.findall(r" rw-s .*?/([^ ]+) ", pathlib.Path(f"/proc/{pid}/maps").read_text())
        self.assertEqual(writable, ["memfd:farm-up-1"], "nothing else is shared: no clock")
        self.await_line(rf"actor 1 is stopped \(SIGSTOP or a debugger\), native/catch, .* `kill -CONT {pid}`")
        self.learns_on()
        other = children(process.pid)["actor 0"]
        os.kill(other, signal.SIGSTOP)
        self.await_line("training waits until the actor goes on or is killed: no actor plays\n")
        os.kill(other, signal.SIGCONT)
        os.kill(pid, signal.SIGCONT)
        self.await_line("actor 1 goes on after ")
        self.assertEqual(children(process.pid)["actor 1"], pid)
        result = self.end(process)
        self.assertEqual((result["actors_hung"], result["actor_restarts"]), (0, 0))
        self.assertNotIn("hangs", self.said())

    def test_reports_updates_that_the_others_cannot_fill(self):
        process = self.start("--env", "native/catch", "--hang-seconds", "0.3", "--batch", "128", "--ring-steps", "32")
        os.kill(children(process.pid)["actor 0"], signal.SIGSTOP)
        self.assertNotIn("training waits", self.said())
        self.await_line("training waits until the actor goes on or is killed: an update of 128 windows does not fit")
        self.end(process)

    def test_rings_let_one_actor_fewer_fill_an_update(self):
        process = self.start("--env", "native/catch", "--hang-seconds", "0.3", "--envs-per-actor", "4", "--batch", "64")
        os.kill(children(process.pid)["actor 0"], signal.SIGSTOP)
        self.await_line("actor 0 is stopped")
        self.learns_on()
        self.assertNotIn("training waits", self.said())
        self.end(process)

    def test_names_a_stopped_learner_and_no_actor(self):
        process = self.start("--env", "native/catch", "--hang-seconds", "0.7")
        learner = children(process.pid)["learner"]
        os.kill(learner, signal.SIGSTOP)
        self.await_line(rf"learner stopped \(pid {learner}\).*`kill -CONT {learner}`")
        os.kill(learner, signal.SIGCONT)
        self.await_line(r"learner goes on after ")
        last = self.lines()[-1]
        self.assertGreater(last["learner_memory_bytes"], 0)
        self.assertTrue(0 < last["actor_memory_bytes_max"] < last["actor_memory_bytes_sum"], last)
        self.learns_on()
        self.end(process)
        self.assertNotRegex(self.said(), r"actor \d (hangs|is stopped|goes on)")

    def test_a_run_whose_learner_is_stopped_to_its_end_has_failed(self):
        process = self.start("--env", "native/catch", "--hang-seconds", "0.5", "--seconds", "3")
        os.kill(children(process.pid)["learner"], signal.SIGSTOP)
        out, _ = process.communicate(timeout=LIMIT_S)
        self.assertEqual(process.returncode, 1, self.said())
        self.assertRegex(json.loads(out)["error"], "no environment published a step in the last .*: the learner is stopped")

    def test_a_run_with_stopped_workers_ends_at_once_with_its_checkpoint(self):
        process = self.start("--env", "native/catch")
        workers = children(process.pid)
        for pid in workers.values():
            os.kill(pid, signal.SIGSTOP)
        result = self.end(process)
        self.assertNotIn("did not end in time", self.said(), "stopped workers get no grace period")
        self.assertEqual(result["checkpoints"], 1)
        self.assertEqual(len(workers), 3)


if __name__ == "__main__":
    unittest.main()
