"""The extension: lanes made, written, answered and read from Python; what it refuses."""

import functools
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

import actorfarm
import numpy as np
from actorfarm import _farm
from lanes import FIRST, GREY, LAST, make_sides, step_of

FIELDS = [("frame", "u8", (84, 84)), ("speed", "f32", (3,)), ("counts", "i32", (2, 2))]


def sides(lanes=2, width=3, fields=FIELDS, actions=5):
    return make_sides(lanes, width, 4, fields, actions)


def publish(actor, lane, value=0, flags=0):
    frame, speed, counts = map(np.asarray, actor.arrays(lane)[0])
    slot = actor.next(lane) % actor.steps
    for env in range(actor.width):
        frame[slot, env] = value + env
        speed[slot, env] = (value, env, 0.5)
        counts[slot, env] = [[-value, env], [7, 8]]
        actor.set(lane, env, value + 0.25, flags)
    actor.publish(lane)


class Lanes(unittest.TestCase):
    def test_the_learner_reads_what_the_actor_writes(self):
        creator, actor, learner = sides()
        self.assertEqual(actor.wait(), 0)
        publish(actor, 0, 10, FIRST)
        frames = learner.arrays(0)[0][0]
        self.assertEqual((frames.format, frames.shape, frames.readonly), ("B", (4, 3, 84, 84), True))
        (frame, speed, counts), rewards, flags = step_of(learner, 0, 0)
        for env in range(3):
            self.assertTrue((frame[env] == 10 + env).all())
            self.assertEqual((speed[env].tolist(), counts[env].tolist()), ([10, env, 0.5], [[-10, env], [7, 8]]))
        self.assertEqual((rewards.tolist(), flags.tolist()), ([10.25] * 3, [FIRST] * 3))
        self.assertEqual(learner.counters(0), (1, 0, 0))
        self.assertEqual(learner.counters(1), (0, 0, 0))

    def test_lanes_are_served_in_turn(self):
        creator, actor, learner = sides()
        self.assertEqual([actor.wait(-1), actor.wait(0), actor.wait(1)], [0, 1, 0])

    def test_spec_describes_shape_and_actions(self):
        discrete = {"kind": "discrete", "dims": 1, "sizes": [5]}
        multi_discrete = {"kind": "multi_discrete", "dims": 3, "sizes": [2, 3, 4]}
        continuous = {"kind": "continuous", "dims": 2, "low": [-1.0, -2.5], "high": [1.0, 2.0**100]}
        for action in (discrete, multi_discrete, continuous):
            creator, actor, learner = sides(lanes=1, actions=action)
            self.assertEqual((learner.lanes, learner.width, learner.steps), (1, 3, 4))
            self.assertEqual(learner.spec["obs"][0], {"name": "frame", "dtype": "u8", "dims": (84, 84), "choices": 0})
            self.assertEqual((learner.spec["action"], learner.spec["frames_per_step"]), (action, 1))
            publish(actor, 0, flags=FIRST)
            answers = np.arange(3 * action["dims"]).astype(np.float32 if action is continuous else np.int32)
            learner.answer(0, answers)
            self.assertEqual(np.asarray(actor.arrays(0)[3])[0].ravel().tolist(), answers.tolist())

    def test_arrays_are_the_memory_of_the_lane(self):
        creator, actor, learner = sides(lanes=2)
        obs, reward, flags, action, policy, value, last = actor.arrays(1)
        self.assertEqual([view.shape for view in obs], [(4, 3, 84, 84), (4, 3, 3), (4, 3, 2, 2)])
        self.assertEqual([view.readonly for view in (*obs, reward, flags, action, policy, value)], [False] * 5 + [True] * 3)
        self.assertEqual((policy.shape, value.shape, last), ((4, 3, 5), (4, 3), []))
        for n in range(6):
            slot = actor.next(1) % actor.steps
            self.assertEqual(slot, n % 4)
            np.asarray(obs[1])[slot] = [[n, env, 0.5] for env in range(3)]
            np.asarray(reward)[slot], np.asarray(flags)[slot] = [n, 1, 2], [FIRST, 0, LAST]
            actor.publish(1)
            (_, speed, _), rewards, ends = step_of(learner, 1, n)
            self.assertEqual((speed[2].tolist(), rewards.tolist(), ends.tolist()), ([n, 2, 0.5], [n, 1, 2], [FIRST, 0, LAST]))
            learner.answer(1, np.array([n, n + 1, n + 2], np.int32))
            learner.release(1, n)
            self.assertEqual(np.asarray(action)[slot].tolist(), [n, n + 1, n + 2])
        self.assertEqual(learner.counters(1), (6, 6, 5))
        self.assertEqual(learner.counters(0), (0, 0, 0))

    def test_a_view_keeps_its_ring_alive(self):
        creator, actor, learner = sides(lanes=1)
        publish(actor, 0, 77, FIRST)
        array = step_of(learner, 0, 0)[0][0][0]
        del creator, actor, learner
        gc.collect()
        self.assertTrue((array == 77).all())


