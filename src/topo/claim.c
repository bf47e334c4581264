// See claim.h. fcntl(2), "Open file description locks".
#include "topo/claim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PLAN_TRIES = 8 };

// Opens an existing file, or makes it. Not in one call: with fs.protected_regular the kernel refuses O_CREAT on a file
// that another user made in a sticky folder. Follows no link, because every user may write to the folders.
static int open_or_make(const char *path) {
    int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    for (int tries = 0; tries < 2; tries++) {
        int fd = open(path, flags);
        if (fd >= 0 || errno != ENOENT) return fd;
        fd = open(path, flags | O_CREAT | O_EXCL, 0666);
        if (fd >= 0) {
            fchmod(fd, 0666); // despite the umask; if it fails, other users' farms do not see this one
            return fd;
        }
        if (errno != EEXIST) return -1; // otherwise another process has just made it
    }
    return -1;
}

static enum farm_status open_at(struct farm_claim *claim, const char *path, struct farm_error *err) {
    *claim = (struct farm_claim){.fd = -1};
    snprintf(claim->path, sizeof claim->path, "%s", path);
    claim->fd = open_or_make(path);
    if (claim->fd < 0)
        return farm_fail_errno(err, errno == EACCES || errno == EPERM ? FARM_E_PERMISSION : FARM_E_IO,
                               "cannot open %s, which shares the farms' claims", path);
    struct stat info;
    if (!fstat(claim->fd, &info) && S_ISREG(info.st_mode)) return FARM_OK;
    farm_claim_close(claim);
    return farm_fail(err, FARM_E_IO, "%s, which shares the farms' claims, is not a regular file", path);
}

enum farm_status farm_claim_open(struct farm_claim *claim, const char *path, struct farm_error *err) {
    if (path) return open_at(claim, path, err);
    if (!open_at(claim, "/dev/shm/farm-cpus.lock", NULL)) return FARM_OK;
    return open_at(claim, "/tmp/farm-cpus.lock", err);
}

static struct flock lock_of(short type, int first, int count) {
    return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = first, .l_len = count};
}

enum farm_status farm_claim_read_taken(const struct farm_claim *claim, struct farm_bitmap *taken,
                                       struct farm_error *err) {
    *taken = (struct farm_bitmap){{0}};
    if (claim->fd < 0) return FARM_OK;
    for (int cpu = 0; cpu < FARM_BITMAP_BITS; cpu++) {
        struct flock probe = lock_of(F_WRLCK, cpu, 1);
        if (fcntl(claim->fd, F_OFD_GETLK, &probe))
            return farm_fail_errno(err, FARM_E_IO, "cannot read the locks on %s", claim->path);
        if (probe.l_type != F_UNLCK) farm_bitmap_set(taken, cpu);
    }
    return FARM_OK;
}

static void unlock_cpus(const struct farm_claim *claim, const struct farm_bitmap *cpus, int end) {
    for (int cpu = farm_bitmap_next(cpus, 0); cpu >= 0 && cpu < end; cpu = farm_bitmap_next(cpus, cpu + 1)) {
        struct flock lock = lock_of(F_UNLCK, cpu, 1);
        fcntl(claim->fd, F_OFD_SETLK, &lock);
    }
}

// In ascending order: of two farms that request common CPUs, the one that locks the lowest of these first finds no lock
// of the other above it, so one of them succeeds.
enum farm_status farm_claim_take(const struct farm_claim *claim, const struct farm_bitmap *cpus,
                                 struct farm_error *err) {
    if (claim->fd < 0) return FARM_OK;
    for (int cpu = farm_bitmap_next(cpus, 0); cpu >= 0; cpu = farm_bitmap_next(cpus, cpu + 1)) {
        struct flock lock = lock_of(F_WRLCK, cpu, 1);
        if (!fcntl(claim->fd, F_OFD_SETLK, &lock)) continue;
        int reason = errno;
        unlock_cpus(claim, cpus, cpu);
        errno = reason;
        if (reason == EAGAIN || reason == EACCES)
            return farm_fail(err, FARM_E_BUSY, "CPU %d has just been claimed by another farm", cpu);
        return farm_fail_errno(err, FARM_E_IO, "cannot lock byte %d of %s", cpu, claim->path);
    }
    return FARM_OK;
}

void farm_claim_give(const struct farm_claim *claim, const struct farm_bitmap *cpus) {
    if (claim->fd >= 0) unlock_cpus(claim, cpus, FARM_BITMAP_BITS);
}

enum farm_status farm_claim_plan(const struct farm_claim *claim, const struct farm_machine *machine,
                                 struct farm_plan_request *request, struct farm_plan *plan, struct farm_error *err) {
    enum farm_status status = FARM_OK;
    if (claim->fd < 0) request->pin = false;
    for (int tries = 0; tries < PLAN_TRIES; tries++) {
        status = farm_claim_read_taken(claim, &request->taken, err);
        if (!status) status = farm_plan_make(machine, request, plan, err);
        if (!status) status = farm_claim_take(claim, &plan->claim, err);
        if (status != FARM_E_BUSY) return status;
    }
    return status;
}

void farm_claim_close(struct farm_claim *claim) {
    if (claim->fd >= 0) close(claim->fd);
    claim->fd = -1;
}
