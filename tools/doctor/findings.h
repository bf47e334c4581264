// A list of findings as `farm doctor` prints it: JSON objects with name, grade, found and mend, or lines of text.
#ifndef FARM_TOOLS_DOCTOR_FINDINGS_H
#define FARM_TOOLS_DOCTOR_FINDINGS_H

#include <jansson.h>

// Appends a finding to a JSON array. mend: what the user can do; NULL or "": nothing, as
// for the grade "good".
void farm_findings_add(json_t *list, const char *name, const char *grade, const char *mend, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

// Prints one finding on stdout: a line, and a second one for what to do.
void farm_findings_print(const json_t *finding);

#endif
