// Broken connections lose and repeat nothing: each step arrives once and in order (world.h checks), at whatever byte a
// cut or an error occurs, and whichever side is replaced.
#include <stdio.h>
#include <time.h>

#include "base/log.h"
#include "base/time.h"
#include "farm_build.h"
#include "play.h"

TestSuite(cuts, .timeout = 300);

// A flow: in the clear or by TLS, answers by the learner or by the actors, faults up or down.
enum { TLS = 1, LOCAL = 2, DOWN = 4, FLOWS = 8 };
static struct play *make(int flow, uint32_t rings, uint32_t pixels, uint64_t seed) {
    farm_log_set_level(FARM_LOG_ERROR);
    return play_make(flow & TLS, flow & LOCAL ? FARM_ANSWERS_LOCAL : FARM_ANSWERS_CENTRAL, rings, 2, pixels, seed);
}

enum fault { CUT, FLIP };

// One fault at byte `at` of a new connection. Returns whether the connection had so many bytes.
static bool break_at_byte(struct play *play, int flow, enum fault fault, uint64_t at, uint64_t steps) {
    *(fault == CUT ? &play->net.cut_at : &play->net.flip_at) = at;
    play->net.direction = flow & DOWN ? MEMORY_DOWN : MEMORY_UP;
    play->net.most = at % 3 ? 0 : 40;
    const uint64_t made = play->net.made;
    play_to(play, steps);
    return play->net.made > made + 1;
}

// In `make test` TLS, whose handshake takes a millisecond, gets every STRIDE-th byte; FARM_BRIDGE_FULL=1: every byte.
enum { STRIDE = 13, BYTES_MIN = 500 };
static uint64_t stride(int flow) {
    return flow & TLS && !getenv("FARM_BRIDGE_FULL") ? STRIDE : 1;
}

// With new rings each time.
Test(cuts, every_byte_of_a_first_connection_can_be_the_last) {
    for (int flow = 0; flow < FLOWS; flow += DOWN) {
        uint64_t at = 0;
        for (bool reached = true; reached; at++) {
            with_play *play = make(flow, 1, 1, at);
            reached = break_at_byte(play, flow, CUT, at, 2);
        }
        cr_assert_gt(at, BYTES_MIN);
    }
}

// From reconnecting to the third frame of steps and its answers.
static void cut_every_byte(int flow, enum fault fault, bool forgotten) {
    with_play *play = make(flow, 1, 1, 1);
    uint64_t at = 0, steps = 10;
    play_to(play, steps);
    for (bool reached = true; reached; at += stride(flow)) {
        if (forgotten) {
            play->world.admitted = false; // the new hub learns of the session when it asks
            world_replace_hub(&play->world);
        } else {
            memory_cut(&play->net, play->net.list[0]);
        }
        reached = break_at_byte(play, flow, fault, at, steps += 5);
    }
    cr_assert_gt(at, BYTES_MIN); // each of them ended a connection
}

Test(cuts, every_byte_of_a_resumed_connection_can_be_the_last) {
    for (int flow = 0; flow < FLOWS; flow++) cut_every_byte(flow, CUT, false);
}
Test(cuts, every_byte_can_be_the_last_at_a_restarted_hub) {
    for (int flow = 0; flow < FLOWS; flow += 2) cut_every_byte(flow, CUT, true);
}
Test(cuts, a_changed_byte_ends_its_connection_and_is_not_published) {
    for (int flow = 0; flow < FLOWS; flow++) cut_every_byte(flow, FLIP, false);
}

// ---- at random ----

struct tally {
    uint64_t cuts, hubs, nodes, actors, steps;
};

// Replaces the hub, the node or an actor. A node may vanish, so that its connection stays open at the hub.
static void replace_one(struct play *play, uint64_t which, struct tally *tally) {
    if (which == 0) {
        world_replace_hub(&play->world);
        tally->hubs++;
    } else if (which == 1) {
        if (play->net.count) play->net.list[0]->deaf = memory_random(&play->net, 2);
        world_replace_node(&play->world);
        tally->nodes++;
    } else if (which == 2) {
        world_restart_actor(&play->world, (uint32_t)memory_random(&play->net, play->world.rings));
        tally->actors++;
    }
}

// Cuts at random bytes; if `rarely`, replaces hub, node or actor once in N turns.
static void cut_at_random(int flow, uint64_t seed, uint64_t cuts, uint64_t rarely, struct tally *tally) {
    static const size_t most[] = {0, 0, 100, 3000};
    with_play *play = make(flow, 2, 30, seed);
    uint64_t steps = 0;
    while (play->net.made <= cuts) {
        play->net.most = most[memory_random(&play->net, 4)];
        play->net.cut_span = 1000 + memory_random(&play->net, 5000);
        for (steps += 20; !world_done(&play->world, steps); play_turn(play, steps)) {
            if (rarely) replace_one(play, memory_random(&play->net, rarely), tally);
            cr_assert_lt(play->now_ns, 100000000000 * (1 + cuts), "%s", farm_node_why(play->world.node));
        }
    }
    play->net.cut_span = 0;
    play_to(play, steps += 10);
    tally->cuts += play->net.made - 1;
    tally->steps += steps * play->world.rings * play->world.offer.spec.lanes;
}

