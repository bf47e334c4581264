// The bandwidth kernels in 16-byte vectors (SSE2, NEON); names, contents, the variant at run time. See bandwidth.h.
#include "kernels/bandwidth.h"

#include <assert.h>
#include <string.h>

#include "kernels/random.h"

#define BANDWIDTH_VECTOR 16
#define BANDWIDTH_RUN    farm_bandwidth_run_portable
#include "kernels/bandwidth_loops.h"

enum {
    SCALARS = 1024,
    VALUE_BITS = 20, // in the sources' values: with them s·b + a and 2^31 passes of a + b stay below 2^53
    WORDS = BANDWIDTH_LINE_DOUBLES,
};

// Plain C has no non-temporal stores: farm_bandwidth_has_nontemporal.
BANDWIDTH_INLINE void bandwidth_stream(double *to, bandwidth_vector x) {
    *(bandwidth_vector *)(void *)to = x;
}
BANDWIDTH_INLINE void bandwidth_stream_end(void) {}

// ---- names and bytes ----

const char *farm_bandwidth_op_name(enum farm_bandwidth_op op) {
    static const char *const names[FARM_BANDWIDTH_OPS] = {"read",  "write",   "copy",    "scale",  "add",
                                                          "triad", "mix 1:1", "mix 2:1", "mix 3:1"};
    return names[op];
}

const char *farm_bandwidth_variant_name(enum farm_bandwidth_variant variant) {
    static const char *const names[FARM_BANDWIDTH_VARIANTS] = {"best", "portable", "avx2", "avx512"};
    return names[variant];
}

const char *farm_bandwidth_pattern_name(enum farm_bandwidth_pattern pattern) {
    static const char *const names[] = {"sequential", "strided", "shuffled"};
    return names[pattern];
}

// Whether d is read before it is written.
static bool updates(enum farm_bandwidth_op op) {
    return op >= FARM_BANDWIDTH_MIX11;
}

int farm_bandwidth_arrays(enum farm_bandwidth_op op) {
    return farm_bandwidth_uses_d(op) + farm_bandwidth_uses_a(op) + farm_bandwidth_uses_b(op);
}

int farm_bandwidth_program_bytes(enum farm_bandwidth_op op) {
    return FARM_BANDWIDTH_LINE * (farm_bandwidth_arrays(op) + updates(op));
}

int farm_bandwidth_bus_bytes(enum farm_bandwidth_op op, enum farm_bandwidth_stores stores) {
    const bool allocates = farm_bandwidth_uses_d(op) && !updates(op) && stores == FARM_BANDWIDTH_TEMPORAL;
    return farm_bandwidth_program_bytes(op) + (allocates ? FARM_BANDWIDTH_LINE : 0);
}

// ---- variants ----

#if defined(__x86_64__)
uint64_t farm_bandwidth_run_avx2(const struct farm_bandwidth_work *work, uint64_t first_pass, uint64_t passes);
uint64_t farm_bandwidth_run_avx512(const struct farm_bandwidth_work *work, uint64_t first_pass, uint64_t passes);

