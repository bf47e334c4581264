// Peers that break the protocol, at a hub and at a node. Each breach ends its own connection at once; nothing of it is
// published, and no other connection is affected.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <sys/uio.h>

#include "bridge/hub_session.h"
#include "bridge/tls.h"
#include "peer.h"

TestSuite(hostile, .timeout = 60);

static void free_peer(struct peer *peer) {
    peer_hang_up(peer);
    play_free(peer->play);
}

#define with_peer __attribute__((cleanup(free_peer))) struct peer // freed at the end of its scope

// ---- frames that are wrong ----

// At both sides: STEPS to a hub, ANSWERS to a node.
enum { BOTH = 2, STEPS_OR_ANSWERS = 99 };

struct wrong {
    const char *what;
    int side;
    enum peer_progress progress;
    struct peer_frame frame;
};

#define FOUR_BYTES     .message = one, .message_bytes = 4
#define ACTIONS(bytes) .message = (bytes), .message_bytes = 8 // two environments have them
#define TYPE(name)     .type = FARM_WIRE_##name
#define ANY_STEP       .type = (enum farm_wire_type)STEPS_OR_ANSWERS
static const uint8_t one[4] = {1}, none[1];
static const struct wrong wrongs[] = {
    {"an unknown type", BOTH, PEER_JOINED, {.type = FARM_WIRE_TYPE_END}},
    {"type 0", MEMORY_UP, PEER_JOINED, {.type = 0}},
    {"a reserved type", MEMORY_UP, PEER_JOINED, {.type = 12}},
    {"a chunk of a version to the learner", MEMORY_UP, PEER_JOINED, {TYPE(VERSION_CHUNK), FOUR_BYTES}},
    {"a chunk to a node that infers nothing", MEMORY_DOWN, PEER_JOINED, {TYPE(VERSION_CHUNK), FOUR_BYTES}},
    {"a chunk above its bound",
     MEMORY_DOWN,
     PEER_JOINED,
     {TYPE(VERSION_CHUNK), FOUR_BYTES, .more_bytes = FARM_WIRE_CHUNK_BYTES}},
    {"OFFER of a version to the learner", MEMORY_UP, PEER_JOINED, {TYPE(VERSION_OFFER), FOUR_BYTES}},
    {"HAVE of four bytes", MEMORY_UP, PEER_JOINED, {TYPE(VERSION_HAVE), FOUR_BYTES}},
    {"HAVE before joining", MEMORY_UP, PEER_OFFERED, {TYPE(VERSION_HAVE), FOUR_BYTES}},
    {"a nonzero reserved byte", MEMORY_UP, PEER_JOINED, {TYPE(STEPS), .reserved = true}},
    {"65 entries", BOTH, PEER_JOINED, {ANY_STEP, .entries = 65}},
    {"two entries of a heartbeat", MEMORY_UP, PEER_JOINED, {TYPE(HEARTBEAT), .entries = 2}},
    {"a heartbeat with a payload", MEMORY_UP, PEER_JOINED, {TYPE(HEARTBEAT), .more_payload = 4}},
    {"a wrong checksum of the header", BOTH, PEER_JOINED, {ANY_STEP, .wrong_crc = true}},
    {"a wrong checksum of a payload", BOTH, PEER_JOINED, {ANY_STEP, .wrong_payload_crc = true}},
    {"a later frame number", BOTH, PEER_JOINED, {ANY_STEP, .later = 1}},
    {"an earlier frame number", MEMORY_UP, PEER_JOINED, {TYPE(STEPS), .later = -1}},
    {"a repeated frame", BOTH, PEER_JOINED, {TYPE(HEARTBEAT), .twice = true}},
    {"a ring beyond the last", BOTH, PEER_JOINED, {ANY_STEP, .ring = PEER_RINGS}},
    {"the largest ring number", MEMORY_UP, PEER_JOINED, {TYPE(STEPS), .ring = UINT16_MAX}},
    {"a lane beyond the last", BOTH, PEER_JOINED, {ANY_STEP, .lane = PEER_LANES}},
    {"a step too late", BOTH, PEER_JOINED, {ANY_STEP, .n = 1}},
    {"the largest step number", BOTH, PEER_JOINED, {ANY_STEP, .n = UINT64_MAX}},
    {"a step twice in a frame", BOTH, PEER_JOINED, {ANY_STEP, .entries = 3}},
    {"a payload too short", BOTH, PEER_JOINED, {ANY_STEP, .more_payload = -1}},
    {"a payload too long", BOTH, PEER_JOINED, {ANY_STEP, .more_payload = 1}},
    {"a length below the entries'", MEMORY_UP, PEER_JOINED, {TYPE(STEPS), .more_bytes = -1000}},
    {"a length above all bounds", MEMORY_UP, PEER_JOINED, {TYPE(STEPS), .more_bytes = 0x7fffff00}},
    {"a long length", MEMORY_UP, PEER_JOINED, {TYPE(STEPS), .more_bytes = FARM_WIRE_STEP_BYTES_MAX - 1000}},
    {"a message above its bound",
     MEMORY_UP,
     PEER_DIALLED,
     {TYPE(HELLO), .more_bytes = 1 + FARM_WIRE_MESSAGE_BYTES_MAX}},
    {"an empty HELLO", MEMORY_UP, PEER_DIALLED, {TYPE(HELLO), .message = none}},
    {"steps before HELLO", BOTH, PEER_DIALLED, {ANY_STEP}},
    {"steps before joining", BOTH, PEER_OFFERED, {ANY_STEP}},
    {"JOIN before HELLO", MEMORY_UP, PEER_DIALLED, {TYPE(JOIN), FOUR_BYTES}},
    {"an empty JOIN", MEMORY_UP, PEER_OFFERED, {TYPE(JOIN), .message = none}},
    {"JOIN of no ring", MEMORY_UP, PEER_OFFERED, {TYPE(JOIN), .message = "\0\0\0", .message_bytes = 4}},
    {"JOIN of too many", MEMORY_UP, PEER_OFFERED, {TYPE(JOIN), .message = "\1\4\0", .message_bytes = 4}},
    {"two JOINs at once", MEMORY_UP, PEER_OFFERED, {TYPE(JOIN), FOUR_BYTES, .twice = true}},
    {"a second JOIN", MEMORY_UP, PEER_JOINED, {TYPE(JOIN), FOUR_BYTES}},
    {"LEAVE of a ring beyond the last", MEMORY_UP, PEER_JOINED, {TYPE(LEAVE), .ring = PEER_RINGS}},
    {"LEAVE before joining", MEMORY_UP, PEER_OFFERED, {TYPE(LEAVE)}},
    {"answers to the learner", MEMORY_UP, PEER_JOINED, {TYPE(ANSWERS)}},
    {"credits to the learner", MEMORY_UP, PEER_JOINED, {TYPE(CREDITS)}},
    {"OFFER to the learner", MEMORY_UP, PEER_DIALLED, {TYPE(OFFER), FOUR_BYTES}},
    {"WELCOME to the learner", MEMORY_UP, PEER_JOINED, {TYPE(WELCOME), FOUR_BYTES}},
    {"REFUSE to the learner", MEMORY_UP, PEER_OFFERED, {TYPE(REFUSE), FOUR_BYTES}},
    {"more consumed than sent", MEMORY_DOWN, PEER_JOINED, {TYPE(ANSWERS), .consumed = 2}},
    {"a generation beyond its bound", MEMORY_UP, PEER_JOINED, {TYPE(STEPS), .consumed = 1ull << 31}},
    {"the largest generation", MEMORY_UP, PEER_JOINED, {TYPE(STEPS), .consumed = UINT64_MAX}},
    {"an action beyond the last", MEMORY_DOWN, PEER_JOINED, {TYPE(ANSWERS), ACTIONS("\0\0\0\0\3\0\0")}},
    {"a negative action", MEMORY_DOWN, PEER_JOINED, {TYPE(ANSWERS), ACTIONS("\377\377\377\377\0\0\0")}},
    {"credits of unsent steps", MEMORY_DOWN, PEER_JOINED, {TYPE(CREDITS), .n = 2}},
    {"credits with a payload", MEMORY_DOWN, PEER_JOINED, {TYPE(CREDITS), .more_payload = 1}},
    {"WELCOME before an offer", MEMORY_DOWN, PEER_DIALLED, {TYPE(WELCOME), FOUR_BYTES}},
    {"an empty WELCOME", MEMORY_DOWN, PEER_OFFERED, {TYPE(WELCOME), .message = none}},
    {"an empty OFFER", MEMORY_DOWN, PEER_DIALLED, {TYPE(OFFER), .message = none}},
    {"a second OFFER", MEMORY_DOWN, PEER_OFFERED, {TYPE(OFFER), FOUR_BYTES}},
    {"steps to a node", MEMORY_DOWN, PEER_JOINED, {TYPE(STEPS)}},
    {"HELLO to a node", MEMORY_DOWN, PEER_JOINED, {TYPE(HELLO), FOUR_BYTES}},
    {"LEAVE to a node", MEMORY_DOWN, PEER_JOINED, {TYPE(LEAVE)}},
    {"a BYE without a reason", MEMORY_DOWN, PEER_JOINED, {TYPE(BYE), .message = none}},
};

