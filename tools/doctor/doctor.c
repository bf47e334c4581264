// `farm doctor`: looks at what the farm needs and what makes it fast, and says how to mend what is missing or set
// badly. Changes nothing, starts nothing but the Python part's own answer. Exit status 0 when the farm can run. With a
// plug-in named, it looks at that instead: farm_doctor_plugin.h.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/cli.h"
#include "base/file.h"
#include "base/json.h"
#include "base/paths.h"
#include "envs/registry.h"
#include "shm/limits.h"
#include "shm/place.h"
#include "tools/doctor/gpu.h"
#include "tools/doctor/plugin.h"
#include "tools/report.h"
#include "tools/shared/command.h"
#include "topo/machine.h"

enum {
    FINDINGS_MAX = 32,
    NOFILE_COMFORTABLE = 4096,
    TEXT_BYTES = 256,
    FOUND_BYTES = 800,
    HANG_SECONDS = 30,
    DOCTOR_STEPS_MIN = 16,
    DOCTOR_STEPS_MAX = 1 << 24,
};

enum grade {
    GRADE_GOOD,
    GRADE_SLOW,    // runs, but slower than it could
    GRADE_WITHOUT, // runs, but without a part
    GRADE_BROKEN,  // cannot run
};

static const char *const grade_names[] = {"good", "slow", "without", "broken"};

struct finding {
    const char *name;
    enum grade grade;
    char found[FOUND_BYTES];
    const char *mend; // what to do, NULL where there is nothing to do
};

struct findings {
    struct finding list[FINDINGS_MAX];
    size_t count;
};

static void __attribute__((format(printf, 5, 6)))
note(struct findings *findings, const char *name, enum grade grade, const char *mend, const char *format, ...) {
    if (findings->count == FINDINGS_MAX) return;
    struct finding *finding = &findings->list[findings->count++];
    va_list args;
    va_start(args, format);
    vsnprintf(finding->found, sizeof finding->found, format, args);
    va_end(args);
    finding->name = name;
    finding->grade = grade;
    finding->mend = grade == GRADE_GOOD ? NULL : mend;
}

// ---- what the farm cannot do without ----

static void look_at_kernel(struct findings *findings) {
    int fd = pidfd_open(getpid(), 0);
    bool works = fd >= 0 && close_range(~0u, ~0u, 0) == 0;
    if (fd >= 0) close(fd);
    note(findings, "kernel", works ? GRADE_GOOD : GRADE_BROKEN,
         "Linux 5.9 or later is needed (pidfd_open, close_range); a container's seccomp filter may forbid them",
         works ? "has what the supervisor needs" : "pidfd_open or close_range is refused");
}

static void look_at_memory(struct findings *findings, const struct farm_machine *machine) {
    uint64_t available = farm_limits_memory_available_bytes("/");
    note(findings, "memory", available >= 512u << 20 ? GRADE_GOOD : GRADE_BROKEN,
         "free some memory, or raise the control group's limit (memory.max, docker --memory)", "%.1f GB can be had%s",
         (double)available / 1e9, machine->memory_limit_bytes != UINT64_MAX ? ", limited by a control group" : "");
}

static void look_at_files(struct findings *findings) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    note(findings, "open files", limit.rlim_max >= NOFILE_COMFORTABLE ? GRADE_GOOD : GRADE_WITHOUT,
         "many actors need more: `ulimit -Hn 65536`, LimitNOFILE= of the service, docker --ulimit nofile=65536",
         "limit %llu (hard)", (unsigned long long)limit.rlim_max);
}

static void look_at_recipes(struct findings *findings) {
    char path[4096] = "not found";
    bool found = farm_path_recipes(path, sizeof path);
    note(findings, "recipes", found ? GRADE_GOOD : GRADE_WITHOUT,
         "run the binary from its build folder, `make install`, or set FARM_RECIPES", "%.400s", path);
}

// ---- parts ----

static void look_at_environments(struct findings *findings) {
    struct farm_env_list list;
    struct farm_error err;
    if (farm_env_list_make(&list, &err)) return;
    note(findings, "environments", list.missing[0] ? GRADE_WITHOUT : GRADE_GOOD,
         "`make deps`, then `make`: the Python environment with ale-py", "%zu can run here (farm envs)%s%s", list.count,
         list.missing[0] ? "; not here: " : "", list.missing);
    farm_env_list_free(&list);
}

