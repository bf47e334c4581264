// The CPU backend: executors of src/nn and the kernels of src/kernels over the lanes' own memory. Each shard's
// inference thread has a policy and each training thread an executor. Parameters go from training to the policies
// through one published copy a NUMA node. See backend.h.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/time.h"
#include "intake/lanes.h"
#include "learner/backend.h"
#include "learner/iteration.h"
#include "learner/pool.h"
#include "learner/statistics.h"
#include "policy/observation.h"
#include "policy/policy.h"
#include "shm/heap.h"

enum { BLOCK = 4096 };                      // parameters that stay in a core's cache while their gradients are summed
enum { FRAME_ROWS = 96, FLAT_ROWS = 1024 }; // of a micro-batch: they keep a core busy and do not delay inference
// Deterministic: the same sums for any number of training threads, of which at most PARTS are busy.
enum { PARTS = 8, FIXED_FLAT_ROWS = 256 };

// Memory of the backend, freed with it.
struct block {
    struct block *next;
    struct farm_heap *heap; // NULL: malloc's
    void *memory;
    size_t bytes;
};

// A part of a pass's sums: what one worker has computed; deterministic: every PARTS-th piece, in order.
struct part {
    uint64_t run; // whose sums it holds
    float *grads; // [parameter_count]
    double terms[FARM_ALGO_TERMS_MAX];
};

// One training thread.
struct worker {
    struct farm_executor *executor;
    uint64_t run;      // for which it is prepared
    struct part *part; // to which it adds
    const void **rows;
    struct farm_gathered gathered;
    float *policy, *dpolicy, *value, *dvalue;
    float *state[2]; // [units][net->state] before the present steps, and before the burn-in
};

// One inference thread. The shards of a node share what the first of them owns.
struct shard {
    int node;
    struct farm_board *board;
    bool owns_board;
    struct farm_policy *policy;
};

struct farm_backend {
    const struct farm_learner_config *learner;
    const struct farm_algo_plan *plan;
    const struct farm_net *net;
    struct farm_head head;
    struct farm_arithmetic arithmetic; // of all executors
    struct farm_heap *heap;            // on the learner's node, for vectors of [parameter_count]
    struct block *blocks;
    bool out_of_memory; // an allocation has failed
    struct shard shards[FARM_LEARNER_SHARDS_MAX];
    uint32_t shard_count;

    // training thread
    struct farm_optimiser_config optimiser_config;
    struct farm_optimiser_state optimiser;
    float *params;
    float *trainable; // [parameter_count] 1, or 0 for what the optimiser leaves; NULL: all ones
    bool *masked;     // [blocks] whether `trainable` has a 0 there
    uint64_t version;
    uint32_t micro_batch;               // units of one forward and backward pass
    struct farm_statistics *statistics; // in params since the last publish
    struct farm_iteration iterations[FARM_BACKEND_SLOTS];
    uint32_t columns_max;
    struct farm_pool *pool;
    uint32_t worker_count, active; // active: 1 or all, which compute the present pass
    uint64_t least_ns[2];          // of a pass by one, by all
    uint32_t timed_passes;
    bool choice_logged;
    struct worker *workers;
    struct farm_pass_stats stats; // since the last finish

    // the pass that runs, or the targets
    uint64_t run;
    struct farm_iteration *iteration;
    const struct farm_pass *pass;
    uint32_t pass_units, piece_units, pieces;
    struct part *parts; // [part_max]: one a worker, or PARTS
    uint32_t part_max;
    float **grads; // [grad_count] of the parts of this pass; the first becomes their sum
    uint32_t grad_count;
    double *squares; // [blocks] of that sum, by BLOCK parameters
    struct farm_optimiser_factors factors;
};

static size_t vector_bytes(const struct farm_backend *backend) {
    return backend->net->parameter_count * sizeof(float);
}

