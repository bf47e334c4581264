"""The user's loop around a vector environment, for the comparisons.

It receives a batch and sends actions drawn in advance. At the end of a turn it checks the observations: shape, type, and that they
have changed.
"""

import time

import numpy as np

ACTION_ROWS = 1024
CHECKED_TURNS = 8  # by then observations have changed


class Loop:
    """A peer with send() and recv(); a subclass starts its environments, then calls start()."""

    def __init__(self, actions, observation_shape, observation_type):
        self.actions = actions  # [ACTION_ROWS, batch, ...]
        self.shape, self.type = tuple(observation_shape), np.dtype(observation_type)
        self.turn = 0

    def receive(self):
        """(observations, rewards, terminated, truncated, the token for send)."""
        raise NotImplementedError

    def send(self, actions, token):
        raise NotImplementedError

    def start(self, environments):
        """Steps until all environments have started: a rate excludes loading and resets."""
        rows = 0
        while rows < 3 * environments:
            rows += len(self.step()[1])

    def step(self):
        batch = self.receive()
        self.turn = (self.turn + 1) % ACTION_ROWS
        self.send(self.actions[self.turn], batch[4])
        return batch

    def rate(self, seconds):
        """Transitions per second. After an end the peer resets in an extra step, which does not count."""
        transitions, turns = 0, 0
        first = self.step()[0].copy()
        start = now = time.perf_counter()
        while now - start < seconds or turns < CHECKED_TURNS:
            observations, rewards, terminated, truncated, _ = self.step()
            transitions += len(rewards) - np.count_nonzero(terminated | truncated)
            turns += 1
            now = time.perf_counter()
        if observations.shape[1:] != self.shape or observations.dtype != self.type:
            raise RuntimeError(f"observations are {observations.dtype} {observations.shape[1:]}")
        if np.array_equal(first, observations) or not np.ptp(observations):
            raise RuntimeError("observations do not change")
        return transitions / (now - start)


def discrete_actions(count, batch):
    return np.random.default_rng(1).integers(0, count, (ACTION_ROWS, batch), dtype=np.int32)


def asynchronous_settings(cores, batches):
    """Synchronous, and with twice as many environments as a batch."""
    return [{"num_envs": ahead * batch, "batch_size": batch, "num_threads": cores} for batch in batches for ahead in (1, 2)]
