// Both sides of a bridge in one process: the supervisor's part (makes rings when the hub asks), a test learner that
// checks and answers every step, and test actors that check every answer. LOCAL: the learner grants a few steps at a
// time and publishes versions; the actors check each number of the version that they answer by. One thread. The caller
// chooses the engine and passes the time.
#ifndef TESTS_BRIDGE_WORLD_H
#define TESTS_BRIDGE_WORLD_H

#ifndef cr_assert // a fuzz target brings its own
#include <criterion/criterion.h>
#endif
#include <sys/eventfd.h>

#include "../support/generation.h"
#include "../support/rings.h"
#include "board/board.h"
#include "bridge/control.h"
#include "bridge/hub.h"
#include "bridge/node.h"
#include "ring/wait.h"

enum { WORLD_RINGS_MAX = 8, WORLD_LANES_MAX = 4, WORLD_GRANT = 3 };

struct world {
    struct farm_wire_offer offer;
    struct farm_ring_spec node_spec; // the offer's, with the steps of the node's rings
    uint32_t rings;                  // in the session
    struct farm_bridge_stats hub_stats, node_stats;
    int control, hub_control, wake, bell, node_bell;
    struct farm_hub_config hub_config;
    struct farm_node_config node_config;
    struct farm_hub *hub;
    struct farm_node *node;
    // learner's side
    struct farm_ring made[WORLD_RINGS_MAX], learner[WORLD_RINGS_MAX];
    uint32_t made_count;
    bool admitted;
    uint8_t session[FARM_WIRE_ID_BYTES], given_up[FARM_WIRE_ID_BYTES];
    uint64_t taken[WORLD_RINGS_MAX][WORLD_LANES_MAX];      // steps that the learner has checked, in order
    uint32_t held;                                         // newest steps that the learner does not release
    struct farm_board *board;                              // LOCAL; the versions' numbers: world_weight
    size_t weights;                                        // in a version; 0: no boards
    uint64_t published;                                    // 1 + the newest version
    uint64_t needed[WORLD_RINGS_MAX][WORLD_LANES_MAX][16]; // [n % 16] `published` when step n was granted
    // node's side
    struct farm_ring actors_made[WORLD_RINGS_MAX], actor[WORLD_RINGS_MAX];
    int actor_fds[WORLD_RINGS_MAX][2];
    struct farm_board *node_board;
    uint64_t seen; // 1 + the version that the actors have checked last
    uint64_t answers;
    uint64_t generation[WORLD_RINGS_MAX];                 // the actors'
    bool begins[WORLD_RINGS_MAX][WORLD_LANES_MAX];        // the lane's next step is its actor's first
    uint64_t first[WORLD_RINGS_MAX][WORLD_LANES_MAX][16]; // [n % 16] generation that began with step n; 0: no new one
};

static inline uint8_t world_pixel(uint32_t ring, uint32_t lane, uint64_t n, size_t i) {
    return (uint8_t)(n * 131 + ring * 17 + lane * 7 + i * 3 + (n >> 8));
}
static inline int32_t world_action(uint32_t ring, uint32_t lane, uint64_t n, uint32_t env) {
    return (int32_t)((n * 7 + ring + lane * 3 + env) % 3);
}

static inline float world_weight(uint64_t version, size_t i) {
    return (float)(version * 31 + i % 1009);
}

static inline void world_spec(struct world *world, uint32_t lanes, uint32_t width, uint32_t pixels, uint32_t steps) {
    struct farm_ring_spec *spec = &world->offer.spec;
    *spec = farm_ring_spec_plain(lanes, width, steps, FARM_U8, pixels, 3);
    strcpy(world->offer.env, "native/catch");
    strcpy(world->offer.bad_values, "count");
    memset(world->offer.run, 7, sizeof world->offer.run);
    world->node_spec = *spec;
    world->node_spec.steps = 4;
}

// ---- the supervisor's part ----

static inline void world_refuse(struct world *world, const struct farm_control_message *request) {
    struct farm_control_message reply = {
        .kind = FARM_CONTROL_REFUSED, .reason = FARM_WIRE_REFUSE_LATER, .fds = {-1, -1}};
    memcpy(reply.id, request->id, sizeof reply.id);
    cr_assert(farm_control_send(world->control, &reply));
}

// The learner publishes a version before it grants steps.
static inline void world_grant(struct world *world, uint32_t r, uint32_t l, uint64_t granted) {
    struct farm_lane *lane = &world->learner[r].lanes[l];
    if (!lane->local) return;
    for (uint64_t n = farm_load_relaxed(&lane->down->granted); n < granted; n++)
        world->needed[r][l][n % 16] = world->published;
    farm_lane_grant(lane, granted);
}

