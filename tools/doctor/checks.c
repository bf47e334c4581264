// See checks.h.
#include "tools/doctor/checks.h"

#include <ctype.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "actor/group.h"
#include "base/format.h"
#include "base/number.h"
#include "base/time.h"
#include "kernels/head.h"
#include "shm/heap.h"
#include "tools/doctor/python.h"

enum {
    SEED = 1,
    ACTION_SEED = 7,
    SEEDS_TRIED = 4,
    EPISODES_COMPARED = 4,  // each of one step, after a longer first one: reset() does not start anew
    CHOICES_TRIED_MAX = 64, // values of one action dimension, both ends included
    INSTANCES_MAX = 10000,  // creations and destructions over which memory is watched
    INSTANCES_MIN = 8,      // fewer give no result
    GROWTH_GROUPS = 4,
    GROWTH_RESETS_MIN = 2 * GROWTH_GROUPS,
    GROWTH_SAMPLES_MAX = 8192,
    GROWTH_BYTES_MAX = 512 << 20, // that a check lets an environment take
    LEAK_BYTES_MIN = 16,          // an instance
    LEAK_TOTAL_BYTES = 192 << 10, // less may be the allocator's
    MANY = 64,                    // instances stepped in turn for the speed
    RACES = 3,                    // between one instance and many, interleaved: the fastest counts
    SLOWDOWN_NOTED = 3,           // many instances' time against one's
    ABOUT_BYTES_MAX = 200,
};

#define good(trial, ...)        trial_report_finding((trial)->report, TRIAL_GOOD, NULL, __VA_ARGS__)
#define note(trial, mend, ...)  trial_report_finding((trial)->report, TRIAL_NOTE, mend, __VA_ARGS__)
#define fault(trial, mend, ...) trial_report_finding((trial)->report, TRIAL_BROKEN, mend, __VA_ARGS__)

typedef unsigned long long ull; // for printf

// The advice for the environment's language.
static const char *advice(const struct trial *trial, const char *c, const char *python) {
    return trial->request->python ? python : c;
}

// ---- names and spec ----

static bool name_is_valid(const char *name) {
    if (!name || !name[0] || strlen(name) >= TRIAL_NAME_BYTES) return false;
    while (isgraph((unsigned char)*name) && *name != ':') name++;
    return !*name;
}

// Adds one environment to the list. False: the report has the reason.
static bool list_one(struct trial *trial, const char *path, const char *name) {
    struct trial_report *report = trial->report;
    struct farm_plugin plugin;
    struct farm_error err;
    if (farm_plugin_open(path, name, &plugin, &err)) {
        fault(trial, NULL, "%s", err.message);
        return false;
    }
    if (strlen(plugin.api->about) > ABOUT_BYTES_MAX || strchr(plugin.api->about, '\n'))
        note(trial, "lists of environments have room for one short line",
             "%.64s: `about` is longer than %d bytes or a line", name, ABOUT_BYTES_MAX);
    for (size_t i = 0; i < report->name_count; i++)
        if (strcmp(report->names[i], name) == 0) {
            fault(trial, "give each environment a different name", "two environments have the name %s", name);
            return false;
        }
    snprintf(report->names[report->name_count++], TRIAL_NAME_BYTES, "%s", name);
    return true;
}

void doctor_list(const struct trial_request *request, struct trial_report *report) {
    struct trial trial = {.request = request, .report = report};
    const struct farm_env_api *api;
    struct farm_error err;
    trial_enter(&trial, TRIAL_LOAD, 0);
    if (farm_plugin_open(request->path, NULL, &trial.plugin, &err)) {
        fault(&trial, NULL, "%s", err.message);
        return;
    }
    trial_enter(&trial, TRIAL_AT, 0);
    for (size_t i = 0; (api = farm_plugin_env_at(&trial.plugin, i)); i++) {
        trial_leave(&trial);
        const char *wrong = i == TRIAL_NAMES_MAX ? "no end: return NULL behind the last environment"
                            : farm_plugin_env_at(&trial.plugin, i) != api
                                ? "another result at the second call: return a constant"
                            : !name_is_valid(api->name) ? "a name has 1 to 63 characters, no spaces, no colons"
                                                        : NULL;
        if (wrong) fault(&trial, NULL, "farm_env_at(%zu): %s", i, wrong);
        if (wrong || !list_one(&trial, request->path, api->name)) return;
    }
    if (report->grade == TRIAL_GOOD)
        good(&trial, "%zu environment%s, version %u of the interface", report->name_count,
             report->name_count == 1 ? "" : "s", FARM_ENV_ABI_VERSION);
}

// libenv/any passes unknown options on to a foreign library. Some libraries ignore them, Procgen's ends its process.
// Neither is a fault of libenv/any, so no unknown option is tried.
static bool passes_options_on(const struct trial *trial) {
    return strcmp(trial->plugin.api->name, "libenv/any") == 0;
}

