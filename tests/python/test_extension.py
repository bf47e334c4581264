"""The extension: lanes made, written, answered and read from Python, and what it refuses."""

import functools
import gc
import os
import signal
import threading
import unittest

import numpy as np
from actorfarm import _farm

FIRST, LAST = _farm.FIRST, _farm.LAST
FIELDS = [("frame", "u8", (84, 84)), ("speed", "f32", (3,)), ("counts", "i32", (2, 2))]


def sides(lanes=2, width=3, steps=4, fields=FIELDS, actions=5, event_fd=-1, spin_ns=0):
    """(creator, actor, learner) of one ring."""
    creator = _farm.create(lanes, width, steps, fields, actions)
    actor_fds, learner_fds = creator.fds()
    return creator, _farm.attach(*actor_fds, event_fd, spin_ns), _farm.open_learner(*learner_fds)


def publish(actor, lane, value=0, flags=0):
    for env in range(actor.width):
        np.asarray(actor.obs(lane, env, 0))[:] = value + env
        np.asarray(actor.obs(lane, env, 1))[:] = (value, env, 0.5)
        np.asarray(actor.obs(lane, env, 2))[:] = [[-value, env], [7, 8]]
        actor.set(lane, env, value + 0.25, flags)
    actor.publish(lane)


class Lanes(unittest.TestCase):
    def test_what_the_actor_writes_is_what_the_learner_reads(self):
        creator, actor, learner = sides()
        actor.take_over()
        self.assertEqual(actor.wait(), 0)
        publish(actor, 0, 10, FIRST)
        for env in range(3):
            frame = learner.read(0, 0, env)
            self.assertEqual((frame.format, frame.shape, frame.readonly), ("B", (84, 84), True))
            self.assertTrue((np.asarray(frame) == 10 + env).all())
            self.assertEqual(learner.read(0, 0, env, 1).tolist(), [10, env, 0.5])
            self.assertEqual(learner.read(0, 0, env, 2).tolist(), [[-10, env], [7, 8]])
        self.assertEqual(learner.rewards(0, 0).tolist(), [10.25] * 3)
        self.assertEqual(learner.flags(0, 0).tolist(), [FIRST] * 3)
        self.assertEqual(learner.counters(0), (1, 0, 0))
        self.assertEqual(learner.counters(1), (0, 0, 0))

    def test_answers_reach_the_actor(self):
        creator, actor, learner = sides(lanes=1)
        actor.take_over()
        publish(actor, 0, flags=FIRST)
        for n in range(10):
            learner.answer(0, np.array([n, n + 1, n + 2], np.int32))
            learner.release(0, n)
            self.assertEqual(actor.wait(), 0)
            self.assertEqual(actor.actions(0).tolist(), [n, n + 1, n + 2])
            publish(actor, 0, n)
        self.assertEqual(learner.counters(0), (11, 10, 9))

    def test_lanes_are_served_in_turn(self):
        creator, actor, learner = sides()
        actor.take_over()
        self.assertEqual([actor.wait(-1), actor.wait(0), actor.wait(1)], [0, 1, 0])

    def test_spec_tells_the_shape(self):
        creator, actor, learner = sides()
        self.assertEqual((learner.lanes, learner.width, learner.steps), (2, 3, 4))
        self.assertEqual(learner.spec["obs"][0], {"name": "frame", "dtype": "u8", "dims": (84, 84)})
        self.assertEqual(learner.spec["action"], {"kind": "discrete", "sizes": [5], "dims": 1})
        self.assertEqual(learner.spec["frames_per_step"], 1)

    def test_spec_tells_every_kind_of_action(self):
        for action in (
            {"kind": "multi_discrete", "dims": 3, "sizes": [2, 3, 4]},
            {"kind": "continuous", "dims": 2, "low": [-1.0, -2.5], "high": [1.0, 3.0e38]},
        ):
            creator, actor, learner = sides(lanes=1, actions=action)
            found = learner.spec["action"]
            for key, value in action.items():
                self.assertEqual(found[key], value if key != "high" else [float(np.float32(x)) for x in value])
            self.assertEqual(set(found), set(action))
            actor.take_over()
            publish(actor, 0, flags=FIRST)
            answers = np.arange(3 * action["dims"]).astype(np.float32 if action["kind"] == "continuous" else np.int32)
            learner.answer(0, answers)
            self.assertEqual(np.asarray(actor.actions(0)).ravel().tolist(), answers.tolist())

    def test_whole_arrays_are_the_lanes_own_memory(self):
        creator, actor, learner = sides(lanes=2)
        actor.take_over()
        obs, reward, flags, action = actor.arrays(1)
        self.assertEqual([view.shape for view in obs], [(4, 3, 84, 84), (4, 3, 3), (4, 3, 2, 2)])
        self.assertEqual([view.readonly for view in (*obs, reward, flags, action)], [False] * 5 + [True])
        for n in range(6):
            slot = actor.next(1) % actor.steps
            self.assertEqual(slot, n % 4)
            np.asarray(obs[1])[slot] = [[n, env, 0.5] for env in range(3)]
            np.asarray(reward)[slot], np.asarray(flags)[slot] = [n, 1, 2], [FIRST, 0, LAST]
            actor.publish(1)
            self.assertEqual(learner.read(1, n, 2, 1).tolist(), [n, 2, 0.5])
            self.assertEqual((learner.rewards(1, n).tolist(), learner.flags(1, n).tolist()), ([n, 1, 2], [FIRST, 0, LAST]))
            learner.answer(1, np.array([n, n + 1, n + 2], np.int32))
            learner.release(1, n)
            self.assertEqual(np.asarray(action)[slot].tolist(), [n, n + 1, n + 2])
        self.assertEqual(learner.counters(0), (0, 0, 0))

    def test_a_view_keeps_its_ring_alive(self):
        creator, actor, learner = sides(lanes=1)
        actor.take_over()
        publish(actor, 0, 77, FIRST)
        array = np.asarray(learner.read(0, 0, 0))
        del creator, actor, learner
        gc.collect()
        self.assertTrue((array == 77).all())


