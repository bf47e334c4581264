"""Gymnasium's environments in `farm train`: one of many fields with a mask is learnt, one that breaks its contract ends the run, one
that crashes costs its actor. `farm doctor` finds these faults and others beforehand."""

import concurrent.futures
import json
import re
import signal
import sys
import unittest

from running import InFolder, wait_until

# Each fails at its 500th step unless told otherwise: later than the first rounds of src/run/events.c, in which a death counts as a crash loop.
FAULTY = """import gymnasium, numpy, os, random, signal, time

class Faulty(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)
    kept = []

    def __init__(self, fault, at=500):
        self.fault, self.at, self.steps = fault, at, 0
        if fault == "leaves":
            raise SystemExit(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.random(4 if self.fault == "first" else 3, numpy.float32), {}

    def step(self, action):
        self.steps += 1
        now = self.fault if self.steps == self.at else None
        end = time.process_time_ns() + 300_000
        while self.fault == "slow" and time.process_time_ns() < end:
            pass
        if now == "crash" or self.fault == "broken":
            raise RuntimeError("the wheel came off")
        if now == "killed":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.fault == "leak":
            self.kept.append(bytes(40_000))
        observation = numpy.full(4 if now == "shape" else 3, numpy.nan if now == "nan" else 0, numpy.float32)
        observation[0] += random.random() if self.fault == "unseeded" else 0
        return observation, float("inf") if now == "reward" else 1.0, self.steps % 10 == 0, False, {}

gymnasium.register("Test/Faulty-v0", Faulty)
gymnasium.register("Test/Any-v0", lambda **options: Faulty("none"))
"""


# Two of six doors are open, one of them the right one: that of the key, left if the picture is dark and the place below 0 or the
# picture bright and the place above. A closed door is a crash.
DOORS = """import gymnasium, numpy
from gymnasium import spaces

class Doors(gymnasium.Env):
    observation_space = spaces.Dict({
        "picture": spaces.Box(0, 255, (20, 20, 3), numpy.uint8), "body": spaces.Tuple([spaces.Box(-1, 1, (1,)), spaces.Discrete(3, start=1)]),
        "action_mask": spaces.MultiBinary(6)})
    action_space = spaces.Discrete(6)

    def observe(self):
        bright, place, key = self.np_random.integers([2, 2, 3])
        self.right = 2 * key + (bright ^ place)
        self.open = numpy.zeros(6, numpy.int8)
        self.open[[self.right, (self.right + self.np_random.integers(1, 6)) % 6]] = 1
        picture = numpy.full((20, 20, 3), 255 * bright, numpy.uint8)
        return {"picture": picture, "body": (numpy.array([2.0 * place - 1], numpy.float32), key + 1), "action_mask": self.open}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {}

    def step(self, action):
        if not self.open[action]:
            raise RuntimeError("the door is closed")
        reward, self.steps = 0.1 * (action == self.right), self.steps + 1
        return self.observe(), reward, self.steps == 10, False, {}

gymnasium.register("Test/Doors-v0", Doors)
"""


# Parts that are no numbers, images of two shapes, and actions of a Dict.
WORLD = """import gymnasium, numpy
from gymnasium import spaces
from multiprocessing import resource_tracker
resource_tracker.ensure_running()  # python -c ...

class World(gymnasium.Env):
    observation_space = spaces.Dict({
        "mission": spaces.Text(9), "map": spaces.Box(0, 255, (4, 4), numpy.uint8), "view": spaces.Box(0, 255, (8, 8, 3), numpy.uint8),
        "clock": spaces.Box(0, 2**40, (1,), numpy.int64)})
    action_space = spaces.Dict({"keys": spaces.MultiBinary(2), "turn": spaces.Box(-1, 1, (1,), numpy.int8)})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.steps += 1
        return self.observation_space.sample(), 1.0, self.steps == 5, False, {}

class Add(gymnasium.RewardWrapper):
    def __init__(self, env, by=1):
        super().__init__(env)
        self.by = by

    def reward(self, reward):
        return reward + self.by

class Times(Add):
    def reward(self, reward):
        return reward * self.by

gymnasium.register("World-v0", World)
"""


