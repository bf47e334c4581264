// See bench.cuh.
#include "bench.cuh"

#include <algorithm>
#include <sched.h>
#include <sys/utsname.h>

#include "farm_build.h"

static bool first;

double ascending_at(double *values, int count, double share) {
    std::sort(values, values + count);
    return values[(int)(share * (count - 1) + 0.5)];
}

void bench_fail(const char *what) {
    fprintf(stderr, "wrong: %s\n", what);
    exit(1);
}

void bench_machine(void) {
    struct cudaDeviceProp device;
    struct utsname system;
    cpu_set_t cpus;
    int runtime = 0, driver = 0, read_only = 0;
    CUDA(cudaGetDeviceProperties(&device, 0));
    CUDA(cudaRuntimeGetVersion(&runtime));
    CUDA(cudaDriverGetVersion(&driver));
    CUDA(cudaDeviceGetAttribute(&read_only, cudaDevAttrHostRegisterReadOnlySupported, 0));
    if (uname(&system)) bench_fail("uname");
    const int cores = sched_getaffinity(0, sizeof cpus, &cpus) ? 1 : CPU_COUNT(&cpus);
    printf("{\"cpu\": null, \"cores\": %d, \"nodes\": null, \"kernel\": \"%s\", \"gpu\": \"%s\", "
           "\"multiprocessors\": %d, \"compute_capability\": \"%d.%d\", \"cuda_runtime\": %d, \"cuda_of_driver\": %d, "
           "\"registers_read_only_memory\": %s}",
           cores, system.release, device.name, device.multiProcessorCount, device.major, device.minor, runtime, driver,
           read_only ? "true" : "false");
}

void bench_begin(const char *name, uint64_t seed) {
    printf("{\n  \"schema_version\": 1,\n  \"benchmark\": \"%s\",\n  \"commit\": \"%s\",\n", name, FARM_COMMIT);
    printf("  \"seed\": \"%llu\",\n", (unsigned long long)seed);
    printf("  \"machine\": ");
    bench_machine();
    printf(",\n  \"results\": [");
    first = true;
}

void bench_end(void) {
    printf("\n  ]\n}\n");
}

void bench_print(const struct bench_figure *f) {
    const double median = ascending_at(f->samples, f->count, 0.5);
    const double middle = ascending_at(f->samples, f->count, 0.75) - ascending_at(f->samples, f->count, 0.25);
    const double spread = median > 0 ? middle / median : 0;
    printf("%s\n    {\"name\": \"%s\", \"value\": %.4f, \"unit\": \"%s\", \"better\": \"%s\", \"spread\": %.4f",
           first ? "" : ",", f->name, median, f->unit, f->higher ? "higher" : "lower", spread);
    if (f->reference_value > 0)
        printf(", \"reference\": \"%s\", \"reference_value\": %.4f, \"ratio\": %.4f", f->reference, f->reference_value,
               median / f->reference_value);
    if (f->target > 0) printf(", \"target\": %.2f", f->target);
    printf("}");
    first = false;
}

double bench_print_times(const char *name, double *ns, int count, const char *reference, double reference_us) {
    double us[5];
    static const double shares[5] = {0.5, 0.1, 0.9, 0.99, 0.75};
    for (int i = 0; i < 5; i++) us[i] = ascending_at(ns, count, shares[i]) * 1e-3;
    const double spread = us[0] > 0 ? (us[4] - ascending_at(ns, count, 0.25) * 1e-3) / us[0] : 0;
    printf("%s\n    {\"name\": \"%s\", \"value\": %.3f, \"unit\": \"us\", \"better\": \"lower\", \"p10\": %.3f, "
           "\"p90\": %.3f, \"p99\": %.3f, \"rounds\": %d, \"spread\": %.4f",
           first ? "" : ",", name, us[0], us[1], us[2], us[3], count, spread);
    if (reference_us > 0)
        printf(", \"reference\": \"%s\", \"reference_value\": %.3f, \"ratio\": %.4f", reference, reference_us,
               us[0] / reference_us);
    printf("}");
    first = false;
    return us[0];
}

struct stopwatch stopwatch_make(cudaStream_t stream, bool few) {
    struct stopwatch watch;
    watch.stream = stream;
    watch.block_bytes = (size_t)1 << (few ? 16 : 28);
    watch.block = (uint8_t *)device_poisoned(watch.block_bytes);
    CUDA(cudaEventCreate(&watch.begin));
    CUDA(cudaEventCreate(&watch.end));
    return watch;
}

void stopwatch_free(struct stopwatch *watch) {
    CUDA(cudaEventDestroy(watch->begin));
    CUDA(cudaEventDestroy(watch->end));
    CUDA(cudaFree(watch->block));
}

