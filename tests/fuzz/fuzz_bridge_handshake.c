// Bytes of an unknown peer at a hub or a node, in the clear and by TLS, raw or as messages with valid lengths and
// checksums; and each message's reader alone, which must accept what its writer writes.
#include "../bridge/rewrite.h"
#include "fuzz_bridge.h"

enum { HELLO_TO_HUB, OFFER_TO_NODE, RAW_TO_HUB, RAW_TO_NODE, TLS_TO_HUB, READERS, MODES };

static void send_bytes(struct peer *peer, struct fuzz_input *input) {
    for (uint32_t i = 0; i < 20 && input->left && !peer_closed(peer); i++) {
        const int64_t put = memory_put(peer->c, peer->side, input->at, input->left);
        if (put > 0) input->at += put, input->left -= (size_t)put;
        peer_wait(peer);
        peer->in_bytes = 0;
    }
}

// The input chooses types and lengths of messages.
static void send_messages(struct peer *peer, struct fuzz_input *input) {
    for (uint32_t i = 0; i < 6 && input->left && !peer_closed(peer); i++) {
        struct {
            uint8_t type, bytes[2];
        } plan;
        fuzz_take(input, &plan, sizeof plan);
        size_t bytes = plan.bytes[0] | (size_t)(plan.bytes[1] & 15) << 8;
        if (bytes > input->left) bytes = input->left;
        char *message = fuzz_take_text(input, bytes);
        peer_send_message(peer, plan.type % FARM_WIRE_TYPE_END, message, bytes);
        free(message);
        peer_wait(peer);
        peer->in_bytes = 0;
    }
}

// What a reader accepts, it accepts again as it is written, with the same result.
static void check_readers(const uint8_t *in, size_t bytes) {
    static const enum farm_wire_type types[] = {FARM_WIRE_HELLO, FARM_WIRE_OFFER, FARM_WIRE_JOIN, FARM_WIRE_WELCOME,
                                                FARM_WIRE_REFUSE};
    static uint8_t once[FARM_WIRE_MESSAGE_BYTES_MAX], twice[FARM_WIRE_MESSAGE_BYTES_MAX];
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        struct farm_error err = {0};
        const size_t put = rewrite_message(types[t], in, bytes, once, sizeof once, &err);
        if (!put) {
            fuzz_check_refusal(err.status, &err);
            continue;
        }
        assert(put == bytes && rewrite_message(types[t], once, put, twice, sizeof twice, &err) == put);
        assert(memcmp(once, twice, put) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct fuzz_input input = {data, bytes};
    struct peer peer;
    uint8_t mode;
    fuzz_take(&input, &mode, 1);
    mode %= MODES;
    if (mode == READERS) {
        uint8_t *exact = (uint8_t *)fuzz_take_text(&input, input.left); // with a zero behind
        check_readers(exact, bytes - !!bytes);
        free(exact);
        return 0;
    }
    peer_make(&peer, mode == OFFER_TO_NODE || mode == RAW_TO_NODE ? MEMORY_DOWN : MEMORY_UP, mode == TLS_TO_HUB);
    peer_dial(&peer);
    if (mode == HELLO_TO_HUB || mode == OFFER_TO_NODE)
        send_messages(&peer, &input);
    else
        send_bytes(&peer, &input);
    fuzz_leave(&peer);
    return 0;
}
