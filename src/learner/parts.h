// What the learner's threads share: made before they start, destroyed after they have ended (learner.c). Each part says
// which thread may use it.
#ifndef FARM_LEARNER_PARTS_H
#define FARM_LEARNER_PARTS_H

#include "intake/lanes.h"
#include "learner/backend.h"
#include "replay/source.h"

struct farm_learner_parts {
    const struct farm_learner_config *config;
    struct farm_algo_plan plan;
    struct farm_net net;
    struct farm_head head;
    struct farm_lanes lanes;
    const struct farm_backend_ops *ops;
    struct farm_backend *backend;
    struct farm_window_source *source; // NULL in evaluation; under the trainer's lock while the trainer lives
    uint32_t shards;                   // >= 1
    uint64_t version;                  // the first parameters', published
    uint64_t passes;                   // in the run so far; the training thread's
    double rate_factor;                // factor of the learning rate (algo.h, adapt); the training thread's
    uint64_t *stop;                    // not 0 ends every inference loop; a loop that ends sets it
};

#endif
