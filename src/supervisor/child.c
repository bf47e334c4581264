// See child.h.
#include "supervisor/child.h"

#include <errno.h>
#include <fcntl.h>
#include <numaif.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/confine.h"
#include "base/log.h"
#include "base/program.h"

enum { EXIT_NOT_STARTED = 127 };

static void reset_signals(const sigset_t *mask) {
    struct sigaction standard = {.sa_handler = SIG_DFL}, ignore = {.sa_handler = SIG_IGN};
    for (int number = 1; number < NSIG; number++) // fails for SIGKILL, SIGSTOP and the C library's own
        sigaction(number, number == SIGUSR1 || number == SIGUSR2 ? &ignore : &standard, NULL); // batch systems send
                                                                                               // them to all processes
    sigprocmask(SIG_SETMASK, mask, NULL);
}

static void redirect(int output_fd) {
    int null = open("/dev/null", O_RDONLY);
    if (null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(output_fd, STDOUT_FILENO) < 0 ||
        dup2(output_fd, STDERR_FILENO) < 0)
        _exit(EXIT_NOT_STARTED);
}

static int ascending(const void *a, const void *b) {
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

// Closes everything above 2 but the descriptors to keep, and lets those survive exec.
static void close_others(const struct farm_worker_spec *spec) {
    unsigned next = STDERR_FILENO + 1;
    int *keep = malloc((spec->keep_count + 1) * sizeof *keep);
    if (!keep) _exit(EXIT_NOT_STARTED);
    if (spec->keep_count) memcpy(keep, spec->keep, spec->keep_count * sizeof *keep);
    qsort(keep, spec->keep_count, sizeof *keep, ascending);
    for (size_t i = 0; i < spec->keep_count; i++) {
        if (keep[i] < (int)next) continue;
        farm_program_close(next, (unsigned)keep[i] - 1);
        if (spec->argv) fcntl(keep[i], F_SETFD, 0);
        next = (unsigned)keep[i] + 1;
    }
    farm_program_close(next, ~0u);
    free(keep);
}

// The same for a worker that is apart.
static void move_kept(const struct farm_worker_spec *spec) {
    const int end = FARM_WORKER_KEPT + (int)spec->keep_count;
    int moved[FARM_WORKER_KEPT_MAX]; // out of the way of the others
    for (size_t i = 0; i < spec->keep_count; i++) moved[i] = fcntl(spec->keep[i], F_DUPFD, end);
    for (size_t i = 0; i < spec->keep_count; i++)
        if (dup3(moved[i], FARM_WORKER_KEPT + (int)i, spec->argv ? 0 : O_CLOEXEC) < 0) _exit(EXIT_NOT_STARTED);
    farm_program_close((unsigned)end, ~0u);
}

// Best effort: a container may forbid all of it, and the worker runs without.
static void place(const struct farm_worker_spec *spec) {
    struct farm_error err;
    if (spec->cpus && farm_bitmap_pin(spec->cpus, &err)) farm_log_warn("not pinned: %s", err.message);
    if (spec->takes_turns) sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){0});
    if (spec->memory_node < 0) return;
    unsigned long nodes[16] = {0};
    size_t bits = 8 * sizeof *nodes, node = (size_t)spec->memory_node;
    if (node >= bits * (sizeof nodes / sizeof *nodes)) return;
    nodes[node / bits] = 1ul << node % bits;
    if (set_mempolicy(MPOL_PREFERRED, nodes, 8 * sizeof nodes) < 0)
        farm_log_debug("set_mempolicy to node %d: %s", spec->memory_node, strerror(errno));
}

_Noreturn void farm_child_become(const struct farm_worker_spec *spec, pid_t parent, int output_fd,
                                 const sigset_t *mask) {
    // SIGKILL at the parent's death, which may have come before this request.
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent) _exit(EXIT_NOT_STARTED);
    setpgid(0, 0);
    redirect(output_fd);
    reset_signals(mask);
    (spec->apart ? move_kept : close_others)(spec);
    prctl(PR_SET_NAME, spec->name);
    farm_log_set_role(spec->name);
    place(spec);
    struct farm_error err = {0};
    if (spec->confined && farm_confine_environment(&err)) {
        farm_log_error("%s", err.message);
        _exit(EXIT_NOT_STARTED);
    }
    if (spec->argv) {
        execve(spec->argv[0], spec->argv, spec->environment ? spec->environment : environ);
        farm_log_error("cannot start %s: %s", spec->argv[0], strerror(errno));
        _exit(EXIT_NOT_STARTED);
    }
    int status = spec->body(spec->context, &err);
    if (status) farm_log_error("%s", err.message[0] ? err.message : "ended without a reason");
    fflush(NULL);
    if (status && status == spec->final_status) raise(SIGRTMAX);
    _exit(status);
}
