// The work of round_trip.c and update.c: lanes of 84x84 frames of bytes, four stacked, six actions, and IMPALA's update
// of 32 windows of 20 transitions; and the programs' flags. Include the project's headers first.
#ifndef FARM_BENCH_GPU_WORK_H
#define FARM_BENCH_GPU_WORK_H

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
    const struct farm_field_spec frame = {.name = "obs", .dtype = FARM_U8, .rank = 2, .dims = {SIDE, SIDE}};
    const struct farm_field_spec numbers = {.name = "obs", .dtype = FARM_F32, .rank = 1, .dims = {FLAT}};
    struct farm_ring_spec spec = {.lanes = lanes, .width = width, .steps = steps};
    spec.env.obs_count = 1;
    spec.env.obs[0] = flat ? numbers : frame;
    spec.env.action = (struct farm_action_spec){.kind = FARM_ACTION_DISCRETE, .dims = 1, .sizes = {ACTIONS}};
    spec.env.frames_per_step = 1;
    farm_ring_spec_answers(&spec);
    return spec;
}

static inline struct farm_net_io work_io(bool flat) {
    const struct farm_net_io frames = {
        .frame_channels = 1, .height = SIDE, .width = SIDE, .stack = STACK, .actions = ACTIONS};
    const struct farm_net_io numbers = {.stack = 1, .flat = FLAT, .actions = ACTIONS};
    return flat ? numbers : frames;
}

// option: in the order of vtrace.h.
static inline struct farm_algo_config work_algo(bool flat, uint32_t batch) {
    return (struct farm_algo_config){.algo = &farm_vtrace,
                                     .option = {0.99f, 0.01f, 0.5f, 1, 1, 1, 1, 1},
                                     .unroll = UNROLL,
                                     .batch = batch,
                                     .stack = flat ? 1 : STACK,
                                     .reward_scale = 1,
                                     .optimiser = FARM_OPTIMISER_RMSPROP,
                                     .grad_norm_clip = 40,
                                     .rmsprop_decay = 0.99,
                                     .rmsprop_epsilon = 0.01,
                                     .loss_sum = true};
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

// Ends the process if the status is not FARM_OK: exit status 77 without a GPU or its libraries, else 1.
static inline void work_must(enum farm_status status, const struct farm_error *err) {
    if (!status) return;
    fprintf(stderr, "%s\n", err->message);
    exit(status == FARM_E_UNSUPPORTED || status == FARM_E_NOT_FOUND ? 77 : 1);
}

// Opens the actor's view of a ring.
static inline void work_open_actor(const struct farm_ring *made, struct farm_ring *actor) {
    struct farm_error err;
    work_must(farm_ring_open(dup(made->up.fd), dup(made->down.fd_readonly), FARM_RING_ACTOR, actor, &err), &err);
}

// Creates ring r and opens the actor's view of it.
static inline void work_open_ring(const struct farm_ring_spec *spec, uint32_t r, struct farm_ring *made,
                                  struct farm_ring *actor) {
    struct farm_error err;
    work_must(farm_ring_create(spec, r, -1, true, made, &err), &err);
    work_open_actor(made, actor);
}

// Memory that this process and its children share.
static inline void *work_shared(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) exit(1);
    return memory;
}

#endif
