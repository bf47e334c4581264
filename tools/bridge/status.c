// `farm bridge status`: the remote nodes of a run, which its supervisor writes each second to RUN/bridge.json.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/file.h"
#include "base/format.h"
#include "base/json.h"
#include "report/run_dir.h"
#include "tools/bridge/bridge.h"
#include "tools/shared/command.h"

enum { DOCUMENT_BYTES_MAX = 1 << 20, STALE_S = 5 };

struct status {
    json_t *document;
    double age_s; // the file's
};

static enum farm_status read_status(const char *run, struct status *status, struct farm_error *err) {
    char path[FARM_RUN_PATH_MAX + 32], *text;
    size_t bytes;
    struct stat file;
    struct timespec now;
    if (strlen(run) >= FARM_RUN_PATH_MAX) return farm_fail(err, FARM_E_USAGE, "%.80s...: path too long", run);
    farm_run_dir_file(run, "bridge.json", path, sizeof path);
    enum farm_status failed = farm_file_read(path, DOCUMENT_BYTES_MAX, &text, &bytes, err);
    if (failed == FARM_E_NOT_FOUND)
        return farm_fail(err, FARM_E_NOT_FOUND,
                         "%s does not exist: the run has ended, or was not started with --listen ADDR:PORT", path);
    if (failed) return failed;
    status->document = farm_json_parse(text, bytes, path, err);
    free(text);
    if (!status->document) return FARM_E_FORMAT;
    if (!json_is_object(status->document)) {
        json_decref(status->document);
        return farm_fail(err, FARM_E_FORMAT, "%s holds no JSON object", path);
    }
    clock_gettime(CLOCK_REALTIME, &now);
    status->age_s = stat(path, &file) ? 0
                                      : (double)(now.tv_sec - file.st_mtim.tv_sec) +
                                            (double)(now.tv_nsec - file.st_mtim.tv_nsec) * 1e-9;
    return FARM_OK;
}

// ---- the table ----

static const char *text_of(const json_t *node, const char *key) {
    const char *text = json_string_value(json_object_get(node, key));
    return text ? text : "?";
}

static double number_of(const json_t *node, const char *key) {
    return json_number_value(json_object_get(node, key)); // 0: missing
}

static struct farm_number_text format_value(const json_t *node, const char *key) {
    return farm_format_count(number_of(node, key));
}

static void print_node(const json_t *node) {
    char state[32], round_trip[16] = "-";
    snprintf(state, sizeof state, "%.20s", text_of(node, "state"));
    if (strcmp(state, "away") == 0) snprintf(state, sizeof state, "away %.0f s", number_of(node, "away_s"));
    if (number_of(node, "round_trip_ms") > 0)
        snprintf(round_trip, sizeof round_trip, "%.3g", number_of(node, "round_trip_ms"));
    printf("%-20.20s %-12.12s %-12s %6.0f %6.0f %8s %7s %7s %13s %10.0f\n", text_of(node, "name"),
           text_of(node, "key")[0] ? text_of(node, "key") : "-", state, number_of(node, "actors"),
           number_of(node, "lanes"), format_value(node, "env_steps_per_s").text,
           format_value(node, "bytes_in_per_s").text, format_value(node, "bytes_out_per_s").text, round_trip,
           number_of(node, "reconnects"));
}

static void print_table(const struct status *status) {
    const json_t *nodes = json_object_get(status->document, "nodes");
    printf("learner at %s, %zu node%s\n", text_of(status->document, "address"), json_array_size(nodes),
           json_array_size(nodes) == 1 ? "" : "s");
    if (status->age_s > STALE_S)
        printf("(as of %.0f s ago: the run has ended, or its supervisor is stopped)\n", status->age_s);
    if (!json_array_size(nodes)) return;
    printf("%-20s %-12s %-12s %6s %6s %8s %7s %7s %13s %10s\n", "NODE", "KEY", "STATE", "ACTORS", "LANES", "STEPS/s",
           "B/s IN", "B/s OUT", "ROUND TRIP ms", "RECONNECTS");
    for (size_t i = 0; i < json_array_size(nodes); i++) print_node(json_array_get(nodes, i));
}

int farm_bridge_status(int argc, char **argv) {
    bool json = false, read;
    const char *run = NULL;
    int exit_status;
    struct farm_error err;
    const struct farm_cli_flag flags[] = {
        {"json", FARM_CLI_BOOL, &json, NULL, "one JSON document on stdout, with the file's age_s"}};
    const struct farm_cli cli = {
        .program = "farm bridge status",
        .synopsis = "RUN [--json]",
        .about =
            "The remote nodes of a run that `farm train --listen` has started, from the folder that --run names:\n"
            "state, actors, lanes, environment steps and bytes per second as the learner's side counts them, round\n"
            "trip of heartbeats, and how often a node has come back.",
        .examples = "  farm bridge status runs/ale_Pong-20260101-1\n"
                    "  watch -n1 farm bridge status r\n",
        .flags = flags,
        .flag_count = sizeof flags / sizeof *flags,
    };
    if (!farm_read_flags(&cli, argc, argv, &run, &exit_status)) return exit_status;
    if (!run) {
        fprintf(stderr, "farm bridge status: RUN is missing: farm bridge status RUN\n");
        return 2;
    }
    struct status status = {0};
    read = !read_status(run, &status, &err);
    if (!read) return farm_report_error("farm bridge status", &err);
    enum farm_status printed = FARM_OK;
    if (json) {
        farm_json_set_real(status.document, "age_s", status.age_s);
        printed = farm_json_print(status.document, stdout, &err);
    } else {
        print_table(&status);
    }
    json_decref(status.document);
    return printed ? farm_report_error("farm bridge status", &err) : 0;
}