// Zeros from a heap or from malloc. Sets out_of_memory and returns NULL on failure.
static void *own_zeros(struct farm_backend *backend, struct farm_heap *heap, size_t bytes) {
    struct block *block = calloc(1, sizeof *block);
    void *memory = !block ? NULL : heap ? farm_heap_alloc(heap, bytes, FARM_CACHE_LINE) : calloc(1, bytes);
    if (!memory) {
        free(block);
        backend->out_of_memory = true;
        return NULL;
    }
    if (heap) memset(memory, 0, bytes);
    *block = (struct block){.next = backend->blocks, .heap = heap, .memory = memory, .bytes = bytes};
    backend->blocks = block;
    return memory;
}

static void *zeroed(struct farm_backend *backend, size_t count, size_t bytes) {
    return own_zeros(backend, NULL, count ? count * bytes : bytes);
}

static float *new_vector(struct farm_backend *backend) {
    return own_zeros(backend, backend->heap, vector_bytes(backend));
}

static void free_blocks(struct farm_backend *backend) {
    while (backend->blocks) {
        struct block *block = backend->blocks;
        backend->blocks = block->next;
        if (block->heap)
            farm_heap_free(block->heap, block->memory, block->bytes, FARM_CACHE_LINE);
        else
            free(block->memory);
        free(block);
    }
}

static void destroy(struct farm_backend *backend) {
    if (!backend) return;
    farm_pool_destroy(backend->pool);
    for (uint32_t i = 0; i < backend->worker_count; i++) farm_executor_destroy(backend->workers[i].executor);
    for (uint32_t k = 0; k < backend->shard_count; k++) farm_policy_free(backend->shards[k].policy);
    for (uint32_t k = 0; k < backend->shard_count; k++)
        if (backend->shards[k].owns_board) farm_board_free(backend->shards[k].board);
    free_blocks(backend);
    for (int k = 0; k < FARM_BACKEND_SLOTS; k++) farm_iteration_free(&backend->iterations[k]);
    farm_statistics_free(backend->statistics);
    farm_heap_close(backend->heap);
    free(backend);
}

// Rows of a unit's longest forward pass: itself, or its burn-in.
static uint32_t longest_pass(const struct farm_algo_plan *plan) {
    const uint32_t rows = farm_algo_unit_rows(plan), burn_in = plan->shape.burn_in;
    return rows > burn_in ? rows : burn_in;
}

// Rows of a training thread's forward pass.
static size_t pass_rows(const struct farm_backend *backend) {
    return (size_t)backend->micro_batch * longest_pass(backend->plan);
}

static enum farm_status make_worker(struct farm_backend *backend, struct worker *w, struct farm_error *err) {
    const struct farm_algo_config *algo = &backend->learner->algo;
    const size_t rows = pass_rows(backend);
    const size_t outputs = (size_t)backend->head.outputs;
    w->rows = zeroed(backend, rows * (size_t)farm_net_pointers(backend->net), sizeof(void *));
    w->gathered = (struct farm_gathered){
        .behaviour = zeroed(backend, rows * outputs, sizeof(float)),
        .behaviour_value = zeroed(backend, rows, sizeof(float)),
        .reward = zeroed(backend, rows, sizeof(float)),
        .action = zeroed(backend, rows, (size_t)backend->head.action_bytes),
        .flags = zeroed(backend, rows, 1),
        .scratch = zeroed(backend, rows * (size_t)algo->algo->scratch, sizeof(float)),
    };
    w->policy = zeroed(backend, rows * outputs, sizeof(float));
    w->dpolicy = zeroed(backend, rows * outputs, sizeof(float));
    w->value = zeroed(backend, rows, sizeof(float));
    w->dvalue = zeroed(backend, rows, sizeof(float));
    for (int k = 0; k < 2; k++)
        w->state[k] = zeroed(backend, (size_t)backend->micro_batch * (size_t)backend->net->state, sizeof(float));
    if (backend->out_of_memory)
        return farm_fail(err, FARM_E_LIMIT,
                         "no memory for a training thread (fewer train_threads, a smaller micro_batch)");
    const struct farm_executor_config config = {
        .net = backend->net, .batch_max = (int)rows, .training = true, .arithmetic = &backend->arithmetic};
    return farm_executor_create(&config, &w->executor, err);
}

