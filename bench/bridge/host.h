// The supervisor's part of the learner's side, for benchmarks: makes rings on the hub's request, sends a restarted hub
// its sessions, writes generations. Each node gets the same number of rings.
#ifndef BENCH_BRIDGE_HOST_H
#define BENCH_BRIDGE_HOST_H

#include <netinet/in.h>

#include "bridge/hub.h"
#include "net.h"
#include "ring/ring.h"

enum { BENCH_SESSIONS_MAX = 64 };

struct bench_host {
    struct farm_wire_offer offer;
    struct farm_bridge_stats *stats;
    struct farm_hub_config config; // for the hub; the caller completes it
    struct sockaddr_in address;
    int control, hub_control, wake, bell;
    uint32_t rings_each, session_count;
    uint8_t session[BENCH_SESSIONS_MAX][FARM_WIRE_ID_BYTES];
    struct farm_ring *made, *view; // [BENCH_SESSIONS_MAX][rings_each]; view: the learner's
};

// The keys that all benchmarks use.
extern const struct farm_key bench_key;
const struct farm_key *bench_node_key(void);

// An offer with one observation field of `pixels` bytes.
void bench_offer_make(uint32_t lanes, uint32_t width, uint32_t pixels, uint32_t steps, struct farm_wire_offer *offer);

// host->offer must be filled in. Listens at the learner's address, at any port.
void bench_host_make(struct bench_host *host, const struct bench_net *net, uint32_t rings_each, bool sealed,
                     const char *engine);
void bench_host_listen(struct bench_host *host); // also again, at the same port
// Serves the hub's requests. Returns whether there were any.
bool bench_host_serve(struct bench_host *host);
// Sends all sessions to a new hub.
void bench_host_send_sessions(struct bench_host *host);

#endif
