// build/chaos: the chaos runner as a program, for long runs (`make chaos`). Runs farms, prints progress on
// stderr (runner.c), and appends one line to a record. Exit status 0: no violation; 1: violations, or the record could
// not be written; 2: wrong usage.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/bitmap.h"
#include "base/cli.h"
#include "base/json.h"
#include "base/time.h"
#include "chaos.h"
#include "farm_build.h"
#include "topo/machine.h"

struct options {
    int64_t actor_kills, learner_kills, supervisor_kills, seed;
    double seconds, rate, standstill_s;
    bool json;
    const char *record;
};

static const char *const about =
    "Runs farms of the real supervisor, actors and learner over an environment and a backend that check every step, "
    "and keeps killing processes by SIGKILL: actors at random times, at random bytes of an observation and "
    "around random atomic stores, and the learner; supervisors at random moments. Ends at the first violation, "
    "or after the requested number of kills.";
static const char *const examples = "  build/chaos\n"
                                    "  build/chaos --actor-kills 10000 --learner-kills 300 --json\n"
                                    "  build/chaos --actor-kills 0 --learner-kills 0 --supervisor-kills 100\n"
                                    "  make chaos ARGS=\"--seconds 600\"\n";

static enum farm_status parse(int argc, char **argv, struct options *options, bool *help, struct farm_error *err) {
    const struct farm_cli_flag flags[] = {
        {"actor-kills", FARM_CLI_INT, &options->actor_kills, "N", "at least so many (1000)"},
        {"learner-kills", FARM_CLI_INT, &options->learner_kills, "N", "at least so many (30)"},
        {"supervisor-kills", FARM_CLI_INT, &options->supervisor_kills, "N", "at least so many (10)"},
        {"kills-per-s", FARM_CLI_DOUBLE, &options->rate, "R", "actors of a farm killed a second, on average (80)"},
        {"seconds", FARM_CLI_DOUBLE, &options->seconds, "S", "time limit; 0: none (0)"},
        {"standstill", FARM_CLI_DOUBLE, &options->standstill_s, "S",
         "a lane without progress for S seconds is stuck (10)"},
        {"seed", FARM_CLI_INT, &options->seed, "N", "of shapes and kills (the time)"},
        {"json", FARM_CLI_BOOL, &options->json, NULL, "one JSON document on stdout"},
        {"record", FARM_CLI_STRING, &options->record, "FILE", "add the document as one line to this file"},
    };
    const struct farm_cli cli = {.program = "chaos",
                                 .synopsis = "[--actor-kills N] [--learner-kills N] [--supervisor-kills N] [--json]",
                                 .about = about,
                                 .examples = examples,
                                 .flags = flags,
                                 .flag_count = sizeof flags / sizeof *flags};
    enum farm_status status = farm_cli_parse(&cli, argc, argv, NULL, help, err);
    if (!status && *help) farm_cli_print_help(&cli);
    if (status || *help) return status;
    if (options->actor_kills < 0 || options->learner_kills < 0 || options->supervisor_kills < 0)
        return farm_fail(err, FARM_E_USAGE, "numbers of kills must be 0 or more");
    if (!(options->rate >= 0.1 && options->rate <= 1000))
        return farm_fail(err, FARM_E_USAGE, "--kills-per-s %g: 0.1 to 1000", options->rate);
    if (!(options->standstill_s >= 0.1 && options->standstill_s <= 20))
        return farm_fail(err, FARM_E_USAGE, "--standstill %g: 0.1 to 20", options->standstill_s);
    return FARM_OK;
}

static json_t *machine(void) {
    struct utsname system;
    struct farm_bitmap cpus;
    char cpu[256];
    farm_machine_cpu_name(NULL, cpu, sizeof cpu);
    json_t *object = farm_json_object(false);
    farm_json_set_text(object, "cpu", cpu);
    farm_json_set_int(object, "cores", farm_bitmap_pinned(&cpus, NULL) ? 0 : (uint64_t)farm_bitmap_count(&cpus));
    farm_json_set_text(object, "kernel", uname(&system) ? NULL : system.release);
    return object;
}

static json_t *kills(const uint64_t kinds[CHAOS_KINDS], bool actor) {
    json_t *object = farm_json_object(false);
    farm_json_set_int(object, "total", chaos_sum(kinds));
    farm_json_set_int(object, "random_time", kinds[CHAOS_TIME]);
    if (actor) farm_json_set_int(object, "inside_an_observation", kinds[CHAOS_STEP]);
    farm_json_set_int(object, "around_a_store", kinds[CHAOS_HOOK]);
    return object;
}

static void set_latency(json_t *object, const char *name, const struct chaos_samples *samples) {
    char key[64];
    snprintf(key, sizeof key, "%s_ms_p50", name);
    farm_json_set_real(object, key, chaos_percentile_ms(samples, 50));
    snprintf(key, sizeof key, "%s_ms_p99", name);
    farm_json_set_real(object, key, chaos_percentile_ms(samples, 99));
}

