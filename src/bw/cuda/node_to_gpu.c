// One NUMA node's memory and one GPU. See node_to_gpu.h.
#include "bw/cuda/node_to_gpu.h"

#include <stdlib.h>
#include <string.h>

#include "base/time.h"
#include "bw/cuda/timer.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/kernels.h"
#include "kernels/random.h"

enum {
    POISON = 0xC3,
    FIGURES = FARM_BW_GPU_MEMORIES * FARM_BW_GPU_DIRECTIONS + FARM_BW_GPU_WAYS * FARM_BW_GPU_BLOCKS +
              FARM_BW_GPU_PIECES * FARM_BW_GPU_GATHERERS + 2,
    FLAG_BYTES = 4096,
    FLAG_VALUE_AT = 128 / sizeof(uint64_t), // another line than the word that the GPU stores
    TRIPS = 100,
    TURNS = 1000 // turns of waiting before a query whether the GPU is still there
};
static const uint64_t SHUFFLE_SEED = 7;

struct path {
    const struct farm_bw_gpu_config *config;
    struct farm_bw_gpu_node *out;
    struct farm_bw_timer timer;
    void *up, *down;         // pinned: a copy of the config's `up`; the target of copies back
    uint8_t *in, *source;    // on the device: what is copied to it; what is copied from it
    void *lists;             // on the device: addresses of pieces
    uint64_t *flag;          // pinned, mapped: [0] the GPU's, [FLAG_VALUE_AT] the host's
    void *held_up;           // registered: by which mapping; NULL: it is not
    bool held_down;          // registered
    const uint8_t *read;     // what kernels and copies of pieces read, as the host sees it
    const uint8_t *read_gpu; // and as the GPU does
};

// ---- memory ----

static enum farm_status allocate_pinned(size_t bytes, void **out, struct farm_error *err) {
    *out = NULL;
    FARM_CUDA_TRY(cudaHostAlloc(out, bytes, cudaHostAllocPortable | cudaHostAllocMapped));
    return FARM_OK;
}

static enum farm_status allocate_device(size_t bytes, void **out, struct farm_error *err) {
    *out = NULL;
    FARM_CUDA_TRY(cudaMalloc(out, bytes));
    return FARM_OK;
}

static size_t count_places(const struct path *c, size_t piece_bytes) {
    return c->config->bytes / piece_bytes;
}

static enum farm_status open_path(struct path *c, struct farm_error *err) {
    const size_t bytes = c->config->bytes, most = count_places(c, farm_bw_gpu_piece_bytes[0]);
    void *memory[4] = {0};
    enum farm_status status = allocate_pinned(bytes, &c->up, err);
    if (!status) status = allocate_pinned(bytes, &c->down, err);
    if (!status) status = allocate_pinned(FLAG_BYTES, &memory[0], err);
    c->flag = memory[0];
    if (!status) status = allocate_device(bytes, &memory[1], err);
    c->in = memory[1];
    if (!status) status = allocate_device(bytes, &memory[2], err);
    c->source = memory[2];
    if (!status) status = allocate_device(2 * most * sizeof(void *), &c->lists, err);
    if (status) return farm_fail_in(err, status, "four pieces of %.1f MB (--size)", (double)bytes / 1e6);
    memset(c->flag, 0, FLAG_BYTES);
    farm_bw_gpu_fill(c->up, bytes, 0);
    FARM_CUDA_TRY(cudaMemcpyAsync(c->source, c->up, bytes, cudaMemcpyHostToDevice, c->timer.stream[0]));
    FARM_CUDA_TRY(cudaStreamSynchronize(c->timer.stream[0]));
    return FARM_OK;
}

static void close_path(struct path *c) {
    farm_bw_timer_close(&c->timer);
    if (c->held_up) (void)cudaHostUnregister(c->held_up);
    if (c->held_down) (void)cudaHostUnregister(c->config->down);
    (void)cudaFree(c->lists);
    (void)cudaFree(c->source);
    (void)cudaFree(c->in);
    (void)cudaFreeHost(c->flag);
    (void)cudaFreeHost(c->down);
    (void)cudaFreeHost(c->up);
    (void)cudaGetLastError();
}

