// Litmus tests of the orders that lanes rely on across the bus (docs/CUDA.md), over memory that is registered as rings
// are. They prove nothing: a forbidden outcome that never shows in millions of rounds may still exist; docs/CUDA.md has
// the argument. Each test has a broken twin without the order, which must show the forbidden outcome; otherwise the
// test is blind on this machine, and prints so (no failure: some machines order more than they must).
//
//   answers   The GPU writes an answer, then `acted` with release; a host thread acquires `acted`, reads the answer
//             (pair A).
//
//   pulls     A host thread writes an observation, then `produced` with release; another acquires it and launches a
//             pull; the GPU compares what it pulled (pair P, and the order of a launch).
//
//   litmus [--rounds N]        exit status: 0 no forbidden outcome, 1 a forbidden outcome, 77 no GPU
#include <pthread.h>

#include "kernels/cuda/device.cuh"
#include "support.cuh"

enum {
    LANES = 8,  // blocks that answer at once, each into memory of its own
    SLOTS = 32, // answers that a lane may be ahead of the host
    WORDS = 96, // in an answer, written by as many threads
    THREADS = 128,
    PULLED = 64, // observations of a launch
    PULL_BYTES = 4096,
    PULL_SLOTS = 4
};

struct counter {
    uint64_t value;
    uint64_t pad[15];
};

// In registered memory, as the rings' segments are.
struct answers {
    struct counter acted[LANES], consumed[LANES]; // writers: GPU, host
    uint32_t answer[LANES][SLOTS][WORDS];
};

struct observations {
    struct counter produced[PULLED], consumed[PULLED];
    uint32_t frame[PULLED][PULL_SLOTS][PULL_BYTES / 4];
};

static __host__ __device__ uint32_t word_of(uint64_t round, uint32_t lane, uint32_t i) {
    return (uint32_t)(round * 2654435761u) ^ (lane * 40503u + i * 97u);
}

// ---- answers ----

static __device__ uint64_t load_acquire_system(const uint64_t *word) {
    uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(__cvta_generic_to_global(word)) : "memory");
    return value;
}
static __device__ void store_relaxed_system(uint64_t *word, uint64_t value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(word)), "l"(value) : "memory");
}

// broken: `acted` before the answer, and without an order.
static __global__ void __launch_bounds__(THREADS) give_answers(struct answers *a, uint64_t rounds, bool broken) {
    const uint32_t lane = blockIdx.x, i = threadIdx.x;
    for (uint64_t n = 0; n < rounds; n++) {
        if (i == 0)
            while (n - load_acquire_system(&a->consumed[lane].value) >= SLOTS) {
            }
        __syncthreads();
        if (i == 0 && broken) store_relaxed_system(&a->acted[lane].value, n + 1);
        if (i < WORDS) a->answer[lane][n % SLOTS][i] = word_of(n, lane, i);
        __syncthreads();
        if (i == 0 && !broken) farm_cuda_store_release_system(&a->acted[lane].value, n + 1);
    }
}

// Reads every answer as soon as `acted` covers it. Returns how many were incomplete.
static uint64_t read_answers(struct answers *a, uint64_t rounds) {
    uint64_t seen[LANES] = {0}, wrong = 0, left = LANES;
    while (left) {
        for (uint32_t lane = 0; lane < LANES; lane++) {
            const uint64_t acted = __atomic_load_n(&a->acted[lane].value, __ATOMIC_ACQUIRE);
            if (seen[lane] == rounds || acted == seen[lane]) continue;
            // The newest first: there the time between both stores is shortest.
            for (uint64_t n = acted; n-- > seen[lane];) {
                uint32_t bad = 0;
                for (uint32_t i = 0; i < WORDS; i++)
                    bad |= ((volatile uint32_t *)a->answer[lane][n % SLOTS])[WORDS - 1 - i] ^
                           word_of(n, lane, WORDS - 1 - i);
                wrong += bad != 0;
            }
            seen[lane] = acted;
            __atomic_store_n(&a->consumed[lane].value, acted, __ATOMIC_RELEASE);
            left -= acted == rounds;
        }
    }
    return wrong;
}

static uint64_t run_answers(uint64_t rounds, bool broken) {
    struct segment segment = segment_make(sizeof(struct answers), false);
    give_answers<<<LANES, THREADS>>>((struct answers *)segment.device, rounds / LANES, broken);
    CUDA(cudaGetLastError());
    const uint64_t wrong = read_answers((struct answers *)segment.host, rounds / LANES);
    CUDA(cudaDeviceSynchronize());
    segment_free(&segment);
    return wrong;
}

// ---- pulls ----

struct writer {
    struct observations *o;
    uint64_t rounds;
    bool broken;
};

