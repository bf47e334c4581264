// See confine.h. landlock(7), seccomp(2), Linux's Documentation/userspace-api/landlock.rst.
#include "base/confine.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/fs.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef __x86_64__
enum { MACHINE = AUDIT_ARCH_X86_64 };
#define OLD_POLL  SYS_poll
#define OLD_CALLS SYS_chmod, SYS_chown, SYS_lchown, SYS_utime, SYS_utimes, SYS_futimesat
#else
enum { MACHINE = AUDIT_ARCH_AARCH64 };
#define OLD_POLL  SYS_ppoll
#define OLD_CALLS SYS_fchmodat
#endif
// Versions of Landlock's interface, and its rights that linux/landlock.h of Linux 6.1 does not have.
enum { TRUNCATES = 3, TCP = 4, DEVICES = 5, SCOPES = 6, BIND_TCP = 1, CONNECT_TCP = 2, SIGNALS_AND_ABSTRACT = 3 };
// Later calls are as unknown as to an older kernel; x32's have larger numbers.
enum { NEWEST_CALL = 450, CALLS_MAX = 400 };

enum { ALLOW = SECCOMP_RET_ALLOW, REFUSE = SECCOMP_RET_ERRNO | EPERM };
#define COUNT(list) (sizeof(list) / sizeof *(list))

// One that counts only if `argument` & mask is value, or, negated, is not.
struct call {
    uint16_t number, argument;
    bool negated;
    uint32_t mask, value;
};

// clang-format off
static const uint16_t bridge_calls[] = {
    SYS_io_uring_enter, SYS_recvmsg, SYS_sendmsg, SYS_recvfrom, SYS_sendto, SYS_read, SYS_write, SYS_ppoll,
    SYS_futex, SYS_readv, SYS_writev, SYS_preadv2, SYS_sysinfo, SYS_accept4, SYS_close, SYS_shutdown,
    SYS_getsockopt, SYS_setsockopt, SYS_getsockname, SYS_getpeername, SYS_fcntl, SYS_fstat, SYS_newfstatat,
    SYS_fstatfs, SYS_lseek, SYS_munmap, SYS_mremap, SYS_madvise, SYS_brk, SYS_mbind, SYS_get_mempolicy,
    SYS_io_uring_register, SYS_getrandom, SYS_membarrier, SYS_sched_yield, SYS_sched_getaffinity,
    SYS_clock_gettime, SYS_clock_nanosleep, SYS_nanosleep, SYS_gettimeofday, SYS_getrusage, SYS_getpid, SYS_gettid,
    SYS_getuid, SYS_getppid, SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_rt_sigpending,
    SYS_sigaltstack, SYS_restart_syscall, SYS_exit, SYS_exit_group, OLD_POLL,
};

// What Landlock does not limit: sockets, names and dates of files, other processes, the kernel.
static const uint16_t foreign_calls[] = {
    SYS_socket, SYS_io_uring_setup, SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_process_madvise,
    SYS_pidfd_getfd, SYS_kcmp, SYS_truncate, SYS_fchmod, SYS_fchmodat, SYS_fchown, SYS_fchownat, SYS_utimensat,
    SYS_setxattr, SYS_lsetxattr, SYS_fsetxattr, SYS_removexattr, SYS_lremovexattr, SYS_fremovexattr,
    SYS_setpriority, SYS_sched_setscheduler, SYS_sched_setparam, SYS_sched_setattr, SYS_ioprio_set,
    SYS_migrate_pages, SYS_shmget, SYS_shmat, SYS_shmctl, SYS_semget, SYS_semctl, SYS_semop, SYS_semtimedop,
    SYS_msgget, SYS_msgctl, SYS_msgsnd, SYS_msgrcv, SYS_mq_open, SYS_mq_unlink, SYS_add_key, SYS_request_key,
    SYS_keyctl, SYS_bpf, SYS_perf_event_open, SYS_userfaultfd, SYS_unshare, SYS_setns, SYS_mount, SYS_umount2,
    OLD_CALLS,
};
// clang-format on
static const struct call foreign_if[] = {
    {SYS_prlimit64, 0, true, UINT32_MAX, 0},
    {SYS_sched_setaffinity, 0, true, UINT32_MAX, 0},
    {SYS_socketpair, 0, true, UINT32_MAX, AF_UNIX},
    {SYS_socketpair, 1, false, 2, 2}, // SOCK_DGRAM and SOCK_RAW send to named sockets
    {SYS_clone, 0, true, CLONE_NEWUSER, 0},
    {SYS_fcntl, 1, false, UINT32_MAX, F_SETLEASE},
    {SYS_ioctl, 1, false, UINT32_MAX, (uint32_t)FS_IOC_SETFLAGS},
    {SYS_ioctl, 1, false, UINT32_MAX, (uint32_t)FS_IOC_FSSETXATTR},
    {SYS_ioctl, 1, false, UINT32_MAX, TIOCSTI},
    {SYS_ioctl, 1, false, UINT32_MAX, TIOCLINUX},
};

// ---- seccomp ----

