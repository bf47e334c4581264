// The CPU backend: executors of src/nn and the kernels of src/kernels over the lanes' own memory. Each shard's
// inference thread and each training thread has an executor. Parameters go from training to inference through one
// published copy a NUMA node, so inference waits for a memcpy at most, and training for the inference threads that
// repack it. See backend.h.
#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "learner/backend.h"
#include "learner/gather.h"
#include "learner/pool.h"
#include "shm/heap.h"

enum { FRAME_ROWS = 96, FLAT_ROWS = 1024 }; // of a micro-batch: they keep a core busy and do not delay inference

// Memory of the backend, freed with it.
struct block {
    struct block *next;
    struct farm_heap *heap; // NULL: malloc's
    void *memory;
    size_t bytes;
};

// One training thread.
struct worker {
    struct farm_executor *executor;
    float *grads; // [parameter_count] part of the sum
    const void **rows;
    struct farm_gathered gathered;
    float *policy, *dpolicy, *value, *dvalue, *scratch;
    double terms[FARM_ALGO_TERMS_MAX];
};

// The newest parameters, for the inference threads of one node.
struct published {
    int node;
    struct farm_heap *heap; // NULL: the backend's
    pthread_rwlock_t lock;  // inference threads read together
    float *params;
    uint64_t version; // atomic; written under the lock
};

// One inference thread.
struct shard {
    struct published *published;
    struct farm_executor *executor;
    uint64_t version;
    const void **rows;
    float *policy, *value;
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
    struct published published[FARM_LEARNER_SHARDS_MAX];
    uint32_t published_count;

    // training thread
    struct farm_optimiser_config optimiser_config;
    struct farm_optimiser_state optimiser;
    float *params;
    uint64_t version;
    uint32_t micro_batch; // units of one forward and backward pass
    struct slot {
        struct farm_column *columns; // [columns_max]
        uint32_t count;
        // If targets are computed once: all rows, time-major [T+1][count], and [scratch][T][count].
        struct farm_gathered gathered;
        float *value, *scratch;
        double sums[FARM_ALGO_SUMS_MAX];
    } slots[FARM_BACKEND_SLOTS];
    uint32_t columns_max;
    struct farm_pool *pool;
    uint32_t worker_count;
    struct worker *workers;
    struct farm_pass_stats stats; // since the last finish

    // the pass that runs
    struct slot *slot;
    const struct farm_pass *pass;
    uint32_t pass_units, piece_units;
    double pass_sums[FARM_ALGO_SUMS_MAX];
    float scale;
};

// Rows of a unit: a column's, or one.
static uint32_t unit_rows(const struct farm_algo_plan *plan) {
    return plan->targets_once ? 1 : plan->shape.length;
}

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

static void publish_to(struct farm_backend *backend, struct published *to) {
    pthread_rwlock_wrlock(&to->lock);
    memcpy(to->params, backend->params, vector_bytes(backend));
    farm_store_release(&to->version, backend->version);
    pthread_rwlock_unlock(&to->lock);
}

static void destroy(struct farm_backend *backend) {
    if (!backend) return;
    farm_pool_destroy(backend->pool);
    for (uint32_t i = 0; i < backend->worker_count; i++) farm_executor_destroy(backend->workers[i].executor);
    for (uint32_t k = 0; k < backend->shard_count; k++) farm_executor_destroy(backend->shards[k].executor);
    free_blocks(backend);
    for (uint32_t k = 0; k < backend->published_count; k++) {
        pthread_rwlock_destroy(&backend->published[k].lock);
        farm_heap_close(backend->published[k].heap);
    }
    farm_heap_close(backend->heap);
    free(backend);
}

static struct farm_gathered new_gathered(struct farm_backend *backend, size_t rows) {
    return (struct farm_gathered){
        .behaviour = zeroed(backend, rows * (size_t)backend->head.outputs, sizeof(float)),
        .behaviour_value = zeroed(backend, rows, sizeof(float)),
        .reward = zeroed(backend, rows, sizeof(float)),
        .action = zeroed(backend, rows, (size_t)backend->head.action_bytes),
        .flags = zeroed(backend, rows, 1),
    };
}