bool farm_bandwidth_has(enum farm_bandwidth_variant variant) {
    if (variant == FARM_BANDWIDTH_AVX2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (variant == FARM_BANDWIDTH_AVX512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("fma");
    return true;
}

static uint64_t run_variant(const struct farm_bandwidth_work *work, enum farm_bandwidth_variant variant,
                            uint64_t first_pass, uint64_t passes) {
    if (variant == FARM_BANDWIDTH_AVX2) return farm_bandwidth_run_avx2(work, first_pass, passes);
    if (variant == FARM_BANDWIDTH_AVX512) return farm_bandwidth_run_avx512(work, first_pass, passes);
    return farm_bandwidth_run_portable(work, first_pass, passes);
}
#else
bool farm_bandwidth_has(enum farm_bandwidth_variant variant) {
    return variant == FARM_BANDWIDTH_BEST || variant == FARM_BANDWIDTH_PORTABLE;
}

static uint64_t run_variant(const struct farm_bandwidth_work *work, enum farm_bandwidth_variant variant,
                            uint64_t first_pass, uint64_t passes) {
    return farm_bandwidth_run_portable(work, first_pass, passes);
}
#endif

enum farm_bandwidth_variant farm_bandwidth_resolve(enum farm_bandwidth_variant variant) {
    if (variant != FARM_BANDWIDTH_BEST) return variant;
    if (farm_bandwidth_has(FARM_BANDWIDTH_AVX512)) return FARM_BANDWIDTH_AVX512;
    return farm_bandwidth_has(FARM_BANDWIDTH_AVX2) ? FARM_BANDWIDTH_AVX2 : FARM_BANDWIDTH_PORTABLE;
}

bool farm_bandwidth_has_nontemporal(enum farm_bandwidth_variant variant) {
    return farm_bandwidth_resolve(variant) != FARM_BANDWIDTH_PORTABLE;
}

static bool is_aligned(const void *array) {
    return array && (uintptr_t)array % FARM_BANDWIDTH_LINE == 0;
}

uint64_t farm_bandwidth_run(const struct farm_bandwidth_work *work, enum farm_bandwidth_variant variant,
                            uint64_t first_pass, uint64_t passes) {
    assert(farm_bandwidth_has(variant) && work->lines > 0);
    assert((!farm_bandwidth_uses_d(work->op) || is_aligned(work->d)) &&
           (!farm_bandwidth_uses_a(work->op) || is_aligned(work->a)) &&
           (!farm_bandwidth_uses_b(work->op) || is_aligned(work->b)));
    assert(work->pattern != FARM_BANDWIDTH_STRIDED || (work->stride_lines && work->stride_lines <= work->lines));
    assert(work->pattern != FARM_BANDWIDTH_LISTED || work->order);
    return run_variant(work, farm_bandwidth_resolve(variant), first_pass, passes);
}

// ---- contents ----

double farm_bandwidth_scalar(uint64_t pass) {
    return (double)(pass % SCALARS + 1);
}

// Neighbours differ, and so do a and b at the same place. 32-bit arithmetic, which compilers vectorise.
static inline double value(size_t index, uint32_t salt) {
    return (double)(int32_t)(((uint32_t)index * 2654435761u + salt) >> (32 - VALUE_BITS));
}
static inline double value_of_a(size_t index) {
    return value(index, 0x5bd1e995u);
}
static inline double value_of_b(size_t index) {
    return value(index, 0x85ebca6bu);
}
// Before the first pass. If the op does not read d, a value that no op writes.
BANDWIDTH_INLINE double first_of_d(enum farm_bandwidth_op op, size_t index) {
    return updates(op) ? (double)(index & 0xffff) : -1 - (double)(index & 0xffff);
}

// Sum of the scalars of passes 0 .. passes - 1.
static double sum_of_scalars(uint64_t passes) {
    const uint64_t rounds = passes / SCALARS, rest = passes % SCALARS;
    return (double)(rounds * (SCALARS * (SCALARS + 1) / 2) + rest * (rest + 1) / 2);
}

BANDWIDTH_INLINE double value_of_d(enum farm_bandwidth_op op, size_t index, uint64_t passes, double scalar,
                                   double scalars) {
    const double a = value_of_a(index), b = value_of_b(index), before = first_of_d(op, index);
    if (passes == 0) return before;
    switch (op) {
    case FARM_BANDWIDTH_WRITE:
        return scalar;
    case FARM_BANDWIDTH_COPY:
        return a;
    case FARM_BANDWIDTH_SCALE:
        return scalar * a;
    case FARM_BANDWIDTH_ADD:
        return a + b;
    case FARM_BANDWIDTH_TRIAD:
        return a + scalar * b;
    case FARM_BANDWIDTH_MIX11:
        return before + scalars;
    case FARM_BANDWIDTH_MIX21:
        return before + (double)passes * a;
    case FARM_BANDWIDTH_MIX31:
        return before + (double)passes * (a + b);
    default:
        return 0;
    }
}

void farm_bandwidth_fill(const struct farm_bandwidth_work *work, bool sources) {
    double *a = (double *)(uintptr_t)work->a, *b = (double *)(uintptr_t)work->b;
    const size_t count = work->lines * WORDS;
    for (size_t i = 0; sources && farm_bandwidth_uses_a(work->op) && i < count; i++) a[i] = value_of_a(i);
    for (size_t i = 0; sources && farm_bandwidth_uses_b(work->op) && i < count; i++) b[i] = value_of_b(i);
    for (size_t i = 0; farm_bandwidth_uses_d(work->op) && i < count; i++) work->d[i] = first_of_d(work->op, i);
}

static inline uint64_t bits_of(double number) {
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    return bits;
}

uint64_t farm_bandwidth_expected_sum(const struct farm_bandwidth_work *work, uint64_t passes) {
    uint64_t sum = 0;
    for (size_t i = 0; i < work->lines * WORDS; i++) sum += bits_of(value_of_a(i));
    return sum * passes;
}

// The first index of a line that an array holds wrong; count: none. op is a constant wherever this is inlined.
BANDWIDTH_INLINE size_t first_wrong(const struct farm_bandwidth_work *work, enum farm_bandwidth_op op, uint64_t passes,
                                    size_t count) {
    const double scalar = passes ? farm_bandwidth_scalar(passes - 1) : 0, scalars = sum_of_scalars(passes);
    for (size_t at = 0; at < count; at += WORDS) {
        uint64_t differs = 0;
        for (size_t i = at; i < at + WORDS; i++) {
            if (farm_bandwidth_uses_a(op)) differs |= bits_of(work->a[i]) ^ bits_of(value_of_a(i));
            if (farm_bandwidth_uses_b(op)) differs |= bits_of(work->b[i]) ^ bits_of(value_of_b(i));
            if (farm_bandwidth_uses_d(op))
                differs |= bits_of(work->d[i]) ^ bits_of(value_of_d(op, i, passes, scalar, scalars));
        }
        if (differs) return at;
    }
    return count;
}

bool farm_bandwidth_verify(const struct farm_bandwidth_work *work, uint64_t passes, size_t *wrong_line) {
    const size_t count = work->lines * WORDS;
    size_t at = count;
#define VERIFY(op)                                                                                                     \
    case op:                                                                                                           \
        at = first_wrong(work, op, passes, count);                                                                     \
        break;
    switch (work->op) {
        BANDWIDTH_FOR_EACH_OP(VERIFY)
    default:
        break;
    }
#undef VERIFY
    if (wrong_line) *wrong_line = at / WORDS;
    return at == count;
}

// Fisher and Yates; a random number below n by multiplication (its bias is below n / 2^32).
void farm_bandwidth_shuffle(uint32_t *order, size_t lines, uint64_t seed) {
    assert(lines <= (uint64_t)UINT32_MAX + 1);
    for (size_t i = 0; i < lines; i++) order[i] = (uint32_t)i;
    for (size_t i = lines; i > 1; i--) {
        const struct farm_philox_block random = farm_random_block(seed, 0, i);
        const uint64_t bits = (uint64_t)random.word[0] << 32 | random.word[1];
        const size_t other = (size_t)((unsigned __int128)bits * i >> 64);
        const uint32_t held = order[i - 1];
        order[i - 1] = order[other], order[other] = held;
    }
}
