// See address.h. getaddrinfo(3), getifaddrs(3), Linux's Documentation/ABI/testing/sysfs-bus-pci (numa_node).
#include "bridge/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

// ---- text ----

// Cuts "HOST:PORT" at the last colon and removes brackets around an IPv6 address.
static bool split_address(char *text, char **host, char **port) {
    char *colon = strrchr(text, ':');
    if (!colon || colon == text) return false;
    *colon = 0;
    *port = colon + 1;
    *host = text;
    const size_t length = (size_t)(colon - text);
    if (text[0] == '[' && colon[-1] == ']') {
        colon[-1] = 0;
        *host = text + 1;
    } else if (memchr(text, ':', length)) {
        return false; // IPv6 without brackets
    }
    char *end;
    const unsigned long number = strtoul(*port, &end, 10);
    return **host && (*port)[0] >= '0' && (*port)[0] <= '9' && !*end && number <= 65535;
}

static enum farm_status check_form(const char *text, enum farm_status otherwise, const char *where,
                                   struct farm_error *err) {
    char copy[FARM_ADDRESS_TEXT_BYTES], *host, *port;
    if (strlen(text) < sizeof copy && split_address(strcpy(copy, text), &host, &port)) return FARM_OK;
    return farm_fail(err, otherwise, "%s'%.120s' is not an address: HOST:PORT, [IPv6]:PORT or @FILE", where, text);
}

enum farm_status farm_address_read(const char *text, char out[FARM_ADDRESS_TEXT_BYTES], struct farm_error *err) {
    if (text[0] != '@') {
        const enum farm_status status = check_form(text, FARM_E_USAGE, "", err);
        if (!status) snprintf(out, FARM_ADDRESS_TEXT_BYTES, "%s", text);
        return status;
    }
    char where[FARM_ADDRESS_TEXT_BYTES + 8];
    if (!text[1]) return farm_fail(err, FARM_E_USAGE, "'@' names no file, such as @RUN/bridge.addr");
    if (!farm_file_line(out, FARM_ADDRESS_TEXT_BYTES, "%s", text + 1))
        return farm_fail(err, FARM_E_NOT_FOUND, "%.400s is not there yet, or is empty", text + 1);
    snprintf(where, sizeof where, "%.300s: ", text + 1);
    return check_form(out, FARM_E_NOT_FOUND, where, err);
}

static enum farm_status find(const char *text, int flags, uint32_t most, struct farm_address *out, uint32_t *count,
                             struct farm_error *err) {
    char address[FARM_ADDRESS_TEXT_BYTES], *host, *port;
    enum farm_status status = farm_address_read(text, address, err);
    if (status) return status;
    if (!split_address(address, &host, &port)) return farm_fail(err, FARM_E_USAGE, "'%.120s' is not an address", text);
    const struct addrinfo wanted = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | flags};
    struct addrinfo *found = NULL;
    const int failed = getaddrinfo(host, port, &wanted, &found);
    if (failed) return farm_fail(err, FARM_E_NOT_FOUND, "%s: %s", host, gai_strerror(failed));
    *count = 0;
    for (const struct addrinfo *at = found; at && *count < most; at = at->ai_next) {
        struct farm_address *next = &out[(*count)++];
        *next = (struct farm_address){.bytes = at->ai_addrlen};
        memcpy(&next->socket, at->ai_addr, at->ai_addrlen);
    }
    freeaddrinfo(found);
    return FARM_OK;
}

enum farm_status farm_address_find(const char *text, struct farm_address *out, uint32_t *count,
                                   struct farm_error *err) {
    return find(text, 0, FARM_ADDRESSES_MAX, out, count, err);
}

enum farm_status farm_address_literal(const char *text, struct farm_address *out, struct farm_error *err) {
    uint32_t count;
    if (text[0] != '@' && !find(text, AI_NUMERICHOST, 1, out, &count, err)) return FARM_OK;
    return farm_fail(err, FARM_E_USAGE, "'%.60s' is not IP:PORT", text);
}

// ---- private addresses ----

static bool private_v4(uint32_t address) {
    static const struct {
        uint32_t network;
        int bits;
    } nets[] = {{0x7f000000, 8}, {0x0a000000, 8}, {0xac100000, 12}, {0xc0a80000, 16}, {0xa9fe0000, 16}};
    for (size_t i = 0; i < sizeof nets / sizeof *nets; i++)
        if ((address ^ nets[i].network) >> (32 - nets[i].bits) == 0) return true;
    return false;
}

bool farm_address_private(const struct farm_address *address) {
    if (address->socket.ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)&address->socket;
        return private_v4(ntohl(v4->sin_addr.s_addr));
    }
    if (address->socket.ss_family != AF_INET6) return false;
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)&address->socket)->sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(v6)) {
        uint32_t v4;
        memcpy(&v4, v6->s6_addr + 12, sizeof v4);
        return private_v4(ntohl(v4));
    }
    return IN6_IS_ADDR_LOOPBACK(v6) || IN6_IS_ADDR_LINKLOCAL(v6) || (v6->s6_addr[0] & 0xfe) == 0xfc;
}

enum farm_status farm_address_check_insecure(const char *text, const struct farm_address *addresses, uint32_t count,
                                             struct farm_error *err) {
    for (uint32_t i = 0; i < count; i++) {
        char name[INET6_ADDRSTRLEN] = "?";
        if (farm_address_private(&addresses[i])) continue;
        getnameinfo((const struct sockaddr *)&addresses[i].socket, addresses[i].bytes, name, sizeof name, NULL, 0,
                    NI_NUMERICHOST);
        return farm_fail(err, FARM_E_USAGE,
                         "--insecure: %.120s (%s) is neither a loopback nor a private address, and without a key "
                         "anyone on the path can read and change the data: use --key FILE",
                         text, name);
    }
    return FARM_OK;
}

// ---- the network card ----

static bool same_host(const struct sockaddr *a, const struct sockaddr *b) {
    if (!a || a->sa_family != b->sa_family) return false;
    if (a->sa_family == AF_INET)
        return ((const struct sockaddr_in *)a)->sin_addr.s_addr == ((const struct sockaddr_in *)b)->sin_addr.s_addr;
    return a->sa_family == AF_INET6 &&
           memcmp(&((const struct sockaddr_in6 *)a)->sin6_addr, &((const struct sockaddr_in6 *)b)->sin6_addr,
                  sizeof(struct in6_addr)) == 0;
}

bool farm_address_local(const struct farm_address *peer, struct sockaddr_storage *local, socklen_t *bytes) {
    *bytes = sizeof *local;
    const int fd = socket(peer->socket.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    const bool found = connect(fd, (const struct sockaddr *)&peer->socket, peer->bytes) == 0 &&
                       getsockname(fd, (struct sockaddr *)local, bytes) == 0;
    close(fd);
    return found;
}

int farm_address_node(const struct farm_address *address) {
    struct sockaddr_storage local;
    struct ifaddrs *cards = NULL;
    socklen_t bytes;
    int node = -1;
    if (!farm_address_local(address, &local, &bytes) || getifaddrs(&cards)) return -1;
    for (const struct ifaddrs *card = cards; card; card = card->ifa_next) {
        char line[32];
        if (!same_host(card->ifa_addr, (const struct sockaddr *)&local)) continue;
        if (farm_file_line(line, sizeof line, "/sys/class/net/%s/device/numa_node", card->ifa_name)) node = atoi(line);
        break;
    }
    freeifaddrs(cards);
    return node;
}
