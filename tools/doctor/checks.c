// See farm_doctor_checks.h.
#include "tools/doctor/checks.h"

#include <ctype.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/format.h"
#include "base/number.h"
#include "base/time.h"

enum {
    SEED = 1,
    ACTION_SEED = 7,
    SEEDS_TRIED = 4,
    EPISODES_COMPARED = 4,        // of one step each, after a longer first one: it does not start anew
    CHOICES_TRIED_MAX = 64,       // of one action dimension, the last one included
    LIVES_MAX = 10000,            // creations and destructions that memory is watched over
    CALLS_JUDGED = 20000,         // memory that is touched for the first time looks the same
    LIVES_JUDGED = 8,             // fewer say nothing
    LEAK_BYTES_MIN = 16,          // a life
    LEAK_TOTAL_BYTES = 192 << 10, // below: the allocator's own doings
    MANY = 64,                    // instances that speed is measured with
    TURNS = 3,                    // of one instance and of many, interleaved: the quickest counts
    CROWDED = 3,                  // times the step of one alone: worth a note
    ACTIONS_DRAWN = 1024,
    CALLS_MIN = 16, // whatever time they take
    ABOUT_BYTES_MAX = 200,
};

// Whether a pass of this many calls, begun then, should go on.
static bool goes_on(const struct trial *trial, uint64_t calls, uint64_t begin_ns) {
    return calls < trial->request->steps && (calls < CALLS_MIN || farm_now_ns() - begin_ns < trial->request->budget_ns);
}

// ---- what it says of itself ----

static bool good_name(const char *name) {
    if (!name || !name[0] || strlen(name) >= TRIAL_NAME_BYTES) return false;
    while (isgraph((unsigned char)*name) && *name != ':') name++;
    return !*name;
}

// Reads one environment's name into the list. False: the report says what is wrong with it.
static bool list_one(struct trial *trial, const char *path, const char *name) {
    struct trial_report *report = trial->report;
    struct farm_plugin plugin;
    struct farm_error err;
    if (farm_plugin_open(path, name, &plugin, &err)) {
        trial_say(trial, TRIAL_BROKEN, NULL, "%s", err.message);
        return false;
    }
    if (strlen(plugin.api->about) > ABOUT_BYTES_MAX || strchr(plugin.api->about, '\n'))
        trial_say(trial, TRIAL_NOTE, "one short line is what lists of environments have room for",
                  "%.64s: `about` is longer than %d bytes or a line", name, ABOUT_BYTES_MAX);
    for (size_t i = 0; i < report->name_count; i++)
        if (strcmp(report->names[i], name) == 0) {
            trial_say(trial, TRIAL_BROKEN, "give each environment a name of its own", "two environments are called %s",
                      name);
            return false;
        }
    snprintf(report->names[report->name_count++], TRIAL_NAME_BYTES, "%s", name);
    return true;
}

static void list_all(struct trial *trial, const char *path) {
    const struct farm_env_api *api;
    struct trial_report *report = trial->report;
    trial_enter(trial, TRIAL_AT, 0);
    for (size_t i = 0; (api = farm_plugin_env_at(&trial->plugin, i)); i++) {
        trial_leave(trial);
        const char *wrong = i == TRIAL_NAMES_MAX ? "there is no end: answer NULL behind the last environment"
                            : farm_plugin_env_at(&trial->plugin, i) != api
                                ? "another answer at the second call: return a constant"
                            : !good_name(api->name) ? "a name has 1 to 63 characters, no spaces, no colons"
                                                    : NULL;
        if (wrong) {
            trial_say(trial, TRIAL_BROKEN, NULL, "farm_env_at(%zu): %s", i, wrong);
            return;
        }
        if (!list_one(trial, path, api->name)) return;
    }
    if (report->grade == TRIAL_GOOD)
        trial_say(trial, TRIAL_GOOD, NULL, "%zu environment%s, version %u of the interface", report->name_count,
                  report->name_count == 1 ? "" : "s", FARM_ENV_ABI_VERSION);
}

void doctor_list(const struct trial_request *request, struct trial_report *report) {
    struct trial trial = {.request = request, .report = report};
    struct farm_error err;
    trial_enter(&trial, TRIAL_OPEN, 0);
    if (farm_plugin_open(request->path, NULL, &trial.plugin, &err))
        trial_say(&trial, TRIAL_BROKEN, NULL, "%s", err.message);
    else
        list_all(&trial, request->path);
}

// libenv/any gives options that are none of its own to a library that is not ours. Some ignore what they do not know,
// Procgen's ends its process. Neither is a fault of libenv/any, so an unknown one is not tried.
static bool passes_options_on(const struct trial *trial) {
    return strcmp(trial->plugin.api->name, "libenv/any") == 0;
}

