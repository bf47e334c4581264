// The backend of the chaos runner computes nothing; it checks what the learner passes to it for inference and training,
// as chaos.h lists. Runs in the learner process: infer on the inference thread, an iteration on the training thread,
// both at once. State that must survive a learner's death (the newest step seen of each environment, the windows
// trained on) lies in the shared mapping and is written in an order that leaves it readable after a death at any
// moment.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "payload.h"

void chaos_hook(void);

struct farm_backend {
    struct chaos_shared *shared;
    const struct farm_lane *lanes[CHAOS_ALL_LANES];     // inference: number -> lane, as met
    uint64_t windows[CHAOS_ALL_LANES][CHAOS_WIDTH_MAX]; // training: start of the next window + 1; 0: none in this life
    struct {
        struct farm_window windows[CHAOS_WINDOWS_MAX];
        uint32_t count; // 0: the slot is free
    } slots[FARM_BACKEND_SLOTS];
    float priorities[CHAOS_WINDOWS_MAX];
    uint32_t passed;  // slots with a pass since the last finish: bits
    bool has_version; // has published in this life
    uint64_t life, random, optimiser_step;
    float *state; // parameters, moments: the learner needs them
    size_t parameter_count;
};

// The place of a check, for its message.
struct place {
    struct chaos_shared *shared;
    const char *part; // "inference", "training"
    uint32_t lane, env;
    uint64_t n, life;
};

