// Observations a second of the CPU backend on one core, over a real lane of random 84x84 frames: whole updates of 32
// windows (672 observations: forward, V-trace, backward, optimiser, publication; 4 windows for the deep network, whose
// observations take 40 times as long) and inference (forward, sampling, answers). The reference is the rate at which
// oneDNN's sgemm of 512x512x512 would compute the network's products, measured between the samples; make bench-peers
// compares with PyTorch. NAME_choice is the arithmetic of `--precision auto` ÷ the better one of the forced precisions.
// text_NAME is nature, its layers given as a text, ÷ the same by its name, in the same arithmetic; --net TEXT measures
// nothing but that of any text.
#include <math.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/statistics.h"
#include "base/time.h"
#include "common.h"
#include "gpu/work.h"
#include "kernels/random.h"
#include "learner/parts.h"

enum {
    SAMPLES = 15,
    RESULTS = 11,
    PRECISIONS = 3,
    PRODUCT = 512, // rows and columns of the reference's matrices
    PRODUCTS = 4,  // a sample
    LSTM = 256,    // units
    UNROLLS_DEEP = 4,
    WIDTH = 64,
    STEPS = 64,            // in the ring
    LAST_STEP = 5 * STEPS, // any step after a whole ring
    GAME = 300,            // steps between two FIRSTs, on average
};

// Of libgomp: the reference's product stays in this thread.
void omp_set_num_threads(int threads);

struct table {
    struct rig rig;
    // By farm_precision, to train or to infer; both NULL: not on this CPU.
    struct farm_backend *backends[PRECISIONS];
    struct farm_policy *policies[PRECISIONS], *policy; // policy: the present one
    struct farm_board *board;
    uint64_t n; // the step of the last inference or update
};

struct reference {
    float *a, *b, *c;
};

// ---- set-up ----

// Frames, rewards, and sometimes the start of an episode.
static void fill_lanes(struct rig *rig) {
    struct farm_lane *lane = rig_actor(rig, 0);
    uint64_t noise = 1;
    for (uint64_t n = 0; n < STEPS; n++) {
        for (uint32_t env = 0; env < WIDTH; env++) {
            const uint64_t stream = n * WIDTH + env;
            uint8_t *frame = farm_lane_obs(lane, 0, n, env);
            for (size_t i = 0; i < SIDE * SIDE; i++) {
                noise = noise * 6364136223846793005u + 1442695040888963407u; // Knuth's generator
                frame[i] = (uint8_t)(noise >> 56);
            }
            farm_lane_reward(lane, n)[env] = farm_random_uniform(2, stream, 0) - 0.5f;
            farm_lane_flags(lane, n)[env] = farm_random_uniform(3, stream, 0) * GAME < 1 ? FARM_STEP_FIRST : 0;
        }
        (void)farm_validator_step(&rig->lanes.lanes[0].validator, n, 0);
    }
}

static void configure(struct rig *rig, const char *name, uint32_t batch) {
    const bool lstm = strcmp(name, "shallow_lstm") == 0;
    rig->batch = strcmp(name, "deep") == 0 ? UNROLLS_DEEP : BATCH;
    rig->learner = work_config(net_spec(lstm ? "shallow" : name), false, rig->batch);
    rig->learner.stats = &rig->stats;
    rig->learner.io.lstm = lstm ? LSTM : 0;
    rig->learner.io.lstm_layers = lstm;
    rig->learner.algo.recurrent = lstm;
    rig->learner.algo.reward_clip = 1;
    rig->learner.inference.batch_max = batch;
}

static void open_lanes(struct rig *rig) {
    struct farm_ring_spec spec = work_ring_spec(false, 1, WIDTH, STEPS);
    farm_ring_spec_state(&spec, 2 * LSTM, UNROLL);
    configure(rig, "shallow", 1);
    rig->huge = true;
    rig_open(rig, spec, 1);
    farm_ring_populate(&rig->actors[0]);
    fill_lanes(rig);
}

