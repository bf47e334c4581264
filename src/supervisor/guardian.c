// See guardian.h. Commands to the guardian are signals: SIGUSR1 stop all, SIGUSR2 continue all, SIGQUIT end all.
#include "supervisor/guardian.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/program.h"
#include "base/time.h"

enum { TICK_MS = 500, TICK_NEWS_MS = 50, NEWS_S = 10, LOOK_MS = 20, TERM_MS = 2000, KILL_MS = 5000, QUIET_LOOKS = 2 };
enum { LOOK_SHARE = 20 }; // a look takes at most this part of the time: 1/20
enum { FILE_BYTES = 8 << 20, NAMES_BYTES = 400, PIDS_MAX = 1 << 16, NUMBERS = 1 << 22 }; // NUMBERS: PID_MAX_LIMIT
enum { SEGMENTS_MAX = 1024, SEGMENT_NAME_BYTES = 128, SEGMENT_LOOKS = 20 };
static const char MARK[] = "FARM_RUN";

// One of each process, as its signals and its environment are.
static struct {
    pid_t owner, guardian; // the command and its guardian; 0: none
    uint64_t *stopped_ns;  // forked processes can read it: farm_stopped_ns
} command;

// ---- the guardian: which processes are the command's ----

struct member {
    pid_t pid;
    unsigned long long start; // tells it from a later process of this number
};

struct segment {
    ino_t inode;
    uint32_t looks; // for a process that maps it
    bool held;      // by a member
    char name[SEGMENT_NAME_BYTES];
};

struct guardian {
    pid_t parent;
    char *mark, *file; // "FARM_RUN=..."; FILE_BYTES for a file of /proc
    size_t mark_bytes;
    // Descendants of the command, seen when their parents lived: those whose mark cannot be read are found by this.
    struct member members[PIDS_MAX];
    size_t member_count;
    uint32_t member_at[NUMBERS];  // index + 1
    uint64_t news_ns;             // when a member was last found: then it looks more often
    uint8_t seen[2][NUMBERS / 8]; // processes at the last two looks
    struct segment segments[SEGMENTS_MAX];
    size_t segment_count;
    uint8_t told[NUMBERS / 8]; // have got SIGTERM
    size_t told_count;
    char names[NAMES_BYTES];
};

enum kin {
    KIN_NONE,
    KIN_OURS,    // carries this command's mark, or is its descendant
    KIN_INNER,   // carries the mark of an inner command too, one that a process of this command has started
    KIN_COMMAND, // the inner command's first process
};

static size_t read_file(struct guardian *guardian, const char *pid, const char *name) {
    char path[64];
    size_t bytes = 0;
    snprintf(path, sizeof path, "/proc/%.20s/%s", pid, name);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    for (ssize_t n = fd < 0 ? 0 : 1; n > 0 && bytes<FILE_BYTES - 1; bytes += n> 0 ? (size_t)n : 0)
        n = read(fd, guardian->file + bytes, FILE_BYTES - 1 - bytes);
    if (fd >= 0) close(fd);
    guardian->file[bytes] = 0;
    return bytes;
}

// False: it has ended.
static bool read_stat(struct guardian *guardian, const char *pid, pid_t *parent, unsigned long long *start) {
    char state = 'Z';
    read_file(guardian, pid, "stat");
    const char *name_end = strrchr(guardian->file, ')'); // the name before it may hold anything
    return name_end &&
           sscanf(name_end + 1, " %c %d%*d%*d%*d%*d%*u%*u%*u%*u%*u%*u%*u%*d%*d%*d%*d%*d%*d%llu", &state, parent,
                  start) == 3 &&
           state != 'Z';
}

static const struct member *find_member(const struct guardian *guardian, pid_t pid) {
    const uint32_t at = guardian->member_at[pid];
    return at ? &guardian->members[at - 1] : NULL;
}

static void add_member(struct guardian *guardian, struct member member) {
    guardian->members[guardian->member_count++] = member;
    guardian->member_at[member.pid] = (uint32_t)guardian->member_count;
}

// Another guardian ends by itself.
static bool is_member(struct guardian *guardian, const char *pid) {
    const struct member *member = find_member(guardian, (pid_t)atoi(pid));
    unsigned long long start;
    pid_t parent;
    return member && read_stat(guardian, pid, &parent, &start) && start == member->start &&
           read_file(guardian, pid, "comm") && strcmp(guardian->file, "guardian\n") != 0;
}