static enum farm_status clear_device(struct path *c, struct farm_error *err) {
    FARM_CUDA_TRY(cudaMemsetAsync(c->in, POISON, c->config->bytes, c->timer.stream[0]));
    FARM_CUDA_TRY(cudaStreamSynchronize(c->timer.stream[0]));
    return FARM_OK;
}

// The device's first bytes, by way of pinned memory.
static enum farm_status fetch_bytes(struct path *c, size_t bytes, struct farm_error *err) {
    memset(c->down, POISON, bytes);
    FARM_CUDA_TRY(cudaMemcpyAsync(c->down, c->in, bytes, cudaMemcpyDeviceToHost, c->timer.stream[0]));
    FARM_CUDA_TRY(cudaStreamSynchronize(c->timer.stream[0]));
    return FARM_OK;
}

// ---- registration ----

static void note_refusal(struct path *c, const char *which, cudaError_t code) {
    (void)cudaGetLastError();
    farm_bw_conditions_note(&c->out->conditions,
                            "CUDA refuses to register %s (%s: %s; perhaps ulimit -l): no figures of registered memory, "
                            "kernels and pieces read pinned memory.",
                            which, cudaGetErrorName(code), cudaGetErrorString(code));
}

// As rings are registered (learner/cuda/registered.h): if the device pins nothing that is mapped read-only, by the
// writable mapping. The last registration that is timed stays.
static enum farm_status register_both(struct path *c, struct farm_error *err) {
    const unsigned flags = cudaHostRegisterPortable | cudaHostRegisterMapped;
    unsigned up_flags = flags | cudaHostRegisterReadOnly;
    void *up = (void *)(uintptr_t)c->config->up;
    double samples[FARM_BW_SAMPLES_MAX];
    int count = 0;
    if (!farm_bw_clock_next(&c->timer.clock, "registration")) return FARM_OK;
    cudaError_t code = cudaHostRegister(c->config->down, c->config->bytes, flags);
    c->held_down = code == cudaSuccess;
    if (code) return note_refusal(c, "writable memory", code), FARM_OK;
    do {
        if (c->held_up) FARM_CUDA_TRY(cudaHostUnregister(c->held_up));
        c->held_up = NULL;
        uint64_t start_ns = farm_now_ns();
        code = cudaHostRegister(up, c->config->bytes, up_flags);
        if (code && up_flags != flags && c->config->up_writable) {
            (void)cudaGetLastError();
            up = c->config->up_writable;
            up_flags = flags;
            start_ns = farm_now_ns();
            code = cudaHostRegister(up, c->config->bytes, up_flags);
        }
        if (code)
            return note_refusal(c,
                                up_flags == flags ? "memory, mapped read-only or for writing"
                                                  : "memory that is mapped read-only",
                                code),
                   FARM_OK;
        c->held_up = up;
        samples[count++] = (double)c->config->bytes / ((double)(farm_now_ns() - start_ns + 1) * 1e-9);
    } while (farm_bw_clock_more(&c->timer.clock, count));
    if (up_flags == flags)
        farm_bw_conditions_note(&c->out->conditions, "This GPU pins nothing that is mapped read-only: registered by a "
                                                     "writable mapping, as the learner does.");
    c->out->registration = farm_bw_figure_of(samples, count);
    farm_bw_clock_took(&c->timer.clock);
    c->out->registered = true;
    return FARM_OK;
}

static enum farm_status choose_source(struct path *c, struct farm_error *err) {
    void *gpu = NULL;
    c->read = c->out->registered ? c->held_up : c->up;
    FARM_CUDA_TRY(cudaHostGetDevicePointer(&gpu, (void *)(uintptr_t)c->read, 0));
    c->read_gpu = gpu;
    return FARM_OK;
}

// ---- copies by the copy engines ----

struct copy {
    struct path *c;
    const void *up;
    void *down;
    enum farm_bw_gpu_direction direction;
};

