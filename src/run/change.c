// See change.h.
#include "run/change.h"

#include <assert.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "learner/admission.h"
#include "shm/limits.h"

enum farm_status farm_run_change_make(struct farm_run_change *change, struct farm_error *err) {
    const struct farm_run_plan *plan = change->workers->plan;
    change->claimed = plan->placement->claim;
    return plan->elastic ? farm_admission_make(&change->admission, &change->workers->learner.admission, err) : FARM_OK;
}

void farm_run_change_free(struct farm_run_change *change) {
    if (!change->admission) return;
    close(change->admission);
    close(change->workers->learner.admission);
}

void farm_run_change_signal(struct farm_run_change *change, int number) {
    change->wanted += number == SIGUSR1 ? 1 : -1;
}

// ---- one comes ----

// The shard that serves fewest; of equals the one nearest to the actor's memory.
static uint32_t shard_for_one_more(const struct farm_run_workers *workers, int node) {
    const struct farm_run_plan *plan = workers->plan;
    const int *shard_node = plan->placement->shard_node;
    uint32_t least = 0;
    for (uint32_t k = 1; k < plan->shards; k++) {
        const uint32_t serves = farm_run_workers_of_shard(workers, k),
                       fewest = farm_run_workers_of_shard(workers, least);
        if (serves < fewest || (serves == fewest && farm_machine_distance(plan->machine, shard_node[k], node) <
                                                        farm_machine_distance(plan->machine, shard_node[least], node)))
            least = k;
    }
    return least;
}

// CPUs that no farm has, by the plan's rules for one actor, as actor 0 of `placement`.
static enum farm_status place_on_free_cpus(struct farm_run_change *change, struct farm_plan *placement,
                                           struct farm_error *err) {
    const struct farm_run_plan *plan = change->workers->plan;
    struct farm_plan_request request = {.actors = 1,
                                        .learner_device = FARM_LEARNER_NONE,
                                        .envs_per_actor = (int)plan->recipe.envs_per_actor,
                                        .bytes_per_actor = farm_run_actor_bytes(plan),
                                        .pin = true,
                                        .numa = plan->recipe.numa};
    enum farm_status status = farm_claim_read_taken(&plan->claim, &request.taken, err);
    if (status) return status;
    farm_bitmap_add(&request.taken, &change->claimed);
    struct farm_bitmap left = plan->machine->allowed;
    farm_bitmap_remove(&left, &request.taken);
    if (!farm_bitmap_count(&left)) return farm_fail(err, FARM_E_BUSY, "no CPU is free");
    status = farm_plan_make(plan->machine, &request, placement, err);
    return status ? status : farm_claim_take(&plan->claim, &placement->claim, err);
}

// On free CPUs; if there are none, or nothing is pinned, beside an actor of the start: on its node's CPUs.
static enum farm_status find_cpus(struct farm_run_change *change, uint32_t a, struct farm_error *err) {
    const struct farm_run_plan *plan = change->workers->plan;
    struct farm_run_actor *actor = &change->workers->actors[a];
    struct farm_plan *placement = calloc(1, sizeof *placement);
    if (!placement) return farm_fail_errno(err, FARM_E_LIMIT, "no memory for the plan");
    struct farm_error why;
    const bool pinned = plan->placement->pinned, alone = pinned && !place_on_free_cpus(change, placement, &why);
    if (alone) {
        actor->claimed = placement->claim;
        farm_bitmap_add(&change->claimed, &placement->claim);
    } else {
        if (pinned) farm_run_note(change->workers->caller, "actor %u shares CPUs with others: %s", a, why.message);
        *placement = *plan->placement;
        if (plan->actors)
            placement->actor[0] = placement->actor[a % plan->actors];
        else
            placement->actor[0] = (struct farm_plan_actor){.cpu_node = -1, .memory_node = -1};
        placement->actor[0].cpu = -1;
        placement->actor_count = 1;
        if (!farm_bitmap_count(&placement->actor_cpus)) placement->actor_cpus = plan->machine->allowed;
    }
    actor->memory_node = placement->actor[0].memory_node;
    farm_plan_actor_cpus(plan->machine, placement, 0, &actor->cpus);
    free(placement);
    return FARM_OK;
}

static enum farm_status prepare(struct farm_run_change *change, uint32_t a, struct farm_error *err) {
    struct farm_run_workers *workers = change->workers;
    const struct farm_run_plan *plan = workers->plan;
    const struct farm_limits_request limits = {
        .shared_bytes = farm_run_actor_bytes(plan), .huge = plan->recipe.huge_pages, .root = "/"};
    enum farm_status status = farm_limits_check(&limits, err);
    if (!status) status = find_cpus(change, a, err);
    if (status) return status;
    workers->ring_shard[a] = shard_for_one_more(workers, workers->actors[a].memory_node);
    status = farm_run_rings_add(workers->rings, plan, a, workers->actors[a].memory_node, err);
    if (!status) status = farm_run_workers_describe(workers, a, &change->spec, err);
    change->spec.expendable = true; // it must not end a run that goes well without it
    return status;
}

