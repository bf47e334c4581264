// The supervisor with real processes. What the processes do is told through one shared page.
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/time.h"
#include "supervisor/supervisor.h"

struct page {
    volatile int lives, slots, pids[8], descriptors, kept_readable, group_is_own, blocked_signals, stdin_is_null;
    volatile int stopped_at[8], stop_count, events;
    volatile unsigned long progress;
};

static struct page *share(void) {
    struct page *page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(page != MAP_FAILED);
    return page;
}

struct job {
    struct page *page;
    struct farm_supervisor *supervisor;
    uint64_t started_ns;
    int killed, lives_wanted;
    char lines[2048];
    int kept_fd, number;
};

static struct farm_worker_spec worker(const char *name, int (*body)(void *, struct farm_error *), void *context) {
    struct farm_worker_spec spec = {.body = body, .context = context, .memory_node = -1};
    snprintf(spec.name, sizeof spec.name, "%s", name);
    return spec;
}

static _Noreturn void pause_for_ever(void) {
    for (;;) pause();
}

static int live_on(void *context, struct farm_error *err) {
    struct job *job = context;
    job->page->pids[__atomic_fetch_add(&job->page->slots, 1, __ATOMIC_SEQ_CST)] = getpid();
    __atomic_fetch_add(&job->page->lives, 1, __ATOMIC_SEQ_CST);
    pause_for_ever();
}

static void keep_lines(void *context, size_t number, const char *line) {
    struct job *job = context;
    size_t length = strlen(job->lines);
    snprintf(job->lines + length, sizeof job->lines - length, "%s\n", line);
}

static struct farm_supervisor *make(struct job *job, struct farm_supervisor_config config) {
    struct farm_supervisor *supervisor;
    struct farm_error err;
    config.context = job;
    config.tick_ms = 5;
    job->started_ns = farm_now_ns();
    cr_assert_eq(farm_supervisor_make(&config, &supervisor, &err), FARM_OK, "%s", err.message);
    job->supervisor = supervisor;
    return supervisor;
}

static void add(struct farm_supervisor *supervisor, const struct farm_worker_spec *spec) {
    struct farm_error err;
    cr_assert_eq(farm_supervisor_add(supervisor, spec, &err), FARM_OK, "%s", err.message);
}

static bool overdue(const struct job *job) {
    return farm_now_ns() - job->started_ns > 5000000000u;
}

// ---- restarts ----

static enum farm_supervisor_turn kill_once(void *context) {
    struct job *job = context;
    if (overdue(job)) return FARM_TURN_STOP;
    if (!job->killed && job->page->lives == 1) {
        job->killed = job->page->pids[0];
        kill(job->killed, SIGKILL);
    }
    return job->page->lives == 2 ? FARM_TURN_STOP : FARM_TURN_ON;
}

static void note_start(void *context, size_t number, uint64_t starts) {
    struct job *job = context;
    job->page->events = job->page->events * 10 + (int)starts + 1;
}

Test(supervisor, starts_a_worker_again_after_kill_9) {
    struct job job = {.page = share()};
    struct farm_supervisor *supervisor = make(
        &job, (struct farm_supervisor_config){.on_tick = kill_once, .before_start = note_start, .on_line = keep_lines});
    struct farm_worker_spec spec = worker("actor 0", live_on, &job);
    add(supervisor, &spec);
    struct farm_error err;
    cr_assert_eq(farm_supervisor_run(supervisor, NULL, &err), FARM_OK);
    cr_assert_eq(job.page->lives, 2);
    cr_assert_eq(farm_supervisor_restarts(supervisor, 0), 1);
    cr_assert_eq(job.page->events, 12, "before_start is called before each start: %d", job.page->events);
    cr_assert_lt(farm_now_ns() - job.started_ns, 1000000000u, "the first restart is immediate");
    cr_assert_eq(kill(job.page->pids[1], 0), -1, "nothing is left after run");
    farm_supervisor_free(supervisor);
}

static int say_and_fail(void *context, struct farm_error *err) {
    struct job *job = context;
    fprintf(stderr, "line of life %d\n", ++job->page->lives);
    farm_fail(err, FARM_E_NOT_FOUND, "the ROM of Pong is not there");
    return 1;
}

