// Keeps two farms on one machine, of the same or of different users, off each other's CPUs. A claim is a set of
// advisory read locks on a folder that every user may read, /dev/shm: byte N stands for CPU N. No file is made. The
// locks belong to the open file description, which children inherit by fork; the kernel releases them with its last
// descriptor, however the processes died, and nothing is left behind.
//
// Runs in the supervisor, before it forks. Farms in containers with a separate /dev/shm do not see each other: give
// such containers different cpusets. Claims bind no process to CPUs.
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

// Opens the folder `path`, or for NULL /dev/shm, else /tmp. Errors: FARM_E_PERMISSION, FARM_E_IO, FARM_E_UNSUPPORTED
// (no locks there); *claim is then closed (fd -1), which the other functions accept: callers warn and plan without
// pinning.
enum farm_status farm_claim_open(struct farm_claim *claim, const char *path, struct farm_error *err);

// CPUs that other farms hold. Empty for a claim that is not open.
enum farm_status farm_claim_read_taken(const struct farm_claim *claim, struct farm_bitmap *taken,
                                       struct farm_error *err);

// Takes all of `cpus`, or none: FARM_E_BUSY if another farm holds one of them. Of two farms that collide one succeeds.
// Does nothing for a claim that is not open.
enum farm_status farm_claim_take(const struct farm_claim *claim, const struct farm_bitmap *cpus,
                                 struct farm_error *err);

// Releases CPUs of this claim.
void farm_claim_give(const struct farm_claim *claim, const struct farm_bitmap *cpus);

// Plans without request->taken, which the caller has read, and claims plan->claim. If another farm was faster, reads
// the taken CPUs again and repeats this, a few times. A claim that is not open plans with request->pin = false. Errors:
// farm_plan_make's, farm_claim_read_taken's; FARM_E_BUSY after too many collisions.
enum farm_status farm_claim_plan(const struct farm_claim *claim, const struct farm_machine *machine,
                                 struct farm_plan_request *request, struct farm_plan *plan, struct farm_error *err);

// Closes this process's descriptor. The claim remains while a child holds a copy.
void farm_claim_close(struct farm_claim *claim);

#endif
