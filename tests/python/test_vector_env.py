"""Environments given as Python objects, and the farm behind Gymnasium's interfaces."""

import os
import pathlib
import signal
import sys
import tempfile
import threading
import unittest

import gymnasium
import numpy as np
from actorfarm import gym_actor, passed
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

import lanes

try:
    from actorfarm import vector_env
except ImportError as missing:
    raise unittest.SkipTest(f"the build has no actorfarm._consumer: {missing}") from missing

OWN = """import gymnasium

class Own(gymnasium.Wrapper):
    def __init__(self, name="CartPole-v1", fault=None):
        super().__init__(gymnasium.make(name))
        if fault:
            raise OSError(fault)
"""


class Unloadable:
    def __call__(self):
        pass

    def __reduce__(self):
        return eval, ("1 / 0",)


def fail():
    raise RuntimeError("no such level: 7")


class Passed(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        pathlib.Path(self.folder.name, "own_module.py").write_text(OWN)
        sys.path.append(self.folder.name)
        self.addCleanup(sys.path.remove, self.folder.name)
        self.own = __import__("own_module").Own
        self.addCleanup(sys.modules.pop, "own_module")

    def give(self, env, **options):
        """(name, options) for an actor."""
        name, given, fd = passed.give(env)
        self.addCleanup(os.close, fd)
        os.set_inheritable(fd, True)
        return name.removeprefix("gym/"), ["{}={}".format(*pair) for pair in {**given, **options}.items()]

    def test_callables_and_classes_play(self):
        """In a process that does not import this file: by value, and by name from the user's folders. Options are arguments."""
        for env, options in ((lambda: gymnasium.make("CartPole-v1"), {}), ([self.own], {"name": "CartPole-v0"})):
            name, words = self.give(env, **options)
            result = lanes.run_actor("gym_actor", "--env", name, *(f"--option={word}" for word in words), "--spec")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn('"dims": [4]', result.stdout)

    def test_errors_name_their_cause_and_place(self):
        for env, options, said in (
            (fail, {}, r"RuntimeError: no such level: 7 \(.*test_vector_env.py:\d+, fail\)"),
            (self.own, {"fault": "no licence"}, r"OSError: no licence \(own_module.py:7, __init__\)"),
            (self.own, {"colour": "red"}, "unexpected keyword argument 'colour'"),
            (Unloadable(), {}, "cannot be unpickled: ZeroDivisionError: division by zero"),
            (lambda: 5, {}, "must inherit from the gymnasium.Env class"),
        ):
            with self.assertRaisesRegex(ValueError, said):
                gym_actor.Gym.prepare(*self.give(env, **options), "count")
        with self.assertRaisesRegex(ValueError, "its descriptor has not been passed on"):
            gym_actor.Gym.prepare(passed.NAME.removeprefix("gym/"), ["memory=env-0"], "count")

    def test_what_cannot_be_given_is_refused(self):
        lock = threading.Lock()
        for env, listen, said in (
            (3, False, "must be an environment's name, a callable or class"),
            (lambda: lock, False, "cannot be pickled .*; open files, locks and connections inside it"),
            (type("Nowhere", (), {}), True, "must be a class of a module"),
            (lambda: None, True, "must be a class of a module"),
            ([self.own, self.own], True, "a list is for this machine's actors only"),
        ):
            with self.assertRaisesRegex((TypeError, ValueError), said):
                passed.give(env, listen=listen)
        name, options, fd = passed.give(self.own, listen=True)
        self.addCleanup(os.close, fd)
        self.assertEqual(options["entry"], "own_module:Own")
        self.assertEqual(gym_actor.Gym.prepare(name.removeprefix("gym/"), [f"entry={options['entry']}"], "count").spec()["action"]["sizes"], [2])


class Shown(gymnasium.Env):
    """Observes its number in a list, a level that resets set, its seed's first draw, and the step."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, number=0):
        self.seen = np.array([number, 0, 0, 0], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seen[1:] = (options or {}).get("level", self.seen[1]), self.np_random.random(), 0
        return self.seen.copy(), {}

    def step(self, action):
        self.seen[3] += 1
        return self.seen.copy(), 1.0, self.seen[3] == 3, False, {}


class Equality(unittest.TestCase):
    """Against SyncVectorEnv, with the same seeds and actions. An end that is both is terminated here."""

    STEPS = 1200  # of 4 environments; tests/python/more_adapters.py takes 10,000

    def compare(self, name, mode, steps, **options):
        ours = vector_env.vector(f"gym/{name}", 4, autoreset_mode=mode, options=options)
        self.addCleanup(ours.close)
        theirs = SyncVectorEnv([lambda: gymnasium.make(name, **options)] * 4, autoreset_mode=mode)
        self.assertEqual(ours.metadata["autoreset_mode"], mode)
        rng, ends, equal = np.random.default_rng(1), np.zeros(2, int), np.testing.assert_array_equal
        theirs.action_space.seed(1)
        equal(ours.reset(seed=7)[0], theirs.reset(seed=7)[0])
        for n in range(steps):
            actions = theirs.action_space.sample()
            (obs, rewards, *ended, info), (their_obs, their_rewards, *their_ends, their_info) = ours.step(actions), theirs.step(actions)
            equal(obs, their_obs, f"step {n}")
            equal(rewards, their_rewards.astype(np.float32))
            equal(ended, [their_ends[0], their_ends[1] & ~their_ends[0]])
            self.assertEqual(list(info), list(their_info))
            done = ended[0] | ended[1]
            ends += np.sum(ended, axis=1)
            if done.any() and mode is AutoresetMode.SAME_STEP:
                equal(info["_final_obs"], their_info["_final_obs"])
                equal(np.stack(info["final_obs"][done]), np.stack(their_info["final_obs"][done]))
            elif mode is AutoresetMode.DISABLED and (done.any() or n % 50 == 49):
                seed, mask = (None, 9 + n)[n % 2], done | (rng.random(4) < 0.2) | (np.arange(4) == n % 4)
                masked = [env.reset(seed=seed, options={"reset_mask": mask.copy()})[0] for env in (ours, theirs)]
                equal(*masked)
            elif n % 1000 == 999:
                equal(ours.reset(seed=n)[0], theirs.reset(seed=n)[0])
        return ends

    def test_cart_pole_in_all_modes(self):
        """Its poles fall, and a limit truncates."""
        for mode in AutoresetMode:
            with self.subTest(mode=mode):
                self.assertTrue((self.compare("CartPole-v1", mode, self.STEPS, max_episode_steps=30) > 9).all())

    def test_pendulum(self):
        """Continuous actions, truncated episodes."""
        self.assertGreater(self.compare("Pendulum-v1", AutoresetMode.SAME_STEP, 420)[1], 7)


class Interfaces(unittest.TestCase):
    def make(self, *arguments, **options):
        made = vector_env.vector(*arguments, **options)
        self.addCleanup(made.close)
        return made

    def test_one_environment_passes_gymnasiums_checker(self):
        env = vector_env.env("native/cartpole")
        self.addCleanup(env.close)
        check_env(env, skip_render_check=True)

    def test_a_list_of_callables_with_numbers(self):
        """Environment i is the i-th of the list, whatever actor and lane it has; a reset gives it a number and a seed."""
        env = self.make([lambda i=i: Shown(i) for i in range(8)], 8, actors=2, batch_size=2, numbers=["level"])
        draws = [np.float32(gymnasium.utils.seeding.np_random(40 + i)[0].random()) for i in range(8)]
        seen, _ = env.reset(seed=40, options={"level": np.arange(8) * 2})
        np.testing.assert_array_equal(seen.T, [np.arange(8), np.arange(8) * 2, draws, np.zeros(8)])
        pair = np.arange(8) // 2 == 1
        seen, _ = env.reset(seed=40, options={"level": 5, "reset_mask": pair})
        np.testing.assert_array_equal(seen[:, 1], np.where(pair, 5, np.arange(8) * 2))
        with self.assertRaisesRegex(ValueError, "environments 4 to 5 are one lane"):
            env.reset(options={"reset_mask": np.arange(8) == 4})
        with self.assertRaisesRegex(ValueError, "'gravity' is not a number of these environments .level;"):
            env.reset(options={"gravity": 1})

    def test_wrappers_work(self):
        """Catch has 9 steps, the last of which pays."""
        env = RecordEpisodeStatistics(self.make("native/catch", 4))
        env.reset(seed=1)
        for _ in range(19):
            _, rewards, *_, info = env.step(np.zeros(4, int))
        self.assertEqual(list(env.length_queue), [9] * 8)
        np.testing.assert_array_equal(info["episode"]["r"], rewards)

    def test_a_killed_actor_truncates_its_episodes(self):
        env = self.make("native/cartpole", 4, actors=2, autoreset_mode="same_step")
        env.reset(seed=1)
        farm = env.pool.consumer.pid
        children = pathlib.Path(f"/proc/{farm}/task/{farm}/children").read_text().split()
        actors = {pathlib.Path(f"/proc/{pid}/comm").read_text().strip(): int(pid) for pid in children}
        os.kill(actors["actor 1"], signal.SIGKILL)
        info = {}
        while "abandoned" not in info:
            *_, truncated, info = env.step(np.zeros(4, int))
        self.assertEqual(info["abandoned"].tolist(), [False, False, True, True])
        self.assertEqual([last.shape for last in info["final_obs"][2:]], [(4,)] * 2)
        self.assertTrue(truncated[2:].all())
        env.step(np.zeros(4, int))


if __name__ == "__main__":
    unittest.main()
