// Many farms, one after another, each of another shape; some end in order, others have their supervisor killed at a
// random moment. After each the runner checks that nothing is left. It is the subreaper of all others, so a process
// that outlives its farm becomes its child and is found.
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/statistics.h"
#include "base/time.h"
#include "chaos.h"
#include "payload.h"
#include "ring/spec.h"

static const uint64_t SECOND_NS = 1000000000;

struct runner {
    const struct chaos_request *request;
    struct chaos_shared *shared;
    uint64_t random, began_ns, printed_ns;
    uint64_t farms;
    size_t descriptors;
};

// ---- the shape of a farm ----

static uint64_t between(struct runner *runner, uint64_t least, uint64_t most) {
    return least + chaos_random_below(&runner->random, most - least + 1);
}

static bool one_in(struct runner *runner, uint64_t n) {
    return chaos_random_below(&runner->random, n) == 0;
}

static uint64_t missing(uint64_t wanted, uint64_t had) {
    return wanted > had ? wanted - had : 0;
}

static void draw_size(struct runner *runner, struct chaos_shape *shape) {
    shape->actors = (uint32_t)between(runner, 2, 6);
    shape->lanes = (uint32_t)between(runner, 1, CHAOS_LANES_MAX);
    shape->width = (uint32_t)between(runner, 1, CHAOS_WIDTH_MAX);
    shape->height = (uint32_t)between(runner, 1, 8);
    shape->row_bytes = (uint32_t)between(runner, 64, 256);
    shape->stack = (uint32_t)between(runner, 1, 4);
    shape->unroll = (uint32_t)between(runner, 2, 12);
    const uint32_t environments = shape->actors * shape->lanes * shape->width;
    shape->batch = (uint32_t)between(runner, 1, environments + environments / 2);
    const uint64_t windows = (shape->batch + environments - 1) / environments;
    shape->steps = (uint32_t)farm_ring_steps_needed(windows, shape->unroll, shape->unroll + 1, shape->stack) +
                   (uint32_t)between(runner, 0, 7);
    shape->infer_batch_max = (uint32_t)between(runner, 1, environments); // also fewer than a lane has
    shape->infer_wait_ms = one_in(runner, 2) ? 0 : 0.2;
    shape->spin_ns = one_in(runner, 2) ? 0 : 20000;
    shape->rings_late = one_in(runner, 2);
    shape->checkpoint_every_s = one_in(runner, 2) ? 0 : 0.05;
    // None; rarely, everywhere; often, at a few places.
    const uint64_t jitter = between(runner, 0, 2);
    shape->jitter = jitter == 0 ? 0 : jitter == 1 ? 32u << between(runner, 0, 6) : 8;
    shape->jitter_focus = jitter == 2 ? 12 : 0;
}

// Kills are distributed over farms, so that many shapes and orderly ends occur; every fourth farm keeps its learner
// or its actors alive, so that sums must be exact there.
static void draw_kills(struct runner *runner, struct chaos_shape *shape, bool to_be_killed) {
    enum { ACTOR_KILLS = 60, LEARNER_KILLS = 4 };
    const struct chaos_request *request = runner->request;
    const struct chaos_totals *totals = &runner->shared->totals;
    const uint64_t actors = missing(request->actor_kills, chaos_sum(totals->actor_kills));
    const uint64_t learners = missing(request->learner_kills, chaos_sum(totals->learner_kills));
    shape->actor_kills = actors < ACTOR_KILLS ? actors : ACTOR_KILLS;
    shape->learner_kills = learners < LEARNER_KILLS ? learners : LEARNER_KILLS;
    shape->actor_kill_every_ns = (uint64_t)(1e9 / request->actor_kills_per_s);
    shape->learner_kill_every_ns = 8 * shape->actor_kill_every_ns;
    if (shape->learner_kill_every_ns < SECOND_NS / 10) shape->learner_kill_every_ns = SECOND_NS / 10;
    if (one_in(runner, 6)) { // long lives
        enum { LONGER = 8 };
        shape->actor_kill_every_ns *= LONGER;
        shape->learner_kill_every_ns *= LONGER;
        shape->actor_kills = (shape->actor_kills + LONGER - 1) / LONGER;
        shape->learner_kills = (shape->learner_kills + LONGER - 1) / LONGER;
    }
    if (!to_be_killed && runner->farms % 4 == 1 && actors) {
        shape->learner_kills = 0;
        shape->learner_kill_every_ns = 0;
    } else if (!to_be_killed && runner->farms % 4 == 3 && learners) {
        shape->actor_kills = 0;
        shape->actor_kill_every_ns = 0;
    }
    if (!request->actor_kills) shape->actor_kill_every_ns = 0;
    if (!request->learner_kills) shape->learner_kill_every_ns = 0;
}