static uint32_t training_threads(const struct farm_learner_config *learner) {
    return learner->train_threads ? learner->train_threads : 1;
}

// Units of one forward and backward pass of a training thread. The recipe's micro_batch counts windows.
static uint32_t choose_micro_batch(const struct farm_backend *backend) {
    const struct farm_learner_config *learner = backend->learner;
    const uint32_t threads = learner->deterministic ? 1 : training_threads(learner),
                   share = (farm_algo_pass_units(backend->plan, backend->columns_max) + threads - 1) / threads;
    const uint32_t rows = backend->net->io.frame_channels ? FRAME_ROWS
                          : learner->deterministic        ? FIXED_FLAT_ROWS
                                                          : FLAT_ROWS;
    const uint32_t wanted = learner->micro_batch ? farm_algo_units(backend->plan, learner->micro_batch)
                                                 : rows / longest_pass(backend->plan);
    return wanted > share ? share : wanted < 1 ? 1 : wanted;
}

// One arithmetic for inference and training, so that the policy that acted is the one that is trained.
static enum farm_status choose_arithmetic(struct farm_backend *backend, struct farm_error *err) {
    const struct farm_learner_config *learner = backend->learner;
    const struct farm_arithmetic_request request = {
        .net = backend->net,
        .precision = learner->precision,
        .train_rows = learner->evaluate ? 0 : (int)pass_rows(backend),
        .infer_rows = (int)learner->infer_batch_max,
        .version_rows =
            (int)(farm_algo_pass_units(backend->plan, backend->columns_max) * farm_algo_unit_rows(backend->plan)),
        .fixed = learner->deterministic,
        .cpu_name = learner->cpu_name,
        .run_file = learner->arithmetic_run_file,
        .user_file = learner->arithmetic_user_file,
    };
    char text[FARM_ARITHMETIC_TEXT];
    const enum farm_status status = farm_arithmetic_choose(&request, &backend->arithmetic, text, err);
    if (status == FARM_OK) farm_log_info("arithmetic: %s", text);
    return status;
}

static size_t block_count(const struct farm_backend *backend) {
    return (backend->net->parameter_count + BLOCK - 1) / BLOCK;
}

static enum farm_status make_training(struct farm_backend *backend, const struct farm_backend_config *config,
                                      struct farm_error *err) {
    const struct farm_learner_config *learner = backend->learner;
    const uint32_t threads = training_threads(learner), lanes = config->lanes ? config->lanes->lane_count : 0;
    enum farm_status made =
        farm_statistics_make(backend->net, &learner->algo, lanes, config->width_max, &backend->statistics, err);
    farm_statistics_load(backend->statistics, backend->params);
    for (int k = 0; k < FARM_BACKEND_SLOTS && !made; k++) {
        made = farm_iteration_make(&learner->algo, backend->plan, backend->head, backend->columns_max,
                                   &backend->iterations[k], err);
    }
    if (made) return made;
    backend->trainable = new_vector(backend);
    if (backend->trainable && !farm_net_trainable(backend->net, backend->trainable)) backend->trainable = NULL;
    backend->masked = zeroed(backend, block_count(backend), sizeof *backend->masked);
    for (size_t i = 0; backend->masked && backend->trainable && i < backend->net->parameter_count; i++)
        backend->masked[i / BLOCK] |= backend->trainable[i] == 0;
    backend->workers = zeroed(backend, threads, sizeof *backend->workers);
    backend->part_max = learner->deterministic ? PARTS : threads;
    backend->parts = zeroed(backend, backend->part_max, sizeof *backend->parts);
    backend->grads = zeroed(backend, backend->part_max, sizeof *backend->grads);
    for (uint32_t k = 0; backend->parts && k < backend->part_max; k++) backend->parts[k].grads = new_vector(backend);
    backend->squares = zeroed(backend, block_count(backend), sizeof *backend->squares);
    if (backend->out_of_memory) return farm_fail(err, FARM_E_LIMIT, "no memory for %u training threads", threads);
    for (uint32_t i = 0; i < threads; i++) {
        backend->worker_count = i + 1;
        enum farm_status status = make_worker(backend, &backend->workers[i], err);
        if (status) return status;
    }
    return farm_pool_create(threads, &backend->pool, err);
}