static enum farm_status queue_copy(void *context, uint32_t pass, struct farm_error *err) {
    const struct copy *copy = context;
    const struct path *c = copy->c;
    const size_t bytes = c->config->bytes;
    const bool both = copy->direction == FARM_BW_GPU_BOTH;
    if (copy->direction != FARM_BW_GPU_D2H)
        FARM_CUDA_TRY(cudaMemcpyAsync(c->in, copy->up, bytes, cudaMemcpyHostToDevice, c->timer.stream[0]));
    if (copy->direction != FARM_BW_GPU_H2D)
        FARM_CUDA_TRY(cudaMemcpyAsync(copy->down, c->source, bytes, cudaMemcpyDeviceToHost, c->timer.stream[both]));
    return FARM_OK;
}

static enum farm_status measure_copy(struct path *c, enum farm_bw_gpu_memory memory,
                                     enum farm_bw_gpu_direction direction, struct farm_error *err) {
    const bool own = memory == FARM_BW_GPU_PINNED;
    struct copy copy = {c, own ? c->up : c->held_up, own ? c->down : c->config->down, direction};
    struct farm_bw_figure *figure = &c->out->copy[memory][direction];
    const struct farm_bw_timed_work work = {.what = farm_bw_gpu_direction_names[direction],
                                            .queue = queue_copy,
                                            .context = &copy,
                                            .bytes = c->config->bytes * (direction == FARM_BW_GPU_BOTH ? 2 : 1),
                                            .both = direction == FARM_BW_GPU_BOTH};
    if (direction != FARM_BW_GPU_H2D) memset(copy.down, POISON, c->config->bytes);
    enum farm_status status = clear_device(c, err);
    if (!status) status = farm_bw_timer_figure(&c->timer, &work, figure, err);
    if (status || !farm_bw_figure_is(figure)) return status;
    if (direction != FARM_BW_GPU_H2D) status = farm_bw_timer_check(copy.down, c->config->bytes, 0, "GPU to host", err);
    if (status || direction == FARM_BW_GPU_D2H) return status;
    status = fetch_bytes(c, c->config->bytes, err);
    return status ? status : farm_bw_timer_check(c->down, c->config->bytes, 0, "host to GPU", err);
}

static enum farm_status measure_copies(struct path *c, struct farm_error *err) {
    enum farm_status status = FARM_OK;
    for (int memory = 0; memory < (c->out->registered ? FARM_BW_GPU_MEMORIES : 1); memory++)
        for (int direction = 0; direction < FARM_BW_GPU_DIRECTIONS && !status; direction++)
            status = measure_copy(c, (enum farm_bw_gpu_memory)memory, (enum farm_bw_gpu_direction)direction, err);
    return status;
}

// ---- by kernels, and by pieces ----

struct pieces {
    struct path *c;
    enum farm_bw_gpu_gatherer by;
    uint32_t blocks;
    size_t bytes;
    uint32_t count, windows; // pieces of a pass; passes until the pieces repeat
    uint32_t *place;         // [windows * count] a shuffled order of all places
    const void **from;       // [windows * count] as the host sees them
    void **to;               // [count]
    size_t *sizes;           // [count]
    uint32_t last;           // number of the last pass
    enum farm_cuda_pull_way way;
};

static enum farm_status queue_pieces(void *context, uint32_t pass, struct farm_error *err) {
    const struct pieces *p = context;
    const struct path *c = p->c;
    const size_t window = (size_t)(pass % p->windows) * p->count;
    struct CUstream_st *stream = c->timer.stream[0];
    const void *const *lists = c->lists;
    void *const *to = (void *const *)(uintptr_t)(lists + (size_t)p->windows * p->count);
    if (p->by == FARM_BW_GPU_ONE_COPY) {
        FARM_CUDA_TRY(cudaMemcpyAsync(c->in, (uint8_t *)c->up + window * p->bytes, p->count * p->bytes,
                                      cudaMemcpyHostToDevice, stream));
    } else if (p->by == FARM_BW_GPU_BY_COPIES) {
        for (uint32_t i = 0; i < p->count; i++)
            FARM_CUDA_TRY(cudaMemcpyAsync(p->to[i], p->from[window + i], p->bytes, cudaMemcpyHostToDevice, stream));
    } else if (p->by == FARM_BW_GPU_BY_BATCH) {
        struct cudaMemcpyAttributes attributes;
        size_t first = 0;
        memset(&attributes, 0, sizeof attributes);
        attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
        FARM_CUDA_TRY(
            cudaMemcpyBatchAsync(p->to, p->from + window, p->sizes, p->count, &attributes, &first, 1, stream));
    } else {
        const struct farm_cuda_pull pull = {lists + window, to, p->count, p->bytes, p->blocks};
        return farm_cuda_pull(stream, p->way, &pull, err);
    }
    return FARM_OK;
}

