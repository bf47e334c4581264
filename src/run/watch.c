// See watch.h.
#include "run/watch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/format.h"
#include "shm/limits.h"

enum { GROWN_TIMES = 2, NAMED_MAX = 4, MEMORY_READS = 64 };
enum { CORRUPT_LOOKS = 128 }; // places at a tick
enum { STALE_S = 30, STALE_VERSIONS = 16 };
static const uint64_t STOP_LOOK_NS = 500000000, STOP_REPORT_NS = 1000000000;

enum farm_status farm_run_watch_make(struct farm_run_watch *watch, struct farm_error *err) {
    const struct farm_run_plan *plan = watch->workers->plan;
    const double report_s = plan->recipe.hang_seconds, kill_s = plan->recipe.hang_kill;
    watch->watchdog = farm_watchdog_make(kill_s > 0 && (report_s <= 0 || kill_s < report_s) ? kill_s : report_s);
    watch->actors = calloc(plan->places, sizeof *watch->actors);
    watch->memory = calloc(plan->places, sizeof *watch->memory);
    return watch->actors && watch->memory ? FARM_OK
                                          : farm_fail_errno(err, FARM_E_LIMIT, "no memory for %u actors", plan->places);
}

void farm_run_watch_free(struct farm_run_watch *watch) {
    free(watch->actors);
    free(watch->memory);
}

void farm_run_watch_start(struct farm_run_watch *watch, size_t worker) {
    watch->workers->worker[worker].stop = (struct farm_run_stop){0};
    if (worker >= watch->workers->plan->places) return;
    watch->actors[worker] = (struct farm_watch){0};
    watch->memory[worker] = (struct farm_run_memory){0};
}

// ---- hung and stopped actors ----

// "lane 1", or "one of lanes 0 1" if the lane is not known.
static void format_lanes(const struct farm_watch *watch, uint32_t lanes, char *text, size_t bytes) {
    const bool one = (watch->lanes & (watch->lanes - 1)) == 0;
    size_t used = (size_t)snprintf(text, bytes, one ? "lane" : "one of lanes");
    for (uint32_t l = 0; l < lanes && used < bytes; l++)
        if (watch->lanes >> l & 1) used += (size_t)snprintf(text + used, bytes - used, " %u", l);
}

static void report_waiting(const struct farm_run_watch *watch) {
    const struct farm_run_workers *workers = watch->workers;
    const struct farm_run_plan *plan = workers->plan;
    struct farm_error why;
    for (uint32_t k = 0; k < plan->shards && farm_run_learns(plan) && !plan->play.games && !plan->passes.sync; k++) {
        uint32_t well = 0;
        for (uint32_t a = 0; a < plan->places; a++)
            well +=
                workers->actors[a].attached && workers->ring_shard[a] == k && watch->actors[a].state == FARM_WATCH_WELL;
        if (!farm_run_update_fits(plan, well, k, &why)) continue;
        farm_run_warn(workers->caller, "training waits until the actor goes on or is killed: %s", why.message);
        return;
    }
}

// What an actor that does not go on means for the others.
static const char *describe_others(const struct farm_run_watch *watch, uint32_t a) {
    const struct farm_run_workers *workers = watch->workers;
    for (uint32_t i = 0; i < workers->plan->places; i++)
        if (i != a && workers->actors[i].attached && watch->actors[i].state == FARM_WATCH_WELL)
            return "the others go on either way";
    return "no other actor goes on: until then the run makes no progress";
}

static void report_hung(const struct farm_run_watch *watch, uint32_t a, pid_t pid) {
    const struct farm_run_plan *plan = watch->workers->plan;
    const struct farm_watch *actor = &watch->actors[a];
    const double kill_s = plan->recipe.hang_kill;
    char lanes[256], debugger[64], end[96];
    format_lanes(actor, plan->lanes, lanes, sizeof lanes);
    snprintf(debugger, sizeof debugger, plan->env.kind == FARM_ENV_PYTHON ? "py-spy dump --pid %d" : "gdb -p %d",
             (int)pid);
    if (kill_s > 0)
        snprintf(end, sizeof end, "After %.3g s (hang_kill) it is killed", kill_s);
    else
        snprintf(end, sizeof end, "`kill -9 %d` ends it (--hang-kill SECONDS does so by itself)", (int)pid);
    farm_run_warn(
        watch->workers->caller,
        "actor %u hangs: %s, %s, %s for %.3g s (pid %d). Where it hangs: `%s`. %s, and a new actor takes its lanes "
        "over; %s",
        a, plan->env.name, lanes,
        actor->stepped ? "has not returned from a step" : "has not finished its first step (--start-seconds)",
        (double)actor->quiet_ns * 1e-9, (int)pid, debugger, end, describe_others(watch, a));
    report_waiting(watch);
}