static enum farm_status make_policy(struct table *table, struct farm_policy **out) {
    struct rig *rig = &table->rig;
    struct farm_arithmetic arithmetic;
    const uint32_t rows = farm_algo_pass_units(&rig->plan, rig->batch) * farm_algo_unit_rows(&rig->plan);
    const struct farm_policy_config config = {.net = &rig->net,
                                              .head = rig->head,
                                              .arithmetic = &arithmetic,
                                              .board = table->board,
                                              .rows_max = rig->learner.inference.batch_max,
                                              .sampler = {.seed = rig->learner.seed}};
    const enum farm_status status =
        farm_parts_choose_arithmetic(&rig->learner, &rig->net, 0, rows, &arithmetic, &rig->err);
    return status ? status : farm_policy_make(&config, out, &rig->err);
}

static void make_board(struct table *table) {
    struct rig *rig = &table->rig;
    const struct farm_board_request request = {.count = rig->net.parameter_count, .buffers = PRECISIONS, .node = -1};
    must(farm_board_create(&request, &table->board, &rig->err), &rig->err);
    farm_net_init(&rig->net, rig->learner.init, rig->learner.seed, table->board->buffer[0]);
    farm_board_commit(table->board, 0, 0);
}

static void make_backend(struct table *table, bool train, int p) {
    struct rig *rig = &table->rig;
    rig->backend = NULL;
    table->policies[p] = NULL;
    const enum farm_status status =
        train ? rig_open_backend(rig, &farm_backend_cpu) : make_policy(table, &table->policies[p]);
    if (status != FARM_E_UNSUPPORTED || p != FARM_PRECISION_BF16) must(status, &rig->err);
    table->backends[p] = rig->backend;
}

static void make_backends(struct table *table, const char *name, bool train, uint32_t batch) {
    struct rig *rig = &table->rig;
    configure(rig, name, batch);
    rig_plan(rig);
    if (!train) make_board(table);
    for (int p = 0; p < PRECISIONS; p++) {
        rig->learner.arithmetic.precision = (enum farm_precision)p;
        make_backend(table, train, p);
    }
}

static void free_backends(struct table *table, int count) {
    for (int p = 0; p < count; p++) {
        farm_backend_cpu.destroy(table->backends[p]);
        farm_policy_free(table->policies[p]);
    }
    farm_board_free(table->board);
    table->board = NULL;
}

// ---- the arithmetic ----

// Forward; in training also the gradients of weights and, except in the first layer, of inputs.
static double flops_per_observation(const struct farm_net *net, bool train) {
    double all = 0;
    for (int i = 0; i < net->op_count; i++) all += farm_net_multiplications(net, i);
    return 2 * (train ? 3 * all - farm_net_multiplications(net, 0) : all);
}

static void make_reference(struct reference *reference) {
    const size_t bytes = (size_t)PRODUCT * PRODUCT * sizeof(float);
    float **const matrices[] = {&reference->a, &reference->b, &reference->c};
    for (int m = 0; m < 3; m++) {
        float *matrix = aligned_alloc(64, bytes);
        must_hold(matrix != NULL, "no memory");
        for (uint64_t i = 0; i < (uint64_t)PRODUCT * PRODUCT; i++)
            matrix[i] = farm_random_uniform(4, (uint64_t)m, i) - 0.5f;
        *matrices[m] = matrix;
    }
}

// Floating-point operations a second of sgemm.
static double sgemm_rate(const struct reference *reference) {
    omp_set_num_threads(1);
    const uint64_t start = farm_now_ns();
    for (int i = 0; i < PRODUCTS; i++)
        must_hold(dnnl_sgemm('N', 'N', PRODUCT, PRODUCT, PRODUCT, 1, reference->a, PRODUCT, reference->b, PRODUCT, 0,
                             reference->c, PRODUCT) == dnnl_success,
                  "sgemm");
    return PRODUCTS * 2.0 * PRODUCT * PRODUCT * PRODUCT / ((double)(farm_now_ns() - start) * 1e-9);
}

// ---- the work ----

