// See disturbance.h. proc(5), Documentation/admin-guide/pm/cpufreq.rst of the Linux sources.
#include "bw/disturbance.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/cgroup.h"
#include "base/file.h"
#include "base/time.h"
#include "shm/limits.h"
#if defined(__x86_64__)
#include <cpuid.h>
#endif

enum { PATH_BYTES = 4096, LINE_BYTES = 8192 };
static const double OTHERS_MOST = 0.05, STEAL_MOST = 0.02; // CPUs; a part of one CPU
static const uint64_t MEMORY_LEAST_BYTES = 512u << 20;

static bool is_allowed(const struct farm_machine *machine, int cpu) {
    return farm_bitmap_has(&machine->allowed, cpu);
}

// ---- moments ----

// "cpu3 user nice system idle iowait irq softirq steal guest guest_nice": guest time is in user's.
static void read_stat(const struct farm_machine *machine, const char *root, struct farm_bw_moment *moment) {
    char path[PATH_BYTES], line[LINE_BYTES];
    snprintf(path, sizeof path, "%s/proc/stat", root);
    FILE *file = fopen(path, "re");
    if (!file) return;
    while (fgets(line, sizeof line, file)) {
        int cpu;
        uint64_t t[8] = {0};
        if (strncmp(line, "cpu", 3) != 0 || line[3] < '0' || line[3] > '9') continue; // "cpu " is the sum of all
        if (sscanf(line,
                   "cpu%d %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64,
                   &cpu, &t[0], &t[1], &t[2], &t[3], &t[4], &t[5], &t[6], &t[7]) < 5 ||
            !is_allowed(machine, cpu))
            continue;
        moment->busy_ticks += t[0] + t[1] + t[2] + t[5] + t[6];
        moment->idle_ticks += t[3] + t[4];
        moment->steal_ticks += t[7];
    }
    fclose(file);
}

static uint64_t thermal_throttles(const struct farm_machine *machine, const char *root) {
    char line[64];
    uint64_t sum = 0;
    for (int cpu = farm_bitmap_next(&machine->allowed, 0); cpu >= 0;
         cpu = farm_bitmap_next(&machine->allowed, cpu + 1)) {
        if (!farm_file_line(line, sizeof line, "%s/sys/devices/system/cpu/cpu%d/thermal_throttle/core_throttle_count",
                            root, cpu))
            return 0;
        sum += strtoull(line, NULL, 10);
    }
    return sum;
}

static uint64_t timeval_ns(struct timeval time) {
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_usec * 1000u;
}

// CPU time: this process and all its descendants that have ended and were waited for.
static uint64_t own_ns(void) {
    struct rusage self = {0}, children = {0};
    getrusage(RUSAGE_SELF, &self);
    getrusage(RUSAGE_CHILDREN, &children);
    return timeval_ns(self.ru_utime) + timeval_ns(self.ru_stime) + timeval_ns(children.ru_utime) +
           timeval_ns(children.ru_stime);
}

void farm_bw_moment_now(const struct farm_machine *machine, const char *root, struct farm_bw_moment *moment) {
    *moment = (struct farm_bw_moment){.now_ns = farm_now_ns(), .own_ns = own_ns()};
    read_stat(machine, farm_file_root(root), moment);
    struct farm_cgroup_throttling throttling;
    farm_cgroup_read_throttling(farm_file_root(root), &throttling);
    moment->throttled_periods = throttling.periods;
    moment->throttled_ns = throttling.ns;
    moment->thermal_throttles = thermal_throttles(machine, farm_file_root(root));
}

// ---- findings ----

__attribute__((format(printf, 4, 5))) static void add_finding(struct farm_bw_disturbance *out, const char *name,
                                                              bool serious, const char *format, ...) {
    if (out->findings == FARM_BW_FINDINGS_MAX) return;
    struct farm_bw_finding *finding = &out->finding[out->findings++];
    *finding = (struct farm_bw_finding){.serious = serious, .name = name};
    va_list args;
    va_start(args, format);
    vsnprintf(finding->text, sizeof finding->text, format, args);
    va_end(args);
}

const struct farm_bw_finding *farm_bw_disturbance_find(const struct farm_bw_disturbance *disturbance,
                                                       const char *name) {
    for (int i = 0; i < disturbance->findings; i++)
        if (strcmp(disturbance->finding[i].name, name) == 0) return &disturbance->finding[i];
    return NULL;
}

