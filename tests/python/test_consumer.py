"""Lanes of a farm answered by this process: actorfarm._consumer, and actorfarm.make over it."""

import copy
import gc
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
import warnings

import actorfarm
import gymnasium
import numpy as np

try:
    from actorfarm import _consumer, pool, program
except ImportError as missing:
    raise unittest.SkipTest(f"the build has no actorfarm._consumer: {missing}") from missing
from lanes import LIMIT_S

os.environ.setdefault("FARM_PROGRAM", program.path())
OBS = _consumer.OBS


def consumer(env="native/cartpole", actors=1, lanes=2, width=2, steps=8, more=(), **options):
    words = ["--env", env, "--quiet", "--actors", str(actors), "--lanes", str(lanes), "--envs-per-actor", str(lanes * width), "--steps", str(steps)]
    return _consumer.Consumer([*words, *more], **options)


def actors(pid):
    """Processes of a farm's actors."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split() if name_of(child).startswith("actor")]


def name_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


def run(program_text, **options):
    """A Python program's (exit status, stdout, stderr)."""
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program_text)], capture_output=True, text=True, timeout=LIMIT_S, **options)
    return ended.returncode, ended.stdout, ended.stderr


class Farm(unittest.TestCase):
    """Tests with a consumer of two lanes of two environments; all lanes wait or are on their way between tests."""

    @classmethod
    def setUpClass(cls):
        cls.consumer = consumer()
        cls.addClassCleanup(lambda: cls.consumer.close())

    def setUp(self):
        """All lanes wait."""
        while len(self.consumer.waiting()[0]) < 2:
            self.consumer.recv()
        self.at = dict(zip(*(array.tolist() for array in self.consumer.waiting())))

    def answer(self, lanes=(0, 1)):
        self.consumer.send(lanes, np.zeros(2 * len(lanes), np.int32))


