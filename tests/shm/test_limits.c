// Limits on recorded machines: folders with the files of /proc and /sys that are read.
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "../support/recorded.h"
#include "shm/limits.h"

static void record_machine(uint64_t available_mib) {
    char text[128];
    snprintf(text, sizeof text, "MemTotal: %llu kB\nMemFree: 1 kB\nMemAvailable: %llu kB\n", 65536ull * 1024,
             (unsigned long long)available_mib * 1024);
    record("proc/meminfo", text);
}

// A machine with this memory (0: not known), this process in a group, and further files.
static void record_case(uint64_t available_mib, const char *const (*files)[2]) {
    remove_root();
    make_root();
    record_v2("/user");
    if (available_mib) record_machine(available_mib);
    for (int k = 0; k < 4 && files[k][0]; k++) record(files[k][0], files[k][1]);
}

static struct farm_error err;

static enum farm_status check(uint64_t shared, uint64_t locked, uint64_t descriptors) {
    struct farm_limits_request request = {
        .shared_bytes = shared, .locked_bytes = locked, .descriptors = descriptors, .root = root};
    return farm_limits_check(&request, &err);
}

#define expect_text(text) cr_assert(strstr(err.message, text), "'%s' does not say '%s'", err.message, text)

TestSuite(shm, .init = make_root, .fini = remove_root, .timeout = 30);

// Machines, and what may be taken of their memory.
static const struct {
    const char *files[4][2];
    uint64_t machine_mib, available_mib; // before the reserve; 0: no limit
} machines[] = {
    {{{"sys/fs/cgroup/user/memory.max", "max\n"}}, 1000, 1000},
    {{{"sys/fs/cgroup/user/memory.max", "1048576000\n"}, {"sys/fs/cgroup/user/memory.current", "419430400\n"}},
     700,
     600},
    {{{"sys/fs/cgroup/user/memory.max", "1048576000\n"}, {"sys/fs/cgroup/user/memory.current", "419430400\n"}},
     500,
     500},
    {{{"proc/meminfo", "MemTotal: 1000 kB\nMemFree: 10 kB\n"}}, 0, 0}, // without MemAvailable
};

Test(shm, the_least_of_group_and_machine_limits_memory) {
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
        record_case(machines[i].machine_mib, machines[i].files);
        const uint64_t available = farm_limits_memory_available_bytes(root);
        if (machines[i].available_mib)
            cr_assert_eq(available, machines[i].available_mib * MIB / 32 * 31, "machine %zu", i);
        else
            cr_assert_gt(available, UINT64_C(1) << 50, "machine %zu", i);
    }
    record_machine(65536);
    cr_assert_eq(farm_limits_memory_available_bytes(root), (65536 - 1024) * MIB, "the reserve is a GiB at most");
}

Test(shm, a_refusal_names_the_limit_the_numbers_and_the_setting) {
    static const struct {
        const char *files[4][2], *says[5];
        uint64_t machine_mib, wanted_mib, fits_mib;
    } cases[] = {
        {{{"sys/fs/cgroup/user/memory.max", "2147483648\n"}, {"sys/fs/cgroup/user/memory.current", "1073741824\n"}},
         {"5.00 GiB of shared memory wanted", "992.00 MiB may still be taken", "memory.max of control group /user",
          "2.00 GiB, 1.00 GiB in use", "--mem"},
         60000,
         5120,
         992},
        {{{"sys/fs/cgroup/user/memory.max", "max\n"},
          {"sys/fs/cgroup/user/memory.high", "838860800\n"},
          {"sys/fs/cgroup/user/memory.current", "0\n"}},
         {"memory.high of control group /user"},
         60000,
         900,
         775},
        {{{"proc/self/mountinfo", "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"},
          {"proc/self/cgroup", "4:memory:/\n"},
          {"sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n"}},
         {"memory.limit_in_bytes of control group / (512.00 MiB, 0.00 MiB in use)", "MemoryLimit="},
         60000,
         513,
         496},
        {{{NULL}}, {"MemAvailable of this machine", "310.00 MiB may still be taken"}, 320, 400, 310},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        record_case(cases[i].machine_mib, cases[i].files);
        cr_assert_eq(check(cases[i].wanted_mib * MIB, 0, 0), FARM_E_LIMIT, "case %zu", i);
        for (int k = 0; k < 5 && cases[i].says[k]; k++) expect_text(cases[i].says[k]);
        cr_assert_eq(check(cases[i].fits_mib * MIB, 0, 0), FARM_OK, "case %zu: %s", i, err.message);
        cr_assert_eq(check(cases[i].fits_mib * MIB + 1, 0, 0), FARM_E_LIMIT, "case %zu", i);
    }
}

Test(shm, checks_the_memory_of_the_node) {
    static const struct {
        const char *node, *says;
        uint64_t machine_mib, wanted_mib, fits_mib;
    } cases[] = {
        {"Node 1 MemTotal:       2097152 kB\nNode 1 MemFree:        524288 kB\n"
         "Node 1 Active(file):   131072 kB\nNode 1 Inactive(file): 131072 kB\n",
         "memory of NUMA node 1", 60000, 768, 744},
        {"Node 1 MemTotal:       2097152 kB\nNode 1 MemFreeAndMore:  1 kB\nNode 1 MemFree:        1048576 kB\n",
         "MemAvailable of this machine", 500, 600, 484},
        {"Node 1 MemFree:        102400 kB\n", // neither file pages nor a total
         "96.88 MiB may still be taken: memory of NUMA node 1 (0.00 MiB, 0.00 MiB in use)", 500, 200, 96},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        record_machine(cases[i].machine_mib);
        record("sys/devices/system/node/node1/meminfo", cases[i].node);
        cr_assert_eq(farm_limits_check_memory(root, cases[i].fits_mib * MIB, 1, &err), FARM_OK, "%s", err.message);
        cr_assert_eq(farm_limits_check_memory(root, cases[i].wanted_mib * MIB, 1, &err), FARM_E_LIMIT);
        expect_text(cases[i].says);
    }
    record_machine(60000);
    cr_assert_eq(farm_limits_check_memory(root, 768 * MIB, -1, &err), FARM_OK);
}