// Finds the node's board, or makes it for the node's first shard. With two buffers more than readers training never has
// to skip a version.
static enum farm_status find_board(struct farm_backend *backend, uint32_t k, struct farm_error *err) {
    struct shard *shard = &backend->shards[k];
    uint32_t readers = 0;
    for (uint32_t i = 0; i < backend->shard_count; i++) {
        if (backend->shards[i].node != shard->node) continue;
        if (!shard->board) shard->board = backend->shards[i].board;
        readers++;
    }
    if (shard->board) return FARM_OK;
    const enum farm_status status =
        farm_board_make(backend->net->parameter_count, readers + 2, shard->node, &shard->board, err);
    shard->owns_board = !status;
    if (!status) farm_board_publish(shard->board, backend->params, backend->version);
    return status;
}

static enum farm_status make_shard(struct farm_backend *backend, uint32_t k, struct farm_error *err) {
    const struct farm_learner_config *learner = backend->learner;
    const bool several = backend->shard_count > 1;
    struct shard *shard = &backend->shards[k];
    const enum farm_status status = find_board(backend, k, err);
    if (status) return status;
    const struct farm_policy_config config = {.net = backend->net,
                                              .head = backend->head,
                                              .arithmetic = &backend->arithmetic,
                                              .board = shard->board,
                                              .rows_max = learner->infer_batch_max,
                                              .sampler = {.greedy = learner->greedy, .seed = learner->seed},
                                              .cpus = several ? learner->shards[k].cpus : NULL};
    return farm_policy_make(&config, &shard->policy, err);
}

static enum farm_status create(const struct farm_backend_config *config, struct farm_backend **out,
                               struct farm_error *err) {
    const struct farm_learner_config *learner = config->learner;
    const size_t parameters = config->net->parameter_count;
    struct farm_backend *backend = calloc(1, sizeof *backend);
    if (!backend) return farm_fail(err, FARM_E_LIMIT, "no memory for the CPU backend");
    backend->learner = learner;
    backend->plan = config->plan;
    backend->net = config->net;
    backend->head = config->head;
    backend->columns_max = config->columns_max;
    enum farm_status status = farm_heap_open(learner->memory_node, &backend->heap, err);
    if (status) {
        free(backend);
        return status;
    }
    backend->micro_batch = choose_micro_batch(backend);
    backend->params = new_vector(backend);
    float *second = new_vector(backend);
    float *first = learner->algo.optimiser == FARM_OPTIMISER_ADAM ? new_vector(backend) : NULL;
    if (backend->out_of_memory) status = farm_fail(err, FARM_E_LIMIT, "no memory for %zu parameters", parameters);
    if (!status) {
        backend->optimiser_config = farm_algo_optimiser(&learner->algo);
        farm_optimiser_init(&backend->optimiser_config, parameters, first, second, &backend->optimiser);
        if (!learner->checkpoint_load) farm_net_init(config->net, learner->init, learner->seed, backend->params);
        status = choose_arithmetic(backend, err);
    }
    if (!status) backend->shard_count = config->shards;
    for (uint32_t k = 0; k < backend->shard_count; k++)
        backend->shards[k].node = backend->shard_count > 1 ? learner->shards[k].node : learner->memory_node;
    for (uint32_t k = 0; k < backend->shard_count && !status; k++) status = make_shard(backend, k, err);
    if (!status && !learner->evaluate) status = make_training(backend, config, err);
    if (status) {
        destroy(backend);
        return status;
    }
    *out = backend;
    return FARM_OK;
}

static enum farm_status infer(struct farm_backend *backend, uint32_t shard, const struct farm_policy_rows *rows,
                              uint32_t count, struct farm_error *err) {
    return farm_policy_answer(backend->shards[shard].policy, rows, count, err);
}

