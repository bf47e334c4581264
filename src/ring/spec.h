// The shape of one actor's rings, and the bytes of its two segments as a pure function of that shape.
// docs/shm-layout.md tells the same in prose; a test holds both together. Runs in every process; memory only, no I/O.
#ifndef FARM_RING_SPEC_H
#define FARM_RING_SPEC_H

#include <farm/env.h>
#include <stddef.h>
#include <stdint.h>

#include "base/atomics.h"
#include "base/status.h"
#include "shm/segment.h"

enum { FARM_LANES_MAX = 64, FARM_WIDTH_MAX = 65536 };

// Lies in the header page (user area) of both segments, so that a receiver needs nothing but the descriptors. All lanes
// of an actor have one shape.
struct farm_ring_spec {
    uint32_t lanes; // L, 1..FARM_LANES_MAX
    uint32_t width; // W environments a lane
    uint32_t steps; // C steps a ring
    uint32_t
        policy_outputs; // floats of `logits` (or q) an environment: discrete n, multi-discrete sum, continuous 2*dims
    struct farm_env_spec env;
};

// A counter has a cache line of its own and its neighbour too: cores fetch lines in pairs of 128 bytes.
// Words in `up`, all written by the actor (or by the bridge standing in for a remote one).
struct farm_up_control {
    uint64_t doorbell; // one more at every publish of any lane of this actor
    uint64_t pad0[15];
    uint64_t asleep; // 1 while the actor sleeps on down.wake, or is about to
    uint64_t pad1[15];
    uint64_t heartbeat; // calls of the environment so far: tells a hung environment from a waiting actor
    uint64_t abandoned; // episodes that an actor gave up for their senseless numbers (recipe key bad_values): a figure
    uint64_t pad2[14];
};
struct farm_up_lane {
    uint64_t produced; // steps published
    uint64_t pad0[15];
};

// Words in `down`, written by the learner's side.
struct farm_down_control {
    uint32_t wake; // futex word; writers: the learner threads that answer or release, by atomic addition
    uint32_t pad0[31];
    uint64_t asleep; // 1 while that inference thread sleeps on its eventfd, or is about to
    uint64_t pad1[15];
    uint64_t stop; // 1: the actor shall end after its current step; writer: the supervisor
    uint64_t pad2[15];
};
struct farm_down_lane {
    uint64_t acted; // steps answered; writer: inference
    uint64_t pad0[15];
    uint64_t consumed; // steps the actor may overwrite; writer: the lane's owner in the learner
    uint64_t pad1[15];
    uint64_t generation; // actors that have had this lane before the present one; writer: the supervisor
    uint64_t pad2[15];
};

// Byte offsets from the start of a segment. Arrays of lane l lie at `lane_offset + l * lane_stride + field offset`;
// step n of environment e of a field at slot (n mod C) * W + e. Every array starts on a cache line, every lane on a
// page.
struct farm_ring_layout {
    size_t up_bytes, down_bytes;
    size_t up_control, up_lanes;     // struct farm_up_control, struct farm_up_lane[L]
    size_t down_control, down_lanes; // struct farm_down_control, struct farm_down_lane[L]
    size_t up_arrays, up_stride;     // first lane's arrays, bytes a lane
    size_t down_arrays, down_stride;
    size_t obs[FARM_OBS_FIELDS_MAX], reward, flags; // within a lane's arrays in `up`
    size_t action, logits, value, version;          // within a lane's arrays in `down`
    size_t obs_bytes[FARM_OBS_FIELDS_MAX];          // one environment's observation field
    size_t action_bytes;                            // one environment's action
    uint64_t hash;                                  // of spec and offsets: the segments' layout_hash
};

// Bytes of one element, and of one field of one environment; 0 where the spec makes no sense.
size_t farm_dtype_bytes(uint32_t dtype);
size_t farm_field_bytes(const struct farm_field_spec *field);

// Checks the spec (every count, size and product bounded) and works out the layout. FARM_E_INVALID with the reason.
enum farm_status farm_ring_layout_make(const struct farm_ring_spec *spec, struct farm_ring_layout *layout,
                                       struct farm_error *err);

// policy_outputs of an action spec.
uint32_t farm_policy_outputs(const struct farm_action_spec *action);

// The smallest C for K windows in training at once: (K+1)*stride + length + stack (DESIGN "One structure").
uint64_t farm_ring_steps_needed(uint64_t windows, uint64_t stride, uint64_t length, uint64_t stack);

#endif