static void free_pieces(struct pieces *p) {
    free(p->place);
    free(p->from);
    free(p->to);
    free(p->sizes);
}

static enum farm_status upload_lists(struct pieces *p, struct farm_error *err) {
    struct path *c = p->c;
    const size_t total = (size_t)p->windows * p->count;
    const void **gpu = malloc(total * sizeof *gpu);
    if (!gpu) return farm_fail(err, FARM_E_LIMIT, "no memory for a list of %zu pieces", total);
    for (size_t i = 0; i < total; i++) gpu[i] = c->read_gpu + (size_t)p->place[i] * p->bytes;
    const cudaError_t a = cudaMemcpy(c->lists, gpu, total * sizeof *gpu, cudaMemcpyHostToDevice);
    const cudaError_t b =
        cudaMemcpy((char *)c->lists + total * sizeof *gpu, p->to, p->count * sizeof *p->to, cudaMemcpyHostToDevice);
    free(gpu);
    return a || b ? farm_cuda_fail(err, a ? a : b, "cudaMemcpy", __FILE__, __LINE__) : FARM_OK;
}

// Pieces at places of the memory that are drawn anew for each pass, until all have had their turn.
static enum farm_status make_pieces(struct path *c, size_t bytes, uint32_t most, struct pieces *p,
                                    struct farm_error *err) {
    const uint32_t places = (uint32_t)count_places(c, bytes);
    *p = (struct pieces){.c = c, .bytes = bytes, .count = places < most ? places : most};
    p->windows = places / p->count;
    const size_t total = (size_t)p->windows * p->count;
    p->place = calloc(places, sizeof *p->place);
    p->from = malloc(total * sizeof *p->from);
    p->to = malloc(p->count * sizeof *p->to);
    p->sizes = malloc(p->count * sizeof *p->sizes);
    if (!p->place || !p->from || !p->to || !p->sizes)
        return farm_fail(err, FARM_E_LIMIT, "no memory for a list of %u pieces", places);
    for (uint32_t i = 0; i < places; i++) p->place[i] = i;
    for (uint32_t i = places; i > 1; i--) {
        const uint32_t other = (uint32_t)(farm_random_mix(SHUFFLE_SEED + i) % i), kept = p->place[i - 1];
        p->place[i - 1] = p->place[other];
        p->place[other] = kept;
    }
    for (size_t i = 0; i < total; i++) p->from[i] = c->read + (size_t)p->place[i] * bytes;
    for (uint32_t i = 0; i < p->count; i++) p->to[i] = c->in + i * bytes, p->sizes[i] = bytes;
    return upload_lists(p, err);
}

// What the last pass fetched.
static enum farm_status check_pieces(struct pieces *p, const char *what, struct farm_error *err) {
    const size_t window = (size_t)(p->last % p->windows) * p->count;
    enum farm_status status = fetch_bytes(p->c, p->count * p->bytes, err);
    for (uint32_t i = 0; i < p->count && !status; i++) {
        const size_t place = p->by == FARM_BW_GPU_ONE_COPY ? window + i : p->place[window + i];
        status = farm_bw_timer_check((char *)p->c->down + i * p->bytes, p->bytes, place * p->bytes / 8, what, err);
    }
    return status;
}

