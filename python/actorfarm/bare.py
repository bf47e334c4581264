"""The bare loops of `farm fps` for Python's environments: python -m actorfarm.bare --env ale/Pong --width 8 --command-fd N ...

Steps the environments of a lane with random actions in the fastest loop that we can write, without the farm and without
unneeded rendering, resizing or copies. Writes 24 bytes of zeros when the environments exist. Then reads 8 bytes (f64 seconds),
runs for that time and writes 24 bytes: u64 transitions, u64 nanoseconds, u64 nanoseconds of CPU time; and so on until the pipe
closes. tools/fps/bare.c starts it and is the other end. With --probe-ms N it runs for a moment and then N ms, and prints the
nanoseconds of CPU time of a transition, and of making one environment of a pool (else 0).
"""

import argparse
import importlib
import os
import struct
import sys
import time

from . import actor

ACTIONS = 4096  # drawn in advance, used in turn


class Atari:
    """`frame_skip` frames per step, no screen. Games start with no-ops and FIRE, and lost lives end episodes, as in
    ale_game.py, including the frames that do not count as steps."""

    def __init__(self, name, width, seed, pairs):
        import numpy as np

        from . import ale_game

        ale_py = ale_game.ale_py
        self.options = options = ale_game.Options.parse(pairs)
        self._rom = ale_py.roms.get_rom_path(ale_game.find_rom(name))
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        random = np.random.default_rng(seed)
        self._games = [self._make(ale_py, seed + i) for i in range(width)]
        ale = self._games[0]
        actions = ale.getLegalActionSet() if options.full_action_space else ale.getMinimalActionSet()
        codes = [action.value for action in actions]
        self._actions = [[codes[i] for i in random.integers(len(codes), size=ACTIONS)] for _ in range(width)]
        self._noops = [int(i) for i in random.integers(max(options.noop_max, 1), size=ACTIONS)]
        self._fire = ale_game.FIRE if options.fire_reset and ale_game.FIRE in codes else None
        self._resets = self._turn = 0
        self._lives = [0] * width
        self._left = [0] * width  # frames
        for i in range(width):
            self._start(i)

    def _make(self, ale_py, seed):
        ale = ale_py.ALEInterface()
        ale.setFloat("repeat_action_probability", self.options.repeat_action_probability)
        ale.setInt("random_seed", seed)
        ale.loadROM(self._rom)
        if self.options.mode >= 0:
            ale.setMode(self.options.mode)
        if self.options.difficulty >= 0:
            ale.setDifficulty(self.options.difficulty)
        return ale

    def _start(self, i):
        ale = self._games[i]
        ale.reset_game()
        noops = self._noops[self._resets % ACTIONS]
        self._resets += 1
        if self._fire is not None:
            ale.act(self._fire)
            noops -= 1
        for _ in range(noops):
            ale.act(0)
        self._lives[i], self._left[i] = ale.lives(), self.options.max_frames

    def _continue_game(self, i):
        """After a lost life: one step, which is not a transition."""
        ale, code = self._games[i], self._fire or 0
        for _ in range(self.options.frame_skip):
            ale.act(code)
        self._lives[i] = ale.lives()

    def steps(self, end_ns):
        """Plays until end_ns; returns the transitions."""
        skip, episodic, now = self.options.frame_skip, self.options.episodic_life, time.monotonic_ns
        lives_before, left, games, count = self._lives, self._left, list(enumerate(self._games)), 0
        plain = skip == 4
        while now() < end_ns:
            turn = self._turn = (self._turn + 1) % ACTIONS
            for i, ale in games:
                act, code = ale.act, self._actions[i][turn]
                if plain:
                    act(code), act(code), act(code), act(code)
                else:
                    for _ in range(skip):
                        act(code)
                count += 1
                left[i] -= skip
                lives = ale.lives()
                if ale.game_over() or left[i] <= 0:
                    self._start(i)
                elif lives < lives_before[i] and episodic:
                    self._continue_game(i)
                else:
                    lives_before[i] = lives
        return count


