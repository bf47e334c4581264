// The CPU backend: executors of src/nn and the kernels of src/kernels over the lanes' own memory. Each shard's
// inference thread has a policy and each training thread a gradient (gradient.h). Parameters go from training to the
// policies over one board a NUMA node (board/board.h). See backend.h.
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/time.h"
#include "intake/lanes.h"
#include "learner/backend.h"
#include "learner/cpu/gradient.h"
#include "learner/parts.h"
#include "learner/statistics.h"
#include "policy/policy.h"
#include "shm/heap.h"

enum { FRAME_ROWS = 96, FLAT_ROWS = 1024 }; // micro-batches that keep a core busy and do not delay inference
// Deterministic: the same sums for any number of training threads, of which at most SUMS are busy.
enum { SUMS = 8, FIXED_FLAT_ROWS = 256 };

// One inference thread. The shards of a node share what the first of them owns.
struct shard {
    int node;
    struct farm_board *board;
    bool owns_board;
    struct farm_policy *policy;
};

// Whether one training thread or all compute a pass. Small passes are faster in one; the size at which that changes
// depends on the net and the machine. So some passes are timed in turn with one thread and with all, and again later,
// because other processes disturb.
struct thread_choice {
    uint32_t threads;     // all of them
    bool fixed;           // all compute every pass
    uint64_t least_ns[2]; // shortest timed pass with one thread, with all
    uint32_t passes;      // since the first one of the newest timing
    bool logged;
};

// The training threads.
struct threads {
    struct farm_cpu_gradient **gradients; // [count]
    uint32_t count, used;                 // used: 1 or all, by the present work
    struct farm_pool *pool;
    struct thread_choice choice;
};

// What the training threads do together: a pass, or the targets of an iteration.
struct work {
    uint64_t number; // counts them
    struct farm_iteration *iteration;
    const uint32_t *indices;             // the pass's
    uint32_t units, chunk_units, chunks; // a chunk: units that a thread computes at once
    struct farm_cpu_sum *sums; // [sums_most]: one a thread; deterministic: SUMS, of every SUMS-th chunk each, in order
    uint32_t sums_most;
};

struct farm_backend {
    const struct farm_learner_config *learner;
    const struct farm_algo_plan *plan;
    const struct farm_net *net;
    struct farm_head head;
    struct farm_arithmetic arithmetic; // all executors' own
    uint32_t columns_max;
    uint32_t micro_batch;   // units of one forward and backward pass
    struct farm_heap *heap; // on the learner's node
    float *vectors;         // [vector_count][parameter_count] there, each from a cache line's start
    uint32_t vector_count, vectors_taken;
    struct shard shards[FARM_LEARNER_SHARDS_MAX];
    uint32_t shard_count;

    // training thread
    float *sets[1 + FARM_ALGO_SETS_MAX]; // parameters: FARM_SET_ONLINE, then the plan's
    uint64_t version;
    struct farm_cpu_optimiser optimiser;
    struct farm_statistics *statistics; // in the online set since the last publish
    struct farm_iteration iterations[FARM_BACKEND_SLOTS];
    struct farm_pass_stats stats; // since the last finish
    struct threads threads;
    struct work work;
};

// Bytes from one vector of [parameter_count] to the next.
static size_t vector_bytes(const struct farm_backend *backend) {
    return (backend->net->parameter_count * sizeof(float) + FARM_CACHE_LINE - 1) / FARM_CACHE_LINE * FARM_CACHE_LINE;
}

static float *take_vector(struct farm_backend *backend) {
    assert(backend->vectors_taken < backend->vector_count);
    return backend->vectors + backend->vectors_taken++ * (vector_bytes(backend) / sizeof(float));
}

