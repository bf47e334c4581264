// A replay on disk: what is loaded is what was written, whatever happened to writer and files between.
#include <criterion/criterion.h>
#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "../support/learner.h"
#include "../support/rings.h"

#include "base/file.h"
#include "replay/store.h"

enum { RINGS = 2, LANES = 2, WIDTH = 3, STEPS = 160, EVERY = 4 };

static struct table {
    char folder[256], checkpoints[300], files[300];
    struct farm_ring_spec spec;
    struct views rings[RINGS];
    struct farm_stats stats;
    struct farm_replay_store *store;
    uint64_t random;
} table;
static struct farm_error err;

static struct farm_replay_place place(void) {
    return (struct farm_replay_place){table.files, RINGS, &table.spec};
}

static struct farm_lane *lane_of(struct farm_ring *ring, uint32_t l) {
    return &ring->lanes[l % LANES];
}
static struct farm_lane *learner_lane(uint32_t l) {
    return lane_of(&table.rings[l / LANES].learner, l);
}

static void open_store(const char *base, bool deterministic) {
    const struct farm_replay_store_config config = {.place = place(),
                                                    .checkpoints = table.checkpoints,
                                                    .base = base,
                                                    .stats = &table.stats,
                                                    .deterministic = deterministic};
    cr_assert_eq(farm_replay_store_make(&config, &table.store, &err), FARM_OK, "%s", err.message);
    for (uint32_t l = 0; l < RINGS * LANES; l++) farm_replay_admit(table.store, learner_lane(l), l);
}

static void set_up_with(bool local) {
    table = (struct table){.spec = spec_rich(LANES, WIDTH, STEPS), .random = 7};
    table.spec.leaf_every = EVERY;
    if (local) table.spec.answers = FARM_ANSWERS_LOCAL;
    farm_ring_spec_state(&table.spec, 5, 3);
    setenv("TMPDIR", "/dev/shm", 0); // without a disk's time for each fsync
    test_folder_make(table.folder, sizeof table.folder);
    snprintf(table.checkpoints, sizeof table.checkpoints, "%s/checkpoints", table.folder);
    snprintf(table.files, sizeof table.files, "%s/replay", table.folder);
    cr_assert_eq(farm_folder_make(table.checkpoints, &err), FARM_OK);
    for (int r = 0; r < RINGS; r++) table.rings[r] = views_of(table.spec);
}

static void set_up(void) {
    set_up_with(false);
}

static void tear_down(void) {
    farm_replay_store_free(table.store);
    for (int r = 0; r < RINGS; r++) close_views(&table.rings[r]);
    char command[400];
    snprintf(command, sizeof command, "rm -rf %s", table.folder);
    cr_assert_eq(system(command), 0);
}

TestSuite(store, .init = set_up, .fini = tear_down, .timeout = 60);

// ---- lanes ----

static void fill(void *to, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) ((uint8_t *)to)[i] = (uint8_t)(random_next(&table.random) % 3);
}

static void fill_floats(float *to, size_t count) {
    for (size_t i = 0; i < count; i++) to[i] = (float)(random_next(&table.random) % 1000) / 7;
}

// Whether a value of this answer field, that of step *at, comes with step n.
static bool has_answer(const struct farm_lane *lane, uint32_t f, uint64_t n, uint64_t *at) {
    *at = n;
    return lane->answer[f].every &&
           (lane->local ? farm_lane_answer_with(lane, f, n, at) : n % lane->answer[f].every == 0);
}