static void give_back(struct farm_run_change *change, uint32_t a) {
    struct farm_run_actor *actor = &change->workers->actors[a];
    struct farm_ring *ring = &change->workers->rings->ring[a];
    if (!actor->remote) {
        farm_env_program_free(&actor->program);
        farm_claim_give(&change->workers->plan->claim, &actor->claimed);
        farm_bitmap_remove(&change->claimed, &actor->claimed);
        actor->claimed = (struct farm_bitmap){0};
    }
    actor->lost = actor->remote = false;
    if (!ring->lanes) return;
    change->bad_values += farm_load_relaxed(&ring->up_control->abandoned);
    farm_ring_close(ring);
}

static enum farm_status ask(struct farm_run_change *change, struct farm_error *err) {
    const uint32_t a = change->actor;
    const struct farm_ring *ring = &change->workers->rings->ring[a];
    struct farm_admission_request question = {
        .kind = FARM_ADMISSION_LEAVE, .ring = a, .shard = change->workers->ring_shard[a], .fds = {-1, -1}};
    if (change->state == FARM_RUN_COMES) {
        question.kind = FARM_ADMISSION_JOIN;
        question.fds[0] = ring->up.fd_readonly;
        question.fds[1] = ring->down.fd;
        if (change->workers->up_writable) question.up_writable = ring->up.fd;
        if (change->workers->actors[a].remote) question.wake = change->workers->actors[a].wake;
    }
    return farm_admission_send_request(change->admission, &question, err);
}

static void refuse(struct farm_run_change *change, const struct farm_error *why) {
    const struct farm_run_caller *caller = change->workers->caller;
    const uint32_t a = change->actor;
    if (change->workers->actors[a].remote) {
        const bool comes = change->state == FARM_RUN_COMES;
        change->state = FARM_RUN_SETTLED;
        if (comes) give_back(change, a);
        if (comes)
            change->remote.came(change->remote.context, a, why);
        else
            change->remote.went(change->remote.context, a, why);
        return;
    }
    if (change->state == FARM_RUN_COMES) {
        farm_run_warn(caller, "no further actor: %s", why->message);
        give_back(change, a);
    } else if (change->workers->actors[a].lost) {
        snprintf(change->failure, sizeof change->failure,
                 "training cannot go on without actor %u, which cannot be kept alive: %s", a, why->message);
    } else {
        farm_run_warn(caller, "actor %u stays: %s", a, why->message);
    }
    change->state = FARM_RUN_SETTLED;
}

static void let_one_come(struct farm_run_change *change) {
    const struct farm_run_workers *workers = change->workers;
    const uint32_t places = workers->plan->places;
    uint32_t a = 0;
    struct farm_error err;
    while (a < places && (workers->actors[a].there || workers->actors[a].remote)) a++;
    if (a == places) {
        farm_run_warn(workers->caller, "no further actor: this run has room for %u%s", places,
                      places > workers->plan->actors ? " (more --actors at the start make more)"
                                                     : " (a higher ulimit -n makes more)");
        return;
    }
    change->state = FARM_RUN_COMES;
    change->actor = a;
    enum farm_status status = prepare(change, a, &err);
    if (!status) status = ask(change, &err);
    if (status) refuse(change, &err);
}

static void start(struct farm_run_change *change, struct farm_error *err) {
    struct farm_run_workers *workers = change->workers;
    if (workers->actors[change->actor].remote) {
        workers->actors[change->actor].there = true;
        workers->count++;
        change->state = FARM_RUN_SETTLED;
        change->remote.came(change->remote.context, change->actor, NULL);
        return;
    }
    const enum farm_status status = farm_supervisor_enlist(workers->supervisor, change->actor, &change->spec, err);
    assert(!status); // its number was vacant, and its description is whole
    workers->actors[change->actor].there = true;
    workers->count++;
    change->state = FARM_RUN_SETTLED;
    farm_run_note(workers->caller, "actor %u has come: %u now", change->actor, workers->count);
}

// ---- one goes ----

// A person who takes actors away is kept from stopping training by it.
static enum farm_status can_spare(const struct farm_run_workers *workers, uint32_t a, struct farm_error *err) {
    const uint32_t shard = workers->ring_shard[a], left = farm_run_workers_of_shard(workers, shard) - 1;
    if (left) return farm_run_update_fits(workers->plan, left, shard, err);
    return farm_fail(err, FARM_E_LIMIT, "it is the last actor%s (Ctrl-C ends the run)",
                     workers->plan->shards > 1 ? " of its shard" : "");
}

static void let_go(struct farm_run_change *change, uint32_t a) {
    struct farm_error err;
    change->actor = a;
    change->state = FARM_RUN_GOES;
    if (can_spare(change->workers, a, &err) || ask(change, &err)) refuse(change, &err);
}

// The newest of this machine's actors that are of a shard; `places`: none is.
static uint32_t newest_of(const struct farm_run_workers *workers, uint32_t shard) {
    uint32_t newest = workers->plan->places;
    for (uint32_t a = 0; a < workers->plan->places; a++)
        if (workers->actors[a].there && !workers->actors[a].remote && workers->ring_shard[a] == shard) newest = a;
    return newest;
}

