"""`farm doctor PLUGIN`: what it prints about sound environments, and that it finds each fault of broken ones."""

import concurrent.futures
import ctypes
import json
import os
import pathlib
import random
import re
import struct
import tempfile
import unittest

from running import FARM, SOURCE, build_plugin, run_farm

# Depends on time, or on memory that AddressSanitizer keeps: these grades are not asserted for sound plug-ins.
MAY_NOTE = ("speed", "destroy") if "/asan" in FARM else ("speed",)
PLUGINS = SOURCE / "tests/tools/plugins"
WORKERS = 4
OCEAN_FLAGS = ("-fvisibility=hidden", "-ffunction-sections", "-Wl,--gc-sections")  # as the document says
STRICT = ("-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter")
END = 4 | 16  # TERMINATED, GAME_END

folder = tempfile.TemporaryDirectory()


def setUpModule():
    for name, source, *flags in (
        ("broken", PLUGINS / "rogue.c", "-w", "-DDOCTOR"),
        ("rare", PLUGINS / "rogue.c", "-w", "-DDOCTOR", "-DRARE"),
        ("abi", PLUGINS / "rogue.c", "-w", "-DDOCTOR", "-DABI=99"),
        ("entry", PLUGINS / "rogue.c", "-w", "-DDOCTOR", "-DNO_ENTRY"),
        ("constructor", PLUGINS / "rogue.c", "-w", "-DDOCTOR", "-DEARLY"),
        ("strict", SOURCE / "tests/envs/libenv_fixture.c", f"-I{SOURCE}/src", "-DSTRICT=1", *STRICT),
        ("gridworld", SOURCE / "examples/gridworld.c", *STRICT),
        ("chase", PLUGINS / "ocean_chase.c", *OCEAN_FLAGS, *STRICT),
        ("direct", PLUGINS / "ocean_chase.c", "-DDIRECT=1"),
        ("spring", PLUGINS / "ocean_spring.c", *OCEAN_FLAGS, *STRICT),
    ):
        build_plugin(source, path(name), *flags)


def tearDownModule():
    folder.cleanup()


def path(name):
    return str(pathlib.Path(folder.name) / f"{name}.so")


def run_doctor(*arguments):
    # Freed memory that a sanitizer keeps would look like a leak of the environment.
    options = os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=0:thread_local_quarantine_size_kb=0"
    return run_farm("doctor", *arguments, ASAN_OPTIONS=options)


def check(*arguments):
    """Exit status, and {environment: {check: (grade, found, mend)}}; "" is the plug-in as a whole."""
    result = run_doctor(*arguments, "--json")
    document = json.loads(result.stdout)
    parts = {"": document["checks"], **{entry["name"]: entry["checks"] for entry in document["environments"]}}
    found = {
        name: {finding["name"]: (finding["grade"], finding["found"], finding["mend"]) for finding in findings}
        for name, findings in parts.items()
    }
    assert document["sound"] == (result.returncode == 0), result
    return result.returncode, found


def check_all(requests):
    """Several at once: a doctor spends most of its time waiting for the next second."""
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        return list(pool.map(lambda arguments: check(*arguments), requests))


