"""Gymnasium's spaces in a lane: observations as fields, written in place; actions from the learner's answers.

Observations
    Box of u8, of bool      a field u8 of the same shape (of more than 4 dims: the first ones are joined)
    Box of floats           a field f32 of the same shape
    Box of other integers   a field i32 of the same shape; of more than 32 bits: f32, limited to +-1e9
    Discrete, MultiDiscrete a field i32, counted from 0, with `choices`, the largest number of them
    MultiBinary             a field u8 of 2 choices
    Dict, Tuple             the fields of their parts, also nested, named by keys and indices with dots ("arm.0"); a name is cut to
                            23 letters and made unique. A Dict's action_mask (MultiBinary or a Box of 0 and 1) is a field of this
                            name, u8 of 2 choices: which actions are allowed. Parts that are no numbers (Text, Graph, Sequence,
                            OneOf, spaces of a package's own) are left out, `notes` says so
    `keep`, `drop`          names of parts or of what contains them, with * and ?: only these, not these
    `flatten` True makes one vector f32 of everything but action_mask, like gymnasium.spaces.flatten: choices one-hot. None does so
    with all but images if there are more than 8 parts.
    Images (Box of u8 with 2 or 3 dims) of several shapes become one: the largest height, width and number of channels, in the layout
    of the largest image. A pixel is the one at the same relative place (nearest neighbour; none is lost); one channel is repeated,
    other missing ones are 0.
Actions
    Box of floats           continuous: clipped to its bounds in its own type, NaN to the lower one
    Discrete (from any start), MultiDiscrete, MultiBinary, Box of integers or bool
                            discrete: a choice for each number
    Dict, Tuple             the actions of their parts one after another, also nested: all continuous or all discrete
Any other space is a ValueError that names it. An observation of another shape, type or choice is a BrokenContract; a Box's
bounds are not checked.
"""

import fnmatch
import math

import numpy as np
from gymnasium import spaces

from .actor import BrokenContract

FIELDS_MAX, RANK_MAX, NAME_MAX, ACTION_DIMS_MAX = 8, 4, 23, 128  # include/farm/env.h
CHOICES_MAX = 1 << 16  # outputs of a policy for the integers of a Box
NUMBER_MAX = 1e9  # the largest valid number of an observation (docs/TRAINING.md, bad_values)
MASK = ("action_mask",)
REMEDY = "--wrap PACKAGE:WRAPPER makes another space of it"
F32_MAX = float(np.finfo(np.float32).max)
NUMPY = {"u8": np.uint8, "i32": np.int32, "f32": np.float32}


def describe(space):
    text = " ".join("".join(c if c.isprintable() else " " for c in repr(space)).split())  # a Text's characters may be any
    return text if len(text) <= 160 else text[:157] + "..."


# ---- leaves: values of one simple space ----


class Array:
    """A Box. `ranges`: no choices. `read`: None, or a function that converts each value before it is packed."""

    ranges = read = None

    def __init__(self, space):
        kind, self.shape = np.dtype(space.dtype), space.shape
        self.dims = space.shape or (1,)
        self.size = math.prod(self.dims)
        if kind.kind not in "fiub" or self.size == 0:
            raise ValueError("a Box must hold numbers and must not be empty")
        self.dtype = "u8" if kind in (np.uint8, np.bool_) else "f32" if kind.kind == "f" else "i32"
        high = 0 if self.dtype == "f32" else int(space.high.max())
        if self.dtype == "i32" and (int(space.low.min()) < -(2**31) or high >= 2**31):
            self.dtype, self.read = "f32", self.limit
        self.choices = high + 1 if self.dtype == "u8" and high < 255 else 0
        if len(self.dims) > RANK_MAX:
            self.dims = (math.prod(self.dims[: 1 - RANK_MAX]), *self.dims[1 - RANK_MAX :])

    def flat(self):
        """Numbers in a vector f32, and the ranges of those that are one-hot."""
        return self.size, None

    @property
    def is_image(self):
        return self.dtype == "u8" and len(self.shape) in (2, 3) and not self.choices

    def _shaped(self, value, batch):
        value = np.asarray(value)
        if value.shape != batch + self.shape:
            raise BrokenContract(f"an observation of shape {value.shape} instead of {batch + self.shape}")
        return value

    def limit(self, value, *batch):
        """Integers of more than 32 bits."""
        return np.clip(self._shaped(value, batch).astype(np.float32, "C", "same_kind"), -NUMBER_MAX, NUMBER_MAX)

    def convert(self, value, dtype, batch):
        """value: of shape batch + the space's. -> a contiguous array of this shape, or of what `read` returns"""
        return self.read(value, *batch) if self.read else self._shaped(value, batch).astype(dtype, "C", "same_kind")


