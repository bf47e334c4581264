"""The MuJoCo plug-in. Against Gymnasium, step by step: every task (v5 500 steps, the slow humanoids 200; v4, with the same
physics, 300) and every option of Gymnasium's constructors. Alone: refusals, broken simulations, shared models."""

import ctypes
import functools
import inspect
import os
import pathlib
import tempfile
import unittest
import warnings
from unittest import mock

import numpy as np
from plugin_api import BUILD, CONTINUOUS, F32, GAME_END, TERMINATED, TRUNCATED, Environment, create, open_plugin

os.chdir(tempfile.mkdtemp())  # Gymnasium's MuJoCo writes MUJOCO_LOG.TXT into the working directory
try:
    import gymnasium
    import mujoco  # noqa: F401
except ImportError as error:
    raise unittest.SkipTest(f"the Python environment lacks gymnasium with mujoco: {error} (make deps)")
warnings.simplefilter("ignore", DeprecationWarning)  # of v4

PLUGIN = os.path.join(BUILD, "envs", "mujoco.so")
if not os.path.exists(PLUGIN):
    raise unittest.SkipTest(f"{PLUGIN} does not exist: it needs MuJoCo and Gymnasium in build/venv (make deps, then make)")
LIBRARY, APIS = open_plugin(PLUGIN)
ROBOTS = ("HalfCheetah", "Hopper", "Walker2d", "Ant", "Humanoid", "HumanoidStandup", "Swimmer", "Reacher", "Pusher", "InvertedPendulum",
          "InvertedDoublePendulum")
TASKS = [f"{robot}-v{version}" for robot in ROBOTS for version in (4, 5) if (robot, version) != ("Pusher", 4)]


class Ours(Environment):
    def __init__(self, task, seed=0, **options):
        super().__init__(APIS[f"mujoco/{task}"], seed, **options)

    def set_state(self, qpos, qvel):
        qpos, qvel = np.array(qpos, np.float64), np.array(qvel, np.float64)
        state = [ctypes.c_void_p(address) for address in (self.env, qpos.ctypes.data, qvel.ctypes.data)]
        return self.observe(lambda fields: LIBRARY.farm_mujoco_set_state(*state, fields))[1]


