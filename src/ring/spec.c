// See spec.h.
#include "ring/spec.h"

#include <stdbool.h>
#include <string.h>

#include "base/number.h"

enum { DIM_MAX = 1 << 20, STEPS_MAX = 1 << 24 };
static const uint64_t FIELD_BYTES_MAX = 64u << 20, SEGMENT_BYTES_MAX = 1ull << 44;

size_t farm_dtype_bytes(uint32_t dtype) {
    return dtype == FARM_U8 ? 1 : dtype == FARM_I32 || dtype == FARM_F32 ? 4 : 0;
}

size_t farm_field_bytes(const struct farm_field_spec *field) {
    uint64_t bytes = farm_dtype_bytes(field->dtype);
    if (field->rank < 1 || field->rank > FARM_FIELD_RANK_MAX) return 0;
    for (uint32_t i = 0; i < field->rank; i++) {
        if (field->dims[i] < 1 || field->dims[i] > DIM_MAX) return 0;
        bytes *= field->dims[i];
        if (bytes > FIELD_BYTES_MAX) return 0;
    }
    return (size_t)bytes;
}

size_t farm_field_find_invalid(const struct farm_field_spec *field, const void *values, size_t count) {
    const float *reals = values;
    const int32_t *integers = values;
    size_t i = 0;
    if (field->dtype == FARM_F32 && !farm_numbers_sensible(reals, count)) {
        while (farm_numbers_sensible(&reals[i], 1)) i++;
        return i;
    }
    if (field->dtype != FARM_I32 || !field->choices) return count;
    while (i < count && (uint32_t)integers[i] < field->choices) i++;
    return i;
}

uint32_t farm_policy_outputs(const struct farm_action_spec *action) {
    uint32_t sum = 0;
    if (action->kind == FARM_ACTION_CONTINUOUS) return 2 * action->dims; // mean and log standard deviation
    for (uint32_t i = 0; i < action->dims && i < FARM_ACTION_DIMS_MAX; i++) sum += action->sizes[i];
    return sum;
}

void farm_ring_spec_answers(struct farm_ring_spec *spec) {
    const struct farm_action_spec *action = &spec->env.action;
    const uint32_t number = action->kind == FARM_ACTION_CONTINUOUS ? FARM_F32 : FARM_I32;
    spec->answer_count = FARM_ANSWERS_STANDARD;
    memset(spec->answer, 0, sizeof spec->answer);
    spec->answer[FARM_ANSWER_ACTION] = (struct farm_answer_spec){"action", number, action->dims, 1, 0};
    spec->answer[FARM_ANSWER_POLICY] = (struct farm_answer_spec){"policy", FARM_F32, farm_policy_outputs(action), 1, 0};
    spec->answer[FARM_ANSWER_VALUE] = (struct farm_answer_spec){"value", FARM_F32, 1, 1, 0};
    spec->answer[FARM_ANSWER_VERSION] = (struct farm_answer_spec){"version", FARM_U64, 1, 1, 1};
}

void farm_ring_spec_sample(struct farm_ring_spec *spec) {
    spec->answer[FARM_ANSWER_SAMPLE] = (struct farm_answer_spec){"sample", FARM_F32, spec->env.action.dims, 1, 0};
    spec->answer_count = FARM_ANSWER_SAMPLE + 1;
}

void farm_ring_spec_state(struct farm_ring_spec *spec, uint32_t floats, uint32_t every) {
    spec->answer[spec->answer_count++] = (struct farm_answer_spec){"state", FARM_F32, floats, every, 0};
    if (spec->answers == FARM_ANSWERS_LOCAL) return;
    spec->answer[spec->answer_count++] = (struct farm_answer_spec){"carry", FARM_F32, floats, 0, 0};
}

void farm_ring_spec_control(struct farm_ring_spec *spec) {
    spec->answer[spec->answer_count++] =
        (struct farm_answer_spec){"control", FARM_U64, FARM_CONTROL_NUMBERS + spec->number_count, 1, 0};
}

uint32_t farm_ring_spec_find(const struct farm_ring_spec *spec, const char *name) {
    for (uint32_t f = 0; f < spec->answer_count; f++)
        if (strncmp(spec->answer[f].name, name, FARM_FIELD_NAME_MAX) == 0) return f;
    return 0;
}

