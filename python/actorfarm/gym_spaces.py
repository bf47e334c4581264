"""Gymnasium's spaces in a lane: observations as fields, written in place; actions from the learner's answers.

Observations
    Box of u8               a field u8 of the same shape
    Box of floats           a field f32 of the same shape
    Box of other integers   a field i32 of the same shape
    Discrete, MultiDiscrete a field i32, counted from 0, with `choices`, the largest number of them
    MultiBinary             a field u8 of 2 choices
    Dict, Tuple             the fields of their parts, also nested, named by keys and indices with dots ("arm.0"); a name is cut to
                            23 letters and made unique. A Dict's action_mask (MultiBinary or a Box of 0 and 1) is a field of this
                            name, u8 of 2 choices: which actions are allowed
    `flatten` True makes one vector f32 of everything but action_mask, like gymnasium.spaces.flatten: choices one-hot.
Actions
    Discrete (from any start), MultiDiscrete, Box of floats (clipped to its bounds, NaN to the lower one).
Any other space is a ValueError that names it. An observation of another shape, type or choice is a BrokenContract; a Box's
bounds are not checked.
"""

import math

import numpy as np
from gymnasium import spaces

from .actor import BrokenContract

FIELDS_MAX, RANK_MAX, NAME_MAX, ACTION_DIMS_MAX = 8, 4, 23, 32  # include/farm/env.h
MASK = ("action_mask",)
F32_MAX = float(np.finfo(np.float32).max)
NUMPY = {"u8": np.uint8, "i32": np.int32, "f32": np.float32}


def describe(space):
    text = " ".join(repr(space).split())
    return text if len(text) <= 160 else text[:157] + "..."


# ---- leaves: values of one simple space ----


class Array:
    """A Box. `ranges`: no choices."""

    ranges = None

    def __init__(self, space):
        kind, self.shape = np.dtype(space.dtype), space.shape
        self.dims = space.shape or (1,)
        self.size = math.prod(self.dims)
        self.dtype = "u8" if kind == np.uint8 else "f32" if kind.kind == "f" else "i32"
        if kind.kind not in "fiu" or self.size == 0:
            raise ValueError(f"observation space {describe(space)}: must be a Box of numbers that is not empty")
        if self.dtype == "i32" and (space.low.min() < -(2**31) or space.high.max() >= 2**31):
            raise ValueError(f"observation space {describe(space)}: its integers need more than 32 bits")
        self.choices = int(space.high.max()) + 1 if self.dtype == "u8" and space.high.max() < 255 else 0

    def flat(self):
        """Numbers in a vector f32, and the ranges of those that are one-hot."""
        return self.size, None

    def convert(self, value, dtype, batch):
        """value: of shape batch + the space's. -> a contiguous array of this shape"""
        value = np.asarray(value)
        if value.shape != batch + self.shape:
            raise BrokenContract(f"an observation of shape {value.shape} instead of {batch + self.shape}")
        return value.astype(dtype, "C", "same_kind")


class Choices:
    """Whole numbers of known `ranges`, [(start, count), ...], counted from 0: Discrete, MultiDiscrete; as u8: bits."""

    def __init__(self, space, starts, counts, dtype="i32"):
        self.shape, self.dims, self.dtype = space.shape, space.shape or (1,), dtype
        self.ranges = [(int(start), int(n)) for start, n in zip(starts, counts, strict=True)]
        self.choices = max((n for _, n in self.ranges), default=0)
        if not 1 <= self.choices <= 2**31:
            raise ValueError(f"observation space {describe(space)}: 1 to 2^31 choices are possible")

    def flat(self):
        return (len(self.ranges), None) if self.dtype == "u8" else (sum(n for _, n in self.ranges), self.ranges)

    def convert(self, value, dtype, batch):
        """As Array.convert, but whole numbers of the space, not counted from 0 yet."""
        value = np.asarray(value, np.int64)
        if value.shape != batch + self.shape:
            raise BrokenContract(f"an observation of shape {value.shape} instead of {batch + self.shape}")
        starts, counts = np.transpose(self.ranges)
        chosen = value.reshape(-1, len(counts)) - starts
        if (chosen < 0).any() or (chosen >= counts).any():
            raise BrokenContract(f"an observation {value.tolist()} that is not in its space")
        return np.array(value)


def _leaf(path, space):
    bits = isinstance(space, spaces.MultiBinary)
    if path == MASK and isinstance(space, spaces.Box):
        if np.dtype(space.dtype).kind not in "biu" or space.low.min() < 0 or space.high.max() > 1:
            raise ValueError(f"observation space {describe(space)}: action_mask must be MultiBinary or a Box of 0 and 1")
        bits = True
    if bits:
        size = math.prod(space.shape)
        return Choices(space, [0] * size, [2] * size, "u8")
    if isinstance(space, spaces.Box):
        return Array(space)
    if isinstance(space, spaces.Discrete):
        return Choices(space, [space.start], [space.n])
    if isinstance(space, spaces.MultiDiscrete):
        return Choices(space, space.start.ravel(), space.nvec.ravel())
    raise ValueError(
        f"observation space {describe(space)}: must be Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these"
    )


