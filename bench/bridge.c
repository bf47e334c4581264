// The bridge over veth between two network namespaces: streams against iperf3, AES and gRPC (if `make bench-peers
// B=bridge` has built it), round trips against plain sockets, system calls, the path back after an outage, many nodes,
// and whole farms against the same farms on one machine. NAME is the figure with io_uring, NAME_poll with poll(2).
#include <jansson.h>
#include <math.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/statistics.h"
#include "base/time.h"
#include "bridge/engine.h"
#include "bridge/farms.h"
#include "bridge/flood.h"
#include "bridge/net.h"
#include "bridge/pair.h"
#include "common.h"
#include "ring/wait.h"

enum { ROUNDS = 5, ENGINES = 2, MODES = 2, AES_BYTES = 16384 };
static const char *const engine_names[ENGINES] = {"uring", "poll"};
static const double GB = 1e9;

struct run {
    struct farm_bench bench;
    struct bench_net net;
    bool engine[ENGINES]; // whether this machine has it
    const char *only;     // part; NULL: all of the standard ones
    bool scale;
    double stretch; // factor of all durations, by --seconds
};

// A text that lives as long as the program.
static const char *keep_text(const char *first, const char *second) {
    char *text;
    must_hold(asprintf(&text, "%s%s", first, second) >= 0, "memory");
    return text;
}

static const char *name_of(const char *name, int engine) {
    return keep_text(name, engine ? "_poll" : "");
}

static const char *reference_name(const struct run *run, const char *what) {
    return keep_text(what, run->net.loopback ? " (loopback: no namespaces here)" : "");
}

static struct bench_pair_result run_pair(const struct run *run, int engine, struct bench_pair pair) {
    struct bench_pair_result result;
    pair.engine = engine_names[engine];
    pair.steps = pair.steps ? pair.steps : 16;
    pair.rings = pair.rings ? pair.rings : 1;
    pair.nodes = pair.nodes ? pair.nodes : 1;
    pair.seconds *= run->stretch;
    bench_pair_run(&run->net, &pair, &result);
    return result;
}

// The ratio is the median of the rounds' ratios, so that drift over the run cancels.
static void add(struct run *run, const char *name, const char *unit, const char *better, const double *ours,
                const char *reference, const double *theirs, int count, double target) {
    double a[64], b[64], ratios[64];
    for (int i = 0; i < count; i++) {
        a[i] = ours[i];
        b[i] = theirs ? theirs[i] : NAN;
        ratios[i] = a[i] / b[i];
    }
    farm_bench_add(&run->bench, name, unit, better, a, (size_t)count, reference, theirs ? b : NULL, (size_t)count,
                   target);
    if (theirs) run->bench.results[run->bench.count - 1].ratio = farm_median(ratios, (size_t)count, NULL);
}

// ---- references ----

// One second of one stream, GB/s.
static double iperf3(const struct run *run, int port) {
    static char text[1 << 20];
    char at[16];
    double rate = NAN;
    snprintf(at, sizeof at, "%d", port);
    const char *argv[] = {"iperf3", "-c", run->net.address[BENCH_LEARNER], "-p", at, "-t", "1", "-J", NULL};
    if (!bench_net_run(&run->net, BENCH_NODE, argv, text, sizeof text)) return NAN;
    json_t *document = json_loads(text, 0, NULL);
    const json_t *bits =
        json_object_get(json_object_get(json_object_get(document, "end"), "sum_received"), "bits_per_second");
    if (json_is_number(bits)) rate = json_number_value(bits) / 8 / GB;
    json_decref(document);
    return rate;
}

