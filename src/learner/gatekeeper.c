// See gatekeeper.h.
#include "learner/gatekeeper.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "learner/gate.h"

enum { LOOK_MS = 50 };

struct farm_gatekeeper {
    struct farm_gatekeeper_config config;
    pthread_t thread;
    uint64_t stop;
};

// ---- in ----

static enum farm_status join(const struct farm_gatekeeper_config *config, const struct farm_gate_question *question,
                             struct farm_error *err) {
    const uint32_t ring = question->ring, shard = question->shard < config->shards ? question->shard : 0;
    if (question->fds[1] < 0)
        return farm_fail(err, FARM_E_LIMIT, "the learner has no room for its descriptors (ulimit -n)");
    enum farm_status status = farm_lanes_join(config->lanes, ring, question->fds, shard, config->shape, err);
    if (status) {
        if (question->up_writable >= 0) close(question->up_writable);
        if (question->wake >= 0) close(question->wake);
        return status;
    }
    farm_lanes_set_wake(config->lanes, ring, question->wake);
    farm_lanes_lend_writable(config->lanes, ring, question->up_writable);
    if (config->ops->join) status = config->ops->join(config->backend, ring, err);
    farm_lanes_end_writable(config->lanes);
    if (!status) {
        farm_trainer_admit(config->trainer, ring);
        status = farm_inference_change(config->inferences[shard], ring, true, err);
        if (status) farm_trainer_forget(config->trainer, ring);
        if (status && config->ops->leave) config->ops->leave(config->backend, ring);
    }
    if (status) farm_lanes_leave(config->lanes, ring);
    return status;
}

// ---- out ----

static enum farm_status leave(const struct farm_gatekeeper_config *config, uint32_t ring, struct farm_error *err) {
    if (ring >= config->lanes->ring_count || !farm_lanes_has(config->lanes, ring))
        return farm_fail(err, FARM_E_NOT_FOUND, "there is no actor %u", ring);
    const uint32_t shard = farm_lanes_shard(config->lanes, ring);
    const enum farm_status status = farm_inference_change(config->inferences[shard], ring, false, err);
    if (status) return status;
    farm_trainer_forget(config->trainer, ring);
    if (config->ops->leave) config->ops->leave(config->backend, ring);
    farm_lanes_leave(config->lanes, ring);
    return FARM_OK;
}

// ---- the thread ----

static void *keep(void *argument) {
    struct farm_gatekeeper *gatekeeper = argument;
    const struct farm_gatekeeper_config *config = &gatekeeper->config;
    while (!farm_load_relaxed(&gatekeeper->stop)) {
        struct farm_gate_question question;
        if (!farm_gate_wait(config->gate, LOOK_MS, &question)) continue;
        struct farm_gate_answer answer = {.ring = question.ring};
        answer.status = question.kind == FARM_GATE_JOIN ? join(config, &question, &answer.error)
                                                        : leave(config, question.ring, &answer.error);
        farm_gate_reply(config->gate, &answer);
    }
    return NULL;
}

enum farm_status farm_gatekeeper_start(const struct farm_gatekeeper_config *config, struct farm_gatekeeper **out,
                                       struct farm_error *err) {
    struct farm_gatekeeper *gatekeeper = calloc(1, sizeof *gatekeeper);
    if (!gatekeeper) return farm_fail(err, FARM_E_LIMIT, "no memory for the gatekeeper");
    gatekeeper->config = *config;
    if ((errno = pthread_create(&gatekeeper->thread, NULL, keep, gatekeeper))) {
        free(gatekeeper);
        return farm_fail_errno(err, FARM_E_LIMIT, "the gatekeeper's thread does not start (ulimit -u)");
    }
    *out = gatekeeper;
    return FARM_OK;
}

void farm_gatekeeper_stop(struct farm_gatekeeper *gatekeeper) {
    if (!gatekeeper) return;
    farm_store_relaxed(&gatekeeper->stop, 1);
    pthread_join(gatekeeper->thread, NULL);
    free(gatekeeper);
}
