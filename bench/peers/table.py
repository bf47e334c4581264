"""One table of documents that the comparisons wrote.

usage: table.py [--results FILE] DOCUMENT...

--results keeps the documents in one file, a list like that of `make bench RESULTS=...`; those of one benchmark are joined.
"""

import argparse
import json
import sys

HEAD = ["name", "ours", "spread", "theirs", "spread", "ratio", "target", "", "reference", "at its best with"]


def join(documents):
    """Documents of one benchmark, commit and machine as one."""
    joined = []
    for document in documents:
        same = [d for d in joined if all(d[key] == document[key] for key in ("benchmark", "commit", "machine"))]
        if same:
            same[0]["results"] += document["results"]
        else:
            joined.append({**document, "results": list(document["results"])})
    return joined


def number(value):
    return "" if value is None else f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def percent(value):
    return "" if value is None else f"{100 * value:.1f}%"


def row(result):
    target, lower = result["target"], result["better"] == "lower"
    met = target is not None and (result["ratio"] <= target if lower else result["ratio"] >= target)
    return [
        result["name"], f"{number(result['value'])} {result['unit']}", percent(result["spread"]),
        number(result["reference_value"]), percent(result.get("reference_spread")), f"{result['ratio']:.2f}",
        "" if target is None else f"{'≤' if lower else '≥'} {target:g}", "" if target is None else "met" if met else "MISSED",
        result["reference"], result.get("setting", ""),
    ]


def notes(results):
    """What each delivers to whom, and what is alike: said once where it is the same."""
    lines = {}
    for result in results:
        if "delivers" not in result:
            continue
        line = f"{result['reference']} delivers {result['delivers']}; ours {result['ours_delivers']}"
        line += f" ({result['alike']})" if result["alike"] else ""
        lines.setdefault(line, []).append(result["name"])
    return [f"{', '.join(names)}: {line}" for line, names in lines.items()]


def processor_time(results):
    """What a million steps cost each side in CPU seconds, where a comparison counts it."""
    key = "cpu_s_per_million_steps"
    return [
        f"{result['name']}: {number(result[key])} CPU s a million steps, theirs {number(result['reference_' + key])}"
        + (f"; ours with {result['ours_setting']}" if "ours_setting" in result else "")
        for result in results if result.get(key) is not None and result.get("reference_" + key) is not None
    ]


def show(documents):
    for document in documents:
        machine = ", ".join(f"{key} {value}" for key, value in document["machine"].items() if value not in (None, ""))
        print(f"{document['benchmark']} · machine: {machine}; commit {document['commit']}")
        rows = [HEAD] + [row(result) for result in document["results"]]
        widths = [max(len(line[column]) for line in rows) for column in range(len(HEAD))]
        for line in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())
        for note in notes(document["results"]) + processor_time(document["results"]):
            print(f"- {note}")
        print()


def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--results")
    parser.add_argument("documents", nargs="+")
    arguments = parser.parse_args(argv)
    documents = []
    for path in arguments.documents:
        with open(path, encoding="utf-8") as file:
            documents.append(json.load(file))
    documents = join(documents)
    show(documents)
    if arguments.results:
        with open(arguments.results, "w", encoding="utf-8") as file:
            json.dump(documents, file, indent=1)
            file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
