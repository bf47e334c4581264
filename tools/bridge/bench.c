// `farm bridge bench`: measures the path to another machine with bridge/measure.h; `farm bw --network` prints the same.
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/json.h"
#include "base/thread.h"
#include "bridge/address.h"
#include "bridge/engine.h"
#include "bridge/hub.h"
#include "run/bridges.h"
#include "tools/bridge/bridge.h"
#include "tools/shared/command.h"

static const char program[] = "farm bridge bench";

struct options {
    const char *listen, *key, *engine;
    double seconds, retry_s;
    bool insecure, json;
};

// ---- the report ----

static const struct {
    const char *title, *key, *ratio;
    double scale;
} rows[FARM_MEASURES] = {{"round trip of a step of %.1f KB, us", "round_trip_us", "round_trip_ratio", 1},
                         {"steps of %.1f KB, GB/s", "bytes_per_s", "bytes_per_s_ratio", 1e-9},
                         {"CPU of this side, s/GB", "cpu_s_per_gb", "cpu_s_per_gb_ratio", 1}};

struct farm_bw_figure farm_bridge_bench_figure(const struct farm_measure_result *result, enum farm_measure measure,
                                               enum farm_measure_way way) {
    return farm_bw_figure_of(result->value[measure][way], (int)result->rounds);
}

void farm_bridge_bench_tell(const struct farm_measure_result *result, FILE *out, json_t *object) {
    farm_json_set_int(object, "rounds", result->rounds);
    farm_json_set_bool(object, "interrupted", result->interrupted);
    if (!result->rounds) {
        fprintf(out, "stopped by a signal before the first round\n");
        farm_json_set_text(object, "not_measured", "stopped by a signal");
        return;
    }
    const uint32_t bytes[FARM_MEASURES] = {result->round_trip_bytes, result->stream_bytes};
    fprintf(out, "%s, %s, %u rounds; compared with plain blocking sockets, in the clear\n",
            result->uring ? "io_uring" : "poll(2)", result->encrypted ? "TLS 1.3" : "in the clear", result->rounds);
    fprintf(out, "  %-36s %10s %8s %10s %8s %7s\n", "", "bridge", "spread", "sockets", "spread", "ratio");
    for (int m = 0; m < FARM_MEASURES; m++) {
        const struct farm_bw_figure ours = farm_bridge_bench_figure(result, m, FARM_MEASURE_BRIDGE),
                                    theirs = farm_bridge_bench_figure(result, m, FARM_MEASURE_PLAIN);
        char title[64], key[64];
        snprintf(title, sizeof title, rows[m].title, bytes[m] * 1e-3);
        fprintf(out, "  %-36s %10.4g %7.0f%% %10.4g %7.0f%% %7.2f\n", title, ours.median * rows[m].scale,
                100 * ours.spread, theirs.median * rows[m].scale, 100 * theirs.spread, ours.median / theirs.median);
        for (int way = 0; way < FARM_MEASURE_WAYS; way++) {
            const struct farm_bw_figure *figure = way == FARM_MEASURE_BRIDGE ? &ours : &theirs;
            snprintf(key, sizeof key, "%s%s", way == FARM_MEASURE_BRIDGE ? "" : "reference_", rows[m].key);
            farm_json_set_real(object, key, figure->median);
            strcat(key, "_spread");
            farm_json_set_real(object, key, figure->spread);
        }
        farm_json_set_real(object, rows[m].ratio, ours.median / theirs.median);
    }
    farm_json_set_int(object, "round_trip_payload_bytes", result->round_trip_bytes);
    farm_json_set_int(object, "step_payload_bytes", result->stream_bytes);
    farm_json_set_text(object, "engine", result->uring ? "uring" : "poll");
    farm_json_set_bool(object, "encrypted", result->encrypted);
}

// ---- both sides ----

static void exit_on_signal(int number) {
    (void)number;
    _exit(0);
}

// Adds `more` to the port of "HOST:PORT"; 0 stays 0.
static void add_to_port(const char *text, int more, char out[FARM_ADDRESS_TEXT_BYTES]) {
    const char *port = strrchr(text, ':');
    const int number = port ? atoi(port + 1) : 0;
    snprintf(out, FARM_ADDRESS_TEXT_BYTES, "%.*s:%d", port ? (int)(port - text) : 0, text, number ? number + more : 0);
}

static enum farm_status serve_far_side(const struct options *options, struct farm_error *err) {
    struct farm_run_bridges *opened = calloc(FARM_MEASURE_PORTS, sizeof *opened);
    int listeners[FARM_MEASURE_PORTS];
    char address[FARM_ADDRESS_TEXT_BYTES];
    if (!opened) return farm_fail_errno(err, FARM_E_LIMIT, program);
    for (int p = 0; p < FARM_MEASURE_PORTS; p++) {
        add_to_port(options->listen, p, address);
        const struct farm_run_listen listen = {
            .address = p ? address : options->listen, .key = options->key, .engine = options->engine};
        const enum farm_status status = farm_run_bridges_open(&opened[p], &listen, "", err);
        if (status) return status;
        listeners[p] = opened[p].bridge[0].listener;
    }
    sigaction(SIGINT, &(struct sigaction){.sa_handler = exit_on_signal}, NULL);
    sigaction(SIGTERM, &(struct sigaction){.sa_handler = exit_on_signal}, NULL);
    printf("listening at %s, %s and %s; Ctrl-C ends it\n", opened[0].address, opened[1].address, opened[2].address);
    fflush(stdout);
    return farm_measure_serve(
        listeners,
        &(struct farm_hub_config){.key = opened[0].key, .withdrawn = &opened[0].withdrawn, .engine = options->engine},
        err);
}

