// A chase of pointers: one random cycle through places of a piece of memory, in which each place holds the address of
// the next, so that no load starts before the one before has ended. For src/bw and benchmarks; one thread at a time.
#ifndef FARM_BW_CHASE_H
#define FARM_BW_CHASE_H

#include "bw/buffer.h"
#include "bw/clock.h"
#include "bw/team.h"

struct farm_bw_chase {
    struct farm_bw_buffer buffer;
    uint64_t bytes;              // part of the buffer that cycles may use
    uint32_t *order;             // places in the order of the cycle; room for bytes / spacing_bytes of the config
    size_t count, spacing_bytes; // places of the cycle, and their distance
    bool jitter;
    void *at; // where the chase is
};

struct farm_bw_chase_config {
    uint64_t bytes; // 0: FARM_BW_CACHES x the last-level cache, at least 64 MiB, or what memory and time suffice for
    double seconds; // with bytes 0: for making the memory present, and for making and checking a cycle through it
    size_t spacing_bytes;
    int node;
    enum farm_bw_pages pages;
};

// The memory, without a cycle. Errors as farm_bw_buffer_open's; FARM_E_LIMIT: 256 GiB or more.
enum farm_status farm_bw_chase_open(const struct farm_bw_setup *setup, const struct farm_bw_chase_config *config,
                                    struct farm_bw_chase *chase, struct farm_bw_conditions *conditions,
                                    struct farm_error *err);
void farm_bw_chase_close(struct farm_bw_chase *chase);

// Makes one random cycle through `count` places, spacing_bytes (a multiple of the pointer's size) apart. jitter: within
// its space each place is at a random line, so that places a page apart do not share the sets of a cache; spacing_bytes
// is then a power of two >= 64.
void farm_bw_chase_make(struct farm_bw_chase *chase, size_t count, size_t spacing_bytes, bool jitter);

// Follows `links` links.
void farm_bw_chase_follow(struct farm_bw_chase *chase, uint64_t links);

// Follows links for about this time. Returns nanoseconds a link.
double farm_bw_chase_time(struct farm_bw_chase *chase, double seconds);

// A figure of the cycle, by member 0 of the team.
void farm_bw_chase_figure(struct farm_bw_chase *chase, struct farm_bw_team *team, struct farm_bw_clock *clock,
                          struct farm_bw_figure *figure);

// After the last figure of a cycle: FARM_E_IO if a place holds another address than farm_bw_chase_make wrote.
enum farm_status farm_bw_chase_check(const struct farm_bw_chase *chase, struct farm_error *err);

#endif
