// Times the kernels that an update's time goes into, at its sizes (672 rows: 32 columns of 20 steps and one to
// bootstrap from; a quarter of them for maxima) of the shallow and the deep net, bf16, beside a copy within device
// memory that moves as many bytes: bytes read and written over time, as a share of what the copy reaches. Small ones
// are bound by their launch, as the copy of a few KB is. Interleaved round by round; the main output of each is held
// against the CPU's function at random places (test_kernels.cu looks at all of all of them).
#include "bench.cuh"

extern "C" {
#include "kernels/layers.h"
#include "nn/staging.h"
}

enum { ROUNDS = 30, WARMUP = 3, SAMPLES = 400, ACTIONS = 6, STEPS = 20 };

struct bench {
    struct random rng;
    struct stopwatch watch;
    uint8_t *copy_from, *copy_to; // device memory
    size_t copy_bytes;
    uint32_t rows, columns; // of an update: (STEPS + 1) * columns
    int rounds;
};

// put(): a launch. check(i): whether number i of the result, of `count`, is as the CPU has it; called after all rounds.
template <typename Put, typename Check>
static void measure(struct bench *b, const char *name, size_t bytes, size_t count, const Put &put, const Check &check) {
    double rates[ROUNDS], copies[ROUNDS];
    const size_t half = bytes / 2 < b->copy_bytes ? bytes / 2 : b->copy_bytes;
    for (int round = -WARMUP; round < b->rounds; round++) {
        stopwatch_start(&b->watch);
        CUDA(cudaMemcpyAsync(b->copy_to, b->copy_from, half, cudaMemcpyDeviceToDevice));
        const double copy_s = stopwatch_stop(&b->watch);
        stopwatch_start(&b->watch);
        put();
        const double kernel_s = stopwatch_stop(&b->watch);
        if (round < 0) continue;
        copies[round] = 2.0 * (double)half / copy_s / 1e9;
        rates[round] = (double)bytes / kernel_s / 1e9;
    }
    for (int i = 0; i < SAMPLES && count > 0; i++)
        if (!check(random_below(&b->rng, (uint32_t)count))) bench_fail(name);
    const struct bench_figure figure = {name,  "GB/s",    "a copy within device memory of as many bytes", true,
                                        rates, b->rounds, ascending_at(copies, b->rounds, 0.5),           0};
    bench_print(&figure);
}

template <typename T> static T *random_device(struct bench *b, size_t count, float low, float high, T **host) {
    *host = (T *)malloc(count * sizeof(T));
    for (size_t i = 0; i < count; i++) (*host)[i] = (T)random_float(&b->rng, low, high);
    return device_of(*host, count);
}

static uint16_t *random_bf16(struct bench *b, size_t count, uint16_t **host) {
    *host = (uint16_t *)malloc(count * sizeof(uint16_t));
    for (size_t i = 0; i < count; i++) (*host)[i] = farm_bf16(random_float(&b->rng, -1, 1));
    return device_of(*host, count);
}

static bool near(float a, float b) {
    return fabsf(a - b) <= 1e-5f + 1e-5f * fabsf(b);
}

static void time_stack(struct bench *b) {
    const size_t frame = 84 * 84, stack = 4, pixels = (size_t)b->rows * frame, count = pixels * stack;
    uint8_t *host, *mirror = random_device(b, pixels, 0, 255, &host);
    const void **frames = (const void **)malloc(b->rows * stack * sizeof(void *));
    for (size_t i = 0; i < b->rows * stack; i++) // of this row and the three before it
        frames[i] = i / stack + i % stack < 3 ? NULL : mirror + (i / stack + i % stack - 3) * frame;
    const void **device_frames = device_of(frames, b->rows * stack);
    uint16_t *out = (uint16_t *)device_poisoned(count * sizeof(uint16_t));
    const struct farm_cuda_stack s = {device_frames,  b->rows, (uint32_t)stack, 1, 84, 84, FARM_CUDA_BF16,
                                      FARM_CUDA_NHWC, out};
    uint16_t *got = NULL;
    measure(
        b, "stack_4x84x84_nhwc_bf16", pixels + count * sizeof(uint16_t),
        count, // a frame is read four times, once from memory
        [&] { FARM(farm_cuda_stack(NULL, &s, err)); },
        [&](size_t i) {
            if (!got) got = host_of(out, count);
            const size_t row = i / stack / frame, f = i % stack, pixel = i / stack % frame;
            const uint8_t number = row + f < 3 ? 0 : host[(row + f - 3) * frame + pixel];
            return got[i] == farm_bf16(farm_pixel_unit(number));
        });
    CUDA(cudaFree(mirror));
    CUDA(cudaFree(device_frames));
    CUDA(cudaFree(out));
    free(host), free(frames), free(got);
}

