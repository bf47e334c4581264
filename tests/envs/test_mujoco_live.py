"""The MuJoCo plug-in beside Gymnasium itself, step for step: every task (v5 over 1,000 steps, the slow humanoids over 200, v4,
whose physics are the same, over 300), and every option that a constructor of Gymnasium has."""

import ctypes
import inspect
import os
import tempfile
import unittest
import warnings

import numpy as np

os.chdir(tempfile.mkdtemp())  # Gymnasium's MuJoCo writes MUJOCO_LOG.TXT into the working directory
try:
    import gymnasium
    import mujoco  # noqa: F401
except ImportError as error:
    raise unittest.SkipTest(f"no gymnasium with mujoco in the Python environment: {error} (make deps)")
warnings.simplefilter("ignore", DeprecationWarning)  # of v4

PLUGIN = os.path.join(os.environ["FARM_BUILD"], "envs", "mujoco.so")
TERMINATED, TRUNCATED, GAME_END = 4, 8, 16
CONTINUOUS, F32 = 3, 3
ROBOTS = ("HalfCheetah", "Hopper", "Walker2d", "Ant", "Humanoid", "HumanoidStandup", "Swimmer", "Reacher", "Pusher", "InvertedPendulum",
          "InvertedDoublePendulum")
TASKS = [f"{robot}-v{version}" for robot in ROBOTS for version in (4, 5) if (robot, version) != ("Pusher", 4)]
u32, u64, text = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_char_p


class Field(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char * 24), ("dtype", u32), ("rank", u32), ("dims", u32 * 4)]


class Action(ctypes.Structure):
    _fields_ = [("kind", u32), ("dims", u32), ("sizes", u32 * 32), ("low", ctypes.c_float * 32), ("high", ctypes.c_float * 32)]


class Spec(ctypes.Structure):
    _fields_ = [("obs_count", u32), ("obs", Field * 8), ("action", Action), ("frames_per_step", u32)]


class Option(ctypes.Structure):
    _fields_ = [("key", text), ("value", text)]


class Config(ctypes.Structure):
    _fields_ = [("seed", u64), ("options", ctypes.POINTER(Option)), ("option_count", ctypes.c_size_t), ("hints", u32)]


class Api(ctypes.Structure):
    _fields_ = [
        ("abi_version", u32),
        ("struct_bytes", u32),
        ("name", text),
        ("about", text),
        ("spec", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Config), ctypes.POINTER(Spec), text, ctypes.c_size_t)),
        ("create", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(Config), text, ctypes.c_size_t)),
        ("destroy", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
        ("reset", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))),
        ("step", ctypes.CFUNCTYPE(u32, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_float))),
    ]


