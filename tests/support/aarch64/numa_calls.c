// libnuma's bare system calls, for programs that are linked without it (AArch64). The same as <numaif.h> declares.
#include <numaif.h>
#include <sys/syscall.h>
#include <unistd.h>

long mbind(void *start, unsigned long bytes, int mode, const unsigned long *nodes, unsigned long bits, unsigned flags) {
    return syscall(SYS_mbind, start, bytes, mode, nodes, bits, flags);
}

long move_pages(int pid, unsigned long count, void **pages, const int *nodes, int *status, int flags) {
    return syscall(SYS_move_pages, pid, count, pages, nodes, status, flags);
}

long get_mempolicy(int *mode, unsigned long *nodes, unsigned long bits, void *address, unsigned flags) {
    return syscall(SYS_get_mempolicy, mode, nodes, bits, address, flags);
}