static void check_wrong(const struct wrong *wrong, int side) {
    struct peer_frame frame = wrong->frame;
    with_peer peer;
    if ((int)frame.type == STEPS_OR_ANSWERS) frame.type = side == MEMORY_UP ? FARM_WIRE_STEPS : FARM_WIRE_ANSWERS;
    peer_make(&peer, side, false);
    peer_connect(&peer, wrong->progress);
    const uint64_t before = peer_moved(&peer);
    peer_send(&peer, &frame);
    peer_wait(&peer);
    cr_expect(peer_closed(&peer), "side %d is still open after %s", side, wrong->what);
    cr_expect_eq(peer_moved(&peer), before, "side %d: %s moved a counter", side, wrong->what);
}

Test(hostile, a_wrong_frame_ends_its_connection_and_moves_nothing) {
    for (size_t i = 0; i < sizeof wrongs / sizeof *wrongs; i++)
        for (int side = MEMORY_UP; side <= MEMORY_DOWN; side++)
            if (wrongs[i].side == BOTH || wrongs[i].side == side) check_wrong(&wrongs[i], side);
}

// ---- counters that cannot be ----

// Text of the last REFUSE received; "": none.
static const char *refusal(const struct peer *peer) {
    static char text[FARM_WIRE_TEXT_BYTES];
    const size_t head = farm_wire_head_bytes(1);
    text[0] = 0;
    for (size_t at = 0; at + head <= peer->in_bytes;) {
        struct farm_wire_header header;
        enum farm_wire_reason reason;
        cr_assert_eq(farm_wire_get_header(peer->in + at, &header, NULL), FARM_OK);
        if (header.type == FARM_WIRE_REFUSE)
            cr_assert_eq(
                farm_wire_get_reason(peer->in + at + head, header.bytes - FARM_WIRE_ENTRY_BYTES, &reason, text, NULL),
                FARM_OK);
        at += FARM_WIRE_HEADER_BYTES + header.bytes;
    }
    return text;
}

