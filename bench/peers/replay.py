"""Replay: the index of windows against cpprb's buffer, and sequences of Pong's frames against Reverb.

# peer: replay
Ours is build/bench/replay, on one core, one process a turn; the peers run in this process. cpprb_*: 2^20 items, priorities alone,
through our source of windows and (_tree) in our index alone; rows of 8 environments, or, in cpprb, of up to 64 (_at_once: thousands in a call, which no vector environment has). reverb_*:
sequences of 80 frames of 84x84 of real Pong, one for 40 new frames; a server in this process, from which Reverb samples without
gRPC, and a writer, whose items are confirmed by flush. Both sides add up each byte of a sample. Ours writes the frames into a ring;
a sequence is an entry of the index, and is read in place.
"""

import itertools
import os
import statistics
import subprocess
import sys
import time
from importlib import metadata

import common
import cpprb
import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import reverb  # noqa: E402  # pylint: disable=wrong-import-position

INDEX, BATCH, ALPHA, BETA = 1 << 20, 64, 0.6, 0.4
LENGTH, STRIDE, SEQUENCES = 80, 40, 790  # SEQUENCES: that ours holds
FRAMES = 4000

# Run by the project's Python, which has ale-py: writes frames of one game after another.
PONG = """
import sys
import numpy as np
from ale_py.vector_env import AtariVectorEnv
env = AtariVectorEnv("pong", num_envs=1, stack_num=1)
env.reset(seed=1)
random = np.random.default_rng(1)
with open(sys.argv[1], "wb") as file:
    for _ in range(int(sys.argv[2])):
        file.write(env.step(random.integers(6, size=1))[0].tobytes())
"""


class Ours(common.Program):
    """One result of build/bench/replay."""

    def __init__(self, build, name, *flags):
        super().__init__([os.path.join(build, "bench", "replay"), "--only", name, *flags, "--json"])

    def rate(self, seconds):
        return self.run(seconds)["results"][0]["value"]


def repeat(seconds, work):
    """Items a second, from the median time of a call, as ours; work() returns its number of items."""
    end, times, items = time.perf_counter() + seconds, [], 0
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        items = work()
        times.append(time.perf_counter() - start)
    return items / statistics.median(times)


# ---- cpprb ----


class Cpprb:
    """One operation on a full buffer."""

    def __init__(self, setting):
        self.buffer = cpprb.PrioritizedReplayBuffer(INDEX, {"done": {"dtype": np.uint8}}, alpha=ALPHA)
        self.rows = {"done": np.zeros(setting.get("rows", BATCH), dtype=np.uint8)}
        random = np.random.default_rng(1)
        for start in range(0, INDEX, 1 << 16):
            self.buffer.add(done=np.zeros(1 << 16, dtype=np.uint8), priorities=random.random(1 << 16))
            assert self.buffer.get_stored_size() == start + (1 << 16)
        self.priorities = random.random((1000, BATCH))
        self.indexes = [self.buffer.sample(BATCH, beta=BETA)["indexes"] for _ in range(1000)]
        self.turn = 0

    def insert(self):
        self.buffer.add(**self.rows)
        return len(self.rows["done"])

    def sample(self):
        sample = self.buffer.sample(BATCH, beta=BETA)
        assert sample["weights"].shape == sample["indexes"].shape == (BATCH,)
        return BATCH

    def update_priorities(self):
        self.turn = (self.turn + 1) % 1000
        self.buffer.update_priorities(self.indexes[self.turn], self.priorities[self.turn])
        return BATCH

    def rate(self, seconds):
        return repeat(seconds, self.work)

    def close(self):
        pass


class CpprbInsert(Cpprb):
    work = Cpprb.insert


class CpprbSample(Cpprb):
    work = Cpprb.sample


class CpprbUpdate(Cpprb):
    work = Cpprb.update_priorities


# ---- Reverb ----


