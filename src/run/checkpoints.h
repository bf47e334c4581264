// Finds the usable checkpoint of a run, and checks that its files have room. Runs in the supervisor process and in
// tools; the learner loads it.
#ifndef FARM_RUN_CHECKPOINTS_H
#define FARM_RUN_CHECKPOINTS_H

#include "learner/checkpoint.h"
#include "run/caller.h"
#include "run/plan.h"
#include "run/rings.h"

// Loads the file as the plan's learner does, into temporary vectors.
enum farm_status farm_run_try_checkpoint(const struct farm_run_plan *plan, const char *path, struct farm_error *err);

// The replay that makes a pair with this checkpoint of the plan, if the plan saves replays and the checkpoint names
// one: checked, with `chunks` as a whole, or put into new rings and stats (rings NULL: only checked). Errors are
// farm_replay_load's; FARM_E_USAGE: of another shape.
enum farm_status farm_run_read_replay(const struct farm_run_plan *plan, const char *checkpoint, bool chunks,
                                      struct farm_run_rings *rings, struct farm_error *err);

// A new board with the policy of the recipe's opponent, for all actors; without one *out stays. Only the supervisor
// writes it, once.
enum farm_status farm_run_opponent_board(const struct farm_run_plan *plan, struct farm_board **out,
                                         struct farm_error *err);

// The newest usable checkpoint of the run's folder; each skipped one is named on stderr with the reason. Usable: the
// plan's learner can load it (tensors of network and optimiser, all finite) and its replay; without a plan (NULL):
// length and header are valid. caller may be NULL. False: no checkpoint is usable.
bool farm_run_find_checkpoint(const char *run_path, const struct farm_run_plan *plan,
                              const struct farm_run_caller *caller, char *path, size_t path_bytes);

// The checkpoint that the user names: a file, as it is, or a run's folder, whose newest one with a valid header it is;
// `best`: the best one, unless there is none or it cannot be read.
enum farm_status farm_run_choose_checkpoint(const char *what, bool best, char *path, size_t path_bytes,
                                            struct farm_error *err);

// Whether the run's files have room. Warns with the sum if the file system of run_path (an existing folder) has less
// left than the checkpoints that are kept, the best, one more while it is written, and the metrics of the rest of the
// run, of which before_s seconds have passed (of a day, if its end is open), need. FARM_E_LIMIT: RLIMIT_FSIZE does not
// allow a checkpoint.
enum farm_status farm_run_check_room(const char *run_path, const struct farm_run_plan *plan, double before_s,
                                     struct farm_error *err);

#endif
