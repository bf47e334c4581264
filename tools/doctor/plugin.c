// See farm_doctor_plugin.h.
#include "tools/doctor/plugin.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "actor/actor.h"
#include "base/atomics.h"
#include "base/cli.h"
#include "base/json.h"
#include "base/paths.h"
#include "base/time.h"
#include "envs/native/native.h"
#include "tools/doctor/checks.h"

enum {
    PASS_MS = 500,   // a pass of a check over an instance, about
    LATER_MS = 1100, // a clock that seeds are taken from has moved by then
    GLANCE_MS = 50,  // how often the doctor looks whether calls return
    CHECKS_MAX = 24, // of one environment
    PATH_BYTES = 4096,
    SAID_BYTES = 160,
};

static const char *const grade_names[] = {"good", "note", "broken"};

// What an environment prints, which is not part of the answer.
struct said {
    uint64_t bytes;
    char last[SAID_BYTES]; // line
    size_t used;           // of the line that is coming in
    char line[SAID_BYTES];
};

struct checkup {
    const struct farm_doctor_request *request;
    struct said said;         // in the check in hand
    uint64_t printed_bytes;   // by the environment in hand
    char printed[SAID_BYTES]; // such as
    struct trial_request trial;
    struct trial_report *report;                // shared with the children
    char path[PATH_BYTES], library[PATH_BYTES]; // library: the value of an option
    json_t *environments;                       // NULL: lines are printed
    json_t *checks;                             // of the environment in hand
    bool sound;
    uint64_t begin_ns; // of the environment in hand
};

enum farm_status farm_doctor_option(void *context, const char *name, const char *value, struct farm_error *err) {
    struct farm_doctor_request *request = context;
    const bool dotted = strncmp(name, "env.", 4) == 0 && name[4];
    if (!dotted && strcmp(name, "option") != 0) return FARM_E_NOT_FOUND;
    const char *equals = dotted || !value ? NULL : strchr(value, '=');
    if (!value || (!dotted && (!equals || equals == value)))
        return farm_fail(err, FARM_E_USAGE, "--%s needs %s", name, dotted ? "a value" : "KEY=VALUE");
    if (request->option_count == FARM_DOCTOR_OPTIONS_MAX)
        return farm_fail(err, FARM_E_USAGE, "at most %d options", FARM_DOCTOR_OPTIONS_MAX);
    char *text = request->option_texts[request->option_count];
    const size_t length = dotted ? strlen(name + 4) : (size_t)(equals - value);
    const char *rest = dotted ? value : equals + 1;
    if (length + 1 + strlen(rest) + 1 > FARM_DOCTOR_OPTION_BYTES)
        return farm_fail(err, FARM_E_USAGE, "an option has at most %d characters", FARM_DOCTOR_OPTION_BYTES - 2);
    memcpy(text, dotted ? name + 4 : value, length);
    text[length] = 0;
    memcpy(text + length + 1, rest, strlen(rest) + 1);
    request->options[request->option_count++] = (struct farm_env_option){text, text + length + 1};
    return FARM_OK;
}

// ---- one check, in a child process ----

static void run_child(const struct checkup *checkup, const struct doctor_check *check, int print_fd) {
    struct trial trial;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    dup2(print_fd, STDOUT_FILENO);
    dup2(print_fd, STDERR_FILENO);
    trial_watch_faults(checkup->report);
    if (!check)
        doctor_list(&checkup->trial, checkup->report);
    else if (trial_open(&trial, &checkup->trial, checkup->report))
        check->run(&trial);
    checkup->report->done = true;
    fflush(NULL);
    _exit(0);
}

// Takes in what has been printed so far.
static void listen(struct said *said, int fd) {
    char text[4096];
    ssize_t n;
    while ((n = read(fd, text, sizeof text)) > 0) {
        said->bytes += (uint64_t)n;
        for (ssize_t i = 0; i < n; i++) {
            const bool shown = (unsigned char)text[i] >= ' ' && text[i] != 0x7f;
            if (shown && said->used + 1 < SAID_BYTES) said->line[said->used++] = text[i];
            if (said->used) snprintf(said->last, SAID_BYTES, "%.*s", (int)said->used, said->line);
            if (text[i] == '\n') said->used = 0;
        }
    }
}

