"""Breaks a line at a time of copies of the sources, builds a program from each, and wants every fault found: the runner of
tests/*/test_mutants.py and of tests/model/test_lane_model.py. A fault that is not found fails the test, and so does one
whose text is missing in the source, so that the tables follow the code.

A table has a line for each mutant: name | file | s/pattern/replacement/flags over the whole file, as sed -z would have it,
with $1 for a group; flags g (everywhere) and s (. matches a newline). `make test` runs those whose name has a star, which
are quick; FARM_MUTANTS=all all of them (make chaos-mutants, make kernel-mutants), FARM_MUTANTS=WORDS those whose names
contain the words."""

import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

SOURCE = pathlib.Path(os.environ.get("FARM_SOURCE", pathlib.Path(__file__).parents[2])).resolve()
BUILD = pathlib.Path(os.environ.get("FARM_BUILD", SOURCE / "build")).resolve()
CC = os.environ.get("CC", "gcc").split()
CHOSEN = os.environ.get("FARM_MUTANTS", "* ").removeprefix("all")


def lines_of(table):
    """(name, file, expression) of each chosen line."""
    rows = [[field.strip() for field in line.split("|", 2)] for line in table.strip().splitlines()]
    return [row for row in rows if CHOSEN in row[0]]


def substitute(text, expression):
    pattern, replacement, flags = re.fullmatch(r"s/((?:\\.|[^/\\])*)/((?:\\.|[^/\\])*)/([gs]*)", expression).groups()
    replacement = re.sub(r"\$(\d)", r"\\g<\1>", replacement)
    return re.sub(pattern, replacement, text, count="g" not in flags, flags=re.DOTALL if "s" in flags else 0)


def run(command, **more):
    return subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False, **more)


def made(command, tree):
    built = run(command, cwd=tree)
    if built.returncode != 0:
        raise AssertionError(f"does not compile: {' '.join(map(str, command))}\n{built.stdout}")


def link_mutant(tree, file, objects, compiler, libraries):
    """Compiles the file and what includes it, by the compiler's .d files, in the folder `tree`; links that and the other objects
    into tree/program."""
    units, kept = {file} if not file.endswith((".h", ".cuh")) else set(), []
    for path in objects:
        unit, *includes = path.with_suffix(".d").read_text().replace("\\\n", "").split("\n")[0].split()[1:]
        if not (SOURCE / unit).exists():
            continue  # left of an earlier build
        if file in map(os.path.normpath, (unit, *includes)):
            units.add(unit)
        else:
            kept.append(path)
    new = [tree / f"{number}.o" for number in range(len(units))]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda unit, path: made([*compiler, "-c", unit, "-o", path], tree), sorted(units), new))
    made([*CC, *kept, *new, *libraries, "-o", tree / "program"], SOURCE)
    return tree / "program"


def search(test, rows, look, jobs=1, change=substitute, **build):
    """Breaks, builds (see link_mutant) and searches each; look(name, program) returns what it found, or None. Returns
    {name: finding}."""

    def try_one(row):
        name, file, *how = row
        with tempfile.TemporaryDirectory() as folder:
            tree = pathlib.Path(folder)
            for part in ("include", "src", "tests/chaos", "tests/gpu", "tests/model", "tests/support"):
                shutil.copytree(SOURCE / part, tree / part, copy_function=os.symlink)
            (tree / "build").symlink_to(BUILD)
            text = (tree / file).read_text()
            (tree / file).unlink()
            broken = change(text, *how)
            if broken == text:
                raise AssertionError(f"{file} does not hold the text to break")
            (tree / file).write_text(broken)
            return look(name, link_mutant(tree, file, **build))

    found = {}
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for row, future in [(row, pool.submit(try_one, row)) for row in rows]:
            with test.subTest(mutant=row[0]):
                finding = future.result()
                test.assertIsNotNone(finding, "not found")
                found[row[0]] = finding
                print(f"{row[0]}: found: {finding}", flush=True)
    test.assertTrue(rows, f"no mutant is called {CHOSEN}")
    return found
