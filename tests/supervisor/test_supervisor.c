// The supervisor with real processes, which report what they do in one shared page.
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <numaif.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../support/must.h"
#include "../support/recorded.h"
#include "base/log.h"
#include "base/time.h"
#include "supervisor/supervisor.h"

struct page {
    volatile int lives, slots, pids[8], descriptors, kept_readable, group_is_own, blocked_signals, stdin_is_null;
    volatile int stopped_at[8], stop_count, events;
    volatile unsigned long progress;
};

static struct page *page; // shared with the workers

static struct job {
    struct farm_supervisor *supervisor;
    uint64_t started_ns;
    int killed, lives_wanted, ticks_dead;
    bool dead;
    char lines[2048];
    int kept_fd, number;
    int signal; // that ended it; of run, as is err
    struct farm_error err;
} job; // the context of all callbacks and bodies

static void make_job(void) {
    job = (struct job){0};
    page = shared_memory(sizeof *page);
}

static void free_supervisor(void) {
    farm_supervisor_free(job.supervisor);
    job.supervisor = NULL;
}

TestSuite(supervisor, .init = make_job, .fini = free_supervisor);

static _Noreturn void pause_for_ever(void) {
    for (;;) pause();
}

static int live_on(void *context, struct farm_error *err) {
    page->pids[__atomic_fetch_add(&page->slots, 1, __ATOMIC_SEQ_CST)] = getpid();
    __atomic_fetch_add(&page->lives, 1, __ATOMIC_SEQ_CST);
    pause_for_ever();
}

static void keep_lines(void *context, size_t number, const char *line) {
    struct job *its = context;
    size_t length = strlen(its->lines);
    snprintf(its->lines + length, sizeof its->lines - length, "%s\n", line);
}

static void make(struct farm_supervisor_config config, const struct farm_worker_spec *specs, size_t count) {
    struct farm_error err;
    config.context = &job;
    config.tick_ms = 5;
    job.started_ns = farm_now_ns();
    cr_assert_eq(farm_supervisor_make(&config, &job.supervisor, &err), FARM_OK, "%s", err.message);
    for (size_t i = 0; i < count; i++)
        cr_assert_eq(farm_supervisor_add(job.supervisor, &specs[i], &err), FARM_OK, "%s", err.message);
}

static void run(enum farm_status status) {
    job.signal = -1;
    cr_assert_eq(farm_supervisor_run(job.supervisor, &job.signal, &job.err), status, "%s", job.err.message);
}

// A worker, and a supervisor of one or two; the last arguments are fields of the specification or configuration.
#define WORKER(...)        ((struct farm_worker_spec){.context = &job, .memory_node = -1, __VA_ARGS__})
#define MAKE_ONE(one, ...) make((struct farm_supervisor_config){__VA_ARGS__}, &one, 1)
#define MAKE_TWO(one, two, ...)                                                                                        \
    make((struct farm_supervisor_config){__VA_ARGS__}, (struct farm_worker_spec[]){one, two}, 2)
// From its beginning to its end.
#define RUN_ONE(status, one, ...)      MAKE_ONE(one, __VA_ARGS__), run(status), free_supervisor()
#define RUN_TWO(status, one, two, ...) MAKE_TWO(one, two, __VA_ARGS__), run(status)
#define expect_words(text)             cr_assert(strstr(job.err.message, text), "%s", job.err.message)

static bool overdue(void) {
    return farm_now_ns() - job.started_ns > 5000000000u;
}

// ---- restarts ----

static enum farm_supervisor_turn kill_once(void *context) {
    if (overdue()) return FARM_TURN_STOP;
    job.ticks_dead += job.dead;
    if (!job.killed && page->lives == 1) {
        job.killed = page->pids[0];
        kill(job.killed, SIGKILL);
    }
    return page->lives == 2 ? FARM_TURN_STOP : FARM_TURN_ON;
}

static void note_start(void *context, size_t number, uint64_t starts) {
    page->events = page->events * 10 + (int)starts + 1;
    job.dead = false;
}

static void mark_dead(void *context, size_t number, const struct farm_death *death) {
    job.dead = true;
}

Test(supervisor, starts_a_worker_again_after_kill_9) {
    RUN_ONE(FARM_OK, WORKER(.name = "actor 0", .body = live_on), .on_tick = kill_once, .before_start = note_start,
            .on_death = mark_dead, .on_line = keep_lines);
    cr_assert_eq(page->lives, 2);
    cr_assert_eq(page->events, 12, "before_start is called before each start: %d", page->events);
    cr_assert_eq(job.ticks_dead, 0, "the first restart is immediate");
    cr_assert_eq(kill(page->pids[1], 0), -1, "no process is left after run");
}

static int write_and_live(void *context, struct farm_error *err) {
    cr_assert_eq(write(job.kept_fd, "x", 1), 1);
    pause_for_ever();
}

static int watched[2] = {-1, -1};

static void read_watched(void *context, size_t number) {
    char byte;
    cr_assert_eq(number, 1);
    cr_assert_eq(read(watched[number], &byte, 1), 1);
    page->events++;
}

