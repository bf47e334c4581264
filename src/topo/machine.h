// The machine as plain data: CPUs, NUMA nodes, GPUs, and what this process may use of them. Read once, in the
// supervisor or a tool, before any fork. The reader uses hwloc, control groups and /proc. It never initialises CUDA
// (hwloc's plug-ins for GPU libraries are excluded), so that children may. No state, nothing to free.
//
// CPUs and nodes have the kernel's numbers, as sched_setaffinity and mbind take them. Cores, L3 groups and sockets are
// numbered from 0 without gaps over the whole machine.
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
    int l3;     // group of CPUs that share a last-level cache; -1: unknown
    int node;   // nearest NUMA node; it may have no memory
    int socket; // physical package
    int kind;   // kind of core: 0 is the fastest (P cores), then slower ones (E cores)
};

struct farm_node {
    int node;             // kernel's number
    bool has_cpus;        // false: CXL or other far memory
    bool usable;          // allowed by cpuset.mems, and not a GPU's own memory
    uint64_t total_bytes; // 0: a memoryless node
    uint64_t free_bytes;  // available without swapping: free + page cache; = total for a recorded topology
    double bytes_per_s;   // reads by its own CPUs, measured by farm bw; 0: not measured
};

struct farm_gpu {
    char name[64];
    char pci_bus_id[16]; // "0000:41:00.0", as cudaDeviceGetByPCIBusId takes it
    int node;            // nearest node with CPUs; -1: unknown
};

// About 120 KiB: not for small stacks. cpu[] is in the order of sockets, caches and cores; node[] by number; gpu[] by
// PCI bus id (CUDA has this order only with CUDA_DEVICE_ORDER=PCI_BUS_ID: match by bus id).
struct farm_machine {
    int cpu_count, core_count, l3_count, socket_count;
    uint64_t l3_bytes; // size of one last-level cache; 0: unknown
    struct farm_cpu cpu[FARM_CPUS_MAX];
    int node_count;
    struct farm_node node[FARM_NODES_MAX];
    uint16_t distance[FARM_NODES_MAX]
                     [FARM_NODES_MAX]; // from node[i] to node[j] as the firmware reports it; 10 is local
    int gpu_count;
    struct farm_gpu gpu[FARM_GPUS_MAX];

    struct farm_bitmap allowed;     // CPUs that the cpuset and the affinity mask allow
    double cpu_quota;               // cgroup quota in CPUs, the tightest of all levels; 0: none
    uint64_t memory_limit_bytes;    // cgroup limit; UINT64_MAX: none
    uint64_t memory_free_bytes;     // what is left of it; UINT64_MAX: no limit
    struct {                        // by farm bw
        char date[16];              // "": not measured
        double write, write_nt;     // all cores, GB/s; nt: past the caches; 0: not measured
        char env[64];               // the last two are about it
        double memory_hz, cores_hz; // steps/s that memory could carry, and that farm fps reached
    } measured;
    char source[128]; // "this machine", "xml FILE", "synthetic STRING"
};

// Where to read from; all NULL is the running system.
struct farm_machine_source {
    const char *xml;       // file of `lstopo --of xml`
    const char *synthetic; // hwloc's synthetic string: "pack:2 [numa(memory=64GB)] l3:4 core:4 pu:2"
    const char *root;      // folder that replaces "/" before proc and sys; a recorded topology without it has no
                           // control groups. Memory sizes come from sys/devices/system/node/node*/meminfo.
    const char *bw; // a document of `farm bw --json` about this machine; "auto": the user's cache, bw.json, if it
                    // is (a warning: it is not); NULL: none
};

// Fills *out. Errors: FARM_E_INVALID both xml and synthetic are given; FARM_E_NOT_FOUND, FARM_E_FORMAT hwloc cannot
// read the recorded topology; FARM_E_USAGE `bw` is unusable; FARM_E_LIMIT more CPUs or nodes than the arrays hold, or
// no CPU is allowed; FARM_E_IO hwloc fails on the running system.
enum farm_status farm_machine_read(struct farm_machine *out, const struct farm_machine_source *source,
                                   struct farm_error *err);

// Writes the kernel's name of the CPU ("AMD EPYC 7B13"); false, and "unknown": none (AArch64). root: as above, or NULL.
bool farm_machine_cpu_name(const char *root, char *text, size_t size);

// The entry of a node or CPU by its kernel number, or NULL.
const struct farm_node *farm_machine_node(const struct farm_machine *machine, int node);
const struct farm_cpu *farm_machine_cpu(const struct farm_machine *machine, int cpu);

// Distance between two nodes by kernel number; 255 if one of them does not exist.
int farm_machine_distance(const struct farm_machine *machine, int from, int to);

// The usable node with memory nearest to `node` (itself, then one with CPUs, then the lowest number); -1: none.
int farm_machine_memory_node(const struct farm_machine *machine, int node);

#endif
