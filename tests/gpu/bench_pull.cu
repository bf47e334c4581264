// Times the ways of pulling observations across the bus beside one large cudaMemcpyAsync of as many bytes from pinned
// memory, interleaved round by round. Pieces lie scattered over a registered memfd segment of 1 GiB, larger than the
// caches; every round takes another set of them. What was pulled last by each way is compared. Says how many blocks
// (multiprocessors) each figure took.
#include "bench.cuh"

enum { ROUNDS = 40, WARMUP = 3, WAYS_MAX = 16 };

struct timing {
    enum farm_cuda_pull_way way;
    uint32_t blocks;
    double gb_per_s[ROUNDS];
};

static double gb_per_s(const struct pieces *p, const struct stopwatch *watch) {
    return (double)p->bytes * p->count / stopwatch_stop(watch) / 1e9;
}

static double time_pull(const struct pieces *p, const struct stopwatch *watch, const struct timing *t, int set) {
    stopwatch_start(watch);
    pieces_pull(p, NULL, t->way, t->blocks, set);
    return gb_per_s(p, watch);
}

static double time_copy(const struct pieces *p, const struct stopwatch *watch) {
    stopwatch_start(watch);
    pieces_copy(p, NULL);
    return gb_per_s(p, watch);
}

static int ways(struct timing *timings) {
    const uint32_t blocks[] = {1, 2, 4, 6, 8, 16, 32};
    int count = 0;
    for (int way = 0; way < 2; way++) {
        struct farm_error err;
        if (farm_cuda_pull_supported((enum farm_cuda_pull_way)way, &err)) continue;
        for (uint32_t n : blocks) {
            timings[count].way = (enum farm_cuda_pull_way)way;
            timings[count++].blocks = n;
        }
    }
    return count;
}

static void measure(const struct pieces *p, const char *size, double target, int rounds) {
    struct stopwatch watch = stopwatch_make(NULL, rounds < ROUNDS);
    struct timing timings[WAYS_MAX] = {};
    double copies[ROUNDS];
    const int count = ways(timings);
    for (int round = -WARMUP; round < rounds; round++) {
        const double copy = time_copy(p, &watch);
        if (round >= 0) copies[round] = copy;
        for (int i = 0; i < count; i++) {
            const int set = (round + WARMUP + i) % BENCH_SETS;
            if (round == rounds - 1) pieces_poison(p);
            const double rate = time_pull(p, &watch, &timings[i], set);
            if (round >= 0) timings[i].gb_per_s[round] = rate;
            if (round == rounds - 1) pieces_compare(p, set);
        }
    }
    const double reference = ascending_at(copies, rounds, 0.5);
    for (int i = 0; i < count; i++) {
        char name[64];
        snprintf(name, sizeof name, "pull_%s_%s_%u_blocks", size,
                 timings[i].way == FARM_CUDA_PULL_BULK ? "bulk" : "loads", timings[i].blocks);
        const struct bench_figure figure = {
            name,      "GB/s", "one cudaMemcpyAsync from pinned memory", true, timings[i].gb_per_s, rounds,
            reference, target};
        bench_print(&figure);
    }
    stopwatch_free(&watch);
}

int bench_pull(uint64_t seed, bool few) {
    static const struct {
        const char *name;
        size_t bytes;
        uint32_t count;
        double target;
    } sizes[] = {{"28k", 28224, 512, 0.95}, {"7k", 7056, 2048, 0.90}, {"4k", 4096, 2048, 0.90}};
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
