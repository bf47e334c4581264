// The learner's thread that lets rings in and out while inference and training go on (admission.h says who asks). A
// ring that comes is opened, given to the backend (which registers and mirrors it), then to its shard's inference loop.
// One that goes takes the way back: no inference looks at it any more, its waiting windows are dropped, updates that
// hold some are waited for, the backend releases it, it is closed. What is refused changes nothing. The one thread that
// changes the table of lanes after the start.
#ifndef FARM_LEARNER_ADMITTER_H
#define FARM_LEARNER_ADMITTER_H

#include "learner/backend.h"
#include "learner/inference.h"
#include "learner/lanes.h"
#include "learner/trainer.h"

struct farm_admitter;

struct farm_admitter_config {
    int admission;            // the learner's end (admission.h)
    struct farm_lanes *lanes; // these all outlive the thread
    const struct farm_window_shape *shape;
    const struct farm_backend_ops *ops;
    struct farm_backend *backend;
    struct farm_trainer *trainer;                               // not NULL: nobody comes or goes in evaluation
    struct farm_inference *inferences[FARM_LEARNER_SHARDS_MAX]; // [shards]
    uint32_t shards;
};

// FARM_E_LIMIT: no thread.
enum farm_status farm_admitter_start(const struct farm_admitter_config *config, struct farm_admitter **out,
                                     struct farm_error *err);
// When no inference loop runs any more (farm_inference_over).
void farm_admitter_stop(struct farm_admitter *admitter); // NULL is allowed

#endif