static enum farm_supervisor_turn until_read(void *context) {
    return page->events || overdue() ? FARM_TURN_STOP : FARM_TURN_ON;
}

Test(supervisor, reads_a_watched_descriptor_at_once) {
    int ends[2];
    struct farm_worker_spec spec = WORKER(.name = "writer", .body = write_and_live);
    cr_assert_eq(pipe(ends), 0);
    watched[1] = ends[0];
    spec.keep = &job.kept_fd;
    spec.keep_count = 1;
    job.kept_fd = ends[1];
    RUN_ONE(FARM_OK, spec, .on_tick = until_read, .on_readable = read_watched, .watched = watched, .watched_count = 2);
    cr_assert_eq(page->events, 1);
}

static int print_and_fail(void *context, struct farm_error *err) {
    fprintf(stderr, "line of life %d\n", ++page->lives);
    farm_fail(err, FARM_E_NOT_FOUND, "the ROM of Pong is not there");
    return 1;
}

static int only_live(void *context, struct farm_error *err) {
    pause_for_ever();
}

static int die_at_once(void *context, struct farm_error *err) {
    return 1;
}

Test(supervisor, ends_a_crash_loop_with_the_last_words) {
    RUN_TWO(FARM_E_DEAD, WORKER(.name = "actor 7", .body = print_and_fail),
            WORKER(.name = "actor 8", .body = only_live), .on_line = keep_lines);
    cr_assert_eq(page->lives, 5);
    expect_words("actor 7");
    expect_words("exit status 1");
    expect_words("line of life 5\n");
    expect_words("the ROM of Pong is not there");
    cr_assert(!strstr(job.err.message, "line of life 4"), "only the last life's words: %s", job.err.message);
    cr_assert(strstr(job.lines, "line of life 1\n"), "lines are passed on");
    cr_assert_eq(farm_supervisor_pid(job.supervisor, 1), 0);
}

static int step_and_die(void *context, struct farm_error *err) {
    page->lives++;
    page->progress++;
    raise(SIGSEGV);
    return 0;
}
static uint64_t progress_of(void *context, size_t number) {
    return page->progress;
}
static enum farm_supervisor_turn until_lives(void *context) {
    return overdue() || page->lives >= job.lives_wanted ? FARM_TURN_STOP : FARM_TURN_ON;
}

Test(supervisor, keeps_restarting_a_worker_that_makes_progress) {
    job.lives_wanted = 8;
    RUN_ONE(FARM_OK, WORKER(.name = "actor 0", .body = step_and_die), .on_tick = until_lives, .progress = progress_of,
            .on_line = keep_lines, .backoff_max_ms = 40);
    cr_assert_geq(page->lives, 8);
    cr_assert_gt(farm_now_ns() - job.started_ns, (10 + 20 + 40 * 4) * 1000000u, "it backs off");
}

// ---- the surroundings of a worker ----

static int report_surroundings(void *context, struct farm_error *err) {
    DIR *folder = opendir("/proc/self/fd");
    for (struct dirent *entry; (entry = readdir(folder));)
        if (entry->d_name[0] != '.' && atoi(entry->d_name) != dirfd(folder)) page->descriptors++;
    closedir(folder);
    char byte = 0;
    page->kept_readable = pread(job.kept_fd, &byte, 1, 0) == 1 && byte == 'k';
    page->group_is_own = getpgrp() == getpid();
    page->stdin_is_null = read(STDIN_FILENO, &byte, 1) == 0;
    sigset_t mask;
    sigprocmask(SIG_BLOCK, NULL, &mask);
    for (int number = 1; number < 32; number++) page->blocked_signals += sigismember(&mask, number) == 1;
    struct sigaction action;
    sigaction(SIGURG, NULL, &action);
    page->blocked_signals += action.sa_handler != SIG_DFL;
    sigaction(SIGUSR1, NULL, &action); // batch systems send it
    page->blocked_signals += action.sa_handler != SIG_IGN;
    return 0;
}

static void nothing(int number) {}

Test(supervisor, gives_a_worker_its_descriptors_and_nothing_else) {
    char path[] = "/tmp/farm-test-XXXXXX";
    int fd = mkstemp(path), stray = open("/dev/null", O_RDONLY), high = fcntl(stray, F_DUPFD, 200);
    unlink(path);
    cr_assert_eq(write(fd, "k", 1), 1);
    signal(SIGURG, nothing);
    job.kept_fd = fcntl(fd, F_DUPFD, 250);
    const int low = fcntl(fd, F_DUPFD, 100), keep[] = {job.kept_fd, low, fcntl(fd, F_DUPFD, 101), low, STDIN_FILENO};
    RUN_ONE(FARM_OK, // descriptors in any order, one twice
            WORKER(.name = "actor 0", .body = report_surroundings, .keep = keep, .keep_count = 5, .may_end = true),
            .grace_ms = 0);
    cr_assert_eq(page->descriptors, 6, "0, 1, 2 and the three kept, not %d", page->descriptors);
    cr_assert(page->kept_readable);
    cr_assert(page->group_is_own);
    cr_assert(page->stdin_is_null);
    cr_assert_eq(page->blocked_signals, 0);
    close(fd), close(stray), close(high), close(keep[0]), close(keep[1]), close(keep[2]);
}

