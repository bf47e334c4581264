"""Windows of a lane's steps for a policy of the caller's own: `for w in env.collect(policy, steps=128)`.

`policy(obs, first, state) -> action, extras, state` gets numpy arrays with a row for each environment of the lanes that are ready. first: the
observation begins an episode. extras: None, or a dict of arrays to find again in the windows. state: what the policy remembers, an array or a
tuple of arrays, reset in rows with `first`; None without `state=`. Extras and state may be left out. An nn.Module is called with tensors.
The lanes' rings are the rollout buffer: nothing overwrites a window while it or a view of it lives, and an actor whose ring is full waits.
"""

import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from actorfarm import _farm

from ._consumer import ACTION, FLAGS, OBS, REWARD
from ._consumer import torch as _tensor

Array = npt.NDArray[Any]
Policy = Callable[..., Any]
FIRST, LAST, TERMINATED, TRUNCATED, GAME_END = _farm.FIRST, _farm.LAST, _farm.TERMINATED, _farm.TRUNCATED, _farm.GAME_END
LOOK_S, STALL_S = 1.0, 10.0  # between looks at which lanes are there; without a ready lane until kept windows are named as the cause


def _each(function: Callable[[Any], Any], value: Any) -> Any:
    """Of the arrays in tuples and dicts."""
    if isinstance(value, tuple):
        return tuple(_each(function, one) for one in value)
    if isinstance(value, dict):
        return {name: _each(function, one) for name, one in value.items()}
    return None if value is None else function(value)


def on_torch(policy: Policy, device: Any = None) -> Policy:
    """The policy, called with tensors on the device (of an nn.Module: its own) and without gradients."""
    torch = sys.modules["torch"]
    if device is None and isinstance(policy, torch.nn.Module):
        device = next((parameter.device for parameter in policy.parameters()), None)

    def tensor(value: Array) -> Any:
        return torch.as_tensor(value if value.flags.writeable else _tensor(value), device=device)

    def call(*inputs: Any) -> Any:
        with torch.no_grad():
            return policy(*_each(tensor, inputs))

    return call


def on_jax(policy: Policy) -> Policy:
    """The policy, called with 2^k rows, of which it answers those that exist: jit compiles it once for each k."""

    def call(obs: Any, first: Array, state: Any) -> Any:
        rows, more = len(first), (1 << (len(first) - 1).bit_length()) - len(first)
        padded = _each(lambda value: np.concatenate([value, np.repeat(value[-1:], more, 0)]), (obs, first, state))
        return _each(lambda value: np.asarray(value)[:rows], policy(*padded))

    return call


class Window:
    """Steps start to start + T of the W environments of a lane; [T, W, ...] unless said otherwise. Index t is about the action of
    observation t: its reward and end, which came with the next step.

    obs, action  views, without stacked frames (those: gather); obs a dict by name of several fields.   extras: what the policy returned
    last_obs     [W, (stack,) ...] of step start + T, as the policy gets it;   first, last_first [W]: the observation begins an episode
    reward, terminated, truncated;   game_end: with one of these, a whole game and not only a life ended
    valid        false from an episode's end to the next start, and where an episode was abandoned: its actor died
    state        of the policy at `start`, [W, ...];   lane, start, env_ids [W]
    """

    def __init__(self, collector: "_Collector", lane: int, start: int, state: Any, hold: Any) -> None:
        consumer, length, end = collector.consumer, collector.length, start + collector.length
        lead = min(collector.stack - 1, start)  # earlier frames

        def view(step: int, field: int, steps: int) -> Array:
            array: Array = (consumer.copy if collector.pool.copy else consumer.view)(lane, step, field, steps)
            return array if steps > 1 else array[None]

        flags = consumer.copy(lane, start - lead, FLAGS, lead + length + 1)
        begins, flags, first = (flags & FIRST) != 0, flags[lead:], (flags[lead:] & FIRST) != 0
        self.lane, self.start, self.stack, self.state, self._hold = lane, start, collector.stack, state, hold
        self.first, self.last_first = first[:-1], first[-1]
        self.valid = ((flags[:-1] & LAST) == 0) & ~first[1:]
        ends = (((flags[1:] & bit) != 0) & self.valid for bit in (TERMINATED, TRUNCATED, GAME_END))
        self.terminated, self.truncated, self.game_end = ends
        self.reward, self.action = consumer.copy(lane, start, REWARD, length + 1)[1:], view(start, ACTION, length)
        self.extras = {name: values[lane].copy() for name, values in collector.extras.items()}
        self.env_ids = consumer.env_id(lane)
        self._fields = [view(start, field, length) for field in collector.names.values()]
        self.obs, self.last_obs = collector.named(self._fields), collector.observe([lane], [end])
        self._lead = [view(start - lead, field, lead) for field in collector.names.values()] if lead else []
        begins = np.where(begins[:-1], np.arange(-lead, length)[:, None], -lead)
        self._begin = np.maximum.accumulate(begins)[lead:]  # of the episode, or the oldest frame

    def _gather(self, field: int, t: Array, env: Array, out: Array, rows: Array) -> None:
        for back in range(self.stack):
            at, into = np.maximum(t - back, self._begin[t, env]), out[:, self.stack - 1 - back] if self.stack > 1 else out
            for frames, these, offset in ((self._fields, at >= 0, 0), (self._lead, at < 0, self.stack - 1)):
                if these.any():
                    into[rows[these]] = frames[field][at[these] + min(offset, self.start), env[these]]


