"""The actor program for Atari games: python -m actorfarm.ale_actor --game Pong --up-fd N --down-fd N ...

Started by the supervisor with the descriptors of its lanes; steps one group of emulators while the others wait for their
actions. No model here, and ALE's emulator (GPL-2.0) lives in this process only.
"""

import argparse
import json
import signal
import sys

from . import _farm

try:
    from . import ale_game
except ModuleNotFoundError as missing:
    sys.exit(f"ale_actor: the Python package {missing.name} is missing: run `make deps`, which puts it into build/venv")

FIRST, LAST = _farm.FIRST, _farm.LAST


def spec(rom, options):
    """What the supervisor makes lanes from. frames_per_step: frames that one agent step counts for."""
    game = ale_game.Game(rom, 0, options)
    return {
        "obs": [{"name": "frame", "dtype": "u8", "dims": [84, 84]}],
        "actions": len(game.actions),
        "frames_per_step": options.frame_skip,
        "action_meanings": [action.name for action in game.actions],
    }


def check_spec(ring, game):
    found = ring.spec
    frames = [field["dims"] for field in found["obs"] if field["dtype"] == "u8"]
    if frames != [(84, 84)] or found["action"] != {"kind": "discrete", "sizes": [len(game.actions)], "dims": 1}:
        raise ValueError(f"these lanes were made for another environment: {found}")


class Group:
    """The games of one lane. Whether each has ended, and hence starts an episode next, is `ended`."""

    def __init__(self, ring, lane, rom, options, actor, seed):
        generation, lane_id = ring.generation(lane), actor * ring.lanes + lane
        seeds = [_farm.derive_seed(seed, lane_id, env, generation) & 0x7FFFFFFF for env in range(ring.width)]
        self.lane = lane
        self.games = [ale_game.Game(rom, s, options) for s in seeds]
        self.ended = [True] * ring.width

    def step(self, ring):
        """Writes and publishes the lane's next step."""
        lane, ended, commit = self.lane, self.ended, ring.commit
        actions = None if all(ended) else ring.actions(lane)
        for env, game in enumerate(self.games):
            if ended[env]:
                game.reset()
                ended[env] = False
                commit(lane, env, game.frame_a, game.frame_b, 0, FIRST)
            else:
                reward, flags = game.step(actions[env])
                if flags:
                    ended[env] = True
                    flags |= LAST
                commit(lane, env, game.frame_a, game.frame_b, reward, flags)
        ring.publish(lane)


def play(ring, groups):
    """Until the supervisor or a signal says stop."""
    lane = -1
    while (lane := ring.wait(lane)) >= 0:
        groups[lane].step(ring)


def run(arguments, rom, options):
    ring = _farm.attach(arguments.up_fd, arguments.down_fd, arguments.event_fd, arguments.spin_ns)
    signal.signal(signal.SIGTERM, lambda number, frame: ring.interrupt())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the supervisor ends its actors
    ring.take_over()  # first: the emulators take longer than the answer to what a dead predecessor left
    groups = [
        Group(ring, lane, rom, options, arguments.actor, arguments.seed) for lane in range(ring.lanes)
    ]
    check_spec(ring, groups[0].games[0])
    ring.atari(groups[0].games[0].height)
    play(ring, groups)


def parse_arguments():
    parser = argparse.ArgumentParser(prog="ale_actor", description="Plays an Atari game for actorfarm.")
    parser.add_argument("--game", help='"Pong", "MsPacman" or "ms_pacman"')
    parser.add_argument("--spec", action="store_true", help="print the environment's shape as one line of JSON")
    parser.add_argument("--list", action="store_true", help="print all games, one a line")
    parser.add_argument("--up-fd", type=int, help="descriptor of the segment that the actor writes")
    parser.add_argument("--down-fd", type=int, help="descriptor of the segment that it reads")
    parser.add_argument("--event-fd", type=int, default=-1, help="eventfd that wakes the learner")
    parser.add_argument("--actor", type=int, default=0, help="number of this actor")
    parser.add_argument("--seed", type=int, default=0, help="of the run")
    parser.add_argument("--spin-ns", type=int, default=0, help="how long to spin before sleeping")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="option of the environment")
    return parser, parser.parse_args()


def main():
    parser, arguments = parse_arguments()
    if arguments.list:
        print(*ale_game.games(), sep="\n")
        return
    if arguments.game is None or not (arguments.spec or (arguments.up_fd is not None and arguments.down_fd is not None)):
        parser.error("give --list, or --game with --spec, or --game with --up-fd and --down-fd")
    try:
        rom, options = ale_game.find_rom(arguments.game), ale_game.Options.parse(arguments.option)
    except (LookupError, ValueError) as wrong:
        print(f"ale_actor: {wrong.args[0]}", file=sys.stderr)
        sys.exit(2)
    if arguments.spec:
        print(json.dumps(spec(rom, options)))
        return
    try:
        run(arguments, rom, options)
    except (OSError, ValueError, MemoryError) as failed:
        sys.exit(f"ale_actor: {failed}")


if __name__ == "__main__":
    main()