static enum kin find_kin(struct guardian *guardian, const char *pid) {
    const size_t bytes = read_file(guardian, pid, "environ");
    const char *const end = guardian->file + bytes;
    for (const char *at = guardian->file; (at = memmem(at, (size_t)(end - at), guardian->mark, guardian->mark_bytes));
         at++) {
        const char after = at[guardian->mark_bytes], *last = strrchr(at, '.');
        if ((at > guardian->file && at[-1]) || (after && after != '/')) continue;
        return !after ? KIN_OURS : last && strcmp(last + 1, pid) == 0 ? KIN_COMMAND : KIN_INNER;
    }
    return is_member(guardian, pid) ? KIN_OURS : KIN_NONE;
}

// The next process in /proc, or NULL.
static const char *next_process(DIR *all) {
    const struct dirent *entry;
    while (all && (entry = readdir(all)))
        if (isdigit((unsigned char)entry->d_name[0])) return entry->d_name;
    return NULL;
}

// Reads the parents of processes that are new since the last look. Returns how many members it has found.
static size_t add_members(struct guardian *guardian) {
    const size_t before = guardian->member_count;
    struct member member;
    pid_t parent;
    DIR *all = opendir("/proc");
    for (const char *pid; (pid = next_process(all)) && guardian->member_count < PIDS_MAX;) {
        member.pid = (pid_t)atoi(pid);
        const uint8_t bit = (uint8_t)(1 << member.pid % 8);
        guardian->seen[1][member.pid / 8] |= bit;
        if (guardian->seen[0][member.pid / 8] & bit || member.pid == getpid() || find_member(guardian, member.pid))
            continue;
        if (read_stat(guardian, pid, &parent, &member.start) &&
            (parent == guardian->parent || find_member(guardian, parent)))
            add_member(guardian, member);
    }
    if (all) closedir(all);
    return guardian->member_count - before;
}

// Which new segments do members map?
static void look_at_segments(struct guardian *guardian, bool first) {
    char pid[16], path[SEGMENT_NAME_BYTES + 16];
    bool news = false;
    DIR *all = opendir("/dev/shm");
    for (const struct dirent *entry; all && (entry = readdir(all)) && guardian->segment_count < SEGMENTS_MAX;) {
        size_t i = 0;
        while (i < guardian->segment_count && guardian->segments[i].inode != entry->d_ino) i++;
        struct segment *segment = &guardian->segments[i];
        if (i == guardian->segment_count) {
            *segment = (struct segment){.inode = entry->d_ino, .looks = first ? SEGMENT_LOOKS : 0};
            guardian->segment_count++;
            snprintf(segment->name, sizeof segment->name, "%.*s", SEGMENT_NAME_BYTES - 1, entry->d_name);
        }
        news |= segment->looks++ < SEGMENT_LOOKS && !segment->held;
    }
    if (all) closedir(all);
    for (size_t m = 0; news && m < guardian->member_count; m++) {
        snprintf(pid, sizeof pid, "%d", (int)guardian->members[m].pid);
        read_file(guardian, pid, "maps");
        for (size_t i = 0; i < guardian->segment_count; i++) {
            struct segment *segment = &guardian->segments[i];
            snprintf(path, sizeof path, "/dev/shm/%s\n", segment->name);
            if (segment->looks <= SEGMENT_LOOKS && strstr(guardian->file, path)) segment->held = true;
        }
    }
}

static void look(struct guardian *guardian, bool first) {
    memcpy(guardian->seen[0], guardian->seen[1], sizeof *guardian->seen);
    memset(guardian->seen[1], 0, sizeof *guardian->seen);
    while (add_members(guardian)) guardian->news_ns = farm_now_ns(); // a child may be listed before its parent
    const size_t count = guardian->member_count;
    guardian->member_count = 0;
    for (size_t i = 0; i < count; i++) {
        const pid_t pid = guardian->members[i].pid;
        guardian->member_at[pid] = 0;
        if (guardian->seen[1][pid / 8] & 1 << pid % 8) add_member(guardian, guardian->members[i]);
    }
    look_at_segments(guardian, first);
}

static void note_name(struct guardian *guardian, const char *pid) {
    const size_t used = strlen(guardian->names), bytes = read_file(guardian, pid, "comm");
    snprintf(guardian->names + used, sizeof guardian->names - used, "%s%.*s (%s)", used ? ", " : "",
             bytes ? (int)bytes - 1 : 0, guardian->file, pid);
}

// Each gets SIGTERM once.
static bool is_told(struct guardian *guardian, pid_t pid) {
    const uint8_t bit = (uint8_t)(1 << pid % 8), before = guardian->told[pid / 8];
    guardian->told[pid / 8] |= bit;
    guardian->told_count += !(before & bit);
    return before & bit;
}

static void signal_one(struct guardian *guardian, const char *text, enum kin kin, int number) {
    const pid_t pid = (pid_t)atoi(text);
    if (number == SIGTERM) {
        if (is_told(guardian, pid)) return;
        note_name(guardian, text);
        kill(pid, SIGTERM);
        number = SIGCONT; // a stopped process cannot end by itself
    } else if (number != SIGKILL && kin == KIN_INNER) {
        return; // its command stops and continues it
    } else if (number == SIGSTOP && kin == KIN_COMMAND) {
        number = SIGTSTP;
    }
    kill(pid, number);
}

