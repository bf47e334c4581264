"""The common part of the actor programs in Python: command line, and the actor process from attaching to its end.

A program brings one object, the *environments*:

    label                      prefix of its messages: "gym_actor"
    example                    a name for --help
    names()                    the names that --list prints
    prepare(name, options, bad_values)
                               -> a *maker*; options is ["key=value", ...]. LookupError, ValueError: a message for the user.
                               bad_values: the recipe's key, which decides about invalid numbers
    maker.group(ring, lane, seeds)  -> a *group*: the environments of one lane. seeds: one per environment, 31 bits. Calls
                               check_spec before the first write to a lane
    maker.spec()               the spec that --spec prints
    maker.film = Film          before group(): the first environment of lane 0 writes its pictures to it (film.py)
    maker.opponent = open      before group(), if there is an opponent: open(rows) -> a Ring of as many lanes for the agents that it plays
    group.step(ring)           writes and publishes the lane's next step. BrokenContract ends the run; any other exception
                               ends the actor, and a new one takes its lanes
"""

import argparse
import atexit
import faulthandler
import json
import os
import signal
import sys
import threading
import traceback

from . import _farm, film

BrokenContract = _farm.BrokenContract
ENV_BROKEN = signal.SIGRTMAX  # of which the actor then dies, see src/supervisor/worker.h: no sys.exit() of an environment looks so

END_S = 3  # for exit handlers
CLOSE_S = 5  # for all environments of a process; less than the supervisor's grace
opened = []  # environments that have a close(): programs append what they make
place = 0  # this actor's number


def close_all(label, leave):
    """Calls close() of the environments, once each. Names one that raises; names one that hangs, and calls leave() after CLOSE_S."""
    def give_up():
        print(f"{label}: close() of {env} has not returned in {CLOSE_S} s; the process ends without it", file=sys.stderr, flush=True)
        leave()

    timer = threading.Timer(CLOSE_S, give_up)
    timer.daemon = True
    if opened:
        timer.start()
    while opened:
        env = opened.pop()
        try:
            env.close()
        except BaseException as failed:
            print(f"{label}: close() of {env}: {describe_error(failed)}", file=sys.stderr, flush=True)
    timer.cancel()


def attach(arguments):
    """Takes over the actor's lanes. The learner answers a dead predecessor's steps while the environments are made."""
    ring = _farm.attach(arguments.up_fd, arguments.down_fd, arguments.event_fd, arguments.spin_ns)
    _farm.catch_signals()  # the supervisor ends its actors
    ring.take_over()
    return ring


def seeds(ring, lane, arguments):
    """One per environment of the lane; a new actor gets new ones."""
    generation, lane_id = ring.generation(lane), arguments.actor * ring.lanes + lane
    return [_farm.derive_seed(arguments.seed, lane_id, env, generation) & 0x7FFFFFFF for env in range(ring.width)]


def check_spec(found, spec):
    """ValueError if the lanes have another shape than this environment."""
    def shapes(fields):
        return [(field["name"], field["dtype"], tuple(field["dims"]), field.get("choices", 0)) for field in fields]

    if shapes(spec["obs"]) != shapes(found["obs"]) or found["action"] != spec["action"]:
        raise ValueError(f"these lanes were made for another environment: {found}")


def each_made(ring, made):
    """A list of what the iterator makes. Each environment made is progress: no limit counts from the first one."""
    return [(one, ring.beat())[0] for one in made]


def play(ring, groups):
    """Steps until the supervisor or a signal stops the actor."""
    lane = -1
    while (lane := ring.wait(lane)) >= 0:
        groups[lane].step(ring)


def run(arguments, maker):
    """What ended it and the process's exit status or ENV_BROKEN; (None, 0) at an orderly end."""
    try:
        ring = attach(arguments)
        if arguments.video_fd >= 0:
            maker.film = film.Film(arguments.video_fd)
        if arguments.opponent_fd >= 0:
            maker.opponent = lambda rows: ring.open_policy(arguments.opponent_fd, arguments.actor, rows)
        groups = [maker.group(ring, lane, seeds(ring, lane, arguments)) for lane in range(ring.lanes)]
        if arguments.board_fd >= 0:
            ring.open_policy(arguments.board_fd, arguments.actor)
        play(ring, groups)
        return None, 0
    except BrokenContract as broken:
        return f"{arguments.env} {broken}", ENV_BROKEN
    except SystemExit as left:
        return f"{arguments.env} called sys.exit({left.code!r}){place_of(left)}", 1
    except (OSError, MemoryError) as failed:
        return f"{failed}", 1
    except Exception as failed:
        return f"{arguments.env}: {describe_error(failed)}", 1


