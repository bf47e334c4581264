// See group.h.
#include "actor/group.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/number.h"
#include "envs/plugin.h"
#include "kernels/head.h"
#include "kernels/random.h"

// Guarded bytes on either side of a field: 16 of small fields, whose step may take a few nanoseconds, else 64.
enum { GUARD_SMALL = 16, GUARD_LARGE = 64, SMALL_FIELD_BYTES = 512 };

enum farm_status farm_group_make(const struct farm_actor_config *config, const struct farm_env_api *api,
                                 const struct farm_ring_spec *ring, uint32_t lane, uint64_t generation,
                                 struct farm_call *call, struct farm_group *group, struct farm_error *err) {
    const uint32_t own = ring->env.agents ? ring->env.agents : 1, agents = own + config->opponents;
    const uint32_t count = ring->width / own;
    size_t scratch = 0;
    *group = (struct farm_group){.api = api,
                                 .config = config,
                                 .ring = ring,
                                 .spec = &ring->env,
                                 .lane = lane,
                                 .width = ring->width,
                                 .agents = agents,
                                 .env_count = count,
                                 .bad_values = config->bad_values,
                                 .obs_far = config->obs_far,
                                 .call = call};
    if (farm_head_mask_field(group->spec, &group->mask, NULL)) group->mask = -1; // the learner refuses it
    for (uint32_t f = 0; f < ring->env.obs_count && config->opponents; f++)
        scratch += farm_field_bytes(&ring->env.obs[f]) * agents + 3 * GUARD_LARGE;
    group->envs = calloc(count, sizeof *group->envs);
    group->ended = malloc(count * agents * sizeof *group->ended);
    group->scratch = scratch ? calloc(1, scratch) : NULL;
    if (!group->envs || !group->ended || (scratch && !group->scratch))
        return farm_fail(err, FARM_E_LIMIT, "no memory for %u environments", count);
    memset(group->ended, true, count * agents);
    call->lane = lane;
    call->call = FARM_CALL_CREATE;
    for (uint32_t e = 0; e < count; e++) {
        const struct farm_env_config one = {
            .seed = farm_seed_derive(config->seed, config->actor * ring->lanes + lane, e, generation),
            .options = config->options,
            .option_count = config->option_count,
            .hints = config->obs_far ? FARM_ENV_OBS_FAR : 0};
        call->env = e;
        const enum farm_status status = farm_plugin_create(api, &one, &group->envs[e], err);
        if (status) return status;
        if (call->heartbeat) farm_store_relaxed(call->heartbeat, farm_load_relaxed(call->heartbeat) + 1);
    }
    call->call = FARM_CALL_NONE;
    return farm_ring_spec_find(ring, "control") ? farm_control_open(group, err) : FARM_OK;
}

void farm_group_free(struct farm_group *group) {
    for (uint32_t e = 0; group->envs && e < group->env_count; e++)
        if (group->envs[e]) group->api->destroy(group->envs[e]);
    free(group->envs);
    free(group->ended);
    free(group->scratch);
    free(group->numbers);
    *group = (struct farm_group){0};
}

// Fails with what the environment did in its present call. hint: "" or " (...)".
static enum farm_status fail_env(const struct farm_group *group, uint32_t e, const char *hint, struct farm_error *err,
                                 const char *format, ...) __attribute__((format(printf, 5, 6)));
static enum farm_status fail_env(const struct farm_group *group, uint32_t e, const char *hint, struct farm_error *err,
                                 const char *format, ...) {
    char what[256];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return farm_fail(err, FARM_E_INVALID, "environment %s %s: lane %u, number %u, in its %s%s", group->api->name, what,
                     group->lane, e, group->call->call == FARM_CALL_RESET ? "reset" : "step", hint);
}

// ---- guards ----

// For small fields the guards cost more than a tenth of a step of 50 ns, so they are checked in one step of eight. The
// multiplication spreads these: an environment whose faults are periodic meets them too.
static bool is_guarded(uint64_t n) {
    return n * 0x9e3779b97f4a7c15u >> 61 == 0;
}

// Copies of the bytes before and behind an environment's part of a field, made before its call. `nowhere` replaces them
// if they would leave the field's array (the first environments of slot 0, the last ones of the last slot): another
// field of the same environment may be there.
struct guard {
    const uint8_t *before, *behind;
    uint64_t copy_before[GUARD_LARGE / 8], copy_behind[GUARD_LARGE / 8];
};

