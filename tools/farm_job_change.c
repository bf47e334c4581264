// Actors that come and go while a job runs: SIGUSR1 asks for one more, SIGUSR2 for one fewer. One change at a time. An
// actor that comes gets a place, CPUs and rings; the learner lets its rings in; then it is started. Of an actor that
// goes the learner lets go first; then it is ended and its memory is given back. What cannot be done is said, and
// changes nothing. See farm_job_parts.h, learner/gate.h.
#include <assert.h>
#include <signal.h>
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

// CPUs that no farm has, by the plan's rules for one actor; none: its place in the plan stays empty.
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
    job->plan->actor[a] = plan->actor[0];
    farm_plan_actor_cpus(job->machine, plan, 0, &job->actor_jobs[a].cpus);
    return FARM_OK;
}

// On CPUs that are free; where none is, or nothing is pinned, wherever the other actors are.
static void find_cpus(struct farm_job *job, uint32_t a) {
    struct farm_error err;
    struct farm_plan *plan = job->plan->pinned ? calloc(1, sizeof *plan) : NULL;
    const bool found = plan && plan_on_free_cpus(job, a, plan, &err) == FARM_OK;
    free(plan);
    if (found) return;
    job->plan->actor[a] = job->plan->actor[a % (uint32_t)job->plan->actor_count];
    job->plan->actor[a].cpu = -1;
    job->actor_jobs[a].cpus = job->plan->actor_cpus;
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
    return status ? status : farm_job_describe_actor(job, a, &job->change.spec, err);
}

static void give_back(struct farm_job *job, uint32_t a) {
    farm_env_program_free(&job->actor_jobs[a].program);
    job->actor_jobs[a].program = (struct farm_env_program){0};
    if (job->rings[a].lanes) farm_ring_close(&job->rings[a]);
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
        farm_job_say(job, "no further actor: there is room for %u", job->places);
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

// The newest of the GPU that serves most.
static void let_one_go(struct farm_job *job) {
    uint32_t most = 0;
    struct farm_error err;
    for (uint32_t k = 1; k < job->learner.shard_count; k++)
        if (rings_of(job, k) > rings_of(job, most)) most = k;
    for (uint32_t a = 0; a < job->places; a++)
        if (job->actor_jobs[a].there && job->ring_shard[a] == most) job->change.actor = a;
    job->change.state = FARM_JOB_GOES;
    if (ask(job, &err)) refuse(job, &err);
}

static void end(struct farm_job *job) {
    const uint32_t a = job->change.actor;
    job->change.state = FARM_JOB_ENDS;
    job->actor_jobs[a].there = false;
    job->actors--;
    farm_store_release(&job->rings[a].down_control->stop, 1);
    farm_supervisor_dismiss(job->supervisor, a);
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
    if (change->state != FARM_JOB_SETTLED || !change->wanted || !farm_load_acquire(&job->board->ready)) return;
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