static void set_origin(json_t *object, int argc, char **argv, const struct options *options, double wall_s) {
    char date[32], command[1024] = "build/chaos";
    const time_t now = time(NULL);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime(&now));
    for (int i = 1; i < argc; i++) {
        const size_t used = strlen(command);
        snprintf(command + used, sizeof command - used, " %s", argv[i]);
    }
    farm_json_set_text(object, "benchmark", "chaos_runner");
    farm_json_set_text(object, "commit", FARM_COMMIT);
    farm_json_set_text(object, "date", date);
    farm_json_set_text(object, "command", command);
    farm_json_set(object, "machine", machine());
    farm_json_set_int(object, "seed", (uint64_t)options->seed);
    farm_json_set_real(object, "wall_s", wall_s);
}

static json_t *document(int argc, char **argv, const struct options *options, const struct chaos_totals *totals,
                        double wall_s) {
    json_t *object = farm_json_object(true), *sentences = json_array();
    set_origin(object, argc, argv, options, wall_s);
    farm_json_set(object, "actor_kills", kills(totals->actor_kills, true));
    farm_json_set(object, "learner_kills", kills(totals->learner_kills, false));
    farm_json_set_int(object, "supervisor_kills", totals->supervisor_kills);
    farm_json_set_int(object, "store_places", chaos_sites(totals));
    const struct {
        const char *name;
        uint64_t value;
    } counts[] = {{"farms", totals->farms},
                  {"actor_lives", totals->generations},
                  {"steps_checked", totals->steps_checked},
                  {"answers_checked", totals->answers_checked},
                  {"steps_answered_again", totals->steps_again},
                  {"windows_checked", totals->windows_checked},
                  {"window_steps_checked", totals->window_steps_checked},
                  {"windows_trained_again", totals->windows_again},
                  {"abandoned_episodes", totals->abandoned},
                  {"transitions", totals->transitions},
                  {"transitions_uncounted", totals->uncounted_transitions},
                  {"games", totals->games},
                  {"games_uncounted", totals->uncounted_games},
                  {"checkpoints", totals->checkpoints},
                  {"checkpoints_loaded", totals->checkpoints_loaded},
                  {"rings_verified", totals->rings_verified},
                  {"counter_samples", totals->counters_sampled},
                  {"violations", totals->violations}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        farm_json_set_int(object, counts[i].name, counts[i].value);
    for (size_t i = 0; i < CHAOS_SENTENCES && totals->sentences[i][0]; i++)
        json_array_append_new(sentences, json_string(totals->sentences[i]));
    farm_json_set(object, "violation_texts", sentences);
    farm_json_set(object, "shmem_change_bytes", json_integer(totals->shmem_change_bytes));
    set_latency(object, "death_noticed", &totals->noticed);
    set_latency(object, "running_again", &totals->again);
    return object;
}

static bool add_line(const char *path, const json_t *object) {
    size_t bytes;
    char *line = farm_json_line(object, &bytes);
    const int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    const bool good = fd >= 0 && write(fd, line, bytes) == (ssize_t)bytes;
    if (!good) fprintf(stderr, "chaos: %s: %s\n", path, strerror(errno));
    if (fd >= 0) close(fd);
    free(line);
    return good;
}

int main(int argc, char **argv) {
    struct options options = {.actor_kills = 1000,
                              .learner_kills = 30,
                              .supervisor_kills = 10,
                              .rate = 80,
                              .standstill_s = 10,
                              .seed = (int64_t)time(NULL)};
    struct farm_error err;
    bool help;
    if (parse(argc, argv, &options, &help, &err)) {
        fprintf(stderr, "chaos: %s\n", err.message);
        return 2;
    }
    if (help) return 0;
    const struct chaos_request request = {.seed = (uint64_t)options.seed,
                                          .actor_kills = (uint64_t)options.actor_kills,
                                          .learner_kills = (uint64_t)options.learner_kills,
                                          .supervisor_kills = (uint64_t)options.supervisor_kills,
                                          .seconds = options.seconds,
                                          .actor_kills_per_s = options.rate,
                                          .standstill_s = options.standstill_s,
                                          .progress = true};
    struct chaos_totals *totals = malloc(sizeof *totals);
    if (!totals) return 1;
    const uint64_t start_ns = farm_now_ns();
    bool good = chaos_run(&request, totals);
    const double wall_s = (double)(farm_now_ns() - start_ns) * 1e-9;
    for (size_t i = 0; i < CHAOS_SENTENCES && totals->sentences[i][0]; i++)
        fprintf(stderr, "chaos: VIOLATION (seed %lld): %s\n", (long long)options.seed, totals->sentences[i]);
    json_t *object = document(argc, argv, &options, totals, wall_s);
    if (options.record) good &= add_line(options.record, object);
    if (options.json) good &= farm_json_print(object, stdout, NULL) == FARM_OK;
    json_decref(object);
    free(totals);
    return good ? 0 : 1;
}
