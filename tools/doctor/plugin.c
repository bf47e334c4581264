// See plugin.h.
#include "tools/doctor/plugin.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/atomics.h"
#include "base/cli.h"
#include "base/json.h"
#include "base/paths.h"
#include "base/program.h"
#include "base/time.h"
#include "envs/native/native.h"
#include "envs/python.h"
#include "tools/doctor/checks.h"
#include "tools/doctor/findings.h"
#include "tools/doctor/python.h"
#include "tools/shared/recipe_flags.h"

enum {
    PASS_MS = 500,              // a pass of a check over an instance, about
    LATER_MS = 1100,            // longer than the resolution of a clock in seconds
    POLL_MS = 50,               // how often the doctor looks whether calls return
    OUTPUT_BYTES_MAX = 1 << 30, // a check's; further output is lost
    CHECKS_MAX = 24,            // for one environment
    PATH_BYTES = 4096,
    LINE_BYTES = 160,
};

static const char *const grade_names[] = {"good", "note", "broken"};

struct doctor {
    const struct farm_doctor_request *request;
    struct trial_request trial;
    struct trial_report *report;                // shared with the children
    char path[PATH_BYTES], library[PATH_BYTES]; // library: the value of libenv's option
    uint64_t printed_bytes;                     // by the present environment, and its last line
    char printed_line[LINE_BYTES];
    json_t *environments, *findings; // findings: of the present environment
    bool sound, untrained;           // untrained: farm train refuses one of the environments
};

enum farm_status farm_doctor_option(void *context, const char *name, const char *value, struct farm_error *err) {
    struct farm_doctor_request *request = context;
    static const char *const keys[][2] = {{"obs-keep", "obs_keep"}, {"obs-drop", "obs_drop"}, {"wrap", "wrap"}};
    const char *own = strncmp(name, "env.", 4) == 0 && name[4] ? name + 4 : NULL;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(name, keys[i][0]) == 0) own = keys[i][1];
    if (!own && strcmp(name, "option") != 0) return FARM_E_NOT_FOUND;
    for (size_t i = 0; i < request->option_count && own; i++)
        if (strcmp(request->options[i].key, own) == 0)
            return farm_fail(err, FARM_E_USAGE, "--%s is given twice: write several values with commas between", name);
    const char *equals = own || !value ? NULL : strchr(value, '=');
    if (!value || (!own && (!equals || equals == value)))
        return farm_fail(err, FARM_E_USAGE, "--%s needs %s", name, own ? "a value" : "KEY=VALUE");
    if (request->option_count == FARM_DOCTOR_OPTIONS_MAX)
        return farm_fail(err, FARM_E_USAGE, "at most %d options", FARM_DOCTOR_OPTIONS_MAX);
    char *key = request->option_texts[request->option_count];
    const int key_bytes = own ? (int)strlen(own) : (int)(equals - value);
    const int used =
        snprintf(key, FARM_DOCTOR_OPTION_BYTES, "%.*s%c%s", key_bytes, own ? own : value, 0, own ? value : equals + 1);
    if (used >= FARM_DOCTOR_OPTION_BYTES)
        return farm_fail(err, FARM_E_USAGE, "an option has at most %d characters", FARM_DOCTOR_OPTION_BYTES - 2);
    request->options[request->option_count++] = (struct farm_env_option){key, key + key_bytes + 1};
    return FARM_OK;
}

// ---- one check, in a child process ----

static _Noreturn void run_child(const struct doctor *doctor, const struct doctor_check *check, int output_fd) {
    struct trial trial;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){OUTPUT_BYTES_MAX, OUTPUT_BYTES_MAX});
    signal(SIGXFSZ, SIG_IGN);
    dup2(output_fd, STDOUT_FILENO);
    dup2(output_fd, STDERR_FILENO);
    trial_catch_faults(doctor->report);
    if (!check)
        doctor_list(&doctor->trial, doctor->report);
    else if (trial_open(&trial, &doctor->trial, doctor->report))
        check->run(&trial);
    doctor->report->done = true;
    farm_doctor_python_end();
    fflush(NULL);
    _exit(0);
}

// How long the present call may take, in seconds.
static double call_limit(const struct doctor *doctor, const char **flag) {
    const struct farm_doctor_request *request = doctor->request;
    const bool starts = doctor->report->call <= TRIAL_CREATE && request->start_seconds > request->hang_seconds;
    *flag = starts ? "--start-seconds" : "--hang-seconds";
    return starts ? request->start_seconds : request->hang_seconds;
}