// Returns how many processes there are besides the command itself; zombies have no environment.
static size_t signal_all(struct guardian *guardian, int number) {
    size_t count = 0;
    DIR *all = opendir("/proc");
    for (const char *pid; (pid = next_process(all));) {
        const enum kin kin = atoi(pid) == guardian->parent ? KIN_NONE : find_kin(guardian, pid);
        if (kin == KIN_NONE) continue;
        signal_one(guardian, pid, kin, number);
        count++;
    }
    if (all) closedir(all);
    return count;
}

// ---- the guardian: its life ----

// A pipe that no process reads must not keep it.
static void say(const char *line) {
    struct pollfd errors = {.fd = STDERR_FILENO, .events = POLLOUT};
    if (poll(&errors, 1, 0) == 1 && errors.revents == POLLOUT) farm_log_warn("%s", line);
}

static void name_segments(const struct guardian *guardian) {
    char line[NAMES_BYTES], path[SEGMENT_NAME_BYTES + 16], whole[NAMES_BYTES + 160];
    size_t count = 0, used = 0;
    for (size_t i = 0; i < guardian->segment_count; i++) {
        snprintf(path, sizeof path, "/dev/shm/%s", guardian->segments[i].name);
        if (!guardian->segments[i].held || access(path, F_OK)) continue;
        count++;
        if (used < sizeof line - sizeof path) used += (size_t)sprintf(line + used, " %s", path);
    }
    if (!count) return;
    snprintf(whole, sizeof whole,
             "%zu segment%s of environments stay%s in /dev/shm (rm frees them, unless another program uses them): %s%s",
             count, count == 1 ? "" : "s", count == 1 ? "s" : "", line + 1,
             used < sizeof line - sizeof path ? "" : " ...");
    say(whole);
}

static void end_all(struct guardian *guardian, bool killed) {
    uint64_t until_ns = farm_now_ns() + TERM_MS * 1000000ull;
    char line[NAMES_BYTES + 128];
    int number = SIGTERM, quiet = 0;
    while (quiet < QUIET_LOOKS) { // a process in the midst of an exec is not seen
        quiet = signal_all(guardian, number) ? 0 : quiet + 1;
        if (!guardian->told_count) break;
        const bool late = farm_now_ns() >= until_ns;
        if (late && number == SIGKILL) break;
        if (late) number = SIGKILL, until_ns += KILL_MS * 1000000ull;
        poll(NULL, 0, LOOK_MS);
    }
    name_segments(guardian);
    if (!guardian->told_count || (killed && quiet)) return; // its workers die at the same time
    snprintf(line, sizeof line, "ended %zu process%s that environments left (close() should end them): %s%s",
             guardian->told_count, guardian->told_count == 1 ? "" : "es", guardian->names,
             quiet ? "" : "; some cannot be killed");
    say(line);
}

static _Noreturn void guard(struct guardian *guardian) {
    uint64_t look_ns = 0, tick_ns; // duration of the last look, which grows with the processes; time to the next
    sigset_t all;
    siginfo_t info;
    sigfillset(&all);
    look(guardian, true);
    for (bool stopped = false;;) {
        const bool news = farm_now_ns() - guardian->news_ns < NEWS_S * 1000000000ull;
        tick_ns = (news ? TICK_NEWS_MS : TICK_MS) * 1000000ull + LOOK_SHARE * look_ns;
        const struct timespec tick = {(time_t)(tick_ns / 1000000000), (long)(tick_ns % 1000000000)};
        const int number = stopped ? sigwaitinfo(&all, &info) : sigtimedwait(&all, &info, &tick);
        const bool killed = getppid() != guardian->parent, told = number > 0 && info.si_pid == guardian->parent;
        look_ns = farm_now_ns();
        if (!stopped) look(guardian, false);
        look_ns = farm_now_ns() - look_ns;
        if (killed || (told && number == SIGQUIT)) {
            end_all(guardian, killed);
            _exit(0);
        }
        if (told && number == SIGUSR1) stopped = true, signal_all(guardian, SIGSTOP);
        if (told && number == SIGUSR2) stopped = false, signal_all(guardian, SIGCONT);
    }
}

// What ps and `pkill -f` show, and its own marks: an outer command's guardian leaves it alone.
static void rename_process(char **argv) {
    char *end = argv[0];
    for (char **at = argv; *at; at++) end = *at + strlen(*at) + 1;
    for (char **at = environ; *at; at++)
        if (*at == end) end += strlen(end) + 1;
    const size_t bytes = (size_t)(end - argv[0]);
    memset(argv[0], 0, bytes);
    snprintf(argv[0], bytes, "guardian");
    prctl(PR_SET_NAME, "guardian");
}

