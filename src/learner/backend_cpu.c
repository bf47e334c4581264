// The CPU backend: executors of src/nn and the kernels of src/kernels over the lanes' own memory (the mirror of DESIGN
// is the ring itself here). Inference has an executor of its own, every training thread too; parameters go from
// training to inference through one published copy, so inference waits for a memcpy at most. See backend.h.
#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "learner/algo.h"
#include "learner/backend.h"
#include "learner/pool.h"
#include "shm/heap.h"

enum { FRAME_ROWS = 96, FLAT_ROWS = 1024 }; // rows of a micro-batch that keep a core busy without holding inference up

// One unroll of one environment.
struct column {
    const struct farm_lane *lane;
    uint64_t start;
    uint32_t env;
};

// What one training thread works with. Rows are time-major: row (t, c) = t * columns + c, t in [0, T].
struct trainer {
    struct farm_executor *executor;
    float *grads; // [parameter_count], this thread's part of the sum
    const void **rows;
    float *logits, *dlogits, *behaviour; // [rows][actions]
    float *value, *dvalue, *reward;      // [rows]
    float *target_log_prob, *behaviour_log_prob, *vs, *advantage, *weight;
    int32_t *action;
    uint8_t *flags;
    struct farm_train_stats stats;
};

struct farm_backend {
    const struct farm_learner_config *learner;
    const struct farm_net *net;
    struct farm_arithmetic arithmetic; // of all executors
    struct farm_heap *heap;            // on the learner's node: the vectors as long as the network has parameters

    // inference thread
    struct farm_executor *infer;
    uint64_t infer_version;
    const void **infer_rows;
    float *infer_logits, *infer_value;

    // from training to inference
    pthread_mutex_t publish_lock;
    float *published;
    uint64_t published_version; // atomic; written under the lock

    // training thread
    struct farm_optimiser_config optimiser_config;
    struct farm_optimiser_state optimiser;
    float *params;
    uint64_t version;
    uint32_t micro_batch;
    struct column *columns; // [algo.batch]
    uint32_t column_count;
    struct farm_pool *pool;
    uint32_t trainer_count;
    struct trainer *trainers;
};

static void *zeroed(size_t count, size_t bytes, bool *ok) {
    void *memory = calloc(count ? count : 1, bytes);
    if (!memory) *ok = false;
    return memory;
}

static size_t vector_bytes(const struct farm_backend *backend) {
    return backend->net->parameter_count * sizeof(float);
}

// A vector of zeros, one f32 a parameter.
static float *new_vector(struct farm_backend *backend, bool *ok) {
    float *vector = farm_heap_alloc(backend->heap, vector_bytes(backend), FARM_CACHE_LINE);
    if (vector)
        memset(vector, 0, vector_bytes(backend));
    else
        *ok = false;
    return vector;
}

static void free_vector(struct farm_backend *backend, float *vector) {
    farm_heap_free(backend->heap, vector, vector_bytes(backend), FARM_CACHE_LINE);
}

static void publish(struct farm_backend *backend) {
    pthread_mutex_lock(&backend->publish_lock);
    memcpy(backend->published, backend->params, vector_bytes(backend));
    farm_store_release(&backend->published_version, backend->version);
    pthread_mutex_unlock(&backend->publish_lock);
}

static void destroy(struct farm_backend *backend) {
    if (!backend) return;
    farm_pool_destroy(backend->pool);
    for (uint32_t i = 0; i < backend->trainer_count; i++) {
        struct trainer *t = &backend->trainers[i];
        farm_executor_destroy(t->executor);
        free_vector(backend, t->grads);
        void *const owned[] = {t->rows,   t->logits, t->dlogits, t->behaviour,         t->value,
                               t->dvalue, t->reward, t->vs,      t->target_log_prob,   t->advantage,
                               t->weight, t->action, t->flags,   t->behaviour_log_prob};
        for (size_t k = 0; k < sizeof owned / sizeof *owned; k++) free(owned[k]);
    }
    farm_executor_destroy(backend->infer);
    float *const vectors[] = {backend->published, backend->params, backend->optimiser.first, backend->optimiser.second};
    for (size_t k = 0; k < sizeof vectors / sizeof *vectors; k++) free_vector(backend, vectors[k]);
    void *const owned[] = {backend->trainers, backend->infer_rows, backend->infer_logits, backend->infer_value,
                           backend->columns};
    for (size_t k = 0; k < sizeof owned / sizeof *owned; k++) free(owned[k]);
    farm_heap_close(backend->heap);
    pthread_mutex_destroy(&backend->publish_lock);
    free(backend);
}

