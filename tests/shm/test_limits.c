// Limits on recorded machines: folders with the few files of /proc and /sys that are read, written by each test.
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "../support/recorded.h"
#include "shm/limits.h"

static void record_machine(uint64_t available_mib) {
    char text[128];
    snprintf(text, sizeof text, "MemTotal: %llu kB\nMemFree: 1 kB\nMemAvailable: %llu kB\n", 65536ull * 1024,
             (unsigned long long)available_mib * 1024);
    record("proc/meminfo", text);
}

static uint64_t less_reserve(uint64_t bytes) {
    return bytes - bytes / 32;
}

static struct farm_error err;

static enum farm_status check(uint64_t shared, uint64_t locked, uint64_t descriptors) {
    struct farm_limits_request request = {
        .shared_bytes = shared, .locked_bytes = locked, .descriptors = descriptors, .root = root};
    return farm_limits_check(&request, &err);
}

#define says(text) cr_assert(strstr(err.message, text), "'%s' does not say '%s'", err.message, text)

TestSuite(shm, .init = make_root, .fini = remove_root, .timeout = 30);

Test(shm, takes_mem_available_where_no_group_limits) {
    record_machine(1000);
    record_v2("/user");
    record("sys/fs/cgroup/user/memory.max", "max\n");
    cr_assert_eq(farm_limits_memory_available_bytes(root), less_reserve(1000 * MIB));
}

Test(shm, takes_the_less_of_group_and_machine) {
    record_v2("/a");
    record_memory("/a", 1000 * MIB, 400 * MIB);
    record_machine(700);
    cr_assert_eq(farm_limits_memory_available_bytes(root), less_reserve(600 * MIB));
    record_machine(500);
    cr_assert_eq(farm_limits_memory_available_bytes(root), less_reserve(500 * MIB));
}

Test(shm, keeps_at_most_a_gibibyte_in_reserve) {
    record_machine(65536);
    cr_assert_eq(farm_limits_memory_available_bytes(root), (65536 - 1024) * MIB);
}

Test(shm, names_memory_high_where_it_is_the_limit) {
    record_machine(60000);
    record_v2("/a");
    record("sys/fs/cgroup/a/memory.max", "max\n");
    record_bytes("sys/fs/cgroup/a/memory.high", 800 * MIB);
    record_bytes("sys/fs/cgroup/a/memory.current", 0);
    cr_assert_eq(check(900 * MIB, 0, 0), FARM_E_LIMIT);
    says("memory.high of control group /a");
}

Test(shm, names_the_group_the_numbers_and_the_setting_when_memory_is_short) {
    record_machine(60000);
    record_v2("/slurm/job7");
    record_memory("/slurm/job7", 2048 * MIB, 1024 * MIB);
    cr_assert_eq(check(5 * 1024 * MIB, 0, 0), FARM_E_LIMIT);
    says("5.00 GiB of shared memory wanted");
    says("992.00 MiB may still be taken");
    says("memory.max of control group /slurm/job7");
    says("2.00 GiB, 1.00 GiB in use");
    says("--mem");
    cr_assert_eq(check(992 * MIB, 0, 0), FARM_OK);
    cr_assert_eq(check(992 * MIB + 1, 0, 0), FARM_E_LIMIT);
}

Test(shm, names_the_v1_group_and_its_setting) {
    record_machine(60000);
    record("proc/self/mountinfo", "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n");
    record("proc/self/cgroup", "4:memory:/\n");
    record_bytes("sys/fs/cgroup/memory/memory.limit_in_bytes", 512 * MIB);
    cr_assert_eq(check(513 * MIB, 0, 0), FARM_E_LIMIT);
    says("memory.limit_in_bytes of control group / (512.00 MiB, 0.00 MiB in use)");
    says("MemoryLimit=");
}

Test(shm, names_the_machine_when_it_is_the_machine_that_is_full) {
    record_machine(320);
    cr_assert_eq(check(400 * MIB, 0, 0), FARM_E_LIMIT);
    says("MemAvailable of this machine");
    says("310.00 MiB may still be taken");
}

Test(shm, checks_the_memory_of_the_node) {
    record_machine(60000);
    record("sys/devices/system/node/node1/meminfo",
           "Node 1 MemTotal:       2097152 kB\nNode 1 MemFree:        524288 kB\n"
           "Node 1 Active(file):   131072 kB\nNode 1 Inactive(file): 131072 kB\n");
    cr_assert_eq(farm_limits_check_memory(root, less_reserve(768 * MIB), 1, &err), FARM_OK);
    cr_assert_eq(farm_limits_check_memory(root, 768 * MIB, 1, &err), FARM_E_LIMIT);
    says("memory of NUMA node 1");
    says("768.00 MiB of shared memory wanted");
    cr_assert_eq(farm_limits_check_memory(root, 768 * MIB, -1, &err), FARM_OK);
}