// ---- gradients ----

// The worker of this thread, before its piece: at the run's first one it loads the parameters.
static struct worker *prepared(struct farm_backend *backend, uint32_t thread) {
    struct worker *w = &backend->workers[thread];
    if (w->run == backend->run) return w;
    w->run = backend->run;
    farm_executor_load(w->executor, backend->params);
    return w;
}

// A recurrent policy's state before step n of an environment, as acting had it, into row `row`.
static void load_state(const struct farm_backend *backend, const struct farm_place *at, float *states, size_t row) {
    const size_t state = (size_t)backend->net->state;
    if (state)
        memcpy(states + row * state, farm_lane_answer_at(at->lane, at->lane->state, at->n, at->env),
               state * sizeof *states);
}

static uint32_t unit_of(const struct farm_backend *backend, uint32_t i) {
    return backend->pass->indices ? backend->pass->indices[i] : i;
}

// The state at the first transition of units [first, first + count): that of their windows' first step, and through the
// burn-in with the present parameters.
static void warm_up(struct farm_backend *backend, struct worker *w, uint32_t first, uint32_t count) {
    const int burn_in = (int)backend->plan->shape.burn_in;
    for (uint32_t i = 0; i < count; i++) {
        const struct farm_place at = farm_iteration_place(backend->iteration, unit_of(backend, first + i), -burn_in);
        load_state(backend, &at, w->state[burn_in > 0], i);
    }
    if (!burn_in) return;
    for (int step = -burn_in; step < 0; step++)
        for (uint32_t i = 0; i < count; i++) {
            const size_t row = (size_t)(step + burn_in) * count + i;
            const struct farm_place at = farm_iteration_place(backend->iteration, unit_of(backend, first + i), step);
            farm_observation_list(backend->net, at.lane, at.n, at.env,
                                  w->rows + row * (size_t)farm_net_pointers(backend->net));
            w->gathered.flags[row] = farm_lane_flags(at.lane, at.n)[at.env];
        }
    const struct farm_sequence sequence = {.steps = burn_in,
                                           .columns = (int)count,
                                           .flags = w->gathered.flags,
                                           .state_in = w->state[1],
                                           .state_out = w->state[0]};
    farm_executor_forward(w->executor, w->rows, sequence, w->policy, w->value);
}

// Gradient of units [first, first + count) of the pass.
static void differentiate_units(struct farm_backend *backend, struct worker *w, uint32_t first, uint32_t count) {
    const struct farm_algo_config *algo = &backend->learner->algo;
    const struct farm_iteration *it = backend->iteration;
    const uint32_t steps = farm_algo_unit_rows(backend->plan), transitions = farm_algo_unit_transitions(backend->plan);
    const bool once = backend->plan->targets_once;
    const size_t pointers = (size_t)farm_net_pointers(backend->net);
    w->gathered.scratch_stride = (size_t)transitions * count;
    if (backend->plan->recurrent) warm_up(backend, w, first, count);
    for (uint32_t step = 0; step < steps; step++)
        for (uint32_t i = 0; i < count; i++) {
            const uint32_t unit = unit_of(backend, first + i);
            const size_t row = (size_t)step * count + i;
            const struct farm_place at = farm_iteration_place(it, unit, (int)step);
            farm_observation_list(backend->net, at.lane, at.n, at.env, w->rows + row * pointers);
            farm_iteration_row(it, unit, step, &w->gathered, row);
        }
    const struct farm_sequence sequence = {
        .steps = (int)steps, .columns = (int)count, .flags = w->gathered.flags, .state_in = w->state[0]};
    farm_executor_forward(w->executor, w->rows, sequence, w->policy, w->value);
    struct farm_algo_rows rows = {
        .head = backend->head,
        .steps = (int)transitions,
        .columns = (int)count,
        .policy = w->policy,
        .value = w->value,
        .behaviour = w->gathered.behaviour,
        .behaviour_value = w->gathered.behaviour_value,
        .action = w->gathered.action,
        .reward = w->gathered.reward,
        .flags = w->gathered.flags,
        .scratch = w->gathered.scratch,
        .pass_sums = it->pass_sums,
        .iteration_sums = it->iteration_sums,
        .dpolicy = w->dpolicy,
        .dvalue = w->dvalue,
    };
    memcpy(rows.option, algo->option, sizeof rows.option);
    if (once)
        farm_algo_gradients(algo->algo, &rows, w->part->terms);
    else
        farm_algo_differentiate(algo->algo, &rows, w->part->terms);
    farm_executor_backward(w->executor, sequence, w->dpolicy, w->dvalue, w->part->grads);
}

