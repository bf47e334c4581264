// Messages to the bridges of sessions.h. Runs in the supervisor process.
#ifndef FARM_RUN_SESSION_MESSAGES_H
#define FARM_RUN_SESSION_MESSAGES_H

#include "run/session.h"

// Limits how many rings the bridges receive until the next call.
void farm_run_messages_begin_tick(struct farm_run_sessions *sessions);
// Sends the bridges what they have not received yet, as far as their sockets have room; frees sessions that have left.
void farm_run_messages_send(struct farm_run_sessions *sessions);
// Queues a refusal of the node `id`; replaces one that waits already.
void farm_run_messages_refuse(struct farm_run_sessions *sessions, uint32_t bridge, const uint8_t *id,
                              enum farm_wire_reason reason, const char *text);
// Whether another refusal can be queued.
bool farm_run_messages_have_room(struct farm_run_sessions *sessions);
// Drops the refusals that wait for bridge b.
void farm_run_messages_forget_refusals(struct farm_run_sessions *sessions, uint32_t b);

#endif
