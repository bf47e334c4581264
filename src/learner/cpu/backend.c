// The CPU backend: executors of src/nn and the kernels of src/kernels over the lanes' own memory. Each shard's
// inference thread has a policy and each training thread a gradient (gradient.h). Parameters go from training to the
// policies over one board a NUMA node (board/board.h). Training threads form a group a node: they train on its rings,
// read their own copy of the parameters and add up their gradients before those of other nodes. See backend.h.
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

// Micro-batches that keep a core busy and do not delay inference; fewest columns of a recurrent net's products.
enum { FRAME_ROWS = 96, FLAT_ROWS = 1024, COLUMNS_LEAST = 8 };
// Deterministic: the same sums for any number of training threads, of which at most SUMS are busy.
enum { SUMS = 8, FIXED_FLAT_ROWS = 256 };

// One inference thread. The shards of a node share what the first of them owns.
struct shard {
    int node;
    struct farm_board *board;
    bool owns_board;
    struct farm_policy *policy;
};

// How many training threads compute a pass: the fastest of 1, 2, 4, ... and all. Small passes are faster in few; the
// best number depends on the size, the net and the machine. So some passes are timed in turn with each, from all
// downwards, and again later, because other processes disturb.
enum { CHOICES_MAX = 33 };
struct thread_choice {
    uint32_t threads;               // all of them
    bool fixed;                     // all compute every pass
    uint64_t least_ns[CHOICES_MAX]; // shortest timed pass with 1 << k threads, at the end with all; 0: none yet
    uint32_t last, next, turn;      // last: index of all; next: of the next pass; turn: of the timing
    uint32_t units;                 // in a timed pass
    uint32_t passes;                // since the newest timing
    bool logged;
};

// The training threads of a node, with their memory there.
struct group {
    int node; // -1: any
    struct farm_heap *heap;
    float *vectors; // [vector_count] as the backend's: sums, and a copy of the parameters
    uint32_t vector_count;
    const float *params; // that its threads read
};

// The training threads.
struct threads {
    struct group groups[FARM_POOL_GROUPS_MAX];
    uint32_t group_count, of_group[FARM_POOL_GROUPS_MAX]; // of_group: each one's threads
    struct farm_cpu_gradient_config config;               // their gradients'
    struct farm_cpu_gradient **gradients;                 // [count], group after group
    uint32_t count, used;                                 // used: by the present work
    struct farm_pool *pool;
    bool bound; // the training thread itself, to CPUs
    struct thread_choice choice;
};

// What the training threads do together: a pass, or the targets of an iteration, in chunks of units that a thread
// computes at once.
struct work {
    uint64_t number; // counts them
    struct farm_iteration *iteration;
    const uint32_t *indices; // the pass's; several groups: `order`
    uint32_t *order;         // the units, group after group
    // For each group: its units, the units of a chunk (the last chunk may be smaller), its chunks.
    uint32_t units[FARM_POOL_GROUPS_MAX], chunk_units[FARM_POOL_GROUPS_MAX], chunks[FARM_POOL_GROUPS_MAX];
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
    const struct farm_lanes *lanes; // all places; NULL: their nodes are unknown
    struct shard shards[FARM_LEARNER_SHARDS_MAX];
    uint32_t shard_count;

