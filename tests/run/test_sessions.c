// Remote nodes in the supervisor. The test plays the bridges (control.h), the learner (its admission socket) and the
// supervisor's loop. No process is started.
#include "run/run.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "algo/registry.h"
#include "base/time.h"
#include "intake/admission.h"

enum { RECEIVED_MAX = 1024 };

static struct table {
    struct farm_run run;
    struct farm_recipe recipe;
    struct farm_control_message received[RECEIVED_MAX]; // by all bridges, in order
    uint32_t received_count;
    uint32_t joins, leaves, refused_join; // refused_join: the ring that the learner refuses, from 1; 0: none
} * t;

static void set(const char *key, const char *value) {
    struct farm_error err;
    cr_assert_eq(farm_recipe_set(&t->recipe, FARM_LAYER_FLAG, key, value, &err), FARM_OK, "%s", err.message);
}

static void start_with(const char *actors, uint32_t expect, uint32_t bridges, const char *grace_s) {
    struct farm_error err;
    t = calloc(1, sizeof *t);
    farm_recipe_defaults(&t->recipe, farm_algo_family_at);
    set("env", "native/catch");
    set("device", "cpu");
    set("actors", actors);
    set("envs_per_actor", "4");
    set("node_grace_s", grace_s);
    cr_assert_eq(farm_recipe_settle(&t->recipe, &err), FARM_OK, "%s", err.message);
    const struct farm_run_request request = {
        .recipe = &t->recipe,
        .elastic = true,
        .quiet = true,
        .listen = {.address = "127.0.0.1:0", .expect = expect, .bridges = bridges}};
    cr_assert_eq(farm_run_make(&t->run, &request, &err), FARM_OK, "%s", err.message);
    cr_assert_eq(farm_run_build(&t->run, &err), FARM_OK, "%s", err.message);
    farm_store_release(&t->run.rings.stats->ready, 1);
}

static void start(uint32_t expect) {
    start_with("0", expect, 1, "600");
}

static void drop_received(void) {
    for (uint32_t i = 0; i < t->received_count; i++)
        for (int k = 0; k < 2; k++)
            if (t->received[i].fds[k] >= 0) close(t->received[i].fds[k]);
    t->received_count = 0;
}

static void end(void) {
    drop_received();
    farm_run_free(&t->run);
    free(t);
}

TestSuite(sessions, .fini = end, .timeout = 60);

// The learner's reply to the next request, if there is one.
static bool reply_to_request(void) {
    struct farm_admission_request request;
    struct farm_admission_reply reply;
    if (!farm_admission_receive_request(t->run.workers.learner.rings.admission, 0, &request)) return false;
    reply = (struct farm_admission_reply){.ring = request.ring};
    if (request.kind == FARM_ADMISSION_LEAVE) {
        t->leaves++;
    } else {
        cr_assert(request.fds[0] >= 0 && request.fds[1] >= 0);
        cr_assert_eq(request.wake >= 0, t->run.workers.actors[request.ring].remote);
        if (request.wake >= 0) close(request.wake);
        close(request.fds[0]);
        close(request.fds[1]);
        if (++t->joins == t->refused_join) reply.status = farm_fail(&reply.error, FARM_E_LIMIT, "no room for a ring");
    }
    farm_admission_send_reply(t->run.workers.learner.rings.admission, &reply);
    return true;
}

static bool receive_all(void) {
    bool any = false;
    for (uint32_t b = 0; b < t->run.bridges.count; b++)
        while (farm_control_receive(t->run.bridges.bridge[b].end, &t->received[t->received_count])) {
            t->received_count++;
            any = true;
        }
    return any;
}

static void tick(void) {
    for (bool busy = true; busy;) {
        for (uint32_t b = 0; b < t->run.bridges.count; b++) farm_run_sessions_ops.readable(&t->run.sessions, b);
        farm_run_change_advance(&t->run.change);
        farm_run_sessions_tick(&t->run.sessions, farm_now_ns());
        busy = reply_to_request();
        busy |= receive_all();
    }
}

