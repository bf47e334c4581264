// Replay on one core, through the source from which training takes its windows. insert, sample, update_priorities: an
// index of 2^20 windows of two steps, rows of 8 environments, batches of 64, stratified, with importance weights;
// tree_insert, tree_sample, tree_update_priorities: the tree alone, with the same random numbers and powers.
// insert_sequences: 80 steps of 84x84 frames, one window for 40 new steps, written into a ring; sample_sequences: such
// windows drawn, and each byte read in place; sequence_priorities: their updates. read_windows: these reads alone, ÷
// reads of as many adjacent bytes at random places of the ring. make bench-peers B=replay compares with cpprb and
// Reverb.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../tests/support/rings.h"
#include "base/file.h"
#include "base/statistics.h"
#include "base/time.h"
#include "common.h"
#include "kernels/random.h"
#include "replay/source.h"
#include "replay/tree.h"

enum {
    SAMPLES_LEAST = 7,
    SAMPLES_MOST = 4000,
    BATCH = 64,
    WIDTH = 8,
    LANES = 16,
    INDEX_STEPS = (1 << 20) / (LANES * WIDTH),
    FRAME = 84 * 84,
    STRIDE = 40,
    LENGTH = 80,
    SEQUENCE_STEPS = 4000, // 226 MB
    APART = 199,           // frames between neighbouring environments
};
static const float EXPONENT = 0.6f, BETA = 0.4f;
static uint64_t random_state;

struct replay {
    struct views views;
    struct farm_window_cursor cursors[LANES];
    struct farm_window_source *source;
    struct farm_stats stats;
    const uint8_t *frames; // [frame_count][FRAME] that the actor writes; NULL: nothing
    uint64_t frame_count, *sums;
    uint32_t lane; // the next to publish
    struct farm_window windows[BATCH];
};

// ---- set-up ----

static void open_replay(struct replay *replay, struct farm_ring_spec spec, struct farm_window_shape shape) {
    struct farm_error err;
    spec.leaf_every = shape.stride;
    replay->views.made = make_ring(spec, 0, true);
    replay->views.actor = open_view(&replay->views.made, FARM_RING_ACTOR);
    replay->views.learner = open_view(&replay->views.made, FARM_RING_LEARNER);
    const struct farm_window_source_config config = {.shape = shape,
                                                     .shards = 1,
                                                     .share = {BATCH},
                                                     .lanes = spec.lanes,
                                                     .replay = {.start = BATCH,
                                                                .ratio = 1e6,
                                                                .order = FARM_REPLAY_PRIORITISED,
                                                                .repeats = true,
                                                                .exponent = EXPONENT,
                                                                .importance = BETA,
                                                                .importance_end = BETA,
                                                                .transitions = shape.length - 1,
                                                                .width = spec.width,
                                                                .steps = spec.steps,
                                                                .seed = 1,
                                                                .stats = &replay->stats}};
    must(farm_window_source_make("prioritised", &config, &replay->source, &err), &err);
    for (uint32_t l = 0; l < spec.lanes; l++)
        replay->source->ops->admit(replay->source, &replay->views.learner.lanes[l], l, 0);
}

typedef uint64_t words __attribute__((vector_size(16), may_alias));

// Sums a frame and prefetches the next one.
static uint64_t sum_of(const uint8_t *frame, const uint8_t *next) {
    const words *at = (const words *)frame;
    words sums[3] = {{0}};
    for (int i = 0; i < FRAME / 16; i += 3) {
        __builtin_prefetch(next + 16 * i, 0, 2);
        for (int j = 0; j < 3; j++) sums[j] += at[i + j];
    }
    sums[0] += sums[1] + sums[2];
    return sums[0][0] + sums[0][1];
}
_Static_assert(FRAME % 48 == 0, "sum_of reads whole frames");

static void load_frames(struct replay *replay, const char *path) {
    struct farm_error err;
    size_t bytes = 2000 * (size_t)FRAME;
    char *frames = NULL;
    if (path) {
        must(farm_file_read(path, (size_t)1 << 30, &frames, &bytes, &err), &err);
    } else {
        must_hold((frames = malloc(bytes)) != NULL, "no memory");
        for (size_t i = 0; i + 8 <= bytes; i += 8) {
            const uint64_t noise = random_next(&random_state);
            memcpy(frames + i, &noise, sizeof noise);
        }
    }
    replay->frames = (const uint8_t *)frames;
    replay->frame_count = bytes / FRAME;
    replay->sums = malloc(replay->frame_count * sizeof *replay->sums);
    must_hold(replay->frame_count > WIDTH * APART && replay->sums, "too few frames");
    for (uint64_t i = 0; i < replay->frame_count; i++)
        replay->sums[i] = sum_of(replay->frames + i * FRAME, replay->frames);
}

