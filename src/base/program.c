// See program.h.
#include "base/program.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/confine.h"
#include "base/format.h"
#include "base/paths.h"
#include "base/pidfd.h"
#include "base/thread.h"
#include "base/time.h"

// END_S: from SIGTERM to SIGKILL; STOPPED_S: the same after stop(), to print its answer; AFTER_S: from the end of its
// output to SIGKILL (python/actorfarm/actor.py: CLOSE_S, END_S).
enum { END_S = 10, APART_END_S = 2, AFTER_S = 10, STOPPED_S = 60 };
enum { TEXT_BYTES_MAX = 1 << 20, LOOK_MS = 100, BLIND_MS = 5, PLACE_S = 5, TRIES = 3 };
static const uint64_t PLACE_BYTES = 4ull << 30; // an object's author may make addr2line ask for any

// One by one if a kernel before 5.9 or a container's filter refuses close_range.
void farm_program_close(unsigned first, unsigned last) {
    if (first > last || close_range(first, last, 0) == 0) return;
    DIR *open_ones = opendir("/proc/self/fd");
    if (!open_ones) _exit(127);
    for (const struct dirent *entry; (entry = readdir(open_ones));) {
        unsigned fd = (unsigned)strtoul(entry->d_name, NULL, 10);
        if (fd >= first && fd <= last && (int)fd != dirfd(open_ones)) close((int)fd);
    }
    closedir(open_ones);
}

// Signals that end this process stay pending until *before is restored: its children end first.
static void hold_signals(sigset_t *before) {
    const sigset_t ending = farm_ending_signals();
    pthread_sigmask(SIG_BLOCK, &ending, before);
}

bool farm_program_ended(pid_t pid, double limit_s) {
    const uint64_t deadline_ns = farm_now_ns() + (uint64_t)(limit_s * 1e9);
    struct pollfd watched = {.fd = farm_pidfd_open(pid), .events = POLLIN}; // -1: refused
    siginfo_t state = {.si_pid = 0};
    bool ended;
    for (uint64_t now;;) {
        const int failed = waitid(P_PID, (id_t)pid, &state, WEXITED | WNOHANG | WNOWAIT);
        ended = failed || state.si_pid == pid;
        if (ended || (now = farm_now_ns()) >= deadline_ns) break;
        const uint64_t left_ms = (deadline_ns - now) / 1000000u + 1, most_ms = watched.fd < 0 ? BLIND_MS : INT_MAX;
        poll(&watched, 1, (int)(left_ms < most_ms ? left_ms : most_ms));
    }
    if (watched.fd >= 0) close(watched.fd);
    return ended;
}

enum farm_status farm_program_await(pid_t pid, double limit_s, int *ended) {
    const uint64_t deadline_ns = farm_now_ns() + (uint64_t)(limit_s * 1e9);
    enum farm_status status = FARM_E_DEAD;
    sigset_t before;
    hold_signals(&before);
    do {
        if (farm_program_ended(pid, limit_s < LOOK_MS * 1e-3 ? limit_s : LOOK_MS * 1e-3)) status = FARM_OK;
        if (farm_ending_pending()) status = FARM_E_INTERRUPTED;
    } while (status == FARM_E_DEAD && farm_now_ns() < deadline_ns);
    kill(pid, SIGKILL);
    kill(-pid, SIGKILL); // before it is reaped, while the number is still valid
    while (waitpid(pid, ended, 0) < 0 && errno == EINTR) continue;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

enum farm_status farm_program_call(const char *what, bool (*body)(const void *context, void *result),
                                   const void *context, bool quiet, double limit_s, void *result, size_t bytes,
                                   struct farm_error *err) {
    void *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const pid_t parent = getpid();
    if (shared == MAP_FAILED) return farm_fail_errno(err, FARM_E_LIMIT, "%s", what);
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        sigset_t nothing;
        sigemptyset(&nothing);
        sigprocmask(SIG_SETMASK, &nothing, NULL);
        const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent) _exit(1);
        if (quiet) dup2(null, STDOUT_FILENO), dup2(null, STDERR_FILENO);
        _exit(!body(context, shared));
    }
    int ended = 0;
    enum farm_status status = FARM_OK;
    if (pid < 0)
        status = farm_fail_errno(err, FARM_E_LIMIT, "%s", what);
    else if ((status = farm_program_await(pid, limit_s, &ended)))
        status = status == FARM_E_INTERRUPTED ? farm_fail(err, status, "%s: a signal came", what)
                                              : farm_fail(err, status, "%s did not answer within %g s", what, limit_s);
    else if (WIFSIGNALED(ended))
        status = farm_fail(err, FARM_E_DEAD, "%s ended in signal %d (%s)", what, WTERMSIG(ended),
                           strsignal(WTERMSIG(ended)));
    else if (WEXITSTATUS(ended))
        status = farm_fail(err, FARM_E_DEAD, "%s ended with exit status %d", what, WEXITSTATUS(ended));
    memcpy(result, shared, bytes);
    munmap(shared, bytes);
    return status;
}