// How many messages of this kind were received; *out (may be NULL) receives the last one.
static uint32_t count_received(uint32_t kind, struct farm_control_message *out) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < t->received_count; i++) {
        if (t->received[i].kind != kind) continue;
        count++;
        if (out) *out = t->received[i];
    }
    return count;
}

static void send_from(uint32_t b, struct farm_control_message message) {
    cr_assert(farm_control_send(t->run.bridges.bridge[b].end, &message));
    tick();
}

static void request_places(uint32_t b, uint8_t id, uint32_t count, uint64_t machine) {
    struct farm_control_message message = {
        .kind = FARM_CONTROL_ADMIT, .count = count, .machine = machine, .text = "a node"};
    memset(message.id, id, sizeof message.id);
    send_from(b, message);
}

static void connect_node(uint32_t b, uint32_t session, bool connected) {
    farm_store_release(&t->run.bridges.bridge[b].stats->node[session].state,
                       connected ? FARM_NODE_CONNECTED : FARM_NODE_ABSENT);
    tick();
}

// Joins and connects a node of `count` actors; returns its session.
static uint32_t join(uint8_t id, uint32_t count, uint64_t machine) {
    struct farm_control_message admitted;
    drop_received();
    request_places(0, id, count, machine);
    cr_assert_eq(count_received(FARM_CONTROL_ADMITTED, &admitted), 1);
    connect_node(0, admitted.session, true);
    return admitted.session;
}

static struct farm_control_message leave_message(uint32_t session, uint32_t ring, uint8_t id) {
    return (struct farm_control_message){
        .kind = FARM_CONTROL_LEAVE, .session = session, .ring = ring, .id = {id}, .fds = {-1, -1}};
}

static void expect_refused(enum farm_wire_reason reason, const char *words) {
    struct farm_control_message refused;
    cr_assert_eq(count_received(FARM_CONTROL_REFUSED, &refused), 1);
    cr_expect_eq(refused.reason, (uint32_t)reason);
    cr_expect(strstr(refused.text, words), "%s", refused.text);
    drop_received();
}

Test(sessions, a_node_gets_places_and_its_bridge_receives_the_rings) {
    struct farm_control_message message;
    struct farm_ring ring;
    struct farm_error err;
    start(4);
    cr_expect_eq(t->run.plan.actors, 0);
    cr_expect_geq(t->run.plan.places, 12);
    request_places(0, 7, 3, 1);
    cr_assert_eq(t->joins, 3);
    cr_assert_eq(t->received_count, 5);
    cr_expect_eq(t->received[0].kind, (uint32_t)FARM_CONTROL_SESSION);
    cr_expect_eq(t->received[0].count, 3);
    cr_expect_str_eq(t->received[0].text, "a node");
    cr_expect_eq(t->received[4].kind, (uint32_t)FARM_CONTROL_ADMITTED);
    cr_assert_eq(count_received(FARM_CONTROL_RING, &message), 3);
    cr_expect_eq(message.ring, 2);
    cr_expect_eq(message.actor, 2);
    cr_assert_eq(farm_ring_open(message.fds[0], message.fds[1], FARM_RING_ACTOR, &ring, &err), FARM_OK, "%s",
                 err.message);
    cr_expect_eq(ring.spec.steps, t->run.plan.steps);
    for (uint32_t i = 0; i < t->received_count; i++) // the ring owns the descriptors
        if (t->received[i].kind == FARM_CONTROL_RING && t->received[i].ring == 2)
            t->received[i].fds[0] = t->received[i].fds[1] = -1;
    farm_ring_close(&ring);
    cr_expect_eq(t->run.workers.count, 3);
    (void)farm_run_learners_fill(&t->run.learners);
    cr_expect_eq(t->run.workers.learner.rings.wake_fds[2], t->run.bridges.bridge[0].wake);
    cr_expect_eq(t->run.workers.learner.rings.wake_fds[3], -1);
    request_places(0, 7, 3, 1); // repeated by the same node
    cr_expect_eq(t->joins, 3);
    cr_expect_eq(count_received(FARM_CONTROL_ADMITTED, NULL), 2);
}

