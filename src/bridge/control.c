// See control.h.
#include "bridge/control.h"

#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { FDS = 2, BUFFER_BYTES = 1 << 20 };

union ancillary {
    struct cmsghdr header; // for the alignment
    char bytes[CMSG_SPACE(FDS * sizeof(int))];
};

enum farm_status farm_control_make(int *supervisor, int *bridge, struct farm_error *err) {
    const int bytes = BUFFER_BYTES; // the kernel limits it
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) < 0)
        return farm_fail_errno(err, FARM_E_LIMIT, "no socket between supervisor and bridge (ulimit -n)");
    for (int i = 0; i < 2; i++) setsockopt(ends[i], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    *supervisor = ends[0];
    *bridge = ends[1];
    return FARM_OK;
}

static bool has_descriptors(const struct farm_control_message *message) {
    return message->kind == FARM_CONTROL_RING;
}

bool farm_control_send(int fd, const struct farm_control_message *message) {
    struct iovec data = {(void *)message, sizeof *message};
    union ancillary ancillary;
    struct msghdr header = {.msg_iov = &data, .msg_iovlen = 1};
    if (has_descriptors(message)) {
        memset(&ancillary, 0, sizeof ancillary);
        header.msg_control = &ancillary;
        header.msg_controllen = sizeof ancillary;
        struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(sizeof message->fds);
        memcpy(CMSG_DATA(rights), message->fds, sizeof message->fds);
    }
    return sendmsg(fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof *message;
}

static void close_both(int32_t fds[FDS]) {
    for (int k = 0; k < FDS; k++) {
        if (fds[k] >= 0) close(fds[k]);
        fds[k] = -1;
    }
}

// Receives one message. False: no message waits. *valid: whether it is valid.
static bool receive_one(int fd, struct farm_control_message *message, bool *valid) {
    *message = (struct farm_control_message){0};
    struct iovec data = {message, sizeof *message};
    union ancillary ancillary;
    struct msghdr header = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = &ancillary, .msg_controllen = sizeof ancillary};
    const ssize_t bytes = recvmsg(fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (bytes <= 0) return false;
    int32_t fds[FDS] = {-1, -1};
    const struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
    if (rights && rights->cmsg_type == SCM_RIGHTS && rights->cmsg_len <= CMSG_LEN(sizeof fds))
        memcpy(fds, CMSG_DATA(rights), rights->cmsg_len - CMSG_LEN(0));
    const bool truncated = header.msg_flags & MSG_CTRUNC; // ulimit -n
    *valid = bytes == (ssize_t)sizeof *message && !(header.msg_flags & MSG_TRUNC) &&
             has_descriptors(message) == (truncated || fds[FDS - 1] >= 0);
    if (!*valid || truncated) close_both(fds);
    memcpy(message->fds, fds, sizeof fds);
    message->text[sizeof message->text - 1] = message->key[sizeof message->key - 1] = 0;
    return true;
}

bool farm_control_receive(int fd, struct farm_control_message *message) {
    bool valid = false;
    while (!valid && receive_one(fd, message, &valid)) {
    }
    return valid;
}

bool farm_control_send_session(int fd, uint32_t place, const uint8_t *id, const struct farm_ring *rings, uint32_t count,
                               uint32_t first_actor) {
    struct farm_control_message message = {
        .kind = FARM_CONTROL_SESSION, .session = place, .count = count, .fds = {-1, -1}};
    memcpy(message.id, id, sizeof message.id);
    bool sent = farm_control_send(fd, &message);
    for (uint32_t r = 0; r < count; r++) {
        const struct farm_control_message ring = {.kind = FARM_CONTROL_RING,
                                                  .session = place,
                                                  .ring = r,
                                                  .actor = first_actor + r,
                                                  .fds = {rings[r].up.fd, rings[r].down.fd_readonly}};
        sent = sent && farm_control_send(fd, &ring);
    }
    message.kind = FARM_CONTROL_ADMITTED;
    return sent && farm_control_send(fd, &message);
}

static void drain(int fd) {
    struct farm_control_message message;
    struct pollfd look = {.fd = fd, .events = POLLIN};
    bool valid;
    while (poll(&look, 1, 0) == 1 && receive_one(fd, &message, &valid)) close_both(message.fds);
}

void farm_control_clear(int supervisor, int bridge) {
    drain(supervisor);
    drain(bridge);
}