void farm_program_last_line(int fd, char *line, size_t bytes) {
    char text[4096];
    const off_t end = lseek(fd, 0, SEEK_END), from = end > (off_t)sizeof text - 1 ? end - (off_t)sizeof text + 1 : 0;
    ssize_t length = pread(fd, text, sizeof text - 1, from);
    while (length > 0 && (text[length - 1] == '\n' || text[length - 1] == ' ')) length--;
    text[length > 0 ? length : 0] = 0;
    const char *newline = strrchr(text, '\n');
    snprintf(line, bytes, "%.*s", (int)bytes - 1, newline ? newline + 1 : text);
}

static int start_child(const struct farm_program *program, int output_fd, int error_fd, pid_t *pid) {
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t nothing;
    sigemptyset(&nothing);
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &nothing);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes,
                             (short)(POSIX_SPAWN_SETSIGMASK | (program->apart ? POSIX_SPAWN_SETPGROUP : 0)));
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files, output_fd, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&files, error_fd, STDERR_FILENO);
    char found[PATH_MAX];
    const bool named = strchr(program->path, '/') != NULL;
    const int failed =
        !named && farm_path_program(program->path, found, sizeof found, NULL)
            ? ENOENT
            : posix_spawn(pid, named ? program->path : found, &files, &attributes, program->argv, program->environment);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    const struct rlimit memory = {program->memory_bytes, program->memory_bytes};
    if (!failed && memory.rlim_cur) prlimit(*pid, RLIMIT_AS, &memory, NULL);
    return failed;
}

// Reads fd to its end, or to the program's if its children keep the pipe open, into text, zero-terminated.
static enum farm_status read_all(const struct farm_program *program, pid_t pid, int fd, char *text,
                                 struct farm_error *err) {
    uint64_t deadline_ns = farm_now_ns() + (uint64_t)(program->limit_s * 1e9);
    size_t length = 0;
    for (bool stopped = false;;) {
        struct pollfd readable = {.fd = fd, .events = POLLIN};
        if (farm_now_ns() >= deadline_ns && stopped) return farm_fail(err, FARM_E_DEAD, "no answer after a signal");
        if (farm_now_ns() >= deadline_ns)
            return farm_fail(err, FARM_E_DEAD, "no answer within %g s%s", program->limit_s,
                             program->remedy ? program->remedy : "");
        if (!program->stop && farm_ending_pending()) return farm_fail(err, FARM_E_INTERRUPTED, "a signal came");
        if (!stopped && program->stop && program->stop(program->context)) {
            kill(program->apart ? -pid : pid, SIGTERM);
            deadline_ns = farm_now_ns() + (uint64_t)STOPPED_S * 1000000000u;
            stopped = true;
        }
        const bool ended = farm_program_ended(pid, 0);
        const int ready = poll(&readable, 1, ended ? 0 : LOOK_MS);
        if (ready < 0 && errno != EINTR) return farm_fail_errno(err, FARM_E_IO, "waiting for its answer");
        if (ready == 0 && ended) break;
        if (ready <= 0) continue;
        if (length == TEXT_BYTES_MAX - 1)
            return farm_fail(err, FARM_E_FORMAT, "an answer of more than %d bytes", TEXT_BYTES_MAX);
        const ssize_t n = read(fd, text + length, TEXT_BYTES_MAX - 1 - length);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return farm_fail_errno(err, FARM_E_IO, "reading its answer");
        if (n == 0) break;
        length += (size_t)n;
    }
    text[length] = 0;
    return FARM_OK;
}

// SIGTERM lets it end its workers; SIGKILL follows if it does not end.
static void end(const struct farm_program *program, pid_t pid) {
    int ended;
    kill(program->apart ? -pid : pid, SIGTERM);
    farm_program_ended(pid, program->apart ? APART_END_S : END_S);
    farm_program_await(pid, 0, &ended);
}

// After the end of its output, which counts even if its process does not end. *killed_by: the signal that it died of.
static enum farm_status await(const struct farm_program *program, pid_t pid, const char *text, int error_fd,
                              int *killed_by, struct farm_error *err) {
    int ended = 0;
    char said[512];
    const size_t label = strlen(program->label);
    const bool over = program->stop && farm_program_ended(pid, AFTER_S);
    const enum farm_status status = farm_program_await(pid, program->stop ? 0 : AFTER_S, &ended);
    if (status && !over && text[0]) return FARM_OK;
    if (status == FARM_E_INTERRUPTED && !over) return farm_fail(err, status, "a signal came");
    if (status && !over) return farm_fail(err, status, "it closed its output without an answer and did not end");
    farm_program_last_line(error_fd, said, sizeof said);
    if (WIFSIGNALED(ended)) *killed_by = WTERMSIG(ended);
    if (WIFSIGNALED(ended)) return farm_fail(err, FARM_E_DEAD, "it died of %s", strsignal(WTERMSIG(ended)));
    if (WEXITSTATUS(ended) == 0) return FARM_OK;
    const char *why = strncmp(said, program->label, label) == 0 ? said + label : said;
    if (!why[0]) return farm_fail(err, FARM_E_DEAD, "it ended with status %d without a message", WEXITSTATUS(ended));
    return farm_fail(err, WEXITSTATUS(ended) == 2 ? FARM_E_USAGE : FARM_E_NOT_FOUND, "%s", why);
}

