// Replay: windows stay in their rings until eviction, oldest first, and are handed out again and again. See source.h.
// One index a shard (tree.h): the leaf of window k (start k * stride) of a lane's environment e is
// base(lane) + (k mod K) * W + e, so nothing maps leaves to windows. `down` has a copy of the leaves, which outlives
// this process: 0 evicted, -0 never handed out (no transition, or priority 0). Hand-outs pin their windows until
// `done`. Random numbers are a function of the count of hand-outs, so counts and leaves are the whole state.
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/time.h"
#include "kernels/gather.h"
#include "kernels/random.h"
#include "replay/source.h"
#include "replay/tree.h"

enum { AHEAD = 16 };
static const float LEAF_LEAST = 1e-20f, LEAF_MOST = 1e20f; // handed-out windows' bounds: sums stay finite
enum { HEAD_ROOM_SHARE = 16, HEAD_ROOM_STEPS_MAX = 1024 }; // for what actors do during the longest pass

struct place {
    uint32_t *pins; // [slots] hand-outs in training of each window; NULL: no lane
    struct farm_window newest;
    uint64_t first, next; // starts of its windows that live: [first, next)
    bool waits;           // lockstep: has a window of the present round
};

struct prioritised {
    struct farm_window_source source;
    struct farm_window_source_config config;
    struct farm_stats *stats;
    struct farm_tree *trees[FARM_WINDOW_SHARDS_MAX];
    uint64_t live[FARM_WINDOW_SHARDS_MAX]; // leaves above 0
    uint32_t slots;                        // K
    uint32_t room;                         // steps that eviction keeps free in a ring
    struct place *places;                  // [lanes]
    uint32_t *pins;                        // in all places
    uint64_t environments, held;           // the present lanes' environments; their windows in the rings
    uint32_t present, waiting;             // lanes; lockstep: those that wait
    uint64_t rounds;                       // lockstep: released so far
    uint32_t training;                     // iterations handed out and not done
    bool starved, warned;                  // an iteration is due, but too few windows may be handed out
    uint64_t since_ns, *waits;             // a side waits since then: its word in the stats; NULL: neither does
    uint64_t *leaves;                      // [most of a call]: those of one call, with their values and random numbers
    float *values;
    double *draws;
};

static struct prioritised *of(struct farm_window_source *source) {
    return (struct prioritised *)source;
}

static uint32_t slot_of(const struct prioritised *p, uint64_t start) {
    return (uint32_t)(start / p->source.shape.stride % p->slots);
}

// The first leaf of a lane, and of a window.
static uint64_t base_of(const struct prioritised *p, uint32_t lane_id) {
    return (uint64_t)lane_id * p->slots * p->config.replay.width;
}
static uint64_t leaf_of(const struct prioritised *p, const struct place *place, uint64_t start) {
    return base_of(p, place->newest.lane_id) + (uint64_t)slot_of(p, start) * place->newest.lane->width;
}

// The window of a leaf, which one more hand-out pins.
static struct farm_window window_of(struct prioritised *p, uint64_t leaf) {
    const uint32_t lane_id = (uint32_t)(leaf / base_of(p, 1));
    const uint64_t within = leaf - base_of(p, lane_id);
    const struct place *place = &p->places[lane_id];
    struct farm_window window = place->newest;
    const uint32_t width = window.lane->width, slot = (uint32_t)(within / width),
                   back = (slot_of(p, window.start) + p->slots - slot) % p->slots;
    place->pins[slot]++;
    window.start -= (uint64_t)back * p->source.shape.stride;
    window.env_from = (uint32_t)(within % width);
    window.env_count = 1;
    window.leaf = leaf;
    window.weight = 1;
    return window;
}

// ---- actors and training: which may go on ----

static bool is_complete(const struct prioritised *p) {
    return p->waiting == p->present && p->present;
}