class Names(InFolder):
    def test_another_spelling_is_the_same_environment(self):
        """For its recipe and its run; a run of an older version, which kept the spelling, goes on."""
        self.plant()
        small = ["--actors", "1", "--envs-per-actor", "2", "--unroll", "5", "--quiet", "--json", "--frames"]
        first = self.farm("train", "--env", "ale/pong", *small, "400")
        (run,) = self.folder.glob("runs/ale_Pong-*")
        recipe = (run / "recipe.yaml").read_text()
        self.assertRegex(recipe, "(?m)^env: ale/Pong$")
        self.assertRegex(recipe, "(?m)^net: lite$")
        self.assertEqual(json.loads(first.stdout)["env"], "ale/Pong")
        (run / "recipe.yaml").write_text(recipe.replace("ale/Pong", "ale/pong"))
        for checkpoint in run.glob("checkpoints/*"):
            renamed = checkpoint.read_bytes().replace(b'"ale/Pong"', b'"ale/pong"')
            checkpoint.write_bytes(re.sub(rb',"crc32c":"\w*"', lambda sum: b" " * len(sum[0]), renamed))  # an older version's has none
        again = self.farm("train", "--run", str(run), "--resume", *small, "800")
        self.assertEqual(again.returncode, 0, again.stderr)


class Fields(InFolder):
    def test_a_dict_of_image_vector_integer_and_mask_is_learnt(self):
        """Random open doors yield 0.5; no field can be left out, nor can what each says be added up. The user's PYTHONPATH has
        its module, and a package of farm's name, which stays unused. The actor infers."""
        for module, text in ("doors", DOORS), ("actorfarm", "raise RuntimeError('not this one')"):
            (self.folder / "path" / module).mkdir(parents=True)
            (self.folder / "path" / module / "__init__.py").write_text(text)
        small = ["--actors", "1", "--envs-per-actor", "16", "--batch", "4", "--unroll", "10"]
        learns = ["--inference", "local", "--algo", "vtrace", "--lr", "0.001", "--discount", "0.5", "--entropy-cost", "0.001", "--frames", "15k"]
        result = self.farm("train", "--env", "gym/doors:Test/Doors-v0", *small, *learns, "--json", "--quiet", PYTHONPATH=str(self.folder / "path"))
        document = json.loads(result.stdout)
        self.assertEqual((result.returncode, document["actor_restarts"], document["bad_values"]), (0, 0, 0), result.stderr)
        self.assertGreater(document["return_mean"], 0.85)


class Spaces(InFolder):
    def test_what_are_no_numbers_is_left_out_and_wrappers_stay_with_the_run(self):
        self.plant()
        (self.folder / "world.py").write_text(WORLD)
        small = ["--actors", "1", "--envs-per-actor", "2", "--unroll", "5", "--batch", "2", "--json"]
        env = ["--env", "gym/world:World-v0", "--wrap", "world:Add", "--wrap", "world:Times(by=10)", "--obs-drop", "cl*"]
        made = self.farm("train", *env, *small, "--frames", "60", "--run", "run")
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertEqual(json.loads(made.stdout)["return_mean"], 100)  # (1 + 1) * 10 each step
        notes = re.findall(r"(?m)^.*not used of observations.*$", made.stderr)
        self.assertRegex("".join(notes), r"^farm: gym/world:World-v0: not used of observations: part mission, Text\(.*--obs-drop .*--wrap ")
        self.assertEqual(len(notes), 1)
        for command in (["train", "--run", "run", "--resume", "--frames", "120", *small], ["eval", "run", "--episodes", "2", "--json"]):
            again = self.farm(*command)
            self.assertEqual((again.returncode, json.loads(again.stdout)["return_mean"]), (0, 100), again.stderr)
        refused = self.farm("train", "--env", "native/catch", "--wrap", "world:Add")
        self.assertIn("wrap 'world:Add': only gym/*, pettingzoo/* take it, not native/catch", refused.stderr)