Test(sessions, many_rings_join_one_after_another) {
    start(256);
    request_places(0, 1, 200, 1);
    request_places(0, 2, 56, 2);
    cr_expect_eq(t->joins, 256);
    cr_expect_eq(count_received(FARM_CONTROL_RING, NULL), 256);
    cr_expect_eq(count_received(FARM_CONTROL_ADMITTED, NULL), 2);
}

// One round of the loop without a reply of the learner.
static void tick_without_reply(void) {
    farm_run_sessions_ops.readable(&t->run.sessions, 0);
    farm_run_change_advance(&t->run.change);
    receive_all();
}

Test(sessions, a_bridge_receives_each_ring_when_the_learner_has_attached_it) {
    struct farm_control_message message = {.kind = FARM_CONTROL_ADMIT, .count = 3, .text = "a node"};
    start(4);
    cr_assert(farm_control_send(t->run.bridges.bridge[0].end, &message));
    tick_without_reply();
    for (uint32_t r = 0; r < 3; r++) {
        cr_expect_eq(count_received(FARM_CONTROL_RING, NULL), r);
        cr_expect_eq(count_received(FARM_CONTROL_ADMITTED, NULL), 0);
        cr_assert(farm_control_send(t->run.bridges.bridge[0].end, &message), "a repeated request");
        cr_assert(reply_to_request());
        tick_without_reply();
    }
    cr_expect_eq(count_received(FARM_CONTROL_SESSION, NULL), 1);
    cr_expect_eq(count_received(FARM_CONTROL_RING, NULL), 3);
    cr_expect_geq(count_received(FARM_CONTROL_ADMITTED, NULL), 1);
    cr_expect_eq(count_received(FARM_CONTROL_REFUSED, NULL), 0);
    cr_expect_eq(t->joins, 3);
}

Test(sessions, a_restarted_bridge_receives_everything_a_few_rings_a_tick) {
    start(40);
    join(1, 38, 1);
    join(2, 2, 2);
    drop_received();
    farm_run_sessions_ops.before_start(&t->run.sessions, 0, 1);
    tick_without_reply();
    cr_expect_eq(count_received(FARM_CONTROL_RING, NULL), 16);
    cr_expect_eq(count_received(FARM_CONTROL_ADMITTED, NULL), 0);
    tick();
    cr_expect_eq(count_received(FARM_CONTROL_SESSION, NULL), 2);
    cr_expect_eq(count_received(FARM_CONTROL_RING, NULL), 40);
    cr_expect_eq(count_received(FARM_CONTROL_ADMITTED, NULL), 2);
    cr_expect_eq(t->joins, 40);
    cr_expect_gt(t->run.sessions.session[0].away_ns, 0, "its connection ended with the bridge");
}

static void expect_no_session(void) {
    tick();
    cr_expect_eq(t->leaves, t->joins);
    cr_expect_eq(t->run.workers.count, 0);
    for (uint32_t a = 0; a < t->run.plan.places; a++)
        cr_expect(!t->run.workers.actors[a].remote && !t->run.workers.actors[a].attached &&
                  !t->run.rings.ring[a].lanes);
    cr_expect_eq(count_received(FARM_CONTROL_ADMITTED, NULL), 0);
    cr_expect_eq(count_received(FARM_CONTROL_FORGET, NULL), 1);
    cr_expect_eq(t->run.sessions.session[0].state, FARM_RUN_SESSION_NONE);
    join(9, 4, 1);
    cr_expect_eq(t->run.workers.count, 4);
}

// A node of four rings: the learner has attached this many, and has a request for the next.
static void begin_to_join(uint32_t rings) {
    start(4);
    const struct farm_control_message message = {.kind = FARM_CONTROL_ADMIT, .count = 4, .text = "a node", .id = {7}};
    cr_assert(farm_control_send(t->run.bridges.bridge[0].end, &message));
    tick_without_reply();
    for (uint32_t r = 0; r < rings; r++) {
        cr_assert(reply_to_request());
        tick_without_reply();
    }
    cr_assert_eq(t->joins, rings);
}

Test(sessions, a_node_that_leaves_while_it_joins_leaves_nothing_behind) {
    begin_to_join(2);
    send_from(0, leave_message(0, UINT32_MAX, 0));
    cr_expect_eq(t->joins, 3, "the learner had its request already");
    expect_no_session();
}