// One more step with its answer (LOCAL: with that of the step before); the oldest ones are released.
static void add_step(uint32_t l) {
    struct farm_lane *actor = lane_of(&table.rings[l / LANES].actor, l), *learner = learner_lane(l);
    const uint64_t n = farm_lane_actor_next(actor);
    if (n >= STEPS && farm_lane_consumed(learner) + STEPS <= n) farm_lane_release(learner, n + EVERY - STEPS);
    cr_assert(farm_lane_actor_can_write(actor));
    for (uint32_t f = 0; f < actor->obs_count; f++)
        for (uint32_t e = 0; e < WIDTH; e++) fill(farm_lane_obs(actor, f, n, e), actor->obs_bytes[f]);
    fill_floats(farm_lane_reward(actor, n), WIDTH);
    memset(farm_lane_flags(actor, n), n ? 0 : FARM_STEP_FIRST, WIDTH);
    for (uint32_t f = 0; f < actor->answer_count; f++) {
        const struct farm_answer_array *answer = &learner->answer[f];
        uint64_t at;
        if (!has_answer(actor, f, n, &at)) continue;
        void *values = farm_lane_answer_at(actor->local ? actor : learner, f, at, 0);
        if (table.spec.answer[f].dtype == FARM_F32)
            fill_floats(values, (size_t)answer->rows * answer->values);
        else
            memset(values, 0, answer->rows * answer->bytes);
    }
    farm_lane_actor_publish(actor);
    farm_lane_answer(learner, n);
    farm_lane_leaf(learner, n / EVERY * EVERY)[n % WIDTH] = (float)n;
}

// Names of the folder's files, in order; [64].
static size_t files_in(const char *folder, char (*names)[256]) {
    struct dirent **entries;
    const int found = scandir(folder, &entries, NULL, alphasort);
    size_t count = 0;
    for (int i = 0; i < found; free(entries[i++]))
        if (entries[i]->d_name[0] != '.' && count < 64) snprintf(names[count++], 256, "%s", entries[i]->d_name);
    free(entries);
    return count;
}

// ---- pairs ----

struct saving {
    uint64_t frames;
    char name[FARM_REPLAY_NAME_BYTES];
    enum farm_status status;
};

// The checkpoint holds its manifest's name.
static void save(void *context) {
    struct saving *saving = context;
    char stem[32], path[400];
    snprintf(stem, sizeof stem, "%012lu", saving->frames);
    saving->status = farm_replay_write(table.store, stem, saving->name, &err);
    if (saving->status) return;
    snprintf(path, sizeof path, "%s/%s.safetensors", table.checkpoints, stem);
    cr_assert_eq(farm_file_replace(path, saving->name, strlen(saving->name), &err), FARM_OK);
    farm_replay_clean(table.store, saving->name);
}

static struct saving save_at(uint64_t frames) {
    struct saving saving = {.frames = frames};
    farm_replay_copy(table.store);
    farm_replay_post(table.store, save, &saving);
    while (farm_replay_is_busy(table.store)) usleep(1000);
    return saving;
}

static const char *saved_at(uint64_t frames) {
    static char name[FARM_REPLAY_NAME_BYTES];
    const struct saving saving = save_at(frames);
    cr_assert_eq(saving.status, FARM_OK, "%s", err.message);
    return strcpy(name, saving.name);
}

static void expect_same_step(const struct farm_lane *a, const struct farm_lane *b, uint64_t n) {
    uint64_t at;
    for (uint32_t f = 0; f < a->obs_count; f++)
        cr_assert_eq(memcmp(farm_lane_obs(a, f, n, 0), farm_lane_obs(b, f, n, 0), WIDTH * a->obs_bytes[f]), 0);
    cr_assert_eq(memcmp(farm_lane_reward(a, n), farm_lane_reward(b, n), WIDTH * sizeof(float)), 0);
    cr_assert_eq(memcmp(farm_lane_flags(a, n), farm_lane_flags(b, n), WIDTH), 0);
    for (uint32_t f = 0; f < a->answer_count; f++)
        if (has_answer(a, f, n, &at))
            cr_assert_eq(memcmp(farm_lane_answer_at(a, f, at, 0), farm_lane_answer_at(b, f, at, 0),
                                a->answer[f].rows * a->answer[f].bytes),
                         0, "field %u of step %lu", f, n);
}

