"""Turns the documents that the programs of tests/gpu/check.py print into its results: gpu.json, summary.json, cuda.json."""

import datetime
import json
import os
import pathlib
import re
import statistics

KEYS = ("name", "value", "unit", "better", "spread", "reference", "reference_value", "ratio", "target")  # of each result
NETS = ("shallow", "nature", "deep")
CHUNK = "forward_backward_shallow_672"  # one pass of training: the longest that inference should wait
MULTIPROCESSORS_SHARE = 0.05  # of the GPU, at most, for a pull that leaves the GPU to training


def text(path):
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def read(path, whole=False):
    """The document; of one that was cut short its complete results, unless it must be whole; None without any."""
    content = text(path)
    try:
        return json.loads(content)
    except ValueError:
        pass
    try:
        document = None if whole else json.loads(content[: content.rfind("}") + 1] + "]}")
    except ValueError:
        return None
    return {**document, "cut_short": True} if document and document.get("results") else None


def write(path, content):
    """At once: a run that is stopped leaves the earlier file."""
    scratch = path.with_suffix(".part")
    scratch.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    scratch.rename(path)


def without_nulls(document):
    return {key: value for key, value in document.items() if value is not None}


def machine(smi, device):
    """What the kernel, the driver (nvidia-smi's line) and the GPU (`test_kernels --device`) report."""
    cpu = re.search(r"model name\s*: (.*)", text(pathlib.Path("/proc/cpuinfo")))
    found = {"cpu": cpu and cpu[1], "cores": len(os.sched_getaffinity(0)), "kernel": os.uname().release}
    keys = ("gpu", "driver", "pcie_generation_max", "pcie_lanes_max")
    return {**found, **(dict(zip(keys, smi.strip().split(", "))) if smi else {}), **without_nulls(json.loads(device or "{}"))}


# ---- trainings ----


def mean_of(lines, key):
    """Over the lines of metrics.jsonl; leaves out the first, which holds the start, if there are more."""
    values = [line[key] for line in (lines[1:] if len(lines) > 1 else lines) if line.get(key) is not None]
    return statistics.fmean(values) if values else None


def metrics_of(written):
    """The lines of the run's last part: a resumed run counts its seconds anew."""
    lines = []
    for line in written.splitlines():
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


def training(printed, metrics, log, name, least):
    """The figures of a `farm train` as a document, and what is wrong with them, or "": it did not run on the GPU, made no
    update, or printed a figure below `least` (return_best: the highest mean return of the metrics)."""
    metrics = metrics_of(metrics)
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
        ("gpu_busy", busy_share(log), "of the time", "higher"),
    ]
    results = [dict(zip(("name", "value", "unit", "better"), row)) for row in rows if row[1] is not None]
    wrong = [f"{key} is {printed.get(key)}, and not {at_least}" for key, at_least in least.items() if (printed.get(key) or 0) < at_least]
    wrong += ["not on the GPU"] * ("device cuda:" not in log) + ["no update was made"] * (not printed["updates"])
    farm = {key: printed[key] for key in ("environments", "actors", "net")}
    return {"schema_version": 1, "benchmark": f"cuda_training_{name}", **farm, "results": results}, "; ".join(wrong)


# ---- the benchmark `cuda` ----


class Parts(dict):
    """Each part's results by name. A part that failed a check (the rings are not registered, the run is not on the GPU, ...)
    has none; one that ended with an error has what it measured before, marked as such."""

    def __init__(self, documents):
        self.refused, self.multiprocessors = {}, 0
        for document in documents:
            part, outcome = document["part"], document.get("outcome") or ""
            failed = outcome.startswith("failed")
            mark = {"part": outcome} if failed else {}
            self[part] = {row["name"]: {**row, **mark} for row in document.get("results", [])}
            if failed and not outcome.startswith("failed: status"):
                self[part], self.refused[part] = {}, outcome
            self.multiprocessors = document.get("machine", {}).get("multiprocessors", self.multiprocessors)

    def missing(self, part, what):
        return LookupError(f"part {part} {self.refused.get(part, 'has left no ' + what)}")

    def best(self, part, *names):
        found = [self[part][name] for name in names if name in self.get(part, {})]
        if not found:
            raise self.missing(part, " or ".join(names))
        return max(found, key=lambda row: row["value"])


def gather(parts, size):
    """The fastest of `farm bw`'s gathers that leaves the GPU to others: by the copy engines, or by a kernel of few
    blocks. bw gathers with the fewest blocks that pull a large region within 1 % of the fastest."""
    rows, best = parts.get("bw", {}), None
    most = int(MULTIPROCESSORS_SHARE * parts.multiprocessors)
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
        raise parts.missing("bw", f"gather of {size} B by the copy engines, or by so few blocks")
    return best


