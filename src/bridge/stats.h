// Figures of a run's remote nodes, in a small shared segment that outlives the bridge. The bridge writes; the
// supervisor reads for the progress line, metrics.jsonl, the final JSON and `farm bridge status`. One row for each
// session, by its place (on a node: row 0); relaxed stores of single words (base/atomics.h).
#ifndef FARM_BRIDGE_STATS_H
#define FARM_BRIDGE_STATS_H

#include <stdint.h>

enum { FARM_BRIDGE_NODES_MAX = 256 };
enum farm_bridge_node_state { FARM_NODE_ABSENT, FARM_NODE_CONNECTED };

struct farm_bridge_node_stats {
    uint64_t state;      // enum farm_bridge_node_state
    uint64_t lane_steps; // published (node: answered); then environment steps of these
    uint64_t steps;
    uint64_t bytes_in, bytes_out; // on the wire, under TLS the records
    uint64_t copied_bytes;        // within user space, by the bridge
    uint64_t round_trip_ns;       // by heartbeats, smoothed; 0: unknown
    uint64_t connections;         // in this session; one more than its reconnects
    uint64_t reserved[8];
};
struct farm_bridge_stats {
    uint64_t frames, system_calls, cpu_ns; // counted by the bridge's thread
    uint64_t uring;                        // 1: the engine is io_uring, 0: poll
    uint64_t reserved[12];
    struct farm_bridge_node_stats node[FARM_BRIDGE_NODES_MAX];
};

#endif
