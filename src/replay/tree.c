// See tree.h.
#include "replay/tree.h"

#include <sys/mman.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "shm/place.h"

enum { NODE = FARM_TREE_NODE, BATCH = 256 }; // BATCH: leaves at a time, on the stack
#define AVX2   __attribute__((target("avx2")))
#define AVX512 __attribute__((target("avx512f,avx512bw")))

// ---- descents ----

// Level by level, so that the batch's nodes are fetched at once.
#define DESCENT(target, name, find_in)                                                                                 \
    target static void name(const struct farm_tree *tree, double *at, uint32_t count, uint64_t *leaves) {              \
        float sums[NODE + 1] = {0};                                                                                    \
        for (uint32_t i = 0; i < count; i++) leaves[i] = 0;                                                            \
        for (uint32_t k = tree->top; k-- > 0;)                                                                         \
            for (uint32_t i = 0; i < count; i++) {                                                                     \
                const uint32_t child = find_in(tree->level[k] + leaves[i] * NODE, (float)at[i], sums + 1);             \
                leaves[i] = leaves[i] * NODE + child;                                                                  \
                at[i] = at[i] > (double)sums[child] ? at[i] - (double)sums[child] : 0;                                 \
                if (k) __builtin_prefetch(tree->level[k - 1] + leaves[i] * NODE);                                      \
            }                                                                                                          \
    }

// Each finds the first child above 0 whose prefix sum exceeds `at`, or, because sums are rounded, the last one above 0.
// sum[NODE]: receives the prefix sums, added in one order: x1+x0, (x2+x1)+x0, (x3+x2)+(x1+x0) in each four children; to
// these the four before in the same eight; to these the lower eight.
static inline uint32_t find(const float *x, float at, float *sum) {
    for (int i = 0; i < NODE; i += 4) {
        sum[i] = x[i];
        sum[i + 1] = x[i + 1] + x[i];
        sum[i + 2] = (x[i + 2] + x[i + 1]) + x[i];
        sum[i + 3] = (x[i + 3] + x[i + 2]) + sum[i + 1];
    }
    for (int i = 0; i < 4; i++) sum[4 + i] += sum[3], sum[12 + i] += sum[11];
    for (int i = 8; i < NODE; i++) sum[i] += sum[7];
    uint32_t child = 0;
    for (uint32_t i = 0; i < NODE && !(x[child] > 0 && sum[child] > at); i++) child = x[i] > 0 ? i : child;
    return child;
}
DESCENT(, descend, find)

#if defined(__x86_64__)
// The child, from a bit for each: above 0, and with a sum that exceeds the place.
static inline uint32_t choose(uint32_t positive, uint32_t beyond) {
    return positive & beyond ? (uint32_t)__builtin_ctz(positive & beyond) : 31 - (uint32_t)__builtin_clz(positive | 1);
}

#define SHIFTED(bits, x, bytes)                                                                                        \
    _mm##bits##_castsi##bits##_ps(_mm##bits##_bslli_epi128(_mm##bits##_castps_si##bits(x), bytes))

AVX2 static inline __m256 sums_of_eight(__m256 x) {
    x = _mm256_add_ps(x, SHIFTED(256, x, 4));
    x = _mm256_add_ps(x, SHIFTED(256, x, 8));
    const __m256 fours = _mm256_permute_ps(x, 0xff);
    return _mm256_add_ps(x, _mm256_permute2f128_ps(fours, fours, 0x08));
}

AVX2 static inline uint32_t bits_above(__m256 low, __m256 high, __m256 bound) {
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(low, bound, _CMP_GT_OQ)) |
           (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(high, bound, _CMP_GT_OQ)) << 8;
}

AVX2 static inline uint32_t find_avx2(const float *node, float at, float *sum) {
    const __m256 x = _mm256_load_ps(node), y = _mm256_load_ps(node + 8), low = sums_of_eight(x);
    const __m256 high = _mm256_add_ps(sums_of_eight(y), _mm256_permutevar8x32_ps(low, _mm256_set1_epi32(7)));
    _mm256_storeu_ps(sum, low);
    _mm256_storeu_ps(sum + 8, high);
    return choose(bits_above(x, y, _mm256_setzero_ps()), bits_above(low, high, _mm256_set1_ps(at)));
}
DESCENT(AVX2, descend_avx2, find_avx2)

AVX512 static inline uint32_t find_avx512(const float *node, float at, float *sum) {
    const __m512 x = _mm512_load_ps(node);
    __m512 sums = _mm512_add_ps(x, SHIFTED(512, x, 4));
    sums = _mm512_add_ps(sums, SHIFTED(512, sums, 8));
    const __m512 fours = _mm512_permute_ps(sums, 0xff);
    sums = _mm512_add_ps(sums, _mm512_maskz_shuffle_f32x4(0xf0f0, fours, fours, 0xa0));
    sums = _mm512_mask_add_ps(sums, 0xff00, sums, _mm512_permutexvar_ps(_mm512_set1_epi32(7), sums));
    _mm512_storeu_ps(sum, sums);
    return choose(_mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ),
                  _mm512_cmp_ps_mask(sums, _mm512_set1_ps(at), _CMP_GT_OQ));
}
DESCENT(AVX512, descend_avx512, find_avx512)
#endif