// A line a part, where there is a GPU that would use it.
static void look_at_cuda(struct findings *findings, const struct farm_doctor_gpu *cuda) {
    const struct farm_cuda_probed *of = &cuda->cuda;
    const bool needed = of->gpus > 1;
    const struct part {
        const char *name;
        const struct farm_cuda_found *found;
        const char *mend;
    } parts[] = {
        {"CUDA backend", &cuda->backend,
         "`make deps`, then `make`, builds libfarm_cuda.so; FARM_CUDA_BACKEND names another"},
        {"cuDNN, cuBLASLt", &of->cublaslt_and_cudnn,
         "pip install nvidia-cudnn-cu13 nvidia-cublas (PyTorch brings them); FARM_CUDA_LIBS names their folder or "
         "site-packages"},
        {"NCCL", &of->nccl,
         "for several GPUs: pip install nvidia-nccl-cu13 (PyTorch brings it); FARM_CUDA_LIBS names its folder or "
         "site-packages"},
    };
    for (size_t i = 0; i < (cuda->backend.status ? 1 : sizeof parts / sizeof *parts); i++) {
        const struct farm_cuda_found *found = parts[i].found;
        if (found == &of->nccl && found->status && !needed)
            note(findings, parts[i].name, GRADE_GOOD, NULL, "not there; matters with several GPUs only");
        else
            note(findings, parts[i].name, found->status ? GRADE_WITHOUT : GRADE_GOOD, parts[i].mend, "%s", found->text);
    }
}

static void look_at_gpu(struct findings *findings, const struct farm_machine *machine, double limit_s) {
    static const char mend[] = "install or update NVIDIA's driver, or give the container the GPUs (docker --gpus all)";
    struct farm_doctor_gpu cuda;
    struct farm_error err;
    if (machine->gpu_count == 0 && !farm_path_gpu()) {
        note(findings, "GPU", GRADE_GOOD, NULL, "none: the learner runs on the CPU");
        return;
    }
    if (farm_doctor_gpu_look(limit_s, &cuda, &err)) {
        note(findings, "GPU", GRADE_WITHOUT, "nvidia-smi and dmesg may say why; a driver that hangs wants a restart",
             "%s", err.message);
        return;
    }
    if (cuda.backend.status)
        note(findings, "GPU", cuda.driver ? GRADE_GOOD : GRADE_WITHOUT, mend, "%d (%s); the driver's library is %s",
             machine->gpu_count, machine->gpu_count ? machine->gpu[0].name : "none among the PCI devices",
             cuda.driver ? "there" : "not there");
    else
        note(findings, "GPU", cuda.cuda.gpu.status ? GRADE_WITHOUT : GRADE_GOOD, mend, "%s", cuda.cuda.gpu.text);
    if (machine->gpu_count || cuda.cuda.gpus || cuda.backend.status) look_at_cuda(findings, &cuda);
}

static void look_at_memlock(struct findings *findings, const struct farm_machine *machine) {
    struct rlimit limit;
    getrlimit(RLIMIT_MEMLOCK, &limit);
    bool enough = limit.rlim_cur == RLIM_INFINITY || machine->gpu_count == 0;
    if (limit.rlim_cur == RLIM_INFINITY) {
        note(findings, "locked memory", GRADE_GOOD, NULL, "unlimited");
    } else {
        note(findings, "locked memory", enough ? GRADE_GOOD : GRADE_SLOW,
             "a GPU reads registered memory faster: `ulimit -l unlimited`, docker --ulimit memlock=-1",
             "limit %llu kB%s", (unsigned long long)limit.rlim_cur / 1000,
             machine->gpu_count ? "" : "; matters with a GPU only");
    }
}

// ---- speed ----

// Whether this kernel puts shared memory together to 2 MiB pages, tried on one.
static bool collapses(void) {
    int fd = memfd_create("farm-doctor", MFD_CLOEXEC);
    void *block = NULL;
    if (fd >= 0 && ftruncate(fd, FARM_PLACE_HUGE_BYTES) == 0)
        block = farm_place_map(fd, PROT_READ | PROT_WRITE, FARM_PLACE_HUGE_BYTES, FARM_PLACE_HUGE_BYTES);
    if (block) farm_place_collapse(block, FARM_PLACE_HUGE_BYTES);
    const bool given = block && farm_place_transparent_bytes(block) == FARM_PLACE_HUGE_BYTES;
    if (block) munmap(block, FARM_PLACE_HUGE_BYTES);
    if (fd >= 0) close(fd);
    return given;
}