class Lanes(Farm):
    def test_views_are_in_place_and_copies_are_not(self):
        for _ in range(10):
            lane, step = list(self.at.items())[0]
            view, same = (self.consumer.view(lane, step, OBS) for _ in range(2))
            self.assertEqual((view.shape, view.dtype, view.flags.writeable), ((2, 4), np.float32, False))
            self.assertTrue(np.shares_memory(view, same))
            for other in (self.consumer.copy(lane, step, OBS), self.consumer.gather([lane], [step], OBS)):
                self.assertTrue((other == view).all() and other.flags.writeable and not np.shares_memory(view, other))
            both = self.consumer.gather([1, 0], [self.at[1], self.at[0]], OBS)
            self.assertTrue((both == np.concatenate([self.consumer.copy(1, self.at[1], OBS), self.consumer.copy(0, self.at[0], OBS)])).all())
            self.answer()
            self.setUp()
        self.assertTrue((self.consumer.copy(0, self.at[0], _consumer.FLAGS) < 32).all())

    def test_several_steps_are_one_view(self):
        while self.at[0] % 8 != 2:
            self.answer()
            self.setUp()
        start, kept, were = self.at[0], self.consumer.hold(0, self.at[0]), []
        for n in range(5):
            were.append(self.consumer.copy(0, self.at[0], OBS))
            self.consumer.send([0, 1], [n % 2, 0, 0, 0])
            self.setUp()
        for read in (self.consumer.view, self.consumer.copy):
            self.assertTrue((read(0, start, OBS, 5) == were).all())
            self.assertEqual(read(0, start, _consumer.ACTION, 5).tolist(), [[n % 2, 0] for n in range(5)])
        self.assertEqual(self.consumer.copy(0, start + 4, OBS, 2).shape, (2, 2, 4))
        with self.assertRaises(IndexError):
            self.consumer.view(0, start, OBS, 7)  # it wraps
        del kept

    def test_hoarded_views_stop_the_lanes_and_dropped_ones_let_them_go_on(self):
        hoard, before = [], []
        for n in range(8):
            for lane, step in self.at.items():
                hoard.append(self.consumer.view(lane, step, OBS))
                before.append(hoard[-1].copy())
            self.answer(list(self.at))
            lanes, steps = self.consumer.recv(2, timeout=0.3 if n == 7 else None)
            self.at = dict(zip(lanes.tolist(), steps.tolist()))
        self.assertEqual((len(lanes), self.consumer.room(0)), (0, 0))
        for view, was in zip(hoard, before):
            self.assertTrue((view == was).all())
        rest, was = hoard[8:], before[8:]
        del hoard, view
        gc.collect()
        lanes, steps = self.consumer.recv(2)
        self.assertEqual(len(lanes), 2)
        for view, one in zip(rest, was):
            self.assertTrue((view == one).all())

    def test_what_does_not_wait_is_refused(self):
        step = self.at[0]
        for call in (
            lambda: self.consumer.view(0, step + 1, OBS), lambda: self.consumer.view(0, step + 10**6, OBS), lambda: self.consumer.view(7, 0, OBS),
            lambda: self.consumer.view(0, step, 99), lambda: self.consumer.view(0, step, _consumer.LAST), lambda: self.consumer.hold(0, step + 1),
            lambda: self.consumer.view(0, step, OBS, 0), lambda: self.consumer.gather([0], [step + 1], OBS),
        ):
            with self.assertRaises((IndexError, ValueError)):
                call()
        with self.assertRaisesRegex(RuntimeError, "all lanes wait for actions"):
            self.consumer.recv()
        with self.assertRaises(ValueError):
            self.consumer.gather([0, 1], [step], OBS)
        with self.assertRaises(ValueError):
            self.consumer.gather([0], [step], OBS, stack=3)

    def test_wrong_actions_are_refused_by_environment_and_value(self):
        zeros = np.zeros(4, np.int32)
        for lanes, actions, error, words in (
            ([0, 1], [0, 0, 5, 0], ValueError, "lane 1, environment 0 .env_id 2.: action 5"), ([0, 1], [0, -1, 0, 0], ValueError, "lane 0, environment 1 .*: action -1"),
            ([0, 1], [2**33, 0, 0, 0], ValueError, "env_id 0"), ([0, 1], zeros.astype(float), TypeError, "integers"), ([0, 1], zeros > 0, TypeError, "integers"),
            ([0, 1], zeros[:3], ValueError, r"3 numbers, must be \[4, 1\]"), ([0, 1], "0000", TypeError, "array"), ([0, 1], None, TypeError, ""),
            ([0, 0], zeros, ValueError, "twice"), ([7], zeros[:2], ValueError, "lane 7 waits for no"), ([-1], zeros[:2], ValueError, "waits for no"),
        ):
            with self.assertRaisesRegex(error, words):
                self.consumer.send(lanes, actions)
        for ids, words in (([0, 0], "env_id 0 .*twice"), ([4], "env_id 4"), ([0, 1, 9], "env_id 9")):
            with self.assertRaisesRegex(ValueError, words):
                self.consumer.put(ids, zeros[: len(ids)])
        with self.assertRaisesRegex(ValueError, "env_id 1.*action 9"):
            self.consumer.put([0, 1], [0, 9])
        self.assertEqual(self.consumer.waiting()[0].tolist(), [0, 1])
        self.consumer.put([3, 0, 2], [1, 1, 1])
        self.assertEqual(self.consumer.waiting()[0].tolist(), [0])
        with self.assertRaisesRegex(ValueError, "env_id 0"):
            self.consumer.put([0], [1])
        self.consumer.put([1], np.zeros((1, 1), np.uint8))
        for actions in ([0, 1, 0, 1], np.ones((4, 1), np.int64), np.ones(8, np.uint8)[::2], np.ones((2, 2), np.int16)):
            self.setUp()
            self.consumer.send([0, 1], actions)

    def test_it_is_not_pickled(self):
        for call in (pickle.dumps, copy.copy, copy.deepcopy):
            with self.assertRaisesRegex(TypeError, "cannot be pickled"):
                call(self.consumer)

    def test_a_second_thread_is_refused(self):
        actor, errors = actors(self.consumer.pid)[0], []

        def look():
            while len(errors) < 2:
                try:
                    (self.consumer.close if errors else self.consumer.lanes)()
                except RuntimeError as error:
                    errors.append(str(error))
            os.kill(actor, signal.SIGCONT)

        os.kill(actor, signal.SIGSTOP)
        self.answer()
        other = threading.Thread(target=look)
        other.start()
        self.assertEqual(len(self.consumer.recv(2)[0]), 2)
        other.join()
        self.assertEqual(["another thread" in error for error in errors], [True, True])

    def test_a_forks_child_is_refused_and_changes_nothing(self):
        view = self.consumer.view(0, self.at[0], OBS)
        before, child = view.copy(), os.fork()
        if not child:
            try:
                self.consumer.recv()
            except RuntimeError as error:
                del view
                self.consumer.close()
                os._exit(7 if "fork" in str(error) else 8)
            os._exit(9)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 7)
        for _ in range(20):
            self.answer([1])
            self.setUp()
        self.assertTrue((view == before).all())