static void load(const char *name, struct farm_ring made[RINGS], struct farm_stats *stats) {
    const struct farm_replay_place at = place();
    for (uint32_t r = 0; r < RINGS; r++) made[r] = ring_of(table.spec, r);
    cr_assert_eq(farm_replay_load(&at, name, true, made, stats, &err), FARM_OK, "%s", err.message);
}

// Loads into new rings, which then hold what the table's hold. late: the writer may have been too late for some steps,
// and for the rest of their file.
static void expect_loads(const char *name, bool late) {
    struct farm_ring made[RINGS];
    struct farm_stats stats = {0};
    uint64_t most = 0;
    load(name, made, &stats);
    for (uint32_t l = 0; l < RINGS * LANES; l++)
        most = farm_lane_consumed(learner_lane(l)) > most ? farm_lane_consumed(learner_lane(l)) : most;
    for (uint32_t l = 0; l < RINGS * LANES; l++) {
        const struct farm_lane *was = learner_lane(l), *is = lane_of(&made[l / LANES], l);
        const uint64_t from = farm_lane_consumed(is), acted = farm_lane_acted(was);
        cr_assert(farm_lane_acted(is) == acted && farm_lane_produced(is) == acted, "lane %u: %lu, not %lu", l,
                  farm_lane_acted(is), acted);
        cr_assert_leq(from, late ? (most + 63) / 64 * 64 : most, "lane %u", l);
        cr_assert_eq(memcmp(is->leaf, was->leaf, is->leaf_slots * WIDTH * sizeof *is->leaf), 0);
        for (uint64_t n = from + is->local; n < acted; n++)
            if (farm_lane_consumed(was) <= n - is->local) expect_same_step(was, is, n); // not overwritten since
    }
    cr_assert_eq(stats.replay_inserted, table.stats.replay_inserted);
    cr_assert_eq(stats.replay_highest, table.stats.replay_highest);
    for (int r = 0; r < RINGS; r++) expect_sound(&made[r]), farm_ring_close(&made[r]);
}

// Until some lane has as many steps as it may have.
static void play(void) {
    for (uint32_t l = 0; l < RINGS * LANES; l++)
        for (uint64_t k = random_next(&table.random) % 40; k > 0; k--) add_step(l);
}

static void check_moments(void) {
    const char *name;
    table.stats.replay_inserted = 11;
    farm_stats_set(&table.stats.replay_highest, 2.5);
    for (uint64_t turn = 0; turn < 60; turn++) {
        if (turn % 20 == 0) farm_replay_store_free(table.store);
        if (turn % 20 == 0) open_store(turn ? name : NULL, turn / 20 == 1);
        play();
        while (turn % 20 == 19 && farm_lane_acted(learner_lane(0)) % 64) add_step(0); // to the end of a file
        name = saved_at(1 + turn);
        expect_loads(name, false);
    }
}

Test(store, what_is_loaded_is_what_was_saved_at_any_moment_also_by_a_later_process) {
    check_moments();
}

Test(store, answers_of_actors_are_saved_with_the_steps_that_they_came_with) {
    tear_down();
    set_up_with(true);
    check_moments();
}

Test(store, a_step_is_written_once_and_as_long_as_a_checkpoint_needs_it) {
    char names[64][256];
    open_store(NULL, false);
    for (int i = 0; i < 40; i++, usleep(11000)) play(); // what the rings release goes without a checkpoint too
    cr_expect_leq(files_in(table.files, names), RINGS * LANES * (STEPS / 64 + 3));
    for (uint64_t frames = 1; frames <= 40; frames++) {
        char path[400];
        play();
        saved_at(frames);
        snprintf(path, sizeof path, "%s/%012lu.safetensors", table.checkpoints, frames - 2);
        if (frames > 2) cr_assert_eq(unlink(path), 0);
    }
    const uint64_t step = WIDTH * (105 + 44 + 36 + 5 + 12 + 40 + 4 + 7) + 8, steps = 80 * 20 * RINGS * LANES;
    cr_expect_lt(table.stats.replay_saved_bytes, steps * step + 40 * 20000);
    cr_expect_leq(files_in(table.files, names), 4 + RINGS * LANES * (STEPS / 64 + 4));
}

