// The checks of `farm doctor PLUGIN`, in the order in which they are made. Each runs in a child process and leaves its
// finding in a trial's report.
#ifndef FARM_TOOLS_DOCTOR_CHECKS_H
#define FARM_TOOLS_DOCTOR_CHECKS_H

#include "tools/doctor/trial.h"

struct doctor_check {
    const char *name;
    void (*run)(struct trial *trial);
    bool basic;            // if it fails, no further check is made
    bool tests_repeatable; // finds whether equal seeds give equal episodes
    bool wants_repeatable; // means nothing if they do not
    bool tests_outside;    // finds writes outside of the environment's memory
    bool later;            // a second or more after the first check
    bool python;           // made of environments in Python too
};

// The check of that index, NULL behind the last.
const struct doctor_check *doctor_check_at(size_t index);

// Opens the shared object of the request and leaves the names of its environments.
void doctor_list(const struct trial_request *request, struct trial_report *report);

#endif
