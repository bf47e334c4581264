// `farm report`: the machine and its plan (farm topo), what is missing or set badly (farm doctor), how fast the
// environments run (farm fps) and memory is (farm bw --quick), as a JSON document or a page in Markdown to attach to a
// question. A part that fails is listed with its reason; the others are still there. Paths of this machine are removed,
// and its name appears only on request. farm fps and farm bw run as child programs.
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

#include "base/cli.h"
#include "base/file.h"
#include "base/json.h"
#include "envs/registry.h"
#include "farm_build.h"
#include "tools/report.h"
#include "tools/shared/command.h"
#include "tools/shared/spawn.h"
#include "topo/machine.h"

enum { START_LIMIT_S = 60, FPS_SECONDS_MAX = 3600 };

struct options {
    bool json, fps, bw, host;
    const char *env, *out; // env: names separated by commas; NULL: chosen
    double seconds;
};

// ---- child programs ----

static enum farm_status run_fps(const char *env, double seconds, json_t **document, struct farm_error *err) {
    char number[32];
    snprintf(number, sizeof number, "%.3f", seconds);
    const char *const words[] = {"fps", "--env", env, "--seconds", number, "--json", "--quiet", NULL};
    return farm_spawn_document(words, 4 * seconds + START_LIMIT_S, NULL, NULL, document, err);
}

static enum farm_status run_bw(json_t **document, struct farm_error *err) {
    static const char *const words[] = {"bw", "--quick", "--json", "--quiet", NULL};
    return farm_spawn_document(words, START_LIMIT_S, NULL, NULL, document, err);
}

// ---- the document ----

static void add_failure(json_t *report, const char *part, const struct farm_error *err) {
    json_t *entry = farm_json_object(false);
    farm_json_set_text(entry, "part", part);
    farm_json_set_text(entry, "reason", err->message);
    farm_json_append(json_object_get(report, "failed"), entry);
}

static void add_environment(json_t *report, const char *env, double seconds) {
    struct farm_error err;
    json_t *document;
    char part[320];
    snprintf(part, sizeof part, "fps %s", env);
    fprintf(stderr, "farm report: farm fps --env %s, about %.0f s\n", env, seconds);
    if (run_fps(env, seconds, &document, &err))
        add_failure(report, part, &err);
    else
        farm_json_append(json_object_get(report, "fps"), document);
}

static void add_bandwidth(json_t *report) {
    struct farm_error err;
    json_t *document = NULL;
    fprintf(stderr, "farm report: farm bw --quick, about 5 s\n");
    if (run_bw(&document, &err)) add_failure(report, "bw", &err);
    farm_json_set(report, "bw", document ? document : json_null());
}

static bool has_pong(void) {
    struct farm_env_list list;
    struct farm_error err;
    bool found = false;
    if (farm_env_list_make(&list, 0, &err)) return false;
    for (size_t i = 0; i < list.count; i++) found |= strcmp(list.names[i], "ale/Pong") == 0;
    farm_env_list_free(&list);
    return found;
}

static enum farm_status add_environments(json_t *report, const struct options *options, struct farm_error *err) {
    const char *standard = has_pong() ? "native/breakout,ale/Pong" : "native/breakout";
    char *names = strdup(options->env ? options->env : standard), *rest = names;
    if (!names) return farm_fail_errno(err, FARM_E_LIMIT, "farm report");
    for (char *name; (name = strsep(&rest, ","));)
        if (name[0]) add_environment(report, name, options->seconds);
    free(names);
    return FARM_OK;
}

static void set_heading(json_t *report, bool host) {
    struct utsname system;
    struct tm parts;
    char date[32], cpu[256];
    const time_t now = time(NULL);
    const bool known = uname(&system) == 0;
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &parts));
    farm_json_set_text(report, "commit", FARM_COMMIT);
    farm_json_set_text(report, "date_utc", date);
    if (host) farm_json_set_text(report, "host", known ? system.nodename : NULL);
    farm_json_set_text(report, "kernel", known ? system.release : NULL);
    farm_json_set_text(report, "architecture", known ? system.machine : NULL);
    farm_json_set_text(report, "cpu", farm_machine_cpu_name(NULL, cpu, sizeof cpu) ? cpu : NULL);
}

