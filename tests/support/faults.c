// See faults.h. ld(1), --wrap: a call of `name` calls __wrap_name; __real_name is the function itself.
#include "faults.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RULES_MAX = 8, NAME_BYTES = 32 };

struct rule {
    char call[NAME_BYTES];
    unsigned first, count, seen, made;
    int error;
    void (*replacement)(void);
};

// Shared with the children.
struct plan {
    unsigned sweeping, process, at, variant;
    unsigned forks;         // forks by all processes since the operation began
    unsigned hit, hit_last; // whether the fault was made, and with the call's last error
    char hit_call[NAME_BYTES];
    int hit_error;
    unsigned rule_count;
    struct rule rules[RULES_MAX];
};

static struct plan *plan; // NULL: no call fails
static unsigned process;  // 0: the sweeping process; 1..: in the order of their forks
static unsigned calls;    // by this process since the operation, or the process, began
static bool off;
static long blocks, mapped_bytes;

void *__real_mmap(void *start, size_t bytes, int protection, int flags, int fd, off_t offset);

static struct plan *shared_plan(void) {
    if (!plan) {
        plan = __real_mmap(NULL, sizeof *plan, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        assert(plan != MAP_FAILED);
        atexit(farm_faults_end); // exit handlers are not under test
    }
    return plan;
}

static struct rule *rule_of(const char *call) {
    for (unsigned i = 0; i < plan->rule_count; i++)
        if (strcmp(plan->rules[i].call, call) == 0) return &plan->rules[i];
    return NULL;
}

// Returns the error of this call; 0: it succeeds. errors[count]: its usual errors.
static int fault_for(const char *call, const int *errors, unsigned count) {
    if (!plan || off) return 0;
    struct rule *rule = rule_of(call);
    if (rule && rule->error) {
        unsigned number = __atomic_add_fetch(&rule->seen, 1, __ATOMIC_SEQ_CST);
        if (number >= rule->first && number - rule->first < rule->count) {
            __atomic_add_fetch(&rule->made, 1, __ATOMIC_SEQ_CST);
            return rule->error;
        }
    }
    if (!__atomic_load_n(&plan->sweeping, __ATOMIC_SEQ_CST) || !count) return 0;
    if (process != plan->process || __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST) != plan->at) return 0;
    unsigned variant = plan->variant < count ? plan->variant : count - 1;
    snprintf(plan->hit_call, sizeof plan->hit_call, "%s", call);
    plan->hit_error = errors[variant];
    plan->hit_last = variant + 1 == count;
    __atomic_store_n(&plan->hit, 1, __ATOMIC_SEQ_CST);
    return errors[variant];
}

static void (*replacement_of(const char *call))(void) {
    const struct rule *rule = plan && !off ? rule_of(call) : NULL;
    return rule ? rule->replacement : NULL;
}

