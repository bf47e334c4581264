// The payload of a lane's step: the one definition for both sides. See wire.h.
#ifndef FARM_BRIDGE_STEP_H
#define FARM_BRIDGE_STEP_H

#include <sys/uio.h>

#include "ring/lane.h"

enum { FARM_STEP_PARTS_MAX = FARM_OBS_FIELDS_MAX + 2 + FARM_ANSWER_FIELDS_MAX };

// Step n of all environments of a lane: observation fields, rewards, flags and, in LOCAL mode, what answer fields have
// at step n - 1, and `state` at n. Returns the number of parts.
static inline uint32_t farm_step_parts(const struct farm_lane *lane, uint64_t n, struct iovec *parts) {
    uint32_t count = 0;
    for (uint32_t f = 0; f < lane->obs_count; f++)
        parts[count++] = (struct iovec){farm_lane_obs(lane, f, n, 0), lane->width * lane->obs_bytes[f]};
    parts[count++] = (struct iovec){farm_lane_reward(lane, n), lane->width * sizeof(float)};
    parts[count++] = (struct iovec){farm_lane_flags(lane, n), lane->width};
    uint64_t at;
    for (uint32_t f = 0; f < lane->answer_count; f++)
        if (farm_lane_answer_with(lane, f, n, &at))
            parts[count++] =
                (struct iovec){farm_lane_answer_at(lane, f, at, 0), lane->answer[f].rows * lane->answer[f].bytes};
    return count;
}

// The answer to step n that travels: the actions, and `control` if the ring has it. Returns the number of parts.
enum { FARM_ANSWER_PARTS_MAX = 2 };
static inline uint32_t farm_answer_parts(const struct farm_lane *lane, uint64_t n, struct iovec *parts) {
    const uint32_t fields[] = {FARM_ANSWER_ACTION, lane->control}, count = lane->control ? 2 : 1;
    for (uint32_t p = 0; p < count; p++)
        parts[p] =
            (struct iovec){farm_lane_answer_at(lane, fields[p], n, 0), lane->width * lane->answer[fields[p]].bytes};
    return count;
}

static inline uint64_t farm_answer_bytes(const struct farm_lane *lane) {
    return lane->width *
           (lane->answer[FARM_ANSWER_ACTION].bytes + (lane->control ? lane->answer[lane->control].bytes : 0));
}

// Bytes of step 1, which has every answer field but, mostly, `state`.
static inline uint64_t farm_step_bytes(const struct farm_lane *lane) {
    struct iovec parts[FARM_STEP_PARTS_MAX];
    uint64_t bytes = 0;
    for (uint32_t p = 0, count = farm_step_parts(lane, 1, parts); p < count; p++) bytes += parts[p].iov_len;
    return bytes;
}

#endif
