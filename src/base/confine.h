// Confines the calling thread, and what it starts later, for good: Landlock limits files, TCP, signals and tracing, a
// seccomp filter the system calls. What is refused fails with EPERM or EACCES; open descriptors work on. A kernel that
// lacks a part gets the rest. Both are called without their libraries: libseccomp would be a dependency for two lists.
#ifndef FARM_BASE_CONFINE_H
#define FARM_BASE_CONFINE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

// For a bridge that has opened what it needs: opens no file, starts no process or thread, maps no code, has no
// capability; no socket but those it accepts, or, if it dials, those of TCP and UDP.
enum farm_status farm_confine_bridge(bool dials, struct farm_error *err);
// For environments: they read and execute files, and change none but /dev/null; no sockets, no capability but that to
// read, no access to processes that were not started under it.
enum farm_status farm_confine_environment(struct farm_error *err);
// Whether this kernel lacks a part; the text says which, and what that leaves open.
bool farm_confine_lacks(char *text, size_t bytes);

#endif