// Waits for the child's end, or call_limit without a call's return. waitpid(2)'s status; -1: hung and killed.
static int await_child(struct doctor *doctor, pid_t pid) {
    const char *flag;
    uint64_t seen = 0, since_ns = farm_now_ns();
    int status = 0;
    bool hung = false;
    while (!hung && !farm_program_ended(pid, POLL_MS * 1e-3)) {
        const uint64_t calls = farm_load_relaxed(&doctor->report->calls), now_ns = farm_now_ns();
        if (calls != seen) seen = calls, since_ns = now_ns;
        hung = (double)(now_ns - since_ns) * 1e-9 > call_limit(doctor, &flag);
    }
    if (hung) kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
    return hung ? -1 : status;
}

// ---- a child that did not finish ----

static void report_fault(struct trial_report *report, const char *call, const char *place) {
    static const struct {
        const char *format, *mend; // of: call, access, field, bytes of the field, distance, place
    } faults[] = {
        [TRIAL_PAST_FIELD] = {"%s %s past field '%s' (%llu bytes): %lld bytes behind its end%s",
                              "write exactly the bytes that spec() gives: another environment's data follows there"},
        [TRIAL_BEFORE_FIELD] = {"%s %s memory before field '%s' (%llu bytes): %lld bytes before it%s",
                                "a negative index? another environment's data is there"},
        [TRIAL_OLD_FIELD] =
            {"%s %s an earlier call's '%s' (%llu bytes, offset %lld)%s",
             "keep no pointer that a call was given: each step's data is elsewhere. Keep copies of what "
             "you need again in the environment"},
    };
    if (report->fault == TRIAL_WRITES_ACTION)
        trial_report_finding(report, TRIAL_BROKEN, "copy the action before changing it: actors map it read-only",
                             "%s writes to its action%s", call, place);
    else if (report->fault == TRIAL_SIGNAL)
        trial_report_finding(report, TRIAL_BROKEN,
                             "built with -g, the message names the line; -fsanitize=address in a program of your own "
                             "finds more",
                             "%s crashes: %s%s", call, strsignal(report->fault_signal), place);
    else
        trial_report_finding(report, TRIAL_BROKEN, faults[report->fault].mend, faults[report->fault].format, call,
                             report->fault_access, report->field_names[report->fault_field],
                             (unsigned long long)report->field_bytes[report->fault_field],
                             (long long)report->fault_bytes, place);
}

static void report_unfinished(const struct doctor *doctor, const char *last_line, int status) {
    struct trial_report *report = doctor->report;
    const char *flag;
    const double limit_s = call_limit(doctor, &flag);
    char call[160], place[256 + LINE_BYTES] = "";
    snprintf(call, sizeof call, "%s", trial_call_name(report->call));
    if (report->call == TRIAL_CREATE && doctor->trial.python)
        snprintf(call, sizeof call, "the constructor or the first reset()");
    else if (report->call > TRIAL_CREATE)
        snprintf(call, sizeof call, "%s of call %llu%s", trial_call_name(report->call),
                 (unsigned long long)report->number + 1, report->action);
    if (report->fault_pc) {
        farm_program_place(doctor->path, report->fault_pc, place + 2, sizeof place - 2);
        memcpy(place, "; ", 2);
        for (char *end; (end = strchr(place, '\n'));) *end = ' '; // functions that it is inlined in
    } else if (last_line[0])
        snprintf(place, sizeof place, "; it printed: %s", last_line);
    if (status == -1)
        trial_report_finding(
            report, TRIAL_BROKEN,
            "an actor that waits there steps no other environment: bound every loop; if it is slow, raise the limit",
            "%s has not returned within %g s (%s)", call, limit_s, flag);
    else if (report->fault)
        report_fault(report, call, place);
    else if (WIFSIGNALED(status) && WTERMSIG(status) == SIGRTMAX && doctor->trial.python) // worker.h, actor.py
        trial_report_finding(report, TRIAL_BROKEN,
                             "farm train ends with this message: step() and reset() must return what the environment's "
                             "spaces declare",
                             "%s: %s", call, last_line[0] ? last_line : "its actor gave no reason");
    else if (WIFSIGNALED(status))
        trial_report_finding(report, TRIAL_BROKEN,
                             WTERMSIG(status) == SIGKILL ? "the kernel sends signal 9 if memory is short"
                                                         : "a crash ends the actor with all its environments",
                             "%s ended by signal %d (%s)%s", call, WTERMSIG(status), strsignal(WTERMSIG(status)),
                             place);
    else
        trial_report_finding(report, TRIAL_BROKEN,
                             doctor->trial.python
                                 ? "an exception or exit() ends the actor with all its environments: a new one takes "
                                   "its lanes, and its episodes are lost"
                                 : "return an error instead: exit() ends the actor with all its environments",
                             "%s ended the process with exit status %d%s", call, WEXITSTATUS(status), place);
}

