"""actorfarm in Python: environments for a loop of your own (make), and actors written in Python.

`actorfarm._farm` is the C extension that gives access to the lanes; `python -m actorfarm.ale_actor` plays Atari games.
ImportError without an extension for this Python; it names the package, so `python -m` reports it in one line.
"""

import importlib
import importlib.machinery
import os
import sys

_built = [name for name in os.listdir(os.path.dirname(__file__)) if name.startswith("_farm.")]
if not any("_farm" + suffix in _built for suffix in importlib.machinery.EXTENSION_SUFFIXES):
    _reason = f"its C extension was built for another: {', '.join(_built)}" if _built else "its C extension was not built"
    _python = f"{sys.executable} is Python {sys.version.split()[0]}"
    raise ImportError(f"actorfarm: {_python}, {_reason} (`make PYTHON=...` builds it for this one)", name=__name__)

TYPE_CHECKING = False  # typing's import takes time
if TYPE_CHECKING:
    from ._consumer import gae as gae, vtrace as vtrace
    from .checkpoint import export as export, load as load, save as save
    from .observe import attach as attach
    from .parallel_env import pettingzoo as pettingzoo
    from .pool import FarmEnded as FarmEnded, Pool as Pool, make as make, torch as torch
    from .rollout import Window as Window, gather as gather, on_jax as on_jax, on_torch as on_torch
    from .training import train as train
    from .vector_env import env as env, vector as vector

# Names that users import, and their modules, imported on demand: actors start without them.
_HOMES = {
    **dict.fromkeys(("FarmEnded", "Pool", "make", "torch"), "pool"),
    **dict.fromkeys(("Window", "gather", "on_jax", "on_torch"), "rollout"),
    **dict.fromkeys(("gae", "vtrace"), "_consumer"),
    **{"attach": "observe", "export": "checkpoint", "load": "checkpoint", "pettingzoo": "parallel_env", "save": "checkpoint", "train": "training"},
    **dict.fromkeys(("env", "vector"), "vector_env"),
}


def __dir__():  # type: ignore[no-untyped-def]
    return [*globals(), *_HOMES, "sb3", "torchrl"]


def __getattr__(name):  # type: ignore[no-untyped-def]
    if name in ("sb3", "torchrl"):
        return importlib.import_module(f"actorfarm.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"actorfarm.{_HOMES[name]}"), name)
    return value