// Of the shallow net's first layer.
static void time_activations(struct bench *b) {
    const size_t rows = (size_t)b->rows * 20 * 20, channels = 16, count = rows * channels;
    uint16_t *y_host, *dy_host, *got = NULL, *y = random_bf16(b, count, &y_host);
    uint16_t *dy = random_bf16(b, count, &dy_host), *dy_got = NULL;
    uint16_t *x = (uint16_t *)device_poisoned(count * 2);
    float *zeros = (float *)calloc(channels, sizeof(float)), *bias_gradient = device_of(zeros, channels);
    measure(
        b, "activate_20x20x16_bf16", 2 * count * 2, count,
        [&] { FARM(farm_cuda_activate(NULL, FARM_SLOPE_RELU, FARM_CUDA_BF16, y, x, count, err)); },
        [&](size_t i) {
            if (!got) got = host_of(x, count);
            return got[i] == farm_bf16(farm_slope_apply(FARM_SLOPE_RELU, farm_bf16_value(y_host[i])));
        });
    const struct farm_cuda_slope_gradient g = {
        FARM_SLOPE_RELU,
        FARM_CUDA_BF16,
        rows,
        (int)channels,
        y,
        dy,
        bias_gradient,
        device_poisoned(farm_cuda_slope_gradient_scratch_bytes(rows, (int)channels))};
    measure(
        b, "slope_gradient_20x20x16_bf16", 3 * count * 2, count, [&] { FARM(farm_cuda_slope_gradient(NULL, &g, err)); },
        [&](size_t i) {
            if (!dy_got) dy_got = host_of(dy, count);
            const float number = farm_bf16_value(dy_host[i]), slope = farm_bf16_value(y_host[i]);
            return dy_got[i] == farm_bf16(farm_slope_gradient(FARM_SLOPE_RELU, slope, number));
        });
    for (void *memory : {(void *)y, (void *)dy, (void *)x, (void *)bias_gradient, g.scratch}) CUDA(cudaFree(memory));
    free(y_host), free(dy_host), free(got), free(dy_got), free(zeros);
}

// Of the deep net's first block.
static void time_pool(struct bench *b) {
    const struct farm_pool p = {84, 84, 16, 42, 42, 3, 2, 0, 0};
    const size_t in_row = 84 * 84 * 16, out_row = (size_t)p.out_height * (size_t)p.out_width * 16;
    const size_t rows = b->rows / 4, ins = rows * in_row, outs = rows * out_row;
    uint16_t *host, *got = NULL, *in = random_bf16(b, ins, &host), *out = (uint16_t *)device_poisoned(outs * 2);
    uint16_t *dx = (uint16_t *)device_poisoned(ins * 2), *gradient = NULL;
    uint8_t *where = (uint8_t *)device_poisoned(outs), *where_got = NULL;
    const auto expected = [&](size_t i, uint8_t *place) {
        const size_t pixel = i % out_row / 16;
        return farm_pool_maximum(&p, host + i / out_row * in_row, true, (int)(pixel / (size_t)p.out_width),
                                 (int)(pixel % (size_t)p.out_width), (int)(i % 16), place);
    };
    measure(
        b, "pool_84x84x16_bf16", (ins + outs) * 2 + outs, outs,
        [&] { FARM(farm_cuda_pool(NULL, &p, FARM_CUDA_BF16, rows, in, out, where, err)); },
        [&](size_t i) {
            uint8_t place;
            if (!got) got = host_of(out, outs);
            if (!where_got) where_got = host_of(where, outs);
            return got[i] == farm_bf16(expected(i, &place)) && where_got[i] == place;
        });
    measure(
        b, "pool_gradient_84x84x16_bf16", (ins + outs) * 2 + outs, ins,
        [&] { FARM(farm_cuda_pool_gradient(NULL, &p, FARM_CUDA_BF16, rows, out, where, dx, err)); },
        [&](size_t i) {
            const size_t row = i / in_row, pixel = i % in_row / 16;
            if (!gradient) gradient = host_of(dx, ins);
            return gradient[i] == farm_bf16(farm_pool_gradient(&p, got + row * out_row, where_got + row * out_row, true,
                                                               (int)(pixel / 84), (int)(pixel % 84), (int)(i % 16)));
        });
    for (void *memory : {(void *)in, (void *)out, (void *)dx, (void *)where}) CUDA(cudaFree(memory));
    free(host), free(got), free(where_got), free(gradient);
}