// Whether spec() refuses an unknown option with a sentence that fits. False: the report has the reason.
static bool refuses_unknown_option(struct trial *trial) {
    enum { ERROR_BYTES = 32, UNTOUCHED = 0x7f };
    struct trial_request request = *trial->request;
    struct farm_env_spec spec = {0};
    char why[2 * ERROR_BYTES];
    bool overrun = false;
    memset(why, UNTOUCHED, sizeof why);
    request.options[request.option_count++] = (struct farm_env_option){"no_such_option_here", "1"};
    const struct farm_env_config config = {.options = request.options, .option_count = request.option_count};
    const bool refused = trial->plugin.api->spec(&config, &spec, why, ERROR_BYTES);
    const bool terminated = memchr(why, 0, ERROR_BYTES) != NULL;
    for (size_t i = ERROR_BYTES; i < sizeof why; i++) overrun |= why[i] != UNTOUCHED;
    if (overrun)
        fault(trial, "use snprintf(error, error_bytes, ...)", "spec() writes past error[error_bytes]");
    else if (!refused)
        note(
            trial,
            advice(trial,
                   "go through config->options; for an unknown key, write a sentence to error and return -1: otherwise "
                   "a mistyped --env.KEY is silently ignored (fine if all options are passed on)",
                   "name the constructor's arguments: with **kwargs a mistyped --env.KEY is silently ignored (fine if "
                   "all of them are passed on)"),
            "%s accepts an option that it cannot know", advice(trial, "spec()", "the constructor"));
    else if (!terminated || !why[0])
        fault(trial, "write the reason to error: the user sees only this",
              "spec() refuses an unknown option without a sentence");
    else
        return true;
    return false;
}

static void describe_spec(struct trial *trial) {
    char text[TRIAL_TEXT_BYTES] = "", part[160];
    static const char *const types[] = {"?", "u8", "i32", "f32"};
    const struct farm_env_spec *spec = &trial->spec;
    for (uint32_t f = 0; f < spec->obs_count; f++) {
        const struct farm_field_spec *field = &spec->obs[f];
        size_t used = (size_t)snprintf(part, sizeof part, "%s%s %s", f ? ", " : "", field->name, types[field->dtype]);
        for (uint32_t d = 0; d < field->rank; d++)
            used += (size_t)snprintf(part + used, sizeof part - used, "%s%u", d ? "x" : "[", field->dims[d]);
        used += (size_t)snprintf(part + used, sizeof part - used, "]");
        if (field->choices) snprintf(part + used, sizeof part - used, " of %u choices", field->choices);
        strncat(text, part, sizeof text - strlen(text) - 1);
    }
    const struct farm_action_spec *action = &spec->action;
    if (action->kind == FARM_ACTION_DISCRETE)
        snprintf(part, sizeof part, "%u actions", action->sizes[0]);
    else
        snprintf(part, sizeof part, "%u %s action%s", action->dims,
                 action->kind == FARM_ACTION_CONTINUOUS ? "continuous" : "discrete", action->dims == 1 ? "" : "s");
    if (spec->agents > 1) snprintf(part + strlen(part), sizeof part - strlen(part), "; %u agents", spec->agents);
    if (passes_options_on(trial))
        note(trial, "the library decides about a mistyped --env.KEY: it may ignore it, or end the actor",
             "%.300s; %s; options are passed on to the library: an unknown one was not tried", text, part);
    else
        good(trial, "%.380s; %s", text, part);
}

static void check_spec(struct trial *trial) {
    const struct trial_request *request = trial->request;
    struct farm_env_spec again;
    const enum farm_status status =
        farm_plugin_spec(trial->plugin.api, request->options, request->option_count, &again, NULL);
    trial_leave(trial);
    if (status || memcmp(&again, &trial->spec, sizeof again) != 0)
        fault(trial, "spec() must depend on config->options alone: many processes call it, all must agree",
              "spec() gives something else at the second call");
    else if (passes_options_on(trial) || refuses_unknown_option(trial))
        describe_spec(trial);
}

// ---- that it runs at all ----

static bool make_player(struct trial_player *player, struct trial *trial, uint64_t seed) {
    return trial_player_make(player, trial, TRIAL_PLAIN, seed, ACTION_SEED);
}

static size_t count_entries(const char *folder) {
    DIR *directory = opendir(folder);
    size_t count = 0;
    while (directory && readdir(directory)) count++;
    if (directory) closedir(directory);
    return count;
}

static void check_runs(struct trial *trial) {
    struct trial_player one, two;
    const size_t threads = count_entries("/proc/self/task");
    if (!make_player(&one, trial, SEED) || !make_player(&two, trial, SEED + 1)) return;
    one.begin_ns = two.begin_ns;
    while (trial_player_continues(&one)) {
        trial_player_call(&one);
        trial_player_call(&two);
    }
    const double ms = (double)(farm_now_ns() - one.begin_ns) / 1e6;
    const size_t more = count_entries("/proc/self/task") - threads;
    trial_player_destroy(&one);
    trial_player_destroy(&two);
    if (more)
        note(trial, "each actor is pinned to one core: threads of an environment compete for it",
             "%llu calls of two instances; they start %zu thread%s", (ull)(one.calls + two.calls), more,
             more == 1 ? "" : "s");
    else
        good(trial, "two instances, %llu calls in %.3g ms", (ull)(one.calls + two.calls), ms);
}

