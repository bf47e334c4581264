"""The actor program for PettingZoo's environments: python -m actorfarm.pettingzoo_actor --env mpe2:simple_spread_v3 --up-fd N --down-fd N ...

--env PACKAGE:NAME: the parallel_env of a module of PACKAGE, else its env (AEC) if that can be made parallel, or a class or function of PACKAGE.
Options as in gym_actor.py, but for `vector`. An environment of A possible agents is A rows of a lane, in their order, and one policy plays
all. From its end to the common reset the rows of an agent are FIRST, of zeros, with a mask that permits everything.
"""

import difflib
import glob
import importlib.util
import sys

from . import actor, gym_actor, gym_spaces
import numpy as np
from gymnasium import spaces

PACKAGES = "mpe2", "pettingzoo/butterfly", "pettingzoo/sisl"  # that names() lists
RESULTS = "observations", "rewards", "terminations", "truncations", "infos"


def checked(result, agents, *names):
    """What reset() or step() has returned, if it is dicts that have these agents (a set)."""
    if not isinstance(result, tuple) or len(result) != len(names) or not all(isinstance(part, dict) for part in result):
        raise actor.BrokenContract(f"a result that is not dicts of {', '.join(names)}")
    for name, part in zip(names, result):
        if not part.keys() >= agents:
            raise actor.BrokenContract(f"{name} of {list(part)}, without agent {min(agents - part.keys())!r}")
    return result


class Game:
    """One environment. After a turn: steps {agent: result}, starts {agent: first observation}."""

    def __init__(self, maker, seed):
        self._maker, self._env, self.live, self.given, self.actions = maker, maker.single(), [], {"seed": seed}, {}
        self._step, self._reset = self._env.step, self._env.reset
        if maker.film:
            (self._step, self._reset), maker.film = gym_actor.filmed(self._env, maker.film, lambda _: not self._env.agents), None

    def turn(self, same_step):
        """Steps the environment, or resets it if no agent is live."""
        seen, before, self.steps, self.starts = self._maker.seen, self.live, {}, {}
        if before:
            taken = {agent: self.actions[agent] for agent in before}
            _, rewards, terminated, truncated, _ = result = checked(self._step(taken), taken.keys(), *RESULTS)
            self.steps = {agent: (seen(result, agent), rewards[agent], terminated[agent], truncated[agent], None) for agent in before}
            self.live = [agent for agent in before if not terminated[agent] and not truncated[agent]]
        if not before or same_step and not self.live:
            result, self.given["seed"] = self._reset(**self.given), None
            self.live = [agent for agent in self._maker.names if agent in self._env.agents]
            checked(result, set(self.live), *RESULTS[::4])
            self.starts = {agent: seen(result, agent) for agent in self.live}
        if self._env.agents != self.live and set(self._env.agents) != set(self.live) or not self.live and not before:
            raise actor.BrokenContract(f"agents {self._env.agents} instead of {self.live or 'some'}, which are possible, were there before and have not ended")


