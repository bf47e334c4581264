// A file system without locks: fcntl in place of the library's, also for libfarm in this program. One file includes it.
#ifndef FARM_TESTS_SUPPORT_NO_LOCKS_H
#define FARM_TESTS_SUPPORT_NO_LOCKS_H

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

static int lock_errno; // each lock fails with it; 0: they work

int fcntl(int fd, int command, ...) {
    va_list list;
    va_start(list, command);
    void *argument = va_arg(list, void *);
    va_end(list);
    if (lock_errno && command == F_OFD_SETLK) return errno = lock_errno, -1;
    return (int)syscall(SYS_fcntl, fd, command, argument);
}

#endif
