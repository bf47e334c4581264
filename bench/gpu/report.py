"""Turns the documents that check.sh's programs print into its results.

report.py training FROM NAME [KEY=LEAST...]
                              prints the figures of a `farm train` as a document, from FROM/NAME.farm (what it printed),
                              NAME.metrics.jsonl and NAME.log; exit status 1 if it did not run on the GPU, made
                              no update, or printed a KEY below LEAST (return_best: the highest mean return of
                              metrics.jsonl)
report.py collect FROM TO KEPT
                              writes every FROM/*.json as one list, TO/gpu.json, each with machine, commit, date and command
                              (of FROM/NAME.command); the parts' outcomes (FROM/steps.tsv) as TO/summary.json; the benchmark
                              `cuda` as TO/cuda.json. KEPT: a folder of earlier runs' documents, of this build and GPU, which
                              become part of `cuda`
"""

import datetime
import json
import os
import pathlib
import re
import statistics
import sys

NETS = ("shallow", "nature", "deep")
CHUNK = "forward_backward_shallow_672"  # one pass of training: the longest that inference should wait
MULTIPROCESSORS_SHARE = 0.05  # of the GPU, at most, for a pull that leaves the GPU to training


def read(path):
    """The document; of one that was cut short its complete results; None without any."""
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


# ---- a document's head ----


def machine(work):
    """What the kernel, the driver and the GPU report."""
    cpu = re.search(r"model name\s*: (.*)", text(pathlib.Path("/proc/cpuinfo")))
    found = {"cpu": cpu and cpu[1], "cores": len(os.sched_getaffinity(0)), "kernel": os.uname().release}
    words = text(work / "gpu.csv").split("\n")[0].split(", ")
    named = dict(zip(("gpu", "driver", "pcie_generation_max", "pcie_lanes_max"), words)) if words != [""] else {}
    return {**found, **named, **without_nulls(read(work / "device") or {})}


def without_nulls(document):
    return {key: value for key, value in document.items() if value is not None}


def outcomes(work):
    """Each part's outcome."""
    return dict(line.split("\t", 1) for line in text(work / "steps.tsv").splitlines())


def complete(document, name, work, commit):
    """The document with what it does not hold itself."""
    ended = datetime.datetime.fromtimestamp((work / f"{name}.json").stat().st_mtime, datetime.timezone.utc)
    head = {"schema_version": 1, "benchmark": name, "commit": commit, **document}
    return {
        **head,
        "part": name,
        "date": ended.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": text(work / f"{name}.command").strip(),
        "outcome": outcomes(work).get(name),
        "machine": {**machine(work), **without_nulls(document.get("machine", {}))},
    }


# ---- trainings ----


def mean_of(lines, key):
    """Over the lines of metrics.jsonl; leaves out the first, which holds the start, if there are more."""
    values = [line[key] for line in (lines[1:] if len(lines) > 1 else lines) if line.get(key) is not None]
    return statistics.fmean(values) if values else None


def metrics_of(path):
    """The lines of the run's last part: a resumed run counts its seconds anew."""
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


def busy_share(log):
    """Of the stream that trains, by its events: the log's last line about it."""
    shares = re.findall(r"the stream that trains had work for ([0-9.]+) %", log)
    return float(shares[-1]) / 100 if shares else None


def training(work, name, least):
    printed = read(work / f"{name}.farm")
    if not printed:
        print("it printed no document", file=sys.stderr)
        return 1
    metrics = metrics_of(work / f"{name}.metrics.jsonl")
    returns = [(line["wall_s"], line["return_mean"]) for line in metrics if line.get("return_mean") is not None]
    printed["return_best"] = max((mean for _, mean in returns), default=None)
    wanted = least.get("return_mean", least.get("return_best"))
    reached_s = next((wall_s for wall_s, mean in returns if wanted is not None and mean >= wanted), None)
    rows = [
        ("frames_per_s", printed["frames_per_s"], "frames/s", "higher"),
        ("frames", printed["frames"], "frames", "higher"),
        ("updates", printed["updates"], "updates", "higher"),
        ("return_mean", printed["return_mean"], "return", "higher"),
        ("return_reached_s", reached_s, "s from the first step", "lower"),
        ("actor_wait_share", mean_of(metrics, "actor_wait_share"), "of the lanes' time", "lower"),
        ("learner_wait_share", mean_of(metrics, "learner_wait_share"), "of the training thread's time", "lower"),
        ("bus_bytes_per_observation", mean_of(metrics, "bus_bytes_per_observation"), "B", "lower"),
        ("gpu_busy", busy_share(text(work / f"{name}.log")), "of the time", "higher"),
    ]
    results = [dict(zip(("name", "value", "unit", "better"), row)) for row in rows if row[1] is not None]
    farm = {key: printed[key] for key in ("environments", "actors", "net")}
    json.dump({"schema_version": 1, "benchmark": f"cuda_training_{name}", **farm, "results": results}, sys.stdout, indent=1)
    wrong = [f"{key} is {printed.get(key)}, and not {at_least}" for key, at_least in least.items() if (printed.get(key) or 0) < at_least]
    if "device cuda:" not in text(work / f"{name}.log"):
        wrong.append("not on the GPU")
    if not printed["updates"]:
        wrong.append("no update was made")
    print("; ".join(wrong), file=sys.stderr)
    return 1 if wrong else 0


