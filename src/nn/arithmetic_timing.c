// farm_arithmetic_time (arithmetic.h). It times an executor of each form on random frames, op by op, in CPU time of
// this thread, which other processes disturb little; then the mix of the best form of each op, if it is not uniform. A
// shared CPU's clock may change by half within a second, so runs are compared within a round only: a form's time is the
// median over the rounds of its share in the round's time of the first candidate.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/statistics.h"
#include "base/time.h"
#include "nn/arithmetic.h"
#include "nn/executor.h"
#include "nn/layer.h"

enum {
    CANDIDATES_MAX = FARM_FORMS_MAX + 1,
    ROUNDS = 8,   // over all candidates, after one that does not count
    ROWS_MIN = 4, // in a run
};
static const double RUN_MULTIPLICATIONS = 1e9; // about, of one run: some 20 ms at 50 G/s
static const double CAST_SECONDS = 1e-9;       // an element to another form and back: a guess; the mix is then timed
static const double MIXED_GAIN = 0.98;         // a mix must take less than this share of the best uniform time

static double cpu_seconds(void) {
    return 1e-9 * (double)farm_thread_cpu_ns();
}

// What all candidates compute: random parameters and frames; outputs serve as their gradients.
struct work {
    const struct farm_arithmetic_request *request;
    int rows; // in a run
    uint8_t *frames;
    const void **rows_at;
    float *params, *grads, *logits, *value;
    float *state;                    // a recurrent network's: zeros before, and what follows
    uint8_t *flags;                  // zeros
    double booked[FARM_NET_OPS_MAX]; // by the executor that runs, op by op
};

struct candidate {
    struct farm_arithmetic arithmetic;
    struct farm_executor *executor;
    double runs[ROUNDS][FARM_NET_OPS_MAX]; // seconds a row of each run: of inference, and of training
    double op_seconds[FARM_NET_OPS_MAX];   // the same over all runs
    double seconds;                        // their sum
};

static double multiplications(const struct farm_net *net) {
    double sum = 0;
    for (int i = 0; i < net->op_count; i++) sum += farm_net_multiplications(net, i);
    return sum;
}

static void free_work(struct work *work) {
    void *const parts[] = {work->frames, work->rows_at, work->params, work->grads,
                           work->logits, work->value,   work->state,  work->flags};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) free(parts[i]);
}

static enum farm_status make_work(const struct farm_arithmetic_request *request, struct work *work,
                                  struct farm_error *err) {
    const struct farm_net *net = request->net;
    const struct farm_net_io *io = &net->io;
    const bool training = request->train_rows > 0;
    const int wanted = training ? request->train_rows : request->infer_rows;
    const int fit = (int)fmax(ROWS_MIN, RUN_MULTIPLICATIONS / ((training ? 4 : 1) * multiplications(net)));
    *work = (struct work){.request = request, .rows = wanted < fit ? wanted : fit};
    const size_t rows = (size_t)work->rows, frames = (size_t)(io->images * io->stack);
    const size_t pointers = (size_t)farm_net_pointers(net);
    const size_t frame = (size_t)(io->frame_channels * io->height * io->width);
    work->frames = malloc(rows * frames * frame);
    work->rows_at = calloc(rows * pointers, sizeof *work->rows_at); // parts of a flat input stay NULL
    work->params = malloc(net->parameter_count * sizeof *work->params);
    work->grads = calloc(net->parameter_count, sizeof *work->grads);
    work->logits = malloc(rows * (size_t)io->actions * sizeof *work->logits);
    work->value = malloc(rows * sizeof *work->value);
    work->state = calloc(rows * (size_t)net->state + 1, sizeof *work->state);
    work->flags = calloc(rows, sizeof *work->flags);
    if (!work->state || !work->flags || !work->frames || !work->rows_at || !work->params || !work->grads ||
        !work->logits || !work->value) {
        free_work(work);
        return farm_fail(err, FARM_E_LIMIT, "no memory to time network %s with %zu rows", net->spec.text, rows);
    }
    uint64_t noise = 1;
    for (size_t i = 0; i < rows * frames * frame; i++) {
        noise = noise * 6364136223846793005u + 1442695040888963407u; // Knuth's generator
        work->frames[i] = (uint8_t)(noise >> 56);
    }
    for (size_t i = 0; i < rows * frames; i++)
        work->rows_at[i / frames * pointers + i % frames] = work->frames + i * frame;
    farm_net_init(net, FARM_INIT_UNIFORM, 1, work->params);
    return FARM_OK;
}