static bool is_interrupted(void *signals) {
    return sigtimedwait(signals, NULL, &(struct timespec){0}) > 0;
}

static enum farm_status measure_path(const struct options *options, const char *address, struct farm_error *err) {
    struct farm_key *key = NULL;
    sigset_t signals = farm_ending_signals();
    struct farm_measure_config config = {.address = address,
                                         .engine = options->engine,
                                         .seconds = options->seconds,
                                         .retry_s = options->retry_s,
                                         .stop = is_interrupted,
                                         .context = &signals};
    static struct farm_measure_result result;
    sigprocmask(SIG_BLOCK, &signals, NULL);
    enum farm_status status = options->key ? farm_key_load(options->key, FARM_KEY_NODE, &key, NULL, err) : FARM_OK;
    config.key = key;
    if (!status) status = farm_measure_run(&config, &result, err);
    farm_key_free(key);
    if (status) return status;
    FILE *out = options->json ? fopen("/dev/null", "we") : stdout;
    if (!out) return farm_fail_errno(err, FARM_E_IO, "/dev/null");
    json_t *document = farm_json_object(true);
    farm_json_set_text(document, "address", address);
    farm_bridge_bench_tell(&result, out, document);
    if (options->json) status = farm_json_print(document, stdout, err);
    json_decref(document);
    return status;
}

static enum farm_status check_options(const struct options *options, const char *address, struct farm_error *err) {
    if (!address == !options->listen)
        return farm_fail(err, FARM_E_USAGE, "name the far side's ADDR:PORT, or use --listen there (--help)");
    if (!options->key == !options->insecure)
        return farm_fail(err, FARM_E_USAGE,
                         "--key FILE or --insecure is required: the learner's key with --listen, else a node's (farm "
                         "bridge keygen)");
    if (farm_engine_check_word(options->engine, err)) return FARM_E_USAGE;
    if (!(options->seconds >= 0.1 && options->seconds <= FARM_MEASURE_SECONDS_MAX))
        return farm_fail(err, FARM_E_USAGE, "--seconds %g: between 0.1 and %d", options->seconds,
                         FARM_MEASURE_SECONDS_MAX);
    if (!(options->retry_s >= 0.1 && options->retry_s <= 1e9))
        return farm_fail(err, FARM_E_USAGE, "--retry-s %g: between 0.1 and 1e9", options->retry_s);
    return FARM_OK;
}

int farm_bridge_bench(int argc, char **argv) {
    struct options options = {.engine = "auto", .seconds = 5, .retry_s = 10};
    const struct farm_cli_flag flags[] = {
        {"listen", FARM_CLI_STRING, &options.listen, "ADDR:PORT",
         "the far side: serves this port and the next two until Ctrl-C"},
        {"key", FARM_CLI_STRING, &options.key, "FILE",
         "the learner's key with --listen, else a node's (farm bridge keygen)"},
        {"insecure", FARM_CLI_BOOL, &options.insecure, NULL,
         "no key and no encryption: loopback and private addresses only"},
        {"bridge-engine", FARM_CLI_STRING, &options.engine, "auto|uring|poll",
         "how bytes move; auto: io_uring, or poll"},
        {"seconds", FARM_CLI_DOUBLE, &options.seconds, "S", "total time, about (5)"},
        {"retry-s", FARM_CLI_DOUBLE, &options.retry_s, "S", "longest wait for the far side (10)"},
        {"json", FARM_CLI_BOOL, &options.json, NULL, "one JSON document on stdout"},
    };
    const struct farm_cli cli = {
        .program = program,
        .synopsis = "ADDR:PORT --key FILE [--seconds S] [--json]\n"
                    "       farm bridge bench --listen ADDR:PORT --key FILE",
        .about = "Measures the path between two machines without environments or networks: the round trip of a small\n"
                 "lane step from publishing to its answer, and the rate of lane steps of eight observations of\n"
                 "28,224 B with sixteen lanes in flight. Plain blocking sockets with the same bytes run in turn.",
        .examples = "  farm bridge bench --listen 0.0.0.0:7710 --key farm.key     on the learner's machine\n"
                    "  farm bridge bench 10.0.0.5:7710 --key farm.key.node        on another one\n"
                    "  farm bw --only network --network 10.0.0.5:7710 --key farm.key.node\n",
        .flags = flags,
        .flag_count = sizeof flags / sizeof *flags,
    };
    const char *address = NULL;
    int exit_status;
    struct farm_error err;
    if (!farm_read_flags(&cli, argc, argv, &address, &exit_status)) return exit_status;
    enum farm_status status = check_options(&options, address, &err);
    if (!status) status = options.listen ? serve_far_side(&options, &err) : measure_path(&options, address, &err);
    return status ? farm_report_error(program, &err) : 0;
}
