"""The actor program for Atari games: python -m actorfarm.ale_actor --env Pong --up-fd N --down-fd N ...

Started by the supervisor with the descriptors of its lanes; steps one group of emulators while the others wait for their
actions. No model here, and ALE's emulator (GPL-2.0) lives in this process only. The games and their options: ale_game.py.
"""

import sys

from . import _farm, actor

try:
    import numpy as np

    from . import ale_game
except ModuleNotFoundError as missing:
    sys.exit(f"ale_actor: the Python package {missing.name} is missing: run `make deps`, which puts it into build/venv")

FIRST, LAST = _farm.FIRST, _farm.LAST


class Group:
    """The games of one lane. Whether each has ended, and hence starts an episode next, is `ended`."""

    def __init__(self, ring, lane, games):
        self.lane, self.games = lane, games
        self.ended = [True] * len(games)

    def step(self, ring):
        lane, ended, show = self.lane, self.ended, self.shower(ring)
        actions = None if all(ended) else ring.actions(lane)
        for env, game in enumerate(self.games):
            if ended[env]:
                game.reset()
                ended[env] = False
                show(lane, env, game.frame_a, game.frame_b, 0, FIRST)
            else:
                reward, flags = game.step(actions[env])
                if flags:
                    ended[env] = True
                    flags |= LAST
                show(lane, env, game.frame_a, game.frame_b, reward, flags)
        ring.publish(lane)

    def shower(self, ring):
        """What writes an environment's step. Here: the maximum of two palette frames, as 84x84 grey."""
        return ring.commit


class DirectGroup(Group):
    """Games that show the emulator's own screen or memory."""

    def __init__(self, ring, lane, games):
        super().__init__(ring, lane, games)
        self.obs, self.steps = np.asarray(ring.arrays(lane)[0][0]), ring.steps

    def shower(self, ring):
        into = self.obs[ring.next(self.lane) % self.steps]

        def show(lane, env, frame_a, frame_b, reward, flags):
            self.games[env].show(into[env])
            ring.set(lane, env, reward, flags)

        return show


class Maker:
    """Makes games of one ROM, with its options."""

    def __init__(self, rom, options):
        self.rom, self.options, self.sample = rom, options, None

    def group(self, ring, lane, seeds):
        games = [ale_game.Game(self.rom, seed, self.options) for seed in seeds]
        if self.sample is None:
            self.sample = games[0]
            actor.check_spec(ring.spec, self.spec())  # before the lane is written by anything but its spec
            if self.options.obs == "grey":
                ring.atari(self.sample.height)
        return (Group if self.options.obs == "grey" else DirectGroup)(ring, lane, games)

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
        """bad_values does not matter: rewards are whole numbers, observations bytes."""
        return Maker(ale_game.find_rom(name), ale_game.Options.parse(pairs))


def main():
    actor.main(Ale)


if __name__ == "__main__":
    main()
