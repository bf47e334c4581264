"""What check.sh makes of the documents that its programs print.

report.py table FILE          the results of one document as a table
report.py training FROM NAME [KEY=LEAST...]
                              the figures of a `farm train`, a document, from FROM/NAME.farm (what it printed),
                              NAME.metrics.jsonl, NAME.log and NAME.busy; exit status 1 where it was not on the GPU, made
                              no update, or KEY of what it printed is below LEAST
report.py environments FROM   the figures of a `farm fps` likewise, from FROM/environments.farm
report.py cuda FILE...        the benchmark `cuda`, one document, from the lists of documents in these files (gpu.json of
                              one or several runs of check.sh; of two documents of one name the later one counts)
report.py collect FROM TO [KEPT]
                              every FROM/*.json as one list, TO/gpu.json, each with machine, commit, date and command (of
                              FROM/NAME.command); what passed (FROM/steps.tsv) as TO/summary.json; the benchmark `cuda`
                              as TO/cuda.json. KEPT: a folder in which documents are kept for a later run of the same
                              commit on the same GPU, whose `cuda` they are part of
"""

import datetime
import json
import os
import pathlib
import re
import statistics
import sys

NETS = ("shallow", "nature", "deep")
CHUNK = "forward_backward_shallow_672"  # one pass of training: what inference may have to wait for
MULTIPROCESSORS_SHARE = 0.05


def read(path):
    """The document; of one whose program was stopped before it had printed all of it, the results that are whole, and
    None where there are none."""
    content = text(path)
    try:
        return json.loads(content)
    except ValueError:
        pass
    try:
        document = json.loads(content[: content.rfind("}") + 1] + "]}")
    except ValueError:
        return None
    return {**document, "cut_short": True} if document.get("results") else None


def text(path):
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def one_line(path):
    return text(path).strip() if path.exists() else None


def show(document):
    json.dump(document, sys.stdout, indent=1)
    print()


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
    for name, why in document.get("missing", {}).items():
        print(f"{name:44}   missing: {why}")
    return 0


# ---- a document's head ----


def machine(work):
    """What the kernel, the driver and the GPU say; what a program says of itself goes before it."""
    cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    nodes = len([name for name in os.listdir("/sys/devices/system/node") if name.startswith("node")]) if os.path.isdir("/sys/devices/system/node") else None
    found = {"cpu": cpu and cpu[1], "cores": len(os.sched_getaffinity(0)), "nodes": nodes, "kernel": os.uname().release}
    told = [int(word) if word.isdigit() else word for word in (one_line(work / "gpu.csv") or "").split("\n")[0].split(", ")]
    named = dict(zip(("gpu", "driver", "pcie_generation_max", "pcie_lanes_max"), told)) if told != [""] else {}
    device = {key: value for key, value in (read(work / "device") or {}).items() if value is not None}
    return {**found, **named, **device}


def outcomes(work):
    """What became of each part."""
    return dict(line.split("\t", 1) for line in text(work / "steps.tsv").splitlines())


def complete(document, name, work, commit):
    """The document with what it does not say itself."""
    own = {key: value for key, value in document.get("machine", {}).items() if value is not None}
    ended = datetime.datetime.fromtimestamp((work / f"{name}.json").stat().st_mtime, datetime.timezone.utc)
    head = {
        "schema_version": document.get("schema_version", 1),
        "benchmark": document.get("benchmark", name),
        "commit": document.get("commit") or commit,
        "date": ended.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": one_line(work / f"{name}.command"),
        "outcome": outcomes(work).get(name),
        "machine": {**machine(work), **own},
    }
    return {**head, **{key: value for key, value in document.items() if key not in head}}


# ---- trainings ----


def mean_of(lines, key):
    """Over the lines of metrics.jsonl, the first left out where there are more: the start is in it."""
    values = [line[key] for line in (lines[1:] if len(lines) > 1 else lines) if line.get(key) is not None]
    return statistics.fmean(values) if values else None