static void destroy(struct farm_backend *backend) {
    if (!backend) return;
    farm_pool_destroy(backend->threads.pool);
    for (uint32_t i = 0; i < backend->threads.count; i++) farm_cpu_gradient_free(backend->threads.gradients[i]);
    for (uint32_t k = 0; k < backend->shard_count; k++) farm_policy_free(backend->shards[k].policy);
    for (uint32_t k = 0; k < backend->shard_count; k++)
        if (backend->shards[k].owns_board) farm_board_free(backend->shards[k].board);
    free(backend->threads.gradients);
    free(backend->work.sums);
    farm_cpu_optimiser_free(&backend->optimiser);
    for (int k = 0; k < FARM_BACKEND_SLOTS; k++) farm_iteration_free(&backend->iterations[k]);
    farm_statistics_free(backend->statistics);
    farm_heap_free(backend->heap, backend->vectors, backend->vector_count * vector_bytes(backend), FARM_CACHE_LINE);
    farm_heap_close(backend->heap);
    free(backend);
}

static uint32_t training_threads(const struct farm_learner_config *learner) {
    return learner->training.threads ? learner->training.threads : 1;
}

// Units of one forward and backward pass of a training thread. The recipe's micro_batch counts windows.
static uint32_t choose_micro_batch(const struct farm_backend *backend) {
    const struct farm_learner_config *learner = backend->learner;
    const uint32_t threads = learner->deterministic.on ? 1 : training_threads(learner),
                   share = (farm_algo_pass_units(backend->plan, backend->columns_max) + threads - 1) / threads;
    const uint32_t rows = backend->net->io.frame_channels ? FRAME_ROWS
                          : learner->deterministic.on     ? FIXED_FLAT_ROWS
                                                          : FLAT_ROWS;
    const uint32_t wanted = learner->training.micro_batch
                                ? farm_algo_units(backend->plan, learner->training.micro_batch)
                                : rows / (uint32_t)farm_cpu_gradient_rows(backend->plan, 1);
    return wanted > share ? share : wanted < 1 ? 1 : wanted;
}

static uint32_t sums_most(const struct farm_learner_config *learner) {
    return learner->deterministic.on ? SUMS : training_threads(learner);
}

static enum farm_status make_threads(struct farm_backend *backend, uint32_t count, struct farm_error *err) {
    const struct farm_learner_config *learner = backend->learner;
    const struct farm_cpu_gradient_config config = {.net = backend->net,
                                                    .algo = &learner->algo,
                                                    .plan = backend->plan,
                                                    .arithmetic = &backend->arithmetic,
                                                    .head = backend->head,
                                                    .units_max = backend->micro_batch};
    backend->threads.count = count;
    backend->threads.choice = (struct thread_choice){
        .threads = count, .fixed = !learner->training.threads_chosen || learner->deterministic.on};
    enum farm_status status = FARM_OK;
    for (uint32_t i = 0; i < count && !status; i++)
        status = farm_cpu_gradient_make(&config, &backend->threads.gradients[i], err);
    return status ? status : farm_pool_create(count, &backend->threads.pool, err);
}

static enum farm_status make_training(struct farm_backend *backend, const struct farm_backend_config *config,
                                      struct farm_error *err) {
    const struct farm_learner_config *learner = backend->learner;
    const uint32_t threads = training_threads(learner), lanes = config->lanes ? config->lanes->lane_count : 0;
    enum farm_status made =
        farm_statistics_make(backend->net, &learner->algo, lanes, config->width_max, &backend->statistics, err);
    farm_statistics_load(backend->statistics, backend->sets[FARM_SET_ONLINE]);
    for (int k = 0; k < FARM_BACKEND_SLOTS && !made; k++) {
        made = farm_iteration_make(&learner->algo, backend->plan, backend->head, backend->columns_max,
                                   &backend->iterations[k], err);
    }
    if (made) return made;
    backend->work.sums_most = sums_most(learner);
    made = farm_cpu_optimiser_make(&backend->optimiser, backend->work.sums_most, take_vector(backend), err);
    if (made) return made;
    backend->threads.gradients = calloc(threads, sizeof(struct farm_cpu_gradient *));
    backend->work.sums = calloc(backend->work.sums_most, sizeof *backend->work.sums);
    if (!backend->threads.gradients || !backend->work.sums)
        return farm_fail(err, FARM_E_LIMIT, "no memory for %u training threads", threads);
    for (uint32_t k = 0; k < backend->work.sums_most; k++) backend->work.sums[k].gradient = take_vector(backend);
    return make_threads(backend, threads, err);
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
    if (!status) farm_board_publish(shard->board, backend->sets[FARM_SET_ONLINE], backend->version);
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
                                              .rows_max = learner->inference.batch_max,
                                              .sampler = {.seed = learner->seed},
                                              .cpus = several ? learner->shards[k].cpus : NULL};
    return farm_policy_make(&config, &shard->policy, err);
}