// A field's array: the part of the present environment, and the range of parts whose guards lie in the array.
struct field {
    uint8_t *at;
    size_t bytes;
    const uint8_t *least, *most;
};

static const uint8_t nowhere[GUARD_LARGE];

static inline struct field find_field(const struct farm_lane *lane, uint32_t f, uint64_t n, size_t guard,
                                      uint32_t agents) {
    const size_t bytes = lane->obs_bytes[f] * agents, whole = lane->obs_bytes[f] * lane->width * lane->steps;
    return (struct field){.at = farm_lane_obs(lane, f, n, 0),
                          .bytes = bytes,
                          .least = lane->obs[f] + guard,
                          .most = lane->obs[f] + (whole > bytes + guard ? whole - bytes - guard : 0)};
}

static inline void set_guard(struct guard *guard, const struct field *field, size_t bytes) {
    guard->before = field->at >= field->least ? field->at - bytes : nowhere;
    guard->behind = field->at <= field->most ? field->at + field->bytes : nowhere;
    memcpy(guard->copy_before, guard->before, bytes);
    memcpy(guard->copy_behind, guard->behind, bytes);
}

static inline uint64_t difference(const uint64_t *copy, const uint8_t *now, size_t bytes) {
    uint64_t words[GUARD_LARGE / 8], bits = 0;
    memcpy(words, now, bytes);
    for (size_t i = 0; i < bytes / 8; i++) bits |= copy[i] ^ words[i];
    return bits;
}

static inline bool guard_changed(const struct guard *guard, size_t bytes) {
    return (difference(guard->copy_before, guard->before, bytes) |
            difference(guard->copy_behind, guard->behind, bytes)) != 0;
}

static enum farm_status fail_guard(const struct farm_group *group, uint32_t f, bool behind, uint32_t e,
                                   struct farm_error *err) {
    return fail_env(group, e, " (farm doctor finds the place in a plug-in)", err,
                    "writes %s its observation '%s' of %zu bytes", behind ? "past" : "before", group->spec->obs[f].name,
                    farm_field_bytes(&group->spec->obs[f]));
}

// ---- senseless numbers ----

// The field with a senseless number or choice, or an action mask that forbids everything (with LAST it may), obs_count
// for the reward, or -1.
static int find_senseless(const struct farm_group *group, void *const *obs, float reward, bool last) {
    const struct farm_env_spec *spec = group->spec;
    for (uint32_t f = 0; f < spec->obs_count; f++)
        if (!farm_field_is_valid(&spec->obs[f], obs[f])) return (int)f;
    if (group->mask >= 0 && !last && farm_head_mask_blocked(&spec->action, obs[group->mask]) >= 0) return group->mask;
    return farm_numbers_sensible(&reward, 1) ? -1 : (int)spec->obs_count;
}

static enum farm_status fail_senseless(const struct farm_group *group, const struct farm_lane *lane, int field,
                                       uint32_t e, struct farm_error *err) {
    const bool reward = field == (int)group->spec->obs_count;
    const char *what = field == group->mask ? "forbids every choice of an action, before its episode's end,"
                       : !reward && group->spec->obs[field].dtype == FARM_I32 ? "is outside its choices"
                                                                              : "is NaN, infinite or beyond 1e9";
    return fail_env(group, e,
                    group->bad_values == FARM_BAD_RESET ? " (--bad-values reset cannot replace a reset)"
                                                        : " (--bad-values fail)",
                    err, "returns %s%s%s that %s at step %llu", reward ? "a reward" : "an observation '",
                    reward ? "" : group->spec->obs[field].name, reward ? "" : "'", what,
                    (unsigned long long)farm_lane_actor_next(lane));
}

// ---- a step ----

// Whether the environment does not have the action. choices: of the only one, 0: there are several, or numbers.
static inline bool is_impossible(const struct farm_action_spec *spec, uint32_t choices, const void *action) {
    if (choices) return *(const uint32_t *)action >= choices;
    return spec->kind != FARM_ACTION_CONTINUOUS && farm_action_find_invalid(spec, action, 1) < spec->dims;
}

static enum farm_status fail_action(const struct farm_group *group, const void *action, uint32_t e,
                                    struct farm_error *err) {
    const size_t bad = farm_action_find_invalid(&group->spec->action, action, 1);
    return fail_env(group, e, "", err, "was given action %d, which it does not have", ((const int32_t *)action)[bad]);
}

