// Actors that come and go while a job runs: SIGUSR1 asks for one more, SIGUSR2 for one fewer. One change at a time. An
// actor that comes gets a place, CPUs and rings; the learner lets its rings in; then it is started. Of an actor that
// goes the learner lets go first; then it is ended, and its memory and CPUs are given back. What cannot be done is
// said, and changes nothing; an actor that came and cannot be kept alive goes again. See farm_job_parts.h,
// learner/gate.h.
#include <assert.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "farm_job_parts.h"
#include "learner/gate.h"
#include "shm/limits.h"

void farm_job_change_wanted(struct farm_job *job, int number) {
    job->change.wanted += number == SIGUSR1 ? 1 : -1;
}

static uint32_t rings_of(const struct farm_job *job, uint32_t shard) {
    uint32_t count = 0;
    for (uint32_t a = 0; a < job->places; a++) count += job->actor_jobs[a].there && job->ring_shard[a] == shard;
    return count;
}

// ---- one comes ----

// The GPU that serves fewest.
static uint32_t shard_for_one_more(const struct farm_job *job) {
    uint32_t least = 0;
    for (uint32_t k = 1; k < job->learner.shard_count; k++)
        if (rings_of(job, k) < rings_of(job, least)) least = k;
    return least;
}

// CPUs that no farm has, by the plan's rules for one actor.
static enum farm_status plan_on_free_cpus(struct farm_job *job, uint32_t a, struct farm_plan *plan,
                                          struct farm_error *err) {
    struct farm_plan_request request = {.actors = 1,
                                        .learner_device = FARM_LEARNER_NONE,
                                        .envs_per_actor = (int)job->recipe.envs_per_actor,
                                        .bytes_per_actor = farm_job_actor_bytes(job),
                                        .pin = true,
                                        .numa = job->recipe.numa};
    enum farm_status status = farm_claim_read_taken(&job->claim, &request.taken, err);
    if (status) return status;
    farm_bitmap_add(&request.taken, &job->plan->claim);
    struct farm_bitmap left = job->machine->allowed;
    farm_bitmap_remove(&left, &request.taken);
    if (!farm_bitmap_count(&left)) return farm_fail(err, FARM_E_BUSY, "no CPU is free");
    status = farm_plan_make(job->machine, &request, plan, err);
    if (!status) status = farm_claim_take(&job->claim, &plan->claim, err);
    if (status) return status;
    farm_bitmap_add(&job->plan->claim, &plan->claim);
    job->actor_jobs[a].claimed = plan->claim;
    job->plan->actor[a] = plan->actor[0];
    farm_plan_actor_cpus(job->machine, plan, 0, &job->actor_jobs[a].cpus);
    return FARM_OK;
}

// On CPUs that are free; where none is, or nothing is pinned, beside an actor of the start: on its node's CPUs.
static void find_cpus(struct farm_job *job, uint32_t a) {
    struct farm_error err;
    struct farm_plan *plan = job->plan->pinned ? calloc(1, sizeof *plan) : NULL;
    const enum farm_status status = plan ? plan_on_free_cpus(job, a, plan, &err) : FARM_OK;
    const bool pinned = plan && !status;
    free(plan);
    if (pinned) return;
    if (status) farm_job_tell(job, "actor %u shares CPUs with others: %s", a, err.message);
    job->plan->actor[a] = job->plan->actor[a % (uint32_t)job->recipe.actors];
    job->plan->actor[a].cpu = -1;
    if (job->plan->actor_count <= (int)a) job->plan->actor_count = (int)a + 1;
    farm_plan_actor_cpus(job->machine, job->plan, (int)a, &job->actor_jobs[a].cpus);
}

static enum farm_status prepare(struct farm_job *job, uint32_t a, struct farm_error *err) {
    const struct farm_limits_request limits = {
        .shared_bytes = farm_job_actor_bytes(job), .huge = job->recipe.huge_pages, .root = "/"};
    enum farm_status status = farm_limits_check(&limits, err);
    if (status) return status;
    find_cpus(job, a);
    job->ring_shard[a] = shard_for_one_more(job);
    job->plan->actor[a].gpu = (int)job->ring_shard[a];
    status = farm_job_make_ring(job, a, err);
    if (!status) status = farm_job_describe_actor(job, a, &job->change.spec, err);
    job->change.spec.expendable = true; // a run that goes well does not end for one that came later
    return status;
}

static void give_back(struct farm_job *job, uint32_t a) {
    struct farm_job_actor *actor = &job->actor_jobs[a];
    farm_env_program_free(&actor->program);
    actor->program = (struct farm_env_program){0};
    farm_claim_give(&job->claim, &actor->claimed);
    farm_bitmap_remove(&job->plan->claim, &actor->claimed);
    actor->claimed = (struct farm_bitmap){0};
    actor->lost = false;
    if (!job->rings[a].lanes) return;
    job->bad_values += farm_load_relaxed(&job->rings[a].up_control->abandoned);
    farm_ring_close(&job->rings[a]);
}

