// Sealed segments, from the creator's and from a receiver's side.
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <numaif.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../support/must.h"
#include "fixture.h"
#include "shm/limits.h"
#include "shm/place.h"
#include "shm/segment.h"

static struct farm_error err;

enum { PAGE = 4096, BYTES = 40 * PAGE + 100, ALL_SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

TestSuite(shm, .timeout = 30);

static struct farm_segment create_plain(void) {
    return create(request_of(BYTES, -1, false));
}

// The pattern's byte at `at`.
static uint8_t pattern(size_t at) {
    return (uint8_t)(at * 31 + at / 4096);
}

static void write_pattern(struct farm_segment *segment) {
    for (size_t at = FARM_SEGMENT_HEADER_BYTES; at < segment->bytes; at++)
        ((uint8_t *)segment->header)[at] = pattern(at);
}

static bool has_pattern(const struct farm_segment *segment) {
    for (size_t at = FARM_SEGMENT_HEADER_BYTES; at < segment->bytes; at++)
        if (((const uint8_t *)segment->header)[at] != pattern(at)) return false;
    return true;
}

static int open_descriptors(void) {
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    cr_assert_not_null(folder);
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

// ---- creation ----

Test(shm, the_header_holds_the_request_and_the_rest_is_zero) {
    with_segment segment = create_plain();
    const struct farm_segment_header *header = segment.header;
    cr_assert_eq(header->magic, FARM_SEGMENT_MAGIC);
    cr_assert_arr_eq((const char *)header, "AGFARM01", 8, "the magic reads so in a hex dump");
    cr_assert_eq(header->version, FARM_SEGMENT_VERSION);
    cr_assert_eq(header->kind, FARM_SEGMENT_UP);
    cr_assert_eq(header->bytes, 41 * PAGE, "whole pages");
    cr_assert_eq(segment.bytes, 41 * PAGE);
    cr_assert_eq(header->layout_hash, HASH);
    cr_assert_eq(header->owner, 7);
    cr_assert_eq(header->node, -1);
    cr_assert_str_eq((const char *)header->user, "shape");
    for (size_t at = PAGE; at < segment.bytes; at++) cr_assert_eq(((uint8_t *)segment.header)[at], 0);
}

// Bytes that this process's page table holds of the mapping at `start`.
static size_t resident_bytes(const void *start) {
    char line[512];
    bool ours = false;
    size_t kib = 0, bytes = 0;
    FILE *file = fopen("/proc/self/smaps", "r");
    while (fgets(line, sizeof line, file)) {
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2) ours = from == (uintptr_t)start;
        if (ours && sscanf(line, "Rss: %zu kB", &kib) == 1) bytes = kib * 1024;
    }
    fclose(file);
    return bytes;
}

#if defined(__x86_64__)
// Writes a byte of each page, without sanitizers: their shadow memory would fault too.
__attribute__((no_sanitize("address", "thread"))) static void write_pages(const struct farm_segment *segment) {
    for (size_t at = PAGE; at < segment->bytes; at += PAGE) ((volatile uint8_t *)segment->header)[at] = 1;
}
#endif

Test(shm, every_page_is_present_before_the_first_use_on_both_sides) {
    with_segment segment = create(request_of(16 << 20, -1, false));
    with_segment reader = open_segment(dup(segment.fd_readonly), false), writer = open_segment(dup(segment.fd), true);
    farm_segment_populate(&reader);
    farm_segment_populate(&writer);
    size_t creators = resident_bytes(segment.header), readers = resident_bytes(reader.header);
    cr_assert_eq(creators, segment.bytes);
    if (madvise(reader.header, PAGE, MADV_POPULATE_READ) && errno == EINVAL)
        cr_skip_test("before Linux 5.14 a receiver's page table fills as it reads");
    cr_assert_eq(readers, segment.bytes);
    cr_assert_eq(resident_bytes(writer.header), segment.bytes);
#if defined(__x86_64__) // elsewhere the first write to a page may fault once more
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    write_pages(&writer);
    getrusage(RUSAGE_SELF, &after);
    cr_assert_lt(after.ru_minflt - before.ru_minflt, 64, "%ld faults", after.ru_minflt - before.ru_minflt);
#endif
}

Test(shm, a_long_segment_is_reserved_and_placed_in_parts) {
    struct farm_segment_request request = request_of(FARM_SEGMENT_LATER_BYTES + 1, -1, false);
    request.later = true;
    with_segment segment = create(request);
    struct stat file;
    cr_assert_eq(fstat(segment.fd, &file), 0);
    cr_assert_eq((size_t)file.st_blocks * 512, segment.bytes, "no page is missing later");
    cr_assert_eq(resident_bytes(segment.header), 2 << 20, "the first block");
    cr_assert_eq(farm_segment_place(&segment, (4 << 20) - 1, 2, &err), FARM_OK);
    cr_assert_eq(resident_bytes(segment.header), 6 << 20, "whole blocks");
    cr_assert_eq(farm_segment_place(&segment, segment.bytes - 1, 1, &err), FARM_OK);
    cr_assert_eq(resident_bytes(segment.header), (6 << 20) + PAGE, "a part of the last one");
    cr_assert_eq(segment.pages_elsewhere, 0);
    request.bytes = FARM_SEGMENT_LATER_BYTES - PAGE;
    with_segment shorter = create(request);
    cr_assert_eq(resident_bytes(shorter.header), shorter.bytes, "a shorter one is placed whole");
}

Test(shm, closing_is_safe_twice_and_on_zeros) {
    struct farm_segment zeroed = {0};
    farm_segment_close(&zeroed);
    cr_assert_eq(fcntl(0, F_GETFD) >= 0 || errno == EBADF, 1);
    with_segment segment = create_plain();
    farm_segment_close(&segment);
    farm_segment_close(&segment);
    cr_assert_eq(segment.fd, -1);
    cr_assert_eq(segment.fd_readonly, -1);
    cr_assert_str_eq(described(&segment), "closed");
}

Test(shm, base_pages_cost_from_64_MiB_on_if_others_were_requested) {
    char text[768];
    struct farm_segment one = {.bytes = 32 << 20, .note = "why"}, two = one;
    const struct farm_segment *both[] = {&one, &two};
    cr_assert(farm_segment_pages_cost(both, 2, text, sizeof text));
    expect_text(text, "64 MiB of shared memory are in base pages");
    expect_text(text, "measures this machine). why");
    cr_assert_not(farm_segment_pages_cost(both, 1, text, sizeof text));
    one.pages = FARM_PAGES_TRANSPARENT;
    cr_assert_not(farm_segment_pages_cost(both, 2, text, sizeof text));
    one = (struct farm_segment){.bytes = 1 << 30}; // base pages, as requested
    cr_assert_not(farm_segment_pages_cost(both, 2, text, sizeof text));
}

Test(shm, refuses_invalid_requests_and_leaves_nothing) {
    int descriptors = open_descriptors();
    static const struct {
        enum farm_segment_kind kind;
        size_t bytes, user_bytes;
        int node;
        enum farm_status status;
        const char *says;
    } cases[] = {
        {0, BYTES, 0, -1, FARM_E_INVALID, "kind"},
        {FARM_SEGMENT_BOARD + 1, BYTES, 0, -1, FARM_E_INVALID, "invalid kind of segment: 5"},
        {FARM_SEGMENT_UP, 0, 0, -1, FARM_E_INVALID, "invalid segment size: 0 bytes"},
        {FARM_SEGMENT_UP, 4095, 0, -1, FARM_E_INVALID, "4095 bytes"},
        {FARM_SEGMENT_UP, SIZE_MAX, 0, -1, FARM_E_INVALID, "bytes"},
        {FARM_SEGMENT_UP, BYTES, FARM_SEGMENT_USER_BYTES + 1, -1, FARM_E_INVALID, "3073 bytes of description"},
        {FARM_SEGMENT_UP, (size_t)1 << 46, 0, -1, FARM_E_LIMIT, "65536.00 GiB of shared memory wanted"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct farm_segment_request request = {
            .kind = cases[i].kind, .bytes = cases[i].bytes, .user_bytes = cases[i].user_bytes, .node = cases[i].node};
        with_segment segment;
        cr_assert_eq(farm_segment_create(&request, &segment, &err), cases[i].status, "case %zu: %s", i, err.message);
        expect_text(err.message, cases[i].says);
        cr_assert_null(segment.header);
    }
    cr_assert_eq(open_descriptors(), descriptors);
}

Test(shm, refuses_a_file_size_limit_before_the_kernel_kills) {
    struct rlimit limit = {.rlim_cur = 1 << 20, .rlim_max = 1 << 20};
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    struct farm_segment_request request = request_of(8 << 20, -1, false);
    struct farm_segment segment;
    cr_assert_eq(farm_segment_create(&request, &segment, &err), FARM_E_LIMIT);
    expect_text(err.message, "8388608 bytes wanted in one file, RLIMIT_FSIZE allows 1048576");
    expect_text(err.message, "ulimit -f 8192");
    request.bytes = 1 << 20; // each segment is a file by itself
    cr_assert_eq(farm_segment_create(&request, &segment, &err), FARM_OK, "%s", err.message);
    farm_segment_close(&segment);
}

// ---- hand-over ----

Test(shm, a_child_that_opens_the_descriptor_sees_the_same_bytes) {
    with_segment segment = create_plain();
    write_pattern(&segment);
    pid_t child = fork();
    if (child == 0) {
        with_segment reader, writer;
        if (farm_segment_open(segment.fd_readonly, false, FARM_SEGMENT_UP, HASH, &reader, NULL)) _exit(1);
        if (farm_segment_open(segment.fd, true, FARM_SEGMENT_UP, HASH, &writer, NULL)) _exit(2);
        if (reader.bytes != segment.bytes || !has_pattern(&reader)) _exit(3);
        ((uint8_t *)writer.header)[10 * PAGE] = 123;
        _exit(((volatile uint8_t *)reader.header)[10 * PAGE] == 123 ? 0 : 4);
    }
    cr_assert_eq(wait_for(child), 0);
    cr_assert_eq(((uint8_t *)segment.header)[10 * PAGE], 123, "the parent sees what the child wrote");
}

Test(shm, the_read_only_descriptor_cannot_be_mapped_for_writing) {
    with_segment segment = create_plain(), view;
    errno = 0;
    cr_assert_eq(mmap(NULL, PAGE, PROT_WRITE, MAP_SHARED, segment.fd_readonly, 0), MAP_FAILED);
    cr_assert_eq(errno, EACCES);
    cr_assert_eq(farm_segment_open(segment.fd_readonly, true, FARM_SEGMENT_UP, HASH, &view, &err), FARM_E_PERMISSION);
    expect_text(err.message, "read-only");
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        if (farm_segment_open(segment.fd_readonly, false, FARM_SEGMENT_UP, HASH, &view, NULL)) _exit(1);
        if (mprotect(view.header, view.bytes, PROT_READ | PROT_WRITE) == 0) _exit(2); // nor made writable later
        *(volatile uint8_t *)view.header = 1;
        _exit(0);
    }
    cr_assert_eq(wait_for(child), 256 + SIGSEGV);
}

Test(shm, a_forked_child_inherits_neither_mapping) {
    with_segment segment = create_plain(), view;
    cr_assert_eq(farm_segment_open(dup(segment.fd), true, FARM_SEGMENT_UP, 0, &view, NULL), FARM_OK);
    pid_t child = fork();
    if (child == 0) {
        unsigned char present;
        bool creators = mincore(segment.header, PAGE, &present) == 0,
             opened = mincore(view.header, PAGE, &present) == 0;
        _exit(creators || opened);
    }
    cr_assert_eq(wait_for(child), 0);
}

// A memfd as an attacker or another program could hand it over: a valid header, and what a row changes.
static const struct {
    const char *says; // NULL: it is accepted
    size_t file_bytes;
    int seals;
    struct farm_segment_header header; // xor with the valid one
} forgeries[] = {
    {NULL, 4 * PAGE, ALL_SEALS, {0}},
    {"not sealed against shrinking", 4 * PAGE, F_SEAL_GROW | F_SEAL_SEAL, {0}},
    {"not sealed against growing", 4 * PAGE, F_SEAL_SHRINK | F_SEAL_SEAL, {0}},
    {"further seals", 4 * PAGE, F_SEAL_SHRINK | F_SEAL_GROW, {0}},
    {"shrinking growing further seals", 4 * PAGE, 0, {0}},
    {"4095 bytes are fewer than a header page", PAGE - 1, ALL_SEALS, {0}},
    {"0 bytes are fewer", 0, ALL_SEALS, {0}},
    {"its header says 16384 bytes, the file has 12288", 3 * PAGE, ALL_SEALS, {0}},
    {"not a segment of actorfarm", 4 * PAGE, ALL_SEALS, {.magic = 1}},
    {"layout version 3, this build knows 7", 4 * PAGE, ALL_SEALS, {.version = FARM_SEGMENT_VERSION ^ 3}},
    {"'down') where 'up' is expected", 4 * PAGE, ALL_SEALS, {.kind = FARM_SEGMENT_UP ^ FARM_SEGMENT_DOWN}},
    {"kind 4000000000", 4 * PAGE, ALL_SEALS, {.kind = FARM_SEGMENT_UP ^ 4000000000u}},
    {"layout hash 1122334455667789, 1122334455667788 is expected", 4 * PAGE, ALL_SEALS, {.layout_hash = 1}},
};

Test(shm, refuses_every_forged_segment_with_its_reason) {
    for (size_t i = 0; i < sizeof forgeries / sizeof *forgeries; i++) {
        struct farm_segment_header header = {.magic = FARM_SEGMENT_MAGIC ^ forgeries[i].header.magic,
                                             .version = FARM_SEGMENT_VERSION ^ forgeries[i].header.version,
                                             .kind = FARM_SEGMENT_UP ^ forgeries[i].header.kind,
                                             .bytes = 4 * PAGE,
                                             .layout_hash = HASH ^ forgeries[i].header.layout_hash};
        const size_t writable = forgeries[i].file_bytes < PAGE ? forgeries[i].file_bytes : PAGE;
        int fd = memfd_create("forgery", MFD_ALLOW_SEALING);
        cr_assert_eq(write(fd, &header, writable), (ssize_t)writable);
        cr_assert_eq(ftruncate(fd, (off_t)forgeries[i].file_bytes), 0);
        cr_assert_eq(fcntl(fd, F_ADD_SEALS, forgeries[i].seals), 0);
        with_segment view;
        const enum farm_status status = farm_segment_open(fd, false, FARM_SEGMENT_UP, HASH, &view, &err);
        cr_assert_eq(status, forgeries[i].says ? FARM_E_FORMAT : FARM_OK, "forgery %zu: %s", i, err.message);
        if (!status) continue;
        expect_text(err.message, forgeries[i].says);
        cr_assert_null(view.header);
        cr_assert_eq(close(fd), 0, "the descriptor still belongs to the caller");
    }
}

Test(shm, refuses_descriptors_that_are_not_memfds) {
    struct farm_segment view;
    int ends[2];
    cr_assert_eq(pipe(ends), 0);
    cr_assert_eq(farm_segment_open(ends[0], false, FARM_SEGMENT_UP, 0, &view, &err), FARM_E_FORMAT);
    expect_text(err.message, "not sealed memory");
    cr_assert_eq(farm_segment_open(ends[1] + 100, false, FARM_SEGMENT_UP, 0, &view, &err), FARM_E_IO);
    char path[] = "/tmp/farm-segment-XXXXXX";
    int file = mkstemp(path);
    unlink(path);
    cr_assert_eq(ftruncate(file, 1 << 20), 0);
    cr_assert_eq(farm_segment_open(file, false, FARM_SEGMENT_UP, 0, &view, &err), FARM_E_FORMAT);
    close(file);
}

// ---- pages and nodes ----

// Whether MADV_COLLAPSE works here, tried without the code under test.
static bool can_collapse(void) {
    enum { HUGE = FARM_PLACE_HUGE_BYTES };
    int fd = memfd_create("probe", MFD_CLOEXEC);
    cr_assert_eq(ftruncate(fd, 2 * HUGE), 0);
    uint8_t *at = mmap(NULL, 2 * HUGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    uint8_t *block = mmap(NULL, 2 * HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert(at != MAP_FAILED && block != MAP_FAILED);
    block = (uint8_t *)(((uintptr_t)block + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
    cr_assert_eq(mmap(block, HUGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0), block);
    block[0] = 1;
    const bool accepts_all = madvise(block, HUGE, 12345) == 0;      // qemu-user accepts any advice
    const bool can = !accepts_all && madvise(block, HUGE, 25) == 0; // MADV_COLLAPSE
    munmap(block, HUGE);
    munmap(at, 2 * HUGE);
    close(fd);
    return can;
}

Test(shm, collapses_pages_whatever_shmem_enabled_is) {
    struct farm_segment_request request = request_of(((5u << 20) / 4096 + 3) * 4096, -1, true); // two blocks and a rest
    if (farm_limits_huge_available_bytes("/", -1) >= request.bytes) cr_skip_test("the pool has 2 MiB pages");
    with_segment segment = create(request);
    if (!can_collapse()) cr_skip_test("this kernel collapses nothing: older than Linux 6.1, or shmem_enabled is deny");
    cr_assert_eq(segment.pages, FARM_PAGES_TRANSPARENT, "%s", segment.note);
    cr_assert_eq(farm_place_transparent_bytes(segment.header), 4 << 20);
    const uint8_t *bytes = (const uint8_t *)segment.header;
    for (size_t i = FARM_SEGMENT_HEADER_BYTES; i < segment.bytes; i++) cr_assert_eq(bytes[i], 0, "byte %zu", i);
    write_pattern(&segment);
    with_segment view = open_segment(dup(segment.fd_readonly), false);
    farm_segment_populate(&view);
    cr_assert_eq(farm_place_transparent_bytes(view.header), 4 << 20, "a receiver maps them whole");
    cr_assert(has_pattern(&view));
}

Test(shm, takes_huge_pages_from_the_real_pool) {
    enum { WANTED = 3 << 20 };
    if (farm_limits_huge_available_bytes("/", -1) < 4 << 20)
        cr_skip_test("fewer than two free 2 MiB pages (vm.nr_hugepages)");
    with_segment segment = create(request_of(WANTED, -1, true));
    cr_assert_eq(segment.pages, FARM_PAGES_HUGE, "%s", described(&segment));
    cr_assert_eq(segment.bytes, 4 << 20);
    expect_text(described(&segment), "in 2 MiB pages");
    cr_assert(ftruncate(segment.fd, 0) == -1 && errno == EPERM);
    write_pattern(&segment);
    with_segment view = open_segment(dup(segment.fd_readonly), false);
    cr_assert_eq(view.pages, FARM_PAGES_HUGE);
    cr_assert(has_pattern(&view));
}

// A node with memory that this process may use.
static int some_node(void) {
    unsigned long nodes[16] = {0};
    if (get_mempolicy(NULL, nodes, 8 * sizeof nodes, NULL, MPOL_F_MEMS_ALLOWED)) return 0;
    for (int node = 0; node < 1024; node++)
        if (nodes[node / 64] >> (node % 64) & 1) return node;
    return 0;
}

Test(shm, every_page_lies_on_the_requested_node) {
    struct farm_segment_request request = request_of(4 << 20, some_node(), false);
    with_segment segment = create(request);
    const char *text = described(&segment);
    cr_assert(segment.placement == FARM_PLACEMENT_BOUND || segment.placement == FARM_PLACEMENT_FIRST_TOUCH, "%s", text);
    cr_assert_eq(segment.pages_elsewhere, 0);
    for (size_t at = 0; at < segment.bytes; at += PAGE) {
        void *page = (uint8_t *)segment.header + at;
        int node = -1;
        if (move_pages(0, 1, &page, NULL, &node, 0)) cr_skip_test("move_pages(2) is refused here: %s", strerror(errno));
        cr_assert_eq(node, request.node, "page %zu: %s", at / PAGE, text);
    }
}

Test(shm, verification_finds_misplaced_and_missing_pages) {
    with_segment segment = create_plain();
    size_t pages = segment.bytes / PAGE, elsewhere = 99;
    if (!farm_place_verify(segment.header, segment.bytes, PAGE, some_node() + 1, &elsewhere))
        cr_skip_test("neither move_pages(2) nor numa_maps here");
    cr_assert_eq(elsewhere, pages);
    cr_assert(farm_place_verify(segment.header, segment.bytes, PAGE, -1, &elsewhere));
    cr_assert_eq(elsewhere, 0);
    uint8_t *unpopulated = farm_place_map(-1, PROT_READ | PROT_WRITE, 8 * PAGE, PAGE);
    unpopulated[0] = 1;
    cr_assert(farm_place_verify(unpopulated, 8 * PAGE, PAGE, -1, &elsewhere));
    cr_assert_eq(elsewhere, 7);
    munmap(unpopulated, 8 * PAGE);
}
