// The learner's thread that admits and releases rings while inference and training go on, as the supervisor requests
// (admission.h). A joining ring is opened, given to the backend, then to its shard's inference loop. A leaving one goes
// the way back: inference stops using it, its waiting windows are dropped, updates that hold some end, the backend
// releases it, it is closed. A refusal changes nothing. After the start only this thread changes the table of lanes.
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
    struct farm_trainer *trainer;                               // not NULL: no ring joins or leaves in evaluation
    struct farm_inference *inferences[FARM_LEARNER_SHARDS_MAX]; // [shards]
    uint32_t shards;
};

// FARM_E_LIMIT: no thread.
enum farm_status farm_admitter_start(const struct farm_admitter_config *config, struct farm_admitter **out,
                                     struct farm_error *err);
// After the inference loops' end (farm_inference_over). NULL is permitted.
void farm_admitter_stop(struct farm_admitter *admitter);

#endif
