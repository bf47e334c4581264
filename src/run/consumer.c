// See consumer.h. sun_path is short: the socket is reached by a descriptor of its folder, as in requests.c.
#include "run/consumer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"
#include "base/pidfd.h"
#include "intake/admission.h"

// ---- the socket ----

static enum farm_status open_folder(struct farm_run_consumer *consumer, struct farm_error *err) {
    struct stat info;
    const char *name = consumer->folder_name;
    if (!name) return farm_fail_errno(err, FARM_E_LIMIT, "--socket");
    if (!(mkdir(name, 0700) && errno != EEXIST)) consumer->folder = open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (consumer->folder < 0 || fstat(consumer->folder, &info))
        return farm_fail_errno(err, FARM_E_USAGE, "--socket: %s", name);
    if (info.st_uid != geteuid() || info.st_mode & 077)
        return farm_fail(err, FARM_E_PERMISSION,
                         "--socket: %s must be a folder that this user alone can enter (chmod 700, or name one that "
                         "does not exist yet)",
                         name);
    if (flock(consumer->folder, LOCK_EX | LOCK_NB))
        return farm_fail(err, FARM_E_BUSY, "--socket: another farm serves in %s", name);
    return FARM_OK;
}

// The folder's lock is held: a file with the socket's name is a dead farm's.
static enum farm_status open_path(struct farm_run_consumer *consumer, struct farm_error *err) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    struct stat info;
    const char *file = basename(consumer->path);
    const size_t length = (size_t)(file - consumer->path);
    consumer->folder_name = length ? strndup(consumer->path, length) : strdup(".");
    const enum farm_status status = open_folder(consumer, err);
    if (status) return status;
    const int bytes = snprintf(name.sun_path, sizeof name.sun_path, "/proc/self/fd/%d/%s", consumer->folder, file);
    if (!*file || bytes >= (int)sizeof name.sun_path)
        return farm_fail(err, FARM_E_USAGE, "--socket %s: the file's name must have 1 to 80 characters",
                         consumer->path);
    if (!fstatat(consumer->folder, file, &info, AT_SYMLINK_NOFOLLOW) && !S_ISSOCK(info.st_mode))
        return farm_fail(err, FARM_E_USAGE, "--socket %s: a file of another kind is there", consumer->path);
    unlinkat(consumer->folder, file, 0);
    consumer->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (consumer->listener < 0 || bind(consumer->listener, (const struct sockaddr *)&name, sizeof name) ||
        listen(consumer->listener, 16))
        return farm_fail_errno(err, FARM_E_IO, "--socket %s", consumer->path);
    return FARM_OK;
}

static void take(struct farm_run_consumer *consumer, int fd) {
    struct ucred peer = {0};
    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &(socklen_t){sizeof peer});
    consumer->socket = fd;
    consumer->pid = peer.pid;
    consumer->pidfd = peer.pid > 0 ? farm_pidfd_open(peer.pid) : -1;
    consumer->consumers++;
}

enum farm_status farm_run_consumer_open(struct farm_run_consumer *consumer, struct farm_run *run, int fd,
                                        const char *path, struct farm_error *err) {
    int type = 0;
    *consumer =
        (struct farm_run_consumer){.run = run, .path = path, .folder = -1, .listener = -1, .socket = -1, .pidfd = -1};
    if (path) return open_path(consumer, err);
    getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &(socklen_t){sizeof type});
    if (type != SOCK_SEQPACKET || fd <= STDERR_FILENO)
        return farm_fail(err, FARM_E_USAGE, "--socket-fd %d: not one end of a socketpair(AF_UNIX, SOCK_SEQPACKET)", fd);
    take(consumer, fd);
    return FARM_OK;
}

// ---- while it runs ----

enum { SEND_MS = 1000 }; // for a consumer to read what was sent

static bool send_to(int socket, const struct farm_admission_request *request) {
    struct farm_error err;
    struct pollfd room = {.fd = socket, .events = POLLOUT};
    while (farm_admission_send_request(socket, request, &err))
        if (err.sys_errno != EAGAIN || poll(&room, 1, SEND_MS) != 1) return false;
    return true;
}

void farm_run_consumer_refuse(int socket, const char *why) {
    struct farm_admission_request end = {.kind = FARM_ADMISSION_END};
    snprintf(end.text, sizeof end.text, "%s", why);
    (void)send_to(socket, &end);
}