// Waits until the child ends, or until its calls have not moved for hang_seconds. The status as of waitpid; hung: -1.
static int wait_for(struct checkup *checkup, pid_t pid, int said_fd) {
    const uint64_t limit_ns = (uint64_t)(checkup->request->hang_seconds * 1e9);
    uint64_t seen = 0, since_ns = farm_now_ns();
    int status = 0, pidfd = pidfd_open(pid, 0);
    struct pollfd heard[] = {{.fd = pidfd, .events = POLLIN}, {.fd = said_fd, .events = POLLIN}};
    bool hung = false;
    while (pidfd >= 0 && !hung && !(poll(heard, 2, GLANCE_MS) > 0 && heard[0].revents)) {
        const uint64_t calls = farm_load_relaxed(&checkup->report->calls), now_ns = farm_now_ns();
        if (calls != seen) seen = calls, since_ns = now_ns;
        hung = now_ns - since_ns > limit_ns;
        listen(&checkup->said, said_fd);
        if (heard[1].revents & POLLHUP) heard[1].fd = -1; // closed: poll would not wait any more
    }
    if (hung) kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    listen(&checkup->said, said_fd);
    if (pidfd >= 0) close(pidfd);
    return hung ? -1 : status;
}

// ---- what a child that did not finish tells ----