// FAULT(type, name, parameters, arguments, value on failure, usual errors...). Without errors it fails by rules only.
#define FAULT(type, name, parameters, arguments, failed, ...)                                                          \
    type __real_##name parameters;                                                                                     \
    type __wrap_##name parameters;                                                                                     \
    type __wrap_##name parameters {                                                                                    \
        static const int errors[] = {__VA_ARGS__ + 0};                                                                 \
        int error = fault_for(#name, errors, errors[0] ? sizeof errors / sizeof *errors : 0);                          \
        if (error) {                                                                                                   \
            errno = error;                                                                                             \
            return failed;                                                                                             \
        }                                                                                                              \
        type(*replacement) parameters = (type(*) parameters)replacement_of(#name);                                     \
        return replacement ? replacement arguments : __real_##name arguments;                                          \
    }

// One line each: mk/tests.mk reads the names.
// clang-format off
// Variadic functions are called with all their possible arguments.
FAULT(int, memfd_create, (const char *name, unsigned flags), (name, flags), -1, EMFILE, ENFILE, ENOMEM, ENOSYS, EINVAL)
FAULT(int, ftruncate, (int fd, off_t bytes), (fd, bytes), -1, ENOMEM, EINVAL)
FAULT(int, fallocate, (int fd, int mode, off_t at, off_t bytes), (fd, mode, at, bytes), -1, ENOSPC, EOPNOTSUPP)
FAULT(long, mbind, (void *start, unsigned long bytes, int mode, const unsigned long *nodes, unsigned long bits, unsigned flags), (start, bytes, mode, nodes, bits, flags), -1, EPERM, ENOSYS, EINVAL, ENOMEM)
FAULT(long, move_pages, (int pid, unsigned long count, void **pages, const int *to, int *status, int flags), (pid, count, pages, to, status, flags), -1, EPERM, ENOSYS)
FAULT(int, madvise, (void *start, size_t bytes, int advice), (start, bytes, advice), -1, EINVAL, ENOMEM)
FAULT(int, fcntl, (int fd, int command, long argument), (fd, command, argument), -1, EPERM, EMFILE)
FAULT(int, open, (const char *path, int flags, unsigned mode), (path, flags, mode), -1, EMFILE, ENFILE, ENOENT)
FAULT(int, fstat, (int fd, struct stat *about), (fd, about), -1, EIO)
FAULT(int, fstatfs, (int fd, struct statfs *about), (fd, about), -1, EIO)
FAULT(int, getrlimit, (int resource, struct rlimit *limit), (resource, limit), -1, EPERM)
FAULT(int, setrlimit, (int resource, const struct rlimit *limit), (resource, limit), -1, EPERM)
FAULT(FILE *, fopen, (const char *path, const char *mode), (path, mode), NULL, ENOENT)
FAULT(int, access, (const char *path, int mode), (path, mode), -1, 0)
FAULT(int, pthread_create, (pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *argument), (thread, attributes, body, argument), error, EAGAIN)
FAULT(int, signalfd, (int fd, const sigset_t *mask, int flags), (fd, mask, flags), -1, EMFILE, ENOMEM)
FAULT(int, pipe2, (int *ends, int flags), (ends, flags), -1, EMFILE)
FAULT(int, farm_pidfd_open, (pid_t pid), (pid), -1, EMFILE)
FAULT(int, close_range, (unsigned first, unsigned last, int flags), (first, last, flags), -1, ENOSYS, EPERM)
FAULT(int, poll, (struct pollfd *polls, nfds_t count, int timeout_ms), (polls, count, timeout_ms), -1, EINTR)
FAULT(int, ppoll, (struct pollfd *polls, nfds_t count, const struct timespec *timeout, const sigset_t *mask), (polls, count, timeout, mask), -1, EINTR)
FAULT(ssize_t, read, (int fd, void *data, size_t bytes), (fd, data, bytes), -1, EINTR, EAGAIN)
FAULT(ssize_t, preadv2, (int fd, const struct iovec *into, int count, off_t at, int flags), (fd, into, count, at, flags), -1, EAGAIN)
FAULT(int, fchmod, (int fd, mode_t mode), (fd, mode), -1, EPERM)
FAULT(int, waitid, (idtype_t type, id_t id, siginfo_t *info, int options), (type, id, info, options), -1, 0)
FAULT(int, prctl, (int option, unsigned long a, unsigned long b, unsigned long c, unsigned long d), (option, a, b, c, d), -1, EINVAL)
FAULT(pid_t, getppid, (void), (), 1, 0)
FAULT(int, dup2, (int from, int to), (from, to), -1, EBUSY)
FAULT(long, set_mempolicy, (int mode, const unsigned long *nodes, unsigned long bits), (mode, nodes, bits), -1, EPERM)
FAULT(int, sched_setaffinity, (pid_t pid, size_t bytes, const cpu_set_t *cpus), (pid, bytes, cpus), -1, EINVAL)
// clang-format on

// ---- resources ----

// For functions whose results are counted.
#define COUNTED_FAULT(name, failed, ...)                                                                               \
    static const int errors[] = {__VA_ARGS__};                                                                         \
    int error = fault_for(#name, errors, sizeof errors / sizeof *errors);                                              \
    if (error) {                                                                                                       \
        errno = error;                                                                                                 \
        return failed;                                                                                                 \
    }

static long whole_pages(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (long)((bytes + page - 1) / page * page);
}

static void *count_block(void *block) {
    if (block) __atomic_add_fetch(&blocks, 1, __ATOMIC_SEQ_CST);
    return block;
}

void *__wrap_mmap(void *start, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *start, size_t bytes, int protection, int flags, int fd, off_t offset) {
    COUNTED_FAULT(mmap, MAP_FAILED, ENOMEM, EAGAIN)
    void *mapped = __real_mmap(start, bytes, protection, flags, fd, offset);
    // MAP_FIXED maps over reserved addresses, which were counted.
    if (mapped != MAP_FAILED && !(flags & MAP_FIXED))
        __atomic_add_fetch(&mapped_bytes, whole_pages(bytes), __ATOMIC_SEQ_CST);
    return mapped;
}

int __real_munmap(void *start, size_t bytes);
int __wrap_munmap(void *start, size_t bytes);
int __wrap_munmap(void *start, size_t bytes) {
    int failed = __real_munmap(start, bytes);
    if (!failed) __atomic_sub_fetch(&mapped_bytes, whole_pages(bytes), __ATOMIC_SEQ_CST);
    return failed;
}

void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes) {
    COUNTED_FAULT(malloc, NULL, ENOMEM)
    return count_block(__real_malloc(bytes));
}

void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes) {
    COUNTED_FAULT(calloc, NULL, ENOMEM)
    return count_block(__real_calloc(count, bytes));
}

