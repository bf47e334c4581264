// Measures the time from an actor's step to its answer as `farm train` has it: real rings, the learner in its own
// process, the CUDA backend as a library that the learner opens. This program is the actor of one lane of one
// environment. With training, a second actor of many environments keeps training and inference busy. Prints one JSON
// document. A time runs from before the store of `produced` until a load of `acted` returns the answer; both sides
// spin.
//
//   round_trip [--library FILE] [--rounds N] [--only NET] [--device cpu]     exit status: 0, 1 failed, 77 no GPU
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/statistics.h"
#include "base/time.h"
#include "farm_build.h"
#include "ring/wait.h"
#include "run/player.h"
#include "work.h"

enum { OTHERS = 160 };
static const uint64_t LONG_NS = 3600ull * 1000000000u, START_NS = 120ull * 1000000000u;

struct setting {
    const char *net; // "smallest": one layer of 8 over 8 numbers
    bool training;
    const char *target_us; // JSON
};

static const struct setting settings[] = {
    {"smallest", false, "12"},  {"shallow", false, "40"},  {"nature", false, "null"}, {"deep", false, "null"},
    {"smallest", true, "null"}, {"shallow", true, "null"}, {"nature", true, "null"},  {"deep", true, "null"}};

// Shared by the processes of one setting.
struct table {
    struct farm_ring made[2], view[2]; // the measured actor's, the other environments' actor's
    uint32_t rings;
    int bell;
    struct farm_stats *stats;
    struct farm_error *err;
    struct farm_learner_config config;
    int fds[2][2], up_writable[2];
    uint64_t steps; // the measured lane's
    double *us;     // [steps] times
};

static bool is_smallest(const struct setting *setting) {
    return strcmp(setting->net, "smallest") == 0;
}

static struct farm_net_spec net_of(const struct setting *setting) {
    return *net_spec(is_smallest(setting) ? "dense 8" : setting->net); // one small layer
}

static void fill_config(struct table *table, const struct setting *setting, enum farm_device device,
                        const char *library) {
    const struct farm_net_spec net = net_of(setting);
    struct farm_learner_config *config = &table->config;
    *config = work_config(&net, is_smallest(setting), BATCH);
    config->rings.fds = (const int(*)[2])table->fds;
    config->rings.up_writable = table->up_writable;
    config->rings.count = table->rings;
    config->shards[0].eventfd = table->bell;
    config->stats = table->stats;
    config->device.kind = device;
    config->device.cuda_library = library;
    config->inference.batch_max = 2 * OTHERS;
    config->inference.spin_ns = LONG_NS;
}

static void open_table(struct table *table, const struct setting *setting, enum farm_device device, const char *library,
                       uint64_t steps) {
    *table = (struct table){.rings = setting->training ? 2 : 1, .bell = eventfd(0, EFD_NONBLOCK), .steps = steps};
    table->us = calloc(steps, sizeof *table->us);
    table->stats = shared_memory(sizeof *table->stats);
    table->err = shared_memory(sizeof *table->err);
    for (uint32_t r = 0; r < table->rings; r++) {
        const struct farm_ring_spec spec = work_ring_spec(is_smallest(setting), r ? 2 : 1, r ? OTHERS : 1, RING_STEPS);
        table->made[r] = make_ring(spec, r, true);
        table->view[r] = open_view(&table->made[r], FARM_RING_ACTOR);
        table->fds[r][0] = table->made[r].up.fd_readonly;
        table->fds[r][1] = table->made[r].down.fd;
        table->up_writable[r] = table->made[r].up.fd;
    }
    fill_config(table, setting, device, library);
}

static void close_table(struct table *table) {
    for (uint32_t r = 0; r < table->rings; r++) {
        farm_ring_close(&table->view[r]);
        farm_ring_close(&table->made[r]);
    }
    close(table->bell);
    free(table->us);
    munmap(table->stats, sizeof *table->stats);
    munmap(table->err, sizeof *table->err);
}

// ---- processes ----

