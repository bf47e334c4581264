// The replay over real lanes, against a slow model: which windows live, their leaves and pins, what is released, who
// may go on, and what is handed out with which weight. Random shapes, configurations, orders of calls, rings that join
// and leave, learners that die.
#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <float.h>
#include <math.h>

#include "lanes.h"

TestSuite(prioritised, .fini = close_lanes, .timeout = 120);

enum { WINDOWS_MAX = 64, BATCH_MAX = 12, BATCHES = 2, FARMS = 100, OPERATIONS = 10000 };

static uint64_t random_state;
static struct farm_stats stats;
static struct farm_window_source_config config;

// A window's environments; pins: hand-outs that are not done.
struct model_window {
    float leaf[WIDTH];
    uint32_t pins;
    bool inserted[WIDTH];
};
static struct model {
    struct model_window windows[LANES][WINDOWS_MAX]; // windows [first, next), at their number mod WINDOWS_MAX
    uint64_t first[LANES], next[LANES];              // starts
    uint64_t tickets[LANES];
    bool present[RINGS];
    uint64_t inserted, sampled, dropped, bad;
    float highest;
    uint32_t batch, training;
    struct {
        struct farm_window windows[BATCH_MAX];
        uint32_t count;
    } batches[BATCHES];
} model;

static uint64_t below(uint64_t bound) {
    return random_next(&random_state) % bound;
}

static struct model_window *window_at(uint32_t lane, uint64_t start) {
    return &model.windows[lane][start / shape.stride % WINDOWS_MAX];
}

static void make_source(void) {
    struct farm_error err;
    cr_assert_eq(farm_window_source_make("prioritised", &config, &lanes.source, &err), FARM_OK, "%s", err.message);
}

static uint32_t history(void) {
    return shape.stack - 1;
}

// ---- the model ----

static float model_leaf(float priority) {
    if (!(priority >= 0) || isinf(priority)) {
        model.bad++;
        priority = model.highest;
    }
    model.highest = fmaxf(model.highest, priority);
    const float leaf = powf(priority, config.replay.order == FARM_REPLAY_UNIFORM ? 0 : config.replay.exponent);
    return leaf == 0 ? 0 : fminf(fmaxf(leaf, 1e-20f), 1e20f);
}

static uint64_t live_in(uint32_t shard, double *sum) {
    uint64_t live = 0;
    *sum = 0;
    for (uint32_t l = 0; l < LANES; l++)
        for (uint64_t s = model.first[l]; s < model.next[l]; s += shape.stride)
            for (uint32_t e = 0; e < WIDTH && lanes.shards[l] == shard; e++) {
                *sum += (double)window_at(l, s)->leaf[e];
                live += window_at(l, s)->leaf[e] > 0;
            }
    return live;
}

static int64_t head_room(void) {
    const int64_t wanted = shape.stride + shape.length, share = ring_steps / 16 < 1024 ? ring_steps / 16 : 1024,
                  most = (int64_t)ring_steps - shape.length - history();
    const int64_t room = wanted > share ? wanted : share;
    return room < most ? room : most;
}

static void model_evict(uint32_t l) {
    const int64_t end = (int64_t)(model.next[l] - shape.stride + shape.length) + head_room() - ring_steps;
    for (; model.first[l] < model.next[l]; model.first[l] += shape.stride) {
        const int64_t needs = (int64_t)model.first[l] - history();
        if ((needs > 0 ? needs : 0) >= end || window_at(l, model.first[l])->pins) return;
        *window_at(l, model.first[l]) = (struct model_window){0};
    }
}

// A transition from one of the window's trained steps.
static bool model_exists(uint32_t l, uint64_t start, uint32_t e) {
    bool exists = false;
    for (uint32_t t = 0; t < config.replay.transitions; t++) {
        const uint64_t n = start + shape.burn_in + t;
        const uint8_t now = farm_lane_flags(learner_lane(l), n)[e], next = farm_lane_flags(learner_lane(l), n + 1)[e];
        exists |= !(now & FARM_STEP_LAST) && !(next & FARM_STEP_FIRST);
    }
    return exists;
}

