"""Environments given as Python objects: a callable or class that makes a gymnasium.Env, or a list of these, one for each environment.

The user's process pickles them by cloudpickle into memory, whose descriptor this machine's actors inherit: option `memory` of NAME.
With remote nodes actors import them instead: option `entry`, "MODULE:NAME". All other options are the callable's arguments.
"""

import contextlib
import itertools
import mmap
import os
import pickle
import sys
import uuid
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator

NAME = "gym/actorfarm.passed:actorfarm/Env-v0"


# ---- the user's process ----


def _importable(env: Any) -> str:
    """MODULE:NAME of what another process can import."""
    module, name = getattr(env, "__module__", None), getattr(env, "__qualname__", "<")
    found = None if module in (None, "__main__") or "<" in name else sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None or found is not env:
        raise ValueError(f"env: other machines' actors import it: with listen=, it must be a class of a module or an environment's name (got {env!r})")
    return f"{module}:{name}"


def give(env: Any, per_actor: int = 1, listen: bool = False) -> tuple[str, dict[str, Any], int]:
    """(name of the environment for farm, its options, a descriptor), for a farm whose actors have per_actor environments each.
    The farm's start passes the descriptor on; then the caller closes it."""
    makers = list(env) if isinstance(env, (list, tuple)) else [env]
    for maker in makers:
        if not callable(maker):
            raise TypeError(f"env: must be an environment's name, a callable or class that makes a gymnasium.Env, or a list of these (got {maker!r})")
    if listen and len(makers) != 1:
        raise ValueError("env: a list is for this machine's actors only; with listen=, it must be one class")
    entry = {"entry": _importable(makers[0])} if listen else {}
    import cloudpickle

    try:
        made = cloudpickle.dumps([] if listen else makers)
    except Exception as failed:
        raise TypeError(f"env: it cannot be pickled ({type(failed).__name__}: {failed}); open files, locks and connections inside it") from failed
    folders = [os.path.abspath(folder) for folder in sys.path]
    memory = f"env-{uuid.uuid4().hex}"
    fd = os.memfd_create(memory)
    with open(fd, "wb", closefd=False) as file:
        pickle.dump((sys.version_info[:2], folders, per_actor, made), file)
    return NAME, {"memory": memory, **entry}, fd


# ---- an actor ----


def _descriptor(memory: str) -> int:
    """Its number here."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # that of the list itself
            if os.readlink(f"/proc/self/fd/{fd}").startswith(f"/memfd:{memory} "):
                return fd
    raise ValueError("its descriptor has not been passed on: only the process that made this environment can start its farm")


class _Taken:
    """What the memory holds, and the environments that this actor has made of it."""

    def __init__(self, memory: str) -> None:
        with mmap.mmap(_descriptor(memory), 0, access=mmap.ACCESS_READ) as pickled:
            version, folders, self._per_actor, made = pickle.loads(pickled)
        if version != sys.version_info[:2]:
            theirs, ours = (".".join(map(str, one)) for one in (version, sys.version_info[:2]))
            raise ValueError(f"it was pickled by Python {theirs}, and {sys.executable} is Python {ours} (FARM_PYTHON must name the same version)")
        sys.path += [folder for folder in folders if folder not in sys.path]
        try:
            self._makers = pickle.loads(made)
        except Exception as failed:
            raise ValueError(f"it cannot be unpickled: {type(failed).__name__}: {failed}") from failed
        self._count = itertools.count()
        self._spaces: Any = None

    def make(self, options: dict[str, Any]) -> gymnasium.Env[Any, Any]:
        """Environments are made in the order of the actor's lanes."""
        from . import actor

        index = actor.place * self._per_actor + next(self._count)
        env: gymnasium.Env[Any, Any] = self._makers[index % len(self._makers)](**options)
        spaces = getattr(env, "observation_space", None), getattr(env, "action_space", None)
        if self._spaces not in (None, spaces):
            raise actor.BrokenContract(f"differs from others of its list: environment {index} has {spaces}, not {self._spaces}")
        self._spaces = spaces
        return env


_taken: dict[str, _Taken] = {}


def _take(memory: str) -> _Taken:
    if memory not in _taken:
        _taken[memory] = _Taken(memory)
    return _taken[memory]


def _make(memory: str = "", entry: str | None = None, **options: Any) -> gymnasium.Env[Any, Any]:
    if entry is None:
        return _take(memory).make(options)
    with contextlib.suppress(ValueError):  # another machine has its own folders
        _take(memory)
    maker: Any = load_env_creator(entry)
    made: gymnasium.Env[Any, Any] = maker(**options)
    return made


gymnasium.register(NAME.rpartition(":")[2], _make, order_enforce=False)