static pid_t start_learner(const struct table *table, bool training) {
    const pid_t pid = fork();
    if (pid != 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    farm_log_set_role("learner");
    _exit(training ? farm_learner_run(&table->config, table->err)
                   : farm_run_player(&table->config, &(struct farm_run_play){.games = UINT64_MAX}, table->err));
}

// The actor of the other environments: waits for answers and steps. A child does not inherit its parent's view of a
// ring.
static pid_t start_others(struct table *table) {
    const pid_t pid = fork();
    if (pid != 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct farm_ring ring = open_view(&table->made[1], FARM_RING_ACTOR);
    for (uint32_t next = 0;;) {
        if (!farm_actor_wait(&ring, NULL, LONG_NS, LONG_NS, &next)) continue;
        work_write_step(&ring.lanes[next]);
        farm_lane_actor_publish(&ring.lanes[next]);
        farm_actor_notify(&ring, table->bell);
    }
}

static bool await_ready(const struct table *table, pid_t learner) {
    for (const uint64_t end = farm_now_ns() + START_NS; farm_now_ns() < end; usleep(1000)) {
        if (farm_load_acquire(&table->stats->ready)) return true;
        if (waitpid(learner, NULL, WNOHANG) == learner) break;
    }
    return false;
}

// ---- measuring ----

// Whether the learner or the other actor has ended.
static bool has_ended(void) {
    siginfo_t info = {0};
    return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
}

// Returns false if a process has ended.
static bool measure_steps(struct table *table) {
    struct farm_lane *lane = &table->view[0].lanes[0];
    for (uint64_t i = 0; i < table->steps; i++) {
        for (uint64_t spins = 1; !farm_lane_actor_can_write(lane); spins++)
            if (spins % (1 << 22) == 0 && has_ended()) return false;
        work_write_step(lane);
        const uint64_t start = farm_now_ns();
        farm_lane_actor_publish(lane);
        farm_actor_notify(&table->view[0], table->bell);
        for (uint64_t spins = 1; !farm_lane_actor_answered(lane); spins++)
            if (spins % (1 << 22) == 0 && has_ended()) return false;
        table->us[i] = (double)(farm_now_ns() - start) * 1e-3;
        const int32_t *action = farm_lane_action(lane, lane->produced_local - 1, 0);
        if (*action < 0 || *action >= ACTIONS) {
            fprintf(stderr, "round_trip: action %d\n", *action);
            exit(1);
        }
    }
    return !has_ended();
}

// Prints the figures of the last `rounds` steps.
static void print_result(const struct setting *setting, const struct table *table, uint64_t rounds) {
    double *us = table->us + table->steps - rounds;
    farm_sort(us, rounds);
    printf("  {\"name\": \"actor_round_trip_%s%s\", \"value\": %.2f, \"unit\": \"us\", \"better\": \"lower\", "
           "\"spread\": %.4f, \"p10\": %.2f, \"p90\": %.2f, \"p99\": %.2f, \"rounds\": %llu, \"updates\": %llu, "
           "\"target\": %s}",
           setting->net, setting->training ? "_training" : "", us[rounds / 2],
           (us[rounds / 4 * 3] - us[rounds / 4]) / us[rounds / 2], us[rounds / 10], us[rounds / 10 * 9],
           us[rounds / 100 * 99], (unsigned long long)rounds,
           (unsigned long long)farm_load_relaxed(&table->stats->updates), setting->target_us);
    fflush(stdout);
}

static int run_setting(const struct setting *setting, enum farm_device device, const char *library, uint32_t rounds,
                       bool first) {
    struct table table;
    open_table(&table, setting, device, library, rounds + rounds / 10); // the first ones do not count
    const pid_t learner = start_learner(&table, setting->training);
    int status = 0;
    if (!await_ready(&table, learner)) {
        status = table.err->status == FARM_E_UNSUPPORTED || table.err->status == FARM_E_NOT_FOUND ? 77 : 1;
    } else {
        const pid_t others = setting->training ? start_others(&table) : 0;
        if (!measure_steps(&table)) status = 1;
        kill(learner, SIGTERM);
        waitpid(learner, NULL, 0);
        if (others) kill(others, SIGKILL), waitpid(others, NULL, 0);
        if (!status && !first) printf(",\n");
        if (!status) print_result(setting, &table, rounds);
    }
    if (status) fprintf(stderr, "round_trip: %s: %s\n", setting->net, table.err->message);
    close_table(&table);
    return status;
}

int main(int argc, char **argv) {
    const struct work_flags flags = work_read_flags(argc, argv, 20000);
    const enum farm_device device = flags.cpu ? FARM_DEVICE_CPU : FARM_DEVICE_CUDA;
    const uint32_t rounds = flags.rounds < 500 ? 500 : flags.rounds;
    printf("{\"schema_version\": 1, \"benchmark\": \"cuda_round_trip\", \"commit\": \"%s\", \"results\": [\n",
           FARM_COMMIT);
    int status = 0, printed = 0;
    for (size_t i = 0; i < sizeof settings / sizeof *settings && status != 77; i++) {
        if (!work_includes(&flags, settings[i].net)) continue;
        const uint32_t fewer = settings[i].training ? rounds / 5 : rounds; // beside training each takes longer
        const int failed = run_setting(&settings[i], device, flags.library, fewer, printed == 0);
        if (failed) status = failed; // the remaining settings run
        printed += !failed;
    }
    if (!printed && !status) status = 1; // no such net
    printf("\n]}\n");
    return status;
}
