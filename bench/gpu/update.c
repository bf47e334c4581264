// The complete update as the learner's training thread runs it, in observations per second: 672 observations (32
// windows of 20 steps and one more) through the backend that the learner opens. Included are lists, gathering and
// stacking, forward, V-trace, losses, backward, clipping, RMSProp, publication for inference, and the host's wait for
// the end. The rings are full, so the next update's windows are ready and begin before this update's end, as when
// training limits a run. Each update uses the next windows of the 32 environments, which are spread over four rings.
//
//   update_NET_full                       the data is on the device: inference has filled the mirror
//   update_NET_window, update_NET_off     from host memory: training pulls windows, or reads frames in place
//
//   update [--library FILE] [--only NET] [--few yes]     exit status: 0, 1 failed, 77 no GPU
//
// few: a smoke test. Each figure has its own process, so that a failure does not stop the others.
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
#include "intake/lanes.h"
#include "learner/backend_module.h"
#include "work.h"

enum { RINGS_MAX = 4, ROUNDS_MAX = 10, WARMUP = 3, INFER_MOST = 64, WINDOWS_MAX = 8 };
static const double ROUND_S = 0.2;

struct size {
    uint32_t rings, lanes, width, steps, batch, rounds;
};

// A learner without its loop: rings, their lanes, a backend.
struct rig {
    const struct size *size;
    struct farm_ring actors[RINGS_MAX];
    struct farm_lanes lanes;
    struct farm_stats stats;
    struct farm_learner_config config;
    struct farm_algo_plan plan;
    struct farm_net net;
    const struct farm_backend_ops *ops;
    struct farm_backend *backend;
    struct farm_error err;
    uint64_t played;  // steps of each lane
    uint64_t updates; // made
};

static uint32_t lane_count(const struct rig *rig) {
    return rig->size->rings * rig->size->lanes;
}

// ---- start ----

static void fill_config(struct rig *rig, const char *net, enum farm_mirror mirror) {
    const uint32_t environments = lane_count(rig) * rig->size->width;
    rig->config = (struct farm_learner_config){.stats = &rig->stats,
                                               .seed = 1,
                                               .net = *farm_net_find(net, NULL),
                                               .io = work_io(false),
                                               .algo = work_algo(false, rig->size->batch),
                                               .precision = FARM_PRECISION_BF16,
                                               .mirror = mirror,
                                               .train_threads = 1,
                                               .infer_batch_max = environments < INFER_MOST ? environments : INFER_MOST,
                                               .spin_ns = UINT64_C(1000000000),
                                               .memory_node = -1,
                                               .frames_per_step = 1};
    work_must(farm_net_make(&rig->config.net, &rig->config.io, &rig->net, &rig->err), &rig->err);
    work_must(farm_algo_plan_make(&rig->config.algo, &rig->plan, &rig->err), &rig->err);
}

static void open_backend(struct rig *rig) {
    const struct size *size = rig->size;
    const struct farm_ring_spec spec = work_ring_spec(false, size->lanes, size->width, size->steps);
    struct farm_ring made[RINGS_MAX];
    int fds[RINGS_MAX][2];
    for (uint32_t r = 0; r < size->rings; r++) {
        work_open_ring(&spec, r, &made[r], &rig->actors[r]);
        fds[r][0] = made[r].up.fd_readonly;
        fds[r][1] = made[r].down.fd;
    }
    work_must(farm_lanes_open(fds, size->rings, &rig->plan.shape, NULL, &rig->lanes, &rig->err), &rig->err);
    for (uint32_t r = 0; r < size->rings; r++) farm_lanes_lend_writable(&rig->lanes, r, dup(made[r].up.fd));
    const struct farm_backend_config backend = {.learner = &rig->config,
                                                .plan = &rig->plan,
                                                .net = &rig->net,
                                                .head = farm_head_categorical(ACTIONS),
                                                .width_max = rig->lanes.width_max,
                                                .columns_max = size->batch,
                                                .lanes = &rig->lanes,
                                                .shards = 1};
    work_must(rig->ops->create(&backend, &rig->backend, &rig->err), &rig->err);
    farm_lanes_end_writable(&rig->lanes);
}

