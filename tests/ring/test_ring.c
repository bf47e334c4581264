// One actor's two segments: write permissions, refusals, repair and verification after a crash, and that two processes
// share the same memory.
#include <criterion/criterion.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>

#include "../support/rings.h"
#include "shm/place.h"

static struct farm_error err;

TestSuite(ring, .timeout = 30);

// ---- write permissions ----

// Returns how a child ends that stores a byte there.
static int store_in_child(const struct views *v, enum farm_ring_side side, bool into_up) {
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        struct farm_ring ring = open_view(&v->made, side);
        volatile uint8_t *byte =
            into_up ? (volatile uint8_t *)ring.lanes[0].obs[0] : ring.lanes[0].answer[FARM_ANSWER_ACTION].at;
        *byte = 1;
        _exit(0);
    }
    return wait_for(child);
}

Test(ring, each_side_can_write_its_own_segment_only) {
    with_views v = views_of(spec_rich(1, 2, 4));
    cr_assert_eq(store_in_child(&v, FARM_RING_ACTOR, true), 0);
    cr_assert_eq(store_in_child(&v, FARM_RING_ACTOR, false), 256 + SIGSEGV);
    cr_assert_eq(store_in_child(&v, FARM_RING_LEARNER, true), 256 + SIGSEGV);
    cr_assert_eq(store_in_child(&v, FARM_RING_LEARNER, false), 0);
    cr_assert_eq(store_in_child(&v, FARM_RING_OBSERVER, true), 256 + SIGSEGV);
    cr_assert_eq(store_in_child(&v, FARM_RING_OBSERVER, false), 256 + SIGSEGV);
}

// ---- long rings ----

Test(ring, a_long_ring_is_placed_two_parts_ahead_of_its_actors) {
    struct farm_ring_spec spec = farm_ring_spec_plain(2, 1, 12800, FARM_U8, 4096, 5);
    with_ring ring = ring_of(spec, 1);
    struct farm_lane *lane = &ring.lanes[1];
    cr_assert(ring.up.later && !ring.down.later);
    cr_assert_eq(farm_ring_place_next(&ring, &err), false, "two parts of each lane were placed at the start");
    cr_assert(ring.placed[0] == 2 && ring.placed[1] == 2);
    for (uint32_t part = 0; part < 126; part++) {
        lane->up->produced = 100 * part;
        cr_assert_eq(farm_ring_place_next(&ring, &err), false, "part %u", part);
        lane->up->produced++;
        cr_assert_eq(farm_ring_place_next(&ring, &err), true, "part %u: %s", part, err.message);
    }
    lane->up->produced = UINT64_MAX; // whatever an actor writes there
    cr_assert_eq(farm_ring_place_next(&ring, &err), false);
    cr_assert(ring.placed[0] == 2 && ring.placed[1] == 128);
    uint8_t *const first = (uint8_t *)((uintptr_t)lane->obs[0] / 4096 * 4096);
    size_t elsewhere;
    cr_assert(farm_place_verify(first, (size_t)lane->steps * 4096, 4096, -1, &elsewhere));
    cr_assert_eq(elsewhere, 0, "%zu pages are absent", elsewhere);
}

// ---- refusals ----

static void refused(int up, int down, enum farm_ring_side side, enum farm_status wanted, const char *says) {
    with_ring ring;
    cr_assert_eq(farm_ring_open(up, down, side, &ring, &err), wanted, "%s: %s", says, err.message);
    cr_assert(strstr(err.message, says), "'%s' does not say '%s'", err.message, says);
    cr_assert_null(ring.lanes);
    cr_assert(fcntl(up, F_GETFD) >= 0 && fcntl(down, F_GETFD) >= 0, "the descriptors still belong to the caller");
}

Test(ring, refuses_segments_of_different_rings) {
    struct farm_ring_spec spec = spec_of(1, 2, 4), longer = spec_of(1, 2, 5);
    with_ring one = ring_of(spec, 1), other = ring_of(spec, 2), stranger = ring_of(longer, 1);
    refused(one.down.fd, one.up.fd, FARM_RING_ACTOR, FARM_E_FORMAT, "'down') where 'up' is expected");
    refused(one.up.fd, one.up.fd, FARM_RING_ACTOR, FARM_E_FORMAT, "'up') where 'down' is expected");
    refused(one.up.fd, stranger.down.fd, FARM_RING_ACTOR, FARM_E_FORMAT, "layout hash");
    refused(one.up.fd, other.down.fd, FARM_RING_ACTOR, FARM_E_FORMAT, "'up' of actor 1, 'down' of actor 2");
    refused(one.up.fd_readonly, one.down.fd, FARM_RING_ACTOR, FARM_E_PERMISSION, "read-only");
    refused(one.up.fd, one.down.fd_readonly, FARM_RING_LEARNER, FARM_E_PERMISSION, "read-only");
}