// A continuous action within its bounds.
static const void *clip(const struct farm_action_spec *spec, const void *action, float *within) {
    memcpy(within, action, spec->dims * sizeof *within);
    for (uint32_t i = 0; i < spec->dims; i++) {
        const float low = spec->low[i], high = spec->high[i];
        within[i] = within[i] >= low ? within[i] <= high ? within[i] : high : low;
    }
    return within;
}

static void start_episode(const struct farm_group *group, void *const *obs, uint32_t e) {
    group->call->call = FARM_CALL_RESET;
    group->api->reset(group->envs[e], obs);
}

// farm_group_step of environments of one agent, with constant numbers of fields and of guarded bytes (0: none). Local
// copies stay in registers: the compiler must assume that the environment's functions change everything else.
static inline __attribute__((always_inline)) enum farm_status
step_all(struct farm_group *group, struct farm_lane *lane, uint32_t fields, size_t guard, struct farm_error *err) {
    const struct farm_action_spec *spec = &group->spec->action;
    const bool continuous = spec->kind == FARM_ACTION_CONTINUOUS;
    const uint64_t n = farm_lane_actor_next(lane);
    const size_t action_bytes = lane->answer[FARM_ANSWER_ACTION].bytes;
    const uint8_t *action = farm_lane_action(lane, n - 1, 0); // not used before the first step
    uint8_t *const flags = farm_lane_flags(lane, n);
    float *const reward = farm_lane_reward(lane, n);
    uint32_t (*const step)(void *, const void *, void *const *, float *) = group->api->step;
    struct farm_call *const call = group->call;
    bool *const ended = group->ended;
    void *const *const envs = group->envs;
    const uint32_t width = group->width, choices = spec->kind == FARM_ACTION_DISCRETE ? spec->sizes[0] : 0;
    uint64_t *const heartbeat = &lane->up_control->heartbeat, beats = farm_load_relaxed(heartbeat);
    struct field at[FARM_OBS_FIELDS_MAX];
    for (uint32_t f = 0; f < fields; f++) at[f] = find_field(lane, f, n, guard, 1);

    for (uint32_t e = 0; e < width; e++, action += action_bytes) {
        struct guard guards[FARM_OBS_FIELDS_MAX];
        void *obs[FARM_OBS_FIELDS_MAX];
        float within[FARM_ACTION_DIMS_MAX], gained = 0;
        uint32_t answer = 0;
        const bool first = ended[e];
        call->env = e;
        for (uint32_t f = 0; f < fields; f++) {
            obs[f] = at[f].at;
            if (guard) set_guard(&guards[f], &at[f], guard);
        }
        if (first) start_episode(group, obs, e);
        if (!first) {
            call->call = FARM_CALL_STEP;
            if (is_impossible(spec, choices, action)) return fail_action(group, action, e, err);
            answer = step(envs[e], continuous ? clip(spec, action, within) : action, obs, &gained);
            if (!farm_group_answer_valid(answer))
                return fail_env(group, e, "", err, "answered 0x%x, which farm/env.h does not allow", answer);
        }
        for (uint32_t f = 0; f < fields; f++) {
            if (guard && guard_changed(&guards[f], guard))
                return fail_guard(group, f, difference(guards[f].copy_behind, guards[f].behind, guard), e, err);
            at[f].at += at[f].bytes;
        }
        reward[e] = first ? 0 : gained;
        flags[e] = (uint8_t)(first ? FARM_STEP_FIRST : answer ? answer | FARM_STEP_LAST : 0);
        ended[e] = answer && !first;
        farm_store_relaxed(heartbeat, ++beats);
    }
    call->call = FARM_CALL_NONE;
    if (group->obs_far) farm_fence_streams(); // the release store of `produced` does not order them
    return FARM_OK;
}

// ---- several agents, resets in the same step, bad_values ----

// One environment in a step. `at`: its agents' observations, side by side in the lane or, with opponents, in `scratch`.
struct turn {
    struct farm_lane *lane;
    uint64_t n;
    uint32_t e;
    bool *left; // [agents] of the group's `ended`
    struct field at[FARM_OBS_FIELDS_MAX];
    float rewards[FARM_AGENTS_MAX];
    uint8_t flags[FARM_AGENTS_MAX]; // before a step FIRST of those that have left, else 0
};