#define FAR (UINT64_MAX - 1)
// Of the first lane; the learner has one step of each lane and has answered none.
static const struct farm_wire_counters absurd[] = {
    {FAR, 0, 0, 0}, {1, FAR, 0, 0}, {FAR, FAR, FAR, 0}, {2, 2, 0, 0}, {3, 0, 0, 0},   {0, 0, 0, 0},
    {1, 2, 0, 0},   {2, 0, 0, 0},   {1, 0, FAR, 0},     {1, 0, 1, 0}, {1, 0, 0, FAR},
};

Test(hostile, a_node_with_impossible_counters_is_refused) {
    for (size_t i = 0; i < sizeof absurd / sizeof *absurd; i++) {
        for (int forgotten = 0; forgotten < 2; forgotten++) {
            struct farm_wire_counters counters[PEER_RINGS * PEER_LANES] = {
                absurd[i], {1, 0, 0, 0}, {1, 0, 0, 0}, {1, 0, 0, 0}};
            const uint32_t rings = i == 5 ? 0 : PEER_RINGS; // a node without rings in a session with steps
            with_peer peer;
            peer_make(&peer, MEMORY_UP, false);
            peer_connect(&peer, PEER_JOINED);
            for (uint16_t l = 0; l < PEER_RINGS * PEER_LANES; l++)
                peer_send(&peer, &(struct peer_frame){TYPE(STEPS), .ring = l / PEER_LANES, .lane = l % PEER_LANES});
            peer_wait(&peer);
            const uint64_t before = peer_moved(&peer);
            cr_assert_eq(before, PEER_RINGS * PEER_LANES);
            peer_hang_up(&peer);
            peer.play->world.admitted = !forgotten;
            if (forgotten) world_replace_hub(&peer.play->world); // the new hub must ask the supervisor
            peer_dial(&peer);
            peer_send_hello(&peer, rings, counters);
            peer_send_join(&peer);
            peer_wait(&peer);
            cr_expect_neq(refusal(&peer)[0], 0, "counters %zu are accepted", i);
            cr_expect_eq(peer_moved(&peer), before);
        }
    }
}