static bool is_due(const struct prioritised *p) {
    const struct farm_replay_config *replay = &p->config.replay;
    const uint64_t inserted = p->stats->replay_inserted, sampled = p->stats->replay_sampled;
    return inserted > replay->start && (!replay->lockstep || is_complete(p)) &&
           (double)(sampled + p->source.windows_max) <= replay->ratio * (double)(inserted - replay->start);
}

// Windows that may be inserted before more are handed out. With a tolerance of two iterations or more, every ticket is
// released while none is due, so one side can always go on. A window of each environment lets them go on in step.
static uint64_t insertable(const struct prioritised *p) {
    const struct farm_replay_config *replay = &p->config.replay;
    const double tolerance = 2.0 * p->source.windows_max + replay->ratio * (double)p->environments,
                 most = ((double)p->stats->replay_sampled + tolerance) / replay->ratio;
    return replay->start + (uint64_t)fmin(most, 1e18);
}

static bool may_hand_out(const struct prioritised *p) {
    const struct farm_replay_config *replay = &p->config.replay;
    const bool distinct = !replay->repeats || replay->order > FARM_REPLAY_UNIFORM;
    for (uint32_t k = 0; k < p->config.shards; k++)
        if (p->live[k] < (distinct ? p->config.share[k] : 1)) return false;
    return true;
}

// After every change: releases tickets, and notes which side waits.
static void settle(struct prioritised *p) {
    const bool lockstep = p->config.replay.lockstep;
    p->starved = p->starved && !may_hand_out(p);
    const bool due = is_due(p) && !p->starved;
    if (lockstep && is_complete(p) && !due && !p->training) {
        for (uint32_t l = 0; l < p->config.lanes; l++) p->places[l].waits = false;
        p->waiting = 0;
        p->rounds++;
    }
    const uint64_t released = lockstep ? p->rounds : p->starved ? UINT64_MAX : insertable(p), now_ns = farm_now_ns();
    uint64_t live = 0;
    for (uint32_t k = 0; k < p->config.shards; k++) {
        live += p->live[k];
        if (p->source.released[k] != released) farm_store_release(&p->source.released[k], released);
    }
    const bool holds = lockstep ? is_complete(p) : p->stats->replay_inserted > released;
    farm_store_relaxed(&p->stats->replay_live, live);
    if (p->waits) farm_stats_add(p->waits, now_ns - p->since_ns);
    p->since_ns = now_ns;
    p->waits = holds ? &p->stats->replay_actor_wait_ns : due || p->training ? NULL : &p->stats->replay_train_wait_ns;
}

// ---- leaves ----

static float highest_of(const struct prioritised *p) {
    return (float)fmax(farm_stats_get(&p->stats->replay_highest), 1);
}

// Counts a priority that is not a number >= 0: the highest so far takes its place.
static float leaf_from(struct prioritised *p, float priority) {
    const float highest = highest_of(p);
    if (!(priority >= 0 && priority <= FLT_MAX)) {
        farm_stats_add(&p->stats->replay_bad_priorities, 1);
        priority = highest;
    }
    if (priority > highest) farm_stats_set(&p->stats->replay_highest, (double)priority);
    const float leaf = powf(priority, p->config.replay.exponent);
    return leaf > 0 ? fminf(fmaxf(leaf, LEAF_LEAST), LEAF_MOST) : 0;
}

static bool has_transition(const struct prioritised *p, const struct farm_window *window, uint32_t env) {
    const uint64_t from = window->start + p->source.shape.burn_in;
    for (uint64_t n = from; n < from + p->config.replay.transitions; n++)
        if (farm_step_leads(farm_lane_flags(window->lane, n)[env], farm_lane_flags(window->lane, n + 1)[env]))
            return true;
    return false;
}

// The leaf of a new window, or of one that a dead learner had inserted and counted, which keeps a valid value.
static float first_leaf(struct prioritised *p, const struct farm_window *window, uint32_t env, float kept,
                        float usual) {
    const struct farm_replay_config *replay = &p->config.replay;
    if (kept >= 0 && kept <= LEAF_MOST && (kept > 0 || signbit(kept)))
        return kept > 0 && replay->order == FARM_REPLAY_UNIFORM ? 1 : kept;
    if (!has_transition(p, window, env)) return 0;
    return replay->first ? leaf_from(p, p->values[env]) : usual;
}

