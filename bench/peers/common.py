"""The comparisons with other systems: command line, alternating turns, medians, and the document.

Each comparison lists settings of the peer; the best of them alternates with ours on the CPUs that this process may use (both
inherit them). Rates are agent steps per second: a step is one action and its result. Repeated frames count once; a step that only
starts the next episode does not count. Standard library only.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import platform
import statistics
import subprocess
import sys
import time

TUNING_SHARE = 0.3  # of a comparison's seconds, for finding the peer's best setting
FINALISTS = 3
WARM_UP_S = 0.3
LEAST_TURN_S = 0.5


class Unavailable(Exception):
    """The comparison is impossible here; the text gives the reason."""


@dataclasses.dataclass
class Comparison:
    """One row of the table. `open` takes a setting and returns an object with rate(seconds) and close()."""

    name: str
    reference: str  # the peer, with its version
    ours: object  # a Program
    open: object
    settings: list  # dictionaries
    delivers: str  # what the peer delivers, and to which process
    ours_delivers: str = "lanes in shared memory, to the learner"
    target: float = None
    alike: str = ""  # what is equal on both sides
    bursts: bool = False  # the peer's steps come in bursts as long as a turn: take the mean over all turns, not the median
    least_turn_s: float = LEAST_TURN_S
    unit: str = "agent steps/s"
    also: object = None  # (ours, theirs) after the last turn: a dictionary of further keys of the result


def cpus():
    return len(os.sched_getaffinity(0))


def log(text):
    print(text, file=sys.stderr, flush=True)


def describe(setting):
    return " ".join(f"{key}={value}" for key, value in setting.items())


# ---- our side ----


class Program:
    """A command that takes --seconds and prints one JSON document, which `documents` keeps."""

    def __init__(self, command):
        self.command = command
        self.documents = []

    def run(self, seconds):
        command = self.command + ["--seconds", f"{seconds:.3f}"]
        try:
            result = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60 + 4 * seconds, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(str(error)) from None
        if result.returncode != 0:
            lines = result.stderr.strip().splitlines() or ["no reason given"]
            name = " ".join([os.path.basename(command[0]), *command[1:]])
            raise Unavailable(f"{name} ended with {result.returncode}: {lines[-1]}")
        self.documents.append(json.loads(result.stdout))
        return self.documents[-1]

    def median_of(self, key):
        values = [document[key] for document in self.documents if isinstance(document.get(key), (int, float))]
        return statistics.median(values) if values else None


class Farm(Program):
    """A subcommand of our program that prints agent_steps_per_s."""

    def __init__(self, build, *arguments):
        super().__init__([os.path.join(build, "farm"), *arguments, "--json"])
        self.overhead_s = 0.0  # of a call, beyond the requested seconds

    def rate(self, seconds):
        requested = max(seconds - self.overhead_s, LEAST_TURN_S, seconds / 2)
        start = time.monotonic()
        document = self.run(requested)
        self.overhead_s = max(time.monotonic() - start - requested, 0.0)
        return float(document["agent_steps_per_s"])


def farm_fps(build, env, *options):
    """The farm alone: a responder answers with random actions."""
    return Farm(build, "fps", "--env", env, "--ladder", "off", "--quiet", *options)


# ---- measuring ----


def spread_of(samples):
    """(75th - 25th percentile) / median."""
    if len(samples) < 2:
        return 0.0
    quarters = statistics.quantiles(samples, n=4, method="inclusive")
    return (quarters[2] - quarters[0]) / statistics.median(samples)


def open_setting(comparison, setting, seconds):
    """The running peer and its rate; (None, None), with a line in the log, if it refuses the setting."""
    peer = None
    try:
        peer = comparison.open(setting)
        peer.rate(min(WARM_UP_S, seconds))
        rate = peer.rate(seconds)
    except Exception as error:  # pylint: disable=broad-except  # foreign code
        log(f"    {describe(setting)}: {type(error).__name__}: {error}")
        if peer is not None:
            peer.close()
        return None, None
    log(f"    {describe(setting)}: {rate:.0f}")
    return peer, rate


def tune(comparison, seconds):
    """The peer at its best setting, that setting, and all trials. Each setting is opened once and measured. The best few stay open
    (an idle peer takes no CPU time) and are measured again; the better of two rates decides."""
    turn = max(seconds / (len(comparison.settings) + FINALISTS), comparison.least_turn_s)
    tried, running = [], []  # running: (rate, index in tried, peer)
    try:
        for setting in comparison.settings:
            peer, rate = open_setting(comparison, setting, turn)
            tried.append({"setting": describe(setting), "rate": rate})
            if peer is not None:
                running.append((rate, len(tried) - 1, peer))
                running.sort(key=lambda entry: -entry[0])
            for _, _, loser in running[FINALISTS:]:
                loser.close()
            del running[FINALISTS:]
        if not running:
            raise Unavailable("the peer refused every setting")
        for _, index, peer in running if len(running) > 1 else []:
            tried[index]["rate"] = max(tried[index]["rate"], peer.rate(turn))
        running.sort(key=lambda entry: -tried[entry[1]]["rate"])
        _, index, best = running.pop(0)
    finally:
        for _, _, peer in running:
            peer.close()
    return best, comparison.settings[index], tried


def take_turns(ours, theirs, rounds, seconds):
    """Rates of both sides, which take turns at going first."""
    rates = ([], [])
    for turn in range(rounds):
        for side in (0, 1) if turn % 2 == 0 else (1, 0):
            if side == 1:
                theirs.rate(min(WARM_UP_S, seconds))
            rates[side].append((ours, theirs)[side].rate(seconds))
    return rates


def compare(comparison, seconds, rounds):
    """One result of the document; takes about `seconds` plus the peer's start-ups."""
    log(f"  {comparison.name}: settings of {comparison.reference}")
    turn = max((1 - TUNING_SHARE) * seconds / (2 * rounds), comparison.least_turn_s)
    comparison.ours.rate(min(turn, 1.0))  # fails at once if something is missing; loads files into memory
    best, setting, tried = tune(comparison, TUNING_SHARE * seconds)
    with contextlib.closing(best) as peer:
        ours, theirs = take_turns(comparison.ours, peer, rounds, turn)
        further = comparison.also(comparison.ours, peer) if comparison.also else {}
    value = statistics.median(ours)
    reference_value = (statistics.fmean if comparison.bursts else statistics.median)(theirs)
    log(f"    ours {value:.0f}, theirs {reference_value:.0f} ({describe(setting)}): {value / reference_value:.2f}")
    return {
        "name": comparison.name,
        "value": value,
        "unit": comparison.unit,
        "better": "higher",
        "spread": spread_of(ours),
        "reference": comparison.reference,
        "reference_value": reference_value,
        "reference_spread": spread_of(theirs),
        "ratio": value / reference_value,
        "target": comparison.target,
        "rounds": rounds,
        "turn_s": turn,
        "setting": describe(setting),
        "settings_tried": tried,
        "delivers": comparison.delivers,
        "ours_delivers": comparison.ours_delivers,
        "ours_command": " ".join([os.path.basename(comparison.ours.command[0]), *comparison.ours.command[1:]]),
        "ours_efficiency": comparison.ours.median_of("efficiency"),
        "alike": comparison.alike,
        **further,
    }


