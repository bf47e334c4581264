// Segments, their placement and heaps where the machine refuses: every call that can fail made to fail in turn, and the
// machines that this one is not (a pool of 2 MiB pages, pages on the wrong node, kernels that know less). jemalloc is
// played by a few lines at the end, so that its refusals can be tried too.
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/memfd.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "../support/faults.h"
#include "base/bitmap.h"
#include "fixture.h"
#include "shm/heap.h"
#include "shm/limits.h"
#include "shm/place.h"
#include "shm/segment.h"

enum { PAGE = 4096, BYTES = 40 * PAGE, HUGE_BYTES = 3 << 20, ALL_SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

TestSuite(shm, .timeout = 60);

// ---- files of /proc and /sys that say what a test wants ----

FILE *__real_fopen(const char *path, const char *mode);
int __real_madvise(void *start, size_t bytes, int advice);
int __real_memfd_create(const char *name, unsigned flags);
int __real_fstatfs(int fd, struct statfs *about);
long __real_move_pages(int pid, unsigned long count, void **pages, const int *to, int *status, int flags);

static struct {
    const char *path, *text; // NULL: not there
} recorded[4];
static unsigned recorded_count;

static FILE *open_recorded(const char *path, const char *mode) {
    for (unsigned i = 0; i < recorded_count; i++) {
        if (strcmp(recorded[i].path, path) != 0) continue;
        if (!recorded[i].text) return NULL;
        return *recorded[i].text ? fmemopen((void *)(uintptr_t)recorded[i].text, strlen(recorded[i].text), "r")
                                 : __real_fopen("/dev/null", "re");
    }
    return __real_fopen(path, mode);
}

static void record(const char *path, const char *text) {
    if (!recorded_count) farm_faults_replace("fopen", (void (*)(void))open_recorded);
    for (unsigned i = 0; i < recorded_count; i++)
        if (strcmp(recorded[i].path, path) == 0) {
            recorded[i].text = text;
            return;
        }
    cr_assert_lt(recorded_count, sizeof recorded / sizeof *recorded);
    recorded[recorded_count].path = path;
    recorded[recorded_count++].text = text;
}

// ---- a pool of 2 MiB pages: memfd of base pages, which say that they were large ones ----

static int memfd_of_the_pool(const char *name, unsigned flags) {
    return __real_memfd_create(name, flags & ~(unsigned)(MFD_HUGETLB | MFD_HUGE_2MB));
}

static int statfs_of_the_pool(int fd, struct statfs *about) {
    int failed = __real_fstatfs(fd, about);
    about->f_type = HUGETLBFS_MAGIC;
    return failed;
}

static const char pool_free[] = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages",
                  pool_free_on_node[] = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages";

static void play_pool(const char *pages, const char *pages_on_node) {
    farm_faults_replace("memfd_create", (void (*)(void))memfd_of_the_pool);
    farm_faults_replace("fstatfs", (void (*)(void))statfs_of_the_pool);
    record(pool_free, pages);
    record(pool_free_on_node, pages_on_node);
}

// ---- every call fails in turn ----

static void check_nothing_left(const struct farm_sweep *sweep, const struct farm_fault *fault) {
    const char *left = farm_sweep_left(sweep, fault);
    cr_assert_null(left, "%s", left);
}

static bool is(const struct farm_fault *fault, const char *call) {
    return fault->call && strcmp(fault->call, call) == 0;
}

// Whether an operation that met this fault may end so. What is not listed must not matter: it is tolerated.
static bool may_end(const struct farm_fault *fault, enum farm_status status) {
    if (is(fault, "memfd_create"))
        return status == (fault->error == ENOSYS   ? FARM_E_UNSUPPORTED
                          : fault->error == EINVAL ? FARM_E_IO
                                                   : FARM_E_LIMIT);
    if (is(fault, "open")) return status == (fault->error == ENOENT ? FARM_E_IO : FARM_E_LIMIT);
    if (is(fault, "fcntl")) // also a descriptor that no seals can be asked of
        return status == (fault->error == EMFILE ? FARM_E_LIMIT : FARM_E_IO) || status == FARM_E_FORMAT ||
               status == FARM_E_IO;
    if (is(fault, "mmap") || is(fault, "ftruncate"))
        return status == (fault->error == ENOMEM ? FARM_E_LIMIT : FARM_E_IO);
    if (is(fault, "mbind")) // first touch does instead where it may not be called
        return status == (fault->error == EPERM || fault->error == ENOSYS ? FARM_OK : FARM_E_LIMIT);
    if (is(fault, "madvise")) // populating and MADV_DONTFORK; large pages are a wish
        return status == FARM_OK || status == FARM_E_IO || (fault->error == ENOMEM && status == FARM_E_LIMIT);
    if (is(fault, "fstat") || is(fault, "fchmod")) return status == FARM_E_IO;
    if (is(fault, "calloc") || is(fault, "fallocate")) return status == FARM_E_LIMIT;
    return status == FARM_OK;
}

static void check_error(const struct farm_fault *fault, enum farm_status status, const struct farm_error *err) {
    cr_assert(fault->call, "failed undisturbed: %s", err->message);
    cr_assert_eq(err->status, status);
    cr_assert(may_end(fault, status), "call %u, %s with %s: %s, %s", fault->number, fault->call, strerror(fault->error),
              farm_status_name(status), err->message);
    cr_assert_gt(strlen(err->message), 20);
    if (is(fault, "calloc")) return; // no memory is no memory
    cr_assert(err->sys_errno == fault->error || status == FARM_E_FORMAT, "%s: errno %d has become %d: %s", fault->call,
              fault->error, err->sys_errno, err->message);
}

static void check_segment(const struct farm_segment *segment, const struct farm_segment_request *request) {
    cr_assert_eq(fcntl(segment->fd, F_GET_SEALS), ALL_SEALS);
    cr_assert_geq(segment->fd, 3);
    cr_assert_geq(segment->fd_readonly, 3);
    cr_assert_geq(segment->bytes, request->bytes);
    cr_assert_eq(segment->header->magic, FARM_SEGMENT_MAGIC);
    cr_assert_eq(segment->header->bytes, segment->bytes);
    cr_assert_str_eq((const char *)segment->header->user, "shape");
    with_segment view;
    struct farm_error err = {0};
    cr_assert_eq(
        farm_segment_open(fcntl(segment->fd_readonly, F_DUPFD_CLOEXEC, 3), false, FARM_SEGMENT_UP, HASH, &view, &err),
        FARM_OK, "%s", err.message);
    ((uint8_t *)segment->header)[segment->bytes - 1] = 77;
    cr_assert_eq(((volatile uint8_t *)view.header)[segment->bytes - 1], 77);
}

// How many faults there were. `spare`: where the first way of making it fails, there is another one.
static unsigned sweep_create(const struct farm_segment_request *request, bool spare) {
    struct farm_sweep sweep = {0};
    while (farm_sweep_next(&sweep)) {
        struct farm_segment segment;
        struct farm_error err = {0};
        enum farm_status status = farm_segment_create(request, &segment, &err);
        struct farm_fault fault = farm_sweep_end(&sweep);
        if (status) {
            check_error(&fault, status, &err);
            says(err.message, "shared memory 'up' of actor 7: ");
            cr_assert_null(segment.header);
            cr_assert(segment.fd == -1 && segment.fd_readonly == -1);
        } else {
            if (fault.call && !spare)
                cr_assert(may_end(&fault, FARM_OK), "call %u, %s with %s, was not noticed", fault.number, fault.call,
                          strerror(fault.error));
            check_segment(&segment, request);
        }
        farm_segment_close(&segment);
        check_nothing_left(&sweep, &fault);
    }
    return sweep.faults;
}

Test(shm, creating_survives_the_failure_of_every_call) {
    struct farm_segment_request request = request_of(BYTES, -1, false);
    cr_assert_gt(sweep_create(&request, false), 12);
    request.node = 0;
    cr_assert_gt(sweep_create(&request, false), 16);
}

Test(shm, creating_survives_the_failure_of_every_call_where_large_pages_are_wanted) {
    struct farm_segment_request request = request_of(HUGE_BYTES, 0, true);
    cr_assert_gt(sweep_create(&request, false), 18);
    play_pool("8\n", "8\n");
    cr_assert_gt(sweep_create(&request, true), 18);
}

Test(shm, creating_survives_the_failure_of_every_call_where_only_first_touch_is_left) {
    farm_faults_fail("mbind", 1, UINT32_MAX / 2, EPERM);
    struct farm_segment_request request = request_of(BYTES, 0, false);
    cr_assert_gt(sweep_create(&request, false), 16);
    cr_assert_gt(farm_faults_made("mbind"), 16);
}

// Where populating must be done by touching, and each call before it may fail.
Test(shm, creating_survives_the_failure_of_every_call_before_linux_5_14) {
    struct farm_segment_request request = request_of(BYTES, -1, false);
    farm_faults_fail("fallocate", 1, UINT32_MAX / 2, EOPNOTSUPP);
    cr_assert_gt(sweep_create(&request, false), 12);
}

Test(shm, creating_survives_the_failure_of_every_call_where_standard_input_is_closed) {
    struct farm_segment_request request = request_of(BYTES, -1, false);
    int input = fcntl(0, F_DUPFD_CLOEXEC, 100);
    close(0);
    cr_assert_gt(sweep_create(&request, false), 13);
    if (input >= 0) dup2(input, 0), close(input);
}

static unsigned sweep_open(const struct farm_segment *segment, bool writable) {
    struct farm_sweep sweep = {0};
    while (farm_sweep_next(&sweep)) {
        struct farm_segment view;
        struct farm_error err = {0};
        int fd = dup(segment->fd);
        enum farm_status status = farm_segment_open(fd, writable, FARM_SEGMENT_UP, HASH, &view, &err);
        struct farm_fault fault = farm_sweep_end(&sweep);
        if (status) {
            check_error(&fault, status, &err);
            says(err.message, "shared memory handed over as 'up': ");
            cr_assert_null(view.header);
            cr_assert_geq(fcntl(fd, F_GETFD), 0, "%s has failed: the descriptor stays the caller's", fault.call);
            close(fd);
        } else {
            cr_assert(!fault.call || may_end(&fault, FARM_OK), "%s was not noticed", fault.call);
            cr_assert_eq(view.header->owner, 7);
            cr_assert_eq(view.bytes, segment->bytes);
        }
        farm_segment_close(&view);
        check_nothing_left(&sweep, &fault);
    }
    return sweep.faults;
}

Test(shm, opening_survives_the_failure_of_every_call_and_leaves_the_descriptor_alone) {
    with_segment segment = create(request_of(BYTES, -1, false));
    cr_assert_gt(sweep_open(&segment, false), 10);
    cr_assert_gt(sweep_open(&segment, true), 10);
}

Test(shm, checking_limits_survives_the_failure_of_every_call) {
    struct rlimit limit;
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = 128;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    record("/proc/self/limits", "Limit    Soft Limit  Hard Limit  Units\nMax open files  128  1024  files\n");
    struct farm_limits_request request = {.shared_bytes = 1 << 20, .descriptors = 200, .huge = true, .root = "/"};
    struct farm_sweep sweep = {0};
    while (farm_sweep_next(&sweep)) {
        struct farm_error err = {0};
        enum farm_status status = farm_limits_check(&request, &err);
        struct farm_fault fault = farm_sweep_end(&sweep);
        if (status) {
            cr_assert(is(&fault, "getrlimit") || is(&fault, "setrlimit"), "%s: %s", fault.call, err.message);
            cr_assert_eq(status, FARM_E_LIMIT);
            says(err.message, "ulimit -n 200");
        }
        check_nothing_left(&sweep, &fault);
    }
    cr_assert_gt(sweep.faults, 4);
}

// ---- the pool of 2 MiB pages ----

Test(shm, takes_large_pages_from_a_pool_and_hands_them_over_aligned) {
    play_pool("8\n", "8\n");
    with_segment segment = create(request_of(HUGE_BYTES, -1, true));
    cr_assert_eq(segment.pages, FARM_PAGES_HUGE);
    cr_assert_eq(segment.bytes, 4 << 20, "whole pages of the pool");
    cr_assert_eq((uintptr_t)segment.header % FARM_PLACE_HUGE_BYTES, 0);
    cr_assert_str_eq(segment.note, "");
    says(described(&segment), "4.00 MiB in 2 MiB pages, on no node in particular");
    with_segment view = open_segment(dup(segment.fd_readonly), false);
    cr_assert_eq(view.pages, FARM_PAGES_HUGE);
    cr_assert_eq((uintptr_t)view.header % FARM_PLACE_HUGE_BYTES, 0);
}

// A kernel that puts no transparent pages together: older than Linux 6.1, or shmem_enabled is `deny`.
static int madvise_without_collapse(void *start, size_t bytes, int advice) {
    if (advice != 25) return __real_madvise(start, bytes, advice);
    errno = EINVAL;
    return -1;
}

Test(shm, is_never_half_of_one_kind_of_page) {
    play_pool("8\n", "1\n");
    farm_faults_replace("madvise", (void (*)(void))madvise_without_collapse);
    struct farm_segment_request request = request_of(HUGE_BYTES, 0, true);
    with_segment segment = create(request);
    cr_assert_eq(segment.pages, FARM_PAGES_SMALL);
    says(segment.note, "2 MiB pages wanted: 2, free in the pool: 1; raise vm.nr_hugepages");
    farm_segment_close(&segment);
    record(pool_free_on_node, "8\n");
    // Somebody else has taken the pages since the pool was asked: the mapping fails.
    farm_faults_fail("mmap", 2, 1, ENOMEM);
    segment = create(request);
    cr_assert_eq(segment.pages, FARM_PAGES_SMALL);
    says(segment.note, "2 MiB pages wanted: cannot map farm-up-7");
    says(segment.note, "; transparent ones not given");
}

Test(shm, wants_no_large_pages_below_a_mebibyte) {
    play_pool("8\n", "8\n");
    with_segment segment = create(request_of(BYTES, 0, true));
    cr_assert_eq(segment.pages, FARM_PAGES_SMALL);
    cr_assert_str_eq(segment.note, "");
}

// ---- transparent ones ----

static const char shmem_enabled[] = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
static int pmd_mapped_kib;

// What smaps would say of the one segment of this process.
static FILE *open_smaps(const char *path, const char *mode) {
    static char text[2048];
    if (strcmp(path, "/proc/self/smaps") != 0) return __real_fopen(path, mode);
    char line[512];
    FILE *maps = __real_fopen("/proc/self/maps", "re");
    snprintf(text, sizeof text, "1000-2000 r--p 0 00:00 0 other\nShmemPmdMapped: 99999 kB\n");
    while (fgets(line, sizeof line, maps))
        if (strstr(line, "memfd:farm-up"))
            snprintf(text + strlen(text), sizeof text - strlen(text), "%sRss: 5 kB\nShmemPmdMapped: %d kB\n", line,
                     pmd_mapped_kib);
    snprintf(text + strlen(text), sizeof text - strlen(text), "7fffffff0000-7fffffff1000 r--p 0 00:00 0 last\n");
    fclose(maps);
    return fmemopen(text, strlen(text), "r");
}

Test(shm, says_that_the_kernel_gave_transparent_pages_where_it_gave_half_or_more) {
    farm_faults_replace("fopen", (void (*)(void))open_smaps);
    struct farm_segment_request request = request_of(4 << 20, -1, true);
    with_segment view;
    pmd_mapped_kib = 2048;
    with_segment segment = create(request);
    cr_assert_eq(segment.pages, FARM_PAGES_TRANSPARENT);
    cr_assert_str_eq(segment.note, "");
    says(described(&segment), "in transparent 2 MiB pages");
    cr_assert_eq(farm_segment_open(dup(segment.fd), true, FARM_SEGMENT_UP, HASH, &view, NULL), FARM_OK);
    cr_assert_eq((uintptr_t)view.header % FARM_PLACE_HUGE_BYTES, 0, "or they could not be mapped here");
    farm_segment_close(&view);
    farm_segment_close(&segment);
    pmd_mapped_kib = 2047;
    segment = create(request);
    cr_assert_eq(segment.pages, FARM_PAGES_SMALL);
}

Test(shm, a_mapping_that_smaps_does_not_know_has_no_transparent_pages) {
    record("/proc/self/smaps", "1000-2000 r--p 0 00:00 0 other\nShmemPmdMapped: 99999 kB\n");
    cr_assert_eq(farm_place_transparent_bytes((void *)0x5000), 0);
    cr_assert_eq(farm_place_transparent_bytes((void *)0x1000), 99999 * 1024);
    record("/proc/self/smaps", "1000-2000 r--p 0 00:00 0 ours\nRss: 3 kB\n2000-3000 r--p 0 00:00 0 next\n"
                               "ShmemPmdMapped: 99999 kB\n");
    cr_assert_eq(farm_place_transparent_bytes((void *)0x1000), 0, "the next mapping's are not ours");
}

Test(shm, says_how_the_kernel_is_set_where_it_gives_no_transparent_pages) {
    static const struct {
        const char *file, *says;
    } cases[] = {{"always [advise] never\n", "shmem_enabled is advise"},
                 {"always never\n", "shmem_enabled is not there"},
                 {"", "shmem_enabled is not there"},
                 {NULL, "shmem_enabled is not there"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        record(shmem_enabled, cases[i].file);
        record("/proc/self/smaps", NULL);
        with_segment segment = create(request_of(HUGE_BYTES, -1, true));
        says(segment.note, cases[i].says);
    }
}

// ---- where pages lie ----

// Every fourth page lies on another node.
static long move_pages_elsewhere(int pid, unsigned long count, void **pages, const int *to, int *status, int flags) {
    for (unsigned long i = 0; i < count; i++) status[i] = i % 4 == 3;
    return 0;
}

Test(shm, says_how_many_pages_lie_on_another_node) {
    farm_faults_replace("move_pages", (void (*)(void))move_pages_elsewhere);
    with_segment segment = create(request_of(BYTES, 0, false));
    cr_assert_eq(segment.placement, FARM_PLACEMENT_MISPLACED);
    cr_assert_eq(segment.pages_elsewhere, 10);
    says(described(&segment), "NOT all on node 0 (10 pages elsewhere)");
    with_segment view = open_segment(dup(segment.fd), true);
    cr_assert_eq(view.placement, FARM_PLACEMENT_MISPLACED, "whoever opens it can tell");
    says(described(&view), "NOT all on node 0");
}

Test(shm, counts_large_pages_elsewhere_as_many_small_ones) {
    play_pool("8\n", "8\n");
    farm_faults_replace("move_pages", (void (*)(void))move_pages_elsewhere);
    with_segment segment = create(request_of(8 << 20, 0, true));
    cr_assert_eq(segment.pages, FARM_PAGES_HUGE);
    cr_assert_eq(segment.pages_elsewhere, 512, "one of four pages of 2 MiB");
}

Test(shm, says_that_nobody_can_verify_where_nobody_can) {
    farm_faults_fail("mbind", 1, 1, EPERM);
    farm_faults_fail("move_pages", 1, 1, EPERM);
    record("/proc/self/numa_maps", NULL);
    with_segment segment = create(request_of(BYTES, 0, false));
    cr_assert_eq(segment.placement, FARM_PLACEMENT_UNVERIFIED);
    says(described(&segment), "first touched on node 0, which nobody can verify here");
}

Test(shm, reads_numa_maps_line_by_line) {
    static const struct {
        const char *text;
        int node;
        bool asked;
        size_t elsewhere;
    } cases[] = {
        {"5000 default anon=1\n10000 bind:0 file=/memfd dirty=40 N0=30 N1=10 kernelpagesize_kB=4\n", 0, true, 10},
        {"10000 bind:0 file=/memfd dirty=40 N0=30 N1=10 kernelpagesize_kB=4\n", 1, true, 30},
        {"10000 bind:0 file=/memfd dirty=40 N0=30 N1=10 kernelpagesize_kB=4\n", -1, true, 0},
        {"10000 bind:0 file=/memfd N0=1 kernelpagesize_kB=2048\n", 0, true, 0},
        {"10000 bind:0 file=/memfd\n", 0, true, 40},
        {"20000 bind:0 file=/memfd N0=40\n", 0, false, 99}, // not in it
        {"", 0, false, 99},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t elsewhere = 99;
        farm_faults_clear();
        recorded_count = 0;
        farm_faults_fail("move_pages", 1, 9, ENOSYS);
        record("/proc/self/numa_maps", cases[i].text);
        cr_assert_eq(farm_place_verify((void *)0x10000, BYTES, PAGE, cases[i].node, &elsewhere), cases[i].asked, "%s",
                     cases[i].text);
        cr_assert_eq(elsewhere, cases[i].elsewhere, "%zu pages elsewhere: %s", elsewhere, cases[i].text);
    }
}

Test(shm, asks_numa_maps_where_there_is_no_memory_for_the_question) {
    farm_faults_fail("malloc", 2, 1, ENOMEM);
    record("/proc/self/numa_maps", "10000 bind:0 N0=40 kernelpagesize_kB=4\n");
    size_t elsewhere = 99;
    cr_assert(farm_place_verify((void *)0x10000, BYTES, PAGE, 0, &elsewhere));
    cr_assert_eq(elsewhere, 0);
    cr_assert_eq(farm_faults_made("malloc"), 1);
}

Test(shm, touches_first_where_mbind_is_refused_and_the_kernel_lists_no_nodes) {
    farm_faults_fail("mbind", 1, 1, ENOSYS);
    farm_faults_fail("access", 1, 1, ENOENT);
    with_segment segment = create(request_of(BYTES, 0, false));
    cr_assert_eq(farm_faults_made("access"), 1);
    cr_assert_neq(segment.placement, FARM_PLACEMENT_BOUND);
}

Test(shm, says_how_binding_failed) {
    struct farm_error err;
    bool refused;
    farm_faults_fail("mbind", 1, 1, EIO);
    cr_assert_eq(farm_place_bind(NULL, PAGE, 0, true, &refused, &err), FARM_E_IO);
    cr_assert_eq(err.sys_errno, EIO);
    static const int refusals[] = {EPERM, ENOSYS};
    for (int i = 0; i < 2; i++) {
        farm_faults_clear();
        farm_faults_fail("mbind", 1, 1, refusals[i]);
        farm_faults_fail("access", 2, 1, ENOENT); // the node's folder
        cr_assert_eq(farm_place_bind(NULL, PAGE, 0, true, &refused, &err), FARM_E_LIMIT, "no refusal excuses this");
        cr_assert(!refused);
        says(err.message, "NUMA node 0: it has no memory, does not exist");
    }
}

Test(shm, refuses_nodes_that_cannot_be) {
    struct farm_error err;
    bool refused;
    static const int nodes[] = {-1, 1024, INT32_MAX};
    for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++) {
        cr_assert_eq(farm_place_bind(NULL, PAGE, nodes[i], true, &refused, &err), FARM_E_INVALID);
        says(err.message, "is none");
    }
}

// ---- making every page present ----

static bool all_present(const uint8_t *start, size_t bytes) {
    unsigned char present[BYTES / PAGE];
    cr_assert_eq(mincore((void *)(uintptr_t)start, bytes, present), 0);
    for (size_t i = 0; i < bytes / PAGE; i++)
        if (!(present[i] & 1)) return false;
    return true;
}

Test(shm, touches_every_page_before_linux_5_14_and_changes_none) {
    uint8_t *start = farm_place_map(-1, PROT_READ | PROT_WRITE, BYTES, PAGE);
    start[5 * PAGE] = 55;
    farm_faults_fail("madvise", 1, 1, EINVAL);
    cr_assert_eq(farm_place_populate(start, BYTES, -1, -1, NULL), FARM_OK);
    cr_assert(all_present(start, BYTES));
    for (size_t at = 0; at < BYTES; at++) cr_assert_eq(start[at], at == 5 * PAGE ? 55 : 0);
    munmap(start, BYTES);
}

Test(shm, allocates_before_it_touches_so_that_want_of_memory_is_an_error) {
    int fd = memfd_create("test", MFD_CLOEXEC);
    cr_assert_eq(ftruncate(fd, BYTES), 0);
    uint8_t *start = farm_place_map(fd, PROT_READ | PROT_WRITE, BYTES, PAGE);
    struct farm_error err;
    farm_faults_fail("madvise", 1, 3, ENOSYS);
    farm_faults_fail("fallocate", 1, 1, ENOSPC);
    cr_assert_eq(farm_place_populate(start, BYTES, fd, -1, &err), FARM_E_LIMIT);
    cr_assert_eq(err.sys_errno, ENOSPC);
    says(err.message, "cannot get 163840 bytes of memory page by page");
    cr_assert_eq(farm_place_populate(start, BYTES, fd, -1, &err), FARM_OK);
    cr_assert(all_present(start, BYTES));
    farm_faults_clear();
    farm_faults_fail("madvise", 1, 1, ENOSYS);
    farm_faults_fail("fallocate", 1, 1, ENOSYS);
    cr_assert_eq(farm_place_populate(start, BYTES, fd, -1, &err), FARM_OK, "a file system that cannot allocate");
    farm_faults_clear();
    farm_faults_fail("madvise", 1, 1, EHWPOISON);
    cr_assert_eq(farm_place_populate(start, BYTES, fd, -1, &err), FARM_E_LIMIT, "touching would end this process");
    munmap(start, BYTES);
    close(fd);
}

static pid_t pinned, toucher; // threads, 0: none
static struct farm_bitmap pinned_to;

static int note_pinning(pid_t pid, size_t bytes, const cpu_set_t *cpus) {
    pinned = gettid();
    for (int cpu = 0; cpu < (int)bytes * 8; cpu++)
        if (CPU_ISSET_S((size_t)cpu, bytes, cpus)) farm_bitmap_set(&pinned_to, cpu);
    return 0;
}

static int note_touching(void *start, size_t bytes, int advice) {
    toucher = gettid();
    return __real_madvise(start, bytes, advice);
}

static void populate_for_node_0(void) {
    uint8_t *start = farm_place_map(-1, PROT_READ | PROT_WRITE, BYTES, PAGE);
    pinned = toucher = 0;
    pinned_to = (struct farm_bitmap){0};
    farm_faults_replace("madvise", (void (*)(void))note_touching);
    cr_assert_eq(farm_place_populate(start, BYTES, -1, 0, NULL), FARM_OK);
    cr_assert(all_present(start, BYTES));
    munmap(start, BYTES);
}

Test(shm, touches_from_a_thread_on_the_cpus_of_the_node_and_from_here_where_it_has_none) {
    static const struct {
        const char *cpulist, *on; // NULL: from here
    } cases[] = {
        {"0\n", "0"},
        {"0-1,3\n", "0-1,3"},
        {"0,2-2\n", "0,2"},
        {"512-1100,2047,4095\n", "512-1100,2047,4095"},
        {"0,1020-100001\n", NULL},
        {"0,3-\n", NULL},
        {"\n", NULL},
        {"", NULL},
        {NULL, NULL},
        {"none\n", NULL},
        {"5-4\n", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[64];
        farm_faults_clear();
        recorded_count = 0;
        farm_faults_replace("sched_setaffinity", (void (*)(void))note_pinning);
        record("/sys/devices/system/node/node0/cpulist", cases[i].cpulist);
        populate_for_node_0();
        cr_assert_str_eq(farm_bitmap_format(&pinned_to, text, sizeof text), cases[i].on ? cases[i].on : "", "'%s'",
                         cases[i].cpulist);
        cr_assert_eq(toucher, cases[i].on ? pinned : getpid(), "'%s'", cases[i].cpulist);
        cr_assert_neq(pinned, getpid(), "the thread that asks stays where it is");
    }
}

Test(shm, reads_the_longest_list_of_cpus) {
    static char list[5 * FARM_BITMAP_BITS];
    size_t used = 0;
    for (int cpu = 0; cpu < FARM_BITMAP_BITS; cpu += 2)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%d", cpu ? "," : "", cpu);
    snprintf(list + used, sizeof list - used, "\n");
    farm_faults_replace("sched_setaffinity", (void (*)(void))note_pinning);
    record("/sys/devices/system/node/node0/cpulist", list);
    populate_for_node_0();
    cr_assert_eq(farm_bitmap_count(&pinned_to), FARM_BITMAP_BITS / 2);
    cr_assert(farm_bitmap_has(&pinned_to, FARM_BITMAP_BITS - 2));
}

Test(shm, touches_from_here_where_no_thread_gets_there) {
    static const char *const calls[] = {"pthread_create", "sched_setaffinity"};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        farm_faults_clear();
        recorded_count = 0;
        record("/sys/devices/system/node/node0/cpulist", "0\n");
        farm_faults_fail(calls[i], 1, 1, EAGAIN);
        populate_for_node_0();
        cr_assert_eq(farm_faults_made(calls[i]), 1);
        cr_assert_eq(toucher, getpid(), "%s has failed: a thread would run anywhere", calls[i]);
    }
}

// ---- hostile headers ----

Test(shm, believes_no_absurd_kind_of_pages_or_placement) {
    with_segment segment = create(request_of(BYTES, 0, false));
    segment.header->pages = 4000000000u;
    segment.header->placement = 77;
    with_segment view = open_segment(dup(segment.fd), false);
    cr_assert_eq(view.pages, FARM_PAGES_SMALL);
    cr_assert_eq(view.placement, FARM_PLACEMENT_UNVERIFIED);
    segment.header->kind = 12345;
    says(described(&view), "'segment' of actor 7");
}

Test(shm, opening_unread_believes_the_kernel_alone) {
    struct farm_segment_request request = request_of(BYTES, -1, false);
    request.user_bytes = 0;
    with_segment segment = create(request), view;
    struct farm_error err;
    memset(segment.header, 0xee, segment.bytes);
    cr_assert_eq(farm_segment_open_unread(segment.fd, false, FARM_SEGMENT_UP, BYTES + 1, &view, &err), FARM_E_FORMAT);
    says(err.message, "segment of 163840 bytes is smaller than its layout, 163841 bytes");
    cr_assert_null(view.header);
    int fd = dup(segment.fd);
    cr_assert_eq(farm_segment_open_unread(fd, false, FARM_SEGMENT_UP, BYTES, &view, &err), FARM_OK);
    cr_assert_eq(view.bytes, BYTES);
    cr_assert_eq(view.placement, FARM_PLACEMENT_UNVERIFIED);
}

// ---- heaps, and jemalloc's part ----

struct hooks {
    void *(*alloc)(struct hooks *hooks, void *wanted, size_t bytes, size_t align, bool *zero, bool *commit,
                   unsigned arena);
    bool (*dalloc)(struct hooks *hooks, void *start, size_t bytes, bool committed, unsigned arena);
    void (*destroy)(struct hooks *hooks, void *start, size_t bytes, bool committed, unsigned arena);
    void *commit, *decommit, *purge_lazy, *purge_forced;
    bool (*split)(struct hooks *hooks, void *start, size_t bytes, size_t first, size_t second, bool committed,
                  unsigned arena);
    bool (*merge)(struct hooks *hooks, void *first, size_t first_bytes, void *second, size_t second_bytes,
                  bool committed, unsigned arena);
};

// One arena, number 5, in which each block is an extent of its own.
static struct hooks *arena;
static int refusal;

int mallctl(const char *name, void *old, size_t *old_bytes, void *new_value, size_t new_bytes);
void *mallocx(size_t bytes, int flags);
void sdallocx(void *block, size_t bytes, int flags);

int mallctl(const char *name, void *old, size_t *old_bytes, void *new_value, size_t new_bytes) {
    if (refusal) return refusal;
    if (strcmp(name, "arenas.create") == 0) {
        memcpy(&arena, new_value, sizeof arena);
        memcpy(old, &(unsigned){5}, sizeof(unsigned));
        return 0;
    }
    arena = NULL;
    return strcmp(name, "arena.5.destroy") == 0 ? 0 : EFAULT;
}

void *mallocx(size_t bytes, int flags) {
    bool zero = false, commit = false;
    cr_assert_eq(flags >> 20, 6, "MALLOCX_ARENA(5)");
    cr_assert_eq(flags >> 8 & 0xfff, 1, "MALLOCX_TCACHE_NONE");
    void *block = arena->alloc(arena, NULL, bytes, (size_t)1 << (flags & 63), &zero, &commit, 5);
    cr_assert(!block || (zero && commit));
    return block;
}

void sdallocx(void *block, size_t bytes, int flags) {
    cr_assert(!arena->dalloc(arena, block, bytes, true, 5));
}

Test(shm, heaps_survive_the_failure_of_every_call) {
    struct farm_sweep sweep = {0};
    while (farm_sweep_next(&sweep)) {
        struct farm_heap *heap;
        struct farm_error err = {0};
        enum farm_status status = farm_heap_open(0, &heap, &err);
        void *block = status ? NULL : farm_heap_alloc(heap, BYTES, 1 << 16);
        struct farm_fault fault = farm_sweep_end(&sweep);
        if (status) {
            cr_assert_null(heap);
            cr_assert(is(&fault, "mmap") || is(&fault, "mbind") || is(&fault, "calloc"), "%s", err.message);
            cr_assert_eq(status, FARM_E_LIMIT, "%s: %s", fault.call, err.message);
        }
        if (block) {
            memset(block, 1, BYTES);
            cr_assert_eq((uintptr_t)block % (1 << 16), 0);
        } else {
            cr_assert(status || is(&fault, "mmap"), "no memory, for %s failed", fault.call);
        }
        if (!status) farm_heap_free(heap, block, BYTES, 1 << 16);
        farm_heap_close(heap);
        check_nothing_left(&sweep, &fault);
    }
    cr_assert_gt(sweep.faults, 6);
}

Test(shm, says_that_jemalloc_gives_no_arena) {
    struct farm_heap *heap;
    struct farm_error err;
    refusal = EAGAIN;
    cr_assert_eq(farm_heap_open(-1, &heap, &err), FARM_E_LIMIT);
    cr_assert_null(heap);
    says(err.message, "jemalloc gives no arena for node -1: Resource temporarily unavailable");
}

Test(shm, a_heap_that_may_not_bind_says_so_and_gives_memory_all_the_same) {
    struct farm_heap *heap;
    farm_faults_fail("mbind", 1, 1, EPERM);
    cr_assert_eq(farm_heap_open(0, &heap, NULL), FARM_OK);
    cr_assert(!farm_heap_is_bound(heap));
    void *block = farm_heap_alloc(heap, BYTES, 64);
    cr_assert_not_null(block);
    farm_heap_free(heap, block, BYTES, 64);
    farm_heap_close(heap);
}

Test(shm, extents_do_as_jemalloc_asks) {
    struct farm_heap *heap;
    bool zero = false, commit = false;
    cr_assert_eq(farm_heap_open(-1, &heap, NULL), FARM_OK);
    cr_assert(!farm_heap_is_bound(heap));
    cr_assert_null(arena->alloc(arena, (void *)(1 << 20), PAGE, PAGE, &zero, &commit, 5), "growing in place");
    uint8_t *start = arena->alloc(arena, NULL, 4 * PAGE, PAGE, &zero, &commit, 5);
    cr_assert(start && zero && commit);
    cr_assert(!arena->split(arena, start, 4 * PAGE, PAGE, 3 * PAGE, true, 5), "false: it is done");
    cr_assert(!arena->dalloc(arena, start, PAGE, true, 5), "the first of the two is given back alone");
    start[PAGE] = 1;
    cr_assert(!arena->merge(arena, start + PAGE, PAGE, start + 2 * PAGE, 2 * PAGE, true, 5));
    arena->destroy(arena, start + PAGE, 3 * PAGE, true, 5);
    unsigned char present;
    cr_assert_eq(mincore(start + PAGE, PAGE, &present), -1, "unmapped");
    farm_heap_close(heap);
}