struct farm_ring_spec farm_ring_spec_plain(uint32_t lanes, uint32_t width, uint32_t steps, enum farm_dtype dtype,
                                           uint32_t values, uint32_t actions) {
    struct farm_ring_spec spec = {.lanes = lanes, .width = width, .steps = steps};
    spec.env = (struct farm_env_spec){.obs_count = 1, .frames_per_step = 1};
    spec.env.obs[0] = (struct farm_field_spec){.name = "obs", .dtype = dtype, .rank = 1, .dims = {values}};
    spec.env.action = (struct farm_action_spec){.kind = FARM_ACTION_DISCRETE, .dims = 1, .sizes = {actions}};
    farm_ring_spec_answers(&spec);
    return spec;
}

uint64_t farm_ring_steps_needed(uint64_t windows, uint64_t stride, uint64_t length, uint64_t stack) {
    return (windows + 1) * stride + length + stack;
}

static enum farm_status check_count(uint32_t count, uint32_t least, uint32_t most, const char *things,
                                    struct farm_error *err) {
    if (count >= least && count <= most) return FARM_OK;
    return farm_fail(err, FARM_E_INVALID, "%u %s: %u..%u are possible", count, things, least, most);
}

static enum farm_status check_action(const struct farm_action_spec *action, struct farm_error *err) {
    if (action->kind < FARM_ACTION_DISCRETE || action->kind > FARM_ACTION_CONTINUOUS)
        return farm_fail(err, FARM_E_INVALID, "action kind %u: must be discrete, multi-discrete or continuous",
                         action->kind);
    if (check_count(action->dims, 1, FARM_ACTION_DIMS_MAX, "action dimensions", err)) return FARM_E_INVALID;
    if (action->kind == FARM_ACTION_DISCRETE && action->dims != 1)
        return farm_fail(err, FARM_E_INVALID, "a discrete action has 1 dimension, not %u", action->dims);
    for (uint32_t i = 0; i < action->dims && action->kind != FARM_ACTION_CONTINUOUS; i++)
        if (action->sizes[i] < 1 || action->sizes[i] > DIM_MAX)
            return farm_fail(err, FARM_E_INVALID, "action dimension %u has %u choices", i, action->sizes[i]);
    for (uint32_t i = 0; i < action->dims && action->kind == FARM_ACTION_CONTINUOUS; i++)
        if (!(action->low[i] <= action->high[i]))
            return farm_fail(err, FARM_E_INVALID, "action dimension %u has bounds [%g, %g]", i, (double)action->low[i],
                             (double)action->high[i]);
    return FARM_OK;
}

enum { CHANNELS_FIRST_MAX = 16 };

bool farm_field_is_image(const struct farm_field_spec *field) {
    return field->dtype == FARM_U8 && (field->rank == 2 || field->rank == 3) &&
           (field->choices == 0 || field->choices == 256);
}

struct farm_image farm_field_image(const struct farm_field_spec *field) {
    const uint32_t *dims = field->dims;
    const bool planes = field->rank == 3 && dims[0] <= CHANNELS_FIRST_MAX && dims[0] <= dims[1] && dims[0] < dims[2];
    return (struct farm_image){.height = dims[planes ? 1 : 0],
                               .width = dims[planes ? 2 : 1],
                               .channels = field->rank == 2 ? 1 : dims[planes ? 0 : 2],
                               .planes = planes};
}

// Values of an i32 field lie below 2^31, those of a u8 field below 2^8; of an f32 field they have no number.
static bool has_valid_choices(const struct farm_field_spec *field) {
    return field->choices <= (field->dtype == FARM_I32 ? 1u << 31 : field->dtype == FARM_U8 ? 256 : 0);
}

static bool has_name(const char name[FARM_FIELD_NAME_MAX]) {
    return name[0] && memchr(name, 0, FARM_FIELD_NAME_MAX);
}

static uint64_t answer_bytes(const struct farm_answer_spec *answer) {
    return (uint64_t)answer->values * (answer->dtype == FARM_U64 ? 8 : farm_dtype_bytes(answer->dtype));
}

