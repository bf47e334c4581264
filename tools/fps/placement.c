// See placement.h.
#include "tools/fps/placement.h"

#include <errno.h>
#include <numaif.h>
#include <string.h>

#include "base/log.h"

const char *const farm_fps_numa_names[FARM_FPS_NUMAS] = {"bind", "interleave", "remote", "off"};

bool farm_fps_numa_find(const char *name, enum farm_fps_numa *numa) {
    int i = 0;
    while (i < FARM_FPS_NUMAS && strcmp(name, farm_fps_numa_names[i]) != 0) i++;
    *numa = (enum farm_fps_numa)i;
    return i < FARM_FPS_NUMAS;
}

static bool has_memory(const struct farm_node *node) {
    return node->usable && node->total_bytes;
}

static int farthest_node(const struct farm_machine *machine, int from) {
    int best = from;
    for (int i = 0; i < machine->node_count; i++) {
        const int node = machine->node[i].node;
        if (!has_memory(&machine->node[i])) continue;
        if (farm_machine_distance(machine, from, node) > farm_machine_distance(machine, from, best)) best = node;
    }
    return best;
}

void farm_fps_place(const struct farm_run_plan *plan, enum farm_fps_numa numa) {
    for (int a = 0; a < plan->placement->actor_count && numa != FARM_FPS_NUMA_BIND; a++) {
        struct farm_plan_actor *actor = &plan->placement->actor[a];
        const bool known = numa == FARM_FPS_NUMA_REMOTE && actor->cpu_node >= 0;
        actor->memory_node = known ? farthest_node(plan->machine, actor->cpu_node) : -1;
    }
}

void farm_fps_interleave(const struct farm_machine *machine, bool on) {
    unsigned long nodes[FARM_NODES_MAX / 8] = {0};
    const size_t bits = 8 * sizeof *nodes;
    for (int i = 0; i < machine->node_count; i++) {
        const size_t node = (size_t)machine->node[i].node;
        if (has_memory(&machine->node[i]) && node < 8 * sizeof nodes) nodes[node / bits] |= 1ul << node % bits;
    }
    if (set_mempolicy(on ? MPOL_INTERLEAVE : MPOL_DEFAULT, on ? nodes : NULL, on ? 8 * sizeof nodes : 0) < 0)
        farm_log_warn("set_mempolicy: %s: the kernel places the rings", strerror(errno));
}