static enum farm_status make_trainer(struct farm_backend *backend, struct trainer *t, struct farm_error *err) {
    const struct farm_algo_config *algo = &backend->learner->algo;
    size_t rows = (size_t)backend->micro_batch * (algo->unroll + 1), actions = (size_t)backend->net->io.actions;
    bool ok = true;
    t->grads = new_vector(backend, &ok);
    t->rows = zeroed(rows * algo->stack, sizeof(void *), &ok);
    t->logits = zeroed(rows * actions, sizeof(float), &ok);
    t->dlogits = zeroed(rows * actions, sizeof(float), &ok);
    t->behaviour = zeroed(rows * actions, sizeof(float), &ok);
    t->value = zeroed(rows, sizeof(float), &ok);
    t->dvalue = zeroed(rows, sizeof(float), &ok);
    t->reward = zeroed(rows, sizeof(float), &ok);
    t->target_log_prob = zeroed(rows, sizeof(float), &ok);
    t->behaviour_log_prob = zeroed(rows, sizeof(float), &ok);
    t->vs = zeroed(rows, sizeof(float), &ok);
    t->advantage = zeroed(rows, sizeof(float), &ok);
    t->weight = zeroed(rows, sizeof(float), &ok);
    t->action = zeroed(rows, sizeof(int32_t), &ok);
    t->flags = zeroed(rows, 1, &ok);
    if (!ok)
        return farm_fail(err, FARM_E_LIMIT,
                         "no memory for a training thread (fewer train_threads, a smaller micro_batch)");
    const struct farm_executor_config config = {
        .net = backend->net, .batch_max = (int)rows, .training = true, .arithmetic = &backend->arithmetic};
    return farm_executor_create(&config, &t->executor, err);
}

static uint32_t training_threads(const struct farm_learner_config *learner) {
    return learner->train_threads ? learner->train_threads : 1;
}

// Unrolls that a training thread takes at once.
static uint32_t micro_batch(const struct farm_backend *backend) {
    const struct farm_learner_config *learner = backend->learner;
    const uint32_t threads = training_threads(learner), share = (learner->algo.batch + threads - 1) / threads;
    const uint32_t rows = backend->net->io.flat ? FLAT_ROWS : FRAME_ROWS;
    const uint32_t wanted = learner->micro_batch ? learner->micro_batch : rows / (learner->algo.unroll + 1);
    return wanted > share ? share : wanted < 1 ? 1 : wanted;
}

// How all executors compute: the same for inference and training, so that what acted is what is trained.
static enum farm_status choose_arithmetic(struct farm_backend *backend, struct farm_error *err) {
    const struct farm_learner_config *learner = backend->learner;
    const struct farm_arithmetic_request request = {
        .net = backend->net,
        .precision = learner->precision,
        .train_rows = learner->evaluate ? 0 : (int)(backend->micro_batch * (learner->algo.unroll + 1)),
        .infer_rows = (int)learner->infer_batch_max,
        .version_rows = (int)(learner->algo.batch * (learner->algo.unroll + 1)),
        .cpu_name = learner->cpu_name,
        .run_file = learner->arithmetic_run_file,
        .user_file = learner->arithmetic_user_file,
    };
    char told[FARM_ARITHMETIC_TEXT];
    const enum farm_status status = farm_arithmetic_choose(&request, &backend->arithmetic, told, err);
    if (status == FARM_OK) farm_log_info("arithmetic: %s", told);
    return status;
}

static enum farm_status make_training(struct farm_backend *backend, struct farm_error *err) {
    const struct farm_learner_config *learner = backend->learner;
    const uint32_t threads = training_threads(learner);

