// The run's checkpoints: which stay, which is the best, and where the last one goes when its folder refuses it. The
// backend is a vector; nothing trains.
#include "../support/learner.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "learner/checkpoint_writer.h"

static struct table {
    char folder[256];
    float params[64 * 1024];
    struct farm_stats stats;
    struct farm_learner_config config;
    struct farm_learner_parts parts;
    struct farm_checkpoint_writer writer;
} table;
static struct farm_error err;

static struct farm_backend_state state_of(struct farm_backend *backend) {
    (void)backend;
    return farm_backend_state_of(table.params, NULL, table.params, 1, table.writer.version);
}
static const struct farm_backend_ops ops = {.name = "a vector", .state = state_of};

static void set_up(void) {
    table = (struct table){.config = test_learner_config(4, 3, 1)};
    test_folder_make(table.folder, sizeof table.folder);
    table.config.stats = &table.stats;
    table.config.checkpoints.dir = table.folder;
    table.parts = (struct farm_learner_parts){.config = &table.config, .ops = &ops};
    cr_assert_eq(farm_net_make(&table.config.net, &table.config.io, &table.parts.net, &err), FARM_OK);
    cr_assert_leq(table.parts.net.parameter_count, sizeof table.params / sizeof *table.params);
    farm_checkpoint_writer_start(&table.writer, &table.parts);
}

static void tear_down(void) {
    test_folder_remove(table.folder);
}

TestSuite(learner, .init = set_up, .fini = tear_down, .timeout = 30);

// The figures at the next checkpoint.
static void reach(uint64_t frames, uint64_t episodes, double return_mean) {
    table.stats.frames = frames;
    table.stats.episodes = table.stats.games = episodes;
    farm_stats_set(&table.stats.return_mean, return_mean);
}

static void save_at(uint64_t frames, uint64_t episodes, double return_mean) {
    reach(frames, episodes, return_mean);
    cr_assert_eq(farm_checkpoint_writer_save(&table.writer, &err), FARM_OK, "%s", err.message);
}

static bool has(const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", table.folder, name);
    return access(path, F_OK) == 0;
}

// The value of a key of a file in the folder, in the file's text; -1: there is no such file.
static double figure(const char *folder, const char *name, const char *key) {
    char path[600];
    struct farm_checkpoint_metadata metadata;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (farm_checkpoint_read_metadata(path, &metadata, NULL)) return -1;
    const double value = strtod(farm_checkpoint_get(&metadata, key), NULL);
    farm_checkpoint_metadata_free(&metadata);
    return value;
}

static void put_noise(const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", table.folder, name);
    FILE *file = fopen(path, "w");
    cr_assert(file && fputs("noise", file) >= 0 && fclose(file) == 0);
}

Test(learner, the_newest_checkpoints_stay_as_many_as_the_recipe_says) {
    put_noise("000000000099.safetensors"); // newer: it was damaged, and the run goes on from before it
    for (uint64_t n = 1; n <= 3; n++) save_at(n, 0, 0);
    cr_assert_eq(test_folder_files(table.folder, NULL, 0), 4, "0: all stay");
    table.config.checkpoints.keep = 2;
    save_at(4, 0, 0);
    cr_expect(has("000000000099.safetensors") && has("000000000004.safetensors") && has("000000000003.safetensors"));
    cr_assert_eq(test_folder_files(table.folder, NULL, 0), 3);
    table.config.checkpoints.keep = 1;
    save_at(999999999999, 0, 0);
    save_at(1000000000000, 0, 0); // a digit more: its text is less
    cr_assert(has("1000000000000.safetensors"));
    cr_assert_eq(test_folder_files(table.folder, NULL, 0), 1);
}

static void expect_best(double value, uint64_t frames) {
    cr_expect_eq(figure(table.folder, FARM_CHECKPOINT_BEST, "return_mean"), value);
    cr_assert_eq(figure(table.folder, FARM_CHECKPOINT_BEST, "frames"), frames ? (double)frames : -1);
}

