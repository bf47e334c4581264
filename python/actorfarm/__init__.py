"""actorfarm in Python: actors written in Python, and reading lanes.

`actorfarm._farm` is the C extension that gives access to the lanes; `python -m actorfarm.ale_actor` plays Atari games.
"""

import importlib.machinery
import os
import sys

_built = [name for name in os.listdir(os.path.dirname(__file__)) if name.startswith("_farm.")]
if not any("_farm" + suffix in _built for suffix in importlib.machinery.EXTENSION_SUFFIXES):
    _reason = f"its C extension was built for another: {', '.join(_built)}" if _built else "its C extension was not built"
    sys.exit(f"actorfarm: {sys.executable} is Python {sys.version.split()[0]}, {_reason}")
