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

enum { SEND_MS = 5000 }; // for a consumer to read what is sent

// Sends a message, and waits until the consumer has read enough of the ones before.
static bool send_to(int socket, const struct farm_admission_request *request) {
    struct farm_error err;
    struct pollfd room = {.fd = socket, .events = POLLOUT};
    while (farm_admission_send_request(socket, request, &err)) {
        if (errno != EAGAIN && errno != ETOOMANYREFS) return false;
        if (poll(&room, 1, SEND_MS) != 1 || room.revents & (POLLHUP | POLLERR)) return false;
    }
    return true;
}

// ---- the process in the learner's place ----

struct relay {
    const struct farm_run_workers *workers;
    int admission, socket;                // to the supervisor; to the consumer, -1: none
    struct farm_admission_request *rings; // [places], the JOIN of each; fds[0] -1: a vacant place
    struct farm_admission_request asked;  // passed on, if `waits`
    bool waits;                           // for the reply to `asked`
    uint32_t first;                       // replies to expect before it: to the JOINs of farm_admission_request.joins
};

static void vacate(struct farm_admission_request *ring) {
    const int fds[] = {ring->fds[0], ring->fds[1], ring->wake};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0) close(fds[i]);
    ring->fds[0] = ring->fds[1] = ring->wake = -1;
}

// The request in progress is carried out, or refused.
static void finish(struct relay *relay, const struct farm_admission_reply *reply) {
    const bool joins = relay->asked.kind == FARM_ADMISSION_JOIN;
    if (joins == (reply->status != FARM_OK)) vacate(&relay->rings[relay->asked.ring]);
    relay->waits = false;
    farm_admission_send_reply(relay->admission, reply);
}

static void lose_consumer(struct relay *relay) {
    if (relay->socket >= 0) close(relay->socket);
    relay->socket = -1;
    relay->first = 0;
    const struct farm_admission_reply reply = {.ring = relay->asked.ring};
    if (relay->waits) finish(relay, &reply);
}

// Sends all rings to a new consumer, or again to one whose relay has died.
static void greet(struct relay *relay) {
    const struct farm_run_rings *rings = relay->workers->rings;
    struct farm_admission_request open = {
        .kind = FARM_ADMISSION_OPEN,
        .ring = rings->places,
        .shard = FARM_ADMISSION_VERSION,
        .fds = {rings->stats_segment.fd_readonly, rings->bells[0]},
    };
    for (uint32_t a = 0; a < rings->places; a++) open.joins += relay->rings[a].fds[0] >= 0;
    relay->first = open.joins;
    bool sent = send_to(relay->socket, &open);
    for (uint32_t a = 0; a < rings->places && sent; a++)
        if (relay->rings[a].fds[0] >= 0) sent = send_to(relay->socket, &relay->rings[a]);
    if (!sent) lose_consumer(relay);
}

// From the supervisor: OPEN has the connection of a new consumer.
static void take_request(struct relay *relay, struct farm_admission_request *request) {
    if (request->kind == FARM_ADMISSION_OPEN) {
        lose_consumer(relay);
        relay->socket = request->fds[0];
        close(request->fds[1]);
        if (relay->socket >= 0) greet(relay);
        return;
    }
    relay->asked = *request;
    relay->waits = true;
    if (request->kind == FARM_ADMISSION_JOIN) relay->rings[request->ring] = *request;
    if (request->kind == FARM_ADMISSION_JOIN && request->fds[0] < 0) {
        struct farm_admission_reply full = {.ring = request->ring};
        full.status = farm_fail(&full.error, FARM_E_LIMIT, "no descriptors left (ulimit -n)");
        finish(relay, &full);
    } else if (relay->socket < 0 || !send_to(relay->socket, request)) {
        lose_consumer(relay);
    }
}

static void take_replies(struct relay *relay, bool ended) {
    struct farm_admission_reply reply;
    while (farm_admission_receive_reply(relay->socket, &reply)) {
        if (relay->first) {
            relay->first--;
            if (reply.status) farm_log_warn("the consumer refuses actor %u: %s", reply.ring, reply.error.message);
        } else if (relay->waits && reply.ring == relay->asked.ring) {
            finish(relay, &reply);
        }
    }
    if (ended) lose_consumer(relay);
}

