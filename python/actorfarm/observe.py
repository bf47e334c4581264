"""Copies of the lanes of any running farm of this user, which does not notice it: farm/farm.h's views in Python."""

import contextlib
import os
import re
from typing import Any

import numpy as np
import numpy.typing as npt
from actorfarm import _farm

FIELDS = ("reward", "flags", "action", "policy", "value")  # the last three are answers


class attach:  # noqa: N801
    """The lanes of the farm whose supervisor is process `pid` (of `farm train`, or Training.pid), numbered over the actors that it has now."""

    def __init__(self, pid: int) -> None:
        found: dict[int, dict[str, str]] = {}
        self._lanes: list[Any] = []
        for entry in os.scandir(f"/proc/{int(pid)}/fd"):
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                segment = re.match(r"/memfd:farm-(up|down)-(\d+)", os.readlink(entry.path))
                if segment:
                    found.setdefault(int(segment[2]), {}).setdefault(segment[1], entry.path)
        for actor, paths in sorted(found.items()):
            if len(paths) == 2:
                ring = _farm.observe(*(os.open(paths[side], os.O_RDONLY | os.O_CLOEXEC) for side in ("up", "down")))
                self._lanes += [(actor, ring, lane, ring.arrays(lane)) for lane in range(ring.lanes)]
        if not self._lanes:
            raise LookupError(f"process {pid} has no lanes: it is not a farm, or its actors have not started")
        self.lanes, self.spec = len(self._lanes), self._lanes[0][1].spec

    def state(self, lane: int) -> dict[str, int]:
        """Of a lane: actor, lane (of its actor), width (environments), steps (that it holds); steps produced, acted (answered), consumed."""
        actor, ring, own, _ = self._lanes[lane]
        return dict(zip("actor lane width steps produced acted consumed".split(), (actor, own, ring.width, ring.steps, *ring.counters(own))))

    def newest(self, lane: int) -> int:
        return self.state(lane)["produced"] - 1  # the newest published step; -1: none

    def copy(self, lane: int, step: int, field: str | int) -> npt.NDArray[Any]:
        """A field of a step, [width][...]: an observation (its name in spec, or its number), "reward", "flags", or, once the next step is published,
        "action", "policy", "value". LookupError: not published yet, or overwritten, perhaps while it was copied."""
        _, ring, own, (obs, *others) = self._lanes[lane]
        number = field if isinstance(field, int) or field in FIELDS else [part["name"] for part in self.spec["obs"]].index(field)
        array = others[FIELDS.index(field)] if field in FIELDS else obs[number]
        if not 0 <= step < ring.counters(own)[0] - (field in FIELDS[2:]):
            raise LookupError(f"lane {lane}: step {step} has no {field} yet; the newest step is {self.newest(lane)}")
        copy = np.array(np.asarray(array)[step % ring.steps])
        if step + ring.steps <= ring.counters(own)[0]:
            raise LookupError(f"lane {lane}: step {step} is overwritten: of {self.newest(lane) + 1} steps the lane holds the last {ring.steps - 1}")
        return copy