# ---- the benchmark `cuda` ----


class Missing(Exception):
    """Why a figure cannot be made."""


class Figures:
    """The results of documents, by benchmark and name. A part that failed a check (the rings are not registered, the run
    is not on the GPU, ...) has none; one that ended with an error has what it measured before, marked as such."""

    def __init__(self, documents):
        self.rows, self.machines, self.refused = {}, {}, {}
        for document in documents:
            name, outcome = document["benchmark"], document.get("outcome") or ""
            self.machines[name] = document.get("machine", {})
            rows = {row["name"]: row for row in document.get("results", [])}
            if outcome.startswith("failed: status"):
                rows = {row: {**of, "part": outcome} for row, of in rows.items()}
            elif outcome.startswith("failed"):
                rows, self.refused[name] = {}, outcome
            self.rows.setdefault(name, {}).update(rows)  # `farm bw` runs in two parts

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
    """A part's row as one of this benchmark: all keys that each result has, then the part's other keys."""
    head = {"name": name, "value": row["value"], "unit": row["unit"], "better": row["better"]}
    head.update({key: row.get(key) for key in ("spread", "reference", "reference_value", "ratio", "target")})
    return {**head, **{key: value for key, value in row.items() if key not in head}, **changes}


def gather(figures, size, target):
    """The fastest of `farm bw`'s gathers that leaves the GPU to others: by the copy engines, or by a kernel of few
    blocks. bw gathers with the fewest blocks that pull a large region within 1 % of the fastest."""
    rows, best = figures.of("bw"), None
    most = int(MULTIPROCESSORS_SHARE * figures.machines.get("bw", {}).get("multiprocessors", 0))
    for row in rows.values():
        name = re.fullmatch(rf"gpu\.gather\.{size}B\.(loads|bulk|copies|batch)\.(.*)", row["name"])
        if not name:
            continue
        by, where = name.groups()
        pulls = {int(key.split(".")[2].split("_")[1]): pull["value"] for key, pull in rows.items()
                 if key.startswith(f"gpu.pull.{by}_") and key.endswith(f".{where}")}  # fmt: skip
        if pulls and min(blocks for blocks, rate in pulls.items() if rate >= 0.99 * max(pulls.values())) > most:
            continue
        reference = rows[f"gpu.gather.{size}B.one_copy.{where}"]["value"]
        if best is None or row["value"] / reference > best["ratio"]:
            best = {**row, "reference": "one copy of as many bytes from pinned memory", "reference_value": reference,
                    "ratio": row["value"] / reference, "by": row["name"], "blocks_most": most}  # fmt: skip
    if best is None:
        raise figures.missing("bw", "bw", f"gather of {size} B by the copy engines, or by so few blocks")
    return result(best, f"gather_{round(size / 1000)}k", target=target)


def figure(figures, benchmark, part, row, name, **changes):
    """A part's row as it is, under the name that it has in this benchmark."""
    return result(figures.found(benchmark, part, row), name, **changes)


def round_trip_training(figures):
    row = figures.found("cuda_round_trip", "round_trip", "actor_round_trip_shallow_training")
    off = figures.found("cuda_round_trip", "round_trip", "actor_round_trip_shallow")["value"]
    chunk = figures.found("cuda_executor", "networks", CHUNK)["value"]
    most = {"reference": f"the median without training, and one chunk of it ({CHUNK})", "reference_value": off + chunk}
    return result(row, "actor_round_trip_training", **most, ratio=row["value"] / (off + chunk), target=1, off_us=off, chunk_us=chunk)


