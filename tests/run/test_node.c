// A remote node's run against a learner of the test's own: a process that has a hub, makes rings as the supervisor of a
// training would, and answers every step. In the clear, over the loopback interface.
#include "run/node.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "algo/registry.h"
#include "base/time.h"
#include "bridge/control.h"
#include "bridge/hub.h"
#include "envs/registry.h"

enum { RINGS_MAX = 2, SESSIONS_MAX = 4, LANES = 2, WIDTH = 4, FIRST_ACTOR = 7 };
static const uint64_t MANY = 2000; // lane steps

// ---- the learner: a process ----

// Shared with the test.
struct words {
    uint64_t lane_steps;  // answered, of all sessions
    uint64_t firsts;      // of them with FIRST, behind a lane's step 0
    uint64_t wrong;       // lanes whose first step was no FIRST
    uint64_t sessions;    // admitted
    uint64_t generations; // asked for
    uint64_t left;        // sessions that left by themselves
    uint64_t forget, end; // set by the test
};

struct session {
    uint8_t id[FARM_WIRE_ID_BYTES];
    struct farm_ring made[RINGS_MAX], ring[RINGS_MAX];
    uint32_t count; // 0: gone
};

struct learner {
    struct farm_wire_offer offer;
    struct words *words;
    int control, hub_control, wake, bell;
    struct session sessions[SESSIONS_MAX];
    uint32_t session_count;
    bool ended;
};

static void say(struct learner *learner, uint32_t kind, uint32_t place) {
    struct farm_control_message message = {
        .kind = kind, .session = place, .count = learner->sessions[place].count, .fds = {-1, -1}};
    memcpy(message.id, learner->sessions[place].id, sizeof message.id);
    if (!farm_control_send(learner->control, &message)) _exit(3);
}

static void say_rings(struct learner *learner, uint32_t place) {
    const struct session *session = &learner->sessions[place];
    say(learner, FARM_CONTROL_SESSION, place);
    for (uint32_t r = 0; r < session->count; r++) {
        const struct farm_control_message ring = {.kind = FARM_CONTROL_RING,
                                                  .session = place,
                                                  .ring = r,
                                                  .actor = FIRST_ACTOR + r,
                                                  .fds = {session->made[r].up.fd, session->made[r].down.fd_readonly}};
        if (!farm_control_send(learner->control, &ring)) _exit(4);
    }
    say(learner, FARM_CONTROL_ADMITTED, place);
}

static void refuse(const struct learner *learner, const struct farm_control_message *ask) {
    struct farm_control_message no = {
        .kind = FARM_CONTROL_REFUSED, .reason = FARM_WIRE_REFUSE_SESSION, .text = "forgotten", .fds = {-1, -1}};
    memcpy(no.id, ask->id, sizeof no.id);
    if (!farm_control_send(learner->control, &no)) _exit(5);
}

static void admit(struct learner *learner, const struct farm_control_message *ask) {
    struct farm_error err;
    if (ask->ring) { // it had rings
        refuse(learner, ask);
        return;
    }
    struct session *session = &learner->sessions[learner->session_count];
    if (learner->session_count == SESSIONS_MAX || ask->count > RINGS_MAX) _exit(6);
    memcpy(session->id, ask->id, sizeof session->id);
    for (uint32_t r = 0; r < ask->count; r++) {
        if (farm_ring_create(&learner->offer.spec, FIRST_ACTOR + r, -1, false, &session->made[r], &err) ||
            farm_ring_open(dup(session->made[r].up.fd_readonly), dup(session->made[r].down.fd), FARM_RING_LEARNER,
                           &session->ring[r], &err))
            _exit(7);
        session->ring[r].wake_fd = learner->wake;
    }
    session->count = ask->count;
    say_rings(learner, learner->session_count++);
    farm_store_release(&learner->words->sessions, learner->session_count);
}

