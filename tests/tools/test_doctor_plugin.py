"""`farm doctor PLUGIN`: what it says of sound environments, and that it finds each fault of broken ones."""

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

# Judged by time, or by memory that AddressSanitizer keeps back: what these say of sound plug-ins is not asserted.
MAY_NOTE = ("speed", "destroy") if "/asan" in FARM else ("speed",)
PLUGINS = SOURCE / "tests/tools/plugins"
WORKERS = 4
OCEAN_FLAGS = ("-fvisibility=hidden", "-ffunction-sections", "-Wl,--gc-sections")  # as the document says

folder = tempfile.TemporaryDirectory()


def setUpModule():
    build("broken", PLUGINS / "broken.c", "-w")


def tearDownModule():
    folder.cleanup()


def path(name):
    return str(pathlib.Path(folder.name) / f"{name}.so")


def build(name, source, *flags):
    build_plugin(source, path(name), *flags)


def run_doctor(*arguments, timeout=60):
    # What a sanitizer keeps back of freed memory would look like a leak of the environment's.
    options = os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=0:thread_local_quarantine_size_kb=0"
    return run_farm("doctor", *arguments, timeout=timeout, ASAN_OPTIONS=options)


def examine(*arguments):
    """Exit status, and {environment: {check: (grade, found, mend)}}; "" is the plug-in as a whole."""
    result = run_doctor(*arguments, "--json")
    document = json.loads(result.stdout)
    parts = {"": document["checks"], **{entry["name"]: entry["checks"] for entry in document["environments"]}}
    found = {
        name: {check["name"]: (check["grade"], check["found"], check["mend"]) for check in checks}
        for name, checks in parts.items()
    }
    assert document["sound"] == (result.returncode == 0), result
    return result.returncode, found


def check_all(requests):
    """Of several at once: most of a doctor's time is waiting for a second to pass."""
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        return list(pool.map(lambda arguments: examine(*arguments), requests))