static void look_at_huge_pages(struct findings *findings) {
    char line[TEXT_BYTES];
    const bool together = collapses();
    if (!farm_file_line(line, sizeof line, "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")) {
        note(findings, "huge pages", GRADE_GOOD, NULL, "the kernel has no pool of 2 MiB pages");
    } else {
        note(findings, "huge pages", atol(line) > 0 || together ? GRADE_GOOD : GRADE_SLOW,
             "as root: sysctl vm.nr_hugepages=256 (512 MB; as much as the plan's shared memory)",
             "%s of 2 MiB are free in the pool%s", line, together ? "; transparent ones do as well" : "");
    }
    if (!farm_file_line(line, sizeof line, "/sys/kernel/mm/transparent_hugepage/shmem_enabled")) return;
    const bool off = strstr(line, "[never]") || strstr(line, "[deny]");
    note(findings, "transparent huge pages", off && !together ? GRADE_SLOW : GRADE_GOOD,
         "as root: echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled (unless huge pages are reserved)",
         "shared memory is %sput together to 2 MiB pages; shmem_enabled: %s", together ? "" : "not ", line);
}

static void look_at_numa_balancing(struct findings *findings, const struct farm_machine *machine) {
    char line[TEXT_BYTES];
    if (machine->node_count < 2 || !farm_file_line(line, sizeof line, "/proc/sys/kernel/numa_balancing")) return;
    note(findings, "NUMA balancing", atoi(line) == 0 ? GRADE_GOOD : GRADE_SLOW,
         "as root: sysctl kernel.numa_balancing=0 (it moves and unmaps pages under running actors)",
         atoi(line) == 0 ? "off" : "on");
}

