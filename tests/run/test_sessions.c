// Remote nodes as the supervisor has them. The test is everybody else: the bridges, which speak control.h, the learner
// at its admission socket, and the loop that calls. No process is started.
#include "run/run.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "algo/registry.h"
#include "base/time.h"
#include "learner/admission.h"

enum { HEARD_MAX = 1024 };

static struct table {
    struct farm_run run;
    struct farm_recipe recipe;
    struct farm_control_message heard[HEARD_MAX]; // by all bridges, in order
    uint32_t heard_count;
    uint32_t joins, leaves, refuse_join; // refuse_join: that which is refused, from 1; 0: none
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

static void end(void) {
    for (uint32_t i = 0; i < t->heard_count; i++)
        for (int k = 0; k < 2; k++)
            if (t->heard[i].fds[k] >= 0) close(t->heard[i].fds[k]);
    farm_run_free(&t->run);
    free(t);
}

TestSuite(sessions, .fini = end, .timeout = 60);

// The learner's answer, if it is asked anything.
static bool answer_gate(void) {
    struct farm_admission_request question;
    struct farm_admission_reply answer;
    if (!farm_admission_receive_request(t->run.workers.learner.admission, 0, &question)) return false;
    answer = (struct farm_admission_reply){.ring = question.ring};
    if (question.kind == FARM_ADMISSION_LEAVE) {
        t->leaves++;
    } else {
        cr_assert(question.fds[0] >= 0 && question.fds[1] >= 0);
        cr_assert_eq(question.wake >= 0, t->run.workers.actors[question.ring].remote);
        if (question.wake >= 0) close(question.wake);
        close(question.fds[0]);
        close(question.fds[1]);
        if (++t->joins == t->refuse_join) answer.status = farm_fail(&answer.error, FARM_E_LIMIT, "no room for a ring");
    }
    farm_admission_send_reply(t->run.workers.learner.admission, &answer);
    return true;
}

static bool receive_all(void) {
    bool any = false;
    for (uint32_t b = 0; b < t->run.bridges.count; b++)
        while (farm_control_receive(t->run.bridges.bridge[b].end, &t->heard[t->heard_count])) {
            t->heard_count++;
            any = true;
        }
    return any;
}

static void turn(void) {
    for (bool busy = true; busy;) {
        for (uint32_t b = 0; b < t->run.bridges.count; b++) farm_run_sessions_receive(&t->run.sessions, b);
        farm_run_change_advance(&t->run.change);
        farm_run_sessions_tick(&t->run.sessions, farm_now_ns());
        busy = answer_gate();
        busy |= receive_all();
    }
}

// How many of this kind were heard; the last of them into *out (may be NULL).
static uint32_t heard(uint32_t kind, struct farm_control_message *out) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < t->heard_count; i++) {
        if (t->heard[i].kind != kind) continue;
        count++;
        if (out) *out = t->heard[i];
    }
    return count;
}

static void forget_heard(void) {
    for (uint32_t i = 0; i < t->heard_count; i++)
        for (int k = 0; k < 2; k++)
            if (t->heard[i].fds[k] >= 0) close(t->heard[i].fds[k]);
    t->heard_count = 0;
}

static void say(uint32_t b, struct farm_control_message message) {
    cr_assert(farm_control_send(t->run.bridges.bridge[b].end, &message));
    turn();
}

static void ask(uint32_t b, uint8_t id, uint32_t count, uint64_t machine) {
    struct farm_control_message message = {
        .kind = FARM_CONTROL_ADMIT, .count = count, .machine = machine, .text = "a node"};
    memset(message.id, id, sizeof message.id);
    say(b, message);
}

static void connect_node(uint32_t b, uint32_t session, bool connected) {
    farm_store_release(&t->run.bridges.bridge[b].stats->node[session].state,
                       connected ? FARM_NODE_CONNECTED : FARM_NODE_ABSENT);
    turn();
}