Test(supervisor, executes_a_program_with_its_descriptor_and_environment) {
    int fd = memfd_create("kept", MFD_CLOEXEC);
    cr_assert_eq(write(fd, "from the descriptor\n", 20), 20);
    lseek(fd, 0, SEEK_SET);
    char command[64];
    snprintf(command, sizeof command, "cat <&%d; echo $WORD; echo error >&2", fd);
    char *argv[] = {"/bin/sh", "-c", command, NULL}, *environment[] = {"PATH=/bin:/usr/bin", "WORD=hello", NULL};
    RUN_ONE(FARM_OK,
            WORKER(.name = "program", .argv = argv, .environment = environment, .keep = &fd, .keep_count = 1,
                   .may_end = true),
            .on_line = keep_lines);
    cr_assert_str_eq(job.lines, "from the descriptor\nhello\nerror\n");
    close(fd);
}

Test(supervisor, names_a_program_that_is_not_there) {
    char *argv[] = {"/nowhere/python", NULL};
    RUN_ONE(FARM_E_DEAD, WORKER(.name = "actor 0", .argv = argv), .on_line = keep_lines);
    expect_words("cannot start /nowhere/python");
}

// ---- ending ----

static int end_after(void *context, struct farm_error *err) {
    usleep(20000);
    return 0;
}

Test(supervisor, ends_when_all_workers_that_may_end_have_ended) {
    RUN_TWO(FARM_OK, WORKER(.name = "learner", .body = end_after, .may_end = true),
            WORKER(.name = "actor 0", .body = live_on), .grace_ms = 0);
    cr_assert_eq(job.signal, 0);
}

static volatile sig_atomic_t requested;
static void note_request(int number) {
    requested = 1;
}
static int stop_at_sigterm(void *context, struct farm_error *err) {
    signal(SIGTERM, note_request);
    __atomic_fetch_add(&page->lives, 1, __ATOMIC_SEQ_CST);
    while (!requested) usleep(1000);
    usleep(30000);
    page->stopped_at[*(int *)context] = ++page->stop_count;
    return 0;
}

Test(supervisor, stops_the_phases_one_after_another) {
    int numbers[] = {0, 1};
    const struct farm_worker_spec workers[] = {
        {.name = "actor 0", .body = stop_at_sigterm, .context = &numbers[1], .memory_node = -1, .stop_phase = 1},
        {.name = "learner", .body = stop_at_sigterm, .context = &numbers[0], .memory_node = -1}};
    job.lives_wanted = 2;
    make((struct farm_supervisor_config){.on_tick = until_lives}, workers, 2);
    run(FARM_OK);
    cr_assert_eq(page->stopped_at[0], 1, "the learner first");
    cr_assert_eq(page->stopped_at[1], 2);
}

static int ignore_sigterm_with_child(void *context, struct farm_error *err) {
    signal(SIGTERM, SIG_IGN);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, 0);
        pause_for_ever();
    }
    page->pids[1] = child;
    page->pids[0] = getpid();
    page->lives = 1;
    pause_for_ever();
}
static bool gone(int pid) {
    for (int i = 0; i < 200; i++) {
        waitpid(pid, NULL, WNOHANG); // a child of this process if it is the subreaper
        if (kill(pid, 0) < 0 && errno == ESRCH) return true;
        usleep(10000);
    }
    return false;
}

Test(supervisor, kills_workers_that_ignore_sigterm_and_their_children_after_the_grace) {
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    farm_log_set_level(FARM_LOG_ERROR);
    job.lives_wanted = 1;
    RUN_ONE(FARM_OK, WORKER(.name = "actor 0", .body = ignore_sigterm_with_child), .on_tick = until_lives,
            .grace_ms = 100);
    cr_assert(gone(page->pids[0]));
    cr_assert(gone(page->pids[1]));
    cr_assert_geq(farm_now_ns() - job.started_ns, 100000000u, "not before the grace is over");
}

Test(supervisor, ends_on_a_signal_that_came_before_it_ran) {
    MAKE_ONE(WORKER(.name = "actor 0", .body = live_on), .grace_ms = 0);
    cr_assert(!farm_supervisor_interrupted(job.supervisor));
    raise(SIGINT);
    cr_assert(farm_supervisor_interrupted(job.supervisor));
    run(FARM_OK);
    cr_assert_eq(job.signal, SIGINT);
    cr_assert_eq(page->lives, 0, "no worker was started");
    raise(SIGINT); // must not kill this process when the mask is restored
    free_supervisor();
}

// ---- the supervisor dies ----