static struct farm_sequence sequence_of(const struct work *work) {
    struct farm_sequence sequence = farm_sequence_rows(work->rows);
    sequence.flags = work->flags;
    sequence.state_in = work->state;
    return sequence;
}

// Runs once and writes each op's cost of a row. In training a row is inferred once and trained on once; both executors
// load each version of the parameters, and its rows share that cost. (Both loads are taken to cost what training's
// does, which does not copy a product's f32 weights.)
static void run_candidate(struct work *work, struct candidate *c, int round) {
    const struct farm_arithmetic_request *request = work->request;
    const bool training = request->train_rows > 0;
    double *seconds = c->runs[round];
    memset(work->booked, 0, sizeof work->booked);
    farm_executor_load(c->executor, work->params);
    for (int i = 0; i < request->net->op_count; i++)
        seconds[i] = training ? 2 * work->booked[i] / request->version_rows : 0;
    memset(work->booked, 0, sizeof work->booked);
    for (int pass = 0; pass <= (int)training; pass++)
        farm_executor_forward(c->executor, work->rows_at, sequence_of(work), work->logits, work->value);
    if (training) farm_executor_backward(c->executor, sequence_of(work), work->logits, work->value, work->grads);
    for (int i = 0; i < request->net->op_count; i++) seconds[i] += work->booked[i] / work->rows;
}

// Makes the candidate's executor, and runs it once.
static enum farm_status open_candidate(struct work *work, struct candidate *c, struct farm_error *err) {
    const struct farm_executor_config config = {.net = work->request->net,
                                                .batch_max = work->rows,
                                                .training = work->request->train_rows > 0,
                                                .arithmetic = &c->arithmetic,
                                                .one_size = true,
                                                .op_seconds = work->booked};
    const enum farm_status status = farm_executor_create(&config, &c->executor, err);
    if (status == FARM_OK) run_candidate(work, c, 0);
    return status;
}

// Seconds of all ops in a run.
static double sum_of(const struct farm_net *net, const double *ops) {
    double sum = 0;
    for (int i = 0; i < net->op_count; i++) sum += ops[i];
    return sum;
}

// Runs the candidates in turns until `until` (CPU seconds of this thread), and writes what their ops take.
static void run_in_turns(struct work *work, struct candidate *candidates, int count, double until) {
    const struct farm_net *net = work->request->net;
    double round = 0, first[ROUNDS], least = INFINITY;
    int rounds = 0;
    for (; rounds < ROUNDS && cpu_seconds() + round < until; rounds++) {
        const double before = cpu_seconds();
        for (int c = 0; c < count; c++) run_candidate(work, &candidates[c], rounds);
        round = cpu_seconds() - before;
    }
    if (rounds == 0) rounds = 1; // too slow: what they took when they were made
    for (int r = 0; r < rounds; r++) {
        first[r] = sum_of(net, candidates[0].runs[r]);
        least = fmin(least, first[r]);
    }
    for (int c = 0; c < count; c++) {
        for (int i = 0; i < net->op_count; i++) {
            double shares[ROUNDS];
            for (int r = 0; r < rounds; r++) shares[r] = candidates[c].runs[r][i] / first[r];
            candidates[c].op_seconds[i] = least * farm_median(shares, (size_t)rounds, NULL);
        }
        candidates[c].seconds = sum_of(net, candidates[c].op_seconds);
    }
}