static enum farm_status read_once(const struct farm_program *program, char **text, int *killed_by,
                                  struct farm_error *err) {
    int output[2] = {-1, -1}, errors = memfd_create("errors", MFD_CLOEXEC);
    enum farm_status status = FARM_OK;
    pid_t pid;
    *text = malloc(TEXT_BYTES_MAX);
    if (!*text || errors < 0 || pipe2(output, O_CLOEXEC)) {
        status = farm_fail_errno(err, FARM_E_LIMIT, "cannot run %s", program->path);
    } else {
        const int failed = start_child(program, output[1], errors, &pid);
        close(output[1]);
        if (failed) {
            status = farm_fail(err, FARM_E_NOT_FOUND, "cannot start %s: %s", program->path, strerror(failed));
        } else if ((status = read_all(program, pid, output[0], *text, err))) {
            end(program, pid);
        } else {
            status = await(program, pid, *text, errors, killed_by, err);
        }
        close(output[0]);
    }
    if (errors >= 0) close(errors);
    if (status) free(*text);
    if (status) *text = NULL;
    return status;
}

struct reading {
    struct farm_program program;
    char **text;
    enum farm_status status;
    struct farm_error *err;
};

static void *read_confined(void *context) {
    struct reading *reading = context;
    reading->status = farm_confine_environment(reading->err);
    if (!reading->status) reading->status = farm_program_read(&reading->program, reading->text, reading->err);
    return NULL;
}

// A thread is confined, and starts the program: this process is not.
static enum farm_status read_by_thread(const struct farm_program *program, char **text, struct farm_error *err) {
    struct reading reading = {.program = *program, .text = text, .err = err};
    pthread_t thread;
    sigset_t before;
    reading.program.confined = false;
    hold_signals(&before);
    errno = pthread_create(&thread, NULL, read_confined, &reading);
    if (errno)
        reading.status = farm_fail_errno(err, FARM_E_LIMIT, "no thread");
    else
        pthread_join(thread, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return reading.status;
}

// A child joins its own process group some microseconds after it starts: an ending signal to ours, which this process
// blocks, kills it before. The caller learns of the signal as at any other time.
enum farm_status farm_program_read(const struct farm_program *program, char **text, struct farm_error *err) {
    if (program->confined) return read_by_thread(program, text, err);
    const sigset_t ending = farm_ending_signals();
    enum farm_status status;
    sigset_t before;
    int killed_by, tries = 0;
    hold_signals(&before);
    do {
        killed_by = 0;
        status = read_once(program, text, &killed_by, err);
    } while (program->apart && killed_by && sigismember(&ending, killed_by) == 1 && ++tries < TRIES &&
             !(program->stop && program->stop(program->context)));
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

void farm_program_place(const char *object, uint64_t offset, char *text, size_t bytes) {
    // An argument that begins with @ would name a file of arguments.
    char file[PATH_MAX + 8], address[24], *argv[] = {"addr2line", "-Cfip", file, address, NULL}, *found;
    const char *slash = strrchr(object, '/'), *name = slash ? slash + 1 : object;
    const struct farm_program program = {.path = argv[0],
                                         .argv = argv,
                                         .environment = environ,
                                         .label = "",
                                         .limit_s = PLACE_S,
                                         .memory_bytes = PLACE_BYTES};
    snprintf(file, sizeof file, "--exe=%s", object);
    snprintf(address, sizeof address, "0x%llx", (unsigned long long)offset);
    if (farm_program_read(&program, &found, NULL)) {
        snprintf(text, bytes, "addr2line -fe %s %s", farm_format_word(object).text, address);
        return;
    }
    // Newer versions of addr2line add a discriminator to a line.
    for (char *from, *to; (from = strstr(found, " (discriminator ")) && (to = strchr(from, ')'));)
        memmove(from, to + 1, strlen(to));
    const size_t line = strcspn(found, "\n"), all = strlen(found);
    snprintf(text, bytes, "%.*s (%s+%s)%.*s", (int)line, found, name, address, all > line ? (int)(all - line - 1) : 0,
             found + line);
    free(found);
}