static uint64_t deadline_ns(const struct runner *runner) {
    if (runner->request->seconds <= 0) return UINT64_MAX;
    return runner->began_ns + (uint64_t)(runner->request->seconds * 1e9);
}

static void draw_shape(struct runner *runner, bool to_be_killed) {
    struct chaos_shape *shape = &runner->shared->shape;
    *shape = (struct chaos_shape){.seed = random_next(&runner->random)};
    shape->standstill_ns = (uint64_t)(runner->request->standstill_s * 1e9);
    shape->nap_ns = 2 * shape->standstill_ns;
    shape->evaluate = one_in(runner, 4);
    shape->local = runner->farms % 3 == 1;
    shape->sync = one_in(runner, 3);
    shape->max_lag = one_in(runner, 3) ? (uint32_t)between(runner, 1, 3) : 0;
    shape->replay = one_in(runner, 3);
    shape->sync &= !shape->replay;
    draw_size(runner, shape);
    draw_kills(runner, shape, to_be_killed);
    const uint64_t latest = farm_now_ns() + 60 * SECOND_NS, end = deadline_ns(runner);
    shape->ends_by_ns = end < latest ? end : latest;
    if (to_be_killed) shape->actor_kills = UINT64_MAX; // it ends by a kill
}

// ---- leftovers of a farm ----

// Reaps all children within `limit_ns`; false if some live on.
static bool reap_children(uint64_t limit_ns) {
    const uint64_t start = farm_now_ns();
    for (;;) {
        const pid_t pid = waitpid(-1, NULL, WNOHANG);
        if (pid < 0 && errno == ECHILD) return true;
        if (pid > 0) continue;
        if (farm_now_ns() - start > limit_ns) return false;
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    }
}

static void kill_children(void) {
    char path[64], line[4096];
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    FILE *file = fopen(path, "r");
    if (file && fgets(line, sizeof line, file))
        for (char *rest = line, *word; (word = strtok_r(rest, " ", &rest));)
            if (atoi(word) > 1) kill(atoi(word), SIGKILL);
    if (file) fclose(file);
    while (waitpid(-1, NULL, 0) > 0) continue;
}

static bool is_segment(const struct chaos_state *state, uint64_t device, uint64_t file) {
    if (device != state->device) return false;
    for (size_t i = 0; i < sizeof state->files / sizeof *state->files; i++)
        if (state->files[i] && state->files[i] == file) return true;
    return false;
}

// Whether a process has one of the farm's segments open.
static bool holds_segment(const struct chaos_state *state, const char *pid) {
    char path[640];
    snprintf(path, sizeof path, "/proc/%s/fd", pid);
    DIR *folder = opendir(path);
    bool holds = false;
    for (struct dirent *entry; folder && !holds && (entry = readdir(folder));) {
        struct stat file;
        snprintf(path, sizeof path, "/proc/%s/fd/%s", pid, entry->d_name);
        holds = entry->d_name[0] != '.' && stat(path, &file) == 0 && is_segment(state, file.st_dev, file.st_ino);
    }
    if (folder) closedir(folder);
    return holds;
}

// Whether it has one mapped: lines "address permissions offset major:minor inode path".
static bool maps_segment(const struct chaos_state *state, const char *pid) {
    char path[300], line[4096];
    snprintf(path, sizeof path, "/proc/%s/maps", pid);
    FILE *file = fopen(path, "r");
    bool maps = false;
    while (file && !maps && fgets(line, sizeof line, file)) {
        unsigned major, minor;
        uint64_t inode;
        if (sscanf(line, "%*s %*s %*s %x:%x %" SCNu64, &major, &minor, &inode) != 3) continue;
        maps = is_segment(state, (uint64_t)makedev(major, minor), inode);
    }
    if (file) fclose(file);
    return maps;
}

// An anonymous file lives as long as a process has it open or mapped; none may. Reads every process in /proc that
// permits it.
static void check_no_segment(const struct runner *runner) {
    struct chaos_shared *shared = runner->shared;
    DIR *processes = opendir("/proc");
    for (struct dirent *entry; processes && (entry = readdir(processes));) {
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9') continue;
        if (holds_segment(&shared->state, entry->d_name) || maps_segment(&shared->state, entry->d_name))
            chaos_violation(shared, "process %s holds shared memory of a farm that has ended", entry->d_name);
    }
    if (processes) closedir(processes);
}

