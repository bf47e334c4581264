// A hand-written peer: sends any frames, valid or not, to a hub (side MEMORY_UP: as a node) or to a node (side
// MEMORY_DOWN: as a hub), over the memory engine.
#ifndef TESTS_BRIDGE_PEER_H
#define TESTS_BRIDGE_PEER_H

#include "base/crc32c.h"
#include "base/log.h"
#include "bridge/step.h"
#include "play.h"

enum { PEER_RINGS = 2, PEER_LANES = 2, PEER_PIXELS = 20 };

struct peer {
    struct play *play;
    struct memory_connection *c;
    int side; // MEMORY_UP: as a node; MEMORY_DOWN: as a hub
    uint64_t frame;
    uint8_t in[1 << 14]; // received from the other side
    size_t in_bytes;
};

static inline void peer_make_as(struct peer *peer, int side, bool encrypted, enum farm_answers answers) {
    farm_log_set_level(FARM_LOG_ERROR);
    *peer = (struct peer){.play = play_make(encrypted, answers, PEER_RINGS, PEER_LANES, PEER_PIXELS, 1), .side = side};
}
static inline void peer_make(struct peer *peer, int side, bool encrypted) {
    peer_make_as(peer, side, encrypted, FARM_ANSWERS_CENTRAL);
}

// A turn of the other side and of the supervisor; the learner does not answer.
static inline void peer_turn(struct peer *peer, uint64_t ns) {
    struct play *play = peer->play;
    play->now_ns += ns;
    if (peer->side == MEMORY_UP)
        farm_hub_turn(play->world.hub, play->now_ns);
    else
        farm_node_turn(play->world.node, play->now_ns);
    world_supervise(&play->world);
}

static inline void peer_receive(struct peer *peer) {
    const int64_t bytes =
        memory_get(&peer->play->net, peer->c, peer->side, peer->in + peer->in_bytes, sizeof peer->in - peer->in_bytes);
    if (bytes > 0) peer->in_bytes += (size_t)bytes;
}

static inline bool peer_closed(const struct peer *peer) {
    return peer->c->left[!peer->side];
}

// Fifty turns in 50 ms, shorter than any time limit.
static inline void peer_wait(struct peer *peer) {
    for (int i = 0; i < 50; i++) {
        peer_turn(peer, 1000000);
        peer_receive(peer);
    }
}

static inline void peer_dial(struct peer *peer) {
    peer->frame = peer->in_bytes = 0;
    if (peer->side == MEMORY_UP) {
        peer->c = memory_dial(&peer->play->net);
        return;
    }
    world_publish_steps(&peer->play->world, 1); // every lane has an unanswered step
    for (peer->c = NULL; !peer->c; peer->c = memory_take(&peer->play->net)) peer_turn(peer, 10000000);
}

static inline void peer_hang_up(struct peer *peer) {
    if (peer->c) peer->c->left[peer->side] = true;
    for (int i = 0; i < 5; i++) peer_turn(peer, 1000000);
    peer->c = NULL;
}

struct peer_frame {
    enum farm_wire_type type;
    uint16_t entries;              // 0: 1
    uint16_t ring, lane;           // in the first entry
    uint64_t n, consumed, version; // in each entry; by its type other numbers lie there
    int more_payload, more_bytes;  // too many bytes: sent; in the header
    int later;                     // added to the frame's number
    bool twice, wrong_crc, wrong_payload_crc, reserved;
    const void *message;
    size_t message_bytes;
};

static inline size_t peer_payload_of(const struct peer *peer, const struct peer_frame *frame) {
    const struct farm_lane *lane = &peer->play->world.actor[0].lanes[0];
    if (frame->message) return frame->message_bytes;
    return frame->type == FARM_WIRE_STEPS     ? farm_step_bytes(lane)
           : frame->type == FARM_WIRE_ANSWERS ? farm_answer_bytes(lane)
                                              : 0;
}

static inline void peer_put(struct peer *peer, const uint8_t *from, size_t bytes) {
    for (int i = 0; bytes && i < 10000 && !peer_closed(peer); i++) {
        const int64_t put = memory_put(peer->c, peer->side, from, bytes);
        if (put > 0) from += put, bytes -= (size_t)put;
        if (bytes) peer_turn(peer, 1000000);
    }
}

