// The forker: what its workers are, and what happens when it is killed, stopped or starved.
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../support/must.h"
#include "base/log.h"
#include "base/pidfd.h"
#include "supervisor/forker.h"
#include "supervisor/supervisor.h"

struct page {
    volatile pid_t pids[8];
    volatile int lives, owner, parent, fds;
};

static struct page *page;
static struct farm_supervisor *supervisor;
static int ticks;

static void share_page(void) {
    page = shared_memory(sizeof *page);
}

TestSuite(forker, .timeout = 60, .init = share_page);

static void *allocate(void *bytes) {
    return memset(malloc((size_t)bytes), 1, (size_t)bytes);
}

// The context is a copy of the test's text.
static int report(void *context, struct farm_error *err) {
    pthread_mutex_t mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
    pthread_t thread;
    void *block;
    pthread_mutex_lock(&mutex);
    page->owner = mutex.__data.__owner == getpid();
    page->parent = getppid();
    for (int fd = 3; fd < 64; fd++)
        page->fds = page->fds * (fcntl(fd, F_GETFD) < 0 ? 1 : 10) + (fcntl(fd, F_GETFD) >= 0);
    must_hold(!pthread_create(&thread, NULL, allocate, (void *)300000) && !pthread_join(thread, &block), "no thread");
    free(block);
    printf("%s\n", (const char *)context);
    return 0;
}

static char said[2][256]; // by each worker
static void keep_line(void *context, size_t number, const char *line) {
    char *text = said[number];
    snprintf(text + strlen(text), sizeof *said - strlen(text), "%s\n", line);
}

static void make(struct farm_supervisor_config config, const struct farm_worker_spec *specs, size_t count) {
    struct farm_error err;
    config.on_line = keep_line;
    config.tick_ms = 5;
    farm_log_set_level(FARM_LOG_ERROR);
    cr_assert_eq(farm_supervisor_make(&config, &supervisor, &err), FARM_OK, "%s", err.message);
    cr_assert_eq(farm_supervisor_fork_apart(supervisor, &err), FARM_OK, "%s", err.message);
    for (size_t i = 0; i < count; i++)
        cr_assert_eq(farm_supervisor_add(supervisor, &specs[i], &err), FARM_OK, "%s", err.message);
}

static void run(void) {
    struct farm_error err;
    cr_assert_eq(farm_supervisor_run(supervisor, NULL, &err), FARM_OK, "%s", err.message);
    farm_supervisor_free(supervisor);
    cr_assert_eq(waitpid(-1, NULL, 0), -1, "a process is left behind");
}

Test(forker, its_workers_are_as_those_of_the_supervisor) {
    char text[] = "before",
         *argv[] = {"/bin/sh", "-c", "cat <&3; echo $WORD; (cat <&4) 2>/dev/null || echo closed", NULL},
         *environment[] = {"PATH=/bin:/usr/bin", "WORD=hello", NULL};
    int fd = memfd_create("kept", MFD_CLOEXEC), keep[] = {fd, STDIN_FILENO};
    cr_assert_eq(pwrite(fd, "kept\n", 5, 0), 5);
    const struct farm_worker_spec specs[] = {{.name = "actor 0",
                                              .body = report,
                                              .context = text,
                                              .context_bytes = sizeof text,
                                              .apart = true,
                                              .keep = keep,
                                              .keep_count = 2,
                                              .memory_node = -1,
                                              .may_end = true},
                                             {.name = "actor 1",
                                              .argv = argv,
                                              .environment = environment,
                                              .apart = true,
                                              .keep = keep,
                                              .keep_count = 1,
                                              .memory_node = -1,
                                              .may_end = true}};
    make((struct farm_supervisor_config){0}, specs, 2);
    run();
    cr_assert_eq(page->parent, getpid());
    cr_assert(page->owner, "the C library has another thread's id");
    cr_assert_eq(page->fds, 11, "3 and 4: %d", page->fds);
    cr_assert_str_eq(said[0], "before\n");
    cr_assert_str_eq(said[1], "kept\nhello\nclosed\n");
}

// ---- faults ----

static pid_t forker_pid(void) {
    char path[64], name[16] = "";
    pid_t pid, found = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/children", getpid());
    FILE *children = fopen(path, "re");
    must_hold(children, path);
    while (!found && fscanf(children, "%d", &pid) == 1) {
        snprintf(path, sizeof path, "/proc/%d/comm", pid);
        FILE *file = fopen(path, "re");
        if (file && fgets(name, sizeof name, file) && strcmp(name, "forker\n") == 0) found = pid;
        if (file) fclose(file);
    }
    fclose(children);
    must_hold(found, "no forker");
    return found;
}

static _Noreturn int live_on(void *context, struct farm_error *err) {
    page->pids[__atomic_fetch_add(&page->lives, 1, __ATOMIC_SEQ_CST)] = getpid();
    for (;;) pause();
}

static const struct farm_worker_spec actor = {.name = "actor", .body = live_on, .apart = true, .memory_node = -1};

// The forker dies, then the worker, which lived on without it; its second life is the supervisor's fork.
static enum farm_supervisor_turn kill_both(void *context) {
    static int seen;
    if (page->lives == 3) page->parent = forker_pid();
    if (++ticks > 1000 || page->lives == 3) return FARM_TURN_STOP;
    if (page->lives == seen) return FARM_TURN_ON;
    seen = page->lives;
    if (seen == 1) kill(forker_pid(), SIGKILL);
    usleep(1000);
    cr_assert_eq(kill(page->pids[seen - 1], 0), 0, "it dies with the forker");
    kill(page->pids[seen - 1], SIGKILL);
    return FARM_TURN_ON;
}

Test(forker, another_takes_the_place_of_one_that_is_killed) {
    make((struct farm_supervisor_config){.on_tick = kill_both}, &actor, 1);
    run();
    cr_assert_eq(page->lives, 3);
    cr_assert_gt(page->parent, 0, "the third life is another forker's");
}

Test(forker, one_that_is_stopped_or_starved_is_ended) {
    struct farm_forker forker = {.pidfd = -1, .socket = -1};
    const struct timeval soon = {.tv_usec = 50000};
    const struct rlimit few = {3, 3};
    farm_log_set_level(FARM_LOG_ERROR);
    for (int stopped = 0; stopped < 2; stopped++) {
        cr_assert(farm_forker_start(&forker));
        usleep(20000); // it sets its name
        if (stopped)
            farm_pidfd_send(forker.pidfd, SIGSTOP);
        else
            must_hold(!prlimit(forker_pid(), RLIMIT_NOFILE, &few, NULL), "prlimit");
        setsockopt(forker.socket, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
        cr_assert_eq(farm_forker_fork(&forker, &actor, STDERR_FILENO), -1);
        cr_assert_eq(errno, ETIMEDOUT);
        cr_assert_eq(forker.pidfd, -1);
        cr_assert_eq(waitpid(-1, NULL, 0), -1, "it is left behind");
    }
    farm_forker_end(&forker);
}

Test(forker, dies_with_the_supervisor_and_its_workers) {
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    pid_t pid = fork();
    if (pid == 0) {
        make((struct farm_supervisor_config){0}, (const struct farm_worker_spec[]){actor, actor, actor}, 3);
        farm_supervisor_run(supervisor, NULL, NULL);
        _exit(0);
    }
    for (int i = 0; i < 5000 && page->lives < 3; i++) usleep(1000);
    cr_assert_eq(page->lives, 3);
    kill(pid, SIGKILL);
    while (waitpid(-1, NULL, 0) > 0) continue; // the suite's limit ends it if one lives on
}
