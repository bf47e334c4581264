"""Memory bandwidth and latency: the kernels and the chase of `farm bw` against likwid-bench, STREAM and numactl's chase.

# packages: gcc libc6-dev libnuma-dev likwid
# sources: hpcc numactl

Ours is build/bench/bandwidth, one process a turn; so are theirs (but the chase makes its list once and follows it once a turn), on
arrays of the same size. Bytes are counted as the program sees them, as in STREAM. likwid_*: the fastest of its kernels here against
the fastest of ours (ordinary or non-temporal stores). stream_*: STREAM of the package hpcc, gcc -O3 and OpenMP, the best of ten as it
prints; of ours the best sample too. _all: all cores, else one. likwid_cv: coefficients of variation of the turns' rates.
chase_idle_latency: the list of numactl's numademo, on small pages as ours.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys

import common

PROGRAMS = os.path.join("peers", "debian", "memory")  # in the build folder
SOURCES = os.path.join("peers", "debian")
OURS = {  # op: results of build/bench/bandwidth; the fastest counts
    "read": ["read"],
    "copy": ["copy", "copy_nontemporal"],
    "triad": ["triad", "triad_nontemporal"],
}
LIKWID = {  # op: (its kernels, its arrays)
    "read": (["load", "load_sse", "load_avx", "load_avx512"], 1),
    "copy": (["copy_sse", "copy_avx", "copy_avx512", "copy_mem_sse", "copy_mem_avx", "copy_mem_avx512"], 2),
    "triad": (["stream_avx_fma", "stream_avx512_fma", "stream_mem_sse", "stream_mem_avx_fma", "stream_mem_avx512_fma"], 3),
}
SAMPLES = 5  # of build/bench/bandwidth in a turn, together as long as the turn: the other side reports a mean over it
BEST_SAMPLE_S, BEST_SAMPLES_MAX = 0.04, 32  # if the best one counts, as in STREAM
PASSES_LEAST = 4
CV_TURNS = 3  # for each round
LEAST = 0.97  # ours ÷ theirs
CV_MOST, LATENCY_MOST = 1.2, 1.03


def output_of(command, env=None):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=env)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise common.Unavailable(f"{os.path.basename(command[0])}: {error}") from None
    if done.returncode != 0:
        lines = (done.stderr + done.stdout).strip().splitlines() or ["no reason given"]
        raise common.Unavailable(f"{' '.join(command)} ended with {done.returncode}: {lines[-1]}")
    return done.stdout


class Ours:
    """One result of build/bench/bandwidth; rate in MB/s (1e6)."""

    def __init__(self, build, name, best=False):
        self.command = [os.path.join(build, "bench", "bandwidth"), "--only", name, "--json"]
        self.best, self.wanted = best, "best" if best else name

    def results(self, seconds=1.0):
        samples, each = SAMPLES, max(seconds / SAMPLES, BEST_SAMPLE_S)
        if self.best:
            samples, each = min(max(int(seconds / BEST_SAMPLE_S), SAMPLES), BEST_SAMPLES_MAX), BEST_SAMPLE_S
        document = json.loads(output_of([*self.command, "--samples", str(samples), "--sample-seconds", f"{each:.3f}"]))
        return {result["name"]: result["value"] for result in document["results"]}

    def rate(self, seconds):
        return 1000 * self.results(seconds)[self.wanted]

    def median_of(self, _):
        return None


def fastest_of_ours(build, op, everywhere, best=False):
    candidates = [Ours(build, name + ("_all" if everywhere else ""), best) for name in OURS[op]]
    rates = [candidate.rate(0.5) for candidate in candidates]
    return candidates[rates.index(max(rates))]


class Likwid:
    """A kernel of likwid-bench on arrays of that many bytes; a process a turn."""

    def __init__(self, kernel, arrays, array_bytes, threads, cpu):
        domain = "N" if threads > 1 else f"M{node_of(cpu)}"
        self.command = ["likwid-bench", "-t", kernel, "-W", f"{domain}:{arrays * array_bytes // 1000}kB:{threads}"]
        self.prefix = ["taskset", "-c", str(cpu)] if threads == 1 else []
        self.pass_s = None

    def run(self, passes):
        text = output_of([*self.prefix, *self.command, "-i", str(passes)])
        rates = [float(line.split()[-1]) for line in text.splitlines() if line.startswith("MByte/s:")]
        times = [float(line.split()[1]) for line in text.splitlines() if line.startswith("Time:")]
        if not rates or not times:
            raise common.Unavailable(f"{' '.join(self.command)} printed no rate")
        self.pass_s = times[0] / passes
        return rates[0]

    def rate(self, seconds):
        if self.pass_s is None:
            self.run(PASSES_LEAST)
        return self.run(max(int(seconds / self.pass_s), PASSES_LEAST))

    def close(self):
        pass


class Stream:
    """STREAM; the best of its ten passes, which is what it prints."""

    def __init__(self, folder, op, array_bytes, threads, cpu):
        self.command, self.op = [os.path.join(folder, "stream"), str(array_bytes)], op
        self.prefix = ["taskset", "-c", str(cpu)] if threads == 1 else []
        self.env = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_PROC_BIND": "true", "OMP_PLACES": "cores"}

    def rate(self, _):
        return 1000 * json.loads(output_of([*self.prefix, *self.command], self.env))[self.op]

    def close(self):
        pass


class Chase:
    """numademo's chase, its list made once."""

    def __init__(self, folder, array_bytes, cpu):
        command = ["taskset", "-c", str(cpu), os.path.join(folder, "chase"), str(array_bytes)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.list = json.loads(self.process.stdout.readline() or "{}")
        if not self.list:
            raise common.Unavailable("the chase of numactl did not start")

    def ns(self):
        print(file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())["ns"]

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)