Test(shm, takes_missing_files_for_no_limit) {
    cr_assert_eq(check(UINT64_C(1) << 50, UINT64_C(1) << 50, 1u << 30), FARM_OK);
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
    cr_assert_eq(check(0, 0, 4096), FARM_OK, "the soft limit can be raised");
    cr_assert_eq(check(0, 0, 5000), FARM_E_LIMIT);
    says("5000 open files wanted");
    says("RLIMIT_NOFILE allows 1024 (hard limit 4096)");
    says("ulimit -n 5000");
}

Test(shm, names_the_limit_of_locked_memory_unless_privileged) {
    record_rlimits("1024                 4096                ", "8388608              8388608             ");
    record("proc/self/status", "Name:\tfarm\nCapEff:\t00000000000000ff\n");
    cr_assert_eq(check(0, 8 * MIB, 0), FARM_OK);
    cr_assert_eq(check(0, 64 * MIB, 0), FARM_E_LIMIT);
    says("64.00 MiB of locked memory wanted");
    says("RLIMIT_MEMLOCK allows 8.00 MiB");
    says("ulimit -l 65536");
    record("proc/self/status", "Name:\tfarm\nCapEff:\t0000000000004000\n");
    cr_assert_eq(check(0, 64 * MIB, 0), FARM_OK, "CAP_IPC_LOCK locks what it likes");
}

Test(shm, raises_the_soft_limit_of_open_files_on_the_running_system) {
    struct rlimit limit;
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    if (limit.rlim_max < 256) cr_skip_test("hard limit of open files is below 256");
    rlim_t hard = limit.rlim_max;
    limit.rlim_cur = 128;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    struct farm_limits_request request = {.descriptors = 256, .root = "/"};
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

// ---- files that say less, or nonsense ----

Test(shm, takes_null_for_the_running_system) {
    cr_assert_lt(farm_limits_memory_available_bytes(NULL), UINT64_C(1) << 50);
}

Test(shm, a_root_with_a_path_that_is_too_long_has_no_limits) {
    char deep[6000];
    memset(deep, 'x', sizeof deep - 1);
    deep[0] = '/';
    deep[sizeof deep - 1] = 0;
    struct farm_limits_request request = {
        .shared_bytes = UINT64_C(1) << 50, .locked_bytes = UINT64_C(1) << 50, .descriptors = 1u << 30, .root = deep};
    cr_assert_eq(farm_limits_check(&request, &err), FARM_OK, "%s", err.message);
    cr_assert_eq(farm_limits_huge_available_bytes(deep, -1), 0);
}

Test(shm, a_kernel_that_says_nothing_of_available_memory_does_not_limit_it) {
    record("proc/meminfo", "MemTotal: 1000 kB\nMemFree: 10 kB\n");
    cr_assert_gt(farm_limits_memory_available_bytes(root), UINT64_C(1) << 50);
}

Test(shm, a_node_is_a_limit_only_where_it_has_less_than_the_machine) {
    record_machine(500);
    record("sys/devices/system/node/node0/meminfo",
           "Node 0 MemTotal:       2097152 kB\nNode 0 MemFreeAndMore:  1 kB\nNode 0 MemFree:        1048576 kB\n");
    cr_assert_eq(farm_limits_check_memory(root, 600 * MIB, 0, &err), FARM_E_LIMIT);
    says("MemAvailable of this machine");
    // No file pages are named: none can be dropped; nor is the total believed where it is less than what is free.
    record("sys/devices/system/node/node0/meminfo", "Node 0 MemFree:        102400 kB\n");
    cr_assert_eq(farm_limits_check_memory(root, 200 * MIB, 0, &err), FARM_E_LIMIT);
    says("96.88 MiB may still be taken: memory of NUMA node 0 (0.00 MiB, 0.00 MiB in use)");
}

Test(shm, a_pool_smaller_than_its_reservations_has_no_free_page) {
    record("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "20\n");
    cr_assert_eq(farm_limits_huge_available_bytes(root, -1), 40 * MIB, "no word of reservations");
    record("sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "50\n");
    cr_assert_eq(farm_limits_huge_available_bytes(root, -1), 0);
}

Test(shm, limits_that_cannot_be_read_do_not_limit) {
    static const char *const texts[] = {"Max open files\n", "Max open files            1024\n",
                                        "Max cpu time  1 1 s\n"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        record("proc/self/limits", texts[i]);
        cr_assert_eq(check(0, 0, 1u << 20), FARM_OK, "%s: %s", texts[i], err.message);
    }
    record_rlimits("18446744073709551615 18446744073709551615", "unlimited            unlimited           ");
    cr_assert_eq(check(0, 0, 1u << 20), FARM_OK, "%s", err.message);
    record_rlimits("1024 2048", "unlimited            unlimited           ");
    cr_assert_eq(check(0, 0, 1u << 20), FARM_E_LIMIT, "but the last word is read");
}