static enum farm_status check_answers(const struct farm_ring_spec *spec, struct farm_error *err) {
    struct farm_ring_spec standard = {.env = spec->env};
    farm_ring_spec_answers(&standard);
    if (spec->answers > FARM_ANSWERS_LOCAL)
        return farm_fail(err, FARM_E_INVALID, "answers %u: must be 0 (central) or 1 (local)", spec->answers);
    if (check_count(spec->answer_count, FARM_ANSWERS_STANDARD, FARM_ANSWER_FIELDS_MAX, "answer fields", err))
        return FARM_E_INVALID;
    for (uint32_t f = 0; f < spec->answer_count; f++) {
        const struct farm_answer_spec *answer = &spec->answer[f], *wanted = &standard.answer[f];
        if (!has_name(answer->name))
            return farm_fail(err, FARM_E_INVALID, "answer field %u has no name of 1..%d characters", f,
                             FARM_FIELD_NAME_MAX - 1);
        if (f < FARM_ANSWERS_STANDARD && memcmp(answer, wanted, sizeof *answer) != 0)
            return farm_fail(err, FARM_E_INVALID,
                             "answer field %u is '%s' of %u values: the actions need '%s' of %u values at every step",
                             f, answer->name, answer->values, wanted->name, wanted->values);
        if (!answer_bytes(answer) || answer_bytes(answer) > FIELD_BYTES_MAX || answer->per_step > 1)
            return farm_fail(err, FARM_E_INVALID, "answer field '%s': invalid type or size (at most %llu MiB)",
                             answer->name, (unsigned long long)(FIELD_BYTES_MAX >> 20));
        if (answer->every > spec->steps || (answer->every == 0 && spec->answers == FARM_ANSWERS_LOCAL))
            return farm_fail(err, FARM_E_INVALID,
                             "answer field '%s' every %u steps: 1..%u are possible, or 0 if the learner answers",
                             answer->name, answer->every, spec->steps);
    }
    return FARM_OK;
}

static enum farm_status check_spec(const struct farm_ring_spec *spec, struct farm_error *err) {
    if (check_count(spec->lanes, 1, FARM_LANES_MAX, "lanes", err) ||
        check_count(spec->env.agents, 0, FARM_AGENTS_MAX, "agents in one environment", err) ||
        check_count(spec->width, 1, FARM_WIDTH_MAX, "environments a lane", err) ||
        check_count(spec->steps, 2, STEPS_MAX, "steps a ring", err) ||
        check_count(spec->env.obs_count, 1, FARM_OBS_FIELDS_MAX, "observation fields", err))
        return FARM_E_INVALID;
    if (spec->env.frames_per_step < 1)
        return farm_fail(err, FARM_E_INVALID, "0 frames a step: an agent step counts for 1 or more");
    if (spec->env.agents && spec->width % spec->env.agents)
        return farm_fail(err, FARM_E_INVALID, "%u environments a lane: must be a multiple of the %u agents of one",
                         spec->width, spec->env.agents);
    for (uint32_t f = 0; f < spec->env.obs_count; f++) {
        const struct farm_field_spec *field = &spec->env.obs[f];
        if (!has_name(field->name))
            return farm_fail(err, FARM_E_INVALID, "observation field %u has no name of 1..%d characters", f,
                             FARM_FIELD_NAME_MAX - 1);
        if (!farm_field_bytes(field))
            return farm_fail(err, FARM_E_INVALID,
                             "observation field '%s': invalid type or dimensions (at most %llu MiB)", field->name,
                             (unsigned long long)(FIELD_BYTES_MAX >> 20));
        if (!has_valid_choices(field))
            return farm_fail(err, FARM_E_INVALID,
                             "observation field '%s' has %u choices: at most 2^31 (i32) or 256 (u8) are possible, and "
                             "none for f32",
                             field->name, field->choices);
    }
    if (spec->autoreset > FARM_AUTORESET_SAME_STEP)
        return farm_fail(err, FARM_E_INVALID, "autoreset %u: must be 0 (next step) or 1 (same step)", spec->autoreset);
    if (check_count(spec->number_count, 0, FARM_CONTROL_NUMBERS_MAX, "numbers of a reset", err)) return FARM_E_INVALID;
    for (uint32_t i = 0; i < spec->number_count; i++)
        if (!has_name(spec->numbers[i]))
            return farm_fail(err, FARM_E_INVALID, "number %u of a reset has no name of 1..%d characters", i,
                             FARM_FIELD_NAME_MAX - 1);
    enum farm_status status = check_action(&spec->env.action, err);
    return status ? status : check_answers(spec, err);
}

