// See admission.h.
#include "intake/admission.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"

enum { FDS_MAX = 4 };

// The message: a request without its descriptors.
struct words {
    uint32_t kind, ring, shard;
    uint32_t more; // JOIN: descriptors after up and down; OPEN: joins
};
enum { WITH_WRITABLE = 1, WITH_WAKE = 2 };

union control {
    struct cmsghdr header; // for the alignment
    char bytes[CMSG_SPACE(FDS_MAX * sizeof(int))];
};

enum farm_status farm_admission_make(int *supervisor, int *learner, struct farm_error *err) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
        return farm_fail_errno(err, FARM_E_LIMIT, "no socket between supervisor and learner (ulimit -n)");
    *supervisor = ends[0];
    *learner = ends[1];
    return FARM_OK;
}

static bool has_descriptors(enum farm_admission_kind kind) {
    return kind == FARM_ADMISSION_JOIN || kind == FARM_ADMISSION_OPEN;
}

enum farm_status farm_admission_send_request(int socket, const struct farm_admission_request *request,
                                             struct farm_error *err) {
    struct words words = {(uint32_t)request->kind, request->ring, request->shard, 0};
    if (request->kind == FARM_ADMISSION_OPEN) words.more = request->joins;
    const bool end = request->kind == FARM_ADMISSION_END;
    struct iovec data[] = {{&words, sizeof words}, {(void *)request->text, end ? sizeof request->text : 0}};
    union control control;
    struct msghdr message = {.msg_iov = data, .msg_iovlen = 2};
    if (has_descriptors(request->kind)) {
        int fds[FDS_MAX] = {request->fds[0], request->fds[1]};
        size_t count = 2;
        const bool join = request->kind == FARM_ADMISSION_JOIN;
        if (join && request->up_writable >= 0) fds[count++] = request->up_writable, words.more |= WITH_WRITABLE;
        if (join && request->wake >= 0) fds[count++] = request->wake, words.more |= WITH_WAKE;
        memset(&control, 0, sizeof control);
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE(count * sizeof *fds);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(count * sizeof *fds);
        memcpy(CMSG_DATA(header), fds, count * sizeof *fds);
    }
    if (sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)(sizeof words + data[1].iov_len))
        return FARM_OK;
    return farm_fail_errno(err, FARM_E_IO, "the request does not reach the learner");
}

bool farm_admission_receive_reply(int socket, struct farm_admission_reply *reply) {
    if (recv(socket, reply, sizeof *reply, MSG_DONTWAIT) != (ssize_t)sizeof *reply) return false;
    reply->error.message[sizeof reply->error.message - 1] = 0;
    return true;
}

static void close_descriptors(struct farm_admission_request *request) {
    int *const fds[FDS_MAX] = {&request->fds[0], &request->fds[1], &request->up_writable, &request->wake};
    for (int k = 0; k < FDS_MAX; k++) {
        if (*fds[k] >= 0) close(*fds[k]);
        *fds[k] = -1;
    }
}

// Receives a message, if one is there. False: none, or no valid request. Closes descriptors that do not belong to it,
// or that came without the others because this process had no room.
static bool receive_message(int socket, struct farm_admission_request *request) {
    struct words words = {.kind = UINT32_MAX};
    struct iovec data[] = {{&words, sizeof words}, {request->text, sizeof request->text}};
    union control control;
    struct msghdr message = {
        .msg_iov = data, .msg_iovlen = 2, .msg_control = &control, .msg_controllen = sizeof control};
    *request = (struct farm_admission_request){0};
    const ssize_t bytes = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (bytes < 0) return false;
    int fds[FDS_MAX] = {-1, -1, -1, -1};
    const struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header && header->cmsg_type == SCM_RIGHTS && header->cmsg_len <= CMSG_LEN(sizeof fds))
        memcpy(fds, CMSG_DATA(header), header->cmsg_len - CMSG_LEN(0));
    request->kind = (enum farm_admission_kind)words.kind;
    request->ring = words.ring;
    request->shard = words.shard;
    memcpy(request->fds, fds, sizeof request->fds);
    request->up_writable = fds[2];
    request->wake = fds[3];
    request->joins = words.kind == FARM_ADMISSION_OPEN ? words.more : 0;
    request->text[sizeof request->text - 1] = 0;
    const size_t text_bytes = request->kind == FARM_ADMISSION_END ? sizeof request->text : 0;
    const bool whole = bytes == (ssize_t)(sizeof words + text_bytes) && !(message.msg_flags & MSG_TRUNC);
    const bool wanted = whole && has_descriptors(request->kind) && !(message.msg_flags & MSG_CTRUNC);
    if (!wanted || request->fds[1] < 0) close_descriptors(request);
    if (words.kind == FARM_ADMISSION_JOIN && words.more == WITH_WAKE) { // the third descriptor
        request->wake = request->up_writable;
        request->up_writable = -1;
    }
    return whole && words.kind <= FARM_ADMISSION_END;
}

bool farm_admission_receive_request(int socket, int timeout_ms, struct farm_admission_request *request) {
    struct pollfd look = {.fd = socket, .events = POLLIN};
    return poll(&look, 1, timeout_ms) == 1 && receive_message(socket, request);
}

void farm_admission_send_reply(int socket, const struct farm_admission_reply *reply) {
    if (send(socket, reply, sizeof *reply, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)sizeof *reply)
        farm_log_warn("the reply does not reach the supervisor: %s", strerror(errno));
}

void farm_admission_clear(int supervisor, int learner) {
    struct farm_admission_reply reply;
    struct farm_admission_request request;
    while (recv(supervisor, &reply, sizeof reply, MSG_DONTWAIT) > 0) {
    }
    for (struct pollfd look = {.fd = learner, .events = POLLIN}; poll(&look, 1, 0) == 1;)
        if (receive_message(learner, &request)) close_descriptors(&request);
}
