// Layouts of rings as a pure function of their shape.
#include <criterion/criterion.h>
#include <math.h>

#include "../support/rings.h"

TestSuite(ring, .timeout = 30);

static uint32_t below(uint64_t *state, uint32_t bound) {
    return (uint32_t)(random_next(state) % bound);
}

// A valid shape of any kind, at most a few MiB.
static struct farm_ring_spec random_spec(uint64_t *state) {
    struct farm_ring_spec spec = {
        .lanes = 1 + below(state, 4), .width = 1 + below(state, 17), .steps = 2 + below(state, 40)};
    spec.env.frames_per_step = 1 + below(state, 4);
    spec.env.obs_count = 1 + below(state, FARM_OBS_FIELDS_MAX);
    for (uint32_t f = 0; f < spec.env.obs_count; f++) {
        struct farm_field_spec *field = &spec.env.obs[f];
        snprintf(field->name, sizeof field->name, "field %u", f);
        field->dtype = 1 + below(state, 3);
        field->rank = 1 + below(state, FARM_FIELD_RANK_MAX);
        for (uint32_t d = 0; d < field->rank; d++) field->dims[d] = 1 + below(state, 7);
    }
    struct farm_action_spec *action = &spec.env.action;
    action->kind = 1 + below(state, 3);
    action->dims = action->kind == FARM_ACTION_DISCRETE ? 1 : 1 + below(state, FARM_ACTION_DIMS_MAX);
    for (uint32_t d = 0; d < action->dims; d++) {
        if (action->kind != FARM_ACTION_CONTINUOUS) action->sizes[d] = 1 + below(state, 20);
        action->low[d] = -1;
        action->high[d] = (float)below(state, 3);
    }
    farm_ring_spec_answers(&spec);
    spec.answers = below(state, 2);
    while (below(state, 3) && spec.answer_count < FARM_ANSWER_FIELDS_MAX)
        spec.answer[spec.answer_count++] = (struct farm_answer_spec){"more", 1 + below(state, 4), 1 + below(state, 9),
                                                                     1 + below(state, spec.steps), below(state, 2)};
    return spec;
}

static struct farm_ring_layout layout_of(const struct farm_ring_spec *spec) {
    struct farm_ring_layout layout;
    struct farm_error err = {0};
    cr_assert_eq(farm_ring_layout_make(spec, &layout, &err), FARM_OK, "%s", err.message);
    return layout;
}

struct area {
    size_t start, bytes;
};

static int by_start(const void *a, const void *b) {
    size_t left = ((const struct area *)a)->start, right = ((const struct area *)b)->start;
    return (left > right) - (left < right);
}

static void expect_apart(struct area *areas, size_t count, size_t segment_bytes) {
    qsort(areas, count, sizeof *areas, by_start);
    size_t end = FARM_SEGMENT_HEADER_BYTES;
    for (size_t i = 0; i < count; i++) {
        cr_assert_eq(areas[i].start % 64, 0, "an array straddles a cache line's start");
        cr_assert_geq(areas[i].start, end, "areas overlap");
        end = areas[i].start + areas[i].bytes;
    }
    cr_assert_leq(end, segment_bytes, "outside the segment");
}

// Bytes of a field, from its shape alone.
static size_t bytes_of(const struct farm_field_spec *field) {
    size_t bytes = field->dtype == FARM_U8 ? 1 : 4;
    for (uint32_t d = 0; d < field->rank; d++) bytes *= field->dims[d];
    return bytes;
}

// Bytes of a whole answer field of a lane: one slot for each multiple of `every` below C.
static size_t bytes_of_answer(const struct farm_ring_spec *spec, uint32_t f) {
    const struct farm_answer_spec *answer = &spec->answer[f];
    const size_t one = answer->values * (answer->dtype == FARM_U64 ? 8 : answer->dtype == FARM_U8 ? 1 : 4);
    size_t slots = 0;
    for (uint32_t n = 0; n < spec->steps; n += answer->every) slots++;
    return slots * one * (answer->per_step ? 1 : spec->width);
}