Test(supervisor, ends_a_crash_loop_with_the_last_words) {
    struct job job = {.page = share()};
    struct farm_supervisor *supervisor = make(&job, (struct farm_supervisor_config){.on_line = keep_lines});
    struct farm_worker_spec spec = worker("actor 7", say_and_fail, &job);
    struct farm_worker_spec other = worker("actor 8", live_on, &(struct job){.page = share()});
    add(supervisor, &spec);
    add(supervisor, &other);
    struct farm_error err;
    cr_assert_eq(farm_supervisor_run(supervisor, NULL, &err), FARM_E_DEAD);
    cr_assert_eq(job.page->lives, 5);
    cr_assert(strstr(err.message, "actor 7"), "%s", err.message);
    cr_assert(strstr(err.message, "exit status 1"), "%s", err.message);
    cr_assert(strstr(err.message, "line of life 5\n"), "%s", err.message);
    cr_assert(strstr(err.message, "the ROM of Pong is not there"), "%s", err.message);
    cr_assert(!strstr(err.message, "line of life 4"), "only the last life's words: %s", err.message);
    cr_assert(strstr(job.lines, "line of life 1\n"), "lines are passed on");
    cr_assert_eq(farm_supervisor_pid(supervisor, 1), 0);
    farm_supervisor_free(supervisor);
}

static int step_and_die(void *context, struct farm_error *err) {
    struct job *job = context;
    job->page->lives++;
    job->page->progress++;
    raise(SIGSEGV);
    return 0;
}
static uint64_t progress_of(void *context, size_t number) {
    return ((struct job *)context)->page->progress;
}
static enum farm_supervisor_turn until_lives(void *context) {
    struct job *job = context;
    return overdue(job) || job->page->lives >= job->lives_wanted ? FARM_TURN_STOP : FARM_TURN_ON;
}

Test(supervisor, keeps_restarting_a_worker_that_gets_something_done) {
    struct job job = {.page = share(), .lives_wanted = 8};
    struct farm_supervisor *supervisor =
        make(&job, (struct farm_supervisor_config){
                       .on_tick = until_lives, .progress = progress_of, .on_line = keep_lines, .backoff_max_ms = 40});
    struct farm_worker_spec spec = worker("actor 0", step_and_die, &job);
    add(supervisor, &spec);
    struct farm_error err;
    cr_assert_eq(farm_supervisor_run(supervisor, NULL, &err), FARM_OK, "%s", err.message);
    cr_assert_geq(job.page->lives, 8);
    cr_assert_gt(farm_now_ns() - job.started_ns, (10 + 20 + 40 * 4) * 1000000u, "it backs off");
    farm_supervisor_free(supervisor);
}

// ---- what a worker finds ----

static int look_around(void *context, struct farm_error *err) {
    struct job *job = context;
    struct page *page = job->page;
    DIR *folder = opendir("/proc/self/fd");
    for (struct dirent *entry; (entry = readdir(folder));)
        if (entry->d_name[0] != '.' && atoi(entry->d_name) != dirfd(folder)) page->descriptors++;
    closedir(folder);
    char byte = 0;
    page->kept_readable = pread(job->kept_fd, &byte, 1, 0) == 1 && byte == 'k';
    page->group_is_own = getpgrp() == getpid();
    page->stdin_is_null = read(STDIN_FILENO, &byte, 1) == 0;
    sigset_t mask;
    sigprocmask(SIG_BLOCK, NULL, &mask);
    for (int number = 1; number < 32; number++) page->blocked_signals += sigismember(&mask, number) == 1;
    struct sigaction action;
    sigaction(SIGUSR1, NULL, &action);
    page->blocked_signals += action.sa_handler != SIG_DFL;
    return 0;
}

static void nothing(int number) {}

Test(supervisor, gives_a_worker_its_descriptors_and_nothing_else) {
    struct job job = {.page = share()};
    char path[] = "/tmp/farm-test-XXXXXX";
    int fd = mkstemp(path), stray = open("/dev/null", O_RDONLY), high = fcntl(stray, F_DUPFD, 200);
    unlink(path);
    cr_assert_eq(write(fd, "k", 1), 1);
    signal(SIGUSR1, nothing);
    job.kept_fd = fd;
    struct farm_supervisor *supervisor = make(&job, (struct farm_supervisor_config){0});
    struct farm_worker_spec spec = worker("actor 0", look_around, &job);
    spec.keep = &job.kept_fd;
    spec.keep_count = 1;
    spec.may_end = true;
    add(supervisor, &spec);
    cr_assert_eq(farm_supervisor_run(supervisor, NULL, NULL), FARM_OK);
    cr_assert_eq(job.page->descriptors, 4, "0, 1, 2 and the one kept, not %d", job.page->descriptors);
    cr_assert(job.page->kept_readable);
    cr_assert(job.page->group_is_own);
    cr_assert(job.page->stdin_is_null);
    cr_assert_eq(job.page->blocked_signals, 0);
    farm_supervisor_free(supervisor);
    close(fd), close(stray), close(high);
}