// One update. Returns its observations.
static double train_once(struct table *table, uint32_t batch) {
    struct rig *rig = &table->rig;
    struct farm_pass_stats stats;
    // Both halves of the lane, and starts that move, so that no update finds its frames in the cache.
    table->n = table->n % (STEPS - UNROLL - STACK) + 7;
    struct farm_window window =
        rig_window(rig, 0, LAST_STEP - STEPS + STACK + table->n % (STEPS - UNROLL - STACK), rig->batch);
    window.env_from = table->n % 2 ? rig->batch : 0;
    const struct farm_pass pass = {.learning_rate = 1e-4};
    must(rig->ops->begin(rig->backend, 0, &window, 1, &rig->err), &rig->err);
    must(rig->ops->pass(rig->backend, 0, &pass, &rig->err), &rig->err);
    must(rig->ops->publish(rig->backend, FARM_SET_ONLINE, table->n, &rig->err), &rig->err);
    must(rig->ops->finish(rig->backend, &stats, &rig->err), &rig->err);
    must_hold(isfinite(stats.grad_norm), "a gradient that is not finite");
    must_hold(stats.terms[0] > 0.9 * rig->batch * UNROLL, "transitions were left out");
    return rig->batch * (UNROLL + 1);
}

static double infer_once(struct table *table, uint32_t batch) {
    struct rig *rig = &table->rig;
    struct farm_lane *lane = rig_lane(rig, 0);
    table->n = table->n % STEPS + 1;
    const uint64_t n = LAST_STEP + table->n;
    const struct farm_policy_rows rows = {.lane = lane, .n = n, .env_count = batch};
    farm_lane_value(lane, n)[0] = farm_lane_value(lane, n)[batch - 1] = NAN;
    must(farm_policy_answer(table->policy, &rows, 1, &rig->err), &rig->err);
    must_hold(isfinite(farm_lane_value(lane, n)[0]) && isfinite(farm_lane_value(lane, n)[batch - 1]),
              "an observation without an answer");
    return batch;
}

typedef double work_function(struct table *table, uint32_t batch);

// Observations a second over about `seconds`.
static double measure_rate(work_function *work, struct table *table, uint32_t batch, double seconds) {
    const uint64_t start = farm_now_ns();
    double observations = 0, spent;
    do {
        observations += work(table, batch);
        spent = (double)(farm_now_ns() - start) * 1e-9;
    } while (spent < seconds);
    return observations / spent;
}

static void measure_network(struct farm_bench *bench, struct table *table, const struct reference *reference,
                            const char *name, const char *net, bool train, uint32_t batch) {
    static const char *const forced_names[PRECISIONS] = {NULL, "--precision f32", "--precision bf16"};
    static char names[RESULTS][32]; // results point at them
    double rates[PRECISIONS][SAMPLES], theirs[SAMPLES], copy[SAMPLES];
    work_function *work = train ? train_once : infer_once;
    make_backends(table, net, train, batch);
    const double flops = flops_per_observation(&table->rig.net, train);
    for (int s = -1; s < SAMPLES; s++) { // -1 touches the memory
        if (s >= 0) theirs[s] = sgemm_rate(reference) / flops;
        for (int p = 0; p < PRECISIONS; p++) {
            table->rig.backend = table->backends[p];
            table->policy = table->policies[p];
            if (!table->rig.backend && !table->policy) continue;
            const double seconds = bench->seconds / (PRECISIONS * RESULTS * (SAMPLES + 1));
            const double measured = measure_rate(work, table, batch, s < 0 ? 0.01 : seconds);
            if (s >= 0) rates[p][s] = measured;
        }
    }
    int best = FARM_PRECISION_F32;
    double rate_of[PRECISIONS] = {0};
    for (int p = 0; p < PRECISIONS; p++) {
        if (!table->backends[p] && !table->policies[p]) continue;
        memcpy(copy, rates[p], sizeof copy);
        rate_of[p] = farm_median(copy, SAMPLES, NULL);
    }
    if (rate_of[FARM_PRECISION_BF16] > rate_of[best]) best = FARM_PRECISION_BF16;
    free_backends(table, PRECISIONS);
    char *choice = names[bench->count / 2];
    snprintf(choice, sizeof names[0], "%s_choice", name);
    memcpy(copy, rates[FARM_PRECISION_AUTO], sizeof copy);
    farm_bench_add(bench, name, "obs/s", "higher", rates[FARM_PRECISION_AUTO], SAMPLES,
                   "its products at f32 sgemm's rate (512^3)", theirs, SAMPLES, NAN);
    farm_bench_add(bench, choice, "obs/s", "higher", copy, SAMPLES, forced_names[best], rates[best], SAMPLES, 0.97);
}