// The node has published one step of each lane and has no answer.
Test(hostile, a_node_leaves_a_learner_with_impossible_counters) {
    static const struct farm_wire_counters lies[] = {{2, 0, 0, 0}, {FAR, 0, 0, 0}, {1, 0, 2, 0}, {0, 0, FAR, 0}};
    static const uint32_t shapes[][2] = {
        {PEER_RINGS, PEER_LANES + 1}, {PEER_RINGS + 1, PEER_LANES}, {1, PEER_LANES}, {FARM_WIRE_RINGS_MAX, 1}};
    for (size_t i = 0; i < 8; i++) {
        static struct farm_wire_counters counters[FARM_WIRE_RINGS_MAX];
        static uint8_t out[MEMORY_WIRE_BYTES];
        with_peer peer;
        peer_make(&peer, MEMORY_DOWN, false);
        peer_connect(&peer, PEER_OFFERED);
        const uint64_t before = peer_moved(&peer);
        counters[PEER_RINGS * PEER_LANES - 1] = i < 4 ? lies[i] : (struct farm_wire_counters){0};
        peer_send_message(&peer, FARM_WIRE_WELCOME, out,
                          peer_put_welcome(i < 4 ? PEER_RINGS : shapes[i - 4][0], i < 4 ? PEER_LANES : shapes[i - 4][1],
                                           counters, out, sizeof out / 2));
        peer_wait(&peer);
        cr_expect(peer_closed(&peer), "WELCOME %zu is accepted", i);
        cr_expect_eq(peer_moved(&peer), before);
    }
}

// ---- connections that wait for a session ----

// Another connection of the peer's node.
static struct peer dial_again(const struct peer *first, const struct farm_wire_counters *counters) {
    struct peer peer = {.play = first->play, .side = MEMORY_UP};
    peer_dial(&peer);
    peer_send_hello(&peer, PEER_RINGS, counters);
    peer_wait(&peer);
    return peer;
}

static void give_up_session(struct peer *peer) {
    const struct farm_control_message forget = {.kind = FARM_CONTROL_FORGET, .fds = {-1, -1}};
    cr_assert(farm_control_send(peer->play->world.control, &forget));
}

// In these two tests AddressSanitizer (make asan) reports a pointer to a session that was freed.
Test(hostile, a_connection_refused_after_waiting_has_no_session) {
    static const struct farm_wire_counters wrong[PEER_RINGS * PEER_LANES] = {{9, 9, 9, 0}};
    struct peer old, refused;
    peer_make(&old, MEMORY_UP, false);
    peer_connect(&old, PEER_JOINED);
    refused = dial_again(&old, wrong);
    peer_send_join(&refused);
    peer_wait(&refused);
    cr_assert(peer_closed(&old) && refusal(&refused)[0] && !peer_closed(&refused));
    give_up_session(&refused);
    peer_wait(&refused);
    peer_hang_up(&refused);
    free_peer(&old);
}

Test(hostile, a_connection_replaced_while_it_waits_has_no_session) {
    for (uint64_t seed = 1; seed <= 8; seed++) { // which of them is closed first
        static const struct farm_wire_counters none_yet[PEER_RINGS * PEER_LANES];
        struct peer old, replaced, newest;
        peer_make(&old, MEMORY_UP, false);
        peer_connect(&old, PEER_JOINED);
        replaced = dial_again(&old, none_yet);
        newest = dial_again(&old, none_yet);
        old.play->net.random = seed;
        peer_send_join(&replaced);
        peer_send_join(&newest);
        peer_turn(&newest, 1000000); // both arrive
        give_up_session(&newest);
        peer_wait(&newest);
        cr_expect(peer_closed(&old) && peer_closed(&replaced) && peer_closed(&newest));
        peer_hang_up(&newest);
        peer_hang_up(&replaced);
        free_peer(&old);
    }
}

