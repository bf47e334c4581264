// A listening socket on loopback, at a port that the kernel chooses.
#ifndef TESTS_BRIDGE_LOOPBACK_H
#define TESTS_BRIDGE_LOOPBACK_H

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <netinet/in.h>
#include <sys/socket.h>

static inline int listen_on_loopback(struct sockaddr_in *at) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    socklen_t bytes = sizeof *at;
    *at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    cr_assert(bind(fd, (struct sockaddr *)at, bytes) == 0 && listen(fd, 16) == 0);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)at, &bytes), 0);
    return fd;
}

#endif
