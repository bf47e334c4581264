// What the supervisor of a job tells and asks while it runs: a worker starts, writes a line, dies; does it get anything
// done; is it time to end. See farm_job_parts.h.
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/time.h"
#include "farm_job_parts.h"

enum {
    TICK_MS = 50,
    PROGRESS_ROUNDS = 64, // of all lanes of an actor
};

static void speak(const struct farm_job *job, enum farm_log_level level, const char *format, va_list args) {
    char text[1024];
    vsnprintf(text, sizeof text, format, args);
    if (job->clear_line) job->clear_line(job->caller);
    farm_log(level, "%s", text);
}

void farm_job_say(const struct farm_job *job, const char *format, ...) {
    va_list args;
    va_start(args, format);
    speak(job, FARM_LOG_WARN, format, args);
    va_end(args);
}

void farm_job_tell(const struct farm_job *job, const char *format, ...) {
    va_list args;
    va_start(args, format);
    speak(job, FARM_LOG_INFO, format, args);
    va_end(args);
}

static void restart_learner(struct farm_job *job) {
    job->learner_restarts++;
    if (job->run_path) {
        bool found = farm_job_find_checkpoint(job, job->run_path, job->checkpoint, sizeof job->checkpoint);
        job->learner.checkpoint_load = found ? job->checkpoint : NULL;
    }
    (void)farm_job_hand_over(job);
    farm_job_change_again(job);
    farm_job_say(job, "the learner starts again %s%s",
                 job->learner.checkpoint_load ? "from " : "with fresh parameters: no checkpoint yet",
                 job->learner.checkpoint_load ? job->learner.checkpoint_load : "");
}

// A lane's new actor finds its number in the lane; the old one is dead, for its pidfd said so.
static void before_start(void *context, size_t worker, uint64_t starts) {
    struct farm_job *job = context;
    if (worker == job->learner_worker) {
        if (starts) restart_learner(job);
        return;
    }
    struct farm_job_actor *actor = &job->actor_jobs[worker];
    actor->heartbeat_at_start = farm_load_relaxed(&job->rings[worker].up_control->heartbeat);
    job->watches[worker] = (struct farm_watch){0};
    if (starts) {
        job->actor_restarts++;
        if (farm_ring_restore(&job->rings[worker]))
            farm_job_say(job, "actor %zu left its header or its counters overwritten: put right for the next one",
                         worker);
    }
    for (uint32_t l = 0; l < job->lanes; l++)
        farm_store_release(&job->rings[worker].lanes[l].down->generation, actor->generation);
    actor->generation++;
}

static void on_line(void *context, size_t worker, const char *line) {
    static const char error[] = "farm: error: ";
    struct farm_job *job = context;
    if (worker == job->learner_worker && strncmp(line, error, strlen(error)) == 0)
        snprintf(job->learner_error, sizeof job->learner_error, "%s", line + strlen(error));
    if (job->clear_line) job->clear_line(job->caller);
    dprintf(STDERR_FILENO, "%s\n", line);
}

static void on_death(void *context, size_t worker, const char *how) {
    const struct farm_job *job = context;
    char name[FARM_WORKER_NAME_MAX] = "the learner";
    if (worker != job->learner_worker) snprintf(name, sizeof name, "actor %zu", worker);
    farm_job_say(job, "%s %s", name, how);
}

// An actor that dies within its first rounds has got nothing done: an environment that cannot live, with whose resets
// and first steps nobody should wait long for the end.
static uint64_t progress_of(void *context, size_t worker) {
    const struct farm_job *job = context;
    if (worker == job->learner_worker) return farm_load_relaxed(&job->stats->agent_steps);
    const uint64_t least = (uint64_t)PROGRESS_ROUNDS * job->lanes * job->width;
    const uint64_t now = farm_load_relaxed(&job->rings[worker].up_control->heartbeat);
    const uint64_t start = job->actor_jobs[worker].heartbeat_at_start;
    return now - start > least ? now : start;
}

static void before_stop(void *context, int phase) {
    struct farm_job *job = context;
    if (!job->end_ns) job->end_ns = farm_now_ns();
    for (uint32_t a = 0; a < job->places && phase == FARM_JOB_PHASE_ACTORS; a++)
        if (job->rings[a].lanes) farm_store_release(&job->rings[a].down_control->stop, 1);
}

static void on_end(void *context, size_t worker) {
    struct farm_job *job = context;
    if (worker != job->learner_worker) farm_job_change_ended(job, worker);
}

static void on_loss(void *context, size_t worker, const char *why) {
    farm_job_change_lost(context, worker, why);
}

static void on_signal(void *context, int number) {
    farm_job_change_wanted(context, number);
}

static enum farm_supervisor_turn on_tick(void *context) {
    struct farm_job *job = context;
    uint64_t now = farm_now_ns();
    farm_job_watch(job, now);
    if (job->elastic) farm_job_change_turn(job);
    if (job->cannot_go_on) return FARM_TURN_STOP;
    if (!job->start_ns && farm_load_relaxed(&job->stats->agent_steps)) job->start_ns = job->tick_ns;
    job->tick_ns = now;
    if (farm_load_acquire(&job->stats->done)) {
        if (!job->end_ns) job->end_ns = now;
        return FARM_TURN_ON; // the learner ends by itself, when its checkpoint is written
    }
    if (job->recipe.seconds > 0 && farm_job_wall_s(job) >= job->recipe.seconds) return FARM_TURN_STOP;
    return job->on_tick ? job->on_tick(job->caller, now) : FARM_TURN_ON;
}

struct farm_supervisor_config farm_job_events(struct farm_job *job) {
    return (struct farm_supervisor_config){.context = job,
                                           .before_start = before_start,
                                           .on_line = on_line,
                                           .on_death = on_death,
                                           .on_end = on_end,
                                           .on_loss = on_loss,
                                           .on_signal = job->elastic ? on_signal : NULL,
                                           .before_stop = before_stop,
                                           .on_tick = on_tick,
                                           .progress = progress_of,
                                           .tick_ms = TICK_MS};
}