    // training thread
    float *sets[1 + FARM_ALGO_SETS_MAX]; // parameters: FARM_SET_ONLINE, then the plan's
    uint64_t version, copies;            // copies: states of the plan's first set so far
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
    for (uint32_t g = 0; g < backend->threads.group_count; g++) {
        struct group *group = &backend->threads.groups[g];
        farm_heap_free(group->heap, group->vectors, group->vector_count * vector_bytes(backend), FARM_CACHE_LINE);
        farm_heap_close(group->heap);
    }
    free(backend->threads.gradients);
    free(backend->work.sums);
    free(backend->work.order);
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

// Deterministic: one, because all sums are in one order.
static uint32_t training_groups(const struct farm_learner_config *learner) {
    return learner->training.group_count > 1 && !learner->deterministic.on ? learner->training.group_count : 1;
}

// Units of one forward and backward pass of a training thread. The recipe's micro_batch counts windows.
static uint32_t choose_micro_batch(const struct farm_backend *backend) {
    const struct farm_learner_config *learner = backend->learner;
    const uint32_t threads = learner->deterministic.on ? 1 : training_threads(learner),
                   even = (farm_algo_pass_units(backend->plan, backend->columns_max) + threads - 1) / threads,
                   share = training_groups(learner) > 1 ? even + even / 2 : even; // nodes have unequal numbers
    const uint32_t rows = backend->net->io.frame_channels ? FRAME_ROWS
                          : learner->deterministic.on     ? FIXED_FLAT_ROWS
                                                          : FLAT_ROWS;
    uint32_t wanted = learner->training.micro_batch ? farm_algo_units(backend->plan, learner->training.micro_batch)
                                                    : rows / (uint32_t)farm_cpu_gradient_rows(backend->plan, 1);
    if (backend->plan->recurrent && wanted < COLUMNS_LEAST && !learner->training.micro_batch) wanted = COLUMNS_LEAST;
    return wanted > share ? share : wanted < 1 ? 1 : wanted;
}

// After code other than the optimiser has changed the parameters in training.
static void copy_params(struct farm_backend *backend) {
    for (uint32_t k = 0; k < backend->optimiser.copy_count; k++)
        memcpy(backend->optimiser.copies[k], backend->sets[FARM_SET_ONLINE],
               backend->net->parameter_count * sizeof(float));
}

// ---- the number of threads ----

// If one thread wins over two by less than a third, the next timing comes soon: a scheduler that keeps all threads on
// one CPU makes them a little slower than one.
enum { TIMED_TURNS = 8, PASSES_BETWEEN = 4096, PASSES_IF_CLOSE = 64 };

static void begin_timing(struct thread_choice *choice, uint32_t threads) {
    *choice = (struct thread_choice){.threads = threads, .fixed = choice->fixed, .logged = choice->logged};
    while (1u << choice->last < threads) choice->last++;
    choice->next = choice->last;
}

static uint32_t threads_of(const struct thread_choice *choice, uint32_t k) {
    return k < choice->last ? 1u << k : choice->threads;
}

static uint32_t fastest(const struct thread_choice *choice) {
    uint32_t best = choice->last;
    for (uint32_t k = 0; k < choice->last; k++)
        if (choice->least_ns[k] && choice->least_ns[k] < choice->least_ns[best]) best = k;
    return best;
}

static bool is_close(const struct thread_choice *choice) {
    return fastest(choice) == 0 && 4 * choice->least_ns[0] > 3 * choice->least_ns[1];
}

static void log_choice(struct thread_choice *choice) {
    if (choice->logged || is_close(choice)) return;
    choice->logged = true;
    farm_log_info("training threads: %u of %u are used: a pass takes %.0f us, %.0f us in all",
                  threads_of(choice, choice->next), choice->threads, 1e-3 * (double)choice->least_ns[choice->next],
                  1e-3 * (double)choice->least_ns[choice->last]);
}

// Records the duration of a pass of `units` units. A turn ends early if a number of threads takes twice as long as a
// larger number, because fewer threads take longer still. Logs the first choice.
static void note_pass_time(struct thread_choice *choice, uint32_t units, uint64_t pass_ns) {
    const uint32_t k = choice->next;
    if (choice->fixed || !choice->last) return;
    if (choice->turn == TIMED_TURNS && choice->passes++ < (is_close(choice) ? PASSES_IF_CLOSE : PASSES_BETWEEN) &&
        units / 2 <= choice->units && choice->units / 2 <= units)
        return;
    if (choice->turn == TIMED_TURNS) {
        begin_timing(choice, choice->threads);
        return;
    }
    choice->units = units;
    if (!choice->least_ns[k] || pass_ns < choice->least_ns[k]) choice->least_ns[k] = pass_ns;
    const uint32_t best = fastest(choice);
    choice->next = k - 1;
    if (k && !(k < best && choice->least_ns[k] > 2 * choice->least_ns[best])) return;
    choice->next = ++choice->turn < TIMED_TURNS ? choice->last : best;
    if (choice->turn == TIMED_TURNS) log_choice(choice);
}

// ---- training threads ----

// The sums of a group's threads, and its copy of the parameters if they are on another node.
static enum farm_status make_group(struct farm_backend *backend, const struct farm_pool_group *config, uint32_t sums,
                                   struct farm_error *err) {
    struct threads *threads = &backend->threads;
    struct group *group = &threads->groups[threads->group_count];
    const int home = backend->learner->memory_node, node = training_groups(backend->learner) > 1 ? config->node : home;
    threads->of_group[threads->group_count++] = config->threads;
    group->node = config->node;
    group->vector_count = sums + (node != home);
    group->params = backend->sets[FARM_SET_ONLINE];
    const enum farm_status status = farm_heap_open(node, &group->heap, err);
    if (status) return status;
    group->vectors = farm_heap_alloc(group->heap, group->vector_count * vector_bytes(backend), FARM_CACHE_LINE);
    if (!group->vectors)
        return farm_fail(err, FARM_E_LIMIT, "no memory for %u times %zu parameters", group->vector_count,
                         backend->net->parameter_count);
    const size_t each = vector_bytes(backend) / sizeof(float);
    for (uint32_t k = 0; k < sums; k++)
        backend->work.sums[backend->work.sums_most++].gradient = group->vectors + k * each;
    if (node == home) return FARM_OK;
    group->params = group->vectors + sums * each;
    backend->optimiser.copies[backend->optimiser.copy_count++] = group->vectors + sums * each;
    return FARM_OK;
}

// A thread's gradient, by a thread of its group: the memory that it touches first is on their node. The caller tries
// again if it fails.
static void make_gradient(void *context, uint32_t piece, uint32_t thread) {
    struct threads *threads = context;
    (void)farm_cpu_gradient_make(&threads->config, &threads->gradients[piece], NULL);
}

static enum farm_status make_threads(struct farm_backend *backend, const struct farm_pool_group *groups,
                                     struct farm_error *err) {
    const struct farm_learner_config *learner = backend->learner;
    struct threads *threads = &backend->threads;
    struct farm_bitmap before;
    threads->count = training_threads(learner);
    begin_timing(&threads->choice, threads->count);
    threads->choice.fixed = !learner->training.threads_chosen || learner->deterministic.on;
    threads->config = (struct farm_cpu_gradient_config){.net = backend->net,
                                                        .algo = &learner->algo,
                                                        .plan = backend->plan,
                                                        .arithmetic = &backend->arithmetic,
                                                        .head = backend->head,
                                                        .units_max = backend->micro_batch};
    enum farm_status status = farm_pool_create(groups, threads->group_count, &threads->pool, err);
    if (!status && threads->group_count > 1 && !farm_bitmap_pinned(&before, NULL)) {
        farm_pool_bind(threads->pool, 0);
        farm_pool_run(threads->pool, threads->count, NULL, make_gradient, threads);
        farm_bitmap_pin(&before, NULL);
    }
    for (uint32_t i = 0; i < threads->count && !status; i++)
        if (!threads->gradients[i]) status = farm_cpu_gradient_make(&threads->config, &threads->gradients[i], err);
    return status;
}

static enum farm_status make_training(struct farm_backend *backend, const struct farm_backend_config *config,
                                      struct farm_error *err) {
    const struct farm_learner_config *learner = backend->learner;
    const uint32_t threads = training_threads(learner), lanes = config->lanes ? config->lanes->lane_count : 0,
                   sums = learner->deterministic.on ? SUMS : threads, group_count = training_groups(learner);
    const struct farm_pool_group one = {.node =
                                            learner->training.group_count == 1 ? learner->training.groups[0].node : -1,
                                        .threads = threads},
                                 *groups = group_count > 1 ? learner->training.groups : &one;
    enum farm_status made =
        farm_statistics_make(backend->net, &learner->algo, lanes, config->width_max, &backend->statistics, err);
    farm_statistics_load(backend->statistics, backend->sets[FARM_SET_ONLINE]);
    for (int k = 0; k < FARM_BACKEND_SLOTS && !made; k++) {
        made = farm_iteration_make(&learner->algo, backend->plan, backend->head, backend->columns_max,
                                   &backend->iterations[k], err);
    }
    if (made) return made;
    made = farm_cpu_optimiser_make(&backend->optimiser, sums, take_vector(backend), err);
    if (made) return made;
    backend->threads.gradients = calloc(threads, sizeof(struct farm_cpu_gradient *));
    backend->work.sums = calloc(sums, sizeof *backend->work.sums);
    backend->work.order = calloc(farm_algo_units(backend->plan, backend->columns_max) + backend->columns_max,
                                 sizeof *backend->work.order);
    if (!backend->threads.gradients || !backend->work.sums || !backend->work.order)
        return farm_fail(err, FARM_E_LIMIT, "no memory for %u training threads", threads);
    for (uint32_t g = 0; g < group_count && !made; g++)
        made = make_group(backend, &groups[g], group_count > 1 ? groups[g].threads : sums, err);
    copy_params(backend);
    return made ? made : make_threads(backend, groups, err);
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
    const struct farm_board_request request = {
        .count = backend->net->parameter_count, .buffers = readers + 2, .node = shard->node};
    const enum farm_status status = farm_board_create(&request, &shard->board, err);
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
                                              .sampler = farm_learner_sampler(learner, false),
                                              .cpus = several ? learner->shards[k].cpus : NULL};
    return farm_policy_make(&config, &shard->policy, err);
}

