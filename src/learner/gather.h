// What training reads from lanes, for every backend: the columns of windows, and the small arrays of one step of a
// column. Backends find observations themselves. Runs on the training thread and its helpers.
#ifndef FARM_LEARNER_GATHER_H
#define FARM_LEARNER_GATHER_H

#include "algo/algo.h"

// One environment's window.
struct farm_column {
    const struct farm_lane *lane;
    uint32_t lane_id;
    uint64_t start;
    uint32_t env;
};

// Lists the windows' columns in order; more than `most` abort. Returns their number.
uint32_t farm_columns_list(const struct farm_window *windows, uint32_t count, struct farm_column *columns,
                           uint32_t most);

// Arrays of rows, as in algo/rows.h.
struct farm_gathered {
    float *behaviour, *behaviour_value, *reward;
    uint8_t *action, *flags;
};

// Step `step` of a column into row `row`; rewards are clipped and scaled.
void farm_gather_step(const struct farm_algo_config *algo, const struct farm_column *column, uint32_t step,
                      const struct farm_gathered *to, size_t row);

#endif