static void time_learning(struct bench *b) {
    const uint32_t columns = b->columns, rows = STEPS * columns, more = rows + columns;
    float *hosts[6], *logits = random_device(b, more * ACTIONS, -2, 2, &hosts[0]);
    float *behaviour = random_device(b, more * ACTIONS, -2, 2, &hosts[1]);
    float *target_log = random_device(b, more, -2, 0, &hosts[2]), *value = random_device(b, more, -1, 1, &hosts[3]);
    float *reward = random_device(b, more, -1, 1, &hosts[4]), *weights = random_device(b, more, 1, 1.5f, &hosts[5]);
    int32_t *action_host, *action = random_device(b, more, 0, ACTIONS - 0.01f, &action_host);
    uint8_t *flags_host, *flags = random_device(b, more, 0, 0.5f, &flags_host);
    float *vs = (float *)device_poisoned(rows * 4), *advantage = (float *)device_poisoned(rows * 4);
    float *weight = (float *)device_poisoned(rows * 4), *dlogits = (float *)device_poisoned(rows * ACTIONS * 4);
    float *dvalue = (float *)device_poisoned(rows * 4);
    struct farm_loss_stats nothing = {}, *stats = device_of(&nothing, 1);
    void *scratch = device_poisoned(farm_cuda_loss_scratch_bytes((int)rows));
    const struct farm_vtrace_config config = farm_vtrace_default();
    struct farm_vtrace_batch batch = {STEPS, (int)columns, target_log, target_log, reward,
                                      flags, value,        vs,         advantage,  weight};
    float *got[3] = {}, *expected[3] = {};
    measure(
        b, "vtrace_20_steps", more * (4 * sizeof(float) + 1) + rows * 3 * sizeof(float), rows,
        [&] { FARM(farm_cuda_vtrace(NULL, &config, &batch, err)); },
        [&](size_t i) {
            if (!got[0]) {
                for (int k = 0; k < 3; k++) expected[k] = (float *)malloc(rows * sizeof(float));
                got[0] = host_of(vs, rows), got[1] = host_of(advantage, rows);
                const struct farm_vtrace_batch same = {STEPS,      (int)columns, hosts[2],    hosts[2],    hosts[4],
                                                       flags_host, hosts[3],     expected[0], expected[1], expected[2]};
                farm_vtrace(&config, &same);
            }
            return near(got[0][i], expected[0][i]) && near(got[1][i], expected[1][i]);
        });
    const struct farm_loss_config loss_config = {0.5f, 0.01f, 1.0f};
    const struct farm_loss_batch loss = {(int)rows, ACTIONS,   logits,  behaviour, action, value,
                                         vs,        advantage, weights, dlogits,   dvalue};
    float *dlogits_host = (float *)malloc(rows * ACTIONS * 4), *dvalue_host = (float *)malloc(rows * 4);
    measure(
        b, "loss_6_actions", rows * (3 * ACTIONS + 6) * sizeof(float), rows * ACTIONS,
        [&] { FARM(farm_cuda_loss(NULL, &loss_config, &loss, scratch, stats, err)); },
        [&](size_t i) {
            if (!got[2]) {
                const struct farm_loss_batch same = {(int)rows, ACTIONS, hosts[0], hosts[1],     action_host, hosts[3],
                                                     got[0],    got[1],  hosts[5], dlogits_host, dvalue_host};
                struct farm_loss_stats sums = {};
                farm_loss(&loss_config, &same, &sums);
                got[2] = host_of(dlogits, rows * ACTIONS);
            }
            return near(got[2][i], dlogits_host[i]);
        });
    for (void *memory : {(void *)logits, (void *)behaviour, (void *)target_log, (void *)value, (void *)reward,
                         (void *)weights, (void *)action, (void *)flags, (void *)vs, (void *)advantage, (void *)weight,
                         (void *)dlogits, (void *)dvalue, (void *)stats, scratch})
        CUDA(cudaFree(memory));
    for (float *memory : hosts) free(memory);
    for (int k = 0; k < 3; k++) free(got[k]), free(expected[k]);
    free(action_host), free(flags_host), free(dlogits_host), free(dvalue_host);
}

