// Recorded machines for the tests of src/topo, which run in the repository's root.
#ifndef FARM_TESTS_TOPO_MACHINES_H
#define FARM_TESTS_TOPO_MACHINES_H

#include <criterion/criterion.h>

#include "topo/machine.h"

#define VECTORS "tests/topo/vectors/"

struct recorded_machine {
    const char *name;
    struct farm_machine_source source;
};

#define TWO_SOCKETS         "pack:2 [numa(memory=128GB)] l3:1 core:16 pu:2"
#define EIGHT_SOCKETS       "pack:8 [numa(memory=256GB)] l3:1 core:28 pu:2"
#define AMD_12_L3           "pack:2 [numa(memory=384GB)] l3:12 core:8 pu:1"
#define AMD_12_L3_SMT       "pack:2 [numa(memory=384GB)] l3:12 core:8 pu:2"
#define FOUR_NODES_A_SOCKET "pack:2 numa:4(memory=48GB) l3:3 core:8 pu:2"
#define SIXTEEN_CORES       "pack:1 [numa(memory=64GB)] l3:2 core:8 pu:1"
#define TWO_CORES           "pack:1 [numa(memory=16GB)] l3:1 core:2 pu:1"
#define FOUR_CPUS           "pack:4 [numa(memory=1GB)] core:1 pu:1"
#define ONE_CPU             "pack:1 [numa(memory=2GB)] l3:1 core:1 pu:1"
#define FAR_MEMORY_FIRST    "[numa(memory=8GB indexes=1,2,0)] pack:2 [numa(memory=64GB)] core:4 pu:1"
#define TWO_OF_32           "pack:2 [numa(memory=256GB)] l3:4 core:8 pu:1"
#define TWO_OF_64           "pack:2 [numa(memory=256GB)] l3:4 core:8 pu:2"
#define FOUR_OF_128         "pack:4 [numa(memory=512GB)] l3:8 core:8 pu:2"
#define HBM                 "pack:2 [numa(memory=128GB)] [numa(memory=64GB)] core:56 pu:2"
#define CXL                 "[numa(memory=512GB)] pack:2 [numa(memory=256GB)] core:32 pu:1"
#define SMT8                "pack:2 [numa(memory=64GB)] core:2 pu:8"

static const struct recorded_machine recorded_machines[] = {
    {"two sockets", {.synthetic = TWO_SOCKETS}},
    {"eight sockets", {.synthetic = EIGHT_SOCKETS}},
    {"AMD, 12 L3 groups a socket", {.synthetic = AMD_12_L3}},
    {"AMD, 12 L3 groups a socket, SMT", {.synthetic = AMD_12_L3_SMT}},
    {"four nodes a socket", {.synthetic = FOUR_NODES_A_SOCKET}},
    {"quota of 3.5 CPUs, v2", {.synthetic = TWO_SOCKETS, .root = VECTORS "quota_v2"}},
    {"quota of 3.5 CPUs, v1", {.synthetic = SIXTEEN_CORES, .root = VECTORS "quota_v1"}},
    {"half a CPU", {.synthetic = TWO_CORES, .root = VECTORS "half_cpu_v2"}},
    {"cpuset", {.synthetic = TWO_SOCKETS, .root = VECTORS "no_limits_v1"}},
    {"two cores", {.synthetic = TWO_CORES}},
    {"one CPU", {.synthetic = ONE_CPU}},
    {"8 threads a core, no L3", {.synthetic = SMT8}},
    {"far memory with the lowest number", {.synthetic = FAR_MEMORY_FIRST}},
    {"memoryless node", {.synthetic = TWO_SOCKETS, .root = VECTORS "memoryless_node1"}},
    {"GPUs, CXL, offline CPU", {.xml = VECTORS "gpus_cxl_offline.xml"}},
    {"P and E cores", {.xml = VECTORS "p_and_e_cores.xml"}},
    {"HBM beside DRAM", {.synthetic = HBM}},
    {"this machine", {0}},
};

enum { RECORDED_MACHINES = sizeof recorded_machines / sizeof *recorded_machines };

static struct farm_machine machine;
static struct farm_error error;

static inline void read_machine(struct farm_machine_source source) {
    cr_assert_eq(farm_machine_read(&machine, &source, &error), FARM_OK, "%s", error.message);
}

static inline void read_synthetic(const char *text) {
    read_machine((struct farm_machine_source){.synthetic = text});
}

#endif
