// The bridge over veth between two network namespaces: streams against iperf3, AES and (where `make bench-peers
// B=bridge` has built it) gRPC, round trips against plain sockets, system calls, the path back after an outage, whole
// farms against the same farms on one machine. NAME is of the engine io_uring, NAME_poll of poll(2).
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
#include "bridge/net.h"
#include "bridge/pair.h"
#include "bridge/scale.h"
#include "common.h"
#include "ring/wait.h"

enum { ROUNDS = 5, ENGINES = 2, MODES = 2, AES_BYTES = 16384 };
static const char *const engine_names[ENGINES] = {"uring", "poll"};
static const double GB = 1e9;

struct run {
    struct farm_bench bench;
    struct bench_net net;
    bool engine[ENGINES]; // there is such an engine here
    const char *only;     // part; NULL: all
    bool scale;
    double stretch; // of samples, by --seconds
};

// "stream_clear" and "_poll"; lives as long as the program.
static const char *name_of(const char *name, int engine) {
    static char names[FARM_BENCH_RESULTS_MAX][48];
    static int count;
    farm_bench_check(count < FARM_BENCH_RESULTS_MAX, "too many results");
    snprintf(names[count], sizeof names[0], "%s%s", name, engine ? "_poll" : "");
    return names[count++];
}

static const char *where(const struct run *run, const char *what) {
    static char texts[FARM_BENCH_RESULTS_MAX][160];
    static int count;
    farm_bench_check(count < FARM_BENCH_RESULTS_MAX, "too many results");
    snprintf(texts[count], sizeof texts[0], "%s%s", what, run->net.loopback ? " (loopback: no namespaces here)" : "");
    return texts[count++];
}

// The ratio is the median of the rounds' ratios: what drifts over the run falls out.
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

// As `openssl speed -evp aes-128-gcm -bytes 16384`: one core, one update after another, GB/s.
static double aes_rate(double seconds) {
    static uint8_t bytes[AES_BYTES + 64];
    static const uint8_t key[16], iv[12];
    EVP_CIPHER_CTX *cipher = EVP_CIPHER_CTX_new();
    farm_bench_check(cipher && EVP_EncryptInit_ex(cipher, EVP_aes_128_gcm(), NULL, key, iv), "AES-128-GCM");
    const uint64_t start = farm_now_ns();
    uint64_t done = 0, now = start;
    for (int length; now - start < (uint64_t)(seconds * 1e9); now = farm_now_ns())
        for (int i = 0; i < 64; i++, done += AES_BYTES)
            farm_bench_check(EVP_EncryptUpdate(cipher, bytes, &length, bytes, AES_BYTES) == 1, "AES-128-GCM");
    EVP_CIPHER_CTX_free(cipher);
    return (double)done / (double)(now - start) / (GB / 1e9);
}

// sockperf's half round trip, doubled, in microseconds.
static double sockperf(const struct run *run, int bytes) {
    char text[8192], size[16];
    const char *server[] = {"sockperf", "server", "--tcp", "-i", run->net.address[BENCH_LEARNER], "-p", "11111", NULL};
    const pid_t pid = bench_net_start(&run->net, BENCH_LEARNER, true, NULL, server);
    snprintf(size, sizeof size, "%d", bytes);
    const char *argv[] = {"sockperf", "ping-pong", "--tcp", "-i", run->net.address[BENCH_LEARNER],
                          "-p",       "11111",     "-t",    "1",  "-m",
                          size,       "--pps=max", NULL};
    usleep(100000);
    const bool good = bench_net_run(&run->net, BENCH_NODE, argv, text, sizeof text);
    bench_net_end(pid);
    const char *at = good ? strstr(text, "percentile 50.000 =") : NULL;
    return at ? 2 * strtod(at + strlen("percentile 50.000 ="), NULL) : NAN;
}