static void report_stopped(const struct farm_run_watch *watch, uint32_t a, pid_t pid) {
    farm_run_warn(
        watch->workers->caller,
        "actor %u is stopped (SIGSTOP or a debugger), %s, for %.3g s (pid %d). `kill -CONT %d` lets it go on, `kill -9 "
        "%d` ends it, and a new actor takes its lanes over; %s",
        a, watch->workers->plan->env.name, (double)watch->actors[a].stopped_ns * 1e-9, (int)pid, (int)pid, (int)pid,
        describe_others(watch, a));
    report_waiting(watch);
}

static void report_state(struct farm_run_watch *watch, uint32_t a, pid_t pid, const struct farm_watch *before) {
    if (watch->actors[a].state == FARM_WATCH_WELL) {
        farm_run_warn(watch->workers->caller, "actor %u goes on after %.3g s", a,
                      (double)(before->quiet_ns + before->stopped_ns) * 1e-9);
    } else if (watch->actors[a].state == FARM_WATCH_STOPPED) {
        report_stopped(watch, a, pid);
    } else {
        watch->hung++;
        report_hung(watch, a, pid);
    }
}

// Before its first step, which hang_kill does not wait for.
static uint64_t start_limit_ns(const struct farm_run_watch *watch) {
    const struct farm_recipe *recipe = &watch->workers->plan->recipe;
    const bool killed = recipe->hang_kill > 0 && recipe->hang_kill < recipe->start_seconds;
    return (uint64_t)((killed ? recipe->hang_kill : recipe->start_seconds) * 1e9);
}

static void watch_actor(struct farm_run_watch *watch, uint32_t a, uint64_t passed_ns) {
    const struct farm_run_workers *workers = watch->workers;
    const struct farm_ring *ring = &workers->rings->ring[a];
    struct farm_watch *actor = &watch->actors[a];
    const pid_t pid = farm_supervisor_pid(workers->supervisor, a);
    if (!pid || !workers->actors[a].attached) return; // dead and about to be restarted, joining or leaving
    const struct farm_watch before = *actor;
    struct farm_watch_look look = {.passed_ns = passed_ns,
                                   .heartbeat = farm_load_relaxed(&ring->up_control->heartbeat),
                                   .lanes = farm_watch_lanes(ring)};
    look.stopped = farm_watch_still(actor, look.heartbeat, look.lanes) && farm_watch_stopped(pid);
    for (uint32_t l = 0; l < ring->spec.lanes; l++) look.published += farm_lane_produced(&ring->lanes[l]);
    if (farm_watch_judge(actor, &look, actor->stepped ? watch->watchdog.limit_ns : start_limit_ns(watch)) !=
        before.state)
        report_state(watch, a, pid, &before);
    const double kill_s = workers->plan->recipe.hang_kill;
    if (kill_s > 0 && (double)actor->quiet_ns * 1e-9 >= kill_s)
        farm_supervisor_kill(workers->supervisor, a, "it hung (hang_kill)");
}

// ---- actors that infer ----

// Age of the parameters in the actor's newest answer (visible with the step after it), at most half a second too long;
// NAN: unknown. *newer: versions published since; *steps: published by all its lanes.
static double parameters_age_s(const struct farm_run_watch *watch, uint32_t a, uint64_t now_ns, uint64_t *newer,
                               uint64_t *steps) {
    const struct farm_ring *ring = &watch->workers->rings->ring[a];
    const uint64_t publishes = farm_load_acquire(&watch->workers->rings->stats->publishes);
    uint64_t next = 0; // 1 + the newest version in use
    *steps = 0;
    for (uint32_t l = 0; watch->workers->actors[a].attached && l < ring->spec.lanes; l++) {
        const uint64_t produced = farm_lane_produced(&ring->lanes[l]);
        *steps += produced;
        if (produced < 2) continue;
        const uint64_t version = farm_load_relaxed(farm_lane_version(&ring->lanes[l], produced - 2));
        if (version < publishes && version >= next) next = version + 1;
    }
    *newer = publishes - next;
    if (!next || !watch->ticks) return (double)NAN;
    uint64_t back = 1; // ticks, to the newest one before that version
    const uint64_t most = watch->ticks < FARM_RUN_TICKS ? watch->ticks : FARM_RUN_TICKS;
    while (back < most && watch->tick[(watch->ticks - back) % FARM_RUN_TICKS].publishes >= next) back++;
    const uint64_t then_ns = watch->tick[(watch->ticks - back) % FARM_RUN_TICKS].ns;
    return now_ns > then_ns ? (double)(now_ns - then_ns) * 1e-9 : 0;
}