static uint64_t frame_of(const struct replay *replay, uint64_t n, uint32_t env) {
    return (n + env * APART) % replay->frame_count;
}

// ---- both sides of a lane ----

// Publishes and answers a step of the next lane; pushes the window that it completes. Returns that window's rows.
static uint32_t add_step(struct replay *replay) {
    const struct farm_window_shape *shape = &replay->source->shape;
    const uint32_t l = replay->lane;
    replay->lane = (l + 1) % replay->views.made.spec.lanes;
    struct farm_lane *actor = &replay->views.actor.lanes[l], *learner = &replay->views.learner.lanes[l];
    struct farm_window_cursor *cursor = &replay->cursors[l];
    const uint64_t n = farm_lane_actor_next(actor);
    must_hold(farm_lane_actor_can_write(actor), "room for a step");
    for (uint32_t e = 0; replay->frames && e < WIDTH; e++)
        memcpy(farm_lane_obs(actor, 0, n, e), replay->frames + frame_of(replay, n, e) * FRAME, FRAME);
    farm_lane_actor_publish(actor);
    farm_lane_answer(learner, n);
    if (!farm_window_ready(shape, cursor, n + 1)) return 0;
    const struct farm_window window = {.lane = learner,
                                       .cursor = cursor,
                                       .ring = &replay->views.learner,
                                       .lane_id = l,
                                       .start = farm_window_take(shape, cursor),
                                       .env_count = WIDTH};
    replay->source->ops->push(replay->source, &window);
    return WIDTH;
}

static void take(struct replay *replay) {
    must_hold(replay->source->ops->take(replay->source, 0, replay->windows) == BATCH, "windows to take");
}

static void give_back(struct replay *replay, const float *priorities) {
    replay->source->ops->done(replay->source, replay->windows, BATCH, priorities);
}

static void check_weights(struct replay *replay) {
    float most = 0;
    for (int i = 0; i < BATCH; i++) {
        must_hold(replay->windows[i].weight > 0 && replay->windows[i].env_count == 1, "a window");
        most = fmaxf(most, replay->windows[i].weight);
    }
    must_hold(most == 1, "the largest weight");
}

// Sums a window's frames, prefetching each while it reads the one before.
static uint64_t read_frames(const uint8_t *const *frames) {
    uint64_t sum = 0;
    for (int i = 0; i < LENGTH; i++) sum += sum_of(frames[i], frames[i + (i + 1 < LENGTH)]);
    return sum;
}

// ---- samples: windows (or bytes) a second ----

static double rate_of(double count, uint64_t start_ns) {
    return count * 1e9 / (double)(farm_now_ns() - start_ns);
}

static double time_inserts(struct replay *replay, uint32_t steps) {
    const uint64_t start = farm_now_ns(), before = replay->stats.replay_inserted;
    uint32_t rows = 0;
    for (uint32_t i = 0; i < steps; i++) rows += add_step(replay);
    const double rate = rate_of(rows, start);
    must_hold(replay->stats.replay_inserted - before == rows, "windows inserted");
    return rate;
}

// Median time to read a window that was drawn: a host or a scheduler that takes the core disturbs few of them. plain:
// as many adjacent frames at a random place of the ring, where those of all environments lie step after step.
static double window_read_ns(struct replay *replay, bool plain) {
    const uint8_t *frames[LENGTH];
    double ns[BATCH];
    for (int i = 0; i < BATCH; i++) {
        const struct farm_window *window = &replay->windows[i];
        const uint64_t place = random_next(&random_state) % (SEQUENCE_STEPS * WIDTH - LENGTH);
        const uint64_t start = farm_now_ns();
        for (uint64_t n = 0; n < LENGTH; n++)
            frames[n] = plain ? window->lane->obs[0] + (place + n) * FRAME
                              : farm_lane_obs(window->lane, 0, window->start + n, window->env_from);
        uint64_t sum = read_frames(frames);
        ns[i] = (double)(farm_now_ns() - start);
        for (uint64_t n = window->start; n < window->start + LENGTH && !plain; n++)
            sum -= replay->sums[frame_of(replay, n, window->env_from)];
        must_hold(plain || sum == 0, "a window's bytes");
    }
    return farm_median(ns, BATCH, NULL);
}

