// Shared by the bridge's fuzz targets: the tests' world and peer (tests/bridge) without Criterion, and the invariants
// of every ring after any input.
#ifndef FARM_TESTS_FUZZ_BRIDGE_H
#define FARM_TESTS_FUZZ_BRIDGE_H

#define cr_assert(c, ...)          assert(c)
#define cr_assert_not(c, ...)      assert(!(c))
#define cr_assert_eq(a, b, ...)    assert((a) == (b))
#define cr_assert_lt(a, b, ...)    assert((a) < (b))
#define cr_assert_geq(a, b, ...)   assert((a) >= (b))
#define cr_assert_leq(a, b, ...)   assert((a) <= (b))
#define cr_assert_not_null(a, ...) assert(a)

#include "../bridge/peer.h"
#include "fuzz.h"

// On both sides: only published steps are answered, only answered ones released, and counters are in bounds.
static inline void fuzz_check_rings(const struct world *world) {
    for (uint32_t r = 0; r < world->made_count; r++) assert(farm_ring_counters_sound(&world->learner[r], NULL));
    for (uint32_t r = 0; r < world->rings; r++) assert(farm_ring_counters_sound(&world->actor[r], NULL));
}

// The peer leaves. After any input a hub still answers another HELLO.
static inline void fuzz_leave(struct peer *peer) {
    peer_hang_up(peer);
    fuzz_check_rings(&peer->play->world);
    if (peer->side == MEMORY_UP && !peer->play->world.hub_config.key) {
        peer->play->now_ns += 1000000000; // a new second: the limit of handshakes starts again
        peer_dial(peer);
        peer_send_hello(peer, 0, NULL);
        peer_wait(peer);
        assert(peer->in_bytes > farm_wire_head_bytes(1) && peer->in[4] == FARM_WIRE_OFFER);
        peer_hang_up(peer);
    }
    play_free(peer->play);
}

#endif
