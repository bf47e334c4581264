// What happens between fork and the worker's own code, in the child. Apart from supervisor.c so that the order of these
// steps can be read at one place. Runs in the child only; never returns.
#ifndef FARM_SUPERVISOR_CHILD_H
#define FARM_SUPERVISOR_CHILD_H

#include <signal.h>

#include "supervisor/worker.h"

// `parent`: pid of the supervisor, asked before the fork. output_fd: the pipe for 1 and 2. mask: signals to block.
_Noreturn void farm_child_become(const struct farm_worker_spec *spec, pid_t parent, int output_fd,
                                 const sigset_t *mask);

#endif