# ---- the machine ----


def node_of(cpu):
    for entry in os.listdir(f"/sys/devices/system/cpu/cpu{cpu}") if os.path.isdir("/sys/devices/system/node") else []:
        if entry.startswith("node") and entry[4:].isdigit():
            return int(entry[4:])
    return 0


def has(instructions):
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        return any(line.startswith("flags") and f" {instructions} " in line + " " for line in file)
    return False


def kernels(op):
    """The kernels of likwid that this CPU can run, and how many arrays they use."""
    names, arrays = LIKWID[op]
    wants = {"avx512": "avx512f", "avx": "avx", "fma": "fma"}
    return [n for n in names if all(has(flag) for word, flag in wants.items() if word in n.split("_"))], arrays


def build_programs(build):
    """Compiles STREAM and the chase from the source packages."""
    here, folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "memory"), os.path.join(build, PROGRAMS)
    sources = os.path.join(build, SOURCES)
    numactl = os.path.join(sources, "numactl")
    os.makedirs(folder, exist_ok=True)
    recipes = {
        "stream": ["-O3", "-fopenmp", f"-I{here}", f"{here}/stream_main.c", f"{sources}/hpcc/STREAM/stream.c", "-lm"],
        "chase": ["-O2", f"-I{numactl}", f"{here}/chase_main.c",
                  *(f"{numactl}/{name}.c" for name in ("util", "clearcache")), "-lnuma", "-lm"],
    }
    for name, recipe in recipes.items():
        output_of([os.environ.get("CC", "gcc"), "-w", *recipe, "-o", os.path.join(folder, name)])
    return folder


# ---- comparisons ----


def rates(build, folder, array_bytes, threads):
    """Pairs of a name and a function that makes the comparison. The kernel of ours is chosen by trying."""
    cpu = min(os.sched_getaffinity(0))
    version = output_of(["dpkg-query", "-W", "-f", "${Version}", "likwid"]).strip()
    words = {"unit": "MB/s", "target": LEAST}
    for everywhere in (False, True) if threads > 1 else (False,):
        count = threads if everywhere else 1
        ending = "_all" if everywhere else ""
        alike = f"arrays of {array_bytes} B, {count} threads, bytes as the program sees them"
        for op in LIKWID:
            names, arrays = kernels(op)
            yield f"likwid_{op}{ending}", lambda op=op, names=names, arrays=arrays, count=count, everywhere=everywhere, alike=alike: (
                common.Comparison(
                    name=f"likwid_{op}{'_all' if everywhere else ''}", reference=f"likwid-bench {version}",
                    ours=fastest_of_ours(build, op, everywhere),
                    open=lambda setting: Likwid(setting["kernel"], arrays, array_bytes, count, cpu),
                    settings=[{"kernel": name} for name in names], alike=alike,
                    delivers="the mean rate of a turn", ours_delivers="the median of a turn's samples", **words,
                ))
        for op in ("copy", "triad"):
            yield f"stream_{op}{ending}", lambda op=op, count=count, everywhere=everywhere, alike=alike: common.Comparison(
                name=f"stream_{op}{'_all' if everywhere else ''}", reference="STREAM (hpcc), gcc -O3",
                ours=fastest_of_ours(build, op, everywhere, best=True),
                open=lambda setting: Stream(folder, op, array_bytes, count, cpu),
                settings=[{"best of": 10}], alike=alike,
                delivers="the best of ten passes", ours_delivers="the best of its samples", **words,
            )