class AgainstGymnasium(unittest.TestCase):
    def check_equal(self, mine, theirs, where):
        # The same library computes both: at most the last bit of a sine may differ, before rounding to f32.
        theirs = theirs.astype(np.float32)
        if not np.array_equal(mine, theirs):
            np.testing.assert_allclose(mine, theirs, rtol=2e-7, atol=1e-12, err_msg=where)

    def compare(self, task, steps, seed, options=None, make_options=None):
        """Plays both with the same random actions; returns the number of episodes that ended in each way."""
        options, ends = options or {}, {"terminated": 0, "truncated": 0}
        theirs = gymnasium.make(task, disable_env_checker=True, **options, **(make_options or {}))
        mine = Ours(task, **options, **(make_options or {}))
        data, rng = theirs.unwrapped.data, np.random.default_rng(seed)
        space = theirs.action_space
        self.assertEqual(mine.shape, theirs.observation_space.shape, f"{task} {options}")
        spec = mine.spec
        self.assertEqual((spec.obs_count, spec.obs[0].dtype, spec.action.kind, spec.frames_per_step), (1, F32, CONTINUOUS, 1))
        self.assertEqual((mine.spec.action.dims,), space.shape)
        np.testing.assert_array_equal(mine.spec.action.low[: space.shape[0]], space.low)
        np.testing.assert_array_equal(mine.spec.action.high[: space.shape[0]], space.high)
        starts, episode = True, 0
        for step in range(steps):
            where = f"{task} {options} step {step}"
            if starts:
                their_obs, _ = theirs.reset(seed=seed + episode)
                episode += 1
                self.check_equal(mine.set_state(data.qpos, data.qvel), their_obs, where)
            action = rng.uniform(1.2 * space.low, 1.2 * space.high).astype(np.float32)
            their_obs, their_reward, terminated, truncated, _ = theirs.step(action)
            obs, reward, flags = mine.step(action)
            self.check_equal(obs, their_obs, where)
            self.assertAlmostEqual(reward, float(their_reward), delta=1e-6 * max(1, abs(their_reward)), msg=where)
            self.assertEqual((bool(flags & TERMINATED), bool(flags & TRUNCATED)), (bool(terminated), bool(truncated)), where)
            starts = terminated or truncated
            self.assertEqual(bool(flags & GAME_END), starts)
            ends["terminated"] += bool(terminated)
            ends["truncated"] += bool(truncated)
        theirs.close()
        mine.close()
        return ends

    def test_every_task(self):
        falls = ("Hopper", "Walker2d", "Ant", "Humanoid-", "Inverted")
        for number, task in enumerate(TASKS):
            with self.subTest(task):
                steps = 200 if task.startswith("Humanoid") else 300
                ends = self.compare(task, steps, seed=number, make_options={"max_episode_steps": steps // 2})
                self.assertGreater(ends["terminated"] if task.startswith(falls) else ends["truncated"], 0)

    def test_each_task_has_the_step_limit_of_its_registration(self):
        for task in TASKS:
            if task.startswith("Humanoid") and task.endswith("v4"):
                continue  # slow
            mine, step = Ours(task, **({"frame_skip": 1} if task.endswith("v5") else {})), 1
            mine.reset()
            while not mine.step(np.zeros(mine.spec.action.dims))[2] & TRUNCATED:
                step += 1
            mine.close()
            self.assertEqual(step, gymnasium.spec(task).max_episode_steps, task)

    def test_the_same_tasks_and_no_others(self):
        self.assertEqual(set(APIS), {f"mujoco/{task}" for task in TASKS})

    def test_every_option_of_every_constructor(self):
        beyond = {"xml_file", "main_body", "default_camera_config", "uph_cost_weight", "kwargs", "self"}
        tried = 0
        for task in TASKS:
            steps = 15 if task.startswith("Humanoid") else 40
            parameters = inspect.signature(constructor(task)).parameters
            for name, parameter in parameters.items():
                if name in beyond:
                    continue
                with self.subTest(f"{task} {name}"):
                    self.compare(task, steps, seed=tried, options={name: changed(name, parameter.default)})
                    tried += 1
        self.assertGreater(tried, 100)

    def test_options_together(self):
        # The episode continues after it would have ended.
        unhealthy = {"terminate_when_unhealthy": False, "exclude_current_positions_from_observation": False}
        for task in TASKS:
            if task.startswith(("Hopper", "Walker2d", "Ant", "Humanoid-")):
                self.compare(task, 60 if task.startswith("Humanoid") else 200, seed=3, options=unhealthy)
        self.compare("Ant-v4", 200, seed=4, options={"use_contact_forces": True, "contact_force_range": (-20.0, 3.0), "contact_cost_weight": 0.1})
        self.compare("Ant-v5", 60, seed=4, options={"main_body": 5})
        self.compare("Ant-v5", 60, seed=4, options={"main_body": "aux_1"})
        self.compare("Walker2d-v5", 60, seed=5, options={"xml_file": "walker2d.xml"})

    def test_the_step_limit_can_be_changed(self):
        for limit in (1, 7):
            self.assertEqual(self.compare("Swimmer-v5", 21, seed=1, make_options={"max_episode_steps": limit})["truncated"], 21 // limit)


def constructor(task):
    """The constructor behind an id."""
    module, name = gymnasium.spec(task).entry_point.split(":")
    return getattr(__import__(module, fromlist=[name]), name).__init__


def changed(name, default):
    """A value that changes the outcome."""
    if isinstance(default, bool):
        return not default
    if isinstance(default, tuple):
        low, high = (max(-50.0, default[0]), min(50.0, default[1]))
        return (low + 0.1 * (high - low), high - 0.3 * (high - low))
    return default + 2 if name == "frame_skip" else default * 1.7


class Resets(unittest.TestCase):
    """The noise of resets has Gymnasium's distribution."""

    def test_distributions(self):
        for task in TASKS:
            if task.endswith("v4") or task.startswith("Pusher"):
                with self.subTest(task):
                    self.compare_moments(task, 1000)

    def compare_moments(self, task, resets):
        runs = not task.startswith(("Reacher", "Pusher", "Inverted", "HumanoidStandup"))
        options = {"exclude_current_positions_from_observation": False} if runs else {}
        theirs, mine = gymnasium.make(task, **options), Ours(task, seed=11, **options)
        first, second = [], []
        for i in range(resets):
            first.append(theirs.reset(seed=None if i else 5)[0])
            second.append(mine.reset())
        theirs.close()
        mine.close()
        first, second = np.array(first), np.array(second, np.float64)
        spread = first.std(axis=0)
        constant = spread < 1e-9 * (1 + np.abs(first.mean(axis=0)))
        np.testing.assert_allclose(second[:, constant], first[:, constant], atol=1e-6, rtol=1e-6)
        a, b, spread = first[:, ~constant], second[:, ~constant], spread[~constant]
        error = spread * np.sqrt(2 / resets)
        self.assertTrue((np.abs(a.mean(axis=0) - b.mean(axis=0)) < 5 * error).all(), "means")
        self.assertTrue((np.abs(np.log(b.std(axis=0) / spread)) < 0.12).all(), f"spreads {b.std(axis=0) / spread}")
        for sides in (np.min, np.max):  # a normal distribution has longer tails than a uniform one
            self.assertTrue((np.abs(sides(a, axis=0) - sides(b, axis=0)) < 2.0 * spread).all(), "ends")
        self.assertLess(np.abs(np.corrcoef(b.T[: min(len(b.T), 12)]) - np.corrcoef(a.T[: min(len(a.T), 12)])).max(), 0.15)


class Alone(unittest.TestCase):
    def test_refuses_options_and_models_with_a_message(self):
        number, count, two, switch = "is a number, not", "is a whole number from 1 to 1000000000, not", 'is two numbers "low,high", not', "is true or false, not"
        for task, key, value, message in (
            ("Hopper-v4", "frame_skip", 2, 'mujoco/Hopper-v4 has no option "frame_skip"; it has max_episode_steps'),
            *(
                (task, key, 1, f'mujoco/{task} has no option "{key}"; it has max_episode_steps')
                for task, key in (
                    ("Hopper-v5", "use_contact_forces"), ("Reacher-v4", "reward_dist_weight"), ("HalfCheetah-v5", "healthy_reward"),
                    ("Humanoid-v4", "contact_cost_weight"), ("Ant-v4", "render_mode"), ("InvertedPendulum-v4", "reset_noise_scale"),
                    ("Ant-v4", "include_cfrc_ext_in_observation"),
                )
            ),
            ("Ant-v5", "gravity", 9.81, 'no option "gravity"'),
            ("Ant-v5", "gravity", 9.81, ", ..."),  # more options than the message can name
            ("Hopper-v5", "frame_skip", 0, f'"frame_skip" {count} "0"'),
            ("Hopper-v5", "frame_skip", 2.5, count),
            ("Hopper-v5", "max_episode_steps", -1, count),
            ("Hopper-v5", "ctrl_cost_weight", "nan", f'{number} "nan"'),
            ("Hopper-v5", "ctrl_cost_weight", "1x", f'{number} "1x"'),
            ("Hopper-v5", "ctrl_cost_weight", "", f'{number} ""'),
            ("Hopper-v5", "healthy_z_range", "1", f'{two} "1"'),
            ("Hopper-v5", "healthy_z_range", "2,1", two),
            ("Hopper-v5", "healthy_z_range", "1,2,3", two),
            ("Hopper-v5", "terminate_when_unhealthy", "perhaps", f'{switch} "perhaps"'),
            ("Hopper-v5", "xml_file", "nowhere.xml", "nowhere.xml (FARM_MUJOCO_ASSETS names the folder)"),
            ("Hopper-v5", "xml_file", __file__, f"cannot load the model {__file__}"),
            ("Hopper-v5", "xml_file", "inverted_pendulum.xml", "it needs 3 positions, 3 velocities"),
            ("Pusher-v5", "xml_file", "ant.xml", 'the model ant.xml has no body "tips_arm"'),
            ("Ant-v5", "main_body", "head", 'has no body "head"'),
            ("Ant-v5", "main_body", 14, 'has no body "14"'),
            ("Ant-v5", "main_body", -1, 'has no body "-1"'),
        ):
            with self.subTest(f"{task} {key}={value}"), self.assertRaises(ValueError) as refusal:
                create(APIS[f"mujoco/{task}"], **{key: value})
            self.assertIn(message, str(refusal.exception))

    def play(self, env, steps=200):
        """All observations and rewards of a run."""
        seen = [env.reset()]
        for _ in range(steps):
            observation, reward, flags = env.step([0.3, -0.2, 0.1][: env.spec.action.dims])
            seen += [observation, np.array([reward])]
            if flags:
                seen.append(env.reset())
        return np.concatenate(seen).tolist()

    def test_repeats_itself_under_a_seed(self):
        first, second, other = (Ours("Hopper-v4", seed) for seed in (7, 7, 8))
        run = self.play(first)
        self.assertEqual(run, self.play(second))
        self.assertNotEqual(run, self.play(other))
        self.assertNotEqual(run, self.play(first))  # episodes differ

    def test_reports_a_broken_simulation_as_nan_until_the_reset(self):
        env = Ours("Hopper-v4")  # NaN is not a healthy height either
        with tempfile.TemporaryDirectory() as folder:
            before = os.getcwd()
            os.chdir(folder)
            env.set_state([0, 1.25, 0, 0, 0, 0], [0, 0, 1e12, 0, 0, 0])
            for _ in range(3):
                observation, reward, flags = env.step(np.zeros(3))
                self.assertEqual(flags, 0)
                self.assertTrue(np.isnan([*observation, reward]).all())
            env.reset()
            observation, reward, flags = env.step(np.zeros(3))
            self.assertEqual(flags, 0)
            self.assertTrue(np.isfinite([*observation, reward]).all())
            os.chdir(before)
            self.assertEqual(os.listdir(folder), [])  # MuJoCo wrote no log

    def test_loads_a_model_once_for_its_users(self):
        model = (
            "<mujoco><worldbody><body><joint name='a' type='slide'/><geom size='1'/><body><joint name='b'/><geom size='1'/></body></body>"
            "</worldbody><actuator><motor joint='a' ctrlrange='-1 1'/></actuator></mujoco>"
        )
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, FARM_MUJOCO_ASSETS=folder):
            file = pathlib.Path(folder) / "own.xml"
            file.write_text(model)
            make = functools.partial(Ours, "InvertedPendulum-v5", xml_file="own.xml")
            first = make()
            file.unlink()
            second = make()
            first.close()
            self.assertTrue(np.isfinite(self.play(second, 10)).all())  # the first did not free its model
            third = make()
            second.close()
            third.close()
            with self.assertRaisesRegex(ValueError, str(file)):  # the last one did
                make()


if __name__ == "__main__":
    unittest.main()
