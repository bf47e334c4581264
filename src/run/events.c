// See events.h.
#include "run/events.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/time.h"
#include "run/checkpoints.h"

enum {
    TICK_MS = 50,
    PROGRESS_ROUNDS = 64, // of all lanes of an actor
};
static const double STANDSTILL_LEAST_S = 5, MEASURED_START_S = 10;

static bool is_learner(const struct farm_run_events *events, size_t worker) {
    return worker == events->workers->plan->places;
}

// Bridges are numbered behind the learner.
static bool is_bridge(const struct farm_run_events *events, size_t worker, uint32_t *b) {
    *b = (uint32_t)(worker - events->workers->plan->places - 1);
    return worker > events->workers->plan->places && !farm_run_evaluation_is(events->evaluation, worker);
}

// ---- workers ----

static void restart_learner(struct farm_run_events *events) {
    struct farm_run_workers *workers = events->workers;
    struct farm_learner_config *learner = &workers->learner;
    events->learner_restarts++;
    if (workers->plan->responder.remote) {
        farm_run_warn(workers->caller, "the bridge starts again");
        return;
    }
    if (workers->run_path) {
        const bool found = farm_run_find_checkpoint(workers->run_path, workers->plan, workers->caller,
                                                    workers->checkpoint, sizeof workers->checkpoint);
        learner->checkpoint_load = found ? workers->checkpoint : NULL;
    }
    (void)farm_run_workers_fill_learner(workers);
    farm_run_change_before_learner(events->change);
    farm_run_warn(workers->caller, "the learner starts again %s%s",
                  learner->checkpoint_load ? "from " : "with fresh parameters: no checkpoint yet",
                  learner->checkpoint_load ? learner->checkpoint_load : "");
}

// A new actor finds its generation in the lane. The old actor is dead: its pidfd is readable.
static void before_start(void *context, size_t worker, uint64_t starts) {
    struct farm_run_events *events = context;
    const struct farm_run_workers *workers = events->workers;
    uint32_t b;
    if (farm_run_evaluation_is(events->evaluation, worker)) return;
    farm_run_watch_start(events->watch, worker);
    if (is_learner(events, worker)) {
        if (starts) restart_learner(events);
        return;
    }
    if (is_bridge(events, worker, &b)) {
        farm_run_sessions_before_bridge(events->sessions, b);
        return;
    }
    struct farm_run_actor *actor = &workers->actors[worker];
    struct farm_ring *ring = &workers->rings->ring[worker];
    actor->heartbeat_at_start = farm_load_relaxed(&ring->up_control->heartbeat);
    if (starts) {
        events->actor_restarts++;
        if (farm_ring_restore(ring))
            farm_run_warn(workers->caller,
                          "actor %zu left its header or its counters overwritten: repaired for the next one", worker);
    }
    for (uint32_t l = 0; l < workers->plan->lanes; l++)
        farm_store_release(&ring->lanes[l].down->generation, actor->generation);
    actor->generation++;
}

static void on_line(void *context, size_t worker, const char *line) {
    static const char error[] = "farm: error: ";
    struct farm_run_events *events = context;
    const struct farm_run_caller *caller = events->workers->caller;
    if (farm_run_evaluation_is(events->evaluation, worker)) {
        farm_run_evaluation_line(events->evaluation, line);
        return;
    }
    if (is_learner(events, worker) && strncmp(line, error, strlen(error)) == 0)
        snprintf(events->learner_error, sizeof events->learner_error, "%s", line + strlen(error));
    if (caller->clear_line) caller->clear_line(caller->context);
    dprintf(STDERR_FILENO, "%s\n", line);
}

static void count_cause(struct farm_run_events *events, const char *text) {
    uint32_t i = 0;
    if (strncmp(text, "was ", 4) == 0) text += 4;
    while (i < FARM_RUN_CAUSES_MAX - 1 && events->causes[i].deaths && strcmp(events->causes[i].text, text) != 0) i++;
    snprintf(events->causes[i].text, sizeof events->causes[i].text, "%s",
             i < FARM_RUN_CAUSES_MAX - 1 ? text : "died of other causes");
    events->causes[i].deaths++;
}