// reads: each byte of each window too.
static double time_draws(struct replay *replay, uint32_t batches, bool reads) {
    double spent = 0;
    for (uint32_t i = 0; i < batches; i++) {
        const uint64_t start = farm_now_ns();
        take(replay);
        spent += (double)(farm_now_ns() - start);
        if (reads) spent += BATCH * window_read_ns(replay, false);
        check_weights(replay);
        give_back(replay, NULL);
        replay->source->ops->published(replay->source);
    }
    return batches * BATCH * 1e9 / spent;
}

static double time_updates(struct replay *replay, uint32_t batches) {
    uint64_t spent = 0;
    for (uint32_t i = 0; i < batches; i++) {
        float priorities[BATCH];
        for (int j = 0; j < BATCH; j++) priorities[j] = (float)(random_next(&random_state) >> 40) * 0x1p-24f;
        take(replay);
        const uint64_t start = farm_now_ns();
        give_back(replay, priorities);
        spent += farm_now_ns() - start;
        replay->source->ops->published(replay->source);
        const struct farm_window *last = &replay->windows[BATCH - 1];
        const float leaf = farm_lane_leaf(last->lane, last->start)[last->env_from];
        must_hold(fabsf(leaf - powf(priorities[BATCH - 1], EXPONENT)) <= 1e-6f, "an updated leaf");
    }
    return batches * (double)BATCH * 1e9 / (double)spent;
}

// GB/s. plain: of adjacent bytes.
static double time_window_reads(struct replay *replay, bool plain) {
    take(replay);
    const double ns = window_read_ns(replay, plain);
    give_back(replay, NULL);
    replay->source->ops->published(replay->source);
    return (double)LENGTH * FRAME / ns;
}

// ---- the tree alone ----

static double time_tree_inserts(struct farm_tree *tree) {
    const uint64_t start = farm_now_ns(), first = random_next(&random_state) % (1 << 20) / WIDTH * WIDTH;
    for (uint64_t i = 0; i < 16000; i += WIDTH) farm_tree_set_range(tree, (first + i) % (1 << 20), NULL, 1, WIDTH);
    return rate_of(16000, start);
}

static double time_tree_draws(struct farm_tree *tree, bool updates) {
    double at[BATCH], spent = 0;
    uint64_t leaves[BATCH];
    float values[BATCH];
    for (uint64_t n = 0; n < 40; n++) {
        uint64_t start = farm_now_ns();
        const double total = (double)farm_tree_total(tree);
        struct farm_philox_block block = {{0}};
        for (uint32_t i = 0; i < BATCH; i++) {
            if (i % 4 == 0) block = farm_random_block(1, random_next(&random_state), i);
            at[i] = (i + block.word[i % 4] * 0x1p-32) / BATCH * total;
        }
        farm_tree_sample(tree, at, BATCH, leaves);
        float least = INFINITY, sum = 0;
        for (int i = 0; i < BATCH; i++) least = fminf(least, values[i] = farm_tree_get(tree, leaves[i]));
        for (int i = 0; i < BATCH; i++) sum += values[i] = powf(values[i] / least, -BETA);
        must_hold(least > 0 && sum > 0 && sum <= BATCH, "weights");
        if (updates) start = farm_now_ns();
        for (int i = 0; updates && i < BATCH; i++) values[i] = powf(values[i], EXPONENT);
        if (updates) farm_tree_set(tree, leaves, values, BATCH);
        spent += (double)(farm_now_ns() - start);
    }
    return 40 * BATCH * 1e9 / spent;
}

// ---- results ----

enum kind {
    INSERT,
    DRAW,
    UPDATE,
    TREE_INSERT,
    TREE_DRAW,
    TREE_UPDATE,
    INSERT_SEQUENCES,
    DRAW_SEQUENCES,
    UPDATE_SEQUENCES,
    READ,
    KINDS
};
static const char *const names[KINDS] = {
    "insert",           "sample",           "update_priorities",
    "tree_insert",      "tree_sample",      "tree_update_priorities",
    "insert_sequences", "sample_sequences", "sequence_priorities",
    "read_windows",
};