Test(ring, refuses_a_shape_that_was_overwritten) {
    struct farm_ring_spec spec = spec_of(1, 2, 4);
    with_ring ring = ring_of(spec, 1);
    struct farm_ring_spec *up = (struct farm_ring_spec *)ring.up.header->user,
                          *down = (struct farm_ring_spec *)ring.down.header->user;
    up->width = down->width = 3; // valid, but not what was hashed
    refused(ring.up.fd, ring.down.fd, FARM_RING_ACTOR, FARM_E_FORMAT, "layout hash");
    refused(ring.up.fd, ring.down.fd, FARM_RING_LEARNER, FARM_E_FORMAT, "layout hash");
    up->width = down->width = 0;
    refused(ring.up.fd, ring.down.fd, FARM_RING_ACTOR, FARM_E_FORMAT, "0 environments");
    refused(ring.up.fd, ring.down.fd, FARM_RING_LEARNER, FARM_E_FORMAT, "0 environments");
    up->width = down->width = 2;
    with_ring again = open_view(&ring, FARM_RING_LEARNER);
    cr_assert_not_null(again.lanes);
}

Test(ring, a_learner_relies_only_on_the_sealed_size_of_up) {
    struct farm_ring_spec spec = spec_rich(2, 3, 9);
    with_ring ring = ring_of(spec, 1);
    memset(ring.up.header, 0xa5, sizeof *ring.up.header);
    refused(ring.up.fd, ring.down.fd_readonly, FARM_RING_ACTOR, FARM_E_FORMAT, "magic");
    with_ring learner = open_view(&ring, FARM_RING_LEARNER);
    cr_assert_arr_eq((const char *)&learner.spec, (const char *)&spec, sizeof spec);
    cr_assert_eq((char *)learner.lanes[1].flags - (char *)learner.up.header,
                 (char *)ring.lanes[1].flags - (char *)ring.up.header);
}

// ---- repair ----

Test(ring, restoring_repairs_an_overwritten_header_only) {
    struct farm_ring_spec spec = spec_rich(2, 3, 9);
    with_ring ring = ring_of(spec, 1);
    struct farm_segment_header before;
    memcpy(&before, ring.up.header, sizeof before);
    cr_assert_not(farm_ring_restore(&ring));
    cr_assert_arr_eq((const char *)ring.up.header, (const char *)&before, sizeof before);
    memset(ring.up.header, 0xa5, sizeof before);
    cr_assert(farm_ring_restore(&ring));
    cr_assert_arr_eq((const char *)ring.up.header, (const char *)&before, sizeof before);
    with_ring actor = open_view(&ring, FARM_RING_ACTOR);
    cr_assert_not_null(actor.lanes);
}

// Lane 1 of a ring of C = 8 after ten steps; `full`: C steps are answered and held, else step 10 waits for its answer.
static struct views central_views(bool full) {
    struct views v = views_of(spec_of(2, 2, 8));
    struct farm_lane *actor = &v.actor.lanes[1], *learner = &v.learner.lanes[1];
    for (uint64_t n = 0; n < (full ? 8 : 11); n++) {
        publish_step(actor, n == 0);
        cr_assert(farm_ring_counters_sound(&v.made, NULL) && !farm_ring_restore(&v.made), "honest step %lu", n);
        if (full || n < 10) answer_step(learner);
        if (!full && n < 10) farm_lane_release(learner, n);
    }
    return v;
}

