// Keys of a run that listens for nodes. The learner's key is one secret, from which are derived (HMAC-SHA256) the
// pre-shared key of each node by its name, and the pair (Ed25519) with which the learner signs. A node's key holds its
// own pre-shared key and the learner's public key: it can neither sign nor compute another node's. A loaded key lies in
// a page of its own that forked processes see as zeros and core dumps leave out. Runs in supervisors, bridges and
// tools.
#ifndef FARM_BRIDGE_KEY_H
#define FARM_BRIDGE_KEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { FARM_KEY_BYTES = 32, FARM_KEY_SIGNATURE_BYTES = 64, FARM_KEY_NAME_BYTES = 64, FARM_KEY_WITHDRAWN_MAX = 256 };

struct farm_key {
    enum farm_key_kind { FARM_KEY_LEARNER = 1, FARM_KEY_NODE } kind;
    uint8_t secret[FARM_KEY_BYTES];  // a node's: its pre-shared key
    uint8_t learner[FARM_KEY_BYTES]; // a node's: the learner's public key
    char name[FARM_KEY_NAME_BYTES];  // a node's
};
struct farm_key_names {
    uint32_t count;
    char name[FARM_KEY_WITHDRAWN_MAX][FARM_KEY_NAME_BYTES];
};

// Letters, digits, '_', '.', '-'; 1 to 63 of them, the first not '.'.
bool farm_key_name_valid(const char *name);
bool farm_key_names_have(const struct farm_key_names *names, const char *name);
bool farm_key_names_add(struct farm_key_names *names, const char *name); // false: it is there, or there is no room

// name NULL: makes a learner's FILE, and FILE.node for nodes without names of their own. Else FILE.NAME from the
// learner's FILE. Only their owner may read them. FARM_E_USAGE: a file exists, an invalid or withdrawn name;
// FARM_E_NOT_FOUND, FARM_E_PERMISSION, FARM_E_IO, FARM_E_UNSUPPORTED (OpenSSL).
enum farm_status farm_key_make(const char *path, const char *name, struct farm_error *err);
enum farm_status farm_key_withdraw(const char *path, const char *name, struct farm_error *err);
// FARM_E_NOT_FOUND, FARM_E_PERMISSION (others may access it, or another user owns it), FARM_E_FORMAT (also: another
// kind of key). withdrawn: in the learner's file; may be NULL.
enum farm_status farm_key_load(const char *path, enum farm_key_kind kind, struct farm_key **out,
                               struct farm_key_names *withdrawn, struct farm_error *err);
void farm_key_free(struct farm_key *key); // wipes it; NULL is allowed

// For a child about to be forked: closes *fd, and sets it to the read end (close-on-exec) of a pipe that holds the key.
// -1: there is no pipe, or `key` is NULL.
void farm_key_lend(const struct farm_key *key, int *fd);
// In the child: takes the key out of the pipe and closes it. The process then leaves no core dump, because TLS has
// secrets in other memory.
enum farm_status farm_key_borrow(int fd, struct farm_key **out, struct farm_error *err);

// The pre-shared key of this node; a node's key has only its own. False: it has not, or OpenSSL cannot.
bool farm_key_shared(const struct farm_key *key, const char *name, uint8_t out[FARM_KEY_BYTES]);
bool farm_key_derive(const struct farm_key *learner, const char *name, struct farm_key *node);
// Signs few bytes with the learner's key; verifies that with a node's. label: what they are, so that they are nothing
// else. Together at most 511 bytes: of what is longer a hash.
bool farm_key_sign(const struct farm_key *learner, const char *label, const void *bytes, size_t count,
                   uint8_t signature[FARM_KEY_SIGNATURE_BYTES]);
bool farm_key_verify(const struct farm_key *node, const char *label, const void *bytes, size_t count,
                     const uint8_t signature[FARM_KEY_SIGNATURE_BYTES]);

#endif