Test(supervisor, executes_a_program_with_its_descriptor_and_environment) {
    struct job job = {.page = share()};
    int fd = memfd_create("kept", MFD_CLOEXEC);
    cr_assert_eq(write(fd, "from the descriptor\n", 20), 20);
    lseek(fd, 0, SEEK_SET);
    char command[64];
    snprintf(command, sizeof command, "cat <&%d; echo $WORD; echo error >&2", fd);
    char *argv[] = {"/bin/sh", "-c", command, NULL}, *environment[] = {"PATH=/bin:/usr/bin", "WORD=hello", NULL};
    struct farm_supervisor *supervisor = make(&job, (struct farm_supervisor_config){.on_line = keep_lines});
    struct farm_worker_spec spec = worker("program", NULL, NULL);
    spec.argv = argv;
    spec.environment = environment;
    spec.keep = &fd;
    spec.keep_count = 1;
    spec.may_end = true;
    add(supervisor, &spec);
    struct farm_error err;
    cr_assert_eq(farm_supervisor_run(supervisor, NULL, &err), FARM_OK, "%s", err.message);
    cr_assert_str_eq(job.lines, "from the descriptor\nhello\nerror\n");
    farm_supervisor_free(supervisor);
    close(fd);
}

Test(supervisor, names_a_program_that_is_not_there) {
    struct job job = {.page = share()};
    char *argv[] = {"/nowhere/python", NULL};
    struct farm_supervisor *supervisor = make(&job, (struct farm_supervisor_config){.on_line = keep_lines});
    struct farm_worker_spec spec = worker("actor 0", NULL, NULL);
    spec.argv = argv;
    add(supervisor, &spec);
    struct farm_error err;
    cr_assert_eq(farm_supervisor_run(supervisor, NULL, &err), FARM_E_DEAD);
    cr_assert(strstr(err.message, "cannot start /nowhere/python"), "%s", err.message);
    farm_supervisor_free(supervisor);
}

// ---- ending ----

static int end_after(void *context, struct farm_error *err) {
    usleep(20000);
    return 0;
}

Test(supervisor, ends_when_all_workers_that_may_end_have_ended) {
    struct job job = {.page = share()};
    struct farm_supervisor *supervisor = make(&job, (struct farm_supervisor_config){0});
    struct farm_worker_spec learner = worker("learner", end_after, NULL), actor = worker("actor 0", live_on, &job);
    learner.may_end = true;
    add(supervisor, &learner);
    add(supervisor, &actor);
    int number = -1;
    cr_assert_eq(farm_supervisor_run(supervisor, &number, NULL), FARM_OK);
    cr_assert_eq(number, 0);
    farm_supervisor_free(supervisor);
}

static volatile sig_atomic_t asked;
static void ask(int number) {
    asked = 1;
}
static int stop_when_asked(void *context, struct farm_error *err) {
    struct job *job = context;
    signal(SIGTERM, ask);
    __atomic_fetch_add(&job->page->lives, 1, __ATOMIC_SEQ_CST);
    while (!asked) usleep(1000);
    usleep(30000);
    job->page->stopped_at[job->number] = ++job->page->stop_count;
    return 0;
}
static enum farm_supervisor_turn until_both_live(void *context) {
    struct job *job = context;
    return overdue(job) || job->page->lives == 2 ? FARM_TURN_STOP : FARM_TURN_ON;
}

