// The other way to infer: a kernel that never ends. It looks for `produced` in the host's memory by itself, reads the
// observation past the caches, answers, and looks again: nothing is launched, no list is filled, no other thread of the
// host takes part. What that gains beside the path of `farm train` (round_trip.c; taken apart in bench_launches.cu) at
// the price of the multiprocessor it sits on. Times are an actor's, from before `produced` is stored until `acted` has
// been seen, both sides spinning, over registered memory as the rings have it (`up` read-only for the GPU):
//
//   word      nothing but the two counters: what the bus itself takes
//   smallest  the smallest network of round_trip.c, its parameters read anew each step, sampled and answered
//   7056      84x84 bytes copied into a mirror in device memory, then an answer; no network
//
// Answers are held against the CPU's, every one; the mirror at the end. The kernel ends by itself: after its rounds,
// when the host says stop, or when the host has been silent for five seconds. Kinds take turns, a kernel each.
//
// Over the CPU's stand-in the kernel runs in a thread of the host that waits for it, so that all of this but the times
// is tested without a GPU.
#include "bench.cuh"
#include "smallest.cuh"
#include "system.cuh"

#include <pthread.h>
#include <sched.h>

extern "C" {
#include "base/time.h"
}

enum kind { WORD, SMALLEST, PIXELS, KINDS };
static const char *const names[KINDS] = {"resident_word", "resident_smallest", "resident_7056_bytes"};

enum {
    SLOTS = 64,
    PIXEL_BYTES = 84 * 84,
    VECTORS = PIXEL_BYTES / 16,
    TURNS = 8,
    ROUNDS = 2500, // of a turn
    WARMUP = 100,
    FEW_ROUNDS = 20,
    SPINS_PER_LOOK = 1024
};
static const uint64_t SILENCE_NS = 5000000000u, PATIENCE_NS = 10000000000u;

// As an actor's segments: the one that it writes, and the one in which it finds its answers.
struct up {
    uint64_t produced, pad[15];
    uint64_t stop, more_pad[15];
    alignas(128) uint8_t observation[SLOTS][VECTORS + 7][16];
};
struct answer {
    int32_t action;
    float value;
    uint64_t version;
    float logits[SMALLEST_ACTIONS];
};
struct down {
    uint64_t acted, pad[15];
    alignas(128) struct answer answer[SLOTS];
};

struct residence {
    const struct up *up; // device addresses, all of them
    struct down *down;
    const uint16_t *params;
    const uint64_t *version;
    struct sixteen_bytes *mirror; // [SLOTS][VECTORS]
    struct farm_sampler sampler;
    uint64_t rounds;
};

// ---- the kernel ----

// Whether step n comes. Thread 0 looks; the others read what it has seen behind the barrier, so that the observation
// that `produced` stands for is there for all of them.
static __device__ bool step_comes(const struct up *up, uint64_t n) {
    __shared__ uint32_t comes;
    if (threadIdx.x == 0) {
        const uint64_t start = clock_ns();
        bool there = false;
        for (uint32_t spins = 1; !there; spins++) {
            there = load_acquire_system(&up->produced) > n;
            if (spins % SPINS_PER_LOOK == 0 && (load_acquire_system(&up->stop) || clock_ns() - start > SILENCE_NS))
                break;
        }
        comes = there;
    }
    __syncthreads();
    return comes; // the next step's is written behind the barrier of this one's answer
}

static __device__ float rounded(float x) {
    return farm_bf16_value(farm_cuda_bf16(x));
}

static __device__ void infer_smallest(const struct residence &r, uint64_t n, struct answer *answer) {
    __shared__ float input[SMALLEST_FLAT], units[SMALLEST_UNITS], outputs[SMALLEST_OUTPUTS];
    const uint32_t i = threadIdx.x;
    if (i < SMALLEST_FLAT) {
        const uint32_t bits = load_relaxed_system((const uint32_t *)r.up->observation[n % SLOTS] + i);
        float number;
        memcpy(&number, &bits, sizeof number);
        input[i] = rounded(number);
    }
    __syncthreads();
    if (i < SMALLEST_UNITS) units[i] = rounded(smallest_unit(r.params, input, i));
    __syncthreads();
    if (i < SMALLEST_OUTPUTS) outputs[i] = smallest_output(r.params, units, i);
    __syncthreads();
    if (i < SMALLEST_ACTIONS) answer->logits[i] = outputs[i];
    if (i == SMALLEST_ACTIONS) answer->value = outputs[i];
    if (i == SMALLEST_OUTPUTS) answer->version = *r.version;
    if (i == 0) answer->action = farm_sample_action(&r.sampler, farm_random_stream(0, 0), n, outputs, SMALLEST_ACTIONS);
}

