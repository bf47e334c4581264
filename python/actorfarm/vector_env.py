"""The farm as gymnasium.vector.VectorEnv (`vector`) and as gymnasium.Env (`env`).

An episode that an actor's death or invalid numbers cut off is truncated, with info["abandoned"]; its last observation is then the one before.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from . import pool

Array = npt.NDArray[Any]
Info = dict[str, Any]
MODES = {"next_step": AutoresetMode.NEXT_STEP, "same_step": AutoresetMode.SAME_STEP, "disabled": AutoresetMode.DISABLED}


class Vector(gymnasium.vector.VectorEnv[Any, Any, Array]):
    """Environments of a pool, which it closes. Observations are copies."""

    def __init__(self, farm: pool.Pool) -> None:
        self.pool, self.num_envs, self._mode = farm, farm.num_envs, MODES[farm.config["autoreset"]]
        self.metadata = {"autoreset_mode": self._mode}
        self.single_observation_space, self.single_action_space = farm.observation_space, farm.action_space
        self.observation_space, self.action_space = (batch_space(space, self.num_envs) for space in (farm.observation_space, farm.action_space))
        self._seen = list[Array]()

    def reset(self, *, seed: pool.Seeds = None, options: Info | None = None) -> tuple[Any, Info]:
        """seed: an int (environment i gets seed + i), a list, or None. options: "reset_mask", and numbers of the environments."""
        if seed is None or isinstance(seed, (int, np.integer)):
            super().reset(seed=seed)
        options = dict(options or {})
        mask = options.pop("reset_mask", None)
        if mask is not None and not np.any(mask):
            raise ValueError("options['reset_mask']: one must be true")
        self._seen = self.pool._restart(mask, seed, options)
        return self.pool._observe(self._seen), self._info()

    def _info(self) -> Info:
        """The fields that are not observed, such as lives."""
        info: Info = self.pool._more(self._seen)
        return info | {f"_{name}": np.ones(self.num_envs, bool) for name in info}

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, Info]:
        if not self._seen:
            raise gymnasium.error.ResetNeeded("step() needs a reset() before it")
        self.pool.send(actions)
        count, before = self.num_envs // self.pool.width, self._seen
        fields, reward, terminated, truncated, env_id, elapsed, last, _ = self.pool.consumer.take(count, count, None, self.pool.stack, True)
        if len(env_id) != self.num_envs or env_id[-1] != self.num_envs - 1:
            raise RuntimeError(f"actors have joined or left the farm: it no longer has these {self.num_envs} environments; make another vector environment")
        self._seen, info, first = list(fields), self._info(), elapsed == 0
        cut = first & ~(terminated | truncated if self._mode is AutoresetMode.SAME_STEP else self.pool._ended)
        if cut.any():
            truncated, info["abandoned"], info["_abandoned"] = truncated | cut, cut, cut
        self.pool._ended = (terminated | truncated) & ~(first & (self._mode is AutoresetMode.NEXT_STEP))
        if self._mode is AutoresetMode.SAME_STEP and first.any():
            self._add_final(info, first, cut, before, last)
        return self.pool._observe(fields), reward, terminated, truncated, info

    def _add_final(self, info: Info, ended: Array, cut: Array, before: list[Array], last: tuple[Array, ...] | None) -> None:
        """final_obs as Gymnasium has it: an array of objects."""
        final = np.full(self.num_envs, None, object)
        for i in np.flatnonzero(ended).tolist():
            parts = [part[i] for part in before]
            if last is not None and not cut[i]:
                parts = [np.concatenate([part[1:], frames[i : i + 1]]) if self.pool.stack > 1 else frames[i] for part, frames in zip(parts, last)]
            final[i] = self.pool._observe(parts)
        info |= {"final_obs": final, "_final_obs": ended, "final_info": {}, "_final_info": ended.copy()}

    def close_extras(self, **_: Any) -> None:
        self.pool.close()


def row(observations: Any, i: int) -> Any:
    return {name: part[i] for name, part in observations.items()} if isinstance(observations, dict) else observations[i]


class Env(gymnasium.Env[Any, Any]):
    """One environment."""

    def __init__(self, vector: Vector) -> None:
        self._vector = vector
        self.observation_space, self.action_space = vector.single_observation_space, vector.single_action_space

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        return row(self._vector.reset(seed=[seed], options=options)[0], 0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        observations, rewards, terminated, truncated, info = self._vector.step(np.asarray(action)[None])
        return row(observations, 0), float(rewards[0]), bool(terminated[0]), bool(truncated[0]), {name: True for name in info}

    def close(self) -> None:
        self._vector.close()


def vector(env: Any = None, num_envs: int = 1, *, autoreset_mode: AutoresetMode | str = "next_step", **options: Any) -> Vector:
    """A gymnasium.vector.VectorEnv of environments in actors' processes. options: those of actorfarm.make."""
    names = [name for name, mode in MODES.items() if autoreset_mode in (mode, mode.value, name)]
    if not names:
        raise ValueError(f"autoreset_mode: must be one of {', '.join(MODES)} (got {autoreset_mode!r})")
    return Vector(pool.make(env, num_envs, autoreset=names[0], **options))


def env(env: Any, **options: Any) -> Env:
    """A gymnasium.Env in a process of its own. options: those of actorfarm.make."""
    return Env(vector(env, 1, autoreset_mode="disabled", **options))
