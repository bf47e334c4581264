"""What check.sh makes of the documents that its programs print.

report.py table FILE          the results of one document as a table
report.py parts FROM          the smallest network's round trip taken apart, a document of its own, from the figures in
                              FROM/round_trip.json, launches.json and resident.json; exit status 77 where one is missing
report.py collect FROM TO     every FROM/*.json as one list, TO/gpu.json, each with machine, commit and command (of
                              FROM/NAME.command); what passed (FROM/steps.tsv) as TO/summary.json
"""

import datetime
import json
import os
import pathlib
import re
import sys


def read(path):
    """The document, or None where a program was stopped before it had printed all of it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def table(path):
    document = read(path)
    if document is None:
        print(f"{path.name} cannot be read", file=sys.stderr)
        return 1
    for row in document.get("results", []):
        line = f"{row['name']:44} {row['value']:9.3f} {row['unit']}"
        if "p99" in row:
            line += f"   p99 {row['p99']:9.3f}"
        if row.get("ratio") is not None:
            line += f"   {row['reference']} {row['reference_value']:.2f}: {row['ratio']:.3f}"
        if row.get("target") is not None:
            line += f"   target {row['target']:g}"
        print(line)
    return 0


def one_line(path):
    return path.read_text(encoding="utf-8").strip() if path.exists() else None


def machine(work):
    """What the kernel and the driver say; what a program says of itself goes before it."""
    cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    nodes = len([name for name in os.listdir("/sys/devices/system/node") if name.startswith("node")]) if os.path.isdir("/sys/devices/system/node") else None
    found = {"cpu": cpu and cpu[1], "cores": len(os.sched_getaffinity(0)), "nodes": nodes, "kernel": os.uname().release}
    told = [int(word) if word.isdigit() else word for word in (one_line(work / "gpu.csv") or "").split("\n")[0].split(", ")]
    return {**found, **dict(zip(("gpu", "driver", "pcie_generation_max", "pcie_lanes_max"), told))}


def complete(document, name, work, commit):
    """The document with what it does not say itself."""
    own = {key: value for key, value in document.get("machine", {}).items() if value is not None}
    head = {
        "schema_version": document.get("schema_version", 1),
        "benchmark": document.get("benchmark", name),
        "commit": document.get("commit") or commit,
        "command": one_line(work / f"{name}.command"),
        "machine": {**machine(work), **own},
    }
    return {**head, **{key: value for key, value in document.items() if key not in head}}


def parts(work):
    """A sum whose terms are medians and differences of medians; `from` says of what."""
    documents = [read(work / f"{name}.json") for name in ("round_trip", "launches", "resident")]
    value = {row["name"]: row["value"] for document in documents if document for row in document["results"]}
    whole, bell, infer, acted = (f"actor_round_trip_smallest{part}" for part in ("", "_bell", "_infer", "_acted"))
    terms = (
        ("bell", bell, None, "store of `produced` until the learner asks the backend"),
        ("lists", infer, "launch_flag_whole", "the backend's work on the host"),
        ("launch_and_signal", "launch_flag_signal", None, "a graph that stores the host's word and nothing else"),
        ("pull_of_lists", "launch_flag_lists", "launch_flag_signal", "one kernel"),
        ("pulls_of_observation", "launch_flag_observation", "launch_flag_lists", "two kernels"),
        ("sample_and_answer", "launch_flag_answer", "launch_flag_observation", "two kernels"),
        ("network", "launch_flag_whole", "launch_flag_answer", "rounding, two products, heads"),
        ("answer_before_signal", acted, infer, "the actor need not wait for the host's word"),
    )
    missing = {name for _, plus, minus, _ in terms for name in (plus, minus, whole, "resident_smallest") if name} - value.keys()
    if missing:
        print(f"figures are missing: {', '.join(sorted(missing))}", file=sys.stderr)
        return 77
    rows = [(name, value[plus] - (value[minus] if minus else 0), f"{plus} - {minus}" if minus else plus, about) for name, plus, minus, about in terms]
    total = sum(row[1] for row in rows)
    rows.append(("sum", total, "all of these", "beside what was measured as a whole"))
    rows.append(("resident", value["resident_smallest"], "resident_smallest", "the same work by a kernel that is there, no learner"))
    results = [{"name": f"round_trip_{name}", "value": round(us, 3), "unit": "us", "better": "lower", "from": of, "about": about,
                "reference": whole, "reference_value": value[whole], "ratio": round(us / value[whole], 4)} for name, us, of, about in rows]  # fmt: skip
    json.dump({"schema_version": 1, "benchmark": "cuda_round_trip_parts", "results": results}, sys.stdout, indent=1)
    print()
    return 0


def summary(work, documents, unreadable):
    steps = dict(line.split("\t", 1) for line in (one_line(work / "steps.tsv") or "").splitlines())
    logs = [path.read_text(encoding="utf-8", errors="replace") for path in (work / "kernels.log", work / "executor.log") if path.exists()]
    counts = [re.search(r"^(\d+) passed, (\d+) failed$", log, re.MULTILINE) for log in logs]
    return {
        "schema_version": 1,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": documents[0]["commit"] if documents else None,
        "command": one_line(work / "check.command"),
        "machine": machine(work),
        "passed": sum(int(count[1]) for count in counts if count),
        "failed": sum(int(count[2]) for count in counts if count),
        "parts": steps,
        "unreadable": unreadable,
    }


def write(path, content):
    """At once: whoever is stopped in the middle leaves what was there."""
    scratch = path.with_suffix(".part")
    scratch.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    scratch.rename(path)


def collect(work, out):
    found = {path.stem: read(path) for path in sorted(work.glob("*.json"))}
    commit = next((document["commit"] for document in found.values() if document and document.get("commit")), None)
    documents = [complete(document, name, work, commit) for name, document in found.items() if document]
    write(out / "gpu.json", documents)
    write(out / "summary.json", summary(work, documents, [name for name, document in found.items() if document is None]))
    return 0


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "table":
        return table(pathlib.Path(sys.argv[2]))
    if len(sys.argv) == 3 and sys.argv[1] == "parts":
        return parts(pathlib.Path(sys.argv[2]))
    if len(sys.argv) == 4 and sys.argv[1] == "collect":
        return collect(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
