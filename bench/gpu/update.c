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

#include "base/log.h"
#include "base/statistics.h"
#include "base/time.h"
#include "farm_build.h"
#include "learner/backend.h"
#include "work.h"

enum { RINGS_MAX = 4, ROUNDS_MAX = 10, WARMUP = 3, INFER_MOST = 64, WINDOWS_MAX = 8 };
static const double ROUND_S = 0.2;

struct size {
    uint32_t rings, lanes, width, steps, batch, rounds;
};

static void open_learner(struct rig *rig, const struct farm_backend_ops *ops, const char *net, enum farm_mirror mirror,
                         const struct size *size) {
    const uint32_t environments = size->rings * size->lanes * size->width;
    rig->learner = work_config(net_spec(net), false, size->batch);
    rig->learner.arithmetic.precision = FARM_PRECISION_BF16;
    rig->learner.device.mirror = mirror;
    rig->learner.inference.batch_max = environments < INFER_MOST ? environments : INFER_MOST;
    rig->learner.inference.spin_ns = UINT64_C(1000000000);
    rig->huge = true;
    rig_open(rig, work_ring_spec(false, size->lanes, size->width, size->steps), size->rings);
    rig_lend_writable(rig);
    must(rig_open_backend(rig, ops), &rig->err);
    farm_lanes_end_writable(&rig->lanes);
}

static void fill_rings(struct rig *rig) {
    while (rig->n < rig->made[0].spec.steps - STACK) {
        for (uint32_t id = 0; id < rig->lanes.lane_count; id++) {
            work_write_step(rig_actor(rig, id));
            farm_lane_actor_publish(rig_actor(rig, id));
        }
        rig_take_in(rig);
        must(rig_answer(rig), &rig->err);
    }
}

// ---- updates ----

// Begins update k: its lanes are spread evenly; the next updates use the lanes beside them, then the next window of
// all lanes.
static void begin_update(struct rig *rig, uint64_t k) {
    const uint32_t lanes = rig->lanes.lane_count, width = rig->lanes.width_max, each = rig->batch / width;
    const uint32_t apart = lanes / each;
    const uint64_t count = (rig->n - 1) / UNROLL;
    struct farm_window windows[WINDOWS_MAX];
    for (uint32_t i = 0; i < each; i++)
        windows[i] = rig_window(rig, i * apart + (uint32_t)(k % apart), k / apart % count * UNROLL, width);
    must(rig->ops->begin(rig->backend, (uint32_t)(k % FARM_BACKEND_SLOTS), windows, each, &rig->err), &rig->err);
}

static void make_update(struct rig *rig) {
    const struct farm_pass pass = {.learning_rate = 1e-5};
    const uint64_t k = rig->version++;
    struct farm_pass_stats stats;
    if (k == 0) begin_update(rig, k);
    must(rig->ops->pass(rig->backend, (uint32_t)(k % FARM_BACKEND_SLOTS), &pass, &rig->err), &rig->err);
    must(rig->ops->publish(rig->backend, FARM_SET_ONLINE, k + 1, &rig->err), &rig->err);
    begin_update(rig, k + 1);
    must(rig->ops->finish(rig->backend, &stats, &rig->err), &rig->err);
    if (!isfinite(stats.grad_norm) || stats.terms[0] != UNROLL * rig->batch)
        must(farm_fail(&rig->err, FARM_E_INVALID, "update %llu: gradient norm %g over %g rows", (unsigned long long)k,
                       stats.grad_norm, stats.terms[0]),
             &rig->err);
}

// Observations per second of `count` updates.
static double measure_rate(struct rig *rig, uint64_t count) {
    const uint64_t start = farm_now_ns();
    for (uint64_t i = 0; i < count; i++) make_update(rig);
    return (double)count * rig->batch * (UNROLL + 1) / ((double)(farm_now_ns() - start) * 1e-9);
}

static void print_rate(const char *net, const char *mirror, struct rig *rig, uint32_t rounds, bool first) {
    double rates[ROUNDS_MAX], spread, warm = 1;
    for (int i = 0; i < 2 && rounds == ROUNDS_MAX; i++) warm = measure_rate(rig, WARMUP);
    const uint64_t each = (uint64_t)(warm * ROUND_S / (rig->batch * (UNROLL + 1)) + 1);
    const uint64_t before = farm_load_relaxed(&rig->stats.bus_train_bytes), updates = rounds * each;
    for (uint32_t i = 0; i < rounds; i++) rates[i] = measure_rate(rig, each);
    const double bytes = (double)(farm_load_relaxed(&rig->stats.bus_train_bytes) - before);
    const double median = farm_median(rates, rounds, &spread);
    printf("%s\n  {\"name\": \"update_%s_%s\", \"value\": %.1f, \"unit\": \"observations/s\", \"better\": \"higher\", "
           "\"spread\": %.4f, \"us\": %.2f, \"updates\": %llu, \"bus_bytes_per_update\": %.0f}",
           first ? "" : ",", net, mirror, median, spread, 1e6 * rig->batch * (UNROLL + 1) / median,
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
        const struct farm_backend_ops *ops;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        farm_log_set_role("learner");
        must(farm_backend_module_open(library, &ops, &rig->err), &rig->err);
        open_learner(rig, ops, net, (enum farm_mirror)mirror, size);
        fill_rings(rig);
        print_rate(net, names[mirror], rig, size->rounds, first);
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