// gRPC's stream by TLS with the same messages, where `make bench-peers B=bridge` has built it.
struct grpc {
    char folder[4096], program[4200], config[4200];
    pid_t server; // 0: not there
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

static double stream(const struct run *run, int engine, bool sealed, struct bench_pair_result *result) {
    const struct bench_pair pair = {.engine = engine_names[engine],
                                    .sealed = sealed,
                                    .rings = 1,
                                    .lanes = 4,
                                    .width = 8,
                                    .pixels = 28224,
                                    .steps = 16,
                                    .warm_s = 0.1,
                                    .seconds = 0.16 * run->stretch};
    bench_pair_run(&run->net, &pair, result);
    return (double)result->payload_bytes / (double)result->ns / (GB / 1e9);
}

static double cpu_s_per_gb(const struct bench_pair_result *result) {
    return (double)(result->cpu_ns[0] + result->cpu_ns[1]) * 1e-9 / ((double)result->payload_bytes / GB);
}

static void measure_streams(struct run *run) {
    enum { CLEAR, TLS };
    static double rate[ENGINES][MODES][ROUNDS], cpu[ENGINES][MODES][ROUNDS], line[ROUNDS], both[ENGINES][ROUNDS],
        peer[ROUNDS];
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
                struct bench_pair_result result;
                rate[e][mode][r] = stream(run, e, mode == TLS, &result);
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
            where(run, has ? "iperf3, one stream" : "missing: Debian package iperf3"), has ? line : NULL, ROUNDS, 0.95);
        add(run, name_of("stream_tls", e), "GB/s", "higher", rate[e][TLS],
            where(run, "1/(1/stream_clear + 1/AES-128-GCM of 16 KiB)"), both[e], ROUNDS, 0.85);
        if (grpc.server)
            add(run, name_of("stream_tls_grpc", e), "GB/s", "higher", rate[e][TLS],
                where(run, "gRPC's bidirectional stream by TLS, same messages"), peer, ROUNDS, 1.5);
        add(run, name_of("cpu_s_per_gb", e), "s/GB", "lower", cpu[e][CLEAR], NULL, NULL, ROUNDS, NAN);
        add(run, name_of("cpu_s_per_gb_tls", e), "s/GB", "lower", cpu[e][TLS], NULL, NULL, ROUNDS, NAN);
    }
}

// ---- round trips ----

enum { TRIP_PIXELS = 7056, TRIP_OUT = TRIP_PIXELS + 4 + 1 + 64, TRIP_BACK = 4 + 64 };

// Microseconds.
static double trip(const struct run *run, int engine, uint64_t spin_ns) {
    const struct bench_pair pair = {.engine = engine_names[engine],
                                    .rings = 1,
                                    .lanes = 1,
                                    .width = 1,
                                    .pixels = TRIP_PIXELS,
                                    .steps = 16,
                                    .spin_ns = spin_ns,
                                    .warm_s = 0.04,
                                    .seconds = 0.08 * run->stretch};
    struct bench_pair_result result;
    bench_pair_run(&run->net, &pair, &result);
    return result.trip_ns * 1e-3;
}

static void measure_trips(struct run *run) {
    enum { ASLEEP, SPINNING, WAYS };
    static const char *const names[WAYS] = {"round_trip", "round_trip_spinning"};
    static double ours[WAYS][ENGINES][ROUNDS], plain[ROUNDS];
    const uint64_t spin_ns = farm_wait_spin_ns(FARM_WAIT_ADAPTIVE, farm_bench_cpus() < 2);
    for (int r = 0; r < ROUNDS; r++) {
        plain[r] = bench_plain_trip(&run->net, TRIP_OUT, TRIP_BACK, 0.08 * run->stretch) * 1e-3;
        for (int e = 0; e < ENGINES; e++)
            for (int way = 0; run->engine[e] && way < (e ? 1 : WAYS); way++)
                ours[way][e][r] = trip(run, e, way == SPINNING ? spin_ns : 0);
    }
    for (int e = 0; e < ENGINES; e++)
        for (int way = 0; run->engine[e] && way < (e ? 1 : WAYS); way++)
            add(run, name_of(names[way], e), "us", "lower", ours[way][e],
                where(run, "plain blocking sockets, same bytes, in the clear"), plain, ROUNDS,
                way == ASLEEP ? 1.5 : NAN);
    double known = bench_net_has("sockperf") ? sockperf(run, TRIP_OUT) : NAN;
    if (!isnan(known))
        add(run, "round_trip_sockperf", "us", "lower", &known,
            where(run, "7,125 B there and back; plain sockets, 68 B back"), plain, 1, NAN);
    else
        farm_bench_add(&run->bench, "round_trip_sockperf", "us", "lower", &known, 1, "missing: Debian package sockperf",
                       NULL, 0, NAN);
}