// ---- memory ----

static void play_guarded(struct trial *trial, enum trial_memory kind, const char *found) {
    struct trial_player player;
    if (!trial_player_make(&player, trial, kind, SEED, ACTION_SEED)) return;
    while (trial_player_continues(&player)) trial_player_call(&player);
    good(trial, "%s (%llu calls)", found, (ull)player.calls);
}

static void check_behind(struct trial *trial) {
    play_guarded(trial, TRIAL_GUARD_BEHIND, "no access behind observations, reward and action");
}

static void check_before(struct trial *trial) {
    play_guarded(trial, TRIAL_GUARD_BEFORE, "no access before them");
}

static void check_pointers(struct trial *trial) {
    play_guarded(trial, TRIAL_MOVING, "no pointer of an earlier call is used");
}

// Compares what two equal instances wrote into field f, over memory filled differently. False: reported.
static bool compare_field(struct trial *trial, struct trial_player *one, struct trial_player *two, uint32_t f) {
    const uint8_t *a = trial_player_field(one, f), *b = trial_player_field(two, f);
    const char *call = trial_call_name(one->was_reset ? TRIAL_RESET : TRIAL_STEP);
    const char *name = trial->report->field_names[f];
    const ull number = one->calls;
    size_t unwritten = 0, differ = 0, first = 0;
    for (size_t i = trial->bytes[f]; i-- > 0;) {
        unwritten += a[i] == (uint8_t)one->fill && b[i] == (uint8_t)two->fill;
        differ += a[i] != b[i];
        if (a[i] != b[i]) first = i;
    }
    if (!differ) return true;
    if (f == trial->reward)
        fault(trial, "set *reward at every step, also to 0", "call %llu, %s: %s", number, call,
              unwritten ? "*reward is not written" : "the reward depends on the memory's earlier content");
    else if (unwritten)
        fault(trial,
              "write the whole field at every call (memset it first): the memory is a slot of the ring with an old "
              "step's data, not your last observation",
              "call %llu, %s: %zu of %zu bytes of field '%s' are not written, the first at byte %zu", number, call,
              unwritten, trial->bytes[f], name, first);
    else
        fault(trial,
              "the memory has an old step's data, not your last observation: keep what you need in the environment",
              "call %llu, %s: field '%s' depends on the memory's earlier content (%zu bytes, the first at %zu)", number,
              call, name, differ, first);
    return false;
}

// Plays two equal instances whose memory is filled with different bytes. False: the report has the difference.
static bool play_filled(struct trial *trial, int fill_one, int fill_two) {
    struct trial_player one, two;
    if (!make_player(&one, trial, SEED) || !make_player(&two, trial, SEED)) return false;
    one.fill = fill_one;
    two.fill = fill_two;
    while (trial_player_continues(&one)) {
        trial_player_call(&one);
        trial_player_call(&two);
        for (uint32_t f = 0; f < trial->reward + (one.was_reset ? 0 : 1); f++)
            if (!compare_field(trial, &one, &two, f)) return false;
        if (one.answer == two.answer) continue;
        fault(trial, "the memory may hold anything: do not read it before writing",
              "call %llu: the answer, 0x%x or 0x%x, depends on the memory's earlier content", (ull)one.calls,
              one.answer, two.answer);
        return false;
    }
    good(trial, "every byte of every observation and reward is written (%llu calls)", (ull)one.calls);
    return true;
}

static void check_fills(struct trial *trial) {
    if (play_filled(trial, 0xAA, 0x55)) play_filled(trial, 0x00, 0xFF);
}

// ---- seeds ----

struct moment { // the results of one call
    uint64_t obs;
    uint32_t reward, answer;
};

struct trace {
    uint64_t calls;
    struct moment *moments; // [steps_max]
};

// FNV-1a over 8 bytes at a time, the rest by one.
static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t count) {
    const uint8_t *data = bytes;
    for (; count >= 8; count -= 8, data += 8) {
        uint64_t word;
        memcpy(&word, data, sizeof word);
        hash = (hash ^ word) * 0x100000001b3ull;
        hash ^= hash >> 32;
    }
    for (; count; count--, data++) hash = (hash ^ *data) * 0x100000001b3ull;
    return hash;
}

static struct moment call_and_record(struct trial_player *player) {
    struct moment moment = {.obs = 0xcbf29ce484222325ull};
    trial_player_call(player);
    for (uint32_t f = 0; f < player->trial->reward; f++)
        moment.obs = hash_bytes(moment.obs, trial_player_field(player, f), player->trial->bytes[f]);
    moment.reward = (uint32_t)hash_bytes(1, player->rewards, player->trial->spec.agents * sizeof(float));
    moment.answer = player->answer;
    return moment;
}

// Plays an instance of SEED for exactly that many calls, or (0) a pass. False: the report has the reason.
static bool record_trace(struct trial *trial, uint64_t exactly, struct trace *trace) {
    struct trial_player player;
    trace->moments = calloc(trial->request->steps_max, sizeof *trace->moments);
    if (!trace->moments) abort();
    if (!make_player(&player, trial, SEED)) return false;
    while (exactly ? player.calls < exactly : trial_player_continues(&player)) {
        const struct moment moment = call_and_record(&player);
        trace->moments[player.calls - 1] = moment;
    }
    trace->calls = player.calls;
    return true;
}

