"""One step from an actor to its learner and back: our lane against ways that other systems take.

# packages: g++ make pkg-config libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libzmq3-dev libiceoryx-posh-dev iceoryx

The work (bench/peers/transport/work.h): 28,224 B out, 4 B back, two sides on two CPUs. NAME_step: round trips with one step in
flight, a second divided by their median; NAME_throughput: steps a second with 16 in flight. Both sides look again and again, or
(_sleeping) sleep in the transport's own call; the learner's side does not look at the payload or (_summed) adds up every byte.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys

import common

IN_FLIGHT = 16
SECONDS, ROUNDS = 12.0, 15  # a result; many turns, for a virtual machine's two cores are near each other or far for seconds on end
LEAST_TURN_S = 0.25
PROGRAMS = os.path.join("peers", "debian", "transport")  # in the build folder

# Settings of which each side gets the one that serves it best. A library's own threads may want another CPU than their side's
# (the sides themselves are pinned). An observation that is written where the reader finds it may be stored past the caches,
# which saves fetching the lines that the reader had last. A lane may hold what is under way, or a training batch too.
THREADS = [["--free-threads"], []]
STORES = [["--stream"], []]
OURS = [["--slots", "4"], ["--slots", "64"], ["--slots", "64", "--stream"]]
WORDS = {
    "--free-threads": "library's threads anywhere", "--stream": "stores past the caches", "--slots 4": "rings of 4 steps",
    "--slots 64": "rings of 64 steps",
}

# name: (what it is called, its package, what it delivers, its settings)
PEERS = {
    "grpc": ("gRPC, bidirectional stream on a Unix socket", "libgrpc++-dev", "protobuf messages, to another process", THREADS),
    "zeromq_ipc": ("ZeroMQ ipc", "libzmq3-dev", "messages, to another process", THREADS),
    "zeromq_inproc": ("ZeroMQ inproc", "libzmq3-dev", "messages, to another thread of the process", STORES),
    "unix_socket": ("Unix stream socket", None, "bytes, copied twice by the kernel, to another process", [[]]),
    "pipe": ("pipe", None, "bytes, copied twice by the kernel, to another process", [[]]),
    "iceoryx": (
        "iceoryx", "libiceoryx-posh-dev", "chunks of shared memory, read in place, to another process",
        [threads + stores for threads in THREADS for stores in STORES],
    ),
}
# ending of the name: flags
MODES = {
    "step": [],
    "step_summed": ["--sum"],
    "step_sleeping": ["--sleep"],
    "step_sleeping_summed": ["--sleep", "--sum"],
    "throughput": ["--in-flight", str(IN_FLIGHT)],
    "throughput_summed": ["--in-flight", str(IN_FLIGHT), "--sum"],
    "throughput_sleeping": ["--in-flight", str(IN_FLIGHT), "--sleep"],
    "throughput_sleeping_summed": ["--in-flight", str(IN_FLIGHT), "--sleep", "--sum"],
}
TARGETS = {
    "grpc_step": 70, "grpc_throughput": 30, "grpc_step_summed": 15, "grpc_throughput_summed": 5,
    "grpc_step_sleeping": 1.2, "grpc_step_sleeping_summed": 1.2,
}


def siblings(cpu):
    """Hardware threads of this CPU's core, itself among them."""
    with contextlib.suppress(OSError), open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", encoding="ascii") as file:
        text = file.read().strip()
        return {n for part in text.split(",") for n in range(int(part.split("-")[0]), int(part.split("-")[-1]) + 1)}
    return {cpu}


def two_cpus(allowed, siblings_of=siblings):
    """Two CPUs on two cores, where there are two cores."""
    first, *others = sorted(allowed)
    if not others:
        raise common.Unavailable("two CPUs are needed, and this process may use one")
    apart = [cpu for cpu in others if cpu not in siblings_of(first)]
    return first, (apart or others)[0]


def in_words(flags):
    text = " ".join(flags)
    return ", ".join(word for flag, word in WORDS.items() if flag in text) or "as it is"


