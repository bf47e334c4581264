// Procgen's plug-in (src/envs/procgen/procgen.c) against a plain loop over Procgen's own library, and its options.
// Skipped where the library is not here. The plain loop loads all of Procgen's images first: 1 to 2 s.
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/status.h"
#include "envs/libenv/libenv.h"
#include "envs/plugin.h"

enum { OBS_BYTES = 64 * 64 * 3, OPTIONS_MAX = 8, ENDED = FARM_STEP_TERMINATED | FARM_STEP_GAME_END };

static const char *const names[] = {"bigfish",   "bossfight", "caveflyer", "chaser",   "climber", "coinrun",
                                    "dodgeball", "fruitbot",  "heist",     "jumper",   "leaper",  "maze",
                                    "miner",     "ninja",     "plunder",   "starpilot"};
enum { GAMES = sizeof names / sizeof names[0] };

// ---- the plug-in and the library ----

static char plugin_path[4096], folder[4096];

// The library lies in the build folder, or in the one above it where this is a sanitizer's build.
static bool found(void) {
    static const char *const places[] = {"procgen", "../procgen"};
    const char *build = getenv("FARM_BUILD") ? getenv("FARM_BUILD") : "build";
    char library[4200];
    snprintf(plugin_path, sizeof plugin_path, "%s/envs/procgen.so", build);
    for (size_t i = 0; i < 2; i++) {
        snprintf(folder, sizeof folder, "%s/%s", build, places[i]);
        snprintf(library, sizeof library, "%s/libenv.so", folder);
        if (access(library, R_OK)) continue;
        setenv("FARM_PROCGEN", folder, 1);
        return true;
    }
    return false;
}

#define NEEDS_PROCGEN                                                                                                  \
    if (!found()) cr_skip_test("Procgen's library is not in build/procgen (make deps brings it, on x86-64)")

static const struct farm_env_api *game(const char *name) {
    char full[64];
    struct farm_plugin plugin;
    struct farm_error err = {0};
    snprintf(full, sizeof full, "procgen/%s", name);
    cr_assert_eq(farm_plugin_open(plugin_path, full, &plugin, &err), FARM_OK, "%s", err.message);
    return plugin.api;
}

// Plays into two buffers in turn, as in a lane, each filled with rubbish first.
struct player {
    const struct farm_env_api *api;
    void *env;
    uint8_t memory[2][OBS_BYTES];
    uint8_t *obs;
    float reward;
    uint32_t answer;
    bool ended;
};

// pairs: key, value, key, value, NULL.
static void make(struct player *player, const char *name, uint64_t seed, const char *const *pairs) {
    struct farm_env_option options[OPTIONS_MAX];
    struct farm_env_config config = {.seed = seed, .options = options};
    char error[256] = "";
    for (; *pairs; pairs += 2) options[config.option_count++] = (struct farm_env_option){pairs[0], pairs[1]};
    *player = (struct player){.api = game(name), .ended = true};
    player->env = player->api->create(&config, error, sizeof error);
    cr_assert_not_null(player->env, "%s", error);
}

static void destroy(struct player *player) {
    player->api->destroy(player->env);
}

#define with_player __attribute__((cleanup(destroy))) struct player // destroyed where its scope ends

static void *turn(struct player *player) {
    player->obs = player->memory[player->obs == player->memory[0]];
    memset(player->obs, 0xA5, OBS_BYTES);
    return player->obs;
}

static void reset(struct player *player) {
    void *obs = turn(player);
    player->api->reset(player->env, &obs);
    player->ended = false;
}

static void step(struct player *player, int32_t action) {
    void *obs = turn(player);
    player->reward = 123;
    player->answer = player->api->step(player->env, &action, &obs, &player->reward);
    player->ended = player->answer != 0;
}

// reset where one is due, else a step.
static void advance(struct player *player, int32_t action) {
    if (player->ended)
        reset(player);
    else
        step(player, action);
}

static int32_t draw(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return (int32_t)((*state >> 16) % 15);
}

static bool flat(const uint8_t *obs) {
    for (size_t i = 1; i < OBS_BYTES; i++)
        if (obs[i] != obs[0]) return false;
    return true;
}

// ---- a plain loop: one libenv of one game, its own buffers ----

struct bare {
    struct libenv_library library;
    struct libenv_settings settings;
    void *handle, *obs_at, *action_at, *infos[3];
    struct libenv_buffers buffers;
    uint8_t obs[OBS_BYTES], first;
    int32_t action, info[3];
    float reward;
};