Test(ring, arrays_of_random_specs_are_apart_aligned_and_inside) {
    uint64_t state = 1;
    for (int i = 0; i < 2000; i++) {
        struct farm_ring_spec spec = random_spec(&state);
        struct farm_ring_layout l = layout_of(&spec);
        struct area up[2 + 4 * (FARM_OBS_FIELDS_MAX + 2 + FARM_ANSWER_FIELDS_MAX)],
            down[2 + 4 * FARM_ANSWER_FIELDS_MAX];
        size_t ups = 0, downs = 0, slots = (size_t)spec.steps * spec.width;
        up[ups++] = (struct area){l.up_control, sizeof(struct farm_up_control)};
        up[ups++] = (struct area){l.up_lanes, spec.lanes * sizeof(struct farm_up_lane)};
        down[downs++] = (struct area){l.down_control, sizeof(struct farm_down_control)};
        down[downs++] = (struct area){l.down_lanes, spec.lanes * sizeof(struct farm_down_lane)};
        for (uint32_t lane = 0; lane < spec.lanes; lane++) {
            size_t u = l.up_arrays + lane * l.up_stride, d = l.down_arrays + lane * l.down_stride;
            cr_assert_eq(u % 4096, 0);
            cr_assert_eq(d % 4096, 0);
            for (uint32_t f = 0; f < spec.env.obs_count; f++)
                up[ups++] = (struct area){u + l.obs[f], slots * bytes_of(&spec.env.obs[f])};
            up[ups++] = (struct area){u + l.reward, slots * 4};
            up[ups++] = (struct area){u + l.flags, slots};
            for (uint32_t f = 0; f < spec.answer_count; f++) {
                const struct area area = {l.answer[f], bytes_of_answer(&spec, f)};
                if (spec.answers == FARM_ANSWERS_LOCAL)
                    up[ups++] = (struct area){u + area.start, area.bytes};
                else
                    down[downs++] = (struct area){d + area.start, area.bytes};
            }
        }
        expect_apart(up, ups, l.up_bytes);
        expect_apart(down, downs, l.down_bytes);
    }
}

static size_t distance(const void *from, const void *to) {
    return (size_t)((const uint8_t *)to - (const uint8_t *)from);
}

static struct farm_ring_spec spec_with_state(enum farm_answers answers) {
    struct farm_ring_spec spec = spec_rich(2, 3, 6);
    spec.answers = answers;
    spec.answer[spec.answer_count++] = (struct farm_answer_spec){"state", FARM_F32, 11, 4, 0};
    spec.answer[spec.answer_count++] = (struct farm_answer_spec){"beat", FARM_U64, 2, 3, 1};
    return spec;
}

