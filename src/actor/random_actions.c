// See random_actions.h. Bits are splitmix64's (Steele, Lea, Flood 2014); a bound n takes them by multiplication, with a
// bias below n * 2^-32.
#include "actor/random_actions.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/random.h"

static const float RANGE_MAX = 1e6f, OPEN_SPAN = 2;

void farm_random_actions_start(const struct farm_action_spec *spec, uint64_t seed, struct farm_random_actions *source) {
    *source = (struct farm_random_actions){
        .kind = spec->kind, .dims = spec->kind == FARM_ACTION_DISCRETE ? 1 : spec->dims, .state = seed};
    memcpy(source->sizes, spec->sizes, sizeof source->sizes);
    for (uint32_t i = 0; i < source->dims && spec->kind == FARM_ACTION_CONTINUOUS; i++) {
        const bool has_low = fabsf(spec->low[i]) <= RANGE_MAX, has_high = fabsf(spec->high[i]) <= RANGE_MAX;
        source->span[i] = has_low && has_high ? spec->high[i] - spec->low[i] : OPEN_SPAN;
        source->low[i] = has_low ? spec->low[i] : has_high ? spec->high[i] - OPEN_SPAN : -OPEN_SPAN / 2;
    }
}

// farm_random_mix adds the Weyl constant itself.
static inline uint64_t next(uint64_t *state) {
    const uint64_t at = *state;
    *state = at + 0x9E3779B97F4A7C15u;
    return farm_random_mix(at);
}

static void draw_discrete(uint64_t *state, uint32_t size, uint32_t count, int32_t *actions) {
    uint32_t i = 0;
    for (; i + 1 < count; i += 2) {
        const uint64_t bits = next(state);
        actions[i] = (int32_t)((bits & UINT32_MAX) * size >> 32);
        actions[i + 1] = (int32_t)((bits >> 32) * size >> 32);
    }
    if (i < count) actions[i] = (int32_t)((next(state) >> 32) * size >> 32);
}

void farm_random_actions_draw(struct farm_random_actions *source, uint32_t width, void *actions) {
    const uint32_t dims = source->dims;
    uint64_t state = source->state;
    int32_t *whole = actions;
    float *real = actions;
    if (source->kind == FARM_ACTION_DISCRETE) {
        draw_discrete(&state, source->sizes[0], width, whole);
    } else if (source->kind == FARM_ACTION_MULTI_DISCRETE) {
        for (uint32_t e = 0; e < width; e++)
            for (uint32_t i = 0; i < dims; i++)
                whole[e * dims + i] = (int32_t)((next(&state) >> 32) * source->sizes[i] >> 32);
    } else {
        for (uint32_t e = 0; e < width; e++)
            for (uint32_t i = 0; i < dims; i++)
                real[e * dims + i] = source->low[i] + source->span[i] * ((float)(next(&state) >> 40) * 0x1p-24f);
    }
    source->state = state;
}

void farm_random_actions_permit(const struct farm_random_actions *source, uint32_t width, const uint8_t *masks,
                                void *actions) {
    int32_t *action = actions;
    for (uint32_t row = 0; row < width * source->dims; row++) {
        const uint32_t size = source->sizes[row % source->dims];
        for (uint32_t tried = 0; tried < size && !masks[action[row]]; tried++)
            action[row] = action[row] + 1 == (int32_t)size ? 0 : action[row] + 1;
        masks += size;
    }
}