// nets: a name, and a text. Whichever is made first may have the better memory: each sample makes both anew, in turns.
static void measure_text(struct farm_bench *bench, struct table *table, const char *const nets[2], bool train,
                         double seconds) {
    enum { PAIRS = SAMPLES & ~1 };
    const uint32_t batch = train ? 1 : 16;
    work_function *work = train ? train_once : infer_once;
    double rates[2][PAIRS];
    for (int s = 0; s < PAIRS; s++) {
        for (int i = 0; i < 2; i++) {
            configure(&table->rig, nets[(s + i) % 2], batch);
            table->rig.learner.deterministic.on = true; // the arithmetic is not timed
            rig_plan(&table->rig);
            if (!train && i == 0) make_board(table);
            make_backend(table, train, (s + i) % 2);
        }
        for (int i = 0; i < 4; i++) { // the first two touch the memory
            const int k = (s / 2 + i) % 2;
            table->rig.backend = table->backends[k];
            table->policy = table->policies[k];
            rates[k][s] = measure_rate(work, table, batch, i < 2 ? 0.01 : seconds / (2 * PAIRS));
        }
        free_backends(table, 2);
    }
    farm_bench_add(bench, train ? "text_train" : "text_infer_16", "obs/s", "higher", rates[1], PAIRS,
                   "the same network by its name", rates[0], PAIRS, 0.98);
}

int main(int argc, char **argv) {
    struct farm_bench bench = {.name = "learner",
                               .about = "Training and inference on one core, in observations a second, against the "
                                        "rate of a bare matrix product."};
    static struct table table;
    struct reference reference;
    const char *nets[] = {"nature", NULL};
    const struct farm_cli_flag flags[] = {
        {"net", FARM_CLI_STRING, &nets[1], "TEXT", "measures only this network, beside the one of --named"},
        {"named", FARM_CLI_STRING, &nets[0], "NAME", "the same network"}};
    bench.flags = flags;
    bench.flag_count = 2;
    farm_bench_start(&bench, argc, argv, 10);
    must_hold(farm_bench_pin(farm_bench_cpus() - 1), "cannot bind to one CPU");
    open_lanes(&table.rig);
    make_reference(&reference);
    const bool alone = nets[1] != NULL;
    if (!alone) {
        nets[1] = "conv 32@8x8/4, conv 64@4x4/2, conv 64@3x3/1 relu, dense 512";
        measure_network(&bench, &table, &reference, "train_shallow", "shallow", true, 1);
        measure_network(&bench, &table, &reference, "train_nature", "nature", true, 1);
        measure_network(&bench, &table, &reference, "train_deep", "deep", true, 1);
        measure_network(&bench, &table, &reference, "train_shallow_lstm", "shallow_lstm", true, 1);
        measure_network(&bench, &table, &reference, "infer_shallow_lstm_16", "shallow_lstm", false, 16);
        measure_network(&bench, &table, &reference, "infer_shallow_16", "shallow", false, 16);
        measure_network(&bench, &table, &reference, "infer_shallow_64", "shallow", false, 64);
        measure_network(&bench, &table, &reference, "infer_nature_16", "nature", false, 16);
        measure_network(&bench, &table, &reference, "infer_nature_64", "nature", false, 64);
    }
    for (int train = 1; train >= 0; train--)
        measure_text(&bench, &table, nets, train, bench.seconds / (alone ? 2 : RESULTS));
    return farm_bench_finish(&bench);
}