// Whether spec() refuses an option that nobody can know, with a sentence that fits. False: the report says how not.
static bool refuses_unknown_option(struct trial *trial) {
    struct trial_request request = *trial->request;
    struct farm_env_spec spec = {0};
    char why[64];
    memset(why, 0x7f, sizeof why);
    request.options[request.option_count++] = (struct farm_env_option){"no_such_option_here", "1"};
    const struct farm_env_config config = {.options = request.options, .option_count = request.option_count};
    const int answer = trial->plugin.api->spec(&config, &spec, why, sizeof why / 2);
    const bool ended = memchr(why, 0, sizeof why / 2) != NULL;
    for (size_t i = sizeof why / 2; i < sizeof why; i++)
        if (why[i] != 0x7f) {
            trial_say(trial, TRIAL_BROKEN, "use snprintf(error, error_bytes, ...)",
                      "spec() writes past error[error_bytes]");
            return false;
        }
    if (answer && ended && why[0]) return true;
    if (answer)
        trial_say(trial, TRIAL_BROKEN, "write what is wrong to error: it is all that the user sees",
                  "spec() refuses an unknown option without a sentence");
    else
        trial_say(trial, TRIAL_NOTE,
                  "go through config->options; for a key that is none of yours, write a sentence to error and return "
                  "-1: else a mistyped --env.KEY is silently ignored (fine where all options are passed on)",
                  "spec() accepts an option that it cannot know");
    return false;
}

static void describe(struct trial *trial) {
    char text[TRIAL_TEXT_BYTES] = "", part[160];
    static const char *const types[] = {"?", "u8", "i32", "f32"};
    const struct farm_env_spec *spec = &trial->spec;
    for (uint32_t f = 0; f < spec->obs_count; f++) {
        const struct farm_field_spec *field = &spec->obs[f];
        size_t used = (size_t)snprintf(part, sizeof part, "%s%s %s", f ? ", " : "", field->name, types[field->dtype]);
        for (uint32_t d = 0; d < field->rank; d++)
            used += (size_t)snprintf(part + used, sizeof part - used, "%s%u", d ? "x" : "[", field->dims[d]);
        snprintf(part + used, sizeof part - used, "]");
        strncat(text, part, sizeof text - strlen(text) - 1);
    }
    const struct farm_action_spec *action = &spec->action;
    if (action->kind == FARM_ACTION_DISCRETE)
        snprintf(part, sizeof part, "%u actions", action->sizes[0]);
    else
        snprintf(part, sizeof part, "%u %s action%s", action->dims,
                 action->kind == FARM_ACTION_CONTINUOUS ? "continuous" : "discrete", action->dims == 1 ? "" : "s");
    if (passes_options_on(trial))
        trial_say(trial, TRIAL_NOTE,
                  "what becomes of a mistyped --env.KEY is the library's business: it may ignore it, or end the actor",
                  "%.300s; %s; options are passed on to the library: an unknown one was not tried", text, part);
    else
        trial_say(trial, TRIAL_GOOD, NULL, "%.380s; %s", text, part);
}

static void check_spec(struct trial *trial) {
    const struct trial_request *request = trial->request;
    struct farm_env_spec again;
    const enum farm_status status =
        farm_plugin_spec(trial->plugin.api, request->options, request->option_count, &again, NULL);
    trial_leave(trial);
    if (status || memcmp(&again, &trial->spec, sizeof again) != 0) {
        trial_say(trial, TRIAL_BROKEN,
                  "spec() must depend on config->options alone: many processes ask, all must agree",
                  "spec() answers differently at the second call");
        return;
    }
    if (passes_options_on(trial) || refuses_unknown_option(trial)) describe(trial);
    trial_leave(trial);
}

// ---- that it runs at all ----

static size_t entries(const char *folder) {
    DIR *directory = opendir(folder);
    size_t count = 0;
    while (directory && readdir(directory)) count++;
    if (directory) closedir(directory);
    return count;
}

static void check_runs(struct trial *trial) {
    struct trial_player one, two;
    const size_t threads = entries("/proc/self/task");
    if (!trial_player_make(&one, trial, TRIAL_PLAIN, SEED, ACTION_SEED)) return;
    if (!trial_player_make(&two, trial, TRIAL_PLAIN, SEED + 1, ACTION_SEED)) return;
    const uint64_t begin_ns = farm_now_ns();
    while (goes_on(trial, one.calls, begin_ns)) {
        trial_player_call(&one);
        trial_player_call(&two);
    }
    const double ms = (double)(farm_now_ns() - begin_ns) / 1e6;
    const uint64_t calls = one.calls + two.calls;
    const size_t more = entries("/proc/self/task") - threads;
    trial_player_free(&one); // in the other order than made: two was made later
    trial_player_free(&two);
    if (more)
        trial_say(trial, TRIAL_NOTE, "actors are pinned to one core each: threads of an environment fight for it",
                  "%llu calls of two instances; they start %zu thread%s", (unsigned long long)calls, more,
                  more == 1 ? "" : "s");
    else
        trial_say(trial, TRIAL_GOOD, NULL, "two instances, %llu calls in %.3g ms", (unsigned long long)calls, ms);
}

// ---- memory ----