Test(supervisor, takes_its_workers_with_it_when_it_is_killed) {
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    pid_t pid = fork();
    if (pid == 0) {
        const struct farm_worker_spec actor = WORKER(.name = "actor", .body = live_on);
        make((struct farm_supervisor_config){0}, (const struct farm_worker_spec[]){actor, actor, actor}, 3);
        farm_supervisor_run(job.supervisor, NULL, NULL);
        _exit(0);
    }
    job.started_ns = farm_now_ns();
    while (page->lives < 3 && !overdue()) usleep(1000);
    kill(pid, SIGKILL);
    cr_assert_eq(waitpid(pid, NULL, 0), pid);
    for (int i = 0; i < 3; i++) cr_assert(gone(page->pids[i]), "worker %d lives on", i);
}

// ---- after a death ----

static int fail_at_once(void *context, struct farm_error *err) {
    page->lives++;
    if (job.number) fprintf(stderr, "the checkpoint is broken\n");
    return 3;
}

Test(supervisor, ends_the_run_at_the_first_error_if_errors_are_final) {
    for (int talkative = 0; talkative < 2; talkative++) {
        make_job();
        job.number = talkative;
        struct farm_worker_spec spec = WORKER(.name = "learner", .body = fail_at_once);
        spec.errors_are_final = spec.may_end = true;
        RUN_ONE(FARM_E_DEAD, spec, .on_line = keep_lines);
        cr_assert_eq(page->lives, 1);
        expect_words("learner ended with exit status 3. Its last words:");
        cr_assert_eq(strstr(job.err.message, "the checkpoint is broken\n") != NULL, talkative, "%s", job.err.message);
        expect_words("ended without a reason");
    }
}

static int exit_silently(void *context, struct farm_error *err) {
    page->lives++;
    _exit(4);
}

Test(supervisor, reports_a_death_without_last_words) {
    for (int final = 0; final < 2; final++) {
        RUN_ONE(FARM_E_DEAD, WORKER(.name = "actor 5", .body = exit_silently, .errors_are_final = final),
                .deaths_max = 2);
        expect_words("exit status 4. It said nothing.");
    }
    cr_assert_eq(page->lives, 3);
}

static void note_death(void *context, size_t number, const struct farm_death *death) {
    snprintf(job.lines, sizeof job.lines, "worker %zu %s", number, death->how);
    job.killed = death->pid;
}

// Killed in its first life, ended in its second.
static int kill_itself_once(void *context, struct farm_error *err) {
    page->pids[page->lives] = getpid();
    if (++page->lives == 1) kill(getpid(), SIGKILL);
    return 0;
}
static void note_end(void *context, size_t number) {
    page->events = (int)number + 70;
}

Test(supervisor, restarts_a_killed_worker_even_if_errors_are_final) {
    RUN_ONE(FARM_OK, WORKER(.name = "learner", .body = kill_itself_once, .errors_are_final = true, .may_end = true),
            .on_death = note_death, .on_end = note_end);
    cr_assert_eq(page->lives, 2);
    cr_assert_str_eq(job.lines, "worker 0 was killed by signal 9 (Killed)");
    cr_assert_eq(job.killed, page->pids[0]);
    cr_assert_eq(page->events, 70);
}

// In its second life, which environment code cannot imitate: 3 is its own status, and that code's in the first.
static int fail_finally(void *context, struct farm_error *err) {
    if (++page->lives == 1) _exit(3);
    farm_fail(err, FARM_E_INVALID, "it writes past its observation");
    return 3;
}

Test(supervisor, only_a_returned_final_status_ends_the_run) {
    RUN_ONE(FARM_E_DEAD, WORKER(.name = "actor 0", .body = fail_finally, .final_status = 3), .on_line = keep_lines);
    cr_assert_eq(page->lives, 2);
    expect_words("actor 0 ended with a final error. Its last words:\nfarm: error: actor 0: it writes past");
}

static enum farm_supervisor_turn kill_again(void *context) {
    const int lives = page->lives;
    if (lives > job.killed) farm_supervisor_kill(job.supervisor, 0, "it hung"), job.killed = lives;
    return overdue() ? FARM_TURN_STOP : FARM_TURN_ON;
}

Test(supervisor, ends_the_run_after_too_many_restarts_with_the_last_deaths) {
    RUN_ONE(FARM_E_DEAD, WORKER(.name = "actor 0", .body = live_on, .restarts_max = 2), .on_tick = kill_again,
            .backoff_max_ms = 1);
    cr_assert_eq(page->lives, 3);
    expect_words("actor 0 has been started again 2 times (restarts_max), and died again: it was killed by signal 9 "
                 "(Killed), by the farm: it hung; was killed");
}

// The kernel of a recorded machine kills it, and is not to blame for its second death.
static int run_out_of_memory(void *context, struct farm_error *err) {
    if (++page->lives == 1) record("sys/fs/cgroup/a/memory.events", "low 0\noom 2\noom_kill 7\n");
    kill(getpid(), SIGKILL);
    return 0;
}

static void add_death(void *context, size_t number, const struct farm_death *death) {
    keep_lines(&job, number, death->cause);
    if (page->lives == 1) keep_lines(&job, number, death->how);
}