// Empties the folder of checkpoints. After an orderly end it holds no half-written file.
static void clear_folder(const struct runner *runner, bool orderly) {
    struct chaos_shared *shared = runner->shared;
    DIR *folder = opendir(shared->folder);
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        char path[512];
        const char *dot = strrchr(entry->d_name, '.');
        if (entry->d_name[0] == '.') continue;
        if (orderly && dot && strcmp(dot, ".safetensors") != 0)
            chaos_violation(shared, "%s is the rest of a checkpoint", entry->d_name);
        snprintf(path, sizeof path, "%s/%s", shared->folder, entry->d_name);
        unlink(path);
    }
    if (folder) closedir(folder);
}

static void check_nothing_left(const struct runner *runner, bool orderly) {
    struct chaos_shared *shared = runner->shared;
    // After an orderly end all have ended; the kernel is still killing the orphans of a killed supervisor.
    if (!reap_children(orderly ? 0 : 5 * SECOND_NS)) {
        chaos_violation(shared, "processes are left %s", orderly ? "after an orderly end" : "of a killed supervisor");
        kill_children();
    }
    check_no_segment(runner);
    clear_folder(runner, orderly);
    if (chaos_descriptors() != runner->descriptors)
        chaos_violation(shared, "%zu descriptors open in the runner, %zu at its beginning", chaos_descriptors(),
                        runner->descriptors);
}

// ---- one farm ----

static void print_progress(struct runner *runner, bool now) {
    const struct chaos_totals *totals = &runner->shared->totals;
    if (!runner->request->progress || (!now && farm_now_ns() - runner->printed_ns < 2 * SECOND_NS)) return;
    runner->printed_ns = farm_now_ns();
    fprintf(stderr,
            "chaos: %.0f s: %" PRIu64 " actors, %" PRIu64 " learners, %" PRIu64 " supervisors killed; %" PRIu64
            " steps, %" PRIu64 " windows checked; %" PRIu64 " violations\n",
            (double)(runner->printed_ns - runner->began_ns) * 1e-9, chaos_sum(totals->actor_kills),
            chaos_sum(totals->learner_kills), totals->supervisor_kills, totals->steps_checked, totals->windows_checked,
            totals->violations);
}

// Waits for the farm's supervisor; kills it at `kill_ns` (UINT64_MAX: not). Whether it was killed.
static bool await_end(struct runner *runner, pid_t pid, uint64_t kill_ns) {
    struct chaos_shared *shared = runner->shared;
    const uint64_t latest_ns = shared->shape.ends_by_ns + 30 * SECOND_NS;
    int status;
    for (;;) {
        const pid_t ended = waitpid(pid, &status, WNOHANG);
        if (ended == pid) break;
        const uint64_t now_ns = farm_now_ns();
        if (now_ns >= kill_ns || now_ns > latest_ns) {
            if (now_ns > latest_ns) chaos_violation(shared, "a farm does not end");
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            return true;
        }
        print_progress(runner, false);
        nanosleep(&(struct timespec){.tv_nsec = kill_ns == UINT64_MAX ? 5000000 : 200000}, NULL);
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        chaos_violation(shared, "the supervisor %s %d", WIFEXITED(status) ? "ended with exit status" : "died of signal",
                        WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    return false;
}

static void run_farm(struct runner *runner, bool to_be_killed) {
    struct chaos_shared *shared = runner->shared;
    memset(&shared->state, 0, sizeof shared->state);
    draw_shape(runner, to_be_killed);
    runner->farms++;
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        signal(SIGINT, SIG_DFL);
        signal(SIGTERM, SIG_DFL);
        chaos_hook_set(shared, -1);
        _exit(chaos_farm_run(shared));
    }
    if (pid < 0) {
        chaos_violation(shared, "fork: %s", strerror(errno));
        return;
    }
    // Also during its set-up, and while it restarts workers.
    const uint64_t longest_ns = one_in(runner, 3) ? SECOND_NS / 50 : SECOND_NS / 2;
    const uint64_t kill_ns =
        to_be_killed ? farm_now_ns() + chaos_random_below(&runner->random, longest_ns) : UINT64_MAX;
    const bool killed = await_end(runner, pid, kill_ns);
    if (killed) shared->totals.supervisor_kills++;
    check_nothing_left(runner, !killed);
    shared->totals.farms++;
}

// ---- all of them ----

// Whether the next farm's supervisor is killed: such farms are spread over the run.
static bool supervisor_is_next(const struct runner *runner) {
    const struct chaos_request *request = runner->request;
    const struct chaos_totals *totals = &runner->shared->totals;
    if (totals->supervisor_kills >= request->supervisor_kills) return false;
    const uint64_t actors = chaos_sum(totals->actor_kills), learners = chaos_sum(totals->learner_kills);
    if (actors >= request->actor_kills && learners >= request->learner_kills) return true;
    const double done = request->actor_kills ? (double)actors / (double)request->actor_kills
                                             : (double)learners / (double)request->learner_kills;
    return (double)totals->supervisor_kills < done * (double)request->supervisor_kills;
}

static bool is_met(const struct runner *runner) {
    const struct chaos_request *request = runner->request;
    const struct chaos_totals *totals = &runner->shared->totals;
    return chaos_sum(totals->actor_kills) >= request->actor_kills &&
           chaos_sum(totals->learner_kills) >= request->learner_kills &&
           totals->supervisor_kills >= request->supervisor_kills;
}

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number) {
    (void)number;
    interrupted = 1;
}

