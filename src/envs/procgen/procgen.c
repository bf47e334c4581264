// procgen/*: the 16 games of Procgen 0.10.7 through the C interface of its library, without Python. Observations are
// 64x64x3 bytes (RGB), actions 15 combinations of keys, one frame per step, as libenv.h describes. Runs in one thread.
//
// The library (libenv.so of the wheel `procgen`, MIT, x86-64 Linux only) and its images come from option lib, else from
// $FARM_PROCGEN (the library or its folder), else from procgen/ beside this plug-in or its folder (`make deps`).
//
// Options, with Procgen's defaults: distribution_mode easy|hard|extreme|memory|exploration (hard; the last three for
// some games only), num_levels (0: all), start_level (0), use_sequential_levels, center_agent (true), use_backgrounds
// (true), use_generated_assets, use_monochrome_assets, restrict_themes, paint_vel_info. The seed orders an
// environment's levels; a level's number alone determines its content.
//
// The first environment of a process loads images in about 0.12 s and 30 MB; each other one takes about 0.1 MB. Every
// environment is a libenv of one. Two optimisations apply only to the known build of the library (by its build id):
//
// 1. Each step the game draws into the given memory, because the address of its buffer is known, so libenv.h's copy is
// saved. It draws there only within that step. Any other build draws into its own buffer, which is copied.
//
// 2. All processes share the backgrounds in lean/, beside the images; else each loads all: 1.9 s and 340 MB.
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "envs/libenv/libenv.h"

enum { OBS_SIZE = 64, OBS_CHANNELS = 3, ACTIONS = 15, LEAVE_EPISODE = -1, PATH_BYTES = 4096 };
enum { EASY = 0, HARD = 1, EXTREME = 2, MEMORY = 10, EXPLORATION = 20 }; // the library's numbers; the last is ours

struct game {
    const char *name;
    bool extreme, memory;      // has this distribution mode
    int32_t exploration_level; // in exploration mode; 0: no such mode
};

// Modes and levels are those of Procgen's README and env.py.
#define GAME_LIST(X)                                                                                                   \
    X(bigfish, false, false, 0, "eat smaller fish, flee from bigger ones")                                             \
    X(bossfight, false, false, 0, "shoot a boss ship whose shields fall now and then")                                 \
    X(caveflyer, false, true, 1259048185, "fly through a cave to a friendly ship")                                     \
    X(chaser, true, false, 0, "collect all orbs of a maze, chased by enemies")                                         \
    X(climber, false, false, 1561126160, "climb a platform tower and collect stars")                                   \
    X(coinrun, false, false, 1949448038, "run and jump to the coin at the far right")                                  \
    X(dodgeball, true, true, 0, "throw balls at enemies, dodge theirs")                                                \
    X(fruitbot, false, false, 0, "collect fruit between walls, avoid other food")                                      \
    X(heist, false, true, 876640971, "open coloured locks with their keys and take the gem")                           \
    X(jumper, false, true, 1434825276, "double-jump through an open world to the carrot")                              \
    X(leaper, true, false, 1318677581, "cross lanes of cars and a river of logs")                                      \
    X(maze, false, true, 158988835, "a mouse looks for cheese in a maze")                                              \
    X(miner, false, true, 0, "dig for diamonds under falling boulders")                                                \
    X(ninja, false, false, 1123500215, "jump over ledges and past bombs to the mushroom")                              \
    X(plunder, false, false, 0, "fire at enemy ships, spare friendly ones")                                            \
    X(starpilot, true, false, 0, "a side-scrolling space shooter")

#define GAME_INDEX(game, ...)                        GAME_##game,
#define GAME_ROW(game, extreme, memory, level, text) {#game, extreme, memory, level},
enum { GAME_LIST(GAME_INDEX) GAMES };
static const struct game games[GAMES] = {GAME_LIST(GAME_ROW)};

// ---- options ----

enum { SWITCHES = 7 };
static const char *const switch_names[SWITCHES] = {"use_sequential_levels", "center_agent",          "use_backgrounds",
                                                   "use_generated_assets",  "use_monochrome_assets", "restrict_themes",
                                                   "paint_vel_info"};

struct choices {
    bool switches[SWITCHES];
    int32_t mode, num_levels, start_level;
    bool levels_given;
    const char *lib;
};

