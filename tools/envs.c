// `farm envs`: the environments that can run here, and how to install the others.
#include <stdio.h>
#include <string.h>

#include "actor/actor.h"
#include "base/cli.h"
#include "base/json.h"
#include "envs/native/native.h"
#include "envs/registry.h"
#include "tools/shared/command.h"

static enum farm_status print_json(const struct farm_env_list *list, struct farm_error *err) {
    json_t *document = farm_json_object(true), *names = json_array();
    for (size_t i = 0; i < list->count; i++) json_array_append_new(names, json_string(list->names[i]));
    farm_json_set(document, "envs", names);
    farm_json_set_text(document, "missing", list->missing[0] ? list->missing : NULL);
    enum farm_status status = farm_json_print(document, stdout, err);
    json_decref(document);
    return status;
}

static size_t family_of(const char *name) {
    return strcspn(name, "/");
}

// Prints the names from `first` on that belong to one family, in columns. Returns how many.
static size_t print_family(const struct farm_env_list *list, size_t first) {
    enum { LINE = 100 };
    const size_t family = family_of(list->names[first]);
    size_t count = 0, widest = 0;
    for (size_t i = first; i < list->count && family_of(list->names[i]) == family &&
                           strncmp(list->names[i], list->names[first], family) == 0;
         i++, count++)
        if (strlen(list->names[i]) > widest) widest = strlen(list->names[i]);
    const size_t columns = widest + 2 < LINE ? LINE / (widest + 2) : 1;
    printf("\n");
    for (size_t i = 0; i < count; i++)
        printf("%-*s%s", (int)widest + 2, list->names[first + i], (i + 1) % columns == 0 || i + 1 == count ? "\n" : "");
    return count;
}

static void print_list(const struct farm_env_list *list) {
    for (size_t i = 0; i < list->count;) {
        const struct farm_env_api *api = farm_native_env_find(list->names[i]);
        if (api) printf("%-24s %s\n", list->names[i], api->about);
        i += api ? 1 : print_family(list, i);
    }
    if (list->missing[0]) printf("\nMissing:\n%s\n", list->missing);
    printf("\nAlso gym/ID (any id that Gymnasium knows), plugin:PATH.so[:NAME] (your own environment,\n"
           "docs/ADDING_AN_ENVIRONMENT.md), libenv:PATH.so (a library with gym3's libenv interface).\n"
           "farm train --env NAME trains one of them.\n");
}

int farm_cmd_envs(int argc, char **argv) {
    bool json = false;
    const struct farm_cli_flag flags[] = {{"json", FARM_CLI_BOOL, &json, NULL, "one JSON document on stdout"}};
    const struct farm_cli cli = {.program = "farm envs",
                                 .synopsis = "[--json]",
                                 .about = "Lists the environments that can run on this machine.",
                                 .flags = flags,
                                 .flag_count = 1};
    struct farm_error err;
    struct farm_env_list list = {0};
    int exit_status;
    if (!farm_read_flags(&cli, argc, argv, NULL, &exit_status)) return exit_status;
    enum farm_status status = farm_env_list_make(&list, &err);
    if (!status && json) status = print_json(&list, &err);
    if (!status && !json) print_list(&list);
    farm_env_list_free(&list);
    return status ? farm_report_error("farm envs", &err) : 0;
}
