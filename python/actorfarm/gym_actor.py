"""The actor program for Gymnasium's environments: python -m actorfarm.gym_actor --env LunarLander-v3 --up-fd N --down-fd N ...

--env takes any id of Gymnasium, and PACKAGE:ID for an id that importing PACKAGE registers. gym_spaces.py converts spaces. Options,
--option key=value:

    flatten=true             observations as one vector f32 instead of a field for each part of Dict and Tuple (gym_spaces.py)
    obs_keep, obs_drop       names of parts of observations, with commas between them: only these, not these (recipe keys)
    wrap=PACKAGE:WRAPPER     wraps each single environment; several with commas between them, the first one innermost; arguments
                             in Python's notation: gymnasium.wrappers:ResizeObservation(shape=(84, 84)) (recipe key)
    vector=false             single environments even if the id has a vector environment
    max_episode_steps=N      truncates after N steps, like gymnasium.make
    any other                an argument of gymnasium.make, in Python's notation: 3, 0.5, true, none, (1, 2), text

The id's vector environment plays a group of 12 or more if it is the same environment (same spaces, no missing wrappers), if
bad_values is not "reset" (which concerns one environment), and if it has AutoresetMode.NEXT_STEP. Only that mode matches a lane:
an episode's last observation is a step, the next episode's first is the following step, and the other environments continue.
(SAME_STEP replaces the last observation by the first; DISABLED needs a reset before any step.) Otherwise, and for `farm serve`, which
resets single environments, the actor steps single environments in turn. An id without a single environment is reset as a whole.
"""

import ast
import contextlib
import functools
import importlib
import importlib.util
import os
import re
import sys

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")

from . import _farm, actor

try:
    import gymnasium
    import numpy as np

    from . import gym_spaces
except ModuleNotFoundError as missing:
    sys.exit(f"gym_actor: the Python package {missing.name} is missing in {sys.prefix}")

# From this width on CartPole's is faster than single ones: its NumPy calls cost the same for 1 and for 100.
VECTOR_WIDTH_LEAST = 12

RATE_HZ = 30  # of a film, if the environment does not say
GL_REMEDY = "MuJoCo draws with MUJOCO_GL=egl (Debian: libegl1 libgl1-mesa-dri) or MUJOCO_GL=osmesa (libosmesa6)"

# Packages that Gymnasium's own environments need.
NEEDS = {"box2d": ("Box2D", "pygame"), "mujoco": ("mujoco",), "phys2d": ("jax",), "tabular": ("jax",)}


TEXTS = ("obs_keep", "obs_drop", "wrap")  # recipe keys, which are not evaluated


def literal(text):
    """The value of a Python literal; other text as it is."""
    words = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def listed(text):
    """The names of a list with commas; none for "none"."""
    return [name.strip() for name in ("" if text in (None, "none") else str(text)).split(",") if name.strip()]


def apart(text):
    """What stands between the commas outside of parentheses and quotes."""
    part = ""
    for piece in text.split(","):
        part += ("," if part else "") + piece
        try:
            ast.parse(part.partition(":")[2].strip(), mode="eval")
        except SyntaxError:
            continue
        yield part
        part = ""
    if part:
        yield part


def import_named(package):
    """A package that the user names. The current folder comes last: what lies there replaces no other package."""
    with contextlib.suppress(OSError):  # the folder has been removed
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
    return importlib.import_module(package)