Test(supervisor, names_the_out_of_memory_killer, .fini = remove_root) {
    make_root();
    record_v2("/a");
    record_memory("/a", 20 * MIB, 1 * MIB);
    record("sys/fs/cgroup/a/memory.events", "low 0\noom 1\noom_kill 6\n");
    RUN_ONE(FARM_E_DEAD, WORKER(.name = "actor 0", .body = run_out_of_memory), .on_death = add_death, .root = root,
            .deaths_max = 2);
    cr_assert(strstr(job.lines, "was killed by signal 9 (Killed), probably by the out-of-memory killer (control group "
                                "limit 20 MiB, 1 oom_kill event)\n"),
              "%s", job.lines);
    expect_words("at last was killed by signal 9 (Killed). It said");
}

static int step_in_the_first_life(void *context, struct farm_error *err) {
    if (++page->lives == 1) page->progress = 100;
    return 1;
}

static int live_ten_milliseconds(void *context, struct farm_error *err) {
    usleep(10000);
    page->lives++;
    return 1;
}

Test(supervisor, counts_short_lives_with_and_without_progress) {
    RUN_ONE(FARM_E_DEAD, WORKER(.name = "actor 0", .body = step_and_die), .progress = progress_of,
            .on_line = keep_lines, .short_lives_max = 4);
    cr_assert_eq(page->lives, 4);
    expect_words("it died 4 times in a row soon after its start");
    make_job();
    RUN_ONE(FARM_E_DEAD, WORKER(.name = "actor 0", .body = step_in_the_first_life), .progress = progress_of,
            .on_line = keep_lines, .deaths_max = 3);
    cr_assert_eq(page->lives, 4, "what a former life got done does not excuse the next");
    make_job();
    job.lives_wanted = 6;
    RUN_ONE(FARM_OK, WORKER(.name = "actor 0", .body = live_ten_milliseconds), .on_tick = until_lives,
            .on_line = keep_lines, .deaths_max = 2, .short_lives_max = 2, .healthy_ms = 8);
    cr_assert_geq(page->lives, 6, "a healthy life makes up for the deaths before");
}

// ---- output ----

static int write_long_lines(void *context, struct farm_error *err) {
    dprintf(STDOUT_FILENO, "A%02997dZ\n", 0);
    for (int i = 0; i < 40; i++) dprintf(STDERR_FILENO, "line %02d of what went before it died\n", i);
    if (write(STDOUT_FILENO, "zero\0byte, \033[2J\xc2\x9b\tno newline", 28) < 0) _exit(9);
    _exit(5);
}

static struct { int lines, too_long, long_line_bytes, unfinished; } output; // unfinished: the number of that line

static void check_line(void *context, size_t number, const char *line) {
    output.lines++;
    output.too_long += strlen(line) >= FARM_WORKER_LINE_MAX;
    if (line[0] == 'A' || line[strlen(line) - 1] == 'Z') output.long_line_bytes += (int)strlen(line);
    if (strcmp(line, "zero byte,  [2J  \tno newline") == 0) output.unfinished = output.lines;
}

Test(supervisor, breaks_up_long_lines_and_keeps_the_last_lines_as_last_words) {
    RUN_ONE(FARM_E_DEAD, WORKER(.name = "actor 0", .body = write_long_lines, .errors_are_final = true),
            .on_line = check_line);
    cr_assert_eq(output.too_long, 0, "no line is longer than it may be");
    cr_assert_eq(output.lines, 3 + 40 + 1);
    cr_assert_eq(output.long_line_bytes, 1023 + 2999 - 2 * 1023, "the long line is complete");
    cr_assert_eq(output.unfinished, 44, "control characters are blanks");
    expect_words("line 39 of what");
    expect_words("zero byte,  [2J  \tno newline\n");
    cr_assert(!strstr(job.err.message, "line 20 of what"), "only the last words: %s", job.err.message);
}

static int write_one_long_line(void *context, struct farm_error *err) {
    dprintf(STDERR_FILENO, "BEGIN%0992dEND", 0);
    _exit(5);
}

Test(supervisor, keeps_the_end_of_a_long_last_line) {
    RUN_ONE(FARM_E_DEAD, WORKER(.name = "actor 0", .body = write_one_long_line, .errors_are_final = true),
            .on_line = keep_lines);
    expect_words("000END\n");
    cr_assert(!strstr(job.err.message, "BEGIN"), "%s", job.err.message);
}

// More than a pipe holds, and more than is read of one worker in a turn: the rest is read after its death.
static int write_much(void *context, struct farm_error *err) {
    static char lines[96][1000];
    memset(lines, 'x', sizeof lines);
    for (int i = 0; i < 96; i++) lines[i][999] = '\n';
    return write(STDOUT_FILENO, lines, sizeof lines) != (ssize_t)sizeof lines;
}
static void count_line(void *context, size_t number, const char *line) {
    output.lines += strlen(line) == 999;
}