// ---- filling the rings ----

static void answer_lanes(struct rig *rig) {
    struct farm_policy_rows rows[INFER_MOST];
    uint32_t count = 0, environments = 0;
    for (uint32_t id = 0; id < lane_count(rig); id++) {
        struct farm_lane *lane = rig->lanes.lanes[id].lane;
        rows[count++] =
            (struct farm_policy_rows){.lane = lane, .lane_id = id, .n = rig->played, .env_count = lane->width};
        environments += lane->width;
        if (environments + lane->width <= rig->config.infer_batch_max && id + 1 < lane_count(rig)) continue;
        work_must(rig->ops->infer(rig->backend, 0, rows, count, &rig->err), &rig->err);
        count = environments = 0;
    }
}

static void fill_rings(struct rig *rig) {
    for (; rig->played < rig->size->steps - STACK; rig->played++) {
        for (uint32_t id = 0; id < lane_count(rig); id++) {
            struct farm_lane *actors = &rig->actors[id / rig->size->lanes].lanes[id % rig->size->lanes];
            work_write_step(actors);
            farm_lane_actor_publish(actors);
            if (!farm_lanes_take_in(&rig->lanes.lanes[id], 0, &rig->stats))
                work_must(farm_fail(&rig->err, FARM_E_INVALID, "lane %u: invalid step", id), &rig->err);
        }
        answer_lanes(rig);
        for (uint32_t id = 0; id < lane_count(rig); id++) {
            if (!rig->ops->stores_acted) farm_lane_answer(rig->lanes.lanes[id].lane, rig->played);
            if (farm_lane_acted(rig->lanes.lanes[id].lane) != rig->played + 1)
                work_must(farm_fail(&rig->err, FARM_E_INVALID, "lane %u: step %llu has no answer", id,
                                    (unsigned long long)rig->played),
                          &rig->err);
            rig->lanes.lanes[id].answered++;
        }
    }
}

// ---- updates ----

// Begins update k: its lanes are spread evenly; the next updates use the lanes beside them, then the next window of
// all lanes.
static void begin_update(struct rig *rig, uint64_t k) {
    const uint32_t lanes = lane_count(rig), each = rig->size->batch / rig->size->width, apart = lanes / each;
    const uint64_t count = (rig->played - 1) / UNROLL;
    struct farm_window windows[WINDOWS_MAX];
    for (uint32_t i = 0; i < each; i++) {
        const uint32_t id = i * apart + (uint32_t)(k % apart);
        windows[i] = (struct farm_window){.lane = rig->lanes.lanes[id].lane,
                                          .lane_id = id,
                                          .start = k / apart % count * UNROLL,
                                          .env_count = rig->size->width};
    }
    work_must(rig->ops->begin(rig->backend, (uint32_t)(k % FARM_BACKEND_SLOTS), windows, each, &rig->err), &rig->err);
}

static void make_update(struct rig *rig) {
    const struct farm_pass pass = {.learning_rate = 1e-5};
    const uint64_t k = rig->updates++;
    struct farm_pass_stats stats;
    if (k == 0) begin_update(rig, k);
    work_must(rig->ops->pass(rig->backend, (uint32_t)(k % FARM_BACKEND_SLOTS), &pass, &rig->err), &rig->err);
    work_must(rig->ops->publish(rig->backend, k + 1, &rig->err), &rig->err);
    begin_update(rig, k + 1);
    work_must(rig->ops->finish(rig->backend, &stats, &rig->err), &rig->err);
    if (!isfinite(stats.grad_norm) || stats.terms[0] != UNROLL * rig->size->batch)
        work_must(farm_fail(&rig->err, FARM_E_INVALID, "update %llu: gradient norm %g over %g rows",
                            (unsigned long long)k, stats.grad_norm, stats.terms[0]),
                  &rig->err);
}

