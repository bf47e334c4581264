"""Runs one unittest script and writes a report of the form that Criterion writes: run_unittest.py TEST.py REPORT."""

import importlib.util
import json
import os
import sys
import unittest


class Recorder(unittest.TextTestResult):
    """Notes the status of each test; a failing subtest fails its test once."""

    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.statuses = {}

    def note(self, test, status, message=""):
        if self.statuses.get(test.id(), ("", ""))[0] != "FAILED":
            self.statuses[test.id()] = (status, message)

    def addSuccess(self, test):
        super().addSuccess(test)
        self.note(test, "PASSED")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.note(test, "SKIPPED", reason)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.note(test, "FAILED")

    def addError(self, test, error):
        super().addError(test, error)
        self.note(test, "FAILED")

    def addExpectedFailure(self, test, error):
        super().addExpectedFailure(test, error)
        self.note(test, "PASSED")

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.note(test, "FAILED")

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            self.note(test, "FAILED")


def main():
    path, report = sys.argv[1:3]
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    name = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    result = unittest.TextTestRunner(verbosity=2, resultclass=Recorder).run(suite)
    tests = [
        {"name": test, "status": status, "messages": [message] if message else []}
        for test, (status, message) in result.statuses.items()
    ]
    counts = {word: sum(test["status"] == word for test in tests) for word in ("PASSED", "FAILED", "SKIPPED")}
    with open(report, "w", encoding="utf-8") as file:
        json.dump(
            {
                "passed": counts["PASSED"],
                "failed": counts["FAILED"],
                "skipped": counts["SKIPPED"],
                "test_suites": [{"name": path, "tests": tests}],
            },
            file,
        )
    return 1 if counts["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main())