class Sound(unittest.TestCase):
    def test_finds_nothing_in_sound_environments(self):
        """The native ones, the example, the ocean convention (u8 changed in place; f32 with memory of its own)."""
        requests = {
            "native/catch": ("native/catch",),
            "native/cartpole": ("native/cartpole",),
            "native/breakout": ("native/breakout",),
            "example/gridworld": (path("gridworld"), "--option", "size=7"),
            "ocean/chase": (path("chase"), "--steps", "3000"),
            "ocean/spring": (path("spring"), "--steps", "3000"),
            "test/broken": (path("broken"), "--option", "fault=none"),
        }
        slow = (path("broken"), "--option", "fault=slow", "--hang-seconds", "1", "--check", "speed")
        texts = {}
        (status, found), *all_found = check_all([slow, *requests.values()])
        self.assertEqual(status, 0, f"64 instances have no second each: {found}")
        for (name, _), (status, found) in zip(requests.items(), all_found):
            with self.subTest(name):
                self.assertEqual(status, 0, found)
                self.assertGreaterEqual(len(found[name]), 16)
                for finding, (grade, text, _) in found[name].items():
                    self.assertIn(grade, ("good", "note") if finding in MAY_NOTE else ("good",), f"{finding}: {text}")
                texts[name] = {finding: text for finding, (_, text, _) in found[name].items()}
        self.assertIn("2x7x7", texts["example/gridworld"]["spec"])
        self.assertRegex(texts["example/gridworld"]["episodes"], r"[1-9]\d* terminated, [1-9]\d* truncated")

    def test_says_with_the_words_of_train_what_cannot_be_trained(self):
        option = ("--env.fault", "spec_choices")
        trains = run_farm("train", "--env", f"plugin:{path('broken')}", "--frames", "1", *option)
        document = json.loads(run_doctor(path("broken"), "--check", "runs", "--json", *option).stdout)
        entry = document["environments"][0]
        self.assertEqual((trains.returncode, entry["trains"]), (2, False))
        self.assertIn(entry["trains_reason"], trains.stderr)
        self.assertIn("observation field 'cells': 50 integers of 30000 choices", entry["trains_reason"])
        text = run_doctor(path("broken"), "--check", "runs", *option).stdout
        self.assertIn(f"farm train cannot train it: {entry['trains_reason']}\n", text)

    def test_prints_why_spec_refuses_an_option(self):
        for plugin, option, text in (
            ("gridworld", "size=99", "must be 2 to 32 (got 99)"),
            ("gridworld", "siez=9", "it has size"),
            ("chase", "cells=2", "from 3 to 1000 (got 2)"),
            ("chase", "cells=4.5", "whole number"),
            ("chase", "cells=x", "a number"),
            ("chase", "cell=4", "it has cells"),
        ):
            with self.subTest(option):
                status, found = check(path(plugin), "--option", option)
                self.assertEqual(status, 1)
                self.assertIn(text, [findings for name, findings in found.items() if name][0]["spec"][1])

    def test_tries_no_unknown_option_with_a_library_behind_libenv(self):
        """The library ends its process at one, which is not the adapter's fault."""
        for target in (f"libenv:{path('strict')}",), ("libenv/any", "--env.lib", path("strict")):
            status, found = check(*target, "--env.seed_option", "seed")
            self.assertEqual(status, 0, found)
            grade, text, mend = found["libenv/any"]["spec"]
            self.assertEqual(grade, "note")
            self.assertIn("numbers f32[3]; 2 actions; options are passed on to the library", text)
            self.assertIn("the library decides", mend)
            self.assertGreaterEqual(len(found["libenv/any"]), 16, "all checks are made")
        status, found = check(f"libenv:{path('strict')}", "--env.size", "3")
        self.assertEqual(status, 1, "the user's options are tried")
        self.assertIn("fatal: unused option size", found["libenv/any"]["spec"][1])


class Config(ctypes.Structure):
    _fields_ = [("seed", ctypes.c_uint64), ("options", ctypes.c_void_p), ("option_count", ctypes.c_size_t), ("hints", ctypes.c_uint32)]


def function(result, *arguments):
    return ctypes.CFUNCTYPE(result, *arguments)


class Api(ctypes.Structure):
    """struct farm_env_api"""

    _fields_ = [
        ("versions", ctypes.c_uint32 * 2),
        ("texts", ctypes.c_char_p * 2),
        ("spec", ctypes.c_void_p),
        ("create", function(ctypes.c_void_p, ctypes.POINTER(Config), ctypes.c_char_p, ctypes.c_size_t)),
        ("destroy", function(None, ctypes.c_void_p)),
        ("reset", function(None, ctypes.c_void_p, ctypes.c_void_p)),
        ("step", function(ctypes.c_uint32, *[ctypes.c_void_p] * 3, ctypes.POINTER(ctypes.c_float))),
    ]


class Instance:
    """One environment of a plug-in, called as an actor calls it: with other memory, which is not empty, at each call."""

    def __init__(self, name, obs_bytes):
        library = ctypes.CDLL(path(name))
        library.farm_env_at.restype = ctypes.POINTER(Api)
        self.api = library.farm_env_at(ctypes.c_size_t(0)).contents
        self.environment = self.api.create(ctypes.byref(Config(5)), ctypes.create_string_buffer(256), 256)
        self.obs_bytes = obs_bytes

    def call(self, function, *arguments):
        memory = ctypes.create_string_buffer(b"\xee" * self.obs_bytes, self.obs_bytes)
        obs, reward = (ctypes.c_void_p * 1)(ctypes.addressof(memory)), ctypes.c_float(7)
        answer = function(self.environment, *arguments, obs, *[ctypes.byref(reward)] * len(arguments))
        return memory.raw, reward.value, answer

    def reset(self):
        return self.call(self.api.reset)[0]

    def step(self, action):
        return self.call(self.api.step, ctypes.byref(action))


