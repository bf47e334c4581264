// Rings of tests and benchmarks in one process: their shapes, the views of both sides, and both sides' hands on a lane.
// Each view has its own descriptors and mapping, as in another process.
#ifndef TESTS_SUPPORT_RINGS_H
#define TESTS_SUPPORT_RINGS_H

#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "must.h"
#include "ring/ring.h"
#include "verify.h"

// ---- shapes ----

// One observation field of 8 bytes (i32[2]) and a discrete action of 5.
static inline struct farm_ring_spec spec_of(uint32_t lanes, uint32_t width, uint32_t steps) {
    return farm_ring_spec_plain(lanes, width, steps, FARM_I32, 2, 5);
}

// Every kind of observation field, and a multi-discrete action.
static inline struct farm_ring_spec spec_rich(uint32_t lanes, uint32_t width, uint32_t steps) {
    struct farm_ring_spec spec = {
        .lanes = lanes,
        .width = width,
        .steps = steps,
        .env = {.obs_count = 3,
                .frames_per_step = 4,
                .obs = {{.name = "image", .dtype = FARM_U8, .rank = 3, .dims = {7, 5, 3}},
                        {.name = "inventory", .dtype = FARM_I32, .rank = 1, .dims = {11}},
                        {.name = "joints", .dtype = FARM_F32, .rank = 2, .dims = {3, 3}}},
                .action = {.kind = FARM_ACTION_MULTI_DISCRETE, .dims = 3, .sizes = {2, 3, 5}}},
    };
    farm_ring_spec_answers(&spec);
    return spec;
}

// ---- views ----

// A ring and both sides' views; made: the supervisor's, which holds the descriptors.
struct views {
    struct farm_ring made, actor, learner;
};

static inline struct farm_ring open_view(const struct farm_ring *made, enum farm_ring_side side) {
    struct farm_ring ring;
    struct farm_error err = {0};
    must(farm_ring_view(made, side, &ring, &err), &err);
    return ring;
}

static inline struct farm_ring make_ring(struct farm_ring_spec spec, uint32_t actor, bool huge) {
    struct farm_ring ring;
    struct farm_error err = {0};
    must(farm_ring_create(&spec, actor, -1, huge, &ring, &err), &err);
    return ring;
}

static inline struct farm_ring ring_of(struct farm_ring_spec spec, uint32_t actor) {
    return make_ring(spec, actor, false);
}

static inline struct views views_of(struct farm_ring_spec spec) {
    struct views views = {.made = ring_of(spec, 3)};
    views.actor = open_view(&views.made, FARM_RING_ACTOR);
    views.learner = open_view(&views.made, FARM_RING_LEARNER);
    return views;
}

static inline void close_views(struct views *views) {
    farm_ring_close(&views->actor);
    farm_ring_close(&views->learner);
    farm_ring_close(&views->made);
}

// Descriptors for a learner, which owns them.
static inline void lend_ring(const struct farm_ring *made, int fds[2]) {
    fds[0] = dup(made->up.fd_readonly);
    fds[1] = dup(made->down.fd);
}

// Locals that are closed at the end of their scope.
#define with_views __attribute__((cleanup(close_views))) struct views
#define with_ring  __attribute__((cleanup(farm_ring_close))) struct farm_ring

// ---- hands ----

static inline void expect_sound(const struct farm_ring *ring) {
    char text[2048];
    must_hold(verify_lanes(ring, text, sizeof text) == 0, text);
}

// The observation of environment e at step n.
static inline uint64_t number_of(uint64_t n, uint32_t e) {
    return n * 1000003u + e * 7919u + 1;
}

// Actor: writes and publishes the next step.
static inline void publish_step(struct farm_lane *lane, bool first) {
    uint64_t n = farm_lane_actor_next(lane);
    for (uint32_t e = 0; e < lane->width; e++) {
        uint64_t number = number_of(n, e);
        memcpy(farm_lane_obs(lane, 0, n, e), &number, sizeof number);
        farm_lane_reward(lane, n)[e] = first ? 0 : (float)(n % 1000);
        farm_lane_flags(lane, n)[e] = first ? FARM_STEP_FIRST : 0;
    }
    farm_lane_actor_publish(lane);
}

// Inference: whether step n has the observations that the actor wrote.
static inline bool step_is_right(const struct farm_lane *lane, uint64_t n) {
    for (uint32_t e = 0; e < lane->width; e++) {
        uint64_t number;
        memcpy(&number, farm_lane_obs(lane, 0, n, e), sizeof number);
        if (number != number_of(n, e)) return false;
    }
    return true;
}

static inline int32_t action_for(uint64_t n, uint32_t e) {
    return (int32_t)((n * 31 + e) % 5);
}

// Inference: answers step n = acted.
static inline void answer_step(struct farm_lane *lane) {
    uint64_t n = farm_lane_acted(lane);
    for (uint32_t e = 0; e < lane->width; e++) {
        int32_t action = action_for(n, e);
        memcpy(farm_lane_action(lane, n, e), &action, sizeof action);
        farm_lane_value(lane, n)[e] = (float)n;
    }
    *farm_lane_version(lane, n) = n / 10;
    farm_lane_answer(lane, n);
}

// Actor: whether step n has the answer that inference wrote.
static inline bool answer_is_right(const struct farm_lane *lane, uint64_t n) {
    for (uint32_t e = 0; e < lane->width; e++) {
        int32_t action;
        memcpy(&action, farm_lane_action(lane, n, e), sizeof action);
        if (action != action_for(n, e)) return false;
    }
    return *farm_lane_version(lane, n) == n / 10;
}

// SplitMix64: the same numbers in every run.
static inline uint64_t random_next(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

#endif
