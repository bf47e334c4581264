// A small environment with one fault, for the tests of plug-ins in `farm train` and `farm doctor`. Option `fault`
// selects it ("none": no fault), `at` its step in an episode (5; a reward at 0: at every step), `while_there` a file
// whose removal ends it. Episodes of 20 steps. -DDOCTOR: a second field, one environment; -DRARE: many actions, the
// last of which is rarely drawn; -DABI=99, -DNO_ENTRY, -DNO_STEP: plug-ins that cannot be opened; -DEARLY: dies while
// it is loaded.
#include <farm/env.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#ifdef RARE
enum { ACTIONS = 1000 };
#else
enum { ACTIONS = 6 };
#endif
#ifdef DOCTOR
enum { FIELDS = 2 };
#else
enum { FIELDS = 1 };
#endif
#ifndef ABI
#define ABI FARM_ENV_ABI_VERSION
#endif
enum { CELLS = 50, LENGTH = 20, LATE = 1000, LEVELS = 64 };

struct rogue {
    uint64_t random;
    int position, steps, all_steps;
    float *kept;
    float *own; // [CELLS]
};

// Shared by all instances, as their options are.
static char fault[32], while_there[256];
static int at, shared_state, spec_calls;
static void *volatile lost;

static bool is(const char *name) {
    return strcmp(fault, name) == 0;
}

static const char *find_option(const struct farm_env_config *config, const char *key, const char *otherwise) {
    for (size_t i = 0; i < config->option_count; i++)
        if (strcmp(config->options[i].key, key) == 0) return config->options[i].value;
    return otherwise;
}

static void crash(void) {
    *(volatile int *)8 = 1;
}

static uint32_t draw(struct rogue *env, uint32_t n) {
    if (is("rand")) return (uint32_t)rand() % n;
    env->random = env->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((env->random >> 33) % n);
}