static void bare_make(struct bare *bare, const char *name, int32_t seed, int32_t mode, int32_t levels) {
    char path[4200], images[4200], error[256] = "";
    snprintf(path, sizeof path, "%s/libenv.so", folder);
    snprintf(images, sizeof images, "%s/assets/", folder);
    memset(bare, 0, sizeof *bare);
    cr_assert(libenv_open(path, &bare->library, error, sizeof error), "%s", error);
    libenv_set_text(&bare->settings, "env_name", name);
    libenv_set_text(&bare->settings, "resource_root", images);
    libenv_set_int(&bare->settings, "rand_seed", seed);
    libenv_set_int(&bare->settings, "num_threads", 0);
    libenv_set_int(&bare->settings, "num_actions", 15);
    libenv_set_int(&bare->settings, "num_levels", levels);
    libenv_set_int(&bare->settings, "start_level", 0);
    libenv_set_int(&bare->settings, "distribution_mode", mode);
    libenv_set_bool(&bare->settings, "center_agent", true);
    bare->handle = bare->library.make(1, (struct libenv_options){bare->settings.items, bare->settings.count});
    bare->obs_at = bare->obs;
    bare->action_at = &bare->action;
    for (int i = 0; i < 3; i++) bare->infos[i] = &bare->info[i];
    bare->buffers = (struct libenv_buffers){&bare->obs_at, &bare->reward, &bare->first, bare->infos, &bare->action_at};
    bare->library.set_buffers(bare->handle, &bare->buffers);
    bare->library.observe(bare->handle);
}

static void bare_step(struct bare *bare, int32_t action) {
    bare->action = action;
    bare->library.act(bare->handle);
    bare->library.observe(bare->handle);
}

// ---- the plug-in against that loop ----

struct match {
    const char *game, *mode;
    int32_t mode_number;
    const char *levels;
    int seeds, steps; // seeds: so many environments one after another, of so many steps each
};

struct moment {
    uint64_t digest; // FNV-1a of the observation
    float reward;
    uint8_t first;
};

static uint64_t digest(const uint8_t *obs) {
    uint64_t sum = 14695981039346656037u;
    for (size_t i = 0; i < OBS_BYTES; i++) sum = (sum ^ obs[i]) * 1099511628211u;
    return sum;
}

static size_t count_moments(const struct match *match) {
    return (size_t)match->seeds * ((size_t)match->steps + 1);
}

static void record(const struct match *match, struct moment *moments) {
    for (int seed = 0; seed < match->seeds; seed++) {
        struct bare bare;
        uint32_t rng = 3;
        bare_make(&bare, match->game, seed, match->mode_number, atoi(match->levels));
        *moments++ = (struct moment){.digest = digest(bare.obs)};
        for (int n = 0; n < match->steps; n++) {
            bare_step(&bare, draw(&rng));
            *moments++ = (struct moment){digest(bare.obs), bare.reward, bare.first};
        }
        bare.library.close(bare.handle);
        libenv_settings_free(&bare.settings);
    }
}

// In a process of its own, which loads all images as the library does by itself.
static struct moment *play_plain_loop(const struct match *matches, size_t count) {
    size_t total = 0;
    for (size_t i = 0; i < count; i++) total += count_moments(&matches[i]);
    struct moment *moments =
        mmap(NULL, total * sizeof *moments, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(moments, MAP_FAILED);
    const pid_t child = fork();
    cr_assert_neq(child, -1);
    if (child == 0) {
        struct moment *next = moments;
        for (size_t i = 0; i < count; next += count_moments(&matches[i++])) record(&matches[i], next);
        _exit(0);
    }
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0, "the plain loop ended with status %d", status);
    return moments;
}

// The plug-in's resets lie between steps and take no action. Returns the episodes that ended.
static int compare_seed(const struct match *match, int seed, const struct moment *moment) {
    with_player player;
    uint32_t rng = 3;
    int episodes = 0;
    make(&player, match->game, (uint64_t)seed,
         (const char *const[]){"distribution_mode", match->mode, "num_levels", match->levels, NULL});
    for (int n = 0; n <= match->steps; n++, moment++) {
        if (n) {
            step(&player, draw(&rng));
            cr_assert_eq(player.reward, moment->reward, "%s, seed %d: reward of step %d", match->game, seed, n);
            cr_assert_eq(player.answer, moment->first ? ENDED : 0u, "%s, seed %d: end at step %d", match->game, seed,
                         n);
            cr_assert_eq(digest(player.obs), moment->digest, "%s, seed %d: observation of step %d", match->game, seed,
                         n);
            episodes += player.ended;
        }
        if (!player.ended) continue;
        reset(&player);
        cr_assert_eq(digest(player.obs), moment->digest, "%s, seed %d: an episode's first observation, step %d",
                     match->game, seed, n);
    }
    return episodes;
}

