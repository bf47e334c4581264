"""Lines and branches that a run of the tests took, by folder and file; fails where a folder took too few.

usage: coverage.py [--build DIR] [--least PERCENT] [--missing] FOLDER...      FOLDER: ring for src/ring

Reads what gcc --coverage and the tests left in DIR, through `gcov --json-format`. Lines and branches of a header count
once, whoever compiled it. A branch is one way out of a condition, as gcc sees it at -O0: `a && b` has four.

One thing is left out, and said: the branches of lines on which an assert( stands, for the way into abort(3) is there
never to be taken. Their lines count. Nothing else can be left out.
"""

import argparse
import collections
import json
import os
import re
import subprocess
import sys

ASSERT = re.compile(r"\bassert\(")
AT_ONCE = 32


class File:
    def __init__(self, path):
        self.path = path
        with open(path, encoding="utf-8") as file:
            self.text = file.read().splitlines()
        self.lines = collections.Counter()  # line -> how often it ran
        self.branches = {}  # (line, function) -> how often each way was taken
        self.complaint = None

    def add(self, line):
        number, counts = line["line_number"], [branch["count"] for branch in line["branches"]]
        self.lines[number] += line["count"]
        if not counts:
            return
        key = number, line.get("function_name")
        before = self.branches.setdefault(key, [0] * len(counts))
        if len(before) != len(counts):
            sys.exit(f"coverage: {self.path}:{number}: {len(before)} branches in one object, {len(counts)} in another")
        self.branches[key] = [a + b for a, b in zip(before, counts)]

    def is_assert(self, number):
        return ASSERT.search(self.text[number - 1]) is not None

    def counted(self):
        return {key: ways for key, ways in self.branches.items() if not self.is_assert(key[0])}

    def totals(self):
        """Lines run, lines, branches taken, branches, branches left out."""
        counted = self.counted()
        ways = [way for ways in counted.values() for way in ways]
        left_out = sum(len(ways) for key, ways in self.branches.items() if key not in counted)
        ran = sum(1 for count in self.lines.values() if count)
        return [ran, len(self.lines), sum(1 for way in ways if way), len(ways), left_out]

    def print_missing(self):
        counted = collections.defaultdict(list)
        for (number, _), ways in self.counted().items():
            counted[number] += ways
        for number in sorted(self.lines):
            ways = counted[number]
            if self.lines[number] == 0:
                what = "line never run"
            elif 0 in ways:
                what = f"{sum(1 for way in ways if not way)} of {len(ways)} branches never taken"
            else:
                continue
            print(f"{self.path}:{number}: {what}: {self.text[number - 1].strip()}")


def objects(build):
    for folder, _, names in os.walk(os.path.join(build, "obj")):
        for name in sorted(names):
            if name.endswith(".gcno"):
                yield os.path.join(folder, name)


def gcov(paths, folders):
    """One JSON document an object."""
    command = ["gcov", "--json-format", "--stdout", "--branch-probabilities", "--branch-counts"]
    run = subprocess.run(command + paths, capture_output=True, text=True, check=True)
    # Of a source that has changed since it was compiled, and of counts that do not fit it.
    complaints = [line for line in run.stderr.splitlines() if line.startswith(tuple(folder + "/" for folder in folders))
                  or "corrupt" in line or "mismatch" in line or "overwriting" in line]
    if complaints:
        sys.exit("coverage: gcov says:\n" + "\n".join(complaints))
    return [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]


def read(build, folders):
    files = {}
    paths = list(objects(build))
    if not paths:
        sys.exit(f"coverage: {build} holds nothing that was compiled with --coverage")
    for first in range(0, len(paths), AT_ONCE):
        for document in gcov(paths[first:first + AT_ONCE], folders):
            for entry in document["files"]:
                path = os.path.normpath(entry["file"])
                if os.path.dirname(path) not in folders:
                    continue
                file = files.get(path) or files.setdefault(path, File(path))
                for line in entry["lines"]:
                    file.add(line)
    return files


def percent(part, whole):
    return 100.0 * part / whole if whole else 100.0


def row(name, totals):
    ran, lines, taken, branches, left_out = totals
    print(f"  {name:32} {ran:5}/{lines:<5} {percent(ran, lines):6.1f} %   {taken:5}/{branches:<5} "
          f"{percent(taken, branches):6.1f} %   {left_out:6}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build/coverage")
    parser.add_argument("--least", type=float, default=90.0)
    parser.add_argument("--missing", action="store_true", help="also prints each line and branch that was not taken")
    parser.add_argument("folders", nargs="+")
    arguments = parser.parse_args()
    folders = [os.path.join("src", folder) for folder in arguments.folders]
    files = read(arguments.build, folders)

    if arguments.missing:
        for path in sorted(files):
            files[path].print_missing()
    short = []
    print(f"  {'':32} {'lines run':>20}   {'branches taken':>20}   {'left out (assert)':>6}")
    for folder in folders:
        members = {path: file.totals() for path, file in sorted(files.items()) if os.path.dirname(path) == folder}
        totals = [sum(column) for column in zip(*members.values())] or [0] * 5
        for path, own in members.items():
            row(path, own)
        row(folder, totals)
        if not totals[1]:
            short.append(f"{folder}: nothing of it was compiled")
        for part, whole, what in ((totals[0], totals[1], "lines"), (totals[2], totals[3], "branches")):
            if percent(part, whole) < arguments.least:
                short.append(f"{folder}: {percent(part, whole):.1f} % of the {what}, {arguments.least:g} % is wanted")
    for line in short:
        print(f"  coverage: {line}")
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
