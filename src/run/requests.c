// See requests.h. sun_path is short, and a folder may be replaced: both sides reach the socket by a descriptor of its
// folder, /proc/self/fd/N.
#include "run/requests.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/file.h"

static const char FOLDER[] = "control", SOCKET[] = "socket";
static const uint64_t PATIENCE_NS = 1000000000; // for a request to follow its connection
enum { ANSWER_S = 5, ANCESTORS_MAX = 256 };

struct request {
    uint64_t magic;
    int32_t add;
    uint32_t zero;
};
static const uint64_t MAGIC = 0x524f544341524146u; // "FARACTOR", little endian

static struct sockaddr_un address_in(int folder) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    snprintf(name.sun_path, sizeof name.sun_path, "/proc/self/fd/%d/%s", folder, SOCKET);
    return name;
}

// ---- the run ----

// Makes or finds the folder. The fields are -1, or closed by the caller.
static bool open_folder(struct farm_run_requests *requests, const char *run_path) {
    struct stat status;
    requests->run = open(run_path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (requests->run < 0 || (mkdirat(requests->run, FOLDER, 0700) && errno != EEXIST)) return false;
    requests->folder = openat(requests->run, FOLDER, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (requests->folder < 0 || fstat(requests->folder, &status)) return false;
    if (status.st_uid != geteuid()) errno = EPERM;
    return status.st_uid == geteuid() && ((status.st_mode & 07777) == 0700 || fchmod(requests->folder, 0700) == 0);
}

void farm_run_requests_make(struct farm_run_requests *requests) {
    const struct farm_run_workers *workers = requests->change->workers;
    if (!workers->run_path) return;
    requests->open = true;
    requests->folder = requests->listener = -1;
    if (open_folder(requests, workers->run_path)) {
        const struct sockaddr_un name = address_in(requests->folder);
        unlinkat(requests->folder, SOCKET, 0); // the run's lock is held: nothing serves it
        requests->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (requests->listener >= 0 && !bind(requests->listener, (const struct sockaddr *)&name, sizeof name) &&
            !listen(requests->listener, FARM_RUN_CLIENTS_MAX))
            return;
    }
    const int why = errno;
    farm_run_requests_free(requests);
    farm_run_warn(workers->caller, "%s/%s: no socket for `farm actors`, which cannot reach this run: %s",
                  workers->run_path, FOLDER, strerror(why));
}

void farm_run_requests_free(struct farm_run_requests *requests) {
    if (!requests->open) return;
    while (requests->clients) close(requests->client[--requests->clients].fd);
    if (requests->listener >= 0) close(requests->listener);
    if (requests->folder >= 0) {
        unlinkat(requests->folder, SOCKET, 0);
        close(requests->folder);
    }
    if (requests->run >= 0) {
        unlinkat(requests->run, FOLDER, AT_REMOVEDIR);
        close(requests->run);
    }
    requests->open = false;
}

// Whether the process carries this command's mark (supervisor/guardian.h), as all that environments start do.
static bool is_marked(pid_t pid) {
    static const char name[] = "FARM_RUN=";
    const char *own = getenv("FARM_RUN");
    char path[64], *element = NULL;
    size_t room = 0;
    bool marked = false;
    snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    FILE *all = own ? fopen(path, "re") : NULL;
    while (all && !marked && getdelim(&element, &room, 0, all) > 0)
        marked = !strncmp(element, name, strlen(name)) && !strncmp(element + strlen(name), own, strlen(own));
    free(element);
    if (all) fclose(all);
    return marked;
}

// Whether the process is marked, descends from this one, or is in the group of a worker. One that has ended may be: a
// user's waits for the answer.
static bool is_worker(const struct farm_run_workers *workers, pid_t pid) {
    const pid_t group = getpgid(pid);
    char text[4096];
    if (pid > 0 && is_marked(pid)) return true;
    for (uint32_t i = 0; i < workers->worker_count && group > 0; i++)
        if (farm_supervisor_pid(workers->supervisor, i) == group) return true;
    for (int i = 0; i < ANCESTORS_MAX && pid > 1; i++) {
        if (!farm_file_text(text, sizeof text, "/proc/%d/status", (int)pid))
            return i == 0 || (kill(pid, 0) && errno == ESRCH);
        pid = (pid_t)farm_file_number(text, "PPid:");
        if (pid == getpid()) return true;
    }
    return false;
}

// pid 0: a process outside this pid namespace, which no worker is.
bool farm_run_requests_may_command(const struct farm_run_workers *workers, int fd) {
    struct ucred peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &(socklen_t){sizeof peer})) return false;
    return (peer.uid == geteuid() || peer.uid == 0) && !is_worker(workers, peer.pid);
}