Test(sessions, a_node_can_leave_by_its_id) {
    begin_to_join(1);
    const struct farm_control_message other = leave_message(UINT32_MAX, UINT32_MAX, 8);
    cr_assert(farm_control_send(t->run.bridges.bridge[0].end, &other));
    tick_without_reply();
    cr_expect_eq(t->run.sessions.session[0].cancelled, false);
    send_from(0, leave_message(UINT32_MAX, UINT32_MAX, 7));
    expect_no_session();
}

Test(sessions, a_node_whose_ring_the_bridge_cannot_use_is_refused) {
    struct farm_control_message refused;
    begin_to_join(2);
    send_from(0, (struct farm_control_message){.kind = FARM_CONTROL_RING_FAILED, .ring = 1, .text = "no descriptor"});
    cr_assert_eq(count_received(FARM_CONTROL_REFUSED, &refused), 1);
    cr_expect_eq(refused.reason, FARM_WIRE_REFUSE_LATER);
    cr_expect_eq(refused.id[0], 7);
    cr_expect_str_eq(refused.text, "no descriptor");
    expect_no_session();
    drop_received();
    // a joined session's, by a bridge that has restarted
    send_from(0, (struct farm_control_message){.kind = FARM_CONTROL_RING_FAILED, .text = "no memory"});
    expect_refused(FARM_WIRE_REFUSE_LATER, "no memory");
    cr_expect_eq(t->run.workers.count, 0);
}

Test(sessions, messages_of_a_dead_bridge_count) {
    start(4);
    const uint32_t session = join(1, 3, 1);
    const struct farm_control_message leave = leave_message(session, UINT32_MAX, 0);
    cr_assert(farm_control_send(t->run.bridges.bridge[0].end, &leave));
    farm_run_sessions_ops.before_start(&t->run.sessions, 0, 1);
    tick();
    cr_expect_eq(t->run.workers.count, 0);
}

Test(sessions, a_bridge_that_dies_at_once_restarts_with_poll) {
    start(4);
    const struct farm_run_bridge *bridge = &t->run.bridges.bridge[0];
    farm_run_sessions_ops.before_start(&t->run.sessions, 0, 1);
    t->run.bridges.bridge[0].start_ns -= 2000000000u;
    farm_run_sessions_ops.before_start(&t->run.sessions, 0, 1);
    cr_expect_str_eq(bridge->engine, "auto");
    farm_run_sessions_ops.before_start(&t->run.sessions, 0, 1);
    cr_expect_str_eq(bridge->engine, "poll");
}

Test(sessions, training_goes_on_without_a_bridge_if_it_has_actors) {
    start_with("1", 4, 1, "600");
    join(1, 2, 1);
    cr_expect_eq(t->run.workers.count, 3);
    farm_run_sessions_ops.loss(&t->run.sessions, 0, "the bridge cannot be kept alive");
    cr_expect_str_eq(t->run.change.failure, "");
    tick();
    cr_expect_eq(t->run.workers.count, 1);
    cr_expect_eq(t->leaves, 2);
    cr_expect_eq(t->run.sessions.session[0].state, FARM_RUN_SESSION_NONE);
    cr_expect_eq(t->run.bridges.bridge[0].listener, -1);
}

Test(sessions, training_ends_with_its_last_bridge_if_it_has_no_actors) {
    start_with("0", 4, 2, "600");
    farm_run_sessions_ops.loss(&t->run.sessions, 1, "bridge 1 cannot be kept alive");
    cr_expect_str_eq(t->run.change.failure, "");
    farm_run_sessions_ops.loss(&t->run.sessions, 0, "bridge 0 cannot be kept alive");
    cr_expect_str_eq(t->run.change.failure, "bridge 0 cannot be kept alive");
}

