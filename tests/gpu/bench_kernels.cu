// Times the kernels one by one, at the sizes of an update (672 rows: 32 columns of 20 steps and one to bootstrap from;
// a quarter of them for maxima) of the shallow and the deep net, bf16, beside a copy within device memory that moves as
// many bytes: bytes read and written over time, as a share of what the copy reaches. Answers, at the sizes of an
// inference, beside a copy to pinned memory of what they send over the bus. Small ones are bound by their launch, as
// the copy of a few KB is. Interleaved round by round; the main output of each is held against the CPU's function at
// random places (test_kernels.cu looks at all of all of them); where a kernel works in place, the CPU does it as often.
//
// Of kernels.h are timed elsewhere: pulls (bench_pull.cu, bench_traffic.cu), and the signal, a single word, which has
// no rate (bench_launches.cu: it is what the host waits for behind each launch).
#include "bench.cuh"

extern "C" {
#include "kernels/layers.h"
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

// What a kernel's rate is held against: a copy of so many bytes, of which `moved` count.
struct beside {
    const char *name;
    void *to;
    const void *from;
    size_t bytes, moved;
};

// Each byte is read and written.
static struct beside within(const struct bench *b, size_t bytes) {
    const size_t half = bytes / 2 < b->copy_bytes ? bytes / 2 : b->copy_bytes;
    return {"a copy within device memory of as many bytes", b->copy_to, b->copy_from, half, 2 * half};
}

// put(): a launch. check(i): whether number i of the result, of `count`, is as the CPU has it; called after all rounds.
template <typename Put, typename Check>
static void measure_beside(struct bench *b, const char *name, size_t bytes, const struct beside *beside, size_t count,
                           const Put &put, const Check &check) {
    double rates[ROUNDS], copies[ROUNDS];
    for (int round = -WARMUP; round < b->rounds; round++) {
        stopwatch_start(&b->watch);
        CUDA(cudaMemcpyAsync(beside->to, beside->from, beside->bytes, cudaMemcpyDefault));
        const double copy_s = stopwatch_stop(&b->watch);
        stopwatch_start(&b->watch);
        put();
        const double kernel_s = stopwatch_stop(&b->watch);
        if (round < 0) continue;
        copies[round] = (double)beside->moved / copy_s / 1e9;
        rates[round] = (double)bytes / kernel_s / 1e9;
    }
    for (int i = 0; i < SAMPLES && count > 0; i++)
        if (!check(random_below(&b->rng, (uint32_t)count))) bench_fail(name);
    const struct bench_figure figure = {
        name, "GB/s", beside->name, true, rates, b->rounds, ascending_at(copies, b->rounds, 0.5), 0};
    bench_print(&figure);
}

template <typename Put, typename Check>
static void measure(struct bench *b, const char *name, size_t bytes, size_t count, const Put &put, const Check &check) {
    const struct beside beside = within(b, bytes);
    measure_beside(b, name, bytes, &beside, count, put, check);
}

// How often put() has been called by then.
static int times_put(const struct bench *b) {
    return WARMUP + b->rounds;
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
// Of numbers that may be small: moments.
static bool alike(float a, float b) {
    return fabsf(a - b) <= 1e-4f * fabsf(b);
}
static float rounded(float x) {
    return farm_bf16_value(farm_bf16(x));
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
    uint16_t *bias_host, *bias = random_bf16(b, channels, &bias_host), *sum = device_of(y_host, count), *sum_got = NULL;
    measure(
        b, "bias_activate_20x20x16_bf16", 2 * count * 2, count,
        [&] { FARM(farm_cuda_bias_activate(NULL, FARM_SLOPE_RELU, FARM_CUDA_BF16, bias, sum, rows, channels, err)); },
        [&](size_t i) {
            if (!sum_got) sum_got = host_of(sum, count);
            float number = farm_bf16_value(y_host[i]);
            for (int k = 0; k < times_put(b); k++)
                number = rounded(farm_slope_apply(FARM_SLOPE_RELU, number + farm_bf16_value(bias_host[i % channels])));
            return sum_got[i] == farm_bf16(number);
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
    for (void *memory : {(void *)y, (void *)dy, (void *)x, (void *)bias, (void *)sum, (void *)bias_gradient, g.scratch})
        CUDA(cudaFree(memory));
    for (void *memory : {(void *)y_host, (void *)dy_host, (void *)bias_host, (void *)got, (void *)dy_got,
                         (void *)sum_got, (void *)zeros})
        free(memory);
}

// Of the deep net's first residual blocks.
static void time_residual(struct bench *b) {
    const size_t count = (size_t)b->rows * 42 * 42 * 16;
    uint16_t *y_host, *dy_host, *sum_host, *got = NULL, *y = random_bf16(b, count, &y_host);
    uint16_t *dy = random_bf16(b, count, &dy_host), *sum = random_bf16(b, count, &sum_host);
    measure(
        b, "relu_gradient_add_42x42x16_bf16", 4 * count * 2, count,
        [&] { FARM(farm_cuda_relu_gradient_add(NULL, FARM_CUDA_BF16, y, dy, sum, count, err)); },
        [&](size_t i) {
            if (!got) got = host_of(sum, count);
            const float slope = farm_bf16_value(y_host[i]), gradient = farm_bf16_value(dy_host[i]);
            float number = farm_bf16_value(sum_host[i]);
            for (int k = 0; k < times_put(b); k++)
                number = rounded(number + farm_slope_gradient(FARM_SLOPE_RELU, slope, gradient));
            return got[i] == farm_bf16(number);
        });
    for (uint16_t *memory : {y, dy, sum}) CUDA(cudaFree(memory));
    for (uint16_t *memory : {y_host, dy_host, sum_host, got}) free(memory);
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

static void time_heads(struct bench *b) {
    const size_t rows = b->rows, pitch = 8, columns = ACTIONS + 1, count = rows * pitch;
    const struct farm_cuda_heads heads = {FARM_CUDA_BF16, (uint32_t)rows, ACTIONS, (int)pitch};
    float *hosts[3], *product = random_device(b, count, -2, 2, &hosts[0]), *got[2] = {};
    float *dlogits = random_device(b, rows * ACTIONS, -2, 2, &hosts[1]),
          *dvalue = random_device(b, rows, -2, 2, &hosts[2]);
    uint16_t *bias_host, *bias = random_bf16(b, columns, &bias_host), *joined_got = NULL;
    float *logits = (float *)device_poisoned(rows * ACTIONS * 4), *value = (float *)device_poisoned(rows * 4);
    uint16_t *joined = (uint16_t *)device_poisoned(count * 2);
    measure(
        b, "heads_split_6_actions", rows * columns * 2 * 4, rows * columns,
        [&] { FARM(farm_cuda_heads_split(NULL, &heads, product, bias, logits, value, err)); },
        [&](size_t i) {
            if (!got[0]) got[0] = host_of(logits, rows * ACTIONS), got[1] = host_of(value, rows);
            const size_t row = i / columns, a = i % columns;
            const float expected = hosts[0][row * pitch + a] + farm_bf16_value(bias_host[a]);
            return (a < ACTIONS ? got[0][row * ACTIONS + a] : got[1][row]) == expected;
        });
    measure(
        b, "heads_join_6_actions_bf16", rows * columns * 4 + count * 2, count,
        [&] { FARM(farm_cuda_heads_join(NULL, &heads, dlogits, dvalue, joined, err)); },
        [&](size_t i) {
            if (!joined_got) joined_got = host_of(joined, count);
            const size_t row = i / pitch, a = i % pitch;
            const float expected = a < ACTIONS ? hosts[1][row * ACTIONS + a] : a == ACTIONS ? hosts[2][row] : 0;
            return joined_got[i] == farm_bf16(expected);
        });
    for (void *memory : {(void *)product, (void *)dlogits, (void *)dvalue, (void *)bias, (void *)logits, (void *)value,
                         (void *)joined})
        CUDA(cudaFree(memory));
    for (float *memory : hosts) free(memory);
    free(got[0]), free(got[1]), free(bias_host), free(joined_got);
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
    float *log_prob = (float *)device_poisoned(more * sizeof(float)), *log_prob_got = NULL;
    measure(
        b, "log_prob_6_actions", more * (ACTIONS + 2) * sizeof(float), more,
        [&] { FARM(farm_cuda_log_prob_rows(NULL, logits, action, (int)more, ACTIONS, log_prob, err)); },
        [&](size_t i) {
            if (!log_prob_got) log_prob_got = host_of(log_prob, more);
            return near(log_prob_got[i], farm_log_prob_row(hosts[0] + i * ACTIONS, ACTIONS, action_host[i]));
        });
    CUDA(cudaFree(log_prob));
    free(log_prob_got);
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

static void time_optimiser(struct bench *b, enum farm_optimiser_kind kind, const char *name, size_t count) {
    const bool adam = kind == FARM_OPTIMISER_ADAM;
    float *hosts[4] = {}, *gradients = random_device(b, count, -1e-3f, 1e-3f, &hosts[0]);
    struct farm_cuda_optimiser o = {};
    struct farm_cuda_optimiser_control control = {}, *after = NULL;
    control.learning_rate = 1e-4f;
    o.config = farm_optimiser_default(kind);
    o.count = count;
    o.gradients = gradients;
    o.params = random_device(b, count, -1, 1, &hosts[1]);
    o.second = random_device(b, count, 0, 1, &hosts[2]);
    if (adam) o.first = random_device(b, count, -1, 1, &hosts[3]);
    o.params_bf16 = (uint16_t *)device_poisoned(count * 2);
    o.control = device_of(&control, 1);
    o.scratch = device_poisoned(FARM_CUDA_OPTIMISER_SCRATCH_BYTES);
    float *got[2] = {};
    uint16_t *got_bf16 = NULL;
    measure(
        b, name, count * (4 + 4 + 2 * 4 + 2 * 4 + (adam ? 2 * 4 : 0) + 2), count,
        [&] { FARM(farm_cuda_optimiser_step(NULL, &o, err)); },
        [&](size_t i) {
            if (!after) {
                after = host_of(o.control, 1), got[0] = host_of(o.params, count), got[1] = host_of(o.second, count);
                got_bf16 = host_of(o.params_bf16, count);
            }
            float param = hosts[1][i], second = hosts[2][i], first = adam ? hosts[3][i] : 0;
            for (int k = 0; k < times_put(b); k++) {
                const struct farm_optimiser_factors factors =
                    farm_optimiser_factors_make(&o.config, (uint64_t)k + 1, control.learning_rate, after->norm);
                if (adam)
                    farm_adam_update(&factors, hosts[0][i], &first, &second, &param);
                else
                    farm_rmsprop_update(&factors, hosts[0][i], &second, &param);
            }
            return after->step == (uint64_t)times_put(b) && near(got[0][i], param) && alike(got[1][i], second) &&
                   got_bf16[i] == farm_bf16(got[0][i]);
        });
    for (void *memory : {(void *)gradients, (void *)o.params, (void *)o.first, (void *)o.second, (void *)o.params_bf16,
                         (void *)o.control, o.scratch})
        CUDA(cudaFree(memory));
    for (float *memory : hosts) free(memory);
    free(after), free(got[0]), free(got[1]), free(got_bf16);
}

// What runs over the flat vector of parameters besides: its bf16 copy, its gradients' share of an update. And what goes
// over the largest gradient of a convolution (Nature's third: 64 of 3x3x64), which cuDNN gives as bf16.
static void time_vectors(struct bench *b, size_t count) {
    const size_t convolution = 64 * 3 * 3 * 64;
    float *host, *x = random_device(b, count, -1, 1, &host), *got = NULL;
    uint16_t *out = (uint16_t *)device_poisoned(count * 2), *out_got = NULL;
    measure(
        b, "round_1.7M_parameters", count * (4 + 2), count, [&] { FARM(farm_cuda_round(NULL, x, out, count, err)); },
        [&](size_t i) {
            if (!out_got) out_got = host_of(out, count);
            return out_got[i] == farm_bf16(host[i]);
        });
    const float factor = 0.97f;
    measure(
        b, "scale_1.7M_parameters", count * 2 * 4, count, [&] { FARM(farm_cuda_scale(NULL, x, count, factor, err)); },
        [&](size_t i) {
            if (!got) got = host_of(x, count);
            float number = host[i];
            for (int k = 0; k < times_put(b); k++) number *= factor;
            return got[i] == number;
        });
    float *sum_host, *sum = random_device(b, convolution, -1, 1, &sum_host), *sum_got = NULL;
    uint16_t *more_host, *more = random_bf16(b, convolution, &more_host);
    measure(
        b, "add_bf16_64x3x3x64", convolution * (2 + 2 * 4), convolution,
        [&] { FARM(farm_cuda_add_bf16(NULL, more, sum, convolution, err)); },
        [&](size_t i) {
            if (!sum_got) sum_got = host_of(sum, convolution);
            float number = sum_host[i];
            for (int k = 0; k < times_put(b); k++) number += farm_bf16_value(more_host[i]);
            return sum_got[i] == number;
        });
    for (void *memory : {(void *)x, (void *)out, (void *)sum, (void *)more}) CUDA(cudaFree(memory));
    for (float *memory : {host, got, sum_host, sum_got}) free(memory);
    free(out_got), free(more_host);
}

// ---- answers ----

enum { ANSWER_ROWS = 64, PLACE_BYTES = 4096, LINE = 128 };

// 64 rows' answers into lanes of `width` environments each, which lie at random places of a registered segment, as
// `down` segments do; no two rounds of the last BENCH_SETS answer at the same places.
struct answering {
    struct segment segment;
    uint32_t lanes, width;
    uint8_t *place[BENCH_SETS][ANSWER_ROWS]; // as the host reads them: action, logits, value, version, acted, each on
                                             // lines of its own
    struct farm_cuda_answer_lane *items[BENCH_SETS]; // device memory
};

static void answering_make(struct answering *w, struct bench *b, uint32_t width, bool few) {
    const uint32_t places = few ? 1024 : 16384;
    w->segment = segment_make((size_t)places * PLACE_BYTES, false);
    w->width = width;
    w->lanes = ANSWER_ROWS / width;
    uint32_t *order = (uint32_t *)malloc(places * sizeof *order), taken = 0;
    for (uint32_t i = 0; i < places; i++) order[i] = i;
    for (int set = 0; set < BENCH_SETS; set++) {
        struct farm_cuda_answer_lane items[ANSWER_ROWS];
        for (uint32_t l = 0; l < w->lanes; l++, taken++) {
            const uint32_t other = taken + random_below(&b->rng, places - taken), place = order[other];
            order[other] = order[taken];
            uint8_t *at = w->segment.device + (size_t)place * PLACE_BYTES;
            w->place[set][l] = w->segment.host + (size_t)place * PLACE_BYTES;
            items[l] = {(int32_t *)at,
                        (float *)(at + LINE),
                        (float *)(at + 4 * LINE),
                        (uint64_t *)(at + 5 * LINE),
                        (uint64_t *)(at + 6 * LINE),
                        1000 + l,
                        l * width,
                        width};
        }
        w->items[set] = device_of(items, w->lanes);
    }
    free(order);
}

static void answering_free(struct answering *w) {
    for (struct farm_cuda_answer_lane *items : w->items) CUDA(cudaFree(items));
    segment_free(&w->segment);
}

static void time_answers(struct bench *b, uint32_t width, const char *name, bool few) {
    const size_t rows = ANSWER_ROWS, bytes = rows * (4 + 4 * ACTIONS + 4) + rows / width * 16;
    float *logits_host, *logits = random_device(b, rows * ACTIONS, -2, 2, &logits_host);
    float *value_host, *value = random_device(b, rows, -2, 2, &value_host);
    int32_t *action_host, *action = random_device(b, rows, 0, ACTIONS - 0.01f, &action_host);
    const uint64_t version = 77;
    uint64_t *device_version = device_of(&version, 1);
    struct answering w = {};
    answering_make(&w, b, width, few);
    void *pinned;
    CUDA(cudaHostAlloc(&pinned, bytes, cudaHostAllocDefault));
    const struct beside bus = {"one copy to pinned memory of as many bytes", pinned, b->copy_from, bytes, bytes};
    int round = 0;
    measure_beside(
        b, name, bytes, &bus, rows * BENCH_SETS,
        [&] {
            const struct farm_cuda_answer answer = {
                w.items[round++ % BENCH_SETS], w.lanes, ACTIONS, action, logits, value, device_version};
            FARM(farm_cuda_answer(NULL, &answer, err));
        },
        [&](size_t i) {
            const size_t row = i % rows, set = i / rows % BENCH_SETS, lane = row / width, env = row % width;
            if ((int)set >= round) return true; // nobody has answered there
            const uint8_t *at = w.place[set][lane];
            const uint64_t told[2] = {*(const uint64_t *)(at + 5 * LINE), *(const uint64_t *)(at + 6 * LINE)};
            return ((const int32_t *)at)[env] == action_host[row] &&
                   memcmp((const float *)(at + LINE) + env * ACTIONS, logits_host + row * ACTIONS, ACTIONS * 4) == 0 &&
                   ((const float *)(at + 4 * LINE))[env] == value_host[row] && told[0] == version &&
                   told[1] == 1000 + lane;
        });
    answering_free(&w);
    CUDA(cudaFreeHost(pinned));
    for (void *memory : {(void *)logits, (void *)value, (void *)action, (void *)device_version}) CUDA(cudaFree(memory));
    free(logits_host), free(value_host), free(action_host);
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
    const size_t parameters = few ? 5001 : 1700003;
    time_stack(&b);
    time_activations(&b);
    time_residual(&b);
    time_pool(&b);
    time_heads(&b);
    time_learning(&b);
    time_optimiser(&b, FARM_OPTIMISER_RMSPROP, "rmsprop_1.7M_parameters", parameters);
    time_optimiser(&b, FARM_OPTIMISER_ADAM, "adam_1.7M_parameters", parameters);
    time_vectors(&b, parameters);
    time_sampling(&b);
    time_answers(&b, 1, "answer_64_lanes_of_1", few);
    time_answers(&b, 8, "answer_8_lanes_of_8", few);
    bench_end();
    stopwatch_free(&b.watch);
    CUDA(cudaFree(b.copy_from));
    CUDA(cudaFree(b.copy_to));
    return 0;
}