static void play_guarded(struct trial *trial, enum trial_memory kind, const char *found) {
    struct trial_player player;
    if (!trial_player_make(&player, trial, kind, SEED, ACTION_SEED)) return;
    const uint64_t begin_ns = farm_now_ns();
    while (goes_on(trial, player.calls, begin_ns)) trial_player_call(&player);
    trial_say(trial, TRIAL_GOOD, NULL, "%s (%llu calls)", found, (unsigned long long)player.calls);
    trial_player_free(&player);
}

static void check_past(struct trial *trial) {
    play_guarded(trial, TRIAL_GUARD_BEHIND, "nothing behind observations, reward and action is touched");
}

static void check_before(struct trial *trial) {
    play_guarded(trial, TRIAL_GUARD_BEFORE, "nothing before them is touched");
}

static void check_pointers(struct trial *trial) {
    play_guarded(trial, TRIAL_MOVING, "no pointer of an earlier call is used");
}

// What two equal instances whose memory was filled differently wrote into field f, compared. True: the same.
static bool compare_fills(struct trial *trial, struct trial_player *one, struct trial_player *two, uint32_t f) {
    const uint8_t *a = trial_player_field(one, f), *b = trial_player_field(two, f);
    if (memcmp(a, b, trial->bytes[f]) == 0) return true;
    const char *call = trial_call_name(one->was_reset ? TRIAL_RESET : TRIAL_STEP);
    size_t unwritten = 0, differ = 0, first = 0;
    for (size_t i = trial->bytes[f]; i-- > 0;) {
        const bool skipped = a[i] == (uint8_t)one->fill && b[i] == (uint8_t)two->fill;
        unwritten += skipped;
        differ += a[i] != b[i];
        if (a[i] != b[i]) first = i;
    }
    const char *name = trial->report->field_names[f];
    if (f == trial->reward)
        trial_say(trial, TRIAL_BROKEN, "set *reward at every step, also where it is 0", "call %llu, %s: %s",
                  (unsigned long long)one->calls, call,
                  unwritten ? "*reward is not written" : "the reward depends on what lay in memory before");
    else if (unwritten)
        trial_say(trial, TRIAL_BROKEN,
                  "write the whole field at every call (memset it first): it is memory of the ring, with an old step's "
                  "data, not your last observation",
                  "call %llu, %s: %zu of %zu bytes of field '%s' are not written, the first at byte %zu",
                  (unsigned long long)one->calls, call, unwritten, trial->bytes[f], name, first);
    else
        trial_say(
            trial, TRIAL_BROKEN,
            "the memory holds an old step's data, not your last observation: keep what you need in the environment",
            "call %llu, %s: field '%s' depends on what lay in that memory before (%zu bytes, the first at %zu)",
            (unsigned long long)one->calls, call, name, differ, first);
    return false;
}

// Plays two instances whose memory is filled with one byte and another. False: the report says what they show.
static bool play_filled(struct trial *trial, int fill_one, int fill_two) {
    struct trial_player one, two;
    if (!trial_player_make(&one, trial, TRIAL_PLAIN, SEED, ACTION_SEED)) return false;
    if (!trial_player_make(&two, trial, TRIAL_PLAIN, SEED, ACTION_SEED)) return false;
    one.fill = fill_one;
    two.fill = fill_two;
    const uint64_t begin_ns = farm_now_ns();
    while (goes_on(trial, one.calls, begin_ns)) {
        trial_player_call(&one);
        trial_player_call(&two);
        for (uint32_t f = 0; f < trial->reward + (one.was_reset ? 0 : 1); f++)
            if (!compare_fills(trial, &one, &two, f)) return false;
        if (one.answer == two.answer) continue;
        trial_say(trial, TRIAL_BROKEN, "the memory that it is given holds anything: do not read it before writing",
                  "call %llu: the answer, 0x%x or 0x%x, depends on what lay in memory before",
                  (unsigned long long)one.calls, one.answer, two.answer);
        return false;
    }
    trial_say(trial, TRIAL_GOOD, NULL, "every byte of every observation and reward is written (%llu calls)",
              (unsigned long long)one.calls);
    trial_player_free(&one);
    trial_player_free(&two);
    return true;
}

static void check_fills(struct trial *trial) {
    if (play_filled(trial, 0xAA, 0x55)) play_filled(trial, 0x00, 0xFF);
}

// ---- seeds ----

struct moment { // what one call gave
    uint64_t obs;
    uint32_t reward, answer;
};

// FNV-1a over 8 bytes at a time, the rest by one.
static uint64_t hash_bytes(uint64_t hash, const uint8_t *data, size_t bytes) {
    for (; bytes >= 8; bytes -= 8, data += 8) {
        uint64_t word;
        memcpy(&word, data, sizeof word);
        hash = (hash ^ word) * 0x100000001b3ull;
        hash ^= hash >> 32;
    }
    for (; bytes; bytes--, data++) hash = (hash ^ *data) * 0x100000001b3ull;
    return hash;
}