// Of the shard that serves most.
static void let_one_go(struct farm_run_change *change) {
    const struct farm_run_workers *workers = change->workers;
    const uint32_t places = workers->plan->places;
    uint32_t most = 0, newest = places;
    for (uint32_t k = 0; k < workers->plan->shards; k++) {
        const uint32_t a = newest_of(workers, k), serves = farm_run_workers_of_shard(workers, k);
        if (a == places || (newest < places && serves <= most)) continue;
        most = serves;
        newest = a;
    }
    if (newest < places)
        let_go(change, newest);
    else
        farm_run_warn(workers->caller, "no actor of this machine is left to go");
}

static void end(struct farm_run_change *change) {
    struct farm_run_workers *workers = change->workers;
    const uint32_t a = change->actor;
    change->state = FARM_RUN_ENDS;
    workers->actors[a].there = false;
    workers->count--;
    farm_store_release(&workers->rings->ring[a].down_control->stop, 1);
    if (workers->actors[a].remote) {
        give_back(change, a);
        change->state = FARM_RUN_SETTLED;
        change->remote.went(change->remote.context, a, NULL);
        return;
    }
    farm_supervisor_dismiss(workers->supervisor, a);
    if (workers->actors[a].lost) farm_run_change_ended(change, a); // it has ended before
}

void farm_run_change_lost(struct farm_run_change *change, size_t worker, const char *why) {
    change->workers->actors[worker].lost = true;
    farm_run_warn(change->workers->caller, "%s", why);
}

static bool any_lost(const struct farm_run_workers *workers, uint32_t *a) {
    for (*a = 0; *a < workers->plan->places; ++*a)
        if (workers->actors[*a].lost && workers->actors[*a].there) return true;
    return false;
}

void farm_run_change_ended(struct farm_run_change *change, size_t worker) {
    if (change->state != FARM_RUN_ENDS || worker != change->actor) return;
    give_back(change, change->actor);
    change->state = FARM_RUN_SETTLED;
    farm_run_note(change->workers->caller, "actor %zu has gone: %u now", worker, change->workers->count);
}

// ---- remote ones ----

// On the node of the shard's inference thread, which reads every frame; -1: any.
static int node_of_shard(const struct farm_run_plan *plan, uint32_t shard) {
    const int node = plan->placement->shard_node[shard];
    if (!plan->recipe.numa) return -1;
    return node >= 0 ? farm_machine_memory_node(plan->machine, node) : plan->placement->learner_node;
}

void farm_run_change_bring(struct farm_run_change *change, uint32_t a) {
    struct farm_run_workers *workers = change->workers;
    struct farm_error err;
    assert(change->state == FARM_RUN_SETTLED && workers->actors[a].remote);
    change->state = FARM_RUN_COMES;
    change->actor = a;
    workers->ring_shard[a] = shard_for_one_more(workers, -1);
    workers->actors[a].memory_node = node_of_shard(workers->plan, workers->ring_shard[a]);
    enum farm_status status =
        farm_run_rings_add(workers->rings, workers->plan, a, workers->actors[a].memory_node, &err);
    if (!status) status = ask(change, &err);
    if (status) refuse(change, &err);
}

void farm_run_change_take(struct farm_run_change *change, uint32_t a) {
    struct farm_error err;
    assert(change->state == FARM_RUN_SETTLED && change->workers->actors[a].remote);
    change->state = FARM_RUN_GOES;
    change->actor = a;
    if (ask(change, &err)) refuse(change, &err);
}

// ---- as the run goes on ----

static void hear(struct farm_run_change *change) {
    struct farm_admission_reply answer;
    do {
        if (!farm_admission_receive_reply(change->admission, &answer)) return;
    } while (answer.ring != change->actor);
    if (answer.status)
        refuse(change, &answer.error);
    else if (change->state == FARM_RUN_COMES)
        start(change, &answer.error);
    else
        end(change);
}

// The next change that is due. False: none is.
static bool begin(struct farm_run_change *change) {
    uint32_t lost;
    if (any_lost(change->workers, &lost)) {
        let_go(change, lost);
        return true;
    }
    if (!change->wanted) return change->remote.next && change->remote.next(change->remote.context);
    const bool more = change->wanted > 0;
    change->wanted += more ? -1 : 1;
    if (more)
        let_one_come(change);
    else
        let_one_go(change);
    return true;
}

void farm_run_change_turn(struct farm_run_change *change) {
    if (change->state == FARM_RUN_COMES || change->state == FARM_RUN_GOES) hear(change);
    if (!farm_load_acquire(&change->workers->rings->stats->ready)) return;
    while (change->state == FARM_RUN_SETTLED && !change->failure[0] && begin(change)) {
    }
}

void farm_run_change_learner_starts(struct farm_run_change *change) {
    struct farm_error err;
    if (!change->admission) return;
    farm_admission_clear(change->admission, change->workers->learner.admission);
    if (change->state != FARM_RUN_COMES && change->state != FARM_RUN_GOES) return;
    if (ask(change, &err)) refuse(change, &err);
}