static bool parse_switch(const char *text, bool *value) {
    *value = strcmp(text, "true") == 0 || strcmp(text, "1") == 0;
    return *value || strcmp(text, "false") == 0 || strcmp(text, "0") == 0;
}

static bool parse_level(const char *text, int32_t *value) {
    char *end;
    errno = 0;
    const long long parsed = strtoll(text, &end, 10);
    if (!isdigit((unsigned char)text[0]) || *end || errno || parsed > INT32_MAX) return false;
    *value = (int32_t)parsed;
    return true;
}

static bool parse_mode(const char *text, int32_t *value) {
    static const char *const names[] = {"easy", "hard", "extreme", "memory", "exploration"};
    static const int32_t numbers[] = {EASY, HARD, EXTREME, MEMORY, EXPLORATION};
    for (size_t i = 0; i < 5; i++) {
        if (strcmp(text, names[i]) != 0) continue;
        *value = numbers[i];
        return true;
    }
    return false;
}

static bool read_option(const struct game *game, const struct farm_env_option *option, struct choices *choices,
                        struct libenv_error error) {
    const char *key = option->key, *value = option->value, *wanted = "true or false";
    if (strcmp(key, "lib") == 0) {
        choices->lib = value;
        return true;
    }
    for (size_t i = 0; i < SWITCHES; i++) {
        if (strcmp(key, switch_names[i]) != 0) continue;
        if (parse_switch(value, &choices->switches[i])) return true;
        goto refused;
    }
    if (strcmp(key, "distribution_mode") == 0) {
        wanted = "easy, hard, extreme, memory or exploration";
        if (parse_mode(value, &choices->mode)) return true;
    } else if (strcmp(key, "num_levels") == 0 || strcmp(key, "start_level") == 0) {
        wanted = "a whole number from 0 to 2147483647";
        choices->levels_given = true;
        if (parse_level(value, key[0] == 'n' ? &choices->num_levels : &choices->start_level)) return true;
    } else {
        return libenv_fail(error,
                           "procgen/%s has no option \"%s\"; it has distribution_mode, num_levels, start_level, "
                           "use_sequential_levels, center_agent, use_backgrounds, use_generated_assets, "
                           "use_monochrome_assets, restrict_themes, paint_vel_info, lib",
                           game->name, key);
    }
refused:
    return libenv_fail(error, "procgen/%s: option \"%s\" is %s, not \"%s\"", game->name, key, wanted, value);
}

// Refuses what would make the library end the process.
static bool check_choices(const struct game *game, struct choices *choices, struct libenv_error error) {
    if ((choices->mode == EXTREME && !game->extreme) || (choices->mode == MEMORY && !game->memory) ||
        (choices->mode == EXPLORATION && !game->exploration_level))
        return libenv_fail(error, "procgen/%s has the distribution modes easy, hard%s%s%s", game->name,
                           game->extreme ? ", extreme" : "", game->memory ? ", memory" : "",
                           game->exploration_level ? ", exploration" : "");
    if (choices->num_levels > INT32_MAX - choices->start_level)
        return libenv_fail(error, "procgen/%s: start_level and num_levels together exceed 2147483647", game->name);
    if (choices->mode != EXPLORATION) return true;
    if (choices->levels_given)
        return libenv_fail(
            error, "procgen/%s: exploration mode plays one level, so leave out num_levels and start_level", game->name);
    choices->mode = HARD;
    choices->num_levels = 1;
    choices->start_level = game->exploration_level;
    return true;
}

static bool read_choices(const struct game *game, const struct farm_env_config *config, struct choices *choices,
                         struct libenv_error error) {
    *choices = (struct choices){.switches = {[1] = true, [2] = true}, .mode = HARD};
    for (size_t i = 0; i < config->option_count; i++)
        if (!read_option(game, &config->options[i], choices, error)) return false;
    return check_choices(game, choices, error);
}

// ---- the library and its images ----

struct place {
    char library[PATH_BYTES], images[PATH_BYTES]; // images: ends in '/'
};

