// The most steps of an environment that memory could carry, from measured bandwidths, for `farm bw --env`. Pure.
//
// Counted for each step of one environment: the actor's one write of the observation; the learner's reads of it
// (`host_reads`: one if only inference reads it, two if the CPU also trains on it); reward, flags, action and answer,
// written once and read once. Not counted: what the environment itself touches, lines that an ordinary store fetches
// first (farm/obs.h writes large observations past the caches), frames that are still in the cache when they are read
// again for stacking. So a farm stays below it, unless its rings fit the caches.
#ifndef FARM_BW_ENV_H
#define FARM_BW_ENV_H

#include <farm/env.h>
#include <stdint.h>

struct farm_bw_env_traffic {
    uint64_t obs_bytes;   // one environment's observation, all fields
    uint64_t other_bytes; // the rest of a step: reward, flags, action, logits, value
};
struct farm_bw_env_traffic farm_bw_env_traffic(const struct farm_env_spec *spec);

// Bytes per second, all cores of the machine together; 0: not measured.
struct farm_bw_env_bandwidth {
    double read, write;
    double mixed; // half reads, half writes, counted together; used for both if it was measured
};

// 0: not known.
double farm_bw_env_steps_per_s(const struct farm_bw_env_traffic *traffic, uint32_t host_reads,
                               const struct farm_bw_env_bandwidth *bandwidth);

#endif