static enum farm_status make_worker(struct farm_backend *backend, struct worker *w, struct farm_error *err) {
    const struct farm_algo_config *algo = &backend->learner->algo;
    const size_t rows = (size_t)backend->micro_batch * unit_rows(backend->plan);
    const size_t outputs = (size_t)backend->head.outputs;
    w->grads = new_vector(backend);
    w->rows = zeroed(backend, rows * algo->stack, sizeof(void *));
    w->gathered = new_gathered(backend, rows);
    w->policy = zeroed(backend, rows * outputs, sizeof(float));
    w->dpolicy = zeroed(backend, rows * outputs, sizeof(float));
    w->value = zeroed(backend, rows, sizeof(float));
    w->dvalue = zeroed(backend, rows, sizeof(float));
    w->scratch = zeroed(backend, rows * (size_t)algo->algo->scratch, sizeof(float));
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

// Units that a pass over a whole iteration has, at most.
static uint32_t pass_units(const struct farm_backend *backend) {
    const uint32_t passes = farm_algo_passes(backend->plan, backend->columns_max);
    return (farm_algo_units(backend->plan, backend->columns_max) + passes - 1) / passes;
}

// Units of one forward and backward pass of a training thread. The recipe's micro_batch counts windows.
static uint32_t choose_micro_batch(const struct farm_backend *backend) {
    const struct farm_learner_config *learner = backend->learner;
    const uint32_t threads = training_threads(learner), share = (pass_units(backend) + threads - 1) / threads;
    const uint32_t rows = learner->micro_batch    ? learner->micro_batch * backend->plan->shape.length
                          : backend->net->io.flat ? FLAT_ROWS
                                                  : FRAME_ROWS;
    const uint32_t wanted = rows / unit_rows(backend->plan);
    return wanted > share ? share : wanted < 1 ? 1 : wanted;
}

// One arithmetic for inference and training, so that the policy that acted is the one that is trained.
static enum farm_status choose_arithmetic(struct farm_backend *backend, struct farm_error *err) {
    const struct farm_learner_config *learner = backend->learner;
    const struct farm_arithmetic_request request = {
        .net = backend->net,
        .precision = learner->precision,
        .train_rows = learner->evaluate ? 0 : (int)(backend->micro_batch * unit_rows(backend->plan)),
        .infer_rows = (int)learner->infer_batch_max,
        .version_rows = (int)(pass_units(backend) * unit_rows(backend->plan)),
        .cpu_name = learner->cpu_name,
        .run_file = learner->arithmetic_run_file,
        .user_file = learner->arithmetic_user_file,
    };
    char text[FARM_ARITHMETIC_TEXT];
    const enum farm_status status = farm_arithmetic_choose(&request, &backend->arithmetic, text, err);
    if (status == FARM_OK) farm_log_info("arithmetic: %s", text);
    return status;
}

static enum farm_status make_training(struct farm_backend *backend, struct farm_error *err) {
    const struct farm_learner_config *learner = backend->learner;
    const uint32_t threads = training_threads(learner);
    for (int k = 0; k < FARM_BACKEND_SLOTS; k++) {
        const size_t rows = (size_t)backend->columns_max * backend->plan->shape.length;
        struct slot *slot = &backend->slots[k];
        slot->columns = zeroed(backend, backend->columns_max, sizeof *slot->columns);
        if (!backend->plan->targets_once) continue;
        slot->gathered = new_gathered(backend, rows);
        slot->value = zeroed(backend, rows, sizeof *slot->value);
        slot->scratch = zeroed(backend, rows * (size_t)learner->algo.algo->scratch, sizeof *slot->scratch);
    }
    backend->workers = zeroed(backend, threads, sizeof *backend->workers);
    if (backend->out_of_memory) return farm_fail(err, FARM_E_LIMIT, "no memory for %u training threads", threads);
    for (uint32_t i = 0; i < threads; i++) {
        backend->worker_count = i + 1;
        enum farm_status status = make_worker(backend, &backend->workers[i], err);
        if (status) return status;
    }
    return farm_pool_create(threads, &backend->pool, err);
}

// The node's copy of the parameters; makes it for the node's first shard.
static enum farm_status find_published(struct farm_backend *backend, int node, struct published **out,
                                       struct farm_error *err) {
    for (uint32_t k = 0; k < backend->published_count; k++)
        if (backend->published[k].node == node) {
            *out = &backend->published[k];
            return FARM_OK;
        }
    struct published *copy = *out = &backend->published[backend->published_count];
    *copy = (struct published){.node = node};
    enum farm_status status = FARM_OK;
    if (node != backend->learner->memory_node) status = farm_heap_open(node, &copy->heap, err);
    if (status) return status;
    pthread_rwlock_init(&copy->lock, NULL);
    copy->params = own_zeros(backend, copy->heap ? copy->heap : backend->heap, vector_bytes(backend));
    backend->published_count++;
    if (!copy->params)
        return farm_fail(err, FARM_E_LIMIT, "no memory for %zu parameters", backend->net->parameter_count);
    publish_to(backend, copy);
    return FARM_OK;
}

// An executor's memory lies on the node of the thread that makes it, so this thread moves to the shard's CPUs
// meanwhile.
static enum farm_status make_executor(struct farm_backend *backend, struct shard *shard, const struct farm_bitmap *cpus,
                                      struct farm_error *err) {
    const struct farm_executor_config config = {
        .net = backend->net, .batch_max = (int)backend->learner->infer_batch_max, .arithmetic = &backend->arithmetic};
    struct farm_bitmap before;
    struct farm_error ignored;
    const bool moved =
        cpus && backend->shard_count > 1 && !farm_bitmap_pinned(&before, &ignored) && !farm_bitmap_pin(cpus, &ignored);
    const enum farm_status status = farm_executor_create(&config, &shard->executor, err);
    if (moved) (void)farm_bitmap_pin(&before, &ignored);
    return status;
}

static enum farm_status make_shard(struct farm_backend *backend, uint32_t k, struct farm_error *err) {
    const struct farm_learner_config *learner = backend->learner;
    const size_t rows = learner->infer_batch_max;
    struct shard *shard = &backend->shards[k];
    shard->rows = zeroed(backend, rows * learner->algo.stack, sizeof(void *));
    shard->policy = zeroed(backend, rows * (size_t)backend->head.outputs, sizeof(float));
    shard->value = zeroed(backend, rows, sizeof(float));
    shard->version = UINT64_MAX; // nothing loaded yet
    if (backend->out_of_memory) return farm_fail(err, FARM_E_LIMIT, "no memory for batches of %zu observations", rows);
    const int node = backend->shard_count > 1 ? learner->shards[k].node : learner->memory_node;
    enum farm_status status = find_published(backend, node, &shard->published, err);
    return status ? status : make_executor(backend, shard, learner->shards[k].cpus, err);
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
        farm_net_init(config->net, learner->seed, backend->params);
        status = choose_arithmetic(backend, err);
    }
    if (!status) backend->shard_count = config->shards;
    for (uint32_t k = 0; k < backend->shard_count && !status; k++) status = make_shard(backend, k, err);
    if (!status && !learner->evaluate) status = make_training(backend, err);
    if (status) {
        destroy(backend);
        return status;
    }
    *out = backend;
    return FARM_OK;
}