// The drawing of the machine goes to `drawing`.
static enum farm_status make_report(const struct options *options, FILE *drawing, json_t *report,
                                    struct farm_error *err) {
    struct farm_error failure;
    json_t *topo = NULL, *doctor = NULL;
    set_heading(report, options->host);
    farm_json_set(report, "failed", json_array());
    if (farm_topo_document(&topo, drawing, &failure)) add_failure(report, "topo", &failure);
    farm_json_set(report, "topo", topo ? topo : json_null());
    if (farm_doctor_document(&doctor, &failure)) add_failure(report, "doctor", &failure);
    farm_json_set(report, "doctor", doctor ? doctor : json_null());
    farm_json_set(report, "bw", json_null());
    if (options->bw) add_bandwidth(report);
    farm_json_set(report, "fps", json_array());
    return options->fps ? add_environments(report, options, err) : FARM_OK;
}

// ---- paths ----

static bool is_kernel_path(const char *path) {
    return strncmp(path, "/sys/", 5) == 0 || strncmp(path, "/proc/", 6) == 0 || strncmp(path, "/dev/", 5) == 0;
}

// Replaces each absolute path by "PATH", except the kernel's. In place: paths shorter than "PATH" are kept.
static void hide_paths(char *text) {
    static const char mark[] = "PATH", before[] = " '\"`(=:,<[", after[] = " '\"`),;>]";
    char *out = text;
    for (const char *in = text; *in;) {
        size_t length = strcspn(in, after);
        while (length && strchr(":.", in[length - 1])) length--;
        const bool begins = in == text || strchr(before, in[-1]);
        if (*in != '/' || !begins || in[1] == '/' || length < strlen(mark) || is_kernel_path(in)) {
            *out++ = *in++;
            continue;
        }
        memcpy(out, mark, strlen(mark));
        out += strlen(mark);
        in += length;
    }
    *out = 0;
}

static void hide_paths_in(json_t *value) {
    const char *key;
    json_t *member;
    size_t index;
    // Each loop is empty for values of other types.
    json_object_foreach(value, key, member) {
        hide_paths_in(member);
    }
    json_array_foreach(value, index, member) {
        hide_paths_in(member);
    }
    char *text = json_is_string(value) ? strdup(json_string_value(value)) : NULL;
    if (!text) return;
    hide_paths(text);
    json_string_set(value, text);
    free(text);
}

// ---- the page ----

static const char *text_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "unknown";
}

struct column {
    const char *heading, *key, *format; // format: of a number; NULL: text
};

static void write_table(FILE *out, const json_t *rows, const struct column *columns, size_t count) {
    size_t index;
    const json_t *row;
    for (size_t i = 0; i < count; i++) fprintf(out, "| %s ", columns[i].heading);
    fprintf(out, "|\n");
    for (size_t i = 0; i < count; i++) fprintf(out, "|---");
    fprintf(out, "|\n");
    json_array_foreach(rows, index, row) {
        for (size_t i = 0; i < count; i++) {
            const json_t *value = json_object_get(row, columns[i].key);
            fprintf(out, "| ");
            if (columns[i].format && json_is_number(value))
                fprintf(out, columns[i].format, json_number_value(value));
            else
                fprintf(out, "%s", columns[i].format ? "–" : json_is_string(value) ? json_string_value(value) : "");
            fprintf(out, " ");
        }
        fprintf(out, "|\n");
    }
}