// Whether an actor goes on with old parameters. One that only waited for room has them in its newest answer, too, but
// newer ones in the answers that follow.
static bool stays_old(const struct farm_run_watch *watch, uint32_t a, bool old, uint64_t steps) {
    struct farm_run_memory *memory = &watch->memory[a];
    const uint64_t enough = 2 * (uint64_t)watch->workers->learner.boards.refresh * watch->workers->plan->lanes;
    if (!old || !memory->steps_when_old) memory->steps_when_old = old ? steps : 0;
    return old && steps - memory->steps_when_old >= enough;
}

double farm_run_watch_parameters(struct farm_run_watch *watch, uint64_t now_ns) {
    const struct farm_run_workers *workers = watch->workers;
    double most = (double)NAN;
    for (uint32_t a = 0; a < workers->plan->places && workers->rings->board_count; a++) {
        uint64_t newer, steps;
        const double age_s = parameters_age_s(watch, a, now_ns, &newer, &steps);
        const bool old = age_s > STALE_S && newer >= STALE_VERSIONS;
        char end[96] = "its node is behind";
        most = fmax(most, age_s);
        if (!stays_old(watch, a, old, steps) || watch->memory[a].stale) continue;
        watch->memory[a].stale = true;
        if (!workers->actors[a].remote)
            snprintf(end, sizeof end, "`kill -9 %d` ends it, and a new actor takes its lanes over",
                     (int)farm_supervisor_pid(workers->supervisor, a));
        farm_run_warn(workers->caller,
                      "actor %u acts with parameters that are %.3g s old, and the learner has published %llu newer "
                      "versions: %s",
                      a, age_s, (unsigned long long)newer, end);
    }
    return most;
}

// ---- a stopped learner, a stopped bridge ----

static void watch_other(const struct farm_run_workers *workers, uint32_t number, uint64_t now_ns) {
    const struct farm_run_worker_ops *ops = workers->worker[number].ops;
    struct farm_run_stop *stop = &workers->worker[number].stop;
    const pid_t pid = farm_supervisor_pid(workers->supervisor, number);
    const bool stopped = pid && farm_watch_stopped(pid);
    if (!stopped) {
        if (stop->reported)
            farm_run_warn(workers->caller, "%s goes on after %.3g s", ops->name,
                          (double)(now_ns - stop->since_ns) * 1e-9);
        *stop = (struct farm_run_stop){0};
        return;
    }
    if (!stop->since_ns) stop->since_ns = now_ns;
    if (stop->reported || now_ns - stop->since_ns < STOP_REPORT_NS) return;
    stop->reported = true;
    farm_run_warn(workers->caller,
                  "%s stopped (pid %d) by SIGSTOP or a debugger: %s wait for it. `kill -CONT %d` lets it go on",
                  ops->name, (int)pid, ops->waits, (int)pid);
}

static void watch_others(struct farm_run_watch *watch, uint64_t now_ns) {
    if (now_ns - watch->looked_ns < STOP_LOOK_NS) return;
    watch->looked_ns = now_ns;
    for (uint32_t i = 0; i < watch->workers->worker_count; i++)
        if (watch->workers->worker[i].ops->waits) watch_other(watch->workers, i, now_ns);
    watch->tick[watch->ticks++ % FARM_RUN_TICKS] =
        (struct farm_run_tick){now_ns, farm_load_acquire(&watch->workers->rings->stats->publishes)};
    (void)farm_run_watch_parameters(watch, now_ns);
}

bool farm_run_watch_learner_stopped(const struct farm_run_watch *watch) {
    for (uint32_t i = 0; i < watch->learners->count; i++)
        if (watch->workers->worker[watch->learners->first + i].stop.reported) return true;
    return false;
}

bool farm_run_watch_culprits(const struct farm_run_watch *watch, char *text, size_t bytes) {
    const struct farm_run_workers *workers = watch->workers;
    char names[NAMED_MAX * 12] = "", more[24] = "";
    uint32_t count = 0;
    if (farm_run_watch_learner_stopped(watch)) {
        snprintf(text, bytes, "the learner is stopped by SIGSTOP or a debugger");
        return true;
    }
    for (uint32_t a = 0; a < workers->plan->places; a++) {
        if (!workers->actors[a].attached || !farm_watch_lanes(&workers->rings->ring[a])) continue;
        const size_t used = strlen(names);
        if (count++ < NAMED_MAX) snprintf(names + used, sizeof names - used, "%s%u", used ? ", " : "", a);
    }
    if (count > NAMED_MAX) snprintf(more, sizeof more, " and %u more", count - NAMED_MAX);
    snprintf(text, bytes,
             "actor%s %s%s did not return from the environment (--hang-kill SECONDS replaces an actor that hangs)",
             count > 1 ? "s" : "", names, more);
    return count > 0;
}