class Sound(unittest.TestCase):
    def test_sound_environments(self):
        """The native ones, the example, the ocean convention (u8 that changes in place; f32 with memory of its own)."""
        build("gridworld", SOURCE / "examples/gridworld.c", "-Wall", "-Wextra", "-Werror")
        for name in ("chase", "spring"):
            build(name, PLUGINS / f"ocean_{name}.c", *OCEAN_FLAGS, "-Wall", "-Wextra", "-Werror")
        requests = {
            "native/catch": ("native/catch",),
            "native/cartpole": ("native/cartpole",),
            "native/breakout": ("native/breakout",),
            "example/gridworld": (path("gridworld"), "--option", "size=7"),
            "ocean/chase": (path("chase"), "--steps", "3000"),
            "ocean/spring": (path("spring"), "--steps", "3000"),
            "test/broken": (path("broken"), "--option", "fault=none"),
        }
        texts = {}
        for (name, _), (status, found) in zip(requests.items(), check_all(requests.values())):
            with self.subTest(name):
                self.assertEqual(status, 0, found)
                self.assertGreaterEqual(len(found[name]), 16)
                for check, (grade, text, _) in found[name].items():
                    self.assertIn(grade, ("good", "note") if check in MAY_NOTE else ("good",), f"{check}: {text}")
                texts[name] = {check: text for check, (_, text, _) in found[name].items()}
        self.assertIn("2x7x7", texts["example/gridworld"]["spec"])
        self.assertRegex(texts["example/gridworld"]["episodes"], r"[1-9]\d* terminated, [1-9]\d* truncated")

    def test_options_that_do_not_fit(self):
        build("size", SOURCE / "examples/gridworld.c")
        build("cells", PLUGINS / "ocean_chase.c")
        for plugin, option, text in (
            ("size", "size=99", "2 to 32 are possible"),
            ("size", "siez=9", "it has size"),
            ("cells", "cells=2", "3 to 1000"),
            ("cells", "cells=4.5", "whole number"),
            ("cells", "cells=x", "a number"),
            ("cells", "cell=4", "it has cells"),
        ):
            with self.subTest(option):
                status, found = examine(path(plugin), "--option", option)
                self.assertEqual(status, 1)
                self.assertIn(text, [checks for name, checks in found.items() if name][0]["spec"][1])

    def test_options_of_a_library_behind_libenv_are_its_own(self):
        """It ends its process over one that it does not know, which is no fault of the adapter's."""
        build("strict", PLUGINS / "strict_libenv.c", f"-I{SOURCE}/src", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter")
        for target in (f"libenv:{path('strict')}",), ("libenv/any", "--env.lib", path("strict")):
            status, found = examine(*target, "--env.seed_option", "seed")
            self.assertEqual(status, 0, found)
            grade, text, mend = found["libenv/any"]["spec"]
            self.assertEqual(grade, "note")
            self.assertIn("numbers f32[3]; 2 actions; options are passed on to the library", text)
            self.assertIn("library's business", mend)
            self.assertGreaterEqual(len(found["libenv/any"]), 16, "all checks are made")
        status, found = examine(f"libenv:{path('strict')}", "--env.size", "3")
        self.assertEqual(status, 1, "what the user gives is tried")
        self.assertIn("fatal: unused option size", found["libenv/any"]["spec"][1])

    def test_ocean_without_the_buffer_that_it_needs(self):
        build("direct", PLUGINS / "ocean_chase.c", "-DDIRECT=1")
        status, found = examine(path("direct"), "--check", "every byte written")
        self.assertEqual(status, 1)
        self.assertIn("'observations' are not written", found["ocean/chase"]["every byte written"][1])


class Config(ctypes.Structure):
    _fields_ = [("seed", ctypes.c_uint64), ("options", ctypes.c_void_p), ("option_count", ctypes.c_size_t)]


OBS = ctypes.POINTER(ctypes.c_void_p)


class Api(ctypes.Structure):
    """struct farm_env_api"""

    _fields_ = [
        ("abi_version", ctypes.c_uint32),
        ("struct_bytes", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("about", ctypes.c_char_p),
        ("spec", ctypes.c_void_p),
        ("create", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(Config), ctypes.c_char_p, ctypes.c_size_t)),
        ("destroy", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
        ("reset", ctypes.CFUNCTYPE(None, ctypes.c_void_p, OBS)),
        (
            "step",
            ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p, OBS, ctypes.POINTER(ctypes.c_float)),
        ),
    ]


class Chase:
    """ocean_chase.h in Python, with splitmix64 for rand()."""

    CELLS, MOVES = 9, (0, -1, 1)

    def __init__(self, seed):
        self.random = seed

    def rand(self):
        self.random = x = (self.random + 0x9E3779B97F4A7C15) % 2**64
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
        return x >> 33

    def look(self):
        cells = bytearray(self.CELLS)
        cells[self.target] = 2
        cells[self.hunter] = 1
        return bytes(cells)

    def reset(self):
        self.ticks = 0
        self.hunter = self.rand() % self.CELLS
        self.target = (self.hunter + 1 + self.rand() % (self.CELLS - 1)) % self.CELLS
        return self.look()

    def step(self, action):
        """What PufferLib would see: the next episode's first observation with an end."""
        self.hunter = (self.hunter + self.MOVES[action]) % self.CELLS
        caught = self.hunter == self.target
        self.ticks += not caught
        ended = caught or self.ticks == 2 * self.CELLS
        return self.reset() if ended else self.look(), float(caught), ended


class Instance:
    """One environment of a plug-in, called as an actor calls it: memory elsewhere, and full of something, each time."""

    def __init__(self, name, seed, obs_bytes):
        library = ctypes.CDLL(path(name))
        library.farm_env_at.restype = ctypes.POINTER(Api)
        self.api = library.farm_env_at(ctypes.c_size_t(0)).contents
        self.environment = self.api.create(ctypes.byref(Config(seed, None, 0)), ctypes.create_string_buffer(256), 256)
        self.obs_bytes = obs_bytes

    def memory(self):
        memory = ctypes.create_string_buffer(b"\xee" * self.obs_bytes, self.obs_bytes)
        return memory, (ctypes.c_void_p * 1)(ctypes.addressof(memory))

    def reset(self):
        memory, obs = self.memory()
        self.api.reset(self.environment, obs)
        return memory.raw

    def step(self, action):
        memory, obs = self.memory()
        reward = ctypes.c_float(7)
        answer = self.api.step(self.environment, ctypes.byref(action), obs, ctypes.byref(reward))
        return memory.raw, reward.value, answer

    def destroy(self):
        self.api.destroy(self.environment)


class Ocean(unittest.TestCase):
    """An end's observation is the next episode's first; the reset behind it gives it again and begins nothing."""

    END = 4 | 16  # TERMINATED, GAME_END

    def test_a_buffer_of_its_own(self):
        build("chase_alone", PLUGINS / "ocean_chase.c")
        instance, oracle = Instance("chase_alone", 5, Chase.CELLS), Chase(5)
        chooser, ends = random.Random(1), 0
        expected = oracle.reset()
        self.assertEqual(instance.reset(), expected)
        for step in range(1000):
            action = chooser.randrange(3)
            seen, reward, answer = instance.step(ctypes.c_int32(action))
            expected, gain, ended = oracle.step(action)
            self.assertEqual((seen, reward, answer), (expected, gain, self.END if ended else 0), f"step {step}")
            if ended:
                self.assertEqual(instance.reset(), expected)
                ends += 1
        self.assertGreater(ends, 50)
        instance.destroy()

    def test_written_in_place(self):
        build("spring_alone", PLUGINS / "ocean_spring.c", *OCEAN_FLAGS)
        instance, firsts = Instance("spring_alone", 5, 12), set()
        for _ in range(20):
            first = instance.reset()
            position, velocity, clock = struct.unpack("3f", first)
            self.assertTrue(-1 <= position <= 1 and velocity == 0 and clock == 0)
            if firsts:
                self.assertEqual(first, seen, "as the end had it")
            firsts.add(first)
            for step in range(1, 51):
                seen, reward, answer = instance.step((ctypes.c_float * 2)(0.5, 0.5))
                self.assertEqual(answer, self.END if step == 50 else 0)
                if step < 50:
                    self.assertEqual(struct.unpack("3f", seen)[2], ctypes.c_float(step / 50).value)
                    self.assertAlmostEqual(reward, -abs(struct.unpack("3f", seen)[0]), places=6)
        self.assertEqual(len(firsts), 20)
        instance.destroy()


class Broken(unittest.TestCase):
    """Option `fault` of plugins/broken.c, the check that finds it, what it says."""

    def find(self, *cases, grade="broken"):
        patience = {"hang": ("--hang-seconds", "1")}
        options = [("--option", f"fault={fault}", *patience.get(fault, ())) for fault, *_ in cases]
        checks = ["speed" if check == "prints" else check for _, check, *_ in cases]
        results = check_all((path("broken"), *option, "--check", check) for option, check in zip(options, checks))
        for (fault, check, *texts), (status, found) in zip(cases, results):
            with self.subTest(fault):
                self.is_found(check, texts, status, found["test/broken"], grade)

    def is_found(self, check, texts, status, checks, grade):
        self.assertEqual(status, 1 if grade == "broken" else 0, checks)
        self.assertEqual({name for name, (graded, _, _) in checks.items() if graded != "good"}, {check})
        self.assertEqual(checks[check][0], grade)
        self.assertTrue(checks[check][2], "it says what to do")
        for text in texts:
            self.assertIn(text, checks[check][1])

    def test_memory(self):
        self.find(
            ("past", "memory behind fields", "past field 'cells' (200 bytes): 0 bytes behind", "reset()"),
            ("past_second", "memory behind fields", "past field 'clock' (3 bytes)"),
            ("before", "memory before fields", "before field 'cells'", "4 bytes before"),
            ("action", "memory behind fields", "writes to its action"),
            ("kept_pointer", "kept pointers", "an earlier call's 'cells'"),
            ("previous", "kept pointers", "an earlier call's 'cells'"),
            ("unwritten", "every byte written", "reset(): 192 of 200 bytes of field 'cells' are not written"),
            ("unwritten_byte", "every byte written", "1 of 3 bytes of field 'clock'", "at byte 2"),
            ("reads_old", "every byte written", "'cells' depends on what lay in that memory"),
            ("no_reward", "every byte written", "reward is not written"),
        )

    def test_seeds(self):
        self.find(
            ("rand", "same seed", "another observation at call 1"),
            ("shared", "instances", "where a second instance is stepped between"),
            ("time", "same seed, later", "a second later"),
        )
        self.find(("same_for_all", "other seeds", "the same episodes"), grade="note")

    def test_episodes_and_numbers(self):
        self.find(
            ("stale", "episodes", "does not start anew"),
            ("answer", "episodes", "step() answers 0x6 at call 6"),
            ("obs_nan", "numbers", "field 'cells', element 9 is NaN, infinite or beyond 1e9 after step()"),
            ("reward_nan", "numbers", "the reward is NaN, infinite or beyond 1e9 at call 6"),
            ("reward_infinite", "numbers", "the reward is NaN, infinite"),
        )
        self.find(
            ("endless", "episodes", "no episode ended"),
            ("no_game_end", "episodes", "no FARM_STEP_GAME_END"),
            ("constant", "numbers", "no observation ever changed"),
            grade="note",
        )

    def test_ends_that_are_not_its_own(self):
        self.find(
            ("segfault", "runs", "step() of call 6 crashes: Segmentation fault", "addr2line"),
            ("recursion", "runs", "step() of call 6 crashes"),
            ("abort", "runs", "step() of call 6 crashes: Aborted", "it said: the board is inconsistent"),
            ("exit", "runs", "ended the process with exit status 3"),
            ("hang", "runs", "step() of call 6 has not returned within 1 s"),
        )
        self.find(("prints", "prints", "bytes while it was checked", "is no JSON"), grade="note")

    def test_an_action_that_crashes_rarely(self):
        build("rare", PLUGINS / "broken.c", "-w", "-DRARE")
        status, found = examine(path("rare"), "--option", "fault=action_crash", "--steps", "16", "--check", "actions")
        self.assertEqual(status, 1)
        self.assertIn("with action 999 crashes", found["test/broken"]["actions"][1])

    def test_what_it_says_of_itself(self):
        self.find(
            ("no_sentence", "spec", "without a sentence"),
            ("huge_spec", "spec", "field 'cells'"),
            ("other_spec", "spec", "differently at the second call"),
            ("no_second", "runs", "there can be only one"),
        )
        self.find(("options", "spec", "accepts an option that it cannot know"), grade="note")

    def test_what_is_left_behind(self):
        self.find(("grows", "memory while playing", "memory grows"))
        self.find(
            ("leak", "destroy", "bytes an instance are left behind"),
            ("descriptor", "destroy", "open files are left"),
            grade="note",
        )

    def test_one_broken_check_leaves_the_others(self):
        status, found = examine(path("broken"), "--option", "fault=past")
        checks = found["test/broken"]
        self.assertEqual(status, 1)
        broken = [name for name, (grade, _, _) in checks.items() if grade != "good" and not (grade == "note" and name in MAY_NOTE)]
        self.assertEqual(broken, ["memory behind fields"])
        self.assertGreaterEqual(len(checks), 16)


class Plugins(unittest.TestCase):
    """Objects that no farm opens, and wrong usage."""

    def does_not_open(self, name, text):
        status, found = examine(path(name))
        self.assertEqual(status, 1)
        self.assertEqual(list(found), [""])
        self.assertIn(text, found[""]["opens"][1])

    def test_what_cannot_be_opened(self):
        build("abi", PLUGINS / "broken.c", "-w", "-DABI=99")
        self.does_not_open("abi", "version 99")
        build("entry", PLUGINS / "broken.c", "-w", "-DNO_ENTRY")
        self.does_not_open("entry", "farm_env_at")
        pathlib.Path(path("text")).write_text("int main(void) { return 0; }\n")
        self.does_not_open("text", "cannot load")
        build("constructor", PLUGINS / "rogue.c", "-DEARLY")
        self.does_not_open("constructor", "the loading crashes")

    def test_wrong_usage(self):
        for arguments, text in (
            (("gone.so",), "gone.so: no such file"),
            (("native/cacth",), "native/cacth"),
            ((path("broken"), "--env", "test/other"), "no environment 'test/other'"),
            ((path("broken"), "--check", "episode"), "'episodes'?"),
            ((path("broken"), "--option", "fault"), "KEY=VALUE"),
            ((path("broken"), "--steps", "3"), "--steps 3"),
            (("--env", "test/broken"), "belong to a plug-in"),
        ):
            with self.subTest(arguments):
                result = run_doctor(*arguments)
                self.assertEqual(result.returncode, 2, result)
                self.assertIn(text, result.stderr)

    def test_lines_for_people(self):
        result = run_doctor(f"plugin:{path('broken')}:test/broken", "--env.fault", "unwritten")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stdout, r"(?m)^good +opens +1 environment")
        self.assertRegex(result.stdout, r"(?m)^broken +every byte written +call 1.*\n +-> write the whole field")
        self.assertRegex(result.stdout, r"steps/s a core")
        self.assertNotRegex(result.stdout, re.compile(r"^broken(?! +every byte)", re.M))


if __name__ == "__main__":
    unittest.main()