static void append_record(const char *path, const struct tally *tally, double wall_s) {
    FILE *file = fopen(path, "a");
    char date[32];
    const time_t now = time(NULL);
    cr_assert_not_null(file, "%s", path);
    strftime(date, sizeof date, "%F", gmtime(&now));
    fprintf(file,
            "{\"test\": \"bridge/test_cuts\", \"cuts\": %llu, \"lane_steps_checked\": %llu, \"lost_or_repeated\": 0, "
            "\"wall_s\": %.1f, \"commit\": \"%s\", \"date\": \"%s\"}\n",
            (unsigned long long)tally->cuts, (unsigned long long)tally->steps, wall_s, FARM_COMMIT, date);
    fclose(file);
}

// FARM_BRIDGE_CUTS=100000 FARM_BRIDGE_RECORD=bench/results/bridge_faults.jsonl is the long run.
Test(cuts, at_random_bytes_lose_and_repeat_nothing) {
    const char *count = getenv("FARM_BRIDGE_CUTS"), *path = getenv("FARM_BRIDGE_RECORD");
    const uint64_t cuts = count ? strtoull(count, NULL, 10) : 2000, start_ns = farm_now_ns();
    struct tally tally = {0};
    for (uint64_t seed = 0; tally.cuts < cuts; seed++) cut_at_random((int)(seed % 2) * LOCAL, seed, 500, 0, &tally);
    if (path) append_record(path, &tally, (double)(farm_now_ns() - start_ns) * 1e-9);
}

Test(cuts, hubs_nodes_and_actors_can_be_replaced_at_any_moment) {
    struct tally tally = {0};
    for (int flow = 0; flow < DOWN; flow++) cut_at_random(flow, 77, flow & TLS ? 200 : 1000, 500, &tally);
    cr_assert(tally.hubs > 100 && tally.nodes > 100 && tally.actors > 100);
}

// A session that is forgotten while its steps flow, with an open, half-open or cut connection: another one takes its
// place at once, and nothing of the old one reaches the new rings.
Test(cuts, a_place_is_free_for_the_next_session_at_any_moment) {
    for (int flow = 0; flow < DOWN; flow++) {
        with_play *play = make(flow, 2, 30, (uint64_t)flow);
        for (int i = 0; i < (flow & TLS ? 30 : 150); i++) {
            play->net.most = i % 2 ? 0 : 200;
            play->net.cut_span = i % 3 ? 0 : 3000;
            for (uint64_t turns = memory_random(&play->net, 150); turns; turns--) play_turn(play, 100000);
            if (play->net.count && i % 4 == 0) play->net.list[0]->deaf = true;
            world_replace_session(&play->world);
            play->net.cut_span = 0;
            if (i % 5 == 0) play_to(play, 5);
        }
        play_to(play, 10);
    }
}

// ---- the largest frame ----

// Steps have 18 parts each (8 observation and 8 answer fields, rewards, flags), those with odd numbers 15.
static void set_most_fields(struct farm_ring_spec *spec) {
    spec->env.obs_count = FARM_OBS_FIELDS_MAX;
    for (uint32_t f = 1; f < FARM_OBS_FIELDS_MAX; f++) {
        spec->env.obs[f] = spec->env.obs[0];
        snprintf(spec->env.obs[f].name, sizeof spec->env.obs[f].name, "obs%u", f);
    }
    spec->answer_count = FARM_ANSWER_FIELDS_MAX;
    for (uint32_t f = FARM_ANSWERS_STANDARD; f < FARM_ANSWER_FIELDS_MAX; f++) {
        spec->answer[f] = (struct farm_answer_spec){.dtype = FARM_F32, .values = 1, .every = f % 4 ? 2 : 1};
        snprintf(spec->answer[f].name, sizeof spec->answer[f].name, "answer%u", f);
    }
}

// Two steps of each lane, then a connection: the first frame has 30 lanes of 33 parts, and one of 18 and 15. Its last
// step has just the room that it needs.
Test(cuts, a_frame_may_fill_all_parts_of_a_receive) {
    with_play *play = play_prepare(false, FARM_ANSWERS_LOCAL, WORLD_LANES_MAX, 1, 1);
    farm_log_set_level(FARM_LOG_ERROR);
    set_most_fields(&play->world.offer.spec);
    set_most_fields(&play->world.node_spec);
    world_make(&play->world, WORLD_RINGS_MAX);
    for (int i = 0; i < 2; i++) world_publish_steps(&play->world, 2);
    play_to(play, 10);
    cr_expect_eq(play->net.made, 1, "the learner has refused a frame");
}
