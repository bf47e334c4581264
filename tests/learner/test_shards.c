// A learner with several inference threads on CPUs, as threads of this process so that ThreadSanitizer sees them, over
// the rings of actors that are processes of their own.
#include "rings.h"

#include "../support/learner.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "actor/actor.h"
#include "envs/native/native.h"
#include "learner/backend.h"

enum {
    RINGS = 4,
    LANES = 2,
    WIDTH = 4,
    STEPS = 48,
    FLAT = 4,
    ACTIONS = 2,
    UNROLL = 8,
    TRAINED = 20, // passes that change the parameters
    LOOKED_AT = 8 // steps of each lane
};

TestSuite(shards, .timeout = 120);

// ---- the CPU backend, looked at from outside; the last parameters answer long enough to be known ----

static struct {
    const uint32_t *ring_shard;
    uint64_t passes, answered[RINGS], strange; // answered: by each shard; strange: lanes of another one
    float *params;                             // at the end
    size_t parameter_count;
} seen;

static enum farm_status infer(struct farm_backend *backend, uint32_t shard, const struct farm_infer_rows *rows,
                              uint32_t count, struct farm_error *err) {
    for (uint32_t i = 0; i < count; i++)
        farm_stats_add(seen.ring_shard[rows[i].lane_id / LANES] == shard ? &seen.answered[shard] : &seen.strange, 1);
    return farm_backend_cpu.infer(backend, shard, rows, count, err);
}

static enum farm_status pass(struct farm_backend *backend, uint32_t slot, const struct farm_pass *pass,
                             struct farm_error *err) {
    return seen.passes++ < TRAINED ? farm_backend_cpu.pass(backend, slot, pass, err) : FARM_OK;
}

static void destroy(struct farm_backend *backend) {
    memcpy(seen.params, farm_backend_cpu.state(backend).vectors[0].values, seen.parameter_count * sizeof(float));
    farm_backend_cpu.destroy(backend);
}

// ---- rings and their actors ----

struct farm {
    struct farm_ring rings[RINGS];
    pid_t actors[RINGS];
    int fds[RINGS][2], bells[RINGS];
    uint32_t ring_shard[RINGS];
};

static void start_actor(struct farm *farm, uint32_t r, const struct farm_env_api *env) {
    const struct farm_ring *ring = &farm->rings[r];
    const struct farm_actor_config config = {.actor = r,
                                             .up_fd = ring->up.fd,
                                             .down_fd = ring->down.fd_readonly,
                                             .learner_eventfd = farm->bells[farm->ring_shard[r]],
                                             .api = env,
                                             .seed = 1};
    struct farm_error err = {0};
    farm->actors[r] = fork();
    cr_assert_geq(farm->actors[r], 0);
    if (!farm->actors[r]) _exit(prctl(PR_SET_PDEATHSIG, SIGKILL) || farm_actor_run(&config, &err));
}

static void set_up(struct farm *farm, uint32_t shards) {
    const struct farm_env_api *cartpole = farm_native_env_find("native/cartpole");
    struct farm_ring_spec spec = {.lanes = LANES, .width = WIDTH, .steps = STEPS};
    struct farm_error err = {0};
    cr_assert_eq(cartpole->spec(&(struct farm_env_config){0}, &spec.env, NULL, 0), 0);
    farm_ring_spec_answers(&spec);
    for (uint32_t k = 0; k < shards; k++) farm->bells[k] = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    for (uint32_t r = 0; r < RINGS; r++) {
        cr_assert_eq(farm_ring_create(&spec, r, -1, false, &farm->rings[r], &err), FARM_OK, "%s", err.message);
        farm->fds[r][0] = dup(farm->rings[r].up.fd_readonly);
        farm->fds[r][1] = dup(farm->rings[r].down.fd);
        farm->ring_shard[r] = r % shards;
        start_actor(farm, r, cartpole);
    }
}

static void tear_down(struct farm *farm) {
    for (uint32_t r = 0; r < RINGS; r++) {
        int status;
        char findings[512];
        farm_store_release(&farm->rings[r].down_control->stop, 1);
        cr_assert_eq(waitpid(farm->actors[r], &status, 0), farm->actors[r]);
        cr_assert_eq(status, 0, "actor %u", r);
        cr_assert_eq(farm_ring_verify(&farm->rings[r], findings, sizeof findings), 0, "%s", findings);
        farm_ring_close(&farm->rings[r]);
    }
}

// The last answers of each lane are the network's, under the parameters that every shard has had for a while.
static void expect_answers(const struct farm *farm, const struct farm_learner_config *config) {
    for (uint32_t i = 0; i < RINGS * LANES; i++) {
        const struct farm_lane *lane = &farm->rings[i / LANES].lanes[i % LANES];
        const uint64_t acted = farm_lane_acted(lane);
        for (uint64_t n = acted - LOOKED_AT; n < acted; n++) {
            const void *rows[WIDTH];
            for (uint32_t e = 0; e < WIDTH; e++) rows[e] = farm_lane_obs(lane, 0, n, e);
            cr_assert_geq(*farm_lane_version(lane, n), TRAINED);
            test_expect_answers_under(config, seen.params, lane, n, rows, "a shard's");
        }
    }
}

static void train_with(uint32_t shards) {
    struct farm farm;
    struct farm_stats stats = {0};
    struct farm_net net;
    struct farm_error err = {0};
    struct farm_backend_ops ops = farm_backend_cpu;
    struct farm_learner_config config = test_learner_config(FLAT, ACTIONS, UNROLL);
    ops.infer = infer, ops.pass = pass, ops.destroy = destroy;
    set_up(&farm, shards);
    config.ring_fds = (const int(*)[2])farm.fds;
    config.ring_count = RINGS;
    config.ring_shard = seen.ring_shard = farm.ring_shard;
    config.shard_count = shards;
    for (uint32_t k = 0; k < shards; k++)
        config.shards[k] = (struct farm_learner_shard){.eventfd = farm.bells[k], .node = k % 2 ? 0 : -1};
    config.backend = &ops;
    config.stats = &stats;
    config.seed = 1;
    config.algo.batch = 2 * RINGS + 1; // shards have unequal shares
    config.infer_batch_max = LANES * WIDTH;
    config.train_threads = 4;
    config.micro_batch = 1;
    config.memory_node = -1;
    config.frames_target = 20000;
    cr_assert_eq(farm_net_make(&config.net, &config.io, &net, &err), FARM_OK, "%s", err.message);
    seen.parameter_count = net.parameter_count;
    seen.params = calloc(net.parameter_count, sizeof(float));
    cr_assert_eq(farm_learner_run(&config, &err), 0, "%s", err.message);
    cr_assert_gt(stats.updates, 2 * TRAINED);
    cr_assert_eq(stats.windows, stats.updates * config.algo.batch);
    cr_assert_eq(seen.strange, 0, "%lu lanes were answered by a shard that is not theirs", seen.strange);
    for (uint32_t k = 0; k < shards; k++) cr_assert_gt(seen.answered[k], 0, "shard %u", k);
    expect_answers(&farm, &config);
    tear_down(&farm);
    free(seen.params);
}

Test(shards, two_inference_threads_answer_their_own_rings_with_the_newest_parameters) {
    train_with(2);
}

Test(shards, four_inference_threads_answer_their_own_rings_with_the_newest_parameters) {
    train_with(4);
}
