// Segments, their placement and heaps on a machine that refuses: each call fails in turn, and other machines are
// emulated (a pool of 2 MiB pages, pages on the wrong node, older kernels). A few lines at the end emulate jemalloc.
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/memfd.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "../support/sweep.h"
#include "base/bitmap.h"
#include "fixture.h"
#include "shm/heap.h"
#include "shm/limits.h"
#include "shm/place.h"
#include "shm/segment.h"

enum { PAGE = 4096, BYTES = 40 * PAGE, HUGE_BYTES = 3 << 20, ALL_SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

TestSuite(shm, .timeout = 60);

// ---- files of /proc and /sys with a text that the test gives ----

FILE *__real_fopen(const char *path, const char *mode);
int __real_madvise(void *start, size_t bytes, int advice);
int __real_memfd_create(const char *name, unsigned flags);
int __real_fstatfs(int fd, struct statfs *about);
long __real_move_pages(int pid, unsigned long count, void **pages, const int *to, int *status, int flags);

static struct {
    const char *path, *text; // NULL: no such file
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

// Removes the rules and the recorded files of a case before the next one.
static void clear_machine(void) {
    farm_faults_clear();
    recorded_count = 0;
}

// ---- a pool of 2 MiB pages: memfds of base pages whose file system calls itself hugetlbfs ----

static int memfd_create_small(const char *name, unsigned flags) {
    return __real_memfd_create(name, flags & ~(unsigned)(MFD_HUGETLB | MFD_HUGE_2MB));
}

static int fstatfs_huge(int fd, struct statfs *about) {
    int failed = __real_fstatfs(fd, about);
    about->f_type = HUGETLBFS_MAGIC;
    return failed;
}

static const char pool_free[] = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages",
                  pool_free_on_node[] = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages";

static void emulate_pool(const char *pages, const char *pages_on_node) {
    farm_faults_replace("memfd_create", (void (*)(void))memfd_create_small);
    farm_faults_replace("fstatfs", (void (*)(void))fstatfs_huge);
    record(pool_free, pages);
    record(pool_free_on_node, pages_on_node);
}

// ---- every call fails in turn ----

struct segment_trial {
    struct farm_segment_request request;
    const struct farm_segment *made; // NULL: the trial creates; else it opens a copy of this segment's descriptor
    bool writable;
    int fd;
    struct farm_segment segment;
};

static enum farm_status create_segment(void *context, struct farm_error *err) {
    struct segment_trial *trial = context;
    return farm_segment_create(&trial->request, &trial->segment, err);
}

static void check_created(const struct segment_trial *trial) {
    const struct farm_segment *segment = &trial->segment;
    cr_assert_eq(fcntl(segment->fd, F_GET_SEALS), ALL_SEALS);
    cr_assert(fcntl(segment->fd, F_GETFD) & fcntl(segment->fd_readonly, F_GETFD) & FD_CLOEXEC);
    cr_assert_geq(segment->fd, 3);
    cr_assert_geq(segment->fd_readonly, 3);
    cr_assert_geq(segment->bytes, trial->request.bytes);
    cr_assert_eq(segment->header->magic, FARM_SEGMENT_MAGIC);
    cr_assert_eq(segment->header->bytes, segment->bytes);
    cr_assert_str_eq((const char *)segment->header->user, "shape");
    with_segment view = open_segment(fcntl(segment->fd_readonly, F_DUPFD_CLOEXEC, 3), false);
    ((uint8_t *)segment->header)[segment->bytes - 1] = 77;
    cr_assert_eq(((volatile uint8_t *)view.header)[segment->bytes - 1], 77);
}

static void finish_created(void *context, enum farm_status status, const struct farm_fault *fault,
                           const struct farm_error *err) {
    struct segment_trial *trial = context;
    if (status) {
        expect_text(err->message, "shared memory 'up' of actor 7: ");
        if (fault->error == EMFILE && !fault_is(fault, "fcntl")) expect_text(err->message, "ulimit -n");
        cr_assert(!trial->segment.header && trial->segment.fd == -1 && trial->segment.fd_readonly == -1);
    } else {
        check_created(trial);
    }
    farm_segment_close(&trial->segment);
}

static void sweep_create(size_t bytes, int node, bool huge, bool has_spare, unsigned faults_min) {
    const struct farm_trial trial = {create_segment, finish_created, segment_outcomes, has_spare};
    struct segment_trial context = {.request = request_of(bytes, node, huge)};
    context.request.later = bytes >= FARM_SEGMENT_LATER_BYTES;
    cr_assert_gt(sweep_calls(&trial, &context), faults_min);
}

Test(shm, creating_survives_the_failure_of_every_call) {
    sweep_create(BYTES, -1, false, false, 12);
    sweep_create(BYTES, 0, false, false, 16);
    sweep_create(FARM_SEGMENT_LATER_BYTES, 0, false, false, 17);
    const int input = fcntl(0, F_DUPFD_CLOEXEC, 100);
    close(0); // descriptors are moved above the standard three
    sweep_create(BYTES, -1, false, false, 13);
    if (input >= 0) dup2(input, 0), close(input);
}

Test(shm, creating_survives_the_failure_of_every_call_with_large_pages) {
    sweep_create(HUGE_BYTES, 0, true, false, 18);
    emulate_pool("8\n", "8\n");
    sweep_create(HUGE_BYTES, 0, true, true, 18);
}

Test(shm, creating_survives_the_failure_of_every_call_on_kernels_that_refuse_others) {
    farm_faults_fail("mbind", 1, UINT32_MAX / 2, EPERM); // first touch decides
    sweep_create(BYTES, 0, false, false, 16);
    cr_assert_gt(farm_faults_made("mbind"), 16);
    clear_machine();
    farm_faults_fail("fallocate", 1, UINT32_MAX / 2, EOPNOTSUPP); // before Linux 5.14 pages are touched
    sweep_create(BYTES, -1, false, false, 12);
}

static enum farm_status open_made(void *context, struct farm_error *err) {
    struct segment_trial *trial = context;
    trial->fd = dup(trial->made->fd);
    return farm_segment_open(trial->fd, trial->writable, FARM_SEGMENT_UP, HASH, &trial->segment, err);
}

static void finish_opened(void *context, enum farm_status status, const struct farm_fault *fault,
                          const struct farm_error *err) {
    struct segment_trial *trial = context;
    if (status) {
        expect_text(err->message, "shared memory handed over as 'up': ");
        cr_assert_null(trial->segment.header);
        cr_assert_eq(close(trial->fd), 0, "%s failed: the descriptor still belongs to the caller", fault->call);
    } else {
        cr_assert_eq(trial->segment.header->owner, 7);
        cr_assert_eq(trial->segment.bytes, trial->made->bytes);
    }
    farm_segment_close(&trial->segment);
}

Test(shm, opening_survives_the_failure_of_every_call_and_leaves_the_descriptor_alone) {
    with_segment made = create(request_of(BYTES, -1, false));
    const struct farm_trial trial = {open_made, finish_opened, segment_outcomes, false};
    for (int writable = 0; writable < 2; writable++)
        cr_assert_gt(sweep_calls(&trial, &(struct segment_trial){.made = &made, .writable = writable}), 10);
}

static enum farm_status check_limits(void *context, struct farm_error *err) {
    return farm_limits_check(context, err);
}

static void finish_limits(void *context, enum farm_status status, const struct farm_fault *fault,
                          const struct farm_error *err) {
    if (status) expect_text(err->message, "ulimit -n 200");
}

Test(shm, checking_limits_survives_the_failure_of_every_call) {
    static const struct farm_outcome outcomes[] = {{"getrlimit", 0, ENDS_OK | ENDS_LIMIT | NO_ERRNO},
                                                   {"setrlimit", 0, ENDS_OK | ENDS_LIMIT | NO_ERRNO},
                                                   {NULL, 0, 0}};
    const struct farm_trial trial = {check_limits, finish_limits, outcomes, false};
    struct rlimit limit;
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = 128;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    record("/proc/self/limits", "Limit    Soft Limit  Hard Limit  Units\nMax open files  128  1024  files\n");
    struct farm_limits_request request = {.shared_bytes = 1 << 20, .descriptors = 200, .huge = true, .root = "/"};
    cr_assert_gt(sweep_calls(&trial, &request), 4);
}

// ---- the pool of 2 MiB pages ----

Test(shm, takes_large_pages_from_a_pool_and_hands_them_over_aligned) {
    emulate_pool("8\n", "8\n");
    with_segment segment = create(request_of(HUGE_BYTES, -1, true));
    cr_assert_eq(segment.pages, FARM_PAGES_HUGE);
    cr_assert_eq(segment.bytes, 4 << 20, "whole pages of the pool");
    cr_assert_eq((uintptr_t)segment.header % FARM_PLACE_HUGE_BYTES, 0);
    cr_assert_str_eq(segment.note, "");
    expect_text(described(&segment), "4.00 MiB in 2 MiB pages, on no node in particular");
    with_segment view = open_segment(dup(segment.fd_readonly), false);
    cr_assert_eq(view.pages, FARM_PAGES_HUGE);
    cr_assert_eq((uintptr_t)view.header % FARM_PLACE_HUGE_BYTES, 0);
    with_segment small = create(request_of(BYTES, 0, true));
    cr_assert(small.pages == FARM_PAGES_SMALL && !small.note[0], "below a MiB no large pages are requested");
}

// A kernel that makes no transparent pages: older than Linux 6.1, or shmem_enabled is `deny`.
static int madvise_without_collapse(void *start, size_t bytes, int advice) {
    if (advice != 25) return __real_madvise(start, bytes, advice);
    errno = EINVAL;
    return -1;
}

Test(shm, a_segment_never_mixes_two_kinds_of_page) {
    emulate_pool("8\n", "1\n");
    farm_faults_replace("madvise", (void (*)(void))madvise_without_collapse);
    struct farm_segment_request request = request_of(HUGE_BYTES, 0, true);
    with_segment segment = create(request);
    cr_assert_eq(segment.pages, FARM_PAGES_SMALL);
    expect_text(segment.note, "2 MiB pages wanted: 2, free in the pool: 1; raise vm.nr_hugepages");
    farm_segment_close(&segment);
    record(pool_free_on_node, "8\n");
    farm_faults_fail("mmap", 2, 1, ENOMEM); // another process took the pages after the pool was read
    segment = create(request);
    cr_assert_eq(segment.pages, FARM_PAGES_SMALL);
    expect_text(segment.note, "2 MiB pages wanted: cannot map farm-up-7");
    expect_text(segment.note, "; transparent ones not given");
}

// ---- transparent pages ----

static int pmd_mapped_kib;

// smaps in which the one segment of this process has `pmd_mapped_kib` in transparent pages.
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

Test(shm, half_a_segment_in_transparent_pages_counts_as_transparent) {
    farm_faults_replace("fopen", (void (*)(void))open_smaps);
    farm_faults_replace("madvise", (void (*)(void))madvise_without_collapse); // a complete collapse reads no smaps
    struct farm_segment_request request = request_of(4 << 20, -1, true);
    pmd_mapped_kib = 2048;
    with_segment segment = create(request);
    cr_assert_eq(segment.pages, FARM_PAGES_TRANSPARENT);
    cr_assert_str_eq(segment.note, "");
    expect_text(described(&segment), "in transparent 2 MiB pages");
    with_segment view = open_segment(dup(segment.fd), true);
    cr_assert_eq((uintptr_t)view.header % FARM_PLACE_HUGE_BYTES, 0, "needed for large mappings");
    farm_segment_close(&view);
    farm_segment_close(&segment);
    pmd_mapped_kib = 2047;
    segment = create(request);
    cr_assert_eq(segment.pages, FARM_PAGES_SMALL);
}

Test(shm, transparent_bytes_are_those_of_the_mapping_alone) {
    record("/proc/self/smaps", "1000-2000 r--p 0 00:00 0 other\nShmemPmdMapped: 99999 kB\n");
    cr_assert_eq(farm_place_transparent_bytes((void *)0x5000), 0);
    cr_assert_eq(farm_place_transparent_bytes((void *)0x1000), 99999 * 1024);
    record("/proc/self/smaps", "1000-2000 r--p 0 00:00 0 ours\nRss: 3 kB\n2000-3000 r--p 0 00:00 0 next\n"
                               "ShmemPmdMapped: 99999 kB\n");
    cr_assert_eq(farm_place_transparent_bytes((void *)0x1000), 0);
}

Test(shm, names_the_kernels_setting_when_transparent_pages_are_missing) {
    static const char *const cases[][2] = {{"always [advise] never\n", "shmem_enabled is advise"},
                                           {"always never\n", "shmem_enabled is unsupported"},
                                           {"", "shmem_enabled is unsupported"},
                                           {NULL, "shmem_enabled is unsupported"}};
    farm_faults_replace("madvise", (void (*)(void))madvise_without_collapse);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        record("/sys/kernel/mm/transparent_hugepage/shmem_enabled", cases[i][0]);
        record("/proc/self/smaps", NULL);
        with_segment segment = create(request_of(HUGE_BYTES, -1, true));
        expect_text(segment.note, cases[i][1]);
    }
}

// ---- where pages lie ----

// Every fourth page lies on another node.
static long move_pages_elsewhere(int pid, unsigned long count, void **pages, const int *to, int *status, int flags) {
    for (unsigned long i = 0; i < count; i++) status[i] = i % 4 == 3;
    return 0;
}

Test(shm, counts_the_pages_on_another_node) {
    farm_faults_replace("move_pages", (void (*)(void))move_pages_elsewhere);
    with_segment segment = create(request_of(BYTES, 0, false));
    cr_assert_eq(segment.placement, FARM_PLACEMENT_MISPLACED);
    cr_assert_eq(segment.pages_elsewhere, 10);
    expect_text(described(&segment), "NOT all on node 0 (10 pages elsewhere)");
    with_segment view = open_segment(dup(segment.fd), true);
    cr_assert_eq(view.placement, FARM_PLACEMENT_MISPLACED, "a receiver reads it in the header");
    expect_text(described(&view), "NOT all on node 0");
    emulate_pool("8\n", "8\n");
    with_segment huge = create(request_of(8 << 20, 0, true));
    cr_assert_eq(huge.pages, FARM_PAGES_HUGE);
    cr_assert_eq(huge.pages_elsewhere, 512, "one of four pages of 2 MiB, in pages of 4 KiB");
}

Test(shm, placement_follows_from_what_the_kernel_allows) {
    struct farm_segment_request request = request_of(BYTES, 0, false);
    farm_faults_fail("mbind", 1, 9, EPERM);
    with_segment touched = create(request);
    cr_assert_eq(touched.placement, FARM_PLACEMENT_FIRST_TOUCH);
    expect_text(described(&touched), "first touched on node 0");
    farm_faults_fail("move_pages", 1, 9, EPERM);
    if (access("/proc/self/numa_maps", R_OK) == 0) { // this kernel's own text
        with_segment counted = create(request);
        size_t elsewhere = 99;
        cr_assert_eq(counted.placement, FARM_PLACEMENT_FIRST_TOUCH);
        cr_assert(farm_place_verify(counted.header, counted.bytes, PAGE, 1, &elsewhere));
        cr_assert_eq(elsewhere, counted.bytes / PAGE);
    }
    record("/proc/self/numa_maps", NULL);
    with_segment segment = create(request);
    cr_assert_eq(segment.placement, FARM_PLACEMENT_UNVERIFIED);
    expect_text(described(&segment), "first touched on node 0 (cannot be verified here)");
    farm_faults_fail("access", 1, 1, ENOENT); // the kernel lists no nodes
    with_segment unlisted = create(request);
    cr_assert_eq(farm_faults_made("access"), 1);
    cr_assert_eq(unlisted.placement, FARM_PLACEMENT_UNVERIFIED);
}

Test(shm, reads_numa_maps_line_by_line) {
    static const struct {
        const char *text, *refused; // the call that fails, so that numa_maps is read
        int node;
        bool found;
        size_t elsewhere;
    } cases[] = {
        {"5000 default anon=1\n10000 bind:0 dirty=40 N0=30 N1=10 kernelpagesize_kB=4\n", "move_pages", 0, true, 10},
        {"10000 bind:0 file=/memfd dirty=40 N0=30 N1=10 kernelpagesize_kB=4\n", "move_pages", 1, true, 30},
        {"10000 bind:0 file=/memfd dirty=40 N0=30 N1=10 kernelpagesize_kB=4\n", "move_pages", -1, true, 0},
        {"10000 bind:0 file=/memfd N0=1 kernelpagesize_kB=2048\n", "move_pages", 0, true, 0},
        {"10000 bind:0 file=/memfd\n", "move_pages", 0, true, 40},
        {"20000 bind:0 file=/memfd N0=40\n", "move_pages", 0, false, 99},
        {"", "move_pages", 0, false, 99},
        {"10000 bind:0 N0=40 kernelpagesize_kB=4\n", "malloc", 0, true, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t elsewhere = 99;
        clear_machine();
        farm_faults_fail(cases[i].refused, 2 - (cases[i].refused[1] == 'o'), 1, ENOSYS);
        record("/proc/self/numa_maps", cases[i].text);
        cr_assert_eq(farm_place_verify((void *)0x10000, BYTES, PAGE, cases[i].node, &elsewhere), cases[i].found, "%s",
                     cases[i].text);
        cr_assert_eq(elsewhere, cases[i].elsewhere, "%zu pages elsewhere: %s", elsewhere, cases[i].text);
        cr_assert_eq(farm_faults_made(cases[i].refused), 1);
    }
}

Test(shm, a_node_that_cannot_be_bound_is_named) {
    static const struct {
        int node, error; // mbind's; 0: it is not called
        enum farm_status status;
        const char *says;
    } cases[] = {
        {0, EIO, FARM_E_IO, "NUMA node 0"},
        {0, EPERM, FARM_E_LIMIT, "NUMA node 0: it has no memory, does not exist"},
        {0, ENOSYS, FARM_E_LIMIT, "NUMA node 0: it has no memory, does not exist"},
        {-1, 0, FARM_E_INVALID, "NUMA node -1 does not exist"},
        {1024, 0, FARM_E_INVALID, "NUMA node 1024 does not exist"},
        {INT32_MAX, 0, FARM_E_INVALID, "does not exist"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct farm_error err = {0};
        bool refused = true;
        farm_faults_clear();
        farm_faults_fail("mbind", 1, 1, cases[i].error ? cases[i].error : EIO);
        farm_faults_fail("access", 2, 1, ENOENT); // the node's folder: no refusal excuses a missing node
        cr_assert_eq(farm_place_bind(NULL, PAGE, cases[i].node, true, &refused, &err), cases[i].status);
        cr_assert(!refused && err.sys_errno == cases[i].error);
        expect_text(err.message, cases[i].says);
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

Test(shm, allocates_before_it_touches_so_that_a_lack_of_memory_is_an_error) {
    static const struct {
        int advice_error, allocation_error; // 0: succeeds
        enum farm_status status;
    } cases[] = {{ENOSYS, ENOSPC, FARM_E_LIMIT},
                 {ENOSYS, 0, FARM_OK},
                 {ENOSYS, ENOSYS, FARM_OK},     // the file system cannot allocate
                 {EHWPOISON, 0, FARM_E_LIMIT}}; // touching would end this process
    int fd = memfd_create("test", MFD_CLOEXEC);
    cr_assert_eq(ftruncate(fd, BYTES), 0);
    uint8_t *start = farm_place_map(fd, PROT_READ | PROT_WRITE, BYTES, PAGE);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct farm_error err = {0};
        farm_faults_clear();
        farm_faults_fail("madvise", 1, 1, cases[i].advice_error);
        if (cases[i].allocation_error) farm_faults_fail("fallocate", 1, 1, cases[i].allocation_error);
        cr_assert_eq(farm_place_populate(start, BYTES, fd, -1, &err), cases[i].status, "case %zu", i);
        if (cases[i].status) expect_text(err.message, "cannot get 163840 bytes of memory page by page");
        if (i == 0) cr_assert_eq(err.sys_errno, ENOSPC);
        if (!cases[i].status) cr_assert(all_present(start, BYTES));
    }
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

// Populates memory for node 0, which has these CPUs. `refused`: a call that fails; NULL: none does.
static void populate_for_node_0(const char *cpulist, const char *refused) {
    uint8_t *start = farm_place_map(-1, PROT_READ | PROT_WRITE, BYTES, PAGE);
    clear_machine();
    pinned = toucher = 0;
    pinned_to = (struct farm_bitmap){0};
    record("/sys/devices/system/node/node0/cpulist", cpulist);
    farm_faults_replace("madvise", (void (*)(void))note_touching);
    if (refused)
        farm_faults_fail(refused, 1, 1, EAGAIN);
    else
        farm_faults_replace("sched_setaffinity", (void (*)(void))note_pinning);
    cr_assert_eq(farm_place_populate(start, BYTES, -1, 0, NULL), FARM_OK);
    cr_assert(all_present(start, BYTES));
    if (refused) cr_assert_eq(farm_faults_made(refused), 1);
    munmap(start, BYTES);
}

Test(shm, touches_from_a_thread_on_the_nodes_cpus_and_from_this_one_if_there_are_none) {
    static const struct {
        const char *cpulist, *on; // NULL: the calling thread touches
    } cases[] = {
        {"0\n", "0"},     {"0-1,3\n", "0-1,3"}, {"0,2-2\n", "0,2"}, {"512-1100,2047,4095\n", "512-1100,2047,4095"},
        {"0,3-\n", NULL}, {"\n", NULL},         {"", NULL},         {"0,1020-100001\n", NULL},
        {NULL, NULL},     {"none\n", NULL},     {"5-4\n", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[64];
        populate_for_node_0(cases[i].cpulist, NULL);
        cr_assert_str_eq(farm_bitmap_format(&pinned_to, text, sizeof text), cases[i].on ? cases[i].on : "", "'%s'",
                         cases[i].cpulist);
        cr_assert_eq(toucher, cases[i].on ? pinned : getpid(), "'%s'", cases[i].cpulist);
        cr_assert_neq(pinned, getpid(), "the calling thread is not moved");
    }
    static const char *const refused[] = {"pthread_create", "sched_setaffinity"};
    for (size_t i = 0; i < 2; i++) {
        populate_for_node_0("0\n", refused[i]);
        cr_assert_eq(toucher, getpid(), "%s failed: the thread would run on any CPU", refused[i]);
    }
}

Test(shm, reads_the_longest_list_of_cpus) {
    static char list[5 * FARM_BITMAP_BITS];
    size_t used = 0;
    for (int cpu = 0; cpu < FARM_BITMAP_BITS; cpu += 2)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%d", cpu ? "," : "", cpu);
    populate_for_node_0(list, NULL);
    cr_assert_eq(farm_bitmap_count(&pinned_to), FARM_BITMAP_BITS / 2);
    cr_assert(farm_bitmap_has(&pinned_to, FARM_BITMAP_BITS - 2));
}

// ---- hostile headers ----

Test(shm, unknown_kinds_of_pages_and_placement_are_ignored) {
    with_segment segment = create(request_of(BYTES, 0, false));
    segment.header->pages = 4000000000u;
    segment.header->placement = 77;
    with_segment view = open_segment(dup(segment.fd), false);
    cr_assert_eq(view.pages, FARM_PAGES_SMALL);
    cr_assert_eq(view.placement, FARM_PLACEMENT_UNVERIFIED);
    segment.header->kind = 12345;
    expect_text(described(&view), "'segment' of actor 7");
}

Test(shm, opening_unread_relies_on_the_kernel_alone) {
    struct farm_segment_request request = request_of(BYTES, -1, false);
    request.user_bytes = 0;
    with_segment segment = create(request), view;
    struct farm_error err;
    memset(segment.header, 0xee, segment.bytes);
    cr_assert_eq(farm_segment_open_unread(segment.fd, false, FARM_SEGMENT_UP, BYTES + 1, &view, &err), FARM_E_FORMAT);
    expect_text(err.message, "segment of 163840 bytes is smaller than its layout, 163841 bytes");
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

struct heap_trial {
    struct farm_heap *heap;
    void *block;
};

static enum farm_status open_heap(void *context, struct farm_error *err) {
    struct heap_trial *trial = context;
    const enum farm_status status = farm_heap_open(0, &trial->heap, err);
    trial->block = status ? NULL : farm_heap_alloc(trial->heap, BYTES, 1 << 16);
    return status;
}

static void finish_heap(void *context, enum farm_status status, const struct farm_fault *fault,
                        const struct farm_error *err) {
    struct heap_trial *trial = context;
    cr_assert_eq(trial->heap == NULL, status != FARM_OK);
    cr_assert(trial->block || status || fault_is(fault, "mmap"), "no block although only %s failed", fault->call);
    cr_assert_eq((uintptr_t)trial->block % (1 << 16), 0);
    if (trial->block) memset(trial->block, 1, BYTES);
    if (!status) farm_heap_free(trial->heap, trial->block, BYTES, 1 << 16);
    farm_heap_close(trial->heap);
}

Test(shm, heaps_survive_the_failure_of_every_call) {
    static const struct farm_outcome outcomes[] = {{"mmap", 0, ENDS_OK | ENDS_LIMIT},
                                                   {"mbind", 0, ENDS_OK | ENDS_LIMIT},
                                                   {"calloc", 0, ENDS_LIMIT | NO_ERRNO},
                                                   {NULL, 0, 0}};
    const struct farm_trial trial = {open_heap, finish_heap, outcomes, false};
    struct heap_trial context;
    cr_assert_gt(sweep_calls(&trial, &context), 6);
    struct farm_error err;
    farm_faults_fail("mbind", 1, 1, EPERM);
    cr_assert_eq(farm_heap_open(0, &context.heap, &err), FARM_OK);
    cr_assert_not(farm_heap_is_bound(context.heap), "but it gives memory");
    farm_heap_close(context.heap);
    refusal = EAGAIN;
    cr_assert_eq(farm_heap_open(-1, &context.heap, &err), FARM_E_LIMIT);
    cr_assert_null(context.heap);
    expect_text(err.message, "jemalloc gives no arena for node -1: Resource temporarily unavailable");
}

Test(shm, extents_are_mapped_split_and_merged_for_jemalloc) {
    struct farm_heap *heap;
    bool zero = false, commit = false;
    cr_assert_eq(farm_heap_open(-1, &heap, NULL), FARM_OK);
    cr_assert(!farm_heap_is_bound(heap));
    cr_assert_null(arena->alloc(arena, (void *)(1 << 20), PAGE, PAGE, &zero, &commit, 5), "growing in place");
    uint8_t *start = arena->alloc(arena, NULL, 4 * PAGE, PAGE, &zero, &commit, 5);
    cr_assert(start && zero && commit);
    cr_assert(!arena->split(arena, start, 4 * PAGE, PAGE, 3 * PAGE, true, 5), "false means success");
    cr_assert(!arena->dalloc(arena, start, PAGE, true, 5), "the first of the two is unmapped alone");
    start[PAGE] = 1;
    cr_assert(!arena->merge(arena, start + PAGE, PAGE, start + 2 * PAGE, 2 * PAGE, true, 5));
    arena->destroy(arena, start + PAGE, 3 * PAGE, true, 5);
    unsigned char present;
    cr_assert_eq(mincore(start + PAGE, PAGE, &present), -1, "unmapped");
    farm_heap_close(heap);
}