// Prints what of it worked.
static void escape(void) {
    const struct sockaddr_in there = {
        .sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char home[256], memory[64], line[128] = "escapes:";
    snprintf(home, sizeof home, "%s/escaped", getenv("HOME"));
    snprintf(memory, sizeof memory, "/proc/%d/mem", (int)getppid());
    if (open(home, O_WRONLY | O_CREAT, 0600) >= 0) strcat(line, " home");
    if (open("r/escaped", O_WRONLY | O_CREAT, 0600) >= 0) strcat(line, " run");
    if (open(memory, O_RDWR) >= 0) strcat(line, " memory");
    if (connect(socket(AF_INET, SOCK_DGRAM, 0), (const struct sockaddr *)&there, sizeof there) == 0)
        strcat(line, " network");
    if (kill(getppid(), 0) == 0) strcat(line, " kill");
    if (system("echo >>r/escaped") == 0) strcat(line, " program");
    fprintf(stderr, "%s.\n", line);
}

static void spoil_spec(struct farm_env_spec *spec) {
    if (is("spec_dims")) spec->obs[0].dims[0] = 1u << 30;
    if (is("spec_fields")) spec->obs_count = 1000;
    if (is("spec_actions")) spec->action.sizes[0] = 0;
    if (is("spec_rank")) spec->obs[0].rank = 77;
    if (is("spec_name")) memset(spec->obs[0].name, 'x', sizeof spec->obs[0].name);
    if (is("spec_noise")) memset(spec->obs[0].name + 6, getpid() & 0x7f, 8); // behind the name's end
    if (is("spec_noise")) spec->action.low[3] = (float)getpid();
    if (is("choices") || is("spec_choices")) spec->obs[0].dtype = FARM_I32, spec->obs[0].choices = 2;
    if (is("spec_choices")) spec->obs[0].choices = 30000; // 1.5 million numbers one-hot
    if (is("mask")) spec->action.sizes[0] = 3, snprintf(spec->obs[1].name, sizeof spec->obs[1].name, "action_mask");
    if (is("spec_crash")) crash();
    if (is("spec_exit")) fprintf(stderr, "no licence\n"), exit(0);
    if (is("spec_hang")) sleep(1000);
    if (is("spec_escapes")) escape(), exit(0); // before the run
    if (is("spec_changes")) spec->obs[0].dims[0] += (uint32_t)spec_calls++;
}

static int rogue_spec(const struct farm_env_config *config, struct farm_env_spec *spec, char *error,
                      size_t error_bytes) {
    snprintf(fault, sizeof fault, "%s", find_option(config, "fault", "none"));
    snprintf(while_there, sizeof while_there, "%s", find_option(config, "while_there", ""));
    at = atoi(find_option(config, "at", "5"));
    for (size_t i = 0; i < config->option_count && !is("options"); i++)
        if (!strstr("fault at while_there", config->options[i].key)) {
            snprintf(error, error_bytes, is("no_message") ? "" : "rogue has no option %s", config->options[i].key);
            return -1;
        }
    *spec = (struct farm_env_spec){
        .obs_count = FIELDS,
        .obs[0] = {.name = "cells", .dtype = FARM_F32, .rank = 1, .dims = {CELLS}},
        .obs[1] = {.name = "clock", .dtype = FARM_U8, .rank = 1, .dims = {3}},
        .action = {.kind = FARM_ACTION_DISCRETE, .dims = 1, .sizes = {ACTIONS}},
        .frames_per_step = 1,
    };
    spoil_spec(spec);
    return 0;
}

static void *rogue_create(const struct farm_env_config *config, char *error, size_t error_bytes) {
    struct rogue *env = calloc(1, sizeof *env);
    struct farm_env_spec spec;
    if (is("escapes")) escape();
    if (!env || rogue_spec(config, &spec, error, error_bytes)) return NULL;
    env->random = is("same_for_all") ? 3 : is("time") ? (uint64_t)time(NULL) : config->seed;
    env->own = calloc(CELLS, sizeof *env->own);
    const bool mended = while_there[0] && access(while_there, F_OK) != 0;
    if ((is("create") && !mended) || (is("no_second") && shared_state++)) {
        snprintf(error, error_bytes, is("create") ? "the moon is not full" : "there can be only one");
        return NULL;
    }
    if (is("descriptor") && open("/dev/null", O_RDONLY) < 0) return NULL;
    return env;
}

static void rogue_destroy(void *self) {
    struct rogue *env = self;
    if (!is("leak")) free(env->own);
    free(env);
}

// Each level is loaded at its first episode, and kept.
static void load_level(uint32_t level) {
    static void *loaded[LEVELS];
    if (!loaded[level]) loaded[level] = malloc(1 << 20);
    usleep(1000);
}

// 50 MB in a second.
static void grow(void) {
    static double begin_s, grown_mb;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const double now_s = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    if (begin_s == 0) begin_s = now_s;
    for (; grown_mb < 50 * (now_s - begin_s); grown_mb += 0.1) lost = memset(malloc(100000), 1, 100000);
}

static void write_observation(struct rogue *env, void *const *obs) {
    float *cells = obs[0];
    const float before = cells[7];
    const bool now = env->steps == at;
    if (is("kept_pointer") && env->kept) env->kept[3] = 1;
    if (is("previous") && env->kept && env->steps > 1) env->position += env->kept[0] > 5;
    if (!is("unwritten")) memset(cells, 0, CELLS * sizeof *cells);
    if (!is("constant")) cells[env->position] = 1;
    if (is("unwritten")) cells[1] = 0;
    if (is("reads_old")) cells[7] = before == 0 ? 2 : 3;
    if (is("past") || (is("past_once") && now)) cells[CELLS] += 1;
    if (is("before") || (is("before_once") && now)) cells[-1] += 1;
    if (is("obs_nan") && now) cells[9] = NAN;
    if (is("choices")) memcpy(&cells[env->position], &(int32_t){1}, sizeof *cells);
    if (is("choices") && now) memcpy(&cells[9], &(int32_t){77}, sizeof *cells);
    if (is("slow")) usleep(9000);
    if (is("grows_slowly")) usleep(1000), lost = malloc(100000);
    if (is("grows_at_ends") && !env->steps) lost = malloc(1000);
    if (is("history"))
        env->own = realloc(env->own, (CELLS + 1000 * (size_t)env->steps) * sizeof *env->own), usleep(1000);
    if (is("loads_levels") && !env->steps) load_level(draw(env, LEVELS));
    if (is("grows")) lost = memset(malloc(64), 1, 64);
    if (is("grows_fast")) grow();
    env->kept = cells;
    if (FIELDS == 1) return;
    uint8_t *clock = obs[1];
    clock[0] = is("constant") ? 0 : (uint8_t)env->steps;
    clock[1] = 0;
    if (!is("unwritten_byte")) clock[2] = 0;
    if (is("past_second")) clock[3] = 1;
    if (is("mask")) clock[0] = 0, clock[1] = !now; // permits choice 1, or none
}

static void rogue_reset(void *self, void *const *obs) {
    struct rogue *env = self;
    if (!is("stale")) env->steps = 0;
    env->position = (int)draw(env, CELLS);
    write_observation(env, obs);
    if (is("reset_crash")) crash();
    if (is("reset_hang")) sleep(1000);
}

static int recurse(int depth) {
    volatile char room[4096];
    room[depth % 4096] = 1;
    return recurse(depth + 1) + room[0];
}

static void misbehave(struct rogue *env, const void *action, int32_t chosen) {
    if (is("index")) env->own[(ptrdiff_t)chosen * CELLS / ACTIONS] += 1;
    if (is("action")) *(int32_t *)(uintptr_t)action = 0;
    if (is("mask") && chosen != 1 && env->steps != at + 1) crash();
    if (is("action_crash") && chosen == ACTIONS - 1) crash();
    if (is("late_crash") && env->all_steps++ == LATE) crash();
    if (is("late_hang") && env->all_steps++ == LATE) sleep(1000);
    if (is("shared")) env->position = (env->position + shared_state++ % 7) % CELLS;
    if (env->steps != at) return;
    for (int i = 0; i < 300 && is("lies"); i++)
        fprintf(stderr, "farm: %s\n", i ? "error: a lie" : "frame 0x1 @/dev/tty");
    if (is("segfault") || is("lies")) crash();
    if (is("recursion")) env->position = recurse(0) % CELLS;
    if (is("abort")) fprintf(stderr, "the board is inconsistent\n"), abort();
    if (strncmp(fault, "exit", 4) == 0) exit(atoi(fault + 4));
    if (is("_exit3")) _exit(3);
    while (is("hang") && (!while_there[0] || access(while_there, F_OK) == 0)) usleep(1000);
    if (is("prints")) printf("{\"this\": is no JSON\n");
}

static uint32_t rogue_step(void *self, const void *action, void *const *obs, float *reward) {
    struct rogue *env = self;
    int32_t chosen;
    memcpy(&chosen, action, sizeof chosen);
    env->steps++;
    misbehave(env, action, chosen);
    env->position = (env->position + (chosen & INT32_MAX)) % CELLS;
    write_observation(env, obs);
    if (!is("no_reward")) *reward = (float)chosen;
    if ((env->steps == at || !at) && (is("reward_nan") || is("reward_infinite")))
        *reward = is("reward_nan") ? NAN : INFINITY;
    if (env->steps == at && is("answer")) return FARM_STEP_LAST | FARM_STEP_TERMINATED;
    if (is("endless") || env->steps < LENGTH) return 0;
    return FARM_STEP_TERMINATED | (is("no_game_end") ? 0 : FARM_STEP_GAME_END);
}

#ifdef EARLY
__attribute__((constructor)) static void die_while_loaded(void) {
    abort();
}
#endif

#ifdef NO_STEP
#define rogue_step NULL
#endif
#ifdef NO_ENTRY
#define farm_env_at farm_env_other
#endif
FARM_ENV_EXPORT const struct farm_env_api *farm_env_at(size_t index) {
    static struct farm_env_api apis[] = {
        {ABI, sizeof(struct farm_env_api), FIELDS == 2 ? "test/broken" : "rogue/first", "has the fault of its option",
         rogue_spec, rogue_create, rogue_destroy, rogue_reset, rogue_step, NULL, NULL},
        {ABI, sizeof(struct farm_env_api), "rogue/second", "has the fault of its option", rogue_spec, rogue_create,
         rogue_destroy, rogue_reset, rogue_step, NULL, NULL}};
    return index < (FIELDS == 2 ? 1 : 2) ? &apis[index] : NULL;
}