// Adds a piece to a part, which the run's first one sets to zero.
static void add_piece(struct farm_backend *backend, uint32_t piece, uint32_t to, uint32_t thread) {
    const uint32_t first = piece * backend->piece_units, left = backend->pass_units - first;
    struct worker *w = prepared(backend, thread);
    struct part *part = w->part = &backend->parts[to];
    if (part->run != backend->run) {
        part->run = backend->run;
        farm_executor_clear(w->executor, part->grads);
        memset(part->terms, 0, sizeof part->terms);
    }
    differentiate_units(backend, w, first, left < backend->piece_units ? left : backend->piece_units);
}

static void differentiate_piece(void *context, uint32_t piece, uint32_t thread) {
    add_piece(context, piece, thread, thread);
}

// Deterministic: all pieces of a part, in whichever thread.
static void differentiate_part(void *context, uint32_t part, uint32_t thread) {
    struct farm_backend *backend = context;
    for (uint32_t piece = part; piece < backend->pieces; piece += PARTS) add_piece(backend, piece, part, thread);
}

// Runs the pieces in the active workers' threads.
static void run_pieces(struct farm_backend *backend, uint32_t pieces,
                       void (*work)(void *context, uint32_t piece, uint32_t thread)) {
    if (backend->active > 1) farm_pool_run(backend->pool, pieces, work, backend);
    for (uint32_t i = 0; i < pieces && backend->active == 1; i++) work(backend, i, 0);
}

// Small passes are faster in one thread than in several, by how much depends on net and machine: some passes time both
// by turns, again and again, because other processes disturb. If one thread wins by less than a third, soon again: a
// scheduler that keeps all threads on one CPU makes them a little slower than one.
enum { TIMED_PASSES = 16, PASSES_BETWEEN = 4096, PASSES_IF_CLOSE = 64 };
static bool one_wins(const struct farm_backend *backend) {
    return backend->least_ns[0] < backend->least_ns[1];
}

static bool is_close(const struct farm_backend *backend) {
    return one_wins(backend) && 4 * backend->least_ns[0] > 3 * backend->least_ns[1];
}

static void choose_active(struct farm_backend *backend) {
    const uint32_t n = backend->timed_passes;
    bool alone = one_wins(backend);
    if (n < TIMED_PASSES) alone = n % 2 == 0;
    if (!backend->learner->train_threads_chosen || backend->learner->deterministic) alone = false;
    backend->active = alone ? 1 : backend->worker_count;
}

static void time_pass(struct farm_backend *backend, uint64_t ns) {
    const uint32_t n = backend->timed_passes++;
    uint64_t *least = &backend->least_ns[n % 2];
    if (n < TIMED_PASSES && (n < 2 || ns < *least)) *least = ns;
    if (n >= (is_close(backend) ? PASSES_IF_CLOSE : PASSES_BETWEEN)) backend->timed_passes = 0;
    if (n != TIMED_PASSES - 1 || is_close(backend) || backend->worker_count == 1 || backend->choice_logged ||
        !backend->learner->train_threads_chosen || backend->learner->deterministic)
        return;
    backend->choice_logged = true;
    farm_log_info("a pass takes %.0f us in one training thread, %.0f us in %u: %s", 1e-3 * (double)backend->least_ns[0],
                  1e-3 * (double)backend->least_ns[1], backend->worker_count,
                  one_wins(backend) ? "one is used" : "all are used");
}

