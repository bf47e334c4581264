"""The Procgen plug-in against a plain loop over Procgen's own library, step by step; its options, images and messages.

Tests of the library run in child processes, because a process loads its images only once."""

import ctypes
import functools
import os
import pathlib
import pickle
import shutil
import tempfile
import traceback
import unittest
from unittest import mock

import numpy as np
from plugin_api import BUILD, GAME_END, TERMINATED, Environment, create, open_plugin, read_spec

PLUGIN = os.path.join(BUILD, "envs", "procgen.so")
_, APIS = open_plugin(PLUGIN)
GAMES = ("bigfish", "bossfight", "caveflyer", "chaser", "climber", "coinrun", "dodgeball", "fruitbot", "heist", "jumper", "leaper", "maze",
         "miner", "ninja", "plunder", "starpilot")
MODES = {"easy": 0, "hard": 1, "extreme": 2}  # the library's numbers
ACTIONS, SHAPE, ENDED = 15, (64, 64, 3), TERMINATED | GAME_END
FOLDER = pathlib.Path(BUILD, "procgen")
BACKGROUNDS = FOLDER / "lean" / "backgrounds.raw"
needs_procgen = unittest.skipUnless((FOLDER / "libenv.so").exists(), "Procgen's library is not in build/procgen (make deps fetches it, on x86-64)")
needs_lean = unittest.skipUnless(BACKGROUNDS.exists(), "build/procgen has no lean images (make deps makes them)")


def run_in_child(function, *arguments):
    """What the function returns or raises in a child process."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            result = function(*arguments), None
        except BaseException:  # pylint: disable=broad-except  # the parent raises it
            result = None, traceback.format_exc()
        with os.fdopen(write_end, "wb") as file:
            pickle.dump(result, file)
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as file:
        data = file.read()
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"the child ended with status {status}"
    result, failure = pickle.loads(data)
    assert failure is None, failure
    return result


def in_child(test):
    return functools.wraps(test)(lambda self: run_in_child(test, self))


def make(game, seed=0, folder=None, **options):
    with mock.patch.dict(os.environ, FARM_PROCGEN=str(folder or FOLDER)):
        return Environment(APIS[f"procgen/{game}"], seed, **options)


class Player:
    """Resets when an episode has ended, otherwise steps; keeps what it saw last."""

    def __init__(self, *arguments, **options):
        self.env, self.ended = make(*arguments, **options), True

    def advance(self, action):
        self.starts = self.ended
        if self.ended:
            self.seen, self.reward, flags = self.env.reset(), 0, 0
        else:
            self.seen, self.reward, flags = self.env.step(action)
        self.ended = flags != 0
        return self.seen, self.reward, flags


# ---- the plain loop ----


class LibenvOption(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char * 128), ("dtype", ctypes.c_int), ("count", ctypes.c_int), ("data", ctypes.c_void_p)]


class LibenvOptions(ctypes.Structure):
    _fields_ = [("items", ctypes.POINTER(LibenvOption)), ("count", ctypes.c_int)]


class PlainLoop:
    """A libenv of one game, through gym3's interface, with its own buffers."""

    def __init__(self, game, seed, mode, levels):
        self.library = ctypes.CDLL(str(FOLDER / "libenv.so"))
        self.library.libenv_make.restype, self.library.libenv_make.argtypes = ctypes.c_void_p, [ctypes.c_int, LibenvOptions]
        numbers = {"rand_seed": seed, "num_threads": 0, "num_actions": ACTIONS, "num_levels": levels, "start_level": 0}
        values = [(name, 2, 1, ctypes.c_int32(value)) for name, value in {**numbers, "distribution_mode": MODES[mode]}.items()]
        values.append(("center_agent", 1, 1, ctypes.c_uint8(1)))
        for name, text in {"env_name": game, "resource_root": f"{FOLDER}/assets/"}.items():
            values.append((name, 1, len(text), ctypes.create_string_buffer(text.encode())))
        items = [LibenvOption(name.encode(), dtype, count, ctypes.addressof(data)) for name, dtype, count, data in values]
        options = LibenvOptions((LibenvOption * len(items))(*items), len(items))
        self.kept = values, items  # the library reads them until it is closed
        self.handle = ctypes.c_void_p(self.library.libenv_make(1, options))
        self.obs, self.reward, self.first = np.zeros(SHAPE, np.uint8), np.zeros(1, np.float32), np.zeros(1, np.uint8)
        self.action, self.infos = np.zeros(1, np.int32), np.zeros(3, np.int32)

        def addresses(*arrays):
            return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))

        fields = addresses(self.obs), addresses(*np.split(self.infos, 3)), addresses(self.action)
        observations, infos, actions = map(ctypes.addressof, fields)
        pointers = observations, self.reward.ctypes.data, self.first.ctypes.data, infos, actions
        self.buffers = fields, (ctypes.c_void_p * 5)(*pointers)
        self.library.libenv_set_buffers(self.handle, self.buffers[1])
        self.library.libenv_observe(self.handle)

    def step(self, action):
        self.action[0] = action
        self.library.libenv_act(self.handle)
        self.library.libenv_observe(self.handle)
        return self.obs.tobytes(), float(self.reward[0]), bool(self.first[0])


