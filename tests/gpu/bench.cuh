// What the GPU's benchmarks share: the one form of document that bench/common.h describes, medians, times between
// events, and pieces scattered over registered memory whose every byte is known.
#ifndef FARM_TESTS_GPU_BENCH_CUH
#define FARM_TESTS_GPU_BENCH_CUH

#include "support.cuh"

// The value at that share of the ascending order, which `values` are brought into.
double ascending_at(double *values, int count, double share);

// What a document says of the machine, as a JSON object: of device 0, with whether it registers memory that is mapped
// read-only (cudaDevAttrHostRegisterReadOnlySupported), as `up` segments are.
void bench_machine(void);

// The document's head, and its end. `name`: of the benchmark.
void bench_begin(const char *name, uint64_t seed);
void bench_end(void);

struct bench_figure {
    const char *name, *unit, *reference;
    bool higher; // is better
    double *samples;
    int count;
    double reference_value; // 0: there is none
    double target;          // of value / reference; 0: there is none
};
void bench_print(const struct bench_figure *figure);

// Times in nanoseconds as microseconds: the median as the value, p10, p90 and p99 beside it. `reference`: what
// reference_us, in microseconds, is of; 0: there is none. Returns the median, in microseconds.
double bench_print_times(const char *name, double *ns, int count, const char *reference, double reference_us);

// A pair of events around what is put into a stream. The first stands behind a fill of a large block of device memory,
// which takes the GPU's own caches away from what is timed, and keeps the stream busy until all of that is queued: the
// host's time for putting it there is not in it.
struct stopwatch {
    cudaEvent_t begin, end;
    cudaStream_t stream;
    uint8_t *block;
    size_t block_bytes;
};
struct stopwatch stopwatch_make(cudaStream_t stream, bool few);
void stopwatch_free(struct stopwatch *watch);
void stopwatch_start(const struct stopwatch *watch);
double stopwatch_stop(const struct stopwatch *watch); // waits; seconds since the start

// Says what is wrong on stderr, and ends the program.
void bench_fail(const char *what);

// ---- pieces ----

enum { BENCH_SETS = 8 };

// Pieces of `bytes` at random places of a segment, in sets that take turns, so that none finds what the last one left
// in a cache; where they go to in device memory; and a pinned block of as many bytes beside them.
struct pieces {
    const struct segment *segment;
    size_t bytes;
    uint32_t count;
    uint8_t **host[BENCH_SETS];      // [count] as the host writes them
    const void **from[BENCH_SETS];   // [count] as the GPU reads them, in device memory
    const void **copied[BENCH_SETS]; // [count] the same list, in the host's memory
    void **to;                       // [count], in device memory
    void **places;                   // [count] the same, in the host's memory
    size_t *sizes;                   // [count] of each copy
    uint8_t *target, *pinned, *large;
};

// Fills the segment with numbers that follow from their place.
void pieces_fill(const struct segment *segment);
// Stores the same numbers once more into a piece; `past`: past the caches, where pieces_can_write_past().
bool pieces_can_write_past(void);
void pieces_write(const struct segment *segment, uint8_t *piece, size_t bytes, bool past);
struct pieces pieces_make(const struct segment *segment, size_t bytes, uint32_t count, struct random *rng);
void pieces_free(struct pieces *pieces);
// Takes a set's lines out of the host's caches.
void pieces_flush(const struct pieces *pieces, int set);
// Ends the program where what lies at the target is not the set's pieces; poisons the target first when asked before.
void pieces_poison(const struct pieces *pieces);
void pieces_compare(const struct pieces *pieces, int set);
// Puts the pull of a set into the stream.
void pieces_pull(const struct pieces *pieces, cudaStream_t stream, enum farm_cuda_pull_way way, uint32_t blocks,
                 int set);
// And one large copy of as many bytes from pinned memory.
void pieces_copy(const struct pieces *pieces, cudaStream_t stream);
// The same from the start of the segment, and a set's pieces by one batch of copies: the copy engines, where driver and
// device have such batches. In a stream of its own, not the device's standard one.
void pieces_copy_registered(const struct pieces *pieces, cudaStream_t stream);
bool pieces_can_copy_batch(const struct pieces *pieces, cudaStream_t stream);
void pieces_copy_batch(const struct pieces *pieces, cudaStream_t stream, int set);

// ---- the benchmarks, each in a file of its own: print one document; `few`: to see that they run, not how fast ----

int bench_pull(uint64_t seed, bool few);
int bench_traffic(uint64_t seed, bool few);
int bench_kernels(uint64_t seed, bool few);
int bench_launches(uint64_t seed, bool few);
int bench_resident(uint64_t seed, bool few);

#endif