static int body(void *context, const struct farm_run_workers *workers, struct farm_stats *stats,
                struct farm_error *err) {
    const struct farm_run_consumer *consumer = context;
    const uint32_t places = workers->rings->places;
    struct relay relay = {.workers = workers,
                          .admission = workers->learner.rings.admission,
                          .socket = consumer->socket,
                          .rings = calloc(places, sizeof *relay.rings)};
    if (!relay.rings) return farm_fail_errno(err, FARM_E_LIMIT, "no memory for %u actors", places), 1;
    for (uint32_t a = 0; a < places; a++)
        relay.rings[a] = (struct farm_admission_request){.kind = FARM_ADMISSION_JOIN,
                                                         .ring = a,
                                                         .fds = {workers->ring_fds[a][0], workers->ring_fds[a][1]},
                                                         .up_writable = -1,
                                                         .wake = workers->wake_fds[a]};
    if (relay.socket >= 0) greet(&relay);
    farm_store_release(&stats->ready, 1);
    for (;;) { // until SIGTERM
        struct farm_admission_request request;
        struct pollfd look[] = {{relay.admission, POLLIN, 0}, {relay.socket, POLLIN, 0}};
        if (poll(look, 2, -1) < 0) continue;
        if (look[1].revents) take_replies(&relay, look[1].revents & (POLLHUP | POLLERR));
        if (look[0].revents && farm_admission_receive_request(relay.admission, 0, &request))
            take_request(&relay, &request);
    }
}

static int lend(void *context) {
    return ((const struct farm_run_consumer *)context)->socket;
}

struct farm_run_responder farm_run_consumer_responder(struct farm_run_consumer *consumer,
                                                      const struct farm_ring_spec *rings) {
    return (struct farm_run_responder){
        .body = body, .context = consumer, .lend = lend, .one_bell = true, .rings = rings};
}

// ---- the supervisor: the socket ----

static enum farm_status open_folder(struct farm_run_consumer *consumer, char *folder, struct farm_error *err) {
    struct stat info;
    if (mkdir(folder, 0700) && errno != EEXIST) return farm_fail_errno(err, FARM_E_USAGE, "--socket: %s", folder);
    consumer->folder = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (consumer->folder < 0 || fstat(consumer->folder, &info))
        return farm_fail_errno(err, FARM_E_USAGE, "--socket: %s", folder);
    if (info.st_uid != geteuid() || info.st_mode & 077)
        return farm_fail(err, FARM_E_PERMISSION,
                         "--socket: %s must be a folder that this user alone can enter (chmod 700, or name one that "
                         "does not exist yet)",
                         folder);
    if (flock(consumer->folder, LOCK_EX | LOCK_NB))
        return farm_fail(err, FARM_E_BUSY, "--socket: another farm serves in %s", folder);
    return FARM_OK;
}

// The folder's lock is held: a file with the socket's name is a dead farm's.
static enum farm_status open_path(struct farm_run_consumer *consumer, struct farm_error *err) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    struct stat info;
    const char *slash = strrchr(consumer->path, '/'), *file = slash ? slash + 1 : consumer->path;
    char *folder =
        slash ? strndup(consumer->path, (size_t)(slash - consumer->path) + (slash == consumer->path)) : strdup(".");
    enum farm_status status =
        folder ? open_folder(consumer, folder, err) : farm_fail_errno(err, FARM_E_LIMIT, "folder");
    free(folder);
    if (status) return status;
    const int length = snprintf(name.sun_path, sizeof name.sun_path, "/proc/self/fd/%d/%s", consumer->folder, file);
    if (!*file || length >= (int)sizeof name.sun_path)
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

static void take_consumer(struct farm_run_consumer *consumer, int fd) {
    struct ucred peer = {0};
    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &(socklen_t){sizeof peer});
    consumer->socket = fd;
    consumer->pid = peer.pid;
    consumer->pidfd = peer.pid > 0 ? farm_pidfd_open(peer.pid) : -1;
    consumer->consumers++;
}

enum farm_status farm_run_consumer_open(struct farm_run_consumer *consumer, struct farm_run *run, int fd,
                                        const char *path, struct farm_error *err) {
    int type = 0, domain = 0;
    *consumer =
        (struct farm_run_consumer){.run = run, .path = path, .folder = -1, .listener = -1, .socket = -1, .pidfd = -1};
    if (path) return open_path(consumer, err);
    getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &(socklen_t){sizeof type});
    getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &(socklen_t){sizeof domain});
    if (type != SOCK_SEQPACKET || domain != AF_UNIX || fd <= STDERR_FILENO)
        return farm_fail(err, FARM_E_USAGE, "--socket-fd %d: not one end of a socketpair(AF_UNIX, SOCK_SEQPACKET)", fd);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    take_consumer(consumer, fd);
    return FARM_OK;
}