static void disconnect(struct farm_run_consumer *consumer) {
    if (consumer->socket < 0) return;
    close(consumer->socket);
    if (consumer->pidfd >= 0) close(consumer->pidfd);
    consumer->socket = consumer->pidfd = consumer->run->change.admission = -1;
}

// Sends all rings.
static void greet(struct farm_run_consumer *consumer) {
    const struct farm_run *run = consumer->run;
    const uint32_t places = run->plan.places;
    struct farm_admission_request open = {.kind = FARM_ADMISSION_OPEN,
                                          .ring = places,
                                          .shard = FARM_ADMISSION_VERSION,
                                          .joins = run->workers.count,
                                          .fds = {run->rings.stats_segment.fd_readonly, run->rings.bells[0]}};
    bool sent = send_to(consumer->socket, &open);
    for (uint32_t a = 0; a < places && sent; a++) {
        const struct farm_admission_request join = farm_run_change_join(&run->change, a);
        if (run->workers.actors[a].attached) sent = send_to(consumer->socket, &join);
    }
    consumer->run->change.admission = consumer->socket;
    if (!sent) farm_run_warn(&run->caller, "consumer %d does not read its messages", consumer->pid);
    if (!sent) disconnect(consumer);
}

static void accept_next(struct farm_run_consumer *consumer) {
    const struct farm_run_workers *workers = &consumer->run->workers;
    const int fd = accept4(consumer->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    char why[128] = "the farm serves neither other users nor processes of its own environments";
    if (fd < 0) return;
    if (farm_run_requests_may_command(workers, fd)) {
        if (consumer->socket < 0) {
            take(consumer, fd);
            farm_run_note(workers->caller, "consumer %d answers", consumer->pid);
            greet(consumer);
            return;
        }
        snprintf(why, sizeof why, "another consumer is connected (process %d): one at a time", consumer->pid);
    }
    farm_run_consumer_refuse(fd, why);
    close(fd);
}

// Children of a consumer that has ended may hold its end of the socket.
static bool has_ended(const struct farm_run_consumer *consumer) {
    struct pollfd look[] = {{consumer->socket, 0, 0}, {consumer->pidfd, POLLIN, 0}};
    return consumer->socket >= 0 && poll(look, 2, 0) > 0;
}

static void count_steps(struct farm_run_consumer *consumer) {
    const struct farm_run_rings *rings = &consumer->run->rings;
    consumer->steps = consumer->run->change.answered;
    for (uint32_t a = 0; a < rings->places; a++) consumer->steps += farm_run_change_answered(&rings->ring[a]);
    farm_store_relaxed(&rings->stats->agent_steps, consumer->steps);
}

enum farm_supervisor_turn farm_run_consumer_tick(void *context, uint64_t now_ns) {
    struct farm_run_consumer *consumer = context;
    struct farm_run *run = consumer->run;
    (void)now_ns;
    farm_store_release(&run->rings.stats->ready, 1);
    count_steps(consumer);
    if (has_ended(consumer)) {
        if (!consumer->path) return FARM_TURN_STOP;
        farm_run_note(&run->caller, "consumer %d has ended; the lanes wait for the next one", consumer->pid);
        disconnect(consumer);
        farm_run_change_advance(&run->change); // a request that waits for its reply is carried out
    }
    if (consumer->path)
        accept_next(consumer);
    else if (run->change.admission < 0)
        greet(consumer);
    return consumer->path || consumer->socket >= 0 ? FARM_TURN_ON : FARM_TURN_STOP;
}

void farm_run_consumer_end(struct farm_run_consumer *consumer, const char *words) {
    struct farm_admission_reply reply;
    if (consumer->socket < 0) return;
    while (farm_admission_receive_reply(consumer->socket, &reply)) continue; // unread ones would discard the words
    farm_run_consumer_refuse(consumer->socket, words);
    disconnect(consumer);
}

void farm_run_consumer_free(struct farm_run_consumer *consumer) {
    if (consumer->listener >= 0) {
        unlinkat(consumer->folder, basename(consumer->path), 0);
        close(consumer->listener);
    }
    if (consumer->folder >= 0) close(consumer->folder);
    free(consumer->folder_name);
}
