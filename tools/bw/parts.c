// What `farm bw` measures, in its order, and how long each part may take at each depth. See farm_bw.h.
#include "base/json.h"
#include "tools/bridge/bridge.h"
#include "tools/bw/bw.h"

// Seconds: quick, summary, full.
const struct farm_bw_part farm_bw_parts[] = {
    {"memory", "kernels: read, write, copy, scale, add, triad", {4, 20, 40}, farm_bw_part_memory},
    {"latency", "idle latency and the cache ladder", {1, 5, 15}, farm_bw_part_latency},
    {"matrix", "node by node, latency and bandwidth", {0.6, 2, 10}, farm_bw_part_matrix},
    {"mix", "peak by reads to writes", {0, 2.5, 8}, farm_bw_part_mix},
    {"loaded", "latency under load", {0, 3, 20}, farm_bw_part_loaded},
    {"cores", "bandwidth by number of cores", {0, 4, 8}, farm_bw_part_cores},
    {"handoff", "a cache line from core to core", {0.3, 1, 6}, farm_bw_part_handoff},
    {"pages", "4 KiB, transparent, 2 MiB and 1 GiB pages", {0, 4, 12}, farm_bw_part_pages},
    {"tlb", "reach of the TLB", {0, 0, 10}, farm_bw_part_tlb},
    {"ring", "our own lanes: hops, steps by payload", {0.8, 3, 20}, farm_bw_part_ring},
    // Behind all that fork: it brings CUDA into the process. For each GPU; a moment where there is none.
    {"gpu", "host to GPU and back, node by GPU", {0.5, 3, 15}, farm_bw_part_gpu},
    {"network", "the bridge to another machine (--network)", {1, 5, 15}, farm_bw_part_network},
    {"env", "ceilings for an environment's observations (--env)", {0, 0, 0}, farm_bw_part_env},
};
const size_t farm_bw_part_count = sizeof farm_bw_parts / sizeof *farm_bw_parts;

enum farm_status farm_bw_part_network(struct farm_bw_job *job, json_t *section, struct farm_error *err) {
    static const struct farm_bw_unit ns_of_us = {1e3, "ns", false};
    static struct farm_measure_result result;
    if (!job->network.address) {
        fprintf(job->out,
                "Network: not measured: --network ADDR:PORT --key FILE, where `farm bridge bench --listen` is\n");
        farm_json_set_text(section, "not_measured", "no --network ADDR:PORT");
        return FARM_OK;
    }
    struct farm_measure_config config = job->network;
    config.seconds = job->setup.seconds < FARM_MEASURE_SECONDS_MAX ? job->setup.seconds : FARM_MEASURE_SECONDS_MAX;
    config.stop = farm_bw_stop;
    config.context = job;
    enum farm_status status = farm_measure_run(&config, &result, err);
    if (status) return status;
    fprintf(job->out, "Network, to %s: ", config.address);
    farm_bridge_bench_tell(&result, job->out, section);
    for (int way = 0; way < FARM_MEASURE_WAYS; way++) {
        const char *name = way == FARM_MEASURE_BRIDGE ? "network.bridge" : "network.sockets";
        const struct farm_bw_figure trip = farm_bridge_bench_figure(&result, FARM_MEASURE_ROUND_TRIP_US, way),
                                    rate = farm_bridge_bench_figure(&result, FARM_MEASURE_BYTES_PER_S, way);
        farm_bw_add(job, &trip, &ns_of_us, "%s.round_trip", name);
        farm_bw_add(job, &rate, &farm_bw_gb_per_s, "%s.rate", name);
    }
    return FARM_OK;
}