Test(supervisor, loses_no_line_of_a_worker_that_writes_much_and_ends) {
    RUN_ONE(FARM_OK, WORKER(.name = "actor 0", .body = write_much, .may_end = true), .on_line = count_line);
    cr_assert_eq(output.lines, 96);
}

// An addr2line that never answers: an object can make it read a fifo.
static int write_frame_and_die(void *context, struct farm_error *err) {
    page->progress = (unsigned long)++page->lives;
    dprintf(STDERR_FILENO, "farm: frame 0x1 /proc/self/exe\n");
    raise(SIGKILL);
    return 0;
}

Test(supervisor, starts_a_worker_again_while_its_crash_is_looked_up) {
    char program[128];
    make_root();
    snprintf(program, sizeof program, "%s/addr2line", root);
    record("addr2line", "#!/bin/sh\nexec /bin/sleep 1000\n");
    cr_assert(!chmod(program, 0700) && !setenv("PATH", root, 1));
    job.lives_wanted = 5;
    RUN_ONE(FARM_OK, WORKER(.name = "actor 0", .body = write_frame_and_die), .on_tick = until_lives,
            .on_line = keep_lines, .progress = progress_of);
    remove_root();
    cr_assert_geq(page->lives, 5, "%d lives", page->lives);
    cr_assert(strstr(job.lines, "farm: error: actor 0: crashed in addr2line -fe /proc/self/exe 0x1\n"), "%s",
              job.lines);
}

static int write_errors(void *context, struct farm_error *err) {
    for (int i = 0; i < 300; i++) dprintf(STDERR_FILENO, "farm: %s %d\n", i % 3 ? "error:" : "frame 0x1 /p.so", i);
    dprintf(STDERR_FILENO, "the end\n");
    _exit(5);
}
static void count_any(void *context, size_t number, const char *line) {
    output.lines++;
}

Test(supervisor, counts_every_kind_of_line_and_keeps_the_last_words) {
    RUN_ONE(FARM_E_DEAD, WORKER(.name = "actor 0", .body = write_errors), .on_line = count_any);
    const uint64_t seconds = (farm_now_ns() - job.started_ns) / 1000000000u + 1, counts = seconds + 5; // a life's too
    cr_assert_leq((uint64_t)output.lines, 100 * seconds + counts, "%d lines", output.lines);
    expect_words("the end\n");
}

static int close_output_and_end(void *context, struct farm_error *err) {
    dprintf(STDOUT_FILENO, "good bye\n");
    close(STDOUT_FILENO);
    close(STDERR_FILENO);
    usleep(30000);
    return 0;
}

Test(supervisor, passes_lines_to_stderr_and_survives_a_closed_output) {
    int ends[2], kept = dup(STDERR_FILENO);
    cr_assert_eq(pipe2(ends, O_NONBLOCK | O_CLOEXEC), 0);
    MAKE_ONE(WORKER(.name = "actor 0", .body = close_output_and_end, .may_end = true), .grace_ms = 0);
    dup2(ends[1], STDERR_FILENO);
    enum farm_status status = farm_supervisor_run(job.supervisor, NULL, NULL);
    dup2(kept, STDERR_FILENO);
    char text[64] = "";
    ssize_t length = read(ends[0], text, sizeof text - 1);
    cr_assert_eq(status, FARM_OK);
    cr_assert_eq(length, 9);
    cr_assert_str_eq(text, "good bye\n");
    close(ends[0]), close(ends[1]), close(kept);
}

static int report_placement(void *context, struct farm_error *err) {
    cpu_set_t cpus;
    int mode = -1;
    unsigned long nodes[16] = {0};
    if (sched_getaffinity(0, sizeof cpus, &cpus)) return 1;
    page->lives = CPU_COUNT(&cpus);
    page->slots = CPU_ISSET(job.number, &cpus) != 0 ? 1 + sched_getscheduler(0) : 0;
    page->events = get_mempolicy(&mode, nodes, 8 * sizeof nodes, NULL, 0) ? -1 : mode;
    return 0;
}

Test(supervisor, pins_a_worker_and_its_heap) {
    cpu_set_t ours;
    cr_assert_eq(sched_getaffinity(0, sizeof ours, &ours), 0);
    while (!CPU_ISSET(job.number, &ours)) job.number++;
    struct farm_bitmap cpus = {0};
    farm_bitmap_set(&cpus, job.number);
    unsigned long node0 = 1;
    bool may = set_mempolicy(MPOL_PREFERRED, &node0, 64) == 0 && set_mempolicy(MPOL_DEFAULT, NULL, 0) == 0;
    static const int nodes[] = {-1, 0, 5000}; // the last does not exist: the worker runs without
    for (int i = 0; i < 3; i++) {
        struct farm_worker_spec spec = WORKER(.name = "actor 0", .body = report_placement, .may_end = true,
                                              .errors_are_final = true, .cpus = &cpus);
        spec.memory_node = nodes[i];
        spec.takes_turns = i == 1;
        RUN_ONE(FARM_OK, spec, .grace_ms = 0);
        cr_assert_eq(page->lives, 1, "one CPU");
        cr_assert_eq(page->slots, i == 1 ? 1 + SCHED_BATCH : 1 + SCHED_OTHER);
        if (may) cr_assert_eq(page->events, nodes[i] == 0 ? MPOL_PREFERRED : MPOL_DEFAULT);
    }
}