def wrappers(text):
    """[(name, function, arguments by name), ...] of "PACKAGE:WRAPPER, PACKAGE:WRAPPER(ARGUMENT=VALUE)"."""
    found = []
    for one in apart("" if text in (None, "none") else str(text)):
        match = re.fullmatch(r"([\w.]+):([\w.]+)(\(.*\))?", one.strip(), re.DOTALL)
        if not match:
            raise ValueError(f"wrap '{one.strip()}': must be PACKAGE:WRAPPER or PACKAGE:WRAPPER(ARGUMENT=VALUE, ...)")
        package, name, arguments = match.groups()
        try:
            call = ast.parse(f"f{arguments or '()'}", mode="eval").body
            if call.args:
                raise ValueError("arguments need names")
            wrapper = functools.reduce(getattr, name.split("."), import_named(package))
            if not callable(wrapper):
                raise ValueError(f"a {type(wrapper).__name__} is not callable")
            found.append((f"{package}:{name}", wrapper, {argument.arg: ast.literal_eval(argument.value) for argument in call.keywords}))
        except (ImportError, AttributeError, SyntaxError, ValueError) as wrong:
            raise ValueError(f"wrap '{one.strip()}': {wrong} (packages are those of PYTHONPATH, of {sys.prefix} and of the current folder)") from None
    return found


class Singles:
    """A group of single environments, stepped in turn."""

    def __init__(self, ring, lane, maker, seeds):
        self.lane, self._actions = lane, gym_spaces.LaneActions(ring, lane, maker.actions)
        self._envs, self._numbers = actor.each_made(ring, (maker.single() for _ in seeds)), [{} for _ in seeds]
        singles = [(env.step, env.reset, seed) for env, seed in zip(self._envs, seeds)]
        if maker.film:
            singles[0], maker.film = (*filmed(self._envs[0], maker.film), seeds[0]), None
        self._group, self._resets = maker.pack(ring, lane, singles), ring.numbers is not None and ring.resets

    def step(self, ring):
        for env, seed, numbers in self._resets(self.lane) if self._resets else ():
            self._numbers[env] |= numbers
            reset, options = self._envs[env].reset, self._numbers[env]
            self._group.restart(env, seed, functools.partial(reset, options=options) if options else reset)
        try:
            self._group.step(self._actions.read(ring, True))
        except actor.BrokenContract as broken:
            raise actor.BrokenContract(f"answers with {broken}: lane {self.lane}, number {self._group.at}") from broken


def draw(render, into, rate):
    """Writes what render() gives to a film."""
    try:
        rgb = np.asarray(render())
    except Exception as failed:  # MuJoCo without OpenGL raises almost anything
        raise actor.BrokenContract(f"cannot be filmed: {actor.describe_error(failed)}; {GL_REMEDY}") from failed
    if rgb.ndim != 3 or rgb.shape[2] != 3 or rgb.dtype != np.uint8:
        raise actor.BrokenContract(f"cannot be filmed: render() gives {rgb.dtype}{list(rgb.shape)}, not an RGB picture")
    into.picture(rgb, rate)


def filmed(env, into, ends=lambda result: result[2] or result[3]):
    """The environment's step and reset, each followed by a picture."""
    rate = int(env.metadata.get("render_fps") or RATE_HZ)

    def reset(**arguments):
        result = env.reset(**arguments)
        draw(env.render, into, rate)
        return result

    def step(action):
        result = env.step(action)
        draw(env.render, into, rate)
        if ends(result):
            into.end_game()
        return result

    return step, reset