def metrics_of(path):
    """The lines of the run's last part: a run that goes on counts its seconds anew."""
    lines = []
    for line in text(path).splitlines():
        try:
            line = json.loads(line)
        except ValueError:
            continue
        if lines and line["wall_s"] < lines[-1]["wall_s"]:
            lines = []
        lines.append(line)
    return lines


def busy_share(path):
    """The driver's figure, of looks twice a second: their median leaves out start and end."""
    shares = [float(word) / 100 for word in text(path).split() if re.fullmatch(r"\d+", word)]
    return shares and statistics.median(shares)


def training(work, name, least):
    told = read(work / f"{name}.farm")
    if not told:
        print("it printed no document", file=sys.stderr)
        return 1
    metrics = metrics_of(work / f"{name}.metrics.jsonl")
    values = [
        ("frames_per_s", told["frames_per_s"], "frames/s", "higher"),
        ("frames", told["frames"], "frames", "higher"),
        ("updates", told["updates"], "updates", "higher"),
        ("return_mean", told["return_mean"], "return", "higher"),
        ("actor_wait_share", mean_of(metrics, "actor_wait_share"), "of the lanes' time", "lower"),
        ("learner_wait_share", mean_of(metrics, "learner_wait_share"), "of the training thread's time", "lower"),
        ("bus_bytes_per_observation", mean_of(metrics, "bus_bytes_per_observation"), "B", "lower"),
        ("gpu_busy", busy_share(work / f"{name}.busy") or None, "of the time", "higher"),
    ]
    show({
        "schema_version": 1, "benchmark": f"cuda_training_{name}", "environments": told["environments"], "actors": told["actors"],
        "net": told["net"], "results": [{"name": row[0], "value": row[1], "unit": row[2], "better": row[3]} for row in values if row[1] is not None],
    })  # fmt: skip
    wrong = [f"{key} is {told.get(key)}, and not {at_least}" for key, at_least in least.items() if (told.get(key) or 0) < at_least]
    if "device cuda:" not in text(work / f"{name}.log"):
        wrong.append("not on the GPU")
    if not told["updates"]:
        wrong.append("no update was made")
    print("; ".join(wrong), file=sys.stderr)
    return 1 if wrong else 0


def environments(work):
    told = read(work / "environments.farm")
    if not told:
        print("it printed no document", file=sys.stderr)
        return 1
    names = {"frames_per_s": "frames/s", "bare_all_cores_agent_steps_per_s": "agent steps/s"}
    results = [{"name": name, "value": told[name], "unit": unit, "better": "higher"} for name, unit in names.items()]
    show({"schema_version": 1, "benchmark": "cuda_environments", "actors": told["actors"], "results": results})
    return 0


# ---- the benchmark `cuda` ----


class Missing(Exception):
    """Of what a figure cannot be made."""


class Figures:
    """The results of documents, by benchmark and name. A part that failed for what it found (a farm that copies, a run
    that is not on the GPU, ...) has none; one that ended with an error has what it had measured before, and they say so."""

    def __init__(self, documents):
        self.rows, self.machines, self.refused = {}, {}, {}
        for document in documents:
            name, outcome = document["benchmark"], document.get("outcome") or ""
            self.machines[name] = document.get("machine", {})
            self.rows[name] = {row["name"]: row for row in document.get("results", [])}
            if outcome.startswith("failed: status"):
                self.rows[name] = {row: {**of, "part": outcome} for row, of in self.rows[name].items()}
            elif outcome.startswith("failed"):
                self.rows[name], self.refused[name] = {}, outcome

    def of(self, benchmark):
        return self.rows.get(benchmark, {})

    def missing(self, benchmark, part, what):
        refused = self.refused.get(benchmark)
        return Missing(f"part {part} {refused}" if refused else f"part {part} has left no {what}")

    def found(self, benchmark, part, name):
        if name not in self.of(benchmark):
            raise self.missing(benchmark, part, name)
        return self.of(benchmark)[name]


def result(row, name, **changes):
    """A row of a part as one of this benchmark: all keys that each result has, then what else the part told."""
    head = {"name": name, "value": row["value"], "unit": row["unit"], "better": row["better"]}
    head.update({key: row.get(key) for key in ("spread", "reference", "reference_value", "ratio", "target")})
    return {**head, **{key: value for key, value in row.items() if key not in head}, **changes}


