// `farm envs`: the environments that can run here, which of them can be trained, and how to install the others.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cli.h"
#include "base/json.h"
#include "envs/native/native.h"
#include "envs/registry.h"
#include "tools/shared/command.h"
#include "tools/shared/recipe_flags.h"

struct verdict {
    enum { YES, NO, DEPENDS } trains;
    char reason[200]; // "": yes
};

static const char *const words[] = {"yes", "no", "depends"};

// Finds the environment (this starts a process unless it is built in) and asks as `farm train` does.
static enum farm_status judge(const struct farm_recipe *recipe, struct verdict *verdict, struct farm_error *err) {
    struct farm_error why;
    struct farm_env *env = malloc(sizeof *env);
    if (!env) return farm_fail_errno(err, FARM_E_LIMIT, "farm envs");
    enum farm_status status = farm_env_find(recipe, env, err);
    *verdict = (struct verdict){.trains = YES};
    if (!status && !farm_recipe_flags_train(recipe->env, &env->spec, &why)) {
        verdict->trains = NO;
        snprintf(verdict->reason, sizeof verdict->reason, "%.199s", why.message);
    }
    free(env);
    return status;
}

static size_t family_of(const char *name) {
    return strcspn(name, "/");
}

static bool same_family(const char *a, const char *b) {
    const size_t family = family_of(a);
    return family == family_of(b) && strncmp(a, b, family) == 0;
}

// A Python program takes a third of a second to start: one game stands for ALE's, whose spaces are equal but for the
// number of actions, and ids of Gymnasium, PettingZoo and EnvPool are left to `farm envs NAME`.
static void judge_all(const struct farm_env_list *list, double start_s, struct verdict *verdicts) {
    struct farm_recipe recipe;
    struct farm_error err;
    farm_recipe_defaults(&recipe, NULL);
    recipe.start_seconds = start_s;
    for (size_t i = 0; i < list->count; i++) {
        const char *name = list->names[i];
        const bool follows = i && same_family(name, list->names[i - 1]);
        snprintf(recipe.env, sizeof recipe.env, "%s", name);
        if (!strncmp(name, "gym/", 4) || !strncmp(name, "pettingzoo/", 11) || !strncmp(name, "envpool/", 8)) {
            verdicts[i] = (struct verdict){DEPENDS, "`farm envs NAME` finds out"};
        } else if (follows && strncmp(name, "ale/", 4) == 0) {
            verdicts[i] = verdicts[i - 1];
        } else if (judge(&recipe, &verdicts[i], &err)) {
            verdicts[i].trains = NO;
            snprintf(verdicts[i].reason, sizeof verdicts[i].reason, "%.199s", err.message);
        }
    }
}

struct document {
    json_t *names, *trains, *reasons;
};

static void add_row(const struct document *to, const char *name, const struct verdict *verdict) {
    farm_json_append(to->names, json_string(name));
    farm_json_set(to->trains, name, verdict->trains == DEPENDS ? NULL : json_boolean(verdict->trains == YES));
    if (verdict->reason[0]) farm_json_set_text(to->reasons, name, verdict->reason);
}

// One row if `name` is not NULL, else those of the list.
static enum farm_status print_json(const char *name, const struct farm_env_list *list, const struct verdict *verdicts,
                                   struct farm_error *err) {
    const struct document rows = {json_array(), farm_json_object(false), farm_json_object(false)};
    json_t *document = farm_json_object(true);
    if (name) add_row(&rows, name, verdicts);
    for (size_t i = 0; i < list->count; i++) add_row(&rows, list->names[i], &verdicts[i]);
    farm_json_set(document, "envs", rows.names);
    farm_json_set(document, "trains", rows.trains);
    farm_json_set(document, "trains_reason", rows.reasons);
    farm_json_set_text(document, "missing", list->missing[0] ? list->missing : NULL);
    enum farm_status status = farm_json_print(document, stdout, err);
    json_decref(document);
    return status;
}

static void print_verdict(const char *name, const struct verdict *verdict) {
    const bool yes = verdict->trains == YES;
    printf("%s: trains: %s%s%s%s\n", name, words[verdict->trains], yes ? "" : " (", verdict->reason, yes ? "" : ")");
}

