"""The actor program for EnvPool's environments: python -m actorfarm.envpool_actor --env Pong-v5 --up-fd N --down-fd N ...

The environments of a lane are one pool with one thread, which inherits the actor's CPUs. It is stepped as a whole; the step after an
end is that environment's reset and begins the next episode. Its seed is the lane's first one: it plays like
envpool.make_gymnasium(ID, num_envs=width, seed=seed). Options, --option key=value:

    flatten, obs_keep, obs_drop   as in gym_actor.py
    any other                     an argument of envpool.make, in Python's notation: 3, 0.5, true, (1, 2), text

The observation's action_mask or the information legal_action_mask becomes the field action_mask. Lost lives (episodic_life) end
episodes, not games. VizDoom's buttons are combinations to choose from, unless use_combined_action says otherwise.
"""

import difflib
import functools
import importlib.util
import os
import re
import sys
import tempfile
import types

from . import actor, gym_actor, gym_spaces  # exits if gymnasium is missing

import gymnasium  # isort: skip
import numpy as np  # isort: skip

PIP = f"{sys.executable} -m pip install"
OURS = {"num_envs", "batch_size", "num_threads", "max_num_players", "thread_affinity_offset", "seed", "env_seed", "base_path",
        "gym_reset_return_info"}  # fmt: skip
DRAWS = {"from_pixels": False, "render_width": 0, "render_height": 0, "render_camera_id": 0}  # options of every id
FRAMES = ("envpool.atari", "envpool.vizdoom")  # whose frame_skip repeats an action for frames of a game
FILM_RATE = 15


@functools.cache
class Library:
    """EnvPool, imported once, without the families whose files are missing: `absent`."""

    def __init__(self):
        sys.modules.setdefault("jax", None)  # not needed, and slow to import
        sys.modules["envpool.entry"] = types.ModuleType("envpool.entry")  # it imports all families, or fails
        try:
            import envpool.python.data
            import envpool.registration
        except ModuleNotFoundError as missing:
            raise ValueError(f"the Python package {missing.name} is missing (EnvPool needs Python 3.11): {PIP} envpool") from None
        self.registration, self.transform = envpool.registration, envpool.python.data.gym_spec_transform
        self.specs, self.assets, self.absent = self.registration.registry.specs, {}, []
        with open(os.path.join(envpool.__path__[0], "entry.py"), encoding="utf-8") as file:
            families = re.findall(r"^import (envpool\.\S+)\.registration", file.read(), re.MULTILINE)
        path_of = self.registration.asset_base_path
        for family in families:
            assets = self.assets[family] = []  # (package, file), ...
            self.registration.asset_base_path = lambda *asset, assets=assets: assets.append(asset) or path_of(*asset)
            try:
                importlib.import_module(f"{family}.registration")
            except OSError:
                self.absent.append(family)
        self.registration.asset_base_path = path_of

    def missing_files(self, families):
        lacking = {package.replace("_", "-") for family in families for package, _ in self.assets[family] if not importlib.util.find_spec(package)}
        names = ", ".join(family.removeprefix("envpool.") for family in families)
        return f"the files of {names} are missing: {PIP} {' '.join(sorted(lacking) or ['envpool-assets'])}"

    def lacks_files(self, name):
        family, _, config = self.specs[name]
        found = [os.path.exists(os.path.join(config["base_path"], file)) for _, file in self.assets.get(family, ())]
        return bool(found) and not any(found)

    def check(self, name):
        """ValueError: the id is unknown, or its files are missing."""
        if name not in self.specs:
            known = {id.lower(): id for id in self.specs}
            near = [f'did you mean "envpool/{known[near]}"?' for near in difflib.get_close_matches(name.lower(), known, 1, 0.7)]
            raise ValueError("; ".join([f"EnvPool has no id {name} here", *near, *([self.missing_files(self.absent)] if self.absent else [])]))
        if self.lacks_files(name):
            raise ValueError(self.missing_files([self.specs[name][0]]))


class Pool:
    """A pool as gym_actor.Vector plays one. Its observations are all arrays of its state, which the parts' paths choose from."""

    def __init__(self, maker, width, seed):
        self.num_envs, self._maker, self._ids = width, maker, np.arange(width, dtype=np.int32)
        self.action_space = gymnasium.vector.utils.batch_space(maker.action_space, width)
        self._film, maker.film = maker.film, None
        if self._film:
            maker._options["render_mode"] = "rgb_array"
        self._pool, self._seed = maker.pool(width, seed), seed

    def close(self):
        self._pool = None

    def reset(self, seed, options=None):
        if options:
            raise actor.BrokenContract(f"a reset with {', '.join(options)}: EnvPool's take no numbers")
        if seed not in (None, self._seed):
            self._pool = None  # joins its threads
            self._pool = self._maker.pool(self.num_envs, seed)
        self._seed = -1  # used
        self._pool._reset(self._ids)
        return self._receive()

    def step(self, actions):
        self._pool._send([self._ids, self._ids, actions])
        return self._receive()

    def _receive(self):
        """As _farm.Group.write takes it: (state, rewards, any end, truncated, whether the game is over)"""
        states, over = self._pool._recv(), self._maker.over
        rewards, done, truncated = (states[at] for at in self._maker.ends)
        over = states[over] != 0 if over else done
        if self._film:
            gym_actor.draw(lambda: self._pool.render(0)[0], self._film, FILM_RATE)
            if done[0] and (over[0] or truncated[0]):
                self._film.end_game()
        return states, rewards, done, truncated, over