static bool is_folder(const char *path) {
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

static bool join(char *path, const char *folder, const char *name) {
    return snprintf(path, PATH_BYTES, "%s/%s", folder, name) < PATH_BYTES;
}

// The library in `folder`, its images in assets/ there or, as in the wheel, beside that folder.
static bool find_in(const char *folder, struct place *place) {
    return join(place->library, folder, "libenv.so") && access(place->library, R_OK) == 0 &&
           ((join(place->images, folder, "assets/") && is_folder(place->images)) ||
            (join(place->images, folder, "../assets/") && is_folder(place->images)));
}

static bool find_named(const char *path, const char *by, struct place *place, struct libenv_error error) {
    char folder[PATH_BYTES];
    snprintf(folder, sizeof folder, "%s", path);
    if (!is_folder(path)) {
        char *slash = strrchr(folder, '/');
        if (slash)
            *slash = 0;
        else
            strcpy(folder, ".");
    }
    if (strlen(path) < sizeof folder && find_in(folder, place)) return true;
    return libenv_fail(
        error,
        "no libenv.so of Procgen with its images, assets/, at %s, which %s names (the folder of both, or "
        "libenv.so itself)",
        path, by);
}

// What fetches the library: this file lies in build/envs or in PREFIX/lib/farm/envs.
static const char *fetch_command(void) {
    Dl_info self;
    char here[PATH_MAX];
    const bool installed = dladdr(games, &self) && realpath(self.dli_fname, here) && strstr(here, "/lib/farm/envs/");
    return installed ? "`make install-all`" : "`make deps`";
}

static bool find_library(const char *named, struct place *place, struct libenv_error error) {
    const char *variable = getenv("FARM_PROCGEN");
    if (named) return find_named(named, "option lib", place, error);
    if (variable && *variable) return find_named(variable, "FARM_PROCGEN", place, error);
    Dl_info self;
    char here[PATH_MAX], folder[PATH_BYTES];
    if (dladdr(games, &self) && realpath(self.dli_fname, here)) {
        char *slash = strrchr(here, '/');
        if (slash) *slash = 0;
        if (join(folder, here, "procgen") && find_in(folder, place)) return true;
        if (join(folder, here, "../procgen") && find_in(folder, place)) return true;
    }
    return libenv_fail(error,
                       "Procgen's library is missing: %s in actorfarm's source folder fetches it (x86-64 Linux, from "
                       "PyPI), or set env.lib or FARM_PROCGEN to its folder",
                       fetch_command());
}

// ---- the known build ----

// Procgen 0.10.7's wheel (manylinux2014_x86_64): its build id; the offsets of VecGame's vector of games, of a Game's
// vector of observation buffers and of a QImage's QImageData; the addresses of the vectors of backgrounds.
static const uint8_t known_build[] = {0xef, 0x2a, 0x35, 0x0a, 0x05, 0xea, 0x7b, 0x5f, 0x4d, 0x99,
                                      0x0a, 0xc8, 0x6a, 0x32, 0x36, 0xf5, 0xef, 0x55, 0x54, 0x9d};
enum { VECGAME_GAMES = 0x58, GAME_OBS_BUFFERS = 0x67d0, QIMAGE_DATA = 24, GROUPS = 6 };
static const uintptr_t group_addresses[GROUPS] = {0x96b670, 0x96b690, 0x96b6d0, 0x96b6b0, 0x96b650, 0x96b630};

struct qimage_data {
    int32_t references, width, height, depth;
    int64_t bytes;
    uint64_t ratio, colours;
    void *pixels;
    int32_t format, unused;
    int64_t row_bytes;
    uint64_t numbers[4];
    uint8_t flags; // bit 0: frees its pixels, bit 1: does not write to them
};

static_assert(offsetof(struct qimage_data, pixels) == 0x28 && offsetof(struct qimage_data, row_bytes) == 0x38 &&
                  offsetof(struct qimage_data, flags) == 0x60,
              "the layout of QImageData");

struct library_build {
    uintptr_t function, base; // a function of the library, and the library's address
    bool known;
};

static bool has_known_id(const uint8_t *notes, size_t bytes) {
    ElfW(Nhdr) note;
    for (size_t at = 0; at + sizeof note <= bytes;) {
        memcpy(&note, notes + at, sizeof note);
        const size_t name = at + sizeof note, text = name + (note.n_namesz + 3u) / 4 * 4;
        if (note.n_type == NT_GNU_BUILD_ID && note.n_descsz == sizeof known_build && text + note.n_descsz <= bytes)
            return memcmp(notes + text, known_build, sizeof known_build) == 0;
        at = text + (note.n_descsz + 3u) / 4 * 4;
    }
    return false;
}

// dl_iterate_phdr's callback: stops at the object that holds the function.
static int inspect_object(struct dl_phdr_info *object, size_t bytes, void *data) {
    struct library_build *build = data;
    bool inside = false, known = false;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        const uintptr_t start = object->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_LOAD)
            inside = inside || (build->function >= start && build->function - start < part->p_memsz);
        if (part->p_type == PT_NOTE) known = known || has_known_id((const uint8_t *)start, part->p_memsz);
    }
    build->known = inside && known;
    build->base = object->dlpi_addr;
    return inside;
}

