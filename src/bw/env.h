// How many steps of an environment a machine's memory and bus could carry at all, from measured bandwidths: a ceiling
// that a farm is held against (farm bw --env). A pure function; no measurement, no state.
//
// Counted, for each step of one environment: the actor's one write of the observation; the learner's reads of it
// (`host_reads`: one where inference alone looks at it, two where the CPU also trains on it, one where a GPU fetches
// it: the bus reads host memory); the crossing of the bus, once, where there is a GPU; rewards, flags, actions and
// answers beside it (`other_bytes`, written once and read once). Not counted: what the environment itself touches,
// lines that an ordinary store fetches first (farm/obs.h writes past the caches where an observation is large), frames
// that the cache still holds when they are read again for stacking. So no farm gets there, and one that fits the caches
// may pass it.
#ifndef FARM_BW_ENV_H
#define FARM_BW_ENV_H

#include <farm/env.h>
#include <stdint.h>

struct farm_bw_env_traffic {
    uint64_t obs_bytes;       // one environment's observation, all fields
    uint64_t other_bytes;     // the rest of a step: reward, flags, action, logits, value
    uint32_t host_reads;      // times host memory gives the observation
    uint32_t frames_per_step; // simulator frames
};

// Bytes a second, all cores of the machine together; 0: not measured.
struct farm_bw_env_bandwidth {
    double read, write;
    double mixed;          // half reads, half writes, counted together; where measured, it stands for both
    double host_to_device; // all GPUs together
};

enum farm_bw_env_limit { FARM_BW_ENV_UNKNOWN, FARM_BW_ENV_MEMORY, FARM_BW_ENV_BUS };

struct farm_bw_env_ceiling {
    double memory_steps_per_s, bus_steps_per_s; // 0: not known
    double steps_per_s, frames_per_s;           // the lower of the two
    enum farm_bw_env_limit limit;               // which one that is
};

// The traffic of one environment by its spec.
struct farm_bw_env_traffic farm_bw_env_traffic(const struct farm_env_spec *spec, uint32_t host_reads);

struct farm_bw_env_ceiling farm_bw_env_ceiling(const struct farm_bw_env_traffic *traffic,
                                               const struct farm_bw_env_bandwidth *bandwidth);

#endif
