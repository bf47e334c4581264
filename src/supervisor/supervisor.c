// See supervisor.h.
#include "supervisor/supervisor.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/pidfd.h"
#include "base/thread.h"
#include "base/time.h"
#include "supervisor/child.h"
#include "supervisor/forker.h"

enum { WORDS_MAX = 480, BACKOFF_FIRST_MS = 10, WORKERS_MAX = 1 << 15, WARN_AFTER_MS = 1000 };
// Bytes read of one worker in a turn, and the pause before its next turn: 1.3 MB/s.
enum { READ_BYTES = 4096, TURN_READS = 16, FLOOD_PAUSE_MS = 50 };
enum { LINES_A_SECOND = 100, ERRORS_KEPT = 4 }; // passed on from one worker; the last ones: only the farm's errors
enum { DEATHS_KEPT = 3, WHY_BYTES = 64 };
enum { EVENTS_MAX = 256 }; // in a turn
// Limits to find places: of one crash, even at its end of the run; at other ends; for the end of a process after
// SIGKILL.
enum { PLACES_MS = 5000, PLACES_LEFT_MS = 1000, KILL_MS = 100 };

static const uint64_t SECOND_NS = 1000000000;

enum worker_state {
    WORKER_DUE,     // to be started at start_at_ns
    WORKER_RUNNING, // has a process
    WORKER_OVER,    // ended, or stopped: not started again
};

struct worker {
    struct farm_worker_spec spec;
    enum worker_state state;
    pid_t pid;
    int pidfd, output_fd;
    uint64_t starts, started_ns, start_at_ns, progress_at_start;
    uint32_t short_lives, fruitless; // in a row
    bool prepared;                   // before_start was called for the next life
    bool ended;                      // by itself
    bool dismissed;                  // its next death is its end
    uint64_t kill_at_ns;             // a dismissed worker's; 0: none
    uint64_t listen_at_ns;           // it wrote too much at once: its output is not read before
    char line[FARM_WORKER_LINE_MAX]; // the beginning of a line that has not ended yet
    size_t line_length;
    uint64_t second_ns;    // when the present second of its output began
    uint64_t lines, held;  // in this second: lines passed on, and suppressed
    char words[WORDS_MAX]; // last words: the end of what it wrote in this life
    size_t words_length;
    struct farm_death_frames frames;                  // from its crash report
    char why[WHY_BYTES];                              // farm_supervisor_kill in this life; "": not called
    char deaths[DEATHS_KEPT][FARM_DEATH_CAUSE_BYTES]; // the last causes; "": none
};

// The frames of a worker's death; count 0: none.
struct crash {
    size_t worker;
    char name[FARM_WORKER_NAME_MAX];
    struct farm_death_frames frames;
};

struct farm_supervisor {
    struct farm_supervisor_config config;
    struct worker *workers;
    size_t count, capacity;
    struct pollfd *polls;     // events, those watched
    int signal_fd, events_fd; // epoll(7): 0 for signals, the address of a worker for its end, and + 1 for its output
    uint64_t alarm_ns;        // no worker's time comes before: to start or kill it, to listen, to report held lines
    struct worker *dead[EVENTS_MAX]; // to reap
    size_t dead_count;
    int phase;   // being stopped
    size_t left; // processes that it still has
    struct farm_forker forker;
    sigset_t mask_before;
    bool usr1, usr2;   // pending: on_signal was not called yet
    int signal_number; // the first that came
    uint64_t signal_ns;
    bool impatient;
    bool asked, deferred; // on_interrupt was called; its answer
    struct farm_death_watch deaths;
    struct worker search;      // looks up the places of `sought`; no death of it counts
    struct crash sought, next; // next: the newest one that waits
};

static const struct worker no_search = {
    .spec = {.name = "addr2line", .body = farm_death_print_places, .memory_node = -1},
    .state = WORKER_OVER,
    .pidfd = -1,
    .output_fd = -1,
    .prepared = true};

static uint32_t or_default(uint32_t value, uint32_t standard) {
    return value ? value : standard;
}

static uint64_t ms(uint32_t milliseconds) {
    return (uint64_t)milliseconds * 1000000u;
}

// Listens to a descriptor of a worker (NULL: the signals), or no longer. False: errno.
static bool attend(const struct farm_supervisor *supervisor, int operation, int fd, struct worker *worker, bool output,
                   uint32_t events) {
    struct epoll_event event = {.events = events, .data.u64 = (uintptr_t)worker | output};
    return epoll_ctl(supervisor->events_fd, operation, fd, &event) == 0;
}

static void set_alarm(struct farm_supervisor *supervisor, uint64_t at_ns) {
    if (at_ns < supervisor->alarm_ns) supervisor->alarm_ns = at_ns;
}

// ---- making ----

