// Frames of a peer that has joined, at a hub or at a node. An input is a list of frames by their fields; numbers,
// lengths and checksums are valid unless a field spoils them, so that the code behind them is reached. Between frames
// the learner answers and publishes, and actors continue. After any input the rings' counters are sound.
#include "fuzz_bridge.h"

struct plan { // one frame of an input
    uint8_t type, spoil, entries, ring, lane, n, consumed, payload;
};
enum {
    SPOIL_CRC = 1,
    SPOIL_PAYLOAD_CRC = 2,
    SPOIL_NUMBER = 4,
    SPOIL_TWICE = 8,
    SPOIL_RESERVED = 16,
    SPOIL_LENGTH = 32,
    RAW = 64,
    GO_ON = 128
};

// Small and very large numbers.
static uint64_t widen(uint8_t byte) {
    return byte < 224 ? byte % 32 : UINT64_MAX - (byte & 15);
}

static void publish_next(struct world *world, uint32_t r, struct farm_lane *lane) {
    if (!farm_lane_actor_answered(lane) || !farm_lane_actor_can_write(lane)) return;
    farm_lane_actor_publish(lane);
    farm_actor_notify(&world->actor[r], world->node_bell);
}

static void answer_next(struct farm_lane *lane) {
    const uint64_t n = farm_lane_acted(lane);
    if (n == farm_lane_produced(lane)) return;
    farm_lane_answer(lane, n);
    farm_lane_release(lane, n + 1);
}

static void run_other_side(struct peer *peer) {
    struct world *world = &peer->play->world;
    for (uint32_t r = 0; r < PEER_RINGS; r++)
        for (uint32_t l = 0; l < PEER_LANES; l++)
            if (peer->side == MEMORY_DOWN)
                publish_next(world, r, &world->actor[r].lanes[l]);
            else
                answer_next(&world->learner[r].lanes[l]);
    if (peer->side == MEMORY_UP) world_publish_version(world);
}

static void send_plan(struct peer *peer, const struct plan *plan, struct fuzz_input *input) {
    static const enum farm_wire_type common[2] = {FARM_WIRE_STEPS, FARM_WIRE_ANSWERS};
    struct peer_frame frame = {.type = plan->type < 128 ? common[peer->side == MEMORY_DOWN] : plan->type % 20,
                               .entries = plan->entries % (FARM_WIRE_ENTRIES_MAX + 2),
                               .ring = plan->ring < 192 ? plan->ring % PEER_RINGS : (uint16_t)(plan->ring << 8),
                               .lane = plan->lane < 192 ? plan->lane % PEER_LANES : (uint16_t)(plan->lane << 8),
                               .n = widen(plan->n),
                               .consumed = widen(plan->consumed),
                               .version = widen(plan->lane),
                               .more_payload = plan->payload % 8 == 7 ? (int8_t)plan->payload / 8 : 0,
                               .more_bytes = plan->spoil & SPOIL_LENGTH ? (int8_t)plan->payload * 4099 : 0,
                               .later = plan->spoil & SPOIL_NUMBER ? 1 : 0,
                               .twice = plan->spoil & SPOIL_TWICE,
                               .wrong_crc = plan->spoil & SPOIL_CRC,
                               .wrong_payload_crc = plan->spoil & SPOIL_PAYLOAD_CRC,
                               .reserved = plan->spoil & SPOIL_RESERVED};
    uint8_t raw[256] = {0};
    if (plan->spoil & RAW) { // the input's bytes as a message
        fuzz_take(input, raw, plan->payload);
        frame.message = raw;
        frame.message_bytes = plan->payload;
        frame.more_payload = 0;
        frame.entries = 1;
    }
    peer_send(peer, &frame);
    for (int i = 0; i < 3; i++) peer_turn(peer, 1000000);
    peer_receive(peer);
    peer->in_bytes = 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct fuzz_input input = {data, bytes};
    struct plan plan;
    struct peer peer;
    uint8_t mode;
    fuzz_take(&input, &mode, 1);
    peer_make_as(&peer, mode & 1 ? MEMORY_DOWN : MEMORY_UP, false,
                 mode & 2 ? FARM_ANSWERS_LOCAL : FARM_ANSWERS_CENTRAL);
    peer.play->net.most = mode & 4 ? 13 : 0;
    peer_connect(&peer, PEER_JOINED);
    for (uint32_t i = 0; i < 40 && input.left && !peer_closed(&peer); i++) {
        fuzz_take(&input, &plan, sizeof plan);
        if (plan.spoil & GO_ON) run_other_side(&peer);
        send_plan(&peer, &plan, &input);
        fuzz_check_rings(&peer.play->world);
    }
    fuzz_leave(&peer);
    return 0;
}
