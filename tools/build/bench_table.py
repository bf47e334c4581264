"""Runs every benchmark (BUILD/bench/NAME --json) and prints one table of all results.

usage: bench_table.py [--build DIR] [--results FILE] [NAME...]

Benchmarks run one after another, so that none disturbs another. Nothing is kept unless --results names a file, which
then gets the JSON documents as one list. Exit status 1 where a benchmark failed, took longer than 50 s or printed
something else than its document. A ratio that misses its target is marked, and is not a failure: it is a figure.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time

LIMIT_S = 50.0
KEYS = ("name", "value", "unit", "better", "spread", "reference", "reference_value", "ratio", "target")


def run(path):
    """The document, or a sentence on what went wrong."""
    start = time.monotonic()
    process = subprocess.Popen(
        [path, "--json"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=2 * LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # the processes that it started too
        process.communicate()
        return None, f"did not end within {2 * LIMIT_S:.0f} s"
    except KeyboardInterrupt:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    seconds = time.monotonic() - start
    try:
        document = json.loads(output)
        missing = [key for result in document["results"] for key in KEYS if key not in result]
    except (ValueError, KeyError, TypeError) as error:
        return None, f"exit status {process.returncode}, not the document that it should print: {error}"
    if missing:
        return document, f"its results lack {', '.join(sorted(set(missing)))}"
    if process.returncode != 0:
        return document, f"exit status {process.returncode}"
    if seconds > LIMIT_S:
        return document, f"took {seconds:.0f} s, more than the {LIMIT_S:.0f} s allowed"
    return document, ""


def number(value):
    if not isinstance(value, (int, float)):
        return "" if value is None else str(value)
    if value == 0 or 0.001 <= abs(value) < 1e5:
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"
    return f"{value:.3e}"


def verdict(result):
    ratio, target = result["ratio"], result["target"]
    if not isinstance(ratio, (int, float)) or not isinstance(target, (int, float)):
        return ""
    # `better` is about the value; the ratio is ours over the reference, so it reads the same way.
    met = ratio >= target if result["better"] == "higher" else ratio <= target
    return "met" if met else "MISSED"


def rows_of(document):
    for result in document["results"]:
        if all(key in result for key in KEYS):
            yield [
                document["benchmark"],
                result["name"],
                f"{number(result['value'])} {result['unit']}",
                number(result["spread"]),
                f"{number(result['reference_value'])} {result['reference'] or ''}".strip(),
                number(result["ratio"]),
                (("≥ " if result["better"] == "higher" else "≤ ") + number(result["target"]))
                if result["target"] is not None
                else "",
                verdict(result),
            ]


def show(rows):
    head = ["benchmark", "name", "value", "spread", "reference", "ratio", "target", ""]
    rows = [head] + rows
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


def machine_line(machine):
    if isinstance(machine, dict):
        return ", ".join(f"{key} {value}" for key, value in machine.items() if value not in (None, ""))
    return str(machine)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build")
    parser.add_argument("--results")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()

    folder = os.path.join(arguments.build, "bench")
    there = sorted(
        entry for entry in (os.listdir(folder) if os.path.isdir(folder) else ())
        if os.access(os.path.join(folder, entry), os.X_OK) and os.path.isfile(os.path.join(folder, entry))
    )
    unknown = [name for name in arguments.names if name not in there]
    if unknown:
        print(f"no such benchmark: {', '.join(unknown)}; there are: {', '.join(there) or 'none'}", file=sys.stderr)
        return 2

    documents, rows, problems = [], [], []
    for name in arguments.names or there:
        print(f"  BENCH {name}", file=sys.stderr)
        document, problem = run(os.path.join(folder, name))
        if document is not None:
            documents.append(document)
            rows += rows_of(document)
        if problem:
            problems.append(f"{name}: {problem}")

    if documents:
        print(f"machine: {machine_line(documents[0].get('machine'))}; commit {documents[0].get('commit')}")
    show(rows)
    for problem in problems:
        print(f"FAILED {problem}")
    if arguments.results:
        with open(arguments.results, "w", encoding="utf-8") as file:
            json.dump(documents, file, indent=1)
            file.write("\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
