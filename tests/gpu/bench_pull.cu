// Times the ways of pulling observations across the bus beside one large cudaMemcpyAsync of as many bytes from pinned
// memory, interleaved round by round: by kernels of several numbers of blocks, and by the copy engines, a batch of
// scattered copies or one large copy of the registered memory. Pieces lie scattered over a registered memfd segment of
// 1 GiB, larger than the caches; every round takes another set of them. What was pulled last by each way is compared.
// The target is for ways that leave the GPU to others: at most 5 % of the multiprocessors, or the copy engines.
#include "bench.cuh"

enum { ROUNDS = 40, WARMUP = 3, WAYS_MAX = 16 };
static const double MULTIPROCESSORS_SHARE = 0.05;

enum way { LOADS = FARM_CUDA_PULL_LOADS, BULK = FARM_CUDA_PULL_BULK, COPY_BATCH, COPY_LARGE };
static const char *const way_names[] = {"loads", "bulk", "copy_engine_batch", "copy_engine_large"};

struct timing {
    enum way way;
    uint32_t blocks; // 0: of a way without
    double gb_per_s[ROUNDS];
};

static double gb_per_s(const struct pieces *p, const struct stopwatch *watch) {
    return (double)p->bytes * p->count / stopwatch_stop(watch) / 1e9;
}

static double time_way(const struct pieces *p, const struct stopwatch *watch, const struct timing *t, int set) {
    stopwatch_start(watch);
    switch (t->way) {
    case COPY_BATCH:
        pieces_copy_batch(p, watch->stream, set);
        break;
    case COPY_LARGE:
        pieces_copy_registered(p, watch->stream);
        break;
    default:
        pieces_pull(p, watch->stream, (enum farm_cuda_pull_way)t->way, t->blocks, set);
    }
    return gb_per_s(p, watch);
}

static double time_copy(const struct pieces *p, const struct stopwatch *watch) {
    stopwatch_start(watch);
    pieces_copy(p, watch->stream);
    return gb_per_s(p, watch);
}

static int ways(const struct pieces *p, const struct stopwatch *watch, struct timing *timings) {
    const uint32_t blocks[] = {1, 2, 4, 6, 8, 16, 32};
    int count = 0;
    for (int way = LOADS; way <= BULK; way++) {
        struct farm_error err;
        if (farm_cuda_pull_supported((enum farm_cuda_pull_way)way, &err)) continue;
        for (uint32_t n : blocks) {
            timings[count].way = (enum way)way;
            timings[count++].blocks = n;
        }
    }
    if (pieces_can_copy_batch(p, watch->stream)) timings[count++].way = COPY_BATCH;
    timings[count++].way = COPY_LARGE;
    return count;
}

static void print(const struct timing *t, const char *size, double target, int rounds, double reference) {
    char name[64];
    int device, multiprocessors;
    CUDA(cudaGetDevice(&device));
    CUDA(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
    snprintf(name, sizeof name, "pull_%s_%s", size, way_names[t->way]);
    if (t->blocks) snprintf(name + strlen(name), sizeof name - strlen(name), "_%u_blocks", t->blocks);
    double samples[ROUNDS];
    memcpy(samples, t->gb_per_s, sizeof samples);
    const bool modest = t->blocks <= MULTIPROCESSORS_SHARE * multiprocessors && t->way != COPY_LARGE;
    const struct bench_figure figure = {
        name, "GB/s", "one cudaMemcpyAsync from pinned memory", true, samples, rounds, reference, modest ? target : 0};
    bench_print(&figure);
}

static void measure(const struct pieces *p, const char *size, double target, int rounds) {
    cudaStream_t stream; // a batch of copies wants one of its own
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    struct stopwatch watch = stopwatch_make(stream, rounds < ROUNDS);
    struct timing timings[WAYS_MAX] = {};
    double copies[ROUNDS];
    const int count = ways(p, &watch, timings);
    for (int round = -WARMUP; round < rounds; round++) {
        const double copy = time_copy(p, &watch);
        if (round >= 0) copies[round] = copy;
        for (int i = 0; i < count; i++) {
            const int set = (round + WARMUP + i) % BENCH_SETS;
            const bool compare = round == rounds - 1 && timings[i].way != COPY_LARGE; // which goes elsewhere
            if (compare) pieces_poison(p);
            const double rate = time_way(p, &watch, &timings[i], set);
            if (round >= 0) timings[i].gb_per_s[round] = rate;
            if (compare) pieces_compare(p, set);
        }
    }
    const double reference = ascending_at(copies, rounds, 0.5);
    for (int i = 0; i < count; i++) print(&timings[i], size, target, rounds, reference);
    stopwatch_free(&watch);
    CUDA(cudaStreamDestroy(stream));
}

int bench_pull(uint64_t seed, bool few) {
    static const struct {
        const char *name;
        size_t bytes;
        uint32_t count;
        double target;
    } sizes[] = {{"28k", 28224, 512, 0.95}, {"7k", 7056, 2048, 0}, {"4k", 4096, 2048, 0.90}};
    struct random rng = {seed, 0};
    struct segment segment = segment_make((size_t)1 << (few ? 24 : 30), true);
    pieces_fill(&segment);
    bench_begin("cuda_pull", seed);
    for (const auto &size : sizes) {
        struct pieces pieces = pieces_make(&segment, size.bytes, few ? 16 : size.count, &rng);
        measure(&pieces, size.name, size.target, few ? 2 : ROUNDS);
        pieces_free(&pieces);
    }
    bench_end();
    segment_free(&segment);
    return 0;
}