static void copy_set(struct farm_backend *backend, uint32_t set) {
    memcpy(backend->sets[set], backend->sets[FARM_SET_ONLINE], backend->net->parameter_count * sizeof(float));
}

// Parameter sets and the optimiser's moments, and room for the vectors of training.
static enum farm_status make_parameters(struct farm_backend *backend, struct farm_error *err) {
    const struct farm_learner_config *learner = backend->learner;
    const bool adam = learner->algo.optimiser == FARM_OPTIMISER_ADAM;
    const uint32_t sets = farm_algo_sets(backend->plan), count = 3u + sets + adam + sums_most(learner);
    const size_t bytes = count * vector_bytes(backend);
    backend->vectors = farm_heap_alloc(backend->heap, bytes, FARM_CACHE_LINE);
    if (!backend->vectors)
        return farm_fail(err, FARM_E_LIMIT, "no memory for %u times %zu parameters", count,
                         backend->net->parameter_count);
    memset(backend->vectors, 0, bytes);
    backend->vector_count = count;
    for (uint32_t k = 0; k <= sets; k++) backend->sets[k] = take_vector(backend);
    float *second = take_vector(backend), *first = adam ? take_vector(backend) : NULL;
    backend->optimiser = (struct farm_cpu_optimiser){
        .net = backend->net, .config = farm_algo_optimiser(&learner->algo), .params = backend->sets[FARM_SET_ONLINE]};
    farm_optimiser_init(&backend->optimiser.config, backend->net->parameter_count, first, second,
                        &backend->optimiser.state);
    if (learner->checkpoints.load) return FARM_OK;
    farm_net_init(backend->net, learner->init, learner->seed, backend->sets[FARM_SET_ONLINE]);
    for (uint32_t k = 1; k <= sets; k++) copy_set(backend, k);
    return FARM_OK;
}