// Pieces of `units` for the active workers; deterministic: for any number of them. Returns their number.
static uint32_t divide(struct farm_backend *backend, uint32_t units) {
    const uint32_t workers = backend->learner->deterministic ? 1 : backend->active,
                   each = (units + workers - 1) / workers;
    backend->piece_units = backend->micro_batch < each ? backend->micro_batch : each;
    return backend->pieces = (units + backend->piece_units - 1) / backend->piece_units;
}

// Targets once: some columns' steps, and the present values of their last observations.
static void gather_piece(void *context, uint32_t piece, uint32_t thread) {
    struct farm_backend *backend = context;
    struct worker *w = prepared(backend, thread);
    struct farm_iteration *it = backend->iteration;
    const uint32_t first = piece * backend->piece_units, left = it->count - first;
    const uint32_t count = left < backend->piece_units ? left : backend->piece_units;
    for (uint32_t c = 0; c < count; c++) {
        const struct farm_place at = farm_iteration_last(it, first + c);
        farm_observation_list(backend->net, at.lane, at.n, at.env,
                              w->rows + c * (size_t)farm_net_pointers(backend->net));
        w->gathered.flags[c] = farm_lane_flags(at.lane, at.n)[at.env];
        load_state(backend, &at, w->state[0], c);
    }
    farm_iteration_gather(it, first, count);
    const struct farm_sequence sequence = {
        .steps = 1, .columns = (int)count, .flags = w->gathered.flags, .state_in = w->state[0]};
    farm_executor_forward(w->executor, w->rows, sequence, w->policy, w->value);
    memcpy(it->value + (size_t)farm_algo_transitions(backend->plan) * it->count + first, w->value,
           count * sizeof *w->value);
}

static enum farm_status begin(struct farm_backend *backend, uint32_t slot, const struct farm_window *windows,
                              uint32_t count, struct farm_error *err) {
    backend->iteration = &backend->iterations[slot];
    farm_iteration_list(backend->iteration, windows, count);
    farm_statistics_begin(backend->statistics, backend->iteration);
    if (!backend->plan->targets_once) return FARM_OK;
    backend->active = backend->worker_count;
    backend->run++;
    run_pieces(backend, divide(backend, backend->iteration->count), gather_piece);
    farm_iteration_target(backend->iteration);
    return FARM_OK;
}

// The parameters of blocks that are this piece's share.
struct share {
    size_t block, block_end, parameter_end;
};
static struct share share_of(const struct farm_backend *backend, uint32_t piece) {
    const size_t blocks = block_count(backend), end = blocks * (piece + 1) / backend->active;
    return (struct share){blocks * piece / backend->active, end,
                          end == blocks ? backend->net->parameter_count : end * BLOCK};
}

// One share of the vector: the sum of all parts as a tree, neighbours first, and its squares.
static void add_gradients(void *context, uint32_t piece, uint32_t thread) {
    struct farm_backend *backend = context;
    const struct share share = share_of(backend, piece);
    for (size_t block = share.block; block < share.block_end; block++) {
        const size_t from = block * BLOCK, left = share.parameter_end - from, count = left < BLOCK ? left : BLOCK;
        float *sum = backend->grads[0] + from;
        for (size_t step = 1; step < backend->grad_count; step *= 2)
            for (size_t k = 0; k + step < backend->grad_count; k += 2 * step)
                farm_optimiser_add(backend->grads[k] + from, backend->grads[k + step] + from, count);
        for (size_t i = 0; i < count && backend->trainable && backend->masked[block]; i++)
            if (backend->trainable[from + i] == 0) sum[i] = 0;
        backend->squares[block] = farm_optimiser_squares(sum, count);
    }
}

static void update_parameters(void *context, uint32_t piece, uint32_t thread) {
    struct farm_backend *backend = context;
    const struct share share = share_of(backend, piece);
    farm_optimiser_update(&backend->optimiser_config, &backend->optimiser, &backend->factors, share.block * BLOCK,
                          share.parameter_end, backend->params, backend->grads[0]);
}