// By default the highest; the hook gives what depends on the window.
static float first_priority(uint32_t l, uint64_t start, uint32_t e) {
    return (float)((start * 7 + l * 3 + e) % 11) / 4;
}
static void first(void *context, const struct farm_window *window, float *priorities) {
    cr_assert_eq(context, &model);
    for (uint32_t e = 0; e < window->env_count; e++) priorities[e] = first_priority(window->lane_id, window->start, e);
}

static void model_push(uint32_t l, uint64_t start) {
    if (model.first[l] == model.next[l]) model.first[l] = start;
    model.next[l] = start + shape.stride;
    model_evict(l);
    for (uint32_t e = 0; e < WIDTH; e++) {
        struct model_window *window = window_at(l, start);
        if (window->inserted[e]) continue;
        window->inserted[e] = true;
        model.inserted++;
        window->leaf[e] = !model_exists(l, start, e) ? 0
                          : config.replay.first      ? model_leaf(first_priority(l, start, e))
                                                     : model_leaf(model.highest);
    }
}

static bool model_due(void) {
    return model.inserted > config.replay.start &&
           (double)(model.sampled + model.batch) <=
               config.replay.ratio * (double)(model.inserted - config.replay.start);
}

// Windows for an iteration, in every shard.
static bool has_enough(void) {
    const bool one = config.replay.repeats && config.replay.order <= FARM_REPLAY_UNIFORM;
    double sum;
    for (uint32_t k = 0; k < config.shards; k++)
        if (live_in(k, &sum) < (one ? 1 : config.share[k])) return false;
    return true;
}

// ---- what must hold after each call ----

static void check_lane(uint32_t l) {
    for (uint64_t s = model.first[l]; s < model.next[l]; s += shape.stride)
        for (uint32_t e = 0; e < WIDTH; e++) {
            const float kept = farm_lane_leaf(learner_lane(l), s)[e];
            cr_assert(kept == window_at(l, s)->leaf[e] && (kept > 0 || signbit(kept)), "lane %u window %lu: %g, not %g",
                      l, s, (double)kept, (double)window_at(l, s)->leaf[e]);
        }
    if (model.next[l]) expect_released(l, model.first[l] > history() ? model.first[l] - history() : 0);
}

// Either an iteration is due and can be taken, or every lane is released; also with windows enough to hold lanes.
static void check_limiter(bool starved) {
    bool held = false;
    for (uint32_t l = 0; l < LANES; l++) held |= model.present[l / RING_LANES] && !is_released(l, model.tickets[l]);
    cr_assert(!held || (model_due() && !starved), "lanes wait, and no iteration is due");
    cr_assert_eq(lanes.source->ops->ready(lanes.source), model_due());
}

static void check(void) {
    double sum;
    uint64_t live = 0;
    for (uint32_t k = 0; k < config.shards; k++) live += live_in(k, &sum);
    cr_assert_eq(stats.replay_inserted, model.inserted);
    cr_assert_eq(stats.replay_sampled, model.sampled);
    cr_assert_eq(stats.replay_bad_priorities, model.bad);
    cr_assert_eq(stats.replay_live, live, "%lu windows may be handed out, not %lu", stats.replay_live, live);
    cr_assert_eq(lanes.source->dropped, model.dropped);
    cr_assert(lanes.source->released[0] < UINT64_MAX || !has_enough(), "the limit is off");
}

// ---- operations ----