static inline void world_admit(struct world *world, const struct farm_control_message *request) {
    if ((world->made_count && memcmp(world->session, request->id, sizeof world->session) != 0) ||
        memcmp(world->given_up, request->id, sizeof world->given_up) == 0) {
        world_refuse(world, request);
        return;
    }
    memcpy(world->session, request->id, sizeof world->session);
    for (uint32_t r = world->made_count; r < request->count; r++, world->made_count++) {
        world->made[r] = ring_of(world->offer.spec, 10 + r);
        world->learner[r] = open_view(&world->made[r], FARM_RING_LEARNER);
        world->learner[r].wake_fd = world->wake;
        for (uint32_t l = 0; l < world->offer.spec.lanes; l++) world_grant(world, r, l, WORLD_GRANT);
    }
    cr_assert(farm_control_send_session(world->control, 0, world->session, world->made, request->count, 10));
    world->admitted = true;
}

static inline void world_supervise(struct world *world) {
    struct farm_control_message message;
    while (farm_control_receive(world->control, &message)) {
        if (message.kind == FARM_CONTROL_ADMIT) world_admit(world, &message);
        if (message.kind == FARM_CONTROL_GENERATION)
            cr_assert(write_generation(world->control, &world->made[message.ring], &message));
    }
}

// ---- the learner's part ----

static inline void world_check_step(struct world *world, uint32_t r, uint32_t l, uint64_t n) {
    const struct farm_lane *lane = &world->learner[r].lanes[l];
    const uint64_t first = world->first[r][l][n % 16];
    cr_assert_eq(world->taken[r][l]++, n);
    for (uint32_t e = 0; e < lane->width; e++) {
        const uint8_t *pixels = farm_lane_obs(lane, 0, n, e);
        for (size_t i = 0; i < lane->obs_bytes[0]; i += 1 + lane->obs_bytes[0] / 61)
            cr_assert_eq(pixels[i], world_pixel(r, l, n, e * lane->obs_bytes[0] + i), "ring %u lane %u step %llu", r, l,
                         (unsigned long long)n);
        cr_assert_eq(farm_lane_reward(lane, n)[e], (float)n);
        cr_assert_eq(farm_lane_flags(lane, n)[e], n && !first ? 0 : FARM_STEP_FIRST);
        if (lane->local && n) cr_assert_eq(*(int32_t *)farm_lane_action(lane, n - 1, e), world_action(r, l, n - 1, e));
    }
    if (lane->local) cr_assert_leq(n, farm_load_relaxed(&lane->down->granted));
    cr_assert_geq(farm_load_acquire(&lane->down->generation), first);
}

static inline void world_publish_version(struct world *world) {
    if (!world->board) return;
    const int b = farm_board_begin(world->board);
    cr_assert_geq(b, 0);
    for (size_t i = 0; i < world->weights; i++) world->board->buffer[b][i] = world_weight(world->published, i);
    farm_board_commit(world->board, b, world->published++);
}

// Answers (LOCAL: takes in) every published step. Returns the number of lane steps.
static inline uint32_t world_answer_steps(struct world *world) {
    uint32_t done = 0;
    const uint64_t every = WORLD_GRANT * (1 + world->weights / 1000); // steps
    if (world->made_count && world->published * every <= farm_lane_acted(world->learner[0].lanes))
        world_publish_version(world);
    for (uint32_t r = 0; r < world->made_count; r++) {
        for (uint32_t l = 0; l < world->offer.spec.lanes; l++) {
            struct farm_lane *lane = &world->learner[r].lanes[l];
            for (uint64_t n = farm_lane_acted(lane); n < farm_lane_produced(lane); n++, done++) {
                world_check_step(world, r, l, n);
                for (uint32_t e = 0; e < lane->width && !lane->local; e++)
                    *(int32_t *)farm_lane_action(lane, n, e) = world_action(r, l, n, e);
                for (uint32_t e = 0; e < lane->width && lane->control; e++)
                    ((uint64_t *)farm_lane_answer_at(lane, lane->control, n, e))[FARM_CONTROL_SEED] = n << 32 | e;
                if (!lane->local) *farm_lane_version(lane, n) = n / 5;
                farm_lane_answer(lane, n);
                if ((n + 1) % WORLD_GRANT == 0) world_grant(world, r, l, n + 1 + WORLD_GRANT);
                if (n + 1 > world->held) farm_lane_release(lane, n + 1 - world->held);
            }
        }
        if (done) farm_learner_notify(&world->learner[r]);
    }
    return done;
}

// ---- the actors' part ----