Test(hostile, refuses_another_version_and_names_the_difference) {
    for (int field = 0; field < 2; field++) {
        uint8_t out[1024];
        with_peer peer;
        peer_make(&peer, MEMORY_UP, false);
        peer_dial(&peer);
        const size_t bytes = peer_put_hello(0, NULL, out, sizeof out);
        out[8 + 4 * field] += 41;
        peer_send_message(&peer, FARM_WIRE_HELLO, out, bytes);
        peer_wait(&peer);
        char wanted[64];
        snprintf(wanted, sizeof wanted, field ? "layout %u" : "version %u",
                 (unsigned)(field ? FARM_SEGMENT_VERSION : FARM_WIRE_VERSION) + 41);
        cr_expect_not_null(strstr(refusal(&peer), wanted), "'%s' lacks '%s'", refusal(&peer), wanted);
        for (int i = 0; i < 30; i++) peer_turn(&peer, 100000000);
        cr_expect(peer_closed(&peer));
    }
}

// After REFUSE with AGAIN the node reconnects at once, but only once; later attempts wait.
Test(hostile, a_node_refused_with_AGAIN_reconnects_at_once_only_once) {
    uint8_t out[64];
    with_peer peer;
    peer_make(&peer, MEMORY_DOWN, false);
    peer_connect(&peer, PEER_DIALLED);
    peer_send_message(&peer, FARM_WIRE_REFUSE, out, farm_wire_put_reason(FARM_WIRE_REFUSE_AGAIN, "", out, sizeof out));
    for (int ms = 0; ms < 1000; ms++) { // each further connection ends at once
        if (peer.c) peer.c->left[MEMORY_DOWN] = true;
        peer.c = memory_take(&peer.play->net);
        peer_turn(&peer, 1000000);
    }
    cr_expect_gt(peer.play->net.made, 10);
    cr_expect_lt(peer.play->net.made, 40);
}

// ---- too many, too slow, not reading ----

static uint32_t open_at_hub(const struct memory *net) {
    uint32_t open = 0;
    for (uint32_t i = 0; i < net->count; i++)
        open += net->list[i]->hub == MEMORY_OPENED && !net->list[i]->left[MEMORY_DOWN];
    return open;
}

static uint32_t strangers_at_hub(const struct memory *net) {
    uint32_t held = open_at_hub(net) - 1; // the honest node's
    for (uint32_t i = 0; i < net->count; i++) held += net->list[i]->hub == MEMORY_REPORTED;
    return held;
}

// An honest node continues: at least so many steps a lane and second.
static void run_honest_node(struct play *play, uint64_t s, uint64_t *steps, uint64_t least) {
    const uint64_t until_ns = play->now_ns + s * 1000000000, before = play->world.taken[0][0];
    while (play->now_ns < until_ns) {
        play_turn(play, *steps += 1);
        play->now_ns += 10000000;
    }
    cr_expect_geq(play->world.taken[0][0] - before, least * s);
}

static struct play *make_with_honest_node(bool encrypted, uint64_t *steps) {
    struct peer peer;
    peer_make(&peer, MEMORY_UP, encrypted);
    play_to(peer.play, *steps = 3);
    return peer.play;
}

Test(hostile, a_thousand_half_open_connections_do_not_disturb_a_node) {
    for (int encrypted = 0; encrypted < 2; encrypted++) {
        uint64_t steps;
        with_play *play = make_with_honest_node(encrypted, &steps);
        for (int i = 0; i < 1000; i++) memory_dial(&play->net);
        for (int s = 0; s < 12; s++) {
            run_honest_node(play, 1, &steps, 10);
            cr_expect_leq(strangers_at_hub(&play->net), 16, "all have one address");
        }
        cr_expect_eq(open_at_hub(&play->net), 1);
        cr_expect_eq(play->world.node_stats.node[0].connections, 1);
        for (uint32_t i = 0; i < play->net.count; i++)
            if (play->net.list[i]->left[MEMORY_DOWN]) play->net.list[i]->left[MEMORY_UP] = true;
    }
}

// Hub and node make their TLS settings once, because they take much longer than a connection. Counts the calls of
// OpenSSL's function that makes them.
static uint32_t settings_made;
SSL_CTX *SSL_CTX_new(const SSL_METHOD *method) {
    SSL_CTX *(*make)(const SSL_METHOD *);
    *(void **)&make = dlsym(RTLD_NEXT, "SSL_CTX_new");
    settings_made++;
    return make(method);
}

static uint32_t tls_made;
SSL *SSL_new(SSL_CTX *settings) {
    SSL *(*make)(SSL_CTX *);
    *(void **)&make = dlsym(RTLD_NEXT, "SSL_new");
    tls_made++;
    return make(settings);
}

