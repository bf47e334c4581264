// A ring and its three views in one process, each through descriptors of its own as if it were another process; and the
// specs that the tests of src/ring use.
#ifndef TESTS_RING_FIXTURE_H
#define TESTS_RING_FIXTURE_H

#include <criterion/criterion.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ring/ring.h"

// One u64-sized observation field (i32[2]) an environment, a discrete action of 5.
static inline struct farm_ring_spec spec_of(uint32_t lanes, uint32_t width, uint32_t steps) {
    struct farm_ring_spec spec = {.lanes = lanes, .width = width, .steps = steps};
    spec.env.obs_count = 1;
    spec.env.frames_per_step = 1;
    spec.env.obs[0] = (struct farm_field_spec){.name = "number", .dtype = FARM_I32, .rank = 1, .dims = {2}};
    spec.env.action = (struct farm_action_spec){.kind = FARM_ACTION_DISCRETE, .dims = 1, .sizes = {5}};
    farm_ring_spec_answers(&spec);
    return spec;
}

// Every kind of field at once.
static inline struct farm_ring_spec spec_rich(uint32_t lanes, uint32_t width, uint32_t steps) {
    struct farm_ring_spec spec = {.lanes = lanes, .width = width, .steps = steps};
    spec.env.obs_count = 3;
    spec.env.frames_per_step = 4;
    spec.env.obs[0] = (struct farm_field_spec){.name = "image", .dtype = FARM_U8, .rank = 3, .dims = {7, 5, 3}};
    spec.env.obs[1] = (struct farm_field_spec){.name = "inventory", .dtype = FARM_I32, .rank = 1, .dims = {11}};
    spec.env.obs[2] = (struct farm_field_spec){.name = "joints", .dtype = FARM_F32, .rank = 2, .dims = {3, 3}};
    spec.env.action = (struct farm_action_spec){.kind = FARM_ACTION_MULTI_DISCRETE, .dims = 3, .sizes = {2, 3, 5}};
    farm_ring_spec_answers(&spec);
    return spec;
}

struct views {
    struct farm_ring creator, actor, learner;
};

static inline struct farm_ring open_view(const struct farm_ring *creator, enum farm_ring_side side) {
    struct farm_ring ring;
    struct farm_error err = {0};
    int up = dup(side == FARM_RING_ACTOR ? creator->up.fd : creator->up.fd_readonly);
    int down = dup(side == FARM_RING_LEARNER ? creator->down.fd : creator->down.fd_readonly);
    cr_assert_eq(farm_ring_open(up, down, side, &ring, &err), FARM_OK, "%s", err.message);
    return ring;
}

static inline struct farm_ring ring_of(struct farm_ring_spec spec, uint32_t actor) {
    struct farm_ring ring;
    struct farm_error err = {0};
    cr_assert_eq(farm_ring_create(&spec, actor, -1, false, &ring, &err), FARM_OK, "%s", err.message);
    return ring;
}

static inline struct views views_of(struct farm_ring_spec spec) {
    struct views views = {.creator = ring_of(spec, 3)};
    views.actor = open_view(&views.creator, FARM_RING_ACTOR);
    views.learner = open_view(&views.creator, FARM_RING_LEARNER);
    return views;
}

static inline void close_views(struct views *views) {
    farm_ring_close(&views->actor);
    farm_ring_close(&views->learner);
    farm_ring_close(&views->creator);
}

// Locals that are closed where their scope ends.
#define with_views __attribute__((cleanup(close_views))) struct views
#define with_ring  __attribute__((cleanup(farm_ring_close))) struct farm_ring

static inline void expect_sound(const struct farm_ring *ring) {
    char text[2048];
    cr_assert_eq(farm_ring_verify(ring, text, sizeof text), 0, "%s", text);
}

// What environment e of step n shows.
static inline uint64_t number_of(uint64_t n, uint32_t e) {
    return n * 1000003u + e * 7919u + 1;
}

// Actor: writes and publishes the next step, FIRST where `first`.
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

// Inference: whether step n's observations are what the actor wrote.
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

// Actor: whether the answer to step n is what inference wrote.
static inline bool answer_is_right(const struct farm_lane *lane, uint64_t n) {
    for (uint32_t e = 0; e < lane->width; e++) {
        int32_t action;
        memcpy(&action, farm_lane_action(lane, n, e), sizeof action);
        if (action != action_for(n, e)) return false;
    }
    return *farm_lane_version(lane, n) == n / 10;
}

// The status that a child ends with; 256 + signal where one ended it.
static inline int wait_for(pid_t child) {
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? 256 + WTERMSIG(status) : WEXITSTATUS(status);
}

// SplitMix64: the same numbers in every run.
static inline uint64_t random_next(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

#endif