// ---- results ----

static void record_finding(struct doctor *doctor, const char *name) {
    const struct trial_report *report = doctor->report;
    doctor->sound &= report->grade != TRIAL_BROKEN;
    farm_findings_add(doctor->findings, name, grade_names[report->grade], report->mend, "%s", report->found);
    if (!doctor->request->json)
        farm_findings_print(json_array_get(doctor->findings, json_array_size(doctor->findings) - 1));
}

// A stray write of the child may have changed the report: makes it harmless.
static void sanitise_report(struct trial_report *report) {
    if (report->name_count > TRIAL_NAMES_MAX) report->name_count = 0;
    if (report->fault_field >= TRIAL_FIELDS_MAX) report->fault_field = 0;
    if ((unsigned)report->call > TRIAL_DESTROY) report->call = TRIAL_LOAD;
    if ((unsigned)report->fault > TRIAL_WRITES_ACTION) report->fault = TRIAL_SIGNAL;
    if ((unsigned)report->grade > TRIAL_BROKEN) report->grade = TRIAL_BROKEN;
    for (size_t f = 0; f < TRIAL_FIELDS_MAX; f++) report->field_names[f][FARM_FIELD_NAME_MAX - 1] = 0;
    for (size_t i = 0; i < report->name_count; i++) report->names[i][TRIAL_NAME_BYTES - 1] = 0;
    report->fault_access[sizeof report->fault_access - 1] = 0;
    report->action[sizeof report->action - 1] = 0;
    report->found[TRIAL_TEXT_BYTES - 1] = 0;
    report->mend[TRIAL_TEXT_BYTES - 1] = 0;
}

// The last line that the environment printed, without control characters; returns how much it printed.
static uint64_t read_output(int fd, char line[LINE_BYTES]) {
    farm_program_last_line(fd, line, LINE_BYTES);
    for (char *at = line; *at; at++)
        if (iscntrl((unsigned char)*at)) *at = ' ';
    return (uint64_t)lseek(fd, 0, SEEK_END);
}

// Makes one check (NULL: lists the environments) and records its finding.
static enum farm_status run_check(struct doctor *doctor, const struct doctor_check *check, bool *finished,
                                  struct farm_error *err) {
    struct trial_report *report = doctor->report;
    char line[LINE_BYTES];
    *report = (struct trial_report){.figures = report->figures};
    const int output = memfd_create("output", MFD_CLOEXEC);
    if (output < 0) return farm_fail_errno(err, FARM_E_LIMIT, "cannot make a file in memory");
    fflush(NULL); // otherwise the child prints it again
    const pid_t pid = fork();
    if (pid < 0) {
        close(output);
        return farm_fail_errno(err, FARM_E_LIMIT, "cannot start a process");
    }
    if (pid == 0) run_child(doctor, check, output);
    const int status = await_child(doctor, pid);
    const uint64_t printed = read_output(output, line);
    close(output);
    sanitise_report(report);
    *finished = report->done;
    if (!report->done) {
        report_unfinished(doctor, line, status);
    } else if (printed) {
        doctor->printed_bytes += printed;
        memcpy(doctor->printed_line, line, sizeof line);
    }
    record_finding(doctor, check ? check->name : "opens");
    return FARM_OK;
}

static void sleep_until(uint64_t ns) {
    for (uint64_t now_ns; (now_ns = farm_now_ns()) < ns;) poll(NULL, 0, (int)((ns - now_ns) / 1000000u) + 1);
}

// Basic checks, and those that decide about others, are always made.
static bool is_wanted(const struct doctor *doctor, const struct doctor_check *check) {
    const char *only = doctor->request->check;
    if (doctor->trial.python && !check->python) return false;
    return !only || check->basic || check->tests_repeatable || strcmp(check->name, only) == 0;
}