static struct moment call_and_note(struct trial_player *player) {
    struct moment moment = {.obs = 0xcbf29ce484222325ull};
    trial_player_call(player);
    for (uint32_t f = 0; f < player->trial->reward; f++)
        moment.obs = hash_bytes(moment.obs, trial_player_field(player, f), player->trial->bytes[f]);
    memcpy(&moment.reward, &player->reward, sizeof moment.reward);
    moment.answer = player->answer;
    return moment;
}

// Plays a new instance and notes its moments, for exactly that many calls, or (0) a pass. How many; 0: the report says
// why none.
static uint64_t note_moments(struct trial *trial, uint64_t seed, uint64_t exactly, struct moment *moments) {
    struct trial_player player;
    if (!trial_player_make(&player, trial, TRIAL_PLAIN, seed, ACTION_SEED)) return 0;
    const uint64_t begin_ns = farm_now_ns();
    while (exactly ? player.calls < exactly : goes_on(trial, player.calls, begin_ns)) {
        const struct moment moment = call_and_note(&player);
        moments[player.calls - 1] = moment;
    }
    const uint64_t calls = player.calls;
    trial_player_free(&player);
    return calls;
}

static struct moment *room_for_moments(const struct trial *trial) {
    struct moment *moments = calloc(trial->request->steps, sizeof *moments);
    if (!moments) abort();
    return moments;
}

static const char *difference(const struct moment *a, const struct moment *b) {
    return a->obs != b->obs ? "observation" : a->reward != b->reward ? "reward" : "answer";
}

static bool same_moment(const struct moment *a, const struct moment *b) {
    return a->obs == b->obs && a->reward == b->reward && a->answer == b->answer;
}

// Plays one more instance of that seed; the first call at which it differs from the moments, or `calls`.
static uint64_t first_difference(struct trial *trial, uint64_t seed, const struct moment *moments, uint64_t calls,
                                 const char **what) {
    struct trial_player player;
    if (!trial_player_make(&player, trial, TRIAL_PLAIN, seed, ACTION_SEED)) return 0;
    while (player.calls < calls) {
        const uint64_t n = player.calls;
        const struct moment moment = call_and_note(&player);
        if (same_moment(&moment, &moments[n])) continue;
        *what = difference(&moment, &moments[n]);
        break;
    }
    const uint64_t same = *what ? player.calls - 1 : calls;
    trial_player_free(&player);
    return same;
}

static const char same_seed_mend[] =
    "all randomness must come from config->seed, kept in the environment: no rand(), no time(), no uninitialised or "
    "static variables";

static void check_same_seed(struct trial *trial) {
    struct moment *moments = room_for_moments(trial);
    const uint64_t calls = note_moments(trial, SEED, 0, moments);
    const char *what = NULL;
    if (!calls) return;
    const uint64_t same = first_difference(trial, SEED, moments, calls, &what);
    trial->report->figures.trace_calls = calls;
    trial->report->figures.trace_hash = hash_bytes(1, (const uint8_t *)moments, calls * sizeof *moments);
    if (what)
        trial_say(trial, TRIAL_BROKEN, same_seed_mend,
                  "two instances of one seed and the same actions: another %s at call %llu", what,
                  (unsigned long long)same + 1);
    else if (same == calls)
        trial_say(trial, TRIAL_GOOD, NULL,
                  "the same bytes, rewards and ends under the same seed and actions (%llu calls)",
                  (unsigned long long)calls);
    free(moments);
}

// The trace that check_same_seed left, once more, in another process and another second.
static void check_same_later(struct trial *trial) {
    struct moment *moments = room_for_moments(trial);
    const uint64_t calls = note_moments(trial, SEED, trial->report->figures.trace_calls, moments);
    if (!calls) return;
    if (hash_bytes(1, (const uint8_t *)moments, calls * sizeof *moments) != trial->report->figures.trace_hash)
        trial_say(trial, TRIAL_BROKEN, same_seed_mend,
                  "in another process, a second later, the same seed and actions give something else");
    else
        trial_say(trial, TRIAL_GOOD, NULL, "the same in another process, a second later");
    free(moments);
}

static void check_other_seeds(struct trial *trial) {
    struct moment *moments = room_for_moments(trial);
    const uint64_t calls = note_moments(trial, SEED, 0, moments);
    if (!calls) return;
    for (uint64_t seed = SEED + 1; seed < SEED + SEEDS_TRIED; seed++) {
        const char *what = NULL;
        first_difference(trial, seed, moments, calls, &what);
        if (!what) continue;
        trial_say(trial, TRIAL_GOOD, NULL, "other seeds give other episodes");
        free(moments);
        return;
    }
    trial_say(trial, TRIAL_NOTE,
              "fine for a game without chance; else draw from config->seed: all environments of a farm would play the "
              "same",
              "%d seeds and the same actions give the same episodes", SEEDS_TRIED);
    free(moments);
}

// ---- episodes and numbers ----

struct tally {
    uint64_t ends, terminated, truncated, game_ends, steps, first_length, ones;
};

