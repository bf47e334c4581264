// A saved replay of any bytes. The first byte selects what is done with the rest: a manifest of a right head and these
// lanes, or all of its bytes; then a chunk of lane 0. What loads has sound counters and actions that exist; what is
// refused leaves counters at 0.
//
//   bit 0  the input is the manifest's bytes as they are; else its head is right, and its checksum
//   bit 1  the records' checksums are made to fit
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../support/rings.h"
#include "base/crc32c.h"
#include "fuzz.h"
#include "replay/store.h"

enum { RAW = 1, SUMS_FIT = 2, STEPS = 64, MANIFEST_HEAD = 72, RECORD_HEAD = 24 };

static void write_file(const char *path, const void *data, size_t bytes) {
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes && !close(fd));
}

static void fit_records(uint8_t *chunk, size_t bytes, uint64_t layout, uint64_t origin) {
    const uint64_t of[3] = {layout, 0, origin};
    uint32_t packed;
    for (size_t at = 0; at + RECORD_HEAD <= bytes; at += RECORD_HEAD + packed) {
        memcpy(&packed, chunk + at + 4, sizeof packed);
        if (packed > bytes - at - RECORD_HEAD) break;
        const uint32_t crc = farm_crc32c(farm_crc32c(0, of, sizeof of), chunk + at + 4, RECORD_HEAD - 4 + packed);
        memcpy(chunk + at, &crc, sizeof crc);
    }
}

// Writes the input's files below `folder`; returns the manifest's name.
static const char *write_replay(struct fuzz_input *input, const char *folder, const struct farm_ring *ring) {
    static char name[FARM_REPLAY_NAME_BYTES];
    static uint8_t manifest[4096], chunk[4096];
    char path[256];
    uint8_t mode, length;
    const uint32_t shape[5] = {1, 1, ring->spec.width, STEPS, ring->spec.leaf_every};
    const uint64_t magic = 0x31304c5052524741;
    size_t bytes = MANIFEST_HEAD + 32 + (size_t)farm_leaf_slots(&ring->spec) * ring->spec.width * sizeof(float);
    fuzz_take(input, &mode, 1);
    fuzz_take(input, &length, 1);
    memset(manifest, 0, sizeof manifest);
    if (mode & RAW) {
        bytes = length;
        fuzz_take(input, manifest, bytes);
    } else {
        fuzz_take(input, manifest + MANIFEST_HEAD, 32); // consumed, end, bytes, origin
        memcpy(manifest, &magic, sizeof magic);
        memcpy(manifest + 12, shape, sizeof shape);
        memcpy(manifest + 32, &ring->layout.hash, sizeof ring->layout.hash);
    }
    const uint32_t crc = bytes > 12 ? farm_crc32c(0, manifest + 12, bytes - 12) : 0;
    if (bytes > 12) memcpy(manifest + 8, &crc, sizeof crc);
    snprintf(name, sizeof name, "1-%08x.manifest", crc);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    write_file(path, manifest, bytes);
    bytes = input->left < sizeof chunk ? input->left : sizeof chunk;
    fuzz_take(input, chunk, bytes);
    uint64_t origin;
    memcpy(&origin, manifest + MANIFEST_HEAD + 24, sizeof origin);
    if (mode & SUMS_FIT) fit_records(chunk, bytes, ring->layout.hash, origin);
    snprintf(path, sizeof path, "%s/lane-0.0", folder);
    write_file(path, chunk, bytes);
    return name;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static char folder[128];
    static struct farm_ring ring;
    struct farm_ring_spec spec = spec_of(1, 2, STEPS);
    spec.leaf_every = 4;
    if (!folder[0]) {
        snprintf(folder, sizeof folder, "%s/replay-%ld", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp", (long)getpid());
        assert(!mkdir(folder, 0700));
        ring = ring_of(spec, 0);
    }
    struct fuzz_input input = {data, bytes};
    struct farm_lane *lane = &ring.lanes[0];
    struct farm_stats stats = {0};
    struct farm_error err = {0};
    char path[256];
    lane->up->produced = lane->down->acted = lane->down->consumed = 0;
    const char *name = write_replay(&input, folder, &ring);
    const struct farm_replay_place place = {folder, 1, &spec};
    const enum farm_status status = farm_replay_load(&place, name, true, &ring, &stats, &err);
    const uint64_t consumed = farm_lane_consumed(lane), acted = farm_lane_acted(lane);
    if (status) {
        fuzz_check_refusal(status, &err);
        assert(!consumed && !acted && !lane->up->produced);
    } else {
        assert(consumed <= acted && acted - consumed <= STEPS && lane->up->produced == acted);
        for (uint64_t n = consumed; n < acted; n++)
            for (uint32_t e = 0; e < lane->width; e++) assert(*(uint32_t *)farm_lane_action(lane, n, e) < 5);
    }
    snprintf(path, sizeof path, "%s/%s", folder, name);
    unlink(path);
    return 0;
}
