// Messages about rings that join and leave a running process that answers them: the learner, or a consumer in its place
// (run/consumer.h). The supervisor's side sends one request at a time; the other side carries it out and replies.
// Messages keep their boundaries (SOCK_SEQPACKET); a ring's descriptors travel with the request. Only
// farm_admission_receive_request waits.
//
// A joining ring has no actor yet: the supervisor starts it after the reply. A leaving ring still has its actor: after
// the reply the answering side uses neither, and the supervisor ends the actor.
#ifndef FARM_INTAKE_ADMISSION_H
#define FARM_INTAKE_ADMISSION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum farm_admission_kind {
    FARM_ADMISSION_JOIN,
    FARM_ADMISSION_LEAVE,
    FARM_ADMISSION_OPEN, // to a consumer, first, no reply: the number of places
    FARM_ADMISSION_END,  // to a consumer, last, no reply: why it is refused or the farm ends
};
enum { FARM_ADMISSION_VERSION = 1 }; // messages to consumers

struct farm_admission_request {
    enum farm_admission_kind kind;
    uint32_t ring;   // its place; OPEN: places
    uint32_t shard;  // JOIN: answers it; OPEN: FARM_ADMISSION_VERSION
    uint32_t joins;  // OPEN: occupied places; as many JOINs follow at once, without replies
    int fds[2];      // JOIN: up (read-only), down; OPEN: stats (read-only), the bell of all rings
    int up_writable; // JOIN: for a GPU that needs it (config.h); -1: none
    int wake;        // JOIN: eventfd of the bridge in a remote actor's place (farm_ring.wake_fd); -1: a local actor
    char text[sizeof((struct farm_error *)0)->message]; // END
};

struct farm_admission_reply {
    uint32_t ring;
    enum farm_status status;
    struct farm_error error; // why it refuses
};

// Both ends, close-on-exec. FARM_E_LIMIT.
enum farm_status farm_admission_make(int *supervisor, int *learner, struct farm_error *err);

// Supervisor: sends a request (the kernel copies its descriptors); receives the reply, if it is there.
enum farm_status farm_admission_send_request(int socket, const struct farm_admission_request *request,
                                             struct farm_error *err);
bool farm_admission_receive_reply(int socket, struct farm_admission_reply *reply);
// Before a learner is started: discards messages to and from the one before.
void farm_admission_clear(int supervisor, int learner);

// Learner: waits up to timeout_ms for a request. False: none, or an invalid one, which is discarded. The caller owns
// the descriptors of JOIN and OPEN; -1: this process has no room for them.
bool farm_admission_receive_request(int socket, int timeout_ms, struct farm_admission_request *request);
void farm_admission_send_reply(int socket, const struct farm_admission_reply *reply);

#endif
