// `farm doctor`: checks what the farm needs and what makes it fast, and prints how to mend what is missing or set
// badly. Changes nothing. Exit status 0 if the farm can run. For a plug-in see plugin.h.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/cli.h"
#include "base/confine.h"
#include "base/file.h"
#include "base/json.h"
#include "base/paths.h"
#include "base/pidfd.h"
#include "envs/registry.h"
#include "shm/limits.h"
#include "shm/segment.h"
#include "tools/doctor/findings.h"
#include "tools/doctor/gpu.h"
#include "tools/doctor/plugin.h"
#include "tools/report.h"
#include "tools/shared/command.h"
#include "topo/machine.h"

enum {
    NOFILE_COMFORTABLE = 4096,
    TEXT_BYTES = 256,
    HANG_SECONDS = 30,
    DOCTOR_STEPS_MIN = 16,
    DOCTOR_STEPS_MAX = 1 << 24,
    RUN_BYTES = 512 << 20, // what a run with two actors and a net over frames needs, amply
};

// Grades.
static const char GOOD[] = "good";
static const char SLOW[] = "slow";       // runs, but slower than it could
static const char WITHOUT[] = "without"; // runs, but without a part
static const char BROKEN[] = "broken";   // cannot run

// ---- what the farm cannot do without ----

static void check_kernel(json_t *findings) {
    int fd = farm_pidfd_open(getpid());
    bool works = fd >= 0;
    if (works) close(fd);
    farm_findings_add(findings, "kernel", works ? GOOD : BROKEN,
                      "Linux 5.4 or later is needed (pidfd_open); a container's seccomp filter may forbid it: "
                      "Docker 20.10 with libseccomp 2.5 allows it",
                      works ? "has what the supervisor needs" : "pidfd_open is refused");
}

static void check_memory(json_t *findings, const struct farm_machine *machine) {
    const uint64_t available = farm_limits_memory_available_bytes("/");
    struct farm_error err;
    if (farm_limits_check_run("/", RUN_BYTES, RUN_BYTES, &err))
        farm_findings_add(findings, "memory", BROKEN, "small networks and few actors may still fit", "%s", err.message);
    else
        farm_findings_add(findings, "memory", GOOD, NULL, "%.1f GB are available%s", (double)available / 1e9,
                          machine->memory_limit_bytes != UINT64_MAX ? ", limited by a control group" : "");
}

static void check_files(json_t *findings) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    farm_findings_add(
        findings, "open files", limit.rlim_max >= NOFILE_COMFORTABLE ? GOOD : WITHOUT,
        "many actors need more: `ulimit -Hn 65536`, LimitNOFILE= of the service, docker --ulimit nofile=65536",
        "limit %llu (hard)", (unsigned long long)limit.rlim_max);
}

static void check_confinement(json_t *findings) {
    char lacks[256];
    const bool whole = !farm_confine_lacks(lacks, sizeof lacks);
    farm_findings_add(findings, "confinement", whole ? GOOD : WITHOUT,
                      "Linux 6.12 or later, with landlock in CONFIG_LSM or lsm= at boot; a container's seccomp filter "
                      "must allow landlock_* (Docker 23 does)",
                      "%s", whole ? "the bridge, and environments by --confine" : lacks);
}

static void check_recipes(json_t *findings) {
    char path[4096];
    struct farm_error err;
    const bool found = farm_path_recipes(path, sizeof path, &err) == FARM_OK;
    farm_findings_add(findings, "recipes", found ? GOOD : WITHOUT,
                      "run the binary from its build folder, `make install`, or set FARM_RECIPES", "%.400s",
                      found ? path : err.message);
}

// ---- parts ----

static void check_environments(json_t *findings, double start_s) {
    struct farm_env_list list;
    struct farm_error err;
    if (farm_env_list_make(&list, start_s, &err)) return;
    farm_findings_add(findings, "environments", list.missing[0] ? WITHOUT : GOOD,
                      strstr(list.missing, "permission denied")
                          ? "open the folder to this user, or name a Python by FARM_PYTHON that it may run"
                          : farm_path_choose("`make deps`, then `make`: the Python environment with ale-py",
                                             "`farm setup`: the Python environment with ale-py"),
                      "%zu can run here (farm envs)%s%s", list.count, list.missing[0] ? "; not here: " : "",
                      list.missing);
    farm_env_list_free(&list);
}

