"""Runs test programs and adds up their results: the last line is `N passed, N failed[, N skipped]`.

usage: run_tests.py [--jobs N] [--build DIR] [--timeout S] [--wrap COMMAND] [--again NAME=VALUE TEST]... TEST...

A TEST is a Criterion executable, a unittest script (*.py) or a shell script (*.sh; exit status 0: passed, 77: skipped
with its last line as the reason). Prints the whole output of a failed TEST, and one line and the `covered: ` lines of
a passed one. A program that crashes, hangs, reports nothing or leaves a sanitizer's report fails, even if each of its
tests passed. Each program has its own process group, which ends with it. Tests get FARM_BUILD and FARM_SOURCE. They
start in the given order; --again runs a TEST once more, after the others, with an environment variable set.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

SLOW_S = 5.0
COVERED = "covered: "  # lines with it show how much a passed test has covered
SANITIZER_REPORT = re.compile(r"SUMMARY: \w*Sanitizer|LeakSanitizer|runtime error: ")
RUN_UNITTEST = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run_unittest.py")


@dataclasses.dataclass
class Outcome:
    name: str
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    passed: int = 0
    failed: int = 0
    skipped: list = dataclasses.field(default_factory=list)  # one reason each
    output: str = ""
    note: str = ""  # why the program as a whole failed


def command_for(test, report, wrap):
    if test.endswith(".py"):
        return [sys.executable, RUN_UNITTEST, test, report]
    if test.endswith(".sh"):
        return ["bash", test]
    return wrap.split() + [os.path.abspath(test), "-j1", "--json=" + report]


def kill_group(group):
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def run_command(command, timeout_s, environment):
    """Exit status (None after a time-out), the CPU seconds of it and of what it waited for, the output of both streams."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, start_new_session=True
        )
        late = threading.Event()
        timer = threading.Timer(timeout_s, lambda: (late.set(), kill_group(process.pid)))
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        kill_group(process.pid)
        output.seek(0)
        status = None if late.is_set() else process.returncode
        return status, usage.ru_utime + usage.ru_stime, output.read().decode("utf-8", "replace")


def read_report(path, outcome):
    """Adds Criterion's (or run_unittest's) JSON report; False if it does not exist. `failed` includes crashes."""
    try:
        with open(path, encoding="utf-8") as file:
            report = json.load(file)
    except (OSError, ValueError):
        return False
    outcome.passed += report["passed"]
    outcome.failed += report["failed"]
    for suite in report["test_suites"]:
        for test in suite["tests"]:
            if test["status"] == "SKIPPED":
                reason = " ".join(test.get("messages", [])) or "no reason given"
                outcome.skipped.append(f"{suite['name']}::{test['name']}: {reason}")
    return True


def run_one(test, arguments, environment, setting=""):
    outcome = Outcome(os.path.relpath(test, arguments.build) if test.startswith(arguments.build) else test)
    if setting:
        name, value = setting.split("=", 1)
        outcome.name += f" @ {value}"
        environment = dict(environment, **{name: value})
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        report = os.path.join(scratch, "report.json")
        try:
            command = command_for(test, report, arguments.wrap)
            status, outcome.cpu_seconds, outcome.output = run_command(command, arguments.timeout, environment)
        except OSError as error:
            outcome.failed, outcome.note = 1, f"cannot be started: {error.strerror}"
            return outcome
        outcome.seconds = time.monotonic() - start
        if test.endswith(".sh"):
            if status == 77:
                lines = outcome.output.strip().splitlines()
                outcome.skipped.append(f"{test}: {lines[-1] if lines else 'no reason given'}")
            elif status == 0:
                outcome.passed = 1
        elif not read_report(report, outcome) and status == 0:
            outcome.note = "ended without a report"
    if status is None:
        outcome.note = f"did not end within {arguments.timeout} s"
    elif status < 0:
        outcome.note = f"died of signal {-status} ({signal.Signals(-status).name})"
    elif status not in (0, 77) and outcome.failed == 0:
        outcome.note = f"exit status {status}"
    elif SANITIZER_REPORT.search(outcome.output) and outcome.failed == 0:
        outcome.note = "a sanitizer reported"
    elif outcome.passed + outcome.failed + len(outcome.skipped) == 0:
        outcome.note = "contains no test"
    if outcome.note:
        outcome.failed += 1
    return outcome


def print_outcome(outcome):
    word = "FAIL" if outcome.failed else "ok"
    slow = f"  {outcome.seconds:.1f} s, CPU {outcome.cpu_seconds:.1f} s" if outcome.seconds >= SLOW_S else ""
    note = f"  ({outcome.note})" if outcome.note else ""
    counted = f"{outcome.passed} passed" + (f", {outcome.failed} failed" if outcome.failed else "")
    print(f"  {word:4}  {outcome.name:44} {counted}{slow}{note}")
    for reason in outcome.skipped:
        print(f"  skip  {reason}")
    for line in outcome.output.splitlines():
        if COVERED in line:  # unittest puts the test's name in front of what a test prints
            print(f"        {line[line.index(COVERED):]}")
    if outcome.failed:
        print(outcome.output.rstrip("\n"))
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--build", default="build")
    parser.add_argument("--timeout", type=float, default=300.0)
    parser.add_argument("--wrap", default="", help="starts Criterion executables, as in 'setarch -R'")
    parser.add_argument("--skips-fail", action="store_true", help="every TEST has to have what it needs")
    parser.add_argument("--again", nargs=2, action="append", default=[], metavar=("NAME=VALUE", "TEST"))
    parser.add_argument("tests", nargs="*")
    arguments = parser.parse_args()

    environment = dict(os.environ, FARM_BUILD=os.path.abspath(arguments.build), FARM_SOURCE=os.getcwd())
    environment["PYTHONPATH"] = os.path.abspath(os.path.join(arguments.build, "python"))
    environment["PYTHONDONTWRITEBYTECODE"] = environment["OPENBLAS_NUM_THREADS"] = "1"  # numpy would start threads that wait
    cache = tempfile.TemporaryDirectory()  # not the user's
    environment["XDG_CACHE_HOME"] = cache.name
    suppressions = os.path.join(os.path.dirname(RUN_UNITTEST), "lsan.supp")
    environment.setdefault("LSAN_OPTIONS", f"suppressions={suppressions}:print_suppressions=0")
    environment.setdefault("UBSAN_OPTIONS", "print_stacktrace=1")
    for name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES"):
        environment.pop(name, None)  # a test may run make

    start = time.monotonic()
    passed = failed = skipped = cpu_seconds = 0
    with concurrent.futures.ThreadPoolExecutor(max(1, arguments.jobs)) as pool:
        runs = [(test, "") for test in arguments.tests] + [(test, setting) for setting, test in arguments.again]
        futures = [pool.submit(run_one, test, arguments, environment, setting) for test, setting in runs]
        for future in concurrent.futures.as_completed(futures):
            outcome = future.result()
            outcome.failed += len(outcome.skipped) * arguments.skips_fail
            print_outcome(outcome)
            passed += outcome.passed
            failed += outcome.failed
            cpu_seconds += outcome.cpu_seconds
            skipped += len(outcome.skipped)
    print(f"  {len(runs)} test programs in {time.monotonic() - start:.1f} s, CPU {cpu_seconds:.0f} s")
    if passed + failed + skipped == 0:
        print("  no test was run")
        failed = 1
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