class Ocean(unittest.TestCase):
    """At an end the observation is the next episode's first; the reset after it repeats it and begins nothing."""

    def test_environment_with_a_kept_buffer(self):
        cells, instance = 9, Instance("chase", 9)
        chooser, ends = random.Random(1), 0
        seen = instance.reset()
        ticks, hunter, target = 0, seen.index(1), seen.index(2)
        for step in range(1000):
            action = chooser.randrange(3)
            seen, reward, answer = instance.step(ctypes.c_int32(action))
            hunter = (hunter + (0, -1, 1)[action]) % cells
            caught = hunter == target
            ticks += not caught
            ended = caught or ticks == 2 * cells
            self.assertEqual((reward, answer), (caught, END if ended else 0), f"step {step}")
            if ended:
                self.assertEqual(instance.reset(), seen)
                ticks, hunter, target = 0, seen.index(1), seen.index(2)
                ends += 1
            wanted = bytearray(cells)
            wanted[hunter], wanted[target] = 1, 2
            self.assertEqual(seen, wanted, f"step {step}")
        self.assertGreater(ends, 50)
        instance.api.destroy(instance.environment)

    def test_environment_that_writes_in_place(self):
        instance, firsts, seen = Instance("spring", 12), set(), None
        for _ in range(20):
            first = instance.reset()
            position, velocity, clock = struct.unpack("3f", first)
            self.assertTrue(-1 <= position <= 1 and velocity == 0 and clock == 0)
            self.assertIn(seen, (None, first), "as at the end")
            firsts.add(first)
            for step in range(1, 51):
                seen, reward, answer = instance.step((ctypes.c_float * 2)(0.5, 0.5))
                self.assertEqual(answer, END if step == 50 else 0)
                if step < 50:
                    self.assertEqual(struct.unpack("3f", seen)[2], ctypes.c_float(step / 50).value)
                    self.assertAlmostEqual(reward, -abs(struct.unpack("3f", seen)[0]), places=6)
        self.assertEqual(len(firsts), 20)
        instance.api.destroy(instance.environment)

    def test_doctor_finds_that_a_kept_buffer_is_needed(self):
        status, found = check(path("direct"), "--check", "every byte written")
        self.assertEqual(status, 1)
        self.assertIn("'observations' are not written", found["ocean/chase"]["every byte written"][1])


# Option `fault` of plugins/rogue.c, the check that finds it, parts of the finding.
BROKEN = (
    ("past", "memory behind fields", "past field 'cells' (200 bytes): 0 bytes behind", "reset()"),
    ("past_second", "memory behind fields", "past field 'clock' (3 bytes)"),
    ("before", "memory before fields", "before field 'cells'", "4 bytes before"),
    ("action", "memory behind fields", "writes to its action"),
    ("kept_pointer", "kept pointers", "an earlier call's 'cells'"),
    ("previous", "kept pointers", "an earlier call's 'cells'"),
    ("unwritten", "every byte written", "reset(): 192 of 200 bytes of field 'cells' are not written"),
    ("unwritten_byte", "every byte written", "1 of 3 bytes of field 'clock'", "at byte 2"),
    ("reads_old", "every byte written", "'cells' depends on the memory's earlier content"),
    ("no_reward", "every byte written", "reward is not written"),
    ("rand", "same seed", "another observation at call 1"),
    ("shared", "instances", "if a second instance is stepped between"),
    ("time", "same seed, later", "a second later"),
    ("stale", "episodes", "does not start anew"),
    ("answer", "episodes", "step() answers 0x6 at call 6"),
    ("obs_nan", "numbers", "field 'cells', element 9 is NaN, infinite or beyond 1e9 after step()"),
    ("choices", "numbers", "field 'cells', element 9 is 77, of 2 choices after step()"),
    ("mask", "numbers", "'action_mask' forbids every choice of action 0 at call 6"),
    ("reward_nan", "numbers", "the reward is NaN, infinite or beyond 1e9 at call 6"),
    ("reward_infinite", "numbers", "the reward is NaN, infinite"),
    ("segfault", "runs", "step() of call 6 crashes: Segmentation fault; ", "(broken.so+0x"),
    ("recursion", "runs", "step() of call 6 crashes"),
    ("abort", "runs", "step() of call 6 crashes: Aborted", "it printed: the board is inconsistent"),
    ("exit3", "runs", "ended the process with exit status 3"),
    ("hang", "runs", "step() of call 6 has not returned within 1 s"),
    ("no_message", "spec", "without a sentence"),
    ("spec_dims", "spec", "field 'cells'"),
    ("spec_changes", "spec", "something else at the second call"),
    ("no_second", "runs", "there can be only one"),
    ("grows", "memory while playing", "memory grows"),
    ("grows_slowly", "memory while playing", "memory grows"),
    ("grows_at_ends", "memory while playing", "memory grows"),
)
NOTED = (
    ("same_for_all", "other seeds", "the same episodes"),
    ("endless", "episodes", "no episode ended"),
    ("no_game_end", "episodes", "no FARM_STEP_GAME_END"),
    ("constant", "numbers", "no observation ever changed"),
    ("prints", "prints", "bytes while it was checked", "is no JSON"),
    ("options", "spec", "accepts an option that it cannot know"),
    ("leak", "destroy", "bytes an instance are left behind"),
    ("descriptor", "destroy", "open files are left"),
)