def gather(windows: Sequence[Window], rows: Any = slice(None), field: int = 0) -> Array:
    """Observations of steps of windows of equal shape as the policy gets them, [rows, (stack,) ...], dtype unchanged: one copy. Row
    t * N + n is step t of the n-th of the N environments of all windows: as in np.concatenate([w.reward for w in windows], 1).ravel()."""
    (length, width), stack, frames = windows[0].first.shape, windows[0].stack, windows[0]._fields[field]
    t, env = np.divmod(np.arange(length * width * len(windows))[rows], width * len(windows))
    out = np.empty((len(t), *([stack] if stack > 1 else []), *frames.shape[2:]), frames.dtype)
    for k, window in enumerate(windows):
        mine = np.flatnonzero(env // width == k)
        window._gather(field, t[mine], env[mine] - k * width, out, mine)
    return out


class _Collector:
    def __init__(self, pool: Any, policy: Policy, steps: int, least: int, most: int, deadline: float | None, sync: bool, state: Any) -> None:
        spec, torch = pool.consumer.spec, sys.modules.get("torch")
        self.pool, self.consumer, self.length, self.stack, self.width = pool, pool.consumer, steps, pool.stack, spec["width"]
        if spec["same_step"]:
            raise ValueError('collect needs autoreset="next_step": then a last observation has a step of its own')
        if steps < self.stack or spec["steps"] % steps or spec["steps"] < 2 * steps + self.stack:
            need = f"make(..., steps={3 * max(steps, self.stack)}) or a larger multiple"
            raise ValueError(f"windows of {steps} steps of {self.stack} frames do not fit lanes of {spec['steps']}; use {need}")
        self.policy = on_torch(policy) if torch and isinstance(policy, torch.nn.Module) else policy
        self.least, self.most, self.deadline, self.sync = least, most, deadline, sync
        self.names = {field["name"]: OBS + i for i, field in enumerate(spec["obs"]) if field["name"] in pool._names}
        self.lanes, self.complete = dict[int, SimpleNamespace](), list[Window]()  # start: of the window that fills; -1: none
        self.extras = dict[str, Array]()  # [places, T, W, ...]: of the windows that fill
        self.single = not isinstance(state, tuple)
        self.fresh = () if state is None else _each(np.asarray, (state,) if self.single else state)
        self.state, self.idle_since = [np.tile(one, (spec["places"], self.width, *[1] * one.ndim)) for one in self.fresh], time.monotonic()

    def named(self, fields: list[Array]) -> Any:
        return fields[0] if len(fields) == 1 else dict(zip(self.names, fields, strict=True))

    def observe(self, lanes: Sequence[int], steps: Sequence[int]) -> Any:
        """Of waiting steps, for the policy: in place if that is one array."""
        if len(lanes) == 1 and self.stack == 1:
            return self.named([self.consumer.view(lanes[0], steps[0], field) for field in self.names.values()])
        return self.named([self.consumer.gather(lanes, steps, field, self.stack) for field in self.names.values()])

    def arrive(self, lane: int, step: int) -> bool:
        """Notes a step that waits. True: with it a window is complete."""
        lead, at = self.stack - 1, self.lanes.get(lane)
        if at is None or at.next != step:  # the lane is new, or another one's number
            begin = -(-(step + min(lead, step)) // self.length) * self.length  # the next window's first step
            at = self.lanes[lane] = SimpleNamespace(begin=begin, start=-1, hold=None, next_hold=None, state=None)
        at.next = step + 1
        if done := step == at.start + self.length and at.start >= 0:
            self.complete.append(Window(self, lane, at.start, at.state, at.hold))
        if step == max(at.begin - lead, 0):
            at.next_hold = self.consumer.hold(lane, step)
        if step == at.begin:
            at.start, at.begin, at.hold, at.next_hold = step, step + self.length, at.next_hold, None
        return bool(done)

    def answer(self, waiting: dict[int, int]) -> None:
        """Answers waiting steps, at most `most` by one call of the policy."""
        while 0 < self.most < len(waiting):
            self.answer(dict([waiting.popitem() for _ in range(self.most)]))
        lanes, steps, rows = list(waiting), list(waiting.values()), len(waiting) * self.width
        first = (self.consumer.gather(lanes, steps, FLAGS) & FIRST) != 0
        state = [one[lanes].reshape(rows, *one.shape[2:]) for one in self.state]
        for one, fresh in zip(state, self.fresh, strict=True):
            one[first] = fresh
        for k, lane in enumerate(lanes):
            if state and self.lanes[lane].start == steps[k]:
                own = tuple(one[k * self.width : (k + 1) * self.width].copy() for one in state)
                self.lanes[lane].state = own[0] if self.single else own
        answer = self.policy(self.observe(lanes, steps), first, (state[0] if self.single else tuple(state)) if state else None)
        answer = _each(lambda value: np.asarray(value.detach().cpu() if hasattr(value, "detach") else value), answer)
        action, extras, after = (*(answer if isinstance(answer, tuple) else (answer,)), None, None)[:3]
        self.consumer.send(lanes, action)
        for one, value in zip(self.state, (after,) if self.single else after, strict=True) if state else ():
            one[lanes] = value.reshape(len(lanes), self.width, *one.shape[2:])
        for name, value in (extras or {}).items():
            shape = (len(lanes), self.width, *value.shape[1:])
            if name not in self.extras:
                self.extras[name] = np.zeros((self.consumer.spec["places"], self.length, *shape[1:]), value.dtype)
            self.extras[name][lanes, np.array(steps) % self.length] = value.reshape(shape)

    def receive(self) -> dict[int, int]:
        """The lanes that have become ready, with their steps. Empty after LOOK_S."""
        lanes, steps = self.consumer.recv(self.least, self.most, LOOK_S if self.deadline is None else self.deadline)
        if not len(lanes) and self.deadline is not None:
            lanes, steps = self.consumer.recv(1, self.most, LOOK_S)
        if len(lanes):
            self.idle_since = time.monotonic()
        elif time.monotonic() - self.idle_since > STALL_S:
            self.idle_since = float("inf")
            if full := [lane for lane in self.consumer.lanes().tolist() if self.consumer.room(lane) == 0]:
                warnings.warn(f"lanes {full} wait because windows or views of them are kept: drop or copy those", stacklevel=3)
        return dict(zip(lanes.tolist(), steps.tolist(), strict=True))

    def windows(self) -> Iterator[Window]:
        ready = dict(zip(*(array.tolist() for array in self.consumer.waiting()), strict=True))  # of an earlier loop
        parked: dict[int, int] = {}  # if sync: lanes with a complete window, whose last step waits
        while True:
            now: dict[int, int] = {}
            for lane, step in ready.items():
                parked.pop(lane, None)  # it has left, and another one has its number
                (parked if self.arrive(lane, step) and self.sync else now)[lane] = step
            if now:
                self.answer(now)
            here = self.consumer.lanes().tolist() if self.sync else []
            parked = {lane: step for lane, step in parked.items() if lane in here}
            if len(parked) == len(here):
                while self.complete:
                    yield self.complete.pop(0)
                if parked:
                    self.answer(parked)
                    parked.clear()
            ready = self.receive()


def collect(
    pool: Any, policy: Policy, steps: int = 128, min: int = 1, max: int = 0, deadline: float | None = None, sync: bool = False, state: Any = None
) -> Iterator[Window]:
    """Windows of `steps` steps, for ever. The policy is called as soon as `min` lanes are ready, or after `deadline` seconds with what
    is ready; with at most `max` lanes (0: all). sync: a lane that has a complete window waits until all have one and the caller has
    taken them, so that the next windows are those of the policy as it is then. state: of one environment at an episode's start."""
    return _Collector(pool, policy, steps, min, max, deadline, sync, state).windows()