void *__real_realloc(void *block, size_t bytes);
void *__wrap_realloc(void *block, size_t bytes);
void *__wrap_realloc(void *block, size_t bytes) {
    COUNTED_FAULT(realloc, NULL, ENOMEM)
    void *grown = __real_realloc(block, bytes);
    return block ? grown : count_block(grown);
}

void __real_free(void *block);
void __wrap_free(void *block);
void __wrap_free(void *block) {
    if (block) __atomic_sub_fetch(&blocks, 1, __ATOMIC_SEQ_CST);
    __real_free(block);
}

pid_t __real_fork(void);
pid_t __wrap_fork(void);
pid_t __wrap_fork(void) {
    COUNTED_FAULT(fork, -1, EAGAIN)
    if (!plan) return __real_fork();
    unsigned number = __atomic_add_fetch(&plan->forks, 1, __ATOMIC_SEQ_CST);
    pid_t pid = __real_fork();
    if (!pid) process = number, calls = 0;
    return pid;
}

static int children_now(void) {
    char path[64], text[256];
    int children = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    FILE *file = __real_fopen(path, "re");
    while (file && fscanf(file, "%255s", text) == 1) children++;
    if (file) fclose(file);
    return children;
}

struct farm_held farm_held_now(void) {
    struct farm_held held = {.blocks = blocks, .mapped_bytes = mapped_bytes, .children = children_now()};
    DIR *folder = opendir("/proc/self/fd");
    assert(folder);
    while (readdir(folder)) held.descriptors++;
    closedir(folder);
    return held;
}

// ---- rules ----

static struct rule *new_rule(const char *call) {
    struct rule *rule = &shared_plan()->rules[plan->rule_count];
    assert(plan->rule_count < RULES_MAX && !rule_of(call)); // one for each function
    *rule = (struct rule){0};
    snprintf(rule->call, sizeof rule->call, "%s", call);
    plan->rule_count++;
    return rule;
}

void farm_faults_fail(const char *call, unsigned first, unsigned count, int error) {
    struct rule *rule = new_rule(call);
    rule->first = first;
    rule->count = count;
    rule->error = error;
}

void farm_faults_replace(const char *call, void (*replacement)(void)) {
    new_rule(call)->replacement = replacement;
}

unsigned farm_faults_made(const char *call) {
    const struct rule *rule = plan ? rule_of(call) : NULL;
    return rule ? rule->made : 0;
}

void farm_faults_clear(void) {
    if (plan) plan->rule_count = 0;
}

void farm_faults_end(void) {
    off = true;
}

// ---- sweeps ----

bool farm_sweep_next(struct farm_sweep *sweep) {
    if (sweep->over) return false;
    if (!sweep->number) sweep->number = 1;
    shared_plan();
    sweep->before = farm_held_now();
    plan->process = sweep->process;
    plan->at = sweep->number;
    plan->variant = sweep->variant;
    plan->hit = plan->forks = calls = 0;
    __atomic_store_n(&plan->sweeping, 1, __ATOMIC_SEQ_CST);
    return true;
}

struct farm_fault farm_sweep_end(struct farm_sweep *sweep) {
    __atomic_store_n(&plan->sweeping, 0, __ATOMIC_SEQ_CST);
    if (!plan->hit) { // the process makes no further call
        sweep->over = sweep->process == plan->forks;
        sweep->process++;
        sweep->number = 1;
        sweep->variant = 0;
        return (struct farm_fault){0};
    }
    struct farm_fault fault = {
        .call = plan->hit_call, .error = plan->hit_error, .process = sweep->process, .number = sweep->number};
    sweep->faults++;
    sweep->variant++;
    if (plan->hit_last || sweep->one_error) {
        sweep->variant = 0;
        sweep->number++;
    }
    return fault;
}

const char *farm_sweep_left(const struct farm_sweep *sweep, const struct farm_fault *fault) {
    static char text[256];
    struct farm_held now = farm_held_now();
    const struct farm_held *before = &sweep->before;
    snprintf(text, sizeof text,
             "process %u, call %u, %s, failed, and has left behind: %ld blocks, %ld bytes mapped, %d descriptors, %d "
             "processes",
             fault->process, fault->number, fault->call ? fault->call : "nothing", now.blocks - before->blocks,
             now.mapped_bytes - before->mapped_bytes, now.descriptors - before->descriptors,
             now.children - before->children);
    return memcmp(&now, before, sizeof now) ? text : NULL;
}