// The row of an agent in the lane, or in its opponents' one.
static uint32_t find_row(const struct farm_group *group, uint32_t e, uint32_t a, struct farm_lane **lane) {
    const uint32_t others = group->config->opponents, own = group->agents - others;
    const bool plays = others && farm_opponent_plays(group->agents, others, a);
    if (plays) *lane = group->opponents;
    return e * (plays ? others : own) + (others == own ? a / 2 : plays ? a - own : a);
}

static enum farm_status step_env(const struct farm_group *group, struct turn *turn, void *const *obs,
                                 struct farm_error *err) {
    const struct farm_action_spec *spec = &group->spec->action;
    uint32_t actions[FARM_AGENTS_MAX * FARM_ACTION_DIMS_MAX];
    uint8_t ends[FARM_AGENTS_MAX];
    group->call->call = FARM_CALL_STEP;
    for (uint32_t a = 0; a < group->agents; a++) {
        struct farm_lane *lane = turn->lane;
        const uint32_t row = find_row(group, turn->e, a, &lane);
        const void *action = farm_lane_action(lane, turn->n - 1, row);
        float within[FARM_ACTION_DIMS_MAX];
        if (!turn->left[a] && is_impossible(spec, 0, action)) return fail_action(group, action, turn->e, err);
        if (spec->kind == FARM_ACTION_CONTINUOUS) action = clip(spec, action, within);
        memcpy(actions + a * spec->dims, action, spec->dims * sizeof *actions);
    }
    farm_plugin_step(group->api, group->agents, group->envs[turn->e], actions, obs, turn->rewards, turn->left, ends);
    for (uint32_t a = 0; a < group->agents; a++) {
        if (!farm_group_answer_valid(ends[a]))
            return fail_env(group, turn->e, "", err, "answered 0x%x, which farm/env.h does not allow", ends[a]);
        if (ends[a]) turn->flags[a] = ends[a] | FARM_STEP_LAST;
    }
    return FARM_OK;
}

// Resets or steps the environment, and checks what it wrote. Recipe key bad_values if it is not "count": ends the
// actor, or abandons the episode and begins another.
static enum farm_status call_env(struct farm_group *group, struct turn *turn, bool begins, struct farm_error *err) {
    struct farm_lane *lane = turn->lane;
    struct guard guards[FARM_OBS_FIELDS_MAX];
    void *obs[FARM_OBS_FIELDS_MAX];
    uint8_t *scratch = group->scratch;
    enum farm_status status = FARM_OK;
    int bad = -1;
    group->call->env = turn->e;
    for (uint32_t f = 0; f < lane->obs_count; f++) {
        struct field *field = &turn->at[f];
        *field = find_field(lane, f, turn->n, GUARD_LARGE, group->agents);
        field->at += turn->e * field->bytes;
        if (scratch) field->least = field->most = field->at = scratch + GUARD_LARGE;
        if (scratch) scratch = field->at + (field->bytes / GUARD_LARGE + 2) * GUARD_LARGE; // keeps the alignment
        obs[f] = field->at;
        set_guard(&guards[f], field, GUARD_LARGE);
    }
    if (begins) start_episode(group, obs, turn->e);
    if (!begins) status = step_env(group, turn, obs, err);
    for (uint32_t f = 0; f < lane->obs_count && !status; f++)
        if (guard_changed(&guards[f], GUARD_LARGE))
            return fail_guard(group, f, difference(guards[f].copy_behind, guards[f].behind, GUARD_LARGE), turn->e, err);
    for (uint32_t a = 0; a < group->agents && bad < 0 && !status; a++) {
        if (begins) turn->flags[a] |= FARM_STEP_FIRST, turn->left[a] = false;
        for (uint32_t f = 0; f < lane->obs_count; f++) obs[f] = turn->at[f].at + a * lane->obs_bytes[f];
        if (group->bad_values != FARM_BAD_COUNT && (begins || turn->flags[a] != FARM_STEP_FIRST))
            bad = find_senseless(group, obs, begins ? 0 : turn->rewards[a], !begins && turn->flags[a]);
    }
    if (bad < 0) return status;
    if (begins || group->bad_values == FARM_BAD_FAIL) return fail_senseless(group, lane, bad, turn->e, err);
    if (!group->warned)
        farm_log_warn("environment %s returns invalid values (%s, lane %u, number %u): episode abandoned; later ones "
                      "are only counted (rejected_steps)",
                      group->api->name, bad < (int)lane->obs_count ? group->spec->obs[bad].name : "reward", group->lane,
                      turn->e);
    group->warned = true;
    farm_store_relaxed(&lane->up_control->abandoned, farm_load_relaxed(&lane->up_control->abandoned) + 1);
    memset(turn->flags, 0, sizeof turn->flags);
    return call_env(group, turn, true, err);
}

