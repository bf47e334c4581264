"""Windows of collect() against what the lanes held step by step, and the targets of training against their papers."""

import itertools
import os
import pathlib
import signal
import sys
import unittest.mock
import warnings

import actorfarm
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tools"))
try:
    from actorfarm import rollout
    from actorfarm.rollout import ACTION, FIRST, FLAGS, LAST, OBS, REWARD, TERMINATED, TRUNCATED
except ImportError as missing:
    raise unittest.SkipTest(f"the build has no actorfarm._consumer: {missing}") from missing
from running import children  # noqa: E402


class Noted:
    """A consumer that copies what each step holds as it comes. Lanes in `away` seem to have left."""

    def __init__(self, consumer):
        self.real, self.log, self.last, self.calls, self.away = consumer, {}, {}, [], set()

    def __getattr__(self, name):
        return getattr(self.real, name)

    def lanes(self):
        return np.array([lane for lane in self.real.lanes() if lane not in self.away])

    def recv(self, least, most, timeout):
        lanes, steps = self.real.recv(least, most, 0.05)
        for lane, step in zip(lanes.tolist(), steps.tolist(), strict=True):
            self.log[lane, step] = {field: self.real.copy(lane, step, field) for field in (OBS, REWARD, FLAGS)}
            self.last[lane] = step
        here = [lane not in self.away for lane in lanes]
        return lanes[here], steps[here]

    def send(self, lanes, actions):
        self.calls.append(len(lanes))
        for lane, action in zip(lanes, actions.reshape(len(lanes), -1), strict=True):
            self.log[lane, self.last[lane]][ACTION] = action
        self.real.send(lanes, actions)


def policy(obs, first, state):
    """Acts by the observation; the state counts an episode's steps."""
    assert (state[0][first] == 0).all()
    now = obs if obs.ndim == 2 else obs[:, -1]
    return (now[:, 0] > 0.01).astype(np.int64), {"now": now, "angle": now[:, 2]}, (state[0] + 1, state[1])


STATE = (np.float32(0), np.zeros(3))


class Windows(unittest.TestCase):
    def make(self, stack=1, num_envs=6, steps=12, env="native/cartpole", **options):
        env = actorfarm.make(env, num_envs, 2, seed=stack, stack=stack, steps=steps, **options)
        self.addCleanup(env.close)
        env.consumer = Noted(env.consumer)
        return env

    def stacked(self, log, lane, step, i, stack):
        """The frames of a step, the oldest first."""
        before = step - (0 if log[lane, step][FLAGS][i] & FIRST else 1)
        return [*(self.stacked(log, lane, before, i, stack - 1) if stack > 1 else ()), log[lane, step][OBS][i]]

    def check(self, env, window):
        log, lane, start, stack, length = env.consumer.log, window.lane, window.start, window.stack, 4
        steps = [log[lane, start + t] for t in range(length + 1)]
        rows = np.array([[self.stacked(log, lane, start + t, i, stack) for i in (0, 1)] for t in range(length + 1)])
        rows = rows if stack > 1 else rows[:, :, 0]
        flags, reward = (np.array([step[field] for step in steps]) for field in (FLAGS, REWARD))
        now, then = flags[:-1], flags[1:]
        expected = {
            "obs": [step[OBS] for step in steps[:-1]], "last_obs": rows[-1], "action": [step[ACTION] for step in steps[:-1]],
            "reward": reward[1:], "first": now & FIRST != 0, "last_first": then[-1] & FIRST != 0,
            "valid": (now & LAST == 0) & (then & FIRST == 0), "terminated": then & TERMINATED != 0, "truncated": then & TRUNCATED != 0,
        }  # fmt: skip
        for name, values in expected.items():
            np.testing.assert_array_equal(getattr(window, name), values, name)
        seen = [next(back for back in itertools.count() if log[lane, start - back][FLAGS][i] & FIRST) for i in (0, 1)]
        found = (*window.extras.values(), window.state[0], actorfarm.gather([window]))
        for found, values in zip(found, (window.obs, window.obs[..., 2], seen, np.concatenate(rows[:-1])), strict=True):
            np.testing.assert_array_equal(found, values)

    def test_windows_are_what_was_played_whatever_the_order_of_lanes(self):
        for stack, sync, most in ((1, False, 0), (3, True, 2)):
            env, starts = self.make(stack), {}
            for n, window in enumerate(itertools.islice(env.collect(policy, 4, max=most, sync=sync, state=STATE), 90)):
                if n == 30:  # the episodes of its lanes are abandoned
                    os.kill(children(env.consumer.pid)["actor 0"], signal.SIGKILL)
                self.assertEqual(window.start, starts.get(window.lane, -4) + 4)
                starts[window.lane] = window.start
                self.check(env, window)
                self.assertEqual(window.env_ids.tolist(), [2 * window.lane, 2 * window.lane + 1])
            self.assertTrue(not sync or len(set(starts.values())) == 1, starts)
            self.assertLessEqual(max(env.consumer.calls), most or 3)

    def test_gathers_rows_of_several_windows(self):
        windows = list(itertools.islice(self.make(stack=3).collect(policy, 4, sync=True, state=STATE), 3))
        rows, every = [20, 3, 7, 7, 12], np.stack([actorfarm.gather([window]).reshape(4, 2, 3, 4) for window in windows], 1)
        np.testing.assert_array_equal(actorfarm.gather(windows, rows), every.reshape(24, 3, 4)[rows])

    def test_a_kept_window_stays_as_it_is_and_its_lane_waits(self):
        env = self.make(num_envs=2, actors=1)
        before = (kept := next(windows := env.collect(policy, 4, state=STATE)).obs).copy()
        self.assertEqual(next(windows).start, 4)
        with unittest.mock.patch.object(rollout, "STALL_S", 0), warnings.catch_warnings(), self.assertRaisesRegex(UserWarning, "lanes .0. wait"):
            warnings.simplefilter("error")
            next(windows)
        np.testing.assert_array_equal(kept, before)

    def test_goes_on_without_a_lane_that_leaves(self):
        for sync in (False, True):
            env = self.make()
            next(windows := env.collect(policy, 4, sync=sync, state=STATE))
            env.consumer.away.add(1)
            self.assertGreater(len({window.start for window in itertools.islice(windows, 20) if window.lane == 0}), 5)

    def test_a_loop_continues_where_another_one_was_left(self):
        env = self.make(stack=2)
        for _ in range(3):
            for window in itertools.islice(env.collect(policy, 4, sync=True, state=STATE), 2):
                np.testing.assert_array_equal(window.obs, [env.consumer.log[window.lane, window.start + t][OBS] for t in range(4)])
            del window
        self.assertEqual(env.reset()[1]["elapsed_step"].tolist(), [0, 0])

    def test_refuses_lanes_that_windows_do_not_fit(self):
        for length in (5, 6, 1):
            self.assertRaisesRegex(ValueError, "windows of", self.make(stack=2, num_envs=2).collect, policy, length)

    def test_jax_policies_see_powers_of_two(self):
        seen, env = [], self.make()
        padded = rollout.on_jax(lambda *inputs: seen.append(len(inputs[0])) or policy(*inputs))
        for window in itertools.islice(env.collect(padded, 4, min=3, state=STATE), 9):
            self.check(env, window)
        self.assertTrue({8} <= set(seen) <= {2, 4, 8}, seen)


