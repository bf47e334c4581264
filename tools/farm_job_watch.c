// Actors that do not do what they should, while a job runs: one hangs, is stopped, or publishes what cannot be.
// Judgements are supervisor/watchdog.h's, here are the looks and the words. See farm_job_parts.h.
#include <signal.h>
#include <stdio.h>

#include "farm_job_parts.h"

// ---- hung and stopped ones ----

// "lane 1", or "lanes 0 1" where it cannot be told which.
static void name_lanes(const struct farm_watch *watch, uint32_t lanes, char *text, size_t bytes) {
    const bool one = (watch->lanes & (watch->lanes - 1)) == 0;
    size_t used = (size_t)snprintf(text, bytes, one ? "lane" : "one of lanes");
    for (uint32_t l = 0; l < lanes && used < bytes; l++)
        if (watch->lanes >> l & 1) used += (size_t)snprintf(text + used, bytes - used, " %u", l);
}

// Unrolls that the lanes of a shard's actors that are well can hold, when all of them wait for training.
static uint64_t unrolls_without_stuck(const struct farm_job *job, uint32_t shard) {
    const struct farm_recipe *recipe = &job->recipe;
    const uint64_t held = (uint64_t)(recipe->stack + recipe->unroll);
    uint64_t well = 0;
    for (uint32_t a = 0; a < job->places; a++)
        well += job->actor_jobs[a].there && job->ring_shard[a] == shard && job->watches[a].state == FARM_WATCH_WELL;
    if (job->steps < held) return 0;
    return well * job->lanes * job->width * ((job->steps - held) / (uint64_t)recipe->unroll + 1);
}

static void say_rest(const struct farm_job *job) {
    const uint32_t batch = (uint32_t)job->recipe.batch, shards = job->learner.shard_count;
    for (uint32_t k = 0; k < shards && !job->learner.evaluate; k++) {
        if (unrolls_without_stuck(job, k) >= farm_learner_share(batch, shards, k)) continue;
        farm_job_say(job,
                     "the other actors' rings cannot hold %s of %u unrolls: training waits until the actor goes on "
                     "or is killed; a larger --ring-steps or a smaller --batch would spare that",
                     shards > 1 ? "their GPU's share of an update" : "an update", farm_learner_share(batch, shards, k));
        return;
    }
}

static void say_hung(const struct farm_job *job, uint32_t a, pid_t pid) {
    const struct farm_watch *watch = &job->watches[a];
    char lanes[256], debugger[64];
    name_lanes(watch, job->lanes, lanes, sizeof lanes);
    snprintf(debugger, sizeof debugger, job->env.kind == FARM_ENV_PYTHON ? "py-spy dump --pid %d" : "gdb -p %d",
             (int)pid);
    farm_job_say(
        job,
        "actor %u hangs: %s, %s, %s for %.3g s (pid %d). Where it hangs: `%s`. `kill -9 %d` ends it, and a new actor "
        "takes its lanes over; the others go on either way",
        a, job->env.name, lanes, watch->stepped ? "has not returned from a step" : "has not finished its first step",
        (double)watch->quiet_ns * 1e-9, (int)pid, debugger, (int)pid);
    say_rest(job);
}

static void say_stopped(const struct farm_job *job, uint32_t a, pid_t pid) {
    farm_job_say(
        job,
        "actor %u is stopped (SIGSTOP or a debugger), %s, for %.3g s (pid %d). `kill -CONT %d` lets it go on, `kill -9 "
        "%d` ends it, and a new actor takes its lanes over; the others go on either way",
        a, job->env.name, (double)job->watches[a].stopped_ns * 1e-9, (int)pid, (int)pid, (int)pid);
    say_rest(job);
}

static void watch_actor(struct farm_job *job, uint32_t a, uint64_t passed_ns) {
    struct farm_watch *watch = &job->watches[a];
    const pid_t pid = farm_supervisor_pid(job->supervisor, a);
    if (!pid || !job->actor_jobs[a].there) return; // dead, and about to be started; or it comes or goes
    const struct farm_watch before = *watch;
    struct farm_watch_look look = {.passed_ns = passed_ns,
                                   .heartbeat = farm_load_relaxed(&job->rings[a].up_control->heartbeat),
                                   .lanes = farm_watch_lanes(&job->rings[a])};
    look.stopped = farm_watch_still(watch, look.heartbeat, look.lanes) && farm_watch_stopped(pid);
    const enum farm_watch_state state = farm_watch_judge(watch, &look, job->watchdog.limit_ns);
    if (state == before.state) return;
    if (state == FARM_WATCH_WELL) {
        farm_job_say(job, "actor %u goes on after %.3g s", a, (double)(before.quiet_ns + before.stopped_ns) * 1e-9);
    } else if (state == FARM_WATCH_STOPPED) {
        say_stopped(job, a, pid);
    } else {
        job->actors_hung++;
        say_hung(job, a, pid);
    }
}

// ---- liars ----

// An actor whose counters cannot be has scribbled over its segment. The learner does not believe it and lets its lane
// rest; the next actor can use the lane again.
static void end_liars(const struct farm_job *job) {
    for (uint32_t a = 0; a < job->places; a++) {
        uint32_t lane;
        const pid_t pid = farm_supervisor_pid(job->supervisor, a);
        if (!pid || !job->actor_jobs[a].there || farm_ring_counters_sound(&job->rings[a], &lane)) continue;
        farm_job_say(
            job, "actor %u says that it has published %llu steps of its lane %u, of which %llu are answered: killed", a,
            (unsigned long long)farm_lane_produced(&job->rings[a].lanes[lane]), lane,
            (unsigned long long)farm_lane_acted(&job->rings[a].lanes[lane]));
        kill(pid, SIGKILL);
    }
}

void farm_job_watch(struct farm_job *job, uint64_t now_ns) {
    const uint64_t passed_ns = farm_watchdog_due(&job->watchdog, now_ns);
    for (uint32_t a = 0; a < job->places && passed_ns; a++) watch_actor(job, a, passed_ns);
    end_liars(job);
}
