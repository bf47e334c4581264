"""What the comparisons with vector environments share: the loop that a user of one writes, counted as we count.

The loop takes a batch, and answers it with actions drawn beforehand. At the end of a turn it checks what it was given: shape,
type, and that observations have changed (a table of zeros would be fast).
"""

import time

import numpy as np

ACTION_ROWS = 1024
CHECKED_TURNS = 8  # after so many an environment looks different


class Loop:
    """Peers with recv() and send(); a subclass says how, and starts its environments before it calls start()."""

    def __init__(self, actions, observation_shape, observation_type):
        self.actions = actions  # [ACTION_ROWS, batch, ...]
        self.shape, self.type = tuple(observation_shape), np.dtype(observation_type)
        self.turn = 0

    def receive(self):
        """(observations, rewards, terminated, truncated, whatever send wants to know)."""
        raise NotImplementedError

    def send(self, actions, token):
        raise NotImplementedError

    def start(self, environments):
        """Steps until all environments have started: loading and resets are no part of a rate."""
        rows = 0
        while rows < 3 * environments:
            rows += len(self.step()[1])

    def step(self):
        answer = self.receive()
        self.turn = (self.turn + 1) % ACTION_ROWS
        self.send(self.actions[self.turn], answer[4])
        return answer

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
    """num_envs, batch_size and num_threads: in step with all environments, and with half of them working ahead."""
    settings = []
    for batch in batches:
        settings.append({"num_envs": batch, "batch_size": batch, "num_threads": cores})
        settings.append({"num_envs": 2 * batch, "batch_size": batch, "num_threads": cores})
    return settings