void farm_arithmetic_mix(const struct farm_net *net, int count, const struct farm_form *forms,
                         const double op_seconds[][FARM_NET_OPS_MAX], struct farm_form out[FARM_NET_OPS_MAX]) {
    double cost[FARM_NET_OPS_MAX][FARM_FORMS_MAX];
    int from[FARM_NET_OPS_MAX][FARM_FORMS_MAX];
    for (int i = 0; i < net->op_count; i++)
        for (int f = 0; f < count; f++) {
            double before = i > 0 ? cost[i - 1][f] : 0, seconds = op_seconds[f][i];
            from[i][f] = f;
            for (int g = 0; g < count; g++) {
                const bool rows = forms[g].bf16 == forms[f].bf16 && forms[g].block == forms[f].block;
                const double cast = rows ? 0 : (double)farm_shape_count(net->ops[i].in) * CAST_SECONDS;
                // Forms of the same rows compute the op alike, unless it is one of Winograd's.
                if (rows && !farm_winograd_has(&net->ops[i], forms[f].block)) seconds = fmin(seconds, op_seconds[g][i]);
                if (!farm_arithmetic_may_change(net, i) || cost[i - 1][g] + cast >= before) continue;
                before = cost[i - 1][g] + cast;
                from[i][f] = g;
            }
            cost[i][f] = before + seconds;
        }
    int f = 0;
    for (int g = 1, last = net->op_count - 1; g < count; g++)
        if (cost[last][g] < cost[last][f]) f = g;
    for (int i = net->op_count - 1; i >= 0; f = from[i][f], i--) out[i] = forms[f];
}

static bool is_uniform(const struct farm_net *net, const struct farm_arithmetic *a) {
    for (int i = 1; i < net->op_count; i++)
        if (!farm_form_equal(a->forms[i], a->forms[0])) return false;
    return true;
}

// CPU seconds of the first layer on its path, forward and (in training) backward. Infinite if there is no memory.
static double time_first(const struct work *work, const struct farm_arithmetic *arithmetic) {
    const struct farm_net *net = work->request->net;
    const struct farm_conv_u8_shape shape = farm_arithmetic_first(net, arithmetic);
    const size_t outputs = (size_t)work->rows * farm_shape_count(net->ops[0].out);
    const size_t weight = net->tensors[net->ops[0].weight].offset, bias = net->tensors[net->ops[0].bias].offset;
    const uint8_t *const *frames = (const uint8_t *const *)work->rows_at; // parts of a flat input among them are NULL
    void *packed = farm_dnnl_alloc(farm_conv_u8_packed_bytes(&shape));
    void *scratch = farm_dnnl_alloc(farm_conv_u8_scratch_bytes(&shape));
    void *out = farm_dnnl_alloc(outputs * sizeof(float));
    double seconds = INFINITY;
    for (int run = 0; run < 2 && packed && scratch && out; run++) { // the second counts
        if (run == 0) farm_conv_u8_pack(&shape, work->params + weight, packed);
        const double start = cpu_seconds();
        farm_conv_u8_forward(&shape, packed, work->params + bias, frames, work->rows, out, scratch);
        if (work->request->train_rows > 0)
            farm_conv_u8_backward_weights(&shape, frames, work->rows, out, work->grads + weight, work->grads + bias,
                                          scratch);
        seconds = cpu_seconds() - start;
    }
    free(packed);
    free(scratch);
    free(out);
    return seconds;
}

