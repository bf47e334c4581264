// A set of small integers: CPUs or NUMA nodes by the kernel's numbers. Plain data of fixed size: copying is assignment,
// comparing is memcmp, nothing to free. Runs in every process; no state. Does not know which CPUs exist.
#ifndef FARM_BASE_BITMAP_H
#define FARM_BASE_BITMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { FARM_BITMAP_BITS = 4096 };

struct farm_bitmap {
    uint64_t words[FARM_BITMAP_BITS / 64];
};

static inline bool farm_bitmap_has(const struct farm_bitmap *set, int bit) {
    return bit >= 0 && bit < FARM_BITMAP_BITS && (set->words[bit / 64] >> (bit % 64) & 1);
}

// `bit` must lie in [0, FARM_BITMAP_BITS).
void farm_bitmap_set(struct farm_bitmap *set, int bit);
void farm_bitmap_clear(struct farm_bitmap *set, int bit);

int farm_bitmap_count(const struct farm_bitmap *set);

// The smallest member >= from, or -1: for (int b = farm_bitmap_next(s, 0); b >= 0; b = farm_bitmap_next(s, b + 1)).
int farm_bitmap_next(const struct farm_bitmap *set, int from);

// *set |= other, *set &= other, *set &= ~other.
void farm_bitmap_add(struct farm_bitmap *set, const struct farm_bitmap *other);
void farm_bitmap_keep(struct farm_bitmap *set, const struct farm_bitmap *other);
void farm_bitmap_remove(struct farm_bitmap *set, const struct farm_bitmap *other);

// The kernel's list form, "0-3,8,12-15" (cpuset.cpus, /sys/.../cpulist); blanks and a final newline are ignored, the
// empty text is the empty set. FARM_E_FORMAT: not a list, or a number is >= FARM_BITMAP_BITS.
enum farm_status farm_bitmap_parse(const char *text, struct farm_bitmap *set, struct farm_error *err);

// Writes the list form, always terminated; a list longer than `size` (>= 4) bytes ends in "...". Returns text.
char *farm_bitmap_format(const struct farm_bitmap *set, char *text, size_t size);

// Lets the calling thread run on these CPUs only (sched_setaffinity). FARM_E_INVALID: an empty set; FARM_E_IO: refused.
enum farm_status farm_bitmap_pin(const struct farm_bitmap *cpus, struct farm_error *err);
// The same with one CPU; FARM_E_INVALID: not a CPU's number.
enum farm_status farm_bitmap_pin_to(int cpu, struct farm_error *err);

// The CPUs that the calling thread may run on (sched_getaffinity). FARM_E_IO: *cpus is then empty.
enum farm_status farm_bitmap_pinned(struct farm_bitmap *cpus, struct farm_error *err);

#endif