// ---- a second signal ----

static int ignore_and_signal(void *context, struct farm_error *err) {
    signal(SIGTERM, SIG_IGN);
    kill(getppid(), SIGINT);
    usleep(300000);
    kill(getppid(), SIGINT); // within a second: a key held down
    page->slots = 1;
    usleep(800000);
    page->slots = 2;
    kill(getppid(), SIGTERM);
    pause_for_ever();
}
static int deaf(void *context, struct farm_error *err) {
    signal(SIGTERM, SIG_IGN);
    pause_for_ever();
}
static void note_phase(void *context, int phase) {
    job.number = 10 * job.number + phase;
}

Test(supervisor, a_second_signal_a_second_later_ends_the_grace, .timeout = 60) {
    farm_log_set_level(FARM_LOG_ERROR);
    RUN_TWO(FARM_OK, WORKER(.name = "actor 0", .body = ignore_and_signal, .stop_phase = 3),
            WORKER(.name = "actor 1", .body = deaf, .stop_phase = 3), .grace_ms = 3600000, .before_stop = note_phase);
    cr_assert_eq(job.signal, SIGINT, "the first of them");
    cr_assert_eq(page->slots, 2, "the signal that came too soon changed nothing");
    cr_assert_eq(job.number, 3, "called once for the phase");
}

Test(supervisor, a_hang_up_is_ignored_under_nohup) {
    for (int nohup = 1; nohup >= 0; nohup--) {
        signal(SIGHUP, nohup ? SIG_IGN : SIG_DFL);
        make((struct farm_supervisor_config){0}, NULL, 0);
        raise(SIGHUP);
        cr_assert_neq(farm_supervisor_interrupted(job.supervisor), nohup, "otherwise it ends the run");
        free_supervisor();
    }
}

// ---- limits ----

Test(supervisor, refuses_workers_without_a_name_and_beyond_its_limit) {
    char *argv[] = {"/bin/true", NULL};
    struct farm_error err;
    const struct farm_worker_spec invalid[] = {WORKER(.name = "", .body = live_on),
                                               WORKER(.name = "neither function nor program"),
                                               WORKER(.name = "both", .body = live_on, .argv = argv)},
                                  valid = WORKER(.name = "actor", .body = live_on);
    make((struct farm_supervisor_config){0}, NULL, 0);
    for (int i = 0; i < 3; i++) cr_assert_eq(farm_supervisor_add(job.supervisor, &invalid[i], &err), FARM_E_INVALID);
    for (int i = 0; i < 1 << 15; i++) cr_assert_eq(farm_supervisor_add(job.supervisor, &valid, &err), FARM_OK);
    cr_assert_eq(farm_supervisor_add(job.supervisor, &valid, &err), FARM_E_LIMIT);
    cr_assert(strstr(err.message, "more than 32768 workers"), "%s", err.message);
    cr_assert_eq(farm_supervisor_pid(job.supervisor, (1 << 15) - 1), 0);
    farm_supervisor_free(NULL);
}

// ---- workers that join and leave ----

static int ignore_the_end(void *context, struct farm_error *err) {
    signal(SIGTERM, SIG_IGN);
    return live_on(context, err);
}

static void count_end(void *context, size_t number) {
    page->stop_count++;
    job.number = (int)number;
}

static void count_death(void *context, size_t number, const struct farm_death *death) {
    page->events++;
}

static int (*second_body)(void *, struct farm_error *);

// One worker, a second one in the reserved place, which is dismissed when it lives, and a third in its place.
static enum farm_supervisor_turn enlist_and_dismiss(void *context) {
    struct farm_worker_spec spec = WORKER(.name = "actor 1", .body = second_body);
    struct farm_error err;
    if (overdue()) return FARM_TURN_STOP;
    if (page->lives == 1 && !job.killed) {
        cr_assert_eq(farm_supervisor_enlist(job.supervisor, 0, &spec, &err), FARM_E_BUSY);
        cr_assert_eq(farm_supervisor_enlist(job.supervisor, 1, &spec, &err), FARM_OK, "%s", err.message);
        job.killed = 1;
    } else if (page->lives == 2 && job.killed == 1) {
        farm_supervisor_dismiss(job.supervisor, 1);
        farm_supervisor_dismiss(job.supervisor, 1);
        job.killed = 2;
    } else if (page->stop_count == 1 && job.killed == 2) {
        cr_assert_eq(job.number, 1);
        cr_assert_eq(farm_supervisor_pid(job.supervisor, 1), 0);
        cr_assert_eq(kill(page->pids[1], 0), -1, "it has ended");
        cr_assert_eq(farm_supervisor_enlist(job.supervisor, 1, &spec, &err), FARM_OK, "%s", err.message);
        job.killed = 3;
    }
    return page->lives == 3 ? FARM_TURN_STOP : FARM_TURN_ON;
}