def record(game, mode, levels, seed, actions):
    """(observation, reward, first) of the start and of each step."""
    loop = PlainLoop(game, seed, mode, levels)
    moments = [(loop.obs.tobytes(), 0.0, False), *map(loop.step, actions)]
    loop.library.libenv_close(loop.handle)
    return moments


@needs_procgen
class AgainstPlainLoop(unittest.TestCase):
    def compare(self, runs, steps):
        """Plays (game, mode, levels, seed) in both; returns how many episodes ended."""
        actions, episodes = np.random.default_rng(3).integers(ACTIONS, size=steps).tolist(), 0
        recorded = run_in_child(lambda: [record(*run, actions) for run in runs])

        def play():
            return [self.compare_one(run, moments, actions) for run, moments in zip(runs, recorded)]

        return sum(run_in_child(play))

    def compare_one(self, run, moments, actions):
        """The plug-in's resets lie between steps and take no action."""
        game, mode, levels, seed = run
        env, episodes = make(game, seed, distribution_mode=mode, num_levels=levels), 0
        self.assertEqual(env.reset().tobytes(), moments[0][0], f"{run}: first observation")
        for n, (action, (observation, reward, first)) in enumerate(zip(actions, moments[1:]), 1):
            seen, *answer = env.step(action)
            self.assertEqual(answer, [reward, ENDED if first else 0], f"{run}: reward and end of step {n}")
            self.assertEqual(seen.tobytes(), observation, f"{run}: observation of step {n}")
            if first:
                episodes += 1
                self.assertEqual(env.reset().tobytes(), observation, f"{run}: first observation of an episode, step {n}")
        env.close()
        return episodes

    def test_rewards_ends_and_images_are_those_of_a_plain_loop(self):
        runs = (("leaper", "easy", 0, 0), ("starpilot", "extreme", 0, 0), ("bigfish", "hard", 3, 0), ("fruitbot", "easy", 1, 0))
        self.assertGreaterEqual(self.compare(runs, 600), 20)

    def test_images_of_all_games_are_those_of_a_plain_loop(self):
        """Many short games, because each seed draws another background."""
        self.compare([(game, "hard", 0, seed) for game in GAMES for seed in range(40)], 10)


def resident_mb():
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") >> 20


def make_odd_folder(folder, offset, byte, size):
    """Procgen's folder with other backgrounds: the first page of the true file with one byte changed, then zeros."""
    for name in ("libenv.so", "assets"):
        (folder / name).symlink_to((FOLDER / name).resolve())
    (folder / "lean").mkdir()
    for place in (FOLDER / "lean").resolve().iterdir():
        if place.is_dir():
            (folder / "lean" / place.name).symlink_to(place)
    with open(BACKGROUNDS, "rb") as file:
        page = bytearray(file.read(4096))
    page[offset] = byte
    with open(folder / "lean" / BACKGROUNDS.name, "wb") as file:
        file.write(page)
        file.truncate(size)


