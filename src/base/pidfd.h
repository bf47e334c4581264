// pidfds without glibc 2.36, whose <sys/pidfd.h> declares the same two calls.
#ifndef FARM_BASE_PIDFD_H
#define FARM_BASE_PIDFD_H

#include <sys/types.h>

// As pidfd_open(2): a descriptor of the process, or -1 with errno. Close-on-exec.
int farm_pidfd_open(pid_t pid);
// As pidfd_send_signal(2): 0, or -1 with errno.
int farm_pidfd_send(int pidfd, int signal);

#endif
