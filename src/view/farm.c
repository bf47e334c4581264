// See farm/farm.h. A view finds the segments among the supervisor's descriptors in /proc by the names that
// farm_segment_create gives them, and opens them anew, read-only. Runs in any process of the farm's user.
#include <dirent.h>
#include <errno.h>
#include <farm/farm.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "view/view.h"

enum { ENVIRONMENT_MAX = 4096 };

static void *explain(char *error, size_t error_bytes, const char *sentence, const char *detail) {
    if (error_bytes) snprintf(error, error_bytes, sentence, detail);
    return NULL;
}

// ---- a farm as a child process ----

struct farm {
    pid_t pid;
    int status; // waitpid's, once `ended`
    bool ended;
};

// A pipe that the kernel closes with this process: its farms end then (tools/farm.c). A fork's child has its own.
static int life[2] = {-1, -1};
static pthread_once_t life_once = PTHREAD_ONCE_INIT;

static void renew_life(void) {
    for (int i = 0; i < 2; i++)
        if (life[i] >= 0) close(life[i]);
    if (pipe2(life, O_CLOEXEC)) life[0] = life[1] = -1;
}

static void begin_life(void) {
    renew_life();
    pthread_atfork(NULL, NULL, renew_life);
}

// The child. `failure` closes at a successful exec; otherwise it carries errno. starter: the pipe's other end.
static _Noreturn void run_program(const char *const *words, const int *keep, unsigned keep_count, int starter,
                                  int failure) {
    const char *program = getenv("FARM_PROGRAM");
    const char *argv[256] = {program ? program : "farm"};
    size_t count = 1;
    while (*words && count < 255) argv[count++] = *words++;
    int reason = *words ? E2BIG : 0;
    char text[32], *environment[ENVIRONMENT_MAX] = {text}; // other threads may hold setenv's lock
    snprintf(text, sizeof text, "FARM_LIFE_FD=%d", starter);
    for (size_t i = 0; environ[i] && !reason; i++)
        if (i < ENVIRONMENT_MAX - 2)
            environment[i + 1] = environ[i];
        else
            reason = E2BIG;
    for (unsigned i = 0; i < keep_count && !reason; i++)
        if (fcntl(keep[i], F_SETFD, 0)) reason = errno;
    if (keep_count) setpgid(0, 0);
    if (!reason && fcntl(starter, F_SETFD, 0)) reason = errno;
    if (!reason) {
        execvpe(argv[0], (char *const *)argv, environment);
        reason = errno;
    }
    (void)!write(failure, &reason, sizeof reason);
    _exit(127);
}