static void say(struct trial_report *report, const char *mend, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void say(struct trial_report *report, const char *mend, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(report->found, sizeof report->found, format, args);
    va_end(args);
    snprintf(report->mend, sizeof report->mend, "%s", mend);
    report->grade = TRIAL_BROKEN;
}

static const char *touches(const struct trial_report *report) {
    return report->fault_writes ? "writes" : report->fault_reads ? "reads" : "touches memory";
}

static void say_fault(struct trial_report *report, const char *where, const char *line) {
    const char *field = report->field_names[report->fault_field];
    const unsigned long long bytes = report->field_bytes[report->fault_field];
    const long long away = report->fault_bytes;
    switch (report->fault) {
    case TRIAL_PAST_FIELD:
        say(report, "write exactly the bytes that spec() names: there, another environment's data follows",
            "%s %s past field '%s' (%llu bytes): %lld bytes behind its end%s", where, touches(report), field, bytes,
            away, line);
        return;
    case TRIAL_BEFORE_FIELD:
        say(report, "a negative index? There, another environment's data lie",
            "%s %s before field '%s' (%llu bytes): %lld bytes before its start%s", where, touches(report), field, bytes,
            away, line);
        return;
    case TRIAL_OLD_FIELD:
        say(report,
            "keep no pointer that a call was given: each step's data lie elsewhere. Copy what you need again into the "
            "environment",
            "%s %s an earlier call's '%s'%s", where, touches(report), field, line);
        return;
    case TRIAL_WRITES_ACTION:
        say(report, "copy the action before changing it: actors hold it read-only", "%s writes to its action%s", where,
            line);
        return;
    default:
        say(report,
            "compile it with -g -fsanitize=address and play it in a program of your own, or read the line named here",
            "%s crashes: %s%s", where, strsignal(report->fault_signal), line);
    }
}

static void say_unfinished(const struct checkup *checkup, int status) {
    struct trial_report *report = checkup->report;
    char where[160], line[256 + SAID_BYTES] = "";
    if (report->doing <= TRIAL_CREATE)
        snprintf(where, sizeof where, "%s", trial_call_name(report->doing));
    else
        snprintf(where, sizeof where, "%s of call %llu%s", trial_call_name(report->doing),
                 (unsigned long long)report->number + 1, report->action);
    if (report->fault_pc)
        snprintf(line, sizeof line, "; addr2line -fe %.200s 0x%llx", checkup->path,
                 (unsigned long long)report->fault_pc);
    else if (checkup->said.last[0])
        snprintf(line, sizeof line, "; it said: %s", checkup->said.last);
    if (status == -1)
        say(report,
            "an actor that waits in there plays no more: bound every loop (--hang-seconds where it is only slow)",
            "%s has not returned within %g s", where, checkup->request->hang_seconds);
    else if (report->fault)
        say_fault(report, where, line);
    else if (WIFSIGNALED(status))
        say(report, "signal 9 is the kernel's where memory is short", "%s ended by signal %d%s", where,
            WTERMSIG(status), line);
    else
        say(report, "return an error instead: exit() ends the actor with all its environments",
            "%s ended the process with exit status %d%s", where, WEXITSTATUS(status), line);
}

// ---- telling ----

static void tell(struct checkup *checkup, const char *name) {
    const struct trial_report *report = checkup->report;
    checkup->sound &= report->grade != TRIAL_BROKEN;
    if (checkup->checks) {
        json_t *entry = farm_json_object(false);
        farm_json_set_text(entry, "name", name);
        farm_json_set_text(entry, "grade", grade_names[report->grade]);
        farm_json_set_text(entry, "found", report->found);
        farm_json_set_text(entry, "mend", report->mend[0] ? report->mend : NULL);
        json_array_append_new(checkup->checks, entry);
        return;
    }
    printf("%-8s %-22s %s\n", grade_names[report->grade], name, report->found);
    if (report->mend[0]) printf("%-31s -> %s\n", "", report->mend);
    fflush(stdout);
}

// What a stray write of the child's may have left there must not hurt the doctor.
static void distrust(struct trial_report *report) {
    if (report->name_count > TRIAL_NAMES_MAX) report->name_count = 0;
    if (report->fault_field >= TRIAL_FIELDS_MAX) report->fault_field = 0;
    if ((unsigned)report->doing > TRIAL_DESTROY) report->doing = TRIAL_OPEN;
    if ((unsigned)report->grade > TRIAL_BROKEN) report->grade = TRIAL_BROKEN;
    for (size_t f = 0; f < TRIAL_FIELDS_MAX; f++) report->field_names[f][FARM_FIELD_NAME_MAX - 1] = 0;
    for (size_t i = 0; i < report->name_count; i++) report->names[i][TRIAL_NAME_BYTES - 1] = 0;
    report->action[sizeof report->action - 1] = 0;
    report->found[TRIAL_TEXT_BYTES - 1] = 0;
    report->mend[TRIAL_TEXT_BYTES - 1] = 0;
}

// Runs one check (NULL: the list of environments) and tells. Whether it finished.
static enum farm_status examine(struct checkup *checkup, const struct doctor_check *check, bool *finished,
                                struct farm_error *err) {
    struct trial_report *report = checkup->report;
    const struct trial_figures figures = report->figures;
    *report = (struct trial_report){.figures = figures};
    checkup->said = (struct said){0};
    int said[2];
    if (pipe2(said, O_CLOEXEC) || fcntl(said[0], F_SETFL, O_NONBLOCK))
        return farm_fail_errno(err, FARM_E_LIMIT, "cannot make a pipe");
    fflush(NULL); // the child must not print it again
    const pid_t pid = fork();
    if (pid == 0) run_child(checkup, check, said[1]);
    close(said[1]);
    const int status = pid > 0 ? wait_for(checkup, pid, said[0]) : 0;
    close(said[0]);
    distrust(report);
    if (pid < 0) return farm_fail_errno(err, FARM_E_LIMIT, "cannot start a process");
    if (report->done) checkup->printed_bytes += checkup->said.bytes;
    if (report->done && checkup->said.bytes) memcpy(checkup->printed, checkup->said.last, SAID_BYTES);
    *finished = report->done;
    if (!report->done) say_unfinished(checkup, status);
    tell(checkup, check ? check->name : "opens");
    return FARM_OK;
}

static void sleep_until(uint64_t ns) {
    const uint64_t now_ns = farm_now_ns();
    if (now_ns >= ns) return;
    const uint64_t left_ns = ns - now_ns;
    nanosleep(&(struct timespec){(time_t)(left_ns / 1000000000u), (long)(left_ns % 1000000000u)}, NULL);
}

// Basic checks, and those that others are judged by, are always made.
static bool wanted(const struct doctor_check *check, const char *only) {
    return !only || check->basic || check->judge || strcmp(check->name, only) == 0;
}

static enum farm_status check_all(struct checkup *checkup, struct farm_error *err) {
    const struct doctor_check *check;
    struct trial_report *report = checkup->report;
    bool finished = true, repeatable = true;
    report->figures = (struct trial_figures){0};
    checkup->trial.untidy = false;
    checkup->begin_ns = farm_now_ns();
    for (size_t i = 0; (check = doctor_check_at(i)); i++) {
        if (!wanted(check, checkup->request->check)) continue;
        if (check->repeatable && !repeatable) continue;
        if (check->later) sleep_until(checkup->begin_ns + (uint64_t)LATER_MS * 1000000u);
        enum farm_status status = examine(checkup, check, &finished, err);
        if (status) return status;
        if (check->judge) repeatable &= report->grade == TRIAL_GOOD;
        if (check->guard) checkup->trial.untidy |= report->grade == TRIAL_BROKEN;
        const bool gone = !finished && !report->fault; // hung, or ended by itself: it would again
        if (report->grade == TRIAL_BROKEN && (check->basic || gone)) {
            if (!checkup->checks) printf("%-8s further checks wait until this is mended\n", "");
            break;
        }
    }
    return FARM_OK;
}

static void tell_prints(struct checkup *checkup) {
    struct trial_report *report = checkup->report;
    *report = (struct trial_report){.figures = report->figures, .grade = TRIAL_NOTE};
    snprintf(report->found, sizeof report->found, "%llu bytes while it was checked, such as: %s",
             (unsigned long long)checkup->printed_bytes, checkup->printed);
    snprintf(report->mend, sizeof report->mend, "a line costs more than a step: print where asked to only");
    tell(checkup, "prints");
}

static enum farm_status check_environment(struct checkup *checkup, const char *name, struct farm_error *err) {
    const struct trial_figures *figures = &checkup->report->figures;
    checkup->trial.name = name;
    if (checkup->environments)
        checkup->checks = json_array();
    else
        printf("\n%s\n", name);
    checkup->printed_bytes = 0;
    enum farm_status status = check_all(checkup, err);
    if (!status && checkup->printed_bytes) tell_prints(checkup);
    if (!checkup->environments) return status;
    json_t *entry = farm_json_object(false);
    farm_json_set_text(entry, "name", name);
    farm_json_set(entry, "checks", checkup->checks);
    farm_json_set_real(entry, "step_ns", figures->step_ns > 0 ? figures->step_ns : NAN);
    farm_json_set_real(entry, "reset_ns", figures->reset_ns > 0 ? figures->reset_ns : NAN);
    farm_json_set_real(entry, "many_step_ns", figures->many_step_ns > 0 ? figures->many_step_ns : NAN);
    farm_json_set_real(entry, "agent_steps_per_s", figures->agent_steps_per_s > 0 ? figures->agent_steps_per_s : NAN);
    json_array_append_new(checkup->environments, entry);
    return status;
}

// ---- what is to be checked ----

// envs/FAMILY.so that came along, of "FAMILY/NAME" or "FAMILY".
static bool find_shipped(struct checkup *checkup, const char *target) {
    char folder[PATH_BYTES / 2];
    const size_t length = strcspn(target, "/");
    if (!length || length > TRIAL_NAME_BYTES || !farm_path_envs(folder, sizeof folder)) return false;
    snprintf(checkup->path, sizeof checkup->path, "%s/%.*s.so", folder, (int)length, target);
    return access(checkup->path, F_OK) == 0;
}

// The shared object and the environment's name (NULL: all) that the target means; trial.path stays NULL where it is
// built in.
static enum farm_status find_target(struct checkup *checkup, const char **name, struct farm_error *err) {
    static const char plugin[] = "plugin:", libenv[] = "libenv:";
    const char *target = checkup->request->target;
    *name = checkup->request->env;
    if (farm_native_env_find(target)) {
        *name = target;
        return FARM_OK;
    }
    checkup->trial.path = checkup->path;
    if (strncmp(target, libenv, strlen(libenv)) == 0 && find_shipped(checkup, "libenv")) {
        const char *library = target + strlen(libenv);
        snprintf(checkup->library, sizeof checkup->library, "%s%s", strchr(library, '/') ? "" : "./", library);
        checkup->trial.options[checkup->trial.option_count++] = (struct farm_env_option){"lib", checkup->library};
        return FARM_OK;
    }
    const bool prefixed = strncmp(target, plugin, strlen(plugin)) == 0;
    snprintf(checkup->path, sizeof checkup->path, "%s", target + (prefixed ? strlen(plugin) : 0));
    const char *named = farm_path_cut_name(checkup->path);
    if (named) *name = named;
    if (access(checkup->path, F_OK) == 0) return FARM_OK;
    if (!prefixed && strchr(target, '/') && find_shipped(checkup, target)) {
        *name = target;
        return FARM_OK;
    }
    return farm_fail(
        err, FARM_E_USAGE,
        "%s: no such file, and no environment in C of that name (farm envs). farm doctor takes the path of "
        "a plug-in, native/NAME, or one that came along; ale/* and gym/* are played in Python",
        target);
}

static enum farm_status check_target(struct checkup *checkup, const char *name, struct farm_error *err) {
    if (!checkup->trial.path) return check_environment(checkup, name, err);
    bool finished;
    json_t *opening = checkup->checks;
    enum farm_status status = examine(checkup, NULL, &finished, err);
    const size_t count = checkup->report->name_count;
    char(*names)[TRIAL_NAME_BYTES] = calloc(count + 1, sizeof *names);
    if (!names) status = farm_fail_errno(err, FARM_E_LIMIT, "farm doctor");
    if (!status) memcpy(names, checkup->report->names, count * sizeof *names);
    const bool opened = checkup->sound;
    bool met = !name || !opened;
    for (size_t i = 0; !status && opened && i < count; i++) {
        if (name && strcmp(names[i], name) != 0) continue;
        met = true;
        status = check_environment(checkup, names[i], err);
    }
    if (!status && !met)
        status = farm_fail(err, FARM_E_USAGE, "%s has no environment '%s'; its first is %s", checkup->path, name,
                           count ? names[0] : "missing");
    checkup->checks = opening;
    free(names);
    return status;
}

static enum farm_status print_json(const struct checkup *checkup, json_t *opening, struct farm_error *err) {
    json_t *document = farm_json_object(true);
    farm_json_set_text(document, "target", checkup->request->target);
    farm_json_set_bool(document, "sound", checkup->sound);
    farm_json_set(document, "checks", opening);
    farm_json_set(document, "environments", checkup->environments);
    enum farm_status status = farm_json_print(document, stdout, err);
    json_decref(document);
    return status;
}

static bool is_check(const char *name, struct farm_error *err) {
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
    struct checkup checkup = {.request = request, .sound = true};
    const char *name;
    checkup.trial.steps = (uint64_t)request->steps;
    checkup.trial.budget_ns = (uint64_t)PASS_MS * 1000000u;
    checkup.trial.option_count = request->option_count;
    if (request->check && !is_check(request->check, err)) return FARM_E_USAGE;
    memcpy(checkup.trial.options, request->options, sizeof request->options);
    enum farm_status status = find_target(&checkup, &name, err);
    if (status) return status;
    checkup.report = mmap(NULL, sizeof *checkup.report, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (checkup.report == MAP_FAILED) return farm_fail_errno(err, FARM_E_LIMIT, "farm doctor");
    if (request->json) {
        checkup.environments = json_array();
        checkup.checks = json_array();
    }
    json_t *opening = checkup.checks;
    status = check_target(&checkup, name, err);
    if (!status && request->json) status = print_json(&checkup, opening, err);
    if (!status && !request->json)
        printf("\n%s\n", checkup.sound ? "Nothing is broken." : "Mend what is marked broken, then ask again.");
    munmap(checkup.report, sizeof *checkup.report);
    *sound = checkup.sound;
    return status;
}