static struct library_build identify_build(const struct libenv_library *library) {
    struct library_build build = {.function = (uintptr_t)library->act};
    dl_iterate_phdr(inspect_object, &build);
    return build;
}

static void *load_word(const void *object, size_t offset) {
    void *word;
    memcpy(&word, (const uint8_t *)object + offset, sizeof word);
    return word;
}

// ---- lean images ----

// lean/ beside assets/ (tools/build/procgen.sh) has one pixel for each background; backgrounds.raw has their pixels.
static const char lean_magic[] = "procgen pictures";
#define LEAN_IS_WRONG                                                                                                  \
    "%s is not made for Procgen's library beside it: remove it and run %s in actorfarm's source folder"

struct lean_picture {
    uint32_t group, index, width, height; // index within one of group_addresses
    uint64_t offset;                      // in the file, which has 4 bytes per pixel
};

struct lean_head {
    char magic[16];
    uint64_t count;
    struct lean_picture pictures[];
};

static bool is_valid_lean(const struct lean_head *head, size_t bytes) {
    if (bytes < sizeof *head || memcmp(head->magic, lean_magic, sizeof head->magic) != 0) return false;
    if (head->count > (bytes - sizeof *head) / sizeof head->pictures[0]) return false;
    for (uint64_t i = 0; i < head->count; i++) {
        const struct lean_picture *picture = &head->pictures[i];
        if (picture->group >= GROUPS || !picture->width || picture->width > INT16_MAX || !picture->height ||
            picture->height > INT16_MAX || picture->offset > bytes || picture->offset % 4 != 0 ||
            (uint64_t)picture->width * picture->height > (bytes - picture->offset) / 4)
            return false;
    }
    return true;
}

// Stays mapped until the process ends, like the library. NULL if the file is missing or invalid.
static const struct lean_head *map_lean(const char *path) {
    struct stat status;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return NULL;
    void *head = MAP_FAILED;
    if (fstat(fd, &status) == 0 && status.st_size > 0)
        head = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (head == MAP_FAILED) return NULL;
    if (is_valid_lean(head, (size_t)status.st_size)) return head;
    munmap(head, (size_t)status.st_size);
    return NULL;
}

// A group is a std::vector<std::shared_ptr<QImage>>: its first two words point to the begin and the end of word pairs.
static size_t count_pictures(uintptr_t base, uint32_t group) {
    const void *vector = (const void *)(base + group_addresses[group]);
    return ((uintptr_t)load_word(vector, 8) - (uintptr_t)load_word(vector, 0)) / 16;
}

// The picture's data in the library; NULL if it has no such picture.
static struct qimage_data *find_picture(uintptr_t base, const struct lean_picture *picture) {
    if (picture->index >= count_pictures(base, picture->group)) return NULL;
    const void *pairs = load_word((const void *)(base + group_addresses[picture->group]), 0);
    return load_word(load_word(pairs, 16 * (size_t)picture->index), QIMAGE_DATA);
}

// Whether the library has as many pictures as the file, each of one pixel of 32 bits, as in lean/.
static bool match_pictures(uintptr_t base, const struct lean_head *head) {
    size_t pictures = 0;
    for (uint32_t group = 0; group < GROUPS; group++) pictures += count_pictures(base, group);
    for (uint64_t i = 0; i < head->count; i++) {
        const struct qimage_data *data = find_picture(base, &head->pictures[i]);
        if (!data || data->width != 1 || data->height != 1 || data->depth != 32 || data->bytes != 4) return false;
    }
    return head->count == pictures;
}

