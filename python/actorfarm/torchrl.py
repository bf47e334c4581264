"""The farm as an environment of TorchRL, batch size [num_envs].

Lanes reset in the same step: what step() shows of an ended episode is its last observation, and the reset that follows returns the next
one's first, without another step.
"""

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from tensordict import TensorDict
from torchrl.data import Bounded, Categorical, Composite, MultiCategorical, Unbounded
from torchrl.envs import EnvBase

from . import vector_env


def _spec(space: Any, count: int, device: Any) -> Any:
    """Of a batch."""
    if isinstance(space, spaces.Dict):
        return Composite({name: _spec(part, count, device) for name, part in space.items()}, shape=(count,), device=device)
    if isinstance(space, spaces.Discrete):
        return Categorical(int(space.n), shape=(count,), dtype=torch.int64, device=device)
    if isinstance(space, spaces.MultiDiscrete):
        return MultiCategorical(space.nvec.tolist(), shape=(count, *space.shape), dtype=torch.int64, device=device)
    shape, dtype = (count, *space.shape), torch.from_numpy(np.empty(0, space.dtype)).dtype
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        return Unbounded(shape=shape, dtype=dtype, device=device)
    low, high = (torch.from_numpy(np.broadcast_to(bound, shape).copy()) for bound in (space.low, space.high))
    return Bounded(low, high, shape=shape, dtype=dtype, device=device)


def _parts(observations: Any) -> dict[str, Any]:
    return observations if isinstance(observations, dict) else {"observation": observations}


class Env(EnvBase):
    """`env`, `options`: as actorfarm.make has them."""

    def __init__(self, env: Any, num_envs: int, device: Any = None, **options: Any) -> None:
        super().__init__(device=device, batch_size=[num_envs])
        self.vector = vector_env.vector(env, num_envs, autoreset_mode="same_step", **options)
        observations = _spec(self.vector.single_observation_space, num_envs, device)
        if not isinstance(observations, Composite):
            observations = Composite({"observation": observations}, shape=(num_envs,), device=device)
        self.observation_spec, self.action_spec = observations, _spec(self.vector.single_action_space, num_envs, device)
        self.reward_spec = Unbounded(shape=(num_envs, 1), device=device)
        flags = {name: Categorical(2, shape=(num_envs, 1), dtype=torch.bool, device=device) for name in ("done", "terminated", "truncated")}
        self.done_spec = Composite(flags, shape=(num_envs,), device=device)
        self._next_seed: int | None = None
        self._now: Any = None
        self._ended = np.zeros(num_envs, bool)

    def _tensors(self, observations: Any, **more: Any) -> TensorDict:
        parts = {**_parts(observations), **{name: value.reshape(-1, 1) for name, value in more.items()}}
        return TensorDict({name: torch.from_numpy(part) for name, part in parts.items()}, self.batch_size).to(self.device or "cpu")

    def _reset(self, tensordict: Any = None, **_: Any) -> TensorDict:
        mask = tensordict.get("_reset", None) if tensordict is not None else None
        mask = np.ones(self.batch_size[0], bool) if mask is None else mask.cpu().numpy().reshape(-1)
        begins = self._now is None or self._next_seed is not None
        if begins or (mask & ~self._ended).any():  # not the reset that has happened
            options = {} if mask.all() else {"reset_mask": mask & ~self._ended}
            self._now, _ = self.vector.reset(seed=self._next_seed, options=options)
            self._next_seed = None
        self._ended[mask] = False
        return self._tensors(self._now)

    def _step(self, tensordict: Any) -> TensorDict:
        self._now, rewards, terminated, truncated, info = self.vector.step(tensordict.get("action").cpu().numpy())
        self._ended, shown = terminated | truncated, _parts(self._now)
        if self._ended.any():
            shown = {name: part.copy() for name, part in shown.items()}
            for i in np.flatnonzero(self._ended):
                for name, last in _parts(info["final_obs"][i]).items():
                    shown[name][i] = last
        return self._tensors(shown, reward=rewards, done=self._ended.copy(), terminated=terminated, truncated=truncated)

    def _set_seed(self, seed: int | None) -> None:
        self._next_seed = seed

    def close(self, *, raise_if_closed: bool = True) -> None:
        if not self.vector.closed:
            self.vector.close()
        super().close(raise_if_closed=raise_if_closed)
