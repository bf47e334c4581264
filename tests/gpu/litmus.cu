// Litmus tests of the orders that lanes rely on across the bus (docs/CUDA.md), over memory that is registered as rings
// are. Not a proof: a forbidden outcome that never shows in millions of rounds is no evidence that it cannot; the
// argument stands in the document. What they are able to find is shown by their broken twins, in which the
// order is given up: these must show the forbidden outcome, else the test says that it is blind here (which is no
// failure: some machines order more than they must).
//
//   answers   The GPU writes an answer, then `acted` with release; a host thread acquires `acted`, reads the answer
//             (pair A). By a kernel that does nothing else, so that the moment between both is met as often as can be;
//             then by the learner's own (farm_cuda_answer), a launch a step.
//
//   pulls     A host thread writes an observation, then `produced` with release; another acquires it and launches a
//             pull; the GPU compares what it pulled (pair P, and the order of a launch).
//
//   litmus [--rounds N]        exit status: 0 nothing forbidden seen, 1 something was, 77 no GPU
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/cuda/device.cuh"
#include "support.cuh"

enum {
    LANES = 8,  // blocks that answer at once, each into memory of its own
    SLOTS = 32, // answers that a lane may be ahead of the host
    WORDS = 96, // of an answer, written by as many threads
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

static void *registered(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) {
        printf("FAIL no memory for %zu bytes\n", bytes);
        exit(1);
    }
    CUDA(cudaHostRegister(memory, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped));
    return memory;
}
static void release(void *memory, size_t bytes) {
    CUDA(cudaHostUnregister(memory));
    munmap(memory, bytes);
}
template <typename T> static T *mapped(T *host) {
    void *device;
    CUDA(cudaHostGetDevicePointer(&device, host, 0));
    return (T *)device;
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

// Reads every answer the moment `acted` tells of it. Returns how many were not whole.
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

static uint64_t answers(uint64_t rounds, bool broken) {
    struct answers *a = (struct answers *)registered(sizeof *a);
    give_answers<<<LANES, THREADS>>>(mapped(a), rounds / LANES, broken);
    CUDA(cudaGetLastError());
    const uint64_t wrong = read_answers(a, rounds / LANES);
    CUDA(cudaDeviceSynchronize());
    release(a, sizeof *a);
    return wrong;
}

// ---- answers of the learner's kernel ----

enum { ENVIRONMENTS = 8, ACTIONS = 6, ROWS = LANES * ENVIRONMENTS };

// In registered memory, as `down` segments are.
struct step {
    int32_t action[ENVIRONMENTS];
    float logits[ENVIRONMENTS][ACTIONS], value[ENVIRONMENTS];
    uint64_t version;
};
struct down {
    struct counter acted[LANES], consumed[LANES];
    struct step steps[LANES][SLOTS];
};

// In device memory: what the kernel reads.
struct rows {
    struct farm_cuda_answer_lane lanes[LANES];
    int32_t action[ROWS];
    float logits[ROWS][ACTIONS], value[ROWS];
    uint64_t version;
};

static __host__ __device__ float number_of(uint64_t round, uint32_t row, uint32_t i) {
    return (float)(word_of(round, row, i) >> 8);
}

// Round n's rows, and where they go.
static __global__ void __launch_bounds__(ROWS) make_rows(struct rows *rows, struct down *down, uint64_t n) {
    const uint32_t row = threadIdx.x;
    rows->action[row] = (int32_t)word_of(n, row, 0);
    rows->value[row] = number_of(n, row, 1);
    for (uint32_t i = 0; i < ACTIONS; i++) rows->logits[row][i] = number_of(n, row, 2 + i);
    if (row == 0) rows->version = n;
    if (row >= LANES) return;
    struct step *step = &down->steps[row][n % SLOTS];
    rows->lanes[row] = {(uint8_t *)step->action, step->logits[0],         step->value,
                        &step->version,          &down->acted[row].value,
                        /*acted_value*/ n + 1,   row * ENVIRONMENTS,      ENVIRONMENTS};
}

static bool whole(const volatile struct step *step, uint32_t lane, uint64_t n) {
    bool same = step->version == n;
    for (uint32_t e = ENVIRONMENTS; e-- > 0;) {
        const uint32_t row = lane * ENVIRONMENTS + e;
        same &= step->value[e] == number_of(n, row, 1) && step->action[e] == (int32_t)word_of(n, row, 0);
        for (uint32_t i = ACTIONS; i-- > 0;) same &= step->logits[e][i] == number_of(n, row, 2 + i);
    }
    return same;
}

struct reader {
    struct down *down;
    uint64_t rounds, wrong;
};

// The actors: every answer the moment `acted` tells of it, the newest first.
static void *read_steps(void *argument) {
    struct reader *r = (struct reader *)argument;
    uint64_t seen[LANES] = {0}, left = LANES;
    while (left)
        for (uint32_t lane = 0; lane < LANES; lane++) {
            const uint64_t acted = __atomic_load_n(&r->down->acted[lane].value, __ATOMIC_ACQUIRE);
            if (acted == seen[lane]) continue;
            for (uint64_t n = acted; n-- > seen[lane];) r->wrong += !whole(&r->down->steps[lane][n % SLOTS], lane, n);
            seen[lane] = acted;
            __atomic_store_n(&r->down->consumed[lane].value, acted, __ATOMIC_RELEASE);
            left -= acted == r->rounds;
        }
    return NULL;
}

static uint64_t steps_answered(uint64_t answers) {
    struct segment segment = segment_make(sizeof(struct down), false);
    struct down *down = (struct down *)segment.host, *device_down = (struct down *)segment.device;
    struct rows *rows;
    CUDA(cudaMalloc(&rows, sizeof *rows));
    struct reader reader = {down, answers / LANES, 0};
    pthread_t thread;
    pthread_create(&thread, NULL, read_steps, &reader);
    const struct farm_cuda_answer answer = {
        rows->lanes, LANES,         farm_head_categorical(ACTIONS), (const uint8_t *)rows->action, rows->logits[0],
        rows->value, &rows->version};
    for (uint64_t n = 0; n < reader.rounds; n++) {
        for (uint32_t lane = 0; lane < LANES; lane++)
            while (n - __atomic_load_n(&down->consumed[lane].value, __ATOMIC_ACQUIRE) >= SLOTS) {
            }
        make_rows<<<1, ROWS>>>(rows, device_down, n);
        FARM(farm_cuda_answer(NULL, &answer, err));
    }
    pthread_join(thread, NULL);
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaFree(rows));
    segment_free(&segment);
    return reader.wrong;
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

// The learner: whatever is published is pulled, then its slot given back.
static uint64_t pulls(uint64_t rounds, enum farm_cuda_pull_way way, bool broken) {
    struct observations *o = (struct observations *)registered(sizeof *o), *device = mapped(o);
    struct lists {
        const void *from[PULLED];
        void *to[PULLED];
        uint64_t round[PULLED];
    } *lists = (struct lists *)registered(sizeof *lists), *device_lists = mapped(lists);
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
    release(lists, sizeof *lists);
    release(o, sizeof *o);
    return total;
}

// ---- what was seen ----

static uint64_t forbidden;

static void tell(const char *name, uint64_t rounds, uint64_t wrong, uint64_t broken) {
    printf("%-18s %12llu rounds, %llu forbidden outcomes; with the order given up %llu%s\n", name,
           (unsigned long long)rounds, (unsigned long long)wrong, (unsigned long long)broken,
           broken ? "" : ": blind on this machine");
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
    tell("answers", rounds, answers(rounds, false), answers(rounds / 10, true));
    const uint64_t wrong_steps = steps_answered(rounds);
    forbidden += wrong_steps;
    printf("%-18s %12llu rounds, %llu forbidden outcomes\n", "learner's answers", (unsigned long long)rounds,
           (unsigned long long)wrong_steps);
    tell("pulls, loads", rounds, pulls(rounds, FARM_CUDA_PULL_LOADS, false),
         pulls(rounds / 10, FARM_CUDA_PULL_LOADS, true));
    struct farm_error why;
    if (farm_cuda_pull_supported(FARM_CUDA_PULL_BULK, &why) == FARM_OK)
        tell("pulls, bulk copies", rounds, pulls(rounds, FARM_CUDA_PULL_BULK, false),
             pulls(rounds / 10, FARM_CUDA_PULL_BULK, true));
    printf("%s\n", forbidden ? "FORBIDDEN OUTCOMES SEEN" : "nothing forbidden seen");
    return forbidden != 0;
}
