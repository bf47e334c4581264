// See env.h.
#include "bw/env.h"

#include "ring/spec.h"

struct farm_bw_env_traffic farm_bw_env_traffic(const struct farm_env_spec *spec) {
    struct farm_bw_env_traffic traffic = {0};
    for (uint32_t f = 0; f < spec->obs_count; f++) traffic.obs_bytes += farm_field_bytes(&spec->obs[f]);
    // Words of 4 bytes: reward, value, the action's, the policy's; and the flags' byte.
    traffic.other_bytes = 4ull * (2 + spec->action.dims + farm_policy_outputs(&spec->action)) + 1;
    return traffic;
}

double farm_bw_env_steps_per_s(const struct farm_bw_env_traffic *traffic, uint32_t host_reads,
                               const struct farm_bw_env_bandwidth *bandwidth) {
    const double written = (double)(traffic->obs_bytes + traffic->other_bytes),
                 read = (double)(traffic->obs_bytes * host_reads + traffic->other_bytes);
    if (bandwidth->mixed > 0) return bandwidth->mixed / (written + read);
    if (!(bandwidth->read > 0) || !(bandwidth->write > 0)) return 0;
    return 1 / (written / bandwidth->write + read / bandwidth->read);
}