// A LOCAL lane of C = 8: steps 5..9 are published beyond those taken in, slots of steps before 3 may be overwritten.
static struct views local_views(void) {
    struct farm_ring_spec spec = spec_of(1, 2, 8);
    spec.answers = FARM_ANSWERS_LOCAL;
    struct views v = views_of(spec);
    struct farm_lane *actor = &v.actor.lanes[0], *learner = &v.learner.lanes[0];
    for (uint64_t n = 0; n < 10; n++) {
        cr_assert_eq(farm_lane_actor_answered(actor), n == 0, "step %lu is granted", n);
        farm_lane_grant(learner, n < 9 ? n : UINT64_MAX);
        cr_assert(farm_lane_actor_answered(actor) && farm_lane_actor_can_write(actor), "step %lu waits", n);
        publish_step(actor, n == 0);
        if (n < 5) farm_lane_answer(learner, n);
        if (n == 4) farm_lane_release(learner, 3);
        cr_assert(farm_ring_counters_sound(&v.made, NULL) && !farm_ring_restore(&v.made), "step %lu", n);
    }
    return v;
}

// Restoring replaces any `produced` that no honest actor can have stored.
Test(ring, restoring_replaces_counters_that_lie) {
    static const struct {
        bool local, full;
        uint64_t lies[7], restored;
    } cases[] = {
        {false, false, {0, 9, 12, 13, UINT64_MAX, UINT64_MAX - 1, 1ull << 63}, 11}, // a step that can be answered
        {false, true, {9, 10, 0, UINT64_MAX, 7, 1ull << 63, 16}, 8},                // no room, so no step
        {true, false, {0, 4, 12, 13, 14, UINT64_MAX, 1ull << 63}, 6},
        {true, true, {0, 4, 12, 13, 14, UINT64_MAX, 1ull << 63}, 11},
    };
    for (size_t i = 0; i < 7 * sizeof cases / sizeof *cases; i++) {
        const bool local = cases[i / 7].local, full = cases[i / 7].full;
        const uint64_t lie = cases[i / 7].lies[i % 7], restored = cases[i / 7].restored;
        with_views v = local ? local_views() : central_views(full);
        struct farm_lane *actor = &v.actor.lanes[!local], *learner = &v.learner.lanes[!local];
        if (local && full) publish_step(actor, false), farm_lane_answer(learner, 10);
        uint32_t lane = 7;
        farm_store_release(&actor->up->produced, lie);
        cr_assert_not(farm_ring_counters_sound(&v.made, &lane), "case %zu: %lu published", i, lie);
        cr_assert_eq(lane, !local);
        cr_assert(farm_ring_restore(&v.made));
        cr_assert(farm_ring_counters_sound(&v.made, NULL) && !farm_ring_restore(&v.made));
        cr_assert_eq(farm_lane_produced(learner), restored, "case %zu: %lu published", i, lie);
        for (uint32_t e = 0; e < 2 && !full; e++)
            cr_assert_eq(farm_lane_flags(learner, restored - 1)[e], FARM_STEP_FIRST);
        expect_sound(&v.made);
        if (local) continue;
        farm_lane_actor_take_over(actor); // the next actor and the learner agree
        cr_assert_eq(farm_lane_actor_answered(actor), full);
        if (full)
            farm_lane_release(learner, 1);
        else
            answer_step(learner);
        cr_assert(farm_lane_actor_answered(actor) && farm_lane_actor_can_write(actor));
        publish_step(actor, true);
        cr_assert_eq(farm_lane_produced(learner), restored + 1);
        expect_sound(&v.made);
    }
}

Test(ring, a_local_actor_waits_for_room_and_grants) {
    char text[256];
    with_views v = local_views();
    struct farm_lane *actor = &v.actor.lanes[0];
    expect_sound(&v.made);
    publish_step(actor, false);
    cr_assert_not(farm_lane_actor_can_write(actor), "C steps are held");
    cr_assert(farm_ring_counters_sound(&v.made, NULL) && !farm_ring_restore(&v.made));
    farm_lane_actor_take_over(actor);
    cr_assert(farm_lane_actor_answered(actor));
    farm_lane_release(&v.learner.lanes[0], 4);
    cr_assert(farm_lane_actor_can_write(actor));
    publish_step(actor, true);
    expect_sound(&v.made);
    farm_lane_release(&v.learner.lanes[0], 6);
    cr_assert_eq(verify_lanes(&v.made, text, sizeof text), 1);
    cr_assert(strstr(text, "lane 0: 6 steps consumed but 5 answered"), "%s", text);
}

