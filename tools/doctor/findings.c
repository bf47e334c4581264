// See findings.h.
#include "tools/doctor/findings.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"

enum { FOUND_BYTES = 800 };

void farm_findings_add(json_t *list, const char *name, const char *grade, const char *mend, const char *format, ...) {
    char found[FOUND_BYTES];
    json_t *finding = farm_json_object(false);
    va_list args;
    va_start(args, format);
    vsnprintf(found, sizeof found, format, args);
    va_end(args);
    farm_json_set_text(finding, "name", name);
    farm_json_set_text(finding, "grade", grade);
    farm_json_set_text(finding, "found", found);
    farm_json_set_text(finding, "mend", mend && mend[0] && strcmp(grade, "good") != 0 ? mend : NULL);
    farm_json_append(list, finding);
}

void farm_findings_print(const json_t *finding) {
    const char *name, *grade, *found, *mend = NULL;
    json_unpack((json_t *)finding, "{s:s, s:s, s?:s, s?:s}", "name", &name, "grade", &grade, "found", &found, "mend",
                &mend);
    printf("%-8s %-24s %s\n", grade, name, found);
    if (mend) printf("%-33s -> %s\n", "", mend);
    fflush(stdout);
}