    bool ok = true;
    backend->columns = zeroed(learner->algo.batch, sizeof *backend->columns, &ok);
    backend->trainers = zeroed(threads, sizeof *backend->trainers, &ok);
    if (!ok) return farm_fail(err, FARM_E_LIMIT, "no memory for %u training threads", threads);
    for (uint32_t i = 0; i < threads; i++) {
        backend->trainer_count = i + 1;
        enum farm_status status = make_trainer(backend, &backend->trainers[i], err);
        if (status) return status;
    }
    return farm_pool_create(threads, &backend->pool, err);
}

static enum farm_status create(const struct farm_backend_config *config, struct farm_backend **out,
                               struct farm_error *err) {
    const struct farm_learner_config *learner = config->learner;
    size_t parameters = config->net->parameter_count, infer_max = learner->infer_batch_max;
    struct farm_backend *backend = calloc(1, sizeof *backend);
    if (!backend) return farm_fail(err, FARM_E_LIMIT, "no memory for the CPU backend");
    backend->learner = learner;
    backend->net = config->net;
    pthread_mutex_init(&backend->publish_lock, NULL);
    enum farm_status status = farm_heap_open(learner->memory_node, &backend->heap, err);
    if (status) {
        pthread_mutex_destroy(&backend->publish_lock);
        free(backend);
        return status;
    }
    backend->micro_batch = micro_batch(backend);
    bool ok = true;
    backend->infer_rows = zeroed(infer_max * learner->algo.stack, sizeof(void *), &ok);
    backend->infer_logits = zeroed(infer_max * (size_t)config->net->io.actions, sizeof(float), &ok);
    backend->infer_value = zeroed(infer_max, sizeof(float), &ok);
    backend->published = new_vector(backend, &ok);
    backend->params = new_vector(backend, &ok);
    float *second = new_vector(backend, &ok), *first = NULL;
    if (learner->algo.optimiser == FARM_OPTIMISER_ADAM) first = new_vector(backend, &ok);
    backend->optimiser.first = first;
    backend->optimiser.second = second;
    if (!ok) status = farm_fail(err, FARM_E_LIMIT, "no memory for %zu parameters", parameters);
    if (!status) {
        backend->optimiser_config = farm_algo_optimiser(&learner->algo);
        farm_optimiser_init(&backend->optimiser_config, parameters, first, second, &backend->optimiser);
        farm_net_init(config->net, learner->seed, backend->params);
        status = choose_arithmetic(backend, err);
    }
    if (!status) {
        const struct farm_executor_config executor = {
            .net = config->net, .batch_max = (int)infer_max, .arithmetic = &backend->arithmetic};
        status = farm_executor_create(&executor, &backend->infer, err);
    }
    if (!status && !learner->evaluate) status = make_training(backend, err);
    if (status) {
        destroy(backend);
        return status;
    }
    backend->infer_version = UINT64_MAX; // nothing loaded yet
    publish(backend);
    *out = backend;
    return FARM_OK;
}

// The pointers of one observation: `stack` frames in the ring, or one flat row.
static void observe(const struct farm_backend *backend, const struct farm_lane *lane, uint64_t n, uint32_t env,
                    const void **rows) {
    if (backend->net->io.flat)
        rows[0] = farm_lane_obs(lane, 0, n, env);
    else
        farm_lane_stack(lane, 0, n, env, (unsigned)backend->net->io.stack, rows);
}

// ---- inference thread ----

static void load_newest(struct farm_backend *backend) {
    if (farm_load_acquire(&backend->published_version) == backend->infer_version) return;
    pthread_mutex_lock(&backend->publish_lock);
    backend->infer_version = farm_load_relaxed(&backend->published_version);
    farm_executor_load(backend->infer, backend->published);
    pthread_mutex_unlock(&backend->publish_lock);
}

static void answer(struct farm_backend *backend, const struct farm_infer_rows *item, const float *logits,
                   const float *value) {
    int actions = backend->net->io.actions;
    struct farm_sampler sampler = {.mode = backend->learner->greedy ? FARM_SAMPLE_GREEDY : FARM_SAMPLE_CATEGORICAL,
                                   .seed = backend->learner->seed};
    for (uint32_t i = 0; i < item->env_count; i++) {
        uint32_t env = item->env_from + i;
        const float *row = logits + (size_t)i * (size_t)actions;
        int32_t *action = farm_lane_action(item->lane, item->n, env);
        *action = farm_sample_action(&sampler, farm_random_stream(item->lane_id, env), item->n, row, actions);
        memcpy(farm_lane_policy(item->lane, item->n, env), row, (size_t)actions * sizeof(float));
        farm_lane_value(item->lane, item->n)[env] = value[i];
    }
    *farm_lane_version(item->lane, item->n) = backend->infer_version;
}

