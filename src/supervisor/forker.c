// See forker.h. A request is a struct farm_fork_order and what its spec points to, with the descriptors beside it; the
// answer is an errno.
#include "supervisor/forker.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/pidfd.h"
#include "base/program.h"
#include "supervisor/child.h"

enum { ORDER_BYTES = 1 << 20, ANSWER_S = 20, FDS_MAX = 1 + FARM_WORKER_KEPT_MAX };

struct farm_fork_order {
    struct farm_worker_spec spec;
    size_t bytes;     // all of it
    int fds[FDS_MAX]; // the output pipe, then those to keep
    _Alignas(16) char rest[];
};

// ---- the forker ----

// fork(2), but for the parent. The kernel writes what the C library's fork would renew: its thread's id, and the list
// of robust mutexes. Locks need no care, because there is one thread.
static pid_t fork_sibling(volatile pid_t *child, void *thread_id) {
    void *robust = NULL;
    size_t bytes = 0;
    syscall(SYS_get_robust_list, 0, &robust, &bytes);
    const long flags = CLONE_PARENT | CLONE_PARENT_SETTID | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | SIGCHLD;
    const long pid = syscall(SYS_clone, flags, NULL, child, thread_id, thread_id); // one of the two is not read
    if (pid == 0) syscall(SYS_set_robust_list, robust, bytes);
    return (pid_t)pid;
}

static bool receive(int socket, struct farm_fork_order *order) {
    const size_t head = offsetof(struct farm_fork_order, rest);
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof order->fds)];
    struct iovec into = {order, head};
    struct msghdr message = {
        .msg_iov = &into, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    if (recvmsg(socket, &message, MSG_WAITALL | MSG_CMSG_CLOEXEC) != (ssize_t)head) return false;
    if (message.msg_flags & MSG_CTRUNC || !message.msg_controllen) return false; // no descriptors left
    memcpy(order->fds, CMSG_DATA(CMSG_FIRSTHDR(&message)), (1 + order->spec.keep_count) * sizeof(int));
    const size_t left = order->bytes - head;
    return !left || recv(socket, order->rest, left, MSG_WAITALL) == (ssize_t)left;
}

static _Noreturn void serve(const struct farm_forker *forker, int socket, pid_t parent) {
    struct farm_fork_order *order = forker->order;
    void *thread_id = NULL;
    sigset_t all, nothing;
    sigfillset(&all);
    sigemptyset(&nothing);
    sigprocmask(SIG_SETMASK, &all, NULL);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent) _exit(1);
    setpgid(0, 0); // out of Ctrl-C's reach
    prctl(PR_SET_NAME, "forker");
    farm_program_close(STDERR_FILENO + 1, (unsigned)socket - 1);
    farm_program_close((unsigned)socket + 1, ~0u);
    madvise((void *)forker->child, sizeof(pid_t), MADV_DONTFORK);
    prctl(PR_GET_TID_ADDRESS, &thread_id);
    while (receive(socket, order)) {
        const pid_t pid = thread_id ? fork_sibling(forker->child, thread_id) : -1;
        if (pid == 0) farm_child_become(&order->spec, parent, order->fds[0], &nothing);
        const int error = pid > 0 ? 0 : thread_id ? errno : ENOSYS;
        for (size_t i = 0; i <= order->spec.keep_count; i++) close(order->fds[i]);
        if (send(socket, &error, sizeof error, MSG_NOSIGNAL) != sizeof error) break;
    }
    _exit(1);
}

// ---- the supervisor ----

static void stop(struct farm_forker *forker) {
    siginfo_t info;
    if (forker->pidfd >= 0) {
        farm_pidfd_send(forker->pidfd, SIGKILL);
        while (waitid(P_PIDFD, (id_t)forker->pidfd, &info, WEXITED) < 0 && errno == EINTR) continue;
        close(forker->pidfd);
    }
    if (forker->socket >= 0) close(forker->socket);
    forker->pidfd = forker->socket = -1;
}