// GB/s of one core, as `openssl speed -evp aes-128-gcm -bytes 16384` measures it.
static double aes_rate(double seconds) {
    static uint8_t bytes[AES_BYTES + 64];
    static const uint8_t key[16], iv[12];
    EVP_CIPHER_CTX *cipher = EVP_CIPHER_CTX_new();
    must_hold(cipher && EVP_EncryptInit_ex(cipher, EVP_aes_128_gcm(), NULL, key, iv), "AES-128-GCM");
    const uint64_t start = farm_now_ns();
    uint64_t done = 0, now = start;
    for (int length; now - start < (uint64_t)(seconds * 1e9); now = farm_now_ns())
        for (int i = 0; i < 64; i++, done += AES_BYTES)
            must_hold(EVP_EncryptUpdate(cipher, bytes, &length, bytes, AES_BYTES) == 1, "AES-128-GCM");
    EVP_CIPHER_CTX_free(cipher);
    return (double)done / (double)(now - start) / (GB / 1e9);
}

// gRPC's stream by TLS with the same messages, if `make bench-peers B=bridge` has built it.
struct grpc {
    char folder[4096], program[4200], config[4200];
    pid_t server; // 0: not built
};

static void start_grpc(const struct run *run, struct grpc *grpc) {
    char at[64];
    *grpc = (struct grpc){0};
    if (!bench_farm_program(grpc->folder, sizeof grpc->folder)) return;
    *strrchr(grpc->folder, '/') = 0;
    strncat(grpc->folder, "/peers/debian/bridge", sizeof grpc->folder - strlen(grpc->folder) - 1);
    snprintf(grpc->program, sizeof grpc->program, "%s/grpc_stream", grpc->folder);
    snprintf(grpc->config, sizeof grpc->config, "OPENSSL_CONF=%s/openssl.cnf", grpc->folder);
    snprintf(at, sizeof at, "%s:5202", run->net.address[BENCH_LEARNER]);
    if (access(grpc->program, X_OK)) return;
    const char *argv[] = {"env", grpc->config, grpc->program, "server", grpc->folder, at, NULL};
    grpc->server = bench_net_start(&run->net, BENCH_LEARNER, true, NULL, argv);
}

// GB/s
static double grpc_rate(const struct run *run, const struct grpc *grpc) {
    char at[64], text[64], seconds[16];
    snprintf(at, sizeof at, "%s:5202", run->net.address[BENCH_LEARNER]);
    snprintf(seconds, sizeof seconds, "%.2f", 0.16 * run->stretch);
    const char *argv[] = {"env",    grpc->config, grpc->program, "client", grpc->folder, at,
                          "225832", "4",          "0.1",         seconds,  NULL};
    return bench_net_run(&run->net, BENCH_NODE, argv, text, sizeof text) ? strtod(text, NULL) / GB : (double)NAN;
}

// ---- streams ----

static double cpu_s_per_gb(const struct bench_pair_result *result) {
    return (double)(result->cpu_ns[0] + result->cpu_ns[1]) * 1e-9 / ((double)result->payload_bytes / GB);
}

static void measure_streams(struct run *run) {
    enum { CLEAR, TLS };
    static double rate[ENGINES][MODES][ROUNDS], cpu[ENGINES][MODES][ROUNDS], line[ROUNDS], both[ENGINES][ROUNDS],
        peer[ROUNDS];
    struct bench_pair pair = {.lanes = 4, .width = 8, .pixels = 28224, .warm_s = 0.1, .seconds = 0.16};
    struct grpc grpc;
    const char *const server[] = {"iperf3", "-s", "-p", "5201", NULL};
    const bool has = bench_net_has("iperf3");
    const pid_t pid = has ? bench_net_start(&run->net, BENCH_LEARNER, true, NULL, server) : 0;
    start_grpc(run, &grpc);
    usleep(300000);
    for (int r = 0; r < ROUNDS; r++) {
        line[r] = has ? iperf3(run, 5201) : NAN;
        peer[r] = grpc.server ? grpc_rate(run, &grpc) : NAN;
        for (int e = 0; e < ENGINES; e++) {
            for (int mode = CLEAR; run->engine[e] && mode <= TLS; mode++) {
                pair.sealed = mode == TLS;
                const struct bench_pair_result result = run_pair(run, e, pair);
                rate[e][mode][r] = (double)result.payload_bytes / (double)result.ns / (GB / 1e9);
                cpu[e][mode][r] = cpu_s_per_gb(&result);
            }
            both[e][r] = 1 / (1 / rate[e][CLEAR][r] + 1 / aes_rate(0.05));
        }
    }
    if (has) bench_net_end(pid);
    if (grpc.server) bench_net_end(grpc.server);
    for (int e = 0; e < ENGINES; e++) {
        if (!run->engine[e]) continue;
        add(run, name_of("stream_clear", e), "GB/s", "higher", rate[e][CLEAR],
            reference_name(run, has ? "iperf3, one stream" : "missing: Debian package iperf3"), has ? line : NULL,
            ROUNDS, 0.95);
        add(run, name_of("stream_tls", e), "GB/s", "higher", rate[e][TLS],
            reference_name(run, "1/(1/stream_clear + 1/AES-128-GCM of 16 KiB)"), both[e], ROUNDS, 0.85);
        if (grpc.server)
            add(run, name_of("stream_tls_grpc", e), "GB/s", "higher", rate[e][TLS],
                reference_name(run, "gRPC's bidirectional stream by TLS, same messages"), peer, ROUNDS, 1.5);
        add(run, name_of("cpu_s_per_gb", e), "s/GB", "lower", cpu[e][CLEAR], NULL, NULL, ROUNDS, NAN);
        add(run, name_of("cpu_s_per_gb_tls", e), "s/GB", "lower", cpu[e][TLS], NULL, NULL, ROUNDS, NAN);
    }
}

