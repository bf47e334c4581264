// A few threads that run one function over numbered pieces of work together with the caller, the training thread. They
// form groups, one a NUMA node.
#ifndef FARM_LEARNER_POOL_H
#define FARM_LEARNER_POOL_H

#include <stdint.h>

#include "base/bitmap.h"
#include "base/status.h"

enum { FARM_POOL_GROUPS_MAX = 64 };

struct farm_pool_group {
    int node;                       // kernel's number; -1: any
    uint32_t threads;               // >= 1; the first group's: with the caller
    const struct farm_bitmap *cpus; // where they run, if there are several groups; NULL: anywhere
};

struct farm_pool;

enum farm_status farm_pool_create(const struct farm_pool_group *groups, uint32_t count, struct farm_pool **out,
                                  struct farm_error *err);
void farm_pool_destroy(struct farm_pool *pool);

// Binds the calling thread to the group's CPUs, as its threads are bound; does nothing if it is the only one.
void farm_pool_bind(const struct farm_pool *pool, uint32_t group);

// Calls work(context, piece, thread) once for every piece in `threads` of the threads, spread over the groups, and
// returns when all are done. Threads are numbered group after group (0: the caller), and so are pieces: pieces[g] of
// group g (NULL: one a thread), at most 65535 in all. A group's threads do its pieces; idle ones of other groups take
// those that it cannot begin at once. threads 1: the caller does all. Threads may change their own affinity for some
// microseconds, to leave each other's CPUs.
void farm_pool_run(struct farm_pool *pool, uint32_t threads, const uint32_t *pieces,
                   void (*work)(void *context, uint32_t piece, uint32_t thread), void *context);

// A piece's group in the present run, and its place among the group's pieces. With `pieces` NULL the run must have
// several threads.
struct farm_pool_part {
    uint32_t group, part, parts;
};
struct farm_pool_part farm_pool_part(const struct farm_pool *pool, const uint32_t *pieces, uint32_t piece);

#endif
