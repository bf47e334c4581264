// Limits of control groups on recorded machines: each test writes the files of /proc and /sys that are read.
#include <criterion/criterion.h>
#include <string.h>

#include "../support/recorded.h"
#include "base/cgroup.h"

#define V1_MOUNTS                                                                                                      \
    "40 30 0:50 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"                                      \
    "41 30 0:51 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"                                       \
    "42 30 0:52 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"

static struct farm_cgroup_limits limits;

static void check_memory(uint64_t left_mib, uint64_t limit_mib, const char *file, const char *group) {
    farm_cgroup_read(root, &limits);
    cr_assert_eq(limits.memory.left_bytes, left_mib * MIB, "%lu MiB left", limits.memory.left_bytes / MIB);
    cr_assert_eq(limits.memory.limit_bytes, limit_mib * MIB, "limit of %lu MiB", limits.memory.limit_bytes / MIB);
    cr_assert_eq(limits.memory.used_bytes, (limit_mib - left_mib) * MIB);
    cr_assert_str_eq(limits.memory.file, file);
    cr_assert_str_eq(limits.memory.group, group);
    cr_assert_eq(limits.memory.v2, strcmp(file, "memory.limit_in_bytes") != 0);
}

static void check_cpus(double quota, const char *list) {
    char text[64];
    farm_cgroup_read(root, &limits);
    cr_assert_float_eq(limits.cpu_quota, quota, 1e-9);
    cr_assert(limits.has_cpus);
    cr_assert_str_eq(farm_bitmap_format(&limits.cpus, text, sizeof text), list);
}

static void check_nothing_limits(void) {
    farm_cgroup_read(root, &limits);
    cr_assert(limits.cpu_quota == 0 && !limits.has_cpus);
    cr_assert(limits.memory.limit_bytes == UINT64_MAX && limits.memory.left_bytes == UINT64_MAX);
}

TestSuite(base, .init = make_root, .fini = remove_root, .timeout = 30);

Test(base, chooses_the_nested_v2_group_with_the_least_memory_left) {
    record_v2("/a/b/c");
    record_memory("/a", 4000 * MIB, 1500 * MIB);
    record_memory("/a/b", 3000 * MIB, 100 * MIB); // a larger room than its parent's
    record("sys/fs/cgroup/a/b/c/memory.max", "max\n");
    check_memory(2500, 4000, "memory.max", "/a");
}

Test(base, counts_page_cache_as_free) {
    record_v2("/a");
    record_memory("/a", 1000 * MIB, 900 * MIB);
    // 300 MiB inactive, 100 MiB active; shared memory (shmem) is not cache that can be dropped.
    record("sys/fs/cgroup/a/memory.stat", "anon 1\nfile 524288000\nshmem 104857600\ninactive_anon 77\n"
                                          "inactive_file 314572800\nactive_file 104857600\n");
    check_memory(500, 1000, "memory.max", "/a");
}

Test(base, counts_kills_of_both_versions) {
    cr_assert_eq(farm_cgroup_read_kills(root), 0);
    record_v2("/a/b");
    record("sys/fs/cgroup/a/memory.events", "low 0\noom 9\noom_kill 5\noom_group_kill 8\n");
    record("sys/fs/cgroup/a/b/memory.events", "oom_kill 3\n");
    cr_assert_eq(farm_cgroup_read_kills(root), 5);
    record("proc/self/mountinfo", V1_MOUNTS);
    record("proc/self/cgroup", "4:memory:/c\n");
    record("sys/fs/cgroup/memory/c/memory.oom_control", "oom_kill_disable 0\nunder_oom 1\noom_kill 2\n");
    cr_assert_eq(farm_cgroup_read_kills(root), 2);
}

Test(base, treats_memory_high_as_a_limit) {
    record_v2("/a");
    record_bytes("sys/fs/cgroup/a/memory.max", 900 * MIB);
    record_bytes("sys/fs/cgroup/a/memory.high", 800 * MIB);
    check_memory(800, 800, "memory.high", "/a");
    record_bytes("sys/fs/cgroup/a/memory.high", 1000 * MIB);
    check_memory(900, 900, "memory.max", "/a");
    record_memory("/a", 100 * MIB, 101 * MIB);
    farm_cgroup_read(root, &limits);
    cr_assert_eq(limits.memory.left_bytes, 0, "more is used than the limit");
}

