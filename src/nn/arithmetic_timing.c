// farm_arithmetic_time (arithmetic.h). What is timed is an executor of each form on random frames, op by op, in CPU
// time of this thread, so that other processes disturb little; then the best form of each op, if that differs
// between ops.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/time.h"
#include "nn/arithmetic.h"
#include "nn/dnnl_op.h"
#include "nn/executor.h"

enum {
    CANDIDATES_MAX = FARM_FORMS_MAX + 1,
    ROUNDS = 8,   // in which all candidates run, after one that is not timed
    ROWS_MIN = 4, // of a run
};
static const double RUN_MULTIPLICATIONS = 1e9; // about, of one run: some 20 ms at 50 G/s
static const double CAST_SECONDS = 1e-9;       // an element there and back: a first guess, for what is then timed
static const double MIXED_GAIN = 0.98;         // of the best uniform time: what mixed forms must fall below

static double cpu_seconds(void) {
    return 1e-9 * (double)farm_thread_cpu_ns();
}

// What all candidates compute: random parameters, frames, gradients of the outputs.
struct work {
    const struct farm_arithmetic_request *request;
    int rows; // of a run
    uint8_t *frames;
    const void **rows_at;
    float *params, *grads, *logits, *value;
};

struct candidate {
    struct farm_arithmetic arithmetic;
    struct farm_executor *executor;
    double booked[FARM_NET_OPS_MAX];                               // by the executor, op by op
    double loading[FARM_NET_OPS_MAX], computing[FARM_NET_OPS_MAX]; // seconds of a run, the least so far
    double op_seconds[FARM_NET_OPS_MAX];                           // a row: of inference, and of training
    double seconds;                                                // their sum
};

static double multiplications(const struct farm_net *net) {
    double sum = 0;
    for (int i = 0; i < net->op_count; i++) {
        const struct farm_net_op *op = &net->ops[i];
        const double area = op->kind == FARM_NET_OP_CONV ? op->kernel * op->kernel : 1;
        const double in = op->kind == FARM_NET_OP_DENSE ? (double)farm_shape_count(op->in) : op->in.channels;
        if (op->weight >= 0) sum += (double)farm_shape_count(op->out) * in * area;
    }
    return sum;
}

static int fitting_rows(const struct farm_net *net, int rows, double passes) {
    const double fit = RUN_MULTIPLICATIONS / (passes * multiplications(net));
    const int most = fit < ROWS_MIN ? ROWS_MIN : (int)fit;
    return rows < most ? rows : most;
}

static void work_free(struct work *work) {
    void *const parts[] = {work->frames, work->rows_at, work->params, work->grads, work->logits, work->value};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) free(parts[i]);
}

static enum farm_status work_make(const struct farm_arithmetic_request *request, struct work *work,
                                  struct farm_error *err) {
    const struct farm_net *net = request->net;
    const struct farm_net_io *io = &net->io;
    *work = (struct work){.request = request};
    work->rows =
        request->train_rows > 0 ? fitting_rows(net, request->train_rows, 4) : fitting_rows(net, request->infer_rows, 1);
    const size_t rows = (size_t)work->rows;
    const size_t pointers = rows * (size_t)io->stack;
    const size_t frame = (size_t)(io->frame_channels * io->height * io->width);
    work->frames = malloc(pointers * frame);
    work->rows_at = malloc(pointers * sizeof *work->rows_at);
    work->params = malloc(net->parameter_count * sizeof *work->params);
    work->grads = calloc(net->parameter_count, sizeof *work->grads);
    work->logits = malloc(rows * (size_t)io->actions * sizeof *work->logits);
    work->value = malloc(rows * sizeof *work->value);
    if (work->frames == NULL || work->rows_at == NULL || work->params == NULL || work->grads == NULL ||
        work->logits == NULL || work->value == NULL) {
        work_free(work);
        return farm_fail(err, FARM_E_LIMIT, "no memory to time network %s with %zu rows", net->spec->name, rows);
    }
    uint64_t noise = 1;
    for (size_t i = 0; i < pointers * frame; i++) {
        noise = noise * 6364136223846793005u + 1442695040888963407u; // Knuth's generator
        work->frames[i] = (uint8_t)(noise >> 56);
    }
    for (size_t i = 0; i < pointers; i++) work->rows_at[i] = work->frames + i * frame;
    farm_net_init(net, 1, work->params);
    return FARM_OK;
}