Test(sessions, impossible_requests_are_refused) {
    start(2);
    request_places(0, 1, 0, 1);
    expect_refused(FARM_WIRE_REFUSE_FOR_GOOD, "0 actors");
    t->run.plan.places = 3;
    join(1, 3, 1);
    request_places(0, 2, 2, 2);
    expect_refused(FARM_WIRE_REFUSE_LATER, "0 of the learner's 3 places are vacant");
    struct farm_control_message old = {.kind = FARM_CONTROL_ADMIT, .ring = 2, .count = 1, .id = {9}};
    drop_received();
    send_from(0, old); // it has rings, but this run does not know it
    expect_refused(FARM_WIRE_REFUSE_SESSION, "does not know");
}

// Joins a node of 4 actors, of which `joined` fit.
static void expect_part(uint8_t id, uint32_t joined, const char *why) {
    struct farm_control_message admitted, begun;
    const uint32_t before = t->run.workers.count;
    drop_received();
    request_places(0, id, 4, id);
    cr_assert_eq(count_received(FARM_CONTROL_ADMITTED, &admitted), 1);
    cr_assert_eq(count_received(FARM_CONTROL_SESSION, &begun), 1);
    cr_expect_eq(admitted.count, joined);
    cr_expect_geq(begun.count, joined);
    cr_expect_eq(count_received(FARM_CONTROL_RING, NULL), joined);
    cr_expect_eq(t->run.workers.count - before, joined);
    cr_expect(strstr(admitted.text, why), "%s", admitted.text);
    connect_node(0, admitted.session, true);
}

Test(sessions, a_node_that_fits_in_part_joins_in_part) {
    start(2);
    t->refused_join = 3; // the learner's third ring
    expect_part(1, 2, "no room for a ring");
    t->run.plan.places = 5; // the refused places are vacant again
    expect_part(2, 3, "3 of the learner's 5 places are vacant");
    send_from(0, leave_message(0, UINT32_MAX, 1));
    expect_part(3, 2, "2 of the learner's 5 places are vacant");
}

Test(sessions, what_a_session_can_carry_bounds_a_node) {
    start(2);
    t->run.plan.lanes = 8001; // of 32000
    request_places(0, 1, 4, 1);
    cr_expect_eq(t->run.sessions.session[0].count, 3);
    cr_expect(strstr(t->run.sessions.session[0].short_why, "one node can have 3 actors"), "%s",
              t->run.sessions.session[0].short_why);
}

Test(sessions, a_node_whose_first_ring_the_learner_refuses_leaves_nothing_behind) {
    start(4);
    t->refused_join = 1;
    request_places(0, 1, 4, 1);
    cr_assert_eq(t->leaves, 0);
    t->joins = t->leaves;
    t->refused_join = 0;
    struct farm_control_message refused;
    cr_assert_eq(count_received(FARM_CONTROL_REFUSED, &refused), 1);
    cr_expect_eq(refused.reason, FARM_WIRE_REFUSE_LATER);
    cr_expect(strstr(refused.text, "no room for a ring"), "%s", refused.text);
    expect_no_session();
}

Test(sessions, generations_only_grow_and_are_confirmed) {
    struct farm_control_message is;
    start(2);
    const uint32_t session = join(1, 2, 1);
    struct farm_control_message asked = {
        .kind = FARM_CONTROL_GENERATION, .session = session, .ring = 1, .generation = 5};
    send_from(0, asked);
    asked.generation = 3;
    send_from(0, asked);
    cr_assert_eq(count_received(FARM_CONTROL_GENERATION_IS, &is), 2);
    cr_expect_eq(is.ring, 1);
    cr_expect_eq(is.generation, 5);
    for (uint32_t l = 0; l < t->run.plan.lanes; l++) {
        cr_expect_eq(t->run.rings.ring[1].lanes[l].down->generation, 5);
        cr_expect_eq(t->run.rings.ring[0].lanes[l].down->generation, 0);
    }
    asked.ring = 2;
    send_from(0, asked); // no such ring
    asked.session = 200;
    send_from(0, asked);
    cr_expect_eq(count_received(FARM_CONTROL_GENERATION_IS, NULL), 2);
}

