// See actor.h. While any lane of the ring can go on, the loop makes no system call: it looks at the lanes in turn, so
// that one group steps while the others' actions are being worked out. Memory order: ring/lane.h and ring/wait.h.
#include "actor/actor.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "actor/group.h"
#include "ring/ring.h"

// How long a sleep lasts at most: the answer to a SIGTERM that comes just before it.
enum { NAP_NS = 100000000 };

// Set by the signal handler, which can reach nothing else.
static volatile sig_atomic_t terminated;

static void on_sigterm(int signal) {
    terminated = 1;
}

// SIGTERM ends the actor after its step. Ctrl-C reaches the whole terminal's group, but it is the supervisor who
// decides when actors end; nor may a vanished reader of stderr kill one.
static void install_signals(void) {
    terminated = 0;
    sigaction(SIGTERM, &(struct sigaction){.sa_handler = on_sigterm}, NULL);
    sigaction(SIGINT, &(struct sigaction){.sa_handler = SIG_IGN}, NULL);
    sigaction(SIGPIPE, &(struct sigaction){.sa_handler = SIG_IGN}, NULL);
}

// The environment must be what the lanes were made for.
static enum farm_status check_spec(const struct farm_actor_config *config, const struct farm_ring *ring,
                                   struct farm_error *err) {
    const struct farm_env_config env = {.options = config->options, .option_count = config->option_count};
    struct farm_env_spec spec;
    char why[256] = "it gave no reason";
    memset(&spec, 0, sizeof spec);
    if (config->api->abi_version != FARM_ENV_ABI_VERSION || config->api->struct_bytes < sizeof *config->api)
        return farm_fail(err, FARM_E_UNSUPPORTED,
                         "environment %s was built for another version of farm/env.h: rebuild it", config->api->name);
    if (config->api->spec(&env, &spec, why, sizeof why))
        return farm_fail(err, FARM_E_INVALID, "environment %s: %s", config->api->name, why);
    if (memcmp(&spec, &ring->spec.env, sizeof spec) != 0)
        return farm_fail(err, FARM_E_INVALID,
                         "the lanes of actor %u were not made for environment %s with these options", config->actor,
                         config->api->name);
    return FARM_OK;
}

// The lanes first, so that what a dead predecessor left is answered while the page table is filled and the environments
// are made, which both take longer.
static enum farm_status take_over(const struct farm_actor_config *config, struct farm_ring *ring,
                                  struct farm_group *groups, struct farm_error *err) {
    enum farm_status status = FARM_OK;
    for (uint32_t l = 0; l < ring->spec.lanes; l++) farm_lane_actor_take_over(&ring->lanes[l]);
    farm_actor_notify(ring, config->learner_eventfd);
    farm_ring_populate(ring);
    for (uint32_t l = 0; l < ring->spec.lanes && !status; l++) {
        const struct farm_lane *lane = &ring->lanes[l];
        const uint64_t generation = farm_load_acquire(&lane->down->generation);
        status =
            farm_group_make(config, config->actor * ring->spec.lanes + l, generation, lane->width, &groups[l], err);
    }
    return status;
}

static enum farm_status play(const struct farm_actor_config *config, struct farm_ring *ring, struct farm_group *groups,
                             struct farm_error *err) {
    uint32_t l = ring->spec.lanes - 1; // so that lane 0 comes first
    while (!terminated) {
        if (!farm_actor_wait(ring, NULL, config->spin_ns, NAP_NS, &l)) {
            if (farm_load_relaxed(&ring->down_control->stop)) break;
            continue;
        }
        struct farm_lane *lane = &ring->lanes[l];
        const enum farm_status status = farm_group_step(&groups[l], lane, err);
        if (status) return status;
        uint64_t *heartbeat = &ring->up_control->heartbeat;
        farm_store_relaxed(heartbeat, farm_load_relaxed(heartbeat) + lane->width);
        farm_lane_actor_publish(lane);
        farm_actor_notify(ring, config->learner_eventfd);
    }
    return FARM_OK;
}

int farm_actor_run(const struct farm_actor_config *config, struct farm_error *err) {
    struct farm_ring ring;
    install_signals();
    enum farm_status status = farm_ring_open(config->up_fd, config->down_fd, FARM_RING_ACTOR, &ring, err);
    if (status) {
        close(config->up_fd);
        close(config->down_fd);
        return 1;
    }
    struct farm_group *groups = calloc(ring.spec.lanes, sizeof *groups);
    status = groups ? check_spec(config, &ring, err) : farm_fail(err, FARM_E_LIMIT, "no memory for the actor's groups");
    if (!status) status = take_over(config, &ring, groups, err);
    if (!status) status = play(config, &ring, groups, err);
    for (uint32_t l = 0; groups && l < ring.spec.lanes; l++) farm_group_free(&groups[l]);
    free(groups);
    farm_ring_close(&ring);
    return status ? 1 : 0;
}
