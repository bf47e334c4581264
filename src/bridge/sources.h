// Which node takes versions from which: a tree whose root is the learner and whose inner nodes are caches. Pure: no
// I/O, no clock, no allocation. Used by the learner's bridge (hub.c), one tree for each bridge process.
#ifndef FARM_BRIDGE_SOURCES_H
#define FARM_BRIDGE_SOURCES_H

#include "bridge/stats.h"
#include "bridge/wire.h"

enum { FARM_SOURCE_LEARNER = -1 };

struct farm_source_node {
    bool present;   // it takes versions
    uint64_t group; // and only from nodes of its group: those with the same key
    // Where it passes them on; "": it does not. out: depth, 0 if the learner feeds it.
    struct farm_wire_source cache;
    int32_t source;                               // in, out: number of its source
    uint64_t avoided[FARM_BRIDGE_NODES_MAX / 64]; // bitmap: sources that have failed it
};

// Gives each node a source: the learner feeds `fan_out` nodes, caches first, and each cache `fan_out` others, as close
// to the learner as there is room. Keeps sources that are still valid while the learner does not feed too many. Without
// caches, or if all others have failed a node, the learner feeds more. count <= FARM_BRIDGE_NODES_MAX, fan_out >= 1.
void farm_sources_assign(struct farm_source_node *nodes, uint32_t count, uint32_t fan_out);

#endif