def round_trip_training(parts):
    row = parts.best("round_trip", "actor_round_trip_shallow_training")
    off, chunk = parts.best("round_trip", "actor_round_trip_shallow")["value"], parts.best("networks", CHUNK)["value"]
    reference = {"reference": f"the median without training, and one chunk of it ({CHUNK})", "reference_value": off + chunk}
    return {**row, **reference, "ratio": row["value"] / (off + chunk), "off_us": off, "chunk_us": chunk}


def update(parts, net, host):
    """Beside PyTorch if that was measured, else alone."""
    compared = parts.get("torch", {}).get(f"train_{net}{host}")
    if compared:
        return compared
    ours = parts.best("update", *(f"update_{net}_{mirror}" for mirror in (("window", "off") if host else ("full",))))
    return {**ours, "ours": ours["name"], "about": "PyTorch was not measured"}


def breakout(parts):
    row = parts.best("breakout", "frames_per_s")
    waits = {name: row["value"] for name, row in parts["breakout"].items() if name.endswith("_wait_share")}
    return {**row, **waits, "about": "the target is of the value"}


def cuda(documents):
    """The benchmark `cuda`: each result by the function that makes it and its target, or why it is missing."""
    in_us = {"about": "the median; the target is in microseconds"}
    busy = {"about": "of the stream that trains, by its events, net deep; the target is of the value"}
    makers = {
        "gather_28k": (0.95, lambda parts: gather(parts, 28224)),
        "gather_4k": (0.90, lambda parts: gather(parts, 4096)),
        "actor_round_trip": (40, lambda parts: {**parts.best("round_trip", "actor_round_trip_shallow"), **in_us}),
        "actor_round_trip_training": (1, round_trip_training),
        "actor_round_trip_smallest": (12, lambda parts: {**parts.best("round_trip", "actor_round_trip_smallest"), **in_us}),
        **{f"train_{net}{host}": (target, lambda parts, net=net, host=host: update(parts, net, host))
           for host, target in (("", 1.2), ("_host", 1.5)) for net in NETS},
        "gpu_busy": (0.9, lambda parts: {**parts.best("busy", "gpu_busy"), **busy}),
        "breakout_frames_per_s": (1e6, breakout),
    }  # fmt: skip
    results, missing, parts = [], {}, Parts(documents)
    for name, (target, make) in makers.items():
        try:
            results.append({**dict.fromkeys(KEYS), **make(parts), "name": name, "target": target})
        except LookupError as why:
            missing[name] = str(why)
    last = ([document for document in documents if document.get("commit")] or [{"commit": None, "machine": {}}])[-1]
    commits = sorted({document["commit"] for document in documents if document.get("commit")})
    head = {"schema_version": 1, "benchmark": "cuda", "commit": last["commit"], "machine": last["machine"]}
    return {**head, "results": results, "missing": missing, "commits": commits}


# ---- what a run leaves ----


def iso(seconds):
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def collect(work, out, kept, about):
    """Writes every document of the folder `work` as one list, out/gpu.json; the parts' outcomes as out/summary.json; the
    benchmark `cuda` as out/cuda.json, to which earlier documents in the folder `kept` belong, of this build and GPU. about:
    the run's commit, command and machine, and each part's outcome and command."""
    found = {path.stem: read(path) for path in sorted(work.glob("*.json"))}
    documents = [
        {
            "schema_version": 1, "benchmark": name, "commit": about["commit"], **document, "part": name,
            "date": iso((work / f"{name}.json").stat().st_mtime), "command": about["commands"].get(name, ""),
            "outcome": about["parts"].get(name), "machine": {**about["machine"], **without_nulls(document.get("machine", {}))},
        }
        for name, document in found.items() if document
    ]  # fmt: skip
    counts = [re.search(r"^(\d+) passed, (\d+) failed$", text(work / name), re.MULTILINE) for name in ("kernels.log", "executor.log")]
    registered = {path.stem: list(dict.fromkeys(re.findall(r"registered \d+ pieces.*", text(path)))) for path in sorted(work.glob("*.log"))}
    summary = {
        "schema_version": 1, "date": iso(datetime.datetime.now().timestamp()),
        "commit": about["commit"], "command": about["command"], "machine": about["machine"],
        "passed": sum(int(count[1]) for count in counts if count), "failed": sum(int(count[2]) for count in counts if count),
        "parts": about["parts"], "registered": {name: lines for name, lines in registered.items() if lines},
        "unreadable": [name for name, document in found.items() if document is None],
    }  # fmt: skip
    write(out / "gpu.json", documents)
    write(out / "summary.json", summary)
    for document in documents:
        write(kept / f"{document['part']}.json", document)
    write(out / "cuda.json", cuda([document for document in map(read, sorted(kept.glob("*.json"))) if document]))