static inline void peer_send(struct peer *peer, const struct peer_frame *frame) {
    static uint8_t out[1 << 15];
    struct farm_wire_entry entries[FARM_WIRE_ENTRIES_MAX + 1] = {0};
    const uint16_t count = frame->entries ? frame->entries : 1;
    const size_t head = farm_wire_head_bytes(count), right = peer_payload_of(peer, frame);
    const size_t one = frame->more_payload < -(int)right ? 0 : right + (size_t)frame->more_payload;
    memset(out, 0, sizeof out);
    for (uint32_t i = 0; i < count; i++) {
        if (frame->message) memcpy(out + head, frame->message, right);
        entries[i] = (struct farm_wire_entry){.ring = frame->ring, .lane = (uint16_t)(frame->lane + i % PEER_LANES)};
        entries[i].n = frame->n;
        entries[i].consumed = frame->consumed;
        entries[i].version = frame->version;
        entries[i].crc = farm_crc32c(0, out + head + i * one, one) + frame->wrong_payload_crc;
    }
    struct farm_wire_header header = {.type = frame->type, .entries = count};
    header.bytes = (uint32_t)(head - FARM_WIRE_HEADER_BYTES + count * one) + (uint32_t)frame->more_bytes;
    for (int i = 0; i <= frame->twice; i++) {
        header.frame = peer->frame + (uint64_t)frame->later;
        farm_wire_put(&header, entries, false, out);
        out[FARM_WIRE_HEADER_BYTES - 1] ^= frame->wrong_crc;
        out[16] ^= frame->reserved;
        peer_put(peer, out, head + count * one);
    }
    peer->frame++;
}

static inline void peer_send_message(struct peer *peer, enum farm_wire_type type, const void *message, size_t bytes) {
    peer_send(peer, &(struct peer_frame){.type = type, .message = message, .message_bytes = bytes});
}

// ---- the handshake ----

enum peer_progress { PEER_DIALLED, PEER_OFFERED, PEER_JOINED };

static inline size_t peer_put_hello(uint32_t rings, const struct farm_wire_counters *counters, uint8_t *out,
                                    size_t room) {
    const struct farm_wire_hello hello = {.version = FARM_WIRE_VERSION,
                                          .segment_version = FARM_SEGMENT_VERSION,
                                          .session = {9},
                                          .rings = rings,
                                          .lanes = rings ? PEER_LANES : 0};
    return farm_wire_put_hello(&hello, counters, out, room);
}

static inline void peer_send_hello(struct peer *peer, uint32_t rings, const struct farm_wire_counters *counters) {
    uint8_t out[1024];
    peer_send_message(peer, FARM_WIRE_HELLO, out, peer_put_hello(rings, counters, out, sizeof out));
}

static inline void peer_send_join(struct peer *peer) {
    uint8_t out[8];
    peer_send_message(peer, FARM_WIRE_JOIN, out, farm_wire_put_join(PEER_RINGS, out, sizeof out));
}

static inline size_t peer_put_welcome(uint32_t rings, uint32_t lanes, const struct farm_wire_counters *counters,
                                      uint8_t *out, size_t room) {
    static const uint32_t actors[FARM_WIRE_RINGS_MAX];
    return farm_wire_put_welcome(rings, lanes, 8, "", actors, counters, out, room);
}

// HELLO or OFFER, then JOIN or WELCOME.
static inline void peer_connect(struct peer *peer, enum peer_progress progress) {
    static const struct farm_wire_counters counters[PEER_RINGS * PEER_LANES];
    uint8_t out[4096];
    peer_dial(peer);
    if (progress == PEER_DIALLED) return;
    if (peer->side == MEMORY_UP)
        peer_send_hello(peer, 0, NULL);
    else
        peer_send_message(peer, FARM_WIRE_OFFER, out, farm_wire_put_offer(&peer->play->world.offer, out, sizeof out));
    peer_wait(peer);
    if (progress == PEER_OFFERED) return;
    if (peer->side == MEMORY_UP)
        peer_send_join(peer);
    else
        peer_send_message(peer, FARM_WIRE_WELCOME, out,
                          peer_put_welcome(PEER_RINGS, PEER_LANES, counters, out, sizeof out));
    peer_wait(peer);
    cr_assert_not(peer_closed(peer));
}

// Sum of counters that an invalid frame must not move: steps at the learner, answers at the node.
static inline uint64_t peer_moved(const struct peer *peer) {
    const struct world *world = &peer->play->world;
    uint64_t sum = 0;
    for (uint32_t r = 0; r < PEER_RINGS; r++)
        for (uint32_t l = 0; l < PEER_LANES; l++)
            sum += peer->side == MEMORY_DOWN
                       ? farm_lane_acted(&world->actor[r].lanes[l]) + farm_lane_consumed(&world->actor[r].lanes[l])
                   : r < world->made_count ? farm_lane_produced(&world->learner[r].lanes[l])
                                           : 0;
    return sum;
}

#endif