// A node of `count` actors that is connected; its session.
static uint32_t join(uint8_t id, uint32_t count, uint64_t machine) {
    struct farm_control_message admitted;
    forget_heard();
    ask(0, id, count, machine);
    cr_assert_eq(heard(FARM_CONTROL_ADMITTED, &admitted), 1);
    connect_node(0, admitted.session, true);
    return admitted.session;
}

static void expect_refused(enum farm_wire_reason reason, const char *words) {
    struct farm_control_message refused;
    cr_assert_eq(heard(FARM_CONTROL_REFUSED, &refused), 1);
    cr_expect_eq(refused.reason, (uint32_t)reason);
    cr_expect(strstr(refused.text, words), "%s", refused.text);
    forget_heard();
}

Test(sessions, a_node_gets_its_places_and_its_bridge_the_rings) {
    struct farm_control_message message;
    struct farm_ring ring;
    struct farm_error err;
    start(4);
    cr_expect_eq(t->run.plan.actors, 0);
    cr_expect_geq(t->run.plan.places, 12);
    ask(0, 7, 3, 1);
    cr_assert_eq(t->joins, 3);
    cr_assert_eq(t->heard_count, 5);
    cr_expect_eq(t->heard[0].kind, (uint32_t)FARM_CONTROL_SESSION);
    cr_expect_eq(t->heard[0].count, 3);
    cr_expect_str_eq(t->heard[0].text, "a node");
    cr_expect_eq(t->heard[4].kind, (uint32_t)FARM_CONTROL_ADMITTED);
    cr_assert_eq(heard(FARM_CONTROL_RING, &message), 3);
    cr_expect_eq(message.ring, 2);
    cr_expect_eq(message.actor, 2);
    cr_assert_eq(farm_ring_open(message.fds[0], message.fds[1], FARM_RING_ACTOR, &ring, &err), FARM_OK, "%s",
                 err.message);
    cr_expect_eq(ring.spec.steps, t->run.plan.steps);
    for (uint32_t i = 0; i < t->heard_count; i++) // the ring owns them
        if (t->heard[i].kind == FARM_CONTROL_RING && t->heard[i].ring == 2)
            t->heard[i].fds[0] = t->heard[i].fds[1] = -1;
    farm_ring_close(&ring);
    cr_expect_eq(t->run.workers.count, 3);
    (void)farm_run_workers_fill_learner(&t->run.workers);
    cr_expect_eq(t->run.workers.learner.wake_fds[2], t->run.bridges.bridge[0].wake);
    cr_expect_eq(t->run.workers.learner.wake_fds[3], -1);
    ask(0, 7, 3, 1); // once more: it is known
    cr_expect_eq(t->joins, 3);
    cr_expect_eq(heard(FARM_CONTROL_ADMITTED, NULL), 2);
}

Test(sessions, many_rings_come_one_after_another) {
    start(256);
    ask(0, 1, 200, 1);
    ask(0, 2, 56, 2);
    cr_expect_eq(t->joins, 256);
    cr_expect_eq(heard(FARM_CONTROL_RING, NULL), 256);
    cr_expect_eq(heard(FARM_CONTROL_ADMITTED, NULL), 2);
}

// One turn of the loop without a reply of the learner.
static void half_turn(void) {
    farm_run_sessions_receive(&t->run.sessions, 0);
    farm_run_change_advance(&t->run.change);
    receive_all();
}

Test(sessions, a_bridge_is_told_each_ring_when_the_learner_has_it) {
    struct farm_control_message message = {.kind = FARM_CONTROL_ADMIT, .count = 3, .text = "a node"};
    start(4);
    cr_assert(farm_control_send(t->run.bridges.bridge[0].end, &message));
    half_turn();
    for (uint32_t r = 0; r < 3; r++) {
        cr_expect_eq(heard(FARM_CONTROL_RING, NULL), r);
        cr_expect_eq(heard(FARM_CONTROL_ADMITTED, NULL), 0);
        cr_assert(farm_control_send(t->run.bridges.bridge[0].end, &message), "it is repeated");
        cr_assert(answer_gate());
        half_turn();
    }
    cr_expect_eq(heard(FARM_CONTROL_SESSION, NULL), 1);
    cr_expect_eq(heard(FARM_CONTROL_RING, NULL), 3);
    cr_expect_geq(heard(FARM_CONTROL_ADMITTED, NULL), 1);
    cr_expect_eq(heard(FARM_CONTROL_REFUSED, NULL), 0);
    cr_expect_eq(t->joins, 3);
}