bool farm_run_watch_all_hang(const struct farm_run_watch *watch) {
    uint32_t hung = 0;
    for (uint32_t a = 0; a < watch->workers->plan->places; a++) {
        if (!watch->workers->actors[a].attached) continue;
        if (watch->actors[a].state != FARM_WATCH_HUNG) return false;
        hung++;
    }
    return hung > 0;
}

// ---- memory ----

// Memory is tight if all actors together, growing once more as much, would use up what is left.
static void watch_growth(struct farm_run_watch *watch, uint32_t a, uint64_t bytes) {
    struct farm_run_memory *memory = &watch->memory[a];
    if (!memory->first_bytes) memory->first_bytes = bytes;
    if (memory->reported || bytes < GROWN_TIMES * memory->first_bytes) return;
    const uint64_t left = farm_limits_memory_available_bytes("");
    if ((bytes - memory->first_bytes) * watch->workers->count < left) return;
    memory->reported = true;
    farm_run_warn(watch->workers->caller,
                  "actor %u has grown from %s to %s, and %s of memory are left: its environment may leak (farm doctor "
                  "finds out)",
                  a, farm_format_bytes((double)memory->first_bytes).text, farm_format_bytes((double)bytes).text,
                  farm_format_bytes((double)left).text);
}

void farm_run_watch_memory(struct farm_run_watch *watch) {
    const struct farm_run_workers *workers = watch->workers;
    const uint32_t places = workers->plan->places;
    uint64_t most = 0, sum = 0, learners = 0, known = 0, live = 0;
    for (uint32_t n = 0, reads = 0; n < places && reads < MEMORY_READS; n++) {
        const uint32_t a = watch->memory_next++ % places;
        const uint64_t bytes = watch->memory[a].bytes = farm_run_workers_bytes(workers, a);
        reads += bytes > 0;
        if (bytes) watch_growth(watch, a, bytes);
    }
    for (uint32_t a = 0; a < places; a++) {
        if (!farm_supervisor_pid(workers->supervisor, a)) continue;
        const uint64_t bytes = watch->memory[a].bytes;
        live++;
        known += bytes > 0;
        sum += bytes;
        if (bytes > most) most = bytes;
    }
    if (known) sum = sum * live / known; // those that are not read yet are like the others
    for (uint32_t i = 0; i < watch->learners->count; i++)
        learners += farm_run_workers_bytes(workers, watch->learners->first + i);
    if (sum) watch->actor_bytes_max = most, watch->actor_bytes_sum = sum;
    if (learners) watch->learner_bytes = learners;
}

// ---- corrupt counters ----

// Impossible counters: the actor has overwritten its segment. The learner ignores them and suspends the lane; the next
// actor can use it again.
static void kill_corrupt_actors(struct farm_run_watch *watch) {
    const struct farm_run_workers *workers = watch->workers;
    for (uint32_t i = 0; i < workers->plan->places && i < CORRUPT_LOOKS; i++) {
        uint32_t a = watch->next_place++ % workers->plan->places, lane;
        const struct farm_ring *ring = &workers->rings->ring[a];
        if (!farm_supervisor_pid(workers->supervisor, a) || !workers->actors[a].attached ||
            farm_ring_counters_sound(ring, &lane))
            continue;
        farm_run_warn(workers->caller,
                      "actor %u claims %llu published steps in its lane %u, of which %llu are answered: killed", a,
                      (unsigned long long)farm_lane_produced(&ring->lanes[lane]), lane,
                      (unsigned long long)farm_lane_acted(&ring->lanes[lane]));
        farm_supervisor_kill(workers->supervisor, a, "impossible counters");
    }
}

void farm_run_watch_tick(struct farm_run_watch *watch, uint64_t now_ns) {
    const uint64_t passed_ns = farm_watchdog_due(&watch->watchdog, now_ns);
    for (uint32_t a = 0; a < watch->workers->plan->places && passed_ns; a++) watch_actor(watch, a, passed_ns);
    watch_others(watch, now_ns);
    kill_corrupt_actors(watch);
}
