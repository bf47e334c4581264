// What the size of pages does to bandwidth and latency: read, copy and a dependent load on one core, on memory of each
// page size that this machine has. Conventions are memory.h's.
#ifndef FARM_BW_PAGES_H
#define FARM_BW_PAGES_H

#include "bw/figure.h"

struct farm_bw_pages_row {
    enum farm_bw_pages pages; // SMALL, TRANSPARENT, 2M, 1G
    bool available;
    char reason[768];                                         // not available: why, and what to set
    struct farm_bw_figure read_bytes_per_s, copy_bytes_per_s; // of one core
    struct farm_bw_figure latency_ns;                         // of a dependent load, one core, same memory size
    double huge_share;                                        // of the memory, that has pages of that size
};

struct farm_bw_pages_config {
    uint64_t array_bytes; // 0: beyond caches
    int cpu;              // -1: the first allowed
};

struct farm_bw_pages_result {
    struct farm_bw_pages_row row[4];
    uint64_t array_bytes;
    struct farm_bw_conditions conditions;
};

enum farm_status farm_bw_page_sizes(const struct farm_bw_setup *setup, const struct farm_bw_pages_config *config,
                                    struct farm_bw_pages_result *result, struct farm_error *err);

#endif