// ---- system calls ----

static void measure_calls(struct run *run) {
    static double calls[ENGINES][ROUNDS];
    for (int r = 0; r < ROUNDS; r++) {
        for (int e = 0; e < ENGINES; e++) {
            const struct bench_pair pair = {.engine = engine_names[e],
                                            .rings = 1,
                                            .lanes = 16,
                                            .width = 16,
                                            .pixels = 400,
                                            .steps = 16,
                                            .warm_s = 0.04,
                                            .seconds = 0.12 * run->stretch};
            struct bench_pair_result result;
            if (!run->engine[e]) continue;
            bench_pair_run(&run->net, &pair, &result);
            calls[e][r] = 0;
            for (int side = 0; side < BENCH_SIDES; side++)
                calls[e][r] += 1000 * (double)result.calls[side] / (double)result.call_steps[side];
        }
    }
    for (int e = 0; e < ENGINES; e++)
        if (run->engine[e])
            add(run, name_of("syscalls_per_thousand_steps", e), "calls", "lower", calls[e], NULL, NULL, ROUNDS, 20);
}

// ---- outages ----

static double path_back_p99(const struct run *run, int engine, bool link, uint32_t cuts, uint32_t away_ms) {
    const struct bench_pair pair = {.engine = engine_names[engine],
                                    .sealed = true,
                                    .rings = 1,
                                    .lanes = 4,
                                    .width = 4,
                                    .pixels = 400,
                                    .steps = 16,
                                    .cuts = cuts,
                                    .link = link,
                                    .away_ms = away_ms};
    struct bench_pair_result result;
    bench_pair_run(&run->net, &pair, &result);
    farm_sort(result.again_ms, cuts);
    return farm_quantile(result.again_ms, cuts, 0.99);
}

static void measure_outages(struct run *run) {
    for (int e = 0; e < ENGINES; e++) {
        if (!run->engine[e]) continue;
        const double p99 = path_back_p99(run, e, false, 20, 60);
        add(run, name_of("reconnect_p99", e), "ms", "lower", &p99,
            where(run, "limit of 100 ms; the learner's bridge is away, TLS"), &(double){100}, 1, 1);
    }
}

// TCP's own patience shows here: what was sent into the void is sent again ever more seldom.
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
    struct bench_rates rates[ROUNDS];
    double remote[ROUNDS], local[ROUNDS], remote_cpu[ROUNDS], local_cpu[ROUNDS];
    if (!bench_random_rates(&run->net, engine_names[!run->engine[0]], ROUNDS, 0.6 * run->stretch, rates)) {
        fprintf(stderr, "bridge: remote_rate: no `farm` built, or ale/Pong cannot be played here\n");
        return;
    }
    for (int r = 0; r < ROUNDS; r++) {
        remote[r] = rates[r].remote;
        local[r] = rates[r].local;
        remote_cpu[r] = rates[r].remote_cpu * 1e-3;
        local_cpu[r] = rates[r].local_cpu * 1e-3;
    }
    add(run, "remote_rate", "steps/s", "higher", remote, where(run, "the same actor of ale/Pong, 2 x 16, local"), local,
        ROUNDS, 0.95);
    add(run, "inference_cpu", "us", "lower", remote_cpu, where(run, "local, a lane step of 16; random answers"),
        local_cpu, ROUNDS, 1.05);
}