static void judge_load(const struct farm_bw_moment *from, const struct farm_bw_moment *to,
                       struct farm_bw_disturbance *out) {
    if (!from || !to || to->now_ns <= from->now_ns) return;
    const double wall_s = (double)(to->now_ns - from->now_ns) * 1e-9, tick_s = 1 / (double)sysconf(_SC_CLK_TCK);
    const double busy_s = (double)(to->busy_ticks - from->busy_ticks) * tick_s,
                 own_s = (double)(to->own_ns - from->own_ns) * 1e-9;
    out->others_cpus = busy_s > own_s ? (busy_s - own_s) / wall_s : 0;
    out->steal_cpus = (double)(to->steal_ticks - from->steal_ticks) * tick_s / wall_s;
    out->throttled_periods = to->throttled_periods - from->throttled_periods;
    // A tick more or less, and the kernel's own work, do not count as load.
    if (out->others_cpus > OTHERS_MOST + 2 * tick_s / wall_s)
        add_finding(out, "load", true,
                    "Others took %.2f CPUs of these during the measurement: end them, or use other CPUs (taskset).",
                    out->others_cpus);
    if (out->steal_cpus > STEAL_MOST + 2 * tick_s / wall_s)
        add_finding(out, "steal", true, "The hypervisor took %.2f CPUs away during the measurement: its host is busy.",
                    out->steal_cpus);
    if (out->throttled_periods > 0)
        add_finding(out, "throttled", true,
                    "The control group's CPU quota stopped this process in %" PRIu64
                    " periods for %.0f ms: raise cpu.max.",
                    out->throttled_periods, (double)(to->throttled_ns - from->throttled_ns) * 1e-6);
    if (to->thermal_throttles > from->thermal_throttles)
        add_finding(out, "heat", true,
                    "The CPU slowed down %" PRIu64 " times for heat during the measurement: cool it.",
                    to->thermal_throttles - from->thermal_throttles);
}

static void judge_share(const struct farm_machine *machine, const char *root, struct farm_bw_disturbance *out) {
    const int allowed = farm_bitmap_count(&machine->allowed);
    if (machine->cpu_quota > 0 && machine->cpu_quota < allowed)
        add_finding(
            out, "quota", true,
            "A control group allows %.2f CPUs' time on %d CPUs: it will stop threads on all of them; raise cpu.max.",
            machine->cpu_quota, allowed);
    if (allowed < machine->cpu_count)
        add_finding(out, "partial", false,
                    "This process may use %d of the machine's %d CPUs: load on the others is not seen here, "
                    "and figures of all cores are of these.",
                    allowed, machine->cpu_count);
    const uint64_t left = farm_limits_memory_available_bytes(root);
    if (left < MEMORY_LEAST_BYTES || left < 12 * machine->l3_bytes)
        add_finding(out, "memory", true,
                    "%.2f GiB of memory are left: too little for three arrays beyond the caches; free some.",
                    (double)left / (1u << 30));
}

// ---- clocks ----

static void judge_clocks(const struct farm_machine *machine, const char *root, struct farm_bw_disturbance *out) {
    char line[LINE_BYTES];
    const int first = farm_bitmap_next(&machine->allowed, 0);
    farm_file_line(out->governor, sizeof out->governor, "%s/sys/devices/system/cpu/cpu%d/cpufreq/scaling_governor",
                   root, first);
    if (out->governor[0] && strcmp(out->governor, "performance") != 0)
        add_finding(out, "governor", true,
                    "The frequency governor is %s: clocks rise only after a while; as root: cpupower frequency-set -g "
                    "performance.",
                    out->governor);
    const bool turbo =
        farm_file_line(line, sizeof line, "%s/sys/devices/system/cpu/intel_pstate/no_turbo", root) ? line[0] == '0'
        : farm_file_line(line, sizeof line, "%s/sys/devices/system/cpu/cpufreq/boost", root)       ? line[0] == '1'
                                                                                                   : false;
    if (turbo)
        add_finding(out, "turbo", false,
                    "Turbo is on: caches are faster on one core than on all, and vary with heat; memory hardly does.");
}

