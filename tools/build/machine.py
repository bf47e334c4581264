"""Describes this CPU and the results of tests and benchmarks on it in one line of bench/results/machines.jsonl.

usage: machine.py [--build DIR] [--output FILE] [--tests T | --no-tests] [--bench NAME...]

The line holds the CPU's model, instruction sets and caches, the versions of the kernel and of oneDNN, the counts of `make
test` at each level of instruction sets (ONEDNN_MAX_CPU_ISA; "best" is the CPU's maximum), and the benchmarks' results.
--tests passes T to make, --no-tests writes null. Exit status 1 if a test failed or a benchmark had a problem; without a
benchmark's document there is no line.
"""

import argparse
import ctypes
import datetime
import glob
import json
import os
import re
import shlex
import subprocess
import sys

import bench_table

INSTRUCTION_SETS = ["avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8", "avx_vnni"]
LEVELS = {"AVX2": "avx512bw", "SSE41": "avx2"}  # of oneDNN, and an instruction set above each
COUNTS = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$")
KEYS = ("name", "value", "unit", "spread", "ratio")  # of a benchmark's result
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def cpu_fields():
    """The first CPU's block of /proc/cpuinfo."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        block = file.read().split("\n\n")[0]
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in block.splitlines())}


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read().strip()


def cache_bytes():
    """Sizes of the first CPU's data caches; null if unknown."""
    sizes = {"l1d_bytes": None, "l2_bytes": None, "l3_bytes": None}
    for folder in glob.glob("/sys/devices/system/cpu/cpu0/cache/index*"):
        kind, level, size = (read(os.path.join(folder, name)) for name in ("type", "level", "size"))
        key = f"l{level}{'d' if level == '1' else ''}_bytes"
        if kind != "Instruction" and key in sizes:
            sizes[key] = int(size[:-1]) * UNITS[size[-1]] if size[-1] in UNITS else int(size)
    return sizes


def onednn_version(program):
    """Version of the program's libdnnl."""

    class Version(ctypes.Structure):
        _fields_ = [("major", ctypes.c_int), ("minor", ctypes.c_int), ("patch", ctypes.c_int)]

    libraries = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    path = re.search(r"libdnnl\S* => (\S+)", libraries)
    if path is None:
        return None
    library = ctypes.CDLL(path.group(1))
    library.dnnl_version.restype = ctypes.POINTER(Version)
    version = library.dnnl_version().contents
    return f"{version.major}.{version.minor}.{version.patch}"


def run_tests(level, which):
    """Prints the output of `make test` and returns its counts; None if it prints none."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    environment.pop("ONEDNN_MAX_CPU_ISA", None)
    if level != "best":
        environment["ONEDNN_MAX_CPU_ISA"] = level
    print(f"  TEST  at {level}", flush=True)
    command = ["make", "test"] + ([f"T={which}"] if which else [])
    last = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
    counts = COUNTS.match(last)
    if counts is None:
        return None
    passed, failed, skipped = (int(count or 0) for count in counts.groups())
    return {"passed": passed, "failed": failed, "skipped": skipped}


def run_benchmarks(build, names):
    """(documents, whether one had a problem)"""
    documents, failed = [], False
    for name in names:
        print(f"  BENCH {name}", flush=True)
        document, problem = bench_table.run(os.path.join(build, "bench", name))
        if problem:
            print(f"{name}: {problem}", file=sys.stderr)
            failed = True
        documents.append(document)
    return documents, failed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default=os.environ.get("BUILD", "build"))
    parser.add_argument("--output", default="bench/results/machines.jsonl")
    parser.add_argument("--tests", default="", metavar="T", help="which tests, as in make test T=...")
    parser.add_argument("--no-tests", action="store_true")
    parser.add_argument("--bench", nargs="+", default=["learner", "ring"], metavar="NAME")
    arguments = parser.parse_args()

    documents, failed = run_benchmarks(arguments.build, arguments.bench)
    if None in documents:
        return 1
    cpu = cpu_fields()
    flags = cpu.get("flags", "").split()
    tests = None
    if not arguments.no_tests:
        levels = ["best"] + [level for level, flag in LEVELS.items() if flag in flags]
        tests = {level: run_tests(level, arguments.tests) for level in levels}
        failed = failed or any(counts is None or counts["failed"] for counts in tests.values())
    machine = dict(documents[0]["machine"], family=int(cpu.get("cpu family", 0)), model=int(cpu.get("model", 0)))
    machine["instruction_sets"] = [name for name in INSTRUCTION_SETS if name in flags]
    line = {
        "schema_version": 1,
        "commit": documents[0]["commit"],
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": shlex.join(["make", "machine"] + ([f"ARGS={shlex.join(sys.argv[1:])}"] if sys.argv[1:] else [])),
        "machine": dict(machine, **cache_bytes()),
        "onednn": onednn_version(os.path.join(arguments.build, "bench", "learner")),
        "tests": tests,
        "results": [
            {"benchmark": document["benchmark"], **{key: result[key] for key in KEYS}}
            for document in documents
            for result in document["results"]
        ],
    }
    with open(arguments.output, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    print(f"  LINE  added to {arguments.output}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