Test(store, steps_that_were_released_before_they_were_written_are_left_out) {
    open_store(NULL, true);
    for (uint32_t turn = 1; turn < 8; turn++) {
        for (uint32_t k = 0; k < turn * 100; k++)
            for (uint32_t l = 0; l < RINGS * LANES; l++) add_step(l);
        expect_loads(saved_at(turn), true);
    }
    farm_replay_forget(table.store, 1);
    struct farm_ring made[RINGS];
    load(saved_at(99), made, &table.stats);
    cr_expect(farm_lane_acted(&made[0].lanes[1]) == 0 && farm_lane_acted(&made[0].lanes[0]) == 2800);
    for (int r = 0; r < RINGS; r++) farm_ring_close(&made[r]);
}

// ---- damage ----

static enum farm_status check(const char *name) {
    const struct farm_replay_place at = place();
    return farm_replay_load(&at, name, true, NULL, NULL, &err);
}

static void flip(const char *path, long at) {
    FILE *file = fopen(path, "r+");
    cr_assert(file && fseek(file, at, SEEK_SET) == 0);
    const int byte = fgetc(file);
    cr_assert(fseek(file, at, SEEK_SET) == 0 && fputc(byte ^ 1 << at % 8, file) >= 0 && fclose(file) == 0);
}

Test(store, a_changed_byte_is_named_and_the_pair_before_it_loads) {
    char names[64][256], path[600], first[FARM_REPLAY_NAME_BYTES], second[FARM_REPLAY_NAME_BYTES];
    struct stat info;
    int refused = 0;
    open_store(NULL, false);
    play();
    strcpy(first, saved_at(1));
    for (int i = 0; i < 8; i++) play();
    strcpy(second, saved_at(2));
    const size_t count = files_in(table.files, names);
    for (size_t i = 0; i < count; i++)
        for (int k = 0; k < 40; k++) {
            snprintf(path, sizeof path, "%s/%s", table.files, names[i]);
            cr_assert_eq(stat(path, &info), 0);
            const long at = (long)(random_next(&table.random) % (uint64_t)info.st_size);
            flip(path, at);
            if (check(second)) {
                cr_assert(err.status == FARM_E_FORMAT && strstr(err.message, names[i]), "%s", err.message);
                refused++;
                if (strcmp(names[i], second) == 0) cr_assert_eq(check(first), FARM_OK, "%s", err.message);
            }
            flip(path, at);
        }
    cr_expect_gt(refused, 200);
    expect_loads(second, true);
    snprintf(path, sizeof path, "%s/lane-0.1", table.files);
    cr_assert(truncate(path, 1000) == 0 && check(second) == FARM_E_FORMAT && check(first) == FARM_OK);
    cr_assert(unlink(path) == 0 && check(second) == FARM_E_NOT_FOUND);
    cr_assert_eq(check("../replay/000000000001-00000000.manifest"), FARM_E_FORMAT);
}