// The fastest path of this CPU, timed in turns; plain C only if there is no other.
static enum farm_conv_u8_path choose_path(const struct work *work, struct farm_arithmetic arithmetic) {
    enum { TURNS = 3 };
    double least[FARM_CONV_U8_PATHS];
    const int most = (int)arithmetic.path;
    int best = most;
    for (int path = 0; path < FARM_CONV_U8_PATHS; path++) least[path] = INFINITY;
    for (int turn = 0; turn < TURNS && most > FARM_CONV_U8_AVX2; turn++)
        for (int path = FARM_CONV_U8_AVX2; path <= most; path++)
            if (farm_arithmetic_set_path(work->request->net, path, &arithmetic))
                least[path] = fmin(least[path], time_first(work, &arithmetic));
    for (int path = FARM_CONV_U8_AVX2; path < most; path++)
        if (least[path] < least[best]) best = path;
    return (enum farm_conv_u8_path)best;
}

// Makes a candidate of each form that oneDNN can compute and that fits the time; removes the others from `forms`.
// Returns how many.
static int make_uniform(struct work *work, struct farm_form *forms, int count, double end, double *longest,
                        struct candidate *candidates, enum farm_status *status, struct farm_error *err) {
    int made = 0;
    while (made < count) {
        const double before = cpu_seconds();
        if (made > 2 && before + 2 * *longest > end) break;
        struct candidate *c = &candidates[made];
        c->arithmetic = farm_arithmetic_uniform(work->request->net, work->request->precision, forms[made]);
        c->arithmetic.path = made == 0 ? choose_path(work, c->arithmetic) : candidates[0].arithmetic.path;
        *status = open_candidate(work, c, err);
        *longest = fmax(*longest, cpu_seconds() - before);
        if (*status == FARM_OK)
            made++;
        else // oneDNN lacks an op in this form, or there is no memory
            forms[made] = forms[--count];
    }
    return made;
}

enum farm_status farm_arithmetic_time(const struct farm_arithmetic_request *request, struct farm_arithmetic *out,
                                      struct farm_error *err) {
    const struct farm_net *net = request->net;
    struct farm_form forms[FARM_FORMS_MAX];
    struct candidate candidates[CANDIDATES_MAX];
    struct work work;
    const double start = cpu_seconds(), end = start + FARM_ARITHMETIC_SECONDS;
    double longest = 0; // to make one
    enum farm_status status = make_work(request, &work, err);
    if (status != FARM_OK) return status;
    const int count = farm_arithmetic_forms(net, request->precision, forms);
    const int made = make_uniform(&work, forms, count, end, &longest, candidates, &status, err);
    int best = 0, open = made;
    if (made > 0) run_in_turns(&work, candidates, made, start + 0.7 * FARM_ARITHMETIC_SECONDS);
    for (int i = 1; i < made; i++)
        if (candidates[i].seconds < candidates[best].seconds) best = i;
    if (made > 1 && cpu_seconds() + longest < end) {
        double op_seconds[CANDIDATES_MAX][FARM_NET_OPS_MAX];
        for (int i = 0; i < made; i++) memcpy(op_seconds[i], candidates[i].op_seconds, sizeof op_seconds[i]);
        struct candidate *mixed = &candidates[made], *uniform = mixed - 1, other = *uniform;
        mixed->arithmetic = candidates[0].arithmetic;
        farm_arithmetic_mix(net, made, forms, (const double(*)[FARM_NET_OPS_MAX])op_seconds, mixed->arithmetic.forms);
        *uniform = candidates[best]; // beside the mix, so that these two take turns
        candidates[best] = other;
        best = made - 1;
        if (!is_uniform(net, &mixed->arithmetic) && open_candidate(&work, mixed, NULL) == FARM_OK) {
            open++;
            run_in_turns(&work, uniform, 2, end);
            if (mixed->seconds < MIXED_GAIN * uniform->seconds) best = made;
        }
    }
    for (int i = 0; i < open; i++) farm_executor_destroy(candidates[i].executor);
    free_work(&work);
    if (made == 0) return status == FARM_OK ? farm_fail(err, FARM_E_UNSUPPORTED, "this CPU has no bf16") : status;
    *out = candidates[best].arithmetic;
    return FARM_OK;
}
