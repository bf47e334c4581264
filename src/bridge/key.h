// Key files: 32 random bytes that all nodes of a run share and that admit a node. One line of text:
// "actorfarm-key-1 <64 hexadecimal digits>". Runs before any worker, and in bridges.
#ifndef FARM_BRIDGE_KEY_H
#define FARM_BRIDGE_KEY_H

#include <stdint.h>

#include "base/status.h"

enum { FARM_KEY_BYTES = 32 };
struct farm_key {
    uint8_t bytes[FARM_KEY_BYTES];
};

// Makes a file that only its owner may read. FARM_E_USAGE: it exists; FARM_E_NOT_FOUND, FARM_E_PERMISSION, FARM_E_IO.
enum farm_status farm_key_make(const char *path, struct farm_error *err);
// FARM_E_NOT_FOUND, FARM_E_PERMISSION (others may read it, or another user owns it), FARM_E_FORMAT.
enum farm_status farm_key_load(const char *path, struct farm_key *key, struct farm_error *err);

#endif
