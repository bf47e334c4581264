// What CPUs share, and pairs of them, on synthetic machines.
#include <criterion/criterion.h>

#include "bw/nearness.h"
#include "here.h"

Test(bw, a_pair_for_each_nearness_that_the_machine_has) {
    static const enum farm_bw_nearness wanted[] = {FARM_BW_SAME_CORE, FARM_BW_SAME_CACHE, FARM_BW_SAME_NODE,
                                                   FARM_BW_OTHER_SOCKET};
    struct farm_bw_pair pairs[FARM_BW_NEARNESSES];
    read_machine("pack:2 [numa(memory=1GB)] l3:2 core:2 pu:2");
    const size_t count = farm_bw_pairs_by_nearness(&machine, pairs);
    cr_assert_eq(count, 4);
    for (size_t p = 0; p < count; p++) {
        const struct farm_cpu *actor = farm_machine_cpu(&machine, pairs[p].actor_cpu),
                              *learner = farm_machine_cpu(&machine, pairs[p].learner_cpu);
        cr_assert_eq(pairs[p].nearness, wanted[p]);
        cr_assert_neq(actor->cpu, learner->cpu);
        cr_assert_eq(pairs[p].node, actor->node, "the ring lies on its actor's node");
        cr_assert_eq(actor->core == learner->core, wanted[p] == FARM_BW_SAME_CORE);
        cr_assert_eq(actor->socket != learner->socket, wanted[p] == FARM_BW_OTHER_SOCKET);
    }
}

Test(bw, only_cpus_that_this_process_may_use_are_paired) {
    struct farm_bw_pair pairs[FARM_BW_NEARNESSES];
    read_machine("pack:1 [numa(memory=1GB)] l3:1 core:4 pu:1");
    memset(&machine.allowed, 0, sizeof machine.allowed);
    farm_bitmap_set(&machine.allowed, 1);
    cr_assert_eq(farm_bw_pairs_by_nearness(&machine, pairs), 0, "one CPU makes no pair");
    cr_assert_eq(farm_bw_pairs_apart(&machine, pairs, FARM_BW_NEARNESSES), 0);
    farm_bitmap_set(&machine.allowed, 3);
    cr_assert_eq(farm_bw_pairs_by_nearness(&machine, pairs), 1);
    cr_assert(pairs[0].actor_cpu == 1 && pairs[0].learner_cpu == 3);
    cr_assert_eq(pairs[0].node, -1, "one node: anywhere");
}

Test(bw, pairs_apart_use_each_core_once) {
    struct farm_bw_pair pairs[16];
    uint64_t used = 0;
    read_machine("pack:2 [numa(memory=1GB)] l3:1 core:5 pu:2");
    const size_t count = farm_bw_pairs_apart(&machine, pairs, 16);
    cr_assert_eq(count, 5, "ten cores, %zu pairs", count);
    for (size_t p = 0; p < count; p++) {
        const int cores[2] = {farm_machine_cpu(&machine, pairs[p].actor_cpu)->core,
                              farm_machine_cpu(&machine, pairs[p].learner_cpu)->core};
        for (int i = 0; i < 2; i++) {
            cr_assert_not(used >> cores[i] & 1, "core %d has two sides", cores[i]);
            used |= 1ull << cores[i];
        }
    }
    cr_assert_eq(farm_bw_pairs_apart(&machine, pairs, 2), 2);
}
