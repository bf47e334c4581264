// See pidfd.h.
#include "base/pidfd.h"

#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

int farm_pidfd_open(pid_t pid) {
    return (int)syscall(SYS_pidfd_open, pid, 0);
}

int farm_pidfd_send(int pidfd, int signal) {
    return (int)syscall(SYS_pidfd_send_signal, pidfd, signal, NULL, 0);
}
