"""Runs the parts of docs/CUDA.md, "Building and checking", on a GPU.

    tests/gpu/check.sh [SEED [PART...]]     OUT=folder (default build/gpu/out), SECONDS_MAX=limit (580)
    tests/gpu/check.sh carry                packs build/carry.tar.xz, on the machine that builds (`make cuda-carry`)

Needs build/gpu, build/farm and build/libfarm_cuda.so, or the packed file with them, the driver and python3; parts that run
a network also need cuDNN and cuBLASLt (FARM_CUDA_LIBS, see src/nn/cuda/vendor.h; default: python3's packages). The groups
`first`, `second` and `cpu` (which runs without a GPU too, and uses all cores) hold all parts: one or two runs of ten
minutes on one machine, where build/gpu/kept hands the documents of one run to the next. No part runs beyond SECONDS_MAX; one
that fails does not stop the next ones.

Writes into OUT after every part: cuda.json, gpu.json, summary.json, logs.tar.gz (each log cut at 4 MiB).

Exit status: 0 no part failed (a part that is not installed or has no time left is reported as not run), 1 a part failed,
77 no GPU.
"""

import hashlib
import json
import os
import pathlib
import re
import shutil
import site
import subprocess
import sys
import tarfile
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../bench/gpu"))
import report

GROUPS = {
    "first": "kernels executor networks update round_trip score heads ppo dqn pictures memory breakout resume busy bw litmus "
             "breakout_window breakout_off pong",
    "second": "memcheck racecheck initcheck torch backend",
    "cpu": "fps ring learner bw_cpu",
}  # fmt: skip
GROUPS["all"] = " ".join(GROUPS.values())
BUILD = pathlib.Path(os.environ.get("BUILD", "build")).absolute()
GPU, FARM, KEPT = BUILD / "gpu", BUILD / "farm", BUILD / "gpu/kept"
LIBRARY = ("--library", BUILD / "libfarm_cuda.so")
LOG_BYTES_MAX = 4 << 20
COPIES = re.compile(r".*(?:refuses to register|copied once more|the rings are not registered).*")
BREAKOUT = "--env native/breakout --algo vtrace"
FAST = f"{BREAKOUT} --envs-per-actor 128"


class Outcome(Exception):
    """Of a part that did not pass: "failed: ..." or "not run: ..."."""


# ---- programs and libraries: one build, packed and unpacked ----


def commit_of(build):
    """The commit of the programs and the library, which must agree. Runs none of them, because the machine that packs them may
    lack their libraries."""
    found = {}
    for name in "farm libfarm_cuda.so gpu/test_kernels gpu/test_executor gpu/round_trip gpu/update bench/ring bench/learner".split():
        if (build / name).exists() or not name.startswith("bench"):
            # The string of gen/farm_build.h; no other string is exactly twelve hexadecimal digits.
            commits = re.findall(rb"\0([0-9a-f]{12}(?:-dirty)?)(?=\0)", (build / name).read_bytes()) if (build / name).exists() else []
            found[name] = b" ".join(sorted(set(commits))).decode() or "none"
    commits = sorted(set(found.values()))
    if len(commits) != 1 or commits == ["none"]:
        print(*(f"{build / name}: {commit}" for name, commit in found.items()), sep="\n", file=sys.stderr)
        raise Outcome(f"programs and library are of different builds ({' '.join(commits)}): make cuda-carry, from one tree")
    return commits[0]


