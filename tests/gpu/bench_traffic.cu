// What pulls by the GPU are worth under the traffic of a farm: of lines that lie in no cache (they are flushed), that
// an actor has just written (through the caches, and past them, as environments with large observations do), while
// other threads store into the same segment, and while copies cross the bus the other way and device memory is copied.
// Each beside the pull of cold lines with nobody else at work, interleaved round by round; what was pulled is compared,
// and writers store what is there already. Times are the GPU's.
#include "bench.cuh"

#include <pthread.h>
#include <sched.h>
#include <time.h>

enum {
    ROUNDS = 20,
    WARMUP = 2,
    WRITERS_MAX = 15,
    BLOCKS = 8,
    WAYS = 3,
    AT_ONCE_BYTES = 64 << 20,
    COPIES_BACK = 2,
    COPIES_WITHIN = 40
};

enum traffic { COLD, FRESH, FRESH_PAST, WHILE_STORED, ALL_DIRECTIONS, TRAFFICS };
static const char *const traffic_names[TRAFFICS] = {"cold", "fresh", "fresh_past_caches", "while_stored",
                                                    "all_directions"};
static const char *const way_names[WAYS] = {"loads", "bulk", "one_copy"};

// Threads that store pieces of another segment part, over and over, while `going`.
struct writers {
    const struct segment *segment;
    size_t piece_bytes;
    pthread_t threads[WRITERS_MAX];
    int count;
    int going;             // atomic
    uint64_t bytes_stored; // atomic
};

