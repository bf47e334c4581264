// See events.h.
#include "run/events.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "base/time.h"

enum { TICK_MS = 50 };
static const double STANDSTILL_LEAST_S = 5;

// ---- workers ----

static struct farm_run_worker *worker_of(void *context, size_t worker) {
    return &((struct farm_run_events *)context)->workers->worker[worker];
}

static void before_start(void *context, size_t number, uint64_t starts) {
    const struct farm_run_events *events = context;
    const struct farm_run_worker *worker = worker_of(context, number);
    farm_run_watch_start(events->watch, number);
    if (worker->ops->before_start) worker->ops->before_start(worker->owner, worker->i, starts);
}

static void on_line(void *context, size_t number, const char *line) {
    const struct farm_run_events *events = context;
    const struct farm_run_caller *caller = events->workers->caller;
    const struct farm_run_worker *worker = worker_of(context, number);
    if (worker->ops->line && worker->ops->line(worker->owner, worker->i, line)) return;
    if (caller->clear_line) caller->clear_line(caller->context);
    dprintf(STDERR_FILENO, "%s\n", line);
}

static void on_death(void *context, size_t number, const struct farm_death *death) {
    struct farm_run_events *events = context;
    const struct farm_run_worker *worker = worker_of(context, number);
    char name[FARM_WORKER_NAME_MAX];
    if (worker->ops->death && worker->ops->death(worker->owner, worker->i, death)) return;
    snprintf(name, sizeof name, worker->numbered ? "%s %u" : "the %s", worker->ops->name, worker->i);
    const bool explain = death->crashed && !death->core[0] && !events->core_explained;
    events->core_explained |= explain;
    farm_run_warn(events->workers->caller, "%s %s, pid %d%s%s%s", name, death->how, (int)death->pid,
                  death->core[0] ? "; " : "", death->core,
                  explain ? " (no core file for a debugger: `ulimit -c unlimited` before the command allows one)" : "");
}

static void on_end(void *context, size_t number) {
    const struct farm_run_worker *worker = worker_of(context, number);
    if (worker->ops->end) worker->ops->end(worker->owner, worker->i);
}

static void on_loss(void *context, size_t number, const char *why) {
    const struct farm_run_worker *worker = worker_of(context, number);
    if (worker->ops->loss) worker->ops->loss(worker->owner, worker->i, why);
}

static uint64_t progress_of(void *context, size_t number) {
    const struct farm_run_worker *worker = worker_of(context, number);
    return worker->ops->progress ? worker->ops->progress(worker->owner, worker->i) : 0;
}

static void on_readable(void *context, size_t watched) {
    const struct farm_run_worker *worker = ((const struct farm_run_events *)context)->watcher[watched];
    worker->ops->readable(worker->owner, worker->i);
}

static void on_signal(void *context, int number) {
    const struct farm_run_events *events = context;
    const struct farm_run_plan *plan = events->workers->plan;
    const struct farm_run_caller *caller = events->workers->caller;
    struct farm_stats *stats = events->workers->rings->stats;
    if (number == SIGUSR2)
        farm_run_note(caller, "SIGUSR2 has no effect (SIGUSR1 writes a checkpoint; `farm actors RUN +N` adds actors)");
    else if (!farm_run_learns(plan) || plan->play.games || !stats)
        farm_run_note(caller, "SIGUSR1 has no effect: only training writes checkpoints");
    else if (plan->deterministic)
        farm_run_warn(caller, "SIGUSR1 has no effect: a run that is --deterministic writes checkpoints at multiples of "
                              "checkpoint_updates only");
    else
        farm_add_relaxed(&stats->checkpoints_wanted, 1);
}

static bool on_interrupt(void *context) {
    const struct farm_run_events *events = context;
    if (!events->workers->plan->deterministic) return false;
    farm_run_note(events->workers->caller,
                  "stops at its next checkpoint, which a multiple of checkpoint_updates (%" PRId64
                  ") ends; another Ctrl-C stops at once, and --resume repeats what comes after the last one",
                  events->workers->plan->recipe.checkpoint_updates);
    return true;
}

// ---- the clock ----