static void step_lane(uint32_t l) {
    if (!model.present[l / RING_LANES] || !is_released(l, model.tickets[l])) return;
    if (!farm_lane_actor_can_write(actor_lane(l))) {
        cr_assert(model.training, "a lane is full, and nothing is in training");
        return;
    }
    const uint64_t n = farm_lane_acted(learner_lane(l));
    answer_step_of(l, 0);
    for (uint32_t e = 0; e < WIDTH; e++)
        farm_lane_flags(actor_lane(l), n)[e] = (below(4) ? 0 : FARM_STEP_FIRST) | (below(4) ? 0 : FARM_STEP_LAST);
    for (; is_complete(l); check_lane(l)) {
        const uint64_t start = lanes.cursors[l].next;
        model.tickets[l] = push_next(l);
        model_push(l, start);
        cr_assert_eq(model.tickets[l], model.inserted);
    }
}

// Windows of orders by age or leaf: none that is left out comes before one that is handed out.
static void check_order(const struct farm_window *windows, uint32_t count, uint32_t shard) {
    const enum farm_replay_order order = config.replay.order;
    double worst = INFINITY;
    uint32_t better = 0;
    for (uint32_t pass = 0; pass < 2; pass++)
        for (uint32_t l = 0; l < LANES; l++)
            for (uint64_t s = model.first[l]; s < model.next[l]; s += shape.stride)
                for (uint32_t e = 0; e < WIDTH && lanes.shards[l] == shard; e++) {
                    const double age = (double)(model.next[l] - s), leaf = (double)window_at(l, s)->leaf[e],
                                 rank = order == FARM_REPLAY_OLDEST   ? age
                                        : order == FARM_REPLAY_NEWEST ? -age
                                                                      : leaf;
                    bool out = false;
                    for (uint32_t i = 0; i < count; i++)
                        out |= windows[i].lane_id == l && windows[i].start == s && windows[i].env_from == e;
                    if (!pass && out) worst = fmin(worst, rank);
                    if (pass && !out && leaf > 0) better += rank > worst;
                }
    cr_assert_eq(better, 0, "order %d: %u windows come before one that was handed out", (int)order, better);
}

static void check_share(const struct farm_window *windows, uint32_t count, uint32_t shard, double *odds) {
    const bool weighs = config.replay.order <= FARM_REPLAY_UNIFORM;
    double sum;
    live_in(shard, &sum);
    for (uint32_t i = 0; i < count; i++) {
        const struct farm_window *window = &windows[i];
        const uint32_t l = window->lane_id;
        cr_assert(window->shard == shard && l < LANES && lanes.shards[l] == shard && window->env_count == 1);
        cr_assert(window->lane == learner_lane(l) && window->env_from < WIDTH && window->start % shape.stride == 0);
        cr_assert(window->start >= model.first[l] && window->start < model.next[l], "window %lu of lane %u is gone",
                  window->start, l);
        struct model_window *at = window_at(l, window->start);
        cr_assert_gt(at->leaf[window->env_from], 0);
        for (uint32_t j = 0; j < i && (!config.replay.repeats || !weighs); j++)
            cr_assert_neq(windows[j].leaf, window->leaf, "handed out twice");
        odds[i] = weighs ? (double)at->leaf[window->env_from] / sum * count / model.batch : 1;
        at->pins++;
    }
    if (!weighs) check_order(windows, count, shard);
}

// Returns whether training starves: an iteration is due, but too few windows may be handed out.
static bool take_batch(void) {
    const uint32_t slot = model.batches[0].count > 0;
    double odds[BATCH_MAX], least = INFINITY;
    if (model.training == BATCHES) return false;
    const bool starved = model_due() && !has_enough();
    lanes.source->share = (double)below(5) / 4;
    const uint32_t count = lanes.source->ops->take(lanes.source, 0, model.batches[slot].windows);
    cr_assert_eq(count, model_due() && !starved ? model.batch : 0);
    if (!count) return starved;
    for (uint32_t k = 0, from = 0; k < config.shards; from += config.share[k++])
        check_share(model.batches[slot].windows + from, config.share[k], k, odds + from);
    const double beta = (double)config.replay.importance +
                        lanes.source->share * (double)(config.replay.importance_end - config.replay.importance);
    for (uint32_t i = 0; i < count; i++) least = fmin(least, odds[i]);
    for (uint32_t i = 0; i < count; i++) {
        const double wanted = fmax(pow(odds[i] / least, -beta), (double)FLT_MIN);
        cr_assert_leq(fabs((double)model.batches[slot].windows[i].weight / wanted - 1), 1e-3, "weight %g, not %g",
                      (double)model.batches[slot].windows[i].weight, wanted);
    }
    model.batches[slot].count = count;
    model.sampled += count;
    model.training++;
    return false;
}