class Refusals(unittest.TestCase):
    def setUp(self):
        self.creator, self.actor, self.learner = sides(lanes=1, width=2)
        self.actor.take_over()

    def test_the_other_sides_memory_is_read_only(self):
        publish(self.actor, 0, 1, FIRST)
        with self.assertRaises((TypeError, ValueError)):
            self.learner.read(0, 0, 0)[0, 0] = 1
        self.learner.answer(0, np.zeros(2, np.int32))
        self.actor.wait()
        with self.assertRaises((TypeError, ValueError)):
            self.actor.actions(0)[0] = 1

    def test_each_side_keeps_to_its_own(self):
        for call, *arguments in (
            (self.learner.publish, 0), (self.learner.obs, 0, 0), (self.learner.arrays, 0), (self.learner.next, 0),
            (self.learner.abandon,), (self.actor.answer, 0, np.zeros(2, np.int32)), (self.actor.stop,), (self.actor.fds,),
        ):
            with self.assertRaises(PermissionError):
                call(*arguments)

    def test_nothing_is_written_before_the_answer(self):
        publish(self.actor, 0, 1, FIRST)
        writes = (self.actor.obs, 0, 0), (self.actor.publish, 0), (self.actor.set, 0, 0, 0, 0), (self.actor.next, 0)
        for write in (functools.partial(*call) for call in writes):
            with self.assertRaisesRegex(RuntimeError, "wait for the lane"):
                write()
        with self.assertRaises(RuntimeError):
            self.actor.actions(0)

    def test_nothing_is_written_over_what_is_not_consumed(self):
        for n in range(4):
            publish(self.actor, 0, n, 0 if n else FIRST)
            self.learner.answer(0, np.zeros(2, np.int32))
        with self.assertRaisesRegex(RuntimeError, "wait for the lane"):
            self.actor.obs(0, 0)
        self.learner.release(0, 1)
        publish(self.actor, 0, 4)
        with self.assertRaises(IndexError):
            self.learner.read(0, 0, 0)
        with self.assertRaises(ValueError):
            self.learner.release(0, 0)

    def test_indexes_are_checked(self):
        for call in (
            lambda: self.actor.obs(1, 0),
            lambda: self.actor.obs(0, 2),
            lambda: self.actor.obs(0, -1),
            lambda: self.actor.obs(0, 0, 3),
            lambda: self.actor.set(0, 0, 0, 32),
            lambda: self.learner.read(0, 0, 0),
            lambda: self.learner.rewards(0, 10**18),
        ):
            with self.assertRaises(IndexError):
                call()
        with self.assertRaises(TypeError):
            self.actor.obs(0)
        with self.assertRaises((TypeError, OverflowError)):
            self.actor.obs("0", 0)

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
            {"kind": "continuous", "dims": 33},
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
    def setUp(self):
        self.creator, self.actor, self.learner = sides(lanes=1, width=2, fields=[("frame", "u8", (84, 84))])
        self.actor.take_over()
        self.black, self.white = np.zeros((210, 160), np.uint8), np.full((210, 160), 14, np.uint8)  # palette indices

    def test_commit_fills_its_own_environment_only(self):
        self.actor.atari(210)
        self.actor.commit(0, 0, self.black, self.black, 0, FIRST)
        self.actor.commit(0, 1, self.black, self.white, -2.5, LAST)
        self.actor.publish(0)
        self.assertEqual(np.asarray(self.learner.read(0, 0, 0)).max(), 0)
        self.assertEqual(np.asarray(self.learner.read(0, 0, 1)).min(), 236)
        self.assertEqual(self.learner.rewards(0, 0).tolist(), [0, -2.5])
        self.assertEqual(self.learner.flags(0, 0).tolist(), [FIRST, LAST])

    def test_one_frame_suffices(self):
        self.actor.atari(210)
        self.actor.commit(0, 0, self.white, None, 0, FIRST)
        self.assertEqual(np.asarray(self.actor.obs(0, 0)).min(), 236)

    def test_brighter_takes_each_pixels_brighter_one(self):
        into = self.black.copy()
        into[5] = 14
        frame = self.black.copy()
        frame[7] = 14
        _farm.brighter(into, frame)
        self.assertEqual(sorted(set(np.nonzero(into)[0])), [5, 7])

    def test_wrong_frames_are_refused(self):
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