// ---- round trips ----

enum { TRIP_PIXELS = 7056, TRIP_OUT = TRIP_PIXELS + 4 + 1 + 64, TRIP_BACK = 4 + 64 };

static void measure_trips(struct run *run) {
    enum { ASLEEP, SPINNING, WAYS };
    static const char *const names[WAYS] = {"round_trip", "round_trip_spinning"};
    static double ours[WAYS][ENGINES][ROUNDS], plain[ROUNDS];
    struct bench_pair pair = {.lanes = 1, .width = 1, .pixels = TRIP_PIXELS, .warm_s = 0.04, .seconds = 0.08};
    const uint64_t spin_ns = farm_wait_spin_ns(FARM_WAIT_ADAPTIVE, farm_bench_cpus() < 2);
    for (int r = 0; r < ROUNDS; r++) {
        plain[r] = bench_plain_trip(&run->net, TRIP_OUT, TRIP_BACK, 0.08 * run->stretch) * 1e-3;
        for (int e = 0; e < ENGINES; e++)
            for (int way = 0; run->engine[e] && way < (e ? 1 : WAYS); way++) {
                pair.spin_ns = way == SPINNING ? spin_ns : 0;
                ours[way][e][r] = 1e-3 * run_pair(run, e, pair).trip_ns;
            }
    }
    for (int e = 0; e < ENGINES; e++)
        for (int way = 0; run->engine[e] && way < (e ? 1 : WAYS); way++)
            add(run, name_of(names[way], e), "us", "lower", ours[way][e],
                reference_name(run, "plain blocking sockets, same bytes, in the clear"), plain, ROUNDS,
                way == ASLEEP ? 1.5 : NAN);
}

// ---- system calls ----

static void measure_calls(struct run *run) {
    const struct bench_pair pair = {.lanes = 16, .width = 16, .pixels = 400, .warm_s = 0.04, .seconds = 0.12};
    static double calls[ENGINES][ROUNDS];
    for (int r = 0; r < ROUNDS; r++)
        for (int e = 0; e < ENGINES; e++) {
            if (!run->engine[e]) continue;
            const struct bench_pair_result result = run_pair(run, e, pair);
            for (int side = 0; side < BENCH_SIDES; side++)
                calls[e][r] += 1000 * (double)result.calls[side] / (double)result.call_steps[side];
        }
    for (int e = 0; e < ENGINES; e++)
        if (run->engine[e])
            add(run, name_of("syscalls_per_thousand_steps", e), "calls", "lower", calls[e], NULL, NULL, ROUNDS, 20);
}

// ---- outages ----