static void insert_newest(struct prioritised *p, struct place *place) {
    const struct farm_window *window = &place->newest;
    const uint32_t width = window->lane->width;
    const float usual = leaf_from(p, highest_of(p));
    uint32_t inserted = 0;
    float *kept = farm_lane_leaf(window->lane, window->start);
    if (p->config.replay.first) p->config.replay.first(p->config.replay.first_context, window, p->values);
    for (uint32_t e = 0; e < width; e++) {
        inserted += kept[e] == 0 && !signbit(kept[e]);
        p->values[e] = first_leaf(p, window, e, kept[e], usual);
        kept[e] = p->values[e] > 0 ? p->values[e] : -0.0f;
        p->live[window->shard] += p->values[e] > 0;
    }
    farm_stats_add(&p->stats->replay_inserted, inserted);
    farm_tree_set_range(p->trees[window->shard], leaf_of(p, place, window->start), p->values, 0, width);
    p->held += width;
}

// Takes the leaves of windows [first, to) out of the index; returns how many were above 0. In a shared ring, `clears`
// its copies too.
static uint64_t remove_oldest(struct prioritised *p, struct place *place, uint64_t to, bool clears) {
    const struct farm_window *newest = &place->newest;
    const uint32_t width = newest->lane->width;
    uint64_t removed = 0;
    for (; place->first < to; place->first += p->source.shape.stride) {
        float *kept = farm_lane_leaf(newest->lane, place->first);
        for (uint32_t e = 0; e < width; e++) {
            removed += kept[e] > 0;
            if (clears) kept[e] = 0;
        }
        farm_tree_set_range(p->trees[newest->shard], leaf_of(p, place, place->first), NULL, 0, width);
        p->held -= width;
    }
    p->live[newest->shard] -= removed;
    return removed;
}

// Windows that the actor's next steps overwrite. Their leaves are gone before their steps are released.
static void evict(struct prioritised *p, struct place *place) {
    const struct farm_window_shape *shape = &p->source.shape;
    const uint64_t end = place->newest.start + shape->length + p->room,
                   to = farm_window_oldest(shape, place->first, end, p->config.replay.steps, place->pins, p->slots);
    if (to == place->first) return;
    remove_oldest(p, place, to, true);
    struct farm_window last = place->newest;
    last.start = to - shape->stride;
    farm_window_release(shape, &last);
}

// ---- hand-outs: leaves and their values, [count] of a shard ----

// Stratified, in proportion to the leaves. Without repeats, further rounds replace them, without the leaves found.
static void draw(struct prioritised *p, uint32_t shard, uint32_t count) {
    struct farm_tree *tree = p->trees[shard];
    for (uint64_t found = 0, before = 0, round = (uint64_t)shard << 16; found < count; round++, before = found) {
        const uint32_t left = count - (uint32_t)found;
        const double total = (double)farm_tree_total(tree);
        struct farm_philox_block block;
        for (uint32_t i = 0; i < left; i++) {
            if (i % 4 == 0) block = farm_random_block(p->config.replay.seed, p->stats->replay_sampled, round << 32 | i);
            p->draws[i] = (i + block.word[i % 4] * 0x1p-32) / left * total;
        }
        farm_tree_sample(tree, p->draws, left, p->leaves + found);
        for (uint64_t i = found; i < count; i++) { // ascending: repeats are neighbours
            if (!p->config.replay.repeats && found > before && p->leaves[i] == p->leaves[found - 1]) continue;
            p->leaves[found] = p->leaves[i];
            p->values[found] = farm_tree_get(tree, p->leaves[found]);
            found++;
        }
        for (uint64_t i = before; i < found && found < count; i++) farm_tree_set_range(tree, p->leaves[i], NULL, 0, 1);
        if (found == count && before) farm_tree_set(tree, p->leaves, p->values, count);
    }
}