static void count_end(struct tally *tally, const struct trial_player *player) {
    if (tally->ends++ == 0) tally->first_length = player->in_episode;
    tally->ones += player->in_episode == 1;
    tally->terminated += player->answer & FARM_STEP_TERMINATED ? 1 : 0;
    tally->truncated += player->answer & FARM_STEP_TRUNCATED ? 1 : 0;
    tally->game_ends += player->answer & FARM_STEP_GAME_END ? 1 : 0;
}

static void judge_episodes(struct trial *trial, const struct tally *tally) {
    const unsigned long long steps = tally->steps, ends = tally->ends;
    if (tally->ends > EPISODES_COMPARED && tally->first_length > 1 && tally->ones == tally->ends - 1)
        trial_say(trial, TRIAL_BROKEN, "reset() must put everything back that an episode changes",
                  "the first episode lasts %llu steps, each later one a single step: reset() does not start anew",
                  (unsigned long long)tally->first_length);
    else if (!tally->ends)
        trial_say(trial, TRIAL_NOTE,
                  "fine where random play lasts long (--steps N looks further); a game without an end should be cut: "
                  "FARM_STEP_TRUNCATED",
                  "no episode ended within %llu steps", steps);
    else if (!tally->game_ends)
        trial_say(trial, TRIAL_NOTE,
                  "add FARM_STEP_GAME_END to the ends of real games: `episodes` and `return_mean` count those alone",
                  "%llu episodes in %llu steps, but no FARM_STEP_GAME_END", ends, steps);
    else
        trial_say(trial, TRIAL_GOOD, NULL, "%llu in %llu steps, %.3g steps each: %llu terminated, %llu truncated", ends,
                  steps, (double)steps / (double)ends, (unsigned long long)tally->terminated,
                  (unsigned long long)tally->truncated);
}

static void check_episodes(struct trial *trial) {
    struct trial_player player;
    struct tally tally = {0};
    if (!trial_player_make(&player, trial, TRIAL_PLAIN, SEED, ACTION_SEED)) return;
    const uint64_t begin_ns = farm_now_ns();
    while (goes_on(trial, player.calls, begin_ns)) {
        trial_player_call(&player);
        tally.steps += player.was_reset ? 0 : 1;
        if (!trial_answer_legal(player.answer)) {
            trial_say(trial, TRIAL_BROKEN,
                      "return 0, or FARM_STEP_TERMINATED or FARM_STEP_TRUNCATED, either with FARM_STEP_GAME_END; FIRST "
                      "and LAST are the actor's to set",
                      "step() answers 0x%x at call %llu", player.answer, (unsigned long long)player.calls);
            return;
        }
        if (player.answer) count_end(&tally, &player);
    }
    trial_player_free(&player);
    judge_episodes(trial, &tally);
}

struct extent {
    float low, high;
};

// Widens the extent by f32 values; the index of the first that makes no sense, or count.
static size_t widen(struct extent *extent, const uint8_t *data, size_t count) {
    for (size_t i = 0; i < count; i++) {
        float value;
        memcpy(&value, data + 4 * i, sizeof value);
        if (!(fabsf(value) <= FARM_NUMBER_MAX)) return i;
        extent->low = fminf(extent->low, value);
        extent->high = fmaxf(extent->high, value);
    }
    return count;
}

// False: something makes no sense, the report says what.
static bool look_at_numbers(struct trial *trial, struct trial_player *player, struct extent *reward,
                            struct extent *observations) {
    for (uint32_t f = 0; f < trial->reward; f++) {
        if (trial->spec.obs[f].dtype != FARM_F32) continue;
        const size_t count = trial->bytes[f] / sizeof(float);
        const size_t bad = widen(observations, trial_player_field(player, f), count);
        if (bad == count) continue;
        trial_say(trial, TRIAL_BROKEN, "one NaN makes the network NaN: find where it arises (division by 0, sqrt, log)",
                  "field '%s', element %zu is NaN, infinite or beyond 1e9 after %s, call %llu",
                  trial->report->field_names[f], bad, trial_call_name(player->was_reset ? TRIAL_RESET : TRIAL_STEP),
                  (unsigned long long)player->calls);
        return false;
    }
    if (widen(reward, (const uint8_t *)&player->reward, 1) == 1) return true;
    trial_say(trial, TRIAL_BROKEN, "one NaN makes the network NaN: find where it arises (division by 0, sqrt, log)",
              "the reward is NaN, infinite or beyond 1e9 at call %llu", (unsigned long long)player->calls);
    return false;
}