# A thread that never ends; a process that is started again at each reset; a program whose signals must be the default ones.
LIVELY = """import gymnasium, multiprocessing, pathlib, subprocess, threading, time

def wait():
    while True:
        time.sleep(9)

class Lively(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (3,)), gymnasium.spaces.Discrete(2)
    child = None

    def __init__(self, slow=""):
        threading.Thread(target=wait).start()
        if slow:
            multiprocessing.get_context("fork").Process(target=wait, daemon=True).start()
            pathlib.Path(slow).touch()
            wait()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.child:
            self.child.terminate()
            self.child.join()
        self.child, self.steps = multiprocessing.get_context("fork").Process(target=wait, daemon=True), 0
        self.child.start()
        status = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True).stdout.split()
        for mask in "SigBlk:", "SigIgn:":
            assert not int(status[status.index(mask) + 1], 16) & 0x5003, mask
        return self.observation_space.sample(), {}

    def step(self, action):
        self.steps += 1
        return self.observation_space.sample(), 1.0, self.steps == 5, False, {}

gymnasium.register("Test/Lively-v0", Lively)
"""


class Lives(InFolder):
    def setUp(self):
        super().setUp()
        (self.folder / "lively.py").write_text(LIVELY)

    def test_threads_and_processes_of_an_environment_hold_nothing_up(self):
        result = self.farm("train", "--env", "gym/lively:Test/Lively-v0", "--actors", "1", "--envs-per-actor", "2", "--frames", "60",
                           "--batch", "2", "--unroll", "5", "--json", "--quiet")
        document = json.loads(result.stdout)
        self.assertEqual((result.returncode, document["error"], document["actor_restarts"]), (0, None, 0), result.stderr)
        self.assertNotIn("killed", result.stderr)
        self.assertGreater(document["episodes"], 0)

    def test_a_signal_ends_each_command_that_waits_for_an_environment(self):
        """Those that handle signals while they run have exit status 0."""
        slow = ("gym/lively:Test/Lively-v0", "--env.slow")
        for command, status in (("envs", -signal.SIGTERM), ("doctor", -signal.SIGTERM), ("fps", 0)):
            there = self.folder / f"{command}-waits"
            process = self.start_farm(command, *(("--env",) if command == "fps" else ()), *slow, str(there))
            self.assertTrue(wait_until(there.exists))
            process.terminate()
            out, err = process.communicate(timeout=30)
            self.assertEqual((process.returncode, out), (status, ""), err)

    def test_the_limit_of_a_start_is_named(self):
        result = self.farm("envs", "gym/lively:Test/Lively-v0", "--env.slow", str(self.folder / "slow"), "--start-seconds", "0.5")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, r"gym_actor: no answer within 0.5 s \(--start-seconds\)")


class Faults(InFolder):
    def setUp(self):
        super().setUp()
        (self.folder / "faulty.py").write_text(FAULTY)

    def train(self, fault, *arguments):
        """Exit status and document."""
        command = ["train", "--env", "gym/faulty:Test/Faulty-v0", "--env.fault", fault, "--actors", "1", "--envs-per-actor", "2"]
        small = ["--batch", "2", "--unroll", "5", "--json", "--quiet"]
        result = self.farm(*command, *small, *arguments)
        return result.returncode, json.loads(result.stdout)

    def test_a_broken_contract_ends_the_run_with_its_message(self):
        for fault, said, *arguments in (
            ("nan", r"NaN, infinite or beyond 1e9 \(--bad-values fail\)", "--bad-values", "fail"),
            ("reward", r"NaN, infinite or beyond 1e9 \(--bad-values fail\)", "--bad-values", "fail"),
            ("shape", r"an observation of shape \(4,\) instead of \(3,\)"),
        ):
            with self.subTest(fault=fault):
                status, document = self.train(fault, "--seconds", "10", *arguments)
                self.assertEqual(status, 1)
                self.assertRegex(document["error"], rf"Test/Faulty-v0 answers with .*{said}: lane [01], number 0")
                self.assertEqual(document["actor_restarts"], 0)

    def test_a_new_actor_follows_a_crash(self):
        status, document = self.train("crash", "--frames", "3k")
        self.assertEqual((status, document["error"]), (0, None))
        self.assertGreater(document["actor_restarts"], 0)
        self.assertGreater(document["episodes"], 0)

    def fps(self, fault):
        return self.farm("fps", "--env", "gym/faulty:Test/Faulty-v0", "--env.fault", fault, "--actors", "1", "--seconds", "0.5",
                         "--ladder", "off", "--json", "--quiet")

    def test_fps_measures_a_step_to_choose_the_environments_of_an_actor(self):
        slow, failed = self.fps("slow"), self.fps("broken")
        self.assertEqual(json.loads(slow.stdout)["envs_per_actor"], 16, slow.stderr)
        self.assertRegex(failed.stderr, "could not measure a step: .*the wheel came off")
        self.assertEqual(failed.returncode, 1)

    def test_a_signal_that_kills_a_program_as_it_starts_is_left_to_its_caller(self):
        """Ctrl-C reaches a child that is still in the terminal's process group."""
        python = self.folder / "python"
        for number in "INT", "TERM":
            python.write_text(f'#!/bin/bash\nmkdir {number} 2>/dev/null && kill -{number} $$\nexec {sys.executable} "$@"\n')
            python.chmod(0o755)
            done = self.farm("envs", "gym/faulty:Test/Faulty-v0", "--env.fault", "none", FARM_PYTHON=str(python))
            self.assertEqual(done.returncode, 0, done.stderr)


