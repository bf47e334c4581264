// The whole update as the learner's training thread has it made, in observations per second: 672 of them (32 windows of
// 20 steps and the one behind) by the backend that the learner opens, through the same function. Lists, gathering and
// stacking, forward, V-trace, losses, backward, clipping, RMSProp, publication for inference, and the host's waiting
// for the end are in it. The rings are full, so that the next update's windows wait already and are begun before
// this one's end is waited for, as where training is what limits a run. Each update has other windows than those before
// it, of 32 environments spread over four rings.
//
//   update_NET_full     the data lies on the device: inference has filled the mirror
//   update_NET_window, update_NET_off     from host memory: windows are pulled, frames are read where they lie
//
//   update [--library FILE] [--only NET] [--few yes]     exit status: 0, 1 failed, 77 no GPU
//
// few: to see that it runs, not how fast. Each network has a process of its own, so that one that fails stops no other.
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "algo/vtrace.h"
#include "base/log.h"
#include "base/statistics.h"
#include "base/time.h"
#include "farm_build.h"
#include "learner/backend_module.h"
#include "learner/lanes.h"
#include "work.h"

enum { RINGS_MAX = 4, LANES = 8, WIDTH = 8, ROUNDS = 10, WARMUP = 3, INFER_MOST = 64, WINDOWS_MAX = 8 };
static const double ROUND_S = 0.2;
static const char *const nets[] = {"shallow", "nature", "deep"};
static const struct {
    const char *name;
    enum farm_mirror mode;
} mirrors[] = {{"full", FARM_MIRROR_FULL}, {"window", FARM_MIRROR_WINDOW}, {"off", FARM_MIRROR_OFF}};
enum { NETS = sizeof nets / sizeof *nets, MIRRORS = sizeof mirrors / sizeof *mirrors };

// How much: as it is measured, or to see that it runs.
struct size {
    uint32_t rings, lanes, width, steps, batch, rounds;
};

// What the process of one network leaves.
struct result {
    bool measured[MIRRORS];
    double observations_per_s[MIRRORS][ROUNDS], bytes_per_update[MIRRORS];
    uint64_t updates[MIRRORS];
    struct farm_error err;
};

// A learner without its loop: rings, their lanes, a backend.
struct table {
    const struct size *size;
    struct farm_ring made[RINGS_MAX], actors[RINGS_MAX];
    struct farm_lanes lanes;
    struct farm_stats stats;
    struct farm_learner_config config;
    struct farm_algo_plan plan;
    struct farm_net net;
    const struct farm_backend_ops *ops;
    struct farm_backend *backend;
    uint64_t played;  // steps of each lane
    uint64_t updates; // made
};

static uint32_t lane_count(const struct table *table) {
    return table->size->rings * table->size->lanes;
}

// ---- start and end ----

static struct farm_learner_config config_of(struct table *table, const char *net, enum farm_mirror mirror) {
    return (struct farm_learner_config){.stats = &table->stats,
                                        .seed = 1,
                                        .net = *farm_net_find(net, NULL),
                                        .io = work_io(false),
                                        .algo = work_algo(false, table->size->batch),
                                        .precision = FARM_PRECISION_BF16,
                                        .mirror = mirror,
                                        .train_threads = 1,
                                        .infer_batch_max = INFER_MOST < lane_count(table) * table->size->width
                                                               ? INFER_MOST
                                                               : lane_count(table) * table->size->width,
                                        .spin_ns = UINT64_C(1000000000),
                                        .memory_node = -1,
                                        .frames_per_step = 1};
}

static enum farm_status open_rings(struct table *table, struct farm_error *err) {
    const struct farm_ring_spec spec = work_ring(false, table->size->lanes, table->size->width, table->size->steps);
    int fds[RINGS_MAX][2];
    for (uint32_t r = 0; r < table->size->rings; r++) {
        enum farm_status status = farm_ring_create(&spec, r, -1, true, &table->made[r], err);
        if (!status)
            status = farm_ring_open(dup(table->made[r].up.fd), dup(table->made[r].down.fd_readonly), FARM_RING_ACTOR,
                                    &table->actors[r], err);
        if (status) return status;
        fds[r][0] = dup(table->made[r].up.fd_readonly);
        fds[r][1] = dup(table->made[r].down.fd);
    }
    return farm_lanes_open(fds, table->size->rings, &table->plan.shape, NULL, &table->lanes, err);
}