static void expect_turnover(int (*body)(void *, struct farm_error *)) {
    second_body = body;
    struct farm_error err;
    MAKE_ONE(WORKER(.name = "actor 0", .body = live_on), .on_tick = enlist_and_dismiss, .on_end = count_end,
             .on_death = count_death, .on_line = keep_lines, .grace_ms = 50);
    cr_assert_eq(farm_supervisor_reserve(job.supervisor, &err), FARM_OK, "%s", err.message);
    run(FARM_OK);
    cr_assert_eq(page->lives, 3);
    cr_assert_eq(page->stop_count, 1);
    cr_assert_eq(page->events, 0, "a requested end is not a death");
    free_supervisor();
}

Test(supervisor, enlists_a_worker_while_others_run_and_dismisses_it_even_if_it_does_not_end_in_time) {
    expect_turnover(live_on);
    make_job();
    expect_turnover(ignore_the_end);
}

static enum farm_supervisor_turn dismiss_the_dead(void *context) {
    if (overdue() || page->stop_count) return FARM_TURN_STOP;
    if (page->events && !farm_supervisor_pid(job.supervisor, 1)) farm_supervisor_dismiss(job.supervisor, 1);
    return FARM_TURN_ON;
}

Test(supervisor, dismisses_a_worker_that_waits_for_its_next_start) {
    RUN_TWO(FARM_OK, WORKER(.name = "actor 0", .body = live_on), WORKER(.name = "actor 1", .body = die_at_once),
            .on_tick = dismiss_the_dead, .on_end = count_end, .on_death = count_death, .on_line = keep_lines,
            .deaths_max = 100);
    cr_assert_eq(page->stop_count, 1);
    cr_assert(!overdue());
}

static void note_loss(void *context, size_t number, const char *why) {
    page->stop_count++;
    cr_assert_eq(number, 1);
    cr_assert(strstr(why, "actor 1 cannot be kept alive") != NULL, "%s", why);
}

static enum farm_supervisor_turn until_a_loss(void *context) {
    return overdue() || (page->stop_count && page->lives) ? FARM_TURN_STOP : FARM_TURN_ON;
}

Test(supervisor, an_expendable_worker_that_cannot_be_kept_alive_ends_alone) {
    const struct farm_worker_spec stays = WORKER(.name = "actor 0", .body = live_on);
    struct farm_error err;
    RUN_TWO(FARM_OK, stays, WORKER(.name = "actor 1", .body = die_at_once, .expendable = true), .on_tick = until_a_loss,
            .on_loss = note_loss, .on_line = keep_lines, .deaths_max = 2);
    cr_assert_eq(page->stop_count, 1);
    cr_assert_eq(farm_supervisor_enlist(job.supervisor, 1, &stays, &err), FARM_OK, "its number is free again");
}

static int end_after_two_others(void *context, struct farm_error *err) {
    while ((!page->stop_count || page->events != 72) && !overdue()) usleep(1000);
    return 0;
}
static int live_and_die(void *context, struct farm_error *err) {
    __atomic_fetch_add(&page->lives, 1, __ATOMIC_SEQ_CST);
    return kill(getpid(), SIGKILL);
}
static void note_lost_life(void *context, size_t number, const char *why) {
    page->stop_count++;
    cr_assert_eq(number, 1);
    cr_assert(strstr(why, "evaluation was killed by signal 9 (Killed)") != NULL, "%s", why);
}

Test(supervisor, a_worker_of_one_life_is_not_started_again_and_not_waited_for) {
    const struct farm_worker_spec specs[] = {
        WORKER(.name = "learner", .body = end_after_two_others, .may_end = true),
        WORKER(.name = "evaluation", .body = live_and_die, .once = true, .expendable = true),
        WORKER(.name = "evaluation", .body = end_after, .once = true, .expendable = true),
        WORKER(.name = "evaluation", .body = live_on, .once = true, .expendable = true),
    };
    make((struct farm_supervisor_config){.on_end = note_end, .on_loss = note_lost_life}, specs, 4);
    run(FARM_OK);
    cr_assert_eq(page->stop_count, 1);
    cr_assert_eq(page->lives, 2);
    cr_assert(!overdue());
}

static void note_signal(void *context, int number) {
    job.number += number == SIGUSR1 ? 1 : 100;
}

static enum farm_supervisor_turn signal_oneself(void *context) {
    if (!job.killed++) {
        kill(getpid(), SIGUSR1);
        kill(getpid(), SIGUSR2);
    }
    return overdue() || job.number == 101 ? FARM_TURN_STOP : FARM_TURN_ON;
}

Test(supervisor, passes_on_signals_that_are_not_its_own) {
    MAKE_ONE(WORKER(.name = "actor 0", .body = live_on), .on_tick = signal_oneself, .on_signal = note_signal,
             .on_line = keep_lines);
    run(FARM_OK);
    cr_assert_eq(job.signal, 0, "they end nothing");
    cr_assert_eq(job.number, 101);
}