def as_text(value):
    """A value of Python as env.* options are written."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(str(float(x)) for x in value)
    return str(value)


class Ours:
    """One environment of the plug-in."""

    library = apis = None

    def __init__(self, task, seed=0, **options):
        if Ours.library is None:
            Ours.library = ctypes.CDLL(PLUGIN)
            Ours.library.farm_env_at.restype = ctypes.POINTER(Api)
            apis = [Ours.library.farm_env_at(i) for i in range(64)]
            Ours.apis = {api.contents.name.decode(): api.contents for api in apis if api}
        self.api = Ours.apis[f"mujoco/{task}"]
        pairs = [(key.encode(), as_text(value).encode()) for key, value in options.items()]
        config = Config(seed, (Option * len(pairs))(*pairs), len(pairs))
        said = ctypes.create_string_buffer(256)
        self.spec = Spec()
        if self.api.spec(config, self.spec, said, len(said)):
            raise ValueError(said.value.decode())
        self.env = self.api.create(config, said, len(said))
        if not self.env:
            raise ValueError(said.value.decode())
        self.obs = np.full(self.spec.obs[0].dims[0], np.nan, np.float32)
        self.pointer = (ctypes.c_void_p * 1)(self.obs.ctypes.data)

    def close(self):
        self.api.destroy(self.env)

    def reset(self):
        self.api.reset(self.env, self.pointer)
        return self.obs.copy()

    def set_state(self, qpos, qvel):
        qpos, qvel = np.array(qpos, np.float64), np.array(qvel, np.float64)
        address = ctypes.c_void_p
        Ours.library.farm_mujoco_set_state(address(self.env), address(qpos.ctypes.data), address(qvel.ctypes.data), self.pointer)
        return self.obs.copy()

    def step(self, action):
        reward, action = ctypes.c_float(), np.array(action, np.float32)
        flags = self.api.step(self.env, action.ctypes.data, self.pointer, reward)
        return self.obs.copy(), reward.value, flags


class BesideGymnasium(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not os.path.exists(PLUGIN):
            raise unittest.SkipTest(f"{PLUGIN} is not there: it needs MuJoCo and Gymnasium in build/venv (make deps, then make)")

    def equal(self, mine, theirs, where):
        # The same library computes both: what differs is at most the last bit of a sine, before rounding to f32.
        theirs = theirs.astype(np.float32)
        if not np.array_equal(mine, theirs):
            np.testing.assert_allclose(mine, theirs, rtol=2e-7, atol=1e-12, err_msg=where)

    def compare(self, task, steps, seed, options=None, make_options=None):
        """Plays both with the same random actions and ends; returns how many episodes ended in which way."""
        options, ends = options or {}, {"terminated": 0, "truncated": 0}
        theirs = gymnasium.make(task, disable_env_checker=True, **options, **(make_options or {}))
        mine = Ours(task, **options, **(make_options or {}))
        data, rng = theirs.unwrapped.data, np.random.default_rng(seed)
        space = theirs.action_space
        self.assertEqual(mine.obs.shape, theirs.observation_space.shape, f"{task} {options}")
        self.assertEqual(mine.spec.action.kind, CONTINUOUS)
        self.assertEqual((mine.spec.action.dims,), space.shape)
        np.testing.assert_array_equal(mine.spec.action.low[: space.shape[0]], space.low)
        np.testing.assert_array_equal(mine.spec.action.high[: space.shape[0]], space.high)
        starts, episode = True, 0
        for step in range(steps):
            where = f"{task} {options} step {step}"
            if starts:
                their_obs, _ = theirs.reset(seed=seed + episode)
                episode += 1
                self.equal(mine.set_state(data.qpos, data.qvel), their_obs, where)
            action = rng.uniform(1.2 * space.low, 1.2 * space.high).astype(np.float32)
            their_obs, their_reward, terminated, truncated, _ = theirs.step(action)
            obs, reward, flags = mine.step(action)
            self.equal(obs, their_obs, where)
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
                steps = 200 if task.startswith("Humanoid") else 1000 if task.endswith("v5") else 300
                limit = {"max_episode_steps": steps // 2} if steps < 1000 else None
                ends = self.compare(task, steps, seed=number, make_options=limit)
                self.assertGreater(ends["terminated"] if task.startswith(falls) else ends["truncated"], 0)

    def test_the_limit_of_steps_that_each_task_is_registered_with(self):
        for task in TASKS:
            if task.startswith("Humanoid") and task.endswith("v4"):
                continue  # slow
            mine, step = Ours(task, **({"frame_skip": 1} if task.startswith("Humanoid") else {})), 1
            mine.reset()
            while not mine.step(np.zeros(mine.spec.action.dims))[2] & TRUNCATED:
                step += 1
            mine.close()
            self.assertEqual(step, gymnasium.spec(task).max_episode_steps, task)

    def test_the_same_tasks_and_no_others(self):
        Ours(TASKS[0]).close()
        self.assertEqual({name for name in Ours.apis}, {f"mujoco/{task}" for task in TASKS})

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
        # Switches off, so that an episode goes on where it would have ended.
        unhealthy = {"terminate_when_unhealthy": False, "exclude_current_positions_from_observation": False}
        for task in TASKS:
            if task.startswith(("Hopper", "Walker2d", "Ant", "Humanoid-")):
                self.compare(task, 60 if task.startswith("Humanoid") else 200, seed=3, options=unhealthy)
        self.compare("Ant-v4", 200, seed=4, options={"use_contact_forces": True, "contact_force_range": (-20.0, 3.0), "contact_cost_weight": 0.1})
        self.compare("Ant-v5", 60, seed=4, options={"main_body": 5})
        self.compare("Ant-v5", 60, seed=4, options={"main_body": "aux_1"})
        self.compare("Walker2d-v5", 60, seed=5, options={"xml_file": "walker2d.xml"})

    def test_another_limit_of_steps(self):
        for limit in (1, 7):
            self.assertEqual(self.compare("Swimmer-v5", 21, seed=1, make_options={"max_episode_steps": limit})["truncated"], 21 // limit)

    def test_options_of_others_are_refused(self):
        for task, option in (("Hopper-v4", "frame_skip"), ("Hopper-v5", "use_contact_forces"), ("Reacher-v4", "reward_dist_weight"),
                             ("HalfCheetah-v5", "healthy_reward"), ("Humanoid-v4", "contact_cost_weight"), ("Ant-v4", "render_mode"),
                             ("InvertedPendulum-v4", "reset_noise_scale"), ("Ant-v4", "include_cfrc_ext_in_observation")):
            with self.assertRaisesRegex(ValueError, f'^mujoco/{task} has no option "{option}"; it has max_episode_steps'):
                Ours(task, **{option: 1})


def constructor(task):
    """The constructor behind an id."""
    module, name = gymnasium.spec(task).entry_point.split(":")
    return getattr(__import__(module, fromlist=[name]), name).__init__


def changed(name, default):
    """Another value than the default, that matters."""
    if isinstance(default, bool):
        return not default
    if isinstance(default, tuple):
        low, high = (max(-50.0, default[0]), min(50.0, default[1]))
        return (low + 0.1 * (high - low), high - 0.3 * (high - low))
    return default + 2 if name == "frame_skip" else default * 1.7


class Resets(unittest.TestCase):
    """Their noise has Gymnasium's distribution."""

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
        for sides in (np.min, np.max):  # a normal's tails reach further than a uniform's ends
            self.assertTrue((np.abs(sides(a, axis=0) - sides(b, axis=0)) < 2.0 * spread).all(), "ends")
        self.assertLess(np.abs(np.corrcoef(b.T[: min(len(b.T), 12)]) - np.corrcoef(a.T[: min(len(a.T), 12)])).max(), 0.15)


if __name__ == "__main__":
    unittest.main()
