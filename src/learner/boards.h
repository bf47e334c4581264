// The learner's side of the boards on which actors that infer read the parameters: opens them, describes the policy on
// them, packs and publishes versions, and watches the actors' announcements. The training thread publishes; the
// admitter watches and unwatches. board/board.h has the protocol, run/rings.h makes the boards.
#ifndef FARM_LEARNER_BOARDS_H
#define FARM_LEARNER_BOARDS_H

#include "learner/parts.h"
#include "policy/describe.h"

// Describes a board by this text, and packs its versions for executors like this one if it has room; else each actor
// packs its own. A bridge does it for a node's boards.
enum farm_status farm_boards_describe(struct farm_board *board, const char *text, struct farm_executor *executor,
                                      struct farm_error *err);

// The policy as boards and checkpoints describe it (policy/describe.h). Errors: farm_policy_describe's.
enum farm_status farm_boards_text(const struct farm_learner_parts *parts, char text[FARM_POLICY_TEXT_BYTES],
                                  struct farm_error *err);

// Opens the config's boards, describes the policy, watches the present rings and publishes parts->version. After the
// backend has its parameters. A player, which has no backend, gives its arithmetic and parameters; else NULL.
// FARM_E_UNSUPPORTED: a backend whose arithmetic actors do not have.
enum farm_status farm_boards_open(struct farm_learner_parts *parts, const struct farm_arithmetic *arithmetic,
                                  const float *params, struct farm_error *err);
void farm_boards_close(struct farm_learner_parts *parts); // before the rings; safe without boards

// Publishes the parameters, NULL: those in training. A version that some board has no buffer for is skipped there and
// counted.
void farm_boards_publish(struct farm_learner_parts *parts, const float *params, uint64_t version);

// Watches a ring that joins, before its actor may infer; no longer watches one that leaves, before it is closed.
enum farm_status farm_boards_watch(struct farm_learner_parts *parts, uint32_t ring, struct farm_error *err);
void farm_boards_unwatch(struct farm_learner_parts *parts, uint32_t ring);

#endif
