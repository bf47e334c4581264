"""One step from an actor to its learner and back: our lane against the transports of other systems.

# packages: g++ make pkg-config libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libzmq3-dev libiceoryx-posh-dev iceoryx

The work (bench/peers/transport/work.h): 28,224 B out, 4 B back, two processes on two CPUs. PEER_step: one step in flight; its rate
is one second / the median round trip. PEER_throughput: steps per second with 16 in flight. Both sides poll, or (_sleeping) sleep in
the transport's call. The learner's side ignores the payload, or (_summed) adds up every byte.
"""

import contextlib
import os
import statistics
import subprocess
import sys

import common

SECONDS, ROUNDS = 12.0, 15  # of a result; many turns, because a virtual machine may move its cores apart for seconds
LEAST_TURN_S = 0.25
PROGRAMS = os.path.join("peers", "debian", "transport")  # in the build folder

# Each side runs with the settings that serve it best: the CPUs of a library's own threads (the sides are pinned), stores past the
# caches (the writer need not fetch lines that the reader used last), and, in our lane, the steps of a ring.
THREADS = [["--free-threads"], []]
STORES = [["--stream"], []]
OURS = [["--slots", "4"], ["--slots", "64"], ["--slots", "64", "--stream"]]
WORDS = {
    "--free-threads": "library's threads anywhere", "--stream": "stores past the caches", "--slots 4": "rings of 4 steps",
    "--slots 64": "rings of 64 steps",
}

# name: (label, package, what it delivers, settings)
PEERS = {
    "grpc": ("gRPC, bidirectional stream on a Unix socket", "libgrpc++-dev", "protobuf messages, to another process", THREADS),
    "zeromq_ipc": ("ZeroMQ ipc", "libzmq3-dev", "messages, to another process", THREADS),
    "unix_socket": ("Unix stream socket", None, "bytes, copied twice by the kernel, to another process", [[]]),
    "iceoryx": (
        "iceoryx", "libiceoryx-posh-dev", "chunks of shared memory, read in place, to another process",
        [threads + stores for threads in THREADS for stores in STORES],
    ),
}
MODES = {  # suffix of the result's name: flags
    rate + sleep + read: in_flight + sleep_flag + read_flag
    for rate, in_flight in (("step", []), ("throughput", ["--in-flight", "16"]))
    for sleep, sleep_flag in (("", []), ("_sleeping", ["--sleep"]))
    for read, read_flag in (("", []), ("_summed", ["--sum"]))
}
TARGETS = {
    "grpc_step": 70, "grpc_throughput": 30, "grpc_step_summed": 15, "grpc_throughput_summed": 5,
    "grpc_step_sleeping": 1.2, "grpc_step_sleeping_summed": 1.2,
}


def siblings(cpu):
    """Hardware threads of this CPU's core, including itself."""
    with contextlib.suppress(OSError), open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", encoding="ascii") as file:
        text = file.read().strip()
        return {n for part in text.split(",") for n in range(int(part.split("-")[0]), int(part.split("-")[-1]) + 1)}
    return {cpu}


def choose_two_cpus():
    """Two CPUs, on different cores if possible."""
    first, *others = sorted(os.sched_getaffinity(0))
    if not others:
        raise common.Unavailable("two CPUs are needed; this process may use one")
    return first, ([cpu for cpu in others if cpu not in siblings(first)] or others)[0]


def in_words(flags):
    text = " ".join(flags)
    return ", ".join(word for flag, word in WORDS.items() if flag in text) or "as it is"


class Program(common.Program):
    """A program of bench/peers/transport with its flags."""

    def __init__(self, folder, name, mode, cpus, flags=()):
        super().__init__([os.path.join(folder, name), *MODES[mode], "--cpus", f"{cpus[0]},{cpus[1]}", *flags])
        self.round_trips = mode.startswith("step")

    def rate(self, seconds):
        document = self.run(seconds)
        return 1e9 / document["round_trip_p50_ns"] if self.round_trips else document["steps_per_s"]

    def close(self):
        pass


class Lane(Program):
    """Ours. Each turn tries all settings; the one with the best median in earlier turns counts. `history` keeps the rates of each
    mode and setting."""

    def __init__(self, folder, mode, cpus, history):
        super().__init__(folder, "lane", mode, cpus)
        self.programs = [Program(folder, "lane", mode, cpus, flags) for flags in OURS]
        self.rates = history.setdefault(mode, [[] for _ in OURS])

    def rate(self, seconds):
        now = [program.rate(max(seconds / len(OURS), LEAST_TURN_S / 2)) for program in self.programs]
        medians = [statistics.median(rates or [rate]) for rates, rate in zip(self.rates, now)]
        chosen = medians.index(max(medians))
        for rates, rate in zip(self.rates, now):
            rates.append(rate)
        self.command = self.programs[chosen].command
        self.documents.append(self.programs[chosen].documents[-1])
        return now[chosen]


def transport_keys(ours, theirs):
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
                also=transport_keys,
            )


@contextlib.contextmanager
def broker(log):
    """iceoryx's broker, which its programs need. A broker that runs already serves too."""
    with open(log, "w", encoding="utf-8") as file:
        try:
            process = subprocess.Popen(["iox-roudi"], stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        except OSError as error:
            common.log(f"  iceoryx's broker: {error}")
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
            cpus = choose_two_cpus()
            stack.enter_context(broker(os.path.join(folder, "iox-roudi.log")))
            yield from comparisons(folder, cpus)

        return common.run(make, __doc__, seconds=SECONDS, rounds=ROUNDS)


if __name__ == "__main__":
    sys.exit(main())