Test(supervisor, stops_the_phases_one_after_another) {
    struct job job = {.page = share()};
    struct job learner_job = {.page = job.page, .number = 0}, actor_job = {.page = job.page, .number = 1};
    struct farm_supervisor *supervisor = make(&job, (struct farm_supervisor_config){.on_tick = until_both_live});
    struct farm_worker_spec actor = worker("actor 0", stop_when_asked, &actor_job),
                            learner = worker("learner", stop_when_asked, &learner_job);
    actor.stop_phase = 1;
    add(supervisor, &actor);
    add(supervisor, &learner);
    cr_assert_eq(farm_supervisor_run(supervisor, NULL, NULL), FARM_OK);
    cr_assert_eq(job.page->stopped_at[0], 1, "the learner first");
    cr_assert_eq(job.page->stopped_at[1], 2);
    farm_supervisor_free(supervisor);
}

static int deaf_with_child(void *context, struct farm_error *err) {
    struct job *job = context;
    signal(SIGTERM, SIG_IGN);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, 0);
        pause_for_ever();
    }
    job->page->pids[1] = child;
    job->page->pids[0] = getpid();
    job->page->lives = 1;
    pause_for_ever();
}
static enum farm_supervisor_turn until_one_lives(void *context) {
    struct job *job = context;
    return overdue(job) || job->page->lives == 1 ? FARM_TURN_STOP : FARM_TURN_ON;
}
static bool gone(int pid) {
    for (int i = 0; i < 200; i++) {
        waitpid(pid, NULL, WNOHANG); // ours where we are the subreaper
        if (kill(pid, 0) < 0 && errno == ESRCH) return true;
        usleep(10000);
    }
    return false;
}

Test(supervisor, kills_the_deaf_and_their_children_after_the_grace_period) {
    struct job job = {.page = share()};
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    farm_log_set_level(FARM_LOG_ERROR);
    struct farm_supervisor *supervisor =
        make(&job, (struct farm_supervisor_config){.on_tick = until_one_lives, .grace_ms = 100});
    struct farm_worker_spec spec = worker("actor 0", deaf_with_child, &job);
    add(supervisor, &spec);
    cr_assert_eq(farm_supervisor_run(supervisor, NULL, NULL), FARM_OK);
    cr_assert(gone(job.page->pids[0]));
    cr_assert(gone(job.page->pids[1]));
    cr_assert_geq(farm_now_ns() - job.started_ns, 100000000u, "not before the grace is over");
    farm_supervisor_free(supervisor);
}

Test(supervisor, ends_on_a_signal_that_came_before_it_ran) {
    struct job job = {.page = share()};
    struct farm_supervisor *supervisor = make(&job, (struct farm_supervisor_config){0});
    struct farm_worker_spec spec = worker("actor 0", live_on, &job);
    add(supervisor, &spec);
    cr_assert(!farm_supervisor_interrupted(supervisor));
    raise(SIGINT);
    cr_assert(farm_supervisor_interrupted(supervisor));
    int number = 0;
    cr_assert_eq(farm_supervisor_run(supervisor, &number, NULL), FARM_OK);
    cr_assert_eq(number, SIGINT);
    cr_assert_eq(job.page->lives, 0, "nothing was started any more");
    raise(SIGINT); // one more, which must not kill us when the mask is given back
    farm_supervisor_free(supervisor);
}

// ---- the supervisor dies ----

Test(supervisor, takes_its_workers_with_it_when_it_is_killed) {
    struct job job = {.page = share()};
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    pid_t pid = fork();
    if (pid == 0) {
        struct farm_supervisor *supervisor = make(&job, (struct farm_supervisor_config){0});
        for (int i = 0; i < 3; i++) {
            struct farm_worker_spec spec = worker("actor", live_on, &job);
            add(supervisor, &spec);
        }
        farm_supervisor_run(supervisor, NULL, NULL);
        _exit(0);
    }
    job.started_ns = farm_now_ns();
    while (job.page->lives < 3 && !overdue(&job)) usleep(1000);
    kill(pid, SIGKILL);
    cr_assert_eq(waitpid(pid, NULL, 0), pid);
    for (int i = 0; i < 3; i++) cr_assert(gone(job.page->pids[i]), "worker %d lives on", i);
}

Test(supervisor, refuses_a_worker_that_is_neither_function_nor_program) {
    struct job job = {0};
    struct farm_supervisor *supervisor = make(&job, (struct farm_supervisor_config){0});
    struct farm_worker_spec spec = worker("nothing", NULL, NULL);
    struct farm_error err;
    cr_assert_eq(farm_supervisor_add(supervisor, &spec, &err), FARM_E_INVALID);
    farm_supervisor_free(supervisor);
}
