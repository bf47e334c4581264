"""src/ring and src/board under the model checker (explore.h): the real code passes, and every mutant of it fails.

A mutant is a copy of src/ring or src/board (or of the model) with one change. It must make a scenario fail. The test also fails if the
text to change is missing, so the list follows the code. With FARM_MODEL=full (make model) the extensive scenarios, the
other mutants and the harmless ones run too.
"""

import os
import pathlib
import platform
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import mutants

BUILD = mutants.BUILD / "model"
FULL = os.environ.get("FARM_MODEL") == "full"
COMPILER = [*mutants.CC, *"-std=c17 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -Wno-unused -MMD -Iinclude".split()]
MODEL = "-Itests/model/shadow -Itests/model -Isrc".split()
WRAP = "-Wl,--wrap=syscall,--wrap=write,--wrap=preadv2,--wrap=ppoll,--wrap=calloc,--wrap=free"
OWN = ["tests/model/machine.c", "tests/model/explore.c"]
ROOMS = {  # what each model compiles beside its headers
    "ring": [*OWN, "tests/model/lane_model.c", "src/ring/lane.c", "src/ring/wait.c", "src/ring/window.c"],
    "board": [*OWN, "tests/model/board_model.c"],
}

# name, file, old text, new text, and the scenario that fails; without it the short ones run until one does
MUTANTS = [
    ("actor sleeps without its fence", "wait.c", "farm_fence_full(); // `asleep` before the counters", "//"),
    ("learner wakes without its fence", "wait.c", "farm_fence_full(); // the answers before", "//"),
    ("actor wakes without its fence", "wait.c", "farm_fence_full(); // the doorbell before", "//", "two lanes"),
    ("learner sleeps without its fence", "wait.c", "farm_fence_full(); // `asleep` before the doorbells", "//"),
    ("actor looks before it announces its sleep", "wait.c",
     "        farm_actor_announce(ring, true);\n        bool go = actor_look(ring, lane, ready);\n",
     "        bool go = actor_look(ring, lane, ready);\n        farm_actor_announce(ring, true);\n"),
    ("learner looks before it announces its sleep", "wait.c",
     "        farm_doorbells_announce(bells, true);\n        bool rung = farm_doorbells_look(bells);\n",
     "        bool rung = farm_doorbells_look(bells);\n        farm_doorbells_announce(bells, true);\n"),
    ("wake word is not counted", "wait.c", "farm_add32_release(wake, 1);", "(void)0;"),
    ("wake word counted by a load and a store", "wait.c", "farm_add32_release(wake, 1);",
     "farm_store32_release(wake, farm_load32_relaxed(wake) + 1);", "training waits for a batch"),
    ("a dead actor's counters are read in the wrong order", "lane.c",
     "consumed = farm_lane_consumed(lane),\n                   acted = farm_lane_acted(lane);",
     "acted = farm_lane_acted(lane), consumed = farm_lane_consumed(lane);", "busy, a liar killed"),
    ("an invalid counter becomes `acted`", "lane.c", "produced, acted + room);", "produced, acted);"),
    ("counters that grow meanwhile are compared unsigned", "lane.c", "(int64_t)(produced - farm_lane_consumed(lane)) <= lane->steps",
     "produced - farm_lane_consumed(lane) <= lane->steps", "busy, the supervisor looks"),
    ("wake word read after the look", "wait.c", "futex_sleep(&ring->down_control->wake, seen,",
     "futex_sleep(&ring->down_control->wake, farm_load32_acquire(&ring->down_control->wake),"),
    ("no actor is woken", "wait.c", "syscall(SYS_futex, wake, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);", "(void)wake;"),
    ("the eventfd is not written", "wait.c", "const ssize_t ignored = write(eventfd, &one, sizeof one);",
     "const ssize_t ignored = (ssize_t)one;"),
    ("waiting consumes the bell", "wait.c", "if (farm_load_acquire(&bells->rings[i]->up_control->doorbell) != bells->seen[i]) "
     "return true;", "{ uint64_t now = farm_load_acquire(&bells->rings[i]->up_control->doorbell); "
     "if (now != bells->seen[i]) { bells->seen[i] = now; return true; } }", "two lanes"),
    ("a restarted learner ignores old bells", "wait.c", "up_control->doorbell) - 1;", "up_control->doorbell);"),
    ("the bell is polled relaxed", "wait.c", "uint64_t now = farm_load_acquire(&bells->rings[i]->up_control->doorbell);",
     "uint64_t now = farm_load_relaxed(&bells->rings[i]->up_control->doorbell);"),
    ("a new actor does not ring again", "lane.c", "farm_store_release(&lane->up_control->doorbell,", "if (0) farm_store_release("
     "&lane->up_control->doorbell,"),
    ("a new actor starts from step 0", "lane.c", "lane->produced_local = farm_load_acquire(&lane->up->produced);",
     "lane->produced_local = 0;", "busy, a liar killed"),
    ("produced is stored relaxed", "lane.h", "farm_store_release(&lane->up->produced,", "farm_store_relaxed(&lane->up->produced,"),
    ("the bell rings relaxed", "lane.h", "farm_store_release(&lane->up_control->doorbell,",
     "farm_store_relaxed(&lane->up_control->doorbell,"),
    ("the bell rings before produced", "lane.h",
     "    farm_store_release(&lane->up->produced, ++lane->produced_local);\n    farm_store_release(&lane->up_control->doorbell, "
     "farm_load_relaxed(&lane->up_control->doorbell) + 1);\n",
     "    farm_store_release(&lane->up_control->doorbell, farm_load_relaxed(&lane->up_control->doorbell) + 1);\n"
     "    farm_store_release(&lane->up->produced, ++lane->produced_local);\n"),
    ("produced is read relaxed", "lane.h", "return farm_load_acquire(&lane->up->produced);",
     "return farm_load_relaxed(&lane->up->produced);"),
    ("acted is stored relaxed", "lane.h", "farm_store_release(&lane->down->acted, n + 1);",
     "farm_store_relaxed(&lane->down->acted, n + 1);"),
    ("acted skips one", "lane.h", "farm_store_release(&lane->down->acted, n + 1);",
     "farm_store_release(&lane->down->acted, n + 2);"),
    ("acted is read relaxed by the actor", "lane.h", "return farm_load_acquire(lane->local ?", "return farm_load_relaxed(lane->local ?"),
    ("granted is read relaxed by the actor", "lane.h", "return farm_load_acquire(lane->local ?", "return farm_load_relaxed(lane->local ?",
     "local, busy, held"),
    ("granted is stored relaxed", "lane.h", "farm_store_release(&lane->down->granted, n);", "farm_store_relaxed(&lane->down->granted, n);",
     "local, busy, held"),
    ("a grant has the window's last step", "lane_model.c", "cursor->next + set->window.length - 1 :", "cursor->next + set->window.length :",
     "local, busy, held"),
    ("a local actor answers before there is room", "lane_model.c", "        wait_actor(a, &l, true);\n",
     "        answer_own(a, 0);\n        wait_actor(a, &l, true);\n", "local, busy"),
    ("the learner's grant wakes no actor", "lane_model.c", "FOREVER);\n    notify_actor(&state->learner[a]);\n}", "FOREVER);\n}",
     "local, held"),
    ("a local actor's counter is checked as a central one's", "lane.h", "return lane->local ? lane->steps : 1;", "return 1;",
     "local, busy, a liar killed"),
    ("the actor does not wait for its last answer", "lane.h", "&lane->down->acted) >= produced;", "&lane->down->acted) + 1 >= produced;"),
    ("consumed is stored relaxed", "lane.h", "farm_store_release(&lane->down->consumed, n);",
     "farm_store_relaxed(&lane->down->consumed, n);"),
    ("consumed is read relaxed by the actor", "lane.h", "lane->consumed_seen = farm_load_acquire(&lane->down->consumed);",
     "lane->consumed_seen = farm_load_relaxed(&lane->down->consumed);"),
    ("one slot too many", "lane.h", "return lane->produced_local - lane->consumed_seen < lane->steps;\n}",
     "return lane->produced_local - lane->consumed_seen <= lane->steps;\n}"),
    ("windows before their last answer", "window.c", "if (steps < cursor->next + shape->length) return 0;\n    return (steps - "
     "cursor->next - shape->length) / shape->stride + 1;", "if (steps + 1 < cursor->next + shape->length) return 0;\n    return "
     "(steps + 1 - cursor->next - shape->length) / shape->stride + 1;"),
    ("windows are released too early", "window.c", "cursor->held = start + shape->stride;", "cursor->held = start + 2 * shape->stride;"),
    ("the wake word counts after the futex call", "wait.c",
     "    farm_add32_release(wake, 1);\n    syscall(SYS_futex, wake, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);\n",
     "    syscall(SYS_futex, wake, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);\n    farm_add32_release(wake, 1);\n"),
    ("the eventfd is emptied before the sleep", "wait.c", "    if (ppoll(&waiter, 1, &timeout, NULL) != 1) return;\n",
     "    farm_bell_empty(bells->eventfd);\n    if (ppoll(&waiter, 1, &timeout, NULL) != 1) return;\n"),
    ("a new actor starts at the last answer", "lane.c", "lane->produced_local = farm_load_acquire(&lane->up->produced);",
     "lane->produced_local = farm_load_acquire(&lane->down->acted);"),
    ("a new actor takes every slot as free", "lane.c", "lane->consumed_seen = farm_load_acquire(&lane->down->consumed);",
     "lane->consumed_seen = lane->produced_local;", "busy, a liar killed"),
    # Rules that the loops around the lane keep, in their short form in lane_model.c.
    ("a step is published before it is written", "lane_model.c", "    write_slowly(obs_variable(a, l, n), observation);\n",
     "    farm_lane_actor_publish(lane), lane->produced_local--;\n    write_slowly(obs_variable(a, l, n), observation);\n"),
    ("an answer is published before it is written", "lane_model.c", "    answer_step(a, l, n);\n    farm_lane_answer(lane, n);\n",
     "    farm_lane_answer(lane, n);\n    answer_step(a, l, n);\n"),
    ("a window is released before it is read", "lane_model.c", "        read_window(a, l, start);\n",
     "        farm_lane_release(&state->learner[a].lanes[l], start + shape->stride);\n        read_window(a, l, start);\n"),
    ("a replayed window is not pinned", "lane_model.c", "++*pins;", "if (*pins) ++*pins;", "replay, busy"),
    ("a replayed window is released before it is read", "lane_model.c",
     "    read_window(0, 0, start);\n    model_lock(lock);\n    --*pins;\n",
     "    model_lock(lock), --*pins, evict(lane), model_unlock(lock);\n    read_window(0, 0, start);\n    model_lock(lock);\n", "replay, busy"),
    ("eviction passes pinned windows", "window.c", " && !pins[oldest.held / shape->stride % slots]", "", "replay, busy"),
    ("eviction forgets the history", "window.c", "farm_window_needs(shape, &oldest) + steps < end", "oldest.held + steps < end", "replay, busy, history"),
    ("leaves outlive their steps", "lane_model.c",
     "    for (uint64_t start = before; start < to; start += shape->stride) model_write(leaf_variable(start), 0);\n    state->replay.first = to;\n"
     "    if (to > before) release(lane, &state->replay.cursor, to - shape->stride);\n",
     "    state->replay.first = to;\n    if (to > before) release(lane, &state->replay.cursor, to - shape->stride);\n"
     "    for (uint64_t start = before; start < to; start += shape->stride) model_write(leaf_variable(start), 0);\n", "replay, bare, learner killed"),
    ("bells count as heard after the lanes were read", "lane_model.c", "        if (!served && left) wait_learner(&bells);\n",
     "        farm_doorbells_poll(&bells, rung);\n        if (!served && left) wait_learner(&bells);\n"),
    ("a bell counts as a step", "lane_model.c", "return ahead && produced - farm_lane_consumed(lane) <= lane->steps;", "return true;"),
    ("a new actor wakes no learner", "lane_model.c", "    notify_learner(view);\n    bool all", "    bool all"),
    ("a new actor does not wait for the dead one's answer", "lane_model.c", "            wait_actor(a, &l, false);\n",
     "            if (!model_life()) wait_actor(a, &l, false);\n"),
    ("a new learner wakes no actor", "lane_model.c",
     "    for (uint32_t a = 0; a < set->actors; a++) notify_actor(&state->learner[a]);\n    while (left) {\n", "    while (left) {\n", "learner killed"),
    ("a new learner forgets the complete windows", "lane_model.c",
     "hand_on(a, l, answered[a][l], &cursors[a][l], &windows);\n    for", "(void)0;\n    for"),
    ("a new learner answers from step 0", "lane_model.c", "answered[a][l] = farm_lane_acted(&rings[a]->lanes[l]);", "answered[a][l] = 0;",
     "learner killed"),
    ("training wakes no actor", "lane_model.c", "    if (farm_lane_produced(lane) - before >= lane->steps) notify_actor(&state->learner[0]);\n", "",
     "training, two steps"),
    ("inference wakes no actor", "lane_model.c", "    if (!set->local) notify_actor(&state->learner[a]);\n    hand_on", "    hand_on", "training waits for a batch"),
    ("an actor wakes no learner", "lane_model.c", "    if (!set->late) notify_learner(&state->actor[a]);\n", ""),
    ("an actor restarts before the dead one's stores are visible", "machine.c",
     ".now = known, .acquirable = known.view, .released = known.view};", ".now.clock = known.clock};"),
]

