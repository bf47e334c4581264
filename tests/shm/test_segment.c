// Sealed segments, as their creator and as other processes meet them.
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <numaif.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

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

// What the byte at `at` shall be.
static uint8_t pattern(size_t at) {
    return (uint8_t)(at * 31 + at / 4096);
}

static void write_pattern(struct farm_segment *segment) {
    for (size_t at = FARM_SEGMENT_HEADER_BYTES; at < segment->bytes; at++)
        ((uint8_t *)segment->header)[at] = pattern(at);
}

static bool shows_pattern(const struct farm_segment *segment) {
    for (size_t at = FARM_SEGMENT_HEADER_BYTES; at < segment->bytes; at++)
        if (((const uint8_t *)segment->header)[at] != pattern(at)) return false;
    return true;
}

// The status that a child ends with; 256 + signal where one ended it.
static int wait_for(pid_t child) {
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? 256 + WTERMSIG(status) : WEXITSTATUS(status);
}

static int open_descriptors(void) {
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    cr_assert_not_null(folder);
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

static size_t meminfo_bytes(const char *key) {
    char line[256];
    size_t kib = 0;
    FILE *file = fopen("/proc/meminfo", "r");
    while (fgets(line, sizeof line, file))
        if (strncmp(line, key, strlen(key)) == 0) sscanf(line + strlen(key), ": %zu", &kib);
    fclose(file);
    return kib * 1024;
}

// ---- creation ----

Test(shm, header_says_what_was_asked_for_and_the_rest_is_zero) {
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

Test(shm, seals_refuse_every_change_of_size_and_of_seals) {
    with_segment segment = create_plain();
    cr_assert_eq(fcntl(segment.fd, F_GET_SEALS), ALL_SEALS);
    cr_assert(ftruncate(segment.fd, 0) == -1 && errno == EPERM);
    cr_assert(ftruncate(segment.fd, 1 << 20) == -1 && errno == EPERM);
    cr_assert(fallocate(segment.fd, 0, 0, 1 << 20) == -1 && errno == EPERM);
    cr_assert(fcntl(segment.fd, F_ADD_SEALS, F_SEAL_WRITE) == -1 && errno == EPERM, "nobody can seal writing");
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
// A byte of each page. Not looked after by sanitizers, whose shadow memory would fault instead.
__attribute__((no_sanitize("address", "thread"))) static void write_pages(const struct farm_segment *segment) {
    for (size_t at = PAGE; at < segment->bytes; at += PAGE) ((volatile uint8_t *)segment->header)[at] = 1;
}
#endif

Test(shm, every_page_is_there_before_the_first_use_on_both_sides) {
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

Test(shm, closing_gives_memory_and_descriptors_back) {
    enum { BIG = 96 << 20 };
    int descriptors = open_descriptors();
    bool seen = false;
    for (int attempt = 0; attempt < 5 && !seen; attempt++) { // other programs share the machine's counter
        size_t before = meminfo_bytes("Shmem");
        with_segment segment = create(request_of(BIG, -1, false));
        size_t during = meminfo_bytes("Shmem");
        cr_assert_eq(open_descriptors(), descriptors + 2);
        farm_segment_close(&segment);
        size_t after = meminfo_bytes("Shmem");
        seen = during > before + BIG / 2 && during > after + BIG / 2;
        cr_assert_eq(open_descriptors(), descriptors);
    }
    cr_assert(seen);
}

Test(shm, closing_is_safe_on_what_was_never_made_and_twice) {
    struct farm_segment zeroed = {0};
    farm_segment_close(&zeroed);
    cr_assert_eq(fcntl(0, F_GETFD) >= 0 || errno == EBADF, 1);
    with_segment segment = create_plain();
    farm_segment_close(&segment);
    farm_segment_close(&segment);
    cr_assert_eq(segment.fd, -1);
    cr_assert_eq(segment.fd_readonly, -1);
    char text[64];
    farm_segment_describe(&segment, text, sizeof text);
    cr_assert_str_eq(text, "closed");
}

Test(shm, descriptors_close_on_exec_and_are_never_a_standard_one) {
    int input = dup(0);
    close(0);
    with_segment segment = create_plain();
    cr_assert_geq(segment.fd, 3);
    cr_assert_geq(segment.fd_readonly, 3);
    cr_assert(fcntl(segment.fd, F_GETFD) & FD_CLOEXEC);
    cr_assert(fcntl(segment.fd_readonly, F_GETFD) & FD_CLOEXEC);
    farm_segment_close(&segment);
    if (input >= 0) dup2(input, 0);
}

Test(shm, refuses_absurd_requests_and_leaves_nothing) {
    int descriptors = open_descriptors();
    static const struct {
        enum farm_segment_kind kind;
        size_t bytes, user_bytes;
        int node;
        enum farm_status status;
        const char *says;
    } cases[] = {
        {0, BYTES, 0, -1, FARM_E_INVALID, "kind"},
        {FARM_SEGMENT_STATS + 1, BYTES, 0, -1, FARM_E_INVALID, "4 is no kind"},
        {FARM_SEGMENT_UP, 0, 0, -1, FARM_E_INVALID, "0 bytes"},
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
        cr_assert(strstr(err.message, cases[i].says), "case %zu: %s", i, err.message);
        cr_assert_null(segment.header);
    }
    cr_assert_eq(open_descriptors(), descriptors);
}

Test(shm, names_the_limit_when_descriptors_run_out) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    for (int spare = 0; spare < 2; spare++) { // none for the memfd, none for its read-only twin
        int next = dup(0);
        cr_assert_geq(next, 0);
        close(next);
        limit.rlim_cur = (rlim_t)(next + spare);
        struct farm_segment_request request = request_of(BYTES, -1, false);
        struct farm_segment segment;
        cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
        enum farm_status status = farm_segment_create(&request, &segment, &err);
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
        // The limits under /proc could not be read either: that alone must not be an error.
        cr_assert_eq(status, FARM_E_LIMIT, "%s", err.message);
        cr_assert(strstr(err.message, "ulimit -n"), "%s", err.message);
        cr_assert_eq(dup(0), next, "a descriptor was left behind");
        close(next);
    }
}

Test(shm, refuses_a_file_size_limit_before_the_kernel_kills) {
    struct rlimit limit = {.rlim_cur = 1 << 20, .rlim_max = 1 << 20};
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    struct farm_segment_request request = request_of(8 << 20, -1, false);
    struct farm_segment segment;
    cr_assert_eq(farm_segment_create(&request, &segment, &err), FARM_E_LIMIT);
    cr_assert(strstr(err.message, "RLIMIT_FSIZE allows 1048576"), "%s", err.message);
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
        if (reader.bytes != segment.bytes || !shows_pattern(&reader)) _exit(3);
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
    cr_assert(strstr(err.message, "read-only"), "%s", err.message);
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

Test(shm, the_memory_outlives_its_creator_while_a_descriptor_is_open) {
    with_segment segment = create_plain();
    write_pattern(&segment);
    int kept = dup(segment.fd);
    farm_segment_close(&segment);
    with_segment view = open_segment(kept, false);
    cr_assert(shows_pattern(&view));
}

// A memfd such as an attacker or another program would hand over: a right header, then one thing wrong.
struct forgery {
    size_t file_bytes;
    int seals;
    struct farm_segment_header header;
};

static struct forgery right(void) {
    return (struct forgery){.file_bytes = 4 * PAGE,
                            .seals = ALL_SEALS,
                            .header = {.magic = FARM_SEGMENT_MAGIC,
                                       .version = FARM_SEGMENT_VERSION,
                                       .kind = FARM_SEGMENT_UP,
                                       .bytes = 4 * PAGE,
                                       .layout_hash = HASH}};
}

static void try_forgery(const struct forgery *forgery, enum farm_status wanted, const char *says) {
    int fd = memfd_create("forgery", MFD_ALLOW_SEALING);
    size_t writable = forgery->file_bytes < PAGE ? forgery->file_bytes : PAGE;
    cr_assert_eq(write(fd, &forgery->header, writable), (ssize_t)writable);
    cr_assert_eq(ftruncate(fd, (off_t)forgery->file_bytes), 0);
    cr_assert_eq(fcntl(fd, F_ADD_SEALS, forgery->seals), 0);
    with_segment view;
    cr_assert_eq(farm_segment_open(fd, false, FARM_SEGMENT_UP, HASH, &view, &err), wanted, "%s: %s", says, err.message);
    if (wanted) {
        cr_assert(strstr(err.message, says), "'%s' does not say '%s'", err.message, says);
        cr_assert_null(view.header);
        cr_assert_eq(fcntl(fd, F_GETFD), 0, "the descriptor stays the caller's");
        close(fd);
    }
}

Test(shm, refuses_every_forged_segment_with_its_reason) {
    struct forgery forgery = right();
    try_forgery(&forgery, FARM_OK, "nothing wrong");
    forgery.seals = F_SEAL_GROW | F_SEAL_SEAL;
    try_forgery(&forgery, FARM_E_FORMAT, "not sealed against shrinking");
    forgery.seals = F_SEAL_SHRINK | F_SEAL_SEAL;
    try_forgery(&forgery, FARM_E_FORMAT, "not sealed against growing");
    forgery.seals = F_SEAL_SHRINK | F_SEAL_GROW;
    try_forgery(&forgery, FARM_E_FORMAT, "further seals");
    forgery.seals = 0;
    try_forgery(&forgery, FARM_E_FORMAT, "shrinking growing further seals");
    forgery = right();
    forgery.file_bytes = PAGE - 1;
    try_forgery(&forgery, FARM_E_FORMAT, "4095 bytes are fewer than a header page");
    forgery.file_bytes = 0;
    try_forgery(&forgery, FARM_E_FORMAT, "0 bytes are fewer");
    forgery.file_bytes = 3 * PAGE;
    try_forgery(&forgery, FARM_E_FORMAT, "its header says 16384 bytes, the file has 12288");
    forgery = right();
    forgery.header.magic ^= 1;
    try_forgery(&forgery, FARM_E_FORMAT, "not a segment of actorfarm");
    forgery = right();
    forgery.header.version++;
    try_forgery(&forgery, FARM_E_FORMAT, "layout version 3, this build knows 2");
    forgery = right();
    forgery.header.kind = FARM_SEGMENT_DOWN;
    try_forgery(&forgery, FARM_E_FORMAT, "'down') where 'up' is expected");
    forgery.header.kind = 4000000000u;
    try_forgery(&forgery, FARM_E_FORMAT, "kind 4000000000");
    forgery = right();
    forgery.header.layout_hash++;
    try_forgery(&forgery, FARM_E_FORMAT, "layout hash 1122334455667789, 1122334455667788 is expected");
}

Test(shm, refuses_descriptors_that_are_no_memfd) {
    struct farm_segment view;
    int ends[2];
    cr_assert_eq(pipe(ends), 0);
    cr_assert_eq(farm_segment_open(ends[0], false, FARM_SEGMENT_UP, 0, &view, &err), FARM_E_FORMAT);
    cr_assert(strstr(err.message, "not sealed memory"), "%s", err.message);
    cr_assert_eq(farm_segment_open(ends[1] + 100, false, FARM_SEGMENT_UP, 0, &view, &err), FARM_E_IO);
    char path[] = "/tmp/farm-segment-XXXXXX";
    int file = mkstemp(path);
    unlink(path);
    cr_assert_eq(ftruncate(file, 1 << 20), 0);
    cr_assert_eq(farm_segment_open(file, false, FARM_SEGMENT_UP, 0, &view, &err), FARM_E_FORMAT);
    close(file);
}

// ---- pages and nodes ----

Test(shm, says_aloud_when_huge_pages_are_not_to_be_had) {
    uint64_t pool = farm_limits_huge_available_bytes("/", -1);
    if (pool > 64 << 20) cr_skip_test("the pool holds %llu MiB of 2 MiB pages", (unsigned long long)pool >> 20);
    with_segment segment = create(request_of(pool + (4 << 20), -1, true));
    const char *text = described(&segment);
    cr_assert_neq(segment.pages, FARM_PAGES_HUGE);
    if (segment.pages == FARM_PAGES_TRANSPARENT) {
        cr_assert(strstr(text, "transparent 2 MiB pages"), "%s", text);
    } else {
        cr_assert(strstr(text, "in base pages"), "%s", text);
        cr_assert(strstr(text, "2 MiB pages wanted") && strstr(text, "vm.nr_hugepages"), "%s", text);
        cr_assert(strstr(text, "transparent ones not given: shmem_enabled is"), "%s", text);
    }
    cr_assert_eq((uintptr_t)segment.header % FARM_PLACE_HUGE_BYTES, 0, "laid out for the day when they are");
    write_pattern(&segment);
    cr_assert(shows_pattern(&segment));
}

// Whether MADV_COLLAPSE works here, tried without the code under test.
static bool puts_pages_together(void) {
    enum { HUGE = FARM_PLACE_HUGE_BYTES };
    int fd = memfd_create("probe", MFD_CLOEXEC);
    cr_assert_eq(ftruncate(fd, 2 * HUGE), 0);
    uint8_t *at = mmap(NULL, 2 * HUGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    uint8_t *block = mmap(NULL, 2 * HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert(at != MAP_FAILED && block != MAP_FAILED);
    block = (uint8_t *)(((uintptr_t)block + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
    cr_assert_eq(mmap(block, HUGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0), block);
    block[0] = 1;
    const bool liar = madvise(block, HUGE, 12345) == 0;      // qemu-user says yes to any advice
    const bool can = !liar && madvise(block, HUGE, 25) == 0; // MADV_COLLAPSE
    munmap(block, HUGE);
    munmap(at, 2 * HUGE);
    close(fd);
    return can;
}

Test(shm, has_transparent_pages_put_together_whatever_the_settings) {
    struct farm_segment_request request = request_of(((5u << 20) / 4096 + 3) * 4096, -1, true); // two blocks and a rest
    if (farm_limits_huge_available_bytes("/", -1) >= request.bytes) cr_skip_test("the pool has 2 MiB pages");
    with_segment segment = create(request);
    if (!puts_pages_together()) cr_skip_test("this kernel does not: older than Linux 6.1, or shmem_enabled is deny");
    cr_assert_eq(segment.pages, FARM_PAGES_TRANSPARENT, "%s", segment.note);
    cr_assert_eq(farm_place_transparent_bytes(segment.header), 4 << 20);
    const uint8_t *bytes = (const uint8_t *)segment.header;
    for (size_t i = FARM_SEGMENT_HEADER_BYTES; i < segment.bytes; i++) cr_assert_eq(bytes[i], 0, "byte %zu", i);
    write_pattern(&segment);
    with_segment view = open_segment(dup(segment.fd_readonly), false);
    farm_segment_populate(&view);
    cr_assert_eq(farm_place_transparent_bytes(view.header), 4 << 20, "and whoever opens it maps them whole");
    cr_assert(shows_pattern(&view));
}

Test(shm, takes_huge_pages_from_the_pool_and_hands_them_over) {
    enum { WANTED = 3 << 20 };
    if (farm_limits_huge_available_bytes("/", -1) < 4 << 20)
        cr_skip_test("fewer than two free 2 MiB pages (vm.nr_hugepages)");
    with_segment segment = create(request_of(WANTED, -1, true));
    const char *text = described(&segment);
    cr_assert_eq(segment.pages, FARM_PAGES_HUGE, "%s", text);
    cr_assert_eq(segment.bytes, 4 << 20);
    cr_assert(strstr(text, "in 2 MiB pages"), "%s", text);
    cr_assert(ftruncate(segment.fd, 0) == -1 && errno == EPERM);
    write_pattern(&segment);
    with_segment view = open_segment(dup(segment.fd_readonly), false);
    cr_assert_eq(view.pages, FARM_PAGES_HUGE);
    cr_assert(shows_pattern(&view));
}

// A node with memory that this process may use.
static int some_node(void) {
    unsigned long nodes[16] = {0};
    if (get_mempolicy(NULL, nodes, 8 * sizeof nodes, NULL, MPOL_F_MEMS_ALLOWED)) return 0;
    for (int node = 0; node < 1024; node++)
        if (nodes[node / 64] >> (node % 64) & 1) return node;
    return 0;
}

Test(shm, every_page_lies_on_the_node_asked_for) {
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

Test(shm, refuses_a_node_that_is_not_there) {
    struct farm_segment_request request = request_of(BYTES, 1000, false);
    struct farm_segment segment;
    enum farm_status status = farm_segment_create(&request, &segment, &err);
    if (!status) cr_skip_test("mbind(2) is refused here, so no node can be refused");
    cr_assert_eq(status, FARM_E_LIMIT);
    cr_assert(strstr(err.message, "NUMA node 1000"), "%s", err.message);
    cr_assert_null(segment.header);
}

// Makes the kernel answer EPERM to up to two system calls, as containers do.
static bool refuse_calls(long first, long second) {
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)first, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)second, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {.len = sizeof program / sizeof *program, .filter = program};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

Test(shm, refuses_a_node_that_is_not_there_where_mbind_is_refused) {
    if (access("/sys/devices/system/node/online", R_OK)) cr_skip_test("this kernel lists no NUMA nodes");
    if (!refuse_calls(SYS_mbind, SYS_mbind)) cr_skip_test("no seccomp filters here");
    struct farm_segment_request request = request_of(BYTES, 1000, false);
    struct farm_segment segment;
    cr_assert_eq(farm_segment_create(&request, &segment, &err), FARM_E_LIMIT);
    cr_assert(strstr(err.message, "NUMA node 1000"), "%s", err.message);
}

Test(shm, touches_first_from_the_node_where_mbind_is_refused) {
    if (!refuse_calls(SYS_mbind, SYS_mbind)) cr_skip_test("no seccomp filters here");
    with_segment segment = create(request_of(4 << 20, some_node(), false));
    const char *text = described(&segment);
    cr_assert_eq(segment.placement, FARM_PLACEMENT_FIRST_TOUCH, "%s", text);
    cr_assert(strstr(text, "first touched on node"), "%s", text);
}

Test(shm, asks_numa_maps_where_move_pages_is_refused_too) {
    if (access("/proc/self/numa_maps", R_OK)) cr_skip_test("this kernel has no /proc/self/numa_maps");
    if (!refuse_calls(SYS_mbind, SYS_move_pages)) cr_skip_test("no seccomp filters here");
    struct farm_segment_request request = request_of(4 << 20, some_node(), false);
    with_segment segment = create(request);
    cr_assert_eq(segment.placement, FARM_PLACEMENT_FIRST_TOUCH);
    size_t elsewhere = 99;
    cr_assert(farm_place_verify(segment.header, segment.bytes, PAGE, request.node, &elsewhere));
    cr_assert_eq(elsewhere, 0);
    cr_assert(farm_place_verify(segment.header, segment.bytes, PAGE, request.node + 1, &elsewhere));
    cr_assert_eq(elsewhere, segment.bytes / PAGE, "asked for another node, every page is elsewhere");
}

Test(shm, verification_finds_pages_elsewhere_and_pages_that_are_missing) {
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