static enum farm_status infer(struct farm_backend *backend, uint32_t shard, const struct farm_infer_rows *items,
                              uint32_t count, struct farm_error *err) {
    load_newest(backend);
    size_t stack = (size_t)backend->net->io.stack, rows = 0;
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t e = 0; e < items[i].env_count; e++, rows++)
            observe(backend, items[i].lane, items[i].n, items[i].env_from + e, backend->infer_rows + rows * stack);
    assert(rows <= backend->learner->infer_batch_max);
    farm_executor_forward(backend->infer, backend->infer_rows, (int)rows, backend->infer_logits, backend->infer_value);
    size_t row = 0;
    for (uint32_t i = 0; i < count; i++) {
        answer(backend, &items[i], backend->infer_logits + row * (size_t)backend->net->io.actions,
               backend->infer_value + row);
        row += items[i].env_count;
    }
    (void)err;
    return FARM_OK;
}

// ---- training thread ----

// Gathers what belongs to one step into row `row`.
static void read_step(const struct farm_backend *backend, struct trainer *t, const struct column *column, uint32_t step,
                      size_t row) {
    const struct farm_lane *lane = column->lane;
    uint64_t n = column->start + step;
    size_t actions = (size_t)backend->net->io.actions;
    observe(backend, lane, n, column->env, t->rows + row * backend->learner->algo.stack);
    t->flags[row] = farm_lane_flags(lane, n)[column->env];
    t->reward[row] = farm_lane_reward(lane, n)[column->env];
    memcpy(&t->action[row], farm_lane_action(lane, n, column->env), sizeof(int32_t));
    memcpy(t->behaviour + row * actions, farm_lane_policy(lane, n, column->env), actions * sizeof(float));
}

// The recurrence and the loss over rows whose logits and values are there.
static void differentiate(const struct farm_backend *backend, struct trainer *t, uint32_t columns) {
    const struct farm_algo_config *algo = &backend->learner->algo;
    int actions = backend->net->io.actions, steps = (int)algo->unroll, rows = steps * (int)columns;
    for (int i = 0; i < rows + (int)columns; i++) t->reward[i] = farm_algo_reward(algo, t->reward[i]);
    farm_log_prob_rows(t->logits, t->action, rows, actions, t->target_log_prob);
    farm_log_prob_rows(t->behaviour, t->action, rows, actions, t->behaviour_log_prob);
    const struct farm_vtrace_config vtrace = farm_algo_vtrace(algo); // rewards are clipped and scaled above
    farm_vtrace(&vtrace, &(struct farm_vtrace_batch){.steps = steps,
                                                     .columns = (int)columns,
                                                     .target_log_prob = t->target_log_prob,
                                                     .behaviour_log_prob = t->behaviour_log_prob,
                                                     .reward = t->reward,
                                                     .flags = t->flags,
                                                     .value = t->value,
                                                     .vs = t->vs,
                                                     .advantage = t->advantage,
                                                     .weight = t->weight});
    const struct farm_loss_config loss = farm_algo_loss(algo);
    farm_loss(&loss,
              &(struct farm_loss_batch){.rows = rows,
                                        .actions = actions,
                                        .logits = t->logits,
                                        .behaviour_logits = t->behaviour,
                                        .action = t->action,
                                        .value = t->value,
                                        .vs = t->vs,
                                        .advantage = t->advantage,
                                        .weight = t->weight,
                                        .dlogits = t->dlogits,
                                        .dvalue = t->dvalue},
              &t->stats.loss);
    memset(t->dlogits + (size_t)rows * (size_t)actions, 0,
           (size_t)columns * (size_t)actions * sizeof(float)); // bootstrap rows
    memset(t->dvalue + rows, 0, columns * sizeof(float));
}

