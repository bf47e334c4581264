"""Environments given as Python objects, and the farm behind Gymnasium's interfaces."""

import os
import pathlib
import sys
import tempfile
import threading
import unittest

import gymnasium
from actorfarm import passed

import lanes

OWN = """import gymnasium

class Own(gymnasium.Wrapper):
    def __init__(self, name="CartPole-v1", fault=None):
        super().__init__(gymnasium.make(name))
        if fault:
            raise OSError(fault)
"""


class Unloadable:
    def __call__(self):
        pass

    def __reduce__(self):
        return eval, ("1 / 0",)


def fail():
    raise RuntimeError("no such level: 7")


class Passed(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        pathlib.Path(self.folder.name, "own_module.py").write_text(OWN)
        sys.path.append(self.folder.name)
        self.addCleanup(sys.path.remove, self.folder.name)
        self.own = __import__("own_module").Own
        self.addCleanup(sys.modules.pop, "own_module")

    def spec(self, env, **options):
        """What an actor, which does not import this file, says of it."""
        name, given, fd = passed.give(env)
        self.addCleanup(os.close, fd)
        os.set_inheritable(fd, True)
        words = [word for pair in {**given, **options}.items() for word in ("--option", "{}={}".format(*pair))]
        return lanes.run_actor("gym_actor", "--env", name.removeprefix("gym/"), *words, "--spec")

    def test_callables_and_classes_play(self):
        """By value, and by name from the user's folders. Options are arguments."""
        for env, options in ((lambda: gymnasium.make("CartPole-v1"), {}), (self.own, {}), ([self.own], {"name": "CartPole-v0"})):
            result = self.spec(env, **options)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn('"dims": [4]', result.stdout)

    def test_errors_name_their_cause_and_place(self):
        for env, options, said in (
            (fail, {}, r"RuntimeError: no such level: 7 \(.*test_vector_env.py:\d+, fail\)"),
            (self.own, {"fault": "no licence"}, r"OSError: no licence \(own_module.py:7, __init__\)"),
            (self.own, {"colour": "red"}, "unexpected keyword argument 'colour'"),
            (Unloadable(), {}, "cannot be unpickled: ZeroDivisionError: division by zero"),
            (lambda: 5, {}, "must inherit from the gymnasium.Env class"),
        ):
            result = self.spec(env, **options)
            self.assertEqual(result.returncode, 2, result.stdout)
            self.assertRegex(result.stderr, said)

    def test_what_cannot_be_given_is_refused(self):
        lock = threading.Lock()
        for env, listen, said in (
            (3, False, "must be an environment's name, a callable or class"),
            (lambda: lock, False, "cannot be pickled .*; open files, locks and connections inside it"),
            (fail, True, "must be a class of a module"),
            (lambda: None, True, "must be a class of a module"),
            ([self.own, self.own], True, "a list is for this machine's actors only"),
        ):
            with self.assertRaisesRegex((TypeError, ValueError), said):
                passed.give(env, listen=listen)
        self.assertEqual(passed.give(self.own, listen=True), (passed.NAME, {"entry": "own_module:Own"}, None))


if __name__ == "__main__":
    unittest.main()
