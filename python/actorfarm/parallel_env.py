"""The farm as a pettingzoo.ParallelEnv: one environment, whose agents are the rows of a lane."""

from typing import Any

import numpy as np
from pettingzoo import ParallelEnv

from . import vector_env


class Parallel(ParallelEnv[str, Any, Any]):
    def __init__(self, vector: vector_env.Vector) -> None:
        self._vector, self.metadata, self.render_mode = vector, {"name": str(vector.pool.config["env"])}, None
        self.possible_agents, self.agents = [f"agent_{i}" for i in range(vector.num_envs)], list[str]()

    def observation_space(self, agent: str) -> Any:
        return self._vector.single_observation_space

    def action_space(self, agent: str) -> Any:
        return self._vector.single_action_space

    def _by_agent(self, *parts: Any) -> Any:
        rows = [(agent, i) for i, agent in enumerate(self.possible_agents) if agent in self.agents]
        return *({agent: vector_env.row(part, i) for agent, i in rows} for part in parts), {agent: {} for agent, _ in rows}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        known, self.agents = self._vector.pool.consumer.spec["numbers"], self.possible_agents[:]
        numbers = {name: number for name, number in (options or {}).items() if name in known}
        return self._by_agent(self._vector.reset(seed=[seed] * len(self.agents), options=numbers)[0])

    def step(self, actions: dict[str, Any]) -> Any:
        idle = dict.fromkeys(self.possible_agents, self._vector.pool._no_action)
        results = self._by_agent(*self._vector.step(np.stack([*(idle | {agent: actions[agent] for agent in self.agents}).values()]))[:4])
        self.agents = [agent for agent in self.agents if not results[2][agent] and not results[3][agent]]
        return results

    def close(self) -> None:
        self._vector.close()


def pettingzoo(env: Any, **options: Any) -> Parallel:
    """One environment in a process of its own. options: those of actorfarm.make."""
    return Parallel(vector_env.vector(env, 1, **options))