static float random_priority(void) {
    static const float odd[] = {0, -0.0f, -1, NAN, INFINITY, FLT_MAX, 1e-30f};
    return below(20) ? (float)below(1000) / 100 : odd[below(sizeof odd / sizeof *odd)];
}

static void finish_batch(void) {
    const uint32_t slot = model.batches[0].count && (!model.batches[1].count || below(2)) ? 0 : 1,
                   count = model.batches[slot].count;
    float priorities[BATCH_MAX];
    const bool given = below(10) > 0;
    if (!count) return;
    for (uint32_t i = 0; i < count; i++) {
        const struct farm_window *window = &model.batches[slot].windows[i];
        const uint32_t l = window->lane_id;
        priorities[i] = random_priority();
        if (!model.present[l / RING_LANES]) continue;
        window_at(l, window->start)->pins--;
        if (given) window_at(l, window->start)->leaf[window->env_from] = model_leaf(priorities[i]);
    }
    lanes.source->ops->done(lanes.source, model.batches[slot].windows, count, given ? priorities : NULL);
    lanes.source->ops->published(lanes.source);
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t l = model.batches[slot].windows[i].lane_id;
        if (!model.present[l / RING_LANES]) continue;
        model_evict(l);
        check_lane(l);
    }
    model.batches[slot].count = 0;
    model.training--;
}

// As the trainer: iterations that hold the ring's windows end before its place is free.
static void leave_or_join(uint32_t ring) {
    if (model.present[ring]) {
        for (uint32_t l = RING_LANES * ring; l < RING_LANES * (ring + 1); l++)
            for (uint64_t s = model.first[l]; s < model.next[l]; s += shape.stride)
                for (uint32_t e = 0; e < WIDTH; e++) model.dropped += window_at(l, s)->leaf[e] > 0;
        forget_ring(ring);
        model.present[ring] = false;
        for (uint32_t l = RING_LANES * ring; l < RING_LANES * (ring + 1); l++) {
            memset(model.windows[l], 0, sizeof model.windows[l]);
            model.first[l] = model.next[l] = model.tickets[l] = 0;
            lanes.cursors[l] = (struct farm_window_cursor){0};
        }
        while (model.training) finish_batch();
        close_views(&lanes.rings[ring]);
        lanes.rings[ring] = new_ring();
    } else {
        admit_ring(ring);
        model.present[ring] = true;
    }
}

// A new learner finds the rings, the stats and nothing else. It pushes every window of the rings again.
static void restart_learner(void) {
    lanes.source->ops->destroy(lanes.source);
    make_source();
    for (uint32_t b = 0; b < BATCHES; b++) model.batches[b].count = 0;
    model.training = 0;
    model.dropped = 0;
    for (uint32_t l = 0; l < LANES; l++) {
        if (!model.present[l / RING_LANES]) continue;
        if (l % RING_LANES == 0) admit_ring(l / RING_LANES);
        for (uint32_t k = 0; k < WINDOWS_MAX; k++) model.windows[l][k].pins = 0;
        farm_window_cursor_start(learner_lane(l), &shape, &lanes.cursors[l]);
        if (model.next[l]) cr_assert_eq(lanes.cursors[l].next, model.first[l]);
        while (is_complete(l)) {
            const uint64_t start = lanes.cursors[l].next;
            model.tickets[l] = push_next(l);
            if (start == model.first[l]) model.next[l] = start;
            model_push(l, start);
            check_lane(l);
        }
    }
}