static void time_sampling(struct bench *b) {
    const uint32_t rows = 256;
    float *host, *logits = random_device(b, rows * ACTIONS, -2, 2, &host);
    uint64_t *numbers_host, *numbers = random_device(b, rows, 0, 1e6f, &numbers_host);
    int32_t *action = (int32_t *)device_poisoned(rows * 4), *got = NULL;
    struct farm_cuda_sample s = {};
    s.sampler.seed = 7;
    s.rows = rows;
    s.actions = ACTIONS;
    s.stream = s.counter = numbers;
    s.logits = logits;
    s.action = action;
    int other = 0; // a draw on the border of two actions may fall to either side
    measure(
        b, "sample_256_rows", rows * (ACTIONS * 4 + 2 * 8 + 4), rows, [&] { FARM(farm_cuda_sample(NULL, &s, err)); },
        [&](size_t i) {
            if (!got) got = host_of(action, rows);
            const int32_t expected =
                farm_sample_action(&s.sampler, numbers_host[i], numbers_host[i], host + i * ACTIONS, ACTIONS);
            return got[i] == expected || other++ < 2;
        });
    for (void *memory : {(void *)logits, (void *)numbers, (void *)action}) CUDA(cudaFree(memory));
    free(host), free(numbers_host), free(got);
}

static void time_optimiser(struct bench *b, size_t count) {
    float *hosts[3], *gradients = random_device(b, count, -1e-3f, 1e-3f, &hosts[0]);
    struct farm_cuda_optimiser o = {};
    struct farm_cuda_optimiser_control control = {};
    control.learning_rate = 0; // so that the parameters stay what they are, and can be compared
    o.config = farm_optimiser_default(FARM_OPTIMISER_RMSPROP);
    o.count = count;
    o.gradients = gradients;
    o.params = random_device(b, count, -1, 1, &hosts[1]);
    o.second = random_device(b, count, 0, 1, &hosts[2]);
    o.params_bf16 = (uint16_t *)device_poisoned(count * 2);
    o.control = device_of(&control, 1);
    o.scratch = device_poisoned(FARM_CUDA_OPTIMISER_SCRATCH_BYTES);
    uint16_t *got = NULL;
    measure(
        b, "rmsprop_1.7M_parameters", count * (4 + 4 + 2 * 4 + 2 * 4 + 2), count,
        [&] { FARM(farm_cuda_optimiser_step(NULL, &o, err)); },
        [&](size_t i) {
            if (!got) got = host_of(o.params_bf16, count);
            return got[i] == farm_bf16(hosts[1][i]);
        });
    for (void *memory :
         {(void *)gradients, (void *)o.params, (void *)o.second, (void *)o.params_bf16, (void *)o.control, o.scratch})
        CUDA(cudaFree(memory));
    for (float *memory : hosts) free(memory);
    free(got);
}

int bench_kernels(uint64_t seed, bool few) {
    struct bench b = {};
    b.rng = {seed, 0};
    b.columns = few ? 2 : 32;
    b.rows = (STEPS + 1) * b.columns;
    b.rounds = few ? 2 : ROUNDS;
    b.copy_bytes = few ? 1 << 20 : 1 << 28;
    b.copy_from = (uint8_t *)device_poisoned(b.copy_bytes);
    b.copy_to = (uint8_t *)device_poisoned(b.copy_bytes);
    b.watch = stopwatch_make(NULL, few);
    bench_begin("cuda_kernels", seed);
    time_stack(&b);
    time_activations(&b);
    time_pool(&b);
    time_learning(&b);
    time_sampling(&b);
    time_optimiser(&b, few ? 5001 : 1700003);
    bench_end();
    stopwatch_free(&b.watch);
    CUDA(cudaFree(b.copy_from));
    CUDA(cudaFree(b.copy_to));
    return 0;
}
