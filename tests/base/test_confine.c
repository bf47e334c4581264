// What a confined process cannot do: each deed succeeds in a child before, fails after, on kernels with every part.
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/fs.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/confine.h"
#include "tests/support/must.h"

static char file[64];
static pid_t victim;

static bool opens(const char *path, int flags) {
    const int fd = open(path, flags, 0600);
    if (fd >= 0) close(fd);
    return fd >= 0;
}
static bool reads(void) {
    return opens("/etc/passwd", O_RDONLY);
}
static bool writes(void) {
    return opens(file, O_WRONLY | O_CREAT);
}
static bool truncates(void) {
    return truncate(file, 1) == 0;
}
static bool renames(void) {
    return rename(file, file) == 0 && symlink("x", file) < 0 && errno == EEXIST;
}
static bool changes_mode(void) {
    return chmod(file, 0600) == 0;
}
static bool opens_memory(void) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/mem", (int)victim);
    return opens(path, O_RDWR);
}
static bool reads_memory(void) {
    char byte;
    struct iovec here = {&byte, 1}, there = {file, 1};
    return process_vm_readv(victim, &here, 1, &there, 1, 0) == 1;
}
static bool traces(void) {
    return ptrace(PTRACE_SEIZE, victim, 0, 0) == 0 && ptrace(PTRACE_INTERRUPT, victim, 0, 0) == 0 &&
           waitpid(victim, NULL, __WALL) == victim && ptrace(PTRACE_DETACH, victim, 0, 0) == 0;
}
static bool signals(void) {
    return kill(victim, 0) == 0;
}
static bool limits(void) {
    return prlimit(victim, RLIMIT_CPU, &(struct rlimit){1000, RLIM_INFINITY}, NULL) == 0;
}
static bool makes_socket(void) {
    return socket(AF_INET, SOCK_DGRAM, 0) >= 0;
}
static bool makes_local_socket(void) {
    return socket(AF_UNIX, SOCK_STREAM, 0) >= 0;
}
static bool makes_pair(void) {
    int ends[2];
    return socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0;
}
static bool sends_to_a_name(void) {
    const struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "/dev/null"};
    int ends[2];
    return socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0 &&
           sendto(ends[0], "", 1, 0, (const struct sockaddr *)&name, sizeof name) < 0 && errno == ECONNREFUSED;
}
static bool makes_users(void) {
    const long pid = syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0);
    if (!pid) _exit(0);
    return pid > 0 && wait_for((pid_t)pid) == 0;
}
static bool moves(void) {
    cpu_set_t cpus;
    return sched_getaffinity(victim, sizeof cpus, &cpus) == 0 && sched_setaffinity(victim, sizeof cpus, &cpus) == 0;
}
static bool sets_flags(void) {
    long flags;
    const int fd = open(file, O_RDONLY);
    return ioctl(fd, FS_IOC_GETFLAGS, &flags) == 0 && ioctl(fd, FS_IOC_SETFLAGS, &flags) == 0;
}
static bool leases(void) {
    const int fd = open(file, O_RDONLY);
    return fcntl(fd, F_SETLEASE, F_RDLCK) == 0 && close(fd) == 0;
}
static bool binds(void) {
    const struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    return fd >= 0 && bind(fd, (const struct sockaddr *)&any, sizeof any) == 0;
}
static bool starts(void) {
    const pid_t pid = fork();
    if (!pid) execl("/bin/true", "true", NULL);
    return pid > 0 && wait_for(pid) == 0;
}
static bool starts_a_writer(void) {
    char command[128];
    snprintf(command, sizeof command, "echo >>%s", file);
    return system(command) == 0;
}
static bool maps_code(void) {
    return mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED;
}
static bool uses_null(void) {
    return opens("/dev/null", O_WRONLY);
}
static bool gains_files(void) { // a call that the lists do not know, as an old kernel answers it
    return syscall(1000) < 0 && errno == ENOSYS && syscall(SYS_pidfd_open, victim, 0) >= 0;
}

