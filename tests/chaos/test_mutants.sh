#!/bin/bash
# Shows that the chaos runner finds faults: breaks one rule of the lane, actor, learner or supervisor at a time in a copy
# and runs farms over it until a check finds it. A mutant that is not found, or whose text is no longer in the source,
# fails the test. `make test` runs those with a star, which are quick; `make chaos-mutants` all; `test_mutants.sh WORDS`
# those whose names contain the words. The runner rarely finds a fault that needs a death at one of a few places (a new
# learner that wakes no actor) or a load out of order; the model checker's mutants cover those.
set -eu
source=${FARM_SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}
build=${FARM_BUILD:-$source/build}
chosen=${1:-'* '}
seconds=120
[ "$chosen" != --all ] || chosen=
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
[ -x "$build/chaos" ] || { echo "build/chaos is not built"; exit 77; }
flags=(-std=c17 -D_GNU_SOURCE -O1 -g -Itests/chaos/hooked -Iinclude -Isrc "-I$build/gen")
libs=(-Wl,--as-needed "$build/libfarm.a" -lhwloc -lnuma -ldnnl -lgomp -ljansson -lyaml -lisal -lpthread -lm -ldl)

# ~: long lives, because no kill is needed and each would repair the fault. -: only actors are killed, because a new
# learner would repair the fault.
# name | file | what is replaced (a Perl expression over the whole file)
mutants='
* step published before it is written | src/actor/group.c | s/(const uint64_t n = farm_lane_actor_next\(lane\);)/$1 farm_store_release(&lane->up->produced, n + 1);/
new actor does not wait for the answer | src/actor/actor.c | s/(    if \(ready\) status = step_lanes\()/    if (ready) status = farm_group_step(actor.groups, actor.ring.lanes, err);\n    if (!status) farm_lane_actor_publish(actor.ring.lanes);\n$1/
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
* acted before the answer | src/learner/inference.c | s/(    const enum farm_status status = parts->ops->infer)/    for (uint32_t i = 0; i < count; i++) farm_lane_answer(inference->rows[i].lane, inference->rows[i].n);\n$1/
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
versions begin anew after a restart | src/learner/learner.c | s/(const uint64_t next = )farm_load_relaxed\(publishes\)/$1publishes ? 0 : 1/
version visible before it is written down | src/learner/trainer.c | s/( *if \(!status\) farm_store_release\(&parts->config->stats->publishes.*?\n)(.*?\n)/$2$1/
history given back | src/ring/window.c | s/return cursor->held > history \? [^;]*;/return history ? cursor->held : cursor->held;/
steps counted twice | src/intake/lanes.c | s/(farm_stats_add\(&stats->agent_steps, transitions)\)/$1 + (n % 64 == 63))/
- training wakes no actor | src/replay/source.c | s/farm_learner_notify\([^;]*;//
- inference wakes no actor | src/learner/inference.c | s/(farm_status answer_batch\(.*?)farm_learner_notify\([^;]*;/$1;/s
* actors wake no learner | src/actor/actor.c | s/(ready\(&actor->ring\)\) |->rings_late\) )farm_actor_notify\([^;]*;/$1(void)0;/g
* workers outlive the supervisor | src/supervisor/child.c | s/prctl\(PR_SET_PDEATHSIG, SIGKILL\) < 0/prctl(PR_SET_PDEATHSIG, 0) < 0/
supervisor leaves a descriptor | src/supervisor/supervisor.c | s/close\(worker->pidfd\);//
'

# The objects that depend on the file, compiled in the copy.
compile() {
    local file=$1 unit object
    case $file in
    *.h) grep -lE "\"(ring|intake|learner|actor|replay)/" src/ring/*.c src/actor/*.c src/intake/*.c src/learner/*.c src/learner/cpu/*.c src/replay/*.c tests/chaos/*.c | grep -v /test_ ;;
    *) echo "$file" ;;
    esac | while read -r unit; do
        object=$scratch/objects/${unit%.c}.o
        mkdir -p "$(dirname "$object")"
        echo "$unit $object"
    done | xargs -P2 -L1 bash -c '"${@:1:$#-2}" -c "${@: -2:1}" -o "${@: -1}"' compile "${CC:-gcc}" "${flags[@]}"
}

link() {
    local objects=() object unit
    while read -r object; do
        unit=${object#"$build"/obj/}
        unit=${unit#chaos/}
        [ -f "$scratch/objects/$unit" ] || objects+=("$object")
    done < <(find "$build/obj/chaos" -name '*.o'; echo "$build/obj/tests/chaos/main.o")
    mapfile -t -O "${#objects[@]}" objects < <(find "$scratch/objects" -name '*.o')
    "${CC:-gcc}" "${objects[@]}" "${libs[@]}" -o "$scratch/chaos"
}

. "$source/tests/support/mutants.sh"

look_for() { # name, file, expression
    local name=$1 file=$2 expression=$3 rate others words after
    rate=80 others=100000
    [ "$name" = "${name#\~ }" ] || rate=4
    [ "$name" = "${name#- }" ] || others=0
    name=${name#[*~-] }
    rm -rf "$scratch/tree" "$scratch/objects"
    mkdir "$scratch/tree" "$scratch/objects"
    cd "$source" && cp -r include src tests/chaos --parents "$scratch/tree" && cd "$scratch/tree"
    perl -0pi -e "$expression" "$file"
    if cmp -s "$file" "$source/$file"; then
        echo "$name: $file does not hold the text to break any more"
        missed+=("$name")
        return
    fi
    compile "$file"
    link
    if words=$("$scratch/chaos" --actor-kills 1000000 --learner-kills $others --supervisor-kills $others --kills-per-s $rate --standstill 3 \
        --seconds "$seconds" --seed 7 2>&1); then
        missed+=("$name")
        echo "$name: NOT FOUND in $seconds s"
    else
        found=$((found + 1))
        after=$(sed -n 's/^chaos: \([0-9]*\) s: \([0-9]*\) actors, \([0-9]*\) learners.*/\1 s, \2 actors, \3 learners killed/p' <<<"$words" | tail -n 1)
        echo "$name: found after $after: $(sed -n 's/^chaos: VIOLATION (seed [0-9]*): //p' <<<"$words" | head -n 1)"
    fi
}
each_mutant look_for
mutants_end 'faults put in' 'by the chaos runner'