// Its commands' signals are blocked.
static _Noreturn void become_guardian(char **argv, pid_t parent) {
    struct guardian *guardian = calloc(1, sizeof *guardian); // touched as far as it is needed, as `file`
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    setsid(); // out of Ctrl-C's reach
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    const int null = open("/dev/null", O_RDWR);
    dup2(null, STDIN_FILENO);
    dup2(null, STDOUT_FILENO);
    farm_program_close(STDERR_FILENO + 1, ~0u);
    if (!guardian) _exit(1);
    guardian->parent = parent;
    guardian->file = malloc(FILE_BYTES);
    guardian->mark = malloc(sizeof MARK + strlen(getenv(MARK)) + 1);
    if (!guardian->file || !guardian->mark || chdir("/")) _exit(1);
    guardian->mark_bytes = (size_t)sprintf(guardian->mark, "%s=%s", MARK, getenv(MARK));
    rename_process(argv);
    guard(guardian);
}

// ---- the command ----

// At SIGTSTP and the like.
static void stop(int unused) {
    const int saved = errno;
    const uint64_t now_ns = farm_now_ns();
    const bool owner = getpid() == command.owner;
    if (owner && command.guardian) kill(command.guardian, SIGUSR1);
    kill(getpid(), SIGSTOP);
    if (owner) __atomic_fetch_add(command.stopped_ns, farm_now_ns() - now_ns, __ATOMIC_RELAXED);
    if (owner && command.guardian) kill(command.guardian, SIGUSR2);
    errno = saved;
}

// Executes this program again with its mark, unless it has one.
static void mark_process(char **argv) {
    const char *outer = getenv(MARK), *last = outer ? strrchr(outer, '.') : NULL;
    uint64_t id = 0;
    if (last && atoi(last + 1) == getpid()) return;
    char *value = malloc((outer ? strlen(outer) : 0) + 64);
    if (!value || getrandom(&id, sizeof id, 0) != sizeof id) abort();
    sprintf(value, "%s%s%016llx.%d", outer ? outer : "", outer ? "/" : "", (unsigned long long)id, (int)getpid());
    if (!setenv(MARK, value, 1)) execv("/proc/self/exe", argv);
    farm_log_warn("cannot start again by /proc/self/exe (%s): processes of environments may stay after the end",
                  strerror(errno));
    free(value);
}

void farm_guardian_start(char **argv) {
    static const int stops[] = {SIGTSTP, SIGTTIN, SIGTTOU}, orders[] = {SIGUSR1, SIGUSR2, SIGQUIT};
    struct sigaction action = {.sa_handler = stop, .sa_flags = SA_RESTART}, before;
    sigset_t commands, mask;
    mark_process(argv);
    prctl(PR_SET_NAME, "farm"); // else "exe"
    const int fd = memfd_create("farm-stopped", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, sizeof(uint64_t))) abort();
    void *own = mmap(NULL, sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (own == MAP_FAILED || madvise(own, sizeof(uint64_t), MADV_DONTFORK)) abort();
    fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE); // an environment that changed it would change the time
    void *shared = mmap(NULL, sizeof(uint64_t), PROT_READ, MAP_SHARED, fd, 0);
    if (shared == MAP_FAILED) abort();
    close(fd);
    farm_stopped_ns = shared;
    command.stopped_ns = own;
    command.owner = getpid();
    prctl(PR_SET_CHILD_SUBREAPER, 1); // adopted, a process whose parent has ended is found without its mark
    // A background job of a script ignores SIGQUIT: only where it is blocked does it reach the guardian.
    sigemptyset(&commands);
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) sigaddset(&commands, orders[i]);
    sigprocmask(SIG_BLOCK, &commands, &mask);
    command.guardian = fork();
    if (command.guardian == 0) become_guardian(argv, command.owner);
    sigprocmask(SIG_SETMASK, &mask, NULL);
    if (command.guardian < 0) {
        command.guardian = 0;
        farm_log_warn("no guardian (%s): processes of environments may stay after the end", strerror(errno));
    }
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++)
        if (!sigaction(stops[i], NULL, &before) && before.sa_handler != SIG_IGN) sigaction(stops[i], &action, NULL);
    atexit(farm_guardian_end);
}

void farm_guardian_end(void) {
    if (getpid() != command.owner || !command.guardian) return;
    kill(command.guardian, SIGQUIT);
    kill(command.guardian, SIGCONT);
    while (waitpid(command.guardian, NULL, 0) < 0 && errno == EINTR) continue;
    command.guardian = 0;
}
