// See admitter.h.
#include "learner/admitter.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/thread.h"
#include "learner/admission.h"

enum { POLL_MS = 50 };

struct farm_admitter {
    struct farm_learner_parts *parts;
    struct farm_trainer *trainer;
    pthread_t thread;
    uint64_t stop;
};

static enum farm_status admit_ring(const struct farm_admitter *admitter, const struct farm_admission_request *request,
                                   struct farm_error *err) {
    struct farm_learner_parts *parts = admitter->parts;
    const uint32_t ring = request->ring, shard = request->shard < parts->shards ? request->shard : 0;
    if (request->fds[1] < 0)
        return farm_fail(err, FARM_E_LIMIT, "the learner has no room for its descriptors (ulimit -n)");
    enum farm_status status = farm_lanes_join(&parts->lanes, ring, request->fds, shard, &parts->plan.shape, err);
    if (status) {
        if (request->up_writable >= 0) close(request->up_writable);
        if (request->wake >= 0) close(request->wake);
        return status;
    }
    farm_lanes_set_wake(&parts->lanes, ring, request->wake);
    farm_lanes_lend_writable(&parts->lanes, ring, request->up_writable);
    if (parts->ops->join) status = parts->ops->join(parts->backend, ring, err);
    farm_lanes_end_writable(&parts->lanes);
    if (!status) {
        farm_trainer_admit(admitter->trainer, ring);
        status = farm_inference_change(parts, shard, ring, true, err);
        if (status) farm_trainer_forget(admitter->trainer, ring);
        if (status && parts->ops->leave) parts->ops->leave(parts->backend, ring);
    }
    if (status) farm_lanes_leave(&parts->lanes, ring);
    return status;
}

static enum farm_status release_ring(const struct farm_admitter *admitter, uint32_t ring, struct farm_error *err) {
    struct farm_learner_parts *parts = admitter->parts;
    if (ring >= parts->lanes.ring_count || !farm_lanes_has(&parts->lanes, ring))
        return farm_fail(err, FARM_E_NOT_FOUND, "there is no actor %u", ring);
    const uint32_t shard = farm_lanes_shard(&parts->lanes, ring);
    const enum farm_status status = farm_inference_change(parts, shard, ring, false, err);
    if (status) return status;
    farm_trainer_forget(admitter->trainer, ring);
    if (parts->ops->leave) parts->ops->leave(parts->backend, ring);
    farm_lanes_leave(&parts->lanes, ring);
    return FARM_OK;
}

static void *serve_requests(void *argument) {
    struct farm_admitter *admitter = argument;
    const int socket = admitter->parts->config->rings.admission;
    while (!farm_load_relaxed(&admitter->stop)) {
        struct farm_admission_request request;
        if (!farm_admission_receive_request(socket, POLL_MS, &request)) continue;
        struct farm_admission_reply reply = {.ring = request.ring};
        reply.status = request.kind == FARM_ADMISSION_JOIN ? admit_ring(admitter, &request, &reply.error)
                                                           : release_ring(admitter, request.ring, &reply.error);
        farm_admission_send_reply(socket, &reply);
    }
    return NULL;
}

enum farm_status farm_admitter_start(struct farm_learner_parts *parts, struct farm_trainer *trainer,
                                     struct farm_admitter **out, struct farm_error *err) {
    struct farm_admitter *admitter = calloc(1, sizeof *admitter);
    if (!admitter) return farm_fail(err, FARM_E_LIMIT, "no memory for the admitter");
    admitter->parts = parts;
    admitter->trainer = trainer;
    if ((errno = farm_thread_start(&admitter->thread, "admit", 0, serve_requests, admitter))) {
        free(admitter);
        return farm_fail_errno(err, FARM_E_LIMIT, "the admitter's thread does not start (ulimit -u, ulimit -v)");
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
