"""actorfarm in Python: actors written in Python, and reading lanes.

`actorfarm._farm` is the C extension that gives access to the lanes; `python -m actorfarm.ale_actor` plays Atari games.
ImportError without an extension for this Python; it names the package, so `python -m` reports it in one line.
"""

import importlib.machinery
import os
import sys

_built = [name for name in os.listdir(os.path.dirname(__file__)) if name.startswith("_farm.")]
if not any("_farm" + suffix in _built for suffix in importlib.machinery.EXTENSION_SUFFIXES):
    _reason = f"its C extension was built for another: {', '.join(_built)}" if _built else "its C extension was not built"
    _python = f"{sys.executable} is Python {sys.version.split()[0]}"
    raise ImportError(f"actorfarm: {_python}, {_reason} (`make PYTHON=...` builds it for this one)", name=__name__)