def carry_environments():
    """Copies what the parts `fps` and `pong` need besides programs into build/gpu, for a machine that has neither Debian's
    packages nor PyPI. python/ and python.sh: a Python with ale-py and gymnasium; mujoco/: its library and robots; lib/: their
    libraries from Debian. Not Procgen, whose pictures are 300 MB."""
    paths = "import os, sys, sysconfig; print(os.path.realpath(sys.executable), *map(sysconfig.get_path, ('stdlib', 'purelib')))"
    printed = subprocess.run([BUILD / "venv/bin/python", "-c", paths], capture_output=True, text=True, check=True).stdout
    program, library, packages = map(pathlib.Path, printed.split())
    to, robots = GPU / "python", GPU / "mujoco"
    own = to / "lib" / library.name
    unused = "__pycache__ test tests idlelib tkinter ensurepip lib2to3 config-* site-packages dist-packages".split()
    unused += [f"{name}.*" for name in "_tkinter _curses _curses_panel readline nis _sqlite3 _dbm _gdbm _crypt".split()]
    shutil.copytree(library, own, ignore=shutil.ignore_patterns(*unused))
    for folder in (to / "bin", robots, own / "site-packages", GPU / "lib"):
        folder.mkdir(parents=True, exist_ok=True)
    for name in "numpy numpy.libs ale_py ale_py.libs gymnasium farama_notifications cloudpickle typing_extensions".split():
        for path in filter(pathlib.Path.exists, (packages / name, packages / f"{name}.py", *packages.glob(f"{name}-*.dist-info"))):
            target = own / "site-packages" / path.name
            shutil.copytree(path, target, ignore=shutil.ignore_patterns("__pycache__", "tests")) if path.is_dir() else shutil.copy(path, target)
    shutil.copy(program, to / "bin/python")
    for path in (*packages.glob("mujoco/libmujoco.so.*"), *packages.glob("gymnasium/envs/mujoco/assets/*.xml")):
        shutil.copy(path, robots)
    for needs in (program, *own.glob("lib-dynload/*.so")):
        for path in re.findall(r"=> (/[^ ]*) ", subprocess.run(["ldd", needs], capture_output=True, text=True, check=False).stdout):
            if not re.search(r"/(libc|libm|libpthread|libdl|librt|libutil|libresolv|ld-linux[^/]*)\.so", path):
                (GPU / "lib" / os.path.basename(path)).exists() or shutil.copy(path, GPU / "lib")
    (GPU / "python.sh").write_text(
        "#!/bin/sh\n# The Python of this folder, which needs nothing outside it.\n"
        'here=$(cd "$(dirname "$0")" && pwd)\n'
        'export LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" PYTHONHOME="$here/python" PYTHONNOUSERSITE=1\n'
        'exec "$here/python/bin/python" "$@"\n', encoding="utf-8",
    )  # fmt: skip
    (GPU / "python.sh").chmod(0o755)


def carry():
    commit = commit_of(BUILD)
    print(f"  NOTE  of commit {commit}" + ", a changed tree: commit it before it is measured" * commit.endswith("-dirty"))
    for name in ("python", "mujoco"):
        shutil.rmtree(GPU / name, ignore_errors=True)
    (GPU / "python.sh").unlink(missing_ok=True)
    if (BUILD / "venv/bin/python").exists():
        carry_environments()
    else:
        print("  NOTE  no build/venv: without the environments that need Python")

    def choose(member):
        member.name = re.sub("^gpu/mujoco", "envs/mujoco", member.name)
        return None if member.name in ("gpu/out", "gpu/kept", "gpu/unpacked") else member

    with tarfile.open(BUILD / "carry.tar.xz", "w:xz") as tar:
        for name in filter(lambda name: (BUILD / name).exists(), "gpu farm gen/farm_build.h libfarm_cuda.so envs python bench/ring bench/learner".split()):
            tar.add(BUILD / name, name, filter=choose)


def unpack():
    """Another packed file replaces what was unpacked before, never what was built here."""
    packed, stamp = BUILD / "carry.tar.xz", GPU / "unpacked"
    if not packed.exists():
        return
    digest = hashlib.sha256(packed.read_bytes()).hexdigest()
    if not (GPU / "test_kernels").exists() or (stamp.exists() and stamp.read_text() != digest):
        print(f"unpacking {packed}")
        with tarfile.open(packed) as tar:
            tar.extractall(BUILD)
        stamp.write_text(digest)


# ---- a run ----