def update(figures, net, host, target):
    """Beside PyTorch if that was measured, else alone."""
    name = f"train_{net}{host}"
    if name in figures.of("cuda_torch"):
        return result(figures.of("cuda_torch")[name], name, target=target)
    names = [f"update_{net}_{mirror}" for mirror in (("window", "off") if host else ("full",))]
    ours = [figures.of("cuda_update")[key] for key in names if key in figures.of("cuda_update")]
    if not ours:
        raise figures.missing("cuda_update", "update", " or ".join(names))
    best = max(ours, key=lambda row: row["value"])
    return result(best, name, target=target, ours=best["name"], about="PyTorch was not measured")


def breakout(figures):
    waits = {name: row["value"] for name, row in figures.of("cuda_training_breakout").items() if name.endswith("_wait_share")}
    return figure(figures, "cuda_training_breakout", "breakout", "frames_per_s", "breakout_frames_per_s", target=1e6,
                  about="the target is of the value", **waits)  # fmt: skip


def cuda(documents):
    """The benchmark `cuda`: each result by the function that makes it, or why it is missing."""
    trip, in_us = ("cuda_round_trip", "round_trip"), "the median; the target is in microseconds"
    makers = {
        "gather_28k": lambda f: gather(f, 28224, 0.95),
        "gather_4k": lambda f: gather(f, 4096, 0.90),
        "actor_round_trip": lambda f: figure(f, *trip, "actor_round_trip_shallow", "actor_round_trip", target=40, about=in_us),
        "actor_round_trip_training": round_trip_training,
        "actor_round_trip_smallest": lambda f: figure(f, *trip, *2 * ("actor_round_trip_smallest",), target=12, about=in_us),
        **{f"train_{net}{host}": lambda f, net=net, host=host, target=target: update(f, net, host, target)
           for host, target in (("", 1.2), ("_host", 1.5)) for net in NETS},
        "gpu_busy": lambda f: figure(f, "cuda_training_busy", "busy", *2 * ("gpu_busy",), target=0.9,
                                     about="of the stream that trains, by its events, net deep; the target is of the value"),
        "breakout_frames_per_s": breakout,
    }  # fmt: skip
    results, missing, figures = [], {}, Figures(documents)
    for name, make in makers.items():
        try:
            results.append(make(figures))
        except Missing as why:
            missing[name] = str(why)
    last = ([document for document in documents if document.get("commit")] or [{"commit": None, "machine": {}}])[-1]
    commits = sorted({document["commit"] for document in documents if document.get("commit")})
    head = {"schema_version": 1, "benchmark": "cuda", "commit": last["commit"], "machine": last["machine"]}
    return {**head, "results": results, "missing": missing, "commits": commits}


# ---- what a run leaves ----


def summary(work, commit, unreadable):
    counts = [re.search(r"^(\d+) passed, (\d+) failed$", text(work / name), re.MULTILINE) for name in ("kernels.log", "executor.log")]
    registered = {path.stem: list(dict.fromkeys(re.findall(r"registered \d+ pieces.*", text(path)))) for path in sorted(work.glob("*.log"))}
    return {
        "schema_version": 1,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": commit,
        "command": text(work / "check.command").strip(),
        "machine": machine(work),
        "passed": sum(int(count[1]) for count in counts if count),
        "failed": sum(int(count[2]) for count in counts if count),
        "parts": outcomes(work),
        "registered": {name: lines for name, lines in registered.items() if lines},
        "unreadable": unreadable,
    }


def write(path, content):
    """At once: a run that is stopped leaves the earlier file."""
    scratch = path.with_suffix(".part")
    scratch.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    scratch.rename(path)


def keep(kept, documents):
    """Keeps this run's documents; returns all that were kept."""
    for document in documents:
        write(kept / f"{document['part']}.json", document)
    return [document for document in map(read, sorted(kept.glob("*.json"))) if document]


def collect(work, out, kept):
    found = {path.stem: read(path) for path in sorted(work.glob("*.json"))}
    commits = [document["commit"] for document in found.values() if document and document.get("commit")]
    commit = commits[0] if commits else text(work / "commit").strip() or None
    documents = [complete(document, name, work, commit) for name, document in found.items() if document]
    write(out / "gpu.json", documents)
    write(out / "summary.json", summary(work, commit, [name for name, document in found.items() if document is None]))
    write(out / "cuda.json", cuda(keep(kept, documents)))
    return 0


def main():
    what, *words = sys.argv[1:] or [""]
    paths = [pathlib.Path(word) for word in words]
    if what == "training" and len(words) >= 2:
        return training(paths[0], words[1], {key: float(value) for key, value in (word.split("=") for word in words[2:])})
    if what == "collect" and len(words) == 3:
        return collect(*paths)
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
