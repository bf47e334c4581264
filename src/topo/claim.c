// See claim.h. fcntl(2), "Open file description locks".
#include "topo/claim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>

enum { PLAN_TRIES = 8, ENTER_TRIES = 200, ENTER_PAUSE_US = 1000 };

static struct flock lock_of(short type, int first, int count) {
    return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = first, .l_len = count};
}

// Whether another open file description holds the CPU. -1 with errno: unknown.
static int is_taken(const struct farm_claim *claim, int cpu) {
    struct flock probe = lock_of(F_WRLCK, cpu, 1); // conflicts with every claim; not taken, so read access suffices
    return fcntl(claim->fd, F_OFD_GETLK, &probe) ? -1 : probe.l_type != F_UNLCK;
}

static enum farm_status open_at(struct farm_claim *claim, const char *path, struct farm_error *err) {
    snprintf(claim->path, sizeof claim->path, "%s", path);
    claim->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (claim->fd < 0)
        return farm_fail_errno(err, errno == EACCES || errno == EPERM ? FARM_E_PERMISSION : FARM_E_IO,
                               "cannot open %s, whose locks are the farms' claims", path);
    struct flock lock = lock_of(F_RDLCK, FARM_BITMAP_BITS, 1); // no CPU's
    if (is_taken(claim, FARM_BITMAP_BITS) >= 0 && !fcntl(claim->fd, F_OFD_SETLK, &lock)) {
        lock.l_type = F_UNLCK;
        fcntl(claim->fd, F_OFD_SETLK, &lock);
        return FARM_OK;
    }
    farm_fail_errno(err, FARM_E_UNSUPPORTED, "cannot lock %s, whose locks are the farms' claims", path);
    farm_claim_close(claim);
    return FARM_E_UNSUPPORTED;
}

enum farm_status farm_claim_open(struct farm_claim *claim, const char *path, struct farm_error *err) {
    if (path) return open_at(claim, path, err);
    if (!open_at(claim, "/dev/shm", NULL)) return FARM_OK;
    return open_at(claim, "/tmp", err);
}

enum farm_status farm_claim_read_taken(const struct farm_claim *claim, struct farm_bitmap *taken,
                                       struct farm_error *err) {
    *taken = (struct farm_bitmap){{0}};
    if (claim->fd < 0) return FARM_OK;
    for (int cpu = 0; cpu < FARM_BITMAP_BITS; cpu++) {
        const int held = is_taken(claim, cpu);
        if (held < 0) return farm_fail_errno(err, FARM_E_IO, "cannot read the locks on %s", claim->path);
        if (held) farm_bitmap_set(taken, cpu);
    }
    return FARM_OK;
}

static void unlock_cpus(const struct farm_claim *claim, const struct farm_bitmap *cpus, int end) {
    for (int cpu = farm_bitmap_next(cpus, 0); cpu >= 0 && cpu < end; cpu = farm_bitmap_next(cpus, cpu + 1)) {
        struct flock lock = lock_of(F_UNLCK, cpu, 1);
        fcntl(claim->fd, F_OFD_SETLK, &lock);
    }
}

// Lets one farm take at a time, so that one of two that collide succeeds. Another program may hold the folder's lock,
// therefore the attempts are bounded: claims stay disjoint without it, but both farms may fail.
static void enter(const struct farm_claim *claim) {
    for (int tries = 0; tries < ENTER_TRIES && flock(claim->fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK; tries++)
        usleep(ENTER_PAUSE_US);
}

// Locks a CPU, then looks: of two farms that lock the same one, at least the second finds the other's lock.
static enum farm_status lock_cpus(const struct farm_claim *claim, const struct farm_bitmap *cpus,
                                  struct farm_error *err) {
    for (int cpu = farm_bitmap_next(cpus, 0); cpu >= 0; cpu = farm_bitmap_next(cpus, cpu + 1)) {
        struct flock lock = lock_of(F_RDLCK, cpu, 1);
        const int held = fcntl(claim->fd, F_OFD_SETLK, &lock) ? -1 : is_taken(claim, cpu), reason = errno;
        if (!held) continue;
        unlock_cpus(claim, cpus, cpu + 1);
        errno = reason;
        if (held > 0) return farm_fail(err, FARM_E_BUSY, "CPU %d has just been claimed by another farm", cpu);
        return farm_fail_errno(err, FARM_E_IO, "cannot lock byte %d of %s", cpu, claim->path);
    }
    return FARM_OK;
}

enum farm_status farm_claim_take(const struct farm_claim *claim, const struct farm_bitmap *cpus,
                                 struct farm_error *err) {
    if (claim->fd < 0) return FARM_OK;
    enter(claim);
    const enum farm_status status = lock_cpus(claim, cpus, err);
    flock(claim->fd, LOCK_UN);
    return status;
}

void farm_claim_give(const struct farm_claim *claim, const struct farm_bitmap *cpus) {
    if (claim->fd >= 0) unlock_cpus(claim, cpus, FARM_BITMAP_BITS);
}

enum farm_status farm_claim_plan(const struct farm_claim *claim, const struct farm_machine *machine,
                                 struct farm_plan_request *request, struct farm_plan *plan, struct farm_error *err) {
    enum farm_status status = FARM_OK;
    if (claim->fd < 0) request->pin = false;
    for (int tries = 0; tries < PLAN_TRIES; tries++) {
        if (tries && (status = farm_claim_read_taken(claim, &request->taken, err))) return status;
        status = farm_plan_make(machine, request, plan, err);
        if (!status) status = farm_claim_take(claim, &plan->claim, err);
        if (status != FARM_E_BUSY) return status;
    }
    return status;
}

void farm_claim_close(struct farm_claim *claim) {
    if (claim->fd >= 0) close(claim->fd);
    claim->fd = -1;
}