static void wrong(const struct place *place, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void wrong(const struct place *place, const char *format, ...) {
    char text[384];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    chaos_violation(place->shared, "%s, learner's life %llu: lane %u environment %u step %llu: %s", place->part,
                    (unsigned long long)place->life, place->lane, place->env, (unsigned long long)place->n, text);
}

static enum farm_status create(const struct farm_backend_config *config, struct farm_backend **out,
                               struct farm_error *err) {
    struct farm_backend *backend = calloc(1, sizeof *backend);
    float *state = calloc(3 * config->net->parameter_count, sizeof *state);
    if (!backend || !state) {
        free(backend);
        free(state);
        return farm_fail(err, FARM_E_LIMIT, "no memory for the checks");
    }
    backend->shared = chaos_shared_of_process();
    backend->life = __atomic_load_n(&backend->shared->state.learner_life, __ATOMIC_ACQUIRE);
    backend->random = backend->shared->shape.seed ^ farm_random_mix(backend->life);
    backend->state = state;
    backend->parameter_count = config->net->parameter_count;
    *out = backend;
    return FARM_OK;
}

static void destroy(struct farm_backend *backend) {
    if (!backend) return;
    free(backend->state);
    free(backend);
}

static uint64_t newest_version(const struct chaos_shared *shared) {
    return __atomic_load_n(&shared->state.version, __ATOMIC_ACQUIRE);
}

// ---- one step ----

// Reads an observation and checks it against itself and against what stands beside it in the lane.
static bool read_step(const struct place *place, const struct farm_lane *lane, struct chaos_payload *payload) {
    uint8_t observation[CHAOS_OBS_BYTES_MAX];
    const uint32_t bytes = (uint32_t)lane->obs_bytes[0];
    memcpy(observation, farm_lane_obs(lane, 0, place->n, place->env), bytes);
    memcpy(payload, observation, sizeof *payload);
    if (payload->checksum != chaos_checksum(observation, bytes) || payload->bytes != bytes) {
        wrong(place, "the observation is torn");
        return false;
    }
    const uint8_t flags = farm_lane_flags(lane, place->n)[place->env];
    const float reward = farm_lane_reward(lane, place->n)[place->env];
    if (payload->lane != place->lane || payload->env != place->env)
        wrong(place, "the observation belongs to lane %u environment %u", payload->lane, payload->env);
    if (payload->flags != flags) wrong(place, "flags 0x%x, written were 0x%x", flags, payload->flags);
    if (payload->reward != reward)
        wrong(place, "reward %.1f, written was %.1f", (double)reward, (double)payload->reward);
    return true;
}

// Where the life of the actor that wrote this step began. False where that has been forgotten.
static bool life_began(const struct chaos_shared *shared, const struct chaos_payload *payload, uint64_t *step) {
    const struct chaos_takeover *takeover =
        &shared->state.takeovers[payload->lane][payload->generation % CHAOS_GENERATIONS];
    if (__atomic_load_n(&takeover->generation, __ATOMIC_ACQUIRE) != payload->generation + 1) return false;
    *step = takeover->step;
    return true;
}

struct step_facts {
    uint64_t generation, sequence;
    uint32_t flags;
    int32_t action; // answered to it
};

// Whether `now` may follow `before`; counts abandoned episodes.
static bool follows(const struct place *place, const struct step_facts *before, const struct chaos_payload *now) {
    const bool first = now->flags & FARM_STEP_FIRST, ended = before->flags & FARM_STEP_LAST;
    if (now->generation == before->generation) {
        if (now->sequence != before->sequence + 1)
            wrong(place, "step %llu of its environment follows step %llu", (unsigned long long)now->sequence,
                  (unsigned long long)before->sequence);
        if (first != ended) wrong(place, "flags 0x%x follow 0x%x", now->flags, before->flags);
        if (!first && now->action != before->action)
            wrong(place, "action %d led to it, %d was answered", now->action, before->action);
        return false;
    }
    if (now->generation < before->generation || now->sequence != 0 || !first)
        wrong(place, "step %llu of life %llu (flags 0x%x) follows step %llu of life %llu",
              (unsigned long long)now->sequence, (unsigned long long)now->generation, now->flags,
              (unsigned long long)before->sequence, (unsigned long long)before->generation);
    return !ended;
}

// ---- inference ----

static void know_lane(struct farm_backend *backend, const struct place *place, const struct farm_lane *lane) {
    const struct farm_lane *known = NULL;
    if (place->lane >= CHAOS_ALL_LANES) {
        wrong(place, "the lane does not exist");
    } else if (!__atomic_compare_exchange_n(&backend->lanes[place->lane], &known, lane, false, __ATOMIC_RELAXED,
                                            __ATOMIC_RELAXED) &&
               known != lane) {
        wrong(place, "two lanes of one number");
    }
}

// What must hold of a lane whose step n is to be answered.
static void check_counters(const struct place *place, const struct farm_lane *lane) {
    const uint64_t acted = farm_lane_acted(lane), produced = farm_lane_produced(lane);
    if (acted != place->n) wrong(place, "requested while acted is %llu", (unsigned long long)acted);
    if (produced != place->n + 1) wrong(place, "requested while produced is %llu", (unsigned long long)produced);
    if (produced - farm_lane_consumed(lane) > lane->steps) wrong(place, "lies in a slot that is not released");
}

static void check_begin(const struct place *place, const struct chaos_payload *now) {
    uint64_t began;
    if (life_began(place->shared, now, &began) && began + now->sequence != place->n)
        wrong(place, "step %llu of an actor's life that took over at %llu", (unsigned long long)now->sequence,
              (unsigned long long)began);
}

// The frames before step n that belong to its episode are still there.
static void check_stack(const struct place *place, const struct farm_lane *lane, const struct chaos_payload *now) {
    const void *rows[8];
    const unsigned stack = place->shared->shape.stack;
    farm_lane_stack(lane, 0, place->n, place->env, stack, rows);
    for (unsigned back = 1; back < stack; back++) {
        const uint8_t *row = rows[stack - 1 - back];
        struct chaos_payload older;
        if (!row) continue;
        memcpy(&older, row, sizeof older);
        if (older.checksum != chaos_checksum(row, (uint32_t)lane->obs_bytes[0]) || older.lane != now->lane ||
            older.env != now->env || older.generation != now->generation || older.episode != now->episode ||
            older.sequence + back != now->sequence)
            wrong(place, "the frame %u steps before it is missing", back);
    }
}

// Compares the step with what was seen before, and notes it. seen[step % 2] is written, the other holds step n-1.
static void note_seen(struct farm_backend *backend, const struct place *place, const struct chaos_payload *now,
                      int32_t action) {
    struct chaos_seen *pair = backend->shared->state.seen[place->lane][place->env];
    struct chaos_seen *own = &pair[place->n % 2];
    const struct chaos_seen *before = &pair[(place->n + 1) % 2];
    struct chaos_totals *totals = &backend->shared->totals;
    if (own->step == place->n + 1) { // answered, but `acted` was not stored
        if (own->life == backend->life) wrong(place, "answered twice by one learner");
        if (own->checksum != now->checksum) wrong(place, "another observation than before");
        own->life = backend->life;
        chaos_add(&totals->steps_again, 1);
        return;
    }
    struct chaos_seen next = {.step = place->n + 1,
                              .life = backend->life,
                              .generation = now->generation,
                              .sequence = now->sequence,
                              .checksum = now->checksum,
                              .flags = now->flags,
                              .action = action};
    bool abandoned = false;
    if (place->n == 0) {
        if (!(now->flags & FARM_STEP_FIRST) || now->sequence) wrong(place, "step 0 is not a first one");
    } else if (before->step != place->n) {
        wrong(place, "inference has never seen the step before it");
    } else {
        const struct step_facts facts = {before->generation, before->sequence, before->flags, before->action};
        abandoned = follows(place, &facts, now);
        next.transitions = before->transitions;
        next.games = before->games;
        next.abandoned = before->abandoned;
    }
    next.transitions += !(now->flags & FARM_STEP_FIRST);
    next.games += (now->flags & FARM_STEP_GAME_END) != 0;
    next.abandoned += abandoned;
    __atomic_store_n(&own->step, 0, __ATOMIC_RELAXED);
    __atomic_signal_fence(__ATOMIC_SEQ_CST); // program order suffices: the reader is a later learner
    next.step = 0;
    *own = next;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    __atomic_store_n(&own->step, place->n + 1, __ATOMIC_RELEASE);
    chaos_add(&totals->steps_checked, 1);
}

// Writes the answer, first a wrong one, which a reader that comes too early finds.
static int32_t write_answer(struct farm_lane *lane, uint64_t n, uint32_t env, uint64_t checksum) {
    const struct chaos_answer answer = chaos_answer_to(checksum);
    const int32_t nonsense = -1;
    uint8_t *action = farm_lane_action(lane, n, env);
    memcpy(action, &nonsense, sizeof nonsense);
    chaos_hook();
    farm_lane_value(lane, n)[env] = answer.value;
    chaos_hook();
    float *logits = farm_lane_policy(lane, n, env);
    logits[0] = answer.logit;
    chaos_hook();
    logits[CHAOS_ACTIONS - 1] = -answer.logit;
    chaos_hook();
    memcpy(action, &answer.action, 2); // half an action
    chaos_hook();
    memcpy(action, &answer.action, sizeof answer.action);
    chaos_hook();
    return answer.action;
}

// Actor.
void chaos_answer(void *context, struct farm_lane *lane, uint64_t n) {
    (void)context;
    for (uint32_t e = 0; e < lane->width; e++) {
        struct chaos_payload payload;
        memcpy(&payload, farm_lane_obs(lane, 0, n, e), sizeof payload);
        write_answer(lane, n, e, payload.checksum);
    }
    *farm_lane_version(lane, n) = newest_version(chaos_shared_of_process());
    chaos_hook();
}

static enum farm_status infer(struct farm_backend *backend, uint32_t shard, const struct farm_policy_rows *rows,
                              uint32_t count, struct farm_error *err) {
    for (uint32_t i = 0; i < count; i++) {
        struct place place = {backend->shared,  "inference", rows[i].lane_id,
                              rows[i].env_from, rows[i].n,   backend->life};
        know_lane(backend, &place, rows[i].lane);
        if (rows[i].lane->local) wrong(&place, "requested, but the actor has answered");
        check_counters(&place, rows[i].lane);
        if (place.lane >= CHAOS_ALL_LANES) continue;
        for (uint32_t e = 0; e < rows[i].env_count; e++, place.env++) {
            struct chaos_payload payload;
            if (!read_step(&place, rows[i].lane, &payload)) continue;
            check_begin(&place, &payload);
            check_stack(&place, rows[i].lane, &payload);
            note_seen(backend, &place, &payload, write_answer(rows[i].lane, place.n, place.env, payload.checksum));
        }
        *farm_lane_version(rows[i].lane, place.n) = newest_version(backend->shared);
        if (place.n && *farm_lane_version(rows[i].lane, place.n - 1) > newest_version(backend->shared))
            wrong(&place, "answered by an older version than the step before it");
        chaos_hook();
    }
    (void)err;
    return FARM_OK;
}

// ---- training ----

static void check_answer(const struct place *place, const struct farm_lane *lane, uint64_t checksum) {
    const struct chaos_answer right = chaos_answer_to(checksum);
    int32_t action;
    memcpy(&action, farm_lane_action(lane, place->n, place->env), sizeof action);
    const float *logits = farm_lane_policy(lane, place->n, place->env);
    if (action != right.action || farm_lane_value(lane, place->n)[place->env] != right.value ||
        logits[0] != right.logit || logits[CHAOS_ACTIONS - 1] != -right.logit)
        wrong(place, "the answer beside it is another step's (action %d, right is %d)", action, right.action);
    if (*farm_lane_version(lane, place->n) > newest_version(place->shared))
        wrong(place, "answered by parameters that are not published yet");
}

// A replayed window, or the next one; for a restarted learner, the first window that no learner has released.
static void check_order(struct farm_backend *backend, const struct place *place, const struct farm_lane *lane) {
    const struct chaos_shape *shape = &backend->shared->shape;
    uint64_t *next = &backend->windows[place->lane][place->env];
    uint64_t *trained_to = &backend->shared->state.trained_to[place->lane][place->env];
    const uint64_t consumed = farm_lane_consumed(lane), history = shape->stack - 1;
    const uint64_t needs = place->n > history ? place->n - history : 0;
    const bool dropped = shape->max_lag && place->n + 1 > *next;
    if (consumed > needs)
        wrong(place, "a window in training whose steps are released already (consumed %llu)",
              (unsigned long long)consumed);
    if (shape->replay) {
        if (!(*farm_lane_leaf(lane, place->n) >= 0)) wrong(place, "its leaf is invalid");
    } else if (*next) {
        if (place->n + 1 != *next && !dropped) wrong(place, "the next window is %llu", (unsigned long long)*next - 1);
    } else {
        if (consumed != needs)
            wrong(place, "the first window of a learner's life, but consumed is %llu", (unsigned long long)consumed);
        if (place->n > *trained_to && !shape->max_lag)
            wrong(place, "windows from %llu on were skipped", (unsigned long long)*trained_to);
    }
    if (place->n % shape->unroll) wrong(place, "no window begins here");
    if (place->n < *trained_to) chaos_add(&backend->shared->totals.windows_again, 1);
    *next = place->n + shape->unroll + 1;
}

// Lets other threads and processes get ahead now and then.
static void dwell(struct farm_backend *backend) {
    if (chaos_random_below(&backend->random, 8)) return;
    const struct timespec nap = {.tv_nsec = (long)chaos_random_below(&backend->random, 300000)};
    nanosleep(&nap, NULL);
}

static void check_window(struct farm_backend *backend, const struct farm_window *window, uint32_t env) {
    const struct farm_lane *lane = window->lane;
    struct chaos_shared *shared = backend->shared;
    struct chaos_payload payload;
    struct place place = {shared, "training", window->lane_id, env, window->start, backend->life};
    know_lane(backend, &place, lane);
    if (place.lane >= CHAOS_ALL_LANES) return;
    check_order(backend, &place, lane);
    struct step_facts before = {0};
    uint64_t sum = 0;
    const bool waits = shared->shape.sync; // the last step waits for the version of its iteration
    for (uint32_t t = 0; t <= shared->shape.unroll; t++, place.n++) {
        if (!read_step(&place, lane, &payload)) continue;
        check_begin(&place, &payload);
        if (t == 0) check_stack(&place, lane, &payload);
        if (t > 0) follows(&place, &before, &payload);
        sum += payload.checksum;
        if ((waits || (lane->local && !shared->shape.replay)) && t == shared->shape.unroll) continue;
        check_answer(&place, lane, payload.checksum);
        if (t > 0 && *farm_lane_version(lane, place.n) < *farm_lane_version(lane, place.n - 1))
            wrong(&place, "answered by an older version than the step before it");
        if (waits && !place.life && *farm_lane_version(lane, place.n) != newest_version(shared))
            wrong(&place, "a synchronous iteration over a step of another version");
        before = (struct step_facts){payload.generation, payload.sequence, payload.flags,
                                     chaos_answer_to(payload.checksum).action};
    }
    dwell(backend);
    for (uint32_t t = 0; t <= shared->shape.unroll; t++) {
        memcpy(&payload, farm_lane_obs(lane, 0, window->start + t, env), sizeof payload);
        sum -= payload.checksum;
    }
    if (sum) wrong(&place, "the steps before it changed while training read them");
    uint64_t *trained_to = &shared->state.trained_to[place.lane][env], end = window->start + shared->shape.unroll;
    if (end > *trained_to) __atomic_store_n(trained_to, end, __ATOMIC_RELAXED);
    chaos_add(&shared->totals.windows_checked, 1);
    chaos_add(&shared->totals.window_steps_checked, shared->shape.unroll + 1);
}

static enum farm_status begin(struct farm_backend *backend, uint32_t slot, const struct farm_window *windows,
                              uint32_t count, struct farm_error *err) {
    if (backend->slots[slot].count) chaos_violation(backend->shared, "slot %u is begun twice", slot);
    if (!count || count > CHAOS_WINDOWS_MAX) return farm_fail(err, FARM_E_INVALID, "an iteration of %u windows", count);
    memcpy(backend->slots[slot].windows, windows, count * sizeof *windows);
    backend->slots[slot].count = count;
    return FARM_OK;
}

static enum farm_status pass(struct farm_backend *backend, uint32_t slot, const struct farm_pass *pass,
                             struct farm_error *err) {
    const struct chaos_shape *shape = &backend->shared->shape;
    const struct farm_window *windows = backend->slots[slot].windows;
    const uint32_t all = shape->sync ? shape->actors * shape->lanes * shape->width : shape->batch;
    uint32_t trained = 0;
    for (uint32_t i = 0; i < backend->slots[slot].count; i++)
        for (uint32_t e = 0; e < windows[i].env_count; e++, trained++)
            check_window(backend, &windows[i], windows[i].env_from + e);
    if (trained != all || pass->indices || pass->count != all)
        chaos_violation(backend->shared, "a pass over %u of %u windows, not %u", pass->count, trained, all);
    backend->passed |= 1u << slot;
    chaos_add(&backend->shared->state.passes, 1);
    backend->optimiser_step = backend->shared->state.passes;
    (void)err;
    return FARM_OK;
}

// Versions count publishes: by one in a learner's life; a new life continues above all earlier ones.
static enum farm_status publish(struct farm_backend *backend, uint32_t set, uint64_t version, struct farm_error *err) {
    const uint64_t before = newest_version(backend->shared);
    if (backend->has_version ? version != before + 1 : version <= before)
        chaos_violation(backend->shared, "learner's life %llu: version %llu is published after version %llu",
                        (unsigned long long)backend->life, (unsigned long long)version, (unsigned long long)before);
    backend->has_version = true;
    __atomic_store_n(&backend->shared->state.version, version, __ATOMIC_RELEASE);
    (void)err;
    return FARM_OK;
}

static enum farm_status finish(struct farm_backend *backend, struct farm_pass_stats *stats, struct farm_error *err) {
    for (uint32_t slot = 0; slot < FARM_BACKEND_SLOTS; slot++)
        if (backend->passed >> slot & 1) backend->slots[slot].count = 0;
    backend->passed = 0;
    for (uint32_t i = 0; i < CHAOS_WINDOWS_MAX; i++)
        backend->priorities[i] = (float)chaos_random_below(&backend->random, 100) - 1; // -1 is invalid
    *stats = (struct farm_pass_stats){.priorities = backend->priorities};
    (void)err;
    return FARM_OK;
}

// What parameter i of the three vectors is after so many passes: so a checkpoint that mixes two moments is found.
static float parameter(uint64_t passes, size_t i) {
    return (float)(farm_random_mix(passes ^ (uint64_t)i << 40) & 0xFFFF);
}

// Training thread, between two iterations; what it returns is what a checkpoint will hold.
static struct farm_backend_state state(struct farm_backend *backend) {
    const size_t count = backend->parameter_count;
    for (size_t i = 0; i < 3 * count; i++) backend->state[i] = parameter(backend->optimiser_step, i);
    return farm_backend_state_of(backend->state, backend->state + count, backend->state + 2 * count,
                                 backend->optimiser_step, newest_version(backend->shared));
}

// A checkpoint may have been loaded into the vectors.
static enum farm_status state_changed(struct farm_backend *backend, uint64_t version, uint64_t optimiser_step,
                                      struct farm_error *err) {
    size_t wrong_ones = 0;
    for (size_t i = 0; i < 3 * backend->parameter_count; i++)
        wrong_ones += backend->state[i] != parameter(optimiser_step, i);
    if (wrong_ones || optimiser_step > backend->shared->state.passes)
        chaos_violation(backend->shared,
                        "learner's life %llu: the checkpoint of pass %llu (now %llu) has %zu wrong parameters",
                        (unsigned long long)backend->life, (unsigned long long)optimiser_step,
                        (unsigned long long)backend->shared->state.passes, wrong_ones);
    backend->optimiser_step = optimiser_step;
    chaos_add(&backend->shared->totals.checkpoints_loaded, optimiser_step > 0);
    return publish(backend, FARM_SET_ONLINE, version, err);
}

const struct farm_backend_ops chaos_backend = {.name = "chaos",
                                               .create = create,
                                               .destroy = destroy,
                                               .infer = infer,
                                               .overlaps = true, // the trainer begins the next iteration ahead
                                               .begin = begin,
                                               .pass = pass,
                                               .publish = publish,
                                               .finish = finish,
                                               .state = state,
                                               .state_changed = state_changed};