class Skip(unittest.TestCase):
    """An action repeated, with an emulator whose lives and end follow the frames."""

    def skip(self, lives, before=0, left=100, looks=2, frames=4, over_at=None):
        seen, frame = [], iter(range(1, 10))

        def act(code):
            self.now = next(frame)
            return code

        methods = act, lambda: self.now == over_at, lambda: lives[self.now - 1], lambda screen: seen.append((self.now, screen))
        return _farm.skip(methods, 3, frames, looks, ("last", "one before"), before, left), seen

    def test_all_frames_and_the_last_two_are_shown(self):
        self.assertEqual(self.skip([5] * 4), ((12, -1, 0, 5, 96), [(3, "one before"), (4, "last")]))
        self.assertEqual(self.skip([5] * 4, looks=0), ((12, -1, 0, 5, 96), []))
        self.assertEqual(self.skip([5], frames=1, looks=1), ((3, -1, 0, 5, 99), [(1, "last")]))

    def test_it_ends_before_it_looks(self):
        self.assertEqual(self.skip([5] * 4, over_at=3), ((9, 1, 1, 5, 97), []))
        self.assertEqual(self.skip([5] * 4, left=4), ((12, 0, 0, 5, 0), [(3, "one before")]))
        self.assertEqual(self.skip([5, 4, 4, 4], before=5), ((6, 2, 0, 4, 98), []))
        self.assertEqual(self.skip([5, 4, 4, 4])[0][1], -1)  # lives end nothing
        self.assertEqual(self.skip([0, 0, 0, 0], before=5)[0][1], -1)  # none left: the game itself says when

    def test_errors_of_the_emulator_come_through(self):
        def broken(code):
            raise OSError("smoke")

        with self.assertRaisesRegex(OSError, "smoke"):
            _farm.skip((broken, bool, int, print), 0, 4, 0, (), 0, 9)
        with self.assertRaises(TypeError):
            _farm.skip((str, bool, int, print), 0, 4, 0, (), 0, 9)  # text for a reward
        with self.assertRaises(TypeError):
            _farm.skip((int, bool, int), 0, 4, 0, (), 0, 9)
        with self.assertRaises(ValueError):
            _farm.skip((int, bool, int, print), 0, 4, 2, (None,), 0, 9)


class Waiting(unittest.TestCase):
    def test_other_threads_run_while_it_waits(self):
        creator, actor, learner = sides(lanes=1)
        actor.take_over()
        publish(actor, 0, 0, FIRST)
        threading.Timer(0.05, lambda: learner.answer(0, np.zeros(3, np.int32))).start()
        self.assertEqual(actor.wait(), 0)

    def test_stop_ends_it(self):
        creator, actor, learner = sides(lanes=1)
        actor.take_over()
        publish(actor, 0, 0, FIRST)
        threading.Timer(0.05, creator.stop).start()
        self.assertEqual(actor.wait(), -1)
        self.assertEqual(actor.wait(), -1)

    def test_a_signal_handler_runs_and_may_end_it(self):
        creator, actor, learner = sides(lanes=1)
        actor.take_over()
        publish(actor, 0, 0, FIRST)
        before = signal.signal(signal.SIGTERM, lambda number, frame: actor.interrupt())
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
        self.assertEqual(actor.wait(), -1)  # which has no time-out
        signal.signal(signal.SIGTERM, before)


class Seeds(unittest.TestCase):
    def test_seeds_depend_on_everything(self):
        base = (1, 2, 3, 4)
        seeds = {_farm.derive_seed(*base)}
        for i in range(4):
            seeds.add(_farm.derive_seed(*(x + (i == k) for k, x in enumerate(base))))
        self.assertEqual(len(seeds), 5)
        self.assertEqual(_farm.derive_seed(*base), _farm.derive_seed(*base))


if __name__ == "__main__":
    unittest.main()