def gather(figures, size, target):
    """The best way that leaves the GPU to others: so few blocks, or the copy engines' batches."""
    multiprocessors = figures.machines.get("cuda_pull", {}).get("multiprocessors", 0)
    most = int(MULTIPROCESSORS_SHARE * multiprocessors)

    def modest(name):
        blocks = re.fullmatch(rf"pull_{size}_\w+_(\d+)_blocks", name)
        return int(blocks[1]) <= most if blocks else name == f"pull_{size}_copy_engine_batch"

    ways = [row for name, row in figures.of("cuda_pull").items() if modest(name)]
    if not ways:
        raise figures.missing("cuda_pull", "pull", f"pull_{size} by the copy engines, or by so few blocks")
    best = max(ways, key=lambda row: row["ratio"])
    return result(best, f"gather_{size}", target=target, by=best["name"], blocks_most=most)


def round_trip(figures, of, name, target):
    row = figures.found("cuda_round_trip", "round_trip", f"actor_round_trip_{of}")
    return result(row, name, target=target, about="the median; the target is in microseconds")


def round_trip_training(figures):
    row = figures.found("cuda_round_trip", "round_trip", "actor_round_trip_shallow_training")
    off = figures.found("cuda_round_trip", "round_trip", "actor_round_trip_shallow")["value"]
    chunk = figures.found("cuda_executor", "networks", CHUNK)["value"]
    most = {"reference": f"the median without training, and one chunk of it ({CHUNK})", "reference_value": off + chunk}
    return result(row, "actor_round_trip_training", **most, ratio=row["value"] / (off + chunk), target=1, off_us=off, chunk_us=chunk)


def update(figures, net, host, target):
    """Beside PyTorch where that was measured, else alone."""
    name = f"train_{net}{host}"
    if name in figures.of("cuda_torch"):
        return result(figures.of("cuda_torch")[name], name, target=target)
    mirrors = ("window", "off") if host else ("full",)
    ours = [figures.of("cuda_update").get(f"update_{net}_{mirror}") for mirror in mirrors]
    ours = [row for row in ours if row]
    if not ours:
        raise figures.missing("cuda_update", "update", " or ".join(f"update_{net}_{mirror}" for mirror in mirrors))
    best = max(ours, key=lambda row: row["value"])
    return result(best, name, target=target, ours=best["name"], about="PyTorch was not measured")


def busy(figures):
    row = figures.found("cuda_training_busy", "busy", "gpu_busy")
    return result(row, "gpu_busy", target=0.9, about="a kernel runs, by the driver's figure, net deep; the target is of the value")


def limit(figures, rate):
    """The part that limits a training, with its ceiling, and what was measured of all."""
    rows = figures.of("cuda_training_breakout")
    waits = {key: rows[key]["value"] for key in ("actor_wait_share", "learner_wait_share") if key in rows}
    ceilings = {}
    if "frames_per_s" in figures.of("cuda_environments"):
        ceilings["environments"] = figures.of("cuda_environments")["frames_per_s"]["value"]
    if waits.get("learner_wait_share", 1) < 1:
        ceilings["training"] = rate / (1 - waits["learner_wait_share"])
    if "forward_shallow_64" in figures.of("cuda_executor"):
        ceilings["inference"] = 64e6 / figures.of("cuda_executor")["forward_shallow_64"]["value"]
    limiting = "answers: inference and hand-off"
    if rate > 0.85 * ceilings.get("environments", float("inf")):
        limiting = "environments"
    elif waits.get("learner_wait_share", 1) < 0.15:
        limiting = "training"
    about = "farm fps, no learner; the rate at which the training thread would never wait; the network alone, 64 rows at once"
    return {**waits, "limited_by": limiting, "ceilings_frames_per_s": ceilings, "ceilings_are": about}


def breakout(figures):
    row = figures.found("cuda_training_breakout", "breakout", "frames_per_s")
    about = {"about": "the target is of the value", **limit(figures, row["value"])}
    return result(row, "breakout_frames_per_s", target=1e6, **about)


