// An actor's own policy, for LOCAL rings: it answers steps with the parameters on its node's board, by inference's
// seeds and streams, so that both give the same numbers. Runs in the actor process, one thread. It reads the board's
// packed weights in place while the ring's `using` announces them (board/board.h), if this CPU packs alike.
#ifndef FARM_POLICY_LOCAL_H
#define FARM_POLICY_LOCAL_H

#include "ring/ring.h"

struct farm_local;

// Waits until the board has a description and parameters. board_fd is owned, also on failure. The ring, opened by this
// process as its actor, must outlive the policy. *out becomes NULL if SIGTERM or down.stop ends the wait. Fails with
// what farm_board_open, farm_policy_understand and farm_policy_check_ring refuse, or FARM_E_LIMIT. opponents: rows of
// agents that it plays beside each lane of the ring, which another policy answers; 0: it answers the ring.
enum farm_status farm_local_open(int board_fd, struct farm_ring *ring, uint32_t opponents, uint32_t actor,
                                 struct farm_local **out, struct farm_error *err);

// Answers step n of all environments of a lane: its observations, rewards and flags are written, and those of the steps
// before that a stack holds; n rises. Signals are blocked meanwhile: in oneDNN 2.6 a handler without SA_ONSTACK would
// write over the heap.
void farm_local_answer(struct farm_local *local, uint32_t lane, uint64_t n);

// The opponents' rows, in lanes of the same numbers: the caller writes observations, rewards and flags of step n =
// farm_lane_actor_next(lane), which is the ring's; _play answers it and goes on to step n + 1, and the actions are at
// farm_lane_action(lane, n, row). After take-over steps continue, so a new actor draws other random numbers.
struct farm_ring *farm_local_opponents(struct farm_local *local);
void farm_local_play(struct farm_local *local, uint32_t lane);

void farm_local_close(struct farm_local *local); // NULL is permitted

#endif
