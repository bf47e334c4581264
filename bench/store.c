// Saving and loading a replay of Atari frames: bytes on disk, what a save costs training (farm_replay_copy), how fast
// steps are written, and how long a resume takes to refill the rings.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "../tests/support/rings.h"
#include "base/file.h"
#include "base/time.h"
#include "common.h"
#include "replay/store.h"

enum { LANES = 4, WIDTH = 16, FRAME = 84 * 84, SAVES = 20 };

static struct bench_store {
    struct views views;
    struct farm_ring_spec spec;
    struct farm_stats stats;
    struct farm_replay_store *store;
    char folder[256], files[300], name[FARM_REPLAY_NAME_BYTES];
    double copied_ms, copied_cpu_ms; // the last copy's time, and the CPU's
    int saves;
} bench_store;
static struct farm_error err;

static double seconds_since(uint64_t start_ns) {
    return (double)(farm_now_ns() - start_ns) * 1e-9;
}

// Two paddles and a ball on a plain field.
static void draw(uint8_t *frame, uint64_t n, uint32_t env) {
    memset(frame, 87, FRAME);
    const uint64_t at[3][2] = {{(n + env) % 70, 10}, {(2 * n + 9 * env) % 70, 72}, {(3 * n) % 80, (2 * n + env) % 80}};
    for (int k = 0; k < 3; k++)
        for (uint64_t y = 0; y < (k < 2 ? 12 : 2); y++) memset(frame + (at[k][0] + y) * 84 + at[k][1], 200 + k, 2);
}

static void add_step(uint32_t l) {
    struct farm_lane *actor = &bench_store.views.actor.lanes[l], *learner = &bench_store.views.learner.lanes[l];
    const uint64_t n = farm_lane_actor_next(actor);
    for (uint32_t e = 0; e < WIDTH; e++) draw(farm_lane_obs(actor, 0, n, e), n, e);
    memset(farm_lane_flags(actor, n), n ? 0 : FARM_STEP_FIRST, WIDTH);
    farm_lane_actor_publish(actor);
    farm_lane_answer(learner, n);
    for (uint32_t e = 0; e < WIDTH; e++) farm_lane_leaf(learner, n)[e] = (float)(n + e);
}

static void save(void *context) {
    char stem[32];
    (void)context;
    snprintf(stem, sizeof stem, "%012d", ++bench_store.saves);
    must(farm_replay_write(bench_store.store, stem, bench_store.name, &err), &err);
}

static void post_save(void) {
    struct timespec before, after;
    const uint64_t start = farm_now_ns();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
    farm_replay_copy(bench_store.store);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
    bench_store.copied_ms = seconds_since(start) * 1e3;
    bench_store.copied_cpu_ms =
        (double)(after.tv_sec - before.tv_sec) * 1e3 + (double)(after.tv_nsec - before.tv_nsec) * 1e-6;
    farm_replay_post(bench_store.store, save, NULL);
    while (farm_replay_is_busy(bench_store.store)) usleep(1000);
}