class Reverb:
    """One operation on a full table."""

    def __init__(self, frames, setting):
        self.frames, self.setting, self.step = frames, setting, 0
        self.sums = frozenset(frames.reshape(len(frames), -1).view(np.uint64).sum(axis=1).tolist())
        self.table = reverb.Table(
            "table", sampler=reverb.selectors.Prioritized(ALPHA), remover=reverb.selectors.Fifo(), max_size=SEQUENCES,
            rate_limiter=reverb.rate_limiters.MinSize(1),
        )
        self.server = reverb.Server([self.table], port=None)
        self.client = reverb.Client(f"localhost:{self.server.port}")
        self.writer = self.client.trajectory_writer(LENGTH)
        while self.table.info.current_size < SEQUENCES:
            self.insert()
        samples = self.client.sample("table", SEQUENCES, emit_timesteps=False)
        self.keys = sorted({sample.info.key for sample in samples})

    def insert(self):
        """Sequences, and the wait until all are confirmed."""
        for step in range(self.step, self.step + self.setting["sequences"] * STRIDE):
            self.writer.append({"frame": self.frames[step % len(self.frames)]})
            if step % STRIDE == STRIDE - 1 and step >= LENGTH - 1:
                self.writer.create_item("table", 1.0, {"frame": self.writer.history["frame"][-LENGTH:]})
        self.step += self.setting["sequences"] * STRIDE
        self.writer.flush()
        return self.setting["sequences"]

    def sample(self):
        for sample in self.client.sample("table", self.setting["sequences"], emit_timesteps=False):
            words = sample.data[0].reshape(LENGTH, -1).view(np.uint64)
            assert words.sum() > 0 and int(words[0].sum()) in self.sums
        return self.setting["sequences"]

    def update_priorities(self):
        keys = self.keys[: self.setting["sequences"]]
        self.client.mutate_priorities("table", updates=dict(zip(keys, itertools.repeat(0.5))))
        return len(keys)

    def rate(self, seconds):
        return repeat(seconds, lambda: getattr(self, self.setting["work"])())

    def close(self):
        self.writer.close()
        self.server.stop()


def load_pong(build):
    path = os.path.relpath(os.path.join(build, "peers", "replay", "pong.u8"))
    if not os.path.exists(path):
        subprocess.run([os.path.join(build, "venv", "bin", "python"), "-c", PONG, path, str(FRAMES)], check=True)
    return path, np.fromfile(path, dtype=np.uint8).reshape(FRAMES, 84, 84)


def comparisons(build):
    for name, peer, target, settings in (
        ("insert", CpprbInsert, 15, [{"rows": 8}, {"rows": 64}]),
        ("tree_insert", CpprbInsert, 15, [{"rows": 8}, {"rows": 64}]),
        ("tree_insert_at_once", CpprbInsert, None, [{"rows": 1024}, {"rows": 16384}]),
        ("sample", CpprbSample, 60, [{"batch": BATCH}]),
        ("tree_sample", CpprbSample, 60, [{"batch": BATCH}]),
        ("update_priorities", CpprbUpdate, 10, [{"batch": BATCH}]),
        ("tree_update_priorities", CpprbUpdate, 10, [{"batch": BATCH}]),
    ):
        yield common.Comparison(
            name=f"cpprb_{name}", reference=f"cpprb {metadata.version('cpprb')}", ours=Ours(build, name.removesuffix("_at_once")),
            open=peer, target=target, settings=settings,
            delivers="indexes and weights, to Python", ours_delivers="windows in shared memory, to the learner", unit="items/s",
            alike=f"both: one core, 2^20 items, exponents {ALPHA} and {BETA}; draws and updates of {BATCH}",
        )
    path, frames = load_pong(build)
    for name, ours, target, calls in (
        ("insert", "insert_sequences", 50, (1, 8, 32)),
        ("sample", "sample_sequences", 8, (BATCH, 512)),
        ("update_priorities", "sequence_priorities", 100, (BATCH, 512)),
    ):
        yield common.Comparison(
            name=f"reverb_{name}", reference=f"Reverb {metadata.version('dm-reverb')}", ours=Ours(build, ours, "--frames", path),
            open=lambda setting: Reverb(frames, setting), target=target, unit="sequences/s",
            settings=[{"work": name, "sequences": sequences} for sequences in calls],
            delivers="NumPy arrays, in the server's process", ours_delivers="windows in shared memory, read in place by one core",
            alike=f"both: {LENGTH} frames of Pong, 84x84 bytes, a sequence for {STRIDE} new frames, {SEQUENCES} sequences held; sequences: in a call",
        )


if __name__ == "__main__":
    sys.exit(common.run(comparisons, __doc__))