static void *write_on(void *context) {
    struct writers *w = (struct writers *)context;
    const uint32_t places = (uint32_t)(w->segment->bytes / w->piece_bytes);
    struct random rng = {(uint64_t)(uintptr_t)&rng, 0};
    while (__atomic_load_n(&w->going, __ATOMIC_RELAXED)) {
        uint8_t *piece = w->segment->host + random_below(&rng, places) * w->piece_bytes;
        pieces_write(w->segment, piece, w->piece_bytes, true);
        __atomic_add_fetch(&w->bytes_stored, w->piece_bytes, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void writers_start(struct writers *w, const struct pieces *p) {
    cpu_set_t cpus;
    const int cores = sched_getaffinity(0, sizeof cpus, &cpus) ? 1 : CPU_COUNT(&cpus);
    *w = {};
    w->segment = p->segment;
    w->piece_bytes = p->bytes;
    w->going = 1;
    const int wanted = cores < 2 ? 1 : cores - 1 < WRITERS_MAX ? cores - 1 : (int)WRITERS_MAX;
    for (; w->count < wanted; w->count++)
        if (pthread_create(&w->threads[w->count], NULL, write_on, w)) bench_fail("a thread that writes");
    while (__atomic_load_n(&w->bytes_stored, __ATOMIC_RELAXED) < (size_t)w->count * w->piece_bytes) sched_yield();
}

static void writers_stop(struct writers *w) {
    __atomic_store_n(&w->going, 0, __ATOMIC_RELAXED);
    for (int i = 0; i < w->count; i++) pthread_join(w->threads[i], NULL);
}

struct bench {
    const struct pieces *pieces;
    struct stopwatch watch;
    cudaStream_t stream, back, within;
    uint8_t *device, *device_too, *host; // [at_once] for the other directions
    size_t at_once;
    int alone; // rounds that ended after the other directions' copies
    struct writers writers;
};

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void put(const struct bench *b, int way, int set) {
    if (way == 2)
        pieces_copy(b->pieces, b->stream);
    else
        pieces_pull(b->pieces, b->stream, (enum farm_cuda_pull_way)way, BLOCKS, set);
}

static bool is_done(cudaStream_t stream) {
    const cudaError_t code = cudaStreamQuery(stream);
    if (code == cudaErrorNotReady) return false;
    CUDA(code);
    return true;
}

// GB/s of the pull. *other: GB/s of what the writers stored meanwhile; NAN where there are none.
static double round_of(struct bench *b, enum traffic traffic, int way, int set, double *other) {
    const struct pieces *p = b->pieces;
    *other = NAN;
    if (traffic == FRESH || traffic == FRESH_PAST)
        for (uint32_t i = 0; i < p->count; i++)
            pieces_write(p->segment, p->host[set][i], p->bytes, traffic == FRESH_PAST);
    else
        pieces_flush(p, set);
    for (int i = 0; traffic == ALL_DIRECTIONS && i < COPIES_WITHIN; i++) {
        if (i < COPIES_BACK) CUDA(cudaMemcpyAsync(b->host, b->device, b->at_once, cudaMemcpyDeviceToHost, b->back));
        CUDA(cudaMemcpyAsync(b->device_too, b->device, b->at_once, cudaMemcpyDeviceToDevice, b->within));
    }
    const uint64_t before = __atomic_load_n(&b->writers.bytes_stored, __ATOMIC_RELAXED);
    const double start = now_s();
    stopwatch_start(&b->watch);
    put(b, way, set);
    const double seconds = stopwatch_stop(&b->watch);
    if (traffic == ALL_DIRECTIONS && (is_done(b->back) || is_done(b->within))) b->alone++;
    if (traffic == WHILE_STORED)
        *other =
            (double)(__atomic_load_n(&b->writers.bytes_stored, __ATOMIC_RELAXED) - before) / (now_s() - start) / 1e9;
    CUDA(cudaStreamSynchronize(b->back));
    CUDA(cudaStreamSynchronize(b->within));
    return (double)p->bytes * p->count / seconds / 1e9;
}

// The one large copy is of memory that nobody writes.
static bool is_asked(int way, int traffic) {
    if (traffic == FRESH_PAST && !pieces_can_write_past()) return false;
    return way < 2 || (traffic != FRESH && traffic != FRESH_PAST);
}

static void measure(struct bench *b, const char *size, int way, int rounds) {
    static double rates[TRAFFICS][ROUNDS], stored[ROUNDS];
    for (int round = -WARMUP; round < rounds; round++)
        for (int t = 0; t < TRAFFICS; t++) {
            if (!is_asked(way, t)) continue;
            const int set = (round + WARMUP + t) % BENCH_SETS;
            double other;
            if (t == WHILE_STORED) writers_start(&b->writers, b->pieces);
            if (way < 2) pieces_poison(b->pieces);
            CUDA(cudaDeviceSynchronize());
            const double rate = round_of(b, (enum traffic)t, way, set, &other);
            if (t == WHILE_STORED) writers_stop(&b->writers);
            if (way < 2) pieces_compare(b->pieces, set);
            if (round < 0) continue;
            rates[t][round] = rate;
            if (t == WHILE_STORED) stored[round] = other;
        }
    const double cold = ascending_at(rates[COLD], rounds, 0.5);
    char name[96];
    struct bench_figure figure = {name, "GB/s", "cold, with nobody else at work", true, NULL, rounds, cold, 0};
    for (int t = 0; t < TRAFFICS; t++) {
        if (!is_asked(way, t)) continue;
        snprintf(name, sizeof name, "traffic_%s_%s_%s", size, way_names[way], traffic_names[t]);
        figure.samples = rates[t];
        bench_print(&figure);
    }
    snprintf(name, sizeof name, "traffic_%s_%s_stored_meanwhile", size, way_names[way]);
    figure.samples = stored;
    figure.reference_value = 0;
    bench_print(&figure);
}

int bench_traffic(uint64_t seed, bool few) {
    static const struct {
        const char *name;
        size_t bytes;
        uint32_t count;
    } sizes[] = {{"28k", 28224, 512}, {"4k", 4096, 2048}};
    struct random rng = {seed, 0};
    struct segment segment = segment_make((size_t)1 << (few ? 24 : 30), true);
    struct bench b = {};
    b.at_once = few ? 1 << 20 : AT_ONCE_BYTES;
    pieces_fill(&segment);
    for (cudaStream_t *stream : {&b.stream, &b.back, &b.within})
        CUDA(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
    b.watch = stopwatch_make(b.stream, few);
    b.device = (uint8_t *)device_poisoned(b.at_once);
    b.device_too = (uint8_t *)device_poisoned(b.at_once);
    CUDA(cudaHostAlloc((void **)&b.host, b.at_once, cudaHostAllocDefault));
    bench_begin("cuda_traffic", seed);
    for (const auto &size : sizes) {
        struct pieces pieces = pieces_make(&segment, size.bytes, few ? 16 : size.count, &rng);
        struct farm_error err;
        b.pieces = &pieces;
        for (int way = 0; way < WAYS; way++)
            if (way == 2 || farm_cuda_pull_supported((enum farm_cuda_pull_way)way, &err) == FARM_OK)
                measure(&b, size.name, way, few ? 2 : ROUNDS);
        pieces_free(&pieces);
    }
    bench_end();
    if (b.alone > 0 && !few)
        fprintf(stderr, "all_directions: %d pulls ended after the copies beside them: they were alone in part\n",
                b.alone);
    CUDA(cudaFree(b.device));
    CUDA(cudaFree(b.device_too));
    CUDA(cudaFreeHost(b.host));
    stopwatch_free(&b.watch);
    for (cudaStream_t stream : {b.stream, b.back, b.within}) CUDA(cudaStreamDestroy(stream));
    segment_free(&segment);
    return 0;
}
