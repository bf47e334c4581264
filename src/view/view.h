// What the files of this folder share. farm/farm.h and farm/consumer.h are its interfaces.
#ifndef FARM_VIEW_VIEW_H
#define FARM_VIEW_VIEW_H

#include <farm/farm.h>

#include "ring/ring.h"

// farm_start for a child that inherits the descriptors keep[0..count) under their numbers. With some it leads a process
// group of its own, so that the terminal's Ctrl-C does not reach it.
struct farm *farm_start_keeping(const char *const *words, const int *keep, unsigned count, char *error,
                                size_t error_bytes);

// Where a field (enum farm_view_field) of step n lies, and its bytes; 0: no such field. *answer: written with the
// answer.
size_t farm_view_locate(const struct farm_lane *lane, uint64_t n, unsigned field, const void **at, bool *answer);

#endif