// The pointers of one observation: `stack` frames in the ring, or one flat row.
static void list_observation(const struct farm_backend *backend, const struct farm_lane *lane, uint64_t n, uint32_t env,
                             const void **rows) {
    if (backend->net->io.flat)
        rows[0] = farm_lane_obs(lane, 0, n, env);
    else
        farm_lane_stack(lane, 0, n, env, (unsigned)backend->net->io.stack, rows);
}

// ---- inference ----

static void load_newest_parameters(struct shard *shard) {
    struct published *newest = shard->published;
    if (farm_load_acquire(&newest->version) == shard->version) return;
    pthread_rwlock_rdlock(&newest->lock);
    shard->version = farm_load_relaxed(&newest->version);
    farm_executor_load(shard->executor, newest->params);
    pthread_rwlock_unlock(&newest->lock);
}

static void write_answers(const struct farm_backend *backend, const struct shard *shard,
                          const struct farm_infer_rows *item, const float *policy, const float *value) {
    const size_t outputs = (size_t)backend->head.outputs;
    const struct farm_sampler sampler = {.greedy = backend->learner->greedy, .seed = backend->learner->seed};
    for (uint32_t i = 0; i < item->env_count; i++) {
        const uint32_t env = item->env_from + i;
        const float *row = policy + i * outputs;
        farm_head_choose(&backend->head, &sampler, farm_random_stream(item->lane_id, env), item->n, row,
                         farm_lane_action(item->lane, item->n, env));
        memcpy(farm_lane_policy(item->lane, item->n, env), row, outputs * sizeof(float));
        farm_lane_value(item->lane, item->n)[env] = value[i];
    }
    *farm_lane_version(item->lane, item->n) = shard->version;
}