// ---- tests ----

static void draw_config(void) {
    shape = (struct farm_window_shape){
        .stride = 1 + (uint32_t)below(4), .burn_in = (uint32_t)below(3), .stack = 1 + (uint32_t)below(3)};
    config = (struct farm_window_source_config){.shards = 1 + (uint32_t)below(2), .lanes = LANES};
    config.replay = (struct farm_replay_config){.start = below(30),
                                                .ratio = (double[]){0.1, 0.75, 1, 4, 8.5}[below(5)],
                                                .order = below(2) ? FARM_REPLAY_PRIORITISED : below(5),
                                                .repeats = below(2),
                                                .exponent = (float[]){0.5f, 0.7f, 1, 2}[below(4)],
                                                .importance = (float)below(3) / 2,
                                                .importance_end = (float)below(3) / 2,
                                                .transitions = shape.stride + (uint32_t)below(3),
                                                .width = WIDTH,
                                                .seed = random_next(&random_state),
                                                .first = below(2) ? first : NULL,
                                                .first_context = &model,
                                                .stats = &stats};
    shape.length = shape.burn_in + config.replay.transitions + 1 + (uint32_t)below(3);
    ring_steps = shape.length + shape.stack + shape.stride + (uint32_t)below(WINDOWS_MAX / 2 * shape.stride);
    config.shape = shape;
    config.replay.steps = ring_steps;
    for (uint32_t k = 0; k < config.shards; k++) config.share[k] = 1 + (uint32_t)below(BATCH_MAX / 2);
}

static void set_up(void) {
    memset(&stats, 0, sizeof stats);
    memset(&model, 0, sizeof model);
    model.highest = 1;
    model.batch = config.share[0] + config.share[1];
    set_up_lanes(NULL);
    for (uint32_t l = 0; l < LANES; l++) lanes.shards[l] = l * config.shards / LANES;
    make_source();
}

Test(prioritised, agrees_with_a_slow_model_whatever_happens) {
    cr_redirect_stderr(); // starving farms warn
    for (uint64_t farm = 0; farm < FARMS; farm++) {
        random_state = farm;
        draw_config();
        set_up();
        for (uint32_t r = 0; r < RINGS; r++) leave_or_join(r);
        for (uint32_t i = 0; i < OPERATIONS; i++) {
            const uint64_t way = below(100);
            bool starved = false;
            if (way < 70)
                step_lane((uint32_t)below(LANES));
            else if (way < 84)
                starved = take_batch();
            else if (way < 98)
                finish_batch();
            else if (below(20) == 0)
                leave_or_join((uint32_t)below(RINGS));
            else if (below(20) == 0)
                restart_learner();
            check();
            if (starved || (way >= 70 && way < 84)) check_limiter(starved);
        }
        if (farm + 1 < FARMS) close_lanes();
    }
}

// One lane's windows of WIDTH environments each, with the hook's first priorities; at hand: `count` in a hand-out.
static void set_up_one_lane(uint32_t windows, struct farm_replay_config replay, uint32_t count) {
    shape = (struct farm_window_shape){.stride = 1, .length = 2, .stack = 1};
    ring_steps = 64;
    replay.ratio = 1e6;
    replay.transitions = 1;
    replay.width = WIDTH;
    replay.steps = ring_steps;
    replay.stats = &stats;
    config = (struct farm_window_source_config){
        .shape = shape, .shards = 1, .share = {count}, .lanes = LANES, .replay = replay};
    set_up();
    admit_ring(0);
    for (uint32_t k = 0; k < windows; k++) push_window(0, 0);
}