class Refusals(unittest.TestCase):
    def setUp(self):
        self.creator, self.actor, self.learner = sides(lanes=1, width=2)

    def test_the_memory_of_the_other_side_is_read_only(self):
        publish(self.actor, 0, 1, FIRST)
        with self.assertRaises((TypeError, ValueError)):
            self.learner.arrays(0)[1][0, 0] = 1
        self.learner.answer(0, np.zeros(2, np.int32))
        self.actor.wait()
        with self.assertRaises((TypeError, ValueError)):
            self.actor.arrays(0)[3][0, 0] = 1

    def test_each_side_has_its_own_methods(self):
        for call, *arguments in (
            (self.learner.publish, 0), (self.learner.next, 0),
            (self.actor.answer, 0, np.zeros(2, np.int32)), (self.actor.stop,), (self.actor.fds,),
        ):
            with self.assertRaises(PermissionError):
                call(*arguments)

    def test_nothing_is_written_before_the_answer(self):
        publish(self.actor, 0, 1, FIRST)
        writes = (self.actor.publish, 0), (self.actor.set, 0, 0, 0, 0), (self.actor.next, 0)
        for write in (functools.partial(*call) for call in writes):
            with self.assertRaisesRegex(RuntimeError, "wait for the lane"):
                write()

    def test_unconsumed_steps_are_not_overwritten(self):
        for n in range(4):
            publish(self.actor, 0, n, 0 if n else FIRST)
            self.learner.answer(0, np.zeros(2, np.int32))
        with self.assertRaisesRegex(RuntimeError, "wait for the lane"):
            self.actor.next(0)
        self.learner.release(0, 1)
        publish(self.actor, 0, 4)
        with self.assertRaises(ValueError):
            self.learner.release(0, 0)

    def test_indexes_are_checked(self):
        publish(self.actor, 0, 0, FIRST)
        self.learner.answer(0, np.zeros(2, np.int32))
        for call in (
            lambda: self.actor.next(1),
            lambda: self.actor.set(0, 2, 0, 0),
            lambda: self.actor.set(0, -1, 0, 0),
            lambda: self.learner.counters(-1),
            lambda: self.actor.set(0, 0, 0, 32),
            lambda: self.learner.arrays(1),
        ):
            with self.assertRaises(IndexError):
                call()
        with self.assertRaises(TypeError):
            self.actor.set(0)
        with self.assertRaises((TypeError, OverflowError)):
            self.actor.next("0")

    def test_answers_have_the_lanes_size(self):
        publish(self.actor, 0, 0, FIRST)
        with self.assertRaisesRegex(ValueError, "8 bytes"):
            self.learner.answer(0, np.zeros(3, np.int32))
        self.learner.answer(0, np.zeros(2, np.int32))
        with self.assertRaisesRegex(RuntimeError, "has its answer"):
            self.learner.answer(0, np.zeros(2, np.int32))

    def test_bad_shapes_and_descriptors(self):
        for fields in ([], [("x", "u9", (1,))], [("x", "u8", ())], [("x", "u8", (0,))], [("x" * 40, "u8", (1,))]):
            with self.assertRaises(ValueError):
                _farm.create(1, 1, 4, fields, 2)
        with self.assertRaises(TypeError):
            _farm.create(1, 1, 4, ["x"], 2)
        for actions in (
            0,
            {"kind": "sideways", "dims": 1, "sizes": [2]},
            {"kind": "discrete", "dims": 2, "sizes": [2, 2]},
            {"kind": "multi_discrete", "dims": 2, "sizes": [2]},
            {"kind": "continuous", "dims": 129},
            {"kind": "continuous", "dims": 1, "low": [2], "high": [1]},
        ):
            with self.assertRaises(ValueError):
                _farm.create(1, 1, 4, [("x", "u8", (1,))], actions)
        one = {"kind": "discrete", "dims": 1}
        for actions in ("2", {}, {"kind": 3, "dims": 1}, {"kind": "discrete", "dims": "1"}, {**one, "sizes": ["2"]}):
            with self.assertRaises(TypeError):
                _farm.create(1, 1, 4, [("x", "u8", (1,))], actions)
        with self.assertRaises(TypeError):
            _farm.Ring()
        reader, writer = os.pipe()
        with self.assertRaises((ValueError, OSError)):
            _farm.attach(reader, writer)
        os.close(reader)
        os.close(writer)


