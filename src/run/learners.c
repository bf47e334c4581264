// See learners.h.
#include "run/learners.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/paths.h"
#include "learner/learner.h"
#include "run/checkpoints.h"

// ---- the worker ----

static int body(void *context, struct farm_error *err) {
    const struct farm_run_learners *learners = context;
    const struct farm_run_workers *workers = learners->workers;
    const struct farm_run_responder *responder = &workers->plan->responder;
    struct farm_learner_config config = workers->learner;
    char cpu_name[128], run[PATH_MAX], run_file[PATH_MAX + 16], user_file[PATH_MAX];
    config.stats = farm_run_rings_open_stats(workers->rings, err);
    if (!config.stats) return 1;
    if (responder->body) return responder->body(responder->context, workers, config.stats, err);
    config.arithmetic.cpu_name = farm_machine_cpu_name(NULL, cpu_name, sizeof cpu_name) ? cpu_name : NULL;
    const char *folder = workers->run_path;
    const struct farm_run_play *play = &workers->plan->play;
    if (!folder && play->games && config.checkpoints.load &&
        farm_run_dir_of_checkpoint(config.checkpoints.load, run, sizeof run))
        folder = run;
    if (folder) config.arithmetic.run_file = farm_run_dir_file(folder, "arithmetic.txt", run_file, sizeof run_file);
    if (farm_path_cache("arithmetic.txt", user_file, sizeof user_file)) config.arithmetic.user_file = user_file;
    return play->games ? farm_run_player(&config, play, err) : farm_learner_run(&config, err);
}

size_t farm_run_learners_fill(struct farm_run_learners *learners) {
    struct farm_run_workers *workers = learners->workers;
    const struct farm_run_plan *plan = workers->plan;
    const struct farm_run_rings *rings = workers->rings;
    struct farm_learner_config *learner = &workers->learner;
    size_t kept = 0;
    for (uint32_t a = 0; a < plan->places; a++) {
        const struct farm_ring *ring = workers->actors[a].attached ? &rings->ring[a] : NULL;
        learners->keep[kept++] = workers->ring_fds[a][0] = ring ? ring->up.fd_readonly : -1;
        learners->keep[kept++] = workers->ring_fds[a][1] = ring ? ring->down.fd : -1;
        if (workers->up_writable) learners->keep[kept++] = workers->up_writable[a] = ring ? ring->up.fd : -1;
        learners->keep[kept++] = workers->wake_fds[a] =
            ring && workers->actors[a].remote ? workers->actors[a].wake : -1;
    }
    for (uint32_t b = 0; b < rings->bell_count; b++) learners->keep[kept++] = rings->bells[b];
    for (uint32_t b = 0; b < rings->board_count; b++)
        learners->keep[kept++] = learner->boards.fds[b] = rings->boards[b]->segment.fd;
    learner->boards.count = rings->board_count;
    learners->keep[kept++] = rings->stats_segment.fd;
    learners->keep[learners->lent = kept++] = -1;
    learners->keep[kept++] = learner->rings.admission;
    learners->keep[kept++] = plan->responder.listener > 0 ? plan->responder.listener : -1;
    learners->keep[kept++] = learner->deterministic.sample_fd = learners->sample[1];
    learner->rings.fds = (const int(*)[2])workers->ring_fds;
    learner->rings.count = plan->places;
    learner->rings.up_writable = workers->up_writable;
    learner->rings.wake_fds = workers->wake_fds;
    learner->rings.shard = workers->ring_shard;
    for (uint32_t k = 0; k < learner->shard_count; k++) {
        const struct farm_bitmap *cpus = &plan->placement->shard_cpus[k];
        learner->shards[k].eventfd = rings->bells[k];
        learner->shards[k].cpus = plan->recipe.pin && farm_bitmap_count(cpus) ? cpus : NULL;
    }
    return kept;
}

// Its node, unless its threads on CPUs run on several.
static int memory_node_of(const struct farm_plan *placement, bool gpu) {
    if (placement->training_node_count > 1) return -1;
    for (int k = 1; k < placement->shard_count && !gpu; k++)
        if (placement->shard_node[k] != placement->shard_node[0]) return -1;
    return placement->learner_node;
}