static enum farm_status open_table(struct table *table, const char *net, enum farm_mirror mirror,
                                   struct farm_error *err) {
    table->config = config_of(table, net, mirror);
    enum farm_status status = farm_net_make(&table->config.net, &table->config.io, &table->net, err);
    if (!status) status = farm_algo_plan_make(&table->config.algo, &table->plan, err);
    if (!status) status = open_rings(table, err);
    if (status) return status;
    const struct farm_backend_config backend = {.learner = &table->config,
                                                .plan = &table->plan,
                                                .net = &table->net,
                                                .head = farm_head_categorical(ACTIONS),
                                                .width_max = table->lanes.width_max,
                                                .columns_max = table->size->batch,
                                                .lanes = &table->lanes,
                                                .shards = 1};
    for (uint32_t r = 0; r < table->size->rings; r++)
        farm_lanes_lend_writable(&table->lanes, r, dup(table->made[r].up.fd));
    status = table->ops->create(&backend, &table->backend, err);
    farm_lanes_end_writable(&table->lanes);
    return status;
}

static void close_table(struct table *table) {
    if (table->backend) table->ops->destroy(table->backend);
    farm_lanes_close(&table->lanes);
    for (uint32_t r = 0; r < table->size->rings; r++) {
        farm_ring_close(&table->actors[r]);
        farm_ring_close(&table->made[r]);
    }
}

// ---- playing, until the rings are full ----

static enum farm_status answer(struct table *table, struct farm_error *err) {
    struct farm_infer_rows rows[INFER_MOST];
    uint32_t count = 0, environments = 0;
    for (uint32_t id = 0; id < lane_count(table); id++) {
        struct farm_lane *lane = table->lanes.lanes[id].lane;
        rows[count++] =
            (struct farm_infer_rows){.lane = lane, .lane_id = id, .n = table->played, .env_count = lane->width};
        environments += lane->width;
        if (environments + lane->width <= table->config.infer_batch_max && id + 1 < lane_count(table)) continue;
        const enum farm_status status = table->ops->infer(table->backend, 0, rows, count, err);
        if (status) return status;
        count = environments = 0;
    }
    return FARM_OK;
}

static enum farm_status play(struct table *table, struct farm_error *err) {
    for (; table->played < table->size->steps - STACK; table->played++) {
        for (uint32_t id = 0; id < lane_count(table); id++) {
            struct farm_lane *actors = &table->actors[id / table->size->lanes].lanes[id % table->size->lanes];
            work_write_step(actors);
            farm_lane_actor_publish(actors);
            if (!farm_lanes_take_in(&table->lanes.lanes[id], 0, &table->stats))
                return farm_fail(err, FARM_E_INVALID, "lane %u: a step is not taken in", id);
        }
        const enum farm_status status = answer(table, err);
        if (status) return status;
        for (uint32_t id = 0; id < lane_count(table); id++) {
            if (!table->ops->stores_acted) farm_lane_answer(table->lanes.lanes[id].lane, table->played);
            if (farm_lane_acted(table->lanes.lanes[id].lane) != table->played + 1)
                return farm_fail(err, FARM_E_INVALID, "lane %u: no answer to step %llu", id,
                                 (unsigned long long)table->played);
            table->lanes.lanes[id].answered++;
        }
    }
    return FARM_OK;
}

// ---- updates ----

// Begins update k: its windows are of lanes that lie as far apart as they can, then the next ones, then the next window
// of all.
static enum farm_status begin(struct table *table, uint64_t k, struct farm_error *err) {
    const uint32_t lanes = lane_count(table), each = table->size->batch / table->size->width, apart = lanes / each;
    const uint64_t count = (table->played - 1) / UNROLL;
    struct farm_window windows[WINDOWS_MAX];
    for (uint32_t i = 0; i < each; i++) {
        const uint32_t id = i * apart + (uint32_t)(k % apart);
        windows[i] = (struct farm_window){.lane = table->lanes.lanes[id].lane,
                                          .lane_id = id,
                                          .start = k / apart % count * UNROLL,
                                          .env_count = table->size->width};
    }
    return table->ops->begin(table->backend, (uint32_t)(k % FARM_BACKEND_SLOTS), windows, each, err);
}

static enum farm_status train(struct table *table, struct farm_error *err) {
    const struct farm_pass pass = {.learning_rate = 1e-5};
    const uint64_t k = table->updates++;
    struct farm_pass_stats stats;
    enum farm_status status = k ? FARM_OK : begin(table, k, err);
    if (!status) status = table->ops->pass(table->backend, (uint32_t)(k % FARM_BACKEND_SLOTS), &pass, err);
    if (!status) status = table->ops->publish(table->backend, k + 1, err);
    if (!status) status = begin(table, k + 1, err);
    if (!status) status = table->ops->finish(table->backend, &stats, err);
    if (status || (isfinite(stats.grad_norm) && stats.terms[0] == UNROLL * table->size->batch)) return status;
    return farm_fail(err, FARM_E_INVALID, "update %llu has a gradient's norm of %g over %g rows", (unsigned long long)k,
                     stats.grad_norm, stats.terms[0]);
}