double farm_run_events_wall_s(const struct farm_run_events *events) {
    if (!events->start_ns) return 0;
    const uint64_t end = events->end_ns ? events->end_ns : farm_now_ns();
    return end > events->start_ns ? (double)(end - events->start_ns) * 1e-9 : 0;
}

static bool any_step_answered(const struct farm_run_rings *rings) {
    for (uint32_t a = 0; a < rings->places; a++)
        for (uint32_t l = 0; rings->ring[a].lanes && l < rings->ring[a].spec.lanes; l++)
            if (farm_lane_acted(&rings->ring[a].lanes[l])) return true;
    return false;
}

// A run that is done within one tick began with that tick. The counters show steps of every kind: the first of an
// episode, and those that the learner rejects.
static void find_start(struct farm_run_events *events) {
    const struct farm_run_rings *rings = events->workers->rings;
    if (events->start_ns || !any_step_answered(rings)) return;
    events->start_ns = events->tick_ns;
    farm_store_relaxed(&rings->stats->start_ns, events->start_ns);
}

void farm_run_events_end(struct farm_run_events *events, bool judge) {
    if (!events->end_ns) events->end_ns = farm_now_ns();
    find_start(events);
    if (!judge) return;
    farm_run_rejected_end(&events->rejected, events->change);
    char *failure = events->change->failure;
    if (!failure[0]) snprintf(failure, sizeof events->change->failure, "%s", events->standstill);
}

static void stop_watching(struct farm_run_events *events) {
    for (size_t i = 0; i < sizeof events->watched / sizeof *events->watched; i++) events->watched[i] = -1;
}

void farm_run_events_again(struct farm_run_events *events) {
    events->tick_ns = events->moved_ns = farm_now_ns();
    events->end_ns = events->published = 0;
    events->judged = false;
    farm_run_events_listen(events);
}

void farm_run_events_listen(struct farm_run_events *events) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < events->workers->worker_count; i++) {
        const struct farm_run_worker *worker = &events->workers->worker[i];
        if (worker->fd < 0) continue;
        assert(count < FARM_RUN_WATCHED_MAX);
        events->watcher[count] = worker;
        events->watched[count++] = worker->fd;
    }
}

static uint64_t actor_progress(struct farm_run_actor *actor, const struct farm_ring *ring) {
    const uint64_t calls = farm_load_relaxed(&ring->up_control->heartbeat) - actor->heartbeat_at_start;
    uint64_t progress = 0;
    if (calls > actor->calls_most) actor->calls_most = calls;
    for (uint32_t l = 0; l < ring->spec.lanes; l++) progress += farm_lane_produced(&ring->lanes[l]);
    return progress + actor->calls_most;
}

// Sums what all actors have published, and how far each has come: a new actor that makes its environments again, and
// then hangs as the one before did, is no progress.
static void note_progress(struct farm_run_events *events, uint64_t now_ns) {
    const struct farm_run_workers *workers = events->workers;
    const uint64_t steps = farm_load_relaxed(&workers->rings->stats->agent_steps);
    uint64_t published = 0;
    if (steps != events->steps) { // without a look at each ring
        events->steps = steps;
        events->moved_ns = now_ns;
        return;
    }
    for (uint32_t a = 0; a < workers->plan->places; a++)
        if (workers->actors[a].attached) published += actor_progress(&workers->actors[a], &workers->rings->ring[a]);
    if (published != events->published) events->moved_ns = now_ns;
    events->published = published;
}

// A run whose environments published nothing for hang_seconds, or for its second half if that is shorter.
static void judge_progress(struct farm_run_events *events) {
    const double hang_s = events->workers->plan->recipe.hang_seconds,
                 half_s = fmax(STANDSTILL_LEAST_S, farm_run_events_wall_s(events) / 2),
                 quiet_s = events->end_ns > events->moved_ns ? (double)(events->end_ns - events->moved_ns) * 1e-9 : 0;
    char culprits[256];
    if (quiet_s < (hang_s > 0 ? fmin(hang_s, half_s) : half_s)) return;
    if (!farm_run_watch_culprits(events->watch, culprits, sizeof culprits)) return;
    snprintf(events->standstill, sizeof events->standstill,
             "no environment published a step in the last %.3g s of the run: %s", quiet_s, culprits);
}

