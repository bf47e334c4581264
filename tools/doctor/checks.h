// The checks of `farm doctor PLUGIN`, in the order in which they are made. Each runs in a child process of its own and
// leaves its finding in a trial's report.
#ifndef FARM_TOOLS_DOCTOR_CHECKS_H
#define FARM_TOOLS_DOCTOR_CHECKS_H

#include "tools/doctor/trial.h"

struct doctor_check {
    const char *name;
    void (*run)(struct trial *trial);
    bool basic;      // what fails here fails everywhere: no further check is made
    bool judge;      // whether equal seeds give equal episodes: decides on what is `repeatable`
    bool repeatable; // means nothing where they do not
    bool guard;      // whether only its own memory is touched: where not, later checks do not look at it again
    bool later;      // a second or more after the first check
};

// The check of that index, NULL behind the last.
const struct doctor_check *doctor_check_at(size_t index);

// Opens the shared object of the request, whatever environments it has, and leaves their names.
void doctor_list(const struct trial_request *request, struct trial_report *report);

#endif
