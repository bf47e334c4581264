// A stranger's bytes: before a hub or a node knows it, in the clear and by TLS, raw or as messages with right lengths
// and checksums; and each message's reader by itself, which takes what it writes itself and nothing else.
#include "fuzz_bridge.h"

enum { HELLO_TO_HUB, OFFER_TO_NODE, RAW_TO_HUB, RAW_TO_NODE, TLS_TO_HUB, READERS, MODES };

static void say_bytes(struct peer *peer, struct fuzz_input *input) {
    for (uint32_t i = 0; i < 20 && input->left && !peer_closed(peer); i++) {
        const int64_t put = memory_put(peer->c, peer->side, input->at, input->left);
        if (put > 0) input->at += put, input->left -= (size_t)put;
        peer_wait(peer);
        peer->in_bytes = 0;
    }
}

// Messages of types and lengths that the input chooses.
static void say_messages(struct peer *peer, struct fuzz_input *input) {
    for (uint32_t i = 0; i < 6 && input->left && !peer_closed(peer); i++) {
        struct {
            uint8_t type, bytes[2];
        } plan;
        fuzz_take(input, &plan, sizeof plan);
        size_t bytes = plan.bytes[0] | (size_t)(plan.bytes[1] & 15) << 8;
        if (bytes > input->left) bytes = input->left;
        char *message = fuzz_take_text(input, bytes);
        peer_say_message(peer, plan.type % FARM_WIRE_TYPE_END, message, bytes);
        free(message);
        peer_wait(peer);
        peer->in_bytes = 0;
    }
}

static void read_offer(const uint8_t *in, size_t bytes) {
    static struct farm_wire_offer offer, again;
    static uint8_t out[FARM_WIRE_MESSAGE_BYTES_MAX];
    struct farm_error err = {0};
    const enum farm_status status = farm_wire_get_offer(in, bytes, &offer, &err);
    if (status) {
        fuzz_check_refusal(status, &err);
        return;
    }
    const size_t put = farm_wire_put_offer(&offer, out, sizeof out);
    assert(put == bytes && farm_wire_get_offer(out, put, &again, &err) == FARM_OK);
    struct farm_ring_layout layout;
    assert(farm_ring_layout_make(&offer.spec, &layout, &err) == FARM_OK);
}

static void read_hello(const uint8_t *in, size_t bytes) {
    struct farm_wire_hello hello;
    struct farm_wire_counters *counters;
    struct farm_error err = {0};
    const enum farm_status status = farm_wire_get_hello(in, bytes, &hello, &err);
    if (status) {
        fuzz_check_refusal(status, &err);
        return;
    }
    const size_t lanes = (size_t)hello.rings * hello.lanes;
    uint8_t *out = malloc(bytes);
    counters = calloc(lanes + 1, sizeof *counters);
    assert(out && counters);
    for (size_t i = 0; i < lanes; i++) farm_wire_get_counters(hello.counters, i, &counters[i]);
    assert(farm_wire_put_hello(&hello, counters, out, bytes) == bytes);
    free(out);
    free(counters);
}

static void read_rest(const uint8_t *in, size_t bytes) {
    struct farm_wire_welcome welcome;
    struct farm_wire_counters counters;
    enum farm_wire_reason reason;
    char text[FARM_WIRE_TEXT_BYTES];
    uint32_t rings;
    if (!farm_wire_get_welcome(in, bytes, &welcome, NULL)) {
        assert(welcome.counters == welcome.actors + welcome.rings * sizeof(uint32_t));
        farm_wire_get_counters(welcome.counters, (size_t)welcome.rings * welcome.lanes - 1, &counters);
    }
    if (!farm_wire_get_join(in, bytes, &rings, NULL)) assert(rings >= 1 && rings <= FARM_WIRE_RINGS_MAX);
    if (!farm_wire_get_reason(in, bytes, &reason, text, NULL)) assert(memchr(text, 0, sizeof text));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct fuzz_input input = {data, bytes};
    struct peer peer;
    uint8_t mode;
    fuzz_take(&input, &mode, 1);
    mode %= MODES;
    if (mode == READERS) {
        uint8_t *exact = (uint8_t *)fuzz_take_text(&input, input.left); // and a byte, which is 0
        read_offer(exact, bytes - !!bytes);
        read_hello(exact, bytes - !!bytes);
        read_rest(exact, bytes - !!bytes);
        free(exact);
        return 0;
    }
    peer_make(&peer, mode == OFFER_TO_NODE || mode == RAW_TO_NODE ? MEMORY_DOWN : MEMORY_UP, mode == TLS_TO_HUB);
    peer_dial(&peer);
    if (mode == HELLO_TO_HUB || mode == OFFER_TO_NODE)
        say_messages(&peer, &input);
    else
        say_bytes(&peer, &input);
    fuzz_leave(&peer);
    return 0;
}