static enum farm_status run_checks(struct doctor *doctor, struct farm_error *err) {
    const struct doctor_check *check;
    const struct trial_report *report = doctor->report;
    const uint64_t begin_ns = farm_now_ns();
    bool finished = true, repeatable = true;
    doctor->trial.writes_outside = doctor->trial.python; // which has no access to the memory that the checks guard
    for (size_t i = 0; (check = doctor_check_at(i)); i++) {
        if (!is_wanted(doctor, check) || (check->wants_repeatable && !repeatable)) continue;
        if (check->later) sleep_until(begin_ns + (uint64_t)LATER_MS * 1000000u);
        enum farm_status status = run_check(doctor, check, &finished, err);
        if (status) return status;
        const bool broken = report->grade == TRIAL_BROKEN, ends_itself = !finished && !report->fault; // or hangs
        if (check->tests_repeatable) repeatable &= report->grade == TRIAL_GOOD;
        if (check->tests_outside) doctor->trial.writes_outside |= broken;
        if (!broken || (!check->basic && !ends_itself)) continue;
        if (!doctor->request->json) printf("%-8s no further checks until this is mended\n", "");
        break;
    }
    return FARM_OK;
}

static double measured(double figure) {
    return figure > 0 ? figure : (double)NAN;
}

// Whether `farm train` can train it: no part of the contract, so not among the checks. Nothing if its spec is unknown.
static void judge_training(struct doctor *doctor, const char *name, json_t *entry) {
    struct farm_env_spec spec = doctor->report->figures.spec; // a copy, because the environment may have written there
    struct farm_error err;
    if (!spec.obs_count || farm_plugin_check_spec(&spec, NULL)) return;
    const bool trains = farm_recipe_flags_train(name, &spec, &err);
    doctor->untrained |= !trains;
    farm_json_set_bool(entry, "trains", trains);
    farm_json_set_text(entry, "trains_reason", trains ? NULL : err.message);
    if (!doctor->request->json)
        printf("%-8s %-24s %s%s\n", trains ? grade_names[TRIAL_GOOD] : grade_names[TRIAL_NOTE], "trains",
               trains ? "farm train can train it" : "farm train cannot train it: ", trains ? "" : err.message);
}

static enum farm_status check_environment(struct doctor *doctor, const char *name, struct farm_error *err) {
    struct trial_report *report = doctor->report;
    const struct trial_figures *figures = &report->figures;
    doctor->trial.name = name;
    doctor->findings = json_array();
    doctor->printed_bytes = 0;
    report->figures = (struct trial_figures){0};
    if (!doctor->request->json) printf("\n%s\n", name);
    enum farm_status status = run_checks(doctor, err);
    if (!status && doctor->printed_bytes) {
        trial_report_finding(report, TRIAL_NOTE, "a line costs more than a step: print on request only",
                             "%llu bytes while it was checked, such as: %s", (unsigned long long)doctor->printed_bytes,
                             doctor->printed_line);
        record_finding(doctor, "prints");
    }
    json_t *entry = farm_json_object(false);
    if (!status) judge_training(doctor, name, entry);
    farm_json_set_text(entry, "name", name);
    farm_json_set(entry, "checks", doctor->findings);
    farm_json_set_real(entry, "step_ns", measured(figures->step_ns));
    farm_json_set_real(entry, "reset_ns", measured(figures->reset_ns));
    farm_json_set_real(entry, "many_step_ns", measured(figures->many_step_ns));
    farm_json_set_real(entry, "agent_steps_per_s", measured(figures->agent_steps_per_s));
    farm_json_append(doctor->environments, entry);
    return status;
}

// ---- the target ----

// Finds the plug-in envs/FAMILY.so of this build for "FAMILY/NAME" or "FAMILY".
static bool find_shipped(struct doctor *doctor, const char *target) {
    char folder[PATH_BYTES / 2];
    const size_t length = strcspn(target, "/");
    if (!length || length > TRIAL_NAME_BYTES || farm_path_envs(folder, sizeof folder, NULL)) return false;
    snprintf(doctor->path, sizeof doctor->path, "%s/%.*s.so", folder, (int)length, target);
    return access(doctor->path, F_OK) == 0;
}

