"""Lanes of a farm answered by this process: actorfarm._consumer."""

import gc
import os
import unittest

import actorfarm
import numpy as np

try:
    from actorfarm import _consumer, pool, program
except ImportError as missing:
    raise unittest.SkipTest(f"the build has no actorfarm._consumer: {missing}") from missing
from lanes import FIRST

os.environ.setdefault("FARM_PROGRAM", program.path())


def consumer(env="native/cartpole", actors=1, lanes=2, width=2, steps=8, **options):
    words = ["--env", env, "--quiet", "--actors", str(actors), "--lanes", str(lanes), "--envs-per-actor", str(lanes * width), "--steps", str(steps)]
    return _consumer.Consumer(words, **options)


class Lanes(unittest.TestCase):
    def setUp(self):
        self.consumer = consumer()
        self.addCleanup(lambda: self.consumer.close())

    def test_a_loop_reads_views_and_answers(self):
        self.assertEqual(self.consumer.lanes().tolist(), [0, 1])
        for n in range(50):
            lanes, steps = self.consumer.recv(2)
            self.assertEqual((sorted(lanes), steps.tolist()), ([0, 1], [n, n]))
            view = self.consumer.view(0, n, _consumer.OBS)
            self.assertEqual((view.shape, view.dtype, view.flags.writeable), ((2, 4), np.float32, False))
            self.assertTrue(np.isfinite(view).all())
            if n == 0:
                self.assertEqual(self.consumer.copy(0, 0, _consumer.FLAGS).tolist(), [FIRST, FIRST])
            self.consumer.send(lanes, np.ones(4, np.int32))
        self.assertEqual(self.consumer.stats()["answers"], 100)

    def test_a_view_outlives_the_consumer(self):
        lanes, steps = self.consumer.recv(1, 1)
        view = self.consumer.view(lanes[0], steps[0], _consumer.OBS)
        before = view.copy()
        self.consumer.close()
        gc.collect()
        self.assertTrue((view == before).all())
        with self.assertRaisesRegex(RuntimeError, "closed"):
            self.consumer.recv()


class Sizes(unittest.TestCase):
    def test_lanes_are_shared_out_among_as_many_actors_as_there_are_cores(self):
        for arguments, expected in (
            ((64, 16, None, 2), (2, 2, 16)), ((64, 16, None, 3), (2, 2, 16)), ((64, 16, None, 8), (4, 1, 16)), ((48, 16, None, 2), (1, 3, 16)),
            ((64, None, None, 8), (8, 1, 8)), ((6, 6, None, 4), (3, 1, 2)), ((7, None, None, 4), (1, 1, 7)), ((64, 16, 4, 1), (4, 1, 16)),
            ((1, 1, None, 4), (1, 1, 1)), ((1024, 1, None, 2), (2, 512, 1)),
        ):
            self.assertEqual(pool.sizes(*arguments), expected, arguments)
        for arguments in ((64, 24), (0,), (64, 0), (64, 16, 3), (64, None, 3), (4, 8), (4, -2)):
            with self.assertRaisesRegex(ValueError, "must"):
                pool.sizes(*arguments)


class Pools(unittest.TestCase):
    def test_batches_are_lanes(self):
        with actorfarm.make("native/cartpole", 8, 4, seed=3) as env:
            obs, info = env.reset()
            self.assertEqual((obs.shape, info["elapsed_step"].tolist()), ((4, 4), [0] * 4))
            seen = set()
            for _ in range(100):
                obs, reward, terminated, truncated, info = env.step(np.zeros(4, int), info["env_id"])
                self.assertFalse(obs.flags.writeable)
                seen.add(tuple(info["env_id"].tolist()))
            self.assertEqual(seen, {(0, 1, 2, 3), (4, 5, 6, 7)})


if __name__ == "__main__":
    unittest.main()
