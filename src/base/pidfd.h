// pidfds without glibc 2.36, whose <sys/pidfd.h> declares the same two calls.
#ifndef FARM_BASE_PIDFD_H
#define FARM_BASE_PIDFD_H

#include <stddef.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

// As pidfd_open(2): a descriptor of the process, or -1 with errno. Close-on-exec.
static inline int farm_pidfd_open(pid_t pid) {
    return (int)syscall(SYS_pidfd_open, pid, 0);
}
// As pidfd_send_signal(2): 0, or -1 with errno.
static inline int farm_pidfd_send(int pidfd, int signal) {
    return (int)syscall(SYS_pidfd_send_signal, pidfd, signal, NULL, 0);
}

#endif
