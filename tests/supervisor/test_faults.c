// The supervisor where the machine refuses: every call that can fail made to fail in turn, in the supervisor and in its
// workers between fork and their own code. One fault, wherever it strikes, ends in a clear error or is got over.
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../support/faults.h"
#include "base/log.h"
#include "base/time.h"
#include "supervisor/supervisor.h"

TestSuite(supervisor, .timeout = 60);

struct page {
    volatile int ended, lives, awaited;
};

static struct page *page;

// Where the other worker has come to its own code, or ten seconds are over.
static int end_well(void *context, struct farm_error *err) {
    farm_faults_end();
    page->ended = 1;
    for (int ms = 0; page->awaited && !page->lives && ms < 10000; ms++) usleep(1000);
    return 0;
}

static _Noreturn int live_on(void *context, struct farm_error *err) {
    farm_faults_end();
    page->lives = 1;
    for (;;) pause();
}

static void no_line(void *context, size_t number, const char *line) {}

static void share_page(void) {
    page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(page != MAP_FAILED);
}

// One worker that ends and one that does not, placed and with descriptors of their own.
static enum farm_status run(const int keep[2], const struct farm_bitmap *cpus, struct farm_error *err) {
    struct farm_supervisor_config config = {.on_line = no_line, .tick_ms = 5, .grace_ms = 5000};
    struct farm_supervisor *supervisor;
    struct farm_worker_spec workers[] = {
        {.name = "learner", .body = end_well, .may_end = true, .keep = keep, .keep_count = 2, .memory_node = 0},
        {.name = "actor 0", .body = live_on, .cpus = cpus, .memory_node = -1}};
    enum farm_status status = farm_supervisor_make(&config, &supervisor, err);
    if (status) return status;
    for (int i = 0; i < 2 && !status; i++) status = farm_supervisor_add(supervisor, &workers[i], err);
    if (!status) status = farm_supervisor_run(supervisor, NULL, err);
    farm_supervisor_free(supervisor);
    return status;
}

static void check_nothing_left(const struct farm_sweep *sweep, const struct farm_fault *fault) {
    const char *left = farm_sweep_left(sweep, fault);
    cr_assert_null(left, "%s", left);
}

static bool is(const struct farm_fault *fault, const char *call) {
    return fault->call && strcmp(fault->call, call) == 0;
}

// What cannot be got over.
static bool is_fatal(const struct farm_fault *fault) {
    return is(fault, "calloc") || is(fault, "realloc") || is(fault, "signalfd") || is(fault, "pipe2") ||
           is(fault, "fork") || is(fault, "pidfd_open");
}

static bool same_mask(const sigset_t *a, const sigset_t *b) {
    for (int number = 1; number < 65; number++)
        if (sigismember(a, number) != sigismember(b, number)) return false;
    return true;
}

Test(supervisor, survives_the_failure_of_every_call) {
    share_page();
    farm_log_set_level(FARM_LOG_ERROR);
    int keep[2] = {open("/dev/null", O_RDONLY | O_CLOEXEC), open("/dev/null", O_RDONLY | O_CLOEXEC)};
    struct farm_bitmap cpus = {0};
    for (int cpu = 0; cpu < 1024; cpu++) farm_bitmap_set(&cpus, cpu);
    sigset_t before, after;
    sigprocmask(SIG_BLOCK, NULL, &before);
    struct farm_sweep sweep = {0};
    unsigned fatal = 0;
    while (farm_sweep_next(&sweep)) {
        struct farm_error err = {0};
        page->ended = page->lives = 0;
        page->awaited = 1;
        enum farm_status status = run(keep, &cpus, &err);
        struct farm_fault fault = farm_sweep_end(&sweep);
        if (status) {
            cr_assert(is_fatal(&fault), "process %u, call %u, %s: %s", fault.process, fault.number, fault.call,
                      err.message);
            cr_assert_eq(status, FARM_E_LIMIT, "%s with %s: %s", fault.call, strerror(fault.error), err.message);
            cr_assert_eq(err.sys_errno, fault.error, "%s: %s", fault.call, err.message);
            fatal++;
        } else {
            cr_assert(!is_fatal(&fault), "%s was not noticed", fault.call);
            cr_assert_eq(page->ended, 1, "%s has failed, and the learner never ran", fault.call);
        }
        sigprocmask(SIG_BLOCK, NULL, &after);
        cr_assert(same_mask(&before, &after), "%s has failed: the signal mask is not given back", fault.call);
        check_nothing_left(&sweep, &fault);
        cr_assert_lt(sweep.number, 400, "every call has failed, and it still does not come through");
    }
    cr_assert_geq(fatal, 10);
    cr_assert_gt(sweep.faults, 30);
    close(keep[0]), close(keep[1]);
}