static void copy_set(struct farm_backend *backend, uint32_t set) {
    memcpy(backend->sets[set], backend->sets[FARM_SET_ONLINE], backend->net->parameter_count * sizeof(float));
    backend->copies++;
}

// Parameter sets and the optimiser's moments, and room for the vectors of training.
static enum farm_status make_parameters(struct farm_backend *backend, struct farm_error *err) {
    const struct farm_learner_config *learner = backend->learner;
    const bool adam = learner->algo.optimiser == FARM_OPTIMISER_ADAM;
    const uint32_t sets = farm_algo_sets(backend->plan), count = 3u + sets + adam;
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
    backend->lanes = config->lanes;
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
    if (!status && !learner->boards.count) backend->shard_count = config->shards; // else the actors infer
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

static const struct farm_arithmetic *arithmetic(const struct farm_backend *backend) {
    return &backend->arithmetic;
}

static enum farm_status infer(struct farm_backend *backend, uint32_t shard, const struct farm_policy_rows *rows,
                              uint32_t count, struct farm_error *err) {
    return farm_policy_answer(backend->shards[shard].policy, rows, count, err);
}

// ---- work ----

static const struct group *group_of(const struct threads *threads, uint32_t thread) {
    return &threads->groups[farm_pool_part(threads->pool, threads->of_group, thread).group];
}

// A thread's gradient with the parameters in training.
static struct farm_cpu_gradient *prepared(struct farm_backend *backend, uint32_t thread) {
    struct farm_cpu_gradient *gradient = backend->threads.gradients[thread];
    farm_cpu_gradient_load(gradient, group_of(&backend->threads, thread)->params, backend->work.number,
                           backend->sets[1], backend->copies + 1);
    return gradient;
}

// A chunk's place among the work's units.
struct chunk {
    uint32_t first, count;
};
static struct chunk find_chunk(const struct farm_backend *backend, uint32_t piece) {
    const struct work *work = &backend->work;
    const struct farm_pool_part part = farm_pool_part(backend->threads.pool, work->chunks, piece);
    const uint32_t each = work->chunk_units[part.group], left = work->units[part.group] - part.part * each;
    struct chunk chunk = {part.part * each, left < each ? left : each};
    for (uint32_t g = 0; g < part.group; g++) chunk.first += work->units[g];
    return chunk;
}

static const struct farm_column *column_of(const struct farm_iteration *it, const uint32_t *indices, uint32_t unit) {
    return &it->columns[(indices ? indices[unit] : unit) % it->count];
}

// Counts the chunk's units by whether they are on the node.
static void count_units(const struct work *work, struct chunk chunk, int node, struct farm_cpu_sum *sum) {
    for (uint32_t i = chunk.first; i < chunk.first + chunk.count && node >= 0; i++) {
        const int at = column_of(work->iteration, work->indices, i)->node;
        sum->near += at == node;
        sum->far += at >= 0 && at != node;
    }
}

// Adds a chunk's gradients to the thread's sum. Deterministic: all chunks of a sum to that sum, in any thread.
static void differentiate_piece(void *context, uint32_t piece, uint32_t thread) {
    struct farm_backend *backend = context;
    const struct work *work = &backend->work;
    const bool fixed = backend->learner->deterministic.on;
    struct farm_cpu_sum *sum = &work->sums[fixed ? piece : thread];
    for (uint32_t k = piece; k == piece || (fixed && k < work->chunks[0]); k += SUMS) {
        const struct chunk chunk = find_chunk(backend, k);
        farm_cpu_gradient_add(prepared(backend, thread), work->iteration, work->indices, chunk.first, chunk.count, sum);
        count_units(work, chunk, group_of(&backend->threads, thread)->node, sum);
    }
}

// Targets once: gathers a chunk of columns, with the present values of their last observations.
static void gather_chunk(void *context, uint32_t piece, uint32_t thread) {
    struct farm_backend *backend = context;
    const struct chunk chunk = find_chunk(backend, piece);
    farm_cpu_gradient_values(prepared(backend, thread), backend->work.iteration, backend->work.order + chunk.first,
                             chunk.count);
}

// Orders the units by home; those of a home keep their order.
static void sort_units(struct work *work, const uint32_t *indices, uint32_t units, uint32_t group_count) {
    uint32_t next[FARM_POOL_GROUPS_MAX] = {0};
    memset(work->units, 0, sizeof work->units);
    for (uint32_t i = 0; i < units; i++) work->units[column_of(work->iteration, indices, i)->home]++;
    for (uint32_t g = 1; g < group_count; g++) next[g] = next[g - 1] + work->units[g - 1];
    for (uint32_t i = 0; i < units; i++)
        work->order[next[column_of(work->iteration, indices, i)->home]++] = indices ? indices[i] : i;
    work->indices = work->order;
}

// Begins work on units of an iteration in `threads` threads: divides them into chunks, deterministic: the same for any
// number of threads. Several groups: a group's chunks are about equal, so that idle threads find few to take.
static void begin_work(struct farm_backend *backend, struct farm_iteration *iteration, const uint32_t *indices,
                       uint32_t units, uint32_t threads) {
    struct work *work = &backend->work;
    const uint32_t divisor = backend->learner->deterministic.on ? 1 : threads, even = (units + divisor - 1) / divisor,
                   each = backend->micro_batch < even ? backend->micro_batch : even,
                   group_count = backend->threads.group_count;
    backend->threads.used = threads;
    work->number++;
    work->iteration = iteration;
    work->indices = indices;
    work->units[0] = units;
    if (group_count > 1 || !indices) sort_units(work, indices, units, group_count);
    for (uint32_t g = 0; g < group_count; g++) {
        const uint32_t own = work->units[g], chunks = own > each ? (own + each / 2) / each : 1,
                       fair = group_count > 1 ? (own + chunks - 1) / chunks : each;
        work->chunk_units[g] = fair < backend->micro_batch ? fair : backend->micro_batch;
        work->chunks[g] = own ? (own - 1) / work->chunk_units[g] + 1 : 0;
    }
}

// ---- an iteration ----

// Fills in each column's node and home: the group on its ring's node, or any group if that node has none.
static void find_homes(struct farm_backend *backend, struct farm_iteration *it) {
    const struct threads *threads = &backend->threads;
    for (uint32_t c = 0; c < it->count; c++) {
        struct farm_column *column = &it->columns[c];
        column->node = backend->lanes ? backend->lanes->lanes[column->lane_id].ring->down.header->node : -1;
        column->home = column->lane_id % threads->group_count;
        for (uint32_t g = 0; g < threads->group_count; g++)
            if (column->node >= 0 && column->node == threads->groups[g].node) column->home = g;
    }
}

static enum farm_status begin(struct farm_backend *backend, uint32_t slot, const struct farm_window *windows,
                              uint32_t count, struct farm_error *err) {
    struct farm_iteration *iteration = &backend->iterations[slot];
    if (!backend->threads.bound) farm_pool_bind(backend->threads.pool, 0);
    backend->threads.bound = true;
    farm_iteration_list(iteration, windows, count);
    find_homes(backend, iteration);
    farm_statistics_begin(backend->statistics, iteration);
    if (!backend->plan->targets_once) return FARM_OK;
    begin_work(backend, iteration, NULL, iteration->count, backend->threads.count);
    farm_pool_run(backend->threads.pool, backend->threads.used, backend->work.chunks, gather_chunk, backend);
    farm_iteration_target(iteration);
    return FARM_OK;
}

// Computes the gradients of the work's units into some sums, and adds these up.
static void differentiate(struct farm_backend *backend) {
    const struct work *work = &backend->work;
    const struct threads *threads = &backend->threads;
    struct farm_cpu_optimiser *optimiser = &backend->optimiser;
    struct farm_stats *stats = backend->learner->stats;
    const uint32_t fixed_pieces = work->chunks[0] < SUMS ? work->chunks[0] : SUMS;
    farm_pool_run(threads->pool, threads->used, backend->learner->deterministic.on ? &fixed_pieces : work->chunks,
                  differentiate_piece, backend);
    optimiser->gradient_count = 0;
    memset(optimiser->of_group, 0, sizeof optimiser->of_group);
    for (uint32_t k = 0; k < work->sums_most; k++) {
        const struct farm_cpu_sum *sum = &work->sums[k];
        if (sum->work != work->number) continue;
        optimiser->gradients[optimiser->gradient_count++] = sum->gradient;
        optimiser->of_group[threads->group_count > 1 ? group_of(threads, k) - threads->groups : 0]++;
        farm_stats_add(&stats->trained_near, sum->near);
        farm_stats_add(&stats->trained_far, sum->far);
        for (int t = 0; t < FARM_ALGO_TERMS_MAX; t++) backend->stats.terms[t] += sum->terms[t];
    }
    farm_cpu_optimiser_sum(optimiser, threads->pool, threads->used);
}

static enum farm_status pass(struct farm_backend *backend, uint32_t slot, const struct farm_pass *pass,
                             struct farm_error *err) {
    const struct farm_algo_plan *plan = backend->plan;
    struct farm_iteration *iteration = &backend->iterations[slot];
    struct thread_choice *choice = &backend->threads.choice;
    const uint32_t units = pass->count ? pass->count : farm_algo_units(plan, iteration->count);
    if (plan->targets_once) farm_iteration_reduce(iteration, pass->indices, units, pass->schedule);
    const uint64_t start = farm_now_ns();
    begin_work(backend, iteration, pass->indices, units, threads_of(choice, choice->next));
    differentiate(backend);
    if (isfinite(backend->stats.grad_norm))
        farm_cpu_optimiser_step(
            &backend->optimiser, (float)pass->learning_rate,
            backend->learner->algo.loss_sum ? 1 : 1.0 / (double)(units * farm_algo_unit_transitions(plan)),
            &backend->stats);
    if (plan->replay) backend->stats.priorities = iteration->priority;
    note_pass_time(choice, units, farm_now_ns() - start);
    return FARM_OK;
}

static enum farm_status copy(struct farm_backend *backend, uint32_t set, struct farm_error *err) {
    copy_set(backend, set);
    return FARM_OK;
}

static enum farm_status publish(struct farm_backend *backend, uint32_t set, uint64_t version, struct farm_error *err) {
    backend->version = version;
    farm_statistics_write(backend->statistics, backend->sets[FARM_SET_ONLINE]);
    if (backend->statistics) copy_params(backend);
    for (uint32_t k = 0; k < backend->shard_count; k++)
        if (backend->shards[k].owns_board) farm_board_publish(backend->shards[k].board, backend->sets[set], version);
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
    backend->copies++;
    farm_statistics_load(backend->statistics, backend->sets[FARM_SET_ONLINE]);
    copy_params(backend);
    return publish(backend, FARM_SET_ONLINE, version, err);
}

const struct farm_backend_ops farm_backend_cpu = {
    .name = "cpu",
    .shards = true,
    .create = create,
    .destroy = destroy,
    .arithmetic = arithmetic,
    .infer = infer,
    .begin = begin,
    .pass = pass,
    .copy = copy,
    .publish = publish,
    .finish = finish,
    .state = state,
    .state_changed = state_changed,
};