class Vector:
    """A group that one vector environment plays, with one seed."""

    def __init__(self, ring, lane, maker, seeds):
        self.lane, self._actions = lane, gym_spaces.LaneActions(ring, lane, maker.actions)
        self._env, self._start = maker.vector(len(seeds)), {"seed": seeds[0]}
        self._results = maker.results
        if self._env.num_envs != len(seeds):
            count = self._env.num_envs
            raise actor.BrokenContract(f"is a vector environment of always {count}, not of a lane's {len(seeds)}: --lanes 1 --envs-per-actor {count}")
        ring.beat()
        self._group = maker.pack(ring, lane, None)

    def _take_resets(self, resets, width):
        if len(resets) != width:
            raise actor.BrokenContract(f"is a vector environment only: its {width} are reset together, not {len(resets)} of them")
        for env, *_ in resets:
            self._group.restart(env, None, None)
        _, seed, numbers = resets[0]
        self._start = {"seed": seed, **({"options": numbers} if numbers else {})}

    def _step(self, ring):
        if resets := ring.numbers is not None and ring.resets(self.lane):
            self._take_resets(resets, ring.width)
        start, self._start, none = self._start, None, np.zeros(ring.width)
        results = (self._env.reset(**start)[0], none, none, none) if start else self._env.step(self._actions.read(ring))
        observations, rewards, *ends = results[:self._results]  # (observations, rewards, terminated, truncated[, goes_on])
        try:
            self._group.write(observations, np.asarray(rewards, np.float32), *(np.asarray(end, bool) for end in ends))
        except (TypeError, ValueError) as wrong:
            raise actor.BrokenContract(f"rewards or ends that fit no group of {ring.width} ({wrong})") from wrong

    def step(self, ring):
        try:
            self._step(ring)
        except actor.BrokenContract as broken:
            raise actor.BrokenContract(f"answers with {broken}: lane {self.lane}") from broken