Test(sessions, a_bridge_that_starts_again_is_told_a_few_rings_a_turn) {
    start(40);
    join(1, 40, 1);
    forget_heard();
    farm_run_sessions_before_bridge(&t->run.sessions, 0);
    half_turn();
    cr_expect_eq(heard(FARM_CONTROL_RING, NULL), 16);
    cr_expect_eq(heard(FARM_CONTROL_ADMITTED, NULL), 0);
    turn();
    cr_expect_eq(heard(FARM_CONTROL_RING, NULL), 40);
    cr_expect_eq(heard(FARM_CONTROL_ADMITTED, NULL), 1);
}

static void expect_nobody(void) {
    turn();
    cr_expect_eq(t->leaves, t->joins);
    cr_expect_eq(t->run.workers.count, 0);
    for (uint32_t a = 0; a < t->run.plan.places; a++)
        cr_expect(!t->run.workers.actors[a].remote && !t->run.workers.actors[a].attached &&
                  !t->run.rings.ring[a].lanes);
    cr_expect_eq(heard(FARM_CONTROL_ADMITTED, NULL), 0);
    cr_expect_eq(heard(FARM_CONTROL_FORGET, NULL), 1);
    cr_expect_eq(t->run.sessions.session[0].state, FARM_RUN_SESSION_NONE);
    join(9, 4, 1);
    cr_expect_eq(t->run.workers.count, 4);
}

// A node of four rings, of which the learner has this many, and is asked for the next.
static void begin_to_join(uint32_t rings) {
    start(4);
    const struct farm_control_message message = {.kind = FARM_CONTROL_ADMIT, .count = 4, .text = "a node", .id = {7}};
    cr_assert(farm_control_send(t->run.bridges.bridge[0].end, &message));
    half_turn();
    for (uint32_t r = 0; r < rings; r++) {
        cr_assert(answer_gate());
        half_turn();
    }
    cr_assert_eq(t->joins, rings);
}

Test(sessions, a_node_that_leaves_while_it_comes_leaves_nothing_behind) {
    begin_to_join(2);
    say(0, (struct farm_control_message){.kind = FARM_CONTROL_LEAVE, .session = 0, .ring = UINT32_MAX});
    cr_expect_eq(t->joins, 3, "the learner had been asked for it");
    expect_nobody();
}

Test(sessions, a_node_can_leave_by_its_id) {
    begin_to_join(1);
    const struct farm_control_message other = {
        .kind = FARM_CONTROL_LEAVE, .session = UINT32_MAX, .ring = UINT32_MAX, .id = {8}};
    cr_assert(farm_control_send(t->run.bridges.bridge[0].end, &other));
    half_turn();
    cr_expect_eq(t->run.sessions.session[0].cancelled, false);
    say(0, (struct farm_control_message){
               .kind = FARM_CONTROL_LEAVE, .session = UINT32_MAX, .ring = UINT32_MAX, .id = {7}});
    expect_nobody();
}

Test(sessions, a_node_whose_ring_the_bridge_cannot_use_is_refused) {
    struct farm_control_message refused;
    begin_to_join(2);
    say(0, (struct farm_control_message){
               .kind = FARM_CONTROL_RING_FAILED, .session = 0, .ring = 1, .text = "no descriptor"});
    cr_assert_eq(heard(FARM_CONTROL_REFUSED, &refused), 1);
    cr_expect_eq(refused.reason, FARM_WIRE_REFUSE_LATER);
    cr_expect_eq(refused.id[0], 7);
    cr_expect_str_eq(refused.text, "no descriptor");
    expect_nobody();
    forget_heard();
    say(0, (struct farm_control_message){// of one that is here, by a bridge that started again
                                         .kind = FARM_CONTROL_RING_FAILED,
                                         .session = 0,
                                         .ring = 0,
                                         .text = "no memory"});
    expect_refused(FARM_WIRE_REFUSE_LATER, "no memory");
    cr_expect_eq(t->run.workers.count, 0);
}

