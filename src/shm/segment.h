// Sealed shared memory: an anonymous memfd segment of fixed size, placed on a NUMA node, populated and verified before
// anybody else sees it, sealed against resizing, handed over by descriptor. No name is left behind after a crash, no
// access can end in SIGBUS. The supervisor creates; every other process opens and checks. Knows nothing about what lies
// in a segment beyond its header page.
#ifndef FARM_SHM_SEGMENT_H
#define FARM_SHM_SEGMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define FARM_SEGMENT_MAGIC   0x31304d5241464741ull // "AGFARM01", little endian
#define FARM_SEGMENT_VERSION 2u
enum { FARM_SEGMENT_HEADER_BYTES = 4096, FARM_SEGMENT_USER_BYTES = 3072, FARM_SEGMENT_NOTE_BYTES = 320 };

enum farm_segment_kind { FARM_SEGMENT_UP = 1, FARM_SEGMENT_DOWN = 2, FARM_SEGMENT_STATS = 3 };

// First page of every segment. Written by the creator before sealing the hand-over, constant afterwards.
struct farm_segment_header {
    uint64_t magic;
    uint32_t version;
    uint32_t kind;        // enum farm_segment_kind
    uint64_t bytes;       // of the whole segment, header included
    uint64_t layout_hash; // of whatever lies behind the header; the owner of the layout computes it
    uint32_t owner;       // actor number for up and down
    int32_t node;         // NUMA node asked for, -1: none
    uint32_t pages;       // enum farm_pages, as populated
    uint32_t placement;   // enum farm_placement, as verified
    uint8_t reserved[FARM_SEGMENT_HEADER_BYTES - FARM_SEGMENT_USER_BYTES - 48];
    uint8_t user[FARM_SEGMENT_USER_BYTES]; // the layout's own description (src/ring: struct farm_ring_spec)
};
_Static_assert(sizeof(struct farm_segment_header) == FARM_SEGMENT_HEADER_BYTES, "header is one page");

enum farm_pages {
    FARM_PAGES_SMALL,       // the system's base pages (4 KiB on x86-64)
    FARM_PAGES_TRANSPARENT, // 2 MiB pages that the kernel put together, at least half of the segment
    FARM_PAGES_HUGE,        // 2 MiB pages of the reserved pool
};

enum farm_placement {
    FARM_PLACEMENT_NONE,        // no node was asked for
    FARM_PLACEMENT_BOUND,       // mbind(2), every page verified
    FARM_PLACEMENT_FIRST_TOUCH, // mbind refused (containers): touched from a thread pinned to the node, every page
                                // verified
    FARM_PLACEMENT_MISPLACED,   // verified and found elsewhere: pages_elsewhere says how many
    FARM_PLACEMENT_UNVERIFIED,  // first touch, but neither move_pages(2) nor /proc/self/numa_maps may be asked here
};

struct farm_segment_request {
    enum farm_segment_kind kind;
    uint32_t owner;
    size_t bytes; // header included; rounded up to whole pages of the kind in use
    int node;     // NUMA node (operating system's number) or -1
    uint64_t layout_hash;
    const void *user; // copied into the header
    size_t user_bytes;
    bool huge; // 1 MiB or more: try 2 MiB pages, then transparent ones; false: base pages
};

// One process's view of a segment.
struct farm_segment {
    struct farm_segment_header *header; // start of the mapping; writable only as opened
    size_t bytes;
    int fd;          // read-write descriptor (creator), or the descriptor that was opened; -1 when not kept
    int fd_readonly; // creator only: a descriptor opened read-only, for the side that may not write; -1 elsewhere
    bool writable;
    enum farm_pages pages;
    enum farm_placement placement;
    size_t pages_elsewhere;             // creator only: pages of 4 KiB found on another node than asked
    char note[FARM_SEGMENT_NOTE_BYTES]; // creator only: why it is not what was asked for, and what to set; "" where it
                                        // is
};

// Creates, places, populates, verifies and seals (F_SEAL_SHRINK|GROW|SEAL), and takes the file's write permission away,
// so that a process without privileges does not turn its read-only descriptor into a writable one by way of /proc.
// Behind the header everything is zero. The mapping is MADV_DONTFORK: a forked child does not inherit it and opens its
// own view from a descriptor. Both descriptors are CLOEXEC and above 2. Errors: FARM_E_LIMIT (memory, node,
// descriptors, file size: names the limit, what was wanted, what is there, the setting to change), FARM_E_INVALID,
// FARM_E_IO, FARM_E_UNSUPPORTED. On error *out is closed.
enum farm_status farm_segment_create(const struct farm_segment_request *request, struct farm_segment *out,
                                     struct farm_error *err);

// Maps a descriptor handed over by somebody else, in a process that shares nothing else with the creator, after
// checking seals, size, magic, version, kind, layout hash (0: any) and that the size in the header is the file's. Not
// inherited by forked children either. Takes ownership of fd only on success. Errors: FARM_E_FORMAT with the reason,
// FARM_E_PERMISSION where `writable` is wanted of a read-only descriptor, FARM_E_LIMIT, FARM_E_IO.
enum farm_status farm_segment_open(int fd, bool writable, enum farm_segment_kind kind, uint64_t layout_hash,
                                   struct farm_segment *out, struct farm_error *err);

// The same for a segment that its other side may have scribbled over: only what the kernel vouches for is checked
// (seals, the size, which must be bytes_min at least), and nothing of the header is believed.
enum farm_status farm_segment_open_unread(int fd, bool writable, enum farm_segment_kind kind, size_t bytes_min,
                                          struct farm_segment *out, struct farm_error *err);

// Fills the page table of an opened segment, so that the busy path takes no faults: about a third of a microsecond a
// base page, which is why it is apart from opening. The creator's is full.
void farm_segment_populate(const struct farm_segment *segment);

// Unmaps and closes descriptors; safe on a zeroed, a closed and a partly made segment (a descriptor of 0 or below is
// none).
void farm_segment_close(struct farm_segment *segment);

// "up of actor 3: 4.2 MiB in 2 MiB pages, bound to node 1, verified; note", for the log.
void farm_segment_describe(const struct farm_segment *segment, char *text, size_t text_bytes);

#endif