static void train_piece(void *context, uint32_t piece, uint32_t thread) {
    struct farm_backend *backend = context;
    struct trainer *t = &backend->trainers[thread];
    uint32_t first = piece * backend->micro_batch, left = backend->column_count - first;
    uint32_t columns = left < backend->micro_batch ? left : backend->micro_batch,
             steps = backend->learner->algo.unroll + 1;
    for (uint32_t step = 0; step < steps; step++)
        for (uint32_t c = 0; c < columns; c++)
            read_step(backend, t, &backend->columns[first + c], step, (size_t)step * columns + c);
    int rows = (int)(steps * columns);
    farm_executor_forward(t->executor, t->rows, rows, t->logits, t->value);
    differentiate(backend, t, columns);
    farm_executor_backward(t->executor, t->rows, rows, t->dlogits, t->dvalue, t->grads);
}

// Prepares every thread for an update: parameters in, gradient and figures at zero.
static void begin_thread(void *context, uint32_t piece, uint32_t thread) {
    struct farm_backend *backend = context;
    struct trainer *t = &backend->trainers[piece];
    farm_executor_load(t->executor, backend->params);
    memset(t->grads, 0, vector_bytes(backend));
    memset(&t->stats, 0, sizeof t->stats);
    (void)thread;
}

// Sum of the threads' gradients, scaled, into the first one's.
static void add_gradients(struct farm_backend *backend, float scale) {
    float *sum = backend->trainers[0].grads;
    size_t count = backend->net->parameter_count;
    for (uint32_t k = 1; k < backend->trainer_count; k++)
        for (size_t i = 0; i < count; i++) sum[i] += backend->trainers[k].grads[i];
    if (scale != 1.0f)
        for (size_t i = 0; i < count; i++) sum[i] *= scale;
}

static enum farm_status train(struct farm_backend *backend, const struct farm_train_update *update,
                              const struct farm_train_update *next, struct farm_train_stats *stats,
                              struct farm_error *err) {
    const struct farm_train_unrolls *unrolls = update->unrolls;
    const struct farm_algo_config *algo = &backend->learner->algo;
    backend->column_count = 0;
    for (uint32_t i = 0; i < update->count; i++)
        for (uint32_t e = 0; e < unrolls[i].env_count; e++) {
            assert(backend->column_count < algo->batch);
            backend->columns[backend->column_count++] =
                (struct column){.lane = unrolls[i].lane, .start = unrolls[i].start, .env = unrolls[i].env_from + e};
        }
    farm_pool_run(backend->pool, backend->trainer_count, begin_thread, backend);
    farm_pool_run(backend->pool, (backend->column_count + backend->micro_batch - 1) / backend->micro_batch, train_piece,
                  backend);
    add_gradients(backend, algo->loss_sum ? 1.0f : 1.0f / (float)(backend->column_count * algo->unroll));
    *stats = (struct farm_train_stats){0};
    for (uint32_t k = 0; k < backend->trainer_count; k++)
        farm_loss_stats_add(&stats->loss, &backend->trainers[k].stats.loss);
    stats->grad_norm =
        (double)farm_optimiser_step(&backend->optimiser_config, &backend->optimiser, (float)update->learning_rate,
                                    backend->params, backend->trainers[0].grads);
    backend->version++;
    publish(backend);
    (void)err;
    return FARM_OK;
}

static uint64_t version(const struct farm_backend *backend) {
    return backend->version;
}

static struct farm_backend_state state(struct farm_backend *backend) {
    return (struct farm_backend_state){.params = backend->params,
                                       .first = backend->optimiser.first,
                                       .second = backend->optimiser.second,
                                       .optimiser_step = backend->optimiser.step,
                                       .version = backend->version};
}

static enum farm_status state_changed(struct farm_backend *backend, uint64_t new_version, uint64_t optimiser_step,
                                      struct farm_error *err) {
    backend->version = new_version;
    backend->optimiser.step = optimiser_step;
    publish(backend);
    (void)err;
    return FARM_OK;
}

const struct farm_backend_ops farm_backend_cpu = {
    .name = "cpu",
    .create = create,
    .destroy = destroy,
    .infer = infer,
    .train = train,
    .version = version,
    .state = state,
    .state_changed = state_changed,
};