Test(base, chooses_the_tightest_quota_and_the_nearest_cpus_of_nested_v2_groups) {
    record_v2("/a/b");
    record("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    record("sys/fs/cgroup/a/cpu.max", "350000 100000\n");
    record("sys/fs/cgroup/cpu.max", "400000 100000\n");
    record("sys/fs/cgroup/a/b/cpuset.cpus.effective", "\n"); // no CPUs named: its parent's hold
    record("sys/fs/cgroup/a/cpuset.cpus.effective", "0-3\n");
    record("sys/fs/cgroup/cpuset.cpus.effective", "0-7\n");
    check_cpus(3.5, "0-3");
}

Test(base, reads_v1_and_its_unlimited_level) {
    record("proc/self/mountinfo", V1_MOUNTS);
    record("proc/self/cgroup", "5:cpu,cpuacct:/elsewhere\n4:memory:/job\n3:cpuset:/a/b\n0::/\n");
    record("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    record_bytes("sys/fs/cgroup/memory/job/memory.limit_in_bytes", 512 * MIB);
    record_bytes("sys/fs/cgroup/memory/job/memory.usage_in_bytes", 112 * MIB);
    record("sys/fs/cgroup/memory/job/memory.stat", "inactive_file 999999999999\ntotal_inactive_file 0\n");
    record("sys/fs/cgroup/cpu,cpuacct/elsewhere/cpu.cfs_quota_us", "50000\n");
    record("sys/fs/cgroup/cpu,cpuacct/elsewhere/cpu.cfs_period_us", "100000\n");
    record("sys/fs/cgroup/cpuset/a/b/cpuset.effective_cpus", "2-5,9\n");
    check_memory(400, 512, "memory.limit_in_bytes", "/job");
    check_cpus(0.5, "2-5,9");
}

Test(base, reads_the_mount_itself_if_a_container_sees_its_group_as_root) {
    record("proc/self/mountinfo", "35 31 0:32 /docker/0af3 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
    record("proc/self/cgroup", "4:memory:/docker/0af3\n");
    record_bytes("sys/fs/cgroup/memory/memory.limit_in_bytes", 256 * MIB);
    record_bytes("sys/fs/cgroup/memory/memory.usage_in_bytes", 56 * MIB);
    check_memory(200, 256, "memory.limit_in_bytes", "/");
}

Test(base, reads_the_mount_itself_where_the_group_lies_outside_it) {
    record_v2("/../other");
    record_bytes("sys/fs/cgroup/memory.max", 300 * MIB);
    record_bytes("sys/fs/other/memory.max", 200 * MIB); // where "mount/../other" would lead
    check_memory(300, 300, "memory.max", "/");
}

Test(base, reads_v1_and_v2_mounted_together) {
    record("proc/self/mountinfo", "31 24 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n" V1_MOUNTS
                                  "43 30 0:53 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n");
    record("proc/self/cgroup", "3:cpu,cpuacct:/one\n1:name=systemd:/three\n0::/two\n");
    record("sys/fs/cgroup/cpu,cpuacct/one/cpu.cfs_quota_us", "200000\n");
    record("sys/fs/cgroup/cpu,cpuacct/one/cpu.cfs_period_us", "100000\n");
    record_bytes("sys/fs/cgroup/unified/two/memory.max", 64 * MIB);
    record_bytes("sys/fs/cgroup/systemd/three/memory.max", 1 * MIB);
    check_memory(64, 64, "memory.max", "/two");
    cr_assert_float_eq(limits.cpu_quota, 2, 1e-9);
}

Test(base, missing_files_and_unlimited_ones_are_no_limit) {
    check_nothing_limits();
    record("proc/self/mountinfo", V1_MOUNTS);
    record("proc/self/cgroup", "8:memory:/a\n5:cpuset:/a\n3:cpu,cpuacct:/a\n0::/\n");
    record("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n");
    record("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
    record("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n");
    check_nothing_limits();
}

static void check_throttling(uint64_t periods, uint64_t ns) {
    struct farm_cgroup_throttling throttling;
    farm_cgroup_read_throttling(root, &throttling);
    cr_assert_eq(throttling.periods, periods);
    cr_assert_eq(throttling.ns, ns);
}

Test(base, chooses_the_v2_group_that_was_throttled_most) {
    record_v2("/a/b");
    record("sys/fs/cgroup/a/b/cpu.stat", "usage_usec 1\nnr_periods 9\nnr_throttled 3\nthrottled_usec 20000\n");
    record("sys/fs/cgroup/a/cpu.stat", "usage_usec 1\nnr_periods 9\nnr_throttled 4\nthrottled_usec 50\n");
    record("sys/fs/cgroup/cpu.stat", "usage_usec 1\n");
    check_throttling(4, 20000000);
}

Test(base, reads_the_throttling_of_v1_groups) {
    record("proc/self/mountinfo", V1_MOUNTS);
    record("proc/self/cgroup", "4:memory:/job\n3:cpuset:/x\n2:cpu,cpuacct:/job/step\n0::/none\n");
    record("sys/fs/cgroup/cpu,cpuacct/job/cpu.stat", "nr_periods 5\nnr_throttled 7\nthrottled_time 123\n");
    record("sys/fs/cgroup/memory/job/cpu.stat", "nr_throttled 100\n");
    check_throttling(7, 123);
}
