// Address of a learner's bridge: "HOST:PORT", "[v6]:PORT", or "@FILE" that holds one; the addresses that a connection
// without a key may use; the network card for an address. Runs in supervisors before any worker, and in bridges.
#ifndef FARM_BRIDGE_ADDRESS_H
#define FARM_BRIDGE_ADDRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/status.h"

enum { FARM_ADDRESS_TEXT_BYTES = 320, FARM_ADDRESSES_MAX = 8 };

struct farm_address {
    struct sockaddr_storage socket;
    socklen_t bytes;
};

// HOST:PORT from `text` or from the first line of its file. FARM_E_USAGE: another form; FARM_E_NOT_FOUND: the file does
// not exist (yet) or holds no address.
enum farm_status farm_address_read(const char *text, char out[FARM_ADDRESS_TEXT_BYTES], struct farm_error *err);

// farm_address_read, then all addresses of the host's name, at most FARM_ADDRESSES_MAX. FARM_E_NOT_FOUND: unknown too.
enum farm_status farm_address_find(const char *text, struct farm_address *out, uint32_t *count, struct farm_error *err);

// IP:PORT or [IPv6]:PORT alone, from another machine: no file, no name. FARM_E_USAGE: it is something else.
enum farm_status farm_address_literal(const char *text, struct farm_address *out, struct farm_error *err);

// Whether it is a loopback, link-local or private address (RFC 1918, RFC 4193). Only these may see unencrypted frames.
bool farm_address_private(const struct farm_address *address);
// FARM_E_USAGE: one of the addresses is not private.
enum farm_status farm_address_check_insecure(const char *text, const struct farm_address *addresses, uint32_t count,
                                             struct farm_error *err);

// The address that this machine would send from. Connecting a datagram socket sends nothing.
bool farm_address_local(const struct farm_address *peer, struct sockaddr_storage *local, socklen_t *bytes);
// NUMA node of the network card that has the address or leads to it; -1: unknown, or none (loopback, a virtual card).
int farm_address_node(const struct farm_address *address);

#endif
