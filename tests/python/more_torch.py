"""Observations in place as tensors of PyTorch and arrays of JAX."""

import gc
import signal
import subprocess
import sys
import unittest
import warnings

import actorfarm
import jax.numpy as jnp
import numpy as np
import torch


class Tensors(unittest.TestCase):
    def setUp(self):
        self.env = actorfarm.make("native/breakout", 2, 2, actors=1, seed=1)
        self.addCleanup(self.env.close)
        self.obs, _ = self.env.reset()

    def test_a_tensor_is_the_lane_and_holds_its_step(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tensor = self.obs.torch()
        self.assertEqual((tensor.data_ptr(), tensor.dtype, tuple(tensor.shape)), (self.obs.ctypes.data, torch.uint8, self.obs.shape))
        before, part = self.obs.copy(), tensor[1:]
        self.obs = tensor = None
        gc.collect()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(60):
                self.env.step(np.ones(2, int))
        self.env.close()
        self.assertTrue((part.numpy() == before[1:]).all())

    def test_actions_may_be_tensors_and_jax_takes_what_numpy_has(self):
        self.env.step(torch.ones(2, dtype=torch.int64))
        obs = self.env.step(jnp.ones(2, int))[0]
        self.assertTrue((np.asarray(jnp.asarray(obs)) == obs).all())
        with self.assertRaisesRegex(TypeError, "actions"):
            self.env.step(torch.ones(2, device="meta"))

    def test_a_write_into_a_lane_ends_the_process_but_not_with_debug(self):
        program = "import actorfarm, sys; env = actorfarm.make('native/breakout', 2, actors=1, debug=len(sys.argv) > 1); env.reset()[0].torch().fill_(1); print('written')"
        for words, status in (([], -signal.SIGSEGV), (["debug"], 0)):
            self.assertEqual(subprocess.run([sys.executable, "-c", program, *words], capture_output=True).returncode, status)


if __name__ == "__main__":
    unittest.main()
