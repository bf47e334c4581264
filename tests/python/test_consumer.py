"""Lanes of a farm answered by this process: actorfarm._consumer."""

import gc
import os
import unittest

import numpy as np

try:
    from actorfarm import _consumer, program
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


if __name__ == "__main__":
    unittest.main()
