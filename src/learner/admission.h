// What supervisor and learner say to one another about rings that come and go while training runs. The supervisor asks,
// one thing at a time; the learner carries it out (admitter.h) and answers. Messages keep their boundaries
// (SOCK_SEQPACKET); a ring's descriptors travel with the request. Nothing here waits but for
// farm_admission_receive_request.
//
// A ring that comes has no actor yet: the supervisor starts it when the reply is there. A ring that goes still has its
// actor: the learner looks at neither any more when it answers, and the supervisor ends the actor then.
#ifndef FARM_LEARNER_ADMISSION_H
#define FARM_LEARNER_ADMISSION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum farm_admission_kind { FARM_ADMISSION_JOIN, FARM_ADMISSION_LEAVE };

struct farm_admission_request {
    enum farm_admission_kind kind;
    uint32_t ring;   // its place
    uint32_t shard;  // JOIN: who shall reply it
    int fds[2];      // JOIN: up (read-only), down
    int up_writable; // JOIN: for a GPU that wants it (learner.h); 0, -1: not lent
    int wake;        // JOIN: eventfd of the bridge in a remote actor's place (farm_ring.wake_fd); 0, -1: a local actor
};

struct farm_admission_reply {
    uint32_t ring;
    enum farm_status status;
    struct farm_error error; // why not
};

// Both ends, close-on-exec. FARM_E_LIMIT.
enum farm_status farm_admission_make(int *supervisor, int *learner, struct farm_error *err);

// Supervisor: asks (its descriptors are copied), looks for the reply (false: there is none yet).
enum farm_status farm_admission_send_request(int socket, const struct farm_admission_request *request,
                                             struct farm_error *err);
bool farm_admission_receive_reply(int socket, struct farm_admission_reply *reply);
// Before a learner is started: nothing that was said to or by the one before reaches the new one.
void farm_admission_clear(int supervisor, int learner);

// Learner: waits up to timeout_ms for a request (false: none, or one that makes no sense, which is dropped). The
// descriptors of one that JOINs are the caller's; -1: this process had no room for them.
bool farm_admission_receive_request(int socket, int timeout_ms, struct farm_admission_request *request);
void farm_admission_send_reply(int socket, const struct farm_admission_reply *reply);

#endif
