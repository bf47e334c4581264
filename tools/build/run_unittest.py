"""Runs one unittest script and writes a report in Criterion's format: run_unittest.py TEST.py REPORT."""

import importlib.util
import json
import os
import sys
import unittest


class Result(unittest.TextTestResult):
    """Keeps the name of each test that started."""

    def startTest(self, test):
        super().startTest(test)
        self.started = getattr(self, "started", []) + [test.id()]


def load(path):
    """The script's tests, in its folder; a script that skips itself is one skipped test."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    name = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except unittest.SkipTest as skip:
        return type(name, (unittest.TestCase,), {"test": unittest.skip(str(skip))(lambda self: None)})("test")
    return unittest.defaultTestLoader.loadTestsFromModule(module)


def describe(result):
    """{test: (status, message)}; a subtest that fails or skips decides its test."""
    statuses = {test: ("PASSED", "") for test in getattr(result, "started", [])}
    statuses.update((getattr(test, "test_case", test).id(), ("SKIPPED", reason)) for test, reason in result.skipped)
    failed = [test for test, _ in result.failures + result.errors] + result.unexpectedSuccesses
    statuses.update((getattr(test, "test_case", test).id(), ("FAILED", "")) for test in failed)
    return statuses


def main():
    path, report = sys.argv[1:3]
    result = unittest.TextTestRunner(verbosity=2, resultclass=Result).run(load(path))
    statuses = describe(result)
    counts = {word: sum(status == word for status, _ in statuses.values()) for word in ("PASSED", "FAILED", "SKIPPED")}
    tests = [{"name": test, "status": status, "messages": [message] if message else []} for test, (status, message) in statuses.items()]
    with open(report, "w", encoding="utf-8") as file:
        json.dump({**{word.lower(): count for word, count in counts.items()}, "test_suites": [{"name": path, "tests": tests}]}, file)
    return 1 if counts["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main())