class Broken(unittest.TestCase):
    def find(self, cases, grade):
        limits = {"hang": ("--hang-seconds", "1")}
        results = check_all(
            (path("broken"), "--option", f"fault={fault}", *limits.get(fault, ()), "--check", "speed" if name == "prints" else name)
            for fault, name, *_ in cases
        )
        for (fault, name, *texts), (status, found) in zip(cases, results):
            with self.subTest(fault):
                findings = found["test/broken"]
                self.assertEqual(status, 1 if grade == "broken" else 0, findings)
                self.assertEqual({other for other, (graded, _, _) in findings.items() if graded != "good"}, {name})
                self.assertEqual(findings[name][0], grade)
                self.assertTrue(findings[name][2], "it suggests what to do")
                for text in texts:
                    self.assertIn(text, findings[name][1])

    def test_finds_each_fault_with_its_check_and_no_other(self):
        self.find(BROKEN, "broken")

    def test_notes_what_may_be_intended(self):
        self.find(NOTED, "note")

    def test_takes_no_first_use_and_no_episode_of_its_own_for_a_leak(self):
        for fault in "loads_levels", "history":
            status, found = check(path("broken"), "--option", f"fault={fault}", "--check", "memory while playing")
            self.assertEqual(status, 0, found)
            self.assertIn("no growth", found["test/broken"]["memory while playing"][1])

    def test_finds_an_action_that_crashes_rarely(self):
        status, found = check(path("rare"), "--option", "fault=action_crash", "--steps", "16", "--check", "actions")
        self.assertEqual(status, 1)
        self.assertIn("with action 999 crashes", found["test/broken"]["actions"][1])

    def test_makes_the_other_checks_after_a_broken_one(self):
        status, found = check(path("broken"), "--option", "fault=past")
        findings = found["test/broken"]
        self.assertEqual(status, 1)
        broken = [name for name, (grade, _, _) in findings.items() if grade != "good" and not (grade == "note" and name in MAY_NOTE)]
        self.assertEqual(broken, ["memory behind fields"])
        self.assertGreaterEqual(len(findings), 16)

    def test_names_why_a_plug_in_cannot_be_opened(self):
        pathlib.Path(path("text")).write_text("int main(void) { return 0; }\n")
        for name, text in ("abi", "version 99"), ("entry", "farm_env_at"), ("text", "cannot load"), ("constructor", "the loading crashes"):
            with self.subTest(name):
                status, found = check(path(name))
                self.assertEqual((status, list(found)), (1, [""]))
                self.assertIn(text, found[""]["opens"][1])


class CommandLine(unittest.TestCase):
    def test_refuses_wrong_usage(self):
        for arguments, text in (
            (("gone.so",), "gone.so: no such file"),
            (("native/cacth",), "native/cacth"),
            ((path("broken"), "--env", "test/other"), "no environment 'test/other'"),
            ((path("broken"), "--check", "episode"), "'episodes'?"),
            ((path("broken"), "--option", "fault"), "KEY=VALUE"),
            ((path("broken"), "--steps", "3"), "(got 3)"),
            (("--env", "test/broken"), "need a plug-in or an environment"),
        ):
            with self.subTest(arguments):
                result = run_doctor(*arguments)
                self.assertEqual(result.returncode, 2, result)
                self.assertIn(text, result.stderr)

    def test_prints_lines_of_text(self):
        result = run_doctor(f"plugin:{path('broken')}:test/broken", "--env.fault", "unwritten")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stdout, r"(?m)^good +opens +1 environment")
        self.assertRegex(result.stdout, r"(?m)^broken +every byte written +call 1.*\n +-> write the whole field")
        self.assertRegex(result.stdout, r"steps/s a core")
        self.assertNotRegex(result.stdout, re.compile(r"^broken(?! +every byte)", re.M))


if __name__ == "__main__":
    unittest.main()