def _leaves(space, path=()):
    """(path, leaf) of each simple space, in the order of gymnasium.spaces.flatten."""
    if isinstance(space, spaces.Dict):
        return [leaf for key, part in space.spaces.items() for leaf in _leaves(part, (*path, key))]
    if isinstance(space, spaces.Tuple):
        return [leaf for i, part in enumerate(space.spaces) for leaf in _leaves(part, (*path, i))]
    return [(path, _leaf(path, space))]


def _names(paths):
    """Of fields: unique, ASCII, at most NAME_MAX letters."""
    names = []
    for path in paths:
        whole = ".".join(map(str, path)).encode("ascii", "replace").decode() or "obs"
        name, n = whole[:NAME_MAX], 1
        while name in names:
            n += 1
            name = whole[: NAME_MAX - len(f"~{n}")] + f"~{n}"
        names.append(name)
    return names


# ---- observations ----


class Observations:
    """The fields of a space's observations: `fields` [(name, dtype, dims, choices), ...], and how _farm.Group fills them: `parts`."""

    def __init__(self, space, flatten=None):
        self._leaves = leaves = _leaves(space)
        if not leaves:
            raise ValueError(f"observation space {describe(space)} is empty")
        joined = [bool(flatten) and path != MASK for path, _ in leaves]
        apart = [(path, leaf) for (path, leaf), join in zip(leaves, joined) if not join]
        names = _names(path for path, _ in apart)
        self.fields = [(name, leaf.dtype, leaf.dims, leaf.choices) for name, (_, leaf) in zip(names, apart)]
        if any(joined):
            size = sum(leaf.flat()[0] for (_, leaf), join in zip(leaves, joined) if join)
            self.fields.insert(0, ("obs", "f32", (size,), 0))
        self._check(space)
        self.parts, at, field = [], 0, int(any(joined))
        for (path, leaf), join in zip(leaves, joined):
            if join:
                size, ranges = leaf.flat()
                self.parts.append((path, 0, at, leaf.shape, ranges))
                at += size
            else:
                self.parts.append((path, field, 0, leaf.shape, leaf.ranges))
                field += 1

    def _check(self, space):
        for name, _, dims, _ in self.fields:
            if len(dims) > RANK_MAX:
                raise ValueError(
                    f"observation space {describe(space)}: field {name} has more than {RANK_MAX} dims; "
                    "env.flatten=true makes one vector of all"
                )
        if len(self.fields) > FIELDS_MAX:
            raise ValueError(
                f"observation space {describe(space)}: {len(self.fields)} fields, at most {FIELDS_MAX} are possible; "
                "env.flatten=true makes one vector of all"
            )

    def convert(self, value, *batch):
        """The parts of an observation as arrays that _farm.Group can read. batch: the width of a whole group, whose values are
        batched as Gymnasium's vector environments do. BrokenContract if it is outside its space."""
        try:
            arrays = []
            for (path, field, *_), (_, leaf) in zip(self.parts, self._leaves):
                found = value
                for key in path:
                    found = found[key]
                arrays.append(leaf.convert(found, NUMPY[self.fields[field][1]], batch))
            return arrays
        except (LookupError, TypeError, ValueError) as wrong:  # a missing part, fractions in bytes, ragged lists
            raise BrokenContract(f"an observation that is not in its space ({wrong!r})") from wrong


# ---- actions ----


class Actions:
    """Converts a lane's answers to actions of a space. `spec`: as Ring.spec["action"]."""

    def __init__(self, space):
        self._shape, self._dtype, self._bounds, self._start = space.shape, space.dtype, None, None
        if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
            several = isinstance(space, spaces.MultiDiscrete)
            if np.any(space.start):
                self._start = np.asarray(space.start, space.dtype)
            sizes = [int(n) for n in (space.nvec.ravel() if several else [space.n])]
            self.spec = {"kind": "multi_discrete" if several else "discrete", "dims": len(sizes), "sizes": sizes}
        elif isinstance(space, spaces.Box) and np.dtype(space.dtype).kind == "f":
            self._bounds = [np.clip(bound.ravel(), -F32_MAX, F32_MAX).astype(np.float32) for bound in (space.low, space.high)]
            low, high = (bound.tolist() for bound in self._bounds)
            self.spec = {"kind": "continuous", "dims": len(low), "low": low, "high": high}
        else:
            raise ValueError(
                f"action space {describe(space)}: must be Discrete, MultiDiscrete, or a Box of floats"
            )
        if not 1 <= self.spec["dims"] <= ACTION_DIMS_MAX:
            raise ValueError(f"action space {describe(space)}: 1 to {ACTION_DIMS_MAX} dims are possible")

    def decode(self, answers):
        """Actions of a group, batched: new memory of shape [width, *space.shape]."""
        if self._bounds:
            low, high = self._bounds
            answers = np.fmin(np.fmax(answers, low), high)  # fmax: NaN to the lower bound
        actions = answers.astype(self._dtype).reshape(-1, *self._shape)
        return actions + self._start if self._start is not None else actions


class LaneActions:
    """The actions of a lane's newest answers."""

    def __init__(self, ring, lane, actions):
        self._lane, self._actions, self._memory = lane, actions, np.asarray(ring.arrays(lane)[3])

    def read(self, ring):
        """Before the first step: any."""
        return self._actions.decode(self._memory[(ring.next(self._lane) - 1) % len(self._memory)])
