// What a run has done: in all its sessions (the first, and one each --resume) or in one of them. Plain data.
#ifndef FARM_BASE_TOTALS_H
#define FARM_BASE_TOTALS_H

#include <stdint.h>

struct farm_totals {
    double wall_s; // from a session's first answered step to its end
    uint64_t frames, agent_steps, updates, episodes;
};

#endif