static enum farm_status measure_pieces(struct pieces *p, const char *what, struct farm_bw_figure *figure,
                                       struct farm_error *err) {
    const struct farm_bw_timed_work work = {
        .what = what, .queue = queue_pieces, .context = p, .bytes = p->count * p->bytes, .last = &p->last};
    enum farm_status status = clear_device(p->c, err);
    if (!status) status = farm_bw_timer_figure(&p->c->timer, &work, figure, err);
    return status || !farm_bw_figure_is(figure) ? status : check_pieces(p, what, err);
}

// One large region, read in place.
static enum farm_status measure_pulls(struct path *c, struct farm_error *err) {
    struct pieces p;
    struct farm_error why;
    enum farm_status status = make_pieces(c, c->config->bytes, 1, &p, err);
    for (int way = 0; way < FARM_BW_GPU_WAYS && !status; way++) {
        p.way = way == FARM_BW_GPU_LOADS ? FARM_CUDA_PULL_LOADS : FARM_CUDA_PULL_BULK;
        p.by = way == FARM_BW_GPU_LOADS ? FARM_BW_GPU_BY_LOADS : FARM_BW_GPU_BY_BULK;
        if (farm_cuda_pull_supported(p.way, &why)) continue;
        for (int i = 0; i < FARM_BW_GPU_BLOCKS && !status; i++) {
            p.blocks = farm_bw_gpu_blocks[i];
            status = measure_pieces(&p, "one region by a kernel", &c->out->pull[way][i], err);
        }
    }
    free_pieces(&p);
    return status;
}

// The fewest blocks that fetched the large region within 1 % of the fastest.
static uint32_t best_blocks(const struct path *c, enum farm_bw_gpu_way way) {
    const struct farm_bw_figure *figures = c->out->pull[way];
    double most = 0;
    int best = 0;
    for (int i = 0; i < FARM_BW_GPU_BLOCKS; i++)
        if (farm_bw_figure_is(&figures[i]) && figures[i].median > most) most = figures[i].median;
    while (best + 1 < FARM_BW_GPU_BLOCKS && figures[best].median < 0.99 * most) best++;
    return farm_bw_gpu_blocks[best];
}

// Driver or device without batches of copies: one figure less.
static bool is_missing(struct path *c, const struct pieces *p, const struct farm_error *err) {
    if (p->by != FARM_BW_GPU_BY_BATCH || err->status == FARM_E_DEAD || strstr(err->message, "wrong data") ||
        cudaStreamSynchronize(c->timer.stream[0]))
        return false;
    farm_bw_conditions_note(&c->out->conditions, "This driver makes no batches of copies.");
    return true;
}

static enum farm_status measure_gather(struct path *c, int size, struct farm_error *err) {
    struct farm_bw_gpu_gather *out = &c->out->gather[size];
    struct pieces p;
    struct farm_error why;
    enum farm_status status = make_pieces(c, farm_bw_gpu_piece_bytes[size], farm_bw_gpu_piece_counts[size], &p, err);
    out->pieces = p.count;
    for (int by = 0; by < FARM_BW_GPU_GATHERERS && !status; by++) {
        const bool bulk = by == FARM_BW_GPU_BY_BULK, kernel = bulk || by == FARM_BW_GPU_BY_LOADS;
        p.by = (enum farm_bw_gpu_gatherer)by;
        p.way = bulk ? FARM_CUDA_PULL_BULK : FARM_CUDA_PULL_LOADS;
        p.blocks = best_blocks(c, bulk ? FARM_BW_GPU_BULK : FARM_BW_GPU_LOADS);
        if (kernel && farm_cuda_pull_supported(p.way, &why)) continue;
        status = measure_pieces(&p, farm_bw_gpu_gatherer_names[p.by], &out->by[by], err);
        if (status && is_missing(c, &p, err)) status = FARM_OK;
    }
    free_pieces(&p);
    return status;
}

// ---- a word there and back ----

static enum farm_status wait_for_flag(struct path *c, uint64_t value, struct farm_error *err) {
    for (uint32_t turn = 1; __atomic_load_n(c->flag, __ATOMIC_ACQUIRE) != value; turn++) {
        if (turn % TURNS) continue;
        const cudaError_t code = cudaStreamQuery(c->timer.stream[0]);
        if (code && code != cudaErrorNotReady) return farm_cuda_fail(err, code, "cudaStreamQuery", __FILE__, __LINE__);
    }
    return FARM_OK;
}