enum { LEARNERS = 1, NODES = 2, ENVIRONMENTS = 4 };
static const struct deed {
    bool (*done)(void);
    int refused; // to
    const char *name;
} deeds[] = {{reads, LEARNERS | NODES, "read"},
             {writes, LEARNERS | NODES | ENVIRONMENTS, "write"},
             {truncates, LEARNERS | NODES | ENVIRONMENTS, "truncate"},
             {renames, LEARNERS | NODES | ENVIRONMENTS, "rename"},
             {changes_mode, LEARNERS | NODES | ENVIRONMENTS, "chmod"},
             {opens_memory, LEARNERS | NODES | ENVIRONMENTS, "open memory"},
             {reads_memory, LEARNERS | NODES | ENVIRONMENTS, "read memory"},
             {traces, LEARNERS | NODES | ENVIRONMENTS, "trace"},
             {signals, LEARNERS | NODES | ENVIRONMENTS, "kill"},
             {limits, LEARNERS | NODES | ENVIRONMENTS, "prlimit"},
             {makes_socket, LEARNERS | ENVIRONMENTS, "socket"},
             {makes_local_socket, LEARNERS | NODES | ENVIRONMENTS, "local socket"},
             {makes_pair, LEARNERS | NODES, "socket pair"},
             {binds, LEARNERS | NODES | ENVIRONMENTS, "bind"},
             {starts, LEARNERS | NODES, "start"},
             {starts_a_writer, LEARNERS | NODES | ENVIRONMENTS, "write by a shell"},
             {maps_code, LEARNERS | NODES, "map code"},
             {uses_null, LEARNERS | NODES, "use /dev/null"},
             {gains_files, LEARNERS | NODES, "open a pidfd"},
             {sends_to_a_name, LEARNERS | NODES | ENVIRONMENTS, "send to a named socket"},
             {makes_users, LEARNERS | NODES | ENVIRONMENTS, "user namespace"},
             {moves, LEARNERS | NODES | ENVIRONMENTS, "set affinity"},
             {sets_flags, LEARNERS | NODES | ENVIRONMENTS, "set a file's flags"},
             {leases, LEARNERS | NODES | ENVIRONMENTS, "lease"}};
enum { DEEDS = sizeof deeds / sizeof *deeds };

static void setup(void) {
    snprintf(file, sizeof file, "/tmp/farm-confine-%d", (int)getpid());
    must_hold(writes(), "a file");
    if (!(victim = fork())) pause();
}

static void teardown(void) {
    kill(victim, SIGKILL);
    unlink(file);
}

// Bits of the deeds that a child can do, confined as `who`.
static unsigned do_all(int who) {
    struct farm_error err;
    unsigned *done = mmap(NULL, sizeof *done, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const pid_t pid = fork();
    if (!pid) {
        if (who == ENVIRONMENTS) must(farm_confine_environment(&err), &err);
        if (who == LEARNERS || who == NODES) must(farm_confine_bridge(who == NODES, &err), &err);
        for (unsigned d = 0; d < DEEDS; d++) *done |= (unsigned)deeds[d].done() << d;
        _exit(0);
    }
    cr_assert_eq(wait_for(pid), 0);
    return *done;
}

TestSuite(confine, .init = setup, .fini = teardown);

Test(confine, refuses_each_deed_to_those_it_is_meant_for) {
    char lacks[256];
    const bool whole = !farm_confine_lacks(lacks, sizeof lacks);
    const unsigned before = do_all(0);
    for (int who = LEARNERS; whole && who <= ENVIRONMENTS; who *= 2) {
        const unsigned after = do_all(who);
        for (unsigned d = 0; d < DEEDS; d++) {
            if (!(before >> d & 1)) fprintf(stderr, "%s: refused by this machine to all\n", deeds[d].name);
            cr_expect_eq(after >> d & 1, (before >> d & 1) && !(deeds[d].refused & who), "%s by %d", deeds[d].name,
                         who);
        }
    }
    cr_expect(before & 1 && before >> 1 & 1 && before >> 10 & 1 && before >> 14 & 1);
    if (!whole) cr_skip_test("%s", lacks);
}

// In a child, which ends without the checks at exit that trace it.
static int confine_without_landlock(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_landlock_create_ruleset, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    struct farm_error err;
    char lacks[256];
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    must_hold(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0, "a filter");
    must_hold(farm_confine_lacks(lacks, sizeof lacks), "Landlock is missing");
    must_hold(
        !strcmp(
            lacks,
            "no Landlock (Function not implemented; Linux 5.13 has it): environments can write files and send signals"),
        lacks);
    must(farm_confine_environment(&err), &err);
    must_hold(writes() && signals(), "files are open");
    must_hold(!makes_socket() && !traces() && !changes_mode() && !limits(), "calls are refused");
    return 0;
}

Test(confine, works_on_without_landlock_and_says_what_is_open) {
    const pid_t pid = fork();
    if (!pid) _exit(confine_without_landlock());
    cr_expect_eq(wait_for(pid), 0);
}