bool farm_tree_set_path(struct farm_tree *tree, int path) {
    tree->descend = descend;
#if defined(__x86_64__)
    if (path) tree->descend = path == 1 ? descend_avx2 : descend_avx512;
    if (path == 1) return __builtin_cpu_supports("avx2");
    if (path == 2) return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
#endif
    return path == 0;
}

// ---- the tree ----

enum farm_status farm_tree_make(enum farm_tree_kind kind, uint64_t leaves, struct farm_tree **out,
                                struct farm_error *err) {
    *out = NULL;
    if (leaves == 0 || leaves > UINT64_C(1) << 40)
        return farm_fail(err, FARM_E_INVALID, "invalid number of priorities: %llu; must be 1 to 2^40",
                         (unsigned long long)leaves);
    struct farm_tree made = {.kind = kind, .bytes = sizeof made};
    size_t offset[FARM_TREE_LEVELS_MAX];
    for (uint32_t k = 0; k < 2 || made.size[k - 1] > 1; made.top = k++) {
        made.size[k] = k ? (made.size[k - 1] + NODE - 1) / NODE : leaves;
        offset[k] = made.bytes;
        made.bytes += (made.size[k] + NODE - 1) / NODE * NODE * sizeof(float);
    }
    struct farm_tree *tree = farm_place_map(-1, PROT_READ | PROT_WRITE, made.bytes, FARM_PLACE_HUGE_BYTES);
    if (!tree)
        return farm_fail_errno(err, FARM_E_LIMIT, "no memory for %llu priorities: %zu bytes",
                               (unsigned long long)leaves, made.bytes);
    (void)madvise(tree, made.bytes, MADV_HUGEPAGE);
    *tree = made;
    for (uint32_t k = 0; k <= made.top; k++) tree->level[k] = (float *)((char *)tree + offset[k]);
    for (int path = 3; !farm_tree_set_path(tree, --path);) {
    }
    *out = tree;
    return FARM_OK;
}

void farm_tree_free(struct farm_tree *tree) {
    if (tree) munmap(tree, tree->bytes);
}

typedef float fours __attribute__((vector_size(16), may_alias));

static inline float value_of(enum farm_tree_kind kind, const float *x) {
    const fours *four = (const fours *)x, sum = four[0] + four[1] + four[2] + four[3];
    float most = x[0];
    if (kind == FARM_TREE_SUM) return (sum[0] + sum[1]) + (sum[2] + sum[3]);
    for (int i = 1; i < NODE; i++) most = x[i] > most ? x[i] : most;
    return most;
}

void farm_tree_set(struct farm_tree *tree, const uint64_t *leaves, const float *values, uint32_t count) {
    uint64_t at[BATCH]; // changed nodes of a level
    for (; count > BATCH; count -= BATCH, leaves += BATCH, values += BATCH) farm_tree_set(tree, leaves, values, BATCH);
    for (uint32_t i = 0; i < count; i++) tree->level[0][at[i] = leaves[i]] = values[i];
    for (uint32_t k = 1, kept = 0; k <= tree->top; k++, count = kept, kept = 0)
        for (uint32_t i = 0; i < count; i++) {
            const uint64_t n = at[i] / NODE;
            if (kept && at[kept - 1] == n) continue;
            at[kept++] = n;
            tree->level[k][n] = value_of(tree->kind, tree->level[k - 1] + n * NODE);
        }
}

void farm_tree_set_range(struct farm_tree *tree, uint64_t first, const float *values, float value, uint64_t count) {
    if (!count) return;
    uint64_t last = first + count - 1;
    for (uint64_t i = 0; i < count; i++) tree->level[0][first + i] = values ? values[i] : value;
    for (uint32_t k = 1; k <= tree->top; k++) {
        first /= NODE, last /= NODE;
        for (uint64_t n = first; n <= last; n++)
            tree->level[k][n] = value_of(tree->kind, tree->level[k - 1] + n * NODE);
    }
}

uint32_t farm_tree_highest(struct farm_tree *tree, uint32_t count, uint64_t *leaves, float *values) {
    uint32_t found = 0;
    for (; found < count && farm_tree_total(tree) > 0; found++) {
        uint64_t leaf = 0;
        for (uint32_t k = tree->top; k-- > 0;)
            for (leaf *= NODE; tree->level[k][leaf] < farm_tree_total(tree);) leaf++;
        leaves[found] = leaf;
        values[found] = farm_tree_get(tree, leaf);
        farm_tree_set_range(tree, leaf, NULL, 0, 1);
    }
    farm_tree_set(tree, leaves, values, found);
    return found;
}