static __device__ void take_pixels(const struct residence &r, uint64_t n, struct answer *answer) {
    const uint32_t i = threadIdx.x, slot = n % SLOTS;
    if (i >= VECTORS) return;
    const struct sixteen_bytes pixels = load_relaxed_system((const struct sixteen_bytes *)r.up->observation[slot] + i);
    r.mirror[slot * VECTORS + i] = pixels;
    if (i == 0) {
        answer->action = (int32_t)(pixels.low % SMALLEST_ACTIONS);
        answer->version = *r.version;
    }
}

template <enum kind KIND>
static __global__ void __launch_bounds__(KIND == PIXELS ? 448 : 32) reside(const struct residence r) {
    for (uint64_t n = 0; n < r.rounds && step_comes(r.up, n); n++) {
        struct answer *answer = &r.down->answer[n % SLOTS];
        if (KIND == SMALLEST) infer_smallest(r, n, answer);
        if (KIND == PIXELS) take_pixels(r, n, answer);
        __syncthreads();
        if (threadIdx.x == 0) farm_cuda_store_release_system(&r.down->acted, n + 1);
    }
}

static void launch(enum kind kind, const struct residence *r) {
    const unsigned threads = kind == PIXELS ? 448 : 32;
    FARM(farm_cuda_launch({"reside", NULL, 1, threads}, err,
                          kind == WORD       ? reside<WORD>
                          : kind == SMALLEST ? reside<SMALLEST>
                                             : reside<PIXELS>,
                          *r));
}

// ---- the host ----

struct bench {
    struct random rng;
    struct segment up_segment, down_segment;
    struct up *up;
    struct down *down;
    struct residence residence;
    uint16_t params[SMALLEST_PARAMETERS];
    uint64_t version;
    int other; // choices on the border of two actions, which may fall to either side
    bool few;
    double *times[KINDS]; // ns
};

struct stay {
    enum kind kind;
    struct residence residence;
};

static void *stay(void *argument) {
    const struct stay *s = (const struct stay *)argument;
    launch(s->kind, &s->residence);
    CUDA(cudaStreamSynchronize(NULL));
    return NULL;
}

static void write_observation(struct bench *b, enum kind kind, uint64_t n) {
    uint8_t *at = &b->up->observation[n % SLOTS][0][0];
    if (kind == SMALLEST)
        for (int i = 0; i < SMALLEST_FLAT; i++) ((float *)at)[i] = random_float(&b->rng, -2, 2);
    if (kind == PIXELS)
        for (size_t i = 0; i < PIXEL_BYTES / 8; i++) ((uint64_t *)at)[i] = farm_random_mix(n * PIXEL_BYTES + i);
}

static const char *wrong_with_answer(struct bench *b, enum kind kind, uint64_t n) {
    const struct answer *answer = &b->down->answer[n % SLOTS];
    const uint8_t *at = &b->up->observation[n % SLOTS][0][0];
    float outputs[SMALLEST_OUTPUTS];
    if (kind != WORD && answer->version != b->version) return "a resident kernel's version";
    if (kind == PIXELS && answer->action != (int32_t)(*(const uint64_t *)at % SMALLEST_ACTIONS))
        return "a resident kernel's answer to pixels";
    if (kind != SMALLEST) return NULL;
    smallest_forward(b->params, (const float *)at, outputs);
    if (memcmp(answer->logits, outputs, sizeof answer->logits) || answer->value != outputs[SMALLEST_ACTIONS])
        return "a resident kernel's logits";
    const int expected =
        farm_sample_action(&b->residence.sampler, farm_random_stream(0, 0), n, outputs, SMALLEST_ACTIONS);
    return answer->action == expected || b->other++ < 2 ? NULL : "a resident kernel's action";
}

// False where no answer comes.
static bool wait_for_answer(const struct bench *b, uint64_t n, uint64_t start) {
    uint32_t spins = 1;
    while (__atomic_load_n(&b->down->acted, __ATOMIC_ACQUIRE) <= n) {
        if (b->few) sched_yield(); // the kernel may be a thread of this CPU
        if (spins++ % SPINS_PER_LOOK == 0 && farm_now_ns() - start > PATIENCE_NS) return false;
    }
    return true;
}

// An actor's rounds beside a kernel that is there. ns: [rounds], without the warm-up. NULL, or what was wrong.
static const char *act(struct bench *b, enum kind kind, uint64_t warm_up, uint64_t rounds, double *ns) {
    for (uint64_t n = 0; n < warm_up + rounds; n++) {
        write_observation(b, kind, n);
        const uint64_t start = farm_now_ns();
        __atomic_store_n(&b->up->produced, n + 1, __ATOMIC_RELEASE);
        if (!wait_for_answer(b, n, start)) return "a resident kernel that does not answer";
        if (n >= warm_up) ns[n - warm_up] = (double)(farm_now_ns() - start);
        const char *wrong = wrong_with_answer(b, kind, n);
        if (wrong) return wrong;
    }
    return NULL;
}