Test(shm, missing_files_mean_no_limit) {
    cr_assert_eq(check(UINT64_C(1) << 50, UINT64_C(1) << 50, 1u << 30), FARM_OK);
    cr_assert_eq(farm_limits_huge_available_bytes(root, -1), 0);
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
    record("sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "300\n");
    cr_assert_eq(farm_limits_huge_available_bytes(root, -1), 0, "more reserved than free");
}

static const char limits_header[] = "Limit                     Soft Limit           Hard Limit           Units     \n";

static void record_rlimits(const char *files, const char *locked) {
    char text[512];
    snprintf(text, sizeof text, "%sMax open files            %s files     \nMax locked memory         %s bytes     \n",
             limits_header, files, locked);
    record("proc/self/limits", text);
}

Test(shm, names_the_limits_of_open_files_and_of_locked_memory_unless_privileged) {
    record_rlimits("1024                 4096                ", "unlimited            unlimited           ");
    cr_assert_eq(check(0, 0, 4096), FARM_OK, "the soft limit can be raised");
    cr_assert_eq(check(0, 0, 5000), FARM_E_LIMIT);
    expect_text("5000 open files wanted");
    expect_text("RLIMIT_NOFILE (hard limit) allows 4096");
    expect_text("ulimit -n 5000");
    record_rlimits("1024                 4096                ", "8388608              8388608             ");
    record("proc/self/status", "Name:\tfarm\nCapEff:\t00000000000000ff\n");
    cr_assert_eq(check(0, 8 * MIB, 0), FARM_OK);
    cr_assert_eq(check(0, 64 * MIB, 0), FARM_E_LIMIT);
    expect_text("64.00 MiB of locked memory wanted");
    expect_text("RLIMIT_MEMLOCK allows 8.00 MiB");
    expect_text("ulimit -l 65536");
    record("proc/self/status", "Name:\tfarm\nCapEff:\t0000000000004000\n");
    cr_assert_eq(check(0, 64 * MIB, 0), FARM_OK, "CAP_IPC_LOCK has no limit");
}

Test(shm, names_the_figure_that_would_do_for_processes_and_mappings) {
    static const struct {
        const char *file, *text, *says;
        uint64_t processes, mappings;
    } cases[] = {
        {"sys/fs/cgroup/user/pids.max", "500\n",
         "pids.max of the control group allows 500: raise it (systemd: "
         "TasksMax=; docker: --pids-limit) to 501,",
         301, 0},
        {"proc/self/limits", "Max processes             64                   300                  processes \n",
         "RLIMIT_NPROC (hard limit) allows 300: raise it (systemd: LimitNPROC=; limits.conf: nproc) with ulimit -u 301",
         301, 0},
        {"proc/sys/kernel/pid_max", "1000\n",
         "301 processes and threads wanted beside 700, kernel.pid_max allows 1000: "
         "raise it with sysctl -w kernel.pid_max=1001",
         301, 0},
        {"proc/sys/vm/max_map_count", "65530\n", "vm.max_map_count=65531", 0, 65531},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *const files[4][2] = {{cases[i].file, cases[i].text},
                                         {"sys/fs/cgroup/user/pids.current", "200\n"},
                                         {"proc/loadavg", "0.5 0.4 0.3 2/400 31000\n"}};
        struct farm_limits_request request = {
            .processes = cases[i].processes, .mappings = cases[i].mappings, .root = root};
        record_case(0, files);
        cr_assert_eq(farm_limits_check(&request, &err), FARM_E_LIMIT, "case %zu", i);
        expect_text(cases[i].says);
        if (request.processes) request.processes--;
        if (request.mappings) request.mappings--;
        cr_assert_eq(farm_limits_check(&request, &err), FARM_OK, "case %zu: %s", i, err.message);
    }
}

Test(shm, compares_a_run_with_memory_and_with_the_address_space_of_a_process) {
    char text[512];
    record_machine(1000);
    snprintf(text, sizeof text, "%sMax address space         204800000            unlimited            bytes     \n",
             limits_header);
    record("proc/self/limits", text);
    snprintf(text, sizeof text, "%ld 1 1 1 0 1 0\n", (long)(100 * MIB / (uint64_t)sysconf(_SC_PAGESIZE)));
    record("proc/self/statm", text);
    cr_assert_eq(farm_limits_check_run(root, 900 * MIB, 95 * MIB, &err), FARM_OK, "%s", err.message);
    cr_assert_eq(farm_limits_check_run(root, 900 * MIB, 96 * MIB, &err), FARM_E_LIMIT);
    expect_text("196.00 MiB of address space wanted in one process, RLIMIT_AS allows 195.31 MiB, of which 100.00 MiB");
    cr_assert_eq(farm_limits_check_run(root, 1000 * MIB, 0, &err), FARM_E_LIMIT);
    expect_text("1000.00 MiB wanted, 968.75 MiB may still be taken: MemAvailable of this machine");
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
    uint64_t available = farm_limits_memory_available_bytes(NULL);
    cr_assert_gt(available, 16 * MIB);
    cr_assert_lt(available, UINT64_C(1) << 50, "no limit found at all");
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
    cr_assert_eq(check(0, 0, 1u << 20), FARM_E_LIMIT, "the last number is parsed");
}