static void look_at_governor(struct findings *findings) {
    char line[TEXT_BYTES];
    if (!farm_file_line(line, sizeof line, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")) return;
    bool slow = strcmp(line, "powersave") == 0 || strcmp(line, "ondemand") == 0 || strcmp(line, "conservative") == 0;
    note(findings, "CPU frequency", slow ? GRADE_SLOW : GRADE_GOOD, "as root: cpupower frequency-set -g performance",
         "governor %s", line);
}

static void look_at_cpus(struct findings *findings, const struct farm_machine *machine) {
    int allowed = farm_bitmap_count(&machine->allowed);
    bool quota = machine->cpu_quota > 0 && machine->cpu_quota < allowed;
    if (quota) {
        note(findings, "CPUs", GRADE_SLOW, "give whole CPUs instead of a quota: docker --cpuset-cpus, cpuset.cpus",
             "%d may be used, but a control group's quota allows %.2g CPUs' worth of time", allowed,
             machine->cpu_quota);
    } else {
        note(findings, "CPUs", GRADE_GOOD, NULL, "%d of %d may be used", allowed, machine->cpu_count);
    }
}

// ---- telling ----

static enum farm_status look(struct findings *findings, double limit_s, struct farm_error *err) {
    struct farm_machine *machine = calloc(1, sizeof *machine);
    if (!machine) return farm_fail_errno(err, FARM_E_LIMIT, "farm doctor");
    enum farm_status status = farm_machine_read(machine, &(struct farm_machine_source){0}, err);
    if (!status) {
        look_at_kernel(findings);
        look_at_cpus(findings, machine);
        look_at_memory(findings, machine);
        look_at_files(findings);
        look_at_recipes(findings);
        look_at_environments(findings);
        look_at_gpu(findings, machine, limit_s);
        look_at_huge_pages(findings);
        look_at_memlock(findings, machine);
        look_at_numa_balancing(findings, machine);
        look_at_governor(findings);
    }
    free(machine);
    return status;
}

static bool can_run(const struct findings *findings) {
    for (size_t i = 0; i < findings->count; i++)
        if (findings->list[i].grade == GRADE_BROKEN) return false;
    return true;
}

static json_t *findings_json(const struct findings *findings) {
    json_t *document = farm_json_object(true), *list = json_array();
    farm_json_set_bool(document, "can_run", can_run(findings));
    for (size_t i = 0; i < findings->count; i++) {
        json_t *entry = farm_json_object(false);
        farm_json_set_text(entry, "name", findings->list[i].name);
        farm_json_set_text(entry, "grade", grade_names[findings->list[i].grade]);
        farm_json_set_text(entry, "found", findings->list[i].found);
        farm_json_set_text(entry, "mend", findings->list[i].mend);
        json_array_append_new(list, entry);
    }
    farm_json_set(document, "findings", list);
    return document;
}

enum farm_status farm_doctor_document(json_t **document, struct farm_error *err) {
    struct findings *findings = calloc(1, sizeof *findings);
    if (!findings) return farm_fail_errno(err, FARM_E_LIMIT, "farm doctor");
    enum farm_status status = look(findings, HANG_SECONDS, err);
    if (!status) *document = findings_json(findings);
    free(findings);
    return status;
}

static void print_list(const struct findings *findings) {
    for (size_t i = 0; i < findings->count; i++) {
        const struct finding *finding = &findings->list[i];
        printf("%-8s %-24s %s\n", grade_names[finding->grade], finding->name, finding->found);
        if (finding->mend) printf("%-33s -> %s\n", "", finding->mend);
    }
    printf("\n%s\n", can_run(findings) ? "The farm can run here. Try: farm train"
                                       : "The farm cannot run here: mend what is marked broken.");
}

static int check_machine(bool json, double hang_seconds) {
    struct farm_error err;
    struct findings *findings = calloc(1, sizeof *findings);
    enum farm_status status = findings ? FARM_OK : farm_fail_errno(&err, FARM_E_LIMIT, "farm doctor");
    if (!status) status = look(findings, hang_seconds, &err);
    if (!status && json) {
        json_t *document = findings_json(findings);
        status = farm_json_print(document, stdout, &err);
        json_decref(document);
    }
    if (!status && !json) print_list(findings);
    const bool runs = !status && can_run(findings);
    free(findings);
    if (status) return farm_report_error("farm doctor", &err);
    return runs ? 0 : 1;
}

static int check_plugin(const struct farm_doctor_request *request) {
    struct farm_error err;
    bool sound = true;
    enum farm_status status = FARM_OK;
    if (request->steps < DOCTOR_STEPS_MIN || request->steps > DOCTOR_STEPS_MAX)
        status = farm_fail(&err, FARM_E_USAGE, "--steps %lld: %d to %d are possible", (long long)request->steps,
                           DOCTOR_STEPS_MIN, DOCTOR_STEPS_MAX);
    if (!status) status = farm_doctor_plugin(request, &sound, &err);
    if (status) return farm_report_error("farm doctor", &err);
    return sound ? 0 : 1;
}

int farm_cmd_doctor(int argc, char **argv) {
    struct farm_doctor_request request = {.steps = 1000, .hang_seconds = HANG_SECONDS};
    const struct farm_cli_flag flags[] = {
        {"json", FARM_CLI_BOOL, &request.json, NULL, "one JSON document on stdout"},
        {"env", FARM_CLI_STRING, &request.env, "NAME", "of a plug-in: this environment alone"},
        {"check", FARM_CLI_STRING, &request.check, "NAME", "of a plug-in: this check alone, and those that it needs"},
        {"steps", FARM_CLI_INT, &request.steps, "N", "of a plug-in: calls that a check makes (1000, or half a second)"},
        {"hang-seconds", FARM_CLI_DOUBLE, &request.hang_seconds, "S",
         "a call of a plug-in, or of the GPU's driver, that takes longer hangs (30)"},
    };
    const struct farm_cli cli = {
        .program = "farm doctor",
        .synopsis = "[PLUGIN.so | native/NAME] [--option KEY=VALUE ...] [--json]",
        .about = "Says what is missing or set badly on this machine, and how to mend it. Changes nothing.\n"
                 "good: as it should be; slow: runs, but could be faster; without: runs, but a part is\n"
                 "missing; broken: cannot run (exit status 1).\n\n"
                 "With a plug-in (or an environment that is built in): whether it keeps the contract of\n"
                 "farm/env.h; exit status 1 where something is broken. --option gives it an option, as\n"
                 "--env.KEY VALUE does for farm train.",
        .examples = "  farm doctor\n  farm doctor ./mygame.so --option size=9\n  farm doctor native/breakout --json\n",
        .flags = flags,
        .flag_count = sizeof flags / sizeof *flags,
        .other = farm_doctor_option,
        .context = &request};
    struct farm_error err;
    size_t words = 0;
    int exit_status;
    enum farm_status status = FARM_OK;
    if (!farm_read_flags(&cli, argc, argv, &request.target, 1, &words, &exit_status)) return exit_status;
    if (!words && (request.env || request.check || request.option_count))
        status =
            farm_fail(&err, FARM_E_USAGE, "--env, --check and --option belong to a plug-in: farm doctor PLUGIN.so ...");
    if (!status && !(request.hang_seconds > 0))
        status = farm_fail(&err, FARM_E_USAGE, "--hang-seconds %g: more than 0", request.hang_seconds);
    if (status) return farm_report_error("farm doctor", &err);
    return words ? check_plugin(&request) : check_machine(request.json, request.hang_seconds);
}
