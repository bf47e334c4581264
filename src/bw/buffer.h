// Private memory to measure on, with a given size, page size and NUMA node, every page present, its placement verified
// with the kernel. Refuses, before it allocates, what the machine, the control group or the node does not have. If this
// process must not bind memory, the thread that opens the buffer touches it first; the buffer's note states that.
#ifndef FARM_BW_BUFFER_H
#define FARM_BW_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "bw/figure.h"

struct farm_bw_buffer {
    void *start;                // at a multiple of its page size
    size_t bytes, mapped_bytes; // bytes: present
    int node;                   // requested; -1: any
    enum farm_bw_pages pages;   // pages in use: never AUTO
    size_t page_bytes;          // size of one of `pages`
    size_t huge_bytes;          // in pages of that size (transparent ones: as smaps reports)
    bool bound, placed;         // node -1: both true
    char note[256];             // what differs from the request; "" if nothing does
};

// pages AUTO: the largest available below 1 GiB. FARM_E_UNSUPPORTED: such pages are not available, with the reason;
// FARM_E_LIMIT: too little memory. root: for the limits, NULL the running system. until_ns: when to stop making pages
// present; the buffer then has fewer bytes, at least FARM_BW_BUFFER_PIECE. 0: all of them.
enum { FARM_BW_BUFFER_PIECE = 4 << 20 };
enum farm_status farm_bw_buffer_open(const char *root, size_t bytes, int node, enum farm_bw_pages pages,
                                     uint64_t until_ns, struct farm_bw_buffer *buffer, struct farm_error *err);

// A buffer of zeros is permitted.
void farm_bw_buffer_close(struct farm_bw_buffer *buffer);

// Adds its page size, placement and note to the conditions of a measurement.
void farm_bw_buffer_add_conditions(const struct farm_bw_buffer *buffer, struct farm_bw_conditions *conditions);

// Whether pages of that size are available now; else why not, and what to set.
bool farm_bw_pages_available(const char *root, enum farm_bw_pages pages, char *reason, size_t reason_bytes);

// ---- CPUs and sizes ----

// Fills cpus [most] with allowed CPUs, one a core, in the machine's order. node -1: on all nodes. Returns their number.
int farm_bw_cpus(const struct farm_machine *machine, int node, int *cpus, int most);

// The node of a CPU's memory; -1: unknown.
int farm_bw_node_of(const struct farm_machine *machine, int cpu);

// Bytes of the last-level caches that these CPUs reach; 0 if the machine reports none.
uint64_t farm_bw_cache_bytes(const struct farm_machine *machine, const int *cpus, int cpu_count);

// The size of an array beyond caches: FARM_BW_CACHES x the last-level caches of these CPUs, at least 64 MiB, and no
// more than lets three of them fit into half of the memory that this process may still take.
enum { FARM_BW_CACHES = 4, FARM_BW_ARRAYS_MAX = 3 };
uint64_t farm_bw_array_bytes(const struct farm_bw_setup *setup, const int *cpus, int cpu_count);

#endif