// Runs once, and updates what a row costs in each op: the least of all runs but the first. In training a row is
// inferred once and trained on once; both executors load each version of the parameters, whose cost its rows share.
static void run_candidate(struct work *work, struct candidate *c, bool first) {
    const struct farm_arithmetic_request *request = work->request;
    const bool training = request->train_rows > 0;
    memset(c->booked, 0, sizeof c->booked);
    farm_executor_load(c->executor, work->params);
    for (int i = 0; i < request->net->op_count; i++)
        if (first || c->booked[i] < c->loading[i]) c->loading[i] = c->booked[i];
    memset(c->booked, 0, sizeof c->booked);
    for (int pass = 0; pass <= (int)training; pass++)
        farm_executor_forward(c->executor, work->rows_at, farm_sequence_rows(work->rows), work->logits, work->value);
    if (training)
        farm_executor_backward(c->executor, work->rows_at, farm_sequence_rows(work->rows), work->logits, work->value,
                               work->grads);
    c->seconds = 0;
    for (int i = 0; i < request->net->op_count; i++) {
        if (first || c->booked[i] < c->computing[i]) c->computing[i] = c->booked[i];
        c->op_seconds[i] = c->computing[i] / work->rows;
        if (training) c->op_seconds[i] += 2 * c->loading[i] / request->version_rows;
        c->seconds += c->op_seconds[i];
    }
}

// Makes its executor, and runs it once.
static enum farm_status open_candidate(struct work *work, struct candidate *c, struct farm_error *err) {
    const struct farm_executor_config config = {.net = work->request->net,
                                                .batch_max = work->rows,
                                                .training = work->request->train_rows > 0,
                                                .arithmetic = &c->arithmetic,
                                                .one_size = true,
                                                .op_seconds = c->booked};
    const enum farm_status status = farm_executor_create(&config, &c->executor, err);
    if (status == FARM_OK) run_candidate(work, c, true);
    return status;
}

// Runs `count` candidates in turns, so that all meet the same disturbances, until `until` (CPU seconds of this thread).
static void run_in_turns(struct work *work, struct candidate *candidates, int count, double until) {
    double round = 0;
    for (int r = 0; r < ROUNDS && cpu_seconds() + round < until; r++) {
        const double before = cpu_seconds();
        for (int i = 0; i < count; i++) run_candidate(work, &candidates[i], r == 0);
        round = cpu_seconds() - before;
    }
}