static void supervise(struct learner *learner) {
    struct farm_control_message message;
    while (farm_control_receive(learner->control, &message)) {
        struct session *session = &learner->sessions[message.session % SESSIONS_MAX];
        if (message.kind == FARM_CONTROL_ADMIT) admit(learner, &message);
        if (message.kind == FARM_CONTROL_LEAVE) {
            farm_store_release(&learner->words->left, learner->words->left + 1);
            say(learner, FARM_CONTROL_FORGET, message.session);
            session->count = 0;
        }
        if (message.kind != FARM_CONTROL_GENERATION) continue;
        for (uint32_t l = 0; l < LANES; l++)
            farm_store_release(&session->made[message.ring].lanes[l].down->generation, message.generation);
        farm_store_release(&learner->words->generations, learner->words->generations + 1);
        message.kind = FARM_CONTROL_GENERATION_IS;
        if (!farm_control_send(learner->control, &message)) _exit(8);
    }
}

static uint32_t answer(struct learner *learner, struct farm_lane *lane) {
    struct words *words = learner->words;
    const uint64_t n = farm_lane_acted(lane);
    if (farm_lane_produced(lane) == n) return 0;
    const bool first = farm_lane_flags(lane, n)[0] & FARM_STEP_FIRST, last = n && farm_lane_flags(lane, n - 1)[0];
    words->wrong += !n && !first;
    words->firsts += n && first && !last;
    memset(farm_lane_action(lane, n, 0), 0, (size_t)WIDTH * sizeof(int32_t));
    *farm_lane_version(lane, n) = 0;
    farm_lane_answer(lane, n);
    if (n > 1) farm_lane_release(lane, n - 1);
    farm_store_release(&words->lane_steps, words->lane_steps + 1);
    return 1;
}

static bool learn(struct learner *learner) {
    uint32_t done = 0;
    for (uint32_t s = 0; s < learner->session_count; s++)
        for (uint32_t r = 0; r < learner->sessions[s].count; r++) {
            struct farm_ring *ring = &learner->sessions[s].ring[r];
            uint32_t here = 0;
            for (uint32_t l = 0; l < LANES; l++) here += answer(learner, &ring->lanes[l]);
            if (here) farm_learner_notify(ring);
            done += here;
        }
    return done > 0;
}

static void obey(struct learner *learner) {
    struct words *words = learner->words;
    if (farm_load_acquire(&words->forget)) {
        farm_store_release(&words->forget, 0);
        learner->sessions[learner->session_count - 1].count = 0;
        say(learner, FARM_CONTROL_FORGET, learner->session_count - 1);
    }
    if (!farm_load_acquire(&words->end) || learner->ended) return;
    say(learner, FARM_CONTROL_END, 0);
    learner->ended = true;
}

static _Noreturn void be_hub(const struct learner *learner, int listener) {
    struct farm_error err;
    const struct farm_hub_config config = {.listener = listener,
                                           .control = learner->hub_control,
                                           .wake = learner->wake,
                                           .bells = &learner->bell,
                                           .bell_count = 1,
                                           .offer = &learner->offer,
                                           .engine = "poll"};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    _exit(farm_hub_run(&config, &err));
}

static _Noreturn void be_learner(struct learner *learner, int listener) {
    struct farm_error err;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    learner->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    learner->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (farm_control_make(&learner->control, &learner->hub_control, &err)) _exit(9);
    if (!fork()) be_hub(learner, listener);
    for (;;) {
        supervise(learner);
        obey(learner);
        if (!learn(learner)) usleep(200);
    }
}

static int listen_on_loopback(char *address, size_t bytes) {
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof name;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    cr_assert(fd >= 0 && !bind(fd, (struct sockaddr *)&name, sizeof name) && !listen(fd, 16));
    cr_assert(!getsockname(fd, (struct sockaddr *)&name, &length));
    snprintf(address, bytes, "127.0.0.1:%u", ntohs(name.sin_port));
    return fd;
}

// ---- the test's side ----

static struct learner learner;
static struct words *words;
static struct farm_recipe recipe;
static struct farm_run_node *node;
static struct farm_error error;
static char address[32];
static pid_t learner_pid;

