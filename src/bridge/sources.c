// See sources.h.
#include "bridge/sources.h"

#include <assert.h>
#include <string.h>

enum { MAX = FARM_BRIDGE_NODES_MAX };

struct tree {
    struct farm_source_node *nodes;
    uint32_t count, fan_out;
    uint32_t children[MAX], weight[MAX]; // weight: nodes in its subtree
    bool settled[MAX];                   // reaches the learner, and stays where it is
};

static bool may_feed(const struct tree *tree, int32_t source, uint32_t n) {
    const struct farm_source_node *nodes = tree->nodes;
    return source >= 0 && (uint32_t)source < tree->count && (uint32_t)source != n && nodes[source].present &&
           nodes[source].cache && nodes[source].group == nodes[n].group &&
           !(nodes[n].avoided[source / 64] >> source % 64 & 1);
}

// Drops sources that are gone, full, or would close a circle, and counts.
static void check_sources(struct tree *tree) {
    struct farm_source_node *nodes = tree->nodes;
    for (uint32_t n = 0; n < tree->count; n++)
        if (!nodes[n].present || !may_feed(tree, nodes[n].source, n)) nodes[n].source = FARM_SOURCE_LEARNER;
    for (uint32_t n = 0; n < tree->count; n++) {
        uint32_t steps = 0;
        for (int32_t up = nodes[n].source; up >= 0 && steps <= tree->count; up = nodes[up].source) steps++;
        if (nodes[n].source < 0) continue;
        if (steps > tree->count || tree->children[nodes[n].source] == tree->fan_out)
            nodes[n].source = FARM_SOURCE_LEARNER;
        else
            tree->children[nodes[n].source]++;
    }
    for (uint32_t n = 0; n < tree->count; n++)
        for (int32_t up = (int32_t)n; up >= 0 && nodes[n].present; up = nodes[up].source) tree->weight[up]++;
}

// The next subtree that hangs at the learner and is not settled: caches first, then the largest.
static int32_t next_root(const struct tree *tree) {
    const struct farm_source_node *nodes = tree->nodes;
    int32_t best = -1;
    for (uint32_t n = 0; n < tree->count; n++) {
        if (!nodes[n].present || tree->settled[n] || nodes[n].source >= 0) continue;
        const bool better =
            best < 0 || (nodes[n].cache != nodes[best].cache ? nodes[n].cache : tree->weight[n] > tree->weight[best]);
        if (better) best = (int32_t)n;
    }
    return best;
}

// The settled cache closest to the learner that has room for n; FARM_SOURCE_LEARNER: none.
static int32_t closest_room(const struct tree *tree, uint32_t n) {
    int32_t best = FARM_SOURCE_LEARNER;
    for (uint32_t at = 0; at < tree->count; at++)
        if (tree->settled[at] && may_feed(tree, (int32_t)at, n) && tree->children[at] < tree->fan_out &&
            (best < 0 || tree->nodes[at].depth < tree->nodes[best].depth))
            best = (int32_t)at;
    return best;
}

static void settle(struct tree *tree, uint32_t root) {
    struct farm_source_node *nodes = tree->nodes;
    for (uint32_t n = 0; n < tree->count; n++) {
        uint32_t depth = 0;
        bool below = false;
        for (int32_t at = (int32_t)n; at >= 0 && nodes[n].present; at = nodes[at].source) {
            below |= at == (int32_t)root;
            depth += nodes[at].source >= 0;
        }
        if (below) nodes[n].depth = depth, tree->settled[n] = true;
    }
}

void farm_sources_assign(struct farm_source_node *nodes, uint32_t count, uint32_t fan_out) {
    struct tree tree = {.nodes = nodes, .count = count, .fan_out = fan_out};
    int32_t root;
    uint32_t fed = 0;
    assert(count <= MAX && fan_out);
    check_sources(&tree);
    while ((root = next_root(&tree)) >= 0) {
        const int32_t source = fed < fan_out ? FARM_SOURCE_LEARNER : closest_room(&tree, (uint32_t)root);
        nodes[root].source = source;
        if (source >= 0) tree.children[source]++;
        fed += source < 0;
        settle(&tree, (uint32_t)root);
    }
}
