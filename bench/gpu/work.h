// The work of round_trip.c, update.c and ../learner.c: lanes of 84x84 frames of bytes, four stacked, six actions, and
// IMPALA's update of 32 windows of 20 transitions; and the flags of the first two.
#ifndef FARM_BENCH_GPU_WORK_H
#define FARM_BENCH_GPU_WORK_H

#include "../../tests/support/rig.h"

enum { SIDE = 84, STACK = 4, ACTIONS = 6, FLAT = 8, UNROLL = 20, BATCH = 32, RING_STEPS = 128 };

struct work_flags {
    const char *library, *only;
    uint32_t rounds;
    bool cpu, few;
};

static inline struct work_flags work_read_flags(int argc, char **argv, uint32_t rounds) {
    struct work_flags flags = {.library = "build/libfarm_cuda.so", .only = "", .rounds = rounds};
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--library") == 0) flags.library = argv[i + 1];
        if (strcmp(argv[i], "--only") == 0) flags.only = argv[i + 1];
        if (strcmp(argv[i], "--rounds") == 0) flags.rounds = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--device") == 0) flags.cpu = strcmp(argv[i + 1], "cpu") == 0;
        if (strcmp(argv[i], "--few") == 0) flags.few = true;
    }
    return flags;
}

static inline bool work_includes(const struct work_flags *flags, const char *net) {
    return !*flags->only || strcmp(net, flags->only) == 0;
}

// flat: eight numbers instead of frames, for the smallest network.
static inline struct farm_ring_spec work_ring_spec(bool flat, uint32_t lanes, uint32_t width, uint32_t steps) {
    struct farm_ring_spec spec = farm_ring_spec_plain(lanes, width, steps, FARM_F32, FLAT, ACTIONS);
    if (!flat)
        spec.env.obs[0] = (struct farm_field_spec){.name = "obs", .dtype = FARM_U8, .rank = 2, .dims = {SIDE, SIDE}};
    return spec;
}

static inline struct farm_learner_config work_config(const struct farm_net_spec *net, bool flat, uint32_t batch) {
    struct farm_learner_config config = test_learner_config(FLAT, ACTIONS, UNROLL);
    if (!flat) {
        config.io = (struct farm_net_io){
            .frame_channels = 1, .height = SIDE, .width = SIDE, .stack = STACK, .actions = ACTIONS};
        config.algo.stack = STACK;
    }
    config.net = *net;
    config.seed = 1;
    config.arithmetic.precision = FARM_PRECISION_AUTO;
    config.algo.option[FARM_VTRACE_DISCOUNT] = 0.99f;
    config.algo.batch = batch;
    config.algo.optimiser = FARM_OPTIMISER_RMSPROP;
    config.algo.lr = config.algo.lr_end = 0;
    config.algo.rmsprop_decay = 0.99;
    config.algo.rmsprop_epsilon = 0.01;
    config.algo.grad_norm_clip = 40;
    config.algo.loss_sum = true;
    return config;
}

// Writes the actor's next step: a picture of one grey, no reward.
static inline void work_write_step(struct farm_lane *lane) {
    const uint64_t n = farm_lane_actor_next(lane);
    for (uint32_t e = 0; e < lane->width; e++) {
        memset(farm_lane_obs(lane, 0, n, e), (int)(n + e) & 0x3f, lane->obs_bytes[0]);
        farm_lane_reward(lane, n)[e] = 0;
        farm_lane_flags(lane, n)[e] = n == 0 ? FARM_STEP_FIRST : 0;
    }
}

#endif