static uint64_t hash_trace(const struct trace *trace) {
    return hash_bytes(1, trace->moments, trace->calls * sizeof *trace->moments);
}

// Plays an instance of `seed`, another one between its calls if `accompanied`, and compares it with the trace. Returns
// the first call (from 1) that differs, and *what does; 0: none. False in *made: the report has the reason.
static uint64_t find_difference(struct trial *trial, uint64_t seed, bool accompanied, const struct trace *trace,
                                const char **what, bool *made) {
    struct trial_player player, other;
    *made = make_player(&player, trial, seed) &&
            (!accompanied || trial_player_make(&other, trial, TRIAL_PLAIN, seed + 1, ACTION_SEED + 1));
    while (*made && player.calls < trace->calls) {
        const struct moment *wanted = &trace->moments[player.calls], seen = call_and_record(&player);
        if (accompanied) trial_player_call(&other);
        *what = seen.obs != wanted->obs         ? "observation"
                : seen.reward != wanted->reward ? "reward"
                : seen.answer != wanted->answer ? "answer"
                                                : NULL;
        if (*what) return player.calls;
    }
    return 0;
}

static const char *same_seed_mend(const struct trial *trial) {
    return advice(
        trial,
        "all randomness must come from config->seed, kept in the environment: no rand(), no time(), no "
        "uninitialised or static variables",
        "all randomness must come from reset's seed (super().reset(seed=seed), then self.np_random): no random, "
        "no numpy.random, no time, no state of the module or class");
}

static void check_same_seed(struct trial *trial) {
    struct trace trace;
    const char *what;
    bool made;
    if (!record_trace(trial, 0, &trace)) return;
    trial->report->figures.trace_calls = trace.calls;
    trial->report->figures.trace_hash = hash_trace(&trace);
    const uint64_t differs = find_difference(trial, SEED, false, &trace, &what, &made);
    if (differs)
        fault(trial, same_seed_mend(trial), "two instances of one seed and the same actions: another %s at call %llu",
              what, (ull)differs);
    else if (made)
        good(trial, "the same bytes, rewards and ends under the same seed and actions (%llu calls)", (ull)trace.calls);
}

static void check_instances(struct trial *trial) {
    struct trace alone;
    const char *what;
    bool made;
    if (!record_trace(trial, 0, &alone)) return;
    const uint64_t differs = find_difference(trial, SEED, true, &alone, &what, &made);
    if (differs)
        fault(trial,
              "an actor steps many instances in turn: keep all state in the instance (no static variables, no rand(), "
              "no srand())",
              "another %s at call %llu if a second instance is stepped between", what, (ull)differs);
    else if (made)
        good(trial, "stepped in turn with another, an instance gives the same as alone (%llu calls)", (ull)alone.calls);
}

static void check_other_seeds(struct trial *trial) {
    struct trace trace;
    const char *what;
    bool differs = false, made = record_trace(trial, 0, &trace);
    for (uint64_t seed = SEED + 1; made && !differs && seed < SEED + SEEDS_TRIED; seed++)
        differs = find_difference(trial, seed, false, &trace, &what, &made);
    if (differs)
        good(trial, "other seeds give other episodes");
    else if (made)
        note(
            trial,
            advice(trial,
                   "fine for a game without chance; else draw from config->seed: all environments of a farm would play "
                   "the same",
                   "fine for a game without chance; else draw from self.np_random: all environments of a farm would "
                   "play the same"),
            "%d seeds and the same actions give the same episodes", SEEDS_TRIED);
}

// The trace of check_same_seed again, in another process and another second.
static void check_same_later(struct trial *trial) {
    struct trace trace;
    if (!record_trace(trial, trial->report->figures.trace_calls, &trace)) return;
    if (hash_trace(&trace) == trial->report->figures.trace_hash)
        good(trial, "the same in another process, a second later");
    else
        fault(trial, same_seed_mend(trial),
              "in another process, a second later, the same seed and actions give something else");
}

// ---- episodes and numbers ----