static void expect_views(enum farm_answers answers) {
    struct farm_ring_spec spec = spec_with_state(answers);
    with_views views = views_of(spec);
    const struct farm_ring_layout *l = &views.actor.layout;
    const uint8_t *up = (const uint8_t *)views.actor.up.header, *down = (const uint8_t *)views.actor.down.header;
    const struct farm_lane *lane = &views.actor.lanes[1];
    uint64_t n = 6 * 5 + 4; // slot 4
    uint32_t e = 2;
    const uint8_t *u = up + l->up_arrays + l->up_stride, *d = down + l->down_arrays + l->down_stride;
    size_t at = 4 * 3 + e;
    cr_assert_eq(distance(u, farm_lane_obs(lane, 0, n, e)), l->obs[0] + at * 7 * 5 * 3);
    cr_assert_eq(distance(u, farm_lane_obs(lane, 2, n, e)), l->obs[2] + at * 9 * 4);
    cr_assert_eq(distance(u, &farm_lane_reward(lane, n)[e]), l->reward + at * 4);
    cr_assert_eq(distance(u, &farm_lane_flags(lane, n)[e]), l->flags + at);
    if (answers == FARM_ANSWERS_LOCAL) d = u;
    cr_assert_eq(distance(d, farm_lane_action(lane, n, e)), l->answer[FARM_ANSWER_ACTION] + at * 3 * 4);
    cr_assert_eq(distance(d, farm_lane_policy(lane, n, e)), l->answer[FARM_ANSWER_POLICY] + at * 10 * 4);
    cr_assert_eq(distance(d, &farm_lane_value(lane, n)[e]), l->answer[FARM_ANSWER_VALUE] + at * 4);
    cr_assert_eq(distance(d, farm_lane_version(lane, n)), l->answer[FARM_ANSWER_VERSION] + 4 * 8);
    // ceil(6 / 4) = 2 slots of 3 rows of 11 f32; step 36 is multiple 9, in slot 1, and step 40 multiple 10, in slot 0.
    cr_assert_eq(distance(d, farm_lane_answer_at(lane, 4, 36, e)), l->answer[4] + (1 * 3 + e) * 11 * 4);
    cr_assert_eq(distance(d, farm_lane_answer_at(lane, 4, 40, e)), l->answer[4] + e * 11 * 4);
    cr_assert_eq(distance(d, farm_lane_answer_at(lane, 5, 33, 0)), l->answer[5] + 1 * 2 * 8);
}

Test(ring, views_reach_the_bytes_that_the_layout_names) {
    expect_views(FARM_ANSWERS_CENTRAL);
    expect_views(FARM_ANSWERS_LOCAL);
}

// No two of the C steps that may be held share a slot.
Test(ring, a_field_of_every_e_steps_keeps_as_many_values_as_c_steps_hold) {
    uint64_t state = 3;
    for (int i = 0; i < 200; i++) {
        struct farm_ring_spec spec = spec_of(1, 1, 2 + below(&state, 30));
        spec.answer[spec.answer_count++] =
            (struct farm_answer_spec){"state", FARM_U64, 1, 1 + below(&state, spec.steps), 0};
        with_views views = views_of(spec);
        const struct farm_lane *lane = &views.learner.lanes[0];
        for (uint64_t n = 0; n < 4 * spec.steps; n++) {
            if (n % lane->answer[4].every == 0) *(uint64_t *)farm_lane_answer_at(lane, 4, n, 0) = n;
            for (uint64_t held = n < spec.steps ? 0 : n + 1 - spec.steps; held <= n; held++)
                if (held % lane->answer[4].every == 0)
                    cr_assert_eq(*(uint64_t *)farm_lane_answer_at(lane, 4, held, 0), held);
        }
    }
}