// A client's hello that another key than PLAY_KEY signs.
static size_t make_forged_hello(uint8_t *out) {
    static const struct farm_key wrong = {.kind = FARM_KEY_NODE, .secret = {9}, .name = "node"};
    struct farm_tls_context *context;
    struct farm_tls *tls;
    bool done;
    size_t bytes;
    cr_assert_eq(farm_tls_context_make(&wrong, false, &context, NULL), FARM_OK);
    cr_assert_eq(farm_tls_make(context, &tls, NULL), FARM_OK);
    cr_assert_eq(farm_tls_handshake(tls, &done, NULL), FARM_OK);
    memcpy(out, farm_tls_output(tls, &bytes), 1024);
    farm_tls_free(tls);
    farm_tls_context_free(context);
    return bytes;
}

// Strangers beside an honest node: what they have sent, and the handshakes that each of 500 may cost the hub.
Test(hostile, only_a_whole_hello_costs_a_handshake_and_these_are_limited) {
    uint8_t hello[2048], trash[2048];
    uint64_t steps;
    const size_t whole = make_forged_hello(hello);
    with_play *play = make_with_honest_node(true, &steps);
    cr_assert_leq(whole, 1024);
    memset(trash, 0x55, sizeof trash);
    const struct {
        const uint8_t *bytes;
        size_t count;
        bool closed;
    } sent[] = {{hello, 0, false}, {hello, 1, false},   {hello, 9, false},   {hello, whole - 1, false},
                {trash, 9, true},  {trash, 2048, true}, {hello, whole, true}};
    for (size_t i = 0; i < sizeof sent / sizeof *sent; i++) {
        const uint32_t settings_before = settings_made, before = tls_made;
        for (int c = 0; c < 100; c++) memory_put(memory_dial(&play->net), MEMORY_UP, sent[i].bytes, sent[i].count);
        run_honest_node(play, 1, &steps, 10);
        cr_expect_leq(strangers_at_hub(&play->net), sent[i].closed ? 0 : 16, "case %zu", i);
        cr_expect_eq(settings_made, settings_before);
        if (i < 6)
            cr_expect_eq(tls_made, before, "case %zu makes TLS objects", i);
        else
            cr_expect(tls_made > before && tls_made <= before + 200, "%u handshakes", tls_made - before);
        run_honest_node(play, 6, &steps, 10); // the limit of 5 s
        cr_expect_eq(strangers_at_hub(&play->net), 0, "case %zu", i);
        for (uint32_t k = 0; k < play->net.count; k++)
            if (play->net.list[k]->left[MEMORY_DOWN]) play->net.list[k]->left[MEMORY_UP] = true;
    }
}

Test(hostile, a_HELLO_of_one_byte_a_second_is_cut_off) {
    uint64_t steps;
    struct play *play = make_with_honest_node(false, &steps);
    struct peer peer = {.play = play, .side = MEMORY_UP, .c = memory_dial(&play->net)};
    peer_send_hello(&peer, 0, NULL);
    peer.c->wire[MEMORY_UP].put = 0; // released byte by byte below
    for (int s = 0; s < 6; s++) {
        peer.c->wire[MEMORY_UP].put++;
        cr_assert_not(peer_closed(&peer) && s < 5);
        run_honest_node(play, 1, &steps, 10);
    }
    cr_expect(peer_closed(&peer));
    peer_hang_up(&peer);
    play_free(play);
}

// It requests echoes and never reads one. Other connections of the hub continue, and the queue for this one is bounded.
Test(hostile, a_peer_that_never_reads_is_cut_off) {
    uint64_t steps;
    struct play *play = make_with_honest_node(false, &steps);
    struct peer peer = {.play = play, .side = MEMORY_UP, .c = memory_dial(&play->net)};
    peer_send_hello(&peer, 0, NULL);
    uint32_t pings = 0;
    for (; pings < 20000 && !peer_closed(&peer); pings++) {
        peer_send(&peer, &(struct peer_frame){.type = FARM_WIRE_HEARTBEAT, .n = 1});
        play_turn(play, ++steps);
    }
    cr_expect_lt(pings, 10000, "the hub keeps every echo");
    cr_expect_gt(play->world.taken[0][0], 100);
    peer_hang_up(&peer);
    play_free(play);
}