// Finds the target's shared object (trial.path; NULL: built in) and environment (*name; NULL: all).
static enum farm_status find_target(struct doctor *doctor, const char **name, struct farm_error *err) {
    static const char plugin[] = "plugin:", libenv[] = "libenv:";
    const char *target = doctor->request->target;
    *name = doctor->request->env;
    if (farm_env_is_python(target)) {
        *name = target;
        doctor->trial.python = true;
        return farm_doctor_python_find(doctor->request, err);
    }
    if (farm_native_env_find(target)) {
        *name = target;
        return FARM_OK;
    }
    doctor->trial.path = doctor->path;
    if (strncmp(target, libenv, strlen(libenv)) == 0 && find_shipped(doctor, "libenv")) {
        const char *library = target + strlen(libenv);
        snprintf(doctor->library, sizeof doctor->library, "%s%s", strchr(library, '/') ? "" : "./", library);
        doctor->trial.options[doctor->trial.option_count++] = (struct farm_env_option){"lib", doctor->library};
        return FARM_OK;
    }
    const bool prefixed = strncmp(target, plugin, strlen(plugin)) == 0;
    snprintf(doctor->path, sizeof doctor->path, "%s", target + (prefixed ? strlen(plugin) : 0));
    const char *named = farm_path_cut_name(doctor->path);
    if (named) *name = named;
    if (access(doctor->path, F_OK) == 0) return FARM_OK;
    if (!prefixed && strchr(target, '/') && find_shipped(doctor, target)) {
        *name = target;
        return FARM_OK;
    }
    return farm_fail(
        err, FARM_E_USAGE,
        "%s: no such file, and no environment of that name (farm envs). farm doctor takes the path of a plug-in, "
        "native/NAME, ale/GAME, gym/ID, or a plug-in of this build",
        target);
}

// Checks the environment `name` of the target, or all of them (NULL). *opening: the findings of opening it.
static enum farm_status check_target(struct doctor *doctor, const char *name, json_t *opening, struct farm_error *err) {
    bool finished, met = false;
    if (!doctor->trial.path) return check_environment(doctor, name, err);
    doctor->findings = opening;
    enum farm_status status = run_check(doctor, NULL, &finished, err);
    if (status || !doctor->sound) return status;
    const size_t count = doctor->report->name_count;
    char(*names)[TRIAL_NAME_BYTES] = calloc(count + 1, sizeof *names);
    if (!names) return farm_fail_errno(err, FARM_E_LIMIT, "farm doctor");
    memcpy(names, doctor->report->names, count * sizeof *names);
    for (size_t i = 0; !status && i < count; i++) {
        if (name && strcmp(names[i], name) != 0) continue;
        met = true;
        status = check_environment(doctor, names[i], err);
    }
    if (!status && !met && name)
        status = farm_fail(err, FARM_E_USAGE, "%s has no environment '%s'; its first is %s", doctor->path, name,
                           count ? names[0] : "missing");
    free(names);
    return status;
}

static bool check_exists(const char *name, struct farm_error *err) {
    const char *names[CHECKS_MAX];
    size_t count = 0;
    for (const struct doctor_check *check; (check = doctor_check_at(count)) && count < CHECKS_MAX; count++) {
        if (strcmp(check->name, name) == 0) return true;
        names[count] = check->name;
    }
    const char *near = farm_nearest(name, names, count);
    farm_fail(err, FARM_E_USAGE, "there is no check '%s': did you mean '%s'?", name, near ? near : names[0]);
    return false;
}

enum farm_status farm_doctor_plugin(const struct farm_doctor_request *request, bool *sound, struct farm_error *err) {
    struct doctor doctor = {.request = request,
                            .trial = {.steps_max = (uint64_t)request->steps,
                                      .budget_ns = (uint64_t)PASS_MS * 1000000u,
                                      .option_count = request->option_count},
                            .sound = true};
    const char *name;
    if (request->check && !check_exists(request->check, err)) return FARM_E_USAGE;
    memcpy(doctor.trial.options, request->options, sizeof request->options);
    enum farm_status status = find_target(&doctor, &name, err);
    if (status) return status;
    doctor.report = mmap(NULL, sizeof *doctor.report, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (doctor.report == MAP_FAILED) return farm_fail_errno(err, FARM_E_LIMIT, "farm doctor");
    json_t *document = farm_json_object(true), *opening = json_array();
    doctor.environments = json_array();
    farm_json_set_text(document, "target", request->target);
    status = check_target(&doctor, name, opening, err);
    farm_json_set_bool(document, "sound", doctor.sound);
    farm_json_set(document, "checks", opening);
    farm_json_set(document, "environments", doctor.environments);
    if (!status && request->json) status = farm_json_print(document, stdout, err);
    if (!status && !request->json)
        printf("\n%s\n", !doctor.sound      ? "Mend what is marked broken, then check again."
                         : doctor.untrained ? "Nothing is broken, but not all of it can be trained (see trains)."
                                            : "Nothing is broken.");
    json_decref(document);
    munmap(doctor.report, sizeof *doctor.report);
    *sound = doctor.sound;
    return status;
}