# ---- the document ----


def machine():
    model = "unknown"
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        model = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), model)
    nodes = 0
    while os.path.isdir(f"/sys/devices/system/node/node{nodes}"):
        nodes += 1
    return {"cpu": model, "cores": cpus(), "nodes": nodes, "kernel": platform.release(), "gpu": None}


def commit(build):
    result = subprocess.run([os.path.join(build, "farm"), "--version"], capture_output=True, text=True, check=False)
    return result.stdout.removeprefix("farm ").strip() or "unknown"


def write(path, document):
    text = json.dumps(document, indent=2) + "\n"
    if path == "-":
        sys.stdout.write(text)
    else:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


def parse_arguments(about, seconds, rounds, argv=None):
    parser = argparse.ArgumentParser(description=about.split("\n", maxsplit=1)[0])
    parser.add_argument("build", help="build folder, which holds farm")
    parser.add_argument("--json", default="-", help="file of the document (default: stdout)")
    parser.add_argument(
        "--seconds", type=float, default=seconds, help=f"for each result, without the peer's start-ups (default {seconds:g})"
    )
    parser.add_argument("--rounds", type=int, default=rounds, help=f"turns of each side (default {rounds})")
    parser.add_argument("--only", default="", help="results whose names contain this")
    arguments = parser.parse_args(argv)
    if arguments.seconds <= 0 or arguments.rounds < 1:
        parser.error("--seconds and --rounds must be above 0")
    return arguments


def run(make_comparisons, about, argv=None, seconds=50.0, rounds=5):
    """The program of a comparison; make_comparisons(build) yields its Comparisons. Returns the exit status."""
    arguments = parse_arguments(about, seconds, rounds, argv)
    build = os.path.abspath(arguments.build)
    results, status = [], 0
    for comparison in make_comparisons(build):
        if arguments.only not in comparison.name:
            continue
        try:
            results.append(compare(comparison, arguments.seconds, arguments.rounds))
        except Exception as error:  # pylint: disable=broad-except  # the remaining ones run
            log(f"FAILED {comparison.name}: {'' if isinstance(error, Unavailable) else type(error).__name__ + ': '}{error}")
            status = 1
    if results:
        write(arguments.json, {
            "schema_version": 1, "benchmark": "peers", "commit": commit(build), "machine": machine(), "results": results
        })
    return status