static double path_back_p99(const struct run *run, int engine, bool link, uint32_t cuts, uint32_t away_ms) {
    struct bench_pair_result result = run_pair(
        run, engine,
        (struct bench_pair){
            .sealed = true, .lanes = 4, .width = 4, .pixels = 400, .cuts = cuts, .link = link, .away_ms = away_ms});
    farm_sort(result.again_ms, cuts);
    return farm_quantile(result.again_ms, cuts, 0.99);
}

static void measure_outages(struct run *run) {
    for (int e = 0; e < ENGINES; e++) {
        if (!run->engine[e]) continue;
        const double p99 = path_back_p99(run, e, false, 20, 60);
        add(run, name_of("reconnect_p99", e), "ms", "lower", &p99,
            reference_name(run, "limit of 100 ms; the learner's bridge is away, TLS"), &(double){100}, 1, 1);
    }
}

// TCP's back-off shows here: what was sent while the link was down is sent again at growing intervals.
static void measure_link(struct run *run) {
    for (int e = 0; e < ENGINES; e++) {
        if (!run->engine[e] || run->net.loopback) continue;
        const double p99 = path_back_p99(run, e, true, 8, 2000);
        add(run, name_of("reconnect_link_down", e), "ms", "lower", &p99, "longest of 8 outages of the link", NULL, 1,
            NAN);
    }
}

// ---- whole farms ----

static void measure_random(struct run *run) {
    struct bench_rates rates;
    if (!bench_random_rates(&run->net, engine_names[!run->engine[0]], ROUNDS, 0.6 * run->stretch, &rates)) {
        fprintf(stderr, "bridge: remote_rate: `farm` is not built, or ale/Pong cannot be played here\n");
        return;
    }
    add(run, "remote_rate", "steps/s", "higher", rates.steps_per_s[BENCH_REMOTE],
        reference_name(run, "the same actor of ale/Pong, 2 x 16, local"), rates.steps_per_s[BENCH_LOCAL], ROUNDS, 0.95);
    add(run, "inference_cpu", "us", "lower", rates.cpu_us[BENCH_REMOTE],
        reference_name(run, "local, a lane step of 16; random answers"), rates.cpu_us[BENCH_LOCAL], ROUNDS, 1.05);
}

static void measure_training(struct run *run) {
    struct bench_rates rates;
    if (!bench_training_rates(&run->net, engine_names[!run->engine[0]], ROUNDS, 0.5 * run->stretch, &rates)) {
        fprintf(stderr, "bridge: remote_training: `farm` is not built, or it failed\n");
        return;
    }
    if (rates.rounds < ROUNDS)
        fprintf(stderr, "bridge: remote_training: %d of %d rounds count\n", rates.rounds, ROUNDS);
    if (rates.rounds)
        add(run, "remote_training", "steps/s", "higher", rates.steps_per_s[BENCH_REMOTE],
            reference_name(run, "the same actor of native/breakout, local"), rates.steps_per_s[BENCH_LOCAL],
            rates.rounds, 0.9);
}

// ---- many nodes ----

// 64 sessions of 256 lanes at one bridge of one thread, from a load generator.
static void measure_scale(struct run *run) {
    enum { NODES = 64, RINGS = 4, LANES = 64, FIGURES = 6 };
    static const char *const names[FIGURES][3] = {
        {"scale_join", "s", "lower"},         {"scale_rate", "lanesteps/s", "higher"},
        {"scale_cpu", "ns/step", "lower"},    {"scale_memory", "MB", "lower"},
        {"scale_ring_memory", "MB", "lower"}, {"scale_slowest_lane", "of mean", "higher"}};
    struct bench_pair pair = {.nodes = NODES, .rings = RINGS, .lanes = LANES, .width = 1, .pixels = 400, .seconds = 2};
    pair.sealed = true;
    pair.steps = 8;
    for (int e = 0; e < ENGINES; e++) {
        double value[FIGURES][ROUNDS];
        if (!run->engine[e]) continue;
        for (int r = 0; r < ROUNDS; r++) {
            const struct bench_pair_result result = run_pair(run, e, pair);
            const double steps = (double)result.lane_steps;
            value[0][r] = result.join_s;
            value[1][r] = steps / ((double)result.ns * 1e-9);
            value[2][r] = (double)(result.cpu_ns[BENCH_LEARNER] - result.answering_ns) / steps;
            value[3][r] = result.bridge_mb;
            value[4][r] = result.ring_mb;
            value[5][r] = (double)result.least_lane_steps / (steps / (NODES * RINGS * LANES));
        }
        for (int k = 0; k < FIGURES; k++)
            add(run, name_of(names[k][0], e), names[k][1], names[k][2], value[k], NULL, NULL, ROUNDS, NAN);
    }
}

