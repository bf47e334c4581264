// Specs of any bytes, as from a plug-in or a segment. The arrays of an accepted layout are inside its sizes, aligned
// and without overlap, by arithmetic that cannot overflow; different specs have different hashes.
#include "fuzz.h"
#include "ring/spec.h"

enum { ARRAYS_MAX = 16 + FARM_LANES_MAX * (FARM_OBS_FIELDS_MAX + 4) };

struct extents {
    size_t count;
    struct extent {
        uint64_t from;
        unsigned __int128 to;
    } at[ARRAYS_MAX];
};

static void add(struct extents *all, uint64_t from, unsigned __int128 bytes) {
    assert(all->count < ARRAYS_MAX && from % FARM_CACHE_LINE == 0);
    all->at[all->count++] = (struct extent){from, from + bytes};
}

static int by_start(const void *a, const void *b) {
    uint64_t x = ((const struct extent *)a)->from, y = ((const struct extent *)b)->from;
    return (x > y) - (x < y);
}

// All extents are in [0, bytes) and do not overlap.
static void check_extents(struct extents *all, uint64_t bytes) {
    qsort(all->at, all->count, sizeof all->at[0], by_start);
    for (size_t i = 0; i < all->count; i++) assert(all->at[i].to <= (i + 1 < all->count ? all->at[i + 1].from : bytes));
}

static void add_answers(struct extents *all, uint64_t lane, const struct farm_ring_spec *spec,
                        const struct farm_ring_layout *layout) {
    for (uint32_t f = 0; f < spec->answer_count; f++) {
        const struct farm_answer_spec *answer = &spec->answer[f];
        const uint64_t every = answer->every, slots = every ? (spec->steps + every - 1) / every : 2;
        unsigned __int128 bytes = answer->dtype == FARM_U64 ? 8 : answer->dtype == FARM_U8 ? 1 : 4;
        assert(layout->answer_bytes[f] == bytes * answer->values);
        add(all, lane + layout->answer[f], slots * bytes * answer->values * (answer->per_step ? 1 : spec->width));
    }
}

static void check_up(const struct farm_ring_spec *spec, const struct farm_ring_layout *layout) {
    struct extents all = {.count = 0};
    unsigned __int128 slots = (unsigned __int128)spec->steps * spec->width;
    add(&all, 0, FARM_SEGMENT_HEADER_BYTES);
    add(&all, layout->up_control, sizeof(struct farm_up_control));
    add(&all, layout->up_lanes, spec->lanes * sizeof(struct farm_up_lane));
    for (uint32_t l = 0; l < spec->lanes; l++) {
        uint64_t lane = layout->up_arrays + l * layout->up_stride;
        assert(lane % 4096 == 0);
        for (uint32_t f = 0; f < spec->env.obs_count; f++) {
            const struct farm_field_spec *field = &spec->env.obs[f];
            unsigned __int128 bytes = field->dtype == FARM_U8 ? 1 : 4;
            for (uint32_t d = 0; d < field->rank; d++) bytes *= field->dims[d];
            assert(layout->obs_bytes[f] == bytes);
            add(&all, lane + layout->obs[f], slots * bytes);
        }
        add(&all, lane + layout->reward, slots * 4);
        add(&all, lane + layout->flags, slots);
        if (spec->answers == FARM_ANSWERS_LOCAL) add_answers(&all, lane, spec, layout);
    }
    check_extents(&all, layout->up_bytes);
}

static void check_down(const struct farm_ring_spec *spec, const struct farm_ring_layout *layout) {
    struct extents all = {.count = 0};
    add(&all, 0, FARM_SEGMENT_HEADER_BYTES);
    add(&all, layout->down_control, sizeof(struct farm_down_control));
    add(&all, layout->down_lanes, spec->lanes * sizeof(struct farm_down_lane));
    for (uint32_t l = 0; l < spec->lanes; l++) {
        uint64_t lane = layout->down_arrays + l * layout->down_stride;
        assert(lane % 4096 == 0);
        if (spec->answers == FARM_ANSWERS_CENTRAL) add_answers(&all, lane, spec, layout);
    }
    check_extents(&all, layout->down_bytes);
}

// Bounds that readers of an accepted spec rely on.
static void check_bounds(const struct farm_ring_spec *spec) {
    const struct farm_action_spec *action = &spec->env.action;
    assert(spec->lanes >= 1 && spec->lanes <= FARM_LANES_MAX && spec->width >= 1 && spec->width <= FARM_WIDTH_MAX);
    assert(spec->steps >= 2 && spec->env.frames_per_step >= 1);
    assert(spec->env.obs_count >= 1 && spec->env.obs_count <= FARM_OBS_FIELDS_MAX);
    for (uint32_t f = 0; f < spec->env.obs_count; f++)
        assert(spec->env.obs[f].name[0] && memchr(spec->env.obs[f].name, 0, FARM_FIELD_NAME_MAX));
    assert(action->dims >= 1 && action->dims <= FARM_ACTION_DIMS_MAX);
    uint64_t outputs = 0;
    for (uint32_t i = 0; i < action->dims; i++) {
        if (action->kind == FARM_ACTION_CONTINUOUS) assert(action->low[i] <= action->high[i]);
        outputs += action->kind == FARM_ACTION_CONTINUOUS ? 2 : action->sizes[i];
    }
    assert(outputs == spec->answer[FARM_ANSWER_POLICY].values && outputs > 0);
    assert(spec->answer[FARM_ANSWER_ACTION].values == action->dims && spec->answers <= FARM_ANSWERS_LOCAL);
    assert(spec->answer_count >= FARM_ANSWERS_STANDARD && spec->answer_count <= FARM_ANSWER_FIELDS_MAX);
    for (uint32_t f = 0; f < spec->answer_count; f++) {
        assert(spec->answer[f].values >= 1 && spec->answer[f].every <= spec->steps);
        assert(spec->answer[f].every >= 1 || spec->answers == FARM_ANSWERS_CENTRAL);
    }
}

// A change of one bit changes the hash.
static void check_hash(const struct farm_ring_spec *spec, const struct farm_ring_layout *layout, uint32_t which) {
    struct farm_ring_layout again;
    struct farm_ring_spec other = *spec;
    assert(farm_ring_layout_make(&other, &again, NULL) == FARM_OK);
    assert(memcmp(&again, layout, sizeof again) == 0);
    ((uint8_t *)&other)[which % sizeof other] ^= (uint8_t)(1u << which / sizeof other % 8);
    if (farm_ring_layout_make(&other, &again, NULL) == FARM_OK) assert(again.hash != layout->hash);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct fuzz_input input = {data, bytes};
    struct farm_ring_spec spec;
    struct farm_ring_layout layout;
    struct farm_error err = {0};
    uint32_t which;
    fuzz_take(&input, &spec, sizeof spec);
    fuzz_take(&input, &which, sizeof which);
    // These are called before any check.
    for (uint32_t f = 0; f < FARM_OBS_FIELDS_MAX; f++) farm_field_bytes(&spec.env.obs[f]);
    farm_policy_outputs(&spec.env.action);
    enum farm_status status = farm_ring_layout_make(&spec, &layout, &err);
    if (status) {
        assert(status == FARM_E_INVALID);
        fuzz_check_refusal(status, &err);
        return 0;
    }
    check_bounds(&spec);
    check_up(&spec, &layout);
    check_down(&spec, &layout);
    check_hash(&spec, &layout, which);
    return 0;
}