// It requests versions, whatever it has, and reads none.
Test(hostile, a_node_that_takes_no_parameters_is_cut_off_after_ten_seconds) {
    static const struct farm_wire_have haves[] = {{0, 0}, {0, 7}, {0, UINT64_MAX}, {UINT64_MAX - 1, 8}, {0, 0}};
    with_peer peer;
    farm_log_set_level(FARM_LOG_ERROR);
    peer = (struct peer){.play = play_prepare(false, FARM_ANSWERS_LOCAL, PEER_LANES, PEER_PIXELS, 1)};
    peer.play->world.weights = 10000;
    world_make(&peer.play->world, PEER_RINGS);
    peer_connect(&peer, PEER_JOINED);
    world_publish_version(&peer.play->world);
    for (size_t i = 0; i < sizeof haves / sizeof *haves; i++)
        peer_send_message(&peer, FARM_WIRE_VERSION_HAVE, &haves[i], sizeof haves[i]);
    for (int s = 0; s < 12; s++) {
        peer_turn(&peer, 1000000000);
        cr_expect(s > 8 || !peer_closed(&peer));
        peer_send(&peer, &(struct peer_frame){.type = FARM_WIRE_HEARTBEAT});
    }
    cr_expect(peer_closed(&peer));
}

// The newest OFFER of a version that it has received; *chunks: those behind it.
static bool find_offer(const struct peer *peer, struct farm_wire_source *source, uint32_t *chunks) {
    struct farm_wire_header header;
    bool found = false;
    for (size_t at = 0; at < peer->in_bytes; at += FARM_WIRE_HEADER_BYTES + header.bytes) {
        memcpy(&header, peer->in + at, sizeof header);
        *chunks += header.type == FARM_WIRE_VERSION_CHUNK;
        if (header.type != FARM_WIRE_VERSION_OFFER) continue;
        const size_t message = FARM_WIRE_ENTRY_BYTES + sizeof(struct farm_wire_version);
        *source = (struct farm_wire_source){0};
        if (header.bytes > message) memcpy(source, peer->in + at + FARM_WIRE_HEADER_BYTES + message, sizeof *source);
        *chunks = 0;
        found = true;
    }
    return found;
}

Test(hostile, a_node_that_has_lost_its_source_gets_that_version_from_the_learner) {
    static const struct farm_wire_have have;
    struct farm_wire_source source;
    uint32_t chunks;
    with_peer peer;
    peer_make_as(&peer, MEMORY_UP, false, FARM_ANSWERS_LOCAL);
    struct farm_hub *hub = peer.play->world.hub;
    hub->tree[9] = (struct farm_source_node){.present = true, .cache.address = "127.0.0.1:9", .source = -1};
    hub->tree[10] = (struct farm_source_node){.present = true, .cache.address = "127.0.0.1:10", .source = -1};
    peer_connect(&peer, PEER_JOINED);
    peer_send_message(&peer, FARM_WIRE_VERSION_HAVE, &have, sizeof have);
    world_publish_version(&peer.play->world);
    while (farm_version_source_turn(&hub->versions)) continue; // as for the two
    peer_wait(&peer);
    cr_assert(find_offer(&peer, &source, &chunks));
    cr_expect_str_eq(source.address, "127.0.0.1:9");
    cr_expect_eq(chunks, 0);
    peer_send_message(&peer, FARM_WIRE_VERSION_HAVE, &have, sizeof have);
    peer_wait(&peer);
    cr_assert(find_offer(&peer, &source, &chunks));
    cr_expect_str_eq(source.address, "");
    cr_expect_eq(chunks, 1);
    cr_expect_eq(hub->tree[0].avoided[0], 1u << 9);
    peer_send_message(&peer, FARM_WIRE_VERSION_HAVE, &have, sizeof have);
    peer_wait(&peer);
    cr_expect_eq(hub->tree[0].avoided[0], 1u << 9, "nothing else was announced");
    peer_turn(&peer, 700000000000);
    cr_expect_eq(hub->tree[0].avoided[0], 0, "a failure is forgotten at last");
}

// TLS records of a handshake message of 100,000 bytes.
Test(hostile, a_handshake_of_more_than_16_KiB_is_cut_off) {
    static uint8_t record[5 + 4096] = {22, 3, 1, 16, 0};
    uint64_t steps, sent = 0;
    struct play *play = make_with_honest_node(true, &steps);
    struct peer peer = {.play = play, .side = MEMORY_UP, .c = memory_dial(&play->net)};
    for (; sent < 100000 && !peer_closed(&peer); play_turn(play, ++steps)) {
        memcpy(record + 5, "\1\1\206\240\3\3", sent ? 0 : 6);
        const int64_t put = memory_put(peer.c, MEMORY_UP, record, sizeof record);
        sent += put > 0 ? (uint64_t)put : 0;
    }
    cr_expect_lt(sent, 50000); // the engine and the wire hold some of these
    peer_hang_up(&peer);
    play_free(play);
}