class Lane:
    """Of the actor's ring, and of the opponents', if there is one: maker.sides [(ring, agents), ...]."""
    def __init__(self, ring, lane, maker, seeds):
        if maker.bad_values == "reset":
            raise actor.BrokenContract("has agents that are reset together: --bad-values count or fail, not reset")
        if lane == 0:  # by the rule of farm_opponent_plays (src/ring/spec.h)
            own = ring.spec["agents"] if maker.opponent else maker.agents
            learn = [name for i, name in enumerate(maker.names) if (i % 2 == 0 if own * 2 == maker.agents else i < own)]
            others = [name for name in maker.names if name not in learn]
            maker.sides = [(ring, maker.names)] if not maker.opponent else [(ring, learn), (maker.opponent(ring.width // own * len(others)), others)]
        self.lane, self._sides = lane, []
        self._games = actor.each_made(ring, (Game(maker, seed) for seed in seeds[:: len(maker.sides[0][1])]))
        for side, agents in maker.sides:
            rows = [(game, agent, lambda seed, game=game, agent=agent: (game.starts.get(agent, maker.absent), None)) for game in self._games for agent in agents]
            group = maker.pack(side, lane, [(tuple, first, None) for *_, first in rows])  # tuple(result) is the result
            self._sides.append((side, gym_spaces.LaneActions(side, lane, maker.actions), group, rows))

    def step(self, ring):
        for row, seed, numbers in reversed(ring.resets(self.lane) if ring.numbers is not None else []):  # an environment's first one decides
            game = self._games[row * len(self._games) // ring.width]
            game.live, game.given = [], {"seed": seed, "options": {**game.given.get("options", {}), **numbers}}
        group = None
        try:
            for side, actions, _, rows in self._sides:
                for (game, agent, _), action in zip(rows, actions.read(side, True)):
                    game.actions[agent] = action
            for game in self._games:
                game.turn(ring.same_step)
            for *_, group, rows in self._sides:
                for row, (game, agent, first) in enumerate(rows):
                    if agent not in game.steps:
                        group.restart(row, None, first)
                group.step([game.steps.get(agent) for game, agent, _ in rows])
        except actor.BrokenContract as broken:
            game, agent = (game, "") if group is None else (rows[group.at][0], f", agent {rows[group.at][1]!r}")
            raise actor.BrokenContract(f"answers with {broken}: lane {self.lane}, number {self._games.index(game)}{agent}") from broken


class Maker(gym_actor.Maker):
    play, mask = Lane, None

    def _find(self):
        self._sample = sample = self._make()
        self.names, self.agents = list(sample.possible_agents), len(sample.possible_agents)
        (first, (space, action)), *others = ((agent, (sample.observation_space(agent), sample.action_space(agent))) for agent in self.names)
        for agent, found in others:
            if found != (space, action):
                text = f"agents {first!r} and {agent!r} have different spaces, {gym_spaces.describe((space, action))} and {gym_spaces.describe(found)}"
                raise ValueError(f"{text}; one policy plays all: --wrap supersuit:pad_observations_v0 and --wrap supersuit:pad_action_space_v0 make spaces equal")
        if isinstance(action, spaces.Discrete) and "action_mask" not in getattr(space, "spaces", ()):
            if any("action_mask" in info for info in checked(sample.reset(seed=0), set(), *RESULTS[::4])[1].values()):
                self.mask = np.ones(int(action.n), np.int8)
                space = spaces.Dict({"observation": space, "action_mask": spaces.MultiBinary(int(action.n))})
        zeros = [getattr(leaf, "start", np.full(leaf.shape or (), path == gym_spaces.MASK, leaf.dtype)) for path, leaf in gym_spaces._parts(space)]
        self.absent = gym_spaces._nested(space, iter(zeros), lambda zero: zero)
        return space, action

    def seen(self, result, agent):
        if self.mask is None:
            return result[0][agent]
        return {"observation": result[0][agent], "action_mask": result[-1][agent].get("action_mask", self.mask)}

    def _make(self):
        from pettingzoo.utils import AECEnv, ParallelEnv, aec_to_parallel

        name = f"{self._package}.{self._name}".strip(".")
        made = getattr(sys.modules.get(self._package), self._name, None)
        if not made and not importlib.util.find_spec(name):
            near = [f'; did you mean "pettingzoo/{near}"?' for near in difflib.get_close_matches(f"{self._package}:{self._name}", PettingZoo.names(), 1, 0.7)]
            raise ValueError("".join([f"no module {name} (PACKAGE:NAME, of the package that has the environment)", *near]))
        made = made or importlib.import_module(name)
        env = self._wrap(getattr(made, "parallel_env", getattr(made, "env", made))(**self._options), ParallelEnv, AECEnv)
        return aec_to_parallel(env) if isinstance(env, AECEnv) else env


class PettingZoo(gym_actor.Gym):
    label, example = "pettingzoo_actor", "PACKAGE:NAME, as mpe2:simple_spread_v3 or pettingzoo.butterfly:pistonball_v6"
    family, maker = "pettingzoo", Maker

    @staticmethod
    def names():
        files = [(package, name) for package in PACKAGES for folder in sys.path for name in glob.glob("*_v[0-9]*.py", root_dir=f"{folder}/{package}")]
        return sorted({f"{package.replace('/', '.')}:{name[:-3]}" for package, name in files})


if __name__ == "__main__":
    actor.as_process(actor.main, PettingZoo)