// ---- strangers ----

// A node's rate beside strangers of all shapes: 1,800 connections a second, and as many as one CPU makes. The bridge
// and the node have the first CPU, the strangers the last.
static void measure_flood(struct run *run) {
    enum { TIMES = 9, FLOODS = 2 };
    static const char *const names[FLOODS] = {"rate_under_flood", "rate_under_full_flood"};
    static double rate[2][TIMES];
    struct bench_pair pair = {.sealed = true, .lanes = 1, .width = 1, .pixels = TRIP_PIXELS, .warm_s = 1.5};
    pair.seconds = 0.3;
    pair.beside = true;
    for (int e = 0; e < ENGINES; e++)
        for (int full = 0; full < FLOODS && run->engine[e]; full++) {
            pair.flood_hz = full ? BENCH_FLOOD_FULL : 1800;
            for (int r = 0; r < 2 * TIMES; r++) {
                pair.floods = r % 2;
                const struct bench_pair_result result = run_pair(run, e, pair);
                rate[r % 2][r / 2] = (double)result.lane_steps / ((double)result.ns * 1e-9);
                if (r == 2 * TIMES - 1) fprintf(stderr, "bridge: %s: %.0f strangers/s\n", names[full], result.flood_hz);
            }
            add(run, name_of(names[full], e), "steps/s", "higher", rate[1], reference_name(run, "without strangers"),
                rate[0], TIMES, 0.9);
        }
}

// ---- all ----

static bool is_wanted(const struct run *run, const char *part) {
    return !run->scale && (!run->only || strcmp(run->only, part) == 0);
}

static void find_engines(struct run *run) {
    for (int e = 0; e < ENGINES; e++) {
        const struct farm_engine_ops *ops;
        struct farm_engine *engine;
        struct farm_error err;
        run->engine[e] = farm_engine_make(engine_names[e], 1, 1, &ops, &engine, &err) == FARM_OK;
        if (run->engine[e])
            ops->destroy(engine);
        else
            fprintf(stderr, "bridge: %s is unavailable: %s\n", engine_names[e], err.message);
    }
}

int main(int argc, char **argv) {
    static struct run run = {
        .bench = {.name = "bridge",
                  .about = "The bridge between two network namespaces: streams, round trips, system calls, outages. "
                           "Pins: the learner's side on the first CPU, the node's on the last."}};
    const struct farm_cli_flag flags[] = {
        {"scale", FARM_CLI_BOOL, &run.scale, NULL, "instead: 64 sessions of 256 lanes at one bridge"},
        {"only", FARM_CLI_STRING, &run.only, "PART", "stream, trip, calls, outage, random, training; link, flood"},
    };
    run.bench.flags = flags;
    run.bench.flag_count = sizeof flags / sizeof *flags;
    farm_bench_start(&run.bench, argc, argv, 45);
    run.stretch = run.bench.seconds / 45;
    find_engines(&run);
    bench_net_make(&run.net);
    if (run.scale) measure_scale(&run);
    if (is_wanted(&run, "stream")) measure_streams(&run);
    if (is_wanted(&run, "trip")) measure_trips(&run);
    if (is_wanted(&run, "calls")) measure_calls(&run);
    if (is_wanted(&run, "outage")) measure_outages(&run);
    if (run.only && is_wanted(&run, "link")) measure_link(&run);
    if (run.only && is_wanted(&run, "flood")) measure_flood(&run);
    if (is_wanted(&run, "random")) measure_random(&run);
    if (is_wanted(&run, "training")) measure_training(&run);
    return farm_bench_finish(&run.bench);
}