// Stratified draws vary less than independent ones, so the bound holds.
Test(prioritised, frequencies_are_those_of_the_priorities) {
    enum { WINDOWS = 40, LEAVES = WINDOWS * WIDTH, DRAWS = 400000, BATCH = 8 };
    for (uint32_t way = 0; way < 4; way++) {
        const bool uniform = way & 1;
        uint64_t counts[LEAVES] = {0};
        double sum = 0, chi_square = 0;
        set_up_one_lane(WINDOWS,
                        (struct farm_replay_config){.order = uniform ? FARM_REPLAY_UNIFORM : FARM_REPLAY_PRIORITISED,
                                                    .exponent = 0.5f,
                                                    .repeats = true,
                                                    .first = first,
                                                    .first_context = &model},
                        way & 2 ? 1 : BATCH);
        for (uint32_t i = 0; i < DRAWS; i += lanes.source->windows_max) {
            const uint32_t count = take_windows(0);
            cr_assert_eq(count, lanes.source->windows_max);
            for (uint32_t k = 0; k < count; k++) counts[lanes.taken[k].start * WIDTH + lanes.taken[k].env_from]++;
            finish_windows(count);
        }
        for (uint32_t i = 0; i < LEAVES; i++) sum += (double)farm_lane_leaf(learner_lane(0), i / WIDTH)[i % WIDTH];
        for (uint32_t i = 0; i < LEAVES; i++) {
            const double leaf = (double)farm_lane_leaf(learner_lane(0), i / WIDTH)[i % WIDTH],
                         wanted = DRAWS * leaf / sum;
            cr_assert(leaf > 0 || counts[i] == 0);
            if (leaf > 0) chi_square += ((double)counts[i] - wanted) * ((double)counts[i] - wanted) / wanted;
        }
        cr_assert_lt(chi_square, LEAVES + 5 * sqrt(2.0 * LEAVES), "way %u: chi-square %g", way, chi_square);
        if (way < 3) close_lanes();
    }
}

Test(prioritised, actors_are_not_held_while_all_priorities_are_0) {
    const float zeros[4] = {0};
    cr_redirect_stderr();
    set_up_one_lane(4, (struct farm_replay_config){.exponent = 1, .repeats = true}, 1);
    for (uint32_t e = 0; e < 4 * WIDTH; e++) {
        cr_assert_eq(take_windows(0), 1);
        lanes.source->ops->done(lanes.source, lanes.taken, 1, zeros);
        lanes.source->ops->published(lanes.source);
    }
    for (int again = 0; again < 2; again++) cr_assert_eq(take_windows(0), 0);
    cr_assert(is_released(0, UINT64_MAX));
    cr_assert_stderr_eq_str("farm: warning: training waits: the replay holds 12 windows, and 0 of them have a "
                            "transition and a priority above 0, too few for an update of 1\n",
                            "once");
    push_window(0, 0);
    cr_assert_eq(take_windows(0), 1);
    cr_assert_not(is_released(0, UINT64_MAX));
}

Test(prioritised, invalid_leaves_of_a_dead_learner_are_made_anew) {
    static const float bad[] = {NAN, -1, INFINITY, -INFINITY, 1e30f};
    set_up_one_lane(5, (struct farm_replay_config){.exponent = 1, .repeats = true}, 1);
    for (uint32_t k = 0; k < 5; k++) farm_lane_leaf(learner_lane(0), k)[0] = bad[k];
    float *later = farm_lane_leaf(learner_lane(0), farm_lane_acted(learner_lane(0)) + shape.stride);
    *later = 2; // a window that a saved replay lacks
    model.present[0] = true;
    lanes.source->ops->destroy(lanes.source);
    make_source();
    admit_ring(0);
    cr_assert_eq(*later, 0);
    lanes.cursors[0] = (struct farm_window_cursor){0};
    while (is_complete(0)) push_next(0);
    for (uint32_t k = 0; k < 5; k++) cr_assert_eq(farm_lane_leaf(learner_lane(0), k)[0], 1);
    cr_assert_eq(stats.replay_inserted, 5 * WIDTH, "they were counted");
}

// A function of the window, so that the order of calls does not matter.
static float later_priority(const struct farm_window *window) {
    return 0.1f + first_priority(window->lane_id, window->start, window->env_from);
}