static enum farm_status infer(struct farm_backend *backend, uint32_t k, const struct farm_infer_rows *items,
                              uint32_t count, struct farm_error *err) {
    struct shard *shard = &backend->shards[k];
    load_newest_parameters(shard);
    const size_t stack = (size_t)backend->net->io.stack, outputs = (size_t)backend->head.outputs;
    size_t rows = 0;
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t e = 0; e < items[i].env_count; e++, rows++)
            list_observation(backend, items[i].lane, items[i].n, items[i].env_from + e, shard->rows + rows * stack);
    assert(rows <= backend->learner->infer_batch_max);
    farm_executor_forward(shard->executor, shard->rows, farm_sequence_rows((int)rows), shard->policy, shard->value);
    size_t row = 0;
    for (uint32_t i = 0; i < count; i++) {
        write_answers(backend, shard, &items[i], shard->policy + row * outputs, shard->value + row);
        row += items[i].env_count;
    }
    return FARM_OK;
}

// ---- gradients ----

// Loads the parameters; sets gradient and terms to zero.
static void prepare_thread(void *context, uint32_t piece, uint32_t thread) {
    struct farm_backend *backend = context;
    struct worker *w = &backend->workers[piece];
    farm_executor_load(w->executor, backend->params);
    memset(w->grads, 0, vector_bytes(backend));
    memset(w->terms, 0, sizeof w->terms);
}

static struct farm_algo_rows rows_of(const struct farm_backend *backend, const struct farm_gathered *gathered,
                                     uint32_t steps, uint32_t columns) {
    struct farm_algo_rows rows = {
        .head = backend->head,
        .steps = (int)steps,
        .columns = (int)columns,
        .behaviour = gathered->behaviour,
        .behaviour_value = gathered->behaviour_value,
        .action = gathered->action,
        .reward = gathered->reward,
        .flags = gathered->flags,
    };
    memcpy(rows.option, backend->learner->algo.option, sizeof rows.option);
    return rows;
}

// Columns [first, first + columns): their observations (NULL: not), and everything else of their steps.
static void gather_columns(const struct farm_backend *backend, uint32_t first, uint32_t columns, const void **to,
                           const struct farm_gathered *gathered) {
    const uint32_t steps = backend->plan->shape.length, *indices = backend->pass->indices;
    for (uint32_t step = 0; step < steps; step++)
        for (uint32_t c = 0; c < columns; c++) {
            const struct farm_column *column = &backend->slot->columns[indices ? indices[first + c] : first + c];
            const size_t row = (size_t)step * columns + c;
            list_observation(backend, column->lane, column->start + step, column->env,
                             to + row * backend->learner->algo.stack);
            farm_gather_step(&backend->learner->algo, column, step, gathered, row);
        }
}

// Gradient of columns [first, first + columns) of the pass.
static void differentiate_columns(struct farm_backend *backend, struct worker *w, uint32_t first, uint32_t columns) {
    const uint32_t steps = backend->plan->shape.length;
    gather_columns(backend, first, columns, w->rows, &w->gathered);
    const struct farm_sequence sequence = {.steps = (int)steps, .columns = (int)columns, .flags = w->gathered.flags};
    farm_executor_forward(w->executor, w->rows, sequence, w->policy, w->value);
    struct farm_algo_rows rows = rows_of(backend, &w->gathered, steps - 1, columns);
    rows.policy = w->policy, rows.value = w->value, rows.scratch = w->scratch;
    rows.dpolicy = w->dpolicy, rows.dvalue = w->dvalue;
    farm_algo_differentiate(backend->learner->algo.algo, &rows, w->terms);
    farm_executor_backward(w->executor, w->rows, sequence, w->dpolicy, w->dvalue, w->grads);
}

// ---- targets once an iteration ----

