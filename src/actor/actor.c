// See actor.h. While any lane of the ring can continue, the loop makes no system call: it polls the lanes in turn, so
// that one group steps while the others' actions are computed. Memory order: ring/lane.h and ring/wait.h.
#include "actor/actor.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "actor/film.h"
#include "actor/group.h"
#include "base/thread.h"
#include "envs/plugin.h"
#include "policy/local.h"

static const uint64_t NAP_NS = 100000000;

struct farm_actor {
    const struct farm_actor_config *config;
    struct farm_ring ring;
    struct farm_plugin plugin; // zeroed if the environment is built in
    const struct farm_env_api *api;
    struct farm_group *groups; // [lanes]
    struct farm_call *call;
    struct farm_film film;
    struct farm_local *local, *opponents; // answer the ring (NULL: the learner or config->answer), their own lanes
};

// Opens the environment; its spec must be that of the lanes.
static enum farm_status open_env(struct farm_actor *actor, struct farm_error *err) {
    const struct farm_actor_config *config = actor->config;
    struct farm_env_spec spec;
    actor->api = config->api;
    if (!actor->api) {
        actor->call->name = config->plugin;
        actor->call->call = FARM_CALL_LOAD;
        enum farm_status status = farm_plugin_open(config->plugin, config->plugin_env, &actor->plugin, err);
        if (status) return status;
        actor->api = actor->plugin.api;
    }
    actor->call->name = actor->api->name;
    enum farm_status status = farm_plugin_spec(actor->api, config->options, config->option_count, &spec, err);
    actor->call->call = FARM_CALL_NONE;
    if (status) return farm_fail_in(err, FARM_E_INVALID, "environment %s", actor->api->name);
    spec.agents -= config->opponents;
    if (memcmp(&spec, &actor->ring.spec.env, sizeof spec) != 0)
        return farm_fail(err, FARM_E_INVALID,
                         "the lanes of actor %u were not made for environment %s with these options", config->actor,
                         actor->api->name);
    return FARM_OK;
}

// Takes the lanes first: a predecessor's last steps are answered while this process loads the plug-in, fills the page
// table and makes the environments.
static enum farm_status take_over(struct farm_actor *actor, struct farm_error *err) {
    const struct farm_actor_config *config = actor->config;
    struct farm_ring *ring = &actor->ring;
    for (uint32_t l = 0; l < ring->spec.lanes; l++) farm_lane_actor_take_over(&ring->lanes[l]);
    farm_actor_notify(ring, config->learner_eventfd);
    enum farm_status status = open_env(actor, err);
    if (!status) farm_ring_populate(ring);
    for (uint32_t l = 0; l < ring->spec.lanes && !status; l++) {
        const uint64_t generation = farm_load_acquire(&ring->lanes[l].down->generation);
        status = farm_group_make(config, actor->api, &ring->spec, l, generation, actor->call, &actor->groups[l], err);
    }
    return status;
}

// Waits until lane *l can continue. False: check `stop`, then call again.
static bool await_lane(struct farm_actor *actor, uint32_t *l) {
    const struct farm_actor_config *config = actor->config;
    // Rings for earlier publishes at the latest here, before it may sleep.
    if (config->rings_late && !farm_actor_ready(&actor->ring)) farm_actor_notify(&actor->ring, config->learner_eventfd);
    return farm_actor_wait(&actor->ring, NULL, config->spin_ns, config->nap_ns ? config->nap_ns : NAP_NS, l);
}

static void answer_step(const struct farm_actor *actor, uint32_t l, uint64_t n) {
    const struct farm_actor_config *config = actor->config;
    if (config->answer)
        config->answer(config->answer_context, &actor->ring.lanes[l], n);
    else
        farm_local_answer(actor->local, l, n);
}

static enum farm_status step_lanes(struct farm_actor *actor, struct farm_error *err) {
    struct farm_ring *ring = &actor->ring;
    uint32_t l = ring->spec.lanes - 1; // lane 0 is next
    while (!farm_sigterm_caught()) {
        if (!await_lane(actor, &l)) {
            if (farm_load_relaxed(&ring->down_control->stop)) break;
            continue;
        }
        struct farm_lane *lane = &ring->lanes[l];
        const uint64_t n = farm_lane_actor_next(lane);
        if (lane->local && n) answer_step(actor, l, n - 1);
        const enum farm_status status = farm_group_step(&actor->groups[l], lane, err);
        if (status) return status;
        if (actor->opponents) farm_local_play(actor->opponents, l);
        if (actor->film.fd >= 0 && l == 0) farm_film_step(&actor->film, lane);
        farm_lane_actor_publish(lane);
        if (!actor->config->rings_late) farm_actor_notify(ring, actor->config->learner_eventfd);
    }
    return FARM_OK;
}

int farm_actor_run(const struct farm_actor_config *config, struct farm_error *err) {
    struct farm_actor actor = {.config = config, .call = farm_crash_watch(), .film.fd = -1};
    farm_sigterm_catch(); // it ends the actor after its step
    actor.call->actor = config->actor;
    enum farm_status status = farm_ring_open(config->up_fd, config->down_fd, FARM_RING_ACTOR, &actor.ring, err);
    if (status) {
        close(config->up_fd);
        close(config->down_fd);
        return 1;
    }
    const bool infers = actor.ring.spec.answers == FARM_ANSWERS_LOCAL && !config->answer;
    if (infers && config->board_fd < 0)
        status = farm_fail(err, FARM_E_UNSUPPORTED, "actor %u: the ring is LOCAL, but this actor has no policy",
                           config->actor);
    actor.call->heartbeat = &actor.ring.up_control->heartbeat;
    actor.groups = calloc(actor.ring.spec.lanes, sizeof *actor.groups);
    if (!status && !actor.groups) status = farm_fail(err, FARM_E_LIMIT, "no memory for the actor's groups");
    if (!status) status = take_over(&actor, err);
    if (!status && infers) status = farm_local_open(config->board_fd, &actor.ring, 0, config->actor, &actor.local, err);
    if (!status && config->opponents)
        status = farm_local_open(config->opponent_fd, &actor.ring, actor.groups->env_count * config->opponents,
                                 config->actor, &actor.opponents, err);
    for (uint32_t l = 0; actor.opponents && l < actor.ring.spec.lanes; l++)
        actor.groups[l].opponents = &farm_local_opponents(actor.opponents)->lanes[l];
    const bool ready = !status;
    if (ready && config->video >= 0) status = farm_film_open(&actor.film, config->video, &actor.groups[0], err);
    if (!status && (actor.local || !infers)) status = step_lanes(&actor, err);
    farm_local_close(actor.local);
    farm_local_close(actor.opponents);
    farm_film_close(&actor.film);
    for (uint32_t l = 0; actor.groups && l < actor.ring.spec.lanes; l++) farm_group_free(&actor.groups[l]);
    free(actor.groups);
    farm_plugin_close(&actor.plugin);
    actor.call->heartbeat = NULL;
    farm_ring_close(&actor.ring);
    return !status ? 0 : ready || status == FARM_E_USAGE ? FARM_ACTOR_ENV_BROKEN : 1;
}