// One finding per part that a GPU needs.
static void check_cuda(json_t *findings, const struct farm_doctor_gpu *cuda) {
    const struct farm_cuda_probed *of = &cuda->cuda;
    const bool needed = of->gpus > 1;
    const struct part {
        const char *name;
        const struct farm_cuda_found *found;
        const char *mend;
    } parts[] = {
        {"CUDA backend", &cuda->backend,
         farm_path_choose("`make deps`, then `make`, builds libfarm_cuda.so; FARM_CUDA_BACKEND names another",
                          FARM_PATH_INSTALL_ALL " adds libfarm_cuda.so; FARM_CUDA_BACKEND names another")},
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
            farm_findings_add(findings, parts[i].name, GOOD, NULL, "missing; needed for several GPUs only");
        else
            farm_findings_add(findings, parts[i].name, found->status ? WITHOUT : GOOD, parts[i].mend, "%s",
                              found->text);
    }
}

static void check_gpu(json_t *findings, const struct farm_machine *machine, double limit_s) {
    static const char mend[] = "install or update NVIDIA's driver, or give the container the GPUs (docker --gpus all)";
    struct farm_doctor_gpu cuda;
    struct farm_error err;
    if (machine->gpu_count == 0 && !farm_path_gpu()) {
        farm_findings_add(findings, "GPU", GOOD, NULL, "none: the learner runs on the CPU");
        return;
    }
    if (farm_doctor_gpu_probe(limit_s, &cuda, &err)) {
        farm_findings_add(findings, "GPU", WITHOUT,
                          "nvidia-smi and dmesg may show the reason; a driver that hangs needs a restart", "%s",
                          err.message);
        return;
    }
    if (cuda.backend.status)
        farm_findings_add(findings, "GPU", cuda.driver ? GOOD : WITHOUT, mend, "%d (%s); the driver's library is %s",
                          machine->gpu_count, machine->gpu_count ? machine->gpu[0].name : "none among the PCI devices",
                          cuda.driver ? "present" : "missing");
    else
        farm_findings_add(findings, "GPU", cuda.cuda.gpu.status ? WITHOUT : GOOD, mend, "%s", cuda.cuda.gpu.text);
    if (machine->gpu_count || cuda.cuda.gpus || cuda.backend.status) check_cuda(findings, &cuda);
}

static void check_memlock(json_t *findings, const struct farm_machine *machine) {
    struct rlimit limit;
    getrlimit(RLIMIT_MEMLOCK, &limit);
    bool enough = limit.rlim_cur == RLIM_INFINITY || machine->gpu_count == 0;
    if (limit.rlim_cur == RLIM_INFINITY) {
        farm_findings_add(findings, "locked memory", GOOD, NULL, "unlimited");
    } else {
        farm_findings_add(findings, "locked memory", enough ? GOOD : SLOW,
                          "a GPU reads registered memory faster: `ulimit -l unlimited`, docker --ulimit memlock=-1",
                          "limit %llu kB%s", (unsigned long long)limit.rlim_cur / 1000,
                          machine->gpu_count ? "" : "; matters with a GPU only");
    }
}

// ---- speed ----

// Makes as much shared memory as it takes for the pages to matter, as a run does, and judges it as a run does.
static void check_huge_pages(json_t *findings) {
    const struct farm_segment_request request = {
        .kind = FARM_SEGMENT_STATS, .bytes = FARM_SEGMENT_PAGES_COST_BYTES, .node = -1, .huge = true};
    const struct farm_segment *segments[1];
    struct farm_segment segment;
    struct farm_error err;
    char text[768];
    if (farm_segment_create(&request, &segment, &err)) {
        farm_findings_add(findings, "huge pages", WITHOUT, "free some memory, or raise the limit",
                          "cannot be tried: %s", err.message);
        return;
    }
    segments[0] = &segment;
    const bool costs = farm_segment_pages_cost(segments, 1, text, sizeof text);
    if (!costs) farm_segment_describe(&segment, text, sizeof text);
    farm_segment_close(&segment);
    farm_findings_add(
        findings, "huge pages", costs ? SLOW : GOOD,
        "as root: sysctl vm.nr_hugepages=256 (512 MB; as much as the plan's shared memory), or echo advise > "
        "/sys/kernel/mm/transparent_hugepage/shmem_enabled; runs with less shared memory than this lose "
        "nothing",
        "%s", costs ? text : strstr(text, ": ") + 2);
}