// Shmem of /proc/meminfo.
static int64_t shared_memory_bytes(void) {
    FILE *file = fopen("/proc/meminfo", "r");
    char line[256];
    long long kilobytes = 0;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "Shmem: %lld kB", &kilobytes) == 1) break;
    if (file) fclose(file);
    return (int64_t)kilobytes * 1024;
}

static bool make_shared(struct runner *runner, struct chaos_totals *totals) {
    const char *base = getenv("TMPDIR");
    memset(totals, 0, sizeof *totals);
    runner->shared = mmap(NULL, sizeof *runner->shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (runner->shared != MAP_FAILED) {
        memset(runner->shared, 0, sizeof *runner->shared); // its pages are there before Shmem is read
        snprintf(runner->shared->folder, sizeof runner->shared->folder, "%s/farm-chaos-XXXXXX", base ? base : "/tmp");
        if (mkdtemp(runner->shared->folder)) return true;
        munmap(runner->shared, sizeof *runner->shared);
    }
    totals->violations = 1;
    snprintf(totals->sentences[0], sizeof totals->sentences[0], "no memory or no folder for the runner: %s",
             strerror(errno));
    return false;
}

bool chaos_run(const struct chaos_request *request, struct chaos_totals *totals) {
    struct runner runner = {.request = request, .random = request->seed, .began_ns = farm_now_ns()};
    if (!make_shared(&runner, totals)) return false;
    const int64_t shmem_bytes = shared_memory_bytes();
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    struct sigaction before[2], action = {.sa_handler = on_interrupt};
    interrupted = 0;
    sigaction(SIGINT, &action, &before[0]);
    sigaction(SIGTERM, &action, &before[1]);
    runner.descriptors = chaos_descriptors();
    while (!runner.shared->totals.violations && !is_met(&runner) && farm_now_ns() < deadline_ns(&runner) &&
           !interrupted)
        run_farm(&runner, supervisor_is_next(&runner));
    print_progress(&runner, true);
    sigaction(SIGINT, &before[0], NULL);
    sigaction(SIGTERM, &before[1], NULL);
    rmdir(runner.shared->folder);
    *totals = runner.shared->totals;
    totals->shmem_change_bytes = shared_memory_bytes() - shmem_bytes;
    munmap(runner.shared, sizeof *runner.shared);
    return totals->violations == 0;
}

uint64_t chaos_sum(const uint64_t kinds[CHAOS_KINDS]) {
    uint64_t sum = 0;
    for (int k = 0; k < CHAOS_KINDS; k++) sum += kinds[k];
    return sum;
}

uint64_t chaos_sites(const struct chaos_totals *totals) {
    uint64_t sites = 0;
    for (size_t i = 0; i < CHAOS_SITES; i++) sites += totals->sites[i] != 0;
    return sites;
}

double chaos_percentile_ms(const struct chaos_samples *samples, double p) {
    static double sorted[CHAOS_SAMPLES];
    const size_t count = samples->count < CHAOS_SAMPLES ? samples->count : CHAOS_SAMPLES;
    for (size_t i = 0; i < count; i++) sorted[i] = (double)samples->ns[i] * 1e-6;
    farm_sort(sorted, count);
    return farm_quantile(sorted, count, p / 100);
}
