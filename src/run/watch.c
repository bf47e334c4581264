// See watch.h.
#include "run/watch.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

enum farm_status farm_run_watch_make(struct farm_run_watch *watch, struct farm_error *err) {
    const struct farm_run_plan *plan = watch->workers->plan;
    watch->watchdog = farm_watchdog_make(plan->recipe.hang_seconds);
    watch->actors = calloc(plan->places, sizeof *watch->actors);
    return watch->actors ? FARM_OK : farm_fail_errno(err, FARM_E_LIMIT, "no memory for %u actors", plan->places);
}

void farm_run_watch_free(struct farm_run_watch *watch) {
    free(watch->actors);
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
    for (uint32_t k = 0; k < plan->shards && !workers->learner.evaluate && !plan->passes.sync; k++) {
        uint32_t well = 0;
        for (uint32_t a = 0; a < plan->places; a++)
            well +=
                workers->actors[a].attached && workers->ring_shard[a] == k && watch->actors[a].state == FARM_WATCH_WELL;
        if (!farm_run_update_fits(plan, well, k, &why)) continue;
        farm_run_warn(workers->caller, "training waits until the actor goes on or is killed: %s", why.message);
        return;
    }
}

static void report_hung(const struct farm_run_watch *watch, uint32_t a, pid_t pid) {
    const struct farm_run_plan *plan = watch->workers->plan;
    const struct farm_watch *actor = &watch->actors[a];
    char lanes[256], debugger[64];
    format_lanes(actor, plan->lanes, lanes, sizeof lanes);
    snprintf(debugger, sizeof debugger, plan->env.kind == FARM_ENV_PYTHON ? "py-spy dump --pid %d" : "gdb -p %d",
             (int)pid);
    farm_run_warn(
        watch->workers->caller,
        "actor %u hangs: %s, %s, %s for %.3g s (pid %d). Where it hangs: `%s`. `kill -9 %d` ends it, and a new actor "
        "takes its lanes over; the others go on either way",
        a, plan->env.name, lanes, actor->stepped ? "has not returned from a step" : "has not finished its first step",
        (double)actor->quiet_ns * 1e-9, (int)pid, debugger, (int)pid);
    report_waiting(watch);
}

static void report_stopped(const struct farm_run_watch *watch, uint32_t a, pid_t pid) {
    farm_run_warn(
        watch->workers->caller,
        "actor %u is stopped (SIGSTOP or a debugger), %s, for %.3g s (pid %d). `kill -CONT %d` lets it go on, `kill -9 "
        "%d` ends it, and a new actor takes its lanes over; the others go on either way",
        a, watch->workers->plan->env.name, (double)watch->actors[a].stopped_ns * 1e-9, (int)pid, (int)pid, (int)pid);
    report_waiting(watch);
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
    const enum farm_watch_state state = farm_watch_judge(actor, &look, watch->watchdog.limit_ns);
    if (state == before.state) return;
    if (state == FARM_WATCH_WELL) {
        farm_run_warn(workers->caller, "actor %u goes on after %.3g s", a,
                      (double)(before.quiet_ns + before.stopped_ns) * 1e-9);
    } else if (state == FARM_WATCH_STOPPED) {
        report_stopped(watch, a, pid);
    } else {
        watch->hung++;
        report_hung(watch, a, pid);
    }
}

// ---- corrupt counters ----

// Impossible counters: the actor has overwritten its segment. The learner ignores them and suspends the lane; the next
// actor can use it again.
static void kill_corrupt_actors(const struct farm_run_workers *workers) {
    for (uint32_t a = 0; a < workers->plan->places; a++) {
        uint32_t lane;
        const struct farm_ring *ring = &workers->rings->ring[a];
        const pid_t pid = farm_supervisor_pid(workers->supervisor, a);
        if (!pid || !workers->actors[a].attached || farm_ring_counters_sound(ring, &lane)) continue;
        farm_run_warn(workers->caller,
                      "actor %u claims %llu published steps in its lane %u, of which %llu are answered: killed", a,
                      (unsigned long long)farm_lane_produced(&ring->lanes[lane]), lane,
                      (unsigned long long)farm_lane_acted(&ring->lanes[lane]));
        kill(pid, SIGKILL);
    }
}

void farm_run_watch_tick(struct farm_run_watch *watch, uint64_t now_ns) {
    const uint64_t passed_ns = farm_watchdog_due(&watch->watchdog, now_ns);
    for (uint32_t a = 0; a < watch->workers->plan->places && passed_ns; a++) watch_actor(watch, a, passed_ns);
    kill_corrupt_actors(watch->workers);
}
