// See spawn.h.
#include "tools/shared/spawn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/program.h"

enum { WORDS_MAX = 32 };

enum farm_status farm_spawn_document(const char *const *words, double limit_s, bool (*stop)(void *context),
                                     void *context, json_t **document, struct farm_error *err) {
    char farm[] = "farm", name[64], label[72], *text;
    char *argv[WORDS_MAX + 2] = {farm};
    for (int i = 0; i < WORDS_MAX && words[i]; i++) argv[i + 1] = (char *)words[i]; // posix_spawn does not modify them
    snprintf(name, sizeof name, "farm %s", words[0]);
    snprintf(label, sizeof label, "%s: ", name);
    const struct farm_program program = {.path = "/proc/self/exe",
                                         .argv = argv,
                                         .environment = environ,
                                         .label = label,
                                         .limit_s = limit_s,
                                         .stop = stop,
                                         .context = context};
    enum farm_status status = farm_program_read(&program, &text, err);
    if (status == FARM_E_USAGE || status == FARM_E_NOT_FOUND) status = err->status = FARM_E_DEAD; // not this command's
    if (status) return status;
    *document = farm_json_parse(text, strlen(text), name, err);
    free(text);
    return *document ? FARM_OK : err->status;
}
