// A pair of connected Unix stream sockets with the largest buffers that an unprivileged process may have.
#include <sys/socket.h>

#include "stream.h"

static int ends[2];

static void prepare(const struct work *work) {
    const int bytes = 1 << 20;
    work_need(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
    (void)setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes); // the kernel takes what it allows
}

static void *open_side(const struct work *work, bool actor) {
    return stream_open(work, ends[!actor], ends[!actor]);
}

int main(int argc, char **argv) {
    return stream_main("unix_socket", prepare, open_side, argc, argv);
}