BOARD_MUTANTS = [
    ("a reader announces without its fence", "board.h", "farm_fence_full();                                    // F1", "//"),
    ("the writer looks without its fence", "board.h", "farm_fence_full(); // F2", "//"),
    ("a copying reader looks again without its fence", "board.h", "farm_fence_full(); // F3", "//", "a reader copies"),
    ("the writer overtakes a copy without its fence", "board.h", "farm_fence_full(); // F2", "//", "a reader copies"),
    ("a copying reader does not look again", "board.h", "return farm_load_relaxed(&board->head->newest) == word;", "return true;"),
    ("a reader does not look again", "board.h", "        word = farm_load_acquire(reader->newest);\n", ""),
    ("a stopped reader is cleared", "board_model.c", "clears_a_stopped_reader = false", "clears_a_stopped_reader = true"),
    ("a reader pins before it is watched", "board_model.c", "before_it_is_watched = false", "before_it_is_watched = true"),
    ("a reader announces relaxed", "board.h", "farm_store_release(reader->using, 1 +", "farm_store_relaxed(reader->using, 1 +"),
    ("a reader ends relaxed", "board.h", "farm_store_release(reader->using, 0)", "farm_store_relaxed(reader->using, 0)"),
    ("the newest is stored relaxed", "board.h", "farm_store_release(&board->head->newest,", "farm_store_relaxed(&board->head->newest,"),
    ("the newest is read relaxed", "board.h", "        word = farm_load_acquire(reader->newest);",
     "        word = farm_load_relaxed(reader->newest);"),
    ("the newest is written again", "board.h", "newest ? 1ull << (newest & 0x3f) : 0;", "0 * newest;"),
    ("the writer ignores readers", "board.h", "used |= (uint64_t)(at < board->buffers)", "used |= 0 * (uint64_t)(at < board->buffers)"),
]