static uint64_t windows_in(const struct prioritised *p, const struct place *place, uint32_t shard) {
    return place->next && place->newest.shard == shard ? (place->next - place->first) / p->source.shape.stride : 0;
}

// By age, counted from the newest window of each lane.
static void pick_by_age(struct prioritised *p, uint32_t shard, uint32_t count) {
    uint64_t most = 0;
    uint32_t found = 0;
    for (uint32_t l = 0; l < p->config.lanes; l++) {
        const uint64_t windows = windows_in(p, &p->places[l], shard);
        most = windows > most ? windows : most;
    }
    for (uint64_t i = 0; i < most && found < count; i++)
        for (uint32_t l = 0; l < p->config.lanes && found < count; l++) {
            const struct place *place = &p->places[l];
            const uint64_t age = p->config.replay.order == FARM_REPLAY_OLDEST ? most - 1 - i : i;
            if (windows_in(p, place, shard) <= age) continue;
            const uint64_t leaf = leaf_of(p, place, place->newest.start - age * p->source.shape.stride);
            for (uint32_t e = 0; e < place->newest.lane->width && found < count; e++) {
                p->leaves[found] = leaf + e;
                p->values[found] = farm_tree_get(p->trees[shard], leaf + e);
                found += p->values[found] > 0;
            }
        }
}

static void hand_out_share(struct prioritised *p, uint32_t shard, struct farm_window *out) {
    const uint32_t count = p->config.share[shard];
    const double total = (double)farm_tree_total(p->trees[shard]), part = (double)count / (double)p->source.windows_max;
    if (p->config.replay.order <= FARM_REPLAY_UNIFORM)
        draw(p, shard, count);
    else if (p->config.replay.order == FARM_REPLAY_HIGHEST)
        farm_tree_highest(p->trees[shard], count, p->leaves, p->values);
    else
        pick_by_age(p, shard, count);
    for (uint32_t i = 0; i < count; i++) {
        out[i] = window_of(p, p->leaves[i]);
        out[i].weight = (float)fmax(part * (double)p->values[i] / total, FLT_MIN); // for now its probability
    }
}

// (N * P)^-beta over the largest, that of the least P. The choices of other orders have no probability: 1.
static void weigh(struct prioritised *p, struct farm_window *windows, uint32_t count) {
    const struct farm_replay_config *replay = &p->config.replay;
    const float share = (float)fmin(fmax(p->source.share, 0), 1), range = replay->importance_end - replay->importance,
                beta = replay->order > FARM_REPLAY_UNIFORM ? 0 : replay->importance + share * range;
    float least = 1;
    for (uint32_t i = 0; i < count; i++) least = fminf(least, windows[i].weight);
    for (uint32_t i = 0; i < count; i++) windows[i].weight = fmaxf(powf(windows[i].weight / least, -beta), FLT_MIN);
}

// ---- the source ----

static void destroy(struct farm_window_source *source) {
    struct prioritised *p = of(source);
    for (uint32_t k = 0; k < p->config.shards; k++) farm_tree_free(p->trees[k]);
    free(p->places);
    free(p->pins);
    free(p->draws);
    free(p);
}

static void admit(struct farm_window_source *source, const struct farm_lane *lane, uint32_t lane_id, uint32_t shard) {
    struct prioritised *p = of(source);
    if (lane->width > p->config.replay.width || lane->leaf_slots != p->slots)
        abort(); // every ring has the plan's shape
    p->places[lane_id] = (struct place){.pins = p->pins + (size_t)lane_id * p->slots};
    // A saved replay may lack steps: the windows that come into their leaves' slots are new.
    const uint64_t stride = source->shape.stride, past = p->slots * stride;
    struct farm_window_cursor cursor;
    farm_window_cursor_start(lane, &source->shape, &cursor);
    for (uint64_t n = farm_lane_acted(lane) / stride * stride + stride; n < cursor.next + past; n += stride)
        memset(farm_lane_leaf(lane, n), 0, lane->width * sizeof(float));
    p->present++;
    p->environments += lane->width;
    settle(p);
}