class Maker:
    """Makes environments of one id, with its options."""

    frames, results = 1, 4  # of a step; of a vector environment's that _farm.Group.write takes
    agents, play, film, opponent = 1, None, None, None  # of an environment; what steps a group, if not Singles or Vector; actor.py

    def __init__(self, name, options, bad_values, package=""):
        self._package, self._name, self._options, self.bad_values = package, name, dict(options), bad_values
        flatten, self._vector = self._options.pop("flatten", None), self._options.pop("vector", True)
        for key, value in (("flatten", flatten), ("vector", self._vector)):
            if value not in (None, True, False):
                raise ValueError(f'option "{key}" is true or false, not "{value}"')
        keep, drop = listed(self._options.pop("obs_keep", None)), listed(self._options.pop("obs_drop", None))
        self._wrappers = wrappers(self._options.pop("wrap", None))
        self._sample = None
        self.spaces = spaces = self._find()
        for space in spaces:
            if not isinstance(space, gymnasium.spaces.Space):
                kind = f"{type(space).__module__}.{type(space).__name__}"
                old = "made for the old gym package: " if kind.startswith("gym.") else ""
                raise ValueError(f"{old}its space {space} is a {kind}, not a gymnasium.Space")
        self.observations = gym_spaces.Observations(spaces[0], flatten, keep, drop)
        self.actions = gym_spaces.Actions(spaces[1])

    def _find(self):
        """The spaces of observations and actions."""
        self._registered = registered = gymnasium.spec(self._name)
        if registered.entry_point is None:
            sample = self.vector(1)
            if self._wrappers:
                raise ValueError("wrap: the id has a vector environment only, and wrappers are for single ones")
            if (mode := sample.metadata.get("autoreset_mode")) != gymnasium.vector.AutoresetMode.NEXT_STEP:
                remedy = "(--env.autoreset_mode NextStep, if it takes this)"
                raise ValueError(f"the id has a vector environment only, which resets by {mode}, and NEXT_STEP is needed {remedy}")
            return sample.single_observation_space, sample.single_action_space
        self._sample = self._make()
        return self._sample.observation_space, self._sample.action_space

    def single(self):
        made, self._sample = self._sample, None
        if self.film:  # for the first one; they all draw
            os.environ.setdefault("MUJOCO_GL", "egl")
            made, self._options["render_mode"] = None, "rgb_array"
        try:
            return made or self._make()
        except TypeError as failed:  # no argument render_mode
            if not self.film:
                raise
            raise actor.BrokenContract(f"cannot be filmed: {actor.describe_error(failed)}") from failed

    def _make(self):
        """Without Gymnasium's checker, which only warns."""
        return self._wrap(gymnasium.make(self._name, **{"disable_env_checker": True, **self._options}), gymnasium.Env)

    def _wrap(self, env, *kinds):
        actor.opened.append(env)
        for name, wrapper, arguments in self._wrappers:
            try:
                env = wrapper(actor.opened[-1], **arguments)
            except (TypeError, ValueError, AssertionError) as failed:
                raise ValueError(f"wrap '{name}': {type(failed).__name__}: {failed}{actor.place_of(failed, own=True)}") from None
            if not isinstance(env, kinds):
                raise ValueError(f"wrap '{name}': it returns {type(env).__name__}, not a {kinds[0].__module__.split('.')[0]}.{kinds[0].__name__}")
            actor.opened[-1] = env
        return actor.opened[-1]

    def vector(self, width):
        mode = gymnasium.VectorizeMode.VECTOR_ENTRY_POINT
        actor.opened.append(gymnasium.make_vec(self._name, width, vectorization_mode=mode, **self._options))
        return actor.opened[-1]

    def plays_as_vector(self, width, ring=None):
        """Whether the id's vector environment replaces single ones."""
        if self._registered.entry_point is None:
            if ring and ring.same_step:
                raise actor.BrokenContract("is a vector environment only, without resets in the same step: --autoreset next_step")
            return True
        if self._registered.vector_entry_point is None or not self._vector or self.film or (ring and (ring.same_step or ring.numbers is not None)):
            return False
        if self._registered.additional_wrappers or self._wrappers or self.bad_values == "reset" or width < VECTOR_WIDTH_LEAST:
            return False
        try:
            trial = self.vector(1)
        except Exception:  # an argument for single environments only, or a missing package
            return False
        fits = (trial.single_observation_space, trial.single_action_space) == self.spaces
        actor.opened.remove(trial)
        trial.close()
        return fits and trial.metadata.get("autoreset_mode") == gymnasium.vector.AutoresetMode.NEXT_STEP

    def pack(self, ring, lane, singles):
        """The packer of a lane: _farm.Group."""
        how = "reset cannot replace a reset" if self.bad_values == "reset" else self.bad_values
        masked = any(name == "action_mask" for name, *_ in self.observations.fields)
        invalid = "a reward or an observation that is NaN, infinite or beyond 1e9"
        invalid = None if self.bad_values == "count" else f"{invalid}{', or an action_mask that permits no choice' if masked else ''} (--bad-values {how})"
        return _farm.Group(ring, lane, self.observations.parts, self.observations.convert, singles, invalid, self.bad_values == "reset")

    def group(self, ring, lane, seeds):
        if not hasattr(self, "_group"):
            actor.check_spec(ring.spec, self.spec())
            self._group = self.play or (Vector if self.plays_as_vector(len(seeds), ring) else Singles)
            if self.film and self._group is Vector:
                raise actor.BrokenContract("cannot be filmed: it is a vector environment only")
        return self._group(ring, lane, self, seeds)

    def spec(self):
        fields = [{"name": name, "dtype": dtype, "dims": list(dims), "choices": choices} for name, dtype, dims, choices in self.observations.fields]
        more = {"frames_per_step": self.frames, "agents": self.agents, "notes": self.observations.notes}
        return {"obs": fields, "action": self.actions.spec, **more}


class Gym:
    """For actor.main."""

    label, example = "gym_actor", "CartPole-v1, or PACKAGE:ID of a package that registers it"
    family, maker = "gym", Maker

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

    @classmethod
    def prepare(cls, name, pairs, bad_values):
        gymnasium.logger.min_level = gymnasium.logger.ERROR
        options = {key: text if key in TEXTS else literal(text) for key, _, text in (pair.partition("=") for pair in pairs)}
        package, _, id = name.rpartition(":")
        try:
            if package:
                import_named(package)
            return cls.maker(id, options, bad_values, package)
        except Exception as failed:
            from . import gym_refusal

            raise ValueError(f"{cls.family}/{name}: {gym_refusal.explain(package, id, failed)}") from None


if __name__ == "__main__":
    actor.as_process(actor.main, Gym)
