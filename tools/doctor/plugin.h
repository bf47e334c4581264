// `farm doctor PLUGIN.so`, `farm doctor native/NAME` and `farm doctor gym/ID`: checks that an environment keeps the
// contract of include/farm/env.h and prints a finding per check. Each check runs in a child process: an environment
// that crashes or never returns is a finding and does not end the doctor.
#ifndef FARM_TOOLS_DOCTOR_PLUGIN_H
#define FARM_TOOLS_DOCTOR_PLUGIN_H

#include <farm/env.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum { FARM_DOCTOR_OPTIONS_MAX = 32, FARM_DOCTOR_OPTION_BYTES = 256 };

struct farm_doctor_request {
    const char *target; // path of a shared object, or the name of an environment as `farm train --env` takes it
    const char *env;    // a shared object's environment; NULL: all
    const char *check;  // this one and those that it needs; NULL: all
    int64_t steps;      // limit of a check's calls of an instance
    double start_seconds, hang_seconds; // the first: of what comes before a reset
    bool json;
    size_t option_count;
    char option_texts[FARM_DOCTOR_OPTIONS_MAX][FARM_DOCTOR_OPTION_BYTES]; // "key\0value"
    struct farm_env_option options[FARM_DOCTOR_OPTIONS_MAX];
};

// Parses "--option key=value" and "--env.key value": farm_cli's `other`; context is the request.
enum farm_status farm_doctor_option(void *context, const char *name, const char *value, struct farm_error *err);

// Checks and prints. *sound: nothing is broken. FARM_E_USAGE: a file, environment or check that does not exist.
enum farm_status farm_doctor_plugin(const struct farm_doctor_request *request, bool *sound, struct farm_error *err);

#endif