static inline void world_write_step(struct world *world, struct farm_lane *lane, uint32_t r, uint32_t l, uint64_t n) {
    world->first[r][l][n % 16] = world->begins[r][l] ? world->generation[r] : 0;
    for (uint32_t e = 0; e < lane->width; e++) {
        uint8_t *pixels = farm_lane_obs(lane, 0, n, e);
        for (size_t i = 0; i < lane->obs_bytes[0]; i++) pixels[i] = world_pixel(r, l, n, e * lane->obs_bytes[0] + i);
        farm_lane_reward(lane, n)[e] = (float)n;
        farm_lane_flags(lane, n)[e] = n && !world->begins[r][l] ? 0 : FARM_STEP_FIRST;
        if (lane->local && n) *(int32_t *)farm_lane_action(lane, n - 1, e) = world_action(r, l, n - 1, e);
    }
    world->begins[r][l] = false;
}

// The ring's actor dies within a step, and a new actor takes the lanes over.
static inline void world_restart_actor(struct world *world, uint32_t r) {
    world->generation[r]++;
    for (uint32_t l = 0; l < world->offer.spec.lanes; l++) {
        struct farm_lane *lane = &world->actor[r].lanes[l];
        if (farm_lane_actor_answered(lane) && farm_lane_actor_can_write(lane))
            memset(farm_lane_obs(lane, 0, farm_lane_actor_next(lane), 0), 0xdd, lane->obs_bytes[0]);
        farm_store_release(&world->actors_made[r].lanes[l].down->generation, world->generation[r]);
        farm_lane_actor_take_over(lane);
        world->begins[r][l] = true;
    }
}

// Checks the newest version, which actors would answer step n with.
static inline void world_check_version(struct world *world, uint32_t r, uint32_t l, uint64_t n) {
    const struct farm_lane *lane = &world->actor[r].lanes[l];
    struct farm_board_reader reader;
    uint64_t version;
    if (!lane->local || !world->node_board) return;
    cr_assert_eq(farm_board_attach(world->node_board, &reader, &lane->up_control->using, NULL), FARM_OK);
    const float *weights = farm_board_pin(&reader, &version);
    cr_assert_geq(1 + version, world->needed[r][l][n % 16], "step %llu is answered too early", (unsigned long long)n);
    for (size_t i = 0; weights && 1 + version != world->seen && i < world->weights; i++)
        cr_assert_eq(weights[i], world_weight(version, i));
    cr_assert_geq(1 + version, world->seen);
    world->seen = 1 + version;
    farm_board_unpin(&reader);
}

// Publishes the next step of each lane that may, up to `steps` in a lane. Returns the number of lane steps.
static inline uint32_t world_publish_steps(struct world *world, uint64_t steps) {
    uint32_t done = 0;
    for (uint32_t r = 0; r < world->rings; r++) {
        for (uint32_t l = 0; l < world->offer.spec.lanes; l++) {
            struct farm_lane *lane = &world->actor[r].lanes[l];
            const uint64_t n = farm_lane_actor_next(lane);
            if (n >= steps || !farm_lane_actor_answered(lane) || !farm_lane_actor_can_write(lane)) continue;
            for (uint32_t e = 0; e < lane->width && n && !lane->local; e++)
                cr_assert_eq(*(int32_t *)farm_lane_action(lane, n - 1, e), world_action(r, l, n - 1, e));
            for (uint32_t e = 0; e < lane->width && n && lane->control; e++)
                cr_assert_eq(((uint64_t *)farm_lane_answer_at(lane, lane->control, n - 1, e))[FARM_CONTROL_SEED],
                             (n - 1) << 32 | e);
            if (n && !lane->local) cr_assert_eq(*farm_lane_version(lane, n - 1), (n - 1) / 5);
            if (n) world_check_version(world, r, l, n - 1);
            world->answers += n > 0;
            world_write_step(world, lane, r, l, n);
            farm_lane_actor_publish(lane);
            done++;
        }
        if (done) farm_actor_notify(&world->actor[r], world->node_bell);
    }
    return done;
}

// ---- making ----

static inline void world_make_hub(struct world *world) {
    struct farm_error err;
    cr_assert_eq(farm_hub_make(&world->hub_config, &world->hub, &err), FARM_OK, "%s", err.message);
}

// As after the hub's death: its messages in flight are lost, and the supervisor repeats the session to the new hub.
static inline void world_replace_hub(struct world *world) {
    struct farm_control_message again = {.count = world->made_count};
    farm_hub_free(world->hub);
    farm_control_clear(world->control, world->hub_control);
    memcpy(again.id, world->session, sizeof again.id);
    if (world->admitted) world_admit(world, &again);
    world_make_hub(world);
}