class Maker(gym_actor.Maker):
    """Makes pools of one id, with its options."""

    results, seed = 5, 0

    def __init__(self, library, name, options, bad_values):
        self._library, self._name, self._options, self.bad_values = library, name, options, bad_values
        keep, drop = (gym_actor.listed(options.pop(key, None)) for key in ("obs_keep", "obs_drop"))
        flatten, self._family, notes = options.pop("flatten", None), library.specs[name][0], []
        if bad_values == "reset":
            raise ValueError("--bad-values reset: a pool resets no single environment; count and fail are possible")
        combines = self._check_options()
        spec = library.registration.make_spec(name, **options)
        if spec.config.max_num_players > 1:
            raise ValueError(f"a game of {spec.config.max_num_players} players, and a lane's environments have one each")
        at = {key: place for place, key in enumerate(spec._state_keys)}  # of arrays in the pool's state
        self.ends = [at[key] for key in ("reward", "done", "trunc")]
        self.over = at.get("info:terminated") if getattr(spec.config, "episodic_life", False) else None  # whether an end is the game's
        self.frames = spec.config.frame_skip if self._family in FRAMES else 1
        self.action_space = space = library.transform("action", list(spec.action_array_spec.values())[-1], "act")
        if isinstance(space, gymnasium.spaces.Box) and space.dtype.kind == "f":
            none = (space.high > 1e9) | (space.low < -1e9)
            low, high = np.where(none, -np.inf, space.low), np.where(none, np.inf, space.high)
            self.action_space = gymnasium.spaces.Box(low, high, dtype=space.dtype.type)
        self.actions = gym_spaces.Actions(self.action_space)
        if combines:
            notes.append(f"actions are {self.actions.spec['sizes'][0]} combinations of buttons (--env.use_combined_action false: a number each)")
        parts = {key[4:] or "obs": key for key in at if key.startswith("obs")}
        if "info:legal_action_mask" in at:
            parts["action_mask"] = "info:legal_action_mask"
        arrays = {part: spec.state_array_spec[key] for part, key in parts.items()}
        values, choices = np.prod(arrays["action_mask"].shape) if "action_mask" in parts else None, sum(self.actions.spec.get("sizes", ()))
        if values not in (None, choices):
            parts["joint_mask"], arrays["joint_mask"] = parts.pop("action_mask"), arrays.pop("action_mask")
            notes.append(f"action_mask has {values} values for {choices} choices: it is the field joint_mask, and masks nothing")
        spaces = gymnasium.spaces.Dict({part: library.transform(part, array, "obs") for part, array in arrays.items()})
        self.observations = gym_spaces.Observations(spaces, flatten, keep, drop)
        self.observations.parts = [((at[parts[path[0]]],), *part) for path, *part in self.observations.parts]
        self.observations.notes += notes

    def _check_options(self):
        """ValueError: an option that EnvPool would refuse. Returns whether VizDoom's buttons are combined."""
        options, (family, spec_class, given) = self._options, self._library.specs[self._name]
        config = getattr(importlib.import_module(family), spec_class).gen_config
        known = {key: value for key, value in {**config._field_defaults, **given, **DRAWS}.items() if key not in OURS}
        if options.get("episodic_life") is False and "episodic_life" not in known:
            del options["episodic_life"]  # farm eval sets it
        for key, value in options.items():
            if key not in known:
                raise ValueError(f'option "{key}": {"the farm sets it" if key in OURS else "it has " + ", ".join(sorted(known))}')
            if not isinstance(value, (int, float) if isinstance(known[key], float) else type(known[key])):
                raise ValueError(f'option "{key}": must be of the type of {known[key]!r} (got {value!r})')
            options[key] = os.path.abspath(value) if key in ("cfg_path", "wad_path") else value
        return "use_combined_action" in known and options.setdefault("use_combined_action", True)

    def pool(self, width, seed):
        if self._family == "envpool.vizdoom" and not actor.opened:  # its engines write to the current folder
            folder = tempfile.TemporaryDirectory(prefix="farm-vizdoom-")
            actor.opened.append(types.SimpleNamespace(close=folder.cleanup))
            os.chdir(folder.name)
        make = self._library.registration.make_gymnasium
        return make(self._name, num_envs=width, batch_size=width, num_threads=1, seed=seed, **self._options)

    def vector(self, width):
        actor.opened.append(Pool(self, width, self.seed))
        return actor.opened[-1]

    def plays_as_vector(self, width, ring=None):
        return True

    def group(self, ring, lane, seeds):
        actor.check_spec(ring.spec, self.spec())
        if ring.same_step:
            raise actor.BrokenContract("is a pool, without resets in the same step: --autoreset next_step")
        self.seed = seeds[0]
        return gym_actor.Vector(ring, lane, self, seeds)


class EnvPool(gym_actor.Gym):
    """For actor.main."""

    label, family, example = "envpool_actor", "envpool", "Pong-v5, gfootball/academy_empty_goal_close-v1"

    @staticmethod
    def names():
        """The ids whose files are here, one of each family first."""
        library = Library()
        here = [name for name in library.specs if not library.lacks_files(name)]
        first = {library.specs[name][0]: name for name in reversed(here)}.values()
        return sorted(here, key=lambda name: name not in first)

    @staticmethod
    def maker(name, options, bad_values, _):
        library = Library()
        library.check(name)
        return Maker(library, name, options, bad_values)


if __name__ == "__main__":
    actor.as_process(actor.main, EnvPool)
