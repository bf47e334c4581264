"""Starts a Python program of ours: start.py NAME ARGUMENT... NAME is a module (actorfarm.gym_actor) or a script beside this file
(plot.py).

`python -m` imports from the current folder first: a numpy.py that lies there would run. Python finds this file by its path, and
src/envs/python.c starts everything through it, with PYTHONSAFEPATH=farm. From Python 3.11 on, sys.path then begins with the first
folder of PYTHONPATH, and multiprocessing passes -P on. Before, it begins with this file's folder.
"""

import sys

if not getattr(sys.flags, "safe_path", False):
    del sys.path[0]

import os
import runpy

if os.environ.get("PYTHONSAFEPATH") == "farm":  # programs that an environment starts find what lies beside them
    del os.environ["PYTHONSAFEPATH"]
name = sys.argv.pop(1)
if name.endswith(".py"):
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    sys.argv[0] = os.path.join(sys.path[0], name)
    runpy.run_path(sys.argv[0], run_name="__main__")
else:
    if sys.version_info < (3, 11):  # no -P
        from multiprocessing import util

        flags = util._args_from_interpreter_flags
        util._args_from_interpreter_flags = lambda: [*flags(), "-I"]
    runpy._run_module_as_main(name)
