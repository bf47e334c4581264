// What users request of a run while it goes on (`farm actors`): more or fewer actors, by a socket in RUN/control, a
// folder that only this user may enter. A message is a few numbers in each direction. The supervisor answers at its
// ticks, without waiting; it refuses other users and the run's own workers, whose environments must not command it.
#ifndef FARM_RUN_REQUESTS_H
#define FARM_RUN_REQUESTS_H

#include "run/change.h"

enum { FARM_RUN_CLIENTS_MAX = 16 };

struct farm_run_requests {
    struct farm_run_change *change; // farm_run_make
    bool open;
    int run, folder, listener; // RUN, RUN/control, the socket
    struct farm_run_client {
        int fd;
        uint64_t since_ns;
    } client[FARM_RUN_CLIENTS_MAX]; // connections whose request has not come
    uint32_t clients;
};

struct farm_run_answer {
    uint32_t status;         // enum farm_status
    uint32_t actors, remote; // this machine's, and those of others
    uint32_t pending;        // changes that are not complete
};

// Opens the socket; replaces one that a killed run has left. A run without a folder has none. If it cannot be opened
// (a file system without sockets), a warning names the reason.
void farm_run_requests_make(struct farm_run_requests *requests);
void farm_run_requests_tick(struct farm_run_requests *requests, uint64_t now_ns);
void farm_run_requests_free(struct farm_run_requests *requests); // safe on a zeroed one

// Whether the process at the other end of a local socket is the farm's user, and no worker of the run.
bool farm_run_requests_may_command(const struct farm_run_workers *workers, int fd);

// From another process: adds actors (below 0: removes; 0: only reads the numbers). FARM_E_NOT_FOUND no such run, or it
// has ended; FARM_E_PERMISSION another user's run, or this process is a worker of it; FARM_E_UNSUPPORTED a
// deterministic run; FARM_E_IO no answer.
enum farm_status farm_run_requests_send(const char *run_path, int32_t add, struct farm_run_answer *answer,
                                        struct farm_error *err);

#endif