@needs_lean
class LeanImages(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    @in_child
    def test_processes_share_their_backgrounds(self):
        before = resident_mb()
        make("coinrun", 1)
        self.assertLessEqual(resident_mb() - before, 100)

    @in_child
    def test_damaged_ones_are_ignored_and_all_images_loaded(self):
        make_odd_folder(self.folder, 0, ord("p"), 1 << 20)
        before = resident_mb()
        env = make("coinrun", 1, self.folder)
        self.assertGreaterEqual(resident_mb() - before, 200)
        self.assertGreater(np.ptp(env.reset()), 0)

    @in_child
    def test_those_of_another_library_are_refused(self):
        """One picture fewer than the library has, in a file of full length. The second attempt finds images loaded."""
        make_odd_folder(self.folder, 16, 95, BACKGROUNDS.stat().st_size)
        for _ in range(2):
            with self.assertRaisesRegex(ValueError, "/lean/ is not made for Procgen's library beside it"):
                create(APIS["procgen/coinrun"], lib=self.folder)


@needs_procgen
class Levels(unittest.TestCase):
    @in_child
    def test_a_seed_orders_the_levels(self):
        same, again, other = Player("chaser", 1), Player("chaser", 1), Player("chaser", 2)
        differs = False
        for n, action in enumerate(np.random.default_rng(7).integers(ACTIONS, size=300)):
            seen, *answer = same.advance(action)
            seen_again, *answer_again = again.advance(action)
            self.assertEqual((seen.tobytes(), answer), (seen_again.tobytes(), answer_again), f"step {n}")
            differs |= seen.tobytes() != other.advance(action)[0].tobytes()
        self.assertTrue(differs, "seeds 1 and 2 play the same")

    @in_child
    def test_a_level_starts_the_same_each_time(self):
        one = {"num_levels": 1, "start_level": 17}
        player, env, starts = Player("leaper", 1, **one), make("leaper", 2, **one), 0
        start = env.reset().tobytes()
        for action in np.random.default_rng(7).integers(ACTIONS, size=400):
            player.advance(action)
            if player.starts:
                self.assertEqual(player.seen.tobytes(), start)
                starts += 1
        self.assertGreaterEqual(starts, 3)
        for _ in range(5):
            env.step(5)
        self.assertEqual(env.reset().tobytes(), start, "a reset in mid-episode")
        self.assertEqual(env.step(5)[2], 0)

    @in_child
    def test_options_change_observations(self):
        for options in (
            {"use_backgrounds": False}, {"center_agent": 0}, {"use_monochrome_assets": True}, {"restrict_themes": 1}, {"paint_vel_info": True},
            {"use_generated_assets": True}, {"distribution_mode": "easy"}, {"distribution_mode": "exploration"},
        ):
            plain, other = Player("coinrun", 3), Player("coinrun", 3, **options)
            self.assertTrue(any(plain.advance(7)[0].tobytes() != other.advance(7)[0].tobytes() for _ in range(20)), options)


class WithoutProcgen(unittest.TestCase):
    def test_another_library_with_its_spaces_is_played_without_assumptions(self):
        """tests/envs/libenv_fixture.c counts: the plug-in must not write to addresses that it knows from Procgen."""
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(os.path.join(BUILD, "tests/envs/libenv_fixture.so"), os.path.join(folder, "libenv.so"))
            os.mkdir(os.path.join(folder, "assets"))
            env = make("starpilot", 8, lib=folder)
        for episode in range(3):
            self.assertTrue((env.reset() == 1000 * episode % 251).all())
            for n in (1, 2, 3):
                seen, *answer = env.step(14)
                self.assertTrue((seen == (1000 * (episode + 1) if n == 3 else 1000 * episode + n) % 251).all())
                self.assertEqual(answer, [100 * episode + n, ENDED if n == 3 else 0])

    def check_refused(self, game, message, api=None, **options):
        api = api or APIS[f"procgen/{game}"]
        for call in (read_spec, create):
            with self.assertRaises(ValueError) as refusal:
                call(api, **options)
            self.assertIn(message, str(refusal.exception))

    def test_refuses_options_with_a_message(self):
        number = "whole number from 0"
        for game, message, options in (
            ("bigfish", 'has no option "colour"; it has distribution_mode', {"colour": 1}),
            ("bigfish", number, {"num_levels": -1}),
            ("bigfish", number, {"num_levels": "many"}),
            ("bigfish", number, {"start_level": 1 << 31}),
            ("bigfish", "exceed 2147483647", {"start_level": (1 << 31) - 1, "num_levels": 1}),
            ("bigfish", 'true or false, not "maybe"', {"center_agent": "maybe"}),
            ("bigfish", "easy, hard, extreme, memory or", {"distribution_mode": "harder"}),
            ("bigfish", "modes easy, hard", {"distribution_mode": "extreme"}),
            ("chaser", "modes easy, hard, extreme", {"distribution_mode": "memory"}),
            ("chaser", "modes easy, hard, extreme", {"distribution_mode": "exploration"}),
            ("maze", "exploration mode plays one level", {"distribution_mode": "exploration", "num_levels": 5}),
        ):
            with self.subTest(options), mock.patch.dict(os.environ, FARM_PROCGEN=str(FOLDER)):
                self.check_refused(game, message, **options)

    def test_messages_name_the_missing_library(self):
        with mock.patch.dict(os.environ, FARM_PROCGEN="/nowhere/at/all"):
            self.check_refused("bigfish", "at /nowhere/at/all, which FARM_PROCGEN names")
            self.check_refused("bigfish", "at nothing.so, which option lib names", lib="nothing.so")
        with tempfile.TemporaryDirectory() as folder:
            _, apis = open_plugin(shutil.copy(PLUGIN, folder))
            self.check_refused("bigfish", "`make deps`", apis["procgen/bigfish"])


if __name__ == "__main__":
    unittest.main()
