// What disturbs measurements on recorded machines.
#include <criterion/criterion.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../support/recorded.h"
#include "bw/disturbance.h"

TestSuite(bw, .init = make_root, .fini = remove_root, .timeout = 60);

static struct farm_machine machine;

static void read_machine(const char *synthetic) {
    const struct farm_machine_source source = {.synthetic = synthetic};
    cr_assert_eq(farm_machine_read(&machine, &source, NULL), FARM_OK);
}

// A quiet machine without a hypervisor, with every setting as it should be.
static void record_good(void) {
    record("proc/meminfo", "MemTotal: 67108864 kB\nMemFree: 1 kB\nMemAvailable: 60000000 kB\n");
    record("proc/cpuinfo",
           "processor : 0\nflags : fpu avx2\ncpu MHz : 3000.0\nprocessor : 1\nflags : fpu\ncpu MHz : 3100.0\n");
    record("proc/stat", "cpu 1 1 1 1 1 1 1 1 0 0\ncpu0 100 0 10 5000 0 0 0 0 0 0\ncpu1 50 0 10 5000 0 0 0 0 0 0\n");
    record("proc/sys/kernel/numa_balancing", "0\n");
    record("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
    record_bytes("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", 512);
    record("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n");
    record("sys/devices/system/cpu/intel_pstate/no_turbo", "1\n");
    record_v2("/a/b");
    record("sys/fs/cgroup/a/b/cpu.stat", "usage_usec 1\nnr_periods 9\nnr_throttled 3\nthrottled_usec 20000\n");
    read_machine("pack:1 [numa(memory=4GB)] core:2 pu:1");
}

Test(bw, a_quiet_well_configured_machine_has_no_findings) {
    struct farm_bw_disturbance found;
    struct farm_bw_moment from, to;
    record_good();
    farm_bw_moment_now(&machine, root, &from);
    cr_assert_eq(from.busy_ticks, 170);
    cr_assert_eq(from.idle_ticks, 10000);
    cr_assert_eq(from.throttled_periods, 3);
    cr_assert_eq(from.throttled_ns, 20000000);
    to = from;
    to.now_ns += 1000000000, to.idle_ticks += 200;
    farm_bw_disturbance_judge(&machine, root, &from, &to, &found);
    for (int i = 0; i < found.findings; i++) cr_log_warn("%s", found.finding[i].text);
    cr_assert_eq(found.findings, 0);
    cr_assert_str_eq(found.governor, "performance");
    cr_assert_str_eq(found.thp, "madvise");
    cr_assert_str_eq(found.hypervisor, "");
    cr_assert_float_eq(found.ghz_least, 3.0, 1e-9);
    cr_assert_float_eq(found.ghz_most, 3.1, 1e-9);
}

Test(bw, load_of_others_steal_and_throttling_are_separated_from_our_own_time) {
    struct farm_bw_disturbance found;
    struct farm_bw_moment from = {.now_ns = 1}, to = {.now_ns = 2000000001};
    record_good();
    // Two seconds: 2.0 s of CPU time on these CPUs, all our own.
    to.busy_ticks = 200, to.own_ns = 2000000000;
    farm_bw_disturbance_judge(&machine, root, &from, &to, &found);
    cr_assert_null(farm_bw_disturbance_find(&found, "load"));
    cr_assert_float_eq(found.others_cpus, 0, 1e-9);
    // Half of it others'.
    to.own_ns = 1000000000;
    farm_bw_disturbance_judge(&machine, root, &from, &to, &found);
    cr_assert_float_eq(found.others_cpus, 0.5, 1e-9);
    const struct farm_bw_finding *load = farm_bw_disturbance_find(&found, "load");
    cr_assert(load && load->serious && strstr(load->text, "0.50"));
    to.own_ns = 2000000000, to.steal_ticks = 20, to.throttled_periods = 4, to.throttled_ns = 50000000;
    to.thermal_throttles = 2;
    farm_bw_disturbance_judge(&machine, root, &from, &to, &found);
    cr_assert(farm_bw_disturbance_find(&found, "steal") && farm_bw_disturbance_find(&found, "steal")->serious);
    cr_assert(farm_bw_disturbance_find(&found, "throttled") && farm_bw_disturbance_find(&found, "heat"));
    cr_assert_null(farm_bw_disturbance_find(&found, "load"));
}

Test(bw, the_time_of_ended_children_is_our_own) {
    struct farm_bw_moment before, after;
    record_good();
    farm_bw_moment_now(&machine, root, &before);
    const pid_t child = fork();
    if (child == 0) {
        while (clock() < CLOCKS_PER_SEC / 20) continue;
        _exit(0);
    }
    cr_assert_eq(waitpid(child, NULL, 0), child);
    farm_bw_moment_now(&machine, root, &after);
    cr_assert_geq(after.own_ns - before.own_ns, 40000000u);
}

Test(bw, bad_settings_are_found) {
    struct farm_bw_disturbance found;
    record_good();
    record("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
    record("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "8\n");
    record("sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "8\n");
    record("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
    record("sys/devices/system/cpu/intel_pstate/no_turbo", "0\n");
    record("proc/sys/kernel/numa_balancing", "1\n");
    record("proc/meminfo", "MemTotal: 1048576 kB\nMemFree: 1 kB\nMemAvailable: 100000 kB\n");
    record("proc/cpuinfo", "processor : 0\nflags : fpu hypervisor avx2\n");
    read_machine("pack:1 [numa(memory=4GB)] core:2 pu:2");
    machine.cpu_quota = 1.5;
    farm_bitmap_clear(&machine.allowed, machine.cpu[3].cpu);
    farm_bw_disturbance_judge(&machine, root, NULL, NULL, &found);
    const char *const names[] = {"transparent_huge_pages", "huge_pages", "governor", "turbo", "memory",
                                 "numa_balancing",         "hypervisor", "quota",    "smt",   "partial"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct farm_bw_finding *finding = farm_bw_disturbance_find(&found, names[i]);
        cr_assert_not_null(finding, "%s", names[i]);
        cr_assert(finding->text[0] && finding->text[strlen(finding->text) - 1] == '.', "cut off: %s", finding->text);
    }
    cr_assert_eq(found.smt, 2);
    cr_assert_str_eq(found.hypervisor, "unknown");
}