// The optimiser's step with the parts' sum times `scale`. A gradient that is not finite changes nothing.
static void step(struct farm_backend *backend, float learning_rate, double scale) {
    double squares = 0;
    for (size_t block = 0; block < block_count(backend); block++) squares += backend->squares[block];
    backend->stats.grad_norm = scale * sqrt(squares);
    if (farm_optimiser_begin(&backend->optimiser_config, &backend->optimiser, learning_rate, backend->stats.grad_norm,
                             &backend->factors)) {
        backend->factors.gradient_scale *= (float)scale;
        run_pieces(backend, backend->active, update_parameters);
        return;
    }
    backend->stats.grad_norm = INFINITY;
    backend->stats.bad_step = backend->optimiser.step;
    backend->stats.bad_tensor = farm_backend_bad_tensor(backend->net, backend->grads[0]);
}

static enum farm_status pass(struct farm_backend *backend, uint32_t slot, const struct farm_pass *pass,
                             struct farm_error *err) {
    const struct farm_algo_plan *plan = backend->plan;
    const uint32_t transitions = farm_algo_unit_transitions(plan);
    backend->iteration = &backend->iterations[slot];
    backend->pass = pass;
    backend->pass_units = pass->count ? pass->count : farm_algo_units(plan, backend->iteration->count);
    if (plan->targets_once)
        farm_iteration_reduce(backend->iteration, pass->indices, backend->pass_units, pass->schedule);
    choose_active(backend);
    const uint64_t start = farm_now_ns();
    backend->run++;
    const uint32_t pieces = divide(backend, backend->pass_units);
    if (backend->learner->deterministic)
        run_pieces(backend, pieces < PARTS ? pieces : PARTS, differentiate_part);
    else
        run_pieces(backend, pieces, differentiate_piece);
    backend->grad_count = 0;
    for (uint32_t k = 0; k < backend->part_max; k++) {
        const struct part *part = &backend->parts[k];
        if (part->run != backend->run) continue;
        backend->grads[backend->grad_count++] = part->grads;
        for (int t = 0; t < FARM_ALGO_TERMS_MAX; t++) backend->stats.terms[t] += part->terms[t];
    }
    run_pieces(backend, backend->active, add_gradients);
    if (isfinite(backend->stats.grad_norm))
        step(backend, (float)pass->learning_rate,
             backend->learner->algo.loss_sum ? 1 : 1.0 / (double)(backend->pass_units * transitions));
    time_pass(backend, farm_now_ns() - start);
    return FARM_OK;
}

static enum farm_status publish(struct farm_backend *backend, uint64_t version, struct farm_error *err) {
    backend->version = version;
    farm_statistics_write(backend->statistics, backend->params);
    for (uint32_t k = 0; k < backend->shard_count; k++)
        if (backend->shards[k].owns_board) farm_board_publish(backend->shards[k].board, backend->params, version);
    return FARM_OK;
}

static enum farm_status finish(struct farm_backend *backend, struct farm_pass_stats *stats, struct farm_error *err) {
    *stats = backend->stats;
    backend->stats = (struct farm_pass_stats){0};
    return FARM_OK;
}

static struct farm_backend_state state(struct farm_backend *backend) {
    return farm_backend_state_of(backend->params, backend->optimiser.first, backend->optimiser.second,
                                 backend->optimiser.step, backend->version);
}

static enum farm_status state_changed(struct farm_backend *backend, uint64_t version, uint64_t optimiser_step,
                                      struct farm_error *err) {
    backend->optimiser.step = optimiser_step;
    farm_statistics_load(backend->statistics, backend->params);
    return publish(backend, version, err);
}

const struct farm_backend_ops farm_backend_cpu = {
    .name = "cpu",
    .shards = true,
    .create = create,
    .destroy = destroy,
    .infer = infer,
    .begin = begin,
    .pass = pass,
    .publish = publish,
    .finish = finish,
    .state = state,
    .state_changed = state_changed,
};