// ---- what a worker meets between fork and its own code ----

// A supervisor of this one worker, before it runs: until then no call fails.
static struct farm_supervisor *ready(struct farm_supervisor_config config, struct farm_worker_spec spec) {
    struct farm_supervisor *supervisor;
    struct farm_error err = {0};
    if (!config.on_line) config.on_line = no_line;
    snprintf(spec.name, sizeof spec.name, "actor 0");
    share_page();
    cr_assert_eq(farm_supervisor_make(&config, &supervisor, &err), FARM_OK, "%s", err.message);
    cr_assert_eq(farm_supervisor_add(supervisor, &spec, &err), FARM_OK, "%s", err.message);
    return supervisor;
}

static enum farm_status run_to_its_end(struct farm_supervisor *supervisor, struct farm_error *err) {
    const enum farm_status status = farm_supervisor_run(supervisor, NULL, err);
    farm_supervisor_free(supervisor);
    return status;
}

// `call` always fails; error 0: none does.
static enum farm_status run_one(const char *call, int error, struct farm_error *err) {
    struct farm_bitmap cpus = {0};
    farm_bitmap_set(&cpus, 0);
    farm_log_set_level(FARM_LOG_DEBUG);
    struct farm_supervisor *supervisor =
        ready((struct farm_supervisor_config){.tick_ms = 5, .deaths_max = 2},
              (struct farm_worker_spec){.body = end_well, .may_end = true, .memory_node = 0, .cpus = &cpus});
    if (error) farm_faults_fail(call, 1, 1000, error);
    return run_to_its_end(supervisor, err);
}

Test(supervisor, a_worker_that_cannot_be_made_safe_is_not_started) {
    static const struct {
        const char *call;
        int error;
    } cases[] = {
        {"prctl", EINVAL},  // it would outlive its supervisor
        {"getppid", EPERM}, // its supervisor has died already
        {"open", EMFILE},   // of /dev/null
        {"malloc", ENOMEM},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct farm_error err = {0};
        farm_faults_clear();
        cr_assert_eq(run_one(cases[i].call, cases[i].error, &err), FARM_E_DEAD, "%s", cases[i].call);
        cr_assert_eq(page->ended, 0, "%s has failed", cases[i].call);
        cr_assert(strstr(err.message, "ended with exit status 127"), "%s: %s", cases[i].call, err.message);
    }
}

int __real_dup2(int from, int to);
static int number_not_to_be_had;
static int dup2_but_for_one(int from, int to) {
    return to == number_not_to_be_had ? -1 : __real_dup2(from, to);
}

Test(supervisor, a_worker_without_its_three_streams_is_not_started) {
    for (number_not_to_be_had = 0; number_not_to_be_had < 3; number_not_to_be_had++) {
        struct farm_error err = {0};
        farm_faults_clear();
        farm_faults_replace("dup2", (void (*)(void))dup2_but_for_one);
        cr_assert_eq(run_one(NULL, 0, &err), FARM_E_DEAD, "stream %d", number_not_to_be_had);
        cr_assert_eq(page->ended, 0);
        cr_assert(strstr(err.message, "ended with exit status 127"), "%s", err.message);
    }
}

Test(supervisor, a_worker_that_cannot_be_placed_runs_without) {
    struct farm_error err = {0};
    cr_assert_eq(run_one("set_mempolicy", EPERM, &err), FARM_OK, "%s", err.message);
    cr_assert_eq(page->ended, 1);
    cr_assert_geq(farm_faults_made("set_mempolicy"), 1);
    farm_faults_clear();
    cr_assert_eq(run_one("sched_setaffinity", EINVAL, &err), FARM_OK, "%s", err.message);
    cr_assert_eq(page->ended, 1);
    cr_assert_geq(farm_faults_made("sched_setaffinity"), 1);
}

// What the worker of the next test finds open, as it sees it.
static int count_open(void *context, struct farm_error *err) {
    const int *fds = context;
    farm_faults_end();
    page->ended =
        1 + (fcntl(fds[0], F_GETFD) >= 0) + 2 * (fcntl(fds[1], F_GETFD) >= 0) + 4 * (fcntl(fds[2], F_GETFD) >= 0);
    return 0;
}

