// A few threads that run one function over numbered pieces of work together with the caller, the training thread.
#ifndef FARM_LEARNER_POOL_H
#define FARM_LEARNER_POOL_H

#include <stdint.h>

#include "base/status.h"

struct farm_pool;

// threads: in all, the caller included (>= 1; 1 starts none).
enum farm_status farm_pool_create(uint32_t threads, struct farm_pool **out, struct farm_error *err);
void farm_pool_destroy(struct farm_pool *pool);

// Calls work(context, piece, thread) once for every piece in [0, pieces), spread over the threads (thread 0 is the
// caller), and returns when all are done. pool NULL: the caller alone. At most 65535 pieces. The other threads may
// change their own affinity for some microseconds, to leave each other's CPUs.
void farm_pool_run(struct farm_pool *pool, uint32_t pieces,
                   void (*work)(void *context, uint32_t piece, uint32_t thread), void *context);

#endif
