// Times the ways of pulling observations across the bus beside one large cudaMemcpyAsync of as many bytes from pinned
// memory, interleaved round by round; prints the one form of document that bench/common.h describes. Pieces lie
// scattered over a registered memfd segment of 1 GiB, larger than the caches; every round takes another set of them.
// What was pulled last by each way is compared. Says how many blocks (multiprocessors) each figure took.
#include "support.cuh"

#include <algorithm>
#include <sched.h>
#include <sys/utsname.h>

#include "farm_build.h"

enum { SETS = 8, ROUNDS = 40, WARMUP = 3, WAYS_MAX = 16 };
static const size_t SEGMENT_BYTES = (size_t)1 << 30;

struct timing {
    enum farm_cuda_pull_way way;
    uint32_t blocks;
    double gb_per_s[ROUNDS];
};

struct bench {
    struct segment segment;
    size_t bytes;   // of a piece
    uint32_t count; // pieces a round
    const void **from[SETS];
    void **to;
    uint8_t *target, *pinned, *large;
    cudaEvent_t begin, end;
    double copy_gb_per_s[ROUNDS];
};

static void fail(const char *what) {
    fprintf(stderr, "wrong: %s\n", what);
    exit(1);
}

static double ascending_at(double *values, int count, double share) {
    std::sort(values, values + count);
    return values[(int)(share * (count - 1) + 0.5)];
}

static double elapsed_s(const struct bench *b) {
    float ms;
    CUDA(cudaEventSynchronize(b->end));
    CUDA(cudaEventElapsedTime(&ms, b->begin, b->end));
    return ms / 1e3;
}

static double time_pull(const struct bench *b, const struct timing *t, int set) {
    const struct farm_cuda_pull pull = {b->from[set], b->to, b->count, b->bytes, t->blocks};
    CUDA(cudaEventRecord(b->begin));
    FARM(farm_cuda_pull(NULL, t->way, &pull, err));
    CUDA(cudaEventRecord(b->end));
    return (double)b->bytes * b->count / elapsed_s(b) / 1e9;
}

static double time_copy(const struct bench *b) {
    CUDA(cudaEventRecord(b->begin));
    CUDA(cudaMemcpyAsync(b->large, b->pinned, b->bytes * b->count, cudaMemcpyHostToDevice));
    CUDA(cudaEventRecord(b->end));
    return (double)b->bytes * b->count / elapsed_s(b) / 1e9;
}

static void prepare(struct bench *b, struct random *rng) {
    const size_t whole = b->bytes * b->count, places = SEGMENT_BYTES / b->bytes;
    const void **from = (const void **)malloc(b->count * sizeof(void *));
    void **to = (void **)malloc(b->count * sizeof(void *));
    b->target = (uint8_t *)device_poisoned(whole);
    b->large = (uint8_t *)device_poisoned(whole);
    CUDA(cudaHostAlloc((void **)&b->pinned, whole, cudaHostAllocDefault));
    memcpy(b->pinned, b->segment.host, whole);
    for (uint32_t i = 0; i < b->count; i++) to[i] = b->target + i * b->bytes;
    b->to = device_of(to, b->count);
    for (int set = 0; set < SETS; set++) {
        for (uint32_t i = 0; i < b->count; i++) {
            const size_t place = random_below(rng, (uint32_t)places) * b->bytes;
            from[i] = b->segment.device + place;
        }
        b->from[set] = device_of(from, b->count);
    }
    free(from), free(to);
}

static void release(struct bench *b) {
    for (int set = 0; set < SETS; set++) CUDA(cudaFree(b->from[set]));
    CUDA(cudaFree(b->to));
    CUDA(cudaFree(b->target));
    CUDA(cudaFree(b->large));
    CUDA(cudaFreeHost(b->pinned));
}