static void forget(struct farm_window_source *source, const struct farm_ring *ring, uint32_t first_lane) {
    struct prioritised *p = of(source);
    for (uint32_t l = first_lane; l < first_lane + ring->spec.lanes; l++) {
        struct place *place = &p->places[l];
        if (!place->pins) continue;
        if (place->next) source->dropped += remove_oldest(p, place, place->next, false);
        memset(place->pins, 0, p->slots * sizeof *p->pins); // training ends before the ring does
        p->waiting -= place->waits;
        p->environments -= ring->spec.width;
        p->present--;
        *place = (struct place){0};
    }
    settle(p);
}

static uint64_t push(struct farm_window_source *source, const struct farm_window *window) {
    struct prioritised *p = of(source);
    struct place *place = &p->places[window->lane_id];
    if (place->next == place->first) place->first = window->start;
    place->next = window->start + source->shape.stride;
    place->newest = *window;
    evict(p, place);
    insert_newest(p, place);
    // Lockstep: after a restart the lane's other windows come before its newest, with which the round is complete.
    const struct farm_window_shape *shape = &source->shape;
    const uint64_t next_end = window->start + shape->stride + shape->length + window->lane->local;
    const bool newest = next_end > farm_lane_acted(window->lane);
    p->waiting += newest && !place->waits;
    place->waits |= newest;
    const uint64_t ticket = p->config.replay.lockstep ? p->rounds + 1 : p->stats->replay_inserted;
    settle(p);
    return ticket;
}

static bool ready(const struct farm_window_source *source) {
    return is_due((const struct prioritised *)source);
}

static uint32_t take(struct farm_window_source *source, uint64_t version, struct farm_window *out) {
    struct prioritised *p = of(source);
    const bool due = is_due(p);
    uint32_t count = 0;
    (void)version;
    p->starved = due && !may_hand_out(p);
    if (p->starved && !p->warned && p->held >= 2 * (uint64_t)source->windows_max) {
        p->warned = true;
        farm_log_warn("training waits: the replay holds %" PRIu64 " windows, and %" PRIu64
                      " of them have a transition and a priority above 0, too few for an update of %u",
                      p->held, p->stats->replay_live, source->windows_max);
    }
    for (uint32_t k = 0; k < p->config.shards && due && !p->starved; count += p->config.share[k++])
        hand_out_share(p, k, out + count);
    weigh(p, out, count);
    farm_stats_add(&p->stats->replay_sampled, count);
    p->training += count > 0;
    settle(p);
    return count;
}

// The new leaves of windows of one shard, unless their ring has left.
static void update_leaves(struct prioritised *p, const struct farm_window *windows, uint32_t count,
                          const float *priorities) {
    uint32_t changed = 0;
    for (uint32_t i = 0; i < count; i++) // leaves lie far apart: their cache misses overlap
        if (p->places[windows[i].lane_id].newest.lane == windows[i].lane)
            __builtin_prefetch(farm_lane_leaf(windows[i].lane, windows[i].start) + windows[i].env_from, 1);
    for (uint32_t i = 0; i < count; i++) {
        const struct farm_window *window = &windows[i];
        struct place *place = &p->places[window->lane_id];
        if (place->newest.lane != window->lane) continue;
        place->pins[slot_of(p, window->start)]--;
        if (!priorities) continue;
        float *kept = farm_lane_leaf(window->lane, window->start) + window->env_from;
        const float leaf = leaf_from(p, priorities[i]);
        p->live[window->shard] += (uint64_t)(leaf > 0) - (*kept > 0);
        *kept = leaf > 0 ? leaf : -0.0f;
        p->leaves[changed] = window->leaf;
        p->values[changed++] = leaf;
    }
    farm_tree_set(p->trees[windows->shard], p->leaves, p->values, changed);
}