static inline void world_make_node(struct world *world) {
    struct farm_error err;
    for (uint32_t r = 0; r < world->rings; r++) lend_ring(&world->actors_made[r], world->actor_fds[r]);
    world->node_config.ring_fds = (const int(*)[2])world->actor_fds;
    world->node_config.boards = &world->node_board;
    world->node_config.board_count = world->node_board != NULL;
    memcpy(world->node_config.run, world->offer.run, sizeof world->offer.run);
    cr_assert_eq(farm_node_make(&world->node_config, &world->node, &err), FARM_OK, "%s", err.message);
}

static inline void world_replace_node(struct world *world) {
    farm_node_free(world->node, false);
    world_make_node(world);
}

static inline void world_make_actors(struct world *world, uint32_t rings) {
    world->rings = rings;
    for (uint32_t r = 0; r < rings; r++) {
        world->actors_made[r] = ring_of(world->node_spec, r);
        world->actor[r] = open_view(&world->actors_made[r], FARM_RING_ACTOR);
    }
}

static inline void world_free_rings(struct farm_ring *views, struct farm_ring *made, uint32_t count) {
    for (uint32_t r = 0; r < count; r++) {
        farm_ring_close(&views[r]);
        farm_ring_close(&made[r]);
    }
}

// The supervisor gives the session up, and the node begins another session with new rings.
static inline void world_replace_session(struct world *world) {
    const struct farm_control_message forget = {.kind = FARM_CONTROL_FORGET, .fds = {-1, -1}};
    cr_assert(farm_control_send(world->control, &forget));
    world_free_rings(world->learner, world->made, world->made_count);
    world->made_count = 0;
    world->admitted = false;
    farm_node_free(world->node, false);
    world_free_rings(world->actor, world->actors_made, world->rings);
    world_make_actors(world, world->rings);
    memset(world->taken, 0, sizeof world->taken);
    memset(world->needed, 0, sizeof world->needed);
    memset(world->generation, 0, sizeof world->generation);
    memset(world->begins, 0, sizeof world->begins);
    memcpy(world->given_up, world->node_config.session, sizeof world->given_up);
    for (size_t i = 1; i < FARM_WIRE_ID_BYTES && !++world->node_config.session[i]; i++) continue;
    world_make_node(world);
}

// After world_spec and the caller's parts of hub_config and node_config (listener, engine, key, address).
static inline void world_make(struct world *world, uint32_t rings) {
    struct farm_error err;
    struct farm_hub_config *hub = &world->hub_config;
    struct farm_node_config *node = &world->node_config;
    cr_assert_eq(farm_control_make(&world->control, &world->hub_control, &err), FARM_OK);
    world->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    world->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    world->node_bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    hub->control = world->hub_control;
    hub->wake = world->wake;
    hub->bells = &world->bell;
    hub->bell_count = 1;
    hub->offer = &world->offer;
    hub->stats = &world->hub_stats;
    if (world->weights) {
        const struct farm_board_request request = {.count = world->weights, .buffers = FARM_BOARD_BUFFERS, .node = -1};
        cr_assert_eq(farm_board_create(&request, &world->board, &err), FARM_OK, "%s", err.message);
        cr_assert_eq(farm_board_create(&request, &world->node_board, &err), FARM_OK, "%s", err.message);
        cr_assert(farm_board_describe(world->board, "net=test\nwidth=1", 0, 0));
    }
    hub->board = world->board;
    world_make_hub(world);
    memset(node->session, 5, sizeof node->session);
    node->ring_count = rings;
    node->bell = world->node_bell;
    node->name = "test";
    node->stats = &world->node_stats;
    world_make_actors(world, rings);
    world_make_node(world);
}

static inline void world_free(struct world *world) {
    farm_node_free(world->node, false);
    farm_hub_free(world->hub);
    world_free_rings(world->learner, world->made, world->made_count);
    world_free_rings(world->actor, world->actors_made, world->rings);
    farm_board_free(world->board);
    farm_board_free(world->node_board);
    const int fds[] = {world->control, world->hub_control, world->wake, world->bell, world->node_bell};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) close(fds[i]);
}

// Whether the learner has `steps` steps of every lane, and the actors all answers.
static inline bool world_done(const struct world *world, uint64_t steps) {
    for (uint32_t r = 0; r < world->rings; r++)
        for (uint32_t l = 0; l < world->offer.spec.lanes; l++)
            if (world->taken[r][l] < steps || farm_lane_acted(&world->actors_made[r].lanes[l]) < steps) return false;
    return true;
}

// One turn of the hub, the supervisor, the learner, the actors and the node.
static inline bool world_turn(struct world *world, uint64_t steps, uint64_t now_ns) {
    bool busy = farm_hub_turn(world->hub, now_ns);
    world_supervise(world);
    busy |= world_answer_steps(world) + world_publish_steps(world, steps) > 0;
    return farm_node_turn(world->node, now_ns) || busy;
}

#endif