static void replace_pictures(uintptr_t base, const struct lean_head *head) {
    for (uint64_t i = 0; i < head->count; i++) {
        const struct lean_picture *picture = &head->pictures[i];
        struct qimage_data *data = find_picture(base, picture);
        if (data->flags & 1) free(data->pixels); // a picture in two groups may already have its pixels
        data->pixels = (uint8_t *)(uintptr_t)head + picture->offset;
        data->width = (int32_t)picture->width;
        data->height = (int32_t)picture->height;
        data->row_bytes = 4 * (int64_t)picture->width;
        data->bytes = data->row_bytes * picture->height;
        data->flags = (uint8_t)((data->flags & ~1u) | 2u);
    }
}

static bool fill_settings(struct libenv_settings *settings, const struct game *game, const struct choices *choices,
                          const char *images, uint64_t seed) {
    bool room = libenv_set_text(settings, "env_name", game->name) &&
                libenv_set_text(settings, "resource_root", images) &&
                libenv_set_int(settings, "num_levels", choices->num_levels) &&
                libenv_set_int(settings, "start_level", choices->start_level) &&
                libenv_set_int(settings, "distribution_mode", choices->mode) &&
                libenv_set_int(settings, "rand_seed", (int32_t)((seed ^ seed >> 32) & INT32_MAX)) &&
                libenv_set_int(settings, "num_actions", ACTIONS) && libenv_set_int(settings, "num_threads", 0) &&
                libenv_set_int(settings, "debug_mode", 0) && libenv_set_bool(settings, "render_human", false);
    for (size_t i = 0; room && i < SWITCHES; i++)
        room = libenv_set_bool(settings, switch_names[i], choices->switches[i]);
    return room;
}

// Makes and closes an environment with lean/ as its folder: the library loads images with a process's first one.
static bool load_lean(const struct libenv_library *library, uintptr_t base, const struct game *game, const char *folder,
                      const struct lean_head *head, struct libenv_error error) {
    struct libenv_settings settings = {0};
    const struct choices choices = {.mode = HARD};
    const bool room = fill_settings(&settings, game, &choices, folder, 0);
    if (room) library->close(library->make(1, (struct libenv_options){settings.items, settings.count}));
    libenv_settings_free(&settings);
    if (!room) return libenv_fail(error, "no memory for an environment");
    if (!match_pictures(base, head)) return libenv_fail(error, LEAN_IS_WRONG, folder, fetch_command());
    replace_pictures(base, head);
    return true;
}

// Does nothing if images are loaded, the build is unknown or lean/ is missing: then the library loads all images.
static bool prepare_images(const struct place *place, const struct libenv_library *library, const struct game *game,
                           struct libenv_error error) {
    static const struct lean_picture first = {0};
    char folder[PATH_BYTES], path[PATH_BYTES];
    const int stem = (int)(strlen(place->images) - strlen("assets/"));
    const struct library_build build = identify_build(library);
    if (!build.known || snprintf(folder, sizeof folder, "%.*slean/", stem, place->images) >= PATH_BYTES) return true;
    const struct qimage_data *loaded = find_picture(build.base, &first);
    if (loaded) return loaded->width > 1 || libenv_fail(error, LEAN_IS_WRONG, folder, fetch_command());
    const struct lean_head *head = join(path, folder, "backgrounds.raw") ? map_lean(path) : NULL;
    return !head || load_lean(library, build.base, game, folder, head, error);
}

// ---- the game's buffer ----

// The word that holds the address of the game's observation; NULL for an unknown build.
static void **find_obs_address(const struct libenv_env *env) {
    if (!identify_build(&env->library).known) return NULL;
    void *game = load_word(load_word(env->handle, VECGAME_GAMES), 0);
    void **address = load_word(game, GAME_OBS_BUFFERS);
    return *address == env->obs[0] ? address : NULL;
}

// ---- one environment ----

struct procgen_env {
    struct libenv_env libenv;
    void **obs_address; // see find_obs_address
};

static void procgen_describe(struct farm_env_spec *spec) {
    memset(spec, 0, sizeof *spec);
    spec->obs_count = 1;
    spec->obs[0] = (struct farm_field_spec){
        .name = "rgb", .dtype = FARM_U8, .rank = 3, .dims = {OBS_SIZE, OBS_SIZE, OBS_CHANNELS}};
    spec->action = (struct farm_action_spec){.kind = FARM_ACTION_DISCRETE, .dims = 1, .sizes = {ACTIONS}};
    spec->frames_per_step = 1;
}