static void write_heading(FILE *out, const json_t *report, const char *drawing) {
    fprintf(out, "# actorfarm: report of %s\n\n", text_of(report, "date_utc"));
    fprintf(out, "farm %s · %s · %s · Linux %s", text_of(report, "commit"), text_of(report, "cpu"),
            text_of(report, "architecture"), text_of(report, "kernel"));
    if (json_object_get(report, "host")) fprintf(out, " · %s", text_of(report, "host"));
    fprintf(out, "\n\n## The machine and its plan (farm topo)\n\n");
    if (json_is_object(json_object_get(report, "topo")))
        fprintf(out, "```\n%s```\n", drawing);
    else
        fprintf(out, "Unknown: see the end.\n");
}

static void write_findings(FILE *out, const json_t *doctor) {
    static const struct column columns[] = {
        {"Grade", "grade", NULL}, {"What", "name", NULL}, {"Found", "found", NULL}, {"How to mend it", "mend", NULL}};
    fprintf(out, "\n## What is missing or set badly (farm doctor)\n\n");
    if (!json_is_object(doctor)) {
        fprintf(out, "Unknown: see the end.\n");
        return;
    }
    fprintf(out, "The farm %s here.\n\n", json_is_true(json_object_get(doctor, "can_run")) ? "can run" : "cannot run");
    write_table(out, json_object_get(doctor, "findings"), columns, 4);
}

static void write_bandwidth(FILE *out, const json_t *bw) {
    static const struct column columns[] = {
        {"Figure", "name", NULL}, {"Value", "value", "%.4g"}, {"Unit", "unit", NULL}};
    size_t index;
    const json_t *finding;
    if (!json_is_object(bw)) return;
    fprintf(out, "\n## How fast memory is (farm bw --quick)\n\n");
    write_table(out, json_object_get(bw, "results"), columns, 3);
    fprintf(out, "\n");
    json_array_foreach(json_object_get(json_object_get(bw, "fit"), "findings"), index, finding) {
        fprintf(out, "- %s%s\n", json_is_true(json_object_get(finding, "serious")) ? "Not fit to measure: " : "",
                text_of(finding, "text"));
    }
}

static void write_speeds(FILE *out, const json_t *list) {
    static const struct column environments[] = {{"Environment", "env", NULL},
                                                 {"Farm, agent steps/s", "agent_steps_per_s", "%.0f"},
                                                 {"Bare simulator, one core", "bare_agent_steps_per_s", "%.0f"},
                                                 {"Farm ÷ (bare × cores)", "efficiency", "%.3f"}};
    static const struct column rungs[] = {
        {"", "rung", NULL}, {"agent steps/s", "agent_steps_per_s", "%.0f"}, {"of the one before", "of_before", "%.2f"}};
    size_t index;
    const json_t *fps;
    if (!json_array_size(list)) return;
    fprintf(out, "\n## How fast environments run (farm fps)\n\n");
    write_table(out, list, environments, 4);
    json_array_foreach(list, index, fps) {
        const json_t *ladder = json_object_get(fps, "ladder");
        if (!json_array_size(ladder)) continue;
        fprintf(out, "\n%s, where the steps go (bottleneck: %s):\n\n", text_of(fps, "env"), text_of(fps, "bottleneck"));
        write_table(out, ladder, rungs, 3);
    }
}

static void write_page(FILE *out, const json_t *report, const char *drawing) {
    size_t index;
    const json_t *entry, *failed = json_object_get(report, "failed");
    write_heading(out, report, drawing);
    write_findings(out, json_object_get(report, "doctor"));
    write_bandwidth(out, json_object_get(report, "bw"));
    write_speeds(out, json_object_get(report, "fps"));
    if (json_array_size(failed)) fprintf(out, "\n## What failed\n\n");
    json_array_foreach(failed, index, entry) {
        fprintf(out, "- %s: %s\n", text_of(entry, "part"), text_of(entry, "reason"));
    }
}

// ---- the command ----

static enum farm_status print_report(const struct options *options, FILE *out, const json_t *report,
                                     const char *drawing, struct farm_error *err) {
    enum farm_status status = FARM_OK;
    if (options->json)
        status = farm_json_print(report, out, err);
    else
        write_page(out, report, drawing);
    if ((fflush(out) || ferror(out)) && !status)
        status = farm_fail_errno(err, FARM_E_IO, "writing %s", options->out ? options->out : "to stdout");
    return status;
}

