// Times the ways of pulling observations across the bus beside one large cudaMemcpyAsync of as many bytes from pinned
// memory, interleaved round by round: by kernels of several numbers of blocks, and by the copy engines, a batch of
// scattered copies or one large copy of the registered memory. Pieces lie scattered over a registered memfd segment of
// 1 GiB, larger than the caches; every round takes another set of them. What was pulled last by each way is compared.
// The target is for ways that leave the GPU to others: at most 5 % of the multiprocessors, or the copy engines.
#include "tests/gpu/support.cuh"

#include <algorithm>

#include "farm_build.h"

enum { ROUNDS = 40, WARMUP = 3, WAYS_MAX = 16, SETS = 8 };
static const double MULTIPROCESSORS_SHARE = 0.05;

enum way { LOADS = FARM_CUDA_PULL_LOADS, BULK = FARM_CUDA_PULL_BULK, COPY_BATCH, COPY_LARGE };
static const char *const way_names[] = {"loads", "bulk", "copy_engine_batch", "copy_engine_large"};

struct timing {
    enum way way;
    uint32_t blocks; // 0: of a way without
    double gb_per_s[ROUNDS];
};

// Pieces of `bytes` at random places of a segment, in sets that take turns, so that none finds what the last one left
// in a cache; their targets in device memory; and a pinned block of as many bytes beside them.
struct pieces {
    const struct segment *segment;
    size_t bytes;
    uint32_t count;
    uint8_t **host[SETS];      // [count] as the host writes them
    const void **from[SETS];   // [count] as the GPU reads them, in device memory
    const void **copied[SETS]; // [count] the same list, in the host's memory
    void **to;                 // [count], in device memory
    void **places;             // [count] the same, in the host's memory
    size_t *sizes;             // [count] of each copy
    uint8_t *target, *pinned, *large;
};

// ---- pieces ----

// Fills the segment with numbers that follow from their place.
static void fill(const struct segment *segment) {
    uint64_t *words = (uint64_t *)segment->host;
    for (size_t i = 0; i < segment->bytes / 8; i++) words[i] = i * 0x9E3779B97F4A7C15u ^ i >> 7;
}

static struct pieces pieces_make(const struct segment *segment, size_t bytes, uint32_t count, struct random *rng) {
    struct pieces p = {};
    const size_t whole = bytes * count;
    const uint32_t places = (uint32_t)(segment->bytes / bytes);
    p.segment = segment;
    p.bytes = bytes;
    p.count = count;
    p.target = (uint8_t *)device_poisoned(whole);
    p.large = (uint8_t *)device_poisoned(whole);
    CUDA(cudaHostAlloc((void **)&p.pinned, whole, cudaHostAllocDefault));
    memcpy(p.pinned, segment->host, whole);
    p.places = (void **)malloc(count * sizeof(void *));
    p.sizes = (size_t *)malloc(count * sizeof(size_t));
    for (uint32_t i = 0; i < count; i++) {
        p.places[i] = p.target + i * bytes;
        p.sizes[i] = bytes;
    }
    p.to = device_of(p.places, count);
    for (int set = 0; set < SETS; set++) {
        p.host[set] = (uint8_t **)malloc(count * sizeof(uint8_t *));
        p.copied[set] = (const void **)malloc(count * sizeof(void *));
        for (uint32_t i = 0; i < count; i++) {
            const size_t place = random_below(rng, places) * bytes;
            p.host[set][i] = segment->host + place;
            p.copied[set][i] = segment->device + place;
        }
        p.from[set] = device_of(p.copied[set], count);
    }
    return p;
}

static void pieces_free(struct pieces *p) {
    for (int set = 0; set < SETS; set++) {
        CUDA(cudaFree(p->from[set]));
        free(p->host[set]), free(p->copied[set]);
    }
    free(p->places), free(p->sizes);
    CUDA(cudaFree(p->to));
    CUDA(cudaFree(p->target));
    CUDA(cudaFree(p->large));
    CUDA(cudaFreeHost(p->pinned));
}

static void pieces_poison(const struct pieces *p) {
    CUDA(cudaMemset(p->target, POISON, p->bytes * p->count));
    CUDA(cudaDeviceSynchronize()); // streams do not wait for it
}

// Ends the program if the target does not hold the set's pieces.
static void pieces_compare(const struct pieces *p, int set) {
    uint8_t *got = host_of(p->target, p->bytes * p->count);
    for (uint32_t i = 0; i < p->count; i++)
        if (memcmp(got + i * p->bytes, p->host[set][i], p->bytes)) {
            fprintf(stderr, "wrong: a pulled piece\n");
            exit(1);
        }
    free(got);
}

static cudaError_t copy_batch(const struct pieces *p, cudaStream_t stream, int set) {
    struct cudaMemcpyAttributes attributes = {};
    size_t first = 0;
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    return cudaMemcpyBatchAsync(p->places, p->copied[set], p->sizes, p->count, &attributes, &first, 1, stream);
}

// In a stream that is not the device's standard one.
static bool can_copy_batch(const struct pieces *p, cudaStream_t stream) {
    const cudaError_t code = copy_batch(p, stream, 0);
    if (code == cudaSuccess) {
        CUDA(cudaStreamSynchronize(stream));
        return true;
    }
    fprintf(stderr, "not measured: batches of copies: %s\n", cudaGetErrorString(code));
    (void)cudaGetLastError();
    return false;
}

// ---- times ----