// Rounds with lanes in either order. dies: the learner ends in the middle of a round's updates, as at a deterministic
// checkpoint: priorities are returned, and nothing is released. Returns the hand-outs.
static uint32_t lockstep(bool backwards, bool dies, struct farm_window *out) {
    enum { ROUNDS = 12, DUE = 3 };
    uint32_t count = 0;
    set_up_one_lane(0, (struct farm_replay_config){.exponent = 1, .seed = 5, .lockstep = true}, 4);
    config.replay.ratio = DUE * 4.0 / (LANES * WIDTH);
    lanes.source->ops->destroy(lanes.source);
    make_source();
    for (uint32_t r = 0; r < RINGS; r++) admit_ring(r), model.present[r] = true;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < LANES; i++) {
            const uint32_t l = backwards ? LANES - 1 - i : i;
            cr_assert_eq(take_windows(0), 0, "round %u: %u lanes have a window", round, i);
            model.tickets[l] = push_window(l, 0);
        }
        for (uint32_t update = 0; update < DUE; update++) {
            for (uint32_t l = 0; l < LANES; l++) cr_assert_not(is_released(l, model.tickets[l]));
            cr_assert_eq(take_windows(0), 4);
            for (uint32_t i = 0; i < 4; i++) out[count++] = lanes.taken[i];
            float priorities[4];
            for (uint32_t i = 0; i < 4; i++) priorities[i] = later_priority(&lanes.taken[i]);
            lanes.source->ops->done(lanes.source, lanes.taken, 4, priorities);
            for (uint32_t l = 0; l < LANES; l++) cr_assert_not(is_released(l, model.tickets[l]));
            if (!dies || round != 7 || update) {
                lanes.source->ops->published(lanes.source);
                continue;
            }
            lanes.source->ops->destroy(lanes.source);
            make_source();
            for (uint32_t r = 0; r < RINGS; r++) admit_ring(r);
            for (uint32_t l = 0; l < LANES; l++) {
                farm_window_cursor_start(learner_lane(l), &shape, &lanes.cursors[l]);
                while (is_complete(l)) model.tickets[l] = push_next(l);
            }
        }
        cr_assert_eq(take_windows(0), 0);
        for (uint32_t l = 0; l < LANES; l++) cr_assert(is_released(l, model.tickets[l]), "round %u is over", round);
    }
    return count;
}

Test(prioritised, lockstep_hands_out_the_same_in_any_order_of_lanes_and_after_a_death) {
    struct farm_window first_run[256], other[256];
    const uint32_t count = lockstep(false, false, first_run);
    for (uint32_t way = 1; way < 4; way++) {
        close_lanes();
        cr_assert_eq(lockstep(way & 1, way & 2, other), count);
        for (uint32_t i = 0; i < count; i++)
            cr_assert(other[i].leaf == first_run[i].leaf && other[i].start == first_run[i].start &&
                          other[i].weight == first_run[i].weight,
                      "way %u: hand-out %u differs", way, i);
    }
}

Test(prioritised_make, refuses_rings_that_are_too_short_and_an_invalid_ratio) {
    struct farm_window_source *source;
    struct farm_error err;
    config = (struct farm_window_source_config){.shape = {.stride = 4, .length = 7, .stack = 2},
                                                .shards = 1,
                                                .share = {1},
                                                .replay = {.steps = 11, .ratio = 1, .width = 1, .stats = &stats}};
    cr_assert_eq(farm_window_source_make("prioritised", &config, &source, &err), FARM_E_INVALID);
    cr_assert_str_eq(err.message,
                     "rings of 11 steps are too short to replay windows of 7: at least 13 (a larger --replay)");
    config.replay.steps = 13;
    config.replay.ratio = (double)NAN;
    cr_assert_eq(farm_window_source_make("prioritised", &config, &source, &err), FARM_E_INVALID);
    cr_assert_str_eq(err.message, "replay_ratio must be above 0 and at most 1e6 (got nan)");
}
