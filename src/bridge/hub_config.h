// What a hub (hub.h) is made from. Plain data; the process that runs it fills it in.
#ifndef FARM_BRIDGE_HUB_CONFIG_H
#define FARM_BRIDGE_HUB_CONFIG_H

#include "bridge/engine.h"
#include "bridge/key.h"
#include "bridge/stats.h"
#include "bridge/wire.h"

struct farm_board;

struct farm_hub_config {
    int listener;     // the caller's listening socket, non-blocking; -1: none (memory engine)
    int control;      // to the supervisor (control.h)
    int wake;         // eventfd, non-blocking: farm_learner_notify writes to it
    const int *bells; // [bell_count] the shards' eventfds
    uint32_t bell_count;
    const struct farm_key *key;             // the learner's; borrowed; NULL: in the clear
    const struct farm_key_names *withdrawn; // more come by control.h; NULL: none
    const struct farm_wire_offer *offer;    // borrowed; LOCAL: without its net
    struct farm_board *board; // LOCAL: the learner's, with its net and versions; borrowed; NULL: nodes get neither
    uint32_t fan_out;         // nodes that take versions from it (bridge/sources.h); 0: 2
    struct farm_bridge_stats *stats;   // may be NULL
    const char *engine;                // uring, poll, auto
    const struct farm_engine_ops *ops; // instead of `engine`: the memory engine
    void *ops_context;
    uint64_t spin_ns; // before sleeping
};

#endif