static void check_numbers(struct trial *trial) {
    struct trial_player player;
    struct extent reward = {0, 0}, observations = {INFINITY, -INFINITY};
    if (!trial_player_make(&player, trial, TRIAL_PLAIN, SEED, ACTION_SEED)) return;
    struct moment first = {0};
    bool changed = false;
    const uint64_t begin_ns = farm_now_ns();
    while (goes_on(trial, player.calls, begin_ns)) {
        const struct moment moment = call_and_note(&player);
        if (player.calls == 1) first = moment;
        changed |= moment.obs != first.obs;
        if (!look_at_numbers(trial, &player, &reward, &observations)) return;
    }
    char seen[64] = "";
    if (observations.low <= observations.high)
        snprintf(seen, sizeof seen, ", observations %.3g to %.3g", (double)observations.low, (double)observations.high);
    if (!changed)
        trial_say(trial, TRIAL_NOTE, "an agent that sees nothing learns nothing: is it written at all?",
                  "no observation ever changed in %llu calls", (unsigned long long)player.calls);
    else
        trial_say(trial, TRIAL_GOOD, NULL, "all finite: rewards %.3g to %.3g%s", (double)reward.low,
                  (double)reward.high, seen);
    trial_player_free(&player);
}

// ---- actions ----

static void name_action(struct trial_player *player, uint32_t dim) {
    const struct trial *trial = player->trial;
    const uint8_t *place = trial_player_field(player, trial->action) + 4 * (size_t)dim;
    char text[32];
    if (trial->spec.action.kind == FARM_ACTION_CONTINUOUS) {
        float value;
        memcpy(&value, place, sizeof value);
        snprintf(text, sizeof text, "%g", (double)value);
    } else {
        int32_t value;
        memcpy(&value, place, sizeof value);
        snprintf(text, sizeof text, "%d", value);
    }
    if (trial->spec.action.dims == 1)
        snprintf(trial->report->action, sizeof trial->report->action, " with action %s", text);
    else
        snprintf(trial->report->action, sizeof trial->report->action, " with action[%u] = %s", dim, text);
}

// The n-th of the values to try of a dimension with that many choices: all, or evenly spread with both ends.
static uint32_t spread(uint32_t n, uint32_t tried, uint32_t choices) {
    return tried == choices ? n : (uint32_t)((uint64_t)n * (choices - 1) / (tried - 1));
}

static void check_actions(struct trial *trial) {
    struct trial_player player;
    const struct farm_action_spec *action = &trial->spec.action;
    uint64_t taken = 0;
    const enum trial_memory kind = trial->request->untidy ? TRIAL_PLAIN : TRIAL_GUARD_BEHIND;
    if (!trial_player_make(&player, trial, kind, SEED, ACTION_SEED)) return;
    for (uint32_t d = 0; d < action->dims; d++) {
        const uint32_t choices = trial_choices(action, d);
        const uint32_t tried = choices < CHOICES_TRIED_MAX ? choices : CHOICES_TRIED_MAX;
        for (uint32_t n = 0; n < tried; n++) {
            trial->report->action[0] = 0;
            if (player.fresh) trial_player_call(&player);
            trial_player_choose(&player, d, spread(n, tried, choices));
            name_action(&player, d);
            trial_player_call(&player);
            taken++;
            if (trial_answer_legal(player.answer) && isfinite(player.reward)) continue;
            trial_say(trial, TRIAL_BROKEN, "every action that spec() allows must be taken in every state",
                      "step()%s answers 0x%x, reward %g", trial->report->action, player.answer, (double)player.reward);
            return;
        }
    }
    trial_say(trial, TRIAL_GOOD, NULL, "%llu tried over the whole range", (unsigned long long)taken);
    trial_player_free(&player);
}

// ---- several instances ----

static void check_instances(struct trial *trial) {
    struct moment *alone = room_for_moments(trial);
    struct trial_player one, other;
    const uint64_t calls = note_moments(trial, SEED, 0, alone);
    if (!calls) return;
    if (!trial_player_make(&one, trial, TRIAL_PLAIN, SEED, ACTION_SEED)) return;
    if (!trial_player_make(&other, trial, TRIAL_PLAIN, SEED + 1, ACTION_SEED + 1)) return;
    while (one.calls < calls) {
        const uint64_t n = one.calls;
        const struct moment moment = call_and_note(&one);
        trial_player_call(&other);
        if (same_moment(&moment, &alone[n])) continue;
        trial_say(trial, TRIAL_BROKEN,
                  "an actor steps many instances in turn: keep all state in the instance (no static variables, no "
                  "rand(), no srand())",
                  "another %s at call %llu where a second instance is stepped between", difference(&moment, &alone[n]),
                  (unsigned long long)n + 1);
        return;
    }
    trial_say(trial, TRIAL_GOOD, NULL, "stepped in turn with another, an instance gives the same as alone (%llu calls)",
              (unsigned long long)calls);
    trial_player_free(&one);
    trial_player_free(&other);
    free(alone);
}

static size_t resident_bytes(void) {
    unsigned long long total = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file && fscanf(file, "%llu %llu", &total, &resident) != 2) resident = 0;
    if (file) fclose(file);
    return (size_t)resident * (size_t)sysconf(_SC_PAGESIZE);
}

// Replaces the player's instance by new ones, each played a little, until the time or the number is over; how many.
// 0: the report says why.
static uint64_t live_and_die(struct trial_player *player, uint64_t lives_max, uint64_t budget_ns) {
    const uint64_t begin_ns = farm_now_ns();
    uint64_t lives = 0;
    do {
        trial_player_call(player);
        trial_player_call(player);
        lives++;
        if (!trial_player_renew(player, SEED + lives)) return 0;
    } while (lives < lives_max && farm_now_ns() - begin_ns < budget_ns);
    return lives;
}