static int compare(const struct match *matches, size_t count) {
    int episodes = 0;
    struct moment *moments = play_plain_loop(matches, count), *next = moments;
    for (size_t i = 0; i < count; i++)
        for (int seed = 0; seed < matches[i].seeds; seed++, next += matches[i].steps + 1)
            episodes += compare_seed(&matches[i], seed, next);
    munmap(moments, (size_t)(next - moments) * sizeof *moments);
    return episodes;
}

// ---- tests ----

Test(envs, procgen_gives_the_rewards_ends_and_images_of_a_plain_loop) {
    NEEDS_PROCGEN;
    static const struct match matches[] = {{"leaper", "easy", 0, "0", 1, 600},
                                           {"starpilot", "extreme", 2, "0", 1, 600},
                                           {"bigfish", "hard", 1, "3", 1, 600},
                                           {"fruitbot", "easy", 0, "1", 1, 600}};
    const int episodes = compare(matches, sizeof matches / sizeof matches[0]);
    cr_assert_geq(episodes, 20, "%d episodes are too few to tell", episodes);
}

// Many short games: every seed draws another background.
Test(envs, procgen_shows_the_images_of_a_plain_loop_in_all_games) {
    NEEDS_PROCGEN;
    struct match matches[GAMES];
    for (size_t i = 0; i < GAMES; i++) matches[i] = (struct match){names[i], "hard", 1, "0", 40, 10};
    compare(matches, GAMES);
}

// ---- lean images ----

static size_t resident_mb(void) {
    unsigned long pages;
    FILE *file = fopen("/proc/self/statm", "r");
    cr_assert_not_null(file);
    cr_assert_eq(fscanf(file, "%*u %lu", &pages), 1);
    fclose(file);
    return pages * (size_t)sysconf(_SC_PAGESIZE) >> 20;
}

static bool lean(char *path) {
    snprintf(path, 4200, "%s/lean/backgrounds.raw", folder);
    return access(path, R_OK) == 0;
}

#define NEEDS_LEAN(path)                                                                                               \
    NEEDS_PROCGEN;                                                                                                     \
    if (!lean(path)) cr_skip_test("build/procgen has no lean images (make deps makes them)")

Test(envs, procgen_processes_share_their_backgrounds) {
    with_player player;
    char path[4200];
    NEEDS_LEAN(path);
    const size_t before = resident_mb();
    make(&player, "coinrun", 1, (const char *const[]){NULL});
    const size_t grown = resident_mb() - before;
    cr_assert_leq(grown, 100, "the first environment takes %zu MB", grown);
}

// A folder with everything of build/procgen, but with other backgrounds: the first page only of the true file, in which
// one byte is other.
static void make_odd_folder(char *place, const char *raw, size_t offset, uint8_t byte, size_t bytes) {
    char command[14000], real[PATH_MAX], path[4200];
    uint8_t page[4096];
    cr_assert_not_null(mkdtemp(place));
    cr_assert_not_null(realpath(folder, real));
    snprintf(command, sizeof command,
             "ln -s '%s/libenv.so' '%s/assets' %s && mkdir %s/lean && ln -s '%s'/lean/*/ %s/lean", real, real, place,
             place, real, place);
    cr_assert_eq(system(command), 0, "%s", command);
    FILE *file = fopen(raw, "rb");
    cr_assert(file && fread(page, 1, sizeof page, file) == sizeof page);
    fclose(file);
    page[offset] = byte;
    snprintf(path, sizeof path, "%s/lean/backgrounds.raw", place);
    file = fopen(path, "wb");
    cr_assert(file && fwrite(page, 1, sizeof page, file) == sizeof page);
    cr_assert_eq(ftruncate(fileno(file), (off_t)bytes), 0);
    fclose(file);
}

static void remove_folder(const char *place) {
    char command[100];
    snprintf(command, sizeof command, "rm -r %s", place);
    cr_assert_eq(system(command), 0);
}