// Before the first answered step the clock stands: a run with a time limit, or a measurement, whose environments all
// hang in their first call would never end.
static bool never_begins(struct farm_run_events *events, uint64_t now_ns) {
    const struct farm_run_plan *plan = events->workers->plan;
    const bool measures = plan->responder.body && !plan->responder.remote;
    const double quiet_s = (double)(now_ns - events->moved_ns) * 1e-9,
                 left_s = fmax(0, plan->recipe.seconds - events->workers->learner.before.wall_s),
                 seconds = measures ? 0 : left_s;
    char culprits[256];
    if ((plan->recipe.seconds <= 0 && !measures) || events->start_ns || !farm_run_watch_all_hang(events->watch))
        return false;
    if (quiet_s < seconds + plan->recipe.start_seconds) return false;
    if (!farm_run_watch_culprits(events->watch, culprits, sizeof culprits)) return false;
    snprintf(
        events->standstill, sizeof events->standstill,
        "no environment has published a step, and none was made or reset for %.3g s: %s; if one takes so long, raise "
        "--start-seconds",
        quiet_s, culprits);
    return events->judged = true;
}

static void before_stop(void *context, int phase) {
    struct farm_run_events *events = context;
    const struct farm_run_rings *rings = events->workers->rings;
    if (!events->end_ns) events->end_ns = farm_now_ns();
    if (!events->judged) judge_progress(events);
    events->judged = true;
    stop_watching(events); // no more changes
    if (phase == FARM_RUN_PHASE_ACTORS) farm_run_sessions_end(events->sessions);
    for (uint32_t a = 0; a < rings->places && phase == FARM_RUN_PHASE_ACTORS; a++) {
        const bool hangs = events->watch->actors[a].state == FARM_WATCH_HUNG ||
                           (events->standstill[0] && rings->ring[a].lanes && farm_watch_lanes(&rings->ring[a]));
        if (rings->ring[a].lanes) farm_store_release(&rings->ring[a].down_control->stop, 1);
        if (hangs) // it would take all of its grace
            farm_supervisor_kill(events->workers->supervisor, a, "it hangs at the end");
    }
}

static enum farm_supervisor_turn on_tick(void *context) {
    struct farm_run_events *events = context;
    const struct farm_run_workers *workers = events->workers;
    const struct farm_run_caller *caller = workers->caller;
    const double seconds = workers->plan->recipe.seconds,
                 wall_s = workers->learner.before.wall_s + farm_run_events_wall_s(events);
    const uint64_t now = farm_now_ns();
    farm_run_watch_tick(events->watch, now);
    farm_run_rings_tick(workers->rings);
    if (workers->plan->elastic) farm_run_change_advance(events->change);
    farm_run_sessions_tick(events->sessions, now);
    farm_run_requests_tick(events->requests, now);
    find_start(events);
    note_progress(events, now);
    events->tick_ns = now;
    farm_run_rejected_tick(&events->rejected, events->change, now);
    if (events->change->failure[0]) return FARM_TURN_STOP;
    if (farm_load_acquire(&workers->rings->stats->done)) {
        if (!events->end_ns) events->end_ns = now;
        return FARM_TURN_ON; // the learner ends by itself after its checkpoint
    }
    if ((seconds > 0 && wall_s >= seconds) || never_begins(events, now)) return FARM_TURN_STOP;
    farm_run_evaluation_tick(events->evaluation, wall_s);
    return caller->on_tick ? caller->on_tick(caller->context, now) : FARM_TURN_ON;
}

struct farm_supervisor_config farm_run_events_config(struct farm_run_events *events) {
    stop_watching(events);
    return (struct farm_supervisor_config){.context = events,
                                           .before_start = before_start,
                                           .on_line = on_line,
                                           .on_death = on_death,
                                           .on_end = on_end,
                                           .on_loss = on_loss,
                                           .on_signal = on_signal,
                                           .on_interrupt = on_interrupt,
                                           .before_stop = before_stop,
                                           .on_tick = on_tick,
                                           .progress = progress_of,
                                           .watched = events->watched,
                                           .watched_count = sizeof events->watched / sizeof *events->watched,
                                           .on_readable = on_readable,
                                           .tick_ms = TICK_MS};
}