static double time_one(struct replay *replay, struct farm_tree *tree, enum kind kind) {
    if (kind == TREE_INSERT) return time_tree_inserts(tree);
    if (kind == TREE_DRAW || kind == TREE_UPDATE) return time_tree_draws(tree, kind == TREE_UPDATE);
    if (kind == INSERT) return time_inserts(replay, 2000);
    if (kind == INSERT_SEQUENCES) return time_inserts(replay, STRIDE);
    if (kind == READ) return time_window_reads(replay, false);
    if (kind == UPDATE || kind == UPDATE_SEQUENCES) return time_updates(replay, 40);
    return time_draws(replay, kind == DRAW ? 40 : 1, kind == DRAW_SEQUENCES);
}

static void measure(struct farm_bench *bench, struct replay *replay, enum kind kind, double seconds) {
    static double ours[SAMPLES_MOST], theirs[SAMPLES_MOST];
    const bool plain = kind == READ;
    struct farm_tree *tree;
    struct farm_error err;
    must(farm_tree_make(FARM_TREE_SUM, 1 << 20, &tree, &err), &err);
    for (uint64_t l = 0; l < 1 << 20; l++)
        farm_tree_set_range(tree, l, NULL, (float)(1 + random_next(&random_state) % 1000) / 1000, 1);
    const uint64_t start = farm_now_ns();
    size_t count = 0;
    for (; count < SAMPLES_LEAST || (count < SAMPLES_MOST && (double)(farm_now_ns() - start) < seconds * 1e9);
         count++) {
        if (plain) theirs[count] = time_window_reads(replay, true);
        ours[count] = time_one(replay, tree, kind);
    }
    farm_bench_add(bench, names[kind], plain ? "GB/s" : "windows/s", "higher", ours, count,
                   plain ? "as many adjacent bytes of the ring" : NULL, plain ? theirs : NULL, count,
                   plain ? 0.9 : NAN);
    farm_tree_free(tree);
}

int main(int argc, char **argv) {
    const char *only = NULL, *frames = NULL;
    const struct farm_cli_flag flags[] = {
        {"only", FARM_CLI_STRING, &only, "NAME", "this result alone"},
        {"frames", FARM_CLI_STRING, &frames, "FILE", "84x84 frames, u8, one after another, instead of noise"},
    };
    struct farm_bench bench = {.name = "replay",
                               .about = "Replay on one core: windows inserted, drawn, updated and read.",
                               .flags = flags,
                               .flag_count = 2};
    farm_bench_start(&bench, argc, argv, 10);
    static struct replay index, sequences;
    for (enum kind kind = 0; kind < KINDS; kind++) {
        struct replay *replay = kind < INSERT_SEQUENCES ? &index : &sequences;
        if (only && strcmp(only, names[kind]) != 0) continue;
        if (!replay->source && replay == &index) {
            open_replay(replay, farm_ring_spec_plain(LANES, WIDTH, INDEX_STEPS, FARM_U8, 1, 2),
                        (struct farm_window_shape){.stride = 1, .length = 2, .stack = 1});
            time_inserts(replay, LANES * INDEX_STEPS); // full
        } else if (!replay->source) {
            load_frames(replay, frames);
            open_replay(replay, farm_ring_spec_plain(1, WIDTH, SEQUENCE_STEPS, FARM_U8, FRAME, 6),
                        (struct farm_window_shape){.stride = STRIDE, .length = LENGTH, .stack = 1});
            time_inserts(replay, 2 * SEQUENCE_STEPS);
            const struct farm_lane *lane = &replay->views.learner.lanes[0];
            for (uint64_t n = SEQUENCE_STEPS; n < 2 * SEQUENCE_STEPS; n++) // fills the page tables
                for (uint32_t e = 0; e < WIDTH; e++)
                    must_hold(sum_of(farm_lane_obs(lane, 0, n, e), replay->frames) ==
                                  replay->sums[frame_of(replay, n, e)],
                              "a frame's bytes");
        }
        measure(&bench, replay, kind, only ? bench.seconds : bench.seconds / KINDS);
    }
    must_hold(bench.count > 0, "no result has this name");
    return farm_bench_finish(&bench);
}