Test(store, a_replay_of_another_shape_is_refused_by_its_difference) {
    open_store(NULL, true);
    play();
    char name[FARM_REPLAY_NAME_BYTES];
    strcpy(name, saved_at(1));
    struct {
        uint32_t rings, lanes, width, steps, every;
        const char *words;
    } cases[] = {{3, LANES, WIDTH, STEPS, EVERY, "2 actors, this run has 3"},
                 {RINGS, 1, WIDTH, STEPS, EVERY, "2 lanes an actor"},
                 {RINGS, LANES, 4, STEPS, EVERY, "3 environments a lane"},
                 {RINGS, LANES, WIDTH, 161, EVERY, "160 steps a ring"},
                 {RINGS, LANES, WIDTH, STEPS, 8, "4 steps from window to window"},
                 {RINGS, LANES, WIDTH, STEPS, EVERY, ":"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct farm_ring_spec other = table.spec;
        other.lanes = cases[i].lanes, other.width = cases[i].width, other.steps = cases[i].steps;
        other.leaf_every = cases[i].every;
        if (!cases[i].words[1]) strcpy(other.env.obs[0].name, "other");
        const struct farm_replay_place at = {table.files, cases[i].rings, &other};
        cr_assert_eq(farm_replay_load(&at, name, false, NULL, NULL, &err), FARM_E_USAGE, "%zu: %s", i, err.message);
        cr_expect(strstr(err.message, cases[i].words) && strstr(err.message, "--replay-save false"), "%s", err.message);
    }
}

Test(store, a_full_disk_leaves_the_last_pair_and_is_survived) {
    struct rlimit limit = {.rlim_cur = 2000, .rlim_max = RLIM_INFINITY};
    char name[FARM_REPLAY_NAME_BYTES];
    open_store(NULL, false);
    play();
    strcpy(name, saved_at(1));
    cr_assert(signal(SIGXFSZ, SIG_IGN) != SIG_ERR && setrlimit(RLIMIT_FSIZE, &limit) == 0);
    for (uint64_t i = 0; i < 10; i++) {
        play();
        cr_assert_eq(save_at(2 + i).status, FARM_E_IO);
        cr_assert_eq(check(name), FARM_OK, "%s", err.message);
    }
    limit.rlim_cur = RLIM_INFINITY;
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    play();
    expect_loads(saved_at(20), true);
}

// ---- kill -9 ----

static void write_until_killed(const char *base, uint64_t frames) {
    for (int r = 0; r < RINGS; r++) {
        table.rings[r].actor = open_view(&table.rings[r].made, FARM_RING_ACTOR);
        table.rings[r].learner = open_view(&table.rings[r].made, FARM_RING_LEARNER);
    }
    open_store(base, false);
    for (;; frames++) {
        play();
        char path[400];
        if (save_at(frames).status) _exit(1);
        snprintf(path, sizeof path, "%s/%012lu.safetensors", table.checkpoints, frames - 3);
        unlink(path);
    }
}

// The rings are shared: what the killed process has written into them is there.
Test(store, the_newest_pair_loads_whenever_its_writer_was_killed) {
    const int kills = getenv("FARM_STORE_KILLS") ? atoi(getenv("FARM_STORE_KILLS")) : 40;
    char names[64][256], path[600], base[FARM_REPLAY_NAME_BYTES] = "";
    uint64_t frames = 10;
    int loaded = 0;
    for (int k = 0; k < kills; k++) {
        const pid_t child = fork();
        if (!child) write_until_killed(base[0] ? base : NULL, frames);
        usleep((useconds_t)(random_next(&table.random) % 40000));
        int status;
        cr_assert(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status));
        const size_t count = files_in(table.checkpoints, names);
        for (size_t i = 0; i < count; i++) {
            char *text;
            size_t bytes;
            if (strtoull(names[i], NULL, 10) < frames || strstr(names[i], "tmp")) continue;
            snprintf(path, sizeof path, "%s/%s", table.checkpoints, names[i]);
            cr_assert_eq(farm_file_read(path, 100, &text, &bytes, &err), FARM_OK);
            cr_assert_eq(check(text), FARM_OK, "kill %d: %s", k, err.message);
            frames = strtoull(names[i], NULL, 10) + 1;
            strcpy(base, text);
            loaded++;
            free(text);
        }
    }
    printf("covered: %d kills of a process that saves a replay, %d new pairs loaded\n", kills, loaded);
    cr_expect_gt(loaded, kills / 4);
}