// The pieces of a set, as the host has them, against what lies at the target.
static void compare(const struct bench *b, int set) {
    const void **from = host_of(b->from[set], b->count);
    uint8_t *got = host_of(b->target, b->bytes * b->count);
    for (uint32_t i = 0; i < b->count; i++)
        if (memcmp(got + i * b->bytes, b->segment.host + ((const uint8_t *)from[i] - b->segment.device), b->bytes))
            fail("a pulled piece");
    free(from), free(got);
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

static void measure(struct bench *b, struct timing *timings, int count) {
    for (int round = -WARMUP; round < ROUNDS; round++) {
        const double copy = time_copy(b);
        if (round >= 0) b->copy_gb_per_s[round] = copy;
        for (int i = 0; i < count; i++) {
            const int set = (round + WARMUP + i) % SETS;
            if (round == ROUNDS - 1) CUDA(cudaMemset(b->target, POISON, b->bytes * b->count));
            const double rate = time_pull(b, &timings[i], set);
            if (round >= 0) timings[i].gb_per_s[round] = rate;
            if (round == ROUNDS - 1) compare(b, set);
        }
    }
}

static void print_result(const char *size, double target, struct timing *t, double reference, bool first) {
    const double median = ascending_at(t->gb_per_s, ROUNDS, 0.5);
    const double spread = (ascending_at(t->gb_per_s, ROUNDS, 0.75) - ascending_at(t->gb_per_s, ROUNDS, 0.25)) / median;
    printf("%s\n    {\"name\": \"pull_%s_%s_%u_blocks\", \"value\": %.4f, \"unit\": \"GB/s\", \"better\": \"higher\", "
           "\"spread\": %.4f, \"reference\": \"one cudaMemcpyAsync from pinned memory\", \"reference_value\": %.4f, "
           "\"ratio\": %.4f, \"target\": %.2f}",
           first ? "" : ",", size, t->way == FARM_CUDA_PULL_BULK ? "bulk" : "loads", t->blocks, median, spread,
           reference, median / reference, target);
}

static void print_head(void) {
    struct cudaDeviceProp device;
    struct utsname system;
    cpu_set_t cpus;
    CUDA(cudaGetDeviceProperties(&device, 0));
    if (uname(&system)) fail("uname");
    const int cores = sched_getaffinity(0, sizeof cpus, &cpus) ? 1 : CPU_COUNT(&cpus);
    printf("{\n  \"schema_version\": 1,\n  \"benchmark\": \"cuda_pull\",\n  \"commit\": \"%s\",\n", FARM_COMMIT);
    printf("  \"machine\": {\"cpu\": null, \"cores\": %d, \"nodes\": null, \"kernel\": \"%s\", \"gpu\": \"%s\", "
           "\"multiprocessors\": %d},\n",
           cores, system.release, device.name, device.multiProcessorCount);
    printf("  \"results\": [");
}

int bench_pull(uint64_t seed) {
    static const struct {
        const char *name;
        size_t bytes;
        uint32_t count;
        double target;
    } sizes[] = {{"28k", 28224, 512, 0.95}, {"7k", 7056, 2048, 0.90}, {"4k", 4096, 2048, 0.90}};
    struct random rng = {seed, 0};
    struct bench b = {};
    b.segment = segment_make(SEGMENT_BYTES, true);
    uint64_t bits = seed;
    for (size_t i = 0; i < SEGMENT_BYTES; i += 8) {
        bits = farm_random_mix(bits);
        memcpy(b.segment.host + i, &bits, 8);
    }
    CUDA(cudaEventCreate(&b.begin));
    CUDA(cudaEventCreate(&b.end));
    print_head();
    bool first = true;
    for (const auto &size : sizes) {
        struct timing timings[WAYS_MAX] = {};
        const int count = ways(timings);
        b.bytes = size.bytes;
        b.count = size.count;
        prepare(&b, &rng);
        measure(&b, timings, count);
        const double reference = ascending_at(b.copy_gb_per_s, ROUNDS, 0.5);
        for (int i = 0; i < count; i++, first = false)
            print_result(size.name, size.target, &timings[i], reference, first);
        release(&b);
    }
    printf("\n  ]\n}\n");
    segment_free(&b.segment);
    return 0;
}
