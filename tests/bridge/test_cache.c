// Versions by way of other nodes: forwarded as they arrive, verified before they are published, and from the learner
// again if a source lies, stalls or dies. Over TCP on loopback, by TLS; the test passes the time.
#include "bridge/cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/time.h"
#include "loopback.h"

enum { COUNT = 300000, BYTES = COUNT * 4, SOCKETS = FARM_CACHE_SOCKETS, MS = 1000000, CHUNK = FARM_WIRE_CHUNK_BYTES };
static const struct farm_key LEARNER = {.kind = FARM_KEY_LEARNER, .secret = {1, 2, 3}};
static const uint8_t RUN[FARM_WIRE_ID_BYTES] = "the-run";
static const struct farm_engine_ops *const OPS = &farm_engine_poll;
static struct farm_error err;

// ---- the learner's versions ----

static struct farm_key key, other_key; // nodes'
static struct farm_tls_context *as_client, *as_server, *as_other;
static struct farm_board *learner_board;
static struct farm_version_source source;
static uint64_t now_ns;

static struct farm_board *make_board(void) {
    const struct farm_board_request request = {.count = COUNT, .buffers = FARM_BOARD_BUFFERS, .node = -1};
    struct farm_board *board;
    cr_assert_eq(farm_board_create(&request, &board, &err), FARM_OK, "%s", err.message);
    return board;
}

static float number_of(uint64_t version, size_t i) {
    return (float)(version * 7 + i % 1013);
}

static struct farm_version_stage *publish(uint64_t version) {
    static float params[COUNT];
    for (size_t i = 0; i < COUNT; i++) params[i] = number_of(version, i);
    cr_assert(farm_board_publish(learner_board, params, version));
    while (farm_version_source_turn(&source)) continue;
    struct farm_version_stage *stage = farm_version_source_newest(&source);
    cr_assert(stage && stage->head.version == version);
    return stage;
}

static void make_learner(void) {
    farm_log_set_level(FARM_LOG_ERROR);
    now_ns = farm_now_ns();
    cr_assert(farm_key_derive(&LEARNER, "node", &key) && farm_key_derive(&LEARNER, "other", &other_key));
    cr_assert_eq(farm_tls_context_make(&key, false, &as_client, &err), FARM_OK);
    cr_assert_eq(farm_tls_context_make(&key, true, &as_server, &err), FARM_OK);
    cr_assert_eq(farm_tls_context_make(&other_key, false, &as_other, &err), FARM_OK);
    learner_board = make_board();
    source = (struct farm_version_source){.board = learner_board, .key = &LEARNER, .run = "the-run"};
    cr_assert_eq(farm_version_source_make(&source, &err), FARM_OK);
}

static void free_learner(void) {
    farm_version_source_free(&source);
    farm_board_free(learner_board);
    farm_tls_context_free(as_client);
    farm_tls_context_free(as_server);
    farm_tls_context_free(as_other);
}

TestSuite(cache, .init = make_learner, .fini = free_learner, .timeout = 30);

// ---- a node's part under test ----

struct node {
    struct farm_engine *engine;
    struct farm_board *board;
    struct farm_version_receiver receiver;
    struct farm_link learner; // vacant: a request shows in receiver.discards
    struct farm_cache *cache;
    int listener;
    struct farm_wire_source at;
    in_port_t port;
};

static struct farm_wire_source source_at(const struct sockaddr_in *at) {
    struct farm_wire_source out = {0};
    snprintf(out.address, sizeof out.address, "127.0.0.1:%u", ntohs(at->sin_port));
    return out;
}

static void make_node(struct node *node) {
    struct sockaddr_in at;
    *node = (struct node){.board = make_board(), .listener = listen_on_loopback(&at)};
    node->at = source_at(&at);
    node->port = at.sin_port;
    node->receiver =
        (struct farm_version_receiver){.boards = &node->board, .board_count = 1, .key = &key, .staged = true};
    memcpy(node->receiver.run, RUN, sizeof RUN);
    cr_assert_eq(farm_version_receiver_make(&node->receiver, &err), FARM_OK);
    cr_assert_eq(OPS->create(SOCKETS, 1, NULL, &node->engine, &err), FARM_OK);
    OPS->listen(node->engine, node->listener);
    const struct farm_cache_config config = {OPS, node->engine, 0, as_client, &node->receiver, &node->learner};
    cr_assert_eq(farm_cache_make(&config, &node->cache, &err), FARM_OK);
}