class Ends(unittest.TestCase):
    def test_views_and_farms_outlive_the_interpreter(self):
        """Without a word on stderr, and with the farm's end."""
        status, out, err = run("""
            import actorfarm, numpy as np, threading, warnings
            warnings.simplefilter("ignore")  # the kept observation fills its ring
            def start():
                global env, obs
                env = actorfarm.make("native/catch", 4, 2, actors=1)
                obs, info = env.reset()
            thread = threading.Thread(target=start)
            thread.start(), thread.join()
            for _ in range(20):
                env.step(np.zeros(2, int))  # the farm outlives the thread that started it
            print(env.consumer.pid, flush=True)
            def wait():
                while True:
                    env.step(np.zeros(2, int))
            threading.Thread(target=wait, daemon=True).start()
        """)
        self.assertEqual((status, err), (0, ""))
        deadline = time.monotonic() + LIMIT_S
        while os.path.exists(f"/proc/{int(out)}") and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertFalse(os.path.exists(f"/proc/{int(out)}"))

    def test_ctrl_c_in_recv_reaches_python_alone(self):
        status, out, err = run("""
            import actorfarm, os, signal, sys, threading
            sys.path.insert(0, "tests/python")
            from test_consumer import actors
            env = actorfarm.make("native/cartpole", 2, 1, actors=1)
            env.reset()
            actor, = actors(env.consumer.pid)
            os.kill(actor, signal.SIGSTOP)
            env.send([0])
            try:
                threading.Timer(0.2, lambda: os.killpg(0, signal.SIGINT)).start()
                env.recv(), env.recv()
            except KeyboardInterrupt:
                pass
            os.kill(actor, signal.SIGCONT)
            print(env.recv()[4]["env_id"].tolist())
        """, start_new_session=True)
        self.assertEqual((status, out, err), (0, "[0]\n", ""))

    def test_an_actors_death_is_an_abandoned_episode(self):
        with actorfarm.make("native/catch", 4, actors=2) as env:
            env.reset()
            for _ in range(3):
                env.step(np.ones(4, int))
            os.kill(actors(env.consumer.pid)[-1], signal.SIGKILL)
            ages = [env.step(np.ones(4, int))[4]["elapsed_step"].tolist() for _ in range(3)]
            self.assertIn([0, 0], [age[half : half + 2] for age in ages for half in (0, 2)])
            self.assertIn([4, 4], [age[half : half + 2] for age in ages for half in (0, 2)])

    def test_the_farms_end_is_an_exception_with_its_last_words(self):
        for number, words in ((signal.SIGTERM, "signal"), (signal.SIGKILL, "farm")):
            env = actorfarm.make("native/cartpole", 2, 1)
            env.reset()
            view = env.consumer.view(*(array[0] for array in env.consumer.waiting()), OBS)
            threading.Timer(0.1, os.kill, (env.consumer.pid, number)).start()
            with self.assertRaisesRegex(actorfarm.FarmEnded, words):
                while True:
                    env.step([0])
            self.assertTrue(np.isfinite(view).all())
            with self.assertRaises(actorfarm.FarmEnded):
                env.recv()
            env.close()

    def test_a_farm_that_does_not_start_says_why(self):
        sys.stderr.flush()
        for call, words in (
            (lambda: actorfarm.make("native/nothing", 2), "did you mean 'native/"), (lambda: actorfarm.make("native/catch", 2, wrong_flag=3), "unknown flag --wrong-flag"),
            (lambda: actorfarm.make("native/catch", 2, options={"nothing": 1}), 'no "nothing"'), (lambda: actorfarm.make("native/catch", 2, steps=1), "--steps 1"),
            (lambda: actorfarm.make(socket="/nonexistent/farm"), "/nonexistent/farm"),
        ):
            with self.assertRaisesRegex(actorfarm.FarmEnded, words):
                call()
        for options in ({"words": None}, {"words": ["--env", "native/catch"], "socket": "x"}):
            with self.assertRaisesRegex(ValueError, "either"):
                _consumer.Consumer(**options)


