"""The actor program for Atari games: python -m actorfarm.ale_actor --env Pong --up-fd N --down-fd N ...

The supervisor starts it with the descriptors of its lanes. It steps one group of emulators while the others wait for actions.
Only this process loads ALE's emulator (GPL-2.0). ale_game.py has the games and their options.
"""

import functools
import sys

from . import _farm, actor

try:
    import numpy as np

    from . import ale_game
except ModuleNotFoundError as missing:
    sys.exit(f"ale_actor: the Python package {missing.name} is missing in {sys.prefix}")

FIRST, LAST, GAME_END = _farm.FIRST, _farm.LAST, _farm.GAME_END


class Group:
    """The games of one lane, which make(seed, options) makes. A game with `ended` starts an episode with its next step. film: of the
    first game, or None."""

    def __init__(self, ring, lane, games, make, film):
        self.lane, self.games, self.make, self.film = lane, games, make, film
        self.ended, self.actions, self.same_step = [True] * len(games), np.asarray(ring.arrays(lane)[3]), ring.same_step
        self.resets = ring.numbers is not None and ring.resets

    def restart(self, ring, env, seed, numbers):
        """The next step begins a new game: of another emulator for a seed or changed options, which the next seed follows if none is given."""
        game = self.games[env]
        game.continues = False
        self.ended[env] = True
        try:
            options = game.options.change(numbers)
            if seed is not None or options != game.options:
                seed = _farm.derive_seed(game.seed, 0, 0, 1) if seed is None else seed
                self.games[env] = self.make(seed & 0x7FFFFFFF, options)
                ring.beat()
        except ValueError as wrong:
            raise actor.BrokenContract(f"cannot be reset with {numbers}: {wrong}") from wrong

    def step(self, ring):
        for reset in self.resets(self.lane) if self.resets else ():
            self.restart(ring, *reset)
        lane, ended, write = self.lane, self.ended, self.make_writer(ring)
        actions = None if all(ended) else self.actions[(ring.next(lane) - 1) % ring.steps].tolist()
        for env, game in enumerate(self.games):
            if ended[env]:
                game.reset()
                ended[env] = False
                write(lane, env, game.frame_a, game.frame_b, 0, FIRST)
            else:
                reward, flags = game.step(actions[env])
                if flags:
                    ended[env] = True
                    if self.film and env == 0 and flags & GAME_END:
                        self.film.end_game()
                    flags |= LAST
                write(lane, env, game.frame_a, game.frame_b, reward, flags)
                if flags and self.same_step:
                    game.reset()
                    ended[env] = False
                    write(lane, env, game.frame_a, game.frame_b, reward, flags | FIRST)
        ring.publish(lane)

    def make_writer(self, ring):
        """The function that writes an environment's step; here the maximum of two palette frames, as 84x84 grey."""
        return ring.commit


class DirectGroup(Group):
    """Games observed by the emulator's own screen or memory."""

    def __init__(self, ring, lane, *games):
        super().__init__(ring, lane, *games)
        self.obs, self.steps = np.asarray(ring.arrays(lane)[0][0]), ring.steps

    def make_writer(self, ring):
        into = self.obs[ring.next(self.lane) % self.steps]

        def write(lane, env, frame_a, frame_b, reward, flags):
            self.games[env].write_observation(into[env])
            ring.set(lane, env, reward, flags)

        return write


class Maker:
    """Makes games of one ROM, with its options."""

    def __init__(self, rom, options):
        self.rom, self.options, self.sample, self.film = rom, options, None, None

    def group(self, ring, lane, seeds):
        film, self.film = self.film, None
        unknown = [name for name in ring.numbers or () if name not in self.options.numbers()]
        if unknown:
            raise actor.BrokenContract(f'has no number "{unknown[0]}" that a reset can change; it has {", ".join(self.options.numbers())}')
        made = (ale_game.Game(self.rom, seed, self.options, film if env == 0 else None) for env, seed in enumerate(seeds))
        games = actor.each_made(ring, made)
        if self.sample is None:
            self.sample = games[0]
            actor.check_spec(ring.spec, self.spec())  # before the first write to the lane
            if self.options.obs == "grey":
                ring.atari(self.sample.height)
        return (Group if self.options.obs == "grey" else DirectGroup)(ring, lane, games, functools.partial(ale_game.Game, self.rom), film)

    def spec(self):
        game = self.sample or ale_game.Game(self.rom, 0, self.options)
        name, dtype, dims = game.field
        return {
            "obs": [{"name": name, "dtype": dtype, "dims": list(dims)}],
            "action": {"kind": "discrete", "dims": 1, "sizes": [len(game.actions)]},
            "frames_per_step": self.options.frame_skip,
            "action_meanings": [action.name for action in game.actions],
        }


class Ale:
    """For actor.main."""

    label, example = "ale_actor", '"Pong", "MsPacman" or "ms_pacman"'

    @staticmethod
    def names():
        return ale_game.games()

    @staticmethod
    def prepare(name, pairs, bad_values):
        """Ignores bad_values: rewards are whole numbers, observations bytes."""
        return Maker(ale_game.find_rom(name), ale_game.Options.parse(pairs))


def main():
    actor.main(Ale)


if __name__ == "__main__":
    actor.as_process(main)
