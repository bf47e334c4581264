// The forker: a small process that forks workers for the supervisor. A fork copies the page tables of the process that
// calls it: the supervisor's grow with every place, the forker's stay as they were when it was made. Its workers are
// the supervisor's children all the same (CLONE_PARENT): that reaps them, they die with it, and killing the forker ends
// no worker.
#ifndef FARM_SUPERVISOR_FORKER_H
#define FARM_SUPERVISOR_FORKER_H

#include <sys/types.h>

#include "supervisor/worker.h"

struct farm_forker {
    struct farm_fork_order *order; // at the same address in both processes, so that pointers into it are valid there
    volatile pid_t *child;         // shared: the worker's pid is known even if the forker dies before it answers;
                                   // NULL: none was started
    int pidfd, socket;             // -1: there is no forker
};

// From a process of one thread; *forker with pidfd and socket -1, all else zero, or as it was before. False: errno.
bool farm_forker_start(struct farm_forker *forker);

// Forks a worker that is `apart`, with this pipe as its output. -1: errno, or there was never a forker. One that has
// ended, or does not answer within 20 s, is ended, with a warning; the next call starts another one.
pid_t farm_forker_fork(struct farm_forker *forker, const struct farm_worker_spec *spec, int output_fd);

void farm_forker_end(struct farm_forker *forker);

#endif
