// Reads recorded topologies and control groups, and the machine that runs the test.
#include <criterion/criterion.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "machines.h"

static const char *list_of(const struct farm_bitmap *set) {
    static char text[256];
    return farm_bitmap_format(set, text, sizeof text);
}

Test(topo, reads_sockets_nodes_l3_groups_and_cores) {
    read_synthetic(AMD_12_L3_SMT);
    cr_assert_eq(machine.cpu_count, 384);
    cr_assert_eq(machine.core_count, 192);
    cr_assert_eq(machine.l3_count, 24);
    cr_assert_eq(machine.socket_count, 2);
    cr_assert_eq(machine.node_count, 2);
    cr_assert_eq(machine.node[1].total_bytes, UINT64_C(384000000000));
    const struct farm_cpu *cpu = farm_machine_cpu(&machine, 383);
    cr_assert_not_null(cpu);
    cr_assert(cpu->core == 191 && cpu->smt == 1 && cpu->l3 == 23 && cpu->node == 1 && cpu->socket == 1);
    cr_assert_eq(farm_bitmap_count(&machine.allowed), 384);
    cr_assert_eq(machine.cpu_quota, 0);
    cr_assert_eq(machine.memory_limit_bytes, UINT64_MAX);
    read_synthetic(SMT8); // without L3
    cr_assert_eq(machine.l3_count, 0);
    cr_assert_eq(machine.l3_bytes, 0);
    cr_assert_eq(machine.cpu[31].l3, -1);
    cr_assert_eq(machine.cpu[31].smt, 7);
}

Test(topo, finds_gpus_and_far_memory_but_no_offline_cpus) {
    read_machine((struct farm_machine_source){.xml = VECTORS "gpus_cxl_offline.xml"});
    cr_assert_eq(machine.cpu_count, 7);
    cr_assert_null(farm_machine_cpu(&machine, 7), "CPU 7 is offline");
    cr_assert_str_eq(list_of(&machine.allowed), "0-1,3-6");
    cr_assert_eq(machine.gpu_count, 2, "the network card is not a GPU");
    cr_assert_str_eq(machine.gpu[0].pci_bus_id, "0000:81:00.0");
    cr_assert_str_eq(machine.gpu[1].pci_bus_id, "0000:c1:00.0");
    cr_assert_eq(machine.gpu[0].node, 1);
    cr_assert(machine.node[0].has_cpus && machine.node[1].has_cpus && !machine.node[2].has_cpus);
    cr_assert_eq(farm_machine_cpu(&machine, 4)->node, 1, "CXL memory is beside every CPU, but no CPU's own node");
    cr_assert_eq(farm_machine_distance(&machine, 1, 2), 14);
    cr_assert_eq(farm_machine_distance(&machine, 0, 2), 28);
    cr_assert_eq(farm_machine_distance(&machine, 0, 9), 255);
    machine.node[1].total_bytes = 0;
    cr_assert_eq(farm_machine_memory_node(&machine, 1), 2, "the CXL node is nearer to node 1 than node 0");
    machine.node[2].usable = false;
    cr_assert_eq(farm_machine_memory_node(&machine, 1), 0);
}

Test(topo, gives_a_cpu_the_node_that_fewest_cpus_share) {
    read_synthetic(FAR_MEMORY_FIRST);
    int far_node = -1;
    for (int i = 0; i < machine.node_count; i++)
        if (machine.node[i].total_bytes == UINT64_C(8000000000)) far_node = machine.node[i].node;
    cr_assert_eq(machine.node_count, 3);
    cr_assert_eq(far_node, 0, "the far node has the lowest number");
    for (int i = 0; i < machine.cpu_count; i++) cr_assert_neq(machine.cpu[i].node, far_node);
    cr_assert(!farm_machine_node(&machine, far_node)->has_cpus);
}

Test(topo, counts_page_cache_as_free_and_sees_memoryless_nodes) {
    read_machine((struct farm_machine_source){.synthetic = TWO_SOCKETS, .root = VECTORS "memoryless_node1"});
    cr_assert_eq(machine.node[0].total_bytes, UINT64_C(64) << 30);
    cr_assert_eq(machine.node[0].free_bytes, UINT64_C(36) << 30);
    cr_assert_eq(machine.node[1].total_bytes, 0);
    cr_assert(machine.node[1].has_cpus);
    cr_assert_eq(farm_machine_memory_node(&machine, 1), 0);
}