class Resized:
    """An image that is packed in the shape of another, larger one."""

    def __init__(self, leaf, dims, size, planes):
        """dims: the target's; size: its height, width, channels; planes: channels come first."""
        self._leaf, self.dims, self.shape, self.dtype, self.choices, self.ranges = leaf, dims, dims, "u8", 0, None
        self._planes = planes
        self._at = np.ix_(*(np.arange(new) * old // new for new, old in zip(size, _size(leaf.shape)[:2])))
        self._channels = size[2]

    def read(self, value, *batch):
        image = _channels_last(self._leaf.convert(value, np.uint8, batch), len(batch))
        image = image[(slice(None), *self._at)] if batch else image[self._at]
        if (missing := self._channels - image.shape[-1]) > 0:
            image = np.pad(image, [(0, 0)] * (image.ndim - 1) + [(0, missing)], "edge" if image.shape[-1] == 1 else "constant")
        if len(self.dims) == 2:
            image = image[..., 0]
        elif self._planes:
            image = np.moveaxis(image, -1, -3)
        return np.ascontiguousarray(image)

    def convert(self, value, dtype, batch):
        return self.read(value, *batch)


def _is_planes(shape):
    """Whether channels come first: farm_field_image (src/ring/spec.h)."""
    return len(shape) == 3 and shape[0] <= 16 and shape[0] <= shape[1] and shape[0] < shape[2]


def _size(shape):
    """Height, width, channels of an image."""
    return (*shape, 1) if len(shape) == 2 else (*shape[1:], shape[0]) if _is_planes(shape) else shape


def _channels_last(image, axes):
    """axes: those before the image's."""
    shape = image.shape[axes:]
    return image[..., None] if len(shape) == 2 else np.moveaxis(image, axes, -1) if _is_planes(shape) else image


def _resized(leaves):
    """The leaves with all images in one shape."""
    images = [leaf for _, leaf in leaves if leaf.is_image]
    if len({leaf.shape for leaf in images}) < 2:
        return leaves
    size = tuple(map(max, zip(*(_size(leaf.shape) for leaf in images))))
    largest = max(images, key=lambda leaf: leaf.size).shape
    planes = _is_planes(largest) and _is_planes((size[2], *size[:2]))
    dims = size[:2] if size[2] == 1 else (size[2], *size[:2]) if planes else size
    return [(path, Resized(leaf, dims, size, planes) if leaf.is_image and leaf.shape != dims else leaf) for path, leaf in leaves]


class Choices:
    """Whole numbers of known `ranges`, [(start, count), ...], counted from 0: Discrete, MultiDiscrete; as u8: bits."""

    read, is_image = None, False

    def __init__(self, space, starts, counts, dtype="i32"):
        self.shape, self.dims, self.dtype = space.shape, space.shape or (1,), dtype
        self.ranges = [(int(start), int(n)) for start, n in zip(starts, counts, strict=True)]
        self.choices = max((n for _, n in self.ranges), default=0)
        if not 1 <= self.choices <= 2**31:
            raise ValueError("1 to 2^31 choices are possible")

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
    """ValueError: why the space is no numbers."""
    bits = isinstance(space, spaces.MultiBinary)
    if path == MASK and isinstance(space, spaces.Box):
        if np.dtype(space.dtype).kind not in "biu" or space.low.min() < 0 or space.high.max() > 1:
            raise ValueError("it must be MultiBinary or a Box of the integers 0 and 1")
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
    raise ValueError("numbers are Box, Discrete, MultiDiscrete and MultiBinary")


def _parts(space, path=()):
    """(path, part) of each simple space of a Dict or Tuple, in the order of gymnasium.spaces.flatten."""
    if isinstance(space, spaces.Dict):
        return [leaf for key, part in space.spaces.items() for leaf in _parts(part, (*path, key))]
    if isinstance(space, spaces.Tuple):
        return [leaf for i, part in enumerate(space.spaces) for leaf in _parts(part, (*path, i))]
    return [(path, space)]


def _names_any(patterns, path):
    """Whether a pattern matches the part or what contains it."""
    names = [".".join(map(str, path[:n])) for n in range(1, len(path) + 1)]
    return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _chosen(parts, keep, drop):
    """The parts that obs_keep and obs_drop leave. ValueError: a name that no part has."""
    known = ", ".join(".".join(map(str, path)) for path, _ in parts if path)
    for key, patterns in (("obs_keep", keep), ("obs_drop", drop)):
        for pattern in patterns:
            if not any(_names_any([pattern], path) for path, _ in parts):
                raise ValueError(f"{key}: the observation has no part '{pattern}'; it has {known or 'no parts: it is no Dict or Tuple'}")
    return [(path, part) for path, part in parts if (not keep or path == MASK or _names_any(keep, path)) and not _names_any(drop, path)]


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
    """The fields of a space's observations: `fields` [(name, dtype, dims, choices), ...], how _farm.Group fills them: `parts`, and
    lines for the user: `notes`."""

    def __init__(self, space, flatten=None, keep=(), drop=()):
        self.notes = []
        leaves = self._find(space, keep, drop)
        joined = [path != MASK and bool(flatten) for path, _ in leaves]
        if flatten is None and len(leaves) > FIELDS_MAX:
            joined = [path != MASK and not leaf.is_image for path, leaf in leaves]
        if any(joined) and flatten is None:
            self.notes.append(f"{sum(joined)} of the observation's {len(leaves)} parts become one vector, because at most {FIELDS_MAX} fields "
                              "are possible (--obs-keep chooses parts)")
        apart = iter(_resized([leaf for leaf, join in zip(leaves, joined) if not join]))
        self._leaves = leaves = [leaf if join else next(apart) for leaf, join in zip(leaves, joined)]
        apart = [leaf for leaf, join in zip(leaves, joined) if not join]
        names = _names(path for path, _ in apart)
        if resized := [name for name, (_, leaf) in zip(names, apart) if isinstance(leaf, Resized)]:
            self.notes.append(f"images of other shapes become {'x'.join(map(str, apart[names.index(resized[0])][1].dims))}: {', '.join(resized)}")
        self.fields = [(name, leaf.dtype, leaf.dims, leaf.choices) for name, (_, leaf) in zip(names, apart)]
        if any(joined):
            size = sum(leaf.flat()[0] for (_, leaf), join in zip(leaves, joined) if join)
            self.fields.insert(0, ("obs", "f32", (size,), 0))
        if len(self.fields) > FIELDS_MAX:
            raise ValueError(
                f"observation space {describe(space)}: {len(self.fields)} fields, at most {FIELDS_MAX} are possible; "
                "env.flatten=true makes one vector of all, obs_keep and obs_drop choose parts"
            )
        self.parts, at, field = [], 0, int(any(joined))
        for (path, leaf), join in zip(leaves, joined):
            if join:
                size, ranges = leaf.flat()
                self.parts.append((path, 0, at, leaf.shape, ranges, leaf.read))
                at += size
            else:
                self.parts.append((path, field, 0, leaf.shape, leaf.ranges, leaf.read))
                field += 1

    def _find(self, space, keep, drop):
        """(path, leaf) of the parts that are numbers."""
        leaves, left = [], []
        parts = _chosen(_parts(space), keep, drop)
        for path, part in parts:
            try:
                leaves.append((path, _leaf(path, part)))
            except ValueError as why:
                if path == MASK:
                    raise ValueError(f"observation space, part action_mask, {describe(part)}: {why}; --obs-drop action_mask leaves it out") from None
                left.append(f"{describe(part)}: {why}" if path == () else f"part {'.'.join(map(str, path))}, {describe(part)}: {why}")
        if not any(path != MASK for path, _ in leaves):
            why = "; ".join(left) or f"{describe(space)}: {'obs_keep and obs_drop leave' if keep or drop else 'it has'} no part"
            raise ValueError(f"observation space {why}; {REMEDY}")
        if wide := [".".join(map(str, path)) or "obs" for path, leaf in leaves if leaf.read]:
            self.notes.append(f"integers of more than 32 bits become f32, limited to +-1e9: {', '.join(wide)}")
        if left:
            self.notes.append(f"not used of observations: {'; '.join(left)} (--obs-drop makes this silent; {REMEDY})")
        return leaves

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
        except (LookupError, TypeError, ValueError, OverflowError) as wrong:  # a missing part, fractions in bytes, ragged lists
            raise BrokenContract(f"an observation that is not in its space ({wrong!r})") from wrong


# ---- actions ----


class Numbers:
    """Actions of a Box of floats, clipped: first as f32, the type of answers, then in the space's own."""

    kind = "continuous"

    def __init__(self, space):
        self.shape, self._dtype = space.shape, space.dtype
        self._own = [np.clip(bound.ravel(), *_range(space.dtype)) for bound in (space.low, space.high)]
        self._bounds = [bound.astype(np.float32) for bound in self._own]
        self.low, self.high = (bound.tolist() for bound in self._bounds)
        self.dims = len(self.low)

    def decode(self, answers):
        """answers: [width][dims] -> new memory [width][*shape]"""
        answers = np.fmin(np.fmax(answers, self._bounds[0]), self._bounds[1]).astype(self._dtype)  # fmax: NaN to the lower bound
        return (answers if self._dtype == np.float32 else np.clip(answers, *self._own)).reshape(-1, *self.shape)


class Wholes:
    """Actions of Discrete, MultiDiscrete, MultiBinary, and Boxes of integers or bool: choices counted from `start`."""

    kind = "discrete"

    def __init__(self, space):
        self.shape, self._dtype = space.shape, space.dtype
        if isinstance(space, spaces.Box):
            start, high = space.low.ravel(), space.high.ravel()
            self.sizes = [int(last) - int(first) + 1 for first, last in zip(start, high)]
            if sum(self.sizes) > CHOICES_MAX:
                raise ValueError(f"{sum(self.sizes)} choices of integers, at most {CHOICES_MAX} are possible")
        elif isinstance(space, spaces.MultiBinary):
            start, self.sizes = 0, [2] * math.prod(space.shape)
        else:
            start = np.ravel(space.start)
            self.sizes = [int(n) for n in np.ravel(space.nvec if isinstance(space, spaces.MultiDiscrete) else space.n)]
        self._start = np.asarray(start, space.dtype) if np.any(start) else None
        self.dims = len(self.sizes)

    def decode(self, answers):
        """As Numbers.decode. Sums wrap around as the space's type does."""
        actions = answers.astype(self._dtype)
        return (actions if self._start is None else actions + self._start).reshape(-1, *self.shape)


def _range(dtype):
    """The numbers of a type of floats that are also f32."""
    most = min(float(np.finfo(dtype).max), F32_MAX)
    return np.array([-most, most], dtype)


def _action_leaf(path, space):
    of = f"action space, part {'.'.join(map(str, path))}, {describe(space)}" if path else f"action space {describe(space)}"
    try:
        if isinstance(space, spaces.Box) and np.dtype(space.dtype).kind == "f":
            return Numbers(space)
        if isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
            return Wholes(space)
    except ValueError as why:
        raise ValueError(f"{of}: {why}; {REMEDY}") from None
    raise ValueError(f"{of}: actions are Discrete, MultiDiscrete, MultiBinary, Box, or a Dict or Tuple of these; {REMEDY}")


def _nested(space, leaves, at):
    """The structure of a Dict or Tuple, with at(leaf) in the place of each simple space. leaves: an iterator over them."""
    if isinstance(space, spaces.Dict):
        return {key: _nested(part, leaves, at) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_nested(part, leaves, at) for part in space.spaces)
    return at(next(leaves))


class Actions:
    """Converts a lane's answers to actions of a space. `spec`: as Ring.spec["action"]."""

    def __init__(self, space):
        self._space, self._leaves = space, [_action_leaf(path, part) for path, part in _parts(space)]
        dims = sum(leaf.dims for leaf in self._leaves)
        kinds = {leaf.kind for leaf in self._leaves}
        if len(kinds) > 1:
            raise ValueError(f"action space {describe(space)}: parts of choices and parts of continuous numbers; a policy has one of both kinds; {REMEDY}")
        if not 1 <= dims <= ACTION_DIMS_MAX:
            raise ValueError(f"action space {describe(space)}: {dims} dims, 1 to {ACTION_DIMS_MAX} are possible; {REMEDY}")
        names = ("low", "high") if kinds == {"continuous"} else ("sizes",)
        several = dims > 1 or not isinstance(space, spaces.Discrete)
        self.spec = {"kind": "multi_discrete" if names == ("sizes",) and several else kinds.pop(), "dims": dims}
        for name in names:
            self.spec[name] = [number for leaf in self._leaves for number in getattr(leaf, name)]
        self._ends = np.cumsum([leaf.dims for leaf in self._leaves]).tolist()
        self.nested = isinstance(space, (spaces.Dict, spaces.Tuple))

    def _decode_parts(self, answers):
        answers = answers.reshape(len(answers), -1)
        return [leaf.decode(answers[:, end - leaf.dims : end]) for leaf, end in zip(self._leaves, self._ends)]

    def decode(self, answers):
        """Actions of a group, batched as Gymnasium's vector environments do: new memory of shape [width, *space.shape]."""
        return _nested(self._space, iter(self._decode_parts(answers)), lambda part: part)

    def split(self, answers):
        """The same, for each environment of the group by itself."""
        parts = self._decode_parts(answers)
        if len(parts) == 1 and not self.nested:
            return parts[0]
        return [_nested(self._space, iter(parts), lambda part, i=i: part[i]) for i in range(len(answers))]


class LaneActions:
    """The actions of a lane's newest answers."""

    def __init__(self, ring, lane, actions):
        self._lane, self._actions, self._memory = lane, actions, np.asarray(ring.arrays(lane)[3])

    def read(self, ring, split=False):
        """Before the first step: any. split: as Actions.split."""
        answers = self._memory[(ring.next(self._lane) - 1) % len(self._memory)]
        return self._actions.split(answers) if split else self._actions.decode(answers)