// One column's stored steps, and the present value of its bootstrap observation.
static void gather_piece(void *context, uint32_t piece, uint32_t thread) {
    struct farm_backend *backend = context;
    struct worker *w = &backend->workers[thread];
    struct slot *slot = backend->slot;
    const uint32_t steps = backend->plan->shape.length - 1, first = piece * backend->piece_units;
    const uint32_t left = slot->count - first, columns = left < backend->piece_units ? left : backend->piece_units;
    for (uint32_t c = 0; c < columns; c++) {
        const struct farm_column *column = &slot->columns[first + c];
        for (uint32_t step = 0; step <= steps; step++) {
            const size_t row = (size_t)step * slot->count + first + c;
            farm_gather_step(&backend->learner->algo, column, step, &slot->gathered, row);
            slot->value[row] = slot->gathered.behaviour_value[row];
        }
        list_observation(backend, column->lane, column->start + steps, column->env,
                         w->rows + c * backend->learner->algo.stack);
    }
    farm_executor_forward(w->executor, w->rows, farm_sequence_rows((int)columns), w->policy, w->value);
    memcpy(slot->value + (size_t)steps * slot->count + first, w->value, columns * sizeof *w->value);
}

static struct farm_algo_rows slot_rows(const struct farm_backend *backend) {
    struct farm_algo_rows rows =
        rows_of(backend, &backend->slot->gathered, backend->plan->shape.length - 1, backend->slot->count);
    rows.value = backend->slot->value, rows.scratch = backend->slot->scratch;
    return rows;
}

static void compute_targets(struct farm_backend *backend) {
    const struct farm_algo *algo = backend->learner->algo.algo;
    struct slot *slot = backend->slot;
    const uint32_t each = (slot->count + backend->worker_count - 1) / backend->worker_count;
    backend->piece_units = backend->micro_batch < each ? backend->micro_batch : each;
    farm_pool_run(backend->pool, backend->worker_count, prepare_thread, backend);
    farm_pool_run(backend->pool, (slot->count + backend->piece_units - 1) / backend->piece_units, gather_piece,
                  backend);
    const struct farm_algo_rows rows = slot_rows(backend);
    farm_algo_targets(algo, &rows);
    memset(slot->sums, 0, sizeof slot->sums);
    for (int row = 0; row < farm_algo_row_count(&rows) && algo->reduce; row++) algo->reduce(&rows, row, slot->sums);
}

// Sums over the rows of the pass, in their order.
static void reduce_pass(struct farm_backend *backend) {
    const struct farm_algo *algo = backend->learner->algo.algo;
    const struct farm_algo_rows rows = slot_rows(backend);
    const uint32_t *indices = backend->pass->indices;
    memset(backend->pass_sums, 0, sizeof backend->pass_sums);
    for (uint32_t i = 0; i < backend->pass_units && algo->reduce; i++)
        algo->reduce(&rows, (int)(indices ? indices[i] : i), backend->pass_sums);
}

// Gradient of rows [first, first + count) of the pass.
static void differentiate_rows(struct farm_backend *backend, struct worker *w, uint32_t first, uint32_t count) {
    const struct farm_algo_config *algo = &backend->learner->algo;
    const struct slot *slot = backend->slot;
    const struct farm_gathered *from = &slot->gathered, *to = &w->gathered;
    const uint32_t *indices = backend->pass->indices, columns = slot->count;
    const size_t outputs = (size_t)backend->head.outputs, action_bytes = (size_t)backend->head.action_bytes;
    const size_t all = (size_t)columns * (backend->plan->shape.length - 1);
    for (uint32_t i = 0; i < count; i++) {
        const size_t row = indices ? indices[first + i] : first + i;
        const struct farm_column *column = &slot->columns[row % columns];
        list_observation(backend, column->lane, column->start + row / columns, column->env, w->rows + i * algo->stack);
        memcpy(to->behaviour + i * outputs, from->behaviour + row * outputs, outputs * sizeof(float));
        memcpy(to->action + i * action_bytes, from->action + row * action_bytes, action_bytes);
        to->behaviour_value[i] = from->behaviour_value[row];
        to->reward[i] = from->reward[row];
        to->flags[i] = from->flags[row];
        for (size_t s = 0; s < (size_t)algo->algo->scratch; s++)
            w->scratch[s * count + i] = slot->scratch[s * all + row];
    }
    const struct farm_sequence sequence = farm_sequence_rows((int)count);
    farm_executor_forward(w->executor, w->rows, sequence, w->policy, w->value);
    struct farm_algo_rows rows = rows_of(backend, to, 1, count);
    rows.policy = w->policy, rows.value = w->value, rows.scratch = w->scratch;
    rows.dpolicy = w->dpolicy, rows.dvalue = w->dvalue;
    rows.pass_sums = backend->pass_sums, rows.iteration_sums = slot->sums;
    farm_algo_gradients(algo->algo, &rows, w->terms);
    farm_executor_backward(w->executor, w->rows, sequence, w->dpolicy, w->dvalue, w->grads);
}