enum farm_status farm_run_learners_enlist(struct farm_run_learners *learners, struct farm_error *err) {
    struct farm_run_workers *workers = learners->workers;
    const struct farm_run_plan *plan = workers->plan;
    const struct farm_plan *placement = plan->placement;
    workers->learner.seed = farm_run_workers_seed(workers);
    learners->cpus = placement->inference_cpus;
    farm_bitmap_add(&learners->cpus, &placement->training_cpus);
    if (plan->responder.remote) farm_bitmap_add(&learners->cpus, &placement->bridge_cpus);
    struct farm_worker_spec spec = {.body = body,
                                    .context = learners,
                                    .keep_count = farm_run_learners_fill(learners),
                                    .keep = learners->keep,
                                    .cpus =
                                        plan->recipe.pin && farm_bitmap_count(&learners->cpus) ? &learners->cpus : NULL,
                                    .memory_node = memory_node_of(placement, plan->first_gpu >= 0),
                                    .may_end = true,
                                    .errors_are_final = true, // a bad checkpoint or divergence would repeat
                                    .deaths_are_final = plan->deterministic,
                                    .stop_phase = FARM_RUN_PHASE_LEARNER};
    snprintf(spec.name, sizeof spec.name, "%s", learners->ops.name);
    return farm_supervisor_enlist(workers->supervisor, learners->first, &spec, err);
}

// ---- its events ----

static void before_start(void *owner, uint32_t i, uint64_t starts) {
    struct farm_run_learners *learners = owner;
    struct farm_run_workers *workers = learners->workers;
    const struct farm_run_responder *responder = &workers->plan->responder;
    struct farm_learner_config *learner = &workers->learner;
    if (responder->lend) learners->keep[learners->lent] = responder->lend(responder->context);
    if (!starts) return;
    learners->restarts++;
    if (responder->remote) {
        farm_run_warn(workers->caller, "the bridge starts again");
        return;
    }
    if (workers->run_path) {
        const bool found = farm_run_find_checkpoint(workers->run_path, workers->plan, workers->caller,
                                                    workers->checkpoint, sizeof workers->checkpoint);
        learner->checkpoints.load = found ? workers->checkpoint : NULL;
    }
    (void)farm_run_learners_fill(learners);
    farm_run_change_before_learner(learners->change);
    farm_run_warn(workers->caller, "the learner starts again %s%s",
                  learner->checkpoints.load   ? "from "
                  : learner->checkpoints.init ? "with the parameters of "
                                              : "with fresh parameters: no checkpoint yet",
                  learner->checkpoints.load   ? learner->checkpoints.load
                  : learner->checkpoints.init ? learner->checkpoints.init
                                              : "");
}

static bool keep_error(void *owner, uint32_t i, const char *line) {
    static const char error[] = "farm: error: ";
    struct farm_run_learners *learners = owner;
    if (strncmp(line, error, strlen(error)) == 0)
        snprintf(learners->error, sizeof learners->error, "%s", line + strlen(error));
    return false;
}

static uint64_t progress(void *owner, uint32_t i) {
    const struct farm_run_learners *learners = owner;
    const struct farm_stats *stats = learners->workers->rings->stats;
    return farm_load_relaxed(&stats->agent_steps) + farm_load_relaxed(&stats->rejected_steps);
}

// A deterministic run's learner waits for the sample; an elastic one's replies about rings.
static void readable(void *owner, uint32_t i) {
    const struct farm_run_learners *learners = owner;
    const struct farm_run_caller *caller = learners->workers->caller;
    char byte;
    if (learners->change->admission >= 0) farm_run_change_advance(learners->change);
    if (learners->sample[0] < 0 || recv(learners->sample[0], &byte, 1, MSG_DONTWAIT) != 1) return;
    if (caller->on_update) caller->on_update(caller->context);
    (void)!write(learners->sample[0], &byte, 1);
}

// ---- making ----

enum farm_status farm_run_learners_make(struct farm_run_learners *learners, struct farm_error *err) {
    struct farm_run_workers *workers = learners->workers;
    const struct farm_run_plan *plan = workers->plan;
    if (plan->served) return FARM_OK;
    learners->count = 1;
    learners->ops = (struct farm_run_worker_ops){.name = plan->responder.remote ? "bridge" : "learner",
                                                 .waits = "all actors",
                                                 .before_start = before_start,
                                                 .line = keep_error,
                                                 .progress = progress,
                                                 .readable = readable};
    learners->keep =
        calloc(4 * (size_t)plan->places + workers->rings->bell_count + FARM_NODES_MAX + 5, sizeof *learners->keep);
    if (!learners->keep) return farm_fail_errno(err, FARM_E_LIMIT, "no memory for %u actors", plan->places);
    enum farm_status status =
        farm_run_workers_reserve(workers, &learners->ops, learners, learners->count, &learners->first, err);
    if (status) return status;
    workers->learner_number = learners->first;
    if (plan->deterministic && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, learners->sample))
        return farm_fail_errno(err, FARM_E_LIMIT, "no socket to the learner (ulimit -n)");
    workers->worker[learners->first].fd = learners->sample[0] >= 0 ? learners->sample[0] : learners->change->admission;
    return farm_run_learners_enlist(learners, err);
}

void farm_run_learners_free(struct farm_run_learners *learners) {
    for (int i = 0; i < 2; i++)
        if (learners->sample[i] >= 0) close(learners->sample[i]);
    free(learners->keep);
}