Test(ring, opponents_are_the_odd_half_or_the_last_agents) {
    static const struct {
        uint32_t agents, opponents;
        const char *played; // by agent: 1 an opponent
    } cases[] = {{1, 0, "0"},    {2, 0, "01"},   {2, 1, "01"},   {3, 0, "001"},      {3, 2, "011"},
                 {4, 0, "0101"}, {4, 1, "0001"}, {4, 3, "0111"}, {8, 4, "01010101"}, {5, 0, "00011"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (uint32_t a = 0; a < cases[i].agents; a++)
            cr_expect_eq(farm_opponent_plays(cases[i].agents, cases[i].opponents, a), cases[i].played[a] == '1',
                         "%u agents, %u opponents: agent %u", cases[i].agents, cases[i].opponents, a);
}

Test(ring, hash_changes_with_every_field_of_the_spec) {
    struct farm_ring_spec base = spec_rich(2, 3, 6), continuous = base, more = spec_with_state(FARM_ANSWERS_CENTRAL);
    continuous.env.action.kind = FARM_ACTION_CONTINUOUS;
    farm_ring_spec_answers(&continuous);
    uint64_t hashes[64];
    size_t count = 0;
    hashes[count++] = layout_of(&base).hash;
    cr_assert_eq(layout_of(&base).hash, hashes[0], "equal specs, equal hashes");
#define with(spec_, change)                                                                                            \
    do {                                                                                                               \
        struct farm_ring_spec s = spec_;                                                                               \
        change;                                                                                                        \
        hashes[count++] = layout_of(&s).hash;                                                                          \
    } while (0)
    with(base, s.lanes = 3);
    with(base, s.width = 4);
    with(base, s.steps = 7);
    with(base, s.env.frames_per_step = 1);
    with(base, s.env.agents = 1);
    with(base, s.env.obs_count = 2);
    with(base, s.env.obs[0].name[0] = 'I');
    with(base, s.env.obs[1].dtype = FARM_F32);
    with(base, s.env.obs[1].dtype = FARM_U8);
    with(base, (s.env.obs[1].rank = 2, s.env.obs[1].dims[1] = 1));
    with(base, (s.env.obs[0].dims[0] = 5, s.env.obs[0].dims[1] = 7)); // the same bytes in another shape
    with(base, s.env.obs[2].dims[1] = 4);
    with(base, s.env.obs[0].choices = 2);
    with(base, (s.env.action.sizes[0] = 3, s.env.action.sizes[1] = 2)); // the same sum in another order
    with(base, (s.env.action.sizes[2] = 6, farm_ring_spec_answers(&s)));
    with(base, (s.env.action.dims = 2, farm_ring_spec_answers(&s)));
    with(base, s.answers = FARM_ANSWERS_LOCAL);
    with(more, );
    with(more, s.answers = FARM_ANSWERS_LOCAL);
    with(more, s.answer_count = 5);
    with(more, s.answer[4].name[0] = 'S');
    with(more, s.answer[4].dtype = FARM_I32);
    with(more, s.answer[4].values = 12);
    with(more, s.answer[4].every = 5); // as many slots
    with(more, s.answer[4].per_step = 1);
    with(continuous, );
    with(continuous, s.env.action.low[1] = -2);
    with(continuous, s.env.action.high[1] = 2);
#undef with
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < i; j++) cr_assert_neq(hashes[i], hashes[j], "changes %zu and %zu have one hash", i, j);
}

Test(ring, refuses_absurd_specs_with_the_reason) {
    struct farm_ring_layout layout;
    struct farm_ring_spec s_large;
    struct farm_error err;
#define refuse(change, says)                                                                                           \
    do {                                                                                                               \
        struct farm_ring_spec s = spec_with_state(FARM_ANSWERS_LOCAL);                                                 \
        struct farm_action_spec *a = &s.env.action;                                                                    \
        struct farm_field_spec *o = s.env.obs;                                                                         \
        (void)a, (void)o;                                                                                              \
        change;                                                                                                        \
        err = (struct farm_error){0};                                                                                  \
        cr_expect_eq(farm_ring_layout_make(&s, &layout, &err), FARM_E_INVALID, "%s", #change);                         \
        cr_expect(strstr(err.message, says), "%s: '%s' does not say '%s'", #change, err.message, says);                \
    } while (0)
    refuse(s.lanes = 0, "0 lanes");
    refuse(s.lanes = FARM_LANES_MAX + 1, "65 lanes");
    refuse(s.width = 0, "0 environments");
    refuse(s.width = FARM_WIDTH_MAX + 1, "65537 environments");
    refuse(s.steps = 0, "0 steps");
    refuse(s.steps = 1, "1 steps");
    refuse(s.steps = UINT32_MAX, "4294967295 steps");
    refuse(s.answers = 2, "answers 2");
    refuse(s.answer_count = FARM_ANSWERS_STANDARD - 1, "3 answer fields");
    refuse(s.answer_count = FARM_ANSWER_FIELDS_MAX + 1, "9 answer fields");
    refuse(s.answer[1].values = 9, "answer field 1 is 'policy' of 9 values: the actions need 'policy' of 10");
    refuse(s.answer[0].dtype = FARM_F32, "answer field 0");
    refuse(s.answer[2].every = 2, "answer field 2");
    refuse(s.answer[3].per_step = 0, "answer field 3");
    refuse(s.answer[0].name[7] = 'x', "answer field 0");
    refuse(memset(s.answer[4].name, 'x', sizeof s.answer[4].name), "answer field 4 has no name");
    refuse(s.answer[4].name[0] = 0, "answer field 4 has no name");
    refuse(s.answer[4].dtype = 0, "'state'");
    refuse(s.answer[4].dtype = 5, "'state'");
    refuse(s.answer[4].values = 0, "'state'");
    refuse(s.answer[4].values = UINT32_MAX, "'state'");
    refuse(s.answer[4].values = 1 << 29, "'state'"); // 2^31 bytes
    refuse(s.answer[4].per_step = 2, "'state'");
    refuse(s.answer[4].every = 0, "every 0 steps: 1..6");
    refuse(s.answer[4].every = 7, "every 7 steps: 1..6");
    refuse(s.env.obs_count = 0, "0 observation fields");
    refuse(s.env.obs_count = FARM_OBS_FIELDS_MAX + 1, "9 observation fields");
    refuse(s.env.frames_per_step = 0, "frames");
    refuse(s.env.agents = FARM_AGENTS_MAX + 1, "65 agents in one environment: 0..64");
    refuse((s.env.agents = 2, s.width = 3), "3 environments a lane: must be a multiple of the 2 agents");
    refuse(o[1].name[0] = 0, "observation field 1 has no name");
    refuse(memset(o[1].name, 'x', sizeof o[1].name), "observation field 1 has no name");
    refuse(o[0].dtype = 0, "'image'");
    refuse(o[0].dtype = 4, "'image'");
    refuse(o[0].rank = 0, "'image'");
    refuse(o[0].rank = 5, "'image'");
    refuse(o[0].dims[1] = 0, "'image'");
    refuse((o[0].dims[0] = UINT32_MAX, o[0].dims[1] = UINT32_MAX, o[0].dims[2] = UINT32_MAX), "'image'");
    refuse((o[0].rank = 2, o[0].dims[0] = o[0].dims[1] = 65537), "'image'"); // 2^32 and a little: 131,073 in 32 bits
    refuse(o[0].choices = 257, "'image' has 257 choices");
    refuse((o[0].dtype = FARM_I32, o[0].choices = UINT32_MAX), "'image' has 4294967295 choices");
    refuse((o[0].dtype = FARM_F32, o[0].choices = 1), "'image' has 1 choices");
    refuse(a->kind = 0, "action kind 0");
    refuse(a->kind = 4, "action kind 4");
    refuse(a->dims = 0, "0 action dimensions");
    refuse(a->dims = FARM_ACTION_DIMS_MAX + 1, "129 action dimensions");
    refuse(a->kind = FARM_ACTION_DISCRETE, "has 1 dimension, not 3");
    refuse(a->sizes[1] = 0, "dimension 1 has 0 choices");
    refuse(a->sizes[1] = UINT32_MAX, "dimension 1 has 4294967295 choices");
    refuse((a->kind = FARM_ACTION_CONTINUOUS, a->low[2] = 1, a->high[2] = 0), "bounds [1, 0]");
    refuse((a->kind = FARM_ACTION_CONTINUOUS, a->low[2] = NAN), "bounds [nan");
    refuse((s.lanes = 64, s.width = FARM_WIDTH_MAX, s.steps = 1 << 24), "do not fit a segment");
    // Each array alone would fit, or nearly: 2^40 slots of ...
    s_large = spec_rich(1, FARM_WIDTH_MAX, 1 << 24);
    for (int f = 0; f < 3; f++)
        s_large.env.obs[f] = (struct farm_field_spec){.name = "row", .dtype = FARM_U8, .rank = 1, .dims = {16}};
    refuse(s = s_large, "do not fit a segment"); // 3 fields of 2^44 bytes
    s_large.env.obs_count = 1;
    refuse((s = s_large, s.lanes = 2), "do not fit a segment"); // a lane of 2^44 bytes, twice
    s_large.env.obs[0].dims[0] = 1;
    s_large.env.action.dims = 1;
    refuse((s = s_large, a->sizes[0] = 1 << 20, farm_ring_spec_answers(&s)), "do not fit a segment"); // 2^20 logits
    s_large.env.action.sizes[0] = 1;
    farm_ring_spec_answers(&s_large);
    s_large.lanes = 2;
    refuse(s = s_large, "do not fit a segment"); // two lanes of 6 x 2^40 bytes up, 12 x 2^40 down
    s_large.lanes = 1;
    cr_assert_eq(farm_ring_layout_make(&s_large, &layout, &err), FARM_OK, "%s", err.message);
    refuse((s = s_large, s.answers = FARM_ANSWERS_LOCAL), "do not fit a segment"); // all 18 x 2^40 up
#undef refuse
}

Test(ring, finds_the_first_value_outside_a_fields_choices_or_range) {
    static const int32_t whole[] = {0, 4, 5, -1};
    static const float real[] = {0, -1e9f, 2e9f, NAN};
    static const struct {
        uint32_t dtype, choices;
        size_t first;
    } cases[] = {{FARM_I32, 0, 4},        {FARM_I32, 6, 3}, {FARM_I32, 5, 2}, {FARM_I32, 1, 1},
                 {FARM_I32, 1u << 31, 3}, {FARM_F32, 0, 2}, {FARM_U8, 2, 4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct farm_field_spec field = {.dtype = cases[i].dtype, .rank = 1, .choices = cases[i].choices};
        const void *values = field.dtype == FARM_F32 ? (const void *)real : whole;
        cr_assert_eq(farm_field_find_invalid(&field, values, 4), cases[i].first, "case %zu", i);
    }
}

Test(ring, finds_the_first_value_of_actions_that_is_no_choice_or_no_number) {
    static const struct farm_action_spec discrete = {.kind = FARM_ACTION_DISCRETE, .dims = 1, .sizes = {5}},
                                         several = {FARM_ACTION_MULTI_DISCRETE, 2, .sizes = {5, 1}},
                                         real = {FARM_ACTION_CONTINUOUS, 2, .low = {-1, -1}, .high = {1, 1}};
    static const int32_t whole[] = {4, 0, 5, 0}, mixed[] = {4, 0, 0, 1}, negative[] = {-1};
    static const float numbers[] = {-1, 3e38f, 0, NAN}, infinite[] = {0, -INFINITY};
    cr_expect_eq(farm_action_find_invalid(&discrete, whole, 4), 2);
    cr_expect_eq(farm_action_find_invalid(&discrete, whole, 2), 2, "all are valid");
    cr_expect_eq(farm_action_find_invalid(&discrete, negative, 1), 0);
    cr_expect_eq(farm_action_find_invalid(&several, mixed, 2), 3);
    cr_expect_eq(farm_action_find_invalid(&real, numbers, 2), 3);
    cr_expect_eq(farm_action_find_invalid(&real, numbers, 1), 2);
    cr_expect_eq(farm_action_find_invalid(&real, infinite, 1), 1);
}

Test(ring, policy_outputs_follow_the_kind_of_action) {
    static const struct {
        struct farm_action_spec action;
        uint32_t outputs;
    } cases[] = {
        {{.kind = FARM_ACTION_DISCRETE, .dims = 1, .sizes = {18}}, 18},
        {{.kind = FARM_ACTION_MULTI_DISCRETE, .dims = 3, .sizes = {2, 3, 5}}, 10},
        {{.kind = FARM_ACTION_CONTINUOUS, .dims = 6}, 12}, // a mean and a deviation each
        {{.kind = FARM_ACTION_MULTI_DISCRETE, .dims = UINT32_MAX, .sizes = {2, 2, 2}}, 6}, // reads existing ones only
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_assert_eq(farm_policy_outputs(&cases[i].action), cases[i].outputs, "case %zu", i);
}