int main(int argc, char **argv) {
    int64_t steps = 200000;
    const char *folder = NULL;
    const struct farm_cli_flag flags[] = {
        {"steps", FARM_CLI_INT, &steps, "N", "of all environments [200000]"},
        {"folder", FARM_CLI_STRING, &folder, "DIR", "where it writes [a new one in /tmp]"},
    };
    struct farm_bench bench = {.name = "store",
                               .about = "Saves and loads a replay of 84x84 frames, 64 environments.",
                               .flags = flags,
                               .flag_count = 2};
    farm_bench_start(&bench, argc, argv, 10);
    const uint32_t each = (uint32_t)(steps / (LANES * WIDTH));
    snprintf(bench_store.folder, sizeof bench_store.folder, "%s/farm-store-XXXXXX", folder ? folder : "/tmp");
    must_hold(mkdtemp(bench_store.folder) != NULL && each >= SAVES * 8, "no folder, or too few steps");
    snprintf(bench_store.files, sizeof bench_store.files, "%s/replay", bench_store.folder);
    bench_store.spec = farm_ring_spec_plain(LANES, WIDTH, each, FARM_U8, FRAME, 6);
    bench_store.spec.leaf_every = 1;
    bench_store.views = (struct views){.made = make_ring(bench_store.spec, 0, true)};
    bench_store.views.actor = open_view(&bench_store.views.made, FARM_RING_ACTOR);
    bench_store.views.learner = open_view(&bench_store.views.made, FARM_RING_LEARNER);
    const struct farm_replay_place place = {bench_store.files, 1, &bench_store.spec};
    const struct farm_replay_store_config config = {
        .place = place, .checkpoints = bench_store.folder, .stats = &bench_store.stats};
    must(farm_replay_store_make(&config, &bench_store.store, &err), &err);
    for (uint32_t l = 0; l < LANES; l++) farm_replay_admit(bench_store.store, &bench_store.views.learner.lanes[l], l);
    double copy_ms[SAVES], cpu_ms[SAVES], raw = (double)each * LANES * WIDTH * FRAME;
    for (int i = 0; i < SAVES; i++) {
        const uint32_t part = each * (uint32_t)(i + 1) / SAVES - each * (uint32_t)i / SAVES;
        for (uint32_t n = 0; n < part; n++)
            for (uint32_t l = 0; l < LANES; l++) add_step(l);
        post_save();
        copy_ms[i] = bench_store.copied_ms;
        cpu_ms[i] = bench_store.copied_cpu_ms;
    }
    double share = ((double)bench_store.stats.replay_saved_bytes - 19 * 4.0 * (double)each * LANES * WIDTH) / raw;
    farm_bench_add(&bench, "saved_bytes_per_byte", "ratio", "lower", &share, 1, NULL, NULL, 0, 0.2);
    farm_bench_add(&bench, "standstill", "ms", "lower", copy_ms, SAVES, NULL, NULL, 0, 10);
    farm_bench_add(&bench, "standstill_cpu", "ms", "lower", cpu_ms, SAVES, NULL, NULL, 0, 10);
    double most = 0;
    for (int i = 0; i < SAVES; i++) most = fmax(most, copy_ms[i]);
    farm_bench_add(&bench, "longest_standstill", "ms", "lower", &most, 1, NULL, NULL, 0, 10);
    farm_replay_store_free(bench_store.store);
    close_views(&bench_store.views);
    struct farm_ring made = make_ring(bench_store.spec, 0, true);
    const clock_t cpu = clock();
    const uint64_t start = farm_now_ns();
    must(farm_replay_load(&place, bench_store.name, true, &made, &bench_store.stats, &err), &err);
    double load_s = seconds_since(start), load_cpu_s = (double)(clock() - cpu) / CLOCKS_PER_SEC;
    uint8_t frame[FRAME];
    for (uint64_t n = 0; n < each; n += 97) {
        draw(frame, n, 5);
        must_hold(memcmp(frame, farm_lane_obs(&made.lanes[1], 0, n, 5), FRAME) == 0, "a loaded frame differs");
    }
    farm_bench_add(&bench, "load", "s", "lower", &load_s, 1, NULL, NULL, 0, 30);
    farm_bench_add(&bench, "load_cpu", "s", "lower", &load_cpu_s, 1, NULL, NULL, 0, NAN);
    double load_rate = raw / 1e9 / load_s;
    farm_bench_add(&bench, "load_rate", "GB/s of frames", "higher", &load_rate, 1, NULL, NULL, 0, NAN);
    farm_ring_close(&made);
    char command[400];
    snprintf(command, sizeof command, "rm -rf %s", bench_store.folder);
    must_hold(system(command) == 0, "the folder stays");
    return farm_bench_finish(&bench);
}