// A pair of events around what is put into a stream. The first stands behind a fill of a large block of device memory,
// which takes the GPU's own caches away from what is timed, and keeps the stream busy until all of that is queued: the
// host's time for putting it there is not in it.
struct stopwatch {
    cudaEvent_t begin, end;
    cudaStream_t stream;
    uint8_t *block;
    size_t block_bytes;
};

static struct stopwatch stopwatch_make(cudaStream_t stream, bool few) {
    struct stopwatch watch;
    watch.stream = stream;
    watch.block_bytes = (size_t)1 << (few ? 16 : 28);
    watch.block = (uint8_t *)device_poisoned(watch.block_bytes);
    CUDA(cudaEventCreate(&watch.begin));
    CUDA(cudaEventCreate(&watch.end));
    return watch;
}

static void stopwatch_free(struct stopwatch *watch) {
    CUDA(cudaEventDestroy(watch->begin));
    CUDA(cudaEventDestroy(watch->end));
    CUDA(cudaFree(watch->block));
}

static void stopwatch_start(const struct stopwatch *watch) {
    CUDA(cudaMemsetAsync(watch->block, 0, watch->block_bytes, watch->stream));
    CUDA(cudaEventRecord(watch->begin, watch->stream));
}

// Waits; GB/s of all pieces since the start.
static double stopwatch_stop(const struct stopwatch *watch, const struct pieces *p) {
    float ms;
    CUDA(cudaEventRecord(watch->end, watch->stream));
    CUDA(cudaEventSynchronize(watch->end));
    CUDA(cudaEventElapsedTime(&ms, watch->begin, watch->end));
    return (double)p->bytes * p->count / (ms > 0 ? ms / 1e3 : 1e-9) / 1e9;
}

static double time_way(const struct pieces *p, const struct stopwatch *watch, const struct timing *t, int set) {
    const size_t whole = p->bytes * p->count;
    const struct farm_cuda_pull pull = {p->from[set], p->to, p->count, p->bytes, t->blocks};
    stopwatch_start(watch);
    switch (t->way) {
    case COPY_BATCH:
        CUDA(copy_batch(p, watch->stream, set));
        break;
    case COPY_LARGE:
        CUDA(cudaMemcpyAsync(p->large, p->segment->registered, whole, cudaMemcpyHostToDevice, watch->stream));
        break;
    default:
        FARM(farm_cuda_pull(watch->stream, (enum farm_cuda_pull_way)t->way, &pull, err));
    }
    return stopwatch_stop(watch, p);
}

static double time_copy(const struct pieces *p, const struct stopwatch *watch) {
    stopwatch_start(watch);
    CUDA(cudaMemcpyAsync(p->large, p->pinned, p->bytes * p->count, cudaMemcpyHostToDevice, watch->stream));
    return stopwatch_stop(watch, p);
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
    if (can_copy_batch(p, watch->stream)) timings[count++].way = COPY_BATCH;
    timings[count++].way = COPY_LARGE;
    return count;
}

static double ascending_at(double *values, int count, double share) {
    std::sort(values, values + count);
    return values[(int)(share * (count - 1) + 0.5)];
}

static void print(struct timing *t, const char *size, double target, int rounds, double reference, bool first) {
    char blocks[32] = "";
    int device, multiprocessors;
    CUDA(cudaGetDevice(&device));
    CUDA(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
    if (t->blocks) snprintf(blocks, sizeof blocks, "_%u_blocks", t->blocks);
    const double median = ascending_at(t->gb_per_s, rounds, 0.5);
    const double middle = ascending_at(t->gb_per_s, rounds, 0.75) - ascending_at(t->gb_per_s, rounds, 0.25);
    printf("%s\n    {\"name\": \"pull_%s_%s%s\", \"value\": %.4f, \"unit\": \"GB/s\", \"better\": \"higher\", "
           "\"spread\": %.4f, \"reference\": \"one cudaMemcpyAsync from pinned memory\", "
           "\"reference_value\": %.4f, \"ratio\": %.4f",
           first ? "" : ",", size, way_names[t->way], blocks, median, middle / median, reference, median / reference);
    const bool modest = t->blocks <= MULTIPROCESSORS_SHARE * multiprocessors && t->way != COPY_LARGE;
    if (modest && target > 0) printf(", \"target\": %.2f", target);
    printf("}");
}

static void measure(const struct pieces *p, const char *size, double target, int rounds, bool first) {
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
            const int set = (round + WARMUP + i) % SETS;
            const bool compare = round == rounds - 1 && timings[i].way != COPY_LARGE; // which goes elsewhere
            if (compare) pieces_poison(p);
            const double rate = time_way(p, &watch, &timings[i], set);
            if (round >= 0) timings[i].gb_per_s[round] = rate;
            if (compare) pieces_compare(p, set);
        }
    }
    const double reference = ascending_at(copies, rounds, 0.5);
    for (int i = 0; i < count; i++) print(&timings[i], size, target, rounds, reference, first && i == 0);
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
    fill(&segment);
    printf("{\n  \"schema_version\": 1,\n  \"benchmark\": \"cuda_pull\",\n  \"commit\": \"%s\",\n", FARM_COMMIT);
    printf("  \"seed\": \"%llu\",\n  \"machine\": ", (unsigned long long)seed);
    print_machine();
    printf(",\n  \"results\": [");
    for (const auto &size : sizes) {
        struct pieces pieces = pieces_make(&segment, size.bytes, few ? 16 : size.count, &rng);
        measure(&pieces, size.name, size.target, few ? 2 : ROUNDS, &size == sizes);
        pieces_free(&pieces);
    }
    printf("\n  ]\n}\n");
    segment_free(&segment);
    return 0;
}