class Check:
    """One run: its work folder holds each part's NAME.json and NAME.log."""

    def __init__(self, seed, wanted, work):
        self.seed, self.work, self.train_run = seed, work, work / "train"
        self.out = pathlib.Path(os.environ.get("OUT", GPU / "out"))
        self.end = time.monotonic() + float(os.environ.get("SECONDS_MAX", 580))
        self.about = {"command": f"tests/gpu/check.sh {seed} {' '.join(wanted)}", "machine": {}, "commit": None, "parts": {}, "commands": {}}

    def report(self, name, outcome):
        print(f"{name:16} {outcome}", flush=True)
        self.about["parts"][name] = outcome

    def limit(self, seconds_max, command, out, log):
        """The exit status of a command, which runs no longer than SECONDS_MAX allows. Programs of the build use Debian's libraries,
        which lie beside them for machines that lack them; the machine's python3 has its own."""
        environment = dict(os.environ)
        if command[0] != sys.executable:
            environment["LD_LIBRARY_PATH"] = ":".join(filter(None, (str(GPU / "lib"), os.environ.get("LD_LIBRARY_PATH"))))
        seconds = max(1, min(seconds_max, int(self.end - time.monotonic())))
        command = ["timeout", "-k", "10", str(seconds), *map(str, command)]
        return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=log, env=environment, check=False).returncode

    def log(self, name):
        return report.text(self.work / f"{name}.log")

    def judge(self, name, status):
        """A learner that copies observations works, but fails: reading the rings in place is what a part must show. 77: not run,
        for the reason in the log's last line."""
        lines = self.log(name).splitlines() or [""]
        copies = COPIES.search(self.log(name))
        if copies:
            raise Outcome(f"failed: {copies[0]}")
        if status == 77:
            raise Outcome("not run: " + lines[-1].removeprefix("not run: "))
        if status in (124, 137) and self.end - time.monotonic() < 1:
            raise Outcome("not run: the time was over before its end")
        if status:
            print("\n".join(lines[-3:]))
            raise Outcome(f"failed: status {status}")

    def execute(self, name, seconds_max, command, shown, to=None):
        """Runs a command, whose document goes into NAME.to, if it prints one, the other output into NAME.log; shows the log's lines
        that match. Returns the exit status."""
        self.about["commands"][name] = " ".join(map(str, command))
        with open(self.work / f"{name}.log", "wb") as log, open(self.work / f"{name}.{to}" if to else os.devnull, "wb") as out:
            status = self.limit(seconds_max, command, out if to else log, log)
        print("\n".join(re.findall(f"(?m){shown}", self.log(name))))
        return status

    def tests(self, name, *command, shown="^FAIL.*"):
        self.judge(name, self.execute(name, 120, command, shown))

    def benchmark(self, name, seconds_max, *command, shown="registered [0-9]+ pieces.*"):
        self.judge(name, self.execute(name, seconds_max, command, shown, "json"))

    def torch(self):
        """PyTorch beside `update` of this run, or of an earlier one on this machine."""
        ours = next((path for path in (self.work / "update.json", KEPT / "update.json") if report.text(path)), None)
        if not ours:
            raise Outcome("not run: update has measured nothing to compare")
        seconds = min(245, int(self.end - time.monotonic()) - 15)
        self.benchmark("torch", 270, sys.executable, "bench/gpu/torch_update.py", ours, "--seconds", seconds, shown=".*")

    def train(self, name, least, flags, anew=True):
        """Runs `farm train`: what it prints becomes NAME.farm, its figures NAME.json. least: {figure: least value}."""
        if anew:
            shutil.rmtree(self.train_run, ignore_errors=True)
        command = (FARM, "train", "--json", "--metrics-every", 2, "--run", self.train_run, *flags.split())
        status = self.execute(name, 240, command, ".*(?:registered|cross|device|stream).*", "farm")
        metrics = report.text(self.train_run / "metrics.jsonl")
        (self.work / f"{name}.metrics.jsonl").write_text(metrics, encoding="utf-8")
        if status == 0:
            document, wrong = report.training(report.read(self.work / f"{name}.farm"), metrics, self.log(name), name, least)
            report.write(self.work / f"{name}.json", document)
            if wrong:
                raise Outcome(f"failed: {wrong}")
        self.judge(name, status)

    def resume(self):
        """Resumes `breakout` of this run."""
        before = report.read(self.work / "breakout.farm")
        if not before:
            raise Outcome("not run: breakout has left no checkpoint")
        self.train("resume", {"frames": before["frames"] + 1}, f"{BREAKOUT} --resume --seconds {before['wall_s'] + 5:.0f}", anew=False)

    def bw(self):
        self.benchmark("bw", 120, FARM, "bw", "--only", "gpu", "--json", "--quiet", shown=".*")
        if '"name": "gpu.h2d.pinned' not in (printed := report.text(self.work / "bw.json")):
            raise Outcome("failed: nothing measured: " + " ".join(re.findall(r'"not_measured": "([^"]*)"', printed)))

    def python(self):
        """The Python that holds the environments: of this machine's build, or what `carry` has packed."""
        if (BUILD / "venv/bin/python").exists():
            return BUILD / "venv/bin/python"
        if not (GPU / "python.sh").exists():
            raise Outcome("not run: no Python with the environments (make cuda-carry, where build/venv is)")
        os.environ["FARM_PYTHON"] = str(GPU / "python.sh")
        return GPU / "python.sh"

    def pong(self):
        """The recipe: on two cores 100 games average 18 at some time in it, and 18.4 to 20.1 at its end."""
        self.python()
        self.train("pong", {"return_best": 18}, "--env ale/Pong --seconds 220")

    def fps(self):
        """`farm fps` against the bare simulators, on all cores."""
        program = BUILD / "bench/fps"
        program.parent.mkdir(exist_ok=True)
        if not program.exists():
            program.symlink_to(pathlib.Path("bench/fps.py").absolute())
        self.benchmark("fps", 150, self.python(), program, "--json", "--only", "ale/,native/,mujoco/")

    def learner(self):
        """The CPU learner on one core beside PyTorch on the same core."""
        script = self.work / "bench/learner"
        script.parent.mkdir()
        script.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={GPU}/lib exec {BUILD}/bench/learner "$@"\n', encoding="utf-8")
        script.chmod(0o755)
        self.benchmark("learner", 240, sys.executable, "bench/peers/learner.py", self.work, "--rounds", 2, "--seconds", 2)

    def sanitize(self, name, tool, seconds_max, *command):
        """Runs a program and its child processes under compute-sanitizer. The tests contain calls that CUDA refuses."""
        sanitizer = shutil.which("compute-sanitizer", path=os.environ["PATH"] + ":/usr/local/cuda/bin")
        if not sanitizer:
            raise Outcome("not run: compute-sanitizer is not installed")
        options = ["--report-api-errors", "no", "--error-exitcode", 9, "--target-processes", "all"]
        if "--require-cuda-init" in subprocess.run([sanitizer, "--help"], capture_output=True, text=True, check=False).stdout:
            options += ["--require-cuda-init", "no"]
        status = self.execute(name, seconds_max, (sanitizer, "--tool", tool, *options, *command), "^FAIL.*")
        text = self.log(name)
        if "Device not supported" in text:
            raise Outcome("not run: the tool does not support this device")
        # racecheck's warnings count in its summary
        if not status and tool != "racecheck" and ("ERROR SUMMARY: 0 errors" not in text or re.search("ERROR SUMMARY: [1-9]", text)):
            status = 9
        if status:
            print("\n".join(re.findall("^=========.*", text, re.MULTILINE)[:20]))
        self.judge(name, status)

    def part(self, name):
        """Runs a part; a part without a line here is the method of its name."""
        kernels, executor, trip = GPU / "test_kernels", GPU / "test_executor", GPU / "round_trip"

        def train(least, flags):
            return lambda: self.train(name, least, flags)

        bw_parts = "memory,latency,matrix,mix,loaded,cores,handoff,pages,tlb,ring"
        return {
            "kernels": lambda: self.tests(name, kernels, self.seed),
            "executor": lambda: self.tests(name, executor, shown=r".*Assertion failed.*|\[FAIL\].*"),
            "litmus": lambda: self.tests(name, GPU / "litmus", shown=".+"),
            "networks": lambda: self.benchmark(name, 120, executor, "--bench"),
            "round_trip": lambda: self.benchmark(name, 180, trip, *LIBRARY),
            "update": lambda: self.benchmark(name, 180, GPU / "update", *LIBRARY),
            # The recipe with the actors and batches that it has on two cores, where the return reaches 40 after 290,000 to
            # 310,000 frames (seeds 1 and 2, in f32), 160 to 200 after 580,000. `auto` must choose the GPU.
            "score": train({"return_mean": 40}, f"{BREAKOUT} --actors 2 --envs-per-actor 8 --frames 600000 --seconds 90"),
            # Recipes that reach more on a CPU: 0.99, 500, 0.98, 1.
            "heads": train({"return_mean": 0.9}, "--env native/menu --algo vtrace --actors 2 --frames 300000 --seconds 60"),
            "ppo": train({"return_mean": 400}, "--env native/cartpole --algo ppo --frames 300000 --seconds 60"),
            "pictures": train({"return_mean": 0.9}, "--env native/juggle --algo ppo --frames 200000 --seconds 60"),
            "memory": train({"return_mean": 0.9}, "--env native/recall --algo vtrace --frames 1000000 --seconds 90"),
            "dqn": train({"return_mean": 400}, "--env native/cartpole --algo dqn --frames 300000 --seconds 60"),
            "breakout": train({}, f"{FAST} --seconds 20"),
            "breakout_window": train({}, f"{FAST} --seconds 8 --mirror window"),
            "breakout_off": train({}, f"{FAST} --seconds 8 --mirror off"),
            "busy": train({}, f"{FAST} --seconds 15 --net deep"),
            "ring": lambda: self.benchmark(name, 60, BUILD / "bench/ring", "--json", "--seconds", 25),
            "bw_cpu": lambda: self.benchmark(name, 100, FARM, "bw", "--only", bw_parts, "--json", "--quiet"),
            "backend": lambda: self.sanitize(name, "memcheck", 600, trip, *LIBRARY, "--only", "shallow", "--rounds", 500),
            **dict.fromkeys(("memcheck", "racecheck", "initcheck"), lambda: self.sanitize(name, name, 120, kernels, self.seed, "--few")),
        }.get(name, getattr(self, name, None))  # fmt: skip

    def run_part(self, name):
        began = time.monotonic()
        try:
            if self.end - began < 2:
                raise Outcome("not run: the time is over")
            self.part(name)()
            self.report(name, f"passed in {time.monotonic() - began:.0f} s")
            printed = self.work / f"{name}.json"
            if report.text(printed) and report.read(printed, whole=True) is None:
                self.report(f"{name}_document", "failed: it cannot be read")
        except Outcome as why:
            self.report(name, str(why))

    def pack(self):
        report.collect(self.work, self.out, KEPT, self.about)
        for path in self.work.glob("*.*"):
            if path.is_file() and path.stat().st_size > LOG_BYTES_MAX:
                os.truncate(path, LOG_BYTES_MAX)
        with tarfile.open(self.out / "logs.part", "w:gz") as tar:
            tar.add(self.work, ".", filter=lambda member: None if member.name == "./train" else member)
        (self.out / "logs.part").rename(self.out / "logs.tar.gz")

    def look_at_machine(self, wanted):
        """Reads the GPU, the driver and the commit. What is kept of earlier runs must be of this build on this GPU."""
        found = subprocess.run(["timeout", "-k", "10", "60", GPU / "test_kernels", "--device"], capture_output=True, text=True, check=False)
        print(found.stdout, found.stderr, sep="", end="", flush=True)
        if found.returncode == 77 and set(wanted) - set(GROUPS["cpu"].split()):
            sys.exit(77)
        if found.returncode not in (0, 77):
            print("the GPU does not answer", file=sys.stderr)  # the parts will report more
        query = ["timeout", "-k", "10", "20", "nvidia-smi", "--query-gpu=name,driver_version,pcie.link.gen.max,pcie.link.width.max", "--format=csv,noheader"]
        smi = subprocess.run(query, capture_output=True, text=True, check=False).stdout
        print(smi, end="", flush=True)
        self.about["machine"] = report.machine(smi, "" if found.returncode else found.stdout)
        try:
            self.about["commit"] = commit_of(BUILD)
            print(f"built from {self.about['commit']}")
        except Outcome as why:  # a library of another build is refused when it is opened, which would read as "no GPU"
            self.report("same_build", f"failed: {why}")
        kept_of = f"{smi}{self.about['commit']}\n"
        if report.text(KEPT / "of") != kept_of:
            shutil.rmtree(KEPT, ignore_errors=True)
        KEPT.mkdir(parents=True, exist_ok=True)
        (KEPT / "of").write_text(kept_of, encoding="utf-8")


