"""The farm as a VecEnv of Stable-Baselines3. Seeds and options (numbers of the environments) count from the next reset on."""

from typing import Any, NoReturn

import numpy as np
from stable_baselines3.common import vec_env

from . import vector_env


def _refuse(what: str) -> NoReturn:
    raise AttributeError(f"actorfarm.sb3: {what}: the environments run in other processes, which answer steps and resets only; a wrapper given by options or a callable changes them")


class VecEnv(vec_env.VecEnv):
    """`env`, `options`: as actorfarm.make has them."""

    def __init__(self, env: Any, n_envs: int = 1, **options: Any) -> None:
        self.vector = vector_env.vector(env, n_envs, autoreset_mode="same_step", **options)
        super().__init__(n_envs, self.vector.single_observation_space, self.vector.single_action_space)

    def reset(self) -> Any:
        names = {name for options in self._options for name in options}
        numbers = {name: np.array([options.get(name, np.nan) for options in self._options]) for name in names}
        observations, _ = self.vector.reset(seed=self._seeds, options=numbers)
        self._reset_seeds()
        self._reset_options()
        return observations

    def step_async(self, actions: Any) -> None:
        self._actions = actions

    def step_wait(self) -> Any:
        observations, rewards, terminated, truncated, info = self.vector.step(self._actions)
        dones, infos = terminated | truncated, [{"TimeLimit.truncated": bool(cut)} for cut in truncated & ~terminated]
        for i in np.flatnonzero(dones):
            infos[i]["terminal_observation"] = info["final_obs"][i]
        return observations, rewards, dones, infos

    def close(self) -> None:
        self.vector.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        if attr_name == "render_mode":
            return [None for _ in self._get_indices(indices)]
        _refuse(f"get_attr('{attr_name}')")

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        _refuse(f"set_attr('{attr_name}')")

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        _refuse(f"env_method('{method_name}')")

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False for _ in self._get_indices(indices)]


def make_vec_env(env: Any, n_envs: int = 1, seed: int | None = None, monitor_dir: str | None = None, **options: Any) -> vec_env.VecMonitor:
    """As stable_baselines3.common.env_util has it: with a monitor of episodes. The farm's own seed too."""
    made = VecEnv(env, n_envs, **({} if seed is None else {"seed": seed}), **options)
    made.seed(seed)
    return vec_env.VecMonitor(made, monitor_dir)
