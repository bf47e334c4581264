"""The farm behind Stable-Baselines3 and TorchRL, and Gymnasium's vector interface at length."""

import unittest

import gymnasium
import numpy as np
from actorfarm import sb3
from actorfarm import torchrl as ours
from gymnasium.vector import AutoresetMode
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv
from torchrl.collectors import Collector
from torchrl.envs.utils import check_env_specs

import test_vector_env


class Long(test_vector_env.Equality):
    STEPS = 10_000

    def test_pendulum(self):
        for mode in AutoresetMode:
            self.compare("Pendulum-v1", mode, self.STEPS)


class StableBaselines3(unittest.TestCase):
    def test_equals_its_own(self):
        made, theirs = sb3.VecEnv("gym/CartPole-v1", 4), DummyVecEnv([lambda: gymnasium.make("CartPole-v1")] * 4)
        self.addCleanup(made.close)
        rng = np.random.default_rng(0)
        for n in range(2000):
            if n % 500 == 0:
                self.assertEqual(made.seed(n), theirs.seed(n))
                np.testing.assert_array_equal(made.reset(), theirs.reset())
            actions = rng.integers(0, 2, 4)
            (*got, infos), (*expected, their_infos) = made.step(actions), theirs.step(actions)
            [np.testing.assert_array_equal(a, b) for a, b in zip(got, expected, strict=True)]
            for info, their_info in zip(infos, their_infos, strict=True):
                self.assertEqual(info.keys(), their_info.keys())
                for key, value in info.items():
                    np.testing.assert_array_equal(value, their_info[key])

    def test_refusals(self):
        made = sb3.VecEnv("native/cartpole", 2)
        self.addCleanup(made.close)
        self.assertEqual(made.env_is_wrapped(gymnasium.Wrapper), [False, False])
        self.assertFalse(made.has_attr("gravity"))
        with self.assertRaisesRegex(AttributeError, r"env_method\('fly'\): the environments run in other processes"):
            made.env_method("fly")

    def test_ppo_learns_cart_pole(self):
        env = sb3.make_vec_env("gym/CartPole-v1", 8, seed=1)
        self.addCleanup(env.close)
        model = PPO("MlpPolicy", env, n_steps=32, batch_size=256, gae_lambda=0.8, gamma=0.98, n_epochs=20, ent_coef=0.0,
                    learning_rate=lambda left: 0.001 * left, clip_range=lambda left: 0.2 * left, seed=1, device="cpu")
        model.learn(100_000)
        mean, _ = evaluate_policy(model, env, 24)
        print(f"PPO on CartPole: return {mean:.1f} after 100,000 steps")
        self.assertGreater(mean, 400)


class TorchRL(unittest.TestCase):
    def test_specs_and_rollouts(self):
        for name in ("gym/CartPole-v1", "gym/Pendulum-v1"):
            env = ours.Env(name, 4)
            self.addCleanup(env.close, raise_if_closed=False)
            check_env_specs(env)
            env.set_seed(3)
            steps = env.rollout(250, break_when_any_done=False)
            after, next, done = steps["observation"][:, 1:], steps["next", "observation"][:, :-1], steps["next", "done"][:, :-1, 0]
            self.assertTrue(done.any())
            self.assertTrue((next == after)[~done].all())
            if "CartPole" in name:
                self.assertTrue((after[done].abs() <= 0.05).all() and not (next[done].abs() <= 0.05).all(-1).any())

    def test_collector(self):
        collector = Collector(ours.Env("native/cartpole", 4), None, frames_per_batch=80, total_frames=400)
        self.assertEqual([batch.shape for batch in collector], [(4, 20)] * 5)
        collector.shutdown()


if __name__ == "__main__":
    unittest.main()
