// Where and when a node connects to the learner: the addresses of its name, the intervals between attempts, and the
// time that an attempt may take. The caller passes the time. Sends nothing except name queries.
#ifndef FARM_BRIDGE_DIAL_H
#define FARM_BRIDGE_DIAL_H

#include <stdbool.h>

#include "bridge/address.h"

struct farm_dial {
    const char *name;                                       // as farm_address_find takes it
    int resolver;                                           // farm_dial_start_resolver; -1: this process resolves it
    bool encrypted;                                         // else private addresses only
    uint64_t random;                                        // seed of the jitter
    struct farm_address found[FARM_ADDRESSES_MAX], address; // address: in the present attempt
    uint32_t found_count, tries;
    uint64_t found_ns;
    uint64_t retry_ns, cut_ns, interval_ns; // next attempt; cut, 0: none; last interval
    uint64_t rtt_ns;                        // newest of any connection; 0: unknown
    bool at_once; // the next interval is 0: another bridge has the session, or the path was cut
};

// Opens a TCP socket (non-blocking, close-on-exec) for the next address. FARM_E_PERMISSION: public and not encrypted.
enum farm_status farm_dial_open(struct farm_dial *dial, uint64_t now_ns, int *fd, struct farm_error *err);
// Starts a process that resolves the name (of @FILE: reads the file), because a confined bridge cannot. It ends with
// the calling process. Returns the socket to it, or -1.
int farm_dial_start_resolver(const char *name);
// After a failed attempt or a cut: sets retry_ns.
void farm_dial_plan_retry(struct farm_dial *dial, uint64_t now_ns);
// After a success: the next cut starts with short intervals.
void farm_dial_reset(struct farm_dial *dial);
// Longest time that an attempt may take.
uint64_t farm_dial_limit_ns(const struct farm_dial *dial, uint64_t now_ns);

#endif
