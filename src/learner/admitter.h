// The learner's thread that admits and releases rings while inference and training go on, as the supervisor requests
// (admission.h). A joining ring is opened, given to the backend, then to its shard's inference loop. A leaving one goes
// the way back: inference stops using it, its waiting windows are dropped, updates that hold some end, the backend
// releases it, it is closed. A refusal changes nothing. After the start only this thread changes the table of lanes.
#ifndef FARM_LEARNER_ADMITTER_H
#define FARM_LEARNER_ADMITTER_H

#include "learner/inference.h"

struct farm_admitter;

// FARM_E_LIMIT: no thread.
enum farm_status farm_admitter_start(struct farm_learner_parts *parts, struct farm_trainer *trainer,
                                     struct farm_admitter **out, struct farm_error *err);
// After the inference loops' end (farm_inference_over). NULL is permitted.
void farm_admitter_stop(struct farm_admitter *admitter);

#endif
