// An update of the CPU backend that publishes to actors' board, packed, while processes read there, against the update
// alone while they read a copy that does not change: the CPUs may share an arithmetic unit, so they are as busy.
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "../gpu/work.h"
#include "base/time.h"
#include "kernels/random.h"
#include "readers.h"
#include "rows.h"

enum { SAMPLES = 61, WIDTH = 32, STEPS = 64, LANE_ROWS = 8 };

static void open_rig(struct rig *rig, const char *net, bool flat) {
    rig->batch = BATCH;
    rig->learner = work_config(net_spec(net), flat, BATCH);
    rig->learner.inference.batch_max = 1;
    rig_open(rig, work_ring_spec(flat, 1, WIDTH, STEPS), 1);
    for (uint64_t n = 0; n < STEPS; n++) {
        struct farm_lane *lane = rig_actor(rig, 0);
        for (uint32_t env = 0; env < WIDTH; env++) {
            uint8_t *row = farm_lane_obs(lane, 0, n, env);
            for (size_t i = 0; i < lane->obs_bytes[0]; i++)
                row[i] = flat ? 0 : (uint8_t)farm_random_mix(i ^ n << 16 ^ (uint64_t)env << 32);
            for (size_t i = 0; i < FLAT && flat; i++) ((float *)row)[i] = farm_random_uniform(2, n * WIDTH + env, i);
            farm_lane_reward(lane, n)[env] = farm_random_uniform(3, n, env) - 0.5f;
            farm_lane_flags(lane, n)[env] = n == 0 ? FARM_STEP_FIRST : 0;
        }
        (void)farm_validator_step(&rig->lanes.lanes[0].validator, n, 0);
    }
    must(rig_open_backend(rig, &farm_backend_cpu), &rig->err);
}

// CPU time of `updates` updates in microseconds each; board: publishes there too.
static double update(struct rig *rig, struct farm_board *board, int updates) {
    const uint64_t start = farm_thread_cpu_ns();
    for (int i = 0; i < updates; i++) {
        const struct farm_window window = rig_window(rig, 0, (uint64_t)(i % 8 + STACK), BATCH);
        const struct farm_pass pass = {.learning_rate = 1e-6};
        struct farm_pass_stats stats;
        must(rig->ops->begin(rig->backend, 0, &window, 1, &rig->err), &rig->err);
        must(rig->ops->pass(rig->backend, 0, &pass, &rig->err), &rig->err);
        must(rig->ops->publish(rig->backend, FARM_SET_ONLINE, ++rig->version, &rig->err), &rig->err);
        if (board) farm_board_publish(board, rig_params(rig), rig->version);
        must(rig->ops->finish(rig->backend, &stats, &rig->err), &rig->err);
        must_hold(isfinite(stats.grad_norm), "a gradient that is not finite");
    }
    return 1e-3 * (double)(farm_thread_cpu_ns() - start) / updates;
}

static void pack(void *executor, const float *params, void *packed) {
    farm_executor_pack(executor, params, packed);
}

static void measure(struct farm_bench *bench, const char *name, const char *net, bool flat, int updates,
                    double seconds) {
    static struct rig rig;
    static struct readers readers;
    double ours[SAMPLES], theirs[SAMPLES];
    rig = (struct rig){0};
    open_rig(&rig, net, flat);
    const struct farm_executor_config config = {
        .net = &rig.net, .batch_max = LANE_ROWS, .arithmetic = rig.ops->arithmetic(rig.backend)};
    struct farm_executor *executor;
    must(farm_executor_create(&config, &executor, &rig.err), &rig.err);
    readers_start(&readers, rig.net.parameter_count, farm_executor_packed_bytes(executor), false);
    readers.board->pack = pack;
    readers.board->pack_context = executor;
    const uint64_t begin = farm_now_ns();
    int s = -1; // touches the memory
    for (; board_goes_on(s, SAMPLES, begin, seconds); s++) {
        const int at = s < 0 ? 0 : s;
        readers_set(&readers, READERS_READ);
        usleep(2000); // on both sides other threads may have run on this CPU
        ours[at] = update(&rig, readers.board, updates);
        readers_set(&readers, READERS_READ_COPY);
        usleep(2000);
        theirs[at] = update(&rig, NULL, updates);
    }
    readers_stop(&readers);
    farm_bench_add(bench, name, "us", "lower", ours, (size_t)s, "no board; readers of a fixed copy", theirs, (size_t)s,
                   1.03);
    farm_executor_destroy(executor);
    rig_close(&rig);
}

void board_row_learner(struct farm_bench *bench) {
    measure(bench, "learner_step_with_512_readers", "shallow", false, 1, 0.25 * bench->seconds);
    measure(bench, "learner_step_with_512_readers_mlp", "mlp", true, 50, 0.1 * bench->seconds);
}