static enum farm_status take(struct farm_run_requests *requests, int fd, const struct request *request, ssize_t bytes) {
    const struct farm_run_workers *workers = requests->change->workers;
    if (!farm_run_requests_may_command(workers, fd)) return FARM_E_PERMISSION;
    if (bytes != (ssize_t)sizeof *request || request->magic != MAGIC || request->zero ||
        request->add > FARM_PLAN_ACTORS_MAX || request->add < -FARM_PLAN_ACTORS_MAX)
        return FARM_E_FORMAT;
    if (request->add && !workers->plan->elastic) return FARM_E_UNSUPPORTED;
    farm_run_change_request(requests->change, request->add);
    return FARM_OK;
}

// False: its request has not come yet.
static bool serve(struct farm_run_requests *requests, const struct farm_run_client *client, uint64_t now_ns) {
    const struct farm_run_change *change = requests->change;
    const struct farm_run_workers *workers = change->workers;
    struct request request = {0};
    const ssize_t bytes = recv(client->fd, &request, sizeof request, MSG_DONTWAIT | MSG_TRUNC);
    if (bytes < 0 && errno == EAGAIN) return now_ns > client->since_ns + PATIENCE_NS;
    struct farm_run_answer answer = {.status = take(requests, client->fd, &request, bytes)};
    for (uint32_t a = 0; a < workers->plan->places; a++) {
        answer.actors += workers->actors[a].attached && !workers->actors[a].remote;
        answer.remote += workers->actors[a].attached && workers->actors[a].remote;
    }
    const bool busy = change->state != FARM_RUN_CHANGE_IDLE && !workers->actors[change->actor].remote;
    answer.pending = (uint32_t)(change->wanted < 0 ? -change->wanted : change->wanted) + busy;
    if (bytes > 0) (void)!send(client->fd, &answer, sizeof answer, MSG_DONTWAIT | MSG_NOSIGNAL);
    return true;
}

void farm_run_requests_tick(struct farm_run_requests *requests, uint64_t now_ns) {
    if (!requests->open) return;
    while (requests->clients < FARM_RUN_CLIENTS_MAX) {
        const int fd = accept4(requests->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) break;
        requests->client[requests->clients++] = (struct farm_run_client){fd, now_ns};
    }
    for (uint32_t i = requests->clients; i-- > 0;) {
        if (!serve(requests, &requests->client[i], now_ns)) continue;
        close(requests->client[i].fd);
        requests->client[i] = requests->client[--requests->clients];
    }
}

// ---- a user's process ----

static enum farm_status check_answer(const char *run_path, enum farm_status status, struct farm_error *err) {
    if (!status) return FARM_OK;
    return farm_fail(err, status, "%s: %s", run_path,
                     status == FARM_E_UNSUPPORTED ? "actors cannot join or leave a run that is --deterministic"
                     : status == FARM_E_PERMISSION
                         ? "the run obeys neither other users nor processes of its own environments"
                         : "the run does not understand the request: use the same farm");
}

static enum farm_status exchange(const char *run_path, int folder, int fd, int32_t add, struct farm_run_answer *answer,
                                 struct farm_error *err) {
    const struct sockaddr_un name = address_in(folder);
    const struct timeval wait = {.tv_sec = ANSWER_S};
    const struct request request = {.magic = MAGIC, .add = add};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
    if (connect(fd, (const struct sockaddr *)&name, sizeof name)) {
        if (errno == ENOENT || errno == ECONNREFUSED)
            return farm_fail(err, FARM_E_NOT_FOUND, "%s: the run was killed (its socket serves nothing)", run_path);
        return farm_fail_errno(err, FARM_E_IO, "%s: cannot reach the run", run_path);
    }
    if (send(fd, &request, sizeof request, MSG_NOSIGNAL) != (ssize_t)sizeof request ||
        recv(fd, answer, sizeof *answer, 0) != (ssize_t)sizeof *answer)
        return farm_fail(err, FARM_E_IO, "%s: no answer within %d s: the run ends, or its supervisor is stopped",
                         run_path, ANSWER_S);
    return check_answer(run_path, (enum farm_status)answer->status, err);
}

enum farm_status farm_run_requests_send(const char *run_path, int32_t add, struct farm_run_answer *answer,
                                        struct farm_error *err) {
    char path[FARM_RUN_PATH_MAX + sizeof FOLDER + 1];
    if (strlen(run_path) >= FARM_RUN_PATH_MAX) return farm_fail(err, FARM_E_USAGE, "%.80s...: path too long", run_path);
    farm_run_dir_file(run_path, FOLDER, path, sizeof path);
    const int folder = open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0 && errno == ENOENT)
        return farm_fail(err, FARM_E_NOT_FOUND, "%s: no run of `farm train` goes on in this folder", run_path);
    const int fd = folder < 0 ? -1 : socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    const enum farm_status status =
        fd < 0 ? farm_fail_errno(err, FARM_E_PERMISSION, "%s", path) : exchange(run_path, folder, fd, add, answer, err);
    if (fd >= 0) close(fd);
    if (folder >= 0) close(folder);
    return status;
}
