"""The program `farm` that belongs to this package: the wheel's console script, and its path for others."""

import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

_PLACES = ("bin/farm", "../../farm", "../../../../bin/farm")  # in a wheel, a build folder, an installation


def path() -> str:
    """$FARM_PROGRAM, else the program that came with this package, else `farm`, which PATH must have."""
    places = [os.path.abspath(os.path.join(__file__, "..", place)) for place in _PLACES]
    return os.environ.get("FARM_PROGRAM") or next((place for place in places if os.access(place, os.X_OK)), "farm")


def words(keys: Mapping[str, Any]) -> Iterator[str]:
    """Flags of farm, without those that are None. A list: the flag several times; a dict: the environment's options."""
    for key, value in keys.items():
        for each in value if isinstance(value, (list, tuple)) and "." not in key else [value]:
            if isinstance(each, Mapping):
                yield from words({f"env.{option}": text for option, text in each.items()})
            elif each is not None:
                yield f"--{key if '.' in key else key.replace('_', '-')}={str(each).lower() if isinstance(each, bool) else each}"


def main() -> None:
    """Becomes the program. Actors written in Python run in this interpreter, unless FARM_PYTHON names another."""
    os.environ.setdefault("FARM_PYTHON", sys.executable)
    os.execvp(path(), ["farm", *sys.argv[1:]])
