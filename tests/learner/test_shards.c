// A learner with several inference threads on CPUs, as threads of this process so that ThreadSanitizer sees them. The
// actors are processes.
#include "../support/test_farm.h"

enum {
    TRAINED = 20, // passes that change the parameters
    CHECKED = 8   // steps of each lane
};

TestSuite(shards, .timeout = 120);

// ---- the CPU backend as the test sees it; the last parameters stay for many passes, so that they are known ----

static const uint32_t *ring_shard;
static struct {
    uint64_t passes, answered[PLACES], strange; // answered: by each shard; strange: lanes of another shard
    float *params;                              // at the end
    size_t parameter_count;
} seen;

static enum farm_status infer(struct farm_backend *backend, uint32_t shard, const struct farm_policy_rows *rows,
                              uint32_t count, struct farm_error *err) {
    for (uint32_t i = 0; i < count; i++)
        farm_stats_add(ring_shard[rows[i].lane_id / LANES] == shard ? &seen.answered[shard] : &seen.strange, 1);
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

// The last answers of each lane are those of the parameters that every shard has had for many passes.
static void expect_answers(const struct test_farm *farm) {
    for (uint32_t i = 0; i < PLACES * LANES; i++) {
        const struct farm_lane *lane = &farm->made[i / LANES].lanes[i % LANES];
        const uint64_t acted = farm_lane_acted(lane);
        for (uint64_t n = acted - CHECKED; n < acted; n++) {
            cr_assert_geq(*farm_lane_version(lane, n), TRAINED);
            test_expect_lane_answers(&farm->config, seen.params, lane, n, "a shard's");
        }
    }
}

static void train_with(uint32_t shards) {
    struct test_farm farm;
    struct farm_net net;
    struct farm_error err = {0};
    struct farm_backend_ops ops = farm_backend_cpu;
    uint32_t shard_of[PLACES];
    pid_t actors[PLACES];
    ops.infer = infer, ops.pass = pass, ops.destroy = destroy;
    test_farm_open(&farm, PLACES, FARM_ANSWERS_CENTRAL);
    farm.config.rings.shard = ring_shard = shard_of;
    farm.config.shard_count = shards;
    for (uint32_t k = 0; k < shards; k++)
        farm.config.shards[k] =
            (struct farm_learner_shard){.eventfd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), .node = k % 2 ? 0 : -1};
    for (uint32_t r = 0; r < PLACES; r++) {
        shard_of[r] = r % shards;
        actors[r] = test_actor_fork(&farm, r, farm.config.shards[shard_of[r]].eventfd);
    }
    test_farm_lend(&farm);
    farm.config.device.backend = &ops;
    farm.config.algo.batch = 2 * PLACES + 1; // shards have unequal shares
    farm.config.inference.batch_max = LANES * WIDTH;
    farm.config.training.threads = 4;
    farm.config.training.micro_batch = 1;
    farm.config.target.frames = 20000;
    cr_assert_eq(farm_net_make(&farm.config.net, &farm.config.io, &net, &err), FARM_OK, "%s", err.message);
    seen.parameter_count = net.parameter_count;
    seen.params = calloc(net.parameter_count, sizeof(float));
    cr_assert_eq(farm_learner_run(&farm.config, &err), 0, "%s", err.message);
    cr_assert_gt(test_farm_updates(&farm), 2 * TRAINED);
    cr_assert_eq(farm.shared->stats.windows, test_farm_updates(&farm) * farm.config.algo.batch);
    cr_assert_eq(seen.strange, 0, "%lu lanes were answered by another shard", seen.strange);
    for (uint32_t k = 0; k < shards; k++) cr_assert_gt(seen.answered[k], 0, "shard %u", k);
    for (uint32_t r = 0; r < PLACES; r++) {
        char findings[512];
        test_actor_stop(&farm, r, actors[r]);
        cr_assert_eq(verify_lanes(&farm.made[r], findings, sizeof findings), 0, "%s", findings);
    }
    expect_answers(&farm);
    test_farm_close(&farm);
    free(seen.params);
}

Test(shards, two_and_four_inference_threads_answer_their_own_rings_with_the_newest_parameters) {
    train_with(2);
    memset(&seen, 0, sizeof seen);
    train_with(4);
}