static bool open_env(struct procgen_env *env, const struct game *game, const struct farm_env_config *config,
                     struct libenv_error error) {
    struct choices choices;
    struct place place;
    struct farm_env_spec spec, wanted;
    if (!read_choices(game, config, &choices, error)) return false;
    if (!find_library(choices.lib, &place, error)) return false;
    if (!libenv_open(place.library, &env->libenv.library, error)) return false;
    if (!prepare_images(&place, &env->libenv.library, game, error)) return false;
    if (!fill_settings(&env->libenv.settings, game, &choices, place.images, config->seed))
        return libenv_fail(error, "no memory for an environment");
    if (!libenv_env_make(&env->libenv, true, &spec, error)) return false;
    procgen_describe(&wanted);
    if (memcmp(&spec, &wanted, sizeof spec) != 0)
        return libenv_fail(error, "%s has other observations or actions than Procgen", place.library);
    env->obs_address = find_obs_address(&env->libenv);
    return true;
}

static void procgen_destroy(void *env) {
    struct procgen_env *own = env;
    libenv_env_close(&own->libenv);
    free(own);
}

static void *procgen_create(const struct game *game, const struct farm_env_config *config, struct libenv_error error) {
    struct procgen_env *env = calloc(1, sizeof *env);
    if (!env) libenv_fail(error, "no memory for an environment");
    if (env && open_env(env, game, config, error)) return env;
    if (env) procgen_destroy(env);
    return NULL;
}

// Loads the library without the images.
static int procgen_spec(const struct game *game, const struct farm_env_config *config, struct farm_env_spec *spec,
                        struct libenv_error error) {
    struct choices choices;
    struct place place;
    struct libenv_library library;
    if (!read_choices(game, config, &choices, error)) return -1;
    if (!find_library(choices.lib, &place, error)) return -1;
    if (!libenv_open(place.library, &library, error)) return -1;
    procgen_describe(spec);
    return 0;
}

static uint32_t procgen_step(void *env, const void *action, void *const *obs, float *reward) {
    struct procgen_env *own = env;
    if (!own->obs_address) {
        const uint32_t answer = libenv_env_act(&own->libenv, action, reward);
        libenv_env_copy(&own->libenv, obs);
        return answer;
    }
    *own->obs_address = obs[0];
    const uint32_t answer = libenv_env_act(&own->libenv, action, reward);
    *own->obs_address = own->libenv.obs[0];
    if (answer) memcpy(own->libenv.obs[0], obs[0], own->libenv.obs_bytes[0]); // for the next reset
    return answer;
}

// In mid-episode, action -1 makes Procgen end the episode.
static void procgen_reset(void *env, void *const *obs) {
    struct procgen_env *own = env;
    if (!own->libenv.at_start) {
        const int32_t leave = LEAVE_EPISODE;
        float ignored;
        procgen_step(env, &leave, obs, &ignored);
        own->libenv.at_start = false;
        return;
    }
    libenv_env_reset(&own->libenv, obs);
}

// ---- the 16 entries: spec() and create() have no parameter for the environment, so each has its own ----

#define GAME_FUNCTIONS(game, ...)                                                                                      \
    static int spec_##game(const struct farm_env_config *config, struct farm_env_spec *spec, char *error, size_t n) {  \
        return procgen_spec(&games[GAME_##game], config, spec, (struct libenv_error){error, n});                       \
    }                                                                                                                  \
    static void *create_##game(const struct farm_env_config *config, char *error, size_t n) {                          \
        return procgen_create(&games[GAME_##game], config, (struct libenv_error){error, n});                           \
    }
GAME_LIST(GAME_FUNCTIONS)

#define GAME_API(game, extreme, memory, level, text)                                                                   \
    {FARM_ENV_ABI_VERSION, sizeof(struct farm_env_api),                                                                \
     "procgen/" #game,     text,                                                                                       \
     spec_##game,          create_##game,                                                                              \
     procgen_destroy,      procgen_reset,                                                                              \
     procgen_step,         .render = NULL},
static const struct farm_env_api apis[GAMES] = {GAME_LIST(GAME_API)};

FARM_ENV_EXPORT const struct farm_env_api *farm_env_at(size_t index) {
    return index < GAMES ? &apis[index] : NULL;
}