Test(ring, refuses_segments_smaller_than_their_shape) {
    struct farm_ring_spec spec = spec_rich(2, 64, 64);
    with_ring ring = ring_of(spec, 0);
    for (int kind = FARM_SEGMENT_UP; kind <= FARM_SEGMENT_DOWN; kind++) {
        const struct farm_segment_request request = {.kind = (enum farm_segment_kind)kind,
                                                     .bytes = 8192,
                                                     .node = -1,
                                                     .layout_hash = ring.layout.hash,
                                                     .user = &spec,
                                                     .user_bytes = sizeof spec};
        struct farm_segment small;
        cr_assert_eq(farm_segment_create(&request, &small, NULL), FARM_OK);
        refused(kind == FARM_SEGMENT_UP ? small.fd : ring.up.fd, kind == FARM_SEGMENT_UP ? ring.down.fd : small.fd,
                FARM_RING_ACTOR, FARM_E_FORMAT, "segment of 8192 bytes is smaller than its layout");
        farm_segment_close(&small);
    }
}

Test(ring, refuses_to_create_an_invalid_ring) {
    struct farm_ring_spec spec = spec_of(1, 0, 4);
    with_ring ring;
    cr_assert_eq(farm_ring_create(&spec, 1, -1, false, &ring, &err), FARM_E_INVALID);
    cr_assert(strstr(err.message, "0 environments"), "%s", err.message);
}

// ---- verify ----

// A sound ring of two lanes of C = 8 and W = 2, lane 1 with steps 5..11 unconsumed and step 11 unanswered.
static struct views sound_views(void) {
    struct views v = views_of(spec_of(2, 2, 8));
    for (uint64_t n = 0; n < 12; n++) {
        publish_step(&v.actor.lanes[1], n == 0);
        if (n < 11) answer_step(&v.learner.lanes[1]);
        if (n >= 4) farm_lane_release(&v.learner.lanes[1], n - 4 < 5 ? n - 4 : 5);
    }
    return v;
}

static uint8_t *flags_of(struct views *v, uint64_t n, uint32_t e) {
    return &farm_lane_flags(&v->actor.lanes[1], n)[e];
}

enum damage { ACTED, CONSUMED, FLAGS, REWARD, NO_FIRST };

// `value` goes into a counter of lane 1, or into the flags or the reward of an environment of its step n.
static const struct {
    const char *says;
    enum damage kind;
    double value;
    uint64_t n;
    uint32_t e;
} damages[] = {
    {"lane 1: 13 steps answered but 12 published", ACTED, 13, 0, 0},
    {"lane 1: 12 steps published but only 10 answered", ACTED, 10, 0, 0},
    {"lane 1: 12 steps consumed but 11 answered", CONSUMED, 12, 0, 0},
    {"lane 1: 9 unconsumed steps in a ring of 8", CONSUMED, 3, 0, 0},
    {"lane 1 step 7 environment 1: unknown flags 0x80", FLAGS, 0x80, 7, 1},
    {"lane 1 step 8 environment 0: an end (0x4) without LAST", FLAGS, FARM_STEP_TERMINATED, 8, 0},
    {"lane 1 step 9 environment 1: no FIRST after LAST", FLAGS, FARM_STEP_LAST | FARM_STEP_TERMINATED, 8, 1},
    {"lane 1 step 6 environment 0: reward is not finite", REWARD, INFINITY, 6, 0},
    {"lane 1 step 6 environment 1: reward is not finite", REWARD, NAN, 6, 1},
    {"lane 0 step 0 environment 1: no FIRST", NO_FIRST, 0, 0, 0},
};

static void damage_ring(struct views *v, size_t i) {
    const enum damage kind = damages[i].kind;
    const double value = damages[i].value;
    struct farm_lane *learner = &v->learner.lanes[1];
    if (kind == ACTED) farm_store_release(&learner->down->acted, (uint64_t)value);
    if (kind == CONSUMED) farm_lane_release(learner, (uint64_t)value);
    if (kind == FLAGS) *flags_of(v, damages[i].n, damages[i].e) = (uint8_t)value;
    if (kind == REWARD) farm_lane_reward(&v->actor.lanes[1], damages[i].n)[damages[i].e] = (float)value;
    if (kind == NO_FIRST) publish_step(&v->actor.lanes[0], false);
}

