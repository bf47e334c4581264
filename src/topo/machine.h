// The machine as plain data: CPUs, NUMA nodes, GPUs, and what this process may use of them. Read once, in the
// supervisor or a tool, before any fork. The reader asks hwloc, control groups and /proc; it never touches CUDA
// (hwloc's plug-ins for GPU libraries are kept out), so children forked afterwards are clean. No state, nothing to
// free.
//
// Numbers: a CPU and a node are always named by the kernel's number, as sched_setaffinity and mbind want them. Cores,
// L3 groups and sockets are numbered densely from 0 over the whole machine.
#ifndef FARM_TOPO_MACHINE_H
#define FARM_TOPO_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bitmap.h"
#include "base/status.h"

enum { FARM_CPUS_MAX = FARM_BITMAP_BITS, FARM_NODES_MAX = 64, FARM_GPUS_MAX = 32 };

// A hardware thread that is online.
struct farm_cpu {
    int cpu;    // kernel's number
    int core;   // physical core
    int smt;    // which of its core's threads, from 0
    int l3;     // CPUs that share a last-level cache; -1 where the machine reports none
    int node;   // nearest NUMA node, kernel's number; it may have no memory
    int socket; // physical package
};

struct farm_node {
    int node;             // kernel's number
    bool has_cpus;        // false: CXL or other far memory
    bool usable;          // allowed by cpuset.mems, and not a GPU's own memory
    uint64_t total_bytes; // 0: a memoryless node
    uint64_t free_bytes;  // what can be had without swapping: free + page cache; = total for a recorded topology
};

struct farm_gpu {
    char name[64];
    char pci_bus_id[16]; // "0000:41:00.0", as cudaDeviceGetByPCIBusId takes it
    int node;            // nearest node with CPUs; -1 where the machine does not say
};

// About 120 KiB: not for small stacks. cpu[] runs in the order of sockets, caches and cores, so neighbours are
// neighbours; node[] by number; gpu[] by PCI bus id (CUDA's own order only with CUDA_DEVICE_ORDER=PCI_BUS_ID: match by
// bus id).
struct farm_machine {
    int cpu_count, core_count, l3_count, socket_count;
    uint64_t l3_bytes; // of one last-level cache; 0 where the machine reports none
    struct farm_cpu cpu[FARM_CPUS_MAX];
    int node_count;
    struct farm_node node[FARM_NODES_MAX];
    uint16_t distance[FARM_NODES_MAX][FARM_NODES_MAX]; // of node[i] to node[j] as the firmware says; 10 is local
    int gpu_count;
    struct farm_gpu gpu[FARM_GPUS_MAX];

    struct farm_bitmap allowed;  // CPUs that the cpuset and the affinity mask leave
    double cpu_quota;            // cgroup quota in CPUs, the tightest of all levels; 0: none
    uint64_t memory_limit_bytes; // cgroup limit; UINT64_MAX: none
    uint64_t memory_free_bytes;  // what is left below it; UINT64_MAX: no limit
    char source[128];            // "this machine", "xml FILE", "synthetic STRING"
};

// Where to read from; all NULL is the running system.
struct farm_machine_source {
    const char *xml;       // file of `lstopo --of xml`
    const char *synthetic; // hwloc's synthetic string: "pack:2 [numa(memory=64GB)] l3:4 core:4 pu:2"
    const char *root;      // folder in which /proc and /sys are looked up instead of "/"; a recorded topology without
                           // it has no control groups. Memory sizes come from sys/devices/system/node/node*/meminfo.
};

// Fills *out. Errors: FARM_E_INVALID both xml and synthetic given; FARM_E_NOT_FOUND, FARM_E_FORMAT a recorded topology
// that hwloc cannot read; FARM_E_LIMIT more CPUs or nodes than the arrays hold; FARM_E_IO hwloc fails on the running
// system.
enum farm_status farm_machine_read(struct farm_machine *out, const struct farm_machine_source *source,
                                   struct farm_error *err);

// The CPU's model as the kernel names it ("AMD EPYC 7B13"); false, and "unknown", where it names none (AArch64). root:
// as of the source above; NULL: the running system.
bool farm_machine_cpu_name(const char *root, char *text, size_t size);

// The entry of a node or CPU by its kernel number, NULL where there is none.
const struct farm_node *farm_machine_node(const struct farm_machine *machine, int node);
const struct farm_cpu *farm_machine_cpu(const struct farm_machine *machine, int cpu);

// Distance between two nodes by kernel number; 255 where one of them does not exist.
int farm_machine_distance(const struct farm_machine *machine, int from, int to);

// The usable node with memory that is nearest to `node` (itself if it has memory; among equals one with CPUs, then the
// lowest number); -1 where no node has usable memory.
int farm_machine_memory_node(const struct farm_machine *machine, int node);

#endif