// With same-step resets, keeps agents' last observations; the next episode begins with the last agent's end.
static enum farm_status renew_turn(struct farm_group *group, struct turn *turn, struct farm_error *err) {
    bool over = true;
    for (uint32_t a = 0; a < group->agents; a++) {
        struct farm_lane *lane = turn->lane;
        const uint32_t row = find_row(group, turn->e, a, &lane);
        over &= turn->left[a];
        if (!(turn->flags[a] & FARM_STEP_LAST)) continue;
        turn->flags[a] |= FARM_STEP_FIRST;
        for (uint32_t f = 0; f < lane->obs_count; f++)
            memcpy(farm_lane_last(lane, f, turn->n, row), turn->at[f].at + a * lane->obs_bytes[f], lane->obs_bytes[f]);
    }
    return over ? call_env(group, turn, true, err) : FARM_OK;
}

// An agent that has left has zeros for an observation; its mask permits all.
static enum farm_status take_turn(struct farm_group *group, struct turn *turn, struct farm_error *err) {
    bool over = true;
    for (uint32_t a = 0; a < group->agents; a++) {
        turn->flags[a] = turn->left[a] ? FARM_STEP_FIRST : 0;
        over &= turn->left[a];
    }
    enum farm_status status = call_env(group, turn, over, err);
    if (!status && turn->lane->last[0]) status = renew_turn(group, turn, err);
    for (uint32_t a = 0; a < group->agents && !status; a++) {
        struct farm_lane *lane = turn->lane;
        const uint32_t row = find_row(group, turn->e, a, &lane), flags = turn->flags[a];
        for (uint32_t f = 0; f < lane->obs_count; f++) {
            uint8_t *obs = turn->at[f].at + a * lane->obs_bytes[f];
            if (turn->left[a] && flags & FARM_STEP_FIRST) memset(obs, (int)f == group->mask, lane->obs_bytes[f]);
            if (group->scratch) memcpy(farm_lane_obs(lane, f, turn->n, row), obs, lane->obs_bytes[f]);
        }
        farm_lane_reward(lane, turn->n)[row] = flags == FARM_STEP_FIRST ? 0 : turn->rewards[a];
        farm_lane_flags(lane, turn->n)[row] = (uint8_t)flags;
    }
    return status;
}

static enum farm_status take_turns(struct farm_group *group, struct farm_lane *lane, struct farm_error *err) {
    enum farm_status status = FARM_OK;
    for (uint32_t e = 0; e < group->env_count && !status; e++) {
        struct turn turn = {lane, farm_lane_actor_next(lane), e, .left = group->ended + e * group->agents};
        status = take_turn(group, &turn, err);
        farm_store_relaxed(&lane->up_control->heartbeat, farm_load_relaxed(&lane->up_control->heartbeat) + 1);
    }
    if (!status) group->call->call = FARM_CALL_NONE;
    if (group->obs_far) farm_fence_streams();
    return status;
}

static enum farm_status step_lane(struct farm_group *group, struct farm_lane *lane, struct farm_error *err) {
    const bool small = lane->obs_bytes[0] < SMALL_FIELD_BYTES;
    if (small && !is_guarded(farm_lane_actor_next(lane)))
        return lane->obs_count == 1 ? step_all(group, lane, 1, 0, err) : step_all(group, lane, lane->obs_count, 0, err);
    if (lane->obs_count > 1) return step_all(group, lane, lane->obs_count, GUARD_SMALL, err);
    return small ? step_all(group, lane, 1, GUARD_SMALL, err) : step_all(group, lane, 1, GUARD_LARGE, err);
}

enum farm_status farm_group_step(struct farm_group *group, struct farm_lane *lane, struct farm_error *err) {
    enum farm_status status = group->numbers ? farm_control_obey(group, lane, err) : FARM_OK;
    if (status) return status;
    const bool plain = group->agents == 1 && !lane->last[0] && group->bad_values == FARM_BAD_COUNT && group->api->step;
    return plain ? step_lane(group, lane, err) : take_turns(group, lane, err);
}