static enum farm_status create(const struct farm_backend_config *config, struct farm_backend **out,
                               struct farm_error *err) {
    const struct farm_learner_config *learner = config->learner;
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
    status = make_parameters(backend, err);
    if (!status)
        status = farm_parts_choose_arithmetic(
            learner, backend->net, (uint32_t)farm_cpu_gradient_rows(backend->plan, backend->micro_batch),
            farm_algo_pass_units(backend->plan, backend->columns_max) * farm_algo_unit_rows(backend->plan),
            &backend->arithmetic, err);
    if (!status) backend->shard_count = config->shards;
    for (uint32_t k = 0; k < backend->shard_count; k++)
        backend->shards[k].node = backend->shard_count > 1 ? learner->shards[k].node : learner->memory_node;
    for (uint32_t k = 0; k < backend->shard_count && !status; k++) status = make_shard(backend, k, err);
    if (!status) status = make_training(backend, config, err);
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

// ---- one thread or all ----

// If one thread wins by less than a third, the next timing comes soon: a scheduler that keeps all threads on one CPU
// makes them a little slower than one.
enum { TIMED_PASSES = 16, PASSES_BETWEEN = 4096, PASSES_IF_CLOSE = 64 };

static bool one_wins(const struct thread_choice *choice) {
    return choice->least_ns[0] < choice->least_ns[1];
}

static bool is_close(const struct thread_choice *choice) {
    return one_wins(choice) && 4 * choice->least_ns[0] > 3 * choice->least_ns[1];
}

// Threads of the next pass: 1 or all.
static uint32_t next_threads(const struct thread_choice *choice) {
    const bool alone = choice->passes < TIMED_PASSES ? choice->passes % 2 == 0 : one_wins(choice);
    return alone && !choice->fixed ? 1 : choice->threads;
}

// After that pass: how long it took. Logs the first choice.
static void note_pass_time(struct thread_choice *choice, uint64_t pass_ns) {
    if (choice->fixed) return;
    const uint32_t n = choice->passes++;
    uint64_t *least = &choice->least_ns[n % 2];
    if (n < TIMED_PASSES && (n < 2 || pass_ns < *least)) *least = pass_ns;
    if (n >= (is_close(choice) ? PASSES_IF_CLOSE : PASSES_BETWEEN)) choice->passes = 0;
    if (n != TIMED_PASSES - 1 || is_close(choice) || choice->threads == 1 || choice->logged) return;
    choice->logged = true;
    farm_log_info("a pass takes %.0f us in one training thread, %.0f us in %u: %s", 1e-3 * (double)choice->least_ns[0],
                  1e-3 * (double)choice->least_ns[1], choice->threads,
                  one_wins(choice) ? "one is used" : "all are used");
}

// ---- a pass ----

// A thread's gradient with the parameters in training.
static struct farm_cpu_gradient *prepared(struct farm_backend *backend, uint32_t thread) {
    struct farm_cpu_gradient *gradient = backend->threads.gradients[thread];
    farm_cpu_gradient_load(gradient, backend->sets[FARM_SET_ONLINE], backend->work.number);
    return gradient;
}

// Units of a chunk; the last one may be smaller.
static uint32_t chunk_size(const struct farm_backend *backend, uint32_t chunk) {
    const uint32_t left = backend->work.units - chunk * backend->work.chunk_units;
    return left < backend->work.chunk_units ? left : backend->work.chunk_units;
}

// Adds a chunk's gradients to the thread's sum. Deterministic: all chunks of a sum to that sum, in any thread.
static void differentiate_piece(void *context, uint32_t piece, uint32_t thread) {
    struct farm_backend *backend = context;
    const bool fixed = backend->learner->deterministic.on;
    struct farm_cpu_sum *sum = &backend->work.sums[fixed ? piece : thread];
    for (uint32_t chunk = piece; chunk < backend->work.chunks; chunk += fixed ? SUMS : backend->work.chunks)
        farm_cpu_gradient_add(prepared(backend, thread), backend->work.iteration, backend->work.indices,
                              chunk * backend->work.chunk_units, chunk_size(backend, chunk), sum);
}

// Targets once: gathers a chunk of columns, with the present values of their last observations.
static void gather_chunk(void *context, uint32_t chunk, uint32_t thread) {
    struct farm_backend *backend = context;
    farm_cpu_gradient_values(prepared(backend, thread), backend->work.iteration, chunk * backend->work.chunk_units,
                             chunk_size(backend, chunk));
}

// The pool of the present work; NULL: one thread does it.
static struct farm_pool *pool_of(const struct farm_backend *backend) {
    return backend->threads.used > 1 ? backend->threads.pool : NULL;
}

// Begins work on units of an iteration in `threads` threads: divides them into chunks; deterministic: the same chunks
// for any number of threads.
static void begin_work(struct farm_backend *backend, struct farm_iteration *iteration, uint32_t units,
                       uint32_t threads) {
    const uint32_t divisor = backend->learner->deterministic.on ? 1 : threads, each = (units + divisor - 1) / divisor;
    backend->threads.used = threads;
    backend->work.number++;
    backend->work.iteration = iteration;
    backend->work.units = units;
    backend->work.chunk_units = backend->micro_batch < each ? backend->micro_batch : each;
    backend->work.chunks = (units + backend->work.chunk_units - 1) / backend->work.chunk_units;
}

static enum farm_status begin(struct farm_backend *backend, uint32_t slot, const struct farm_window *windows,
                              uint32_t count, struct farm_error *err) {
    struct farm_iteration *iteration = &backend->iterations[slot];
    farm_iteration_list(iteration, windows, count);
    farm_statistics_begin(backend->statistics, iteration);
    if (!backend->plan->targets_once) return FARM_OK;
    begin_work(backend, iteration, iteration->count, backend->threads.count);
    farm_pool_run(pool_of(backend), backend->work.chunks, gather_chunk, backend);
    farm_iteration_target(iteration);
    return FARM_OK;
}

// Computes the gradients of the work's units into some sums, and adds these up.
static void differentiate(struct farm_backend *backend) {
    const struct work *work = &backend->work;
    struct farm_cpu_optimiser *optimiser = &backend->optimiser;
    uint32_t pieces = work->chunks;
    if (backend->learner->deterministic.on && pieces > SUMS) pieces = SUMS;
    farm_pool_run(pool_of(backend), pieces, differentiate_piece, backend);
    optimiser->gradient_count = 0;
    for (uint32_t k = 0; k < work->sums_most; k++) {
        const struct farm_cpu_sum *sum = &work->sums[k];
        if (sum->work != work->number) continue;
        optimiser->gradients[optimiser->gradient_count++] = sum->gradient;
        for (int t = 0; t < FARM_ALGO_TERMS_MAX; t++) backend->stats.terms[t] += sum->terms[t];
    }
    farm_cpu_optimiser_sum(optimiser, pool_of(backend), backend->threads.used);
}

static enum farm_status pass(struct farm_backend *backend, uint32_t slot, const struct farm_pass *pass,
                             struct farm_error *err) {
    const struct farm_algo_plan *plan = backend->plan;
    struct farm_iteration *iteration = &backend->iterations[slot];
    const uint32_t units = pass->count ? pass->count : farm_algo_units(plan, iteration->count);
    if (plan->targets_once) farm_iteration_reduce(iteration, pass->indices, units, pass->schedule);
    const uint64_t start = farm_now_ns();
    begin_work(backend, iteration, units, next_threads(&backend->threads.choice));
    backend->work.indices = pass->indices;
    differentiate(backend);
    if (isfinite(backend->stats.grad_norm))
        farm_cpu_optimiser_step(
            &backend->optimiser, (float)pass->learning_rate,
            backend->learner->algo.loss_sum ? 1 : 1.0 / (double)(units * farm_algo_unit_transitions(plan)),
            &backend->stats);
    note_pass_time(&backend->threads.choice, farm_now_ns() - start);
    return FARM_OK;
}

static enum farm_status copy(struct farm_backend *backend, uint32_t set, struct farm_error *err) {
    copy_set(backend, set);
    return FARM_OK;
}

static enum farm_status publish(struct farm_backend *backend, uint32_t set, uint64_t version, struct farm_error *err) {
    backend->version = version;
    farm_statistics_write(backend->statistics, backend->sets[FARM_SET_ONLINE]);
    for (uint32_t k = 0; k < backend->shard_count; k++)
        if (backend->shards[k].owns_board && !farm_board_publish(backend->shards[k].board, backend->sets[set], version))
            abort(); // find_board: a buffer is always free
    return FARM_OK;
}

static enum farm_status finish(struct farm_backend *backend, struct farm_pass_stats *stats, struct farm_error *err) {
    *stats = backend->stats;
    backend->stats = (struct farm_pass_stats){0};
    return FARM_OK;
}

static struct farm_backend_state state(struct farm_backend *backend) {
    const struct farm_optimiser_state *optimiser = &backend->optimiser.state;
    struct farm_backend_state state = farm_backend_state_of(backend->sets[FARM_SET_ONLINE], optimiser->first,
                                                            optimiser->second, optimiser->step, backend->version);
    farm_backend_state_add(&state, backend->plan, backend->sets + 1);
    return state;
}

static enum farm_status state_changed(struct farm_backend *backend, uint64_t version, uint64_t optimiser_step,
                                      struct farm_error *err) {
    backend->optimiser.state.step = optimiser_step;
    farm_statistics_load(backend->statistics, backend->sets[FARM_SET_ONLINE]);
    return publish(backend, FARM_SET_ONLINE, version, err);
}

const struct farm_backend_ops farm_backend_cpu = {
    .name = "cpu",
    .shards = true,
    .create = create,
    .destroy = destroy,
    .infer = infer,
    .begin = begin,
    .pass = pass,
    .copy = copy,
    .publish = publish,
    .finish = finish,
    .state = state,
    .state_changed = state_changed,
};