// Observations per second of `count` updates; 0 where one failed.
static double rate(struct table *table, uint64_t count, struct farm_error *err) {
    const uint64_t start = farm_now_ns();
    for (uint64_t i = 0; i < count; i++)
        if (train(table, err)) return 0;
    return (double)count * table->size->batch * (UNROLL + 1) / ((double)(farm_now_ns() - start) * 1e-9);
}

static enum farm_status measure(struct table *table, int mirror, struct result *result) {
    enum farm_status status = play(table, &result->err);
    if (status) return status;
    const uint32_t rounds = table->size->rounds;
    const double first = rounds < ROUNDS ? 1 : rate(table, WARMUP, &result->err);
    if (first > 0 && rounds == ROUNDS && rate(table, WARMUP, &result->err) <= 0) return FARM_E_IO;
    const double at_once = first * ROUND_S / (table->size->batch * (UNROLL + 1)) + 1;
    const uint64_t before = farm_load_relaxed(&table->stats.bus_train_bytes), updates = table->updates;
    for (uint32_t i = 0; i < rounds && first > 0; i++) {
        result->observations_per_s[mirror][i] = rate(table, (uint64_t)at_once, &result->err);
        if (result->observations_per_s[mirror][i] <= 0) return FARM_E_IO;
    }
    if (first <= 0) return FARM_E_IO;
    result->updates[mirror] = table->updates - updates;
    result->bytes_per_update[mirror] =
        (double)(farm_load_relaxed(&table->stats.bus_train_bytes) - before) / (double)result->updates[mirror];
    result->measured[mirror] = true;
    return FARM_OK;
}

// ---- the network's process, and what it leaves ----

static int run(const char *net, const char *library, const struct size *size, struct result *result) {
    const struct farm_backend_ops *ops;
    enum farm_status status = farm_backend_module_open(library, &ops, &result->err);
    for (int m = 0; m < MIRRORS && !status; m++) {
        struct table *table = calloc(1, sizeof *table);
        if (!table) return 1;
        table->size = size;
        table->ops = ops;
        status = open_table(table, net, mirrors[m].mode, &result->err);
        if (!status) status = measure(table, m, result);
        close_table(table);
        free(table);
    }
    return status == FARM_E_UNSUPPORTED || status == FARM_E_NOT_FOUND ? 77 : status ? 1 : 0;
}

static int run_apart(const char *net, const char *library, const struct size *size, struct result *result) {
    const pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        farm_log_set_role("learner");
        _exit(run(net, library, size, result));
    }
    int status = 1;
    if (pid < 0 || waitpid(pid, &status, 0) != pid) return 1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static void print(const char *net, int mirror, struct result *result, const struct size *size, bool first) {
    double *rates = result->observations_per_s[mirror];
    double spread;
    const double median = farm_median(rates, size->rounds, &spread);
    printf("%s\n  {\"name\": \"update_%s_%s\", \"value\": %.1f, \"unit\": \"observations/s\", \"better\": \"higher\", "
           "\"spread\": %.4f, \"us\": %.2f, \"updates\": %llu, \"bus_bytes_per_update\": %.0f}",
           first ? "" : ",", net, mirrors[mirror].name, median, spread, 1e6 * size->batch * (UNROLL + 1) / median,
           (unsigned long long)result->updates[mirror], result->bytes_per_update[mirror]);
}

int main(int argc, char **argv) {
    static const struct size whole = {RINGS_MAX, LANES, WIDTH, RING_STEPS, BATCH, ROUNDS}, few = {1, 1, 1, 26, 1, 1};
    const char *library = "build/libfarm_cuda.so", *only = NULL;
    const struct size *size = &whole;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--library") == 0) library = argv[i + 1];
        if (strcmp(argv[i], "--only") == 0) only = argv[i + 1];
        if (strcmp(argv[i], "--few") == 0) size = &few;
    }
    printf("{\"schema_version\": 1, \"benchmark\": \"cuda_update\", \"commit\": \"%s\", \"results\": [", FARM_COMMIT);
    fflush(stdout);
    int worst = 0, tried = 0, printed = 0;
    for (int n = 0; n < NETS && worst != 77; n++) {
        if (only && strcmp(nets[n], only) != 0) continue;
        struct result *result = work_shared(sizeof *result);
        const int status = run_apart(nets[n], library, size, result);
        tried++;
        if (status) fprintf(stderr, "update: %s: %s\n", nets[n], result->err.message);
        if (status) worst = status;
        for (int m = 0; m < MIRRORS; m++)
            if (result->measured[m]) print(nets[n], m, result, size, printed++ == 0);
        fflush(stdout); // whoever stops this program has what was measured
        munmap(result, sizeof *result);
    }
    if (!tried) fprintf(stderr, "update: --only %s: no such net\n", only);
    printf("\n]}\n");
    return tried ? worst : 1;
}
