// Limits on recorded machines: folders with the few files of /proc and /sys that are read, written by each test.
#include <criterion/criterion.h>
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "shm/limits.h"

static const uint64_t MIB = 1 << 20;
static char root[64];

static void make_root(void) {
    snprintf(root, sizeof root, "/tmp/farm-limits-XXXXXX");
    cr_assert_not_null(mkdtemp(root));
}

static int remove_one(const char *path, const struct stat *about, int kind, struct FTW *where) {
    return remove(path);
}

static void remove_root(void) {
    nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

// Records a file, making its folders.
static void record(const char *path, const char *text) {
    char full[512];
    snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = 0;
        cr_assert(mkdir(full, 0700) == 0 || errno == EEXIST);
    }
    FILE *file = fopen(full, "w");
    cr_assert_not_null(file, "%s", full);
    fputs(text, file);
    fclose(file);
}

static void record_bytes(const char *path, uint64_t bytes) {
    char text[32];
    snprintf(text, sizeof text, "%llu\n", (unsigned long long)bytes);
    record(path, text);
}

static void record_machine(uint64_t available_mib) {
    char text[128];
    snprintf(text, sizeof text, "MemTotal: %llu kB\nMemFree: 1 kB\nMemAvailable: %llu kB\n", 65536ull * 1024,
             (unsigned long long)available_mib * 1024);
    record("proc/meminfo", text);
}

static void record_v2(const char *group) {
    char text[128];
    record("proc/self/mountinfo", "23 1 0:20 / /proc rw - proc proc rw\n"
                                  "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n");
    snprintf(text, sizeof text, "0::%s\n", group);
    record("proc/self/cgroup", text);
}

static uint64_t less_reserve(uint64_t bytes) {
    return bytes - bytes / 32;
}

static enum farm_status check(uint64_t shared, uint64_t locked, uint64_t descriptors, struct farm_error *err) {
    struct farm_limits_request request = {
        .shared_bytes = shared, .locked_bytes = locked, .descriptors = descriptors, .root = root};
    *err = (struct farm_error){0};
    return farm_limits_check(&request, err);
}

#define says(text) cr_assert(strstr(err.message, text), "'%s' does not say '%s'", err.message, text)

TestSuite(shm, .init = make_root, .fini = remove_root, .timeout = 30);

Test(shm, takes_mem_available_where_no_group_limits) {
    record_machine(1000);
    record_v2("/user");
    record("sys/fs/cgroup/user/memory.max", "max\n");
    cr_assert_eq(farm_limits_memory_available_bytes(root), less_reserve(1000 * MIB));
}

Test(shm, keeps_at_most_a_gibibyte_in_reserve) {
    record_machine(65536);
    cr_assert_eq(farm_limits_memory_available_bytes(root), (65536 - 1024) * MIB);
}

Test(shm, takes_the_tightest_level_of_nested_v2_groups) {
    record_machine(60000);
    record_v2("/a/b/c");
    record_bytes("sys/fs/cgroup/a/memory.max", 4000 * MIB);
    record_bytes("sys/fs/cgroup/a/memory.current", 1500 * MIB);
    record_bytes("sys/fs/cgroup/a/b/memory.max", 3000 * MIB); // a larger room than its parent's
    record_bytes("sys/fs/cgroup/a/b/memory.current", 100 * MIB);
    record("sys/fs/cgroup/a/b/c/memory.max", "max\n");
    cr_assert_eq(farm_limits_memory_available_bytes(root), less_reserve(2500 * MIB));
}

Test(shm, counts_page_cache_as_free) {
    record_machine(60000);
    record_v2("/a");
    record_bytes("sys/fs/cgroup/a/memory.max", 1000 * MIB);
    record_bytes("sys/fs/cgroup/a/memory.current", 900 * MIB);
    // 300 MiB inactive, 100 MiB active; shared memory (shmem) is not cache that can be dropped.
    record("sys/fs/cgroup/a/memory.stat", "anon 1\nfile 524288000\nshmem 104857600\ninactive_anon 77\n"
                                          "inactive_file 314572800\nactive_file 104857600\n");
    cr_assert_eq(farm_limits_memory_available_bytes(root), less_reserve(500 * MIB));
}