// "cpu MHz : 2445.363" of the allowed CPUs, and whether there is a hypervisor.
static bool read_cpuinfo(const struct farm_machine *machine, const char *root, struct farm_bw_disturbance *out) {
    char path[PATH_BYTES], line[LINE_BYTES];
    bool guest = false;
    int cpu = -1;
    double mhz;
    snprintf(path, sizeof path, "%s/proc/cpuinfo", root);
    FILE *file = fopen(path, "re");
    if (!file) return false;
    while (fgets(line, sizeof line, file)) {
        sscanf(line, "processor : %d", &cpu);
        if (strncmp(line, "flags", 5) == 0 && strstr(line, " hypervisor")) guest = true;
        if (sscanf(line, "cpu MHz : %lf", &mhz) != 1 || !is_allowed(machine, cpu)) continue;
        if (out->ghz_most < mhz / 1000) out->ghz_most = mhz / 1000;
        if (out->ghz_least == 0 || out->ghz_least > mhz / 1000) out->ghz_least = mhz / 1000;
    }
    fclose(file);
    return guest;
}

// ---- the kind of machine ----

static void name_hypervisor(const char *root, struct farm_bw_disturbance *out) {
    snprintf(out->hypervisor, sizeof out->hypervisor, "unknown");
#if defined(__x86_64__)
    static const struct {
        const char *signature, *name;
    } known[] = {{"KVMKVMKVM", "KVM"},      {"Microsoft Hv", "Hyper-V"}, {"VMwareVMware", "VMware"},
                 {"XenVMMXenVMM", "Xen"},   {"TCGTCGTCGTCG", "QEMU"},    {"VBoxVBoxVBox", "VirtualBox"},
                 {"bhyve bhyve ", "bhyve"}, {"ACRNACRNACRN", "ACRN"}};
    uint32_t leaf, signature[4] = {0};
    if (root[0]) return; // a recorded machine, not this CPU's
    __cpuid(0x40000000u, leaf, signature[0], signature[1], signature[2]);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp((const char *)signature, known[i].signature) == 0)
            snprintf(out->hypervisor, sizeof out->hypervisor, "%s", known[i].name);
#endif
}

static void judge_kind(const struct farm_machine *machine, const char *root, struct farm_bw_disturbance *out) {
    char line[128];
    bool guest = read_cpuinfo(machine, root, out);
    guest |= farm_file_line(line, sizeof line, "%s/sys/hypervisor/type", root) && line[0];
    if (guest) {
        name_hypervisor(root, out);
        add_finding(out, "hypervisor", false,
                    "A virtual machine (%s): neighbours share caches and memory unseen, and CPUs and nodes may not be "
                    "real ones.",
                    out->hypervisor);
    }
    out->smt = 1;
    for (int i = 0; i < machine->cpu_count; i++)
        if (is_allowed(machine, machine->cpu[i].cpu) && machine->cpu[i].smt + 1 > out->smt)
            out->smt = machine->cpu[i].smt + 1;
    if (out->smt > 1)
        add_finding(out, "smt", false,
                    "%d threads a core: figures are of one thread a core; work on its sibling slows it down.",
                    out->smt);
}

// ---- pages ----

static void judge_pages(const char *root, struct farm_bw_disturbance *out) {
    char line[128];
    farm_file_line(line, sizeof line, "%s/sys/kernel/mm/transparent_hugepage/enabled", root);
    const char *choice = farm_file_choice(line);
    snprintf(out->thp, sizeof out->thp, "%s", choice ? choice : "");
    if (strcmp(out->thp, "never") == 0)
        add_finding(out, "transparent_huge_pages", false,
                    "Transparent huge pages are off (never): latencies include misses of the TLB; as root: echo "
                    "madvise > /sys/kernel/mm/transparent_hugepage/enabled.");
    if (farm_limits_huge_available_bytes(root, -1) == 0)
        add_finding(out, "huge_pages", false,
                    "The pool of 2 MiB pages is empty: those and 1 GiB pages are not measured (vm.nr_hugepages).");
    if (farm_file_line(line, sizeof line, "%s/proc/sys/kernel/numa_balancing", root) && line[0] != '0')
        add_finding(out, "numa_balancing", false,
                    "Automatic NUMA balancing is on: the kernel unmaps pages to sample accesses; as root: sysctl "
                    "kernel.numa_balancing=0.");
}

void farm_bw_disturbance_judge(const struct farm_machine *machine, const char *root, const struct farm_bw_moment *from,
                               const struct farm_bw_moment *to, struct farm_bw_disturbance *out) {
    *out = (struct farm_bw_disturbance){0};
    judge_load(from, to, out);
    judge_share(machine, root, out);
    judge_clocks(machine, farm_file_root(root), out);
    judge_kind(machine, farm_file_root(root), out);
    judge_pages(farm_file_root(root), out);
}
