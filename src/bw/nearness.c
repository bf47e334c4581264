// See nearness.h.
#include "bw/nearness.h"

const char *farm_bw_nearness_name(enum farm_bw_nearness nearness) {
    static const char *const names[FARM_BW_NEARNESSES] = {"same core", "same last-level cache", "same node",
                                                          "same socket", "other socket"};
    return names[nearness];
}

enum farm_bw_nearness farm_bw_nearness_of(const struct farm_machine *machine, int cpu_a, int cpu_b) {
    const struct farm_cpu *a = farm_machine_cpu(machine, cpu_a), *b = farm_machine_cpu(machine, cpu_b);
    if (!a || !b || a->socket != b->socket) return FARM_BW_OTHER_SOCKET;
    if (a->core == b->core) return FARM_BW_SAME_CORE;
    if (a->l3 >= 0 && a->l3 == b->l3) return FARM_BW_SAME_CACHE;
    return a->node == b->node ? FARM_BW_SAME_NODE : FARM_BW_SAME_SOCKET;
}

static struct farm_bw_pair pair_of(const struct farm_machine *machine, const struct farm_cpu *actor,
                                   const struct farm_cpu *learner) {
    return (struct farm_bw_pair){.actor_cpu = actor->cpu,
                                 .learner_cpu = learner->cpu,
                                 .node = machine->node_count > 1 ? farm_machine_memory_node(machine, actor->node) : -1,
                                 .nearness = farm_bw_nearness_of(machine, actor->cpu, learner->cpu)};
}

size_t farm_bw_pairs_by_nearness(const struct farm_machine *machine, struct farm_bw_pair pairs[FARM_BW_NEARNESSES]) {
    const struct farm_cpu *first = NULL, *partner[FARM_BW_NEARNESSES] = {NULL};
    for (int i = 0; i < machine->cpu_count; i++) {
        const struct farm_cpu *cpu = &machine->cpu[i];
        if (!farm_bitmap_has(&machine->allowed, cpu->cpu)) continue;
        if (!first) {
            first = cpu;
            continue;
        }
        const enum farm_bw_nearness near = farm_bw_nearness_of(machine, first->cpu, cpu->cpu);
        if (!partner[near]) partner[near] = cpu;
    }
    size_t count = 0;
    for (int near = 0; near < FARM_BW_NEARNESSES; near++)
        if (partner[near]) pairs[count++] = pair_of(machine, first, partner[near]);
    return count;
}

size_t farm_bw_pairs_apart(const struct farm_machine *machine, struct farm_bw_pair *pairs, size_t most) {
    const struct farm_cpu *waiting = NULL, *before = NULL;
    size_t count = 0;
    for (int i = 0; i < machine->cpu_count && count < most; i++) {
        const struct farm_cpu *cpu = &machine->cpu[i];
        if (!farm_bitmap_has(&machine->allowed, cpu->cpu)) continue;
        if (before && before->core == cpu->core) continue;
        before = cpu;
        if (waiting) pairs[count++] = pair_of(machine, waiting, cpu);
        waiting = waiting ? NULL : cpu;
    }
    return count;
}
