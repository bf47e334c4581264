"""Lanes of EnvPool's environments beside plain loops of EnvPool: the same seed, width and actions."""

import numpy as np
from actorfarm import envpool_actor

import lanes
from lanes import FIRST, GAME_END, LAST, TERMINATED, TRUNCATED


def lane(name, width=4, seed=7, ring=None, **options):
    pairs = [f"{key}={value}" for key, value in options.items()]
    return lanes.Played(envpool_actor.EnvPool.prepare(name, pairs, "count"), width, [seed] * width, ring)


def plain(name, width, seed, actions, **options):
    """(observation, rewards, flags) of each step: reset() and step() of EnvPool's interface of Gymnasium."""
    pool = envpool_actor.Library().registration.make_gymnasium(name, num_envs=width, num_threads=1, seed=seed, **options)
    observation, info = pool.reset()
    ended, rewards, flags = np.zeros(width, bool), np.zeros(width, np.float32), np.full(width, FIRST)
    while True:
        yield observation, rewards, flags, info
        began = ended
        observation, rewards, terminated, truncated, info = pool.step(next(actions))
        ended = terminated | truncated
        flags = np.where(truncated, LAST | TRUNCATED | GAME_END, np.where(terminated, LAST | TERMINATED | GAME_END, 0))
        flags, rewards = np.where(began, FIRST, flags), np.where(began, 0, rewards)


def leaves(observation, path=()):
    """{name with dots: array}, sorted as gymnasium.spaces.Dict sorts."""
    if not isinstance(observation, dict):
        return {".".join(path) or "obs": observation}
    return {name: leaf for key in observation for name, leaf in leaves(observation[key], (*path, key)).items()}


def compare(case, name, steps=2000, width=4, lives=False, **options):
    """Fails if a step differs; returns the flags that have occurred. lives: the option episodic_life."""
    rng, made = np.random.default_rng(3), lane(name, width, **options)
    names = [field["name"] for field in made.maker.spec()["obs"]]
    given = {"use_combined_action": True} if "use_combined_action" in made.maker._options else {}
    answers = []
    loop = plain(name, width, 7, (made.maker.actions.decode(answer) for answer in answers), **given, **options)
    seen = 0
    for n, (observation, rewards, flags, info) in zip(range(steps // width), loop):
        fields, our_rewards, our_flags = made.step()
        if lives:
            flags = np.where(info["terminated"] | (flags & TRUNCATED > 0), flags, flags & ~GAME_END)
        case.assertEqual(our_flags.tolist(), flags.tolist(), f"{name}: flags of step {n}")
        case.assertEqual(our_rewards.tolist(), rewards.astype(np.float32).tolist(), f"{name}: rewards of step {n}")
        expected = leaves(observation) | {"action_mask": info["legal_action_mask"]} if "legal_action_mask" in info else leaves(observation)
        if len(names) < len(expected):
            expected = {"obs": np.concatenate([np.reshape(expected[key], (width, -1)) for key in sorted(expected)], 1)}
        case.assertEqual(set(names), set(expected))
        for field, key in zip(fields, names):
            case.assertEqual(field.tobytes(), np.asarray(expected[key]).astype(field.dtype).tobytes(), f"{name}: {key} of step {n}")
        answers.append(made.draw_actions(rng))
        made.answer(answers[-1])
        seen |= int(np.bitwise_or.reduce(flags))
    made.group._env.close()
    return seen
