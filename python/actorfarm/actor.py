"""What the actor programs in Python share: their command line, and the life of an actor process on its lanes.

A program brings one object, the *environments*:

    label                      of its messages: "gym_actor"
    example                    a name for --help
    names()                    those that can be listed
    prepare(name, options, bad_values)
                               -> a *maker*; options is ["key=value", ...]. LookupError, ValueError: a sentence for the user.
                               bad_values: recipe key of that name, what becomes of numbers that make no sense
    maker.group(ring, lane, seeds)  -> a *group*: the environments of one lane. seeds: one a environment, 31 bits
    maker.spec()               what lanes are made from, as --spec prints it. Asked after the groups where there are any
    group.step(ring)           writes and publishes the lane's next step. BrokenContract ends the run, any other exception
                               the actor, after which another one takes its lanes
"""

import argparse
import json
import os
import signal
import sys
import traceback

from . import _farm

ENV_BROKEN = 3  # exit status FARM_ACTOR_ENV_BROKEN, src/actor/actor.h


class BrokenContract(Exception):
    """An environment answered what it must not: senseless numbers where those are not allowed, an observation that its own
    space does not have. A new actor would meet the same."""


def attach(arguments):
    """The actor's side of its lanes, taken over. What a dead predecessor left is answered while environments are made."""
    ring = _farm.attach(arguments.up_fd, arguments.down_fd, arguments.event_fd, arguments.spin_ns)
    signal.signal(signal.SIGTERM, lambda number, frame: ring.interrupt())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the supervisor ends its actors
    ring.take_over()
    return ring


def seeds(ring, lane, arguments):
    """One for each environment of the lane, new ones whenever an actor is replaced."""
    generation, lane_id = ring.generation(lane), arguments.actor * ring.lanes + lane
    return [_farm.derive_seed(arguments.seed, lane_id, env, generation) & 0x7FFFFFFF for env in range(ring.width)]


def check_spec(found, spec):
    """That the lanes were made for this environment."""
    wanted = [(field["name"], field["dtype"], tuple(field["dims"])) for field in spec["obs"]]
    there = [(field["name"], field["dtype"], field["dims"]) for field in found["obs"]]
    if wanted != there or found["action"] != spec["action"]:
        raise ValueError(f"these lanes were made for another environment: {found}")


def play(ring, groups):
    """Until the supervisor or a signal says stop."""
    lane = -1
    while (lane := ring.wait(lane)) >= 0:
        groups[lane].step(ring)


def run(arguments, maker):
    ring = attach(arguments)
    groups = [maker.group(ring, lane, seeds(ring, lane, arguments)) for lane in range(ring.lanes)]
    check_spec(ring.spec, maker.spec())
    play(ring, groups)


def parse_arguments(environments):
    parser = argparse.ArgumentParser(prog=environments.label, description="Plays environments for actorfarm.")
    parser.add_argument("--env", metavar="NAME", help=environments.example)
    parser.add_argument("--spec", action="store_true", help="print the environment's shape as one line of JSON")
    parser.add_argument("--list", action="store_true", help="print environments, one a line")
    parser.add_argument("--up-fd", type=int, help="descriptor of the segment that the actor writes")
    parser.add_argument("--down-fd", type=int, help="descriptor of the segment that it reads")
    parser.add_argument("--event-fd", type=int, default=-1, help="eventfd that wakes the learner")
    parser.add_argument("--actor", type=int, default=0, help="number of this actor")
    parser.add_argument("--seed", type=int, default=0, help="of the run")
    parser.add_argument("--spin-ns", type=int, default=0, help="how long to spin before sleeping")
    parser.add_argument("--bad-values", default="count", choices=("count", "fail", "reset"), help="as the recipe's key")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="option of the environment")
    arguments = parser.parse_args()
    lanes = arguments.up_fd is not None and arguments.down_fd is not None
    if not arguments.list and (arguments.env is None or not (arguments.spec or lanes)):
        parser.error("give --list, or --env with --spec, or --env with --up-fd and --down-fd")
    return arguments


def keep_stdout():
    """Our answer's way out. What packages print while they are imported or made goes to stderr instead."""
    sys.stdout.flush()
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answer


def reason(error):
    """The last line of the traceback, with the place that it names."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno}, {frames[-1].name})" if frames else ""
    return traceback.format_exception_only(error)[-1].strip().replace("\n", " ") + place


def main(environments):
    """The program. Exit status 2: the user asked for something that is not there; ENV_BROKEN; 1: any other failure."""
    arguments = parse_arguments(environments)
    with keep_stdout() as answer:
        if arguments.list:
            print(*environments.names(), sep="\n", file=answer)
            return
        try:
            maker = environments.prepare(arguments.env, arguments.option, arguments.bad_values)
            if arguments.spec:
                print(json.dumps(maker.spec(), allow_nan=False), file=answer)
                return
        except (LookupError, ValueError) as wrong:
            print(f"{environments.label}: {wrong.args[0] if wrong.args else repr(wrong)}", file=sys.stderr)
            sys.exit(2)
    try:
        run(arguments, maker)
    except BrokenContract as broken:
        print(f"{environments.label}: {arguments.env} {broken}", file=sys.stderr)
        sys.exit(ENV_BROKEN)
    except (OSError, MemoryError) as failed:
        sys.exit(f"{environments.label}: {failed}")
    except Exception as failed:
        sys.exit(f"{environments.label}: {arguments.env}: {reason(failed)}")
