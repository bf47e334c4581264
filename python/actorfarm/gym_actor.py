"""The actor program for Gymnasium's environments: python -m actorfarm.gym_actor --env LunarLander-v3 --up-fd N --down-fd N ...

--env takes any id of Gymnasium, and PACKAGE:ID for an id that importing PACKAGE registers. gym_spaces.py converts spaces. Options,
--option key=value:

    flatten=true|false       observations as one vector f32, or the parts of Dict and Tuple as fields (gym_spaces.py)
    vector=false             single environments even if the id has a vector environment
    max_episode_steps=N      truncates after N steps, like gymnasium.make
    any other                an argument of gymnasium.make, in Python's notation: 3, 0.5, true, none, (1, 2), text

The id's vector environment plays a group of 12 or more if it is the same environment (same spaces, no missing wrappers), if
bad_values is not "reset" (which concerns one environment), and if it has AutoresetMode.NEXT_STEP. Only that mode matches a lane:
an episode's last observation is a step, the next episode's first is the following step, and the other environments continue.
(SAME_STEP replaces the last observation by the first; DISABLED needs a reset before any step.) Otherwise the actor steps single
environments in turn.
"""

import ast
import importlib
import importlib.util
import os
import sys

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")

from . import _farm, actor

try:
    import gymnasium
    import numpy as np

    from . import gym_spaces
except ModuleNotFoundError as missing:
    sys.exit(f"gym_actor: the Python package {missing.name} is missing: run `make deps`, which installs it in build/venv")

FIRST, LAST = _farm.FIRST, _farm.LAST
END_TERMINATED = LAST | _farm.TERMINATED | _farm.GAME_END
END_TRUNCATED = LAST | _farm.TRUNCATED | _farm.GAME_END

# From this width on CartPole's is faster than single ones: its NumPy calls cost the same for 1 and for 100.
VECTOR_WIDTH_LEAST = 12

# Packages that Gymnasium's own environments need.
NEEDS = {"box2d": ("Box2D", "pygame"), "mujoco": ("mujoco",), "phys2d": ("jax",), "tabular": ("jax",)}


def literal(text):
    """The value of a Python literal; other text as it is."""
    words = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


class Arrays:
    """A lane's memory as NumPy arrays [steps, width, ...]."""

    def __init__(self, ring, lane):
        obs, reward, flags, action = ring.arrays(lane)
        self.obs, self.steps = [np.asarray(field) for field in obs], ring.steps
        self.reward, self.flags, self.action = np.asarray(reward), np.asarray(flags), np.asarray(action)


class Singles:
    """A group of single environments, stepped in turn."""

    def __init__(self, ring, lane, maker, seeds):
        self.lane, self._maker, self._arrays = lane, maker, Arrays(ring, lane)
        self._envs = [maker.single() for _ in seeds]
        self._seeds = list(seeds)  # None: used; the environment continues with its generator
        self._ended = [True] * len(seeds)

    def _step_one(self, i, action):
        """(observation, reward, flags)"""
        env = self._envs[i]
        if self._ended[i]:
            observation, _ = env.reset(seed=self._seeds[i])
            self._seeds[i] = None
            self._ended[i] = False
            return observation, 0, FIRST
        observation, reward, terminated, truncated, _ = env.step(action)
        if not (terminated or truncated):
            return observation, reward, 0
        self._ended[i] = True
        return observation, reward, END_TERMINATED if terminated else END_TRUNCATED

    def _check_values(self, ring, slot, i, flags):
        """Applies the recipe's bad_values ("fail" or "reset") to the written step."""
        memory, maker = self._arrays, self._maker
        if not gym_spaces.has_invalid_numbers(memory.obs, (slot, i), memory.reward[slot, i]):
            return
        if maker.bad_values == "reset" and not flags & FIRST:
            ring.abandon()
            self._ended[i] = True
            observation, reward, flags = self._step_one(i, None)
            maker.observations.write(memory.obs, (slot, i), observation)
            ring.set(self.lane, i, reward, flags)
            if not gym_spaces.has_invalid_numbers(memory.obs, (slot, i), reward):
                return
        raise actor.BrokenContract(maker.invalid_message)

    def step(self, ring):
        memory, n = self._arrays, ring.next(self.lane)
        slot, fresh = n % memory.steps, all(self._ended)  # fresh: no environment needs an action
        actions = self._ended if fresh else self._maker.actions.decode(memory.action[(n - 1) % memory.steps])
        write, set_step = self._maker.observations.write, ring.set
        try:
            for i, action in enumerate(actions):
                observation, reward, flags = self._step_one(i, action)
                write(memory.obs, (slot, i), observation)
                try:
                    set_step(self.lane, i, reward, flags)
                except TypeError:
                    raise actor.BrokenContract(f"the reward is not a number but {type(reward).__name__}") from None
                if self._maker.bad_values != "count":
                    self._check_values(ring, slot, i, flags)
        except actor.BrokenContract as broken:
            raise actor.BrokenContract(f"answers with {broken}: lane {self.lane}, number {i}") from broken
        ring.publish(self.lane)


