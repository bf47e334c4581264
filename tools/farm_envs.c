// `farm envs`: the environments that can run here, and what brings the others.
#include <stdio.h>

#include "actor/actor.h"
#include "base/cli.h"
#include "farm_env.h"
#include "farm_job.h"
#include "report/json.h"
#include "tools.h"

static enum farm_status print_json(const struct farm_env_list *list, struct farm_error *err) {
    json_t *document = farm_json_object(true), *names = json_array();
    for (size_t i = 0; i < list->count; i++) json_array_append_new(names, json_string(list->names[i]));
    farm_json_set(document, "envs", names);
    farm_json_set_text(document, "missing", list->missing[0] ? list->missing : NULL);
    enum farm_status status = farm_json_print(document, stdout, err);
    json_decref(document);
    return status;
}

static void print_list(const struct farm_env_list *list) {
    enum { COLUMNS = 4 };
    size_t column = 0;
    for (size_t i = 0; i < list->count; i++) {
        const struct farm_env_api *api = farm_native_env_find(list->names[i]);
        if (api) {
            printf("%-24s %s\n", list->names[i], api->about);
            continue;
        }
        if (column == 0) printf("\n");
        printf("%-25s", list->names[i]);
        if (++column % COLUMNS == 0 || i + 1 == list->count) printf("\n");
    }
    if (list->missing[0]) printf("\nale/* cannot run here: %s\n", list->missing);
    printf("\nfarm train --env NAME trains one of them.\n");
}

int farm_cmd_envs(int argc, char **argv) {
    bool json = false, help;
    const struct farm_cli_flag flags[] = {{"json", FARM_CLI_BOOL, &json, NULL, "one JSON document on stdout"}};
    const struct farm_cli cli = {.program = "farm envs",
                                 .synopsis = "[--json]",
                                 .about = "Lists the environments that can run on this machine.",
                                 .flags = flags,
                                 .flag_count = 1};
    struct farm_error err;
    struct farm_env_list list = {0};
    enum farm_status status = farm_cli_parse(&cli, argc, argv, NULL, 0, NULL, &help, &err);
    if (!status && help) {
        farm_cli_print_help(&cli);
        return 0;
    }
    if (!status) status = farm_env_list_make(&list, &err);
    if (!status && json) status = print_json(&list, &err);
    if (!status && !json) print_list(&list);
    farm_env_list_free(&list);
    return status ? farm_report_error("farm envs", &err) : 0;
}
