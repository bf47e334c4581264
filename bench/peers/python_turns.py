"""Turns of several loops in this process, for the comparisons of the Python package: steps/s and CPU time of a step.

CPU time is that of this process and all that it has started. Only one loop works at a time; the other ones wait for it to answer.
"""

import contextlib
import os
import statistics
import subprocess
import sys
import time

import common


def add_farm(build):
    """Makes the package of this build importable. Its actors run in the build's environment."""
    sys.path.insert(0, os.path.join(build, "python"))
    os.environ["FARM_PROGRAM"] = os.path.join(build, "farm")
    os.environ["FARM_PYTHON"] = os.path.join(build, "venv", "bin", "python")


def family():
    """This process and its descendants."""
    children = {}
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            with open(f"/proc/{int(name)}/stat", "rb") as file:
                children.setdefault(int(file.read().rsplit(b")", 1)[1].split()[1]), []).append(int(name))
    found, todo = [], [os.getpid()]
    while todo:
        found.append(todo.pop())
        todo += children.get(found[-1], [])
    return found


def cpu_seconds(pids, ignored=()):
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task") if pid not in ignored else ():
                with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/schedstat", "rb") as file:
                    total += int(file.read().split()[0])
    return total / 1e9


@contextlib.contextmanager
def busy_program(wanted):
    """One more program that computes all the time; its pid."""
    if not wanted:
        yield ()
        return
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield (process.pid,)
    finally:
        process.kill()
        process.wait()


def turn(loop, seconds, busy=False):
    """(steps/s, CPU seconds of a step)"""
    loop.rate(min(common.WARM_UP_S, seconds))
    with busy_program(busy) as ignored:
        pids, start = family(), time.perf_counter()
        before = cpu_seconds(pids, ignored)
        rate = loop.rate(seconds)
        wall = time.perf_counter() - start
        return rate, (cpu_seconds(pids, ignored) - before) / (rate * wall)


def take_turns(loops, rounds, seconds, busy=False):
    """{name: [(steps/s, CPU seconds of a step), ...]}; each round begins with another one."""
    names, taken = list(loops), {name: [] for name in loops}
    for first in range(rounds):
        for k in range(len(names)):
            name = names[(first + k) % len(names)]
            taken[name].append(turn(loops[name], seconds, busy))
    return taken


def result(name, unit, better, ours, theirs, reference, target, **more):
    value, reference_value = statistics.median(ours), statistics.median(theirs)
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    common.log(f"    {name}: {value:.4g} {unit}, {reference} {reference_value:.4g}: {value / reference_value:.2f} (rounds {min(ratios):.2f} to {max(ratios):.2f})")
    return {
        "name": name, "value": value, "unit": unit, "better": better, "spread": common.spread_of(ours), "reference": reference,
        "reference_value": reference_value, "reference_spread": common.spread_of(theirs), "ratio": value / reference_value,
        "target": target, "rounds": len(ours), "ratio_least": min(ratios), "ratio_most": max(ratios), **more,
    }  # fmt: skip


def results(name, taken, reference, wall, cpu, **more):
    """Two rows: steps/s, and CPU time of a step (a ratio below 1 is better). taken["ours"] against taken["theirs"]."""
    (rates, costs), (their_rates, their_costs) = (list(zip(*taken[side], strict=True)) for side in ("ours", "theirs"))
    return [
        result(name, "steps/s", "higher", rates, their_rates, reference, wall, **more),
        result(f"{name}_cpu", "CPU s/step", "lower", costs, their_costs, reference, cpu, **more),
    ]


def choose(open_loop, settings, seconds, rounds=2):
    """(the loop at its best setting, that setting, all rates): each is tried in turn, the better half again (`rounds`)."""
    tried, left, kept = {}, list(range(len(settings))), None  # kept: the best one's, which stays open
    for _ in range(rounds):
        for k in left:
            try:
                loop = open_loop(settings[k])
                loop.rate(min(common.WARM_UP_S, seconds))
                tried[k] = max(tried.get(k, 0.0), loop.rate(seconds))
            except Exception as error:  # pylint: disable=broad-except  # foreign code
                common.log(f"    {common.describe(settings[k])}: {type(error).__name__}: {error}")
                continue
            common.log(f"    {common.describe(settings[k])}: {tried[k]:.0f}")
            if kept and kept[0] != k and tried[kept[0]] > tried[k]:
                loop.close()
                continue
            if kept:
                kept[1].close()
            kept = k, loop
        left = sorted((k for k in left if k in tried), key=lambda k: -tried[k])[: max(2, len(settings) // 2)]
    if not kept:
        raise common.Unavailable("every setting was refused")
    rates = [{"setting": common.describe(settings[k]), "rate": rate} for k, rate in tried.items()]
    return kept[1], settings[kept[0]], rates


def write(path, build, found):
    common.write(path, {
        "schema_version": 1, "benchmark": "python", "commit": common.commit(build), "machine": common.machine(), "load": os.getloadavg()[0],
        "command": " ".join(os.path.basename(word) for word in sys.argv), "results": found,
    })  # fmt: skip


def run(options, build, parts):
    """The results of (name, function of a contextlib.ExitStack) that --only picks, as the document; the exit status."""
    found, status = [], 0
    for name, part in parts:
        if options.only not in name:
            continue
        common.log(f"  {name}")
        try:
            with contextlib.ExitStack() as stack:
                found += part(stack)
        except Exception as error:  # pylint: disable=broad-except  # the remaining ones run
            common.log(f"FAILED {name}: {type(error).__name__}: {error}")
            status = 1
    if found:
        write(options.json, build, found)
    return status