# Harmless mutants (make model searches them); docs/MEMORY_MODEL.md has the reasons.
HARMLESS = [
    ("the wake word is stored relaxed (the kernel's lock orders it)", "wait.c", "farm_add32_release(wake,", "farm_add32_relaxed(wake,"),
    ("the sleeper's look at the bells is relaxed (poll looks again)", "wait.c",
     "if (farm_load_acquire(&bells->rings[i]->up_control->doorbell) != bells->seen[i]) return true;",
     "if (farm_load_relaxed(&bells->rings[i]->up_control->doorbell) != bells->seen[i]) return true;"),
    ("a new actor leaves `asleep` of the dead one (it costs a wake-up)", "lane.c", "farm_store_relaxed(&lane->up_control->asleep, 0);", ""),
    ("a new learner leaves `asleep` of the dead one (it costs a wake-up)", "wait.c",
     "    farm_doorbells_announce(bells, false); // the dead learner may have slept\n", ""),
]


def compiled(unit, *flags):
    path = BUILD / f"{pathlib.Path(unit).stem}.o"
    mutants.made([*COMPILER, *flags, "-c", unit, "-o", path], mutants.SOURCE)
    return path


def replace_once(text, old, new, *_):
    if text.count(old) != 1:
        raise AssertionError(f"the file contains {text.count(old)} times: {old}")
    return text.replace(old, new)


