// See sources.h.
#include "bridge/sources.h"

#include <assert.h>

static bool may_feed(const struct farm_source_node *nodes, int32_t source, uint32_t n) {
    return source >= 0 && nodes[source].present && nodes[source].cache.address[0] &&
           nodes[source].group == nodes[n].group && !(nodes[n].avoided[source / 64] >> source % 64 & 1);
}

// The node above n that the learner feeds; *depth: nodes from there to n.
static uint32_t top_of(const struct farm_source_node *nodes, uint32_t n, uint32_t *depth) {
    for (*depth = 0; nodes[n].source >= 0; ++*depth) n = (uint32_t)nodes[n].source;
    return n;
}

// The cache closest to the learner, below one of the nodes that are settled, that has room for n.
static int32_t find_room(const struct farm_source_node *nodes, uint32_t count, uint32_t fan_out, const bool *settled,
                         uint32_t n) {
    int32_t best = FARM_SOURCE_LEARNER;
    uint32_t children[FARM_BRIDGE_NODES_MAX] = {0}, least = UINT32_MAX, depth;
    for (uint32_t i = 0; i < count; i++)
        if (nodes[i].source >= 0) children[nodes[i].source]++;
    for (uint32_t i = 0; i < count; i++)
        if (may_feed(nodes, (int32_t)i, n) && children[i] < fan_out && settled[top_of(nodes, i, &depth)] &&
            depth < least)
            best = (int32_t)i, least = depth;
    return best;
}

void farm_sources_assign(struct farm_source_node *nodes, uint32_t count, uint32_t fan_out) {
    bool settled[FARM_BRIDGE_NODES_MAX] = {0}; // nodes that the learner feeds, or fed, in the order of their choice
    uint32_t fed = 0;
    assert(count <= FARM_BRIDGE_NODES_MAX && fan_out);
    for (uint32_t n = 0; n < count; n++)
        if (!nodes[n].present || !may_feed(nodes, nodes[n].source, n)) nodes[n].source = FARM_SOURCE_LEARNER;
    for (int caches = 1; caches >= 0; caches--)
        for (uint32_t n = 0; n < count; n++) {
            if (!nodes[n].present || nodes[n].source >= 0 || settled[n] || (nodes[n].cache.address[0] != 0) != caches)
                continue;
            if (fed >= fan_out) nodes[n].source = find_room(nodes, count, fan_out, settled, n);
            fed += nodes[n].source < 0;
            settled[n] = true;
        }
    for (uint32_t n = 0; n < count; n++) top_of(nodes, n, &nodes[n].cache.depth);
}
