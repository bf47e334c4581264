"""The chaos runner finds faults: one rule of the lane, actor, learner or supervisor is broken at a time, and farms run over it
until a check finds it (tests/support/mutants.py). The runner rarely finds a fault that needs a death at one of a few
places (a new learner that wakes no actor) or a load out of order; the model checker's mutants cover those."""

import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import mutants

SECONDS = 120
# ~: long lives, because no kill is needed and each would repair the fault. -: only actors are killed, because a new
# learner would repair the fault.
MUTANTS = r"""
* step published before it is written | src/actor/group.c | s/(const uint64_t n = farm_lane_actor_next\(lane\);)/$1 farm_store_release(&lane->up->produced, n + 1);/
new actor does not wait for the answer | src/actor/actor.c | s/(    if \(!status\) status = step_lanes\()/    if (!status) status = farm_group_step(actor.groups, actor.ring.lanes, err);\n    if (!status) farm_lane_actor_publish(actor.ring.lanes);\n$1/
local actor publishes before it answers | src/actor/actor.c | s/( *if \(lane->local\).*?)(farm_lane_actor_next\(lane\))(\);\n)( *farm_lane_actor_publish\(lane\);\n)/$4$1$2 - 1$3/s
local actor takes a slot that training holds | src/ring/lane.h | s/(bool farm_lane_actor_can_write\(struct farm_lane \*lane\) \{)/$1 if (lane->local) return true;/
local steps judged as central ones | src/ring/lane.h | s/return lane->local \? lane->steps : 1;/return 1;/
new actor overwrites the newest step | src/ring/lane.c | s/(produced_local = farm_load_acquire\(&lane->up->produced\));/$1; if (lane->produced_local) lane->produced_local--;/
- new actor does not ring | src/ring/lane.c | s/farm_store_release\(&lane->up_control->doorbell[^;]*;//
new actor goes on without FIRST | src/actor/group.c | s/first \? FARM_STEP_FIRST/first ? n ? 0 : FARM_STEP_FIRST/
seeds of a dead life again | src/actor/actor.c | s/const uint64_t generation = [^;]*;/const uint64_t generation = 0;/
~ bell before the step | src/ring/lane.h | s/(    farm_store_release\(&lane->up->produced, \+\+lane->produced_local\);\n)(.*\n)/$2$1/
slot overwritten that training holds | src/ring/lane.h | s/(bool farm_lane_actor_can_write\(struct farm_lane \*lane\) \{)/$1 return true;/
answer of another step | src/actor/group.c | s/farm_lane_action\(lane, n - 1, 0\)/farm_lane_action(lane, n, 0)/
* acted before the answer | src/learner/inference.c | s/(    const enum farm_status status =\s*parts->backend)/    for (uint32_t i = 0; i < count; i++) farm_lane_answer(inference->rows[i].lane, inference->rows[i].n);\n$1/
acted at the first part of a lane | src/learner/inference.c | s/if \(lane->env_done < lane->lane->width\) continue;(\s*if \(!parts->ops->stores_acted\) farm_lane_answer)/$1/
learner skips what was not answered | src/intake/lanes.c | s/lane->answered = farm_lane_acted\(lane->lane\);/lane->answered = farm_lane_produced(lane->lane);/
learner forgets what it had checked | src/intake/lanes.c | s/\(void\)farm_validator_step\(&lane->validator, lane->answered - back, UINT64_MAX\);/;/
learner does not look after its birth | src/ring/wait.c | s/doorbell\) - 1;/doorbell);/
window skipped after a restart | src/ring/window.c | s/(    cursor->held = cursor->next;)/    if (consumed) cursor->next += shape->stride;\n$1/
window given back twice after a restart | src/ring/window.c | s/(    cursor->held = cursor->next;)/    if (consumed) cursor->next -= shape->stride;\n$1/
window taken twice | src/ring/window.c | s/cursor->next \+= shape->stride;/cursor->next += start % 5 ? shape->stride : shape->stride * (start != 0);/
* given back before training | src/learner/trainer.c | s/(    enum farm_status status = begin_iteration\(trainer, trainer->slot\);)/    parts->source->ops->done(parts->source, it->windows, it->count, NULL);\n$1/
dropped while training holds older steps of the lane | src/replay/fifo.c | s/ && window->cursor->held == window->start//
* answered before the iteration is published | src/learner/inference.c | s/lane->ticket = (farm_trainer_push)/$1/
versions begin anew after a restart | src/learner/parts.c | s/(const uint64_t next = )farm_load_relaxed\(publishes\)/$1publishes ? 0 : 1/
version visible before it is written down | src/learner/trainer.c | s/( *if \(!status\) farm_store_release\(&parts->config->stats->publishes.*?\n)(.*?\n)/$2$1/
history given back | src/ring/window.c | s/return cursor->held > history \? [^;]*;/return history ? cursor->held : cursor->held;/
steps counted twice | src/intake/lanes.c | s/(farm_stats_add\(&stats->agent_steps, transitions)\)/$1 + (n % 64 == 63))/
- training wakes no actor | src/replay/source.c | s/farm_learner_notify\([^;]*;//
- inference wakes no actor | src/learner/inference.c | s/(farm_status answer_batch\(.*?)farm_learner_notify\([^;]*;/$1;/s
* actors wake no learner | src/actor/actor.c | s/(ready\(&actor->ring\)\) |->rings_late\) )farm_actor_notify\([^;]*;/$1(void)0;/g
* workers outlive the supervisor | src/supervisor/child.c | s/prctl\(PR_SET_PDEATHSIG, SIGKILL\) < 0/prctl(PR_SET_PDEATHSIG, 0) < 0/
supervisor leaves a descriptor | src/supervisor/supervisor.c | s/close\(worker->pidfd\);//
"""
FLAGS = "-std=c17 -D_GNU_SOURCE -O1 -g -Itests/chaos/hooked -Iinclude -Isrc -Ibuild/gen".split()
LIBRARIES = "-lhwloc -lnuma -ldnnl -lgomp -ljansson -lyaml -lisal -llz4 -lpthread -lm -ldl".split()


def look(name, program):
    others, rate = 0 if name.startswith("- ") else 100000, 4 if name.startswith("~ ") else 80
    kills = ("--actor-kills", 1000000, "--learner-kills", others, "--supervisor-kills", others, "--kills-per-s", rate)
    ran = mutants.run((program, *kills, "--standstill", 3, "--seconds", SECONDS, "--seed", 7))
    if ran.returncode == 0:
        return None
    after = re.findall(r"^chaos: (\d+ s: \d+ actors, \d+ learners)", ran.stdout, re.MULTILINE)
    why = re.search(r"^chaos: VIOLATION \(seed \d+\): (.*)", ran.stdout, re.MULTILINE)
    return f"after {after[-1] if after else '0 s'} killed: {why[1] if why else ran.stdout[-200:]}"


class ChaosMutants(unittest.TestCase):
    @unittest.skipUnless((mutants.BUILD / "chaos").exists(), "build/chaos is not built")
    def test_each_fault_is_found(self):
        rows = mutants.lines_of(MUTANTS)
        objects = [*mutants.BUILD.glob("obj/chaos/**/*.o"), mutants.BUILD / "obj/tests/chaos/main.o"]
        libraries = ["-Wl,--as-needed", mutants.BUILD / "libfarm.a", *LIBRARIES]
        found = mutants.search(self, rows, look, objects=objects, compiler=[*mutants.CC, *FLAGS], libraries=libraries)
        print(f"covered: {len(found)} of {len(rows)} faults put in are found by the chaos runner", flush=True)


if __name__ == "__main__":
    unittest.main()