static void check_destroy(struct trial *trial) {
    struct trial_player player;
    if (!trial_player_make(&player, trial, TRIAL_PLAIN, SEED, ACTION_SEED)) return;
    if (!live_and_die(&player, LIVES_MAX / 4, trial->request->budget_ns / 2)) return;
    const size_t files = entries("/proc/self/fd"), bytes = resident_bytes();
    const uint64_t lives = live_and_die(&player, LIVES_MAX, trial->request->budget_ns);
    if (!lives) return;
    const size_t files_more = entries("/proc/self/fd") - files, now = resident_bytes();
    const size_t more = now > bytes ? now - bytes : 0;
    if (files_more >= lives)
        trial_say(trial, TRIAL_NOTE, "destroy() must close what create() and reset() opened",
                  "%zu open files are left of %llu instances", files_more, (unsigned long long)lives);
    else if (lives >= LIVES_JUDGED && more >= LEAK_TOTAL_BYTES && more / lives >= LEAK_BYTES_MIN)
        trial_say(trial, TRIAL_NOTE,
                  "destroy() must free what create() and reset() took (an actor makes its instances once)",
                  "%zu bytes an instance are left behind (%.3g MB of %llu)", more / (size_t)lives, (double)more / 1e6,
                  (unsigned long long)lives);
    else
        trial_say(trial, TRIAL_GOOD, NULL, "%llu instances made and destroyed, memory %+.3g MB",
                  (unsigned long long)lives, ((double)now - (double)bytes) / 1e6);
    trial_player_free(&player);
}

// Plays for that time; by how much memory grew.
static size_t growth_bytes(struct trial_player *player, uint64_t budget_ns) {
    const size_t before = resident_bytes();
    const uint64_t begin_ns = farm_now_ns();
    while (farm_now_ns() - begin_ns < budget_ns) trial_player_call(player);
    const size_t now = resident_bytes();
    return now > before ? now - before : 0;
}

static void check_growth(struct trial *trial) {
    struct trial_player player;
    if (!trial_player_make(&player, trial, TRIAL_PLAIN, SEED, ACTION_SEED)) return;
    growth_bytes(&player, trial->request->budget_ns / 4);
    const uint64_t calls = player.calls;
    const size_t one = growth_bytes(&player, trial->request->budget_ns / 4); // what fills once does not go on growing
    const size_t two = growth_bytes(&player, trial->request->budget_ns / 4);
    const unsigned long long more = player.calls - calls;
    if (more < CALLS_JUDGED)
        trial_say(trial, TRIAL_GOOD, NULL, "%.3g MB in %llu calls: too few to judge", (double)(one + two) / 1e6, more);
    else if (one >= LEAK_TOTAL_BYTES && two >= LEAK_TOTAL_BYTES)
        trial_say(trial, TRIAL_BROKEN, "free what step() and reset() take, or take it once in create()",
                  "memory grows: %.3g MB in %llu calls, %.3g bytes a call", (double)(one + two) / 1e6, more,
                  (double)(one + two) / (double)more);
    else
        trial_say(trial, TRIAL_GOOD, NULL, "no growth in %llu calls", more);
    trial_player_free(&player);
}

// ---- speed ----

struct stopwatch {
    uint64_t step_ns, reset_ns, steps, resets;
};

// Steps each of count instances `rounds` times with actions drawn beforehand.
static void race(const struct trial *trial, struct trial_player *players, size_t count, const uint8_t *actions,
                 uint64_t rounds, struct stopwatch *watch) {
    const struct farm_env_api *api = trial->plugin.api;
    const size_t action_bytes = trial->bytes[trial->action];
    const uint64_t begin_ns = farm_now_ns();
    uint64_t reset_ns = 0;
    for (uint64_t r = 0; r < rounds; r++)
        for (size_t p = 0; p < count; p++) {
            struct trial_player *player = &players[p];
            void *obs[FARM_OBS_FIELDS_MAX];
            float reward;
            for (uint32_t f = 0; f < trial->reward; f++) obs[f] = player->area[0][f].data;
            if (player->fresh) {
                const uint64_t before_ns = farm_now_ns();
                api->reset(player->env, obs);
                reset_ns += farm_now_ns() - before_ns;
                watch->resets++;
                player->fresh = false;
            } else {
                const uint8_t *action = actions + player->calls++ % ACTIONS_DRAWN * action_bytes;
                player->fresh = api->step(player->env, action, obs, &reward) != 0;
                watch->steps++;
            }
        }
    watch->reset_ns += reset_ns;
    watch->step_ns += farm_now_ns() - begin_ns - reset_ns;
}

static double per(uint64_t ns, uint64_t count) {
    return count ? (double)ns / (double)count : 0;
}