Test(envs, procgen_loads_all_images_where_the_lean_ones_are_not_whole) {
    with_player player;
    char raw[4200], place[] = "/tmp/procgen-odd-XXXXXX";
    NEEDS_LEAN(raw);
    make_odd_folder(place, raw, 0, 'p', 1 << 20);
    const size_t before = resident_mb();
    make(&player, "coinrun", 1, (const char *const[]){"lib", place, NULL});
    remove_folder(place);
    cr_assert_geq(resident_mb() - before, 200);
    reset(&player);
    cr_assert(!flat(player.obs));
}

Test(envs, procgen_seeds_order_levels_and_level_sets_repeat) {
    NEEDS_PROCGEN;
    static struct player a, b, c;
    uint32_t rng = 7;
    bool differs = false;
    make(&a, "chaser", 1, (const char *const[]){NULL});
    make(&b, "chaser", 1, (const char *const[]){NULL});
    make(&c, "chaser", 2, (const char *const[]){NULL});
    for (int n = 0; n < 300; n++) {
        const int32_t action = draw(&rng);
        advance(&a, action), advance(&b, action), advance(&c, action);
        cr_assert_arr_eq(a.obs, b.obs, OBS_BYTES, "the same seed, step %d", n);
        cr_assert(a.reward == b.reward && a.answer == b.answer);
        differs = differs || memcmp(a.obs, c.obs, OBS_BYTES) != 0;
    }
    cr_assert(differs, "seeds 1 and 2 play the same");
    a.api->destroy(a.env), b.api->destroy(b.env), c.api->destroy(c.env);

    const char *const one[] = {"num_levels", "1", "start_level", "17", NULL};
    uint8_t start[OBS_BYTES];
    int starts = 0;
    make(&a, "leaper", 1, one);
    make(&b, "leaper", 2, one);
    reset(&b);
    memcpy(start, b.obs, OBS_BYTES);
    for (int n = 0; n < 400; n++) {
        const bool begins = a.ended;
        advance(&a, draw(&rng));
        if (!begins) continue;
        cr_assert_arr_eq(a.obs, start, OBS_BYTES, "level 17 starts differently");
        starts++;
    }
    cr_assert_geq(starts, 3);
    for (int n = 0; n < 5; n++) step(&b, 5);
    reset(&b);
    cr_assert_arr_eq(b.obs, start, OBS_BYTES, "a reset in the middle starts the level anew");
    step(&b, 5);
    cr_assert_eq(b.answer, 0, "and the new episode goes on");
    a.api->destroy(a.env), b.api->destroy(b.env);
}

Test(envs, procgen_options_change_what_is_seen) {
    NEEDS_PROCGEN;
    static const char *const changes[][2] = {{"use_backgrounds", "false"},      {"center_agent", "0"},
                                             {"use_monochrome_assets", "true"}, {"restrict_themes", "1"},
                                             {"paint_vel_info", "true"},        {"use_generated_assets", "true"},
                                             {"distribution_mode", "easy"},     {"distribution_mode", "exploration"}};
    static struct player plain, other;
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        const char *const pairs[] = {changes[i][0], changes[i][1], NULL};
        bool differs = false;
        make(&plain, "coinrun", 3, (const char *const[]){NULL});
        make(&other, "coinrun", 3, pairs);
        for (int n = 0; n < 20; n++) {
            advance(&plain, 7), advance(&other, 7);
            differs = differs || memcmp(plain.obs, other.obs, OBS_BYTES) != 0;
        }
        cr_assert(differs, "%s %s changes nothing", changes[i][0], changes[i][1]);
        plain.api->destroy(plain.env), other.api->destroy(other.env);
    }
}

// A library that has Procgen's spaces and is not Procgen: nothing is presumed of what lies in its memory.
Test(envs, procgen_presumes_nothing_of_a_build_that_it_does_not_know) {
    with_player player;
    char place[] = "/tmp/procgen-strange-XXXXXX", command[9000];
    const char *build = getenv("FARM_BUILD") ? getenv("FARM_BUILD") : "build";
    found();
    cr_assert_not_null(mkdtemp(place));
    snprintf(command, sizeof command, "mkdir %s/assets && cp '%s/tests/envs/libenv_fixture.so' %s/libenv.so", place,
             build, place);
    cr_assert_eq(system(command), 0);
    make(&player, "starpilot", 8, (const char *const[]){"lib", place, NULL});
    snprintf(command, sizeof command, "rm -r %s", place);
    cr_assert_eq(system(command), 0);
    for (int episode = 0; episode < 3; episode++) {
        reset(&player);
        cr_assert(player.obs[0] == 1000 * episode % 251 && flat(player.obs));
        for (int n = 1; n <= 3; n++) {
            step(&player, 14);
            cr_assert(player.obs[0] == (n == 3 ? 1000 * (episode + 1) : 1000 * episode + n) % 251 && flat(player.obs));
            cr_assert(player.reward == (float)(100 * episode + n) && player.answer == (n == 3 ? ENDED : 0u));
        }
    }
}