struct farm *farm_start_keeping(const char *const *words, const int *keep, unsigned count, char *error,
                                size_t error_bytes) {
    int failure[2], reason = 0;
    struct farm *farm = calloc(1, sizeof *farm);
    pthread_once(&life_once, begin_life);
    if (life[0] < 0) renew_life(); // no descriptor was free then
    // The child's fork closes the other one.
    const int starter = life[0] < 0 ? -1 : fcntl(life[0], F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    if (!farm || starter < 0 || pipe2(failure, O_CLOEXEC)) {
        if (starter >= 0) close(starter);
        free(farm);
        return explain(error, error_bytes, "cannot start farm: %s", strerror(errno));
    }
    farm->pid = fork();
    if (farm->pid == 0) run_program(words, keep, count, starter, failure[1]);
    close(failure[1]);
    close(starter);
    if (farm->pid < 0) reason = errno;
    ssize_t got = 0;
    while (farm->pid > 0 && (got = read(failure[0], &reason, sizeof reason)) < 0 && errno == EINTR) continue;
    const bool failed = farm->pid < 0 || got == sizeof reason;
    close(failure[0]);
    if (!failed) return farm;
    if (farm->pid > 0) waitpid(farm->pid, NULL, 0);
    free(farm);
    return explain(error, error_bytes,
                   "cannot start farm: %s (FARM_PROGRAM names the program; else it must be in PATH)", strerror(reason));
}

struct farm *farm_start(const char *const *words, char *error, size_t error_bytes) {
    return farm_start_keeping(words, NULL, 0, error, error_bytes);
}

pid_t farm_pid(const struct farm *farm) {
    return farm->pid;
}

static bool collect(struct farm *farm, int options) {
    pid_t pid = farm->ended ? farm->pid : 0;
    while (!farm->ended && (pid = waitpid(farm->pid, &farm->status, options)) < 0 && errno == EINTR) continue;
    if (pid < 0) farm->status = 1 << 8; // with SIGCHLD ignored its status is lost: as after a failure
    farm->ended = pid != 0;
    return farm->ended;
}

bool farm_running(struct farm *farm) {
    return !collect(farm, WNOHANG);
}

void farm_stop(struct farm *farm) {
    if (!collect(farm, WNOHANG)) kill(farm->pid, SIGTERM);
}

int farm_wait(struct farm *farm) {
    collect(farm, 0);
    const int status = farm->status;
    free(farm);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

// ---- a view of its lanes ----

struct farm_view {
    struct farm_ring *rings; // [ring_count], by actor
    unsigned ring_count, lane_count;
};

// Descriptors of both segments of one actor; -1: not found.
struct found {
    unsigned actor;
    int up, down;
};

static int by_actor(const void *a, const void *b) {
    const struct found *x = a, *y = b;
    return (x->actor > y->actor) - (x->actor < y->actor);
}

static struct found *find_actor(struct found **list, size_t *count, unsigned actor) {
    for (size_t i = 0; i < *count; i++)
        if ((*list)[i].actor == actor) return &(*list)[i];
    struct found *grown = realloc(*list, (*count + 1) * sizeof *grown);
    if (!grown) return NULL;
    *list = grown;
    grown[*count] = (struct found){actor, -1, -1};
    return &grown[(*count)++];
}

// Opens the segments among the descriptors of process `pid`.
static enum farm_status find_segments(pid_t pid, struct found **list, size_t *count, struct farm_error *err) {
    char path[64], link[128];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *folder = opendir(path);
    if (!folder) return farm_fail_errno(err, FARM_E_PERMISSION, "cannot read the descriptors of process %d", (int)pid);
    enum farm_status status = FARM_OK;
    for (const struct dirent *entry; !status && (entry = readdir(folder));) {
        unsigned actor;
        char kind[8] = "";
        const ssize_t length = readlinkat(dirfd(folder), entry->d_name, link, sizeof link - 1);
        if (length <= 0) continue;
        link[length] = 0;
        if (sscanf(link, "/memfd:farm-%7[a-z]-%u", kind, &actor) != 2) continue;
        const bool up = strcmp(kind, "up") == 0;
        if (!up && strcmp(kind, "down") != 0) continue;
        struct found *found = find_actor(list, count, actor);
        if (!found) {
            status = farm_fail(err, FARM_E_LIMIT, "no memory");
        } else if ((up ? found->up : found->down) < 0) {
            const int fd = openat(dirfd(folder), entry->d_name, O_RDONLY | O_CLOEXEC);
            if (fd < 0)
                status = farm_fail_errno(err, FARM_E_PERMISSION, "cannot open %s of process %d", link, (int)pid);
            *(up ? &found->up : &found->down) = fd;
        }
    }
    closedir(folder);
    if (*count) qsort(*list, *count, sizeof **list, by_actor);
    return status;
}

struct farm_view *farm_attach(pid_t pid, char *error, size_t error_bytes) {
    struct farm_error err = {0};
    struct found *list = NULL;
    size_t count = 0;
    enum farm_status status = find_segments(pid, &list, &count, &err);
    struct farm_view *view = calloc(1, sizeof *view);
    if (view && count) view->rings = calloc(count, sizeof *view->rings);
    if (!status && (!view || (count && !view->rings))) status = farm_fail(&err, FARM_E_LIMIT, "no memory");
    for (size_t i = 0; i < count; i++) {
        if (!status && list[i].up >= 0 && list[i].down >= 0) {
            struct farm_ring *ring = &view->rings[view->ring_count];
            status = farm_ring_open(list[i].up, list[i].down, FARM_RING_OBSERVER, ring, &err);
            if (!status) {
                view->ring_count++;
                view->lane_count += ring->spec.lanes;
                continue;
            }
        }
        if (list[i].up >= 0) close(list[i].up);
        if (list[i].down >= 0) close(list[i].down);
    }
    free(list);
    if (!status && !view->lane_count) status = farm_fail(&err, FARM_E_NOT_FOUND, "process %d has no lanes", (int)pid);
    if (!status) return view;
    farm_detach(view);
    return explain(error, error_bytes, "%s", err.message);
}

void farm_detach(struct farm_view *view) {
    if (!view) return;
    for (unsigned i = 0; i < view->ring_count; i++) farm_ring_close(&view->rings[i]);
    free(view->rings);
    free(view);
}

unsigned farm_view_lanes(const struct farm_view *view) {
    return view->lane_count;
}

const struct farm_env_spec *farm_view_env(const struct farm_view *view) {
    return &view->rings[0].spec.env;
}

static const struct farm_ring *ring_of(const struct farm_view *view, unsigned *lane) {
    const struct farm_ring *ring = view->rings;
    while (*lane >= ring->spec.lanes) *lane -= ring++->spec.lanes;
    return ring;
}

void farm_view_state(const struct farm_view *view, unsigned lane, struct farm_lane_state *state) {
    const struct farm_ring *ring = ring_of(view, &lane);
    const struct farm_lane *at = &ring->lanes[lane];
    *state = (struct farm_lane_state){
        .actor = ring->down.header->owner,
        .lane = lane,
        .width = at->width,
        .steps = at->steps,
        .produced = farm_load_acquire(&at->up->produced),
        .acted = farm_load_acquire(&at->down->acted),
        .consumed = farm_load_acquire(&at->down->consumed),
    };
}

size_t farm_view_locate(const struct farm_lane *lane, uint64_t n, unsigned field, const void **at, bool *answer) {
    static const unsigned answers[] = {[FARM_VIEW_ACTION] = FARM_ANSWER_ACTION,
                                       [FARM_VIEW_POLICY] = FARM_ANSWER_POLICY,
                                       [FARM_VIEW_VALUE] = FARM_ANSWER_VALUE,
                                       [FARM_VIEW_VERSION] = FARM_ANSWER_VERSION};
    *answer = field >= FARM_VIEW_ACTION && field <= FARM_VIEW_VERSION;
    if (*answer) {
        const struct farm_answer_array *array = &lane->answer[answers[field]];
        *at = farm_lane_answer_at(lane, answers[field], n, 0);
        return array->rows * array->bytes;
    }
    if (field == FARM_VIEW_REWARD) return *at = farm_lane_reward(lane, n), lane->width * sizeof(float);
    if (field == FARM_VIEW_FLAGS) return *at = farm_lane_flags(lane, n), lane->width;
    if (field == FARM_VIEW_LEAF && lane->leaf && n % lane->leaf_every == 0)
        return *at = farm_lane_leaf(lane, n), lane->width * sizeof(float);
    if (field >= FARM_VIEW_LAST && field - FARM_VIEW_LAST < lane->obs_count && lane->last[0]) {
        *at = farm_lane_last(lane, field - FARM_VIEW_LAST, n, 0);
        return lane->width * lane->obs_bytes[field - FARM_VIEW_LAST];
    }
    if (field < FARM_VIEW_OBS || field - FARM_VIEW_OBS >= lane->obs_count) return 0;
    *at = farm_lane_obs(lane, field - FARM_VIEW_OBS, n, 0);
    return lane->width * lane->obs_bytes[field - FARM_VIEW_OBS];
}

size_t farm_view_bytes(const struct farm_view *view, unsigned lane, unsigned field) {
    const void *at;
    bool answer;
    const struct farm_ring *ring = ring_of(view, &lane);
    return farm_view_locate(&ring->lanes[lane], 0, field, &at, &answer);
}

// As a sequence lock's reader: the actor writes step p = produced into slot p mod C, so step n is whole as long as
// produced < n + C after the copy; a last observation has two slots. The fence keeps the copy's loads before that load.
bool farm_view_copy(const struct farm_view *view, unsigned lane, uint64_t n, unsigned field, void *out) {
    const struct farm_ring *ring = ring_of(view, &lane);
    const struct farm_lane *from = &ring->lanes[lane];
    const void *at;
    bool answer;
    const size_t bytes = farm_view_locate(from, n, field, &at, &answer);
    // LOCAL: the answer comes with the next step.
    if (!bytes || farm_load_acquire(&from->up->produced) <= n + (answer && from->local)) return false;
    if (answer && !from->local && farm_load_acquire(&from->down->acted) <= n) return false;
    memcpy(out, at, bytes);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return farm_load_relaxed(&from->up->produced) < n + (field < FARM_VIEW_LAST ? from->steps : 2);
}