// Observations per second of `count` updates.
static double measure_rate(struct rig *rig, uint64_t count) {
    const uint64_t start = farm_now_ns();
    for (uint64_t i = 0; i < count; i++) make_update(rig);
    return (double)count * rig->size->batch * (UNROLL + 1) / ((double)(farm_now_ns() - start) * 1e-9);
}

static void print_rate(const char *net, const char *mirror, struct rig *rig, bool first) {
    const uint32_t rounds = rig->size->rounds;
    double rates[ROUNDS_MAX], spread, warm = 1;
    for (int i = 0; i < 2 && rounds == ROUNDS_MAX; i++) warm = measure_rate(rig, WARMUP);
    const uint64_t each = (uint64_t)(warm * ROUND_S / (rig->size->batch * (UNROLL + 1)) + 1);
    const uint64_t before = farm_load_relaxed(&rig->stats.bus_train_bytes), updates = rounds * each;
    for (uint32_t i = 0; i < rounds; i++) rates[i] = measure_rate(rig, each);
    const double bytes = (double)(farm_load_relaxed(&rig->stats.bus_train_bytes) - before);
    const double median = farm_median(rates, rounds, &spread);
    printf("%s\n  {\"name\": \"update_%s_%s\", \"value\": %.1f, \"unit\": \"observations/s\", \"better\": \"higher\", "
           "\"spread\": %.4f, \"us\": %.2f, \"updates\": %llu, \"bus_bytes_per_update\": %.0f}",
           first ? "" : ",", net, mirror, median, spread, 1e6 * rig->size->batch * (UNROLL + 1) / median,
           (unsigned long long)updates, bytes / (double)updates);
    fflush(stdout);
}

// Measures in a child process, which prints the row, or the error to stderr. Returns its exit status.
static int run_apart(const char *net, int mirror, const char *library, const struct size *size, bool first) {
    static const char *const names[] = {
        [FARM_MIRROR_FULL] = "full", [FARM_MIRROR_WINDOW] = "window", [FARM_MIRROR_OFF] = "off"};
    const pid_t pid = fork();
    if (pid == 0) {
        struct rig *rig = calloc(1, sizeof *rig);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        farm_log_set_role("learner");
        rig->size = size;
        work_must(farm_backend_module_open(library, &rig->ops, &rig->err), &rig->err);
        fill_config(rig, net, (enum farm_mirror)mirror);
        open_backend(rig);
        fill_rings(rig);
        print_rate(net, names[mirror], rig, first);
        _exit(0);
    }
    int status = 1;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) return 1;
    return WEXITSTATUS(status);
}

int main(int argc, char **argv) {
    static const char *const nets[] = {"shallow", "nature", "deep"};
    static const struct size usual = {RINGS_MAX, 8, 8, RING_STEPS, BATCH, ROUNDS_MAX}, few = {1, 1, 1, 26, 1, 1};
    const struct work_flags flags = work_read_flags(argc, argv, 0);
    printf("{\"schema_version\": 1, \"benchmark\": \"cuda_update\", \"commit\": \"%s\", \"results\": [", FARM_COMMIT);
    fflush(stdout);
    int worst = 0, printed = 0;
    for (size_t n = 0; n < sizeof nets / sizeof *nets; n++) {
        if (!work_includes(&flags, nets[n])) continue;
        for (int mirror = FARM_MIRROR_FULL; mirror <= FARM_MIRROR_OFF && worst != 77; mirror++) {
            const int status = run_apart(nets[n], mirror, flags.library, flags.few ? &few : &usual, printed == 0);
            if (status) worst = status;
            printed += status == 0;
        }
    }
    printf("\n]}\n");
    return printed || worst ? worst : 1;
}