void stopwatch_start(const struct stopwatch *watch) {
    CUDA(cudaMemsetAsync(watch->block, 0, watch->block_bytes, watch->stream));
    CUDA(cudaEventRecord(watch->begin, watch->stream));
}

double stopwatch_stop(const struct stopwatch *watch) {
    float ms;
    CUDA(cudaEventRecord(watch->end, watch->stream));
    CUDA(cudaEventSynchronize(watch->end));
    CUDA(cudaEventElapsedTime(&ms, watch->begin, watch->end));
    return ms > 0 ? ms / 1e3 : 1e-9;
}

// ---- pieces ----

void pieces_fill(const struct segment *segment) {
    pieces_write(segment, segment->host, segment->bytes, false);
}

bool pieces_can_write_past(void) {
#if defined(__x86_64__)
    return true;
#else
    return false;
#endif
}

void pieces_write(const struct segment *segment, uint8_t *piece, size_t bytes, bool past) {
    const uint64_t place = (uint64_t)(piece - segment->host) / 8;
    uint64_t *words = (uint64_t *)piece;
    for (size_t i = 0; i < bytes / 8; i++) {
        const uint64_t word = (place + i) * 0x9E3779B97F4A7C15u ^ (place + i) >> 7;
#if defined(__x86_64__)
        if (past)
            __builtin_ia32_movnti64((long long *)words + i, (long long)word);
        else
#endif
            words[i] = word;
    }
#if defined(__x86_64__)
    if (past) __builtin_ia32_sfence();
#endif
}

void pieces_flush(const struct pieces *p, int set) {
    for (uint32_t i = 0; i < p->count; i++)
        for (size_t at = 0; at < p->bytes; at += 64) {
            const uint8_t *line = p->host[set][i] + at;
#if defined(__x86_64__)
            __builtin_ia32_clflush(line);
#elif defined(__aarch64__)
            asm volatile("dc civac, %0" ::"r"(line) : "memory");
#else
            (void)line;
#endif
        }
    __sync_synchronize();
}

struct pieces pieces_make(const struct segment *segment, size_t bytes, uint32_t count, struct random *rng) {
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
    for (int set = 0; set < BENCH_SETS; set++) {
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

void pieces_free(struct pieces *p) {
    for (int set = 0; set < BENCH_SETS; set++) {
        CUDA(cudaFree(p->from[set]));
        free(p->host[set]), free(p->copied[set]);
    }
    free(p->places), free(p->sizes);
    CUDA(cudaFree(p->to));
    CUDA(cudaFree(p->target));
    CUDA(cudaFree(p->large));
    CUDA(cudaFreeHost(p->pinned));
}

void pieces_poison(const struct pieces *p) {
    CUDA(cudaMemset(p->target, POISON, p->bytes * p->count));
    CUDA(cudaDeviceSynchronize()); // streams do not wait for it
}

void pieces_compare(const struct pieces *p, int set) {
    uint8_t *got = host_of(p->target, p->bytes * p->count);
    for (uint32_t i = 0; i < p->count; i++)
        if (memcmp(got + i * p->bytes, p->host[set][i], p->bytes)) bench_fail("a pulled piece");
    free(got);
}

void pieces_pull(const struct pieces *p, cudaStream_t stream, enum farm_cuda_pull_way way, uint32_t blocks, int set) {
    const struct farm_cuda_pull pull = {p->from[set], p->to, p->count, p->bytes, blocks};
    FARM(farm_cuda_pull(stream, way, &pull, err));
}

void pieces_copy(const struct pieces *p, cudaStream_t stream) {
    CUDA(cudaMemcpyAsync(p->large, p->pinned, p->bytes * p->count, cudaMemcpyHostToDevice, stream));
}

void pieces_copy_registered(const struct pieces *p, cudaStream_t stream) {
    CUDA(cudaMemcpyAsync(p->large, p->segment->registered, p->bytes * p->count, cudaMemcpyHostToDevice, stream));
}

static cudaError_t copy_batch(const struct pieces *p, cudaStream_t stream, int set) {
    struct cudaMemcpyAttributes attributes = {};
    size_t first = 0;
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    return cudaMemcpyBatchAsync(p->places, p->copied[set], p->sizes, p->count, &attributes, &first, 1, stream);
}

bool pieces_can_copy_batch(const struct pieces *p, cudaStream_t stream) {
    const cudaError_t code = copy_batch(p, stream, 0);
    if (code == cudaSuccess) {
        CUDA(cudaStreamSynchronize(stream));
        return true;
    }
    fprintf(stderr, "not measured: batches of copies: %s\n", cudaGetErrorString(code));
    (void)cudaGetLastError();
    return false;
}

void pieces_copy_batch(const struct pieces *p, cudaStream_t stream, int set) {
    CUDA(copy_batch(p, stream, set));
}
