// The supervisor on a machine that refuses: each call that can fail fails in turn, in the supervisor and in its workers
// between fork and their own code. Each fault ends in a clear error or changes nothing.
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../support/must.h"
#include "../support/sweep.h"
#include "base/log.h"
#include "supervisor/supervisor.h"

TestSuite(supervisor, .timeout = 60);

struct page {
    volatile int ended, lives, awaited;
};

static struct page *page;

// Ends when the other worker runs its own code, or after ten seconds.
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
    page = shared_memory(sizeof *page);
}

// A worker that ends and a worker that does not, with a CPU set, a node and descriptors.
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

struct run_trial {
    int keep[2];
    struct farm_bitmap cpus;
    sigset_t mask; // before the runs
    unsigned fatal;
};

static enum farm_status run_both(void *context, struct farm_error *err) {
    const struct run_trial *trial = context;
    page->ended = page->lives = 0;
    page->awaited = 1;
    return run(trial->keep, &trial->cpus, err);
}

static void finish_run(void *context, enum farm_status status, const struct farm_fault *fault,
                       const struct farm_error *err) {
    struct run_trial *trial = context;
    sigset_t now;
    trial->fatal += status != FARM_OK;
    if (!status) cr_assert_eq(page->ended, 1, "%s failed, and the learner never ran", fault->call);
    sigprocmask(SIG_BLOCK, NULL, &now);
    for (int number = 1; number < 65; number++)
        cr_assert_eq(sigismember(&trial->mask, number), sigismember(&now, number), "%s failed: signal %d", fault->call,
                     number);
}

Test(supervisor, survives_the_failure_of_every_call) {
    static const struct farm_outcome outcomes[] = {
        {"calloc", 0, ENDS_LIMIT},
        {"realloc", 0, ENDS_LIMIT},
        {"signalfd", 0, ENDS_LIMIT},
        {"pipe2", 0, ENDS_LIMIT},
        {"fork", 0, ENDS_LIMIT},
        {"farm_pidfd_open", 0, ENDS_LIMIT},
        {NULL, 0, 0},
    };
    const struct farm_trial trial = {run_both, finish_run, outcomes, false};
    struct run_trial context = {
        .keep = {open("/dev/null", O_RDONLY | O_CLOEXEC), open("/dev/null", O_RDONLY | O_CLOEXEC)}};
    share_page();
    farm_log_set_level(FARM_LOG_ERROR);
    for (int cpu = 0; cpu < 1024; cpu++) farm_bitmap_set(&context.cpus, cpu);
    sigprocmask(SIG_BLOCK, NULL, &context.mask);
    cr_assert_gt(sweep_calls(&trial, &context), 30);
    cr_assert_geq(context.fatal, 10);
    close(context.keep[0]), close(context.keep[1]);
}

// ---- what a worker meets between fork and its own code ----

static struct farm_error run_err; // the last run's

// Makes a supervisor of one worker; the caller adds faults before it runs.
static struct farm_supervisor *make_supervisor(struct farm_supervisor_config config, struct farm_worker_spec spec) {
    struct farm_supervisor *supervisor;
    if (!config.on_line) config.on_line = no_line;
    if (!config.tick_ms) config.tick_ms = 5;
    snprintf(spec.name, sizeof spec.name, "actor 0");
    share_page();
    cr_assert_eq(farm_supervisor_make(&config, &supervisor, &run_err), FARM_OK, "%s", run_err.message);
    cr_assert_eq(farm_supervisor_add(supervisor, &spec, &run_err), FARM_OK, "%s", run_err.message);
    return supervisor;
}

// A supervisor of a worker; the last arguments are fields of its specification.
#define MAKE(config, ...) make_supervisor(config, (struct farm_worker_spec){.memory_node = -1, __VA_ARGS__})
static const struct farm_supervisor_config usual;

static enum farm_status run_to_its_end(struct farm_supervisor *supervisor) {
    const enum farm_status status = farm_supervisor_run(supervisor, NULL, &run_err);
    farm_supervisor_free(supervisor);
    return status;
}