static void check_episodes(struct trial *trial) {
    struct trial_player player;
    uint64_t ends = 0, terminated = 0, truncated = 0, game_ends = 0, steps = 0, first_length = 0, single_steps = 0;
    if (!make_player(&player, trial, SEED)) return;
    while (trial_player_continues(&player)) {
        trial_player_call(&player);
        steps += !player.was_reset;
        if (!farm_group_answer_valid(player.answer)) {
            fault(trial,
                  "return 0, or FARM_STEP_TERMINATED or FARM_STEP_TRUNCATED, either with FARM_STEP_GAME_END; the actor "
                  "sets FIRST and LAST",
                  "step() answers 0x%x at call %llu", player.answer, (ull)player.calls);
            return;
        }
        if (!player.answer) continue;
        if (ends++ == 0) first_length = player.in_episode;
        single_steps += player.in_episode == 1;
        terminated += (player.answer & FARM_STEP_TERMINATED) != 0;
        truncated += (player.answer & FARM_STEP_TRUNCATED) != 0;
        game_ends += (player.answer & FARM_STEP_GAME_END) != 0;
    }
    if (ends > EPISODES_COMPARED && first_length > 1 && single_steps == ends - 1)
        fault(trial, "reset() must restore everything that an episode changes",
              "the first episode lasts %llu steps, each later one a single step: reset() does not start anew",
              (ull)first_length);
    else if (!ends)
        note(trial,
             advice(trial,
                    "fine if random play lasts long (--steps N plays longer); a game without an end should be cut: "
                    "FARM_STEP_TRUNCATED",
                    "fine if random play lasts long (--steps N plays longer); a game without an end should be cut: "
                    "--env.max_episode_steps N"),
             "no episode ended within %llu steps", (ull)steps);
    else if (!game_ends)
        note(trial, "add FARM_STEP_GAME_END to the ends of real games: `episodes` and `return_mean` count only those",
             "%llu episodes in %llu steps, but no FARM_STEP_GAME_END", (ull)ends, (ull)steps);
    else
        good(trial, "%llu in %llu steps, %.3g steps each: %llu terminated, %llu truncated", (ull)ends, (ull)steps,
             (double)steps / (double)ends, (ull)terminated, (ull)truncated);
}

struct range {
    float low, high;
};

static void widen_range(struct range *range, const float *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        range->low = fminf(range->low, values[i]);
        range->high = fmaxf(range->high, values[i]);
    }
}

static void fault_field(struct trial *trial, struct trial_player *player, uint32_t f, size_t element) {
    static const char nan[] = "one NaN makes the network NaN: find its origin (division by 0, sqrt, log)",
                      range[] = "an integer outside the spec's `choices` has no one-hot encoding: correct either";
    const struct farm_field_spec *field = &trial->spec.obs[f];
    const int32_t *whole = (const int32_t *)(const void *)trial_player_field(player, f);
    char what[64] = "NaN, infinite or beyond 1e9";
    if (field->dtype == FARM_I32) snprintf(what, sizeof what, "%d, of %u choices", whole[element], field->choices);
    fault(trial, field->dtype == FARM_I32 ? range : nan, "field '%s', element %zu is %s after %s, call %llu",
          trial->report->field_names[f], element, what, trial_call_name(player->was_reset ? TRIAL_RESET : TRIAL_STEP),
          (ull)player->calls);
}

// False: the report names a senseless number of the last call.
static bool check_call_numbers(struct trial *trial, struct trial_player *player, struct range *reward,
                               struct range *observations) {
    for (uint32_t f = 0; f < trial->reward; f++) {
        const struct farm_field_spec *field = &trial->spec.obs[f];
        const void *values = trial_player_field(player, f);
        const size_t count = farm_field_values(field) * trial->spec.agents,
                     bad = farm_field_find_invalid(field, values, count);
        if (bad < count) {
            fault_field(trial, player, f, bad);
            return false;
        }
        if (field->dtype == FARM_F32) widen_range(observations, values, count);
    }
    const int blocked = player->mask ? farm_head_mask_blocked(&trial->spec.action, player->mask) : -1;
    if (blocked >= 0 && !player->ended) {
        fault(trial, "a mask permits a choice of each action, except in an episode's last observation",
              "'" FARM_HEAD_MASK_NAME "' forbids every choice of action %d at call %llu", blocked, (ull)player->calls);
        return false;
    }
    if (farm_numbers_sensible(player->rewards, trial->spec.agents)) {
        widen_range(reward, player->rewards, trial->spec.agents);
        return true;
    }
    fault(trial, "one NaN makes the network NaN: find its origin (division by 0, sqrt, log)",
          "the reward is NaN, infinite or beyond 1e9 at call %llu", (ull)player->calls);
    return false;
}

static void check_numbers(struct trial *trial) {
    struct trial_player player;
    struct range reward = {0, 0}, observations = {INFINITY, -INFINITY};
    struct moment first = {0};
    bool changed = false;
    if (!make_player(&player, trial, SEED)) return;
    while (trial_player_continues(&player)) {
        const struct moment moment = call_and_record(&player);
        if (player.calls == 1) first = moment;
        changed |= moment.obs != first.obs;
        if (!check_call_numbers(trial, &player, &reward, &observations)) return;
    }
    char seen[64] = "";
    if (observations.low <= observations.high)
        snprintf(seen, sizeof seen, ", observations %.3g to %.3g", (double)observations.low, (double)observations.high);
    if (changed)
        good(trial, "all finite: rewards %.3g to %.3g%s", (double)reward.low, (double)reward.high, seen);
    else
        note(trial, "an agent that sees nothing learns nothing: is the observation written at all?",
             "no observation ever changed in %llu calls", (ull)player.calls);
}

// ---- actions ----