// Places an array on the next cache line after *at and advances *at.
static size_t place_array(uint64_t *at, uint64_t bytes) {
    uint64_t start = (*at + FARM_CACHE_LINE - 1) / FARM_CACHE_LINE * FARM_CACHE_LINE;
    *at = start + bytes;
    return (size_t)start;
}

// Places `rows` rows; false if they do not fit a segment.
static bool place_rows(uint64_t *at, uint64_t rows, uint64_t bytes, size_t *start) {
    if (*at > SEGMENT_BYTES_MAX || rows > SEGMENT_BYTES_MAX / bytes) return false;
    *start = place_array(at, rows * bytes);
    return true;
}

static uint64_t whole_pages(uint64_t bytes) {
    return (bytes + 4095) / 4096 * 4096;
}

// FNV-1a, 64 bits.
static uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes) {
    const uint8_t *p = data;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ p[i]) * 0x100000001b3ull;
    return hash;
}

enum farm_status farm_ring_layout_make(const struct farm_ring_spec *spec, struct farm_ring_layout *layout,
                                       struct farm_error *err) {
    enum farm_status status = check_spec(spec, err);
    if (status) return status;
    memset(layout, 0, sizeof *layout);
    uint64_t slots = (uint64_t)spec->steps * spec->width; // <= 2^40, so no product below overflows

    uint64_t at = FARM_SEGMENT_HEADER_BYTES;
    layout->up_control = place_array(&at, sizeof(struct farm_up_control));
    layout->up_lanes = place_array(&at, spec->lanes * sizeof(struct farm_up_lane));
    layout->up_arrays = (size_t)whole_pages(at);
    uint64_t up = 0, down = 0; // bytes of a lane's arrays
    bool fits = true;
    for (uint32_t f = 0; f < spec->env.obs_count && fits; f++) {
        layout->obs_bytes[f] = farm_field_bytes(&spec->env.obs[f]);
        fits = place_rows(&up, slots, layout->obs_bytes[f], &layout->obs[f]);
    }
    fits = fits && place_rows(&up, slots, sizeof(float), &layout->reward) && place_rows(&up, slots, 1, &layout->flags);
    for (uint32_t f = 0; f < spec->env.obs_count && fits && spec->autoreset; f++)
        fits = place_rows(&up, 2 * (uint64_t)spec->width, layout->obs_bytes[f], &layout->last[f]);
    uint64_t *answers = spec->answers == FARM_ANSWERS_LOCAL ? &up : &down;
    for (uint32_t f = 0; f < spec->answer_count && fits; f++) {
        const uint64_t rows = (uint64_t)farm_answer_slots(spec, f) * farm_answer_rows(spec, f);
        layout->answer_bytes[f] = answer_bytes(&spec->answer[f]);
        fits = place_rows(answers, rows, layout->answer_bytes[f], &layout->answer[f]);
    }
    if (fits && spec->leaf_every)
        fits = place_rows(&down, (uint64_t)farm_leaf_slots(spec) * spec->width, sizeof(float), &layout->leaf);
    if (!fits || up > SEGMENT_BYTES_MAX / spec->lanes || down > SEGMENT_BYTES_MAX / spec->lanes)
        return farm_fail(err, FARM_E_INVALID,
                         "%u lanes x %u environments x %u steps do not fit a segment (at most %llu TiB)", spec->lanes,
                         spec->width, spec->steps, (unsigned long long)(SEGMENT_BYTES_MAX >> 40));
    layout->up_stride = (size_t)whole_pages(up);
    layout->up_bytes = layout->up_arrays + layout->up_stride * spec->lanes;

    at = FARM_SEGMENT_HEADER_BYTES;
    layout->down_control = place_array(&at, sizeof(struct farm_down_control));
    layout->down_lanes = place_array(&at, spec->lanes * sizeof(struct farm_down_lane));
    layout->down_arrays = (size_t)whole_pages(at);
    layout->down_stride = (size_t)whole_pages(down);
    layout->down_bytes = layout->down_arrays + layout->down_stride * spec->lanes;

    layout->hash = hash_bytes(0xcbf29ce484222325ull, spec, sizeof *spec);
    layout->hash = hash_bytes(layout->hash, layout, offsetof(struct farm_ring_layout, hash));
    return FARM_OK;
}