def rows_wanted(figures):
    """Each result's name, with the function that makes it."""
    yield "gather_28k", lambda: gather(figures, "28k", 0.95)
    yield "gather_4k", lambda: gather(figures, "4k", 0.90)
    yield "actor_round_trip", lambda: round_trip(figures, "shallow", "actor_round_trip", 40)
    yield "actor_round_trip_training", lambda: round_trip_training(figures)
    yield "actor_round_trip_smallest", lambda: round_trip(figures, "smallest", "actor_round_trip_smallest", 12)
    for host, target in (("", 1.2), ("_host", 1.5)):
        for net in NETS:
            yield f"train_{net}{host}", lambda net=net, host=host, target=target: update(figures, net, host, target)
    yield "gpu_busy", lambda: busy(figures)
    yield "breakout_frames_per_s", lambda: breakout(figures)


def cuda(documents):
    results, missing, figures = [], {}, Figures(documents)
    for name, make in rows_wanted(figures):
        try:
            results.append(make())
        except Missing as why:
            missing[name] = str(why)
    known = [document for document in documents if document.get("commit")]
    head = {"schema_version": 1, "benchmark": "cuda", "commit": known[-1]["commit"] if known else None}
    head["machine"] = known[-1]["machine"] if known else {}
    return {**head, "results": results, "missing": missing, "commits": sorted({document["commit"] for document in known})}


# ---- what a run leaves ----


def summary(work, documents, unreadable, commit):
    logs = [text(work / name) for name in ("kernels.log", "executor.log")]
    counts = [re.search(r"^(\d+) passed, (\d+) failed$", log, re.MULTILINE) for log in logs]
    registered = {path.stem: list(dict.fromkeys(re.findall(r"registered \d+ pieces.*", text(path)))) for path in sorted(work.glob("*.log"))}
    return {
        "schema_version": 1,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": documents[0]["commit"] if documents else commit,
        "command": one_line(work / "check.command"),
        "machine": machine(work),
        "passed": sum(int(count[1]) for count in counts if count),
        "failed": sum(int(count[2]) for count in counts if count),
        "parts": outcomes(work),
        "registered": {name: lines for name, lines in registered.items() if lines},
        "unreadable": unreadable,
    }


def write(path, content):
    """At once: whoever is stopped in the middle leaves what was there."""
    scratch = path.with_suffix(".part")
    scratch.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    scratch.rename(path)


def kept_before(kept, documents, commit, here):
    """What earlier runs kept, of this commit on this GPU; what this run has is kept with it."""
    for document in documents:
        write(kept / f"{document['benchmark']}.json", document)
    others = [read(path) for path in sorted(kept.glob("*.json"))]
    return [document for document in others if document and document["commit"] == commit and document["machine"].get("gpu") == here.get("gpu")]


def collect(work, out, kept):
    read_all = {path.stem: read(path) for path in sorted(work.glob("*.json"))}
    told = [document["commit"] for document in read_all.values() if document and document.get("commit")]
    commit = told[0] if told else one_line(work / "commit")
    documents = [complete(document, name, work, commit) for name, document in read_all.items() if document]
    write(out / "gpu.json", documents)
    write(out / "summary.json", summary(work, documents, [name for name, document in read_all.items() if document is None], commit))
    write(out / "cuda.json", cuda(kept_before(kept, documents, commit, machine(work)) if kept else documents))
    return 0


def main():
    what, *paths = sys.argv[1:] or [""]
    if what == "table" and len(paths) == 1:
        return table(pathlib.Path(paths[0]))
    if what == "training" and len(paths) >= 2:
        return training(pathlib.Path(paths[0]), paths[1], {key: float(value) for key, value in (word.split("=") for word in paths[2:])})
    if what == "environments" and len(paths) == 1:
        return environments(pathlib.Path(paths[0]))
    if what == "cuda" and paths:
        show(cuda([document for path in paths for document in json.loads(text(pathlib.Path(path)))]))
        return 0
    if what == "collect" and len(paths) in (2, 3):
        return collect(*(pathlib.Path(path) for path in paths), *([None] if len(paths) == 2 else []))
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
