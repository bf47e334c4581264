// A pair of connected Unix stream sockets with the largest buffers that an unprivileged process may have.
#include <fcntl.h>
#include <sys/socket.h>

#include "work.h"

struct side {
    int socket;
    size_t got; // bytes of the observation that have arrived
    uint8_t obs[WORK_OBS_BYTES];
};

static int ends[2];

static void prepare(const struct work *work) {
    const int bytes = 1 << 20;
    work_need(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
    (void)setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes); // the kernel reduces it to its limit
}

static void *open_side(const struct work *work, bool actor) {
    struct side *side = calloc(1, sizeof *side);
    work_need(side != NULL, "memory");
    side->socket = ends[!actor];
    if (work->spin) work_need(!fcntl(side->socket, F_SETFL, O_NONBLOCK), "O_NONBLOCK");
    return side;
}

// Returns 0 if nothing has arrived.
static size_t read_bytes(const struct side *side, void *to, size_t bytes) {
    const ssize_t got = read(side->socket, to, bytes);
    work_need(got > 0 || (got < 0 && errno == EAGAIN), "read");
    return got > 0 ? (size_t)got : 0;
}

static void write_bytes(const struct side *side, const void *from, size_t bytes) {
    for (size_t written = 0; written < bytes;) {
        const ssize_t more = write(side->socket, (const char *)from + written, bytes - written);
        work_need(more > 0 || errno == EAGAIN, "write");
        if (more > 0) written += (size_t)more;
    }
}

static void *loan(void *self) {
    return ((struct side *)self)->obs;
}
static void send_step(void *self, void *obs) {
    write_bytes(self, obs, WORK_OBS_BYTES);
}
// The kernel delivers four bytes in one piece.
static bool answered(void *self, int32_t *action) {
    return read_bytes(self, action, sizeof *action) == sizeof *action;
}
static const void *arrived(void *self) {
    struct side *side = self;
    side->got += read_bytes(side, side->obs + side->got, WORK_OBS_BYTES - side->got);
    if (side->got < WORK_OBS_BYTES) return NULL;
    side->got = 0;
    return side->obs;
}
static void answer(void *self, const void *obs, int32_t action) {
    write_bytes(self, &action, sizeof action);
}

int main(int argc, char **argv) {
    const struct transport transport = {"unix_socket", prepare, open_side, loan, send_step, answered, arrived, answer};
    return work_main(&transport, argc, argv);
}