void farm_run_events_causes(const struct farm_run_events *events, char *text, size_t bytes) {
    size_t used = 0;
    text[0] = 0;
    for (uint32_t i = 0; i < FARM_RUN_CAUSES_MAX && events->causes[i].deaths && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s: %llu", i ? "; " : "", events->causes[i].text,
                                 (unsigned long long)events->causes[i].deaths);
}

static void on_death(void *context, size_t worker, const struct farm_death *death) {
    struct farm_run_events *events = context;
    const char *learner = events->workers->plan->responder.remote ? "the bridge" : "the learner";
    char actor[FARM_WORKER_NAME_MAX];
    uint32_t b;
    if (farm_run_evaluation_is(events->evaluation, worker)) return; // on_loss reports it
    snprintf(actor, sizeof actor, "actor %zu", worker);
    if (is_bridge(events, worker, &b))
        snprintf(actor, sizeof actor, events->sessions->bridges->count > 1 ? "bridge %u" : "the bridge", b);
    if (worker < events->workers->plan->places) count_cause(events, death->cause);
    const bool explain = death->crashed && !death->core[0] && !events->core_explained;
    events->core_explained |= explain;
    farm_run_warn(events->workers->caller, "%s %s, pid %d%s%s%s", is_learner(events, worker) ? learner : actor,
                  death->how, (int)death->pid, death->core[0] ? "; " : "", death->core,
                  explain ? " (no core file for a debugger: `ulimit -c unlimited` before the command allows one)" : "");
}

static void on_end(void *context, size_t worker) {
    const struct farm_run_events *events = context;
    if (worker < events->workers->plan->places) farm_run_change_worker_ended(events->change, worker);
    if (farm_run_evaluation_is(events->evaluation, worker)) farm_run_evaluation_end(events->evaluation, NULL);
}

static void on_loss(void *context, size_t worker, const char *why) {
    const struct farm_run_events *events = context;
    struct farm_run_change *change = events->change;
    uint32_t b;
    if (farm_run_evaluation_is(events->evaluation, worker))
        farm_run_evaluation_end(events->evaluation, why);
    else if (!is_bridge(events, worker, &b))
        farm_run_change_actor_lost(change, worker, why);
    else if (!farm_run_sessions_lose_bridge(events->sessions, b, why))
        snprintf(change->failure, sizeof change->failure, "%s", why);
}