static void name_action(struct trial_player *player, uint32_t dim) {
    const struct farm_action_spec *spec = &player->trial->spec.action;
    const void *place = trial_player_field(player, player->trial->action) + sizeof(float) * (size_t)dim;
    const double value = spec->kind == FARM_ACTION_CONTINUOUS ? (double)*(const float *)place : *(const int32_t *)place;
    char index[16] = "";
    if (spec->dims > 1) snprintf(index, sizeof index, "[%u] =", dim);
    snprintf(player->trial->report->action, sizeof player->trial->report->action, " with action%s %.9g", index, value);
}

static void check_actions(struct trial *trial) {
    struct trial_player player;
    const struct farm_action_spec *action = &trial->spec.action;
    uint64_t taken = 0;
    const enum trial_memory kind = trial->request->writes_outside ? TRIAL_PLAIN : TRIAL_GUARD_BEHIND;
    if (!trial_player_make(&player, trial, kind, SEED, ACTION_SEED)) return;
    for (uint32_t d = 0; d < action->dims; d++) {
        const uint64_t choices = trial_choices(action, d);
        const uint64_t tried = choices < CHOICES_TRIED_MAX ? choices : CHOICES_TRIED_MAX;
        for (uint64_t n = 0; n < tried; n++, taken++) { // evenly spread
            trial->report->action[0] = 0;
            if (player.ended) trial_player_call(&player);
            trial_player_choose(&player, d, (uint32_t)(tried < 2 ? 0 : n * (choices - 1) / (tried - 1)));
            name_action(&player, d);
            trial_player_call(&player);
            if (farm_group_answer_valid(player.answer) && isfinite(player.rewards[0])) continue;
            fault(trial,
                  advice(trial, "the environment must take every action of spec() in every state",
                         "the environment must take every action of action_space in every state"),
                  "step()%s answers 0x%x, reward %g", trial->report->action, player.answer, (double)player.rewards[0]);
            return;
        }
    }
    good(trial, "%llu tried over the whole range", (ull)taken);
}

// ---- leaks ----

static size_t read_resident_bytes(void) {
    unsigned long long total = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file && fscanf(file, "%llu %llu", &total, &resident) != 2) resident = 0;
    if (file) fclose(file);
    return (size_t)resident * (size_t)sysconf(_SC_PAGESIZE);
}

// Replaces the player's instance by new ones, each played a little, up to a limit; returns how many. 0: reported.
static uint64_t replace_instances(struct trial_player *player, uint64_t instances_max, uint64_t budget_ns) {
    const uint64_t begin_ns = farm_now_ns();
    uint64_t instances = 0;
    do {
        trial_player_call(player);
        trial_player_call(player);
        instances++;
        if (!trial_player_renew(player, SEED + instances)) return 0;
    } while (instances < instances_max && farm_now_ns() - begin_ns < budget_ns);
    return instances;
}

static void check_destroy(struct trial *trial) {
    struct trial_player player;
    if (!make_player(&player, trial, SEED)) return;
    if (!replace_instances(&player, INSTANCES_MAX / 4, trial->request->budget_ns / 2)) return;
    const size_t files = count_entries("/proc/self/fd"), bytes = read_resident_bytes();
    const uint64_t instances = replace_instances(&player, INSTANCES_MAX, trial->request->budget_ns);
    if (!instances) return;
    const size_t files_more = count_entries("/proc/self/fd") - files, now = read_resident_bytes();
    const size_t more = now > bytes ? now - bytes : 0;
    if (files_more >= instances)
        note(trial, "destroy() must close what create() and reset() opened",
             "%zu open files are left of %llu instances", files_more, (ull)instances);
    else if (instances >= INSTANCES_MIN && more >= LEAK_TOTAL_BYTES && more / instances >= LEAK_BYTES_MIN)
        note(trial, "destroy() must free what create() and reset() allocated (an actor makes its instances once)",
             "%zu bytes an instance are left behind (%.3g MB of %llu)", more / (size_t)instances, (double)more / 1e6,
             (ull)instances);
    else
        good(trial, "%llu instances made and destroyed, memory %+.3g MB", (ull)instances,
             ((double)now - (double)bytes) / 1e6);
}

// Memory at a moment: what malloc holds, and private mappings (a leak by mmap, or of another malloc). Not resident
// pages: these grow too while an environment first uses what it allocated in create().
enum { MEASURES = 2 };
struct memory_sample {
    uint64_t calls;
    size_t held[MEASURES];
    bool after_reset;
};

struct growth {
    struct memory_sample samples[GROWTH_SAMPLES_MAX];
    size_t count;
    bool after_resets; // judged: memory right after resets only, which excludes what an episode keeps until its end
    size_t bytes;      // found by judge_growth, over `calls` calls
    uint64_t calls;
};

static void sample_memory(struct growth *growth, const struct trial_player *player) {
    const bool python = player->trial->request->python;
    unsigned long long data = 0;
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/statm", (int)(python ? farm_doctor_python_process(player->env) : getpid()));
    FILE *file = fopen(path, "re");
    if (file && fscanf(file, "%*u %*u %*u %*u %*u %llu", &data) != 1) data = 0;
    if (file) fclose(file);
    growth->samples[growth->count++] = (struct memory_sample){
        .calls = player->calls,
        .held = {python ? 0 : farm_heap_malloc_bytes(), (size_t)data * (size_t)sysconf(_SC_PAGESIZE)},
        .after_reset = player->was_reset};
}

