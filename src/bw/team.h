// Threads pinned to CPUs that start work together: measurements' hands. Between two pieces of work they sleep, so that
// they disturb nobody. Start: each counts itself in, then all spin on one word (they yield where there are more threads
// than CPUs). Runs in one process; the thread that made the team gives it work.
#ifndef FARM_BW_TEAM_H
#define FARM_BW_TEAM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct farm_bw_team;

// One thread a CPU (kernel's numbers; a CPU may come twice). A thread that may not be pinned runs where it likes, and
// farm_bw_team_is_pinned is false. FARM_E_LIMIT: no more threads can be had.
enum farm_status farm_bw_team_open(const int *cpus, int count, struct farm_bw_team **out, struct farm_error *err);

// NULL is permitted.
void farm_bw_team_close(struct farm_bw_team *team);

bool farm_bw_team_is_pinned(const struct farm_bw_team *team);

// Calls work(context, member) in each thread, member 0 .. count - 1, and returns when all have come back. What the
// caller wrote before is seen by the members, and the other way round.
typedef void farm_bw_team_work(void *context, int member);
void farm_bw_team_run(struct farm_bw_team *team, farm_bw_team_work *work, void *context);

// Within work: returns in all members at the same time, as nearly as can be.
void farm_bw_team_meet(struct farm_bw_team *team);

#endif
