"""Runs every benchmark (BUILD/bench/NAME --json) and prints one table of all results.

usage: bench_table.py [--build DIR] [--results DIR] [NAME...]
       bench_table.py --documents [--results DIR] DOCUMENT...     documents of the comparisons with other systems

Benchmarks run one after another. --results appends each benchmark's document, as one line, to DIR/BENCHMARK.jsonl.
Exit status 1 if a benchmark failed, took longer than 50 s or printed anything but its document. A ratio that misses
its target is marked; it is not a failure.
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
    """(document, problem)"""
    start = time.monotonic()
    process = subprocess.Popen(
        [path, "--json"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=2 * LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # and its child processes
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


def join(documents):
    """Merges documents of the same benchmark, commit and machine."""
    joined = []
    for document in documents:
        same = [d for d in joined if all(d[key] == document[key] for key in ("benchmark", "commit", "machine"))]
        if same:
            same[0]["results"] += document["results"]
        else:
            joined.append({**document, "results": list(document["results"])})
    return joined


def number(value):
    if not isinstance(value, (int, float)):
        return "" if value is None else str(value)
    if value == 0 or 0.001 <= abs(value) < 1e5:
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"
    return f"{value:.3e}"


def percent(value):
    return "" if value is None else f"{100 * value:.1f}%"


def verdict(result):
    ratio, target = result["ratio"], result["target"]
    if not isinstance(ratio, (int, float)) or not isinstance(target, (int, float)):
        return ""
    # The ratio is ours over the reference, so `better` applies to it as to the value.
    met = ratio >= target if result["better"] == "higher" else ratio <= target
    return "met" if met else "MISSED"


def row_of(benchmark, result):
    target = "" if result["target"] is None else ("≥ " if result["better"] == "higher" else "≤ ") + number(result["target"])
    return [
        benchmark, result["name"], f"{number(result['value'])} {result['unit']}", percent(result["spread"]),
        number(result["reference_value"]), percent(result.get("reference_spread")), number(result["ratio"]), target,
        verdict(result), " ".join(filter(None, (result["reference"], result.get("setting")))),
    ]  # fmt: skip


def notes(results):
    """What each side delivers and what is equal, once for equal lines; CPU time of a million steps."""
    lines, key = {}, "cpu_s_per_million_steps"
    for result in results:
        if "delivers" not in result:
            continue
        line = f"{result['reference']} delivers {result['delivers']}; ours {result['ours_delivers']}"
        line += f" ({result['alike']})" if result["alike"] else ""
        lines.setdefault(line, []).append(result["name"])
    return [f"{', '.join(names)}: {line}" for line, names in lines.items()] + [
        f"{result['name']}: {number(result[key])} CPU s a million steps, theirs {number(result['reference_' + key])}"
        + (f"; ours with {result['ours_setting']}" if "ours_setting" in result else "")
        for result in results if result.get(key) is not None and result.get("reference_" + key) is not None
    ]


def print_table(documents):
    if documents:
        machine = ", ".join(f"{key} {value}" for key, value in documents[0]["machine"].items() if value not in (None, ""))
        print(f"machine: {machine}; commit {documents[0]['commit']}")
    rows = [["benchmark", "name", "value", "spread", "reference", "spread", "ratio", "target", "", ""]]
    for document in documents:
        rows += [row_of(document["benchmark"], result) for result in document["results"] if all(key in result for key in KEYS)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    for document in documents:
        for note in notes(document["results"]):
            print(f"- {note}")


def measure(build, names):
    """The documents of these benchmarks (all if there are no names) and the problems; None for an unknown name."""
    folder = os.path.join(build, "bench")
    paths = {entry: os.path.join(folder, entry) for entry in sorted(os.listdir(folder) if os.path.isdir(folder) else ())}
    known = [name for name, path in paths.items() if os.access(path, os.X_OK) and os.path.isfile(path)]
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"no such benchmark: {', '.join(unknown)}; there are: {', '.join(known) or 'none'}", file=sys.stderr)
        return None, []
    documents, problems = [], []
    for name in names or known:
        print(f"  BENCH {name}", file=sys.stderr)
        document, problem = run(paths[name])
        if document is not None:
            documents.append(document)
        if problem:
            problems.append(f"{name}: {problem}")
    return documents, problems


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build")
    parser.add_argument("--results")
    parser.add_argument("--documents", action="store_true")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    if arguments.results:
        os.makedirs(arguments.results, exist_ok=True)
    if arguments.documents:
        documents, problems = [], []
        for path in arguments.names:
            with open(path, encoding="utf-8") as file:
                documents.append(json.load(file))
    else:
        documents, problems = measure(arguments.build, arguments.names)
    if documents is None:
        return 2
    documents = join(documents)
    print_table(documents)
    for problem in problems:
        print(f"FAILED {problem}")
    for document in documents if arguments.results else ():
        path = os.path.join(arguments.results, f"{document['benchmark']}.jsonl")
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(document, separators=(",", ":")) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