Test(sessions, a_node_that_leaves_frees_its_places) {
    struct farm_control_message forget;
    start(4);
    const uint32_t session = join(1, 3, 1);
    send_from(0, leave_message(session, 1, 0));
    cr_expect_eq(t->run.workers.count, 2);
    cr_expect_eq(count_received(FARM_CONTROL_FORGET, NULL), 0);
    send_from(0, leave_message(session, UINT32_MAX, 0));
    cr_expect_eq(t->leaves, 3);
    cr_expect_eq(t->run.workers.count, 0);
    cr_assert_eq(count_received(FARM_CONTROL_FORGET, &forget), 1);
    cr_expect_eq(forget.session, session);
    cr_expect_eq(join(2, 4, 2), session, "the place is used again");
}

// Makes the node look away for that much longer.
static void age(uint32_t session, double seconds) {
    t->run.sessions.session[session].away_ns -= (uint64_t)(seconds * 1e9);
    tick(); // notices that it is away
    tick();
}

Test(sessions, a_node_started_anew_replaces_the_old_one) {
    start(4);
    const uint32_t old = join(1, 4, 99);
    connect_node(0, old, false);
    join(3, 4, 99);
    cr_expect_eq(t->leaves, 0, "not before it has been away for a while");
    age(old, 1.5);
    cr_expect_eq(t->leaves, 0);
    age(old, 2);
    cr_expect_eq(t->leaves, 4);
    cr_expect_eq(t->run.workers.count, 4);
    cr_expect_eq(count_received(FARM_CONTROL_FORGET, NULL), 1);
}

Test(sessions, an_older_or_another_node_replaces_none) {
    start(4);
    const uint32_t first = join(1, 2, 99), second = join(2, 2, 99), other = join(3, 2, 98);
    connect_node(0, second, false);
    connect_node(0, other, false);
    age(second, 4);
    age(other, 4);
    cr_expect_eq(t->leaves, 0);
    connect_node(0, first, false);
    age(first, 4);
    cr_expect_eq(t->leaves, 2, "the second is the restarted first");
}

Test(sessions, no_node_is_replaced_just_after_its_bridge_started) {
    start(4);
    const uint32_t first = join(1, 2, 99);
    join(2, 2, 99);
    farm_run_sessions_ops.before_start(&t->run.sessions, 0, 1);
    tick();
    age(first, 4);
    cr_expect_eq(t->leaves, 0);
    t->run.bridges.bridge[0].start_ns -= 4000000000u;
    age(first, 0);
    cr_expect_eq(t->leaves, 2);
}

Test(sessions, a_refusal_removes_no_session) {
    start(1);
    t->run.plan.places = 3;
    const uint32_t old = join(1, 2, 99);
    connect_node(0, old, false);
    age(old, 4);
    drop_received();
    request_places(0, 2, 3, 99); // not in part: its old places will be free
    expect_refused(FARM_WIRE_REFUSE_LATER, "are vacant");
    cr_expect_eq(t->leaves, 0);
}

Test(sessions, each_of_many_refusals_is_sent_once) {
    start(1);
    struct farm_control_message message = {.kind = FARM_CONTROL_ADMIT, .count = 0, .text = "a node"};
    uint32_t asked = 0;
    for (uint32_t round = 0; round < 2; round++) // a bridge repeats requests without a reply
        for (message.id[0] = 0; message.id[0] < 100; message.id[0]++)
            asked += farm_control_send(t->run.bridges.bridge[0].end, &message);
    cr_assert_eq(asked, 200);
    tick();
    cr_expect_eq(count_received(FARM_CONTROL_REFUSED, NULL), 100);
    drop_received();
    send_from(0, message);
    cr_expect_eq(count_received(FARM_CONTROL_REFUSED, NULL), 1);
}

Test(sessions, a_node_that_is_away_too_long_loses_its_places) {
    start_with("0", 4, 1, "0");
    join(1, 2, 1);
    cr_expect_eq(t->leaves, 2, "a grace of 0 s");
    cr_expect_eq(count_received(FARM_CONTROL_FORGET, NULL), 1);
}

Test(sessions, a_node_stays_with_its_bridge) {
    start_with("0", 4, 2, "600");
    cr_assert_eq(t->run.bridges.count, 2);
    join(1, 2, 1);
    drop_received();
    request_places(1, 1, 2, 1);
    expect_refused(FARM_WIRE_REFUSE_AGAIN, "another bridge");
    request_places(1, 2, 2, 2);
    cr_expect_eq(count_received(FARM_CONTROL_ADMITTED, NULL), 1);
}