Test(sessions, what_a_dead_bridge_had_said_counts) {
    start(4);
    const uint32_t session = join(1, 3, 1);
    const struct farm_control_message leave = {
        .kind = FARM_CONTROL_LEAVE, .session = session, .ring = UINT32_MAX, .fds = {-1, -1}};
    cr_assert(farm_control_send(t->run.bridges.bridge[0].end, &leave));
    farm_run_sessions_before_bridge(&t->run.sessions, 0);
    turn();
    cr_expect_eq(t->run.workers.count, 0);
}

Test(sessions, a_bridge_that_dies_at_once_gets_another_engine) {
    start(4);
    const struct farm_run_bridge *bridge = &t->run.bridges.bridge[0];
    farm_run_sessions_before_bridge(&t->run.sessions, 0);
    t->run.bridges.bridge[0].start_ns -= 2000000000u;
    farm_run_sessions_before_bridge(&t->run.sessions, 0);
    cr_expect_str_eq(bridge->engine, "auto");
    farm_run_sessions_before_bridge(&t->run.sessions, 0);
    cr_expect_str_eq(bridge->engine, "poll");
}

Test(sessions, training_goes_on_without_a_bridge_if_it_has_actors) {
    start_with("1", 4, 1, "600");
    join(1, 2, 1);
    cr_expect_eq(t->run.workers.count, 3);
    cr_expect(farm_run_sessions_lose_bridge(&t->run.sessions, 0, "the bridge cannot be kept alive"));
    turn();
    cr_expect_eq(t->run.workers.count, 1);
    cr_expect_eq(t->leaves, 2);
    cr_expect_eq(t->run.sessions.session[0].state, FARM_RUN_SESSION_NONE);
    cr_expect_eq(t->run.bridges.bridge[0].listener, -1);
}

Test(sessions, training_ends_with_its_last_bridge_if_it_has_no_actors) {
    start_with("0", 4, 2, "600");
    cr_expect(farm_run_sessions_lose_bridge(&t->run.sessions, 1, "bridge 1 cannot be kept alive"));
    cr_expect_not(farm_run_sessions_lose_bridge(&t->run.sessions, 0, "bridge 0 cannot be kept alive"));
}

Test(sessions, what_cannot_be_is_refused) {
    start(2);
    ask(0, 1, t->run.plan.places + 1, 1);
    expect_refused(FARM_WIRE_REFUSE_FOR_GOOD, "--expect-actors");
    ask(0, 1, 0, 1);
    expect_refused(FARM_WIRE_REFUSE_FOR_GOOD, "places");
    const uint32_t lanes = t->run.plan.lanes;
    t->run.plan.lanes = 20000;
    ask(0, 1, 2, 1);
    expect_refused(FARM_WIRE_REFUSE_FOR_GOOD, "one node can have 1 of them");
    t->run.plan.lanes = lanes;
    join(1, t->run.plan.places - 1, 1);
    ask(0, 2, 2, 2);
    expect_refused(FARM_WIRE_REFUSE_LATER, "are vacant");
    struct farm_control_message old = {.kind = FARM_CONTROL_ADMIT, .ring = 2, .count = 1, .id = {9}};
    forget_heard();
    say(0, old); // it has rings, and this run knows nothing of it
    expect_refused(FARM_WIRE_REFUSE_SESSION, "does not know");
}