static enum farm_status write_report(const struct options *options, const json_t *report, const char *drawing,
                                     struct farm_error *err) {
    char *text = NULL;
    size_t bytes;
    if (!options->out) return print_report(options, stdout, report, drawing, err);
    const bool opened = farm_file_is_stream(options->out);
    FILE *out = opened ? fopen(options->out, "we") : open_memstream(&text, &bytes);
    if (!out) return opened ? farm_file_fail(options->out, err) : farm_fail_errno(err, FARM_E_LIMIT, "farm report");
    enum farm_status status = print_report(options, out, report, drawing, err);
    if (fclose(out) && !status) status = farm_fail_errno(err, FARM_E_IO, "writing %s", options->out);
    if (!status && !opened) status = farm_file_replace(options->out, text, bytes, err);
    free(text);
    return status;
}

static enum farm_status run_report(const struct options *options, struct farm_error *err) {
    if (!(options->seconds >= 0.5 && options->seconds <= FPS_SECONDS_MAX))
        return farm_fail(err, FARM_E_USAGE, "--seconds must be 0.5 to %d (got %g)", FPS_SECONDS_MAX, options->seconds);
    char *picture = NULL;
    size_t picture_bytes;
    enum farm_status status = FARM_OK;
    if (options->out && !farm_file_is_stream(options->out)) status = farm_file_try_replace(options->out, err);
    if (status) return status; // what cannot be written is not measured
    FILE *drawing = open_memstream(&picture, &picture_bytes);
    if (!drawing) return farm_fail_errno(err, FARM_E_LIMIT, "farm report");
    json_t *report = farm_json_object(true);
    status = make_report(options, drawing, report, err);
    if (fclose(drawing) && !status) status = farm_fail_errno(err, FARM_E_LIMIT, "farm report");
    hide_paths_in(report);
    if (!status) status = write_report(options, report, picture, err);
    json_decref(report);
    free(picture);
    return status;
}

int farm_cmd_report(int argc, char **argv) {
    struct options options = {.fps = true, .bw = true, .seconds = 5};
    const struct farm_cli_flag flags[] = {
        {"json", FARM_CLI_BOOL, &options.json, NULL, "one JSON document instead of the page"},
        {"out", FARM_CLI_STRING, &options.out, "FILE", "output file (default: stdout)"},
        {"fps", FARM_CLI_BOOL, &options.fps, NULL, "--no-fps leaves out the speeds"},
        {"bw", FARM_CLI_BOOL, &options.bw, NULL, "--no-bw leaves out memory bandwidth"},
        {"env", FARM_CLI_STRING, &options.env, "A,B",
         "environments to time (native/breakout, and ale/Pong if present)"},
        {"seconds", FARM_CLI_DOUBLE, &options.seconds, "S", "duration of each (5)"},
        {"host", FARM_CLI_BOOL, &options.host, NULL, "includes this machine's name"},
    };
    const struct farm_cli cli = {
        .program = "farm report",
        .synopsis = "[--json] [--out FILE] [--no-fps] [--no-bw] [--env A,B] [--seconds S] [--host]",
        .about = "Combines farm topo, farm doctor, farm bw and farm fps into a page in Markdown, or a JSON document, "
                 "to attach\n"
                 "to a question. A part that fails is listed with its reason. Paths of this machine are left out, and "
                 "so is\n"
                 "its name, unless --host is given.",
        .examples = "  farm report --out report.md\n  farm report --json --env procgen/bigfish --seconds 20\n",
        .flags = flags,
        .flag_count = sizeof flags / sizeof *flags,
    };
    struct farm_error err;
    int exit_status;
    if (!farm_read_flags(&cli, argc, argv, NULL, &exit_status)) return exit_status;
    return run_report(&options, &err) ? farm_report_error("farm report", &err) : 0;
}
