// Who feeds whom: whatever joins, leaves and fails, every node hangs below the learner, and nothing feeds too many.
#include "bridge/sources.h"

#include <criterion/criterion.h>
#include <string.h>

#include "../support/rings.h"

enum { NODES = FARM_BRIDGE_NODES_MAX, LEARNER = FARM_SOURCE_LEARNER };

static struct farm_source_node nodes[NODES], before[NODES];

static void clear(void) {
    memset(nodes, 0, sizeof nodes);
}

TestSuite(sources, .init = clear, .timeout = 30);

static uint32_t children_of(int32_t source) {
    uint32_t count = 0;
    for (uint32_t n = 0; n < NODES; n++) count += nodes[n].present && nodes[n].source == source;
    return count;
}

static void join(uint32_t n, bool cache) {
    memset(&nodes[n], 0, sizeof nodes[n]);
    nodes[n].present = true;
    nodes[n].cache.address[0] = cache;
    nodes[n].source = LEARNER;
}

// Nodes that have another source than before.
static uint32_t assign(uint32_t fan_out) {
    uint32_t moved = 0;
    memcpy(before, nodes, sizeof nodes);
    farm_sources_assign(nodes, NODES, fan_out);
    for (uint32_t n = 0; n < NODES; n++) moved += nodes[n].present && nodes[n].source != before[n].source;
    return moved;
}

static void check_tree(uint32_t fan_out) {
    for (uint32_t n = 0; n < NODES; n++) {
        uint32_t depth = 0;
        if (!nodes[n].present) continue;
        for (int32_t at = nodes[n].source; at != LEARNER; at = nodes[at].source, depth++) {
            cr_assert(nodes[at].present && nodes[at].cache.address[0] && depth <= NODES, "node %u", n);
            cr_assert_eq(nodes[at].group, nodes[n].group);
        }
        cr_assert_eq(nodes[n].cache.depth, depth, "node %u", n);
        cr_assert(nodes[n].source < 0 || !(nodes[n].avoided[nodes[n].source / 64] >> nodes[n].source % 64 & 1));
        if (nodes[n].cache.address[0]) cr_assert_leq(children_of((int32_t)n), fan_out);
    }
}

Test(sources, caches_alone_make_a_full_tree_that_stays_as_it_is) {
    for (uint32_t n = 0; n < 62; n++) join(n, true);
    assign(2);
    check_tree(2);
    uint32_t at_depth[6] = {0};
    for (uint32_t n = 0; n < 62; n++) at_depth[nodes[n].cache.depth]++;
    for (uint32_t d = 0; d < 5; d++) cr_expect_eq(at_depth[d], 2u << d);
    cr_expect_eq(assign(2), 0);
    const uint32_t children = children_of(2);
    nodes[2].present = false;
    cr_expect_leq(assign(2), children, "only those that have lost their source move");
    check_tree(2);
}

Test(sources, the_learner_feeds_more_only_without_caches) {
    for (uint32_t n = 0; n < 10; n++) join(n, false);
    assign(3);
    cr_expect_eq(children_of(LEARNER), 10);
    for (uint32_t n = 10; n < 14; n++) join(n, true);
    assign(3);
    check_tree(3);
    cr_expect_eq(children_of(LEARNER), 3);
    for (uint32_t n = 10; n < 13; n++) cr_expect_eq(nodes[n].source, LEARNER, "caches come first");
}

Test(sources, a_node_gets_no_source_that_failed_it_nor_one_of_another_key) {
    for (uint32_t n = 0; n < 8; n++) join(n, n < 4);
    for (uint32_t n = 0; n < 4; n++) nodes[7].avoided[0] |= 1ull << n;
    nodes[6].group = 5;
    assign(2);
    check_tree(2);
    cr_expect_eq(nodes[6].source, LEARNER);
    cr_expect_eq(nodes[7].source, LEARNER);
    cr_expect_eq(children_of(LEARNER), 4);
}

Test(sources, any_history_leaves_a_tree) {
    uint64_t random = 7;
    for (int round = 0; round < 3000; round++) {
        const uint32_t n = (uint32_t)(random_next(&random) % NODES), fan_out = 1 + (uint32_t)round / 1000;
        const uint64_t what = random_next(&random) % 4;
        if (what == 0) nodes[n].present = false;
        if (what == 1 && nodes[n].source >= 0) nodes[n].avoided[nodes[n].source / 64] |= 1ull << nodes[n].source % 64;
        if (what >= 2 && !nodes[n].present) join(n, random_next(&random) % 2), nodes[n].group = n % 2;
        assign(fan_out);
        check_tree(fan_out);
    }
}