class Atari(unittest.TestCase):
    """test_ale_vector_env.py compares what commit() and skip() do with ALE."""

    def setUp(self):
        self.creator, self.actor, self.learner = sides(lanes=1, width=2, fields=GREY)
        self.black, self.white = np.zeros((210, 160), np.uint8), np.full((210, 160), 14, np.uint8)  # palette indices

    def test_commit_fills_its_environment_only(self):
        self.actor.atari(210)
        self.actor.commit(0, 0, self.black, None, 0, FIRST)
        self.actor.commit(0, 1, self.black, self.white, -2.5, LAST)
        self.actor.publish(0)
        ((frames,), rewards, flags) = step_of(self.learner, 0, 0)
        self.assertEqual((frames[0].max(), frames[1].min(), rewards.tolist(), flags.tolist()), (0, 236, [0, -2.5], [FIRST, LAST]))

    def test_invalid_frames_are_refused(self):
        with self.assertRaisesRegex(RuntimeError, "atari"):
            self.actor.commit(0, 0, self.black, None, 0, 0)
        for height in (0, 83, 257, -1):
            with self.assertRaises(ValueError):
                self.actor.atari(height)
        self.actor.atari(250)
        with self.assertRaisesRegex(ValueError, "250 x 160"):
            self.actor.commit(0, 0, self.black, None, 0, 0)
        self.actor.atari(210)
        with self.assertRaisesRegex(ValueError, "210 x 160"):
            self.actor.commit(0, 0, self.black, self.black[:100], 0, 0)
        with self.assertRaises((BufferError, ValueError)):
            self.actor.commit(0, 0, self.black[:, ::2], None, 0, 0)
        with self.assertRaises(TypeError):
            self.actor.commit(0, 0, None, None, 0, 0)
        with self.assertRaises(ValueError):
            _farm.brighter(self.black, self.black[:10])
        other = sides(lanes=1, fields=[("state", "f32", (4,))])[1]
        with self.assertRaisesRegex(ValueError, "84x84"):
            other.atari(210)

    def test_exceptions_of_the_emulator_end_a_skip(self):
        def broken(code):
            raise OSError("smoke")

        for error, methods, *looks in (
            (OSError, (broken, bool, int, print), 0, ()),
            (TypeError, (str, bool, int, print), 0, ()),  # text as a reward
            (TypeError, (int, bool, int), 0, ()),
            (ValueError, (int, bool, int, print), 2, (None,)),
        ):
            with self.assertRaises(error):
                _farm.skip(methods, 0, 4, *looks, 0, 9)


class Waiting(unittest.TestCase):
    def test_an_answer_a_stop_and_a_signal_handler_end_it(self):
        """Other threads run meanwhile, and wait() has no time limit."""
        creator, actor, learner = sides(lanes=1)
        _farm.catch_signals()
        self.addCleanup(_farm.catch_signals)  # forgets the one that came
        for end, result in ((lambda: learner.answer(0, np.zeros(3, np.int32)), 0), (lambda: os.kill(os.getpid(), signal.SIGTERM), -1)):
            publish(actor, 0, 0, FIRST)
            threading.Timer(0.05, end).start()
            self.assertEqual(actor.wait(), result)
        creator, actor, learner = sides(lanes=1)
        publish(actor, 0, 0, FIRST)
        threading.Timer(0.05, creator.stop).start()
        self.assertEqual([actor.wait(), actor.wait()], [-1, -1])


class Missing(unittest.TestCase):
    """The package with an extension for another Python."""

    def test_an_import_raises_and_a_program_ends_with_one_line(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        package = os.path.join(folder.name, "actorfarm")
        shutil.copytree(os.path.dirname(actorfarm.__file__), package, ignore=shutil.ignore_patterns("_farm.*"))
        open(os.path.join(package, "_farm.cpython-39.so"), "w").close()
        caught = "import sys\ntry: import actorfarm\nexcept ImportError as error: print(error, file=sys.stderr)"
        for status, *words in (0, "-c", caught), (1, "-m", "actorfarm.ale_actor", "--list"):
            ended = subprocess.run([sys.executable, *words], env={**os.environ, "PYTHONPATH": folder.name}, capture_output=True, text=True)
            self.assertEqual(ended.returncode, status)
            self.assertRegex(ended.stderr, r"^[^\n]*is Python 3\..*built for another: _farm.cpython-39.so \(`make [^\n]*\n$")


class Seeds(unittest.TestCase):
    def test_each_argument_changes_the_seed(self):
        base = (1, 2, 3, 4)
        seeds = {_farm.derive_seed(*base)}
        for i in range(4):
            seeds.add(_farm.derive_seed(*(x + (i == k) for k, x in enumerate(base))))
        self.assertEqual(len(seeds), 5)
        self.assertEqual(_farm.derive_seed(*base), _farm.derive_seed(*base))


if __name__ == "__main__":
    unittest.main()