def result(name, unit, ours, theirs, reference, target, alike):
    """A row; less is better."""
    value, reference_value = statistics.median(ours), statistics.median(theirs)
    common.log(f"    {name}: ours {value:.4g}, theirs {reference_value:.4g}")
    return {
        "name": name, "value": value, "unit": unit, "better": "lower", "spread": common.spread_of(ours), "reference": reference,
        "reference_value": reference_value, "reference_spread": common.spread_of(theirs), "ratio": value / reference_value,
        "target": target, "rounds": len(ours), "alike": alike, "delivers": "one figure a turn", "ours_delivers": "the same",
    }


def variation(build, array_bytes, seconds, rounds):
    cpu = min(os.sched_getaffinity(0))
    names, arrays = kernels("read")
    ours, tried = Ours(build, "read"), [Likwid(name, arrays, array_bytes, 1, cpu) for name in names]
    firsts = [candidate.rate(0.3) for candidate in tried]
    theirs = tried[firsts.index(max(firsts))]
    turns = CV_TURNS * rounds
    both = common.take_turns(ours, theirs, turns, max(seconds / 2 / turns, 0.5))
    cvs = [statistics.stdev(side) / statistics.fmean(side) for side in both]
    return result("likwid_cv", "1", cvs[:1], cvs[1:], f"likwid-bench, {' '.join(theirs.command[2:3])}", CV_MOST,
                  f"standard deviation / mean of {turns} turns each, read, one core")


def latency(build, folder, array_bytes, rounds):
    ours, theirs = [], []
    with contextlib.closing(Chase(folder, array_bytes, min(os.sched_getaffinity(0)))) as peer:
        bench = Ours(build, "latency_small_pages")
        for _ in range(rounds):
            theirs.append(peer.ns())
            ours.append(bench.results()["latency_small_pages"])
        alike = f"{array_bytes} B on small pages; its list comes by {peer.list['loads']} of {peer.list['nodes']} places of 8 B"
    return result("chase_idle_latency", "ns", ours, theirs, "ptrchase of numactl's numademo", LATENCY_MOST, alike)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("build", help="folder in which `farm` lies")
    parser.add_argument("--json", default="-", help="where the document goes (default: stdout)")
    parser.add_argument("--seconds", type=float, default=24.0, help="for each result, start-ups not counted (default 24)")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each side (default 9)")
    parser.add_argument("--only", default="", help="results whose names contain this")
    arguments = parser.parse_args()
    if arguments.seconds <= 0 or arguments.rounds < 2:
        parser.error("--seconds is above 0, --rounds above 1")
    build = os.path.abspath(arguments.build)
    folder = build_programs(build)
    known = Ours(build, "read").results(0.1)
    array_bytes, chase_bytes, threads = (int(known[key]) for key in ("array_bytes", "chase_bytes", "all_threads"))
    jobs = [
        (name, lambda make=make: common.compare(make(), arguments.seconds, arguments.rounds))
        for name, make in rates(build, folder, array_bytes, threads)
    ]
    jobs.append(("likwid_cv", lambda: variation(build, array_bytes, arguments.seconds, arguments.rounds)))
    jobs.append(("chase_idle_latency", lambda: latency(build, folder, chase_bytes, arguments.rounds)))
    results, status = [], 0
    for name, job in jobs:
        if arguments.only not in name:
            continue
        try:
            results.append(job())
        except Exception as error:  # pylint: disable=broad-except  # the other comparisons are still made
            common.log(f"FAILED {name}: {'' if isinstance(error, common.Unavailable) else type(error).__name__ + ': '}{error}")
            status = 1
    if results:
        common.write(arguments.json, {
            "schema_version": 1, "benchmark": "peers", "commit": common.commit(build), "machine": common.machine(),
            "results": results,
        })
    return status


if __name__ == "__main__":
    sys.exit(main())
