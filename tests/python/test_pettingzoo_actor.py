"""PettingZoo's environments in lanes, in this process, against plain loops; agents that leave; broken contracts. A farm's as ParallelEnv."""

import unittest

import actorfarm
import mpe2.simple_spread_v3
import numpy as np
from actorfarm import pettingzoo_actor
from actorfarm.actor import BrokenContract
from gymnasium import spaces
from pettingzoo import ParallelEnv, test

import lanes
from lanes import FIRST, GAME_END, LAST, TERMINATED, TRUNCATED

PROBE, NAMES, ENDS = "test_pettingzoo_actor:Probe", ["a", "b", "c"], {"a": 8, "b": 3, "c": 5}


class Probe(ParallelEnv):
    """Agent b terminates at step 3, c is truncated at 5, a ends at 8. Observations count steps; masks lie in infos. A fault shows at steps 2 and 4."""

    metadata, possible_agents, box, choices = {}, NAMES, spaces.Box(-1, 9, (2,), np.float64), spaces.Discrete(3)

    def __init__(self, fault=None):
        self.fault, self.action_space = fault, lambda agent: self.choices
        self.observation_space = lambda agent: self.choices if fault == "spaces" and agent == "c" else self.box

    def _seen(self):
        seen = {agent: np.array([self.steps, ord(agent)], np.float64) for agent in self.agents}
        return seen, {agent: {"action_mask": np.array([1, self.steps % 2, 1], np.int8)} for agent in self.agents}

    def reset(self, seed=None, options=None):
        self.steps, self.agents = 0, {"late": NAMES[:2], "empty": [], "unknown": [*NAMES, "d"]}.get(self.fault, NAMES)[:]
        return self._seen()

    def step(self, actions):
        assert list(actions) == self.agents and self.agents, actions
        self.steps, before = self.steps + 1, self.agents
        fault, (seen, infos), rewards = self.fault if self.steps in (2, 4) else "", self._seen(), {agent: actions[agent] + 0.5 for agent in before}
        terminated, truncated = ({agent: agent in kind and self.steps == ENDS[agent] for agent in before} for kind in ("ab", "c"))
        self.agents = {"vanishes": ["a"], "late": NAMES, "back": NAMES}.get(fault, [agent for agent in before if self.steps < ENDS[agent]])[:]
        seen |= {"c": np.zeros(4)} if fault == "shape" else {}
        rewards.pop("b" if fault == "reward" else None, None)
        return (seen, rewards, terminated, truncated, infos)[: 4 if fault == "four" else 5]


def play(name, width, *options, ring=None):
    return lanes.Played(pettingzoo_actor.PettingZoo.prepare(name, options, "count"), width, range(100, 100 + width), ring)


def plain(env, seed, actions):
    """The steps of one environment in a plain loop, a row an agent: [(reward, flags, observation or None, mask or None), ...]."""
    live = []
    for action in actions:
        seen, *_, infos = result = env.step({agent: one for agent, one in zip(env.possible_agents, action) if agent in live}) if live else env.reset(seed=seed)
        ends = [TERMINATED * result[2].get(agent, 0) or TRUNCATED * result[3].get(agent, 0) if live else 0 for agent in env.possible_agents]
        yield [(result[1][agent] if agent in live else 0, (end and end | LAST | GAME_END) if agent in live else FIRST, seen.get(agent), infos.get(agent, {}).get("action_mask"))
               for agent, end in zip(env.possible_agents, ends)]
        live, seed = env.agents[:], None


class PettingZoo(unittest.TestCase):
    def test_two_environments_are_those_of_plain_loops(self):
        for name, make, choices in ((PROBE, Probe, 3), ("mpe2:simple_spread_v3", mpe2.simple_spread_v3.parallel_env, 5)):
            lane, actions = play(name, 6), np.random.default_rng(1).integers(choices, size=(61, 6)).astype(np.int32)
            expected = [list(plain(make(), 100 + i, actions[:, i : i + 3])) for i in (0, 3)]
            for n in range(60):
                obs, *given = lane.step()
                for row in range(6):
                    reward, flags, *seen = expected[row // 3][n][row % 3]
                    self.assertEqual([one[row] for one in given], [np.float32(reward), flags], f"step {n}, row {row}")
                    for found, part in zip(obs[::-1], seen):
                        np.testing.assert_array_equal(found[row], found[row] * 0 + (found.dtype == np.uint8) if part is None else part.astype(found.dtype))
                lane.answer(actions[n + 1])

    def test_same_step_resets_begin_the_next_episode_when_the_last_agent_ends(self):
        lane = play(PROBE, 3, ring={"same_step": True})
        seen = [(obs[-1][:, 0].tolist(), (flags & (FIRST | LAST)).tolist()) for obs, _, flags in (lane.after() if n else lane.step() for n in range(9))]
        self.assertEqual([seen[n] for n in (2, 3, 5, 8)], [([2, 2, 2], [0] * 3), ([3, 0, 3], [0, 3, 0]), ([5, 0, 0], [0, 1, 3]), ([0, 0, 0], [3, 1, 1])])

    def test_a_broken_contract_is_named(self):
        for fault, said in (
            ("reward", r"rewards of \['a', 'c'\], without agent 'b': lane 0, number 0$"),
            ("shape", r"shape \(4,\) instead of \(2,\): lane 0, number 0, agent 'c'$"),
            ("four", "a result that is not dicts of observations, rewards, terminations, truncations, infos"),
            ("empty", r"agents \[\] instead of some, which are possible"),
            ("unknown", r"agents \['a', 'b', 'c', 'd'\] instead of"),
            ("late", r"agents \['a', 'b', 'c'\] instead of \['a', 'b'\]"),
            ("back", r"agents \['a', 'b', 'c'\] instead of \['a', 'c'\]"),
            ("vanishes", r"agents \['a'\] instead of \['a', 'b', 'c'\]"),
            ("spaces", r"agents 'a' and 'c' have different spaces, \(Box\(.*Discrete\(3\).*--wrap supersuit"),
        ):
            with self.subTest(fault=fault), self.assertRaisesRegex((BrokenContract, ValueError), said):
                lane = play(PROBE, 3, f"fault={fault}")
                while lane.step():
                    lane.answer()

    def test_a_misspelt_name_is_answered_with_the_nearest_one(self):
        for name in ("mpe2:simple_spred_v3", "simple_spread_v3"):
            with self.assertRaisesRegex(ValueError, r'no module .*; did you mean "pettingzoo/mpe2:simple_spread_v3"\?$'):
                play(name, 3)

    def test_pettingzoos_own_tests_pass(self):
        for name in ("pettingzoo/mpe2:simple_spread_v3", "native/pursuit"):
            envs = [actorfarm.pettingzoo(name), actorfarm.pettingzoo(name)]
            test.parallel_api_test(envs[0], 100)
            test.parallel_seed_test(envs.pop, 100)  # closes both


if __name__ == "__main__":
    unittest.main()