// Rounds that double until the time is over.
static struct stopwatch race_for(struct trial *trial, struct trial_player *players, size_t count,
                                 const uint8_t *actions, uint64_t budget_ns) {
    struct stopwatch warm = {0}, watch = {0};
    trial_enter(trial, TRIAL_STEP, 0); // or a reset: which is not told here, for speed
    race(trial, players, count, actions, 2, &warm);
    const uint64_t begin_ns = farm_now_ns();
    for (uint64_t rounds = 1; farm_now_ns() - begin_ns < budget_ns; rounds *= 2) {
        race(trial, players, count, actions, rounds, &watch);
        trial_leave(trial);
    }
    return watch;
}

// The quicker one: what else runs on this machine only ever slows it down.
static struct stopwatch quicker(const struct stopwatch *a, const struct stopwatch *b) {
    return !a->steps || per(b->step_ns, b->steps) < per(a->step_ns, a->steps) ? *b : *a;
}

static void draw_actions(struct trial_player *player, uint8_t *actions) {
    const size_t bytes = player->trial->bytes[player->trial->action];
    for (size_t i = 0; i < ACTIONS_DRAWN; i++) {
        trial_player_draw(player);
        memcpy(actions + i * bytes, trial_player_field(player, player->trial->action), bytes);
    }
    player->chosen = false;
}

static void write_time(char *text, size_t bytes, double ns) {
    const bool milli = ns >= 1e6, micro = ns >= 1e3;
    snprintf(text, bytes, "%.3g %s", ns / (milli ? 1e6 : micro ? 1e3 : 1), milli ? "ms" : micro ? "us" : "ns");
}

static void check_speed(struct trial *trial) {
    struct trial_player *players = calloc(MANY, sizeof *players);
    uint8_t *actions = calloc(ACTIONS_DRAWN, trial->bytes[trial->action]);
    struct trial_figures *figures = &trial->report->figures;
    if (!players || !actions) abort();
    size_t count = 0;
    uint64_t begin_ns = 0; // of the second: the first may load what all share
    while (count < MANY && (count < 2 || farm_now_ns() - begin_ns < trial->request->budget_ns)) {
        if (count == 1) begin_ns = farm_now_ns();
        if (!trial_player_make(&players[count], trial, TRIAL_PLAIN, SEED + count, ACTION_SEED)) return;
        count++;
    }
    draw_actions(&players[0], actions);
    struct stopwatch one = {0}, many = {0};
    for (int turn = 0; turn < TURNS; turn++) {
        const struct stopwatch alone = race_for(trial, players, 1, actions, trial->request->budget_ns / (2 * TURNS));
        const struct stopwatch crowd =
            race_for(trial, players, count, actions, trial->request->budget_ns / (2 * TURNS));
        one = quicker(&one, &alone);
        many = quicker(&many, &crowd);
    }
    figures->step_ns = per(one.step_ns, one.steps);
    figures->reset_ns = per(one.reset_ns, one.resets);
    figures->many_step_ns = per(many.step_ns, many.steps);
    figures->agent_steps_per_s = 1e9 * (double)many.steps / (double)(many.step_ns + many.reset_ns);
    for (size_t i = 0; i < count; i++) trial_player_free(&players[i]);
    char step[24], reset[24], many_step[24];
    write_time(step, sizeof step, figures->step_ns);
    write_time(reset, sizeof reset, figures->reset_ns);
    write_time(many_step, sizeof many_step, figures->many_step_ns);
    const bool crowded = figures->many_step_ns > CROWDED * figures->step_ns;
    trial_say(trial, crowded ? TRIAL_NOTE : TRIAL_GOOD,
              crowded ? "many instances do not fit the caches: make an instance smaller, or share what never changes"
                      : NULL,
              "a step %s, a reset %s; %zu instances in turn %s a step, %s steps/s a core", step, reset, count,
              many_step, farm_format_count(figures->agent_steps_per_s).text);
}

const struct doctor_check *doctor_check_at(size_t index) {
    static const struct doctor_check checks[] = {
        {.name = "spec", .run = check_spec, .basic = true},
        {.name = "runs", .run = check_runs, .basic = true},
        {.name = "same seed", .run = check_same_seed, .judge = true},
        {.name = "instances", .run = check_instances, .judge = true, .repeatable = true},
        {.name = "other seeds", .run = check_other_seeds},
        {.name = "memory behind fields", .run = check_past, .guard = true},
        {.name = "memory before fields", .run = check_before, .guard = true},
        {.name = "kept pointers", .run = check_pointers},
        {.name = "every byte written", .run = check_fills, .repeatable = true},
        {.name = "episodes", .run = check_episodes},
        {.name = "numbers", .run = check_numbers},
        {.name = "actions", .run = check_actions},
        {.name = "memory while playing", .run = check_growth},
        {.name = "destroy", .run = check_destroy},
        {.name = "speed", .run = check_speed},
        {.name = "same seed, later", .run = check_same_later, .repeatable = true, .later = true},
    };
    return index < sizeof checks / sizeof *checks ? &checks[index] : NULL;
}