// The actor: one step of every environment after another, as long as there is room.
static void *write_observations(void *argument) {
    const struct writer *w = (const struct writer *)argument;
    struct observations *o = w->o;
    for (uint64_t n = 0; n < w->rounds; n++)
        for (uint32_t p = 0; p < PULLED; p++) {
            while (n - __atomic_load_n(&o->consumed[p].value, __ATOMIC_ACQUIRE) >= PULL_SLOTS) {
            }
            if (w->broken) __atomic_store_n(&o->produced[p].value, n + 1, __ATOMIC_RELEASE);
            for (uint32_t i = 0; i < PULL_BYTES / 4; i++) o->frame[p][n % PULL_SLOTS][i] = word_of(n, p, i);
            if (!w->broken) __atomic_store_n(&o->produced[p].value, n + 1, __ATOMIC_RELEASE);
        }
    return NULL;
}

static __global__ void __launch_bounds__(THREADS)
    compare(const uint32_t *pulled, const uint64_t *rounds, unsigned long long *wrong) {
    const uint32_t p = blockIdx.x;
    uint32_t bad = 0;
    for (uint32_t i = threadIdx.x; i < PULL_BYTES / 4; i += THREADS)
        bad |= pulled[p * (PULL_BYTES / 4) + i] ^ word_of(rounds[p], p, i);
    if (__syncthreads_or(bad != 0) && threadIdx.x == 0) atomicAdd(wrong, 1ull);
}

// The learner: pulls what is published, then releases its slot.
static uint64_t run_pulls(uint64_t rounds, enum farm_cuda_pull_way way, bool broken) {
    struct lists {
        const void *from[PULLED];
        void *to[PULLED];
        uint64_t round[PULLED];
    };
    struct segment rings = segment_make(sizeof(struct observations), false);
    struct segment pinned = segment_make(sizeof(struct lists), false);
    struct observations *o = (struct observations *)rings.host, *device = (struct observations *)rings.device;
    struct lists *lists = (struct lists *)pinned.host, *device_lists = (struct lists *)pinned.device;
    uint32_t *mirror;
    unsigned long long *wrong, total;
    CUDA(cudaMalloc(&mirror, PULLED * PULL_BYTES));
    CUDA(cudaMalloc(&wrong, sizeof *wrong));
    CUDA(cudaMemset(wrong, 0, sizeof *wrong));
    struct writer writer = {o, rounds / PULLED, broken};
    pthread_t thread;
    pthread_create(&thread, NULL, write_observations, &writer);
    for (uint64_t n = 0; n < writer.rounds; n++) {
        for (uint32_t p = 0; p < PULLED; p++) {
            while (__atomic_load_n(&o->produced[p].value, __ATOMIC_ACQUIRE) <= n) {
            }
            lists->from[p] = device->frame[p][n % PULL_SLOTS];
            lists->to[p] = mirror + p * (PULL_BYTES / 4);
            lists->round[p] = n;
        }
        const struct farm_cuda_pull pull = {device_lists->from, device_lists->to, PULLED, PULL_BYTES, 8};
        FARM(farm_cuda_pull(NULL, way, &pull, err));
        compare<<<PULLED, THREADS>>>(mirror, device_lists->round, wrong);
        CUDA(cudaStreamSynchronize(NULL));
        for (uint32_t p = 0; p < PULLED; p++) __atomic_store_n(&o->consumed[p].value, n + 1, __ATOMIC_RELEASE);
    }
    pthread_join(thread, NULL);
    CUDA(cudaMemcpy(&total, wrong, sizeof total, cudaMemcpyDeviceToHost));
    CUDA(cudaFree(mirror));
    CUDA(cudaFree(wrong));
    segment_free(&pinned);
    segment_free(&rings);
    return total;
}

// ---- outcomes ----

static uint64_t forbidden;

static void print_outcome(const char *name, uint64_t rounds, uint64_t wrong, uint64_t broken) {
    printf("%-18s %12llu rounds, %llu forbidden outcomes; without the order %llu%s\n", name, (unsigned long long)rounds,
           (unsigned long long)wrong, (unsigned long long)broken, broken ? "" : ": blind on this machine");
    forbidden += wrong;
}

int main(int argc, char **argv) {
    uint64_t rounds = 4000000;
    int devices = 0;
    if (argc == 3 && strcmp(argv[1], "--rounds") == 0) rounds = strtoull(argv[2], NULL, 10);
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < 1) {
        printf("no GPU\n");
        return 77;
    }
    print_outcome("answers", rounds, run_answers(rounds, false), run_answers(rounds / 10, true));
    print_outcome("pulls, loads", rounds, run_pulls(rounds, FARM_CUDA_PULL_LOADS, false),
                  run_pulls(rounds / 10, FARM_CUDA_PULL_LOADS, true));
    struct farm_error why;
    if (farm_cuda_pull_supported(FARM_CUDA_PULL_BULK, &why) == FARM_OK)
        print_outcome("pulls, bulk copies", rounds, run_pulls(rounds, FARM_CUDA_PULL_BULK, false),
                      run_pulls(rounds / 10, FARM_CUDA_PULL_BULK, true));
    printf("%s\n", forbidden ? "FORBIDDEN OUTCOMES SEEN" : "no forbidden outcome");
    return forbidden != 0;
}