class Doctor(InFolder):
    def setUp(self):
        super().setUp()
        (self.folder / "faulty.py").write_text(FAULTY)

    def check(self, fault, only=None):
        """Exit status, {check: (grade, found)} and the document's part about the environment."""
        options = ["--option", f"fault={fault}", "--option", "at=12", "--steps", "100", "--hang-seconds", "20", "--json"]
        result = self.farm("doctor", "gym/faulty:Test/Faulty-v0", *options, *(["--check", only] if only else []))
        (entry,) = json.loads(result.stdout)["environments"]
        return result.returncode, {found["name"]: (found["grade"], found["found"]) for found in entry["checks"]}, entry

    def test_finds_nothing_in_a_sound_environment(self):
        status, found, entry = self.check("none")
        self.assertEqual((status, {grade for grade, _ in found.values()}), (0, {"good"}), found)
        self.assertEqual(list(found), ["spec", "runs", "same seed", "other seeds", "episodes", "numbers", "actions", "memory while playing",
                                       "speed", "same seed, later"])
        self.assertIs(entry["trains"], True)
        self.assertGreater(entry["agent_steps_per_s"], 0)

    def test_names_an_environment_that_leaves_in_its_constructor(self):
        result = self.farm("doctor", "gym/faulty:Test/Faulty-v0", "--option", "fault=leaves")
        self.assertEqual(result.returncode, 2)
        self.assertRegex(result.stderr, r"Test/Faulty-v0 called sys.exit\(3\) \(faulty.py:\d+, __init__\)")

    def test_advises_in_the_words_of_python(self):
        spec = self.farm("doctor", "gym/faulty:Test/Any-v0", "--steps", "20", "--check", "spec")
        self.assertRegex(spec.stdout, r"note +spec +the constructor accepts .*\n +-> name the constructor's arguments: with \*\*kwargs")

    def test_finds_each_fault_with_its_check(self):
        cases = (
            ("crash", "runs", r"step\(\) of call 14 ended .*RuntimeError: the wheel came off \(faulty.py:\d+, step\)"),
            ("killed", "runs", r"step\(\) of call 14 ended by signal 11 \(Segmentation fault\)"),
            ("shape", "runs", r"^step\(\) of call 14: .* answers with an observation of shape \(4,\) instead of \(3,\)", "what the environment's spaces declare"),
            ("first", "runs", r"^the constructor or the first reset\(\): .* answers with an observation of shape \(4,\)"),
            ("nan", "numbers", "field 'obs', element 0 is NaN"),
            ("unseeded", "same seed", "another observation at call 2", "self.np_random"),
            ("leak", "memory while playing", r"memory grows: .* [34]\S* bytes a call"),
        )
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for (fault, check, words, *mend), (status, found, entry) in zip(cases, pool.map(lambda case: self.check(case[0], case[1]), cases)):
                with self.subTest(fault):
                    self.assertEqual(status, 1, found)
                    self.assertEqual({name for name, (grade, _) in found.items() if grade == "broken"}, {check})
                    self.assertRegex(found[check][1], words)
                    advice = next(part["mend"] for part in entry["checks"] if part["name"] == check)
                    self.assertIn("".join(mend), advice)


if __name__ == "__main__":
    unittest.main()