Test(topo, refuses_invalid_topologies) {
    static const struct {
        struct farm_machine_source source;
        enum farm_status status;
        const char *words;
    } cases[] = {{{.xml = "/nonexistent.xml"}, FARM_E_NOT_FOUND, "nonexistent.xml"},
                 {{.xml = VECTORS "quota_v2/proc/self/cgroup"}, FARM_E_FORMAT, "lstopo"},
                 {{.synthetic = "pack:two"}, FARM_E_FORMAT, "pack:two"},
                 {{.synthetic = TWO_SOCKETS, .bw = "/nonexistent.json"}, FARM_E_USAGE, "--bw: /nonexistent.json"},
                 {{.synthetic = TWO_SOCKETS, .bw = VECTORS "quota_v2/proc/cpuinfo"}, FARM_E_USAGE, "not a JSON"},
                 {{.synthetic = SIXTEEN_CORES, .bw = VECTORS "bw.json"}, FARM_E_USAGE, "about this machine"},
                 {{.bw = VECTORS "bw.json"}, FARM_E_USAGE, "about this machine"},
                 {{.xml = "a", .synthetic = "b"}, FARM_E_INVALID, "not both"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cr_expect_eq(farm_machine_read(&machine, &cases[i].source, &error), cases[i].status);
        cr_expect(strstr(error.message, cases[i].words), "%s", error.message);
    }
}

Test(topo, reads_what_farm_bw_measured) {
    read_machine((struct farm_machine_source){.synthetic = TWO_SOCKETS, .bw = VECTORS "bw.json"});
    cr_assert(machine.node[0].bytes_per_s == 100e9 && machine.node[1].bytes_per_s == 200e9);
    cr_assert(machine.measured.write == 90 && machine.measured.write_nt == 120.5);
    cr_assert(machine.measured.memory_hz == 900 && machine.measured.cores_hz == 1000);
    cr_assert_str_eq(machine.measured.env, "ale/Pong");
    cr_assert_eq(strlen(machine.measured.date), strlen("2026-11-28"));
}

Test(topo, agrees_with_the_kernel_about_this_machine) {
    read_machine((struct farm_machine_source){0});
    cr_assert_eq(machine.cpu_count, sysconf(_SC_NPROCESSORS_ONLN));
    cpu_set_t mask;
    cr_assert_eq(sched_getaffinity(0, sizeof mask, &mask), 0);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        cr_assert(farm_bitmap_has(&machine.allowed, cpu) <= (CPU_ISSET(cpu, &mask) != 0), "CPU %d", cpu);
    uint64_t total = 0;
    for (int i = 0; i < machine.node_count; i++) total += machine.node[i].total_bytes;
    uint64_t kernel = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    cr_assert(total > kernel / 2 && total < kernel + kernel / 2, "nodes hold %lu bytes, the kernel reports %lu", total,
              kernel);
}

Test(topo, obeys_the_affinity_mask_of_the_process) {
    struct farm_bitmap one = {{0}};
    read_machine((struct farm_machine_source){0});
    int last = -1;
    for (int cpu = farm_bitmap_next(&machine.allowed, 0); cpu >= 0; cpu = farm_bitmap_next(&machine.allowed, cpu + 1))
        last = cpu;
    farm_bitmap_set(&one, last);
    cr_assert_eq(farm_bitmap_pin(&one, &error), FARM_OK, "%s", error.message);
    cr_assert_eq(sched_getcpu(), last);
    read_machine((struct farm_machine_source){0});
    cr_assert_eq(memcmp(&machine.allowed, &one, sizeof one), 0, "allowed: %s", list_of(&machine.allowed));
}

Test(topo, has_the_kernels_name_of_the_cpu) {
    char name[64];
    cr_assert(farm_machine_cpu_name(VECTORS "quota_v2", name, sizeof name));
    cr_assert_str_eq(name, "Recorded CPU @ 2.50GHz");
    cr_assert_not(farm_machine_cpu_name(VECTORS "quota_v1", name, sizeof name));
    cr_assert_str_eq(name, "unknown");
}