// Those of both lists get `listed`, the others `other`.
static bool filter_calls(const uint16_t *calls, size_t call_count, const struct call *ifs, size_t if_count,
                         uint32_t listed, uint32_t other) {
    struct sock_filter code[CALLS_MAX] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)MACHINE, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 1, 0), // its flags cannot be seen
        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, NEWEST_CALL, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
    };
    unsigned short n = 7;
    for (size_t i = 0; i < call_count; i++) {
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i], 0, 1);
        code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, listed);
    }
    for (const struct call *at = ifs; at < ifs + if_count; at++) {
        const struct sock_filter part[] = {
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, at->number, 0, 5),
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[at->argument])),
            BPF_STMT(BPF_ALU | BPF_AND | BPF_K, at->mask),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, at->value, at->negated, !at->negated),
            BPF_STMT(BPF_RET | BPF_K, listed),
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        };
        memcpy(code + n, part, sizeof part);
        n += sizeof part / sizeof *part;
    }
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, other);
    const struct sock_fprog program = {n, code};
    // Without the flag kernels before 5.16 slow the process down (speculative store bypass).
    return prctl(PR_GET_SECCOMP) < 0 ||
           syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW, &program) == 0;
}

// ---- Landlock ----

static int landlock_version(void) {
    return (int)syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
}

static bool allow_below(int rules, const char *path, uint64_t rights) {
    const struct landlock_path_beneath_attr below = {rights, open(path, O_PATH | O_CLOEXEC)};
    const bool done = syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &below, 0) == 0;
    if (below.parent_fd >= 0) close(below.parent_fd);
    return done;
}

static bool restrict_files(bool reads, bool connects) {
    const int version = landlock_version();
    const int rights = version >= DEVICES ? 16 : version >= TRUNCATES ? 15 : version == 2 ? 14 : 13;
    const uint64_t handled[] = {(1u << rights) - 1, connects ? BIND_TCP : BIND_TCP | CONNECT_TCP, SIGNALS_AND_ABSTRACT},
                   read = LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR;
    if (version < 1) return true;
    const size_t words = version >= SCOPES ? 3 : version >= TCP ? 2 : 1;
    const int rules = (int)syscall(SYS_landlock_create_ruleset, handled, words * sizeof *handled, 0);
    const bool done =
        rules >= 0 &&
        (!reads || (allow_below(rules, "/", read) && allow_below(rules, "/dev/null", LANDLOCK_ACCESS_FS_WRITE_FILE))) &&
        syscall(SYS_landlock_restrict_self, rules, 0) == 0;
    if (rules >= 0) close(rules);
    return done;
}

// ---- both ----

static bool drop_capabilities(uint32_t kept) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct sets[2];
    if (syscall(SYS_capget, &header, sets)) return false;
    for (int i = 0; i < 2; i++, kept = 0)
        sets[i] = (struct __user_cap_data_struct){sets[i].effective & kept, sets[i].permitted & kept, 0};
    return syscall(SYS_capset, &header, sets) == 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
}

enum farm_status farm_confine_bridge(bool dials, struct farm_error *err) {
    const struct call some[] = {
        {SYS_mmap, 2, false, PROT_EXEC, 0},
        {SYS_mprotect, 2, false, PROT_EXEC, 0},
        {SYS_tgkill, 0, false, UINT32_MAX, (uint32_t)getpid()},
        {SYS_connect, 0, false, 0, 0},
        {SYS_socket, 0, false, UINT32_MAX, AF_INET},
        {SYS_socket, 0, false, UINT32_MAX, AF_INET6},
    };
    const bool done = drop_capabilities(0) && restrict_files(false, dials) &&
                      filter_calls(bridge_calls, COUNT(bridge_calls), some, dials ? 6 : 3, ALLOW, REFUSE);
    return done ? FARM_OK : farm_fail_errno(err, FARM_E_UNSUPPORTED, "not confined");
}

enum farm_status farm_confine_environment(struct farm_error *err) {
    const bool done = drop_capabilities(1u << CAP_DAC_READ_SEARCH) && restrict_files(true, false) &&
                      filter_calls(foreign_calls, COUNT(foreign_calls), foreign_if, COUNT(foreign_if), REFUSE, ALLOW);
    return done ? FARM_OK : farm_fail_errno(err, FARM_E_UNSUPPORTED, "--confine: cannot confine an environment");
}

bool farm_confine_lacks(char *text, size_t bytes) {
    const int version = landlock_version(), why = errno;
    const bool calls = prctl(PR_GET_SECCOMP) >= 0;
    if (calls && version >= SCOPES) return false;
    const char *also = calls ? "" : "; no seccomp: system calls are not limited";
    if (version < 1)
        snprintf(text, bytes, "no Landlock (%s; Linux 5.13 has it): environments can write files and send signals%s",
                 strerror(why), also);
    else
        snprintf(text, bytes, "Landlock %d (Linux 6.12 has 6): environments can send signals%s%s", version,
                 version < TRUNCATES ? " and truncate files" : "", also);
    return true;
}