Test(supervisor, a_worker_inherits_no_more_where_close_range_is_refused) {
    int fds[3];
    for (int i = 0; i < 3; i++) fds[i] = open("/dev/null", O_RDONLY);
    struct farm_error err = {0};
    const struct farm_worker_spec spec = {
        .body = count_open, .context = fds, .may_end = true, .memory_node = -1, .keep = &fds[1], .keep_count = 1};
    struct farm_supervisor *supervisor = ready((struct farm_supervisor_config){.tick_ms = 5}, spec);
    farm_faults_fail("close_range", 1, 1000, ENOSYS);
    cr_assert_eq(run_to_its_end(supervisor, &err), FARM_OK, "%s", err.message);
    cr_assert_geq(farm_faults_made("close_range"), 2);
    cr_assert_eq(page->ended, 1 + 2, "open in the worker: %d", page->ended - 1);
    for (int i = 0; i < 3; i++) close(fds[i]);
}

Test(supervisor, a_question_that_fails_is_asked_again) {
    struct farm_error err = {0};
    struct farm_supervisor *supervisor =
        ready((struct farm_supervisor_config){.tick_ms = 5},
              (struct farm_worker_spec){.body = end_well, .may_end = true, .memory_node = -1});
    farm_faults_fail("waitid", 1, 2, EINTR);
    farm_faults_fail("poll", 1, 5, EINTR);
    cr_assert_eq(run_to_its_end(supervisor, &err), FARM_OK, "%s", err.message);
    cr_assert_eq(farm_faults_made("waitid"), 2);
    cr_assert_eq(page->ended, 1);
    cr_assert_eq(waitpid(-1, NULL, WNOHANG), -1, "a process is left");
}

Test(supervisor, an_output_that_cannot_be_read_is_closed_and_its_worker_runs_on) {
    struct farm_error err = {0};
    cr_assert_eq(run_one("read", EIO, &err), FARM_OK, "%s", err.message);
    cr_assert_eq(page->ended, 1);
}

// ---- a worker that is faster than its supervisor ----

static int step_and_die(void *context, struct farm_error *err) {
    farm_faults_end();
    page->lives++;
    raise(SIGSEGV);
    return 0;
}
static uint64_t steps(void *context, size_t number) {
    return (uint64_t)page->lives;
}
static enum farm_supervisor_turn until_twelve_lives(void *context) {
    return page->lives >= 12 ? FARM_TURN_STOP : FARM_TURN_ON;
}

int __real_pidfd_open(pid_t pid, unsigned flags);
static int pidfd_of_a_dead_one(pid_t pid, unsigned flags) {
    siginfo_t info;
    cr_assert_eq(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
    return __real_pidfd_open(pid, flags);
}

Test(supervisor, what_a_worker_got_done_counts_even_before_its_supervisor_goes_on) {
    struct farm_error err = {0};
    const struct farm_supervisor_config config = {
        .tick_ms = 1, .backoff_max_ms = 1, .deaths_max = 3, .progress = steps, .on_tick = until_twelve_lives};
    farm_faults_replace("pidfd_open", (void (*)(void))pidfd_of_a_dead_one);
    struct farm_supervisor *supervisor =
        ready(config, (struct farm_worker_spec){.body = step_and_die, .memory_node = -1});
    cr_assert_eq(run_to_its_end(supervisor, &err), FARM_OK, "%s", err.message);
}

static int write_and_wait(void *context, struct farm_error *err) {
    farm_faults_end();
    dprintf(STDOUT_FILENO, "here I am\n");
    for (int i = 0; i < 5000 && !page->lives; i++) usleep(1000);
    return 0;
}
static void note_line(void *context, size_t number, const char *line) {
    page->lives += strcmp(line, "here I am") == 0;
}

Test(supervisor, a_read_that_a_signal_cuts_short_loses_no_line) {
    static const int errors[] = {EINTR, EAGAIN};
    for (int i = 0; i < 2; i++) {
        struct farm_supervisor *supervisor =
            ready((struct farm_supervisor_config){.on_line = note_line},
                  (struct farm_worker_spec){.body = write_and_wait, .may_end = true, .memory_node = -1});
        farm_faults_clear();
        farm_faults_fail("read", 1, 30, errors[i]);
        cr_assert_eq(run_to_its_end(supervisor, NULL), FARM_OK);
        cr_assert_eq(farm_faults_made("read"), 30);
        cr_assert_eq(page->lives, 1);
    }
}