def parse_arguments(environments):
    parser = argparse.ArgumentParser(prog=environments.label, description="Plays environments for actorfarm.")
    parser.add_argument("--env", metavar="NAME", help=environments.example)
    parser.add_argument("--spec", action="store_true", help="print the environment's shape as one line of JSON")
    parser.add_argument("--list", action="store_true", help="print environments, one per line")
    parser.add_argument("--up-fd", type=int, help="descriptor of the segment that the actor writes")
    parser.add_argument("--down-fd", type=int, help="descriptor of the segment that it reads")
    parser.add_argument("--event-fd", type=int, default=-1, help="eventfd that wakes the learner")
    parser.add_argument("--actor", type=int, default=0, help="number of this actor")
    parser.add_argument("--seed", type=int, default=0, help="seed of the run")
    parser.add_argument("--spin-ns", type=int, default=0, help="how long to spin before sleeping")
    parser.add_argument("--board-fd", type=int, default=-1, help="descriptor of the parameters: this actor answers its lanes")
    parser.add_argument("--opponent-fd", type=int, default=-1, help="descriptor of the parameters of a policy that plays some agents")
    parser.add_argument("--video-fd", type=int, default=-1, help="pipe of the first environment's film")
    parser.add_argument("--bad-values", default="count", choices=("count", "fail", "reset"), help="as the recipe's key")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="option of the environment")
    arguments = parser.parse_args()
    lanes = arguments.up_fd is not None and arguments.down_fd is not None
    if not arguments.list and (arguments.env is None or not (arguments.spec or lanes)):
        parser.error("give --list, or --env with --spec, or --env with --up-fd and --down-fd")
    return arguments


def keep_stdout():
    """A file for the program's output. Sends other output, which packages print when they are imported, to stderr."""
    sys.stdout.flush()
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return output


def file_of(frame):
    """Its path from the folder that Python imports from: "package/module.py"."""
    folders = [folder for folder in map(os.path.abspath, sys.path) if frame.filename.startswith(os.path.join(folder, ""))]
    return os.path.relpath(frame.filename, max(folders, key=len)) if folders else os.path.basename(frame.filename)


def frame_of(error, own=False):
    """The innermost frame of the environment's code, also of an exception that this one replaces; else the innermost, unless own."""
    libraries = {"actorfarm", "gymnasium", "numpy", "<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>", *sys.stdlib_module_names}
    frames, cause = (traceback.extract_tb(at.__traceback__) if at else [] for at in (error, error.__cause__))
    found = [frame for frame in [*frames, *cause] if file_of(frame).split(os.sep)[0].removesuffix(".py") not in libraries]
    return (found or ([] if own else frames) or [None])[-1]


def place_of(error, own=False):
    """File, line and function of frame_of."""
    frame = frame_of(error, own)
    return f" ({file_of(frame)}:{frame.lineno}, {frame.name})" if frame else ""


def describe_error(error):
    """The last line of the traceback with its place; of an exception without text, the line of code too."""
    text, frame = traceback.format_exception_only(error)[-1].strip().replace("\n", " "), frame_of(error)
    return text + (f": {frame.line}" if frame and not str(error) else "") + place_of(error)


def as_process(program, *arguments):
    """Runs program(*arguments) and ends the process as the interpreter would, exit handlers included, but waits for no thread:
    those of an environment may never end. Handlers that take longer than END_S are abandoned."""
    status = 0
    try:
        program(*arguments)
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else int(left.code is not None)
        if left.code is not None and not isinstance(left.code, int):
            print(left.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    late = threading.Timer(END_S, os._exit, [status])
    late.daemon = True
    late.start()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main(environments):
    """The program. Exit status 2: unknown environment or option; 1: any other failure. ENV_BROKEN kills it."""
    global place
    faulthandler.enable(2)  # to stderr: an emulator that crashes: the Python lines that called it
    arguments = parse_arguments(environments)
    place = arguments.actor
    said, number = None, 0
    with keep_stdout() as output:
        if arguments.list:
            print(*environments.names(), sep="\n", file=output)
            return
        try:
            maker = environments.prepare(arguments.env, arguments.option, arguments.bad_values)
            if arguments.spec:
                print(json.dumps(maker.spec(), allow_nan=False), file=output)
        except (LookupError, ValueError) as wrong:
            said, number = wrong.args[0] if wrong.args else repr(wrong), 2
        except SystemExit as left:
            said, number = f"{arguments.env} called sys.exit({left.code!r}){place_of(left)}", 2
    if not arguments.spec and not number:
        said, number = run(arguments, maker)
    if number:
        print(f"{environments.label}: {said}", file=sys.stderr, flush=True)

    def leave(end):
        if number == ENV_BROKEN:
            os.kill(os.getpid(), ENV_BROKEN)
        end(number)

    close_all(environments.label, lambda: leave(os._exit))
    leave(sys.exit)