enum farm_status farm_supervisor_make(const struct farm_supervisor_config *config, struct farm_supervisor **out,
                                      struct farm_error *err) {
    struct farm_supervisor *supervisor = calloc(1, sizeof *supervisor);
    if (!supervisor) return farm_fail_errno(err, FARM_E_LIMIT, "supervisor");
    supervisor->config = *config;
    supervisor->search = no_search;
    supervisor->forker = (struct farm_forker){.pidfd = -1, .socket = -1};
    struct farm_supervisor_config *set = &supervisor->config;
    set->tick_ms = or_default(set->tick_ms, 250);
    set->grace_ms = or_default(set->grace_ms, 10000);
    set->healthy_ms = or_default(set->healthy_ms, 10000);
    set->backoff_max_ms = or_default(set->backoff_max_ms, 2000);
    set->deaths_max = or_default(set->deaths_max, 5);
    set->short_lives_max = or_default(set->short_lives_max, 100);

    farm_death_watch(&supervisor->deaths, config->root);
    sigset_t taken = farm_ending_signals(), blocked;
    if (config->on_signal) {
        sigaddset(&taken, SIGUSR1);
        sigaddset(&taken, SIGUSR2);
    }
    blocked = taken;
    sigaddset(&blocked, SIGPIPE);
    sigprocmask(SIG_BLOCK, &blocked, &supervisor->mask_before);
    supervisor->signal_fd = signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK);
    supervisor->events_fd = epoll_create1(EPOLL_CLOEXEC);
    supervisor->polls = calloc(1 + config->watched_count, sizeof *supervisor->polls);
    if (supervisor->signal_fd >= 0 && supervisor->events_fd >= 0 && supervisor->polls &&
        attend(supervisor, EPOLL_CTL_ADD, supervisor->signal_fd, NULL, false, EPOLLIN)) {
        *out = supervisor;
        return FARM_OK;
    }
    enum farm_status status = farm_fail_errno(err, FARM_E_LIMIT, "no descriptor for signals (ulimit -n)");
    farm_supervisor_free(supervisor);
    return status;
}

enum farm_status farm_supervisor_reserve(struct farm_supervisor *supervisor, struct farm_error *err) {
    if (supervisor->count == WORKERS_MAX) return farm_fail(err, FARM_E_LIMIT, "more than %d workers", WORKERS_MAX);
    if (supervisor->count == supervisor->capacity) {
        size_t capacity = supervisor->capacity ? 2 * supervisor->capacity : 16;
        struct worker *workers = realloc(supervisor->workers, capacity * sizeof *workers);
        if (!workers) return farm_fail_errno(err, FARM_E_LIMIT, "supervisor");
        supervisor->workers = workers;
        supervisor->capacity = capacity;
    }
    struct worker *worker = &supervisor->workers[supervisor->count++];
    memset(worker, 0, sizeof *worker);
    worker->pidfd = worker->output_fd = -1;
    worker->state = WORKER_OVER;
    return FARM_OK;
}

static enum farm_status check_spec(const struct farm_worker_spec *spec, struct farm_error *err) {
    if (spec->name[0] && !spec->body != !spec->argv) return FARM_OK;
    return farm_fail(err, FARM_E_INVALID, "a worker needs a name and either a body or a program");
}

enum farm_status farm_supervisor_enlist(struct farm_supervisor *supervisor, size_t number,
                                        const struct farm_worker_spec *spec, struct farm_error *err) {
    assert(number < supervisor->count);
    struct worker *worker = &supervisor->workers[number];
    const enum farm_status status = check_spec(spec, err);
    if (status) return status;
    if (worker->state != WORKER_OVER)
        return farm_fail(err, FARM_E_BUSY, "%s has the number of %s", worker->spec.name, spec->name);
    memset(worker, 0, sizeof *worker);
    worker->spec = *spec;
    worker->pidfd = worker->output_fd = -1;
    supervisor->alarm_ns = 0;
    return FARM_OK;
}

enum farm_status farm_supervisor_add(struct farm_supervisor *supervisor, const struct farm_worker_spec *spec,
                                     struct farm_error *err) {
    enum farm_status status = check_spec(spec, err);
    if (!status) status = farm_supervisor_reserve(supervisor, err);
    if (!status) status = farm_supervisor_enlist(supervisor, supervisor->count - 1, spec, err);
    return status;
}

void farm_supervisor_dismiss(struct farm_supervisor *supervisor, size_t number) {
    assert(number < supervisor->count);
    struct worker *worker = &supervisor->workers[number];
    if (worker->state == WORKER_OVER || worker->dismissed) return;
    worker->dismissed = true;
    if (worker->state == WORKER_RUNNING) {
        farm_pidfd_send(worker->pidfd, SIGTERM);
        farm_pidfd_send(worker->pidfd, SIGCONT); // a stopped process cannot end by itself
        worker->kill_at_ns = farm_now_ns() + ms(supervisor->config.grace_ms);
        set_alarm(supervisor, worker->kill_at_ns);
        return;
    }
    worker->state = WORKER_OVER;
    if (supervisor->config.on_end) supervisor->config.on_end(supervisor->config.context, number);
}