static void check_numa_balancing(json_t *findings, const struct farm_machine *machine) {
    char line[TEXT_BYTES];
    if (machine->node_count < 2 || !farm_file_line(line, sizeof line, "/proc/sys/kernel/numa_balancing")) return;
    farm_findings_add(findings, "NUMA balancing", atoi(line) == 0 ? GOOD : SLOW,
                      "as root: sysctl kernel.numa_balancing=0 (it moves and unmaps pages under running actors)",
                      atoi(line) == 0 ? "off" : "on");
}

static void check_governor(json_t *findings) {
    char line[TEXT_BYTES];
    if (!farm_file_line(line, sizeof line, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")) return;
    bool slow = strcmp(line, "powersave") == 0 || strcmp(line, "ondemand") == 0 || strcmp(line, "conservative") == 0;
    farm_findings_add(findings, "CPU frequency", slow ? SLOW : GOOD, "as root: cpupower frequency-set -g performance",
                      "governor %s", line);
}

static void check_cpus(json_t *findings, const struct farm_machine *machine) {
    int allowed = farm_bitmap_count(&machine->allowed);
    bool quota = machine->cpu_quota > 0 && machine->cpu_quota < allowed;
    if (quota) {
        farm_findings_add(
            findings, "CPUs", SLOW, "give whole CPUs instead of a quota: docker --cpuset-cpus, cpuset.cpus",
            "%d may be used, but a control group's quota allows %.2g CPUs' worth of time", allowed, machine->cpu_quota);
    } else {
        farm_findings_add(findings, "CPUs", GOOD, NULL, "%d of %d may be used", allowed, machine->cpu_count);
    }
}

// ---- the document ----

static enum farm_status check_all(json_t *findings, double start_s, double limit_s, struct farm_error *err) {
    struct farm_machine *machine = calloc(1, sizeof *machine);
    if (!machine) return farm_fail_errno(err, FARM_E_LIMIT, "farm doctor");
    enum farm_status status = farm_machine_read(machine, &(struct farm_machine_source){0}, err);
    if (!status) {
        check_kernel(findings);
        check_cpus(findings, machine);
        check_memory(findings, machine);
        check_files(findings);
        check_confinement(findings);
        check_recipes(findings);
        check_environments(findings, start_s);
        check_gpu(findings, machine, limit_s);
        check_huge_pages(findings);
        check_memlock(findings, machine);
        check_numa_balancing(findings, machine);
        check_governor(findings);
    }
    free(machine);
    return status;
}

static enum farm_status make_document(json_t **document, double start_s, double limit_s, struct farm_error *err) {
    size_t index;
    const json_t *finding;
    bool can_run = true;
    json_t *findings = json_array();
    enum farm_status status = check_all(findings, start_s, limit_s, err);
    if (status) {
        json_decref(findings);
        return status;
    }
    json_array_foreach(findings, index, finding) {
        can_run &= strcmp(json_string_value(json_object_get(finding, "grade")), BROKEN) != 0;
    }
    *document = farm_json_object(true);
    farm_json_set_bool(*document, "can_run", can_run);
    farm_json_set(*document, "findings", findings);
    return FARM_OK;
}

enum farm_status farm_doctor_document(json_t **document, struct farm_error *err) {
    return make_document(document, 0, HANG_SECONDS, err);
}

static void print_document(const json_t *document) {
    size_t index;
    const json_t *finding;
    json_array_foreach(json_object_get(document, "findings"), index, finding) {
        farm_findings_print(finding);
    }
    printf("\n%s\n", json_is_true(json_object_get(document, "can_run"))
                         ? "The farm can run here. Try: farm train"
                         : "The farm cannot run here: mend what is marked broken.");
}

// ---- the command ----

static int check_machine(const struct farm_doctor_request *request) {
    struct farm_error err;
    json_t *document = NULL;
    enum farm_status status = make_document(&document, request->start_seconds, request->hang_seconds, &err);
    if (!status && request->json) status = farm_json_print(document, stdout, &err);
    if (!status && !request->json) print_document(document);
    const bool can_run = json_is_true(json_object_get(document, "can_run"));
    json_decref(document);
    if (status) return farm_report_error("farm doctor", &err);
    return can_run ? 0 : 1;
}

static int check_plugin(const struct farm_doctor_request *request) {
    struct farm_error err;
    bool sound = true;
    enum farm_status status = FARM_OK;
    if (request->steps < DOCTOR_STEPS_MIN || request->steps > DOCTOR_STEPS_MAX)
        status = farm_fail(&err, FARM_E_USAGE, "--steps must be %d to %d (got %lld)", DOCTOR_STEPS_MIN,
                           DOCTOR_STEPS_MAX, (long long)request->steps);
    if (!status) status = farm_doctor_plugin(request, &sound, &err);
    if (status) return farm_report_error("farm doctor", &err);
    return sound ? 0 : 1;
}

int farm_cmd_doctor(int argc, char **argv) {
    struct farm_doctor_request request = {.steps = 1000, .hang_seconds = HANG_SECONDS};
    struct farm_recipe standard;
    const struct farm_cli_flag flags[] = {
        {"json", FARM_CLI_BOOL, &request.json, NULL, "one JSON document on stdout"},
        {"env", FARM_CLI_STRING, &request.env, "NAME", "of a plug-in: only this environment"},
        {"check", FARM_CLI_STRING, &request.check, "NAME", "of a plug-in: only this check, and those that it needs"},
        {"steps", FARM_CLI_INT, &request.steps, "N", "of a plug-in: calls that a check makes (1000, or half a second)"},
        {"start-seconds", FARM_CLI_DOUBLE, &request.start_seconds, "S",
         "limit of a program that reads spaces, and of an environment that is made (60)"},
        {"hang-seconds", FARM_CLI_DOUBLE, &request.hang_seconds, "S",
         "limit of a call of a plug-in or of the GPU's driver (30)"},
    };
    const struct farm_cli cli = {
        .program = "farm doctor",
        .synopsis = "[PLUGIN.so | native/NAME | ale/GAME | gym/ID] [--option KEY=VALUE ...] [--json]",
        .about =
            "Prints what is missing or set badly on this machine, and how to mend it. Changes nothing.\n"
            "good: as it should be; slow: runs, but could be faster; without: runs, but a part is\n"
            "missing; broken: cannot run (exit status 1).\n\n"
            "With an environment: checks that it keeps the contract of farm/env.h, in Python as far as it applies\n"
            "there (through the actor that trains it); exit status 1 if something is broken. --option sets an\n"
            "option, as --env.KEY VALUE does for farm train; --obs-keep, --obs-drop and --wrap\n"
            "are its keys.",
        .examples = "  farm doctor\n  farm doctor ./mygame.so --option size=9\n  farm doctor native/breakout --json\n"
                    "  farm doctor gym/mypackage:MyGame-v0\n",
        .flags = flags,
        .flag_count = sizeof flags / sizeof *flags,
        .other = farm_doctor_option,
        .context = &request};
    struct farm_error err;
    int exit_status;
    enum farm_status status = FARM_OK;
    farm_recipe_defaults(&standard, NULL);
    request.start_seconds = standard.start_seconds;
    if (!farm_read_flags(&cli, argc, argv, &request.target, &exit_status)) return exit_status;
    if (!request.target && (request.env || request.check || request.option_count))
        status = farm_fail(&err, FARM_E_USAGE,
                           "--env, --check and --option need a plug-in or an environment: farm doctor PLUGIN.so, farm "
                           "doctor gym/ID");
    if (!status && !(request.hang_seconds > 0))
        status = farm_fail(&err, FARM_E_USAGE, "--hang-seconds must be more than 0 (got %g)", request.hang_seconds);
    if (!status && !(request.start_seconds > 0))
        status = farm_fail(&err, FARM_E_USAGE, "--start-seconds must be more than 0 (got %g)", request.start_seconds);
    if (status) return farm_report_error("farm doctor", &err);
    return request.target ? check_plugin(&request) : check_machine(&request);
}
