"""Environments of a farm behind EnvPool's interface (docs/PYTHON.md). A lane of `batch_size` environments steps together: recv returns the first
that is ready, in place. One thread at a time; not in a fork's child. The farm ends with the pool or its process."""

import functools
import operator
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt

from . import _consumer, program

Array = npt.NDArray[Any]
Seeds = int | Sequence[int | None] | None  # environment i gets seed + i, or the i-th
Batch = tuple[Any, Array, Array, Array, dict[str, Any]]  # obs, reward, terminated, truncated, info
FarmEnded = _consumer.FarmEnded

_STEPS = 16  # of a lane's ring, unless more are kept
_FREE = 2  # steps below which recv copies


class Sizes(NamedTuple):
    actors: int
    lanes: int  # of one actor
    width: int  # environments of one lane


def sizes(num_envs: int, batch_size: int | None = None, actors: int | None = None, cores: int | None = None) -> Sizes:
    """How num_envs environments are laid out: a lane of batch_size environments, or, if all of them step together, one lane an actor.
    actors: chosen, at most one a core (None: those that this process may use)."""
    num_envs, width = operator.index(num_envs), operator.index(num_envs if batch_size is None else batch_size)
    if num_envs < 1 or width < 1 or num_envs % width:
        raise ValueError(f"num_envs: must be 1 or more and a multiple of batch_size (got {num_envs}, {batch_size})")
    together = width == num_envs
    width = 1 if together else width
    units = num_envs // width  # shared out among the actors
    most = min(units, cores or len(os.sched_getaffinity(0)))
    count = actors or next(count for count in range(most, 0, -1) if units % count == 0)
    if count < 1 or units % count:
        raise ValueError(f"actors: must divide {units} {'environments' if together else 'lanes'} (got {actors})")
    return Sizes(count, 1, units // count) if together else Sizes(count, units // count, width)


# ---- observations ----

_pinned: dict[int, int] = {}  # first address and end of mappings that CUDA knows


def _pin(array: Array, cuda: Any) -> None:
    """Registers the ring that holds this array, once, so that copies to the GPU need no intermediate buffer. A refusal leaves it pageable."""
    address = array.ctypes.data
    if any(start <= address < end for start, end in _pinned.items()):
        return
    with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:
        for line in maps:
            start, end = (int(text, 16) for text in line.split(maxsplit=1)[0].split("-"))
            if start <= address < end:
                if "/memfd:" in line:
                    cuda.cudart().cudaHostRegister(start, end - start, 8)  # cudaHostRegisterReadOnly
                    _pinned[start] = end
                return


def torch(array: Array) -> Any:
    """A torch.Tensor of the array's memory, without PyTorch's warning. A write into an observation in place ends the process (SIGSEGV):
    PyTorch has no read-only tensors; make(debug=True) hands out copies. If CUDA is in use, the ring is registered with it."""
    cuda = sys.modules["torch"].cuda if "torch" in sys.modules else None
    if cuda is not None and cuda.is_initialized():
        _pin(array, cuda)
    return _consumer.torch(array)


class Obs(np.ndarray[Any, Any]):
    """An array of numpy, with actorfarm.torch as a method."""

    __slots__ = ()
    torch = torch


def _space(field: Mapping[str, Any], stack: int) -> gymnasium.Space[Any]:
    dims = (stack, *field["dims"]) if stack > 1 else field["dims"]
    if field["dtype"] == "f32":
        return gymnasium.spaces.Box(-np.inf, np.inf, dims, np.float32)
    known = np.iinfo(np.uint8 if field["dtype"] == "u8" else np.int32)
    low, high = (0, field["choices"] - 1) if field["choices"] else (known.min, known.max)
    return gymnasium.spaces.Box(low, high, dims, dtype=known.dtype.type)


def _action_space(action: Mapping[str, Any]) -> gymnasium.Space[Any]:
    if action["kind"] == "discrete":
        return gymnasium.spaces.Discrete(action["sizes"][0])
    if action["kind"] == "multi_discrete":
        return gymnasium.spaces.MultiDiscrete(action["sizes"])
    low, high = (np.array(action[name], np.float32) for name in ("low", "high"))
    return gymnasium.spaces.Box(low, high, dtype=np.float32)


# ---- the pool ----


class Pool:
    """The environments of a farm; `make` makes one.

    num_envs, batch_size, config;   observation_space, action_space: of one environment
    stack, copy                     as given to make;   consumer: the lanes (actorfarm._consumer.Consumer)
    """

    def __init__(self, consumer: _consumer.Consumer, batch_size: int | None, config: Mapping[str, Any], info: Sequence[str]) -> None:
        spec = consumer.spec
        self.consumer, self.stack, self.copy, self.width = consumer, int(config["stack"]), bool(config["copy"]), int(spec["width"])
        self.disabled, self.elastic = config["autoreset"] == "disabled", bool(config["listen"] or config["socket"])
        self._lanes = consumer.lanes().tolist()
        self.num_envs = len(self._lanes) * self.width
        self.batch_size = batch_size or self.num_envs
        if self.batch_size not in (self.width, self.num_envs):
            raise ValueError(f"batch_size: must be that of a lane ({self.width}) or of all environments ({self.num_envs}; got {batch_size})")
        if spec["same_step"] != (config["autoreset"] == "same_step"):
            raise ValueError(f"autoreset: this farm's is {'same_step' if spec['same_step'] else 'next_step'} (got {config['autoreset']!r})")
        self._least = self.batch_size // self.width
        self.config = {**config, "num_envs": self.num_envs, "batch_size": self.batch_size, "lanes": len(self._lanes), "steps": spec["steps"]}
        self._fields = [field["name"] for field in spec["obs"]]
        if missing := set(info) - set(self._fields):
            raise ValueError(f"info: the environment has no field {min(missing)!r}; it has {', '.join(self._fields)}")
        self._infos = [name for name in self._fields if name in info or name == "lives"]
        self._names = [name for name in self._fields if name not in info]
        self._plain = len(self._fields) == 1 and not self._infos
        spaces = {field["name"]: _space(field, self.stack) for field in spec["obs"] if field["name"] in self._names}
        self.observation_space = gymnasium.spaces.Dict(spaces) if len(spaces) != 1 else spaces[self._names[0]]
        self.action_space = _action_space(spec["action"])
        self._no_action = np.zeros(self.action_space.shape or (), self.action_space.dtype)
        self._ids: Array = np.arange(self.num_envs, dtype=np.int32)  # of the last recv
        self._ended, self._begun, self._warned = np.zeros(self.num_envs, bool), bool(config["socket"]), False

    # ---- EnvPool's interface ----

    def recv(self) -> Batch:
        """(obs, reward, terminated, truncated, info) of the lane that has waited longest, or of all of them, in the order of
        info["env_id"]. info["elapsed_step"] is 0 at an episode's first observation, even if its actor was started anew."""
        least = len(self.consumer.lanes()) if self.elastic and self._least > 1 else self._least
        fields, reward, terminated, truncated, env_id, elapsed, last, full = self.consumer.take(least, least, None, self.stack, self.copy)
        self._ids, self._begun = env_id, True
        info: dict[str, Any] = {"env_id": env_id, "elapsed_step": elapsed}
        if full and not self._warned:
            self._warned = True
            warnings.warn(
                f"observations that are kept fill a ring of {self.config['steps']} steps and are copied out of it, now and later: "
                "make(..., keep=N) makes room for N steps",
                stacklevel=2 + (sys._getframe(1).f_code.co_filename == __file__),
            )
        info |= self._more(fields)
        if last is not None:
            info["final_obs"], info["_final_obs"] = self._observe(last), terminated | truncated
        if self.disabled:
            self._ended = terminated | truncated
        return (fields[0].view(Obs) if self._plain else self._observe(fields)), reward, terminated, truncated, info

    def _observe(self, fields: Sequence[Array]) -> Any:
        named = {name: fields[i].view(Obs) for i, name in enumerate(self._fields) if name in self._names}
        return named if len(named) != 1 else named[self._names[0]]

    def _more(self, fields: Sequence[Array]) -> dict[str, Array]:
        return {name: fields[self._fields.index(name)] for name in self._infos}

    def send(self, actions: Any, env_id: Any = None) -> None:
        """Actions of these environments, by default of those of the last recv. The lane steps once all of its environments have one.
        {"action": ..., "env_id": ...} is allowed."""
        if isinstance(actions, Mapping):
            actions, env_id = actions["action"], actions.get("env_id", env_id)
        env_id = self._ids if env_id is None else env_id
        if self.disabled and self._ended[env_id].any():
            raise gymnasium.error.ResetNeeded(f"these episodes have ended, reset_mask begins others: {np.flatnonzero(self._ended).tolist()}")
        self.consumer.put(env_id, actions)

    def step(self, actions: Any, env_id: Any = None) -> Batch:
        """send and recv."""
        self.send(actions, env_id)
        return self.recv()

    def async_reset(self, seed: Seeds = None, numbers: Mapping[str, Any] | None = None) -> None:
        """Begins an episode in every environment; recv returns their first observations. seed: environment i gets seed + i, or the i-th."""
        if self._begun or seed is not None or numbers:
            lanes, _ = self._await()
            self._control(np.isin(self._lanes, lanes).repeat(self.width), seed, numbers)
            self.consumer.send(lanes, self._idle(len(lanes) * self.width))
        self._begun = True

    def reset(self, seed: Seeds = None, numbers: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """async_reset and recv: (obs, info)."""
        self.async_reset(seed, numbers)
        obs, _, _, _, info = self.recv()
        return obs, info

    # ---- more ----

    def _idle(self, rows: int) -> Array:
        """Actions that do not count."""
        return np.broadcast_to(self._no_action, (rows, *self._no_action.shape))

    def _await(self) -> tuple[Array, Array]:
        """(lanes, steps), once all lanes wait for actions."""
        while len(self.consumer.lanes()) > len((waiting := self.consumer.waiting())[0]):
            self.consumer.recv()
        return waiting

    def _control(self, mask: Any, seed: Seeds, numbers: Mapping[str, Any] | None, now: bool = False) -> Array:
        """Lets the next answers reset these environments, whose numbers it returns, or none of them."""
        mask, count, known = np.asarray(mask), self.num_envs, self.consumer.spec["numbers"]
        if mask.shape != (count,) or mask.dtype != bool:
            raise ValueError(f"mask: must be {count} bools (got {mask.dtype}{list(mask.shape)})")
        if now and (split := np.flatnonzero((rows := mask.reshape(-1, self.width)).any(1) ^ rows.all(1))).size:
            together = f"environments {split[0] * self.width} to {(split[0] + 1) * self.width - 1} are one lane and are reset together"
            raise ValueError(f'reset_mask: {together}; batch_size=1 or autoreset_mode="disabled" makes lanes of one environment')
        if seed is None or isinstance(seed, (int, np.integer)):
            seed = [None if seed is None else int(seed) + i for i in range(count)]
        if len(seed) != count or any(one is not None and not 0 <= one < 1 << 64 for one in seed):
            raise ValueError(f"seed: must be 0 or more, one or one for each of {count} environments (got {seed})")
        if unknown := set(numbers or ()) - set(known):
            raise ValueError(f"{min(unknown)!r} is not a number of these environments ({', '.join(known) or 'there are none'}; numbers= names them)")
        each = np.full((count, len(known)), np.nan)
        for name, value in (numbers or {}).items():
            each[:, known.index(name)] = value
        chosen = np.flatnonzero(mask)
        if (strange := chosen[~np.isin(self._lanes, self.consumer.waiting()[0])[chosen // self.width]]).size:
            raise ValueError(f"env_id {strange[0]} waits for no action: not received")
        for i in chosen.tolist():
            self.consumer.control(self._lanes[i // self.width], i % self.width, seed[i], each[i].tolist())
        return chosen

    def _restart(self, mask: Any, seed: Seeds, numbers: Mapping[str, Any] | None) -> list[Array]:
        """Observations of all environments, which wait, when these (None: all) have begun an episode."""
        if self._begun or mask is not None or seed is not None or numbers:
            self._await()
            chosen = self._control(np.ones(self.num_envs, bool) if mask is None else mask, seed, numbers, now=True)
            self.consumer.put(chosen, self._idle(len(chosen)))
            self._ended[chosen] = False
        self._begun, (lanes, steps) = True, self._await()
        return [self.consumer.gather(lanes, steps, _consumer.OBS + i, self.stack) for i in range(len(self._fields))]

    def reset_mask(self, mask: Any, seed: Seeds = None, numbers: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]] | None:
        """Resets the environments whose mask is true, which wait for actions: with the next send, whose actions for them do not count. With a
        seed, and with numbers (those that make names; one, or one for each of num_envs). autoreset="disabled": now; returns (obs, info)."""
        if not self.disabled:
            self._control(mask, seed, numbers)
            return None
        fields = self._restart(mask, seed, numbers)
        return self._observe(fields), {"env_id": self._ids, "reset_mask": mask, **self._more(fields)}

    def collect(self, policy: Callable[..., Any], steps: int = 128, **options: Any) -> Iterator[Any]:
        """Windows of `steps` steps of lanes that the policy answers: rollout.collect has the options."""
        from .rollout import collect

        self._begun = True
        return collect(self, policy, steps, **options)

    @property
    def stats(self) -> dict[str, float]:
        """Since the last look: steps, and whether the loop waits for environments (recv_wait_*) or they for it (answer_wait_*)."""
        return self.consumer.stats()

    def close(self) -> None:
        """Ends the farm. Observations stay valid."""
        self.consumer.close()

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.num_envs


def make(
    env: Any = None,
    num_envs: int = 1,
    batch_size: int | None = None,
    seed: int | None = None,
    stack: int = 1,
    autoreset: str = "next_step",
    info: Sequence[str] = (),
    options: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    numbers: Sequence[str] = (),
    actors: int | None = None,
    steps: int | None = None,
    listen: str | tuple[str, str] | None = None,
    socket: str | os.PathLike[str] | None = None,
    debug: bool = False,
    keep: int | None = None,
    copy: bool = False,
    **flags: Any,
) -> Pool:
    """Starts a farm of environments, which this process answers; docs/PYTHON.md has examples.

    env         a name (`farm envs`), or a callable or class that makes a gymnasium.Env, or a list of these, one for each environment
    batch_size  environments that recv returns together; None: all.   actors: processes; None: at most one for each core
    stack       frames, oldest first, in front of each observation's shape
    autoreset   "next_step": an episode ends with its last observation, and the step behind it begins another one; "same_step": both in
                one step, the last observation in info["final_obs"]; "disabled": reset_mask begins another one
    info        fields of the observation that recv returns in info instead
    options     the environment's, or one dict for each environment (gym/ and callables).   numbers: names of options for reset_mask
    steps       that a lane's ring holds.   keep: observations of a lane that you keep in place, so that a ring holds them
    listen      "ADDRESS:PORT", or with a key's file ("ADDRESS:PORT", "FILE"): other machines' actors may join, with further env_ids
    socket      of a running `farm serve --socket PATH`, in place of env and num_envs.   debug, copy: no observations in place
    flags       others of `farm serve`, as hang_kill=10 or pin=True (actors keep to CPUs of their own; other programs may slow them then)
    """
    if autoreset not in ("next_step", "same_step", "disabled"):
        raise ValueError(f"autoreset: must be next_step, same_step or disabled (got {autoreset!r})")
    if stack < 1:
        raise ValueError(f"stack: must be 1 or more (got {stack})")
    numbers, info = ((names,) if isinstance(names, str) else names for names in (numbers, info))
    disabled, passed_fd = autoreset == "disabled", None
    config = {"env": env, "seed": seed, "stack": stack, "autoreset": autoreset, "listen": listen, "socket": socket, "copy": copy or debug}
    if socket is not None:
        return Pool(_consumer.Consumer(socket=os.fspath(socket), keep=stack - 1), batch_size, config, info)
    if disabled and batch_size not in (None, num_envs):
        raise ValueError("autoreset: with disabled, all environments step together; batch_size must be None")
    shape = sizes(num_envs, 1 if disabled else batch_size, actors)
    if not isinstance(options, Mapping | None):
        if not (isinstance(env, str) and env.startswith("gym/")) and not callable(env) or len(options) != num_envs:
            raise ValueError(f"options: one dict for each of {num_envs} environments, of gym/ or a callable")
        maker = functools.partial(gymnasium.make, env[4:]) if isinstance(env, str) else env
        env, options = [functools.partial(maker, **one) for one in options], None
    name, given = env, dict(options or {})
    if isinstance(env, (list, tuple)) and len(env) != num_envs:
        raise ValueError(f"env: a list must have one for each of {num_envs} environments (got {len(env)})")
    if not isinstance(env, str):
        from . import passed

        name, made, passed_fd = passed.give(env, shape.lanes * shape.width, listen is not None)
        given = {**made, **given}
    (address, key), least = listen if isinstance(listen, tuple) else (listen, None), (keep or 0) + stack + _FREE
    layout = {"actors": shape.actors, "lanes": shape.lanes, "envs_per_actor": shape.lanes * shape.width, "steps": steps or max(_STEPS, least)}
    more = {"seed": seed, "numbers": ",".join(numbers) or None, "listen": address, "key": key, "autoreset": "next_step" if disabled else autoreset}
    words = list(program.words({"env": name, **layout, **more, "quiet": True, "pin": False, **flags, "options": given}))
    os.environ.setdefault("FARM_PROGRAM", program.path())
    os.environ.setdefault("FARM_PYTHON", sys.executable)
    try:
        consumer = _consumer.Consumer(words, pass_fds=() if passed_fd is None else (passed_fd,), keep=stack - 1)
    finally:
        if passed_fd is not None:
            os.close(passed_fd)
    return Pool(consumer, None if disabled else batch_size, config, info)