class Sizes(unittest.TestCase):
    def test_lanes_are_shared_out_among_as_many_actors_as_there_are_cores(self):
        for arguments, expected in (
            ((64, 16, None, 2), (2, 2, 16)), ((64, 16, None, 3), (2, 2, 16)), ((64, 16, None, 8), (4, 1, 16)), ((48, 16, None, 2), (1, 3, 16)),
            ((64, None, None, 8), (8, 1, 8)), ((6, 6, None, 4), (3, 1, 2)), ((7, None, None, 4), (1, 1, 7)), ((64, 16, 4, 1), (4, 1, 16)),
            ((1, 1, None, 4), (1, 1, 1)), ((1024, 1, None, 2), (2, 512, 1)),
        ):
            self.assertEqual(pool.sizes(*arguments), expected, arguments)
        for arguments in ((64, 24), (0,), (64, 0), (64, 16, 3), (64, None, 3), (4, 8), (4, -2)):
            with self.assertRaisesRegex(ValueError, "must"):
                pool.sizes(*arguments)


class Pools(unittest.TestCase):
    def test_all_together_is_one_batch_in_order(self):
        """Actions in another order, and a dict of EnvPool's; episodes end, and age 0 follows."""
        with actorfarm.make("native/cartpole", 6, actors=3) as env:
            obs, info = env.reset()
            ends, age = 0, info["elapsed_step"]
            for n in range(60):
                order = np.random.default_rng(n).permutation(6)
                env.send({"action": order % 2, "env_id": order}) if n % 2 else env.send(np.arange(6) % 2)
                obs, reward, terminated, truncated, info = env.recv()
                self.assertEqual(info["env_id"].tolist(), [0, 1, 2, 3, 4, 5])
                self.assertTrue(((info["elapsed_step"] == age + 1) | (info["elapsed_step"] == 0)).all())
                self.assertTrue((reward == (info["elapsed_step"] > 0)).all())
                age, ends = np.where(terminated | truncated, -1, info["elapsed_step"]), ends + terminated.sum()
            self.assertGreater(ends, 6)

    def test_kept_observations_are_copied_out_of_a_full_ring_with_one_warning(self):
        """The environments play as they do without any that is kept."""
        played = []
        for options in ({}, {"keep": 200}, {"debug": True}, {"copy": True}):
            with actorfarm.make("native/cartpole", 4, 2, actors=1, seed=5, **options) as env, warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                kept, rng, seen = ([], []), [np.random.default_rng(lane) for lane in (0, 1)], ([], [])
                env.async_reset()
                while min(map(len, kept)) < 150:
                    obs, reward, _, _, info = env.recv()
                    lane = info["env_id"][0] // 2
                    kept[lane].append(obs)
                    seen[lane].append((obs.tolist(), reward.tolist(), info["elapsed_step"].tolist()))
                    env.send(rng[lane].integers(0, 2, 2))
                self.assertEqual([("keep=" in str(one.message), one.filename) for one in caught], [] if options else [(True, __file__)])
                self.assertEqual([obs.flags.writeable for obs in kept[0][::50]], [not {"debug", "copy"}.isdisjoint(options)] * len(kept[0][::50]))
            for lane in (0, 1):  # also of a closed one
                self.assertEqual([obs.tolist() for obs in kept[lane]], [one[0] for one in seen[lane]])
            with self.assertRaisesRegex(RuntimeError, "closed"):
                env.recv()
            played.append([one[:150] for one in seen])
        self.assertEqual(played[1:], played[:1] * 3)

    def test_frames_are_stacked(self):
        with actorfarm.make("native/breakout", 4, 2, actors=1, stack=3) as env:
            shape = env.observation_space.shape
            obs, info = env.reset()
            self.assertEqual((shape[0], obs.shape), (3, (2, *shape)))
            self.assertTrue((obs[:, 0] == obs[:, 2]).all())
            before = {}
            for _ in range(40):
                obs, _, _, _, info = env.step(np.ones(2, int))
                for row, i in enumerate(info["env_id"].tolist()):
                    if i in before and info["elapsed_step"][row]:
                        self.assertTrue((obs[row, :-1] == before[i][1:]).all())
                    before[i] = obs[row]

    def test_an_end_and_the_next_start_are_one_step_if_wanted(self):
        with actorfarm.make("native/cartpole", 3, autoreset="same_step") as env:
            env.reset()
            ends = 0
            for _ in range(60):
                obs, reward, terminated, truncated, info = env.step(np.zeros(3, int))
                self.assertEqual("final_obs" in info, terminated.any())
                if terminated.any():
                    ends += terminated.sum()
                    self.assertEqual((info["_final_obs"].tolist(), info["elapsed_step"][terminated].any()), (terminated.tolist(), False))
                    self.assertTrue((abs(info["final_obs"][terminated, 2]) > 0.2).all() and (abs(obs[terminated, 2]) < 0.06).all())
                    self.assertTrue((reward == 1).all())
            self.assertGreater(ends, 6)

    def test_resets_seeds_and_masks(self):
        with actorfarm.make("native/cartpole", 6, 3, actors=1) as env:
            first, again = {}, {}
            for seen in (first, again):
                env.async_reset(seed=7)
                for _ in range(2):
                    obs, _, _, _, info = env.recv()
                    self.assertFalse(info["elapsed_step"].any())
                    seen.update(zip(info["env_id"].tolist(), obs.tolist()))
                env.send(np.ones(6, int), np.arange(6))  # both: an answered lane may be ready again before the other one
            self.assertEqual((len(first), first), (6, again))
            self.assertEqual(len({tuple(obs) for obs in first.values()}), 6)
            obs, _, _, _, info = env.recv()
            mask = np.isin(np.arange(6), info["env_id"][[0, 2]])
            env.reset_mask(mask, seed=7)
            env.send([1, 1, 1])
            here = info["env_id"]
            while True:
                obs, _, _, _, info = env.recv()
                if info["env_id"][0] == here[0]:
                    break
                env.send([1, 1, 1])
            self.assertEqual(info["elapsed_step"].tolist(), [0, 2, 0])
            self.assertEqual(obs[[0, 2]].tolist(), [first[i] for i in info["env_id"][[0, 2]].tolist()])
            for mask, more, words in (
                ([True, False], {}, "6 bools"), (np.ones(6, bool), {}, "env_id [03] waits for no action"), (mask, {"seed": [1, 2]}, "one for each of 6"),
                (mask, {"seed": -1}, "0 or more"), (mask, {"numbers": {"wind": 1}}, "'wind' is not a number of these"),
            ):
                with self.assertRaisesRegex(ValueError, words):
                    env.reset_mask(mask, **more)
            env.send([1, 1, 1])  # what was refused has reset nothing
            while (seen := env.recv()[4])["env_id"][0] != here[0]:
                env.send([1, 1, 1])
            self.assertEqual(seen["elapsed_step"].tolist(), [1, 3, 1])
            self.assertFalse(env.reset(np.int64(3))[1]["elapsed_step"].any())

    def test_ended_episodes_wait_for_reset_mask_if_autoreset_is_disabled(self):
        with actorfarm.make("native/cartpole", 4, autoreset="disabled") as env:
            obs, info = env.reset(seed=1)
            ended = np.zeros(4, bool)
            while not ended.any():
                obs, _, terminated, truncated, info = env.step([0, 1, 0, 1])
                ended = terminated | truncated
            for _ in range(2):
                with self.assertRaisesRegex(gymnasium.error.ResetNeeded, "reset_mask"):
                    env.step([0, 0, 0, 0])
            new, info = env.reset_mask(ended, seed=1)
            self.assertEqual(((new == obs).all(1).tolist(), info["reset_mask"].tolist()), ((~ended).tolist(), ended.tolist()))
            self.assertEqual(env.step([0, 1, 0, 1])[4]["elapsed_step"][ended].tolist(), [1] * ended.sum())

    def test_continuous_actions_must_be_finite_and_options_may_differ(self):
        with actorfarm.make("gym/Pendulum-v1", 2, actors=1, options=[{"g": 1.0}, {"g": 20.0}]) as env:
            env.reset(seed=[5, 5])
            for actions, error, words in (
                ([[0.5], [np.nan]], ValueError, "environment 1 .env_id 1.: action nan"), ([[np.inf], [0]], ValueError, "env_id 0.: action inf"),
                ([[0], [1]], TypeError, "float32"), ([[0.5, 1.0]] * 2, ValueError, r"4 numbers, must be \[2, 1\]"),
            ):
                with self.assertRaisesRegex(error, words):
                    env.send(actions)
            for _ in range(20):
                obs, reward, _, _, _ = env.step(np.array([[0.5], [0.5]]))
            self.assertNotEqual(obs[0].tolist(), obs[1].tolist())

    def test_fields_have_names_and_some_are_infos(self):
        with actorfarm.make("native/juggle", 2, info=["wanted"]) as env:
            obs, info = env.reset()
            self.assertEqual((set(obs), obs["picture"].shape, info["wanted"].shape), ({"picture", "paddle"}, (2, 20, 20), (2, 1)))
            self.assertTrue(all(env.observation_space[name].contains(np.asarray(obs[name][0])) for name in obs))

    def test_a_farm_at_a_socket_outlives_its_consumers(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "lanes" / "farm"
            words = ["--env", "native/catch", "--actors", "1", "--lanes", "2", "--envs-per-actor", "4", "--quiet", "--socket", str(path)]
            farm = subprocess.Popen([program.path(), "serve", *words])
            self.addCleanup(farm.wait)
            self.addCleanup(farm.terminate)
            while not path.exists():
                self.assertIsNone(farm.poll())
                time.sleep(0.01)
            for n in range(3):
                with actorfarm.make(socket=path, batch_size=2) as env:
                    self.assertEqual(env.num_envs, 4)
                    self.assertFalse(n == 2 and env.reset()[1]["elapsed_step"].any())
                    for _ in range(2):
                        env.send(np.ones(2, int), env.recv()[4]["env_id"])
            with self.assertRaisesRegex(ValueError, "this farm's is next_step"):
                actorfarm.make(socket=path, autoreset="same_step")
            self.assertIsNone(farm.poll())

    def test_wrong_arguments_are_refused(self):
        for options, words in (
            ({"autoreset": "never"}, "autoreset"), ({"batch_size": 3}, "batch_size"), ({"info": ["lives"]}, "no field 'lives'"),
            ({"options": [{}, {}]}, "one dict for each"), ({"num_envs": 0}, "num_envs"), ({"env": [print, print]}, "one for each of 4"), ({"stack": 0}, "stack"), ({"info": "paddle"}, "no field 'paddle'"), ({"batch_size": 2, "autoreset": "disabled"}, "together"),
        ):
            with self.assertRaisesRegex(ValueError, words):
                actorfarm.make(**{"env": "native/catch", "num_envs": 4, **options})


if __name__ == "__main__":
    unittest.main()
