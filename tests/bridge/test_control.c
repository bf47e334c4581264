// Messages between supervisor and bridge arrive whole; only RING brings descriptors.
#include "bridge/control.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static int ends[2];

static void make(void) {
    struct farm_error err;
    cr_assert_eq(farm_control_make(&ends[0], &ends[1], &err), FARM_OK, "%s", err.message);
}

static void unmake(void) {
    close(ends[0]);
    close(ends[1]);
}

TestSuite(control, .init = make, .fini = unmake, .timeout = 30);

static struct farm_control_message ring_message(uint32_t ring, int fd) {
    return (struct farm_control_message){.kind = FARM_CONTROL_RING, .ring = ring, .fds = {fd, fd}};
}

// The number of the next new descriptor: unchanged if no descriptor has leaked.
static int next_fd(void) {
    const int fd = dup(ends[0]);
    close(fd);
    return fd;
}

Test(control, a_message_arrives_unchanged) {
    struct farm_control_message out = {
        .kind = FARM_CONTROL_ADMIT, .count = 7, .machine = 42, .text = "node", .fds = {3, 4}};
    struct farm_control_message in;
    cr_assert_not(farm_control_receive(ends[0], &in));
    cr_assert(farm_control_send(ends[1], &out));
    cr_assert(farm_control_receive(ends[0], &in));
    cr_expect_eq(in.count, 7);
    cr_expect_eq(in.machine, 42);
    cr_expect_str_eq(in.text, "node");
    cr_expect_eq(in.fds[0], -1, "only a ring brings descriptors");
    cr_assert_not(farm_control_receive(ends[0], &in));
}

Test(control, a_ring_brings_its_descriptors) {
    struct farm_control_message in, out = ring_message(3, ends[0]);
    cr_assert(farm_control_send(ends[0], &out));
    cr_assert(farm_control_receive(ends[1], &in));
    cr_expect_eq(in.ring, 3);
    for (int k = 0; k < 2; k++) {
        cr_expect(in.fds[k] > 2 && in.fds[k] != ends[0]);
        cr_expect_eq(fcntl(in.fds[k], F_GETFD), FD_CLOEXEC);
        close(in.fds[k]);
    }
}

Test(control, discards_invalid_messages_and_closes_their_descriptors) {
    const int fd = next_fd();
    struct farm_control_message in, out = ring_message(1, ends[0]);
    cr_assert_eq(send(ends[0], &out, sizeof out, 0), sizeof out); // a ring without descriptors
    cr_assert_eq(send(ends[0], &out, 5, 0), 5);
    out.kind = FARM_CONTROL_END;
    cr_assert(farm_control_send(ends[0], &out));
    cr_assert(farm_control_receive(ends[1], &in));
    cr_expect_eq(in.kind, FARM_CONTROL_END);
    cr_expect_eq(next_fd(), fd);
}

Test(control, a_ring_arrives_without_descriptors_if_there_is_no_room) {
    struct farm_control_message in, out = ring_message(3, ends[0]);
    struct rlimit before, none;
    cr_assert(farm_control_send(ends[0], &out));
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = (struct rlimit){.rlim_cur = (rlim_t)next_fd() + 1, .rlim_max = before.rlim_max}; // room for one of two
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    const bool received = farm_control_receive(ends[1], &in);
    setrlimit(RLIMIT_NOFILE, &before);
    cr_assert(received, "the message must arrive");
    cr_expect_eq(in.ring, 3);
    cr_expect(in.fds[0] == -1 && in.fds[1] == -1);
    cr_expect_lt(next_fd(), (int)none.rlim_cur, "no descriptor leaks");
}

Test(control, reports_a_full_socket_and_loses_nothing) {
    struct farm_control_message in, out = {.kind = FARM_CONTROL_GENERATION};
    uint32_t sent = 0, received = 0;
    while (out.ring = sent, farm_control_send(ends[1], &out)) sent++;
    for (; farm_control_receive(ends[0], &in); received++) cr_assert_eq(in.ring, received);
    cr_assert_gt(sent, 10);
    cr_assert_eq(received, sent);
    cr_assert(farm_control_send(ends[1], &out));
}

Test(control, clearing_discards_all_messages_of_the_bridge_before) {
    const int fd = next_fd();
    struct farm_control_message in, out = ring_message(0, ends[0]);
    cr_assert(farm_control_send(ends[0], &out));
    cr_assert(farm_control_send(ends[1], &out));
    farm_control_clear(ends[0], ends[1]);
    cr_assert_not(farm_control_receive(ends[0], &in));
    cr_assert_not(farm_control_receive(ends[1], &in));
    cr_expect_eq(next_fd(), fd);
}
