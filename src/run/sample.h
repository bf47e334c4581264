// A run's figures, from the learner's stats, the rings and the run's own counts. Runs in the supervisor process.
#ifndef FARM_RUN_SAMPLE_H
#define FARM_RUN_SAMPLE_H

#include "report/metrics.h"
#include "run/events.h"

struct farm_run_sampler {
    const struct farm_run_events *events; // farm_run_make
    // The previous sample, from which rates count; farm_run_execute sets the first.
    uint64_t time_ns, frames, agent_steps, windows, infer_calls, infer_rows, lag_sum, train_wait_ns, actor_wait_ns;
    uint64_t inserted, sampled, replay_train_ns, replay_actor_ns;
};

// Figures now; rates and shares since the previous sample.
void farm_run_sample(struct farm_run_sampler *sampler, uint64_t now_ns, struct farm_sample *sample);

#endif