static enum farm_status ask(struct farm_job *job, struct farm_error *err) {
    const uint32_t a = job->change.actor;
    struct farm_gate_question question = {
        .kind = FARM_GATE_LEAVE, .ring = a, .shard = job->ring_shard[a], .fds = {-1, -1}};
    if (job->change.state == FARM_JOB_COMES) {
        question.kind = FARM_GATE_JOIN;
        question.fds[0] = job->rings[a].up.fd_readonly;
        question.fds[1] = job->rings[a].down.fd;
        if (job->up_writable) question.up_writable = job->rings[a].up.fd;
    }
    return farm_gate_ask(job->gate, &question, err);
}

static void refuse(struct farm_job *job, const struct farm_error *why) {
    if (job->change.state == FARM_JOB_COMES) {
        farm_job_say(job, "no further actor: %s", why->message);
        give_back(job, job->change.actor);
    } else if (job->actor_jobs[job->change.actor].lost) {
        snprintf(job->learner_error, sizeof job->learner_error,
                 "training cannot go on without actor %u, which cannot be kept alive: %s", job->change.actor,
                 why->message);
        job->cannot_go_on = true;
    } else {
        farm_job_say(job, "actor %u stays: %s", job->change.actor, why->message);
    }
    job->change.state = FARM_JOB_SETTLED;
}

static void let_one_come(struct farm_job *job) {
    uint32_t a = 0;
    struct farm_error err;
    while (a < job->places && job->actor_jobs[a].there) a++;
    if (a == job->places) {
        farm_job_say(job, "no further actor: this run has room for %u%s", job->places,
                     job->places > (uint32_t)job->recipe.actors ? " (more --actors at the start make more)"
                                                                : " (a higher ulimit -n makes more)");
        return;
    }
    job->change.state = FARM_JOB_COMES;
    job->change.actor = a;
    enum farm_status status = prepare(job, a, &err);
    if (!status) status = ask(job, &err);
    if (status) refuse(job, &err);
}

static void start(struct farm_job *job, struct farm_error *err) {
    const uint32_t a = job->change.actor;
    const enum farm_status status = farm_supervisor_enlist(job->supervisor, a, &job->change.spec, err);
    assert(!status); // its number was vacant, and its description is whole
    job->actor_jobs[a].there = true;
    job->actors++;
    job->change.state = FARM_JOB_SETTLED;
    farm_job_tell(job, "actor %u has come: %u now", a, job->actors);
}

// ---- one goes ----

static void let_go(struct farm_job *job, uint32_t a) {
    struct farm_error err;
    job->change.actor = a;
    job->change.state = FARM_JOB_GOES;
    if (ask(job, &err)) refuse(job, &err);
}

// The newest of the GPU that serves most.
static void let_one_go(struct farm_job *job) {
    uint32_t most = 0, newest = 0;
    for (uint32_t k = 1; k < job->learner.shard_count; k++)
        if (rings_of(job, k) > rings_of(job, most)) most = k;
    for (uint32_t a = 0; a < job->places; a++)
        if (job->actor_jobs[a].there && job->ring_shard[a] == most) newest = a;
    let_go(job, newest);
}

static void end(struct farm_job *job) {
    const uint32_t a = job->change.actor;
    job->change.state = FARM_JOB_ENDS;
    job->actor_jobs[a].there = false;
    job->actors--;
    farm_store_release(&job->rings[a].down_control->stop, 1);
    farm_supervisor_dismiss(job->supervisor, a);
    if (job->actor_jobs[a].lost) farm_job_change_ended(job, a); // it has ended before
}

void farm_job_change_lost(struct farm_job *job, size_t worker, const char *why) {
    job->actor_jobs[worker].lost = true;
    farm_job_say(job, "%s", why);
}

static bool any_lost(const struct farm_job *job, uint32_t *a) {
    for (*a = 0; *a < job->places; ++*a)
        if (job->actor_jobs[*a].lost && job->actor_jobs[*a].there) return true;
    return false;
}

void farm_job_change_ended(struct farm_job *job, size_t worker) {
    if (job->change.state != FARM_JOB_ENDS || worker != job->change.actor) return;
    give_back(job, job->change.actor);
    job->change.state = FARM_JOB_SETTLED;
    farm_job_tell(job, "actor %zu has gone: %u now", worker, job->actors);
}

// ---- as it goes ----

static void hear(struct farm_job *job) {
    struct farm_gate_answer answer;
    if (!farm_gate_answered(job->gate, &answer) || answer.ring != job->change.actor) return;
    if (answer.status)
        refuse(job, &answer.error);
    else if (job->change.state == FARM_JOB_COMES)
        start(job, &answer.error);
    else
        end(job);
}

void farm_job_change_turn(struct farm_job *job) {
    struct farm_job_change *change = &job->change;
    if (change->state == FARM_JOB_COMES || change->state == FARM_JOB_GOES) hear(job);
    uint32_t lost;
    if (change->state != FARM_JOB_SETTLED || !farm_load_acquire(&job->stats->ready)) return;
    if (any_lost(job, &lost)) {
        let_go(job, lost);
        return;
    }
    if (!change->wanted) return;
    const bool more = change->wanted > 0;
    change->wanted += more ? -1 : 1;
    if (more)
        let_one_come(job);
    else
        let_one_go(job);
}

void farm_job_change_again(struct farm_job *job) {
    struct farm_error err;
    if (!job->elastic) return;
    farm_gate_clear(job->gate, job->learner.gate);
    if (job->change.state != FARM_JOB_COMES && job->change.state != FARM_JOB_GOES) return;
    if (ask(job, &err)) refuse(job, &err);
}
