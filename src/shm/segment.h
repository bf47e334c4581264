// Sealed shared memory: an anonymous memfd of fixed size on a NUMA node, populated and verified before it is handed
// over by descriptor, sealed against resizing. No name is left behind after a crash; no access ends in SIGBUS. The
// supervisor creates segments; other processes open and check them. Interprets the header page only.
#ifndef FARM_SHM_SEGMENT_H
#define FARM_SHM_SEGMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define FARM_SEGMENT_MAGIC   0x31304d5241464741ull // "AGFARM01", little endian
#define FARM_SEGMENT_VERSION 7u
enum { FARM_SEGMENT_HEADER_BYTES = 4096, FARM_SEGMENT_USER_BYTES = 3072, FARM_SEGMENT_NOTE_BYTES = 320 };
enum { FARM_SEGMENT_LATER_BYTES = 64 << 20 };
enum { FARM_SEGMENT_PAGES_COST_BYTES = 64 << 20 }; // a few times what a core's TLBs cover with base pages

enum farm_segment_kind { FARM_SEGMENT_UP = 1, FARM_SEGMENT_DOWN, FARM_SEGMENT_STATS, FARM_SEGMENT_BOARD };

// The first page. The creator writes it before the hand-over; it does not change afterwards.
struct farm_segment_header {
    uint64_t magic;
    uint32_t version;
    uint32_t kind;        // enum farm_segment_kind
    uint64_t bytes;       // whole segment, header included
    uint64_t layout_hash; // hash over the rest; computed by the owner of the layout
    uint32_t owner;       // actor number for up and down
    int32_t node;         // requested NUMA node, -1: none
    uint32_t pages;       // enum farm_pages, as populated
    uint32_t placement;   // enum farm_placement, as verified
    uint8_t reserved[FARM_SEGMENT_HEADER_BYTES - FARM_SEGMENT_USER_BYTES - 48];
    uint8_t user[FARM_SEGMENT_USER_BYTES]; // the layout's own description (src/ring: struct farm_ring_spec)
};
_Static_assert(sizeof(struct farm_segment_header) == FARM_SEGMENT_HEADER_BYTES, "header is one page");

enum farm_pages {
    FARM_PAGES_SMALL,       // the system's base pages (4 KiB on x86-64)
    FARM_PAGES_TRANSPARENT, // transparent 2 MiB pages, at least half of the segment
    FARM_PAGES_HUGE,        // 2 MiB pages of the reserved pool
};

enum farm_placement {
    FARM_PLACEMENT_NONE,        // no node was requested
    FARM_PLACEMENT_BOUND,       // mbind(2), every page verified
    FARM_PLACEMENT_FIRST_TOUCH, // mbind refused (containers): touched from a thread on the node, every page verified
    FARM_PLACEMENT_MISPLACED,   // pages_elsewhere pages are on other nodes
    FARM_PLACEMENT_UNVERIFIED,  // first touch; neither move_pages(2) nor /proc/self/numa_maps is available
};

struct farm_segment_request {
    enum farm_segment_kind kind;
    uint32_t owner;
    size_t bytes; // header included; rounded up to whole pages of the kind in use
    int node;     // NUMA node (operating system's number) or -1
    uint64_t layout_hash;
    const void *user; // copied into the header
    size_t user_bytes;
    bool huge;  // from 1 MiB on: try 2 MiB pages, then transparent ones; false: base pages
    bool later; // from FARM_SEGMENT_LATER_BYTES on: only reserve memory; farm_segment_place. Not from the reserved pool
};

// One process's view of a segment.
struct farm_segment {
    struct farm_segment_header *header; // start of the mapping; writable only as opened
    size_t bytes;
    int fd;          // read-write (creator) or as opened; -1: none
    int fd_readonly; // creator only: for the side that may not write; -1 elsewhere
    bool writable;
    enum farm_pages pages;
    enum farm_placement placement;
    // Creator only:
    int node;               // as requested
    bool later, collapses;  // memory is reserved, and the creator places it in parts; its 2 MiB blocks are collapsed
    size_t pages_elsewhere; // 4 KiB pages on other nodes
    char note[FARM_SEGMENT_NOTE_BYTES]; // why the request was not met, and what to set; "" if it was
};

// Creates, places, populates, verifies and seals (F_SEAL_SHRINK|GROW|SEAL) a segment of zeros, and removes the file's
// write permission, so that an unprivileged process cannot reopen its read-only descriptor for writing through /proc.
// MADV_DONTFORK: a forked child opens its own view. Descriptors are CLOEXEC and above 2. Errors close *out:
// FARM_E_LIMIT (names the setting: memory, node, descriptors, file size), FARM_E_INVALID, _IO, _UNSUPPORTED.
enum farm_status farm_segment_create(const struct farm_segment_request *request, struct farm_segment *out,
                                     struct farm_error *err);

// The creator of a segment that is `later`, at any time: populates and verifies the 2 MiB blocks that hold these bytes.
// What is not placed yet is placed, in base pages, by the first access.
enum farm_status farm_segment_place(struct farm_segment *segment, size_t at, size_t bytes, struct farm_error *err);

// Maps a descriptor from another process after checking seals, size, magic, version, kind and layout hash (0: any).
// MADV_DONTFORK too. Owns fd on success only. Errors: FARM_E_FORMAT with the reason, FARM_E_PERMISSION (a read-only
// descriptor, but `writable`), FARM_E_LIMIT, FARM_E_IO.
enum farm_status farm_segment_open(int fd, bool writable, enum farm_segment_kind kind, uint64_t layout_hash,
                                   struct farm_segment *out, struct farm_error *err);

// The same if its peer may have overwritten the header: checks what the kernel guarantees, seals and size (bytes_min).
enum farm_status farm_segment_open_unread(int fd, bool writable, enum farm_segment_kind kind, size_t bytes_min,
                                          struct farm_segment *out, struct farm_error *err);

// Fills the page table of an opened segment that is not `later` (the creator's is full), about 0.3 us a base page.
void farm_segment_populate(const struct farm_segment *segment);

// Unmaps and closes the descriptors. Safe on a zeroed, closed or partly made segment: descriptors <= 0 are ignored.
void farm_segment_close(struct farm_segment *segment);

// "up of actor 3: 4.2 MiB in 2 MiB pages, bound to node 1", for the log.
void farm_segment_describe(const struct farm_segment *segment, char *text, size_t text_bytes);

// What it costs that these segments did not get the 2 MiB pages that were requested: a sentence with the gain to expect
// and why they were not given. False: they have fewer than FARM_SEGMENT_PAGES_COST_BYTES, too few to measure.
bool farm_segment_pages_cost(const struct farm_segment *const *segments, size_t count, char *text, size_t text_bytes);

#endif