Test(sessions, a_node_whose_ring_the_learner_refuses_leaves_nothing_behind) {
    start(4);
    t->refuse_join = 3;
    ask(0, 1, 4, 1);
    expect_refused(FARM_WIRE_REFUSE_LATER, "no room for a ring");
    cr_expect_eq(t->leaves, 2);
    cr_expect_eq(t->run.workers.count, 0);
    for (uint32_t a = 0; a < t->run.plan.places; a++)
        cr_expect(!t->run.workers.actors[a].remote && !t->run.rings.ring[a].lanes);
    join(1, 4, 1);
    cr_expect_eq(t->run.workers.count, 4);
}

Test(sessions, generations_only_grow_and_are_answered) {
    struct farm_control_message is;
    start(2);
    const uint32_t session = join(1, 2, 1);
    struct farm_control_message asked = {
        .kind = FARM_CONTROL_GENERATION, .session = session, .ring = 1, .generation = 5};
    say(0, asked);
    asked.generation = 3;
    say(0, asked);
    cr_assert_eq(heard(FARM_CONTROL_GENERATION_IS, &is), 2);
    cr_expect_eq(is.ring, 1);
    cr_expect_eq(is.generation, 5);
    for (uint32_t l = 0; l < t->run.plan.lanes; l++) {
        cr_expect_eq(t->run.rings.ring[1].lanes[l].down->generation, 5);
        cr_expect_eq(t->run.rings.ring[0].lanes[l].down->generation, 0);
    }
    asked.ring = 2;
    say(0, asked); // no such ring
    asked.session = 200;
    say(0, asked);
    cr_expect_eq(heard(FARM_CONTROL_GENERATION_IS, NULL), 2);
}

Test(sessions, a_bridge_that_starts_again_is_told_everything) {
    start(8);
    join(1, 2, 1);
    join(2, 3, 2);
    forget_heard();
    farm_run_sessions_before_bridge(&t->run.sessions, 0);
    turn();
    cr_expect_eq(heard(FARM_CONTROL_SESSION, NULL), 2);
    cr_expect_eq(heard(FARM_CONTROL_RING, NULL), 5);
    cr_expect_eq(heard(FARM_CONTROL_ADMITTED, NULL), 2);
    cr_expect_eq(t->joins, 5);
    cr_expect_gt(t->run.sessions.session[0].away_ns, 0, "its connection has died with it");
}

Test(sessions, a_node_that_leaves_frees_its_places) {
    struct farm_control_message forget;
    start(4);
    const uint32_t session = join(1, 3, 1);
    say(0, (struct farm_control_message){.kind = FARM_CONTROL_LEAVE, .session = session, .ring = 1});
    cr_expect_eq(t->run.workers.count, 2);
    cr_expect_eq(heard(FARM_CONTROL_FORGET, NULL), 0);
    say(0, (struct farm_control_message){.kind = FARM_CONTROL_LEAVE, .session = session, .ring = UINT32_MAX});
    cr_expect_eq(t->leaves, 3);
    cr_expect_eq(t->run.workers.count, 0);
    cr_assert_eq(heard(FARM_CONTROL_FORGET, &forget), 1);
    cr_expect_eq(forget.session, session);
    cr_expect_eq(join(2, 4, 2), session, "the place is used again");
}

// As if the node had been away for so long already.
static void age(uint32_t session, double seconds) {
    t->run.sessions.session[session].away_ns -= (uint64_t)(seconds * 1e9);
    turn(); // which sees it
    turn();
}

Test(sessions, a_node_started_anew_takes_the_old_ones_part) {
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
    cr_expect_eq(heard(FARM_CONTROL_FORGET, NULL), 1);
}

Test(sessions, a_node_that_came_before_or_is_another_replaces_none) {
    start(4);
    const uint32_t first = join(1, 2, 99), second = join(2, 2, 99), other = join(3, 2, 98);
    connect_node(0, second, false);
    connect_node(0, other, false);
    age(second, 4);
    age(other, 4);
    cr_expect_eq(t->leaves, 0);
    connect_node(0, first, false);
    age(first, 4);
    cr_expect_eq(t->leaves, 2, "the second is the first, started anew");
}