static void set_up(void) {
    struct farm_env *env = calloc(1, sizeof *env);
    words = mmap(NULL, sizeof *words, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(env && words != MAP_FAILED);
    farm_recipe_defaults(&recipe, farm_algo_family_at);
    snprintf(recipe.env, sizeof recipe.env, "native/catch");
    cr_assert_eq(farm_env_find(&recipe, env, &error), FARM_OK, "%s", error.message);
    recipe.actors = 2;
    struct farm_wire_offer *offer = &learner.offer;
    offer->spec = (struct farm_ring_spec){.lanes = LANES, .width = WIDTH, .steps = 16, .env = env->spec};
    farm_ring_spec_answers(&offer->spec);
    offer->seed = 5;
    offer->window = 20;
    memset(offer->run, 1, sizeof offer->run);
    snprintf(offer->env, sizeof offer->env, "native/catch");
    snprintf(offer->bad_values, sizeof offer->bad_values, "count");
    learner.words = words;
    free(env);
}

static void start_learner(void) {
    const int listener = listen_on_loopback(address, sizeof address);
    learner_pid = fork();
    cr_assert(learner_pid >= 0);
    if (!learner_pid) be_learner(&learner, listener);
    close(listener);
}

// What the test does while the run goes on, at each tick.
static void (*meanwhile)(void);
static enum farm_supervisor_turn on_tick(void *context, uint64_t now_ns) {
    (void)context;
    (void)now_ns;
    meanwhile();
    return FARM_TURN_ON;
}

static void make_node(void) {
    const struct farm_run_node_request request = {.node = {.address = address, .name = "test", .engine = "poll"},
                                                  .recipe = &recipe,
                                                  .retry_s = 20,
                                                  .quiet = true,
                                                  .caller = {.on_tick = on_tick}};
    start_learner();
    cr_assert_eq(farm_run_node_make(&request, &node, &error), FARM_OK, "%s", error.message);
}

static void tear_down(void) {
    farm_run_node_free(node);
    if (learner_pid > 0) {
        kill(learner_pid, SIGKILL);
        waitpid(learner_pid, NULL, 0);
    }
}

TestSuite(run, .init = set_up, .fini = tear_down, .timeout = 60);

static enum farm_run_node_state session(void (*turn)(void)) {
    enum farm_run_node_state state;
    meanwhile = turn;
    cr_assert_eq(farm_run_node_join(node, &state, &error), FARM_OK, "%s", error.message);
    cr_assert_eq(state, FARM_RUN_NODE_JOINED);
    cr_assert_eq(farm_run_node_go(node, &state, &error), FARM_OK, "%s", error.message);
    return state;
}

static struct farm_run_node_figures leave(void) {
    struct farm_run_node_figures figures;
    farm_run_node_leave(node);
    farm_run_node_figures(node, farm_now_ns(), &figures);
    return figures;
}

static uint64_t steps(void) {
    return farm_load_acquire(&words->lane_steps);
}

static void end_after_many(void) {
    if (steps() >= MANY) farm_store_release(&words->end, 1);
}

Test(run, plays_for_a_learner_elsewhere_until_its_run_ends) {
    make_node();
    cr_expect_eq(session(end_after_many), FARM_RUN_NODE_ENDED);
    cr_expect_eq(node->run.plan.steps, 4);
    for (uint32_t a = 0; a < 2; a++) {
        const struct farm_actor_config *config = &node->run.workers.actors[a].config;
        cr_expect_eq(config->actor, FIRST_ACTOR + a);
        cr_expect_eq(config->seed, 5);
        cr_expect_eq(config->learner_eventfd, node->run.rings.bells[0]);
    }
    const struct farm_run_node_figures figures = leave();
    cr_expect_eq(words->wrong, 0);
    cr_expect_eq(words->firsts, 0);
    cr_expect_geq(figures.lane_steps, MANY);
    cr_expect_eq(figures.steps, figures.lane_steps * WIDTH);
    cr_expect_gt(figures.bytes_out, figures.bytes_in);
    cr_expect_gt(figures.wall_s, 0);
    cr_expect_eq(figures.sessions, 1);
    cr_expect_eq(figures.reconnects + figures.actor_restarts + figures.bridge_restarts, 0);
}

static uint64_t killed_at;
static void kill_once(size_t worker) {
    if (steps() < MANY) return;
    if (!killed_at) kill(farm_supervisor_pid(node->run.workers.supervisor, worker), SIGKILL);
    if (!killed_at) killed_at = steps();
    if (steps() >= killed_at + MANY) farm_store_release(&words->end, 1);
}

static void kill_bridge(void) {
    kill_once(2);
}
Test(run, starts_a_killed_bridge_again_in_its_session) {
    make_node();
    cr_expect_eq(session(kill_bridge), FARM_RUN_NODE_ENDED);
    const struct farm_run_node_figures figures = leave();
    cr_expect_eq(figures.bridge_restarts, 1);
    cr_expect_eq(figures.reconnects, 1);
    cr_expect_eq(words->sessions, 1);
    cr_expect_eq(words->wrong + words->firsts, 0);
}

static void kill_actor(void) {
    kill_once(1);
}
Test(run, starts_a_killed_actor_again_under_the_next_generation) {
    make_node();
    cr_expect_eq(session(kill_actor), FARM_RUN_NODE_ENDED);
    const struct farm_run_node_figures figures = leave();
    cr_expect_eq(figures.actor_restarts, 1);
    cr_expect_eq(figures.bridge_restarts + figures.reconnects, 0);
    cr_expect_geq(words->generations, 1);
    cr_expect_leq(words->firsts, LANES);
}

static void forget_after_many(void) {
    if (steps() >= MANY && !killed_at) farm_store_release(&words->forget, killed_at = 1);
}
Test(run, joins_anew_when_the_learner_has_forgotten_it) {
    make_node();
    cr_expect_eq(session(forget_after_many), FARM_RUN_NODE_STRANGE);
    farm_run_node_leave(node);
    words->lane_steps = 0;
    cr_expect_eq(session(end_after_many), FARM_RUN_NODE_ENDED);
    const struct farm_run_node_figures figures = leave();
    cr_expect_eq(figures.sessions, 2);
    cr_expect_eq(words->sessions, 2);
    cr_expect_geq(figures.lane_steps, 2 * MANY);
    cr_expect_eq(words->wrong, 0);
}

static void end_learner(void) {
    if (steps() >= MANY && !killed_at) kill(learner_pid, SIGKILL), killed_at = steps();
}
Test(run, gives_up_a_learner_that_stays_away) {
    enum farm_run_node_state state;
    make_node();
    node->request.retry_s = 2;
    meanwhile = end_learner;
    cr_assert_eq(farm_run_node_join(node, &state, &error), FARM_OK, "%s", error.message);
    const uint64_t start_ns = farm_now_ns();
    cr_expect_eq(farm_run_node_go(node, &state, &error), FARM_E_DEAD);
    cr_expect_geq(farm_now_ns() - start_ns, 2000000000u);
    cr_expect(strstr(error.message, "no connection to the learner at 127.0.0.1"), "%s", error.message);
    cr_expect_gt(leave().lane_steps, 0);
}

static void interrupt_after_many(void) {
    if (steps() >= MANY) kill(getpid(), SIGTERM);
}
Test(run, leaves_the_learner_by_a_signal) {
    make_node();
    cr_expect_eq(session(interrupt_after_many), FARM_RUN_NODE_STOPPED);
    const uint64_t start_ns = farm_now_ns();
    while (!farm_load_acquire(&words->left) && farm_now_ns() - start_ns < 10000000000u) usleep(10000);
    cr_expect_eq(words->left, 1);
}

Test(run, has_an_identity_that_no_living_node_has) {
    const struct farm_run_node_request request = {.node.address = "127.0.0.1:1", .recipe = &recipe};
    struct farm_run_node *nodes[3];
    for (int i = 0; i < 3; i++) cr_assert_eq(farm_run_node_make(&request, &nodes[i], &error), FARM_OK);
    const uint64_t first = nodes[0]->request.node.machine, second = nodes[1]->request.node.machine;
    cr_expect(first && second && first != second && nodes[2]->request.node.machine != second);
    farm_run_node_free(nodes[1]);
    cr_assert_eq(farm_run_node_make(&request, &nodes[1], &error), FARM_OK);
    cr_expect_eq(nodes[1]->request.node.machine, second, "it is started anew");
    for (int i = 0; i < 3; i++) farm_run_node_free(nodes[i]);
}

Test(run, joins_no_learner_that_plays_something_else) {
    enum farm_run_node_state state;
    learner.offer.spec.env.obs[0].dims[0]++;
    make_node();
    cr_expect_eq(farm_run_node_join(node, &state, &error), FARM_E_INVALID);
    cr_expect(strstr(error.message, "native/catch is not what the learner plays"), "%s", error.message);
    cr_expect_eq(words->sessions, 0);
}