// ---- the supervisor: while it runs ----

static void refuse(int fd, const char *why) {
    struct farm_admission_request end = {.kind = FARM_ADMISSION_END};
    struct farm_error err;
    snprintf(end.text, sizeof end.text, "%s", why);
    (void)farm_admission_send_request(fd, &end, &err);
    close(fd);
}

static void accept_next(struct farm_run_consumer *consumer) {
    const struct farm_run_workers *workers = &consumer->run->workers;
    const int fd = accept4(consumer->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    char why[128];
    if (fd < 0) return;
    snprintf(why, sizeof why, "another consumer (process %d) is connected, and a farm has one at a time",
             consumer->pid);
    if (!farm_run_requests_may_command(workers, fd)) {
        refuse(fd, "the farm serves neither other users nor processes of its own environments");
    } else if (consumer->socket >= 0) {
        refuse(fd, why);
    } else {
        struct farm_error err;
        take_consumer(consumer, fd);
        const struct farm_admission_request open = {.kind = FARM_ADMISSION_OPEN, .fds = {fd, fd}};
        if (farm_admission_send_request(consumer->run->change.admission, &open, &err))
            farm_run_warn(workers->caller, "%s", err.message);
        farm_run_note(workers->caller, "consumer %d answers", consumer->pid);
    }
}

// Children of a consumer that has ended may hold its end of the socket.
static bool has_ended(const struct farm_run_consumer *consumer) {
    struct pollfd look[] = {{consumer->socket, 0, 0}, {consumer->pidfd, POLLIN, 0}};
    return consumer->socket >= 0 && poll(look, 2, 0) > 0;
}

static void disconnect(struct farm_run_consumer *consumer) {
    if (consumer->socket < 0) return;
    shutdown(consumer->socket, SHUT_RDWR); // the relay notices it
    close(consumer->socket);
    if (consumer->pidfd >= 0) close(consumer->pidfd);
    consumer->socket = consumer->pidfd = -1;
}

static void count_steps(struct farm_run_consumer *consumer) {
    const struct farm_run_rings *rings = &consumer->run->rings;
    if (!consumer->last) consumer->last = calloc(rings->places, sizeof *consumer->last);
    for (uint32_t a = 0; consumer->last && a < rings->places; a++) {
        const struct farm_ring *ring = &rings->ring[a];
        uint64_t now = 0;
        for (uint32_t l = 0; ring->lanes && l < ring->spec.lanes; l++)
            now += farm_lane_acted(&ring->lanes[l]) * ring->spec.width;
        consumer->steps += now < consumer->last[a] ? now : now - consumer->last[a]; // below: another actor's ring
        consumer->last[a] = now;
    }
    farm_store_relaxed(&rings->stats->agent_steps, consumer->steps);
}

enum farm_supervisor_turn farm_run_consumer_tick(struct farm_run_consumer *consumer) {
    count_steps(consumer);
    if (has_ended(consumer)) {
        if (!consumer->path) return FARM_TURN_STOP;
        farm_run_note(&consumer->run->caller, "consumer %d has ended; its lanes wait for the next one", consumer->pid);
        disconnect(consumer);
    }
    if (consumer->listener >= 0) accept_next(consumer);
    return FARM_TURN_ON;
}

void farm_run_consumer_end(struct farm_run_consumer *consumer, const char *words) {
    struct farm_admission_reply reply;
    if (consumer->socket < 0) return;
    while (farm_admission_receive_reply(consumer->socket, &reply)) continue; // unread ones would discard the words
    refuse(consumer->socket, words);
    consumer->socket = -1;
}

void farm_run_consumer_free(struct farm_run_consumer *consumer) {
    disconnect(consumer);
    if (consumer->listener >= 0) {
        const char *slash = strrchr(consumer->path, '/');
        unlinkat(consumer->folder, slash ? slash + 1 : consumer->path, 0);
        close(consumer->listener);
    }
    if (consumer->folder >= 0) close(consumer->folder);
    free(consumer->last);
}