static void done(struct farm_window_source *source, const struct farm_window *windows, uint32_t count,
                 const float *priorities) {
    struct prioritised *p = of(source);
    for (uint32_t k = 0, from = 0; k < p->config.shards; from += p->config.share[k++])
        update_leaves(p, windows + from, p->config.share[k], priorities ? priorities + from : NULL);
    for (uint32_t i = 0; i < count; i++)
        if (p->places[windows[i].lane_id].newest.lane == windows[i].lane) evict(p, &p->places[windows[i].lane_id]);
}

static void published(struct farm_window_source *source) {
    of(source)->training--;
    settle(of(source));
}

static const struct farm_window_source_ops ops = {destroy, admit, forget, push, ready, take, done, published};

// A ring holds a window with its history, and the steps to the end of the next one, whose last answer LOCAL lanes have
// with another step.
static enum farm_status check(const struct farm_window_source_config *config, struct farm_error *err) {
    const struct farm_replay_config *replay = &config->replay;
    const uint64_t least = (uint64_t)config->shape.stack + config->shape.length + config->shape.stride;
    if (replay->steps < least)
        return farm_fail(err, FARM_E_INVALID,
                         "rings of %u steps are too short to replay windows of %u: at least %" PRIu64
                         " (a larger --replay)",
                         replay->steps, config->shape.length, least);
    if (!(replay->ratio > 0 && replay->ratio <= 1e6))
        return farm_fail(err, FARM_E_INVALID, "replay_ratio must be above 0 and at most 1e6 (got %g)", replay->ratio);
    return FARM_OK;
}

static enum farm_status allocate(struct prioritised *p, struct farm_error *err) {
    const struct farm_window_source_config *config = &p->config;
    const uint64_t windows = (uint64_t)config->lanes * p->slots;
    uint32_t most = config->replay.width;
    for (uint32_t k = 0; k < config->shards; k++) most = config->share[k] > most ? config->share[k] : most;
    p->places = calloc(config->lanes + 1u, sizeof *p->places);
    p->pins = calloc(windows + 1, sizeof *p->pins);
    p->draws = calloc(most, sizeof *p->draws + sizeof *p->leaves + sizeof *p->values);
    if (!p->places || !p->pins || !p->draws)
        return farm_fail(err, FARM_E_LIMIT, "no memory for a replay of %" PRIu64 " windows", windows);
    p->leaves = (uint64_t *)(p->draws + most);
    p->values = (float *)(p->leaves + most);
    const bool highest = config->replay.order == FARM_REPLAY_HIGHEST;
    enum farm_status status = FARM_OK;
    for (uint32_t k = 0; k < config->shards && !status; k++)
        status = farm_tree_make(highest ? FARM_TREE_MAX : FARM_TREE_SUM, base_of(p, config->lanes), &p->trees[k], err);
    return status;
}

enum farm_status farm_prioritised_make(const struct farm_window_source_config *config, struct farm_window_source **out,
                                       struct farm_error *err) {
    const struct farm_window_shape *shape = &config->shape;
    enum farm_status status = check(config, err);
    struct prioritised *p = status ? NULL : calloc(1, sizeof *p);
    if (status) return status;
    if (!p) return farm_fail(err, FARM_E_LIMIT, "no memory for a replay");
    p->config = *config;
    p->stats = config->replay.stats;
    p->slots = (config->replay.steps - 1) / shape->stride + 1;
    p->source = (struct farm_window_source){
        .ops = &ops, .shape = *shape, .holds = true, .ahead = config->replay.lockstep ? 1 : AHEAD};
    for (uint32_t k = 0; k < config->shards; k++) p->source.windows_max += config->share[k];
    const uint32_t steps = config->replay.steps, most = steps - (shape->stack - 1 + shape->length);
    const double share = fmin(steps / HEAD_ROOM_SHARE, HEAD_ROOM_STEPS_MAX);
    p->room = (uint32_t)fmin(fmax(share, shape->stride + shape->length), most);
    if (config->replay.order == FARM_REPLAY_UNIFORM) p->config.replay.exponent = 0;
    p->since_ns = farm_now_ns();
    *out = &p->source;
    status = allocate(p, err);
    if (status) destroy(&p->source);
    return status;
}