Test(ring, verify_finds_every_kind_of_damage_and_none_in_a_sound_ring) {
    char text[2048], other[2048];
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        with_views v = sound_views();
        cr_assert_eq(verify_lanes(&v.made, text, sizeof text), 0, "%s", text);
        cr_assert_str_eq(text, "");
        damage_ring(&v, i);
        int findings = verify_lanes(&v.made, text, sizeof text);
        cr_assert_gt(findings, 0, "not found: %s", damages[i].says);
        cr_assert(strstr(text, damages[i].says), "'%s' does not say '%s'", text, damages[i].says);
        // Every view has the same findings.
        cr_assert_eq(verify_lanes(&v.learner, other, sizeof other), findings);
        cr_assert_str_eq(other, text);
    }
}

Test(ring, verify_ignores_unpublished_slots) {
    with_views v = sound_views();
    *flags_of(&v, 12, 0) = 0xff; // step 12 is being written, in the slot of the consumed step 4
    expect_sound(&v.made);
}

Test(ring, verify_counts_findings_beyond_the_text) {
    with_views v = sound_views();
    for (uint64_t n = 5; n < 12; n++)
        for (uint32_t e = 0; e < 2; e++) *flags_of(&v, n, e) = 0xe0;
    for (size_t bytes = 0; bytes < 200; bytes++) {
        char text[256];
        memset(text, 'x', sizeof text);
        cr_assert_eq(verify_lanes(&v.made, text, bytes), 14);
        cr_assert_eq(text[bytes], 'x', "written beyond %zu bytes", bytes);
        cr_assert(bytes == 0 || memchr(text, 0, bytes), "not terminated in %zu bytes", bytes);
    }
}

// ---- the same memory ----

struct place {
    uint64_t inode, offset; // where an address lies in its file
};

static struct place place_of(const void *address) {
    struct place found = {0};
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        uint64_t from, to, offset, inode, at = (uintptr_t)address;
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %*s %" SCNx64 " %*s %" SCNu64, &from, &to, &offset, &inode) == 4 &&
            at >= from && at < to)
            found = (struct place){inode, offset + (at - from)};
    }
    if (maps) fclose(maps);
    return found;
}

Test(ring, inference_reads_the_bytes_that_the_environment_wrote_in_place) {
    enum { STEPS = 10 };
    struct farm_ring_spec spec = spec_of(2, 3, 4);
    spec.env.obs[0] = (struct farm_field_spec){.name = "image", .dtype = FARM_U8, .rank = 2, .dims = {84, 84}};
    int to_learner[2];
    cr_assert_eq(pipe(to_learner), 0);
    with_ring created = ring_of(spec, 0);
    pid_t actor = fork();
    if (actor == 0) { // the actor writes each frame in place and sends its place
        struct farm_ring ring;
        if (farm_ring_view(&created, FARM_RING_ACTOR, &ring, NULL)) _exit(1);
        for (uint64_t n = 0; n < STEPS; n++) {
            struct farm_lane *lane = &ring.lanes[1];
            while (!farm_lane_actor_answered(lane) || !farm_lane_actor_can_write(lane)) usleep(100);
            uint8_t *frame = farm_lane_obs(lane, 0, n, 2);
            for (int i = 0; i < 84 * 84; i++) frame[i] = (uint8_t)(n * 131 + (uint64_t)i * 7);
            struct place place = place_of(frame);
            if (write(to_learner[1], &place, sizeof place) != sizeof place) _exit(2);
            for (uint32_t e = 0; e < 3; e++) farm_lane_flags(lane, n)[e] = n == 0 ? FARM_STEP_FIRST : 0;
            farm_lane_actor_publish(lane);
        }
        _exit(0);
    }
    with_ring ring = open_view(&created, FARM_RING_LEARNER);
    struct farm_lane *lane = &ring.lanes[1];
    for (uint64_t n = 0; n < STEPS; n++) {
        struct place wrote, reads;
        while (farm_lane_produced(lane) <= n) usleep(100);
        cr_assert_eq(read(to_learner[0], &wrote, sizeof wrote), (ssize_t)sizeof wrote);
        const uint8_t *frame = farm_lane_obs(lane, 0, n, 2);
        for (int i = 0; i < 84 * 84; i++)
            cr_assert(frame[i] == (uint8_t)(n * 131 + (uint64_t)i * 7), "byte %d differs", i);
        reads = place_of(frame);
        cr_assert_neq(reads.inode, 0);
        cr_assert_eq(reads.inode, wrote.inode, "another file");
        cr_assert_eq(reads.offset, wrote.offset, "another place in the file");
        answer_step(lane);
        farm_lane_release(lane, n + 1);
    }
    cr_assert_eq(wait_for(actor), 0);
}
