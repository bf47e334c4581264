// An actor's own policy, for LOCAL rings: it answers steps with the parameters on its node's board, by inference's
// seeds and streams, so that both give the same numbers. Runs in the actor process, one thread. It reads the board's
// packed weights in place while the ring's `using` announces them (board/board.h), if this CPU packs alike.
#ifndef FARM_POLICY_LOCAL_H
#define FARM_POLICY_LOCAL_H

#include "ring/ring.h"

struct farm_local;

// Waits until the board has a description and parameters. board_fd is owned, also on failure. The ring, opened by this
// process as its actor, must outlive the policy. *out becomes NULL if SIGTERM or down.stop ends the wait. Fails with
// what farm_board_open, farm_policy_understand and farm_policy_check_ring refuse, or FARM_E_LIMIT.
enum farm_status farm_local_open(int board_fd, struct farm_ring *ring, uint32_t actor, struct farm_local **out,
                                 struct farm_error *err);

// Answers step n of all environments of a lane: its observations, rewards and flags are written, and those of the steps
// before that a stack holds; n rises. Signals are blocked meanwhile: in oneDNN 2.6 a handler without SA_ONSTACK would
// write over the heap.
void farm_local_answer(struct farm_local *local, uint32_t lane, uint64_t n);

void farm_local_close(struct farm_local *local); // NULL is permitted

#endif