// Runs one worker while `call` always fails (error 0: while none does).
static enum farm_status run_one(const char *call, int error) {
    const struct farm_supervisor_config config = {.deaths_max = 2};
    struct farm_bitmap cpus = {0};
    farm_bitmap_set(&cpus, 0);
    farm_log_set_level(FARM_LOG_DEBUG);
    struct farm_worker_spec spec = {.body = end_well, .may_end = true, .memory_node = 0, .cpus = &cpus};
    struct farm_supervisor *supervisor = make_supervisor(config, spec);
    if (error) farm_faults_fail(call, 1, 1000, error);
    return run_to_its_end(supervisor);
}

int __real_dup2(int from, int to);
static int stream_refused; // that dup2 does not replace; -1: none
static int dup2_but_for_one(int from, int to) {
    return to == stream_refused ? -1 : __real_dup2(from, to);
}

Test(supervisor, a_worker_that_cannot_be_made_safe_is_not_started) {
    static const struct {
        const char *call;
        int error, stream;
    } cases[] = {
        {"prctl", EINVAL, -1},  // it would outlive its supervisor
        {"getppid", EPERM, -1}, // its supervisor has died already
        {"open", EMFILE, -1},   // of /dev/null
        {"malloc", ENOMEM, -1}, {NULL, 0, 0}, {NULL, 0, 1}, {NULL, 0, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        farm_faults_clear();
        stream_refused = cases[i].stream;
        farm_faults_replace("dup2", (void (*)(void))dup2_but_for_one);
        cr_assert_eq(run_one(cases[i].call, cases[i].error), FARM_E_DEAD, "case %zu", i);
        cr_assert_eq(page->ended, 0, "case %zu", i);
        cr_assert(strstr(run_err.message, "ended with exit status 127"), "case %zu: %s", i, run_err.message);
    }
}

Test(supervisor, a_worker_runs_without_what_is_not_vital) {
    static const struct {
        const char *call;
        int error;
    } cases[] = {{"set_mempolicy", EPERM}, {"sched_setaffinity", EINVAL}, {"read", EIO}}; // read: of its output
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        farm_faults_clear();
        cr_assert_eq(run_one(cases[i].call, cases[i].error), FARM_OK, "%s: %s", cases[i].call, run_err.message);
        cr_assert_eq(page->ended, 1);
        cr_assert_geq(farm_faults_made(cases[i].call), 1);
    }
}

// Reports which descriptors the worker of the next test has open.
static int count_open(void *context, struct farm_error *err) {
    const int *fds = context;
    farm_faults_end();
    page->ended =
        1 + (fcntl(fds[0], F_GETFD) >= 0) + 2 * (fcntl(fds[1], F_GETFD) >= 0) + 4 * (fcntl(fds[2], F_GETFD) >= 0);
    return 0;
}

Test(supervisor, a_worker_inherits_nothing_else_without_close_range) {
    int fds[3];
    for (int i = 0; i < 3; i++) fds[i] = open("/dev/null", O_RDONLY);
    struct farm_supervisor *supervisor =
        MAKE(usual, .body = count_open, .context = fds, .may_end = true, .keep = &fds[1], .keep_count = 1);
    farm_faults_fail("close_range", 1, 1000, ENOSYS);
    cr_assert_eq(run_to_its_end(supervisor), FARM_OK, "%s", run_err.message);
    cr_assert_geq(farm_faults_made("close_range"), 2);
    cr_assert_eq(page->ended, 1 + 2, "open in the worker: %d", page->ended - 1);
    for (int i = 0; i < 3; i++) close(fds[i]);
}

Test(supervisor, calls_that_a_signal_interrupts_are_repeated) {
    struct farm_supervisor *supervisor = MAKE(usual, .body = end_well, .may_end = true);
    farm_faults_fail("waitid", 1, 2, EINTR);
    farm_faults_fail("poll", 1, 5, EINTR);
    cr_assert_eq(run_to_its_end(supervisor), FARM_OK, "%s", run_err.message);
    cr_assert_eq(farm_faults_made("waitid"), 2);
    cr_assert_eq(page->ended, 1);
    cr_assert_eq(waitpid(-1, NULL, WNOHANG), -1, "a process is left behind");
}

// ---- a machine that refuses to start a worker again ----

static const char *refused; // the call that fails after the death of the second worker
static unsigned refusals;
static int prepared[2], losses;
static struct farm_supervisor *refusing;