def main():
    os.chdir(pathlib.Path(__file__).absolute().parents[2])
    seed, *names = sys.argv[1:] or [str(time.time_ns())]
    if seed == "carry":
        try:
            return carry()
        except Outcome as why:
            return str(why)
    wanted = []
    for name in names or ["all"]:
        if name not in GROUPS and name not in GROUPS["all"].split():
            return f"no such part: {name} ({' '.join(GROUPS)} {GROUPS['all']})"
        wanted += GROUPS.get(name, name).split()
    unpack()
    if not (GPU / "test_kernels").exists():
        return f"{GPU}/test_kernels is missing: make cuda"
    os.environ.setdefault("FARM_CUDA_LIBS", site.getsitepackages()[0])
    with tempfile.TemporaryDirectory() as work:
        check = Check(seed, wanted, pathlib.Path(work))
        check.out.mkdir(parents=True, exist_ok=True)
        check.look_at_machine(wanted)
        for name in wanted:
            check.run_part(name)
            check.pack()
    print(report.text(check.out / "cuda.json"), f"cuda.json, gpu.json, summary.json and logs.tar.gz in {check.out}", sep="")
    return int(any(outcome.startswith("failed") for outcome in check.about["parts"].values()))


if __name__ == "__main__":
    sys.exit(main())