@unittest.skipUnless(platform.machine() == "x86_64", "the model checker switches stacks on x86-64 only")
class LaneModel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        BUILD.mkdir(parents=True, exist_ok=True)
        cls.objects = {unit: compiled(unit, *MODEL) for unit in sorted({unit for units in ROOMS.values() for unit in units})}
        cls.libraries = [compiled("src/base/status.c", "-Isrc"), WRAP]

    def runs(self, name, objects, *words):
        """The last line that the program of these objects prints, which must succeed."""
        mutants.made([*mutants.CC, *objects, *self.libraries, "-o", BUILD / name], mutants.SOURCE)
        result = mutants.run((BUILD / name, *words))
        if FULL:
            print(result.stdout, flush=True)
        self.assertEqual(result.returncode, 0, result.stdout)
        return result.stdout.strip().splitlines()[-1]

    def search(self, room, table, look):
        """look(result of the program over the mutant's scenario)."""
        scenarios = {name: rest for name, _, _, _, *rest in table}
        rows = [(name, next(path for path in (f"tests/model/{file}", f"src/{room}/{file}") if (mutants.SOURCE / path).exists()), *how)
                for name, file, *how in table]  # fmt: skip
        build = {"objects": [self.objects[unit] for unit in ROOMS[room]], "compiler": [*COMPILER, *MODEL], "libraries": self.libraries}
        return mutants.search(self, rows, lambda name, program: look(mutants.run((program, *scenarios[name]))), 2, replace_once, **build)

    def test_the_checkers_memory_is_rc11(self):
        objects = [*(self.objects[unit] for unit in OWN), compiled("tests/model/litmus.c", *MODEL)]
        print("covered: " + self.runs("litmus", objects), flush=True)

    def test_the_rooms_hold_in_every_interleaving(self):
        for room, units in ROOMS.items():
            last = self.runs(f"{room}_model", [self.objects[unit] for unit in units], *(["all"] if FULL else []))
            print(f"covered: {room}, real code under RC11: {last}", flush=True)

    def test_every_mutant_is_caught(self):
        def reason(result):
            found = re.search(r"^(.*): FAILED: (.*)$", result.stdout, re.M)
            return f"{found[2]} ({found[1]})" if found and result.returncode == 1 else None

        ring = MUTANTS if FULL else MUTANTS[::4]
        caught = {**self.search("ring", ring, reason), **self.search("board", BOARD_MUTANTS, reason)}
        count = len(ring) + len(BOARD_MUTANTS)
        print(f"covered: {len(caught)} of {count} mutants of src/ring and src/board caught by the model", flush=True)

    @unittest.skipUnless(FULL, "harmless mutants take long: make model")
    def test_the_harmless_mutants_are_harmless(self):
        self.search("ring", HARMLESS, lambda result: "no scenario fails" if result.returncode == 0 else None)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