static void turn_node(struct node *node) {
    struct farm_engine_event events[64];
    const uint32_t count = OPS->turn(node->engine, events, 64);
    for (uint32_t i = 0; i < count; i++)
        if (events[i].kind == FARM_ENGINE_ACCEPTED)
            farm_cache_accept(node->cache, (int)events[i].result, now_ns);
        else
            farm_cache_event(node->cache, &events[i], now_ns);
    farm_cache_turn(node->cache, now_ns);
}

static void free_node(struct node *node) {
    while (!farm_cache_close(node->cache)) turn_node(node);
    farm_cache_free(node->cache);
    OPS->destroy(node->engine);
    farm_version_receiver_free(&node->receiver);
    farm_board_free(node->board);
    close(node->listener);
}

// As the learner's VERSION_OFFER does.
static void announce(struct node *node, const struct farm_wire_source *from, uint64_t version) {
    node->receiver.offered = 1 + version;
    farm_cache_follow(node->cache, from);
}

static void check_board(const struct node *node, uint64_t version) {
    static float params[COUNT];
    uint64_t got;
    cr_assert(farm_board_copy(node->board, params, &got));
    cr_assert_eq(got, version);
    for (size_t i = 0; i < COUNT; i++) cr_assert_eq(params[i], number_of(version, i), "number %zu", i);
}

// ---- a hand-written peer: a source, or a node that takes versions ----

struct peer {
    struct farm_engine *engine;
    struct farm_link link;
    struct farm_version_sender sender;
    struct farm_wire_source at;
    int listener;
};

static bool place(void *context, const struct farm_wire_header *header, const struct farm_wire_entry *entry,
                  struct iovec *parts, uint32_t room, uint32_t *count, struct farm_error *error) {
    (void)context, (void)entry, (void)parts, (void)room, (void)count, (void)error;
    return header->type == FARM_WIRE_HEARTBEAT;
}

static bool arrived(void *context, struct farm_link *link, const struct farm_wire_header *header,
                    const struct farm_wire_entry *entries, struct farm_error *error) {
    (void)entries;
    return header->type != FARM_WIRE_VERSION_HAVE ||
           farm_version_sender_ask(&((struct peer *)context)->sender, link, error);
}

static void open_peer(struct peer *peer, const struct farm_address *to, int fd, const struct farm_tls_context *tls) {
    const struct farm_link_owner owner = {place, arrived, peer};
    cr_assert_eq(farm_link_make(&peer->link, OPS, peer->engine, 0, !to, tls, &owner, &err), FARM_OK);
    peer->link.known = true;
    farm_link_begin(&peer->link, fd, to, now_ns);
}

// A source that a node can follow.
static void make_source(struct peer *peer, bool accepts) {
    struct sockaddr_in at;
    *peer = (struct peer){.listener = listen_on_loopback(&at)};
    peer->at = source_at(&at);
    cr_assert_eq(OPS->create(1, 1, NULL, &peer->engine, &err), FARM_OK);
    if (accepts) OPS->listen(peer->engine, peer->listener);
}

static void make_taker(struct peer *peer, const struct node *of, const struct farm_tls_context *tls) {
    static struct farm_address at; // until it is connected
    *(struct sockaddr_in *)&at.socket =
        (struct sockaddr_in){.sin_family = AF_INET, .sin_port = of->port, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    at.bytes = sizeof(struct sockaddr_in);
    *peer = (struct peer){.listener = -1};
    cr_assert_eq(OPS->create(1, 1, NULL, &peer->engine, &err), FARM_OK);
    open_peer(peer, &at, socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), tls);
}

static void turn_peer(struct peer *peer) {
    struct farm_engine_event events[16];
    const uint32_t count = OPS->turn(peer->engine, events, 16);
    for (uint32_t i = 0; i < count; i++) {
        if (events[i].kind != FARM_ENGINE_ACCEPTED)
            farm_link_event(&peer->link, &events[i], now_ns);
        else
            open_peer(peer, NULL, (int)events[i].result, as_server);
    }
}

static void free_peer(struct peer *peer) {
    farm_link_close(&peer->link, NULL);
    while (peer->link.state != FARM_LINK_VACANT) turn_peer(peer);
    farm_version_sender_end(&peer->sender);
    OPS->destroy(peer->engine);
    if (peer->listener >= 0) close(peer->listener);
}