static void compare_mirror(const struct bench *b, uint64_t steps) {
    struct sixteen_bytes *got = host_of(b->residence.mirror, SLOTS * VECTORS);
    for (uint64_t slot = 0; slot < SLOTS && slot < steps; slot++)
        if (memcmp(got + slot * VECTORS, b->up->observation[slot], PIXEL_BYTES))
            bench_fail("a resident kernel's mirror");
    free(got);
}

static void take_turn(struct bench *b, enum kind kind, uint64_t warm_up, uint64_t rounds, double *ns) {
    pthread_t thread;
    struct stay s = {kind, b->residence};
    s.residence.rounds = warm_up + rounds;
    b->up->produced = b->up->stop = b->down->acted = 0;
    memset(b->down->answer, POISON, sizeof b->down->answer);
    CUDA(cudaMemset(b->residence.mirror, POISON, SLOTS * VECTORS * 16));
    CUDA(cudaDeviceSynchronize());
    if (pthread_create(&thread, NULL, stay, &s)) bench_fail("a thread for the resident kernel");
    const char *wrong = act(b, kind, warm_up, rounds, ns);
    if (wrong) __atomic_store_n(&b->up->stop, 1, __ATOMIC_RELEASE);
    pthread_join(thread, NULL);
    if (wrong) bench_fail(wrong);
    if (kind == PIXELS) compare_mirror(b, warm_up + rounds);
}

// Told to stop in the middle of its rounds, the kernel ends.
static void stop_early(struct bench *b) {
    pthread_t thread;
    struct stay s = {WORD, b->residence};
    s.residence.rounds = UINT64_MAX;
    b->up->produced = b->up->stop = b->down->acted = 0;
    if (pthread_create(&thread, NULL, stay, &s)) bench_fail("a thread for the resident kernel");
    double ns[1];
    const char *wrong = act(b, WORD, 0, 1, ns);
    __atomic_store_n(&b->up->stop, 1, __ATOMIC_RELEASE);
    pthread_join(thread, NULL);
    if (wrong || b->down->acted != 1) bench_fail(wrong ? wrong : "a resident kernel that was to stop");
}

static void bench_make(struct bench *b, uint64_t seed, bool few) {
    float params[SMALLEST_PARAMETERS];
    b->rng = {seed, 0};
    b->few = few;
    b->version = 77;
    b->up_segment = segment_make((sizeof(struct up) + 4095) / 4096 * 4096, true);
    b->down_segment = segment_make((sizeof(struct down) + 4095) / 4096 * 4096, false);
    b->up = (struct up *)b->up_segment.host;
    b->down = (struct down *)b->down_segment.host;
    smallest_net();
    smallest_parameters(&b->rng, params, b->params);
    b->residence.up = (const struct up *)b->up_segment.device;
    b->residence.down = (struct down *)b->down_segment.device;
    b->residence.params = device_of(b->params, SMALLEST_PARAMETERS);
    b->residence.version = device_of(&b->version, 1);
    b->residence.mirror = (struct sixteen_bytes *)device_poisoned(SLOTS * VECTORS * 16);
    b->residence.sampler.mode = FARM_SAMPLE_CATEGORICAL;
    b->residence.sampler.seed = seed;
    for (double *&times : b->times) times = (double *)malloc(TURNS * ROUNDS * sizeof(double));
}

static void bench_free(struct bench *b) {
    for (const void *memory :
         {(const void *)b->residence.params, (const void *)b->residence.version, (const void *)b->residence.mirror})
        CUDA(cudaFree((void *)memory));
    segment_free(&b->up_segment);
    segment_free(&b->down_segment);
    for (double *times : b->times) free(times);
}

int bench_resident(uint64_t seed, bool few) {
    struct bench b = {};
    bench_make(&b, seed, few);
    const int turns = few ? 1 : TURNS, rounds = few ? FEW_ROUNDS : ROUNDS, warm_up = few ? SLOTS : WARMUP;
    for (int turn = 0; turn < turns; turn++)
        for (int kind = 0; kind < KINDS; kind++)
            take_turn(&b, (enum kind)kind, (uint64_t)warm_up, (uint64_t)rounds, b.times[kind] + turn * rounds);
    stop_early(&b);
    bench_begin("cuda_resident", seed);
    double least = 0;
    for (int kind = 0; kind < KINDS; kind++) {
        const double p50 = bench_print_times(names[kind], b.times[kind], turns * rounds, names[WORD], least);
        if (kind == WORD) least = p50;
    }
    bench_end();
    bench_free(&b);
    return 0;
}