static void measure_training(struct run *run) {
    struct bench_rates rates[ROUNDS];
    double remote[ROUNDS], local[ROUNDS];
    if (!bench_training_rates(&run->net, engine_names[!run->engine[0]], ROUNDS, 0.5 * run->stretch, rates)) {
        fprintf(stderr, "bridge: remote_training: no `farm` built, or it failed\n");
        return;
    }
    int count = 0;
    for (int r = 0; r < ROUNDS; r++) {
        if (isnan(rates[r].remote) || isnan(rates[r].local)) continue; // no line of metrics in this turn
        remote[count] = rates[r].remote;
        local[count++] = rates[r].local;
    }
    if (count < ROUNDS) fprintf(stderr, "bridge: remote_training: %d of %d rounds count\n", count, ROUNDS);
    if (count)
        add(run, "remote_training", "steps/s", "higher", remote, where(run, "the same actor of native/breakout, local"),
            local, count, 0.9);
}

// ---- many nodes ----

static void measure_scale(struct run *run) {
    for (int e = 0; e < ENGINES; e++) {
        double value[ROUNDS][6];
        static const char *const names[6][3] = {
            {"scale_join", "s", "lower"},         {"scale_rate", "lanesteps/s", "higher"},
            {"scale_cpu", "ns/step", "lower"},    {"scale_memory", "MB", "lower"},
            {"scale_ring_memory", "MB", "lower"}, {"scale_slowest_lane", "of mean", "higher"}};
        for (int r = 0; run->engine[e] && r < ROUNDS; r++) {
            struct bench_scale scale;
            bench_scale_run(&run->net, engine_names[e], 2 * run->stretch, &scale);
            memcpy(value[r],
                   (double[]){scale.join_s, scale.lane_steps_per_s, scale.cpu_ns, scale.memory_mb, scale.ring_mb,
                              scale.slowest},
                   sizeof value[r]);
        }
        for (int k = 0; run->engine[e] && k < 6; k++) {
            double one[ROUNDS];
            for (int r = 0; r < ROUNDS; r++) one[r] = value[r][k];
            add(run, name_of(names[k][0], e), names[k][1], names[k][2], one, NULL, NULL, ROUNDS, NAN);
        }
    }
}

// ---- all ----

static bool wanted(const struct run *run, const char *part) {
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
            fprintf(stderr, "bridge: no %s here: %s\n", engine_names[e], err.message);
    }
}

int main(int argc, char **argv) {
    static struct run run = {
        .bench = {.name = "bridge",
                  .about = "The bridge between two network namespaces: streams, round trips, system calls, outages. "
                           "Pins: the learner's side on the first CPU, the node's on the last."}};
    const struct farm_cli_flag flags[] = {
        {"scale", FARM_CLI_BOOL, &run.scale, NULL, "instead: 64 sessions of 256 lanes at one bridge"},
        {"only", FARM_CLI_STRING, &run.only, "PART", "stream, trip, calls, outage, random, training; link"},
    };
    run.bench.flags = flags;
    run.bench.flag_count = sizeof flags / sizeof *flags;
    farm_bench_start(&run.bench, argc, argv, 45);
    run.stretch = run.bench.seconds / 45;
    find_engines(&run);
    bench_net_make(&run.net);
    if (run.scale) measure_scale(&run);
    if (wanted(&run, "stream")) measure_streams(&run);
    if (wanted(&run, "trip")) measure_trips(&run);
    if (wanted(&run, "calls")) measure_calls(&run);
    if (wanted(&run, "outage")) measure_outages(&run);
    if (run.only && wanted(&run, "link")) measure_link(&run);
    if (wanted(&run, "random")) measure_random(&run);
    if (wanted(&run, "training")) measure_training(&run);
    return farm_bench_finish(&run.bench);
}
