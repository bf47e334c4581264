// The networks that the GPU's executor is tried on, with parameters, input and gradients of outputs that come from a
// seed alone: the machine that works out what is right (executor_expected.c, with the CPU's executor) and the machine
// with the GPU make the same ones. C17 and C++; the project's headers must be included before.
#ifndef FARM_TESTS_GPU_EXECUTOR_PROBLEM_H
#define FARM_TESTS_GPU_EXECUTOR_PROBLEM_H

enum { EXECUTOR_PROBLEMS = 6, EXECUTOR_SEED = 11 };

struct executor_problem {
    const char *net;
    struct farm_net_io io; // frame_channels, height, width, stack, flat, actions
    int rows;
};
static const struct executor_problem executor_problems[EXECUTOR_PROBLEMS] = {
    {"shallow", {1, 84, 84, 4, 0, 6}, 5}, {"shallow", {3, 37, 50, 2, 0, 15}, 3}, {"nature", {1, 52, 60, 4, 0, 18}, 7},
    {"deep", {1, 42, 35, 4, 0, 9}, 4},    {"deep", {3, 24, 31, 1, 0, 3}, 3},     {"mlp", {0, 0, 0, 1, 17, 7}, 9},
};

static inline void executor_fill_params(const struct farm_net *net, float *params) {
    farm_net_init(net, EXECUTOR_SEED, params);
    for (size_t i = 0; i < net->parameter_count; i++)
        if (params[i] == 0) params[i] = 0.1f * (farm_random_uniform(EXECUTOR_SEED, 1, i) - 0.5f);
}

// dlogits [rows][actions], dvalue [rows].
static inline void executor_fill_gradients(const struct farm_net_io *io, int rows, float *dlogits, float *dvalue) {
    for (size_t i = 0; i < (size_t)rows * (size_t)io->actions; i++)
        dlogits[i] = farm_random_uniform(EXECUTOR_SEED, 2, i) - 0.5f;
    for (size_t i = 0; i < (size_t)rows; i++) dvalue[i] = farm_random_uniform(EXECUTOR_SEED, 3, i) - 0.5f;
}

static inline size_t executor_frame_bytes(const struct farm_net_io *io) {
    return (size_t)io->frame_channels * (size_t)io->height * (size_t)io->width;
}

// Frames [rows][stack] of u8, partly smooth as games' are, or f32 [rows][flat].
static inline void executor_fill_input(const struct farm_net_io *io, int rows, void *input) {
    const size_t bytes = (size_t)rows * (size_t)io->stack * executor_frame_bytes(io);
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)input)[i] = (uint8_t)(255 * farm_random_uniform(EXECUTOR_SEED, 5, i / 64 % 3 == 0 ? i : i / 64));
    for (size_t i = 0; i < (size_t)rows * (size_t)io->flat; i++)
        ((float *)input)[i] = 2 * farm_random_uniform(EXECUTOR_SEED, 4, i) - 1;
}
static inline size_t executor_input_bytes(const struct farm_net_io *io, int rows) {
    return (size_t)rows *
           (io->flat > 0 ? (size_t)io->flat * sizeof(float) : (size_t)io->stack * executor_frame_bytes(io));
}

// Some frames are told as NULL.
static inline int executor_frame_is_null(const struct farm_net_io *io, size_t frame) {
    return io->stack > 1 && frame % 7 == 2;
}

#endif