void farm_arithmetic_mix(const struct farm_net *net, int count, const struct farm_form *forms,
                         const double op_seconds[][FARM_NET_OPS_MAX], struct farm_form out[FARM_NET_OPS_MAX]) {
    double cost[FARM_NET_OPS_MAX][FARM_FORMS_MAX];
    int from[FARM_NET_OPS_MAX][FARM_FORMS_MAX];
    for (int i = 0; i < net->op_count; i++)
        for (int f = 0; f < count; f++) {
            const double cast = (double)farm_shape_count(net->ops[i].in) * CAST_SECONDS;
            double before = i > 0 ? cost[i - 1][f] : 0;
            from[i][f] = f;
            for (int g = 0; g < count && farm_arithmetic_may_change(net, i); g++) {
                if (g == f || cost[i - 1][g] + cast >= before) continue;
                before = cost[i - 1][g] + cast;
                from[i][f] = g;
            }
            cost[i][f] = before + op_seconds[f][i];
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

// What the first layer takes on its path, forward and (in training) backward. Infinite if there is no memory.
static double time_first(const struct work *work, const struct farm_arithmetic *arithmetic) {
    const struct farm_net *net = work->request->net;
    const struct farm_conv_u8_shape shape = farm_arithmetic_first(net, arithmetic);
    const size_t outputs = (size_t)work->rows * farm_shape_count(net->ops[0].out);
    const float *weights = work->params + net->tensors[net->ops[0].weight].offset;
    const float *bias = work->params + net->tensors[net->ops[0].bias].offset;
    const uint8_t *const *frames = (const uint8_t *const *)work->rows_at;
    void *packed = farm_dnnl_alloc(farm_conv_u8_packed_bytes(&shape));
    void *scratch = farm_dnnl_alloc(farm_conv_u8_scratch_bytes(&shape));
    void *out = farm_dnnl_alloc(outputs * sizeof(float));
    double least = INFINITY;
    if (packed != NULL && scratch != NULL && out != NULL) {
        farm_conv_u8_pack(&shape, weights, packed);
        for (int run = 0; run < 2; run++) { // the first is not timed
            const double start = cpu_seconds();
            farm_conv_u8_forward(&shape, packed, bias, frames, work->rows, out, scratch);
            if (work->request->train_rows > 0)
                farm_conv_u8_backward_weights(&shape, frames, work->rows, out, work->grads,
                                              work->grads + net->tensors[net->ops[0].bias].offset, scratch);
            least = cpu_seconds() - start;
        }
    }
    free(packed);
    free(scratch);
    free(out);
    return least;
}

// The fastest path of those that this CPU has, timed in turns; plain C only if there is no other.
static enum farm_conv_u8_path choose_path(const struct work *work, struct farm_arithmetic arithmetic) {
    enum { TURNS = 3 };
    double least[FARM_CONV_U8_PATHS];
    const int most = (int)arithmetic.path;
    int best = most;
    for (int path = 0; path < FARM_CONV_U8_PATHS; path++) least[path] = INFINITY;
    for (int turn = 0; turn < TURNS && most > FARM_CONV_U8_AVX2; turn++)
        for (int path = FARM_CONV_U8_AVX2; path <= most; path++)
            if (farm_arithmetic_take_path(work->request->net, path, &arithmetic))
                least[path] = fmin(least[path], time_first(work, &arithmetic));
    for (int path = FARM_CONV_U8_AVX2; path < most; path++)
        if (least[path] < least[best]) best = path;
    return (enum farm_conv_u8_path)best;
}

enum farm_status farm_arithmetic_time(const struct farm_arithmetic_request *request, struct farm_arithmetic *out,
                                      struct farm_error *err) {
    const struct farm_net *net = request->net;
    struct farm_form forms[FARM_FORMS_MAX];
    struct candidate candidates[CANDIDATES_MAX];
    int count = farm_arithmetic_forms(net, request->precision, forms), made = 0, best = 0;
    struct work work;
    const double start = cpu_seconds(), end = start + FARM_ARITHMETIC_SECONDS;
    enum farm_status status = work_make(request, &work, err);
    if (status != FARM_OK) return status;
    double longest = 0; // to make one
    while (made < count) {
        const double before = cpu_seconds();
        if (made > 1 && before + 2 * longest > end) break; // the first two differ in type
        struct candidate *c = &candidates[made];
        c->arithmetic = farm_arithmetic_uniform(net, request->precision, forms[made]);
        c->arithmetic.path = made == 0 ? choose_path(&work, c->arithmetic) : candidates[0].arithmetic.path;
        status = open_candidate(&work, c, err);
        longest = fmax(longest, cpu_seconds() - before);
        if (status == FARM_OK)
            made++;
        else // oneDNN lacks an op in this form, or there is no memory: the other forms go on
            forms[made] = forms[--count];
    }
    run_in_turns(&work, candidates, made, start + 0.7 * FARM_ARITHMETIC_SECONDS);
    for (int i = 1; i < made; i++)
        if (candidates[i].seconds < candidates[best].seconds) best = i;
    int open = made;
    if (made > 1 && cpu_seconds() + longest < end) {
        double op_seconds[CANDIDATES_MAX][FARM_NET_OPS_MAX];
        for (int i = 0; i < made; i++) memcpy(op_seconds[i], candidates[i].op_seconds, sizeof op_seconds[i]);
        struct candidate *mixed = &candidates[made];
        mixed->arithmetic = candidates[0].arithmetic;
        farm_arithmetic_mix(net, made, forms, (const double(*)[FARM_NET_OPS_MAX])op_seconds, mixed->arithmetic.forms);
        if (!is_uniform(net, &mixed->arithmetic) && open_candidate(&work, mixed, NULL) == FARM_OK) {
            open++;
            run_in_turns(&work, mixed, 1, end);
            if (mixed->seconds < MIXED_GAIN * candidates[best].seconds) best = made;
        }
    }
    for (int i = 0; i < open; i++) farm_executor_destroy(candidates[i].executor);
    work_free(&work);
    if (made == 0) return status == FARM_OK ? farm_fail(err, FARM_E_UNSUPPORTED, "this CPU has no bf16") : status;
    *out = candidates[best].arithmetic;
    return FARM_OK;
}