static void refused(const char *name, const char *const *pairs, const char *sentence) {
    struct farm_env_option options[OPTIONS_MAX];
    struct farm_env_config config = {.options = options};
    struct farm_env_spec spec;
    char error[256] = "";
    for (; *pairs; pairs += 2) options[config.option_count++] = (struct farm_env_option){pairs[0], pairs[1]};
    const struct farm_env_api *api = game(name);
    cr_assert_eq(api->spec(&config, &spec, error, sizeof error), -1, "accepted; wanted: %s", sentence);
    cr_assert_not_null(strstr(error, sentence), "it says '%s', not '%s'", error, sentence);
    cr_assert_null(api->create(&config, error, sizeof error));
}

// One picture fewer than the library has; the file is long enough. Refused again the second time, when images are
// loaded.
Test(envs, procgen_refuses_lean_images_of_another_library) {
    char raw[4200], place[] = "/tmp/procgen-odd-XXXXXX", error[256] = "";
    struct farm_env_option option = {"lib", place};
    struct farm_env_config config = {.options = &option, .option_count = 1};
    NEEDS_LEAN(raw);
    struct stat status;
    cr_assert_eq(stat(raw, &status), 0);
    make_odd_folder(place, raw, 16, 95, (size_t)status.st_size);
    for (int i = 0; i < 2; i++) {
        cr_assert_null(game("coinrun")->create(&config, error, sizeof error));
        cr_assert_not_null(strstr(error, "/lean/ is not made for Procgen's library beside it"), "it says '%s'", error);
    }
    remove_folder(place);
}

Test(envs, procgen_refuses_options_with_a_sentence) {
    found();
    refused("bigfish", (const char *const[]){"colour", "1", NULL},
            "has no option \"colour\"; it has distribution_mode");
    refused("bigfish", (const char *const[]){"num_levels", "-1", NULL}, "whole number from 0");
    refused("bigfish", (const char *const[]){"num_levels", "many", NULL}, "whole number from 0");
    refused("bigfish", (const char *const[]){"start_level", "2147483648", NULL}, "whole number from 0");
    refused("bigfish", (const char *const[]){"start_level", "2147483647", "num_levels", "1", NULL},
            "exceed 2147483647");
    refused("bigfish", (const char *const[]){"center_agent", "maybe", NULL}, "true or false, not \"maybe\"");
    refused("bigfish", (const char *const[]){"distribution_mode", "harder", NULL}, "easy, hard, extreme, memory or");
    refused("bigfish", (const char *const[]){"distribution_mode", "extreme", NULL}, "modes easy, hard");
    refused("chaser", (const char *const[]){"distribution_mode", "memory", NULL}, "modes easy, hard, extreme");
    refused("chaser", (const char *const[]){"distribution_mode", "exploration", NULL}, "modes easy, hard, extreme");
    refused("maze", (const char *const[]){"distribution_mode", "exploration", "num_levels", "5", NULL},
            "exploration mode plays one level");
}

Test(envs, procgen_says_what_is_missing) {
    found();
    setenv("FARM_PROCGEN", "/nowhere/at/all", 1);
    refused("bigfish", (const char *const[]){NULL}, "at /nowhere/at/all, which FARM_PROCGEN names");
    refused("bigfish", (const char *const[]){"lib", "nothing.so", NULL}, "at nothing.so, which option lib names");
    unsetenv("FARM_PROCGEN");
    char alone[64] = "/tmp/procgen-alone-XXXXXX", command[9000];
    cr_assert_not_null(mkdtemp(alone));
    snprintf(command, sizeof command, "cp '%s' %s/procgen.so", plugin_path, alone);
    cr_assert_eq(system(command), 0);
    snprintf(plugin_path, sizeof plugin_path, "%s/procgen.so", alone);
    refused("bigfish", (const char *const[]){NULL}, "`make deps` fetches it");
    snprintf(command, sizeof command, "rm -r %s", alone);
    cr_assert_eq(system(command), 0);
}
