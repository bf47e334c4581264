// What `farm bw` measures, in its order, and how long each part may take at each depth. See farm_bw.h.
#include "farm_bw.h"
#include "report/json.h"

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
    {"network", "the bridge to other machines", {0.001, 0.001, 0.001}, farm_bw_part_network},
    {"env", "ceilings for an environment's observations (--env)", {0, 0, 0}, farm_bw_part_env},
};
const size_t farm_bw_part_count = sizeof farm_bw_parts / sizeof *farm_bw_parts;

enum farm_status farm_bw_part_network(struct farm_bw_job *job, json_t *section, struct farm_error *err) {
    fprintf(job->out, "Network: not measured: no bridge in this version\n");
    farm_json_set_text(section, "not_measured", "no bridge in this version");
    return FARM_OK;
}