static enum farm_status time_trips(struct path *c, uint64_t *value, uint64_t *gpu, double *ns, struct farm_error *err) {
    const uint64_t start_ns = farm_now_ns();
    enum farm_status status = FARM_OK;
    for (int i = 0; i < TRIPS && !status; i++) {
        __atomic_store_n(&c->flag[FLAG_VALUE_AT], ++*value, __ATOMIC_RELEASE);
        status = farm_cuda_signal(c->timer.stream[0], gpu, gpu + FLAG_VALUE_AT, err);
        if (!status) status = wait_for_flag(c, *value, err);
    }
    *ns = (double)(farm_now_ns() - start_ns) / TRIPS;
    return status;
}

static enum farm_status measure_flag(struct path *c, struct farm_error *err) {
    double samples[FARM_BW_SAMPLES_MAX], ns;
    uint64_t value = 0;
    void *gpu = NULL;
    int count = 0;
    if (!farm_bw_clock_next(&c->timer.clock, "flag")) return FARM_OK;
    FARM_CUDA_TRY(cudaHostGetDevicePointer(&gpu, c->flag, 0));
    enum farm_status status = time_trips(c, &value, gpu, &ns, err); // warms up
    do {
        if (!status) status = time_trips(c, &value, gpu, &ns, err);
        if (status) return status;
        samples[count++] = ns;
    } while (farm_bw_clock_more(&c->timer.clock, count));
    c->out->flag_ns = farm_bw_figure_of(samples, count);
    farm_bw_clock_took(&c->timer.clock);
    return FARM_OK;
}

// ---- all of it ----

static void clear_figures(struct farm_bw_gpu_node *out) {
    const struct farm_bw_figure none = farm_bw_figure_of(NULL, 0);
    *out = (struct farm_bw_gpu_node){.registration = none, .flag_ns = none, .conditions = {.verified = true}};
    for (int m = 0; m < FARM_BW_GPU_MEMORIES; m++)
        for (int d = 0; d < FARM_BW_GPU_DIRECTIONS; d++) out->copy[m][d] = none;
    for (int w = 0; w < FARM_BW_GPU_WAYS; w++)
        for (int b = 0; b < FARM_BW_GPU_BLOCKS; b++) out->pull[w][b] = none;
    for (int s = 0; s < FARM_BW_GPU_PIECES; s++) {
        out->gather[s].piece_bytes = farm_bw_gpu_piece_bytes[s];
        for (int g = 0; g < FARM_BW_GPU_GATHERERS; g++) out->gather[s].by[g] = none;
    }
}

static enum farm_status measure_path(struct path *c, struct farm_error *err) {
    enum farm_status status = open_path(c, err);
    c->timer.clock = farm_bw_clock_start(&c->config->setup, 1, FIGURES, &c->out->conditions);
    if (!status) status = measure_flag(c, err);
    if (!status) status = register_both(c, err);
    if (!status) status = choose_source(c, err);
    if (!status) status = measure_copies(c, err);
    if (!status) status = measure_pulls(c, err);
    for (int size = 0; size < FARM_BW_GPU_PIECES && !status; size++) status = measure_gather(c, size, err);
    return status;
}

enum farm_status farm_bw_cuda_node(const struct farm_bw_gpu_config *config, struct farm_bw_gpu_node *out,
                                   struct farm_error *err) {
    struct path c = {.config = config, .out = out};
    clear_figures(out);
    if (!config->up || !config->down || config->bytes < FARM_BW_GPU_BYTES_LEAST || config->bytes % 4096 ||
        config->bytes > INT32_MAX)
        return farm_fail(err, FARM_E_INVALID, "a GPU's figures with %zu bytes", config->bytes);
    FARM_CUDA_TRY(cudaSetDevice(config->device));
    enum farm_status status = farm_bw_timer_open(&c.timer, err);
    if (!status) status = measure_path(&c, err);
    close_path(&c);
    if (status) out->conditions.verified = false;
    return status;
}
