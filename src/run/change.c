// See change.h.
#include "run/change.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shm/limits.h"

enum { PROGRESS_ROUNDS = 64 }; // rounds of all lanes of an actor

void farm_run_change_request(struct farm_run_change *change, int add) {
    const int64_t wanted = (int64_t)change->wanted + add, most = FARM_PLAN_ACTORS_MAX;
    change->wanted = (int)(wanted > most ? most : wanted < -most ? -most : wanted);
}

// ---- joining ----

// The shard that serves the fewest actors; among equals the one nearest to the actor's memory.
static uint32_t choose_shard(const struct farm_run_workers *workers, int node) {
    const struct farm_run_plan *plan = workers->plan;
    const int *shard_node = plan->placement->shard_node;
    uint32_t least = 0;
    for (uint32_t k = 1; k < plan->shards; k++) {
        const uint32_t serves = workers->in_shard[k], fewest = workers->in_shard[least];
        if (serves < fewest || (serves == fewest && farm_machine_distance(plan->machine, shard_node[k], node) <
                                                        farm_machine_distance(plan->machine, shard_node[least], node)))
            least = k;
    }
    return least;
}

// Places one actor, as actor 0 of `placement`, on CPUs that no farm has claimed.
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

// Free CPUs; if there are none, or nothing is pinned, the CPUs of an initial actor's node.
static enum farm_status choose_cpus(struct farm_run_change *change, uint32_t a, struct farm_error *err) {
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
        placement->actor_cpus = plan->placement->actor_cpus;
        if (plan->actors)
            placement->actor[0] = plan->placement->actor[a % plan->actors];
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

// What the learner will still take: it checks copies of each actor's steps (intake/validator.h), whose memory comes
// with the steps. At least what it took at its start, so that it can start again.
static uint64_t learner_growth(const struct farm_run_workers *workers) {
    const struct farm_run_plan *plan = workers->plan;
    const struct farm_env_spec *env = &plan->ring_spec.env;
    uint64_t copy = sizeof(float) + 1; // reward and flags
    for (uint32_t f = 0; f < env->obs_count; f++)
        if (env->obs[f].dtype != FARM_U8) copy += farm_field_bytes(&env->obs[f]);
    copy *= (uint64_t)plan->lanes * plan->width * plan->steps;
    const uint64_t start = farm_run_learner_bytes(plan), all = start + (workers->count + 1) * copy,
                   has = farm_run_workers_bytes(workers, workers->learner_number);
    return all > has + start ? all - has : start;
}

// Whether the rings of one more actor fit.
static enum farm_status check_memory(const struct farm_run_workers *workers, struct farm_error *err) {
    const struct farm_run_plan *plan = workers->plan;
    const struct farm_limits_request limits = {.shared_bytes = farm_run_actor_bytes(plan) + learner_growth(workers),
                                               .huge = plan->recipe.huge_pages,
                                               .root = "/"};
    const enum farm_status status = farm_limits_check(&limits, err);
    return status ? farm_fail_in(err, status, "memory is full for actors of %.3g MB each (and the learner's part)",
                                 (double)farm_run_actor_bytes(plan) / 1e6)
                  : FARM_OK;
}

static enum farm_status prepare_actor(struct farm_run_change *change, uint32_t a, struct farm_error *err) {
    struct farm_run_workers *workers = change->workers;
    const struct farm_run_plan *plan = workers->plan;
    enum farm_status status = check_memory(workers, err);
    if (!status) status = choose_cpus(change, a, err);
    if (status) return status;
    workers->ring_shard[a] = choose_shard(workers, workers->actors[a].memory_node);
    status = farm_run_rings_add(workers->rings, plan, a, workers->actors[a].memory_node, err);
    if (!status) status = farm_run_workers_describe(workers, a, &change->spec, err);
    change->spec.expendable = true; // its failure does not end the run
    return status;
}

uint64_t farm_run_change_answered(const struct farm_ring *ring) {
    uint64_t steps = 0;
    for (uint32_t l = 0; ring->lanes && l < ring->spec.lanes; l++)
        steps += farm_lane_acted(&ring->lanes[l]) * ring->spec.width;
    return steps;
}

static void free_actor(struct farm_run_change *change, uint32_t a) {
    struct farm_run_actor *actor = &change->workers->actors[a];
    struct farm_ring *ring = &change->workers->rings->ring[a];
    if (!actor->remote) {
        farm_env_program_free(&actor->program);
        farm_claim_give(&change->workers->plan->claim, &actor->claimed);
        farm_bitmap_remove(&change->claimed, &actor->claimed);
        actor->claimed = (struct farm_bitmap){0};
    }
    change->lost -= actor->lost;
    actor->lost = actor->remote = false;
    if (!ring->lanes) return;
    change->abandoned += farm_load_relaxed(&ring->up_control->abandoned);
    change->answered += farm_run_change_answered(ring);
    farm_ring_close(ring);
}

struct farm_admission_request farm_run_change_join(const struct farm_run_change *change, uint32_t a) {
    const struct farm_run_workers *workers = change->workers;
    const struct farm_ring *ring = &workers->rings->ring[a];
    return (struct farm_admission_request){.kind = FARM_ADMISSION_JOIN,
                                           .ring = a,
                                           .shard = workers->ring_shard[a],
                                           .fds = {ring->up.fd_readonly, ring->down.fd},
                                           .up_writable = workers->up_writable ? ring->up.fd : -1,
                                           .wake = workers->actors[a].remote ? workers->actors[a].wake : -1};
}

static enum farm_status send_request(struct farm_run_change *change, struct farm_error *err) {
    struct farm_admission_request request = farm_run_change_join(change, change->actor);
    if (change->admission < 0) return FARM_OK; // no consumer
    if (change->state != FARM_RUN_CHANGE_JOINING) request.kind = FARM_ADMISSION_LEAVE;
    return farm_admission_send_request(change->admission, &request, err);
}

// The remaining ones of a refused kind (above 0: joining) would be refused too.
static void drop_requests(struct farm_run_change *change, int kind) {
    if ((change->wanted > 0) == (kind > 0)) change->wanted = 0;
}

static void report_refusal(struct farm_run_change *change, const struct farm_error *why) {
    const struct farm_run_caller *caller = change->workers->caller;
    const uint32_t a = change->actor;
    if (change->workers->actors[a].remote) {
        const bool comes = change->state == FARM_RUN_CHANGE_JOINING;
        change->state = FARM_RUN_CHANGE_IDLE;
        if (comes) free_actor(change, a);
        if (comes)
            change->remote.joined(change->remote.context, a, why);
        else
            change->remote.left(change->remote.context, a, why);
        return;
    }
    if (change->state == FARM_RUN_CHANGE_JOINING) {
        farm_run_warn(caller, "no further actor: %s", why->message);
        free_actor(change, a);
        drop_requests(change, 1);
    } else if (change->workers->actors[a].lost) {
        snprintf(change->failure, sizeof change->failure,
                 "training cannot go on without actor %u, which cannot be kept alive: %s", a, why->message);
    } else {
        farm_run_warn(caller, "actor %u stays: %s", a, why->message);
        drop_requests(change, -1);
    }
    change->state = FARM_RUN_CHANGE_IDLE;
}

static void add_actor(struct farm_run_change *change) {
    const struct farm_run_workers *workers = change->workers;
    const uint32_t places = workers->plan->places;
    uint32_t a = 0;
    struct farm_error err;
    while (a < places && (workers->actors[a].attached || workers->actors[a].remote)) a++;
    if (a == places) {
        farm_run_warn(workers->caller, "no further actor: this run has %u places%s", places,
                      places > workers->plan->actors ? " (more --actors at the start make more)"
                                                     : " (a higher ulimit -n makes more)");
        drop_requests(change, 1);
        return;
    }
    change->state = FARM_RUN_CHANGE_JOINING;
    change->actor = a;
    enum farm_status status = prepare_actor(change, a, &err);
    if (!status) status = send_request(change, &err);
    if (status) report_refusal(change, &err);
}

static void start_actor(struct farm_run_change *change, struct farm_error *err) {
    struct farm_run_workers *workers = change->workers;
    if (workers->actors[change->actor].remote) {
        farm_run_workers_attach(workers, change->actor, true);
        change->state = FARM_RUN_CHANGE_IDLE;
        change->remote.joined(change->remote.context, change->actor, NULL);
        return;
    }
    const enum farm_status status = farm_supervisor_enlist(workers->supervisor, change->actor, &change->spec, err);
    assert(!status); // its number was vacant, and its description is complete
    farm_run_workers_attach(workers, change->actor, true);
    change->state = FARM_RUN_CHANGE_IDLE;
    farm_run_note(workers->caller, "actor %u has joined: %u now", change->actor, workers->count);
}

// ---- leaving ----

// Keeps a user from stopping training by removing actors.
static enum farm_status check_spare(const struct farm_run_workers *workers, uint32_t a, struct farm_error *err) {
    const uint32_t shard = workers->ring_shard[a], left = workers->in_shard[shard] - 1;
    if (left) return farm_run_update_fits(workers->plan, left, shard, err);
    return farm_fail(err, FARM_E_LIMIT, "it is the last actor%s (Ctrl-C ends the run)",
                     workers->plan->shards > 1 ? " of its shard" : "");
}

static void remove_actor(struct farm_run_change *change, uint32_t a) {
    struct farm_error err;
    change->actor = a;
    change->state = FARM_RUN_CHANGE_LEAVING;
    if (check_spare(change->workers, a, &err) || send_request(change, &err)) report_refusal(change, &err);
}

// The newest of this machine's actors in a shard; `places`: there is none.
static uint32_t find_newest(const struct farm_run_workers *workers, uint32_t shard) {
    uint32_t newest = workers->plan->places;
    for (uint32_t a = 0; a < workers->plan->places; a++)
        if (workers->actors[a].attached && !workers->actors[a].remote && workers->ring_shard[a] == shard) newest = a;
    return newest;
}

// From the shard that serves the most actors.
static void remove_newest_actor(struct farm_run_change *change) {
    const struct farm_run_workers *workers = change->workers;
    const uint32_t places = workers->plan->places;
    uint32_t most = 0, newest = places;
    for (uint32_t k = 0; k < workers->plan->shards; k++) {
        const uint32_t a = find_newest(workers, k), serves = workers->in_shard[k];
        if (a == places || (newest < places && serves <= most)) continue;
        most = serves;
        newest = a;
    }
    if (newest < places)
        remove_actor(change, newest);
    else
        farm_run_warn(workers->caller, "no actor of this machine can leave"), drop_requests(change, -1);
}

static void actor_ended(void *owner, uint32_t a) {
    struct farm_run_change *change = owner;
    if (change->state != FARM_RUN_CHANGE_ENDING || a != change->actor) return;
    free_actor(change, a);
    change->state = FARM_RUN_CHANGE_IDLE;
    farm_run_note(change->workers->caller, "actor %u has left: %u now", a, change->workers->count);
}

static void end_actor(struct farm_run_change *change) {
    struct farm_run_workers *workers = change->workers;
    const uint32_t a = change->actor;
    change->state = FARM_RUN_CHANGE_ENDING;
    farm_run_workers_attach(workers, a, false);
    farm_store_release(&workers->rings->ring[a].down_control->stop, 1);
    if (workers->actors[a].remote) {
        free_actor(change, a);
        change->state = FARM_RUN_CHANGE_IDLE;
        change->remote.left(change->remote.context, a, NULL);
        return;
    }
    farm_supervisor_dismiss(workers->supervisor, a);
    if (workers->actors[a].lost) actor_ended(change, a); // it has ended already
}

static bool find_lost(const struct farm_run_workers *workers, uint32_t *a) {
    for (*a = 0; *a < workers->plan->places; ++*a)
        if (workers->actors[*a].lost && workers->actors[*a].attached) return true;
    return false;
}

// ---- remote actors ----

// The NUMA node of the shard's inference thread, which reads every frame; -1: any.
static int node_of_shard(const struct farm_run_plan *plan, uint32_t shard) {
    const int node = plan->placement->shard_node[shard];
    if (!plan->recipe.numa) return -1;
    return node >= 0 ? farm_machine_memory_node(plan->machine, node) : plan->placement->learner_node;
}

void farm_run_change_add_remote(struct farm_run_change *change, uint32_t a) {
    struct farm_run_workers *workers = change->workers;
    struct farm_error err;
    assert(change->state == FARM_RUN_CHANGE_IDLE && workers->actors[a].remote);
    change->state = FARM_RUN_CHANGE_JOINING;
    change->actor = a;
    workers->ring_shard[a] = choose_shard(workers, -1);
    workers->actors[a].memory_node = node_of_shard(workers->plan, workers->ring_shard[a]);
    enum farm_status status = check_memory(workers, &err);
    if (!status) status = farm_run_rings_add(workers->rings, workers->plan, a, workers->actors[a].memory_node, &err);
    if (!status) status = send_request(change, &err);
    if (status) report_refusal(change, &err);
}

void farm_run_change_remove_remote(struct farm_run_change *change, uint32_t a) {
    struct farm_error err;
    assert(change->state == FARM_RUN_CHANGE_IDLE && change->workers->actors[a].remote);
    change->state = FARM_RUN_CHANGE_LEAVING;
    change->actor = a;
    if (send_request(change, &err)) report_refusal(change, &err);
}

// ---- during the run ----

static void handle_reply(struct farm_run_change *change) {
    struct farm_admission_reply reply = {.ring = change->actor};
    do {
        if (change->admission >= 0 && !farm_admission_receive_reply(change->admission, &reply)) return;
    } while (reply.ring != change->actor);
    if (reply.status)
        report_refusal(change, &reply.error);
    else if (change->state == FARM_RUN_CHANGE_JOINING)
        start_actor(change, &reply.error);
    else
        end_actor(change);
}

// Begins the next change. False: none is due.
static bool begin_change(struct farm_run_change *change) {
    uint32_t lost;
    if (change->lost && find_lost(change->workers, &lost)) {
        remove_actor(change, lost);
        return true;
    }
    if (!change->wanted) return change->remote.next && change->remote.next(change->remote.context);
    const bool more = change->wanted > 0;
    change->wanted += more ? -1 : 1;
    if (more)
        add_actor(change);
    else
        remove_newest_actor(change);
    return true;
}

void farm_run_change_advance(struct farm_run_change *change) {
    do {
        if (change->state == FARM_RUN_CHANGE_JOINING || change->state == FARM_RUN_CHANGE_LEAVING) handle_reply(change);
        if (!farm_load_acquire(&change->workers->rings->stats->ready)) return;
    } while (change->state == FARM_RUN_CHANGE_IDLE && !change->failure[0] && begin_change(change));
}

void farm_run_change_before_learner(struct farm_run_change *change) {
    struct farm_error err;
    if (change->admission < 0) return;
    farm_admission_clear(change->admission, change->workers->learner.rings.admission);
    if (change->state != FARM_RUN_CHANGE_JOINING && change->state != FARM_RUN_CHANGE_LEAVING) return;
    if (send_request(change, &err)) report_refusal(change, &err);
}

// ---- the actors' events ----

// A new actor finds its generation in the lane. The old actor is dead: its pidfd is readable.
static void before_start(void *owner, uint32_t a, uint64_t starts) {
    struct farm_run_change *change = owner;
    const struct farm_run_workers *workers = change->workers;
    struct farm_run_actor *actor = &workers->actors[a];
    struct farm_ring *ring = &workers->rings->ring[a];
    actor->heartbeat_at_start = farm_load_relaxed(&ring->up_control->heartbeat);
    if (starts) {
        change->restarts++;
        if (farm_ring_restore(ring))
            farm_run_warn(workers->caller,
                          "actor %u left its header or its counters overwritten: repaired for the next one", a);
    }
    for (uint32_t l = 0; l < workers->plan->lanes; l++)
        farm_store_release(&ring->lanes[l].down->generation, actor->generation);
    actor->generation++;
}

static bool count_cause(void *owner, uint32_t a, const struct farm_death *death) {
    struct farm_run_cause *causes = ((struct farm_run_change *)owner)->causes;
    const char *text = death->cause;
    uint32_t i = 0;
    if (strncmp(text, "was ", 4) == 0) text += 4;
    while (i < FARM_RUN_CAUSES_MAX - 1 && causes[i].deaths && strcmp(causes[i].text, text) != 0) i++;
    snprintf(causes[i].text, sizeof causes[i].text, "%s", i < FARM_RUN_CAUSES_MAX - 1 ? text : "died of other causes");
    causes[i].deaths++;
    return false;
}

void farm_run_change_causes(const struct farm_run_change *change, char *text, size_t bytes) {
    size_t used = 0;
    text[0] = 0;
    for (uint32_t i = 0; i < FARM_RUN_CAUSES_MAX && change->causes[i].deaths && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s: %llu", i ? "; " : "", change->causes[i].text,
                                 (unsigned long long)change->causes[i].deaths);
}

static void actor_lost(void *owner, uint32_t a, const char *why) {
    struct farm_run_change *change = owner;
    change->lost += !change->workers->actors[a].lost;
    change->workers->actors[a].lost = true;
    farm_run_warn(change->workers->caller, "%s", why);
}

// An actor that dies within its first rounds has made no progress: resets and first steps of a broken environment must
// not delay the end of the run.
static uint64_t progress(void *owner, uint32_t a) {
    const struct farm_run_workers *workers = ((const struct farm_run_change *)owner)->workers;
    const uint64_t least = (uint64_t)PROGRESS_ROUNDS * workers->plan->lanes * workers->plan->width,
                   now = farm_load_relaxed(&workers->rings->ring[a].up_control->heartbeat),
                   start = workers->actors[a].heartbeat_at_start;
    return now - start > least ? now : start;
}

static const struct farm_run_worker_ops actor_ops = {.name = "actor",
                                                     .numbered = true,
                                                     .before_start = before_start,
                                                     .death = count_cause,
                                                     .end = actor_ended,
                                                     .loss = actor_lost,
                                                     .progress = progress};

// ---- making ----

enum farm_status farm_run_change_make(struct farm_run_change *change, struct farm_error *err) {
    struct farm_run_workers *workers = change->workers;
    const struct farm_run_plan *plan = workers->plan;
    size_t first;
    change->claimed = plan->placement->claim;
    enum farm_status status = farm_run_workers_reserve(workers, &actor_ops, change, plan->places, &first, err);
    assert(first == 0); // actor a is worker a
    if (status || !plan->elastic || plan->served) return status;
    return farm_admission_make(&change->admission, &workers->learner.rings.admission, err);
}

void farm_run_change_free(struct farm_run_change *change) {
    if (change->admission < 0) return;
    close(change->admission);
    close(change->workers->learner.rings.admission);
}