static void on_signal(void *context, int number) {
    const struct farm_run_events *events = context;
    if (events->workers->plan->deterministic)
        farm_run_warn(events->workers->caller, "actors cannot join or leave a run that is --deterministic");
    else
        farm_run_change_signal(events->change, number);
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

// An actor that dies within its first rounds has made no progress: resets and first steps of a broken environment must
// not delay the end of the run.
static uint64_t progress_of(void *context, size_t worker) {
    const struct farm_run_events *events = context;
    const struct farm_run_workers *workers = events->workers;
    uint32_t b;
    if (farm_run_evaluation_is(events->evaluation, worker)) return 0;
    if (is_bridge(events, worker, &b)) return farm_run_sessions_progress(events->sessions, b);
    const struct farm_stats *stats = workers->rings->stats;
    if (is_learner(events, worker))
        return farm_load_relaxed(&stats->agent_steps) + farm_load_relaxed(&stats->rejected_steps);
    const uint64_t least = (uint64_t)PROGRESS_ROUNDS * workers->plan->lanes * workers->plan->width;
    const uint64_t now = farm_load_relaxed(&workers->rings->ring[worker].up_control->heartbeat);
    const uint64_t start = workers->actors[worker].heartbeat_at_start;
    return now - start > least ? now : start;
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
    const struct farm_run_bridges *bridges = events->sessions->bridges;
    if (events->change->admission) events->watched[0] = events->change->admission;
    if (events->workers->sample[0]) events->watched[0] = events->workers->sample[0];
    for (uint32_t b = 0; b < bridges->count; b++) events->watched[1 + b] = bridges->bridge[b].control;
}

// A deterministic run's learner waits for the sample.
static void answer_learner(const struct farm_run_workers *workers) {
    const struct farm_run_caller *caller = workers->caller;
    char byte;
    if (recv(workers->sample[0], &byte, 1, MSG_DONTWAIT) != 1) return;
    if (caller->on_update) caller->on_update(caller->context);
    (void)!write(workers->sample[0], &byte, 1);
}

static void on_readable(void *context, size_t number) {
    struct farm_run_events *events = context;
    if (number)
        farm_run_sessions_receive(events->sessions, (uint32_t)number - 1);
    else if (events->workers->sample[0])
        answer_learner(events->workers);
    else
        farm_run_change_advance(events->change);
}

// Sums what all actors have published.
static void note_progress(struct farm_run_events *events, uint64_t now_ns) {
    const struct farm_run_workers *workers = events->workers;
    uint64_t published = farm_load_relaxed(&workers->rings->stats->agent_steps);
    for (uint32_t a = 0; a < workers->plan->places; a++)
        for (uint32_t l = 0; workers->actors[a].attached && l < workers->plan->lanes; l++)
            published += farm_lane_produced(&workers->rings->ring[a].lanes[l]);
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
                 seconds = measures ? MEASURED_START_S : plan->recipe.seconds;
    char culprits[256];
    if (seconds <= 0 || events->start_ns || !farm_run_watch_all_hang(events->watch)) return false;
    if (quiet_s < seconds + (double)events->watch->watchdog.limit_ns * 1e-9) return false;
    if (!farm_run_watch_culprits(events->watch, culprits, sizeof culprits)) return false;
    snprintf(events->standstill, sizeof events->standstill,
             "no environment has published a step in %.3g s: %s; if its first step takes so long, raise --hang-seconds",
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
    const double seconds = workers->plan->recipe.seconds;
    const uint64_t now = farm_now_ns();
    farm_run_watch_tick(events->watch, now);
    if (events->change->admission) farm_run_change_advance(events->change);
    farm_run_sessions_tick(events->sessions, now);
    find_start(events);
    note_progress(events, now);
    events->tick_ns = now;
    farm_run_rejected_tick(&events->rejected, events->change, now);
    if (events->change->failure[0]) return FARM_TURN_STOP;
    if (farm_load_acquire(&workers->rings->stats->done)) {
        if (!events->end_ns) events->end_ns = now;
        return FARM_TURN_ON; // the learner ends by itself after its checkpoint
    }
    if ((seconds > 0 && farm_run_events_wall_s(events) >= seconds) || never_begins(events, now)) return FARM_TURN_STOP;
    farm_run_evaluation_tick(events->evaluation, workers->learner.before.wall_s + farm_run_events_wall_s(events));
    return caller->on_tick ? caller->on_tick(caller->context, now) : FARM_TURN_ON;
}

struct farm_supervisor_config farm_run_events_config(struct farm_run_events *events, bool elastic) {
    stop_watching(events);
    return (struct farm_supervisor_config){.context = events,
                                           .before_start = before_start,
                                           .on_line = on_line,
                                           .on_death = on_death,
                                           .on_end = on_end,
                                           .on_loss = on_loss,
                                           .on_signal = elastic ? on_signal : NULL,
                                           .on_interrupt = on_interrupt,
                                           .before_stop = before_stop,
                                           .on_tick = on_tick,
                                           .progress = progress_of,
                                           .watched = events->watched,
                                           .watched_count = sizeof events->watched / sizeof *events->watched,
                                           .on_readable = on_readable,
                                           .tick_ms = TICK_MS};
}