class Program:
    """A program of bench/peers/transport with its flags; `said` keeps the lines that it prints."""

    def __init__(self, folder, name, mode, cpus, flags=()):
        self.command = [os.path.join(folder, name), *MODES[mode], "--cpus", f"{cpus[0]},{cpus[1]}", *flags]
        self.round_trips = mode.startswith("step")
        self.said = []

    def rate(self, seconds):
        command = self.command + ["--seconds", f"{seconds:.3f}"]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30 + 4 * seconds, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise common.Unavailable(str(error)) from None
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or ["no reason given"]
            raise common.Unavailable(f"{os.path.basename(command[0])} ended with {done.returncode}: {lines[-1]}")
        self.said.append(json.loads(done.stdout.splitlines()[-1]))
        return 1e9 / self.said[-1]["round_trip_p50_ns"] if self.round_trips else self.said[-1]["steps_per_s"]

    def median_of(self, key):
        values = [line[key] for line in self.said if key in line]
        return statistics.median(values) if values else None

    def close(self):
        pass


class Lane(Program):
    """Ours, with the setting that serves a mode best: all are tried in each turn, and the one whose turns before this had the
    best median counts. (Two virtual cores are near each other or far for seconds on end, and each likes another setting.)
    `history` keeps the rates of each mode and setting."""

    def __init__(self, folder, mode, cpus, history):
        super().__init__(folder, "lane", mode, cpus)
        self.tried = lambda flags: Program(folder, "lane", mode, cpus, flags)
        self.rates = history.setdefault(mode, [[] for _ in OURS])

    def rate(self, seconds):
        programs = [self.tried(flags) for flags in OURS]
        now = [program.rate(max(seconds / len(OURS), LEAST_TURN_S / 2)) for program in programs]
        known = [statistics.median(rates or [rate]) for rates, rate in zip(self.rates, now)]
        chosen = known.index(max(known))
        for rates, rate in zip(self.rates, now):
            rates.append(rate)
        self.command = programs[chosen].command
        self.said += programs[chosen].said
        return now[chosen]


def more(ours, theirs):
    """Keys of a result that only transports have."""
    keys = {
        prefix + key: side.median_of(key)
        for prefix, side in (("", ours), ("reference_", theirs))
        for key in ("round_trip_p50_ns", "round_trip_p99_ns", "cpu_s_per_million_steps")
    }
    return {**keys, "ours_setting": in_words(ours.command)}


def version(package):
    done = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], capture_output=True, text=True, check=False)
    return done.stdout.split("-")[0].split("+")[0]


def comparisons(folder, cpus):
    def opener(peer, mode):
        flags = {in_words(flags): flags for flags in PEERS[peer][3]}
        return lambda setting: Program(folder, peer, mode, cpus, flags[setting["with"]])

    history = {}
    for peer, (label, package, delivers, settings) in PEERS.items():
        reference = label + (f" {version(package)}" if package else "")
        for mode in MODES:
            yield common.Comparison(
                name=f"{peer}_{mode}",
                reference=reference,
                ours=Lane(folder, mode, cpus, history),
                open=opener(peer, mode),
                settings=[{"with": in_words(flags)} for flags in settings],
                delivers=delivers,
                ours_delivers="lanes in shared memory, read in place, to another process",
                target=TARGETS.get(f"{peer}_{mode}"),
                alike=f"28,224 B written and sent, 4 B back; sides on CPUs {cpus[0]} and {cpus[1]}",
                least_turn_s=LEAST_TURN_S,
                unit="round trips/s" if mode.startswith("step") else "steps/s",
                also=more,
            )


@contextlib.contextmanager
def broker(log):
    """iceoryx's broker, which has to run while its programs do; one that runs already serves as well."""
    with open(log, "w", encoding="utf-8") as file:
        try:
            process = subprocess.Popen(["iox-roudi"], stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        except OSError as error:
            common.say(f"  iceoryx's broker: {error}")
            yield
            return
        try:
            yield
        finally:
            process.terminate()
            process.wait()


def main():
    build = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else ""
    folder = os.path.join(build, PROGRAMS)
    here = os.path.dirname(os.path.abspath(__file__))
    if os.path.isdir(build):
        subprocess.run(["make", "-C", os.path.join(here, "transport"), f"BUILD={build}"], check=True)
    with contextlib.ExitStack() as stack:

        def make(_):
            cpus = two_cpus(os.sched_getaffinity(0))
            stack.enter_context(broker(os.path.join(folder, "iox-roudi.log")))
            yield from comparisons(folder, cpus)

        return common.run(make, __doc__, seconds=SECONDS, rounds=ROUNDS)


if __name__ == "__main__":
    sys.exit(main())
