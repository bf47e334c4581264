// Keeps two farms on one machine off each other's CPUs. A claim is a set of advisory locks on a file that all farms of
// the machine open: byte N stands for CPU N. They are open-file-description locks, so they belong to the descriptor and
// to every child that inherits it by fork, and the kernel drops them when the last of these is gone, however it died.
// The file stays empty and holds no memory; it is never deleted, since a farm that opened it afresh would see nobody.
//
// Runs in the supervisor, before it forks. Farms in containers with a /dev/shm of their own do not see each other: give
// such containers different cpusets. It binds nothing and stops nobody who does not ask.
#ifndef FARM_TOPO_CLAIM_H
#define FARM_TOPO_CLAIM_H

#include "base/bitmap.h"
#include "base/status.h"
#include "topo/machine.h"
#include "topo/plan.h"

struct farm_claim {
    int fd; // close-on-exec; -1: not open
    char path[256];
};

// Opens the lock file: `path`, or for NULL farm-cpus.lock in /dev/shm, else in /tmp. One file serves all users: it is
// made with mode 0666 and holds nothing. Errors: FARM_E_PERMISSION, FARM_E_IO; *claim is then closed (fd -1), which the
// other functions accept: a caller warns and plans without pinning.
enum farm_status farm_claim_open(struct farm_claim *claim, const char *path, struct farm_error *err);

// CPUs that other farms hold (not this claim's own). Empty for a claim that is not open.
enum farm_status farm_claim_read_taken(const struct farm_claim *claim, struct farm_bitmap *taken,
                                       struct farm_error *err);

// Takes all of `cpus`, or none: FARM_E_BUSY where another farm was faster with one of them. Of two farms that collide
// one wins. Nothing to do for a claim that is not open.
enum farm_status farm_claim_take(const struct farm_claim *claim, const struct farm_bitmap *cpus,
                                 struct farm_error *err);

// Gives CPUs of this claim back.
void farm_claim_give(const struct farm_claim *claim, const struct farm_bitmap *cpus);

// Reads what is taken into request->taken, plans, claims plan->claim; again when another farm was faster, a few times
// over. A claim that is not open plans with request->pin = false. Errors: farm_plan_make's; FARM_E_BUSY after too many
// collisions.
enum farm_status farm_claim_plan(const struct farm_claim *claim, const struct farm_machine *machine,
                                 struct farm_plan_request *request, struct farm_plan *plan, struct farm_error *err);

// Closes this process's descriptor. The claim lives on while a child still holds its copy.
void farm_claim_close(struct farm_claim *claim);

#endif