class Singles:
    """Single environments of Gymnasium, in turn."""

    def __init__(self, maker, width, seed):
        self._envs = [maker.single() for _ in range(width // maker.agents)]
        self._turn, space = 0, maker.spaces[1]
        space.seed(seed)
        self._actions = [space.sample() for _ in range(ACTIONS)]
        for i, env in enumerate(self._envs):
            env.reset(seed=seed + i)

    def steps(self, end_ns):
        envs, actions, turn, now, count = self._envs, self._actions, self._turn, time.monotonic_ns, 0
        while now() < end_ns:
            for env in envs:
                turn = (turn + 1) % ACTIONS
                _, _, terminated, truncated, _ = env.step(actions[turn])
                count += 1
                if terminated or truncated:
                    env.reset()
        self._turn = turn
        return count


class Parallel(Singles):
    def steps(self, end_ns):
        count = 0
        while time.monotonic_ns() < end_ns:
            for env in self._envs:
                self._turn, count = (self._turn + 1) % (ACTIONS - 64), count + len(env.agents)
                env.step(dict(zip(env.agents, self._actions[self._turn : self._turn + 64])))
                env.agents or env.reset()
        return count


class Vector:
    """A vector environment of Gymnasium. Its resets take a step, which is not a transition."""

    def __init__(self, maker, width, seed):
        cpu = time.process_time_ns()
        self._env, self._turn = maker.vector(width), 0
        self.make_ns = (time.process_time_ns() - cpu) // width
        self._env.action_space.seed(seed)
        self._actions = [self._env.action_space.sample() for _ in range(ACTIONS // 16)]
        self._env.reset(seed=seed)

    def steps(self, end_ns):
        env, actions, turn, now, count, width = self._env, self._actions, self._turn, time.monotonic_ns, 0, self._env.num_envs
        while now() < end_ns:
            turn = (turn + 1) % len(actions)
            _, _, terminated, truncated, _ = env.step(actions[turn])
            count += width - int((terminated | truncated).sum())  # each end costs a reset, one step later
        self._turn = turn
        return count


def make(name, width, seed, pairs):
    family, _, rest = name.partition("/")
    if family == "ale":
        return Atari(rest, width, seed, pairs)
    program = importlib.import_module(f"actorfarm.{family}_actor")
    maker = getattr(program, {"envpool": "EnvPool", "pettingzoo": "PettingZoo", "gym": "Gym"}[family]).prepare(rest, pairs, "count")
    return (Parallel if family == "pettingzoo" else Vector if maker.plays_as_vector(width) else Singles)(maker, width, seed)


def serve(commands, results, loop):
    result = (0, 0, 0)
    while True:
        os.write(results, struct.pack("=QQQ", *result))
        command = os.read(commands, 8)
        if len(command) < 8:
            return
        start, cpu = time.monotonic_ns(), time.process_time_ns()
        steps = loop.steps(start + int(struct.unpack("=d", command)[0] * 1e9))
        result = steps, time.monotonic_ns() - start, time.process_time_ns() - cpu


def probe(ms, loop):
    """CPU time: other programs on the machine must not make the environment look expensive."""
    loop.steps(time.monotonic_ns() + ms * 1_000_000 // 4)  # caches and clocks
    cpu = time.process_time_ns()
    steps = loop.steps(time.monotonic_ns() + ms * 1_000_000)
    return (time.process_time_ns() - cpu) / max(steps, 1)


def main():
    parser = argparse.ArgumentParser(prog="bare", description="Steps environments without the farm, for farm fps.")
    parser.add_argument("--env", required=True, metavar="NAME", help="ale/Pong, gym/CartPole-v1")
    parser.add_argument("--width", type=int, required=True, help="environments")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--command-fd", type=int)
    parser.add_argument("--answer-fd", type=int)
    parser.add_argument("--probe-ms", type=int, help="measure a step once, instead of --command-fd and --answer-fd")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="option of the environment")
    arguments = parser.parse_args()
    if not arguments.probe_ms and None in (arguments.command_fd, arguments.answer_fd):
        parser.error("give --probe-ms, or --command-fd and --answer-fd")
    with actor.keep_stdout() as output:
        try:
            loop = make(arguments.env, arguments.width, arguments.seed & 0x7FFFFFFF, arguments.option)
        except (LookupError, ValueError) as wrong:
            sys.exit(f"bare: {wrong.args[0] if wrong.args else repr(wrong)}")
        if arguments.probe_ms:
            print(probe(arguments.probe_ms, loop), getattr(loop, "make_ns", 0), file=output)
        else:
            serve(arguments.command_fd, arguments.answer_fd, loop)
    actor.close_all("bare", lambda: os._exit(0))


if __name__ == "__main__":
    actor.as_process(main)
