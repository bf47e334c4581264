"""The protocol of the lane in Promela (lane.pml), searched whole by Spin.

What must hold is asserted in the model, over every store that reaches memory: no step is published twice, skipped, or
stored over one that training holds; each answer is that of its observation; nothing is answered twice; a new life
begins at FIRST and no other step has it. A state in which nothing can go on is an error too: a lost wake-up is one.

Each mutant breaks one rule and must be found. Each witness is an event (a sleeper woken, a torn slot taken over) that
must be able to happen, so that the model does not hold for want of anything happening. With FARM_MODEL=full (make
model) longer settings are searched, the other half of the mutants too, and those believed harmless are searched whole. The PSO settings let stores
pass one another, as no x86 does: the release stores alone must then be enough.
"""

import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
BUILD = os.path.join(os.environ.get("FARM_BUILD", os.path.join(SOURCE, "build")), "spin")
MODEL = os.path.join(HERE, "lane.pml")
FULL = os.environ.get("FARM_MODEL") == "full"

BUSY = {"STEPS": 3, "RING": 2}
ACTOR_DIES = {**BUSY, "A_DEATHS": 1}
LEARNER_DIES = {**BUSY, "L_DEATHS": 1}
BOTH_DIE = {**BUSY, "A_DEATHS": 1, "L_DEATHS": 1}
TWO_LANES = {"STEPS": 2, "RING": 2, "LANES": 2}
WINDOWS = {"STEPS": 3, "RING": 3, "WINDOW": 2}

SETTINGS = {
    "three steps": BUSY,
    "three steps, stores in any order": {**BUSY, "PSO": 1},
    "the actor dies": ACTOR_DIES,
    "the learner dies": LEARNER_DIES,
    "both die": BOTH_DIE,
    "both die, stores in any order": {**BOTH_DIE, "PSO": 1},
    "two lanes": TWO_LANES,
    "windows of two steps, the actor dies": {**WINDOWS, "A_DEATHS": 1},
    "windows of two steps, the learner dies": {**WINDOWS, "L_DEATHS": 1},
    "evaluation, sleeps that end by themselves, both die": {**BOTH_DIE, "EVALUATE": 1, "SPURIOUS": 1},
}
LONG_SETTINGS = {
    "five steps, a ring of three, both die": {"STEPS": 5, "RING": 3, "A_DEATHS": 1, "L_DEATHS": 1},
    "the actor dies three times": {**BUSY, "A_DEATHS": 3},
    "the learner dies three times": {**BUSY, "L_DEATHS": 3},
    "both die twice, stores in any order": {**BUSY, "A_DEATHS": 2, "L_DEATHS": 2, "PSO": 1},
    "two lanes and waiting for company": {**TWO_LANES, "PATIENCE": 1},
    "two lanes, the learner dies": {**TWO_LANES, "L_DEATHS": 1},
    "two lanes, the actor dies": {**TWO_LANES, "A_DEATHS": 1},
    "two lanes, evaluation, both die": {**TWO_LANES, "EVALUATE": 1, "A_DEATHS": 1, "L_DEATHS": 1},
    "windows of two steps, both die, sleeps that end by themselves": {**WINDOWS, "A_DEATHS": 1, "L_DEATHS": 1, "SPURIOUS": 2},
}

# Where a mutant shows: the first setting of these that its kind needs.
FOUND_IN = {
    **dict.fromkeys(["PRODUCED_RELAXED", "DOORBELL_RELAXED", "ACTED_RELAXED"], {**BUSY, "PSO": 1}),
    **dict.fromkeys(["TAKE_OVER_NO_BELL", "TAKE_OVER_NO_NOTIFY", "TAKE_OVER_NO_WAIT", "TAKE_OVER_FROM_ACTED",
                     "TAKE_OVER_CONSUMED_AS_PRODUCED", "TAKE_OVER_NOT_FIRST", "DEATH_BEFORE_DRAIN"], ACTOR_DIES),
    **dict.fromkeys(["RESUME_NO_HAND_ON", "ATTACH_ANSWERED_ZERO", "INFER_NO_NOTIFY", "WAKE_NOT_ATOMIC"], LEARNER_DIES),
    "NO_FENCE_LEARNER_NOTIFY_INFER": {**WINDOWS, "A_DEATHS": 1},
    "RESUME_NO_NOTIFY": {**WINDOWS, "L_DEATHS": 1},
    **dict.fromkeys(["TOOK_OVER_UNANSWERED", "TOOK_OVER_UNRUNG", "TOOK_OVER_TORN_SLOT"], ACTOR_DIES),
    **dict.fromkeys(["ANSWERED_AGAIN_UNPUBLISHED", "BOTH_DIED"], BOTH_DIE),
}