static bool send_to(struct peer *peer, struct farm_version_stage *stage) {
    return peer->sender.asked && peer->link.state == FARM_LINK_OPEN && farm_link_can_send(&peer->link) &&
           farm_version_send(&peer->sender, &peer->link, stage, now_ns);
}

// Turns of all, until `done` or for 10 s of real time; each passes `step_ns`.
#define TURN_UNTIL(done, step_ns, ...)                                                                                 \
    for (const uint64_t start_ns_ = farm_now_ns(); !(done); now_ns += (step_ns)) {                                     \
        __VA_ARGS__;                                                                                                   \
        cr_assert_lt(farm_now_ns() - start_ns_, 10000000000u, "%s", #done);                                            \
    }

// ---- honest caches ----

Test(cache, a_version_goes_on_before_it_is_whole_and_is_published_by_each) {
    struct farm_version_stage *stage = publish(3);
    struct node first, second;
    struct peer from;
    make_node(&first);
    make_node(&second);
    make_source(&from, true);
    announce(&first, &from.at, 3);
    first.at.depth = 1;
    announce(&second, &first.at, 3);
    bool early = false;
    TURN_UNTIL(second.receiver.done == 4, 10000, turn_peer(&from), turn_node(&first), turn_node(&second),
               send_to(&from, stage),
               early |= second.receiver.stage && second.receiver.stage->held && first.receiver.done != 4);
    cr_expect(early, "it was stored before it was forwarded");
    check_board(&first, 3);
    check_board(&second, 3);
    stage = publish(5); // and the next one by the same links
    announce(&first, &from.at, 5);
    announce(&second, &first.at, 5);
    TURN_UNTIL(second.receiver.done == 6, 10000, turn_peer(&from), turn_node(&first), turn_node(&second),
               send_to(&from, stage));
    check_board(&second, 5);
    free_node(&second);
    free_node(&first);
    free_peer(&from);
}

// ---- sources that fail ----

enum lie {
    DIGEST,
    ORDER,
    SIZE,
    SIGNATURE,
    OTHER_RUN,
    OLD,
    NOT_FINITE,
    ANOTHER_TYPE,
    STALLS,
    DIES,
    TRICKLES,
    MUTE,
    CLOSED,
    LIES
};

static void tell(struct peer *from, struct farm_version_stage *stage, enum lie lie) {
    const struct farm_wire_entry entry = {.offset = CHUNK * 2, .version = stage->head.version};
    const struct iovec part = {stage->data, CHUNK};
    if (lie == STALLS && from->sender.sent >= 2 * CHUNK) return;
    if (lie == DIES && from->sender.sent >= 2 * CHUNK) farm_link_close(&from->link, NULL);
    const bool small = lie == TRICKLES && from->sender.stage, due = now_ns - from->sender.sent_ns > 500 * (uint64_t)MS;
    if (small && due && farm_link_can_send(&from->link)) {
        farm_link_frame(&from->link, FARM_WIRE_VERSION_CHUNK);
        farm_link_add(&from->link, &(struct farm_wire_entry){.offset = from->sender.sent, .version = entry.version},
                      &(struct iovec){(uint8_t *)stage->data + from->sender.sent, 4}, 1);
        farm_link_commit(&from->link);
        from->sender.sent += 4;
        from->sender.sent_ns = now_ns;
    }
    if (small) return;
    const bool wrong_frame = (lie == ORDER || lie == ANOTHER_TYPE) && from->sender.sent >= CHUNK;
    if (!wrong_frame || !farm_link_can_send(&from->link)) {
        send_to(from, stage);
        return;
    }
    farm_link_frame(&from->link, lie == ORDER ? FARM_WIRE_VERSION_CHUNK : FARM_WIRE_CREDITS);
    farm_link_add(&from->link, &entry, &part, lie == ORDER);
    farm_link_commit(&from->link);
}

static void check_lie(enum lie lie) {
    static float numbers[BYTES / sizeof(float)];
    uint8_t *data = (uint8_t *)numbers;
    struct farm_version_stage lying = *publish(4 + (uint64_t)lie);
    struct node node;
    struct peer from;
    const uint64_t version = lying.head.version;
    memcpy(data, lying.data, BYTES);
    lying.data = numbers;
    lying.users = 0;
    if (lie == DIGEST) data[BYTES - 1] ^= 1;
    if (lie == SIZE) lying.head.bytes -= 4, lying.held -= 4;
    if (lie == SIGNATURE) lying.head.version++;
    if (lie == OTHER_RUN) lying.head.run[0]++;
    if (lie == NOT_FINITE) memset(data + BYTES / 2, 0xff, 4);
    make_node(&node);
    if (lie == OLD) node.receiver.done = 1 + version;
    make_source(&from, lie != CLOSED);
    announce(&node, &from.at, version + (lie == OLD));
    const uint64_t start_ns = now_ns;
    if (lie == CLOSED) close(from.listener), from.listener = -1;
    TURN_UNTIL(node.receiver.from == &node.learner, MS, turn_node(&node), lie < MUTE ? turn_peer(&from) : (void)0,
               from.link.state == FARM_LINK_OPEN ? tell(&from, &lying, lie) : (void)0);
    cr_expect_lt(now_ns - start_ns, 1000 * (uint64_t)MS + (lie == TRICKLES) * BYTES * 1000ull, "lie %d", lie);
    cr_expect_null(node.receiver.stage, "the learner is to continue what may be wrong");
    cr_expect_eq(farm_board_copy(node.board, numbers, &(uint64_t){0}), false, "lie %d is published", lie);
    free_peer(&from);
    free_node(&node);
}

Test(cache, a_source_that_lies_stalls_or_dies_is_left_within_a_second) {
    for (int lie = 0; lie < LIES; lie++) check_lie((enum lie)lie);
}

// ---- peers of a cache ----

// Its connection is cut, which a connection that only asks survives.
static void send_hostile(struct node *node, enum farm_wire_type type) {
    static uint8_t bytes[64];
    struct peer bad;
    make_taker(&bad, node, type == FARM_WIRE_HELLO ? as_other : as_client);
    TURN_UNTIL(bad.link.state == FARM_LINK_VACANT || farm_link_can_send(&bad.link), 10000, turn_peer(&bad),
               turn_node(node));
    if (bad.link.state == FARM_LINK_OPEN && farm_wire_is_message(type)) {
        farm_link_post(&bad.link, type, bytes, 13, false);
    } else if (bad.link.state == FARM_LINK_OPEN) {
        farm_link_frame(&bad.link, type);
        farm_link_add(&bad.link, &(struct farm_wire_entry){0}, &(struct iovec){bytes, sizeof bytes}, 1);
        farm_link_commit(&bad.link);
    }
    TURN_UNTIL(bad.link.state == FARM_LINK_VACANT, 10000, turn_peer(&bad), turn_node(node));
    free_peer(&bad);
}

Test(cache, peers_may_only_ask_and_need_the_key) {
    static const enum farm_wire_type types[] = {FARM_WIRE_HELLO,         FARM_WIRE_JOIN,  FARM_WIRE_VERSION_OFFER,
                                                FARM_WIRE_VERSION_CHUNK, FARM_WIRE_STEPS, FARM_WIRE_BYE};
    struct farm_version_stage *stage = publish(1);
    struct node node, good;
    struct peer from;
    make_node(&node);
    make_node(&good);
    make_source(&from, true);
    announce(&node, &from.at, 1);
    TURN_UNTIL(node.receiver.done == 2, 10000, turn_peer(&from), turn_node(&node), send_to(&from, stage));
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) send_hostile(&node, types[t]);
    announce(&good, &node.at, 1);
    TURN_UNTIL(good.receiver.done == 2, 10000, turn_node(&good), turn_node(&node));
    free_node(&good);
    free_node(&node);
    free_peer(&from);
}

static int count_open(const int *fds, int count) {
    char byte;
    int open = 0;
    for (int i = 0; i < count; i++) open += recv(fds[i], &byte, 1, MSG_DONTWAIT) < 0;
    return open;
}

Test(cache, strangers_are_few_and_end_after_five_seconds) {
    enum { ALL = 2 * FARM_CACHE_STRANGERS_MAX };
    struct node node;
    int fds[ALL];
    make_node(&node);
    const struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = node.port, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (int i = 0; i < ALL; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        cr_assert_eq(connect(fds[i], (const struct sockaddr *)&at, sizeof at), 0);
    }
    TURN_UNTIL(count_open(fds, ALL) == FARM_CACHE_STRANGERS_MAX, 0, turn_node(&node));
    const uint64_t start_ns = now_ns;
    TURN_UNTIL(count_open(fds, ALL) == 0, 100 * MS, turn_node(&node));
    cr_expect_leq(now_ns - start_ns, 5300 * (uint64_t)MS);
    for (int i = 0; i < ALL; i++) close(fds[i]);
    free_node(&node);
}
