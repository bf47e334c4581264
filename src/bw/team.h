// Threads pinned to CPUs that start work together. Between two pieces of work they sleep, so that they disturb nothing.
// At the start each counts itself in, then all spin on one word (they yield if there are more threads than CPUs). Runs
// in one process; the thread that opened the team gives it work.
#ifndef FARM_BW_TEAM_H
#define FARM_BW_TEAM_H

#include "bw/figure.h"

struct farm_bw_team;

// One thread for each of the kernel's CPU numbers; a CPU may occur twice. A thread that must not be pinned runs where
// the system puts it: conditions->pinned is then false. FARM_E_LIMIT: too few threads.
enum farm_status farm_bw_team_open(const int *cpus, int count, struct farm_bw_team **out,
                                   struct farm_bw_conditions *conditions, struct farm_error *err);

// NULL is permitted.
void farm_bw_team_close(struct farm_bw_team *team);

// Calls work(context, member) in each thread, member 0 .. count - 1, and returns after all have returned. The members
// see what the caller wrote before, and the caller sees what they wrote. Its halves: begin returns at once, end waits.
typedef void farm_bw_team_work(void *context, int member);
void farm_bw_team_run(struct farm_bw_team *team, farm_bw_team_work *work, void *context);
void farm_bw_team_begin(struct farm_bw_team *team, farm_bw_team_work *work, void *context);
void farm_bw_team_end(struct farm_bw_team *team);

// Within work: returns in all members at the same time, as nearly as possible.
void farm_bw_team_meet(struct farm_bw_team *team);

#endif
