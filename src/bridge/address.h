// Where a learner's bridge listens, as people and files say it: "HOST:PORT", "[v6]:PORT", or "@FILE" that holds one.
// Which addresses a connection without a key may go to, and which network card leads to one. Runs in supervisors before
// any worker, and in bridges. Sends nothing but what a name's resolution needs.
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

// What `text` names, in the form HOST:PORT: itself, or the first line of the file. FARM_E_USAGE: not of this form;
// FARM_E_NOT_FOUND: the file is not there (yet), or holds no address.
enum farm_status farm_address_read(const char *text, char out[FARM_ADDRESS_TEXT_BYTES], struct farm_error *err);

// farm_address_read, then all that the host's name stands for, at most FARM_ADDRESSES_MAX. FARM_E_NOT_FOUND also: the
// name is unknown.
enum farm_status farm_address_find(const char *text, struct farm_address *out, uint32_t *count, struct farm_error *err);

// Whether it is a loopback, link-local or private address (RFC 1918, RFC 4193): others must not see unencrypted frames.
bool farm_address_private(const struct farm_address *address);
// FARM_E_USAGE: one of these is not.
enum farm_status farm_address_check_insecure(const char *text, const struct farm_address *addresses, uint32_t count,
                                             struct farm_error *err);

// NUMA node of the network card through which this machine reaches the address, or on which it has it; -1: unknown, or
// none (loopback, a virtual card).
int farm_address_node(const struct farm_address *address);

#endif