// Whether a measure grew steadily in the later half of the calls. Divides this into groups of equally many calls and
// takes the least of each: from group to group it grew, and at the end not less than half as fast as at first, unlike
// what is allocated once, at first uses. A group without a sample leaves it open: true, by 0 bytes.
static bool grows_steadily(struct growth *growth, int measure) {
    const uint64_t all = growth->samples[growth->count - 1].calls, half = all / 2;
    size_t least[GROWTH_GROUPS];
    for (int g = 0; g < GROWTH_GROUPS; g++) least[g] = SIZE_MAX;
    for (size_t i = 0; i < growth->count; i++) {
        const struct memory_sample *sample = &growth->samples[i];
        if (sample->calls <= half || (growth->after_resets && !sample->after_reset)) continue;
        size_t *group = &least[(sample->calls - half - 1) * GROWTH_GROUPS / (all - half)];
        if (sample->held[measure] < *group) *group = sample->held[measure];
    }
    growth->bytes = 0;
    for (int g = 0; g < GROWTH_GROUPS; g++)
        if (least[g] == SIZE_MAX) return true;
    for (int g = 1; g < GROWTH_GROUPS; g++)
        if (least[g] <= least[g - 1]) return false;
    if (2 * (least[GROWTH_GROUPS - 1] - least[GROWTH_GROUPS - 2]) < least[1] - least[0]) return false;
    growth->bytes = least[GROWTH_GROUPS - 1] - least[0];
    growth->calls = (all - half) * (GROWTH_GROUPS - 1) / GROWTH_GROUPS;
    return true;
}

static bool judge_growth(struct growth *growth) {
    const uint64_t half = growth->count ? growth->samples[growth->count - 1].calls / 2 : 0;
    size_t resets = 0;
    for (size_t i = 0; i < growth->count; i++)
        resets += growth->samples[i].calls > half && growth->samples[i].after_reset;
    growth->after_resets = resets >= GROWTH_RESETS_MIN;
    for (int m = 0; m < MEASURES && growth->count; m++)
        if (grows_steadily(growth, m)) return true;
    return false;
}

// Plays until then, with about 256 samples a budget, of these at least 64 whatever episodes do. False: it ended before,
// because memory grew so much that the machine might run out of it.
static bool play_sampled(struct growth *growth, struct trial_player *player, uint64_t end_ns) {
    const uint64_t budget_ns = player->trial->request->budget_ns;
    uint64_t now_ns = farm_now_ns(), sampled_ns = now_ns;
    while (now_ns < end_ns && growth->count < GROWTH_SAMPLES_MAX) {
        trial_player_call(player);
        now_ns = farm_now_ns();
        if (now_ns - sampled_ns < budget_ns / (player->was_reset ? 256 : 64)) continue;
        sample_memory(growth, player);
        sampled_ns = now_ns;
        for (int m = 0; m < MEASURES; m++)
            if (growth->samples[growth->count - 1].held[m] > growth->samples[0].held[m] + GROWTH_BYTES_MAX)
                return false;
    }
    return true;
}

// A sound environment costs one budget. If memory grows, play goes on: first uses end, and episodes free theirs.
static void check_growth(struct trial *trial) {
    static const uint64_t budgets[] = {1, 4, 20};
    static struct growth growth;
    struct trial_player player;
    bool grows = true;
    if (!make_player(&player, trial, SEED)) return;
    const uint64_t begin_ns = farm_now_ns();
    for (size_t i = 0; i < sizeof budgets / sizeof *budgets && grows; i++) {
        const bool more = play_sampled(&growth, &player, begin_ns + budgets[i] * trial->request->budget_ns);
        grows = judge_growth(&growth);
        if (!more || (i && growth.after_resets)) break;
    }
    if (!grows || growth.bytes < LEAK_TOTAL_BYTES)
        good(trial, "no growth in %llu calls", (ull)player.calls);
    else if (growth.after_resets)
        fault(trial,
              advice(trial, "free what step() and reset() allocate, or allocate it once in create()",
                     "keep no reference to what step() and reset() make, or make it once in the constructor"),
              "memory grows: %.3g MB in %llu calls, %.3g bytes a call", (double)growth.bytes / 1e6, (ull)growth.calls,
              (double)growth.bytes / (double)growth.calls);
    else
        fault(trial,
              advice(trial, "free what step() allocates; what an episode keeps until its end needs a limit",
                     "keep no reference to what step() makes; what an episode keeps until its end needs a limit"),
              "memory grows: %.3g MB in %llu calls, %.3g bytes a call, and too few episodes ended to free it",
              (double)growth.bytes / 1e6, (ull)growth.calls, (double)growth.bytes / (double)growth.calls);
}

// ---- speed ----

struct stopwatch {
    uint64_t step_ns, reset_ns, steps, resets;
};