Test(sessions, requests_remove_no_remote_actor) {
    start(2);
    join(1, 2, 1);
    farm_run_change_request(&t->run.change, -1);
    tick();
    cr_expect_eq(t->run.workers.count, 2);
    cr_expect_eq(t->leaves, 0);
}

// What the run answers to these bytes of this process, or of one that descends from it (child) and may die at once.
static uint32_t answer_to(const void *bytes, size_t count, bool child, bool dies) {
    struct farm_run_answer answer = {.status = UINT32_MAX};
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    const struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "control/socket"};
    int status = 0;
    const pid_t pid = child ? fork() : 0;
    if (!pid) status = connect(fd, (const struct sockaddr *)&name, sizeof name) || send(fd, bytes, count, 0) < 0;
    if (child && !pid) status || dies ? _exit(status) : (void)pause();
    cr_assert_eq(status, 0);
    if (dies) waitpid(pid, NULL, 0);
    for (int i = 0; i < 1000 && recv(fd, &answer, sizeof answer, MSG_DONTWAIT) < 0; i++) { // until the child has sent
        farm_run_requests_tick(&t->run.requests, farm_now_ns());
        usleep(1000);
    }
    close(fd);
    if (child && !dies) kill(pid, SIGKILL);
    return answer.status;
}

Test(sessions, requests_are_numbers_of_processes_outside_the_run) {
    char folder[] = "/tmp/farm-requests-XXXXXX";
    const uint32_t good[4] = {0x41524146, 0x524f5443, 1, 0};
    uint32_t bad[5] = {0x41524146, 0x524f5443, 16385, 0};
    start(2);
    cr_assert(mkdtemp(folder) && !chdir(folder));
    t->run.workers.run_path = folder;
    farm_run_requests_make(&t->run.requests);
    cr_expect_eq(answer_to(good, sizeof good, false, false), FARM_OK);
    cr_expect_eq(answer_to(bad, sizeof good, false, false), FARM_E_FORMAT, "more than a run has");
    bad[2] = 1;
    cr_expect_eq(answer_to(bad, sizeof bad, false, false), FARM_E_FORMAT, "too long");
    cr_expect_eq(answer_to("+1", 2, false, false), FARM_E_FORMAT);
    cr_expect_eq(answer_to(good, sizeof good, true, false), FARM_E_PERMISSION, "a process of the run itself");
    cr_expect_eq(answer_to(good, sizeof good, true, true), FARM_E_PERMISSION, "it has ended already");
    cr_expect_eq(t->run.change.wanted, 1);
    farm_run_requests_free(&t->run.requests);
    cr_assert(!chdir("/") && !rmdir(folder), "it leaves nothing behind");
}

Test(sessions, samples_hold_nodes_with_their_rates) {
    struct farm_sample sample;
    start(2);
    const uint32_t session = join(1, 2, 1);
    struct farm_bridge_node_stats *row = &t->run.bridges.bridge[0].stats->node[session];
    row->steps = 1000;
    row->connections = 3;
    row->round_trip_ns = 2000000;
    t->run.sessions.second_ns = farm_now_ns() - 2000000000;
    tick();
    farm_run_sample(&t->run.sampler, farm_now_ns(), &sample);
    cr_assert(sample.listens && sample.node_count == 1 && !sample.nodes_away);
    cr_expect_str_eq(sample.nodes[0].name, "a node");
    cr_expect_eq(sample.nodes[0].lanes, 2 * t->run.plan.lanes);
    cr_expect_eq(sample.nodes[0].reconnects, 2);
    cr_expect_float_eq(sample.nodes[0].env_steps_per_s, 500, 50);
    cr_expect_float_eq(sample.nodes[0].round_trip_ms, 2, 1e-9);
    connect_node(0, session, false);
    t->run.sessions.second_ns -= 2000000000;
    tick();
    farm_run_sample(&t->run.sampler, farm_now_ns(), &sample);
    cr_expect_eq(sample.nodes_away, 1);
}
