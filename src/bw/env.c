// See env.h.
#include "bw/env.h"

#include "ring/spec.h"

struct farm_bw_env_traffic farm_bw_env_traffic(const struct farm_env_spec *spec, uint32_t host_reads) {
    struct farm_bw_env_traffic traffic = {.host_reads = host_reads, .frames_per_step = spec->frames_per_step};
    for (uint32_t f = 0; f < spec->obs_count; f++) traffic.obs_bytes += farm_field_bytes(&spec->obs[f]);
    // Words of 4 bytes: reward, value, the action's, the policy's; and the flags' byte.
    traffic.other_bytes = 4ull * (2 + spec->action.dims + farm_policy_outputs(&spec->action)) + 1;
    return traffic;
}

// Seconds in which memory takes `written` bytes and gives `read` bytes; 0 where that is not known.
static double memory_s(const struct farm_bw_env_bandwidth *bandwidth, double written, double read) {
    if (bandwidth->mixed > 0) return (written + read) / bandwidth->mixed;
    if (!(bandwidth->read > 0) || !(bandwidth->write > 0)) return 0;
    return written / bandwidth->write + read / bandwidth->read;
}

struct farm_bw_env_ceiling farm_bw_env_ceiling(const struct farm_bw_env_traffic *traffic,
                                               const struct farm_bw_env_bandwidth *bandwidth) {
    const double obs = (double)traffic->obs_bytes, other = (double)traffic->other_bytes;
    const double memory = memory_s(bandwidth, obs + other, obs * traffic->host_reads + other);
    struct farm_bw_env_ceiling ceiling = {0};
    if (memory > 0) ceiling.memory_steps_per_s = 1 / memory;
    if (bandwidth->host_to_device > 0 && obs > 0) ceiling.bus_steps_per_s = bandwidth->host_to_device / obs;
    if (ceiling.memory_steps_per_s > 0) {
        ceiling.steps_per_s = ceiling.memory_steps_per_s;
        ceiling.limit = FARM_BW_ENV_MEMORY;
    }
    if (ceiling.bus_steps_per_s > 0 && (!ceiling.limit || ceiling.bus_steps_per_s < ceiling.steps_per_s)) {
        ceiling.steps_per_s = ceiling.bus_steps_per_s;
        ceiling.limit = FARM_BW_ENV_BUS;
    }
    ceiling.frames_per_s = ceiling.steps_per_s * traffic->frames_per_step;
    return ceiling;
}