// Calls each of count instances `rounds` times.
static void step_in_turn(struct trial_player *players, size_t count, uint64_t rounds, struct stopwatch *watch) {
    const uint64_t begin_ns = farm_now_ns();
    uint64_t reset_ns = 0;
    for (uint64_t r = 0; r < rounds; r++)
        for (struct trial_player *player = players; player < players + count; player++) {
            const uint64_t before_ns = player->ended ? farm_now_ns() : 0;
            trial_player_call(player);
            if (before_ns) reset_ns += farm_now_ns() - before_ns;
            *(before_ns ? &watch->resets : &watch->steps) += 1;
        }
    watch->reset_ns += reset_ns;
    watch->step_ns += farm_now_ns() - begin_ns - reset_ns;
}

static double mean_ns(uint64_t ns, uint64_t count) {
    return count ? (double)ns / (double)count : 0;
}

// Keeps the faster of *best and a new race: other programs on the machine only slow it down.
static void race(const struct trial *trial, struct trial_player *players, size_t count, struct stopwatch *best) {
    struct stopwatch warm = {0}, watch = {0};
    step_in_turn(players, count, 2, &warm);
    const uint64_t begin_ns = farm_now_ns();
    for (uint64_t rounds = 1; farm_now_ns() - begin_ns < trial->request->budget_ns / (2 * RACES); rounds *= 2)
        step_in_turn(players, count, rounds, &watch);
    if (!best->steps || mean_ns(watch.step_ns, watch.steps) < mean_ns(best->step_ns, best->steps)) *best = watch;
}

static void format_time(char *text, size_t bytes, double ns) {
    const bool milli = ns >= 1e6, micro = ns >= 1e3;
    if (ns <= 0)
        snprintf(text, bytes, "(none)"); // no episode ended
    else
        snprintf(text, bytes, "%.3g %s", ns / (milli ? 1e6 : micro ? 1e3 : 1), milli ? "ms" : micro ? "us" : "ns");
}

static void check_speed(struct trial *trial) {
    struct trial_player *players = calloc(MANY, sizeof *players);
    struct trial_figures *figures = &trial->report->figures;
    if (!players) abort();
    const size_t most = trial->request->python ? 1 : MANY; // each would be a process
    size_t count = 0; // slow creations are limited by time, from the second on: the first may load what all share
    do {
        if (!make_player(&players[count], trial, SEED + count)) return;
        count++;
    } while (count < most && (count < 2 || farm_now_ns() - players[1].begin_ns < trial->request->budget_ns));
    struct stopwatch one = {0}, many = {0};
    for (int i = 0; i < RACES; i++) {
        race(trial, players, 1, &one);
        race(trial, players, count, &many);
    }
    figures->step_ns = mean_ns(one.step_ns, one.steps);
    figures->reset_ns = mean_ns(one.reset_ns, one.resets);
    figures->many_step_ns = mean_ns(many.step_ns, many.steps);
    figures->agent_steps_per_s = 1e9 * (double)many.steps * trial->spec.agents / (double)(many.step_ns + many.reset_ns);
    char step[24], reset[24], many_step[24];
    format_time(step, sizeof step, figures->step_ns);
    format_time(reset, sizeof reset, figures->reset_ns);
    format_time(many_step, sizeof many_step, figures->many_step_ns);
    if (trial->request->python) {
        good(trial, "a step %s, a reset %s through an actor, %s steps/s", step, reset,
             farm_format_count(figures->agent_steps_per_s).text);
        return;
    }
    const bool slow = figures->many_step_ns > SLOWDOWN_NOTED * figures->step_ns;
    trial_report_finding(trial->report, slow ? TRIAL_NOTE : TRIAL_GOOD,
                         slow ? "many instances do not fit the caches: make an instance smaller, or share constant data"
                              : NULL,
                         "a step %s, a reset %s; %zu instances in turn %s a step, %s steps/s a core", step, reset,
                         count, many_step, farm_format_count(figures->agent_steps_per_s).text);
}

const struct doctor_check *doctor_check_at(size_t index) {
    static const struct doctor_check checks[] = {
        {.name = "spec", .run = check_spec, .python = true, .basic = true},
        {.name = "runs", .run = check_runs, .python = true, .basic = true},
        {.name = "same seed", .run = check_same_seed, .python = true, .tests_repeatable = true},
        {.name = "instances", .run = check_instances, .tests_repeatable = true, .wants_repeatable = true},
        {.name = "other seeds", .run = check_other_seeds, .python = true},
        {.name = "memory behind fields", .run = check_behind, .tests_outside = true},
        {.name = "memory before fields", .run = check_before, .tests_outside = true},
        {.name = "kept pointers", .run = check_pointers},
        {.name = "every byte written", .run = check_fills, .wants_repeatable = true},
        {.name = "episodes", .run = check_episodes, .python = true},
        {.name = "numbers", .run = check_numbers, .python = true},
        {.name = "actions", .run = check_actions, .python = true},
        {.name = "memory while playing", .run = check_growth, .python = true},
        {.name = "destroy", .run = check_destroy},
        {.name = "speed", .run = check_speed, .python = true},
        {.name = "same seed, later", .run = check_same_later, .python = true, .wants_repeatable = true, .later = true},
    };
    return index < sizeof checks / sizeof *checks ? &checks[index] : NULL;
}