class Targets(unittest.TestCase):
    """Against sums written as in the papers, over episodes that end, are cut and are abandoned anywhere."""

    def setUp(self):
        rng = np.random.default_rng(0)
        self.reward, self.log_ratio = rng.normal(size=(2, 24, 7)).astype(np.float32)
        self.value, self.last_value = rng.normal(size=(24, 7)).astype(np.float32), rng.normal(size=7).astype(np.float32)
        ends, self.valid = rng.random((24, 7)) < 0.2, rng.random((24, 7)) > 0.2
        self.valid[1:] &= ~ends[:-1]
        self.terminated = ends & self.valid
        self.next_value = np.concatenate([self.value[1:], self.last_value[None]])
        self.given = self.value, self.last_value, self.terminated, self.valid

    def path(self, t, env):
        return itertools.takewhile(lambda k: self.valid[k, env], range(t, len(self.valid)))

    def test_gae_is_equation_16_of_its_paper(self):
        advantage, returns = actorfarm.gae(self.reward, *self.given, discount=0.9, lam=0.8)
        delta = self.reward + 0.9 * ~self.terminated * self.next_value - self.value
        for t, env in np.ndindex(24, 7):
            self.assertAlmostEqual(advantage[t, env], sum(0.72 ** (k - t) * delta[k, env] for k in self.path(t, env)), 5)
        np.testing.assert_allclose(returns, advantage + self.value, 1e-5)

    def test_vtrace_is_equation_1_of_its_paper(self):
        bars = {"rho_clip": 0.9, "c_clip": 0.8, "pg_rho_clip": 1.1}
        vs, advantage = actorfarm.vtrace(self.log_ratio, self.reward, *self.given, discount=0.9, **bars)
        ratio, discount = np.exp(self.log_ratio), 0.9 * ~self.terminated
        rho, c = np.minimum(0.9, ratio), np.minimum(0.8, ratio)
        delta = rho * (self.reward + discount * self.next_value - self.value)
        expected = self.value.copy()
        for t, env in np.ndindex(24, 7):
            for k in self.path(t, env):
                expected[t, env] += 0.9 ** (k - t) * np.prod(c[t:k, env]) * delta[k, env]
        np.testing.assert_allclose(vs, expected, 1e-4, 1e-5)
        after = np.concatenate([expected[1:], self.last_value[None]])
        gain = np.minimum(1.1, ratio) * (self.reward + discount * after - self.value)
        np.testing.assert_allclose(advantage, gain * self.valid, 1e-4, 1e-5)

    def test_refuses_arrays_of_other_sizes_and_types(self):
        for name, value, text in (("last_value", self.last_value[:6], "last_value: 6 values, must be 7"), ("terminated", self.reward, "bool")):
            given = {"value": self.value, "last_value": self.last_value, "terminated": self.terminated, name: value}
            self.assertRaisesRegex((TypeError, ValueError), text, actorfarm.gae, self.reward, **given)


if __name__ == "__main__":
    unittest.main()