Test(learner, the_best_checkpoint_stays_also_over_a_resume) {
    table.config.checkpoints.keep = 1;
    save_at(1, FARM_STATS_RETURNS - 1, 9);
    expect_best(-1, 0); // too few games
    save_at(2, FARM_STATS_RETURNS, 5);
    expect_best(5, 2);
    save_at(3, 200, 5);
    save_at(4, 300, -3);
    expect_best(5, 2);
    cr_assert_eq(test_folder_files(table.folder, NULL, 0), 2, "the newest and the best");
    save_at(5, 400, 7);
    expect_best(7, 5);
    farm_checkpoint_writer_start(&table.writer, &table.parts); // as in a resumed run
    save_at(6, 100, 6);
    expect_best(7, 5);
    save_at(7, 200, 8);
    expect_best(8, 7);
    put_noise(FARM_CHECKPOINT_BEST);
    farm_checkpoint_writer_start(&table.writer, &table.parts);
    save_at(8, 100, -2);
    expect_best(-2, 8);
}

Test(learner, a_checkpoint_that_a_full_disk_refuses_is_tried_again) {
    struct rlimit limit = {.rlim_cur = 100, .rlim_max = RLIM_INFINITY};
    save_at(1, 0, 0);
    table.config.checkpoints.keep = 1;
    table.config.checkpoints.every_frames = 10; // and none by time
    table.writer.due_frames = 10;
    cr_assert(signal(SIGXFSZ, SIG_IGN) != SIG_ERR && setrlimit(RLIMIT_FSIZE, &limit) == 0);
    reach(10, 0, 0);
    farm_checkpoint_writer_turn(&table.writer);
    cr_assert_eq(test_folder_files(table.folder, NULL, 0), 1);
    cr_assert(has("000000000001.safetensors"), "the earlier one stays");
    limit.rlim_cur = RLIM_INFINITY;
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    reach(11, 0, 0);
    cr_assert_gt(table.writer.due_ns, 1, "before the next 10 frames");
    table.writer.due_ns = 1; // it is time
    farm_checkpoint_writer_turn(&table.writer);
    cr_assert(has("000000000011.safetensors") && !has("000000000001.safetensors"));
    cr_assert_eq(table.writer.due_ns, 0);
}

Test(learner, the_last_checkpoint_goes_elsewhere_if_its_folder_refuses_it) {
    static const char name[] = "000000000007.safetensors";
    char elsewhere[256], path[512];
    struct stat info;
    test_folder_make(elsewhere, sizeof elsewhere);
    cr_assert_eq(setenv("TMPDIR", elsewhere, 1), 0);
    test_folder_remove(table.folder);
    reach(7, 100, 3);
    cr_assert_eq(farm_checkpoint_writer_end(&table.writer, &err), FARM_E_NOT_FOUND, "%s", err.message);
    const char *at = strstr(err.message, elsewhere), *end = at ? strstr(at, name) : NULL;
    cr_assert(end && strstr(err.message, "No such file") && strstr(end, table.folder), "%s", err.message);
    snprintf(path, sizeof path, "%.*s%s", (int)(end - at), at, name);
    cr_assert(stat(path, &info) == 0 && (info.st_mode & 07777) == 0600, "%s: mode %o", path, info.st_mode);
    *strrchr(path, '/') = 0;
    cr_assert(stat(path, &info) == 0 && (info.st_mode & 07777) == 0700);
    cr_assert_eq(figure(path, name, "return_mean"), 3);
    test_folder_remove(path);
    test_folder_remove(elsewhere);
    cr_assert_eq(farm_checkpoint_writer_end(&table.writer, &err), FARM_E_NOT_FOUND);
    cr_assert_eq(sscanf(err.message, "%*[^;]; saved as %511[^ ]", path), 1, "%s", err.message);
    cr_assert_eq(strncmp(path, "/tmp/farm-checkpoint-", 21), 0, "%s", path);
    *strrchr(path, '/') = 0;
    test_folder_remove(path);
    const struct rlimit none = {.rlim_cur = 0, .rlim_max = RLIM_INFINITY};
    cr_assert(signal(SIGXFSZ, SIG_IGN) != SIG_ERR && setrlimit(RLIMIT_FSIZE, &none) == 0);
    cr_assert_eq(farm_checkpoint_writer_end(&table.writer, &err), FARM_E_NOT_FOUND);
    cr_assert(strstr(err.message, elsewhere) && strstr(err.message, "are lost"), "%s", err.message);
    table.params[0] = NAN;
    cr_assert_eq(farm_checkpoint_writer_end(&table.writer, &err), FARM_E_INVALID, "%s", err.message);
}