// ---- keys ----

static void turn_for(struct play *play, uint64_t ns) {
    for (const uint64_t until_ns = play->now_ns + ns; play->now_ns < until_ns; play->now_ns += 1000000)
        play_turn(play, UINT64_MAX);
}

// To this node the hub is a peer that has the node's pre-shared key, but not the key of the node's learner. A node that
// has joined tries again, because its learner may answer; one that has not ends.
Test(hostile, a_peer_with_the_nodes_key_alone_is_not_the_learner) {
    struct farm_key key = *play_node_key("node");
    key.learner[0] ^= 1;
    farm_log_set_level(FARM_LOG_ERROR);
    with_play *play = play_prepare(true, FARM_ANSWERS_CENTRAL, PEER_LANES, PEER_PIXELS, 1);
    struct world *world = &play->world;
    world->node_config.key = &key;
    world_make(world, PEER_RINGS);
    for (int joined = 1; joined >= 0; joined--) {
        if (!joined) world->node_config.ring_count = 0;
        if (!joined) world_replace_node(world);
        turn_for(play, 2000000000);
        cr_expect(strstr(farm_node_why(world->node), "not the learner"), "%s", farm_node_why(world->node));
        cr_expect_null(farm_node_offer(world->node));
        cr_expect_eq(farm_node_state(world->node), joined ? FARM_NODE_TRYING : FARM_NODE_REFUSED);
    }
    cr_expect_eq(world->made_count, 0);
}

Test(hostile, a_withdrawn_key_ends_its_nodes_and_no_other) {
    static const char *const why[] = {"the learner has withdrawn the key of node gone", "it is withdrawn there"};
    const struct farm_key gone = *play_node_key("gone"), node = *play_node_key("node");
    struct farm_control_message withdrawn = {.kind = FARM_CONTROL_WITHDRAWN, .key = "gone", .fds = {-1, -1}};
    farm_log_set_level(FARM_LOG_ERROR);
    with_play *play = play_prepare(true, FARM_ANSWERS_CENTRAL, PEER_LANES, PEER_PIXELS, 1);
    struct world *world = &play->world;
    world->node_config.key = &gone;
    world_make(world, PEER_RINGS);
    play_to(play, 5);
    cr_assert(farm_control_send(world->control, &withdrawn));
    for (int again = 0; again < 2; again++) { // while it plays; a later connection
        if (again) world_replace_node(world);
        turn_for(play, 1500000000);
        while (again && open_at_hub(&play->net)) turn_for(play, 1000000); // an attempt
        cr_expect_eq(open_at_hub(&play->net), 0);
        cr_expect(strstr(farm_node_why(world->node), why[again]), "%s", farm_node_why(world->node));
        cr_expect_not(farm_node_connected(world->node));
        cr_expect(again || farm_node_state(world->node) == FARM_NODE_REFUSED);
    }
    world->node_config.key = &node;
    world_replace_session(world);
    play_to(play, 5);
    cr_expect_eq(open_at_hub(&play->net), 1);
}

// ---- a node's own actors ----

// As if an actor had read the bell between the engine's report and the node's read.
static uint32_t turn_before_theft(struct farm_engine *engine, struct farm_engine_event *events, uint32_t room) {
    const uint32_t count = memory_turn(engine, events, room - 1);
    events[count] = (struct farm_engine_event){.kind = FARM_ENGINE_READABLE}; // the bell's watch
    return count + 1;
}

Test(hostile, an_actor_that_steals_its_nodes_bell_does_not_block_the_bridge, .timeout = 10) {
    struct farm_engine_ops robbed = farm_engine_memory;
    with_play *play = play_make(false, FARM_ANSWERS_CENTRAL, 1, 1, 8, 1);
    uint64_t count;
    const struct iovec into = {&count, sizeof count};
    if (preadv2(play->world.node_bell, &into, 1, -1, RWF_NOWAIT) < 0 && errno == EOPNOTSUPP)
        cr_skip_test("reads of bells block here");
    robbed.turn = turn_before_theft;
    play->world.node_config.ops = &robbed;
    world_replace_node(&play->world);
    cr_assert_eq(fcntl(play->world.node_bell, F_SETFL, 0), 0); // clears O_NONBLOCK for every process
    play_to(play, 10);
}
