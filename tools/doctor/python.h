// Environments in Python through the interface of farm/env.h, so that the doctor's checks serve both kinds. Each
// instance is the actor program that `farm train` starts, with a ring of one lane and one environment; these functions
// are the learner's side of that ring. Runs in the child process of a check, one thread; its actors die with it.
#ifndef FARM_TOOLS_DOCTOR_PYTHON_H
#define FARM_TOOLS_DOCTOR_PYTHON_H

#include <farm/env.h>
#include <sys/types.h>

#include "tools/doctor/plugin.h"

// Finds the request's target with its options, for the children that are forked later. Errors: those of farm_env_find.
enum farm_status farm_doctor_python_find(const struct farm_doctor_request *request, struct farm_error *err);

// After farm_doctor_python_find. create waits for the first observation. An actor that ends in reset or step ends this
// process too; its last words are on stderr.
extern const struct farm_env_api farm_doctor_python_api;

// Ends the instances that still exist, after close().
void farm_doctor_python_end(void);

// The process in which this instance plays.
pid_t farm_doctor_python_process(const void *env);

#endif