class Vector:
    """A group that one vector environment plays, with one seed."""

    def __init__(self, ring, lane, maker, seeds):
        self.lane, self._maker = lane, maker
        self._arrays, self._env, self._seed = Arrays(ring, lane), maker.vector(len(seeds)), seeds[0]
        self._batch, self._ended, self._started = (len(seeds),), np.ones(len(seeds), bool), False

    def _step_all(self, actions):
        """(observations, rewards, terminated, truncated)"""
        if self._started:
            return self._env.step(self._maker.actions.decode(actions))[:4]
        self._started = True
        return self._env.reset(seed=self._seed)[0], 0, False, False

    def _write_ends(self, slot, rewards, terminated, truncated):
        memory = self._arrays
        try:
            flags = np.where(terminated, END_TERMINATED, np.where(truncated, END_TRUNCATED, 0))
            memory.flags[slot] = np.where(self._ended, FIRST, flags)
            memory.reward[slot] = np.where(self._ended, 0, rewards)
        except (TypeError, ValueError) as wrong:
            raise actor.BrokenContract(f"rewards or ends that fit no group of {self._batch[0]} ({wrong})") from wrong

    def step(self, ring):
        memory, maker, n = self._arrays, self._maker, ring.next(self.lane)
        slot = n % memory.steps
        observations, *ends = self._step_all(memory.action[(n - 1) % memory.steps])
        try:
            self._write_ends(slot, *ends)
            maker.observations.write(memory.obs, slot, observations, self._batch)
            if maker.bad_values == "fail" and gym_spaces.has_invalid_numbers(memory.obs, slot, memory.reward[slot]):
                raise actor.BrokenContract(maker.invalid_message)
        except actor.BrokenContract as broken:
            raise actor.BrokenContract(f"answers with {broken}: lane {self.lane}") from broken
        self._ended = memory.flags[slot] & LAST != 0
        ring.publish(self.lane)


class Maker:
    """Makes environments of one id, with its options."""

    def __init__(self, name, options, bad_values):
        self._name, self._options, self.bad_values = name, dict(options), bad_values
        flatten, self._vector = self._options.pop("flatten", None), self._options.pop("vector", True)
        for key, value in (("flatten", flatten), ("vector", self._vector)):
            if value not in (None, True, False):
                raise ValueError(f'option "{key}" is true or false, not "{value}"')
        how = "reset cannot replace a reset" if bad_values == "reset" else bad_values
        self.invalid_message = f"a reward or an observation that is NaN, infinite or beyond 1e9 (--bad-values {how})"
        self._sample = None
        registered = gymnasium.spec(name)
        if registered.entry_point is None:
            sample = self.vector(1)
            spaces = sample.single_observation_space, sample.single_action_space
        else:
            self._sample = self._make()
            spaces = self._sample.observation_space, self._sample.action_space
        self._spaces, self._registered = spaces, registered
        self.observations = gym_spaces.Observations(spaces[0], flatten)
        self.actions = gym_spaces.Actions(spaces[1])

    def single(self):
        made, self._sample = self._sample, None
        return made or self._make()

    def _make(self):
        """Without Gymnasium's checker, which only warns."""
        return gymnasium.make(self._name, **{"disable_env_checker": True, **self._options})

    def vector(self, width):
        mode = gymnasium.VectorizeMode.VECTOR_ENTRY_POINT
        return gymnasium.make_vec(self._name, width, vectorization_mode=mode, **self._options)

    def plays_as_vector(self, width):
        """Whether the id's vector environment replaces single ones; ValueError if it must, but cannot."""
        alone = self._registered.entry_point is None
        if self._registered.vector_entry_point is None or not (self._vector or alone):
            return False
        if (self._registered.additional_wrappers or self.bad_values == "reset" or width < VECTOR_WIDTH_LEAST) and not alone:
            return False
        try:
            trial = self.vector(1)
        except Exception:  # an argument for single environments only, or a missing package
            if alone:
                raise
            return False
        fits = (trial.single_observation_space, trial.single_action_space) == self._spaces
        mode = trial.metadata.get("autoreset_mode")
        trial.close()
        if fits and mode == gymnasium.vector.AutoresetMode.NEXT_STEP:
            return True
        if alone:
            raise ValueError(f"the vector environment resets by {mode}, NEXT_STEP is needed, and the id has no single environment")
        return False

    def group(self, ring, lane, seeds):
        if not hasattr(self, "_group"):
            self._group = Vector if self.plays_as_vector(len(seeds)) else Singles
        return self._group(ring, lane, self, seeds)

    def spec(self):
        fields = [{"name": name, "dtype": dtype, "dims": list(dims)} for name, dtype, dims in self.observations.fields]
        return {"obs": fields, "action": self.actions.spec, "frames_per_step": 1}


class Gym:
    """For actor.main."""

    label, example = "gym_actor", "CartPole-v1, or PACKAGE:ID of a package that registers it"

    @staticmethod
    def names():
        """The newest version of each environment of Gymnasium that can run here."""
        newest = {}
        for spec in gymnasium.registry.values():
            part = str(spec.entry_point or spec.vector_entry_point).split(":")[0].split(".")
            needs = NEEDS.get(part[2] if len(part) > 2 else "", ())
            if part[:2] == ["gymnasium", "envs"] and all(map(importlib.util.find_spec, needs)):
                family = (spec.namespace, spec.name)
                newest[family] = max(newest.get(family, spec), spec, key=lambda known: known.version or 0)
        return [spec.id for spec in newest.values()]

    @staticmethod
    def prepare(name, pairs, bad_values):
        gymnasium.logger.min_level = gymnasium.logger.ERROR
        options = {key: literal(text) for key, _, text in (pair.partition("=") for pair in pairs)}
        package, _, id = name.rpartition(":")
        try:
            if package:
                importlib.import_module(package)
            return Maker(id, options, bad_values)
        except (gymnasium.error.NameNotFound, gymnasium.error.NamespaceNotFound) as unknown:
            raise LookupError(f"gym/{name}: {unknown} (gym/PACKAGE:ID imports PACKAGE first)") from None
        except ModuleNotFoundError as missing:
            raise LookupError(f"gym/{name}: {missing} (install packages in build/venv)") from None
        except Exception as failed:
            message = " ".join(str(failed).split()) or type(failed).__name__
            raise ValueError(f"gym/{name}: {message}") from None


if __name__ == "__main__":
    actor.main(Gym)