// ---- training thread ----

static enum farm_status begin(struct farm_backend *backend, uint32_t slot, const struct farm_window *windows,
                              uint32_t count, struct farm_error *err) {
    backend->slot = &backend->slots[slot];
    backend->slot->count = farm_columns_list(windows, count, backend->slot->columns, backend->columns_max);
    if (backend->plan->targets_once) compute_targets(backend);
    return FARM_OK;
}

static void differentiate_piece(void *context, uint32_t piece, uint32_t thread) {
    struct farm_backend *backend = context;
    const uint32_t first = piece * backend->piece_units, left = backend->pass_units - first;
    const uint32_t count = left < backend->piece_units ? left : backend->piece_units;
    if (backend->plan->targets_once)
        differentiate_rows(backend, &backend->workers[thread], first, count);
    else
        differentiate_columns(backend, &backend->workers[thread], first, count);
}

// One part of the vector: the sum of all threads' gradients as a tree, neighbours first, into the first one's; scaled.
static void add_gradients(void *context, uint32_t piece, uint32_t thread) {
    struct farm_backend *backend = context;
    const size_t count = backend->net->parameter_count, workers = backend->worker_count;
    const size_t from = count * piece / workers, to = count * (piece + 1) / workers;
    for (size_t step = 1; step < workers; step *= 2)
        for (size_t k = 0; k + step < workers; k += 2 * step) {
            float *sum = backend->workers[k].grads;
            const float *more = backend->workers[k + step].grads;
            for (size_t i = from; i < to; i++) sum[i] += more[i];
        }
    float *sum = backend->workers[0].grads;
    if (backend->scale != 1.0f)
        for (size_t i = from; i < to; i++) sum[i] *= backend->scale;
}

static enum farm_status pass(struct farm_backend *backend, uint32_t slot, const struct farm_pass *pass,
                             struct farm_error *err) {
    const struct farm_algo_plan *plan = backend->plan;
    const uint32_t transitions = plan->targets_once ? 1 : plan->shape.length - 1; // of a unit
    backend->slot = &backend->slots[slot];
    backend->pass = pass;
    backend->pass_units = pass->count ? pass->count : farm_algo_units(plan, backend->slot->count);
    const uint32_t each = (backend->pass_units + backend->worker_count - 1) / backend->worker_count;
    backend->piece_units = backend->micro_batch < each ? backend->micro_batch : each;
    backend->scale = backend->learner->algo.loss_sum ? 1.0f : 1.0f / (float)(backend->pass_units * transitions);
    if (plan->targets_once) reduce_pass(backend);
    farm_pool_run(backend->pool, backend->worker_count, prepare_thread, backend);
    farm_pool_run(backend->pool, (backend->pass_units + backend->piece_units - 1) / backend->piece_units,
                  differentiate_piece, backend);
    farm_pool_run(backend->pool, backend->worker_count, add_gradients, backend);
    for (uint32_t k = 0; k < backend->worker_count; k++)
        for (int t = 0; t < FARM_ALGO_TERMS_MAX; t++) backend->stats.terms[t] += backend->workers[k].terms[t];
    backend->stats.grad_norm =
        (double)farm_optimiser_step(&backend->optimiser_config, &backend->optimiser, (float)pass->learning_rate,
                                    backend->params, backend->workers[0].grads);
    return FARM_OK;
}

static enum farm_status publish(struct farm_backend *backend, uint64_t version, struct farm_error *err) {
    backend->version = version;
    for (uint32_t k = 0; k < backend->published_count; k++) publish_to(backend, &backend->published[k]);
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
