"""Shared by tests that run the program from outside: its path, a folder for each test, its workers, waiting for its output."""

import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import unittest
import unittest.mock

import numpy as np

FARM = str(pathlib.Path(os.environ.get("FARM_BUILD", "build")).resolve() / "farm")
SOURCE = pathlib.Path(os.environ.get("FARM_SOURCE", ".")).resolve()
LIMIT_S = 30
TOTALS = ("wall_s", "frames", "agent_steps", "episodes", "updates")


def plant_links(folder, *names):
    """Links that another user has laid where output will go. Returns their target, which is never written to."""
    victim = pathlib.Path(folder, "victim")
    victim.write_text("as it was")
    for name in names:
        pathlib.Path(folder, name).symlink_to(victim)
    return victim


def wait_until(condition):
    """The condition's first true value; None: it stayed false for LIMIT_S."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    return None


def children(pid):
    """Process ids by name: {"actor 0": 123, ...}, without the guardian and the forker."""
    found = {}
    for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            found[pathlib.Path(f"/proc/{child}/comm").read_text().strip()] = int(child)
        except OSError:
            pass  # the process has just ended
    found.pop("guardian", None)
    found.pop("forker", None)
    return found


def state(pid):
    """As ps shows it; "Z" for a process that does not exist."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def blocks(pid, number, mask="SigBlk"):
    """Whether the process blocks this signal, as the supervisor does with those that it reads from a descriptor."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{mask}:")), 16) >> (number - 1) & 1


def catches(pid, number):
    """Whether the process has a handler for this signal, as the learner has once it runs."""
    return blocks(pid, number, "SigCgt")


def run_farm(*arguments, folder=None, timeout=60, before=(), child=None, **environment):
    """The completed process. before: a program that starts it; child: a function that the new process calls first."""
    return subprocess.run(
        [*before, FARM, *arguments], preexec_fn=child, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=timeout,
        env={**os.environ, **environment},
    )


def read_tensor(path, name):
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    first, last = json.loads(data[8:end])[name]["data_offsets"]
    return np.frombuffer(data[end + first : end + last], "<f4")


def forget_key(run, key):
    """Makes a run one of a version without this recipe key, and without checksums of headers."""
    recipe = run / "recipe.yaml"
    recipe.write_text("".join(line for line in recipe.read_text().splitlines(True) if not line.startswith(key + ":")))
    for path in (run / "checkpoints").glob("*.safetensors"):
        data = path.read_bytes()
        end = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:end])
        for name in ("recipe." + key, "crc32c"):
            del header["__metadata__"][name]
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + data[end:])


def build_plugin(source, target, *flags):
    """Builds a plug-in with the command of docs/ADDING_AN_ENVIRONMENT.md."""
    compiler = os.environ.get("CC", "cc").split()
    command = [*compiler, "-O2", "-shared", "-fPIC", f"-I{SOURCE}/include", *flags, str(source), "-o", str(target), "-lm"]
    subprocess.run(command, check=True, timeout=60)


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def documented_keys(self, word):
        """Those of rows of docs/METRICS.md that contain the word."""
        rows = re.findall(rf"^\| (`.+`) \|.*{word}", (SOURCE / "docs/METRICS.md").read_text(), re.M)
        return {key for names in rows for key in re.findall(r"`(\w+)`", names)}

    def has_documented_keys(self, document, place, without=()):
        """Those of docs/METRICS.md in this place (m, t, e or f), except the keys `without`."""
        text = (SOURCE / "docs/METRICS.md").read_text()
        rows = re.findall(r"^\| (`.+`) \| ([mtef]+) \|", text, re.M)
        keys = {key for names, places in rows if place in places for key in re.findall(r"`(\w+)`", names)}
        self.assertEqual(set(document), keys - set(without))
        inner = {key for value in document.values() if isinstance(value, list) for item in value for key in item}
        self.assertEqual({key for key in inner if f"`{key}`" not in text}, set())

    def plant(self):
        """The folder gets modules and programs with names that farm uses, and PATH and PYTHONPATH lead there. The test fails if one runs."""
        ran = self.folder.resolve() / "ran"
        for name in ("actorfarm/__init__", "gymnasium/__init__", "ale_py", "argparse", "json", "multiprocessing", "numpy", "os", "runpy", "sitecustomize"):
            (self.folder / name).parent.mkdir(exist_ok=True)
            (self.folder / f"{name}.py").write_text(f"open({str(ran)!r}, 'a').write('{name} ')")
        for name in ("addr2line", "python3"):
            (self.folder / name).write_text(f"#!/bin/sh\necho {name} >>{ran}\n")
            (self.folder / name).chmod(0o755)
        (self.folder / "matplotlibrc").write_text("text.usetex: true\nfont.family: planted\n")
        planted = {"PATH": f".::{os.environ['PATH']}", "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:"}
        self.enterContext(unittest.mock.patch.dict(os.environ, planted))
        self.addCleanup(lambda: self.assertEqual(ran.read_text() if ran.exists() else "", ""))

    def farm(self, *arguments, folder=None, **more):
        return run_farm(*arguments, folder=folder or self.folder, **more)

    def start_farm(self, *arguments, stderr=subprocess.PIPE, program=FARM, child=None, **environment):
        """`farm` in the folder; it ends with the test at the latest."""
        process = subprocess.Popen(
            [program, *arguments], preexec_fn=child, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, text=True,
            env={**os.environ, **environment},
        )
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def start_logged(self, *arguments, log="said", **more):
        """`farm` with its messages in a file of the folder."""
        with open(self.folder / log, "w") as file:
            return self.start_farm(*arguments, stderr=file, **more)

    def said(self, log="said"):
        return (self.folder / log).read_text(errors="replace")

    def end(self, process, log="said", by=signal.SIGINT):
        """Its document; by=None: it ends by itself."""
        if by:
            process.send_signal(by)
        out, _ = process.communicate(timeout=LIMIT_S)
        self.assertEqual(process.returncode, 0, self.said(log)[-4000:])
        return json.loads(out)

    def kill_and_await(self, process, name):
        """Kills one of its workers and waits for the next one."""
        pid = wait_until(lambda: children(process.pid).get(name))  # forked at the supervisor's next tick
        os.kill(pid, signal.SIGKILL)
        self.assertTrue(wait_until(lambda: children(process.pid).get(name, pid) != pid), f"{name} was not started again")

    def await_line(self, pattern, log="said"):
        found = wait_until(lambda: re.search(pattern, self.said(log)))
        self.assertTrue(found, f"'{pattern}' is missing in: {self.said(log)[-4000:]}")
        return found

    def lines(self):
        """The complete lines of metrics of the run r: the last line of the file may be half written."""
        path = self.folder / "r/metrics.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.split("\n")[:-1]]


class Watched(InFolder):
    """With one training in the folder `r`, which ends by a signal only."""

    def start(self, *arguments, python=None, **environment):
        command = ["train", "--run", "r", "--frames", "100G", "--json", "--quiet", "--actors", "2", "--metrics-every", "0.1"]
        process = self.start_logged(*command, *arguments, **({"FARM_PYTHON": str(python)} if python else {}), **environment)
        self.assertTrue(wait_until(lambda: self.updates() > 0), self.said())
        return process

    def updates(self):
        lines = self.lines()
        return lines[-1]["updates"] if lines else 0

    def learns_on(self):
        before = self.updates()
        self.assertTrue(wait_until(lambda: self.updates() >= before + 10), f"training stands still: {self.said()[-4000:]}")
