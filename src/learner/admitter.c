// See admitter.h.
#include "learner/admitter.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/thread.h"
#include "learner/admission.h"

enum { LOOK_MS = 50 };

struct farm_admitter {
    struct farm_admitter_config config;
    pthread_t thread;
    uint64_t stop;
};

static enum farm_status admit_ring(const struct farm_admitter_config *config,
                                   const struct farm_admission_request *request, struct farm_error *err) {
    const uint32_t ring = request->ring, shard = request->shard < config->shards ? request->shard : 0;
    if (request->fds[1] < 0)
        return farm_fail(err, FARM_E_LIMIT, "the learner has no room for its descriptors (ulimit -n)");
    enum farm_status status = farm_lanes_join(config->lanes, ring, request->fds, shard, config->shape, err);
    if (status) {
        if (request->up_writable >= 0) close(request->up_writable);
        if (request->wake >= 0) close(request->wake);
        return status;
    }
    farm_lanes_set_wake(config->lanes, ring, request->wake);
    farm_lanes_lend_writable(config->lanes, ring, request->up_writable);
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

static enum farm_status release_ring(const struct farm_admitter_config *config, uint32_t ring, struct farm_error *err) {
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

static void *serve_requests(void *argument) {
    struct farm_admitter *admitter = argument;
    const struct farm_admitter_config *config = &admitter->config;
    while (!farm_load_relaxed(&admitter->stop)) {
        struct farm_admission_request request;
        if (!farm_admission_receive_request(config->admission, LOOK_MS, &request)) continue;
        struct farm_admission_reply reply = {.ring = request.ring};
        reply.status = request.kind == FARM_ADMISSION_JOIN ? admit_ring(config, &request, &reply.error)
                                                           : release_ring(config, request.ring, &reply.error);
        farm_admission_send_reply(config->admission, &reply);
    }
    return NULL;
}

enum farm_status farm_admitter_start(const struct farm_admitter_config *config, struct farm_admitter **out,
                                     struct farm_error *err) {
    struct farm_admitter *admitter = calloc(1, sizeof *admitter);
    if (!admitter) return farm_fail(err, FARM_E_LIMIT, "no memory for the admitter");
    admitter->config = *config;
    if ((errno = farm_thread_start(&admitter->thread, serve_requests, admitter))) {
        free(admitter);
        return farm_fail_errno(err, FARM_E_LIMIT, "the admitter's thread does not start (ulimit -u)");
    }
    *out = admitter;
    return FARM_OK;
}

void farm_admitter_stop(struct farm_admitter *admitter) {
    if (!admitter) return;
    farm_store_relaxed(&admitter->stop, 1);
    pthread_join(admitter->thread, NULL);
    free(admitter);
}