static void refuse_restart(void *context, size_t number, const struct farm_death *death) {
    if (number == 1) farm_faults_fail(refused, 1, refusals, EMFILE);
}
static void note_start(void *context, size_t number, uint64_t starts) {
    prepared[number]++;
}
static void note_loss(void *context, size_t number, const char *why) {
    losses++;
    cr_assert_eq(number, 1);
    cr_assert(strstr(why, "actor 0: ") && strstr(why, strerror(EMFILE)), "%s", why);
}
// The second worker dies in its first life and stays in its second.
static int die_once(void *context, struct farm_error *err) {
    farm_faults_end();
    if (++page->ended == 1) raise(SIGKILL);
    live_on(context, err);
}
static enum farm_supervisor_turn until_lost_or_back(void *context) {
    return losses || (prepared[1] == 2 && farm_supervisor_pid(refusing, 1)) ? FARM_TURN_STOP : FARM_TURN_ON;
}

// A run in which `refusals` starts of an actor after its death fail.
static enum farm_status run_refused(bool expendable) {
    const struct farm_supervisor_config config = {.tick_ms = 1,
                                                  .short_lives_max = 6,
                                                  .before_start = note_start,
                                                  .on_death = refuse_restart,
                                                  .on_loss = note_loss,
                                                  .on_tick = until_lost_or_back};
    farm_faults_clear();
    prepared[1] = losses = 0;
    farm_log_set_level(FARM_LOG_ERROR);
    refusing = MAKE(config, .body = live_on);
    const struct farm_worker_spec actor = {
        .name = "actor 0", .body = die_once, .memory_node = -1, .expendable = expendable};
    cr_assert_eq(farm_supervisor_add(refusing, &actor, &run_err), FARM_OK, "%s", run_err.message);
    return run_to_its_end(refusing);
}

Test(supervisor, an_expendable_worker_that_cannot_be_started_again_is_tried_and_ends_alone) {
    static const char *const calls[] = {"pipe2", "fork", "farm_pidfd_open"};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        refused = calls[i];
        refusals = 3;
        cr_assert_eq(run_refused(true), FARM_OK, "%s: %s", refused, run_err.message);
        cr_assert_eq(farm_faults_made(refused), 3, "%s", refused);
        cr_assert(!losses && prepared[1] == 2, "%s: %d losses, %d starts", refused, losses, prepared[1]);
        refusals = 1000;
        cr_assert_eq(run_refused(true), FARM_OK, "%s: %s", refused, run_err.message);
        cr_assert_eq(losses, 1, "%s", refused);
        cr_assert_eq(farm_faults_made(refused), 5, "%s", refused);
        cr_assert_eq(run_refused(false), FARM_E_LIMIT, "%s: any other ends the run", refused);
    }
}

static int refuse_pidfd(pid_t pid) {
    errno = ENOSYS;
    return -1;
}

Test(supervisor, names_the_kernel_that_it_needs) {
    farm_faults_replace("farm_pidfd_open", (void (*)(void))refuse_pidfd);
    cr_assert_eq(run_to_its_end(MAKE((struct farm_supervisor_config){0}, .body = live_on)), FARM_E_UNSUPPORTED);
    cr_assert(strstr(run_err.message, "Linux 5.4 or later"), "%s", run_err.message);
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

int __real_farm_pidfd_open(pid_t pid);
static int open_pidfd_after_death(pid_t pid) {
    siginfo_t info;
    cr_assert_eq(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
    return __real_farm_pidfd_open(pid);
}

Test(supervisor, progress_of_a_worker_that_dies_at_once_is_counted) {
    const struct farm_supervisor_config config = {
        .tick_ms = 1, .backoff_max_ms = 1, .deaths_max = 3, .progress = steps, .on_tick = until_twelve_lives};
    farm_faults_replace("farm_pidfd_open", (void (*)(void))open_pidfd_after_death);
    cr_assert_eq(run_to_its_end(MAKE(config, .body = step_and_die)), FARM_OK, "%s", run_err.message);
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

Test(supervisor, an_interrupted_read_loses_no_line) {
    static const int errors[] = {EINTR, EAGAIN};
    const struct farm_supervisor_config config = {.on_line = note_line};
    for (int i = 0; i < 2; i++) {
        struct farm_supervisor *supervisor = MAKE(config, .body = write_and_wait, .may_end = true);
        farm_faults_clear();
        farm_faults_fail("read", 1, 30, errors[i]);
        cr_assert_eq(run_to_its_end(supervisor), FARM_OK);
        cr_assert_eq(farm_faults_made("read"), 30);
        cr_assert_eq(page->lives, 1);
    }
}