Test(sessions, a_bridge_that_started_just_now_makes_none_leave) {
    start(4);
    const uint32_t first = join(1, 2, 99);
    join(2, 2, 99);
    farm_run_sessions_before_bridge(&t->run.sessions, 0);
    turn();
    age(first, 4);
    cr_expect_eq(t->leaves, 0);
    t->run.bridges.bridge[0].start_ns -= 4000000000u;
    age(first, 0);
    cr_expect_eq(t->leaves, 2);
}

Test(sessions, a_refusal_throws_none_out) {
    start(1);
    const uint32_t places = t->run.plan.places, old = join(1, places, 99);
    connect_node(0, old, false);
    age(old, 4);
    forget_heard();
    ask(0, 2, places, 99);
    expect_refused(FARM_WIRE_REFUSE_LATER, "are vacant");
    cr_expect_eq(t->leaves, 0);
}

Test(sessions, every_one_of_many_refusals_is_told_once) {
    start(1);
    struct farm_control_message message = {.kind = FARM_CONTROL_ADMIT, .count = 0, .text = "a node"};
    uint32_t asked = 0;
    for (uint32_t round = 0; round < 2; round++) // a bridge repeats what is not answered
        for (message.id[0] = 0; message.id[0] < 100; message.id[0]++)
            asked += farm_control_send(t->run.bridges.bridge[0].end, &message);
    cr_assert_eq(asked, 200);
    turn();
    cr_expect_eq(heard(FARM_CONTROL_REFUSED, NULL), 100);
    forget_heard();
    say(0, message);
    cr_expect_eq(heard(FARM_CONTROL_REFUSED, NULL), 1);
}

Test(sessions, a_node_that_is_away_too_long_gives_its_places_up) {
    start_with("0", 4, 1, "0");
    const uint32_t session = join(1, 2, 1);
    (void)session;
    cr_expect_eq(t->leaves, 2, "a grace of 0 s");
    cr_expect_eq(heard(FARM_CONTROL_FORGET, NULL), 1);
}

Test(sessions, a_node_stays_with_its_bridge) {
    start_with("0", 4, 2, "600");
    cr_assert_eq(t->run.bridges.count, 2);
    join(1, 2, 1);
    forget_heard();
    ask(1, 1, 2, 1);
    expect_refused(FARM_WIRE_REFUSE_AGAIN, "another bridge");
    ask(1, 2, 2, 2);
    cr_expect_eq(heard(FARM_CONTROL_ADMITTED, NULL), 1);
}

Test(sessions, signals_take_no_remote_actor) {
    start(2);
    join(1, 2, 1);
    farm_run_change_signal(&t->run.change, SIGUSR2);
    turn();
    cr_expect_eq(t->run.workers.count, 2);
    cr_expect_eq(t->leaves, 0);
}

Test(sessions, shows_nodes_with_their_rates) {
    struct farm_sample sample;
    start(2);
    const uint32_t session = join(1, 2, 1);
    struct farm_bridge_node_stats *row = &t->run.bridges.bridge[0].stats->node[session];
    row->steps = 1000;
    row->connections = 3;
    row->round_trip_ns = 2000000;
    t->run.sessions.second_ns = farm_now_ns() - 2000000000;
    turn();
    farm_run_sample(&t->run.sampler, farm_now_ns(), &sample);
    cr_assert(sample.listens && sample.node_count == 1 && !sample.nodes_away);
    cr_expect_str_eq(sample.nodes[0].name, "a node");
    cr_expect_eq(sample.nodes[0].lanes, 2 * t->run.plan.lanes);
    cr_expect_eq(sample.nodes[0].reconnects, 2);
    cr_expect_float_eq(sample.nodes[0].env_steps_per_s, 500, 50);
    cr_expect_float_eq(sample.nodes[0].round_trip_ms, 2, 1e-9);
    connect_node(0, session, false);
    t->run.sessions.second_ns -= 2000000000;
    turn();
    farm_run_sample(&t->run.sampler, farm_now_ns(), &sample);
    cr_expect_eq(sample.nodes_away, 1);
}