void farm_forker_end(struct farm_forker *forker) {
    stop(forker);
    if (forker->child) munmap((void *)forker->child, sizeof(pid_t));
    free(forker->order);
}

bool farm_forker_start(struct farm_forker *forker) {
    const pid_t parent = getpid();
    const struct timeval limit = {.tv_sec = ANSWER_S};
    int ends[2];
    stop(forker);
    if (!forker->child) {
        void *page = mmap(NULL, sizeof(pid_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED) return false;
        forker->child = page;
    }
    if (!forker->order) forker->order = calloc(1, ORDER_BYTES);
    if (!forker->order || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) return false;
    forker->socket = ends[0];
    setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(ends[0], SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    const pid_t pid = fork();
    if (pid == 0) serve(forker, ends[1], parent);
    close(ends[1]);
    if (pid > 0 && (forker->pidfd = farm_pidfd_open(pid)) < 0) kill(pid, SIGKILL), waitpid(pid, NULL, 0);
    return forker->pidfd >= 0;
}

// Copies it into the order. NULL: there is no room.
static void *add(struct farm_fork_order *order, const void *data, size_t bytes) {
    const size_t at = (order->bytes + 15) & ~(size_t)15;
    if (!data || bytes > ORDER_BYTES - at) return NULL;
    order->bytes = at + bytes;
    return memcpy((char *)order + at, data, bytes);
}

static char *const *add_words(struct farm_fork_order *order, char *const *words) {
    size_t count = 0;
    while (words && words[count]) count++;
    char **copy = add(order, words, (count + 1) * sizeof *words);
    for (size_t i = 0; copy && i < count; i++)
        if (!(copy[i] = add(order, words[i], strlen(words[i]) + 1))) return NULL;
    return copy;
}

static bool write_order(struct farm_fork_order *order, const struct farm_worker_spec *spec) {
    struct farm_worker_spec *copy = &order->spec;
    *copy = *spec;
    order->bytes = offsetof(struct farm_fork_order, rest);
    copy->keep = order->fds + 1;
    copy->cpus = add(order, spec->cpus, sizeof *spec->cpus);
    copy->context = add(order, spec->context, spec->context_bytes);
    copy->argv = add_words(order, spec->argv);
    copy->environment = add_words(order, spec->environment);
    return !copy->cpus == !spec->cpus && !copy->context == !spec->context && !copy->argv == !spec->argv &&
           !copy->environment == !spec->environment;
}

pid_t farm_forker_fork(struct farm_forker *forker, const struct farm_worker_spec *spec, int output_fd) {
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(FDS_MAX * sizeof(int))] = "";
    const size_t bytes = (1 + spec->keep_count) * sizeof(int);
    int error = E2BIG;
    if (!forker->child || (forker->pidfd < 0 && !farm_forker_start(forker))) return -1;
    if (write_order(forker->order, spec)) {
        struct iovec from = {forker->order, forker->order->bytes};
        struct msghdr message = {
            .msg_iov = &from, .msg_iovlen = 1, .msg_control = control, .msg_controllen = CMSG_SPACE(bytes)};
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        *header = (struct cmsghdr){.cmsg_len = CMSG_LEN(bytes), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(header), &output_fd, sizeof output_fd);
        if (spec->keep_count) memcpy(CMSG_DATA(header) + sizeof(int), spec->keep, bytes - sizeof(int));
        *forker->child = 0;
        // Interrupted by Ctrl-Z, which stops the forker too.
        if (TEMP_FAILURE_RETRY(sendmsg(forker->socket, &message, MSG_NOSIGNAL)) != (ssize_t)from.iov_len ||
            TEMP_FAILURE_RETRY(recv(forker->socket, &error, sizeof error, 0)) != sizeof error) {
            stop(forker); // it forks nothing after that
            farm_log_warn("the process that forks workers has ended, or did not answer within %d s", ANSWER_S);
            error = *forker->child > 0 ? 0 : ETIMEDOUT;
        }
    }
    errno = error;
    return error ? -1 : *forker->child;
}