void farm_supervisor_kill(struct farm_supervisor *supervisor, size_t number, const char *why) {
    assert(number < supervisor->count);
    struct worker *worker = &supervisor->workers[number];
    if (worker->state != WORKER_RUNNING) return;
    snprintf(worker->why, sizeof worker->why, "%s", why);
    farm_pidfd_send(worker->pidfd, SIGKILL);
}

// ---- signals ----

static void read_signals(struct farm_supervisor *supervisor) {
    struct signalfd_siginfo info;
    while (read(supervisor->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        uint64_t now = farm_now_ns();
        if (info.ssi_signo == SIGUSR1) {
            supervisor->usr1 = true;
        } else if (info.ssi_signo == SIGUSR2) {
            supervisor->usr2 = true;
        } else if (!supervisor->signal_number) {
            supervisor->signal_number = (int)info.ssi_signo;
            supervisor->signal_ns = now;
        } else if (now - supervisor->signal_ns >= ms(WARN_AFTER_MS)) {
            supervisor->impatient = true;
        }
    }
}

enum farm_status farm_supervisor_fork_apart(struct farm_supervisor *supervisor, struct farm_error *err) {
    return farm_forker_start(&supervisor->forker)
               ? FARM_OK
               : farm_fail_errno(err, FARM_E_LIMIT, "cannot start a process (ulimit -u, pids.max of the cgroup)");
}

bool farm_supervisor_interrupted(struct farm_supervisor *supervisor) {
    read_signals(supervisor);
    return supervisor->signal_number != 0;
}

// ---- what workers write ----

// Keeps the end of all lines, whole lines where that is possible.
static void remember(struct worker *worker, const char *line) {
    size_t length = strlen(line);
    if (length > WORDS_MAX - 2) line += length - (WORDS_MAX - 2), length = WORDS_MAX - 2;
    while (worker->words_length + length + 2 > WORDS_MAX) {
        const char *newline = memchr(worker->words, '\n', worker->words_length);
        assert(newline);
        size_t drop = (size_t)(newline - worker->words) + 1;
        worker->words_length -= drop;
        memmove(worker->words, worker->words + drop, worker->words_length);
    }
    memcpy(worker->words + worker->words_length, line, length);
    worker->words_length += length;
    worker->words[worker->words_length++] = '\n';
    worker->words[worker->words_length] = 0;
}

static void hand_line(const struct farm_supervisor *supervisor, const struct worker *worker, const char *line) {
    if (supervisor->config.on_line)
        supervisor->config.on_line(supervisor->config.context, (size_t)(worker - supervisor->workers), line);
    else
        dprintf(STDERR_FILENO, "%s\n", line);
}

// Begins a new second of the worker's output if the last one is over. over: the worker's life is.
static void begin_second(const struct farm_supervisor *supervisor, struct worker *worker, bool over) {
    const uint64_t now = farm_now_ns(), held = worker->held;
    const bool begins = now - worker->second_ns >= SECOND_NS;
    if (begins) worker->second_ns = now;
    if (begins) worker->lines = held > LINES_A_SECOND ? LINES_A_SECOND - ERRORS_KEPT : 0; // a flood is only counted
    if (!held || (!over && !begins)) return;
    worker->held = 0;
    char line[128];
    snprintf(line, sizeof line, "farm: warning: %llu line%s of %s suppressed (more than %d in a second)",
             (unsigned long long)held, held == 1 ? "" : "s", worker->spec.name, LINES_A_SECOND);
    hand_line(supervisor, worker, line);
}

static void pass_line(struct farm_supervisor *supervisor, struct worker *worker, const char *line) {
    static const char error[] = "farm: error: ";
    remember(worker, line);
    begin_second(supervisor, worker, false);
    const uint64_t most = strncmp(line, error, sizeof error - 1) ? LINES_A_SECOND - ERRORS_KEPT : LINES_A_SECOND;
    const bool passes = worker->lines < most;
    ++*(passes ? &worker->lines : &worker->held);
    if (passes) hand_line(supervisor, worker, line);
    if (!passes) set_alarm(supervisor, worker->second_ns + SECOND_NS);
}

static void print_place(struct farm_supervisor *supervisor, const struct crash *crash, const char *place) {
    char line[FARM_WORKER_LINE_MAX];
    snprintf(line, sizeof line, "farm: error: %s: %.970s", crash->name, place);
    pass_line(supervisor, &supervisor->workers[crash->worker], line);
}

static void finish_line(struct farm_supervisor *supervisor, struct worker *worker) {
    worker->line[worker->line_length] = 0;
    worker->line_length = 0;
    if (worker == &supervisor->search)
        print_place(supervisor, &supervisor->sought, worker->line);
    else if (!farm_death_take_frame(&worker->frames, worker->line))
        pass_line(supervisor, worker, worker->line);
}

// Control characters become blanks, because the line may go to a terminal; a tab stays.
static char harmless(char c) {
    return ((unsigned char)c < ' ' && c != '\t') || c == 0x7f ? ' ' : c;
}

// Reads what is there, at most `rounds` times; a line that is too long is broken up. False at the end of the stream.
// A worker that writes more waits: its pipe fills and its writes block.
static bool read_output(struct farm_supervisor *supervisor, struct worker *worker, int rounds) {
    char block[READ_BYTES];
    while (rounds-- > 0) {
        ssize_t n = read(worker->output_fd, block, sizeof block);
        if (n < 0) return errno == EAGAIN || errno == EINTR;
        if (n == 0) return false;
        for (ssize_t i = 0; i < n; i++) {
            if (block[i] == '\n' || worker->line_length == sizeof worker->line - 1) finish_line(supervisor, worker);
            if (block[i] == '\n') continue;
            char *at = &worker->line[worker->line_length++];
            *at = harmless(block[i]);
            if ((*at & 0xe0) == 0x80 && at > worker->line && at[-1] == '\xc2') at[-1] = *at = ' '; // U+0080 to U+009F
        }
    }
    worker->listen_at_ns = (farm_now_ns() / ms(FLOOD_PAUSE_MS) + 1) * ms(FLOOD_PAUSE_MS); // all such ones together
    set_alarm(supervisor, worker->listen_at_ns);
    attend(supervisor, EPOLL_CTL_MOD, worker->output_fd, worker, true, 0);
    return true;
}

// Processes that are being started may hold it too: closing alone would not end its events.
static void forget(const struct farm_supervisor *supervisor, int *fd) {
    if (*fd < 0) return;
    attend(supervisor, EPOLL_CTL_DEL, *fd, NULL, false, 0);
    close(*fd);
    *fd = -1;
}

// ---- starting ----

static uint64_t progress_of(const struct farm_supervisor *supervisor, const struct worker *worker) {
    if (!supervisor->config.progress || worker == &supervisor->search) return 0;
    return supervisor->config.progress(supervisor->config.context, (size_t)(worker - supervisor->workers));
}

static enum farm_status fail_pidfd(const struct worker *worker, struct farm_error *err) {
    struct utsname system = {.release = "?"};
    if (errno != ENOSYS && errno != EPERM)
        return farm_fail_errno(err, FARM_E_LIMIT, "%s: pidfd_open", worker->spec.name);
    uname(&system);
    return farm_fail(
        err, FARM_E_UNSUPPORTED,
        "%s: the system refuses pidfd_open, which needs Linux 5.4 or later (this is %s); if it is newer, a "
        "container's seccomp profile refuses it: use a newer container engine (Docker 20.10, libseccomp "
        "2.5) or --security-opt seccomp=unconfined",
        worker->spec.name, system.release);
}

static pid_t fork_worker(struct farm_supervisor *supervisor, const struct farm_worker_spec *spec, int output_fd) {
    pid_t pid = spec->apart ? farm_forker_fork(&supervisor->forker, spec, output_fd) : -1;
    if (pid > 0) return pid;
    const pid_t parent = getpid();
    sigset_t nothing;
    sigemptyset(&nothing);
    fflush(NULL); // else the child would write our buffers again
    pid = fork();
    if (pid == 0) farm_child_become(spec, parent, output_fd, &nothing);
    return pid;
}

static enum farm_status start_worker(struct farm_supervisor *supervisor, struct worker *worker,
                                     struct farm_error *err) {
    if (supervisor->config.before_start && !worker->prepared)
        supervisor->config.before_start(supervisor->config.context, (size_t)(worker - supervisor->workers),
                                        worker->starts);
    worker->prepared = true;
    int output[2];
    if (pipe2(output, O_CLOEXEC) < 0) return farm_fail_errno(err, FARM_E_LIMIT, "%s: no pipe", worker->spec.name);
    fcntl(output[0], F_SETFL, O_NONBLOCK);
    worker->progress_at_start = progress_of(supervisor, worker); // before the fork: its first step may come at once
    const pid_t pid = fork_worker(supervisor, &worker->spec, output[1]);
    enum farm_status status = FARM_OK;
    if (pid < 0)
        status = farm_fail_errno(err, FARM_E_LIMIT, "%s: cannot start a process (ulimit -u, pids.max of the cgroup)",
                                 worker->spec.name);
    close(output[1]);
    int pidfd = status ? -1 : farm_pidfd_open(pid);
    if (!status && pidfd < 0) status = fail_pidfd(worker, err);
    if (!status && !(attend(supervisor, EPOLL_CTL_ADD, pidfd, worker, false, EPOLLIN) &&
                     attend(supervisor, EPOLL_CTL_ADD, output[0], worker, true, EPOLLIN)))
        status = farm_fail_errno(err, FARM_E_LIMIT, "%s: epoll_ctl (fs.epoll.max_user_watches)", worker->spec.name);
    if (status) {
        if (pid > 0) kill(pid, SIGKILL), waitpid(pid, NULL, 0);
        forget(supervisor, &pidfd);
        forget(supervisor, &output[0]);
        return status;
    }
    setpgid(pid, pid); // the child does the same; the first call counts
    worker->pid = pid;
    worker->pidfd = pidfd;
    worker->output_fd = output[0];
    worker->state = WORKER_RUNNING;
    worker->started_ns = farm_now_ns();
    worker->starts++;
    worker->prepared = false;
    worker->line_length = worker->words_length = worker->frames.count = 0;
    worker->words[0] = worker->why[0] = 0;
    return FARM_OK;
}

// A worker that is not started again, and the run with it unless it is expendable.
static enum farm_status lose(struct farm_supervisor *supervisor, struct worker *worker, enum farm_status status,
                             struct farm_error *err) {
    const struct farm_supervisor_config *config = &supervisor->config;
    worker->state = WORKER_OVER;
    if (!worker->spec.expendable) return status;
    if (config->on_loss) config->on_loss(config->context, (size_t)(worker - supervisor->workers), err->message);
    return FARM_OK;
}

// After a short life, or a start that failed: the next start, the later the more of them there were in a row.
static void start_later(struct farm_supervisor *supervisor, struct worker *worker, uint64_t now_ns) {
    uint64_t wait_ms = 0;
    if (worker->short_lives > 1) {
        uint32_t doublings = worker->short_lives - 2 < 20 ? worker->short_lives - 2 : 20;
        wait_ms = (uint64_t)BACKOFF_FIRST_MS << doublings;
        if (wait_ms > supervisor->config.backoff_max_ms) wait_ms = supervisor->config.backoff_max_ms;
    }
    worker->state = WORKER_DUE;
    worker->start_at_ns = now_ns + ms((uint32_t)wait_ms);
    set_alarm(supervisor, worker->start_at_ns);
}

// The machine refuses a process or a descriptor. It may pass, so an expendable worker that has lived is tried again.
static enum farm_status after_failed_start(struct farm_supervisor *supervisor, struct worker *worker, bool first_try,
                                           enum farm_status status, struct farm_error *err) {
    const struct farm_worker_spec *spec = &worker->spec;
    if (!spec->expendable || spec->once || !worker->starts) return lose(supervisor, worker, status, err);
    if (++worker->short_lives >= supervisor->config.short_lives_max) return lose(supervisor, worker, status, err);
    if (first_try) farm_log_warn("%s; it is tried again", err->message);
    start_later(supervisor, worker, farm_now_ns());
    return FARM_OK;
}

// ---- dying ----

// Instead of a search.
static void print_frame(struct farm_supervisor *supervisor, struct crash *crash) {
    char place[FARM_WORKER_LINE_MAX];
    if (!crash->frames.count) return;
    farm_death_first_place(&crash->frames, place, sizeof place);
    print_place(supervisor, crash, place);
    crash->frames.count = 0;
}

// Makes it the next crash to be looked up, in place of another one.
static void take_crash(struct farm_supervisor *supervisor, const struct worker *worker) {
    struct crash *next = &supervisor->next;
    if (!worker->frames.count) return;
    print_frame(supervisor, next);
    *next = (struct crash){.worker = (size_t)(worker - supervisor->workers), .frames = worker->frames};
    snprintf(next->name, sizeof next->name, "%s", worker->spec.name);
}

// Reaps a dead process: kills its group, reads its last output, closes its descriptors. False while it lives.
static bool reap(struct farm_supervisor *supervisor, struct worker *worker, siginfo_t *info) {
    memset(info, 0, sizeof *info);
    if (waitid(P_PIDFD, (id_t)worker->pidfd, info, WEXITED | WNOHANG | WNOWAIT) < 0 || info->si_pid == 0) return false;
    kill(-worker->pid, SIGKILL); // its children; safe, because the zombie still holds the number
    waitid(P_PIDFD, (id_t)worker->pidfd, info, WEXITED);
    enum { DRAIN_ROUNDS = 256 }; // 1 MiB: a pipe holds 64 KiB
    if (worker->output_fd >= 0) read_output(supervisor, worker, DRAIN_ROUNDS);
    if (worker->line_length) finish_line(supervisor, worker);
    take_crash(supervisor, worker);
    begin_second(supervisor, worker, true);
    forget(supervisor, &worker->output_fd);
    forget(supervisor, &worker->pidfd);
    worker->pid = 0;
    worker->kill_at_ns = worker->listen_at_ns = 0;
    return true;
}

// Looks up one crash at a time, which nothing waits for.
static void look_up_places(struct farm_supervisor *supervisor) {
    struct worker *search = &supervisor->search;
    siginfo_t info;
    if (search->state == WORKER_RUNNING && reap(supervisor, search, &info)) *search = no_search;
    if (search->state == WORKER_RUNNING || !supervisor->next.frames.count) return;
    supervisor->sought = supervisor->next;
    supervisor->next.frames.count = 0;
    search->spec.context = &supervisor->sought.frames;
    if (start_worker(supervisor, search, NULL))
        print_frame(supervisor, &supervisor->sought);
    else
        set_alarm(supervisor, search->kill_at_ns = farm_now_ns() + ms(PLACES_MS));
}

static void await_places(struct farm_supervisor *supervisor, uint32_t limit_ms) {
    struct worker *search = &supervisor->search;
    const uint64_t until_ns = farm_now_ns() + ms(limit_ms);
    for (look_up_places(supervisor); search->state == WORKER_RUNNING; look_up_places(supervisor)) {
        const uint64_t now = farm_now_ns();
        if (now >= until_ns + ms(KILL_MS)) return;
        if (now >= until_ns) farm_pidfd_send(search->pidfd, SIGKILL);
        poll(&(struct pollfd){.fd = search->pidfd, .events = POLLIN}, 1, KILL_MS / 10);
    }
}

static enum farm_status fail_dead(struct farm_supervisor *supervisor, struct worker *worker, const char *how, bool loop,
                                  struct farm_error *err) {
    char again[112] = "";
    if (!worker->spec.expendable) await_places(supervisor, PLACES_MS); // else the run goes on
    if (loop)
        snprintf(again, sizeof again,
                 "cannot be kept alive: it died %u times in a row soon after its start and at last ",
                 worker->short_lives);
    farm_fail(err, FARM_E_DEAD, "%s %s%s. %s%s", worker->spec.name, again, how,
              worker->words_length ? "Its last words:\n" : "It said nothing.", worker->words);
    return lose(supervisor, worker, FARM_E_DEAD, err);
}

// Its last deaths, the newest first.
static enum farm_status too_many_restarts(const struct worker *worker, struct farm_error *err) {
    char last[DEATHS_KEPT * (FARM_DEATH_CAUSE_BYTES + 2)] = "";
    for (uint64_t i = 1; i <= DEATHS_KEPT && i <= worker->starts; i++) {
        const size_t used = strlen(last);
        snprintf(last + used, sizeof last - used, "%s%s", used ? "; " : "",
                 worker->deaths[(worker->starts - i) % DEATHS_KEPT]);
    }
    return farm_fail(err, FARM_E_DEAD, "%s has been started again %llu times (restarts_max), and died again: it %s",
                     worker->spec.name, (unsigned long long)worker->spec.restarts_max, last);
}

// After a worker's death: its end, another start, or the end of the run.
static enum farm_status after_death(struct farm_supervisor *supervisor, struct worker *worker, const siginfo_t *info,
                                    struct farm_error *err) {
    const struct farm_supervisor_config *config = &supervisor->config;
    size_t number = (size_t)(worker - supervisor->workers);
    const bool by_itself =
        (worker->spec.may_end || worker->spec.once) && info->si_code == CLD_EXITED && info->si_status == 0;
    if (by_itself || worker->dismissed) {
        worker->state = WORKER_OVER;
        worker->ended = by_itself && worker->spec.may_end;
        if (config->on_end) config->on_end(config->context, number);
        return FARM_OK;
    }
    struct farm_death death;
    const struct farm_worker_spec *spec = &worker->spec;
    farm_death_describe(&supervisor->deaths, info, spec->argv ? "*" : spec->name, worker->why, &death);
    snprintf(worker->deaths[(worker->starts - 1) % DEATHS_KEPT], FARM_DEATH_CAUSE_BYTES, "%s", death.cause);
    if (config->on_death) config->on_death(config->context, number, &death);
    const bool exited = info->si_code == CLD_EXITED, by_word = !exited && info->si_status == SIGRTMAX;
    if ((exited && spec->errors_are_final) || (by_word && spec->final_status) || spec->once || spec->deaths_are_final)
        return fail_dead(supervisor, worker, death.how, false, err);
    if (spec->restarts_max && worker->starts > spec->restarts_max)
        return lose(supervisor, worker, too_many_restarts(worker, err), err);

    uint64_t now = farm_now_ns();
    bool healthy = now - worker->started_ns >= ms(config->healthy_ms);
    bool fruitless = progress_of(supervisor, worker) == worker->progress_at_start;
    worker->short_lives = healthy ? 0 : worker->short_lives + 1;
    worker->fruitless = healthy || !fruitless ? 0 : worker->fruitless + 1;
    if (worker->fruitless >= config->deaths_max || worker->short_lives >= config->short_lives_max)
        return fail_dead(supervisor, worker, death.how, true, err);
    start_later(supervisor, worker, now);
    return FARM_OK;
}

// ---- the loop ----

static void wait_for_events(struct farm_supervisor *supervisor, uint64_t until_ns) {
    const struct farm_supervisor_config *config = &supervisor->config;
    struct pollfd *polls = supervisor->polls, *watched = polls + 1;
    struct epoll_event events[EVENTS_MAX];
    supervisor->dead_count = 0;
    polls[0] = (struct pollfd){.fd = supervisor->events_fd, .events = POLLIN};
    for (size_t i = 0; i < config->watched_count; i++)
        watched[i] = (struct pollfd){.fd = config->watched[i], .events = POLLIN};
    if (supervisor->alarm_ns < until_ns) until_ns = supervisor->alarm_ns;
    uint64_t now = farm_now_ns();
    int timeout_ms = until_ns > now ? (int)((until_ns - now + 999999u) / 1000000u) : 0;
    if (poll(polls, 1 + config->watched_count, timeout_ms) < 0) return; // EINTR: the caller loops
    const int count = polls[0].revents ? epoll_wait(supervisor->events_fd, events, EVENTS_MAX, 0) : 0;
    for (int i = 0; i < count; i++) {
        struct worker *worker = (struct worker *)(events[i].data.u64 & ~1ull);
        if (!worker)
            read_signals(supervisor);
        else if (!(events[i].data.u64 & 1))
            supervisor->dead[supervisor->dead_count++] = worker;
        else if (!read_output(supervisor, worker, TURN_READS))
            forget(supervisor, &worker->output_fd);
    }
    for (size_t i = 0; i < config->watched_count; i++)
        if (watched[i].revents) config->on_readable(config->context, i);
}

static enum farm_status reap_all(struct farm_supervisor *supervisor, bool restart, struct farm_error *err) {
    enum farm_status status = FARM_OK;
    for (size_t i = 0; i < supervisor->dead_count && !status; i++) {
        struct worker *worker = supervisor->dead[i];
        siginfo_t info;
        if (worker == &supervisor->search || !reap(supervisor, worker, &info)) continue;
        supervisor->left -= worker->spec.stop_phase == supervisor->phase;
        if (restart)
            status = after_death(supervisor, worker, &info, err);
        else
            worker->state = WORKER_OVER;
    }
    return status;
}

static bool all_ended(const struct farm_supervisor *supervisor) {
    size_t may = 0, ended = 0;
    for (size_t i = 0; i < supervisor->count; i++) {
        may += supervisor->workers[i].spec.may_end;
        ended += supervisor->workers[i].ended;
    }
    return may > 0 && ended == may;
}

static void tell_signals(struct farm_supervisor *supervisor) {
    const struct farm_supervisor_config *config = &supervisor->config;
    const bool usr1 = supervisor->usr1, usr2 = supervisor->usr2;
    supervisor->usr1 = supervisor->usr2 = false;
    if (usr1) config->on_signal(config->context, SIGUSR1);
    if (usr2) config->on_signal(config->context, SIGUSR2);
}

static enum farm_status start_due(struct farm_supervisor *supervisor, struct worker *worker, struct farm_error *err) {
    const bool first_try = !worker->prepared, ends = !supervisor->deferred && farm_supervisor_interrupted(supervisor);
    if (ends || farm_now_ns() < worker->start_at_ns) {
        set_alarm(supervisor, worker->start_at_ns);
        return FARM_OK;
    }
    const enum farm_status status = start_worker(supervisor, worker, err);
    return status ? after_failed_start(supervisor, worker, first_try, status, err) : FARM_OK;
}

// Whether a time (0: none) has come, which clears it; else the alarm is set.
static bool has_come(struct farm_supervisor *supervisor, uint64_t *at_ns) {
    const bool come = *at_ns && farm_now_ns() >= *at_ns;
    if (come) *at_ns = 0;
    if (*at_ns) set_alarm(supervisor, *at_ns);
    return come;
}

static void serve(struct farm_supervisor *supervisor, struct worker *worker) {
    if (has_come(supervisor, &worker->kill_at_ns)) {
        farm_log_warn("%s did not end in time: killed", worker->spec.name);
        farm_pidfd_send(worker->pidfd, SIGKILL);
    }
    if (has_come(supervisor, &worker->listen_at_ns))
        attend(supervisor, EPOLL_CTL_MOD, worker->output_fd, worker, true, EPOLLIN);
    if (worker->held) begin_second(supervisor, worker, false);
    if (worker->held) set_alarm(supervisor, worker->second_ns + SECOND_NS);
}

static enum farm_status serve_all(struct farm_supervisor *supervisor, bool starts, struct farm_error *err) {
    enum farm_status status = FARM_OK;
    if (farm_now_ns() < supervisor->alarm_ns) return FARM_OK;
    supervisor->alarm_ns = UINT64_MAX;
    for (size_t i = 0; i < supervisor->count; i++) {
        struct worker *worker = &supervisor->workers[i];
        serve(supervisor, worker);
        if (worker->state == WORKER_DUE && starts && !status) status = start_due(supervisor, worker, err);
    }
    serve(supervisor, &supervisor->search);
    return status;
}

// Whether the workers end by themselves after the signal that has come.
static bool is_deferred(struct farm_supervisor *supervisor) {
    if (!supervisor->asked && supervisor->config.on_interrupt)
        supervisor->deferred = supervisor->config.on_interrupt(supervisor->config.context);
    supervisor->asked = true;
    return supervisor->deferred && !supervisor->impatient;
}

static enum farm_status watch(struct farm_supervisor *supervisor, struct farm_error *err) {
    const struct farm_supervisor_config *config = &supervisor->config;
    uint64_t tick_ns = farm_now_ns();
    for (;;) {
        if (farm_supervisor_interrupted(supervisor) && !is_deferred(supervisor)) return FARM_OK;
        enum farm_status status = reap_all(supervisor, true, err);
        if (status || (supervisor->dead_count && all_ended(supervisor))) return status;
        tell_signals(supervisor);
        if ((status = serve_all(supervisor, true, err))) return status;
        look_up_places(supervisor);
        if (farm_now_ns() >= tick_ns) {
            tick_ns = farm_now_ns() + ms(config->tick_ms);
            if (config->on_tick && config->on_tick(config->context) == FARM_TURN_STOP) return FARM_OK;
        }
        wait_for_events(supervisor, tick_ns);
    }
}

// ---- stopping ----

// Returns how many workers get it.
static size_t signal_phase(struct farm_supervisor *supervisor, int number) {
    size_t running = 0;
    for (size_t i = 0; i < supervisor->count; i++) {
        struct worker *worker = &supervisor->workers[i];
        if (worker->spec.stop_phase != supervisor->phase || worker->state != WORKER_RUNNING) continue;
        if (number == SIGKILL) farm_log_warn("%s did not end in time: killed", worker->spec.name);
        farm_pidfd_send(worker->pidfd, number);
        running++;
    }
    return running;
}

static void stop_phase(struct farm_supervisor *supervisor, int phase) {
    const struct farm_supervisor_config *config = &supervisor->config;
    if (config->before_stop) config->before_stop(config->context, phase);
    supervisor->phase = phase;
    supervisor->left = signal_phase(supervisor, SIGTERM);
    signal_phase(supervisor, SIGCONT); // a stopped process cannot end by itself
    uint64_t deadline_ns = farm_now_ns() + ms(config->grace_ms);
    bool killed = false;
    while (supervisor->left > 0) {
        if (!killed && (supervisor->impatient || farm_now_ns() >= deadline_ns)) {
            signal_phase(supervisor, SIGKILL);
            killed = true;
        }
        wait_for_events(supervisor, killed ? farm_now_ns() + ms(config->tick_ms) : deadline_ns);
        reap_all(supervisor, false, NULL);
        serve_all(supervisor, false, NULL);
        look_up_places(supervisor);
    }
}

// Phases in rising order; each pass picks the next one, so their numbers may have gaps.
static void stop_all(struct farm_supervisor *supervisor) {
    for (size_t i = 0; i < supervisor->count; i++) {
        supervisor->workers[i].kill_at_ns = 0; // its phase has its own grace
        if (supervisor->workers[i].state == WORKER_DUE) supervisor->workers[i].state = WORKER_OVER;
    }
    for (;;) {
        const struct worker *next = NULL;
        for (size_t i = 0; i < supervisor->count; i++) {
            const struct worker *worker = &supervisor->workers[i];
            if (worker->state != WORKER_RUNNING) continue;
            if (!next || worker->spec.stop_phase < next->spec.stop_phase) next = worker;
        }
        if (!next) return;
        stop_phase(supervisor, next->spec.stop_phase);
    }
}

enum farm_status farm_supervisor_run(struct farm_supervisor *supervisor, int *signal_number, struct farm_error *err) {
    prctl(PR_SET_CHILD_SUBREAPER, 0);                // else zombies of a long run's environments would pile up
    while (waitpid(-1, NULL, WNOHANG) > 0) continue; // those of the programs before it; no worker runs yet
    supervisor->dead_count = 0;
    enum farm_status status = watch(supervisor, err);
    prctl(PR_SET_CHILD_SUBREAPER, 1); // see supervisor/guardian.h
    stop_all(supervisor);
    await_places(supervisor, PLACES_LEFT_MS);
    print_frame(supervisor, &supervisor->next);
    if (signal_number) *signal_number = supervisor->signal_number;
    return status;
}

pid_t farm_supervisor_pid(const struct farm_supervisor *supervisor, size_t worker) {
    assert(worker < supervisor->count);
    return supervisor->workers[worker].pid;
}

void farm_supervisor_free(struct farm_supervisor *supervisor) {
    if (!supervisor) return;
    for (size_t i = 0; i < supervisor->count; i++) assert(supervisor->workers[i].state != WORKER_RUNNING);
    farm_forker_end(&supervisor->forker);
    read_signals(supervisor); // a pending signal would kill this process when it is unblocked
    if (supervisor->signal_fd >= 0) close(supervisor->signal_fd);
    if (supervisor->events_fd >= 0) close(supervisor->events_fd);
    sigprocmask(SIG_SETMASK, &supervisor->mask_before, NULL);
    free(supervisor->workers);
    free(supervisor->polls);
    free(supervisor);
}