Test(shm, takes_memory_high_for_a_limit) {
    record_machine(60000);
    record_v2("/a");
    record("sys/fs/cgroup/a/memory.max", "max\n");
    record_bytes("sys/fs/cgroup/a/memory.high", 800 * MIB);
    record_bytes("sys/fs/cgroup/a/memory.current", 0);
    struct farm_error err;
    cr_assert_eq(check(900 * MIB, 0, 0, &err), FARM_E_LIMIT);
    says("memory.high of control group /a");
}

Test(shm, reads_v1_and_its_unlimited_level) {
    record_machine(60000);
    record("proc/self/mountinfo", "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
                                  "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n");
    record("proc/self/cgroup", "5:cpu:/elsewhere\n4:memory:/job\n0::/\n");
    record("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    record_bytes("sys/fs/cgroup/memory/job/memory.limit_in_bytes", 512 * MIB);
    record_bytes("sys/fs/cgroup/memory/job/memory.usage_in_bytes", 112 * MIB);
    record("sys/fs/cgroup/memory/job/memory.stat", "inactive_file 999999999999\ntotal_inactive_file 0\n");
    cr_assert_eq(farm_limits_memory_available_bytes(root), less_reserve(400 * MIB));
}

Test(shm, reads_the_mount_itself_where_a_container_sees_its_group_as_root) {
    record_machine(60000);
    record("proc/self/mountinfo", "35 31 0:32 /docker/0af3 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
    record("proc/self/cgroup", "4:memory:/docker/0af3\n");
    record_bytes("sys/fs/cgroup/memory/memory.limit_in_bytes", 256 * MIB);
    record_bytes("sys/fs/cgroup/memory/memory.usage_in_bytes", 56 * MIB);
    cr_assert_eq(farm_limits_memory_available_bytes(root), less_reserve(200 * MIB));
}

Test(shm, names_the_group_the_numbers_and_the_setting_when_memory_is_short) {
    record_machine(60000);
    record_v2("/slurm/job7");
    record_bytes("sys/fs/cgroup/slurm/job7/memory.max", 2048 * MIB);
    record_bytes("sys/fs/cgroup/slurm/job7/memory.current", 1024 * MIB);
    struct farm_error err;
    cr_assert_eq(check(5 * 1024 * MIB, 0, 0, &err), FARM_E_LIMIT);
    says("5.00 GiB of shared memory wanted");
    says("992.00 MiB may still be taken");
    says("memory.max of control group /slurm/job7");
    says("2.00 GiB, 1.00 GiB in use");
    says("--mem");
    cr_assert_eq(check(992 * MIB, 0, 0, &err), FARM_OK);
    cr_assert_eq(check(992 * MIB + 1, 0, 0, &err), FARM_E_LIMIT);
}

Test(shm, names_the_machine_when_it_is_the_machine_that_is_full) {
    record_machine(320);
    struct farm_error err;
    cr_assert_eq(check(400 * MIB, 0, 0, &err), FARM_E_LIMIT);
    says("MemAvailable of this machine");
    says("310.00 MiB may still be taken");
}

Test(shm, checks_the_memory_of_the_node) {
    record_machine(60000);
    record("sys/devices/system/node/node1/meminfo",
           "Node 1 MemTotal:       2097152 kB\nNode 1 MemFree:        524288 kB\n"
           "Node 1 Active(file):   131072 kB\nNode 1 Inactive(file): 131072 kB\n");
    struct farm_error err = {0};
    cr_assert_eq(farm_limits_check_memory(root, less_reserve(768 * MIB), 1, &err), FARM_OK);
    cr_assert_eq(farm_limits_check_memory(root, 768 * MIB, 1, &err), FARM_E_LIMIT);
    says("memory of NUMA node 1");
    says("768.00 MiB of shared memory wanted");
    cr_assert_eq(farm_limits_check_memory(root, 768 * MIB, -1, &err), FARM_OK);
}

Test(shm, takes_missing_files_for_no_limit) {
    struct farm_error err;
    cr_assert_eq(check(UINT64_C(1) << 50, UINT64_C(1) << 50, 1u << 30, &err), FARM_OK);
}

Test(shm, counts_the_free_pool_of_huge_pages) {
    record_machine(100);
    record("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "200\n");
    record("sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "50\n");
    record("sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages", "180\n");
    record("sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages", "20\n");
    cr_assert_eq(farm_limits_huge_available_bytes(root, -1), 300 * MIB);
    cr_assert_eq(farm_limits_huge_available_bytes(root, 0), 300 * MIB);
    cr_assert_eq(farm_limits_huge_available_bytes(root, 1), 40 * MIB);
    cr_assert_eq(farm_limits_huge_available_bytes(root, 2), 0);
    struct farm_limits_request request = {.shared_bytes = 350 * MIB, .root = root};
    struct farm_error err;
    cr_assert_eq(farm_limits_check(&request, &err), FARM_E_LIMIT);
    request.huge = true;
    cr_assert_eq(farm_limits_check(&request, &err), FARM_OK, "300 MiB of the pool and 50 MiB of the machine's 100");
    request.shared_bytes = 450 * MIB;
    cr_assert_eq(farm_limits_check(&request, &err), FARM_E_LIMIT);
}

static const char limits_header[] = "Limit                     Soft Limit           Hard Limit           Units     \n";

static void record_rlimits(const char *files, const char *locked) {
    char text[512];
    snprintf(text, sizeof text, "%sMax open files            %s files     \nMax locked memory         %s bytes     \n",
             limits_header, files, locked);
    record("proc/self/limits", text);
}

Test(shm, names_the_hard_limit_of_open_files) {
    record_rlimits("1024                 4096                ", "unlimited            unlimited           ");
    struct farm_error err;
    cr_assert_eq(check(0, 0, 4096, &err), FARM_OK, "the soft limit can be raised");
    cr_assert_eq(check(0, 0, 5000, &err), FARM_E_LIMIT);
    says("5000 open files wanted");
    says("RLIMIT_NOFILE allows 1024 (hard limit 4096)");
    says("ulimit -n 5000");
}

Test(shm, names_the_limit_of_locked_memory_unless_privileged) {
    record_rlimits("1024                 4096                ", "8388608              8388608             ");
    record("proc/self/status", "Name:\tfarm\nCapEff:\t00000000000000ff\n");
    struct farm_error err;
    cr_assert_eq(check(0, 8 * MIB, 0, &err), FARM_OK);
    cr_assert_eq(check(0, 64 * MIB, 0, &err), FARM_E_LIMIT);
    says("64.00 MiB of locked memory wanted");
    says("RLIMIT_MEMLOCK allows 8.00 MiB");
    says("ulimit -l 65536");
    record("proc/self/status", "Name:\tfarm\nCapEff:\t0000000000004000\n");
    cr_assert_eq(check(0, 64 * MIB, 0, &err), FARM_OK, "CAP_IPC_LOCK locks what it likes");
}

Test(shm, raises_the_soft_limit_of_open_files_on_the_running_system) {
    struct rlimit limit;
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    if (limit.rlim_max < 256) cr_skip_test("hard limit of open files is below 256");
    rlim_t hard = limit.rlim_max;
    limit.rlim_cur = 128;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    struct farm_limits_request request = {.descriptors = 256, .root = "/"};
    struct farm_error err = {0};
    cr_assert_eq(farm_limits_check(&request, &err), FARM_OK, "%s", err.message);
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    cr_assert_eq(limit.rlim_cur, 256);
    cr_assert_eq(limit.rlim_max, hard);
}

Test(shm, finds_memory_on_the_running_system) {
    uint64_t available = farm_limits_memory_available_bytes("/");
    cr_assert_gt(available, 16 * MIB);
    cr_assert_lt(available, UINT64_C(1) << 50, "no limit found at all");
}