def names_under(headline):
    """Name and number of each #define between this comment of the model and the next comment."""
    with open(MODEL, encoding="utf-8") as file:
        section = file.read().split(headline, 1)[1].split("\n//", 1)[0]
    return {name: int(number) for name, number in re.findall(r"^#define ([A-Z_]+) (\d+)$", section, re.M)}


def search(settings, mutant=0):
    """Errors found (0 or 1, for it stops at one) and states; raises where the search was not a whole one."""
    environment = {**os.environ, "MUTANT": str(mutant), **{name: str(value) for name, value in settings.items()}}
    folder = os.path.join(BUILD, f"run_{mutant}_" + "_".join(f"{name}{value}" for name, value in settings.items()))
    os.makedirs(folder, exist_ok=True)  # a trail is written where it runs
    large = FULL and mutant == 0
    out = subprocess.run([os.path.join(BUILD, "pan"), "-m1000000", "-n", "-w26" if large else "-w21"], cwd=folder, env=environment,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False).stdout
    shutil.rmtree(folder)
    errors, states = re.search(r"errors: (\d+)", out), re.search(r"(\d+) states, stored", out)
    if not errors or not states or "Warning: Search not completed" in out and errors[1] == "0" or "too small" in out:
        raise AssertionError(f"no whole search of {settings}, mutant {mutant}:\n{out}")
    return int(errors[1]), int(states[1]), out


class Spin(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        os.makedirs(BUILD, exist_ok=True)
        subprocess.run(["spin", "-a", MODEL], cwd=BUILD, check=True)
        subprocess.run([os.environ.get("CC", "gcc"), "-O2", "-DSAFETY", "-DNOFAIR", "-w", "-o", "pan", "pan.c"], cwd=BUILD, check=True)

    def search_all(self, cases):
        """(name, errors, output, states) of each (name, settings, mutant), two at a time."""
        with concurrent.futures.ThreadPoolExecutor(1 if FULL else 2) as pool:  # the long ones need the memory
            for case, (errors, states, out) in zip(cases, pool.map(lambda case: search(*case[1:]), cases)):
                yield case[0], errors, states, f"{case[0]}:\n{out}"

    def test_the_protocol_holds_in_every_state(self):
        total, settings = 0, {**SETTINGS, **(LONG_SETTINGS if FULL else {})}
        for name, errors, states, out in self.search_all([(name, setting, 0) for name, setting in settings.items()]):
            self.assertEqual(errors, 0, out)
            total += states
            if FULL:
                print(f"{name}: {states} states", flush=True)
        print(f"covered: lane in Promela under Spin, x86-TSO and PSO: {len(settings)} settings, {total} states", flush=True)

    def test_every_mutant_is_caught(self):
        mutants = names_under("// ---- the mutants")
        self.assertEqual(len(mutants), 38)
        chosen = list(mutants.items())[:: 1 if FULL else 2]
        for _, errors, _, out in self.search_all([(name, FOUND_IN.get(name, BUSY), number) for name, number in chosen]):
            self.assertEqual(errors, 1, "not caught:\n" + out)
        print(f"covered: {len(chosen)} of {len(chosen)} mutants of the Promela model caught", flush=True)

    def test_what_matters_does_happen(self):
        witnesses = names_under("// events that")
        self.assertEqual(len(witnesses), 12)
        for name, _, _, out in self.search_all([(name, FOUND_IN.get(name, BUSY), number) for name, number in witnesses.items()]):
            self.assertIn(f"mutant!={witnesses[name]})", out)  # it is this event that stopped the search

    @unittest.skipUnless(FULL, "harmless mutants of the Promela model: make model")
    def test_the_harmless_mutants_are_harmless(self):
        harmless = names_under("// believed harmless")
        self.assertEqual(len(harmless), 6)
        settings = (BUSY, {**BOTH_DIE, "PSO": 1}, TWO_LANES)
        cases = [(name, setting, number) for name, number in harmless.items() for setting in settings]
        for name, errors, states, out in self.search_all(cases):
            self.assertEqual(errors, 0, out)
            print(f"{name}: harmless in {states} states", flush=True)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