// Prints the names from `first` on that belong to one family and have one verdict, in columns; not all of a family that
// only --json lists. Returns how many.
static size_t print_alike(const struct farm_env_list *list, const struct verdict *verdicts, size_t first) {
    enum { LINE = 100, SHOWN = 24 };
    const char(*names)[FARM_ENV_NAME_BYTES] = (const char(*)[FARM_ENV_NAME_BYTES])list->names + first;
    char family[FARM_ENV_NAME_BYTES + 4];
    const size_t most = strncmp(names[0], "envpool/", 8) == 0 ? SHOWN : SIZE_MAX;
    size_t count = 0, widest = 0;
    for (; first + count < list->count && same_family(names[0], names[count]) &&
           strcmp(verdicts[first].reason, verdicts[first + count].reason) == 0;
         count++)
        if (count < most && strlen(names[count]) > widest) widest = strlen(names[count]);
    const size_t columns = widest + 2 < LINE ? LINE / (widest + 2) : 1;
    snprintf(family, sizeof family, "\n%.*s/*", (int)family_of(names[0]), names[0]);
    print_verdict(family, &verdicts[first]);
    const size_t shown = count < most ? count : most;
    for (size_t i = 0; i < shown; i++)
        printf("%-*s%s", (int)widest + 2, names[i], (i + 1) % columns == 0 || i + 1 == shown ? "\n" : "");
    if (shown < count) printf("and %zu more (--json lists all)\n", count - shown);
    return count;
}

static void print_list(const struct farm_env_list *list, const struct verdict *verdicts) {
    printf("%-17s %-7s about\n", "name", "trains");
    for (size_t i = 0; i < list->count;) {
        const struct farm_env_api *api = farm_native_env_find(list->names[i]);
        if (api) printf("%-17s %-7s %s\n", list->names[i], words[verdicts[i].trains], api->about);
        i += api ? 1 : print_alike(list, verdicts, i);
    }
    if (list->missing[0]) printf("\nMissing:\n%s\n", list->missing);
    printf("\nAlso gym/ID (any id that Gymnasium knows), plugin:PATH.so[:NAME] (your own environment,\n"
           "docs/ADDING_AN_ENVIRONMENT.md), libenv:PATH.so (a library with gym3's libenv interface).\n"
           "farm train --env NAME trains one of them; farm envs NAME [--env.OPTION VALUE ...] says whether it can.\n");
}

static enum farm_status list_all(const struct farm_recipe *recipe, bool json, struct farm_error *err) {
    struct farm_env_list list = {0};
    enum farm_status status = farm_env_list_make(&list, recipe->start_seconds, err);
    struct verdict *verdicts = calloc(list.count + 1, sizeof *verdicts);
    if (!status && !verdicts) status = farm_fail_errno(err, FARM_E_LIMIT, "farm envs");
    if (!status) judge_all(&list, recipe->start_seconds, verdicts);
    if (!status && json) status = print_json(NULL, &list, verdicts, err);
    if (!status && !json) print_list(&list, verdicts);
    free(verdicts);
    farm_env_list_free(&list);
    return status;
}

static enum farm_status judge_one(const char *name, struct farm_recipe *recipe, bool json, struct farm_error *err) {
    struct verdict verdict;
    enum farm_status status = farm_recipe_set(recipe, FARM_LAYER_FLAG, "env", name, err);
    if (!status) status = judge(recipe, &verdict, err);
    if (status) return status;
    if (!json) return print_verdict(recipe->env, &verdict), FARM_OK;
    return print_json(recipe->env, &(struct farm_env_list){.count = 0}, &verdict, err);
}

int farm_cmd_envs(int argc, char **argv) {
    bool json = false;
    const char *name = NULL;
    struct farm_recipe recipe;
    const struct farm_cli_flag flags[] = {{"json", FARM_CLI_BOOL, &json, NULL, "one JSON document on stdout"}};
    const struct farm_cli cli = {
        .program = "farm envs",
        .synopsis = "[NAME [--env.OPTION VALUE ...] [--wrap PACKAGE:WRAPPER ...]] [--json]",
        .about = "Lists the environments that can run on this machine, and whether farm train can train them.\n"
                 "With a name: only this one, with these options.",
        .examples = "  farm envs\n  farm envs gym/Blackjack-v1\n  farm envs ale/Pong --env.obs rgb --json\n",
        .flags = flags,
        .flag_count = 1};
    struct farm_error err;
    int exit_status;
    if (!farm_read_recipe_flags(&cli, FARM_USE_ENVS, argc, argv, &name, &recipe, &exit_status)) return exit_status;
    if (!name && recipe.option_count)
        return farm_fail(&err, FARM_E_USAGE, "--env.OPTION needs NAME: farm envs NAME"),
               farm_report_error("farm envs", &err);
    return (name ? judge_one(name, &recipe, json, &err) : list_all(&recipe, json, &err))
               ? farm_report_error("farm envs", &err)
               : 0;
}
